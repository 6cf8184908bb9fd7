"""The exporter built on torch.jit.trace. Imports nothing that torch 1.13 does not have."""

import contextlib
import inspect
import os
import tempfile
import warnings

import onnx
import torch

from .. import onnx_schema
from ..errors import ExportError
from ..manifest import DTYPES, FLOATING
from .targets import patched, shaped

_TORCH_DTYPES = {name: getattr(torch, t) for name, (_, _, t) in DTYPES.items() if hasattr(torch, t)}
_NAMES = {dtype: name for name, dtype in _TORCH_DTYPES.items()}


def export(
    module, inputs, axes, functions, operators, results, opset_version, input_names, output_names, output_axes
):
    """(onnx.ModelProto, what was rewritten); parameters as for dynamo.export(). `output_axes`: {name: {axis: name}}."""
    symbolics = {cls: _function_symbolic(target, results[cls]) for cls, target in functions.items()}
    dynamic_axes = output_axes | {
        name: {axis: a.name for axis, a in per.items()}
        for name, per in zip(input_names, axes, strict=True)
        if per
    }
    domains = {
        t.operator.domain: t.function.library.version for t in (*functions.values(), *operators.values())
    }
    route = {"dynamo": False} if "dynamo" in inspect.signature(torch.onnx.export).parameters else {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message="The shape inference of .* type is missing")
        stack.enter_context(patched("symbolic", {cls: lambda _, s=s: s for cls, s in symbolics.items()}))
        for name, target in operators.items():
            # 9 for torch's second look, under the domain's version, which finds no later one; the model's own opset so
            # that nothing the user registered comes first.
            for version in (9, opset_version):
                stack.enter_context(_registered(name, _operator_symbolic(target), version))
        path = os.path.join(folder, "model.onnx")
        torch.onnx.export(
            module,
            tuple(inputs),
            path,
            opset_version=opset_version,
            input_names=input_names,
            output_names=output_names,
            dynamic_axes=dynamic_axes,
            custom_opsets=domains,
            **route,
        )
        model = onnx.load(path)
    _forget_invented(model, {name for axes in dynamic_axes.values() for name in axes.values()})
    return model, []


def _forget_invented(model, names):
    """Leaves unknown each dimension that torch gave a name of its own, one for each value, so that inference can find
    the one asked for."""
    for value in (*model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param") and dim.dim_param not in names:
                dim.ClearField("dim_param")


@contextlib.contextmanager
def _registered(name, symbolic, opset_version):
    """Has torch use `symbolic` for the torch operator, and what it used before afterwards."""
    previous = _lookup(name, opset_version)
    torch.onnx.register_custom_op_symbolic(name, symbolic, opset_version)
    try:
        yield
    finally:
        torch.onnx.unregister_custom_op_symbolic(name, opset_version)
        if previous is not None and _lookup(name, opset_version) is not previous:
            torch.onnx.register_custom_op_symbolic(name, previous, opset_version)


def _lookup(name, opset_version):
    try:
        from torch.onnx._internal.torchscript_exporter import registration
    except ImportError:
        from torch.onnx._internal import registration
    group = registration.registry.get_function_group(name)
    return None if group is None else group.get(opset_version)


def _function_symbolic(target, dtypes):
    """The `symbolic` of an autograd.Function."""
    return lambda g, *args: shaped(_node(g, target, args), dtypes, target, lambda v, d: _cast(g, v, d))


def _operator_symbolic(target):
    """What the exporter calls for each call of a torch operator."""

    def symbolic(g, *args):
        outputs = _node(g, target, args)
        returned = list(g.original_node.outputs())
        dtypes = tuple(_dtype_of(v) for v in returned)
        return shaped(outputs, dtypes if len(dtypes) > 1 else dtypes[0], target, lambda v, d: _cast(g, v, d))

    return symbolic


def _node(g, target, args):
    """Adds the operator's node; a tuple of all its outputs, with their types."""
    operator = target.operator
    args = [_unpacked(value) for value in args]
    inputs, attributes = target.place(args, _attribute_value)
    dtypes = {}
    for argument, value in zip(operator.inputs, inputs, strict=True):
        for v in value if argument.variadic else [value]:
            if isinstance(v, torch._C.Value) and not _is_number(v) and _dtype_of(v) in _NAMES:
                dtypes.setdefault(argument.dtype, _NAMES[_dtype_of(v)])
    placed = []
    for argument, value in zip(operator.inputs, inputs, strict=True):
        wanted = argument.dtype if argument.dtype in DTYPES else dtypes.get(argument.dtype)
        tensors = value if argument.variadic else [value]
        placed.append([_tensor(g, target, argument, v, wanted) for v in tensors if v is not None])
    flat = [
        v
        for argument, values in zip(operator.inputs, placed, strict=True)
        for v in (values or [_absent(g)])
        if argument is not None
    ]
    while flat and flat[-1].node().mustBeNone():
        flat.pop()
    suffixes = {"int": "i", "bool": "i", "float": "f", "string": "s", "ints": "i", "floats": "f"}
    encoded = {f"{a.name}_{suffixes[a.type]}": _encoded(a, attributes[a.name]) for a in operator.attributes}
    outputs = g.op(f"{operator.domain}::{operator.name}", *flat, outputs=len(operator.outputs), **encoded)
    outputs = tuple(outputs) if len(operator.outputs) > 1 else (outputs,)
    described = [
        [
            (
                _NAMES.get(_dtype_of(v)),
                v.type().varyingSizes() if v.isCompleteTensor() or _has_sizes(v) else None,
            )
            for v in vs
        ]
        for vs in placed
    ]
    ints = {a.name: attributes[a.name] for a in operator.attributes if a.type == "int"}
    for output, (dtype, sizes) in zip(outputs, onnx_schema.infer(operator, described, ints), strict=True):
        if dtype is not None:
            known = None if sizes is None else [s if isinstance(s, int) else None for s in sizes]
            tensor_type = torch._C.TensorType.get().with_dtype(_TORCH_DTYPES[dtype])
            output.setType(tensor_type if known is None else tensor_type.with_sizes(known))
    return outputs


def _encoded(attribute, value):
    if attribute.type in ("ints", "floats"):
        return list(value)
    return int(value) if attribute.type == "bool" else value


def _unpacked(value):
    """None for an absent argument, a list for a list of tensors, else the value itself."""
    if not isinstance(value, torch._C.Value):
        return value
    if value.node().mustBeNone():
        return None
    if value.node().kind() == "prim::ListConstruct" and any(
        isinstance(v.type(), torch._C.TensorType) and v.node().kind() != "onnx::Constant"
        for v in value.node().inputs()
    ):
        return list(value.node().inputs())
    return value


def _has_sizes(value):
    return isinstance(value.type(), torch._C.TensorType) and value.type().varyingSizes() is not None


def _dtype_of(value):
    return value.type().dtype() if isinstance(value.type(), torch._C.TensorType) else None


def _is_number(value):
    """Whether the trace put it there for a Python number: a constant without dimensions, 64 bits wide or bool."""
    if value.node().kind() != "onnx::Constant":
        return False
    constant = value.node().t("value")
    return constant.dim() == 0 and constant.dtype in (torch.float64, torch.int64, torch.bool)


def _attribute_value(value):
    """The Python value of an argument that becomes an attribute."""
    if not isinstance(value, torch._C.Value):
        return value
    node = value.node()
    if node.mustBeNone():
        return None
    if node.kind() == "prim::ListConstruct":
        return [_attribute_value(v) for v in node.inputs()]
    if node.kind() == "onnx::Constant":
        kind = node.kindOf("value")
        constant = getattr(node, kind)("value")
        return constant.tolist() if kind == "t" else constant
    if node.kind() == "prim::Constant":
        return value.toIValue()
    raise ExportError(f"an attribute must be constant, but is computed in the graph ({node.kind()})")


def _tensor(g, target, argument, value, dtype):
    """`value`, which may be a number, as a tensor of `dtype`."""
    if isinstance(value, torch._C.Value):
        if not _is_number(value) or dtype is None or _dtype_of(value) == _TORCH_DTYPES[dtype]:
            return value
        value = value.node().t("value").item()
    if dtype is None:
        raise ExportError(f"{target.source}: the type of input '{argument.name}' is not known: pass a tensor")
    target.check_scalar(argument, value, dtype in FLOATING)
    return g.op("Constant", value_t=torch.tensor(value, dtype=_TORCH_DTYPES[dtype]))


def _absent(g):
    value = g.op("prim::Constant")
    value.setType(torch._C.OptionalType.ofTensor())
    return value


def _cast(g, value, dtype):
    """`value` as torch.dtype `dtype`, which the replaced call returned."""
    if dtype is None or _dtype_of(value) == dtype:
        return value
    to = onnx_schema.type_proto(_NAMES[dtype], None).tensor_type.elem_type
    result = g.op("Cast", value, to_i=to)
    result.setType(value.type().with_dtype(dtype))
    return result
