"""The operators of a library as its manifest (docs/manifest.md) describes them."""

from dataclasses import dataclass
from typing import Any

# Name in signatures -> (DLPack type code, bits, name in NumPy and torch).
DTYPES = {
    "f16": (2, 16, "float16"),
    "bf16": (4, 16, "bfloat16"),
    "f32": (2, 32, "float32"),
    "f64": (2, 64, "float64"),
    "i8": (0, 8, "int8"),
    "i16": (0, 16, "int16"),
    "i32": (0, 32, "int32"),
    "i64": (0, 64, "int64"),
    "u8": (1, 8, "uint8"),
    "u16": (1, 16, "uint16"),
    "u32": (1, 32, "uint32"),
    "u64": (1, 64, "uint64"),
    "bool": (6, 8, "bool"),
}
DTYPE_OF_CODE = {(code, bits): name for name, (code, bits, _) in DTYPES.items()}
FLOATING = ("f16", "bf16", "f32", "f64")


@dataclass(frozen=True)
class Argument:
    """An input or output. `shapes` holds the alternatives, each a list of dimensions as docs/manifest.md says."""

    name: str
    dtype: str
    shapes: list
    optional: bool = False
    variadic: bool = False
    host: bool = False
    doc: str = ""


@dataclass(frozen=True)
class Attribute:
    """`type` is int, float, bool, string, ints or floats; a required one has no default."""

    name: str
    type: str
    required: bool
    default: Any = None
    min: float | None = None
    max: float | None = None
    min_open: bool = False
    max_open: bool = False
    choices: list | None = None
    doc: str = ""


@dataclass(frozen=True)
class Operator:
    domain: str
    name: str
    snake_name: str
    folder: str
    doc: str
    signature: str
    fingerprint: str
    devices: list
    grad: str | None
    dtypes: dict  # type variable -> the element types it may be
    inputs: list[Argument]
    outputs: list[Argument]
    attributes: list[Attribute]

    @property
    def qualified_name(self):
        return f"{self.domain}::{self.name}"

    @property
    def torch_namespace(self):
        return self.domain.replace(".", "_")

    @property
    def variadic(self):
        """Whether the last input stands for any number of tensors."""
        return bool(self.inputs) and self.inputs[-1].variadic

    def may_be_floating(self, argument):
        return any(dtype in FLOATING for dtype in self.dtypes.get(argument.dtype, [argument.dtype]))


def _attribute(entry):
    """A default of a float attribute may be infinite, which JSON has no number for."""
    default = entry.get("default")
    if entry["type"] == "float" and default is not None:
        entry = entry | {"default": float(default)}
    if entry["type"] == "floats" and default is not None:
        entry = entry | {"default": [float(v) for v in default]}
    return Attribute(**entry)


def parse_operators(manifest):
    """The operators of a manifest by their ONNX name, in its order."""
    return {
        entry["name"]: Operator(
            domain=manifest["domain"],
            **entry
            | {
                "inputs": [Argument(**i) for i in entry["inputs"]],
                "outputs": [Argument(**o) for o in entry["outputs"]],
                "attributes": [_attribute(a) for a in entry["attributes"]],
            },
        )
        for entry in manifest["operators"]
    }
