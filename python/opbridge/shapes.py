"""Evaluates a manifest's shape expressions. The rules are the library's; here are only names and arithmetic,
so that the sizes may be integers or torch's SymInts."""

from .errors import InvalidArgumentError

_ARITHMETIC = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
}


def infer(operator, inputs, attributes, require):
    """Element types and shapes of the outputs, as [(dtype, shape)].

    `inputs` holds a list of (dtype, shape) for each declared input: one entry, none where an optional input is absent,
    any number for a variadic one; dtypes are spelt as in signatures. `attributes` maps every int attribute to its
    value. `require(condition, message)` deals with a condition on sizes, which may be symbolic; `message()` is the text
    of its error. Raises InvalidArgumentError.
    """
    return _Inference(operator, attributes, require).run(inputs)


def spell(pattern):
    """A shape as the signature language writes it: [*B,N,3]."""
    return f"[{','.join(_spell(dim) for dim in pattern)}]"


def _spell(dim):
    if not isinstance(dim, dict):
        return str(dim)
    if "prefix" in dim:
        return f"*{dim['prefix']}{'?' if dim['optional'] else ''}"
    left, right = dim["args"]
    return f"({_spell(left)}{dim['op']}{_spell(right)})"


def _is_prefix(dim):
    return isinstance(dim, dict) and "prefix" in dim


class _Inference:
    def __init__(self, operator, attributes, require):
        self.operator = operator
        self.require = require
        self.sizes = dict(attributes)  # dimension name -> size
        self.prefixes = {}  # prefix name -> sizes
        self.dtypes = {}  # type variable -> dtype
        self.pending = []  # checks that need every name bound

    def run(self, inputs):
        for argument, tensors in zip(self.operator.inputs, inputs, strict=True):
            if not tensors and not argument.optional:
                raise self.error(f"input '{argument.name}' is missing")
            for dtype, shape in tensors:
                self.bind_dtype(argument, dtype)
                self.bind_shape(argument, tuple(shape))
        for check in self.pending:
            check()
        return [(self.dtypes.get(o.dtype, o.dtype), self.output_shape(o)) for o in self.operator.outputs]

    def error(self, text):
        return InvalidArgumentError(f"{self.operator.qualified_name}: {text}")

    def bind_dtype(self, argument, dtype):
        allowed = self.operator.dtypes.get(argument.dtype, [argument.dtype])
        if dtype not in allowed:
            raise self.error(f"input '{argument.name}' must be {' or '.join(allowed)}, got {dtype}")
        if argument.dtype in self.operator.dtypes:
            bound = self.dtypes.setdefault(argument.dtype, dtype)
            if bound != dtype:
                raise self.error(
                    f"input '{argument.name}' must be {bound} like the inputs before it, got {dtype}"
                )

    def bind_shape(self, argument, shape):
        def message():
            wanted = " or ".join(spell(pattern) for pattern in argument.shapes)
            return (
                f"{self.operator.qualified_name}: input '{argument.name}' must have shape {wanted}, "
                f"got {spell(shape)}"
            )

        pattern = self.choose(argument.shapes, shape)
        if pattern is None:
            raise InvalidArgumentError(message())
        dims = [dim for dim in pattern if not _is_prefix(dim)]
        leading, rest = shape[: len(shape) - len(dims)], shape[len(shape) - len(dims) :]
        if pattern and _is_prefix(pattern[0]):
            self.bind_prefix(pattern[0], leading, message)
        for dim, size in zip(dims, rest, strict=True):
            if isinstance(dim, str) and dim not in self.sizes:
                self.sizes[dim] = size
            else:
                self.pending.append(
                    lambda dim=dim, size=size: self.require(self.evaluate(dim) == size, message)
                )

    def bind_prefix(self, prefix, leading, message):
        def check():
            bound = self.prefixes.get(prefix["prefix"], ())
            if prefix["optional"] and not leading:
                return
            if len(bound) != len(leading):
                raise InvalidArgumentError(message())
            for size, expected in zip(leading, bound, strict=True):
                self.require(size == expected, message)

        if not prefix["optional"]:
            self.prefixes.setdefault(prefix["prefix"], leading)
        self.pending.append(check)

    def choose(self, patterns, shape):
        """The alternative that the rank and, where that leaves a choice, the literal dimensions ask for."""
        fitting = [p for p in patterns if self.rank_fits(p, len(shape))]
        if len(patterns) > 1:
            fitting = [
                p
                for p in fitting
                if all(
                    dim == size
                    for dim, size in zip(reversed(p), reversed(shape), strict=False)
                    if isinstance(dim, int)
                )
            ]
        return fitting[0] if fitting else None

    @staticmethod
    def rank_fits(pattern, rank):
        if pattern and _is_prefix(pattern[0]):
            return rank >= len(pattern) - 1
        return rank == len(pattern)

    def evaluate(self, dim):
        if isinstance(dim, str):
            return self.sizes[dim]
        if isinstance(dim, dict):
            left, right = (self.evaluate(arg) for arg in dim["args"])
            return _ARITHMETIC[dim["op"]](left, right)
        return dim

    def output_shape(self, output):
        shape = []
        for dim in output.shapes[0]:
            if _is_prefix(dim):
                shape.extend(self.prefixes[dim["prefix"]])
                continue
            size = self.evaluate(dim)
            if isinstance(dim, dict):
                self.require(
                    size >= 0,
                    lambda size=size: (
                        f"{self.operator.qualified_name}: output '{output.name}' would have a "
                        f"dimension of {size}"
                    ),
                )
            shape.append(size)
        return tuple(shape)
