"""What a call costs beyond its arithmetic.

Per node in ONNX Runtime: chains of 1 and 201 nodes on one element; the difference, divided by 200, is one node. my_clip
with every check, against ONNX Runtime's own Clip and Identity, in the newest runtime and an older one.
Per call from Python: my_clip on 8 floats, NumPy and torch.

  python bench/bench_dispatch.py [--json FILE]          goals: at most 1.2x a built-in node from
                                                        1.24 on, 1.8x below; 15 us direct, 25 us through torch.ops
"""

import argparse
import functools
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from timing import interleaved

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("OPBRIDGE_BUILD", ROOT / "build" / "release"))
LIBRARY = BUILD / "lib" / "libmy_custom_ops.so"
NODES = 200
OPERATORS = {"Identity": "", "Clip": "", "my_clip": "my_namespace"}


def chain(op, domain, nodes):
    from onnx import TensorProto, helper

    bounds = [] if op == "Identity" else ["lo", "hi"]
    names = ["x", *(f"t{i}" for i in range(nodes - 1)), "y"]
    graph = helper.make_graph(
        [helper.make_node(op, [a, *bounds], [b], domain=domain) for a, b in itertools.pairwise(names)],
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [
            helper.make_tensor("lo", TensorProto.FLOAT, [], [-1.0]),
            helper.make_tensor("hi", TensorProto.FLOAT, [], [1.0]),
        ],
    )
    opsets = [helper.make_opsetid("", 18)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def measure_nodes(models):
    """Runs in any environment that has onnxruntime and numpy: {op: ns per node}, quietest decile of interleaved
    runs."""
    import onnxruntime as ort

    sessions = {}
    for key, model in models.items():
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.register_custom_ops_library(str(LIBRARY))
        sessions[key] = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feed = {"x": np.array([0.5], np.float32)}
    for session in sessions.values():  # right before fast
        assert session.run(None, feed)[0][0] == 0.5
    quiet = quietest({key: functools.partial(s.run, None, feed) for key, s in sessions.items()})
    return {op: (quiet[f"{op} {NODES + 1}"] - quiet[f"{op} 1"]) / NODES for op in OPERATORS}


def quietest(calls):
    """Nanoseconds a call: the quietest decile."""
    times = interleaved(calls, runs=200, at_least=0.0005, percentile=10)
    return {name: t * 1e9 for name, t in times.items()}


def per_node(python):
    """measure_nodes() in the environment of another interpreter."""
    models = {
        f"{op} {n}": chain(op, domain, n).hex() for op, domain in OPERATORS.items() for n in (1, NODES + 1)
    }
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); import bench_dispatch as b; "
        "print(json.dumps(b.measure_nodes({k: bytes.fromhex(v) for k, v in json.load(sys.stdin).items()})))"
    )
    out = subprocess.run(
        [python, "-c", code, str(Path(__file__).parent)],
        input=json.dumps(models),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(out.stdout)


def per_call():
    import opbridge
    import torch

    library = opbridge.load(LIBRARY)
    x, lo, hi = np.linspace(-2, 2, 8, dtype=np.float32), np.array(-1, np.float32), np.array(1, np.float32)
    tx, tlo, thi = map(torch.from_numpy, (x, lo, hi))
    calls = {
        "library.ops.my_clip (NumPy)": lambda: library.ops.my_clip(x, lo, hi),
        "torch.ops.my_namespace.my_clip": lambda: torch.ops.my_namespace.my_clip(tx, tlo, thi),
        "numpy.clip": lambda: np.clip(x, lo, hi),
        "torch.clamp": lambda: torch.clamp(tx, tlo, thi),
    }
    for call in calls.values():
        assert np.array_equal(np.asarray(call()), np.clip(x, -1, 1))
    with torch.no_grad():
        return quietest(calls)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = {"per_node_ns": {}, "per_call_ns": per_call()}
    pythons = {"1.32.0 (newest)": sys.executable}
    for version in ("1.28.0", "1.24.1", "1.20.1", "1.16.3"):
        python = ROOT / "build" / "ort" / version / "bin" / "python"
        if python.exists():
            pythons[version] = str(python)
    print("ONNX Runtime, one node [us], quietest decile; ratio to Clip")
    for version, python in pythons.items():
        ns = result["per_node_ns"][version] = per_node(python)
        print(
            f"  {version:16}"
            + "  ".join(f"{op} {t / 1e3:.3f}" for op, t in ns.items())
            + f"   my_clip / Clip = {ns['my_clip'] / ns['Clip']:.2f}"
        )
    print("From Python, one call on 8 floats [us]")
    for name, ns in result["per_call_ns"].items():
        print(f"  {name:34}{ns / 1e3:6.2f}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
