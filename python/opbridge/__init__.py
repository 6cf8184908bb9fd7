"""Operators written once in C++, called from NumPy, PyTorch and ONNX Runtime."""

import importlib
import sys
import types

from .errors import (
    ArgumentTypeError,
    DeviceError,
    Error,
    ExportError,
    InternalError,
    InvalidArgumentError,
    LoadError,
    ModelError,
    NotSupportedError,
    OutOfMemoryError,
)
from .library import Library, load
from .paths import cmake_dir, library_path

__all__ = [
    "ArgumentTypeError",
    "DeviceError",
    "Error",
    "ExportError",
    "InternalError",
    "InvalidArgumentError",
    "Library",
    "LoadError",
    "ModelError",
    "NotSupportedError",
    "OutOfMemoryError",
    "check",
    "cmake_dir",
    "compare",
    "doctor",
    "export",
    "library_path",
    "load",
    "placement",
    "run_on_device",
    "session",
    "verify",
]

# Imported on first use: most need torch, onnx or onnxruntime.
_LAZY = {
    "session": "ort_session",
    "export": "export",
    "check": "check",
    "compare": "compare",
    "doctor": "doctor",
    "placement": "placement",
    "run_on_device": "placement",
    "verify": "verify",
}


class _Package(types.ModuleType):
    """Importing a submodule of the same name leaves the function: opbridge.doctor() works after opbridge.check()."""

    def __setattr__(self, name, value):
        if not (name in _LAZY and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name):
    if name == "my_clip":
        return importlib.import_module(f"{__name__}.my_clip")
    if name in _LAZY:
        function = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = function
        return function
    raise AttributeError(f"module 'opbridge' has no attribute '{name}'")
