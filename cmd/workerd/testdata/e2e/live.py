"""A worker that does what it is told, for tests of what a worker sees and may do in each kind of environment."""
import os

from workerd import Worker

worker = Worker()


@worker.load
def load(ctx):
    if "STARTS" in os.environ:
        with open(os.environ["STARTS"], "a") as f:
            f.write(os.environ.get("VERSION", "1") + "\n")
    print("loaded version", os.environ.get("VERSION", "1"))
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
