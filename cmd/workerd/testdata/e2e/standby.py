"""A worker with a preload phase. It notes what it does in the file STARTS: its pid, its version, and which phase."""
import os
import time

from workerd import Worker

VERSION = "1"
worker = Worker()


def note(phase):
    with open(os.environ["STARTS"], "a") as f:
        f.write("%d %s %s\n" % (os.getpid(), VERSION, phase))


@worker.preload
def preload(ctx):
    import http.client  # what takes its time in real workers
    note("preload")


@worker.load
def load(ctx):
    if VERSION == "broken":
        raise RuntimeError("no weights for this version")
    for step in range(10):
        ctx.progress(step / 10, "shard %d" % step)
        time.sleep(float(os.environ.get("LOAD_SECONDS", 0)) / 10)
    note("load")
    return {"answered": 0}


@worker.method
def echo(model, ctx, text: str = "", sleep: float = 0):
    model["answered"] += 1
    time.sleep(sleep)
    return {"pid": os.getpid(), "text": text, "version": VERSION, "seen": model["answered"]}


if __name__ == "__main__":
    worker.run()
