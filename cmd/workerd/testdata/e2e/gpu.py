"""A model that takes memory of the GPUs it was given, as the stand-in of NVML has it."""
import os
import time

from workerd import Worker

worker = Worker()


def hold(uuid, mib, linger):
    path = os.path.join(os.environ["NVML_STANDIN_SCRIPT"] + ".d", str(os.getpid()))
    with open(path + ".new", "w") as f:
        f.write("%s %d %g\n" % (uuid, mib, linger))
    os.rename(path + ".new", path)


@worker.load
def load(ctx):
    for uuid in ctx.gpus:
        hold(uuid, int(os.environ["MIB"]), float(os.environ.get("LINGER", "0")))
    return os.getpid()


@worker.method
def where(model, ctx):
    return {"pid": model, "gpus": ctx.gpus, "visible": os.environ.get("CUDA_VISIBLE_DEVICES")}


@worker.method
def compute(model, ctx, sec: float = 0.05):
    time.sleep(sec)
    return {"pid": model}


@worker.method
def broken(model, ctx):
    raise RuntimeError("CUDA error: device-side assert triggered")


if __name__ == "__main__":
    worker.run()
