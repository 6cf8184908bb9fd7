"""Makes a library's operators known to the `onnx` package, from its manifest: schemas with type and shape inference for
onnx.checker and onnx.shape_inference, and operator classes for onnx.reference."""

import onnx
import onnx.defs
from onnx.reference.op_run import OpRun

from . import shapes
from .errors import InvalidArgumentError, LoadError
from .manifest import DTYPES

_TENSOR_PROTO = {
    "f16": onnx.TensorProto.FLOAT16,
    "bf16": onnx.TensorProto.BFLOAT16,
    "f32": onnx.TensorProto.FLOAT,
    "f64": onnx.TensorProto.DOUBLE,
} | {d: getattr(onnx.TensorProto, name.upper()) for d, (code, _, name) in DTYPES.items() if code in (0, 1, 6)}
_DTYPE_OF_PROTO = {proto: dtype for dtype, proto in _TENSOR_PROTO.items()}
_TYPE_STRINGS = {
    dtype: f"tensor({dict(f16='float16', bf16='bfloat16', f32='float', f64='double').get(dtype, DTYPES[dtype][2])})"
    for dtype in DTYPES
}
_ATTRIBUTE_TYPES = {
    "int": onnx.AttributeProto.INT,
    "bool": onnx.AttributeProto.INT,
    "float": onnx.AttributeProto.FLOAT,
    "string": onnx.AttributeProto.STRING,
    "ints": onnx.AttributeProto.INTS,
    "floats": onnx.AttributeProto.FLOATS,
}

# Operators registered here: (domain, name).
_registered = set()


def register(library):
    """Registers the library's operators with onnx.defs; a second call does nothing. Raises LoadError where something
    else in this process has registered an operator of that name and domain."""
    for operator in library.operators.values():
        key = (operator.domain, operator.name)
        if key in _registered:
            continue
        if onnx.defs.has(operator.name, operator.domain):
            raise LoadError(
                f"onnx already has a schema of {operator.qualified_name}, registered by something else in this process"
            )
        onnx.defs.register_schema(schema(operator))
        _registered.add(key)


def schema(operator):
    """The onnx.defs.OpSchema of a manifest.Operator. It holds from version 1 of the domain on: an operator never
    changes its meaning under one name."""
    formal = onnx.defs.OpSchema.FormalParameter
    option = onnx.defs.OpSchema.FormalParameterOption

    def parameter(argument):
        kind = (
            option.Variadic if argument.variadic else option.Optional if argument.optional else option.Single
        )
        type_string = _TYPE_STRINGS.get(argument.dtype, argument.dtype)
        return formal(argument.name, type_string, argument.doc, param_option=kind)

    result = onnx.defs.OpSchema(
        operator.name,
        operator.domain,
        1,
        doc=operator.doc,
        inputs=[parameter(i) for i in operator.inputs],
        outputs=[parameter(o) for o in operator.outputs],
        type_constraints=[
            (v, [_TYPE_STRINGS[d] for d in dtypes], "") for v, dtypes in operator.dtypes.items()
        ],
        attributes=[_attribute(a) for a in operator.attributes],
    )
    result.set_type_and_shape_inference_function(lambda context: _infer(operator, context))
    return result


def _attribute(attribute):
    kind = onnx.defs.OpSchema.Attribute
    if attribute.required:
        attr_type = onnx.defs.OpSchema.AttrType(_ATTRIBUTE_TYPES[attribute.type])
        return kind(attribute.name, attr_type, attribute.doc, required=True)
    return kind(attribute.name, attribute_proto(attribute, attribute.default), attribute.doc)


def attribute_proto(attribute, value):
    """The onnx attribute that carries `value` of a manifest.Attribute."""
    if attribute.type == "bool":
        value = int(value)
    elif attribute.type in ("float", "floats"):  # JSON writes 1.0 as 1
        value = [float(v) for v in value] if attribute.type == "floats" else float(value)
    return onnx.helper.make_attribute(attribute.name, value, attr_type=_ATTRIBUTE_TYPES[attribute.type])


# --- type and shape inference


class Size:
    """A dimension that may be known, named or unknown: `value` is an int, a str or None. What cannot be compared counts
    as equal, so that shapes.infer() reports only certain errors."""

    __slots__ = ("value",)
    __hash__ = None

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        other = _value(other)
        return not (isinstance(self.value, int) and isinstance(other, int)) or self.value == other

    def __ge__(self, other):
        return not isinstance(self.value, int) or self.value >= other

    def __str__(self):
        return "?" if self.value is None else str(self.value)

    def _apply(self, op, left, right):
        left, right = _value(left), _value(right)
        if left is None or right is None:
            return Size(None)
        if isinstance(left, int) and isinstance(right, int):
            return Size(
                {"+": left + right, "-": left - right, "*": left * right}[op] if op != "//" else left // right
            )
        return Size(f"({left} {op} {right})")


def _value(size):
    return size.value if isinstance(size, Size) else size


for _method, _op in (("add", "+"), ("sub", "-"), ("mul", "*"), ("floordiv", "//")):
    setattr(Size, f"__{_method}__", lambda self, other, op=_op: self._apply(op, self, other))
    setattr(Size, f"__r{_method}__", lambda self, other, op=_op: self._apply(op, other, self))


def infer(operator, inputs, attributes):
    """[(dtype or None, list of ints, strs and Nones or None)] of the operator's outputs.

    `inputs` holds a list of (dtype or None, sizes or None) for each declared input, as shapes.infer() takes them; sizes
    are ints, strs (names) or None. `attributes` maps the int attributes to their values. What is unknown in the inputs
    stays unknown in the outputs. Raises InvalidArgumentError for what is certainly wrong.
    """
    given = [entry for tensors in inputs for entry in tensors]
    if all(dtype is not None and sizes is not None for dtype, sizes in given):
        sized = [[(dtype, [Size(s) for s in sizes]) for dtype, sizes in tensors] for tensors in inputs]
        return [
            (dtype, [_value(size) for size in shape])
            for dtype, shape in shapes.infer(operator, sized, attributes, _require)
        ]
    return [(dtype, None) for dtype in output_dtypes(operator, inputs)]


def output_dtypes(operator, inputs):
    """The outputs' element types, None where the `inputs`, given as to infer(), do not tell."""
    bound = {
        argument.dtype: dtype
        for argument, tensors in zip(operator.inputs, inputs, strict=True)
        for dtype, _ in tensors
        if dtype is not None
    }
    return [o.dtype if o.dtype in DTYPES else bound.get(o.dtype) for o in operator.outputs]


def _require(condition, message):
    if not condition:
        raise InvalidArgumentError(message())


def type_proto(dtype, sizes):
    """The onnx type of one result of infer()."""
    return onnx.helper.make_tensor_type_proto(_TENSOR_PROTO[dtype], sizes)


def dtype_and_sizes(type_proto):
    """(dtype or None, sizes or None) of an onnx type, as infer() takes them."""
    tensor = type_proto.tensor_type
    sizes = None
    if tensor.HasField("shape"):
        sizes = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]
    return _DTYPE_OF_PROTO.get(tensor.elem_type), sizes


def _infer(operator, context):
    def read(index):
        return dtype_and_sizes(context.get_input_type(index)) if context.has_input(index) else None

    count = context.get_num_inputs()
    inputs = []
    for index, argument in enumerate(operator.inputs):
        indices = range(index, count) if argument.variadic else range(index, min(index + 1, count))
        inputs.append([entry for entry in map(read, indices) if entry is not None])
    attributes = {}
    for attribute in operator.attributes:
        if attribute.type == "int":
            proto = context.get_attribute(attribute.name)
            attributes[attribute.name] = attribute.default if proto is None else proto.i
    try:
        outputs = infer(operator, inputs, attributes)
    except InvalidArgumentError as e:
        raise onnx.shape_inference.InferenceError(str(e)) from None
    for index, (dtype, sizes) in enumerate(outputs[: context.get_num_outputs()]):
        if dtype is not None:
            context.set_output_type(index, type_proto(dtype, sizes))


# --- onnx.reference


def reference_ops(*libraries):
    """A class for each operator, computed by the library: ReferenceEvaluator(model, new_ops=reference_ops(library))."""
    return [_reference_op(function) for library in libraries for function in library.ops]


def _reference_op(function):
    operator = function.operator
    kinds = {a.name: a.type for a in operator.attributes}
    declared = len(operator.inputs)

    def run(self, *inputs, **attributes):
        if operator.variadic:
            inputs = (*inputs[: declared - 1], list(inputs[declared - 1 :]))
        given = {}
        for name, value in attributes.items():
            if value is not None and name in kinds:
                given[name] = bool(value) if kinds[name] == "bool" else value
        outputs = function(*inputs, **given)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return type(
        operator.name,
        (OpRun,),
        {
            "__doc__": operator.signature,
            "op_domain": operator.domain,
            "op_schema": onnx.defs.get_schema(operator.name, operator.domain)
            if onnx.defs.has(operator.name, operator.domain)
            else schema(operator),
            "_run": run,
        },
    )
