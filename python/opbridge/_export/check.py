"""Does an exported model compute in ONNX Runtime what the PyTorch model computes?"""

import contextlib
from dataclasses import dataclass

import numpy as np
import onnx
import torch

from ..errors import ExportError
from ..ort_session import session
from .model import custom_nodes
from .targets import patched

# Largest difference allowed, as a part of the root mean square of the output.
TOLERANCES = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float32: 1e-3, torch.float64: 1e-7}


@dataclass
class Check:
    """One run of the exported model: the shapes of its inputs, and the largest difference of each output."""

    shapes: dict
    differences: dict

    def __str__(self):
        shapes = ", ".join(f"{name} {list(shape)}" for name, shape in self.shapes.items())
        differences = ", ".join(f"{name} {difference:.3g}" for name, difference in self.differences.items())
        return f"{shapes}: max difference {differences}"


class Checker:
    """Compares `model`, an onnx.ModelProto, with `eager`, a module of flat tensors, on CPU.

    `functions`, `operators`: the targets, whose calls are followed to find the first node that differs.
    """

    def __init__(self, model, libraries, eager, functions, operators, tolerance):
        self.model = model
        self.libraries = libraries
        self.eager = eager
        self.functions = functions
        self.operators = operators
        self.tolerance = tolerance
        self.session = self._session(model)
        self.inputs = [i.name for i in model.graph.input]
        self.outputs = [o.name for o in model.graph.output]

    def run(self, inputs, expected):
        """A Check; `expected` is what `eager` returned for `inputs`. Raises ExportError where they differ."""
        feeds = dict(zip(self.inputs, inputs, strict=True))
        actual = _run(self.session, feeds)
        differences = {}
        for value, got, wanted in zip(self.model.graph.output, actual, expected, strict=True):
            differences[value.name], problem = compare(got, wanted, self.tolerance)
            problem = problem or _declared_otherwise(value, got)
            if problem:
                shapes = ", ".join(f"{name} {list(t.shape)}" for name, t in feeds.items())
                raise ExportError(
                    f"the exported model does not compute what the model does: output '{value.name}' {problem}, with "
                    f"{shapes}. {self._first_node(inputs)}"
                )
        return Check({name: tuple(t.shape) for name, t in feeds.items()}, differences)

    def _session(self, model):
        if model.ByteSize() < 2**31:
            return session(model, self.libraries)
        raise ExportError("a model of 2 GiB or more cannot be checked: export it with check=False")

    def _first_node(self, inputs):
        """Says which custom node differs first, found by running both once more with every call recorded."""
        calls, again = self._recorded_calls(inputs)
        repeated = [compare(b, a, self.tolerance)[1] for a, b in zip(*again, strict=True)]
        if any(repeated):
            return "The model itself gives another result on each run."
        nodes = custom_nodes(self.model, self.libraries)
        by_operator = {}
        for node in nodes:
            by_operator.setdefault((node.domain, node.op_type), []).append(node)
        in_graph = {id(n) for n in self.model.graph.node}
        pairs = []
        for operator, recorded in calls.items():
            same = by_operator.get(operator, [])
            if len(same) == len(recorded) and all(id(n) in in_graph for n in same):
                pairs.extend(zip(same, recorded, strict=True))
        probe = onnx.ModelProto()
        probe.CopyFrom(self.model)
        wanted = [node.output[0] for node, _ in pairs]
        types = {v.name: v for v in (*probe.graph.value_info, *probe.graph.output)}
        probe.graph.output.extend(types[name] for name in wanted if name not in self.outputs)
        names = [o.name for o in probe.graph.output]
        results = dict(
            zip(names, _run(self._session(probe), dict(zip(self.inputs, inputs, strict=True))), strict=True)
        )
        expected = {id(node): recorded for node, recorded in pairs}
        for node in nodes:  # in the order in which they run
            if id(node) in expected:
                _, problem = compare(results[node.output[0]], expected[id(node)], self.tolerance)
                if problem:
                    return (
                        f"The first custom node to differ is '{node.name}' ({node.domain}::{node.op_type}): its output "
                        f"{problem}: look at the map entry that made it, and at the inputs it gets."
                    )
        return (
            "No custom node differs before that." if expected else "Its first node to differ was not found."
        )

    def _recorded_calls(self, inputs):
        """({(domain, name): first outputs of its calls}, the outputs of two eager runs)."""
        calls = {}

        def record(target, outputs):
            first = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
            calls.setdefault((target.operator.domain, target.operator.name), []).append(
                first.detach().clone()
            )

        def following(target):
            def replace(original):
                def forward(*args, **kwargs):
                    outputs = original(*args, **kwargs)
                    record(target, outputs)
                    return outputs

                return forward

            return replace

        with (
            patched("forward", {c: following(t) for c, t in self.functions.items()}),
            _following(self.operators, record),
        ):
            first = run_eager(self.eager, inputs)
        return calls, (first, run_eager(self.eager, inputs))


@contextlib.contextmanager
def _following(operators, record):
    """Calls record(target, outputs) for each call of the torch operators."""
    try:
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError:
        yield
        return

    class Follow(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            outputs = function(*args, **(kwargs or {}))
            target = operators.get(function._schema.name)
            if target is not None:
                record(target, outputs)
            return outputs

    with Follow():
        yield


def run_eager(module, inputs):
    """The module's tensors for clones of `inputs`, which it may change."""
    with torch.no_grad():
        return [t.detach().clone() for t in module(*(i.detach().clone() for i in inputs))]


def compare(actual, expected, tolerance=None):
    """(largest difference, or inf where they cannot be compared; what is wrong, or None) of two tensors."""
    actual, expected = actual.detach().cpu(), expected.detach().cpu()
    if actual.dtype != expected.dtype:
        return float("inf"), f"is {actual.dtype}, not {expected.dtype}"
    if actual.shape != expected.shape:
        return float("inf"), f"has shape {list(actual.shape)}, not {list(expected.shape)}"
    if actual.numel() == 0:
        return 0.0, None
    if not (expected.is_floating_point() or expected.is_complex()):
        difference = (actual.double() - expected.double()).abs().max().item()
        return difference, None if torch.equal(actual, expected) else f"differs by up to {difference:g}"
    a, e = actual.double(), expected.double()
    if not torch.equal(a.isnan(), e.isnan()):
        return float("inf"), (
            f"has {int(a.isnan().sum())} NaN of {a.numel()} values, the model has {int(e.isnan().sum())}"
        )
    special = e.isinf() | a.isinf()
    if not torch.equal(a[special], e[special]):
        return float("inf"), "has infinities in other places than the model"
    finite = ~special & ~e.isnan()
    if not finite.any():
        return 0.0, None
    difference = (a[finite] - e[finite]).abs().max().item()
    limit = (TOLERANCES.get(expected.dtype, 0) if tolerance is None else tolerance) * e[
        finite
    ].square().mean().sqrt()
    if difference <= limit:
        return difference, None
    return difference, f"differs by up to {difference:.3g} (allowed are {limit.item():.3g})"


def _declared_otherwise(value, tensor):
    """What is wrong with the type the model declares for an output, given one."""
    declared = [d.dim_value if d.HasField("dim_value") else None for d in value.type.tensor_type.shape.dim]
    if not value.type.tensor_type.HasField("shape"):
        return None
    fits = len(declared) == tensor.dim() and all(
        d in (None, s) for d, s in zip(declared, tensor.shape, strict=True)
    )
    return None if fits else f"is declared with shape {declared}, but has {list(tensor.shape)}"


def _run(ort_session, feeds):
    """All outputs of an ONNX Runtime session, as tensors."""
    import onnxruntime

    def value(tensor):
        tensor = tensor.detach().cpu().contiguous()
        if tensor.dtype == torch.bfloat16:
            return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
                tensor.view(torch.int16).numpy().view(np.uint16), onnx.TensorProto.BFLOAT16
            )
        return onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy())

    outputs = ort_session.run_with_ort_values(None, {name: value(t) for name, t in feeds.items()})
    return [_tensor(o) for o in outputs]


def _tensor(ort_value):
    if ort_value.element_type() == onnx.TensorProto.BFLOAT16:
        return torch.from_dlpack(ort_value._ortvalue)
    array = ort_value.numpy()
    return torch.from_numpy(np.array(array, copy=True))


# --- a second shape


def other_sizes(axes, inputs):
    """Candidates for a second set of inputs: {dimension name: size} lists, each fitting the limits asked for."""
    sizes, limits = {}, {}
    for per, tensor in zip(axes, inputs, strict=True):
        for axis, a in per.items():
            sizes[a.name] = tensor.shape[axis]
            low, high = limits.get(a.name, (1, None))
            low = max(low, a.min or 1)
            high = a.max if high is None else high if a.max is None else min(high, a.max)
            limits[a.name] = (low, high)

    def fit(name, size):
        low, high = limits[name]
        return max(low, size if high is None else min(size, high))

    for change in (lambda n: n // 2 if n > 1 else 2, lambda n: 2 * n, lambda n: n - 1 if n > 2 else n + 1):
        candidate = {name: fit(name, change(size)) for name, size in sizes.items()}
        if candidate != sizes and all(sizes.values()):
            yield candidate


def resized(inputs, axes, sizes):
    """`inputs` cut, or repeated from their beginning, along the dynamic dimensions."""
    result = []
    for per, tensor in zip(axes, inputs, strict=True):
        for axis, a in per.items():
            index = torch.arange(sizes[a.name], device=tensor.device) % tensor.shape[axis]
            tensor = tensor.index_select(axis, index)
        result.append(tensor)
    return result
