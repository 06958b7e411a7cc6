"""The worker that the transcripts of this folder are replayed against."""
import os
import time

from workerd import InvalidParams, Worker, WorkerError

worker = Worker("transcript")


def hold_on(name):
    """Wait while the file exists that a variable names."""
    while os.path.exists(os.environ.get(name, "")):
        time.sleep(0.005)


@worker.preload
def preload(ctx):
    hold_on("TRANSCRIPT_HOLD_PRELOAD")


@worker.load
def load(ctx):
    ctx.progress(0.5, "half")
    hold_on("TRANSCRIPT_HOLD_LOAD")
    return {"greeting": "hello"}


@worker.method
def greet(model, ctx, name: str, times: int = 1):
    """Greet somebody."""
    return {"text": " ".join([model["greeting"], name] * times)}


@worker.method
def echo(model, ctx, **params):
    """Return the parameters as they came."""
    return params


@worker.method
def hold(model, ctx):
    """Say that it has begun, and run until it is cancelled."""
    ctx.progress(0, "holding")
    while True:
        ctx.check_cancelled()
        time.sleep(0.005)


@worker.method
def count(model, ctx, to: int):
    """Report progress."""
    for n in range(1, to + 1):
        ctx.progress(n, "number %d" % n, to)
        time.sleep(2 * ctx.INTERVAL)  # so that each is sent
    return to


@worker.method
def fail(model, ctx, how: str = "raise"):
    """Fail in the way that is asked for."""
    if how == "raise":
        raise ValueError("it is broken")
    if how == "declare":
        raise WorkerError("out_of_paper", True, {"tray": 2}, "no paper in tray 2")
    if how == "params":
        raise InvalidParams("how: that makes no sense")
    if how == "nan":
        return {"scores": [0.5, 0.25, float("nan")]}
    if how == "set":
        return {"names": {"a"}}
    raise SystemExit(how)


@worker.method
def big(model, ctx, size: int):
    """Answer with a string of so many characters."""
    return "x" * size


if __name__ == "__main__":
    worker.run()
