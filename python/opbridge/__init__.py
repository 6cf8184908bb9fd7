"""Operators written once in C++, called from NumPy, PyTorch and ONNX Runtime."""

import importlib

from .errors import (
    ArgumentTypeError,
    DeviceError,
    Error,
    InternalError,
    InvalidArgumentError,
    LoadError,
    ModelError,
    NotSupportedError,
    OutOfMemoryError,
)
from .library import Library, load
from .paths import library_path

__all__ = [
    "ArgumentTypeError",
    "DeviceError",
    "Error",
    "InternalError",
    "InvalidArgumentError",
    "Library",
    "LoadError",
    "ModelError",
    "NotSupportedError",
    "OutOfMemoryError",
    "library_path",
    "load",
    "session",
]

# Imported on first use: they need torch, onnx or onnxruntime.
_LAZY = {"session": ".session", "export": ".export"}


def __getattr__(name):
    if name == "my_clip":
        return importlib.import_module(".my_clip", __name__)
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module 'opbridge' has no attribute '{name}'")
