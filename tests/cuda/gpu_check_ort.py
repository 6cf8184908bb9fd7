"""gpu_check_ort.py MY_CLIP PVN3D CASES [--stand-in PROVIDER]: the CUDA kernels under ONNX Runtime. Prints a line for
each check, as gpu_check does. --stand-in takes another provider for CUDA's, which tries the script itself."""

import argparse
import sys
import time

import numpy as np
from gpu_check_torch import attribute, read_cases

CPU = "CPUExecutionProvider"


def line(status, name, detail):
    print(status, name, " ".join(str(detail).split()), sep="\t", flush=True)


def check(name, f):
    try:
        line("passed", name, f())
        return 0
    except Exception as e:  # whatever it is, the report is to say it
        line("failed", name, f"{type(e).__name__}: {e}")
        return 1


def model_of(operator):
    """y = (x w) limited to [-1, 1], times w: the operator between two MatMuls."""
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(0).normal(0, 0.05, (256, 256)).astype(np.float32)
    constants = [numpy_helper.from_array(v, n) for n, v in
                 (("w", weights), ("low", np.float32(-1)), ("high", np.float32(1)))]  # fmt: skip
    domain = "my_namespace" if operator == "my_clip" else ""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node(operator, ["a", "low", "high"], ["b"], name="clip", domain=domain),
        helper.make_node("MatMul", ["b", "w"], ["y"], name="last"),
    ]
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 256]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", value[:1], value[1:], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my_namespace", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def model_of_case(operator, inputs, attributes):
    """A model of one node, for these inputs."""
    import onnx
    from onnx import helper

    types = {
        "f16": "FLOAT16", "f32": "FLOAT", "f64": "DOUBLE", "i32": "INT32", "i64": "INT64", "bool": "BOOL"
    }  # fmt: skip
    given = [i for i in operator.inputs if i.name in inputs]
    variables = {i.dtype: helper.np_dtype_to_tensor_dtype(inputs[i.name].dtype) for i in given}
    node = helper.make_node(
        operator.name,
        [i.name if i.name in inputs else "" for i in operator.inputs],
        [o.name for o in operator.outputs],
        name="node",
        domain=operator.qualified_name.split("::")[0],
        **{name: attribute(operator, name, value) for name, value in attributes.items()},
    )
    while node.input and not node.input[-1]:
        node.input.pop()
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "g",
        [value(i.name, variables[i.dtype], [None] * inputs[i.name].ndim) for i in given],
        [
            value(o.name, variables.get(o.dtype) or getattr(onnx.TensorProto, types[o.dtype]), None)
            for o in operator.outputs
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(node.domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def every_operator(arguments, provider, how):
    """Each operator under the provider alone, as under the CPU's: a case of each element type."""
    import opbridge

    library = opbridge.load(arguments.pvn3d, torch=False)
    cases, failed = read_cases(arguments.cases), 0
    for operator in library.operators.values():
        own = {}
        for _, _, inputs, attributes in (c for c in cases if c[0] == operator.name):
            # The most that there is to do; of the stand-in, which is slow, the least.
            key = next(iter(inputs.values())).dtype
            size = sum(a.nbytes for a in inputs.values()) * (-1 if arguments.stand_in else 1)
            if key not in own or size > own[key][0]:
                own[key] = (size, inputs, attributes)

        def run(operator=operator, own=own):
            for _, inputs, attributes in own.values():
                model = model_of_case(operator, inputs, attributes)
                found = opbridge.placement(model, inputs, [library], **how)
                assert found.on(provider) == ["node"], str(found)
                got = opbridge.session(model, [library], **how).run(None, inputs)
                want = opbridge.session(model, [library]).run(None, inputs)
                tolerance = (
                    1e-3 if operator.name.startswith(("Euler", "AxisAngle")) else 0
                )  # each its own sine
                for g, w in zip(got, want, strict=True):
                    np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance / 100)
            return f"{', '.join(sorted(str(d) for d in own))} as on the CPU, {found.copies} copies"

        failed |= check(f"ONNX Runtime {operator.name}", run)
    return failed


def median_ms(session, x, runs=50):
    times = []
    for _ in range(runs + 5):
        begin = time.perf_counter()
        session.run(None, {"x": x})
        times.append(time.perf_counter() - begin)
    return 1e3 * sorted(times[5:])[runs // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for path in ("my_clip", "pvn3d", "cases"):
        parser.add_argument(path)
    parser.add_argument("--stand-in")
    arguments = parser.parse_args()
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import opbridge
    except ImportError as e:
        line("skipped", "ONNX Runtime", e)
        return 0
    provider = arguments.stand_in or "CUDAExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        line("skipped", "ONNX Runtime", f"onnxruntime {onnxruntime.__version__} has no {provider}")
        return 0
    how = (
        dict(providers=[provider, CPU]) if arguments.stand_in else dict(provider="cuda", allow_fallback=False)
    )
    model, x = model_of("my_clip"), np.random.default_rng(1).normal(0, 1, (512, 256)).astype(np.float32)
    failed = 0

    def placed():
        found = opbridge.placement(model, {"x": x}, [arguments.my_clip], **how)
        assert found.on(provider).count("clip") == 1, str(found)
        if not arguments.stand_in:
            assert not found.on(CPU), str(found)
        return f"{onnxruntime.__version__}: {found}"

    failed |= check("ONNX Runtime, no node falls back", placed)

    failed |= every_operator(arguments, provider, how)

    def repeated():
        session = opbridge.session(model, [arguments.my_clip], **how)
        first, runs = session.run(None, {"x": x})[0], 5 if arguments.stand_in else 200
        for _ in range(runs):
            assert session.run(None, {"x": x})[0].tobytes() == first.tobytes(), "a run differs"
        expected = opbridge.session(model, [arguments.my_clip]).run(None, {"x": x})[0]
        np.testing.assert_allclose(first, expected, 1e-2, 1e-2)  # MatMul may use TF32
        return f"{runs} runs between two MatMuls, bit-identical"

    failed |= check("ONNX Runtime, repeated", repeated)

    def bound():
        import torch

        session = opbridge.session(model, [arguments.my_clip], **how)
        t = torch.from_numpy(x).to("cpu" if arguments.stand_in else "cuda")
        y = opbridge.run_on_device(session, {"x": t})["y"]
        assert y.device == t.device
        assert y.cpu().numpy().tobytes() == session.run(None, {"x": x})[0].tobytes()
        return f"inputs and outputs on {y.device}"

    try:
        import torch
    except ImportError as e:
        line("skipped", "ONNX Runtime, inputs and outputs on the device", e)
    else:
        if arguments.stand_in or torch.cuda.is_available():
            failed |= check("ONNX Runtime, inputs and outputs on the device", bound)
        else:
            line("skipped", "ONNX Runtime, inputs and outputs on the device", "torch sees no CUDA device")

    def timed():
        big = np.random.default_rng(2).normal(0, 1, (16384, 256)).astype(np.float32)
        own = median_ms(opbridge.session(model, [arguments.my_clip], **how), big)
        rival = median_ms(opbridge.session(model_of("Clip"), **how), big)
        return (
            f"{own:.3f} ms with my_clip, {rival:.3f} ms with ONNX's Clip, between two MatMuls of 16384 x 256"
        )

    if arguments.stand_in:
        line("skipped", "benchmark ONNX Runtime", "the stand-in's times mean nothing")
    else:
        failed |= check("benchmark ONNX Runtime", timed)
    return failed


if __name__ == "__main__":
    sys.exit(main())
