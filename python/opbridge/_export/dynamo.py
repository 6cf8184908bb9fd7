"""The exporter built on torch.export."""

import contextlib
import logging
import warnings

import onnx.defs
import torch

from ..errors import Error, ExportError, InvalidArgumentError
from ..manifest import DTYPES, FLOATING
from .model import ORIGIN
from .targets import arguments_of, patched, shaped


def export(module, inputs, axes, functions, operators, results, opset_version, input_names, output_names):
    """(onnx.ModelProto, what was rewritten) of `module`, whose forward takes the tensors `inputs`.

    `axes`: one {axis: Axis} for each input. `functions`, `operators`: the Targets. `results`: for each class in
    `functions`, the dtype its calls return, a tuple where they return several tensors; None is any type.
    """
    if opset_version < 18:
        raise InvalidArgumentError(
            f"the dynamo exporter writes opset 18 or newer, not {opset_version}: use exporter='torchscript'"
        )
    table = {}
    for name, target in operators.items():
        packet = getattr(getattr(torch.ops, name.split("::")[0]), name.split("::")[1])
        for overload in packet.overloads():
            op = getattr(packet, overload)
            table[op] = _translation(target, op._schema)
    replacements = {cls: _replacement(cls, target, results[cls]) for cls, target in functions.items()}
    with _quiet():
        with patched("forward", replacements):
            program = _capture(module, inputs, axes)
        try:
            result = torch.onnx.export(
                program,
                (),
                dynamo=True,
                custom_translation_table=table,
                opset_version=opset_version,
                input_names=input_names,
                output_names=output_names,
                optimize=False,  # the default deletes `x + 1e-8`
                verbose=False,
            )
        except Exception as e:
            cause = _own_cause(e)
            if cause is None:
                raise
            raise cause from None
        return _tidied(result.model)


def _own_cause(error):
    """The opbridge error that torch wrapped in its own, if one is at the bottom of it."""
    while error is not None and not isinstance(error, Error):
        error = error.__cause__
    return error


def _capture(module, inputs, axes):
    spec = [{axis: torch.export.Dim.DYNAMIC(min=a.min, max=a.max) for axis, a in per.items()} for per in axes]
    # Without this a dimension that is 1 in the example would be taken for always 1.
    with torch.fx.experimental._config.patch(backed_size_oblivious=True):
        try:
            return torch.export.export(
                module, tuple(inputs), dynamic_shapes={"inputs": tuple(spec)}, strict=False
            )
        except torch._dynamo.exc.UserError as e:
            wanted = ", ".join(sorted({a.name for per in axes for a in per.values()}))
            raise ExportError(
                f"the model does not allow all the dynamic dimensions asked for ({wanted}); torch.export says: {e}"
            ) from e


def _translation(target, schema):
    """The function that the exporter calls with ONNX values for each call of the torch operator."""
    from onnxscript import values

    operator = target.operator
    onnx_op = values.Op(
        values.Opset(operator.domain, target.function.library.version),
        operator.name,
        onnx.defs.get_schema(operator.name, operator.domain),
    )
    count = len(schema.returns)

    def translate(*args, **kwargs):
        given = [
            args[n]
            if n < len(args)
            else kwargs.get(a.name, a.default_value if a.has_default_value() else None)
            for n, a in enumerate(schema.arguments)
        ]
        inputs, attributes = target.place(given, _attribute_value)
        dtypes = {
            argument.dtype: value.dtype
            for argument, values_ in zip(operator.inputs, inputs, strict=True)
            for value in (values_ if argument.variadic else [values_])
            if getattr(value, "dtype", None) is not None
        }
        flat = []
        for argument, value in zip(operator.inputs, inputs, strict=True):
            if isinstance(value, (bool, int, float)):
                if argument.dtype in DTYPES:
                    floating = argument.dtype in FLOATING
                else:
                    floating = dtypes[argument.dtype].is_floating_point()
                target.check_scalar(argument, value, floating)
            flat.extend(value if argument.variadic else [value])
        attributes = {k: int(v) if isinstance(v, bool) else v for k, v in attributes.items()}
        outputs = onnx_op(*flat, **attributes)
        if len(operator.outputs) == 1 or count == 1:
            return outputs if len(operator.outputs) == 1 else outputs[0]
        return tuple(outputs[:count])

    return translate


def _attribute_value(value):
    if hasattr(value, "dtype") and hasattr(value, "producer"):
        raise ExportError(
            f"an attribute must be constant, but is computed in the graph (value '{value.name}')"
        )
    return value


def _replacement(cls, target, dtypes):
    """For patched(): a forward of autograd.Function `cls` that calls the torch operator instead."""

    def forward(*args):
        inputs, attributes = target.place(arguments_of(cls, args))
        inputs = [
            _as_tensor(target, a, v, inputs) for a, v in zip(target.operator.inputs, inputs, strict=True)
        ]
        outputs = target.function.torch_op(*inputs, **attributes)
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        return shaped(outputs, dtypes, target, lambda o, dtype: o if dtype is None else o.to(dtype))

    return lambda original: forward


def _as_tensor(target, argument, value, inputs):
    """A Python number in the place of a tensor, as a constant of the type that the other inputs fix."""
    if not isinstance(value, (bool, int, float)):
        return value
    others = [
        v
        for a, v in zip(target.operator.inputs, inputs, strict=True)
        if a.dtype == argument.dtype and torch.is_tensor(v)
    ]
    fixed = DTYPES.get(argument.dtype)
    dtype = getattr(torch, fixed[2]) if fixed else others[0].dtype
    target.check_scalar(argument, value, dtype.is_floating_point)
    device = next(v for v in inputs if torch.is_tensor(v)).device
    return torch.tensor(value, dtype=dtype, device=device)


def _tidied(model):
    """(ModelProto, what was rewritten): only passes that leave every value as it is."""
    import onnx_ir.passes.common as passes
    from onnx_ir import to_proto

    before = _counts(model)
    for node in model.graph:
        # What opbridge.compare() reads stays; the stack traces have paths of this machine.
        kept = {key: node.metadata_props[key] for key in ORIGIN if key in node.metadata_props}
        node.metadata_props.clear()
        node.metadata_props.update(kept)
    steps = [
        passes.IdentityEliminationPass(),
        passes.RemoveUnusedNodesPass(),
        passes.RemoveUnusedFunctionsPass(),
    ]
    if model.functions:
        steps.insert(0, passes.InlinePass())
    for step in steps:
        step(model)
    after = _counts(model)
    rewritten = [
        f"{before[op] - after.get(op, 0)} {op} removed (no effect on any output)"
        for op in before
        if before[op] > after.get(op, 0)
    ]
    return to_proto(model), rewritten


def _counts(model):
    counts = {}
    for node in model.graph:
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    return counts


@contextlib.contextmanager
def _quiet():
    """Without the exporter's remarks on packages that are not installed, and on its own internals."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning)
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)
