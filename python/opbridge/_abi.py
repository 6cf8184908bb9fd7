"""The C interface of an operator library (include/opbridge/abi.h) in ctypes."""

import ctypes
from ctypes import (
    POINTER,
    Structure,
    addressof,
    c_char,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)

from . import errors

ABI_VERSION = 1
MAX_RANK = 16
CPU, CUDA = 1, 2
WORKSPACE_ALIGNMENT = 256

_ERRORS = {
    1: errors.InvalidArgumentError,
    2: errors.NotSupportedError,
    3: errors.OutOfMemoryError,
    4: errors.DeviceError,
    5: errors.InternalError,
}
_ATTRIBUTE_TYPES = {"int": 1, "float": 2, "bool": 3, "string": 4, "ints": 5, "floats": 6}


class ErrorInfo(Structure):
    _fields_ = [("size", c_uint32), ("kind", c_int32), ("message", c_char * 2040)]

    def __init__(self):
        super().__init__(size=ctypes.sizeof(ErrorInfo))

    def exception(self, kind):
        message = self.message.decode("utf-8", "replace")  # the library may have cut it inside a character
        return _ERRORS.get(kind, errors.InternalError)(message)


class Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("dtype_code", c_uint8),
        ("dtype_bits", c_uint8),
        ("dtype_lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]

    def __init__(self, shape, dtype_code, dtype_bits, device_type, device_id, data=None):
        super().__init__(
            data=data,
            device_type=device_type,
            device_id=device_id,
            ndim=len(shape),
            dtype_code=dtype_code,
            dtype_bits=dtype_bits,
            dtype_lanes=1,
            shape=(c_int64 * len(shape))(*shape),
        )


class TensorSpec(Structure):
    _fields_ = [
        ("dtype_code", c_uint8),
        ("dtype_bits", c_uint8),
        ("reserved", c_uint16),
        ("ndim", c_int32),
        ("shape", c_int64 * MAX_RANK),
    ]


class Attribute(Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("type", c_int32),
        ("reserved", c_int32),
        ("i", c_int64),
        ("f", c_double),
        ("s", ctypes.c_char_p),
        ("ints", POINTER(c_int64)),
        ("floats", POINTER(c_float)),
        ("count", c_size_t),
    ]

    def __init__(self, name, type, value):
        super().__init__(name=name.encode(), type=_ATTRIBUTE_TYPES[type])
        if type in ("int", "bool"):
            self.i = value
        elif type == "float":
            self.f = value
        elif type == "string":
            self.s = value.encode()
        else:
            element = c_int64 if type == "ints" else c_float
            setattr(self, type, (element * len(value))(*value))
            self.count = len(value)


class Host(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("threads", c_int32),
        ("stream", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("parallel_for", c_void_p),
        ("parallel_host", c_void_p),
    ]


class _Table(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("abi_version", c_uint32),
        ("manifest", ctypes.c_char_p),
        ("create_node", c_void_p),
        ("destroy_node", c_void_p),
        ("infer", c_void_p),
        ("workspace_bytes", c_void_p),
        ("compute", c_void_p),
    ]


# Addresses travel as integers (c_void_p): on every call that saves ctypes a wrapper object an argument.
_PROTOTYPES = {
    "create_node": ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p),
    "destroy_node": ctypes.CFUNCTYPE(None, c_void_p),
    "infer": ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p),
    "workspace_bytes": ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t, c_int32, c_void_p, c_void_p),
    "compute": ctypes.CFUNCTYPE(
        c_int32, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p
    ),
}


class Api:
    """The functions of an opened library, as callables that take addresses; `manifest` is its JSON text."""

    def __init__(self, path):
        """Opens the library at `path`. Raises LoadError."""
        try:
            self._handle = ctypes.CDLL(path)
        except OSError as e:
            raise errors.LoadError(f"cannot load '{path}': {e}") from None
        entry = self._handle.opbridge_get_library
        entry.argtypes, entry.restype = [c_uint32, c_void_p], c_void_p
        info = ErrorInfo()
        address = entry(ABI_VERSION, addressof(info))
        if not address:
            raise errors.LoadError(f"'{path}': {info.exception(info.kind)}")
        table = _Table.from_address(address)
        if table.abi_version > ABI_VERSION or table.size < ctypes.sizeof(_Table):
            raise errors.LoadError(
                f"'{path}' speaks version {table.abi_version} of opbridge's C interface, this Python "
                "package version "
                f"{ABI_VERSION}: install the opbridge that the library was built with"
            )
        self.manifest = table.manifest.decode()
        for name, prototype in _PROTOTYPES.items():
            setattr(self, name, prototype(getattr(table, name)))

    def node(self, op, attributes):
        """A new node of operator `op`; `attributes` lists (name, type, value). Destroyed with the returned object."""
        return NodeHandle(self, op, attributes)


class NodeHandle:
    def __init__(self, api, op, attributes):
        self.address = None
        array = (Attribute * len(attributes))(*(Attribute(*a) for a in attributes))
        address, info = c_void_p(), ErrorInfo()
        name = ctypes.create_string_buffer(op.encode())
        status = api.create_node(
            addressof(name), None, addressof(array), len(array), addressof(address), addressof(info)
        )
        if status:
            raise info.exception(status)
        self.address, self._destroy = address.value, api.destroy_node

    def __del__(self):
        if self.address:
            self._destroy(self.address)


class Plan:
    """One call's structures, filled once for given shapes and types, so that only data addresses change from
    call to call. Used by one thread at a time."""

    __slots__ = ("_keep", "arguments", "compute", "host", "info", "outputs", "tensors", "workspace_bytes")

    def __init__(self, api, node, inputs, output_count, device):
        """`inputs`: (shape, DLPack code, bits, device type, device id, data address) of each, None for an absent one;
        `device` is the outputs' (type, id). The library checks them here. `outputs` becomes [(shape, code,
        bits)]."""
        self.info = ErrorInfo()
        in_tensors = [None if i is None else Tensor(*i) for i in inputs]
        in_pointers = _pointers(in_tensors)
        specs = (TensorSpec * output_count)()
        head = (node.address, addressof(in_pointers), len(in_tensors))
        self._check(api.infer(*head, addressof(specs), output_count, addressof(self.info)))
        self.outputs = [(tuple(s.shape[: s.ndim]), s.dtype_code, s.dtype_bits) for s in specs]
        workspace = c_size_t()
        self._check(api.workspace_bytes(*head, device[0], addressof(workspace), addressof(self.info)))
        self.workspace_bytes = workspace.value
        out_tensors = [Tensor(*o, *device) for o in self.outputs]
        out_pointers = _pointers(out_tensors)
        self.tensors = [t for t in in_tensors if t is not None] + out_tensors
        self.host = Host(size=ctypes.sizeof(Host), workspace_bytes=self.workspace_bytes)
        self.compute = api.compute
        self.arguments = (
            *head,
            addressof(out_pointers),
            output_count,
            addressof(self.host),
            addressof(self.info),
        )
        self._keep = (node, in_pointers, out_pointers)

    def run(self):
        self._check(self.compute(*self.arguments))

    def _check(self, status):
        if status:
            raise self.info.exception(status)


def _pointers(tensors):
    return (c_void_p * len(tensors))(*(None if t is None else addressof(t) for t in tensors))


def aligned(address):
    """The first address from `address` on that a workspace may start at."""
    return -(-address // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
