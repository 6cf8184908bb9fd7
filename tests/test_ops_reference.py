"""Every case of every <op>_ref.py on every host, against its reference (see cases.py); and the oracle's cases.

NumPy, torch eager and ONNX Runtime take the cases one by one, the C++ runner all of an operator at once. In compiled
and exported models those that differ only in shapes go through one node of one model with dynamic shapes. With
TorchScript that is every case; torch.compile and dynamo, which take a second a node, have a node for each set of
attributes and inputs that is given, not for each element type and value.
"""

import os
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import opbridge
import pytest
import torch
from cases import oracle, references
from conftest import BUILD, ONNX_TYPES, built
from onnx import helper

REFERENCES = references()
CASES = [
    pytest.param(reference, case, id=f"{reference}-{case['name']}")
    for reference in REFERENCES
    for case in reference.cases
]
every_operator = pytest.mark.parametrize("reference", REFERENCES, ids=str)


@cache
def load(library):
    return opbridge.load(built(library), torch=True)


class Operator:
    """The operator of a reference in its library."""

    def __init__(self, reference):
        self.library = load(reference.library)
        self.declared = self.library.operators[reference.operator]
        self.name = self.declared.name
        self.call_numpy = getattr(self.library.ops, self.name)
        self.call_torch = getattr(getattr(torch.ops, self.declared.torch_namespace), self.declared.snake_name)

    def in_order(self, inputs):
        """Inputs by position, None where an optional one is absent."""
        return [inputs.get(i.name) for i in self.declared.inputs]

    def tensors(self, inputs):
        return [None if x is None else torch.from_numpy(x.copy()) for x in self.in_order(inputs)]

    def outputs_by_name(self, results):
        results = results if isinstance(results, (tuple, list)) else (results,)
        names = [o.name for o in self.declared.outputs]
        return dict(zip(names, map(np.asarray, results), strict=True))


operator_of = cache(Operator)


def run_numpy(operator, inputs, attributes, threads=2):
    operator.library.threads = threads
    return operator.outputs_by_name(operator.call_numpy(**inputs, **attributes))


def run_torch(operator, inputs, attributes):
    return operator.outputs_by_name(operator.call_torch(*operator.tensors(inputs), **attributes))


def run_onnxruntime(operator, inputs, attributes):
    model, feeds = model_of(operator, [dict(inputs=inputs, attributes=attributes)])
    session = opbridge.session(model, [operator.library.path])
    return operator.outputs_by_name(session.run(None, feeds))


HOSTS = {"numpy": run_numpy, "torch": run_torch, "onnxruntime": run_onnxruntime}


def model_of(operator, cases):
    """A model with a node for each case, and its inputs. Outputs come case by case, as declared."""
    nodes, feeds, outputs = [], {}, []
    for n, case in enumerate(cases):
        names = []
        for i, x in zip(operator.declared.inputs, operator.in_order(case["inputs"]), strict=True):
            names.append("" if x is None else f"{i.name}_{n}")
            if x is not None:
                feeds[names[-1]] = x
        produced = [f"{o.name}_{n}" for o in operator.declared.outputs]
        nodes.append(
            helper.make_node(
                operator.name, names, produced, domain=operator.library.domain, **case["attributes"]
            )
        )
        outputs += produced
    infos = [
        helper.make_tensor_value_info(name, ONNX_TYPES.get(x.dtype.name, onnx.TensorProto.BOOL), x.shape)
        for name, x in feeds.items()
    ]
    graph = helper.make_graph(nodes, "g", infos, [onnx.ValueInfoProto(name=o) for o in outputs])
    opsets = [
        helper.make_opsetid("", 17),
        helper.make_opsetid(operator.library.domain, operator.library.version),
    ]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize(("reference", "case"), CASES)
def test_case(reference, case, host):
    reference.check(case, HOSTS[host](operator_of(reference), case["inputs"], case["attributes"]))


# --- compiled and exported models


class Group:
    """Cases that one node of a model with dynamic shapes can take: alike but for their sizes."""

    def __init__(self, operator, cases):
        self.operator, self.cases = operator, cases
        self.dims = {}  # input -> a name, or None where the size is fixed, for each dimension
        for i in operator.declared.inputs:
            x = cases[0]["inputs"].get(i.name)
            if x is not None:
                self.dims[i.name] = next(d for d in map(self.names_of(x.ndim), i.shapes) if d is not None)
        # Sizes 0 and 1 would be taken for constants of the model.
        self.usual = [c for c in cases if min(self.sizes(c).values(), default=2) > 1]
        self.example = self.usual[0] if self.usual else self.resized(cases[0], lambda size: max(size, 2))
        least = self.example["attributes"].get("start", 0) + 1
        self.smaller = self.resized(self.example, lambda size: max(-(-2 * size // 3), least))

    @classmethod
    def all_of(cls, reference, operator, few=False):
        """The groups of an operator's cases; `few`: one for each set of attributes and inputs that is given."""
        groups = {}
        for case in reference.cases:
            groups.setdefault(cls.key(operator, case), []).append(case)
        if few:
            for key in sorted(groups, key=lambda key: np.float32 not in [i and i[0] for i in key[0]]):
                given = [i is not None for i in key[0]], [name for name, _ in key[1]]
                groups[str(given)] = groups.get(str(given), groups[key])
                del groups[key]
        return [cls(operator, cases) for cases in groups.values()]

    @staticmethod
    def key(operator, case):
        inputs = tuple(None if x is None else (x.dtype, x.ndim) for x in operator.in_order(case["inputs"]))
        return inputs, tuple(sorted(case["attributes"].items()))

    @staticmethod
    def names_of(rank):
        """A function from a declared shape to the names of its dimensions, None where the rank is another."""

        def names(shape):
            prefix = shape[0]["prefix"] if shape and isinstance(shape[0], dict) else None
            rest = shape[1:] if prefix else shape
            leading = rank - len(rest)
            if leading < 0 or (leading and not prefix):
                return None
            return [f"{prefix}{i}" for i in range(leading)] + [
                d if isinstance(d, str) else None for d in rest
            ]

        return names

    def sizes(self, case):
        return {
            name: size
            for i, names in self.dims.items()
            for name, size in zip(names, case["inputs"][i].shape, strict=True)
            if name is not None
        }

    def resized(self, case, size_of):
        inputs = dict(case["inputs"])
        for i, names in self.dims.items():
            for axis, name in enumerate(names):
                x = inputs[i]
                size = x.shape[axis] if name is None else size_of(x.shape[axis])
                if x.shape[axis] == 0 and size > 0:
                    x = np.zeros((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x.dtype)
                inputs[i] = np.take(x, np.arange(size) % max(x.shape[axis], 1), axis)
        return case | dict(name=f"{case['name']}_resized", inputs=inputs)


class Everything(torch.nn.Module):
    """An operator as often as there are groups of cases."""

    def __init__(self, groups):
        super().__init__()
        self.groups = groups

    def forward(self, *tensors):
        tensors, outputs = iter(tensors), []
        for group in self.groups:
            given = [next(tensors) if i.name in group.dims else None for i in group.operator.declared.inputs]
            result = group.operator.call_torch(*given, **group.example["attributes"])
            outputs += result if isinstance(result, (tuple, list)) else [result]
        return tuple(outputs)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@every_operator
def test_exported(reference, exporter, tmp_path):
    operator = operator_of(reference)
    groups = Group.all_of(reference, operator, few=exporter == "dynamo")
    names = [(f"{i}_{n}", i, n) for n, group in enumerate(groups) for i in group.dims]
    opbridge.export(
        Everything(groups),
        tuple(torch.from_numpy(groups[n].example["inputs"][i].copy()) for _, i, n in names),
        tmp_path / "m.onnx",
        exporter=exporter,
        input_names=[name for name, _, _ in names],
        dynamic_shapes={
            name: {axis: f"{d}_{n}" for axis, d in enumerate(groups[n].dims[i]) if d is not None}
            for name, i, n in names
        },
        libraries=[operator.library],
        check=False,
    )
    session = opbridge.session(tmp_path / "m.onnx", [operator.library])
    check_rounds(
        reference,
        groups,
        [[*g.cases, g.smaller] for g in groups],
        lambda cases: session.run(None, {name: cases[n]["inputs"][i] for name, i, n in names}),
    )


@every_operator
def test_compiled(reference):
    for group in Group.all_of(reference, operator_of(reference), few=True):
        torch._dynamo.reset()  # what was compiled before counts towards a limit
        model = torch.compile(Everything([group]), fullgraph=True, dynamic=True)

        def run(cases, group=group, model=model):
            tensors = (torch.from_numpy(cases[0]["inputs"][i].copy()) for i in group.dims)
            return [y.numpy() for y in model(*tensors)]

        check_rounds(reference, [group], [[*group.usual, group.smaller]], run)


def check_rounds(reference, groups, queues, run):
    """Runs a model of all groups until each queue of cases is through, and checks what comes out."""
    width = len(groups[0].operator.declared.outputs)
    for n in range(max(map(len, queues))):
        cases = [queue[min(n, len(queue) - 1)] for queue in queues]
        results = run(cases)
        for k, (group, case) in enumerate(zip(groups, cases, strict=True)):
            if n < len(queues[k]):
                outputs = group.operator.outputs_by_name(tuple(results[k * width : (k + 1) * width]))
                reference.check(case, outputs)


@every_operator
def test_cpp_runner(reference, tmp_path):
    """All cases as nodes of one model, run by the command, which is the C++ runner."""
    operator = operator_of(reference)
    model, feeds = model_of(operator, reference.cases)
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", **feeds)
    command = [
        BUILD / "bin" / "opbridge", "run", tmp_path / "m.onnx", "--library", operator.library.path,
        "--input", tmp_path / "in.npz", "--output-dir", tmp_path, "--output-format", "npz",
    ]  # fmt: skip
    environment = os.environ | {"OPBRIDGE_ORT": str(Path(onnxruntime.__file__).parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (written,) = (p for p in tmp_path.glob("*.npz") if p.name != "in.npz")
    outputs = np.load(written)
    for n, case in enumerate(reference.cases):
        reference.check(case, {o.name: outputs[f"{o.name}_{n}"] for o in operator.declared.outputs})


# --- what holds for every case


@pytest.mark.parametrize(("reference", "case"), CASES)
def test_same_bits_whatever_the_threads_and_the_batch_split(reference, case):
    operator = operator_of(reference)
    one = run_numpy(operator, case["inputs"], case["attributes"], threads=1)
    two = run_numpy(operator, case["inputs"], case["attributes"], threads=2)
    for name in one:
        assert one[name].tobytes() == two[name].tobytes(), name
    batched = [
        i.name
        for i in operator.declared.inputs
        if i.shapes[0][:1] == ["B"] and case["inputs"].get(i.name) is not None
    ]
    for b in range(len(case["inputs"][batched[0]]) if batched else 0):
        inputs = {k: x[b : b + 1] if k in batched else x for k, x in case["inputs"].items()}
        single = run_numpy(operator, inputs, case["attributes"])
        for name in one:
            assert single[name].tobytes() == one[name][b : b + 1].tobytes(), (name, b)


POINT_SET_OPERATORS = {
    "FarthestPointSample", "BallQuery", "ThreeNN", "ThreeInterpolate", "KNN", "L2Normalize",
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("name", "case"),
    [pytest.param(o, c, id=f"{o}-{n}") for o, n, c in oracle() if o in POINT_SET_OPERATORS],
)
def test_oracle(name, case, dtype):
    (operator,) = (operator_of(r) for r in REFERENCES if r.operator == name)
    batch = (lambda x: x) if name == "L2Normalize" else (lambda x: x[None])
    inputs = {k: batch(x.astype(dtype) if x.dtype == np.float32 else x) for k, x in case["in"].items()}
    attributes = {k: v.item() for k, v in case["attr"].items()}
    expected = {"y" if name == "L2Normalize" and k == "out" else k: v for k, v in case["out"].items()}
    for output, value in run_numpy(operator, inputs, attributes).items():
        if value.dtype == np.int32:
            np.testing.assert_array_equal(value, batch(expected[output]), err_msg=output)
        else:
            np.testing.assert_allclose(value, batch(expected[output]), 2e-6, 1e-7, err_msg=output)
