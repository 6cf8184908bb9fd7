"""Loads an operator library and calls its operators on NumPy arrays."""

import ctypes
import filecmp
import importlib.util
import inspect
import json
import mmap
import operator as builtin_operator
import os
import re
import sys
import threading

import numpy as np

from . import _abi
from .errors import ArgumentTypeError, InvalidArgumentError, LoadError, nearest
from .manifest import DTYPES, parse_operators

# Nodes and call plans an operator keeps at most; beyond it the oldest go.
_MAX_NODES = 64
_MAX_PLANS = 256


def load(path, torch=None):
    """Opens the operator library at `path` and returns it as a Library; the same file gives the same object.

    `torch`: None registers its operators with PyTorch when that is installed, False never, True always. With the onnx
    package they are registered when that is already imported; Library.register_with_onnx() does it at any time.
    Raises LoadError, whose text says what is wrong with the file and what to do.
    """
    library = _open(os.fspath(path))
    if torch is None:
        torch = importlib.util.find_spec("torch") is not None
    if torch:
        library.register_with_torch()
    if "onnx" in sys.modules:
        library.register_with_onnx()
    return library


_libraries = {}  # domain -> Library
_lock = threading.RLock()


def _open(path):
    real = os.path.realpath(path)
    with _lock:
        for library in _libraries.values():
            if library.path == real:
                if library._identity != _identity(real):
                    raise LoadError(
                        f"'{path}' has changed since it was loaded: start a new process to use it"
                    )
                return library
        if not is_operator_library(path):
            raise LoadError(
                f"'{path}' is an ONNX Runtime custom-op library that was not built with opbridge (it exports "
                "RegisterCustomOps only): it works in a session, but cannot be called or used in torch"
            )
        library = Library(real)
        other = _libraries.setdefault(library.domain, library)
        if other is not library and not (
            other._identity == _identity(other.path) and filecmp.cmp(other.path, real, shallow=False)
        ):
            raise LoadError(
                f"'{path}' has domain '{library.domain}', which '{other.path}', a different build, already "
                "serves in this process: load one of the two, or start a new process"
            )
        return other


def _identity(path):
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def is_operator_library(path):
    """Whether the file has opbridge's entry point; False for one that has only ONNX Runtime's (RegisterCustomOps).

    Raises LoadError for any other file, saying what it seems to be.
    """
    if not os.path.exists(path):
        raise LoadError(f"no file '{path}'")
    if os.path.isdir(path) or os.path.getsize(path) == 0:
        what = "a folder" if os.path.isdir(path) else "an empty file"
        raise LoadError(f"'{path}' is {what}, not a library")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content[:4] != b"\x7fELF":
            what = "an ONNX model" if os.fspath(path).endswith(".onnx") else "not an ELF shared library"
            raise LoadError(f"'{path}' is {what}: give the .so that opbridge_add_library built")
        if content.find(b"\0opbridge_get_library\0") >= 0:
            return True
        # A PyTorch extension registers from static initialisers: it refers to torch::Library.
        module = re.search(rb"\0(PyInit_\w+|_ZN5torch7Library\w+)\0", content)
        if module:
            symbol = module[1].decode()
            kind = "a Python module" if symbol.startswith("PyInit_") else "a PyTorch extension"
            raise LoadError(
                f"'{path}' is {kind} (it has the symbol {symbol}), not an operator library: give the .so "
                "that opbridge_add_library built"
            )
        if content.find(b"\0RegisterCustomOps\0") >= 0:
            return False
    raise LoadError(f"'{path}' is a shared library without operators (it has no symbol opbridge_get_library)")


class Library:
    """An opened operator library.

    `path`: the file. `manifest`: what docs/manifest.md describes, as a dict. `name`, `domain`, `version`: from it.
    `operators`: ONNX name -> manifest.Operator. `ops`: the callable operators, by snake_name or ONNX name. `threads`:
    how many a NumPy call may use, at first all that the process may run on (for tensors torch's own setting counts).
    """

    def __init__(self, path):
        self.path = path
        self.threads = len(os.sched_getaffinity(0))
        self._identity = _identity(path)
        self._api = _abi.Api(path)
        self.manifest = json.loads(self._api.manifest)
        self.name = self.manifest["library"]
        self.domain = self.manifest["domain"]
        self.version = self.manifest["version"]
        self.operators = parse_operators(self.manifest)
        self.ops = Operators(self)
        self._torch = None

    def __repr__(self):
        return f"<opbridge library {self.name} {self.version}, domain '{self.domain}', '{self.path}'>"

    def register_with_torch(self):
        """Makes the operators torch.ops.<domain>.<snake_name>; a second call does nothing. Raises LoadError."""
        with _lock:
            if self._torch is None:
                try:
                    from . import torch_ops
                except ImportError as e:
                    raise LoadError(f"'{self.path}' cannot be registered with torch: {e}") from e
                self._torch = torch_ops.Registration(self)

    def register_with_onnx(self):
        """Makes the operators known to onnx.checker and onnx.shape_inference; a second call does nothing. Raises
        LoadError."""
        from . import onnx_schema

        onnx_schema.register(self)

    def register_gradient(self, op, function):
        """Makes `function` the gradient of operator `op` in torch, in place of the one that its signature names.

        It is called with the parameters it has, by name: grad_<output>, the operator's inputs, outputs and attributes.
        It returns a dict from input name to gradient; an input that is missing there, or None, gets no gradient.
        """
        self.register_with_torch()
        self._torch.register_gradient(getattr(self.ops, op), function)


class Operators:
    """The operators of a library as attributes, in snake_case or by their ONNX name."""

    def __init__(self, library):
        self._library = library
        self._functions = {o.snake_name: Function(library, o) for o in library.operators.values()}
        self._names = {o.name: o.snake_name for o in library.operators.values()}
        vars(self).update(self._functions)  # found without __getattr__, which takes as long as half a call

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        function = self._functions.get(self._names.get(name, name))
        if function is None:
            raise AttributeError(
                f"library '{self._library.name}' has no operator '{name}'{nearest(name, self._functions)}; "
                "it has "
                f"{', '.join(self._functions)}"
            )
        return function

    def __dir__(self):
        return list(self._functions)

    def __iter__(self):
        return iter(self._functions.values())


class Function:
    """One operator, called as function(*inputs, *, input=..., attribute=...) -> output or tuple of all outputs.

    Inputs are arrays (made contiguous where they are not) or torch tensors, all of one kind; a Python number stands for
    a scalar of the element type that the other inputs fix; None leaves an optional input out; a variadic input is a
    list. Outputs are new and of the inputs' kind. Raises subclasses of opbridge.Error.
    """

    def __init__(self, library, operator):
        self.library = library
        self.operator = operator
        self.__name__ = operator.snake_name
        self.__doc__ = "\n\n".join(filter(None, [operator.doc, operator.signature]))
        self.__signature__ = inspect.Signature(
            [
                inspect.Parameter(
                    i.name,
                    inspect.Parameter.POSITIONAL_OR_KEYWORD,
                    default=None if i.optional else inspect.Parameter.empty,
                )
                for i in operator.inputs
            ]
            + [
                inspect.Parameter(
                    a.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty if a.required else a.default,
                )
                for a in operator.attributes
            ]
        )
        self._positions = {i.name: n for n, i in enumerate(operator.inputs)}
        self._attributes = {a.name: a for a in operator.attributes}
        self._nodes = {}
        self.torch_op = None  # set by torch_ops

    def __repr__(self):
        return f"<operator {self.operator.signature}>"

    def __call__(self, *args, **kwargs):
        inputs, attributes = self.bind(args, kwargs)
        torch = sys.modules.get("torch")
        if torch is not None and any(_is_tensor(torch, value) for value in inputs):
            if self.torch_op is None:
                raise ArgumentTypeError(
                    f"{self.operator.qualified_name}: got a torch tensor, but the library was loaded with "
                    "torch=False: load it with torch=True"
                )
            inputs = [
                self._scalar(n, value, inputs, _tensor_of(torch, inputs))
                if type(value) in _SCALARS
                else value
                for n, value in enumerate(inputs)
            ]
            return self.torch_op(*inputs, **attributes)
        if self.operator.variadic:
            inputs[-1:] = self._list(inputs[-1])
        arrays = [value if value is None else self._array(n, value, inputs) for n, value in enumerate(inputs)]
        return self.node(attributes).run_numpy(arrays, self.library.threads)

    def bind(self, args, kwargs):
        """(one value or None for each declared input, attributes given by name)."""
        inputs = [None] * len(self._positions)
        if len(args) > len(inputs):
            raise ArgumentTypeError(
                f"{self.operator.qualified_name} takes {len(inputs)} inputs "
                f"({', '.join(self._positions)}), got {len(args)}; attributes are given by name"
            )
        inputs[: len(args)] = args
        attributes = {}
        for name, value in kwargs.items():
            position = self._positions.get(name)
            if position is None:
                if name not in self._attributes:
                    known = [*self._positions, *self._attributes]
                    raise ArgumentTypeError(
                        f"{self.operator.qualified_name} has no input or attribute "
                        f"'{name}'{nearest(name, known)}; it has {', '.join(known)}"
                    )
                if value is not None:  # None stands for the default
                    attributes[name] = value
            elif position < len(args):
                raise ArgumentTypeError(f"{self.operator.qualified_name}: input '{name}' is given twice")
            else:
                inputs[position] = value
        return inputs, attributes

    def node(self, attributes):
        """The operator with these attributes, made on first use. Raises what the library says of them."""
        if attributes:
            values = [self._attribute(name, value) for name, value in attributes.items()]
            key = repr(values)  # tells -0.0 from 0.0, and a NaN equals itself
        else:
            values, key = [], ""
        node = self._nodes.get(key)
        if node is None:
            node = Node(self, values)
            _put(self._nodes, key, node, _MAX_NODES)
        return node

    def _attribute(self, name, value):
        kind = self._attributes[name].type
        try:
            return name, kind, _CONVERT[kind](value)
        except (TypeError, OverflowError):
            raise ArgumentTypeError(
                f"{self.operator.qualified_name}: attribute '{name}' must be {_KIND_WORDS[kind]}, got "
                f"{value!r}"
            ) from None

    def _array(self, position, value, inputs):
        if type(value) is not np.ndarray:
            if type(value) in _SCALARS:
                return self._scalar(position, value, inputs, _array_of(inputs))
            value = np.asarray(value)
        if value.dtype not in _CODES:
            _learn_dtype(value.dtype, f"{self.operator.qualified_name}: input '{self._input(position).name}'")
        return value if value.flags.c_contiguous else value.copy(order="C")

    def _list(self, value):
        if not isinstance(value, (list, tuple)):
            raise ArgumentTypeError(
                f"{self.operator.qualified_name}: input '{self.operator.inputs[-1].name}' must be a list "
                "of tensors"
            )
        return value

    def _input(self, position):
        return self.operator.inputs[min(position, len(self.operator.inputs) - 1)]

    def _scalar(self, position, value, inputs, make):
        """`value`, a Python number, as a scalar of the type that the signature and the other inputs fix."""
        argument = self._input(position)
        dtype = DTYPES[argument.dtype][2] if argument.dtype in DTYPES else None
        for other, given in zip(self.operator.inputs, inputs, strict=False):
            if (
                dtype is None
                and other.dtype == argument.dtype
                and given is not None
                and type(given) not in _SCALARS
            ):
                dtype = given.dtype if hasattr(given, "dtype") else np.asarray(given).dtype
        if dtype is None:
            raise ArgumentTypeError(
                f"{self.operator.qualified_name}: nothing fixes the element type of '{argument.name}' = "
                f"{value!r}: "
                "give an array"
            )
        return make(value, dtype, f"{self.operator.qualified_name}: input '{argument.name}'")


_SCALARS = frozenset((bool, int, float))


def _is_tensor(torch, value):
    return isinstance(value, torch.Tensor) or (
        isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value)
    )


def _check_fits(value, floating, dtype, where):
    if not floating and not float(value).is_integer():
        raise InvalidArgumentError(f"{where} is {value!r}, which {dtype} cannot hold")


def _array_of(_inputs):
    def make(value, dtype, where):
        dtype = np.dtype(dtype)
        if dtype not in _CODES:
            _learn_dtype(dtype, where)
        _check_fits(value, _CODES[dtype][0] in (2, 4), dtype, where)
        try:
            return np.asarray(value, dtype)
        except OverflowError:
            raise InvalidArgumentError(f"{where} is {value!r}, which {dtype} cannot hold") from None

    return make


def _tensor_of(torch, inputs):
    device = next(i.device for i in inputs if isinstance(i, torch.Tensor))

    def make(value, dtype, where):
        dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        _check_fits(value, dtype.is_floating_point, dtype, where)
        try:
            return torch.full((), value, dtype=dtype, device=device)
        except RuntimeError:
            raise InvalidArgumentError(f"{where} is {value!r}, which {dtype} cannot hold") from None

    return make


def _as_bool(value):
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError
    return bool(value)


def _as_int(value):
    if isinstance(value, (bool, np.bool_)):
        raise TypeError
    value = builtin_operator.index(value)
    if not -(2**63) <= value < 2**63:
        raise OverflowError
    return value


def _as_float(value):
    if isinstance(value, (bool, np.bool_, str, bytes)):
        raise TypeError
    return float(value)


def _as_string(value):
    if not isinstance(value, str):
        raise TypeError
    return value


_CONVERT = {
    "int": _as_int,
    "float": _as_float,
    "bool": _as_bool,
    "string": _as_string,
    "ints": lambda value: tuple(_as_int(item) for item in value),
    "floats": lambda value: tuple(_as_float(item) for item in value),
}
_KIND_WORDS = {
    "int": "an integer of 64 bits",
    "float": "a number",
    "bool": "True or False",
    "string": "a string",
    "ints": "a list of integers",
    "floats": "a list of numbers",
}

# NumPy dtype -> (DLPack code, bits), and back. bfloat16 joins when first met: it needs the ml_dtypes package.
_CODES = {np.dtype(name): (code, bits) for code, bits, name in DTYPES.values() if name != "bfloat16"}
_NUMPY_DTYPES = {code: dtype for dtype, code in _CODES.items()}


def _learn_dtype(dtype, where):
    """Raises ArgumentTypeError unless operators can take arrays of this NumPy dtype."""
    if dtype.name == "bfloat16" and dtype.isnative:
        _CODES[dtype] = DTYPES["bf16"][:2]
        _NUMPY_DTYPES[DTYPES["bf16"][:2]] = dtype
        return
    hint = "" if dtype.isnative else f": convert it with .astype('{dtype.newbyteorder('=')}')"
    raise ArgumentTypeError(f"{where} is of dtype {dtype!r}, which no operator takes{hint}")


def _numpy_dtype(code, bits):
    if (code, bits) not in _NUMPY_DTYPES:
        try:
            import ml_dtypes
        except ImportError:
            raise LoadError("an output of type bfloat16 needs the Python package ml_dtypes") from None
        _learn_dtype(np.dtype(ml_dtypes.bfloat16), "output")
    return _NUMPY_DTYPES[code, bits]


def _address(array):
    """Of an array's first element. NumPy's C ABI puts it first after the object header
    (PyArrayObject_fields); reading it there takes a tenth of the time of `array.ctypes.data`."""
    return ctypes.c_size_t.from_address(id(array) + object.__basicsize__).value


if (
    _address(_CANARY := np.empty(1)) != _CANARY.ctypes.data
):  # a Python or NumPy that lays objects out otherwise

    def _address(array):
        return array.ctypes.data


class Node:
    """An operator with its attributes fixed, and the call plans for the shapes it has seen."""

    def __init__(self, function, attributes):
        self.api = function.library._api
        self.output_count = len(function.operator.outputs)
        self.handle = self.api.node(function.operator.name, attributes)
        self.plans = {}  # what a plan depends on -> plans that no thread is using

    def run_numpy(self, arrays, threads):
        """The outputs for contiguous `arrays` (None where absent) of known dtypes."""
        key = tuple([None if a is None else (a.shape, a.dtype) for a in arrays])
        plans = self.plans.get(key)
        if plans:
            plan, outputs = plans.pop()
        else:
            plan, outputs = self._numpy_plan(arrays)
            plans = self.plans_of(key)
        results = [np.empty(shape, dtype) for shape, dtype in outputs]
        tensors = iter(plan.tensors)
        for array in arrays:
            if array is not None:
                next(tensors).data = _address(array)
        for array, tensor in zip(results, tensors, strict=True):
            tensor.data = _address(array)
        plan.host.threads = threads
        if plan.workspace_bytes:
            workspace = np.empty(plan.workspace_bytes + _abi.WORKSPACE_ALIGNMENT, np.uint8)
            plan.host.workspace = _abi.aligned(_address(workspace))
        plan.run()
        plans.append((plan, outputs))
        return results[0] if self.output_count == 1 else tuple(results)

    def _numpy_plan(self, arrays):
        cpu = (_abi.CPU, 0)
        described = [None if a is None else (a.shape, *_CODES[a.dtype], *cpu, _address(a)) for a in arrays]
        plan = self.plan(described, cpu)
        return plan, [(shape, _numpy_dtype(code, bits)) for shape, code, bits in plan.outputs]

    def plan(self, inputs, device):
        return _abi.Plan(self.api, self.handle, inputs, self.output_count, device)

    def plans_of(self, key):
        """The list in which a call leaves its plan for the next one of the same shapes."""
        return _put(self.plans, key, [], _MAX_PLANS)


def _put(cache, key, value, limit):
    with _lock:
        while len(cache) >= limit:
            del cache[next(iter(cache))]
        return cache.setdefault(key, value)
