"""What opbridge raises. Every class is also the built-in one a Python user would expect to catch."""

from difflib import get_close_matches


class Error(Exception):
    """Base of all errors of opbridge; `kind` is the stable, machine-readable cause."""

    kind = "internal"


class InvalidArgumentError(Error, ValueError):
    """An input or attribute that the operator's signature does not allow."""

    kind = "invalid_argument"


class ArgumentTypeError(Error, TypeError):
    """A call that does not fit the operator's parameters, or a value of a Python type that cannot be one."""

    kind = "invalid_argument"


class NotSupportedError(Error, NotImplementedError):
    """Right in itself, but not on this device, runtime or version."""

    kind = "not_supported"


class OutOfMemoryError(Error, MemoryError):
    kind = "out_of_memory"


class DeviceError(Error, RuntimeError):
    """A CUDA launch or the device itself failed."""

    kind = "device"


class InternalError(Error, RuntimeError):
    """A fault of an operator library."""

    kind = "internal"


class LoadError(Error, RuntimeError):
    """A library that cannot be found, opened or registered."""

    kind = "load"


class ModelError(Error, ValueError):
    """An ONNX model that does not fit the given libraries."""

    kind = "model"


class ExportError(Error, RuntimeError):
    """A PyTorch model that cannot be exported, or whose export does not compute what the model does."""

    kind = "export"


def nearest(word, known):
    """The text " (did you mean 'x'?)" for the known word that `word` most likely stands for; empty if none is near."""
    for candidate in known:
        if candidate.replace("_", "").lower() == word.replace("_", "").lower():
            return f" (did you mean '{candidate}'?)"
    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else ""
