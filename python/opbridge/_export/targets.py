"""Which call in a model becomes which operator, and where each of its arguments goes."""

import contextlib
import functools
import threading
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import ArgumentTypeError, ExportError, InvalidArgumentError, nearest
from ..library import Function


@dataclass
class Target:
    """A call, named `source`, that becomes the operator `function`.

    `adapter(*args)` turns the call's arguments into (inputs, attributes): a sequence and a dict. Without one they are
    the operator's inputs in order, then its attributes.
    """

    function: Function
    source: str
    adapter: Any = None

    @property
    def operator(self):
        return self.function.operator

    def place(self, args, read=lambda value: value):
        """(one value, None or list for each declared input, every attribute's value). `read` makes a Python value of
        what an exporter puts in the place of one. Raises for what the signature does not allow."""
        inputs, attributes = self._split(args)
        declared = self.operator.inputs
        inputs += [None] * (len(declared) - len(inputs))
        for argument, value in zip(declared, inputs, strict=True):
            if value is None and not argument.optional:
                raise self._error(f"input '{argument.name}' is missing")
            if argument.variadic and not isinstance(value, (list, tuple)):
                raise self._error(f"input '{argument.name}' must be a list of tensors")
        values = {}
        for attribute in self.operator.attributes:
            value = read(attributes.pop(attribute.name, None))
            if value is None:
                if attribute.required:
                    raise self._error(f"attribute '{attribute.name}' is missing")
                value = attribute.default
            values[attribute.name] = self._constant(attribute, value)
        if attributes:
            known = [a.name for a in self.operator.attributes]
            name = next(iter(attributes))
            raise self._error(f"there is no attribute '{name}'{nearest(name, known)}")
        self.function.node(values)  # the library's own checks
        return inputs, values

    def _split(self, args):
        names = [a.name for a in (*self.operator.inputs, *self.operator.attributes)]
        if self.adapter is not None:
            inputs, attributes = self.adapter(*args)
            args = inputs = list(inputs)
            names = names[: len(self.operator.inputs)]
        if len(args) > len(names):
            raise self._error(
                f"it has {len(args)} arguments, the operator takes {len(names)} ({', '.join(names)}): give "
                "(name, adapter) in map, where adapter(*args) returns (inputs, attributes)"
            )
        count = len(self.operator.inputs)
        if self.adapter is None:
            inputs = list(args[:count])
            attributes = dict(zip(names[count:], args[count:], strict=False))
        return inputs, dict(attributes)

    def _constant(self, attribute, value):
        if type(value).__name__ == "SymInt":
            raise self._error(
                f"attribute '{attribute.name}' is computed from a dynamic dimension; it must be constant"
            )
        try:
            return self.function._attribute(attribute.name, value)[2]
        except ArgumentTypeError as e:
            raise self._error(str(e)) from None

    def _error(self, text):
        return InvalidArgumentError(f"{self.source} as {self.operator.signature.split(' where ')[0]}: {text}")

    def check_scalar(self, argument, value, floating):
        """Raises unless a tensor, of a floating type or not, can hold the Python number."""
        if not floating and not float(value).is_integer():
            raise self._error(f"input '{argument.name}' is {value!r}, which its integer type cannot hold")


def torch_name(operator):
    """The operator's name in torch: my_namespace::my_clip."""
    return f"{operator.torch_namespace}::{operator.snake_name}"


def native(libraries):
    """{torch name: Target} of the libraries' own torch operators."""
    return {
        torch_name(function.operator): Target(
            function, f"torch.ops.{torch_name(function.operator).replace('::', '.')}"
        )
        for library in libraries
        for function in library.ops
    }


def resolve(mapping, libraries):
    """({autograd.Function class: Target}, {torch operator name: Target}) of export()'s `map`."""
    functions, operators = {}, {}
    for key, value in (mapping or {}).items():
        name, adapter = value if isinstance(value, tuple) else (value, None)
        function = _find(name, libraries)
        if isinstance(key, type) and issubclass(key, torch.autograd.Function):
            functions[key] = Target(function, key.__name__, adapter)
        else:
            source = _operator_name(key)
            operators[source] = Target(function, source, adapter)
    return functions, operators


def _find(name, libraries):
    known = {}
    for library in libraries:
        for function in library.ops:
            known[function.operator.qualified_name] = function
    for function in list(known.values()):
        known.setdefault(torch_name(function.operator), function)
    if name not in known:
        raise InvalidArgumentError(
            f"map names '{name}', which no loaded library has{nearest(name, known)}; they have "
            f"{', '.join(known) or 'no operator: give libraries=[..]'}"
        )
    return known[name]


def _operator_name(key):
    """'ns::op' of a string, torch.ops.ns.op, one of its overloads, or a torch.library.custom_op."""
    if isinstance(key, str) and key.count("::") == 1:
        return key
    for attribute in ("_qualified_op_name", "_qualname"):
        name = getattr(key, attribute, None)
        if isinstance(name, str):
            return name
    schema = getattr(key, "_schema", None)
    if schema is not None:
        return schema.name
    raise InvalidArgumentError(
        f"map has the key {key!r}; it must be a subclass of torch.autograd.Function or a torch operator "
        "('namespace::name', torch.ops.namespace.name or what torch.library.custom_op returned)"
    )


@contextlib.contextmanager
def patched(attribute, replacements):
    """Gives each class in `replacements` another static method `attribute` for the thread that entered, while the
    context lasts. `replacements` maps classes to functions of the original, which return its replacement."""
    thread = threading.get_ident()
    saved = []
    try:
        for cls, replace in replacements.items():
            original = getattr(cls, attribute, None)
            saved.append((cls, cls.__dict__.get(attribute)))
            setattr(cls, attribute, staticmethod(_for_thread(thread, original, replace(original))))
        yield
    finally:
        for cls, own in saved:
            if own is None:
                delattr(cls, attribute)
            else:
                setattr(cls, attribute, own)


def _for_thread(thread, original, replacement):
    if original is None:
        return replacement

    @functools.wraps(original)
    def dispatch(*args, **kwargs):
        return (replacement if threading.get_ident() == thread else original)(*args, **kwargs)

    return dispatch


def arguments_of(cls, args):
    """The arguments of a call to autograd.Function `cls`, given those of its forward: without ctx, if it has one."""
    base = getattr(torch.autograd.Function, "setup_context", None)
    return args if base is not None and cls.setup_context is not base else args[1:]


def shaped(outputs, dtypes, target, cast):
    """The operator's `outputs` as the replaced call returned them: as many, of the same `dtypes`."""
    single = not isinstance(dtypes, tuple)
    wanted = (dtypes,) if single else dtypes
    if len(wanted) > len(outputs):
        raise ExportError(
            f"{target.source} returns {len(wanted)} tensors, {target.operator.signature} {len(outputs)}"
        )
    result = tuple(cast(o, d) for o, d in zip(outputs, wanted, strict=False))
    return result[0] if single else result
