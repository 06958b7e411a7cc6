"""A worker that does what it is told, for tests of what a worker sees and may do in each kind of environment."""
import os
import sys
import threading
import time

from workerd import Worker

worker = Worker()


def tick():
    """Print a number every 10 ms, for ever."""
    for n in range(1 << 30):
        sys.stdout.write("tick %d.\n" % n)
        sys.stdout.flush()
        time.sleep(0.01)


if "TICKS" in os.environ:  # an import that prints, and takes until there is a file of that name
    threading.Thread(target=tick, daemon=True).start()
    while not os.path.exists(os.path.join(os.environ["WORKERD_PROVIDER_DIR"], os.environ["TICKS"])):
        time.sleep(0.01)


@worker.load
def load(ctx):
    if "STARTS" in os.environ:
        with open(os.environ["STARTS"], "a") as f:
            f.write(os.environ.get("VERSION", "1") + "\n")
    sys.stdout.write("loaded version %s\n" % os.environ.get("VERSION", "1"))
    sys.stdout.flush()
    return {"calls": 0}


@worker.method
def count(state, ctx):
    """Say how often this process was asked."""
    state["calls"] += 1
    return {"calls": state["calls"], "version": os.environ.get("VERSION", "1")}


@worker.method
def run(state, ctx, code: str, **values):
    """Run statements with the values as variables. What they leave in `answer` is the answer."""
    names = {"state": state, "ctx": ctx, "answer": None}
    names.update(values)
    exec(code, names)
    return names["answer"]


if __name__ == "__main__":
    worker.run()
