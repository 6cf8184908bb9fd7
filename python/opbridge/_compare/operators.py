"""Each custom operator of a model on its own, on the very inputs that it received there."""

import importlib.util
import os
from dataclasses import dataclass

import numpy as np
import onnx

from .. import ort_session
from ..errors import InvalidArgumentError, nearest
from ..library import Library
from .metrics import Difference, incomparable
from .onnx_trace import _array, _ort_value


@dataclass
class OperatorRow:
    """An output of a custom operator alone, `against` something else that computed it from the same inputs."""

    op: str
    node: str
    against: str
    output: str
    difference: Difference

    @property
    def value(self):
        return f"{self.output} of '{self.node}' against {self.against}"

    def cells(self):
        d = self.difference
        return [self.op, self.node, self.against, self.output, str(d), "" if d.equal else "DIFFERS"]

    def to_json(self):
        return vars(self) | {"difference": self.difference.to_json()}


def compare_operators(side, libraries, library_b, references, tolerance, say=lambda text: None):
    """OperatorRows of all custom nodes in the main graph, `side` being compare._Side. Against: the model as a whole
    (the same library, in company), torch.ops where the library is registered there, `references`, `library_b`."""
    nodes = [n for n in side.model.nodes if _is_custom(side, n)]
    references = _References(references, [n.proto.op_type for n in nodes])
    rows = []
    for node in nodes:
        names = [n for n in node.proto.input if n]
        arrays = {n: side.array(n) for n in names}
        if any(a is None for a in arrays.values()):
            continue  # an input that is no tensor
        say(f"{node.op} alone ('{node.name}')")
        outputs = [n for n in node.proto.output if n]
        if any(n not in side.values for n in outputs):
            continue
        alone = _run_alone(side, node, arrays, outputs, libraries)
        inputs = [arrays.get(n) for n in node.proto.input]
        attributes = side.attributes(node)
        others = [("the whole model", lambda outputs=outputs: [side.values[n] for n in outputs])]
        function = _torch_function(side, node, libraries)
        if function is not None:
            others.append(
                (
                    "torch.ops",
                    lambda f=function, i=inputs, n=node: _positions(n, _call_torch(f, i, side.own(n))),
                )
            )
        reference = references.get(side, node)
        if reference is not None:
            others.append(
                ("reference", lambda r=reference, i=inputs, a=attributes, n=node: _positions(n, r(i, a)))
            )
        if library_b is not None:
            others.append(
                (_name(library_b), lambda n=node, a=arrays, o=outputs: _run_alone(side, n, a, o, library_b))
            )
        for against, compute in others:
            try:
                expected = compute()
            except Exception as e:  # ONNX Runtime's, torch's or the reference's own: a finding
                if isinstance(e, InvalidArgumentError) and against == "reference":
                    raise
                wrong = incomparable(
                    f"does not run: {str(e).splitlines()[0] if str(e) else type(e).__name__}"
                )
                rows += [OperatorRow(node.op, node.name, against, name, wrong) for name in outputs]
                continue
            for name, a, e in zip(outputs, alone, expected, strict=True):
                difference = side.compare(name, node, a, np.asarray(e), tolerance)
                rows.append(OperatorRow(node.op, node.name, against, _declared(side, node, name), difference))
    return rows


def _is_custom(side, node):
    return not ort_session._is_built_in(node.proto.domain)


def _declared(side, node, name):
    operator = side.operator(node)
    index = list(node.proto.output).index(name)
    return operator.outputs[index].name if operator and index < len(operator.outputs) else name


def _run_alone(side, node, arrays, outputs, libraries):
    """The node's outputs, computed by a model that has nothing else, with one library or a list of them."""
    import onnxruntime

    def value(name, array):
        dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        return onnx.helper.make_tensor_value_info(name, dtype, [None] * array.ndim)

    graph = onnx.helper.make_graph(
        [node.proto],
        "one node",
        [value(n, a) for n, a in arrays.items()],
        [value(n, side.values[n]) for n in outputs],
    )
    model = onnx.helper.make_model(graph, opset_imports=side.model.proto.opset_import)
    model.ir_version = min(side.model.proto.ir_version, model.ir_version)
    if isinstance(libraries, (str, os.PathLike, Library)):
        # Not by opbridge.load(): two builds of one domain cannot be opened side by side, but each has its session.
        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library(os.fspath(getattr(libraries, "path", libraries)))
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    else:
        session = ort_session.session(model, libraries)
    feeds = {n: _ort_value(onnxruntime, np.ascontiguousarray(a).reshape(a.shape)) for n, a in arrays.items()}
    return [_array(v) for v in session.run_with_ort_values(outputs, feeds)]


def _torch_function(side, node, libraries):
    """The library's operator, if it is registered with torch."""
    for library in ort_session._open(libraries)[0]:
        for function in library.ops:
            if (function.operator.domain, function.operator.name) == (node.proto.domain, node.proto.op_type):
                return function if function.torch_op is not None else None
    return None


def _call_torch(function, inputs, attributes):
    import torch

    from .torch_trace import to_numpy

    def tensor(array):
        if array is None:
            return None
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
        return torch.from_numpy(np.array(array))

    tensors = [tensor(a) for a in inputs]
    if function.operator.variadic:
        first = len(function.operator.inputs) - 1
        tensors[first:] = [tensors[first:]]
    outputs = function(*tensors, **attributes)
    return [to_numpy(o) for o in (outputs if isinstance(outputs, (tuple, list)) else [outputs])]


def _positions(node, outputs):
    """Of all that an operator returns, what the node asks for."""
    outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    wanted = [k for k, name in enumerate(node.proto.output) if name]
    if wanted and wanted[-1] >= len(outputs):
        raise InvalidArgumentError(
            f"the reference of {node.op} returns {len(outputs)} arrays, node '{node.name}' has {wanted[-1] + 1} outputs"
        )
    return [outputs[k] for k in wanted]


def _name(library):
    return os.path.basename(os.fspath(getattr(library, "path", library)))


class _References:
    """`given`: {operator: function(*inputs, **attributes), or the path of its <op>_ref.py}, or a folder of these."""

    def __init__(self, given, operators):
        self.folder = None
        self.given = {}
        if isinstance(given, (str, os.PathLike)):
            self.folder = os.fspath(given)
            if not os.path.isdir(self.folder):
                raise InvalidArgumentError(
                    f"references: no folder '{self.folder}'; for one file give {{operator: path}}"
                )
        elif given:
            self.given = {name.rpartition("::")[2]: value for name, value in given.items()}
            unknown = [name for name in self.given if name not in operators]
            if unknown:
                raise InvalidArgumentError(
                    f"references names the operator '{unknown[0]}'{nearest(unknown[0], operators)}; the model has "
                    f"{', '.join(sorted(set(operators))) or 'no custom operator'}"
                )

    def get(self, side, node):
        """A function of (inputs, attributes) that returns all outputs by position, or None."""
        operator, name = side.operator(node), node.proto.op_type
        found = self.given.get(name)
        if found is None and self.folder is not None and operator is not None:
            snake = operator.snake_name
            for path in (f"{snake}_ref.py", f"{snake}/{snake}_ref.py"):
                if os.path.exists(os.path.join(self.folder, path)):
                    found = os.path.join(self.folder, path)
        if found is None or callable(found):
            return found and (lambda inputs, attributes: found(*inputs, **attributes))
        return _from_file(os.fspath(found), operator, name)


def _from_file(path, operator, name):
    """What an <op>_ref.py has: reference(inputs, attributes), which takes and returns dicts by the signature's names,
    or <op>(*inputs, **attributes)."""
    if not os.path.exists(path):
        raise InvalidArgumentError(f"references: no file '{path}'")
    if operator is None:
        raise InvalidArgumentError(
            f"references: '{path}' needs the declaration of {name}, which no library given has: give a function"
        )
    spec = importlib.util.spec_from_file_location(f"opbridge_reference_{operator.snake_name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "reference"):
        function = getattr(module, operator.snake_name, None)
        if function is None:
            raise InvalidArgumentError(
                f"references: '{path}' has no function reference(inputs, attributes) or {operator.snake_name}(*inputs)"
            )
        return lambda inputs, attributes: function(*inputs, **attributes)

    def call(inputs, attributes):
        given = {a.name: i for a, i in zip(operator.inputs, inputs, strict=False) if i is not None}
        outputs = module.reference(given, attributes)
        return [outputs.get(o.name) for o in operator.outputs]

    return call
