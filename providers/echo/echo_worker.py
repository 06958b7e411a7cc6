"""A worker for demos and tests: it echoes, reports progress, sleeps, and crashes on request."""
import ctypes
import os
import platform
import signal as signals
import sys
import time

from workerd import InvalidParams, Worker

worker = Worker()


@worker.load
def load(ctx):
    seconds = float(os.environ.get("ECHO_LOAD_SECONDS") or 0)
    steps = max(1, min(100, int(seconds * 10)))
    for step in range(1, steps + 1):
        time.sleep(seconds / steps)
        ctx.progress(step / steps, "step %d of %d" % (step, steps))


@worker.method
def echo(model, ctx, **params):
    """Return the parameters as they came."""
    return params


@worker.method
def progress(model, ctx, steps: int = 5, delay: float = 0.2):
    """Report `steps` steps of progress, `delay` seconds apart."""
    if steps < 1:
        raise InvalidParams("steps: want at least 1, got %d" % steps)
    for step in range(1, steps + 1):
        wait(ctx, delay)
        ctx.progress(step / steps, "step %d of %d" % (step, steps))
    return {"steps": steps}


@worker.method
def sleep(model, ctx, seconds: float, stubborn: bool = False):
    """Sleep. A stubborn sleep does not notice that its request was cancelled or is overdue."""
    start = time.monotonic()
    if stubborn:
        time.sleep(max(0, seconds))
    else:
        wait(ctx, seconds)
    return {"slept": round(time.monotonic() - start, 3)}


@worker.method
def crash(model, ctx, mode: str = "exit", code: int = 1, signal: str = "KILL", after: float = 0.0):
    """End the process: mode "exit" with `code`, "signal" with `signal`, or "segfault"; `after` so many seconds."""
    if mode not in ("exit", "signal", "segfault"):
        raise InvalidParams('mode: want "exit", "signal" or "segfault", got "%s"' % mode)
    number = getattr(signals, "SIG" + signal.upper().replace("SIG", "", 1), None)
    if mode == "signal" and number is None:
        raise InvalidParams('signal: want a name such as "KILL" or "TERM", got "%s"' % signal)
    wait(ctx, after)
    print("crashing on request: %s" % {"exit": "exit %d" % code, "signal": signal, "segfault": mode}[mode],
          file=sys.stderr, flush=True)
    if mode == "exit":
        os._exit(code)
    if mode == "segfault":
        ctypes.string_at(0)
    os.kill(os.getpid(), number)


@worker.method
def info(model, ctx):
    """Describe the worker's process. Of the environment only the names: values can be secrets."""
    return {
        "provider": os.environ.get("WORKERD_PROVIDER"),
        "worker": os.environ.get("WORKERD_WORKER"),
        "pid": os.getpid(),
        "uid": os.getuid(),
        "gid": os.getgid(),
        "groups": sorted(os.getgroups()),
        "cwd": os.getcwd(),
        "home": os.environ.get("HOME"),
        "tmpdir": os.environ.get("TMPDIR"),
        "python": platform.python_version(),
        "executable": sys.executable,
        "environment": sorted(os.environ),
    }


def wait(ctx, seconds):
    """Sleep for so long, but notice within 50 ms that the request was cancelled."""
    end = time.monotonic() + seconds
    while True:
        ctx.check_cancelled()
        left = end - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, 0.05))


if __name__ == "__main__":
    worker.run()
