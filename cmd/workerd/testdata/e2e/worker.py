"""A worker on the SDK for end-to-end tests: it reports on itself, and misbehaves as told."""
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

from workerd import Worker

worker = Worker()
kept = []  # children that live as long as this process


def note(name):
    """Append this process's pid to the file that a variable names."""
    if name in os.environ:
        with open(os.environ[name], "a") as f:
            f.write("%d\n" % os.getpid())


def shout(size):
    """Print so many bytes: lines, one of them of 10 MB, and bytes that are no UTF-8."""
    chunk = b"x" * 99 + b"\n"
    os.write(1, b"\xff\xfe not UTF-8 \x80\n")
    print("y" * 10_000_000)
    for _ in range(size // (1000 * len(chunk))):
        os.write(2, 1000 * chunk)


def predecessors():
    """What lives of earlier workers of this provider, by the marker that all of them carry."""
    own = os.environ["WORKERD_WORKER"]
    marker = ("WORKERD_WORKER=" + own[:own.rindex("/") + 1]).encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/environ" % pid, "rb") as f:
                found = [entry for entry in f.read().split(b"\0") if entry.startswith(marker)]
        except OSError:
            continue
        if found and not found[0].endswith(own.encode()):
            yield pid + " " + found[0].decode()


@worker.load
def load(ctx):
    note("STARTS")
    if "PREDECESSORS" in os.environ:
        with open(os.environ["PREDECESSORS"], "a") as f:
            f.writelines(line + "\n" for line in predecessors())
    if "LOAD_NOISE" in os.environ:
        shout(int(os.environ["LOAD_NOISE"]))
    seconds = float(os.environ.get("LOAD_SECONDS", 0))
    for step in range(10 if seconds else 0):
        ctx.progress(step / 10, "shard %d of 10" % step)
        time.sleep(seconds / 10)
    if "LOAD_EXIT" in os.environ:
        print("no weights found")
        os._exit(int(os.environ["LOAD_EXIT"]))
    if "LOAD_FAILS" in os.environ:
        raise RuntimeError(os.environ["LOAD_FAILS"])


@worker.method
def echo(model, ctx, **params):
    return {"pid": os.getpid(), "params": params}


@worker.method
def typed(model, ctx, pdb: str, count: int = 0, scale: float = 1.0, tags: list = ()):
    """Return the parameters with the types that they came with."""
    return {"pdb": pdb, "count": count, "scale": scale, "tags": list(tags)}


@worker.method
def sleep(model, ctx, seconds: float, deaf: bool = False):
    ctx.progress(0, "sleeping")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.02)
        if not deaf:
            ctx.check_cancelled()
    return {"pid": os.getpid()}


@worker.method
def environment(model, ctx):
    return {"env": dict(os.environ), "path": sys.path, "prefix": sys.prefix, "argv": sys.argv, "cwd": os.getcwd(), "groups": os.getgroups()}


@worker.method
def imports(model, ctx, name: str):
    try:
        __import__(name)
    except ImportError:
        return False
    return True


@worker.method
def noise(model, ctx, size: int):
    shout(size)
    return {"printed": size}


@worker.method
def chatter(model, ctx):
    """From now on print a line each 100 ms."""
    def chat():
        for n in itertools.count():
            print("line %d" % n)
            time.sleep(0.1)
    threading.Thread(target=chat, daemon=True).start()


@worker.method
def die(model, ctx, name: str, words: str = "about to die"):
    """Send this process a signal, or with the name "all" SIGKILL to its process group."""
    print(words)
    if name == "all":
        os.kill(0, signal.SIGKILL)
    os.kill(os.getpid(), getattr(signal, name))
    time.sleep(60)


def forever():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(600)


def square(n):
    return n * n


def forked(*steps):
    """Fork; the child takes the steps and stays. It holds stdout open."""
    if os.fork() == 0:
        for step in steps:
            step()
        forever()


def orphan():
    if os.fork() != 0:
        os._exit(0)


@worker.method
def fork(model, ctx):
    """Leave children of every sort, and return how many at least."""
    forked()
    forked(os.setsid)
    forked(os.setsid, orphan)
    forked(orphan, os.setsid, orphan)
    kept.append(subprocess.Popen(["sleep", "600"]))
    kept.append(subprocess.Popen(["sh", "-c", "trap '' TERM HUP; (setsid sleep 600 &) ; sleep 600; :"], start_new_session=True))
    for method in "fork", "spawn":
        pool = multiprocessing.get_context(method).Pool(2)
        pool.map(square, range(4))
        kept.append(pool)
    return 12


if __name__ == "__main__":
    worker.run()
