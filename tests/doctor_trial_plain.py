"""What plain ONNX Runtime says of a project: one JSON job a line, each in a forked process, so that a crash is an
answer. Runs in the interpreter of any ONNX Runtime version; needs NumPy and nothing else."""

import json
import os
import signal
import sys

import numpy as np

TYPES = {
    "float": "f4",
    "double": "f8",
    "float16": "f2",
    "int32": "i4",
    "int64": "i8",
    "bool": "?",
    "string": "U",
}


def feed(argument, given):
    """Values for one input: those given, or small random ones with 2 in the place of each free dimension."""
    dtype = TYPES[argument.type[len("tensor(") : -1]]
    if argument.name in given:
        return np.asarray(given[argument.name], dtype)
    shape = [d if isinstance(d, int) else given.get("*", 2) for d in argument.shape]
    if dtype == "U":
        return np.full(shape, "Text")
    return np.random.default_rng(0).uniform(0, 1, shape).astype(dtype)


def answer(job):
    import onnxruntime as ort  # not before the fork: newer versions start a thread

    options = ort.SessionOptions()
    options.log_severity_level = 4
    for library in job["libraries"]:
        options.register_custom_ops_library(library)
    if job["model"] is None:
        return {"loads": True}
    session = ort.InferenceSession(job["model"], options, providers=["CPUExecutionProvider"])
    outputs = session.run(None, {a.name: feed(a, job["feeds"]) for a in session.get_inputs()})
    return {
        "shapes": [list(o.shape) for o in outputs],
        "finite": all(bool(np.isfinite(o).all()) for o in outputs if o.dtype.kind == "f"),
        "values": [o.ravel()[:64].astype(float).tolist() if o.dtype.kind in "fi" else [] for o in outputs],
    }


def in_a_fork(job):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a hang is an answer too
        for output in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        try:
            result = answer(job)
        except Exception as e:  # whatever the runtime raises is the answer
            result = {"error": f"{type(e).__name__}: {e}"}
        os.write(writer, json.dumps(result).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as f:
        text = f.read()
    _, status = os.waitpid(child, 0)
    if text:
        return json.loads(text)
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return {"error": f"the process ends: signal {number}, exit code {os.WEXITSTATUS(status)}"}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(in_a_fork(json.loads(line))), flush=True)
