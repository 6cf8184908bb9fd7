"""Registers a library's operators with PyTorch: schema, CPU and CUDA kernels, fake kernels and gradients, all
from the manifest."""

import inspect
import math

import torch

from . import _abi, shapes
from .errors import ArgumentTypeError, InvalidArgumentError, LoadError, NotSupportedError
from .manifest import DTYPES

_TORCH_DTYPES = {name: getattr(torch, torch_name) for name, (_, _, torch_name) in DTYPES.items()}
_NAMES = {dtype: name for name, dtype in _TORCH_DTYPES.items()}
_CODES = {dtype: DTYPES[name][:2] for dtype, name in _NAMES.items()}
_DTYPE_OF_CODE = {code: dtype for dtype, code in _CODES.items()}
_SCHEMA_TYPES = {
    "int": "int",
    "float": "float",
    "bool": "bool",
    "string": "str",
    "ints": "int[]",
    "floats": "float[]",
}


def schema(operator):
    """The torch schema of a manifest.Operator: inputs, then after `*` its attributes; all outputs, wanted or not."""
    parameters = []
    for i in operator.inputs:
        kind, default = (
            ("Tensor[]", "") if i.variadic else ("Tensor?", "=None") if i.optional else ("Tensor", "")
        )
        parameters.append(f"{kind} {i.name}{default}")
    if operator.attributes:
        parameters.append("*")
    for a in operator.attributes:
        kind, default = _SCHEMA_TYPES[a.type], "" if a.required else f"={_schema_value(a.default)}"
        if not a.required and not _spelt(a.default):
            kind, default = f"{kind}?", "=None"  # an infinite default, which torch has no word for
        parameters.append(f"{kind} {a.name}{default}")
    returns = ", ".join("Tensor" for _ in operator.outputs)
    if len(operator.outputs) > 1:
        returns = f"({returns})"
    return f"{operator.snake_name}({', '.join(parameters)}) -> {returns}"


def _spelt(default):
    values = default if isinstance(default, list) else [default]
    return not any(isinstance(v, float) and math.isinf(v) for v in values)


def _schema_value(value):
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return f"[{', '.join(_schema_value(item) for item in value)}]"
    return repr(value)


class _Library(torch.library.Library):
    """torch's Library, but what register_autograd() registers calls a CPU kernel at once where that is what would come
    next: the dispatcher takes longer to find it than most of a small call."""

    _next = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU).raw_repr()

    def __init__(self, *args):
        super().__init__(*args)
        self._cpu_kernels = {}

    def impl(self, op_name, fn, dispatch_key="", **options):
        if dispatch_key == "CPU":
            self._cpu_kernels[op_name] = fn
        elif dispatch_key == "Autograd" and op_name in self._cpu_kernels:
            fn = self._shortcut(fn, self._cpu_kernels[op_name])
        return super().impl(op_name, fn, dispatch_key, **options)

    def _shortcut(self, autograd, cpu):
        def kernel(keyset, *args, **attributes):
            # No mode, subclass or transform between here and the CPU, and nobody who asks for a gradient.
            if (keyset & torch._C._after_autograd_keyset).raw_repr() == self._next and not (
                torch.is_grad_enabled() and torch._C._any_requires_grad(*args)
            ):
                return cpu(*args, **attributes)
            return autograd(keyset, *args, **attributes)

        return kernel


class Registration:
    """The operators of a library as torch operators."""

    def __init__(self, library):
        """Registers them. Raises LoadError where torch already has one of the names."""
        self._operators = {}  # ONNX name -> TorchOperator
        namespace = next(iter(library.ops)).operator.torch_namespace
        self._lib = _Library(namespace, "FRAGMENT")
        taken = [f for f in library.ops if hasattr(getattr(torch.ops, namespace), f.operator.snake_name)]
        if taken:
            raise LoadError(
                f"'{library.path}': torch already has an operator "
                f"{namespace}::{taken[0].operator.snake_name}, defined "
                "by something else in this process: load only one of the two, or load this one with "
                "torch=False"
            )
        for function in library.ops:
            self._operators[function.operator.name] = TorchOperator(self._lib, function)
        for op in self._operators.values():
            if op.operator.grad is not None:
                op.gradient = _gradient_by_operator(self._operators[op.operator.grad])

    def register_gradient(self, function, gradient):
        """Library.register_gradient() of one Function."""
        op = self._operators[function.operator.name]
        accepted = op.gradient_parameters()
        parameters = tuple(inspect.signature(gradient).parameters)
        unknown = [p for p in parameters if p not in accepted]
        if unknown:
            raise ArgumentTypeError(
                f"the gradient of {function.operator.qualified_name} has a parameter '{unknown[0]}'; it "
                "can have "
                f"{', '.join(accepted)}"
            )
        op.gradient = (parameters, gradient)


def _gradient_by_operator(grad):
    """A gradient as register_gradient() takes it, computed by a gradient operator."""
    operator = grad.operator
    attributes = {a.name for a in operator.attributes}

    def gradient(**arguments):
        inputs = [arguments.get(i.name) for i in operator.inputs]
        outputs = grad.overload(*inputs, **{k: v for k, v in arguments.items() if k in attributes})
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        named = zip((o.name.removeprefix("grad_") for o in operator.outputs), outputs, strict=True)
        return {name: _sum_to(v, arguments.get(name)) for name, v in named}

    gradient.inputs = [o.name.removeprefix("grad_") for o in operator.outputs]
    return (*(i.name for i in operator.inputs), *attributes), gradient


def _sum_to(gradient, value):
    """Summed over the leading dimensions that `value`, an input that served all of them (`*B?`), does not have."""
    if not isinstance(value, torch.Tensor) or gradient.dim() == value.dim():
        return gradient
    return gradient.sum_to_size(value.shape)


class TorchOperator:
    """One operator in torch. `gradient` is None or (parameter names, function as register_gradient() takes it)."""

    def __init__(self, lib, function):
        self.function = function
        self.operator = operator = function.operator
        self.gradient = None
        self._defaults = {a.name: a.default for a in operator.attributes if not a.required}
        lib.define(schema(operator), tags=(torch.Tag.pt2_compliant_tag,))
        name = operator.snake_name
        # Without a tensor nothing says which device is meant: the outputs are the CPU's.
        lib.impl(name, self._cpu, "CPU" if operator.inputs else "BackendSelect")
        lib.impl(name, self._cuda, "CUDA")
        qualified = f"{lib.ns}::{name}"
        torch.library.register_fake(qualified, self._fake, lib=lib)
        torch.library.register_autograd(qualified, self._backward, setup_context=self._setup_context, lib=lib)
        self.overload = getattr(getattr(torch.ops, lib.ns), name).default
        function.torch_op = self.overload

    # --- forward

    def _cpu(self, *args, **kwargs):
        inputs, attributes = self._tensors(args, kwargs)
        return self._run(inputs, attributes, (_abi.CPU, 0), None)

    def _cuda(self, *args, **kwargs):
        inputs, attributes = self._tensors(args, kwargs)
        index = next(i.get_device() for i in inputs if i is not None and i.is_cuda)
        with torch.cuda.device(index):
            stream = torch.cuda.current_stream(index).cuda_stream
            return self._run(inputs, attributes, (_abi.CUDA, index), stream)

    def _tensors(self, args, kwargs):
        """(contiguous tensors or None, one entry for each tensor of a variadic input; attributes). torch
        leaves out arguments that equal their default."""
        inputs, attributes = self.function.bind(args, kwargs)
        if self.operator.variadic:
            inputs[-1:] = inputs[-1]
        return [i if i is None else i.contiguous() for i in inputs], attributes

    def _run(self, inputs, attributes, device, stream):
        node = self.function.node(attributes)
        key = (device, *[None if i is None else (i.shape, i.dtype, i.get_device()) for i in inputs])
        plans = node.plans.get(key)
        if plans:
            plan, outputs, target = plans.pop()
        else:
            plan, outputs, target = self._plan(node, inputs, device)
            plans = node.plans_of(key)
        results = [
            torch.empty_strided(shape, strides, dtype=dtype, device=target)  # half the time of torch.empty()
            for shape, strides, dtype in outputs
        ]
        tensors = iter(plan.tensors)
        for tensor in inputs:
            if tensor is not None:
                next(tensors).data = tensor.data_ptr()
        for result, tensor in zip(results, tensors, strict=True):
            tensor.data = result.data_ptr()
        host = plan.host
        host.threads = torch.get_num_threads()
        host.stream = stream
        if plan.workspace_bytes:
            workspace = torch.empty(
                plan.workspace_bytes + _abi.WORKSPACE_ALIGNMENT, dtype=torch.uint8, device=target
            )
            host.workspace = _abi.aligned(workspace.data_ptr())
        plan.run()
        plans.append((plan, outputs, target))
        return results[0] if len(results) == 1 else tuple(results)

    def _plan(self, node, inputs, device):
        self._check_devices(inputs, device)
        described = [None if i is None else self._describe(i) for i in inputs]
        plan = node.plan(described, device)
        target = torch.device("cpu") if device[0] == _abi.CPU else torch.device("cuda", device[1])
        outputs = [
            (shape, torch.empty(shape, device="meta").stride(), _DTYPE_OF_CODE[code, bits])
            for shape, code, bits in plan.outputs
        ]
        return plan, outputs, target

    def _describe(self, tensor):
        on_cuda = tensor.is_cuda
        code = self._code(tensor)
        device = (_abi.CUDA, tensor.get_device()) if on_cuda else (_abi.CPU, 0)
        return tensor.shape, *code, *device, tensor.data_ptr()

    def _code(self, tensor):
        code = _CODES.get(tensor.dtype)
        if code is None:
            raise InvalidArgumentError(
                f"{self.operator.qualified_name}: no operator takes tensors of {tensor.dtype}"
            )
        return code

    def _check_devices(self, inputs, device):
        for argument, tensors in self._by_argument(inputs):
            for tensor in tensors:
                wanted = (_abi.CPU, 0) if argument.host or device[0] == _abi.CPU else device
                found = (_abi.CUDA, tensor.get_device()) if tensor.is_cuda else (_abi.CPU, 0)
                if found != wanted:
                    where = (
                        "on the CPU (a host input)"
                        if argument.host
                        else f"on cuda:{device[1]} like the others"
                    )
                    raise InvalidArgumentError(
                        f"{self.operator.qualified_name}: input '{argument.name}' must be {where}, is on "
                        f"{tensor.device}"
                    )

    def _by_argument(self, inputs):
        """(declared input, its tensors) for a flat list of tensors or None."""
        declared = self.operator.inputs
        last = len(declared) - self.operator.variadic
        yield from (
            (a, [] if i is None else [i]) for a, i in zip(declared[:last], inputs[:last], strict=True)
        )
        if self.operator.variadic:
            yield declared[-1], inputs[last:]

    # --- shapes without data

    def _fake(self, *args, **kwargs):
        inputs, attributes = self.function.bind(args, kwargs)
        if self.operator.variadic:
            inputs[-1:] = inputs[-1]
        given = list(self._by_argument(inputs))
        for tensor in (i for i in inputs if i is not None):
            self._code(tensor)
        outputs = shapes.infer(
            self.operator,
            [[(_NAMES[t.dtype], t.shape) for t in tensors] for _, tensors in given],
            {
                a.name: (self._defaults | attributes)[a.name]
                for a in self.operator.attributes
                if a.type == "int"
            },
            _require,
        )
        on_device = (t for argument, tensors in given if not argument.host for t in tensors)
        device = next((t.device for t in on_device), "cpu")
        results = [torch.empty(shape, dtype=_TORCH_DTYPES[dtype], device=device) for dtype, shape in outputs]
        return results[0] if len(results) == 1 else tuple(results)

    # --- gradients

    def gradient_parameters(self):
        """What a gradient function may ask for."""
        o = self.operator
        grads = [f"grad_{output.name}" for output in o.outputs if o.may_be_floating(output)]
        return grads + [argument.name for argument in (*o.inputs, *o.outputs, *o.attributes)]

    def _setup_context(self, ctx, inputs, output, keyword_only_inputs=None):
        outputs = output if isinstance(output, (tuple, list)) else (output,)
        ctx.mark_non_differentiable(*(o for o in outputs if not o.is_floating_point()))
        ctx.gradient = self.gradient
        ctx.attributes = keyword_only_inputs or {}
        ctx.lengths = [len(i) if isinstance(i, (tuple, list)) else None for i in inputs]
        if self.gradient is None:
            return
        # Only what the gradient asks for is kept alive until then.
        wanted = set(self.gradient[0])
        ctx.saved = []  # (name, how many tensors, or None for a single one)
        tensors = []
        for argument, value in zip(
            (*self.operator.inputs, *self.operator.outputs), (*inputs, *outputs), strict=True
        ):
            if argument.name in wanted:
                many = isinstance(value, (tuple, list))
                ctx.saved.append((argument.name, len(value) if many else None))
                tensors.extend(value if many else [value])
        ctx.save_for_backward(*tensors)

    def _backward(self, ctx, *grads):
        nothing = [None if n is None else [None] * n for n in ctx.lengths]
        if ctx.gradient is None:
            raise NotSupportedError(
                f"{self.operator.qualified_name} declares no gradient: give one with "
                f"library.register_gradient('{self.operator.snake_name}', function), or detach its inputs"
            )
        parameters, gradient = ctx.gradient
        covered = getattr(gradient, "inputs", None)
        needed = [i.name for i, n in zip(self.operator.inputs, ctx.needs_input_grad, strict=False) if _any(n)]
        if covered is not None and not any(name in covered for name in needed):
            return tuple(nothing)
        arguments = {f"grad_{o.name}": g for o, g in zip(self.operator.outputs, grads, strict=True)}
        tensors = iter(ctx.saved_tensors)
        for name, count in ctx.saved:
            arguments[name] = next(tensors) if count is None else [next(tensors) for _ in range(count)]
        arguments |= self._defaults | ctx.attributes
        result = gradient(**{name: arguments[name] for name in parameters})
        unknown = result.keys() - {i.name for i in self.operator.inputs}
        if unknown:
            raise ArgumentTypeError(
                f"the gradient of {self.operator.qualified_name} returned one for '{sorted(unknown)[0]}', "
                "which is no input"
            )
        return tuple(
            result[i.name] if _any(needs) and result.get(i.name) is not None else none
            for i, needs, none in zip(self.operator.inputs, ctx.needs_input_grad, nothing, strict=False)
        )


def _any(needs):
    return any(needs) if isinstance(needs, (tuple, list)) else needs


def _require(condition, message):
    if isinstance(condition, bool):
        if not condition:
            raise InvalidArgumentError(message())
    else:
        torch._check(condition, message)
