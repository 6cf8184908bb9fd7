"""How the benchmarks of operators are run: contestants side by side in one process, each checked before it is timed.

A case is a function that returns (contestants, right): callables by name, ours under OURS, and right(name, result).
All contestants of a case run in turn, so that noise hits all alike; the ratio is the best exact rival's median over
ours (process CPU time with one thread, else wall time). Goals are those of one thread. Where a call of ours takes over
a millisecond, it then runs with one thread and with two in turn: wall time, quietest decile.
"""

import argparse
import functools
import importlib.metadata
import json
import os
import sys
import time
from pathlib import Path


def arguments():
    parser = argparse.ArgumentParser(
        description=sys.modules["__main__"].__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--only", default="", help="names of cases, or their beginnings, separated by commas")
    parser.add_argument("--json", help="where to write the times")
    return parser.parse_args()


ARGS = arguments()
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = str(ARGS.threads)
PROCESSORS = os.sched_getaffinity(0)
if ARGS.threads == 1:
    os.sched_setaffinity(0, {max(PROCESSORS)})

import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
import opbridge  # noqa: E402
import torch  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402
from opbridge.paths import library_path  # noqa: E402
from timing import interleaved  # noqa: E402

torch.set_num_threads(ARGS.threads)
torch.set_grad_enabled(False)
OPS = opbridge.load(library_path("pvn3d_custom_op"), torch=False)
OPS.threads = ARGS.threads
OURS = "opbridge"


def optional(name):
    try:
        return __import__(name)
    except ImportError:
        print(f"not installed, left out: {name}")
        return None


def session(nodes, inputs, initializers=(), output="y", library=None, threads=ARGS.threads):
    """A callable that runs a model on `inputs`: of ONNX Runtime's own operators, and those of a library."""
    infos = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for k, v in inputs.items()
    ]
    out = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", infos, out, list(initializers))
    opsets = [helper.make_opsetid("", 18)]
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    if library is not None:
        opsets.append(helper.make_opsetid(library.domain, library.version))
        options.register_custom_ops_library(library.path)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    made = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values = {k: ort.OrtValue.ortvalue_from_numpy(v) for k, v in inputs.items()}

    def call():
        return made.run_with_ort_values([output], values)[0].numpy()

    call.with_threads = functools.partial(session, nodes, inputs, initializers, output, library)
    return call


def measure(contestants):
    """Milliseconds of each contestant: the median over runs, all contestants in turn."""
    clock = time.process_time if ARGS.threads == 1 else time.perf_counter
    return {name: t * 1e3 for name, t in interleaved(contestants, ARGS.runs, clock).items()}


def one_and_two_threads(ours):
    """Milliseconds of wall time with one thread and with two."""

    def direct(threads):
        def call():
            OPS.threads = threads
            return ours()

        return call

    os.sched_setaffinity(0, PROCESSORS)
    with_threads = getattr(ours, "with_threads", None)
    calls = {n: with_threads(threads=n) if with_threads else direct(n) for n in (1, 2)}
    if not np.array_equal(np.asarray(calls[1]()), np.asarray(calls[2]())):
        sys.exit("two threads give other bits than one")
    times = interleaved(calls, max(20, ARGS.runs), at_least=0, percentile=10)
    OPS.threads = ARGS.threads
    os.sched_setaffinity(0, {max(PROCESSORS)})
    return {n: t * 1e3 for n, t in times.items()}


def run(cases, rivals):
    """Runs {name: (case, goal)}; `rivals` are the installed packages whose versions belong in the report."""
    versions = {m: importlib.metadata.version(m) for m in ("torch", "onnxruntime", "numpy", *rivals)}
    report = {"threads": ARGS.threads, "versions": versions, "cases": {}, "one_and_two_threads": {}}
    missed = []
    for name, (make, goal) in cases.items():
        if ARGS.only and not any(name.startswith(o) for o in ARGS.only.split(",")):
            continue
        contestants, right = make()
        for who, run in contestants.items():
            if not right(who, np.asarray(run())):
                sys.exit(f"{name}: the result of {who} is wrong")
        times = measure(contestants)
        others = {who: t for who, t in times.items() if who != OURS}
        best = min(others, key=others.get) if others else None
        ratio = others[best] / times[OURS] if others else float("nan")
        if not ratio >= goal:
            missed.append(name)
        report["cases"][name] = {"ms": times, "best_rival": best, "ratio": ratio, "goal": goal}
        print(f"{name:36s} {times[OURS]:8.3f} ms   {ratio:5.2f}x (goal {goal}x)   " + ", ".join(
            f"{who} {t:.3f}" for who, t in sorted(others.items(), key=lambda item: item[1])
        ), flush=True)  # fmt: skip
        if ARGS.threads == 1 and len(PROCESSORS) > 1 and times[OURS] > 1:
            one, two = report["one_and_two_threads"][name] = list(
                one_and_two_threads(contestants[OURS]).values()
            )
            print(f"{'':36s} {one:8.3f} ms with one thread, {two:.3f} with two: {one / two:.2f}x", flush=True)
    print("goals missed: " + (", ".join(missed) or "none"))
    if ARGS.json:
        Path(ARGS.json).write_text(json.dumps(report, indent=1) + "\n")
