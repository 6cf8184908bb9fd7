"""Every case of every <op>_ref.py of ops/pvn3d, on every host, against its reference; and the oracle's cases.

A reference module has OPERATOR (the ONNX name), reference(inputs, attributes) -> outputs by name, cases() yielding
dict(name, inputs, attributes), and COMPARE: output -> "exact" or ("close", rtol, atol). Where the operator has a
gradient, reference_grad, grad_cases and COMPARE_GRAD say the same of <OPERATOR>Grad.
"""

import importlib.util
import io
import lzma
from pathlib import Path

import numpy as np
import onnx
import opbridge
import pytest
import torch
from conftest import ONNX_TYPES, ROOT, built
from onnx import helper

LIBRARY = "pvn3d_custom_op"


def load_reference(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Reference:
    """What a reference module says of its operator or of the operator's gradient."""

    def __init__(self, module, grad):
        self.operator = module.OPERATOR + ("Grad" if grad else "")
        self.compute = module.reference_grad if grad else module.reference
        self.known = {}
        self.cases = list(module.grad_cases() if grad else module.cases())
        self.compare = module.COMPARE_GRAD if grad else module.COMPARE

    def expected(self, case):
        if case["name"] not in self.known:
            self.known[case["name"]] = self.compute(case["inputs"], case["attributes"])
        return self.known[case["name"]]


MODULES = [load_reference(path) for path in sorted((ROOT / "ops" / "pvn3d").glob("*/*_ref.py"))]
REFERENCES = [
    Reference(m, grad) for m in MODULES for grad in (False, True) if not grad or hasattr(m, "grad_cases")
]
CASES = [
    pytest.param(reference, case, id=f"{reference.operator}-{case['name']}")
    for reference in REFERENCES
    for case in reference.cases
]


@pytest.fixture(scope="session")
def library():
    return opbridge.load(built(LIBRARY), torch=True)


def in_order(library, operator, inputs):
    """Inputs by position, None where an optional one is absent."""
    return [inputs.get(i.name) for i in library.operators[operator].inputs]


def outputs_by_name(library, operator, results):
    results = results if isinstance(results, (tuple, list)) else (results,)
    names = [o.name for o in library.operators[operator].outputs]
    return dict(zip(names, map(np.asarray, results), strict=True))


def run_numpy(library, operator, inputs, attributes, threads=2):
    library.threads = threads
    return outputs_by_name(library, operator, getattr(library.ops, operator)(**inputs, **attributes))


def run_torch(library, operator, inputs, attributes):
    namespace = getattr(torch.ops, library.domain.replace(".", "_"))
    tensors = [None if x is None else torch.from_numpy(x.copy()) for x in in_order(library, operator, inputs)]
    results = getattr(namespace, library.operators[operator].snake_name)(*tensors, **attributes)
    return outputs_by_name(library, operator, results)


def one_node_model(library, operator, inputs, attributes):
    declared = library.operators[operator]
    present = {name: x for name, x in inputs.items() if x is not None}
    names = [i.name if i.name in present else "" for i in declared.inputs]
    outputs = [o.name for o in declared.outputs]
    graph_inputs = [
        helper.make_tensor_value_info(name, ONNX_TYPES.get(x.dtype.name, onnx.TensorProto.BOOL), x.shape)
        for name, x in present.items()
    ]
    node = helper.make_node(operator, names, outputs, domain=library.domain, **attributes)
    graph = helper.make_graph([node], "g", graph_inputs, [onnx.ValueInfoProto(name=o) for o in outputs])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(library.domain, library.version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), present


def run_onnxruntime(library, operator, inputs, attributes):
    model, present = one_node_model(library, operator, inputs, attributes)
    session = opbridge.session(model, [library.path])
    return outputs_by_name(library, operator, session.run(None, present))


HOSTS = {"numpy": run_numpy, "torch": run_torch, "onnxruntime": run_onnxruntime}


def check(reference, case, outputs):
    expected = reference.expected(case)
    assert expected.keys() == outputs.keys() == reference.compare.keys()
    for name, value in outputs.items():
        assert (value.dtype, value.shape) == (expected[name].dtype, expected[name].shape), name
        if reference.compare[name] == "exact":
            np.testing.assert_array_equal(value, expected[name], err_msg=name)
        else:
            _, rtol, atol = reference.compare[name]
            if value.dtype == np.float16:
                rtol, atol = max(rtol, 1e-3), max(atol, 6e-8)
            np.testing.assert_allclose(value, expected[name], rtol, atol, err_msg=name)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize(("reference", "case"), CASES)
def test_case(library, reference, case, host):
    outputs = HOSTS[host](library, reference.operator, case["inputs"], case["attributes"])
    check(reference, case, outputs)


@pytest.mark.parametrize(("reference", "case"), CASES)
def test_same_bits_whatever_the_threads_and_the_batch_split(library, reference, case):
    one = run_numpy(library, reference.operator, **without_name(case), threads=1)
    two = run_numpy(library, reference.operator, **without_name(case), threads=2)
    for name in one:
        assert one[name].tobytes() == two[name].tobytes(), name
    declared = library.operators[reference.operator]
    batched = [
        i.name for i in declared.inputs if i.shapes[0][:1] == ["B"] and case["inputs"].get(i.name) is not None
    ]
    if not batched or reference.operator.startswith("L2Normalize"):
        return
    for b in range(len(case["inputs"][batched[0]])):
        inputs = {k: x[b : b + 1] if k in batched else x for k, x in case["inputs"].items()}
        single = run_numpy(library, reference.operator, inputs, case["attributes"])
        for name in one:
            assert single[name].tobytes() == one[name][b : b + 1].tobytes(), (name, b)


def without_name(case):
    return dict(inputs=case["inputs"], attributes=case["attributes"])


def oracle():
    """The oracle's cases: operator, case, {"in": {...}, "attr": {...}, "out": {...}}."""
    path = Path(__file__).parent / "data" / "oracle.npz.xz"
    arrays = np.load(io.BytesIO(lzma.decompress(path.read_bytes())))
    cases = {}
    for key in arrays.files:
        operator, case, group, name = key.split("/")
        cases.setdefault((operator, case), {"in": {}, "attr": {}, "out": {}})[group][name] = arrays[key]
    return [pytest.param(operator, case, id=f"{operator}-{name}") for (operator, name), case in cases.items()]


POINT_SET_OPERATORS = {
    "FarthestPointSample", "BallQuery", "ThreeNN", "ThreeInterpolate", "KNN", "L2Normalize",
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("operator", "case"), [p for p in oracle() if p.values[0] in POINT_SET_OPERATORS])
def test_oracle(library, operator, case, dtype):
    batch = (lambda x: x) if operator == "L2Normalize" else (lambda x: x[None])
    inputs = {k: batch(x.astype(dtype) if x.dtype == np.float32 else x) for k, x in case["in"].items()}
    attributes = {k: v.item() for k, v in case["attr"].items()}
    expected = {"y" if operator == "L2Normalize" and k == "out" else k: v for k, v in case["out"].items()}
    for name, value in run_numpy(library, operator, inputs, attributes).items():
        if value.dtype == np.int32:
            np.testing.assert_array_equal(value, batch(expected[name]), err_msg=name)
        else:
            np.testing.assert_allclose(value, batch(expected[name]), 2e-6, 1e-7, err_msg=name)
