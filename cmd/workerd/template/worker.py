"""A worker to start from: load() runs once, then each method answers requests with the model in memory."""
import re

from workerd import InvalidParams, Worker

worker = Worker()


@worker.load
def load(ctx):
    """Import and load what is slow here. ctx.weights and ctx.work_root are folders that the manifest names."""
    ctx.progress(0.5, "loading")
    return re.compile(r"\w+")


@worker.method
def count(model, ctx, text: str, longest: int = 3):
    """Count the words of a text and name its longest ones."""
    if longest < 0:
        raise InvalidParams("longest: want 0 or more, got %d" % longest)
    words = model.findall(text)
    ctx.check_cancelled()
    ctx.progress(0.5, "%d words" % len(words))
    return {"words": len(words), "longest": sorted(set(words), key=lambda w: (-len(w), w))[:longest]}


if __name__ == "__main__":
    worker.run()
