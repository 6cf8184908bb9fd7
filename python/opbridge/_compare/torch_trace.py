"""Every tensor that a PyTorch model computes, with the module and the source line that made it."""

import contextlib
import os
import re
import sys
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

_HIDDEN = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(os.path.dirname(__file__)) + os.sep)


@dataclass
class Record:
    """A tensor. `names`: what the operations that returned it are called, from the Python function down to the ATen
    operator (linear, addmm). `path`: the innermost module that was being called, `call` which of its calls it was.
    `parents`: positions of the records it was computed from."""

    array: np.ndarray
    names: list
    path: str
    call: int
    source: str
    parents: list
    operation: int = 0  # outputs of one operation have one number
    custom: bool = False


@dataclass
class ModuleCall:
    path: str
    call: int
    first: int  # records from here to `last` were made inside
    last: int = 0
    outputs: list = field(default_factory=list)  # positions of the records returned


@dataclass
class Trace:
    records: list
    calls: list  # ModuleCall, in the order in which they began
    outputs: list  # arrays
    where: list  # for each output, the position of its record, or None
    paths: list  # every module's


def to_numpy(tensor):
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy()
    return tensor.numpy().copy()


def trace(model, flat, inputs):
    """The Trace of `flat`, a module from tensors to a tuple of tensors that calls `model`, for `inputs`."""
    recorder = _Recorder()
    inputs = [i.detach().clone() for i in inputs]
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if isinstance(model, torch.nn.Module):
            for path, module in model.named_modules():
                recorder.follow(path, module, stack)
        stack.enter_context(recorder.following_functions())
        stack.enter_context(_Functions(recorder))
        stack.enter_context(_Operators(recorder))
        outputs = flat(*inputs)
        where = [recorder.known.get(o) for o in outputs]
    paths = [path for path, _ in model.named_modules()] if isinstance(model, torch.nn.Module) else [""]
    return Trace(recorder.records, recorder.calls, [to_numpy(o) for o in outputs], where, paths)


class _Recorder:
    def __init__(self):
        self.records, self.calls = [], []
        self.known = WeakTensorKeyDictionary()  # tensor -> position of its record
        self.stack = []
        self.counts = {}

    def follow(self, path, module, stack):
        def enter(_module, _args):
            self.counts[path] = self.counts.get(path, 0) + 1
            call = ModuleCall(path, self.counts[path] - 1, len(self.records))
            self.calls.append(call)
            self.stack.append(call)

        def leave(_module, _args, output):
            call = self.stack.pop()
            call.last = len(self.records)
            call.outputs = [self.known.get(t) for t in tensors_of(output)]

        stack.callback(module.register_forward_pre_hook(enter).remove)
        stack.callback(module.register_forward_hook(leave).remove)

    def add(self, outputs, name, arguments, before, custom=False):
        """Notes the tensors that operation `name` returned, which began when there were `before` records; those that an
        operation inside it returned get one name more."""
        operation = len(self.records)
        for tensor in tensors_of(outputs):
            position = self.known.get(tensor)
            if position is not None and position >= before:
                record = self.records[position]
                if name not in record.names:
                    record.names.append(name)
                record.custom |= custom
                continue
            call = self.stack[-1] if self.stack else None
            parents = {self.known.get(t) for t in tensors_of(arguments)} - {None}
            self.known[tensor] = len(self.records)
            self.records.append(
                Record(
                    to_numpy(tensor),
                    [name],
                    call.path if call else "",
                    call.call if call else 0,
                    _source(),
                    sorted(parents),
                    operation,
                    custom,
                )
            )

    @contextlib.contextmanager
    def following_functions(self):
        """Notes what autograd.Functions return: to an exporter each is one operator."""
        original = torch.autograd.Function.__dict__["apply"]

        def apply(cls, *args, **kwargs):
            before = len(self.records)
            outputs = original.__get__(None, cls)(*args, **kwargs)
            self.add(outputs, cls.__name__, args, before, custom=True)
            return outputs

        torch.autograd.Function.apply = classmethod(apply)
        try:
            yield
        finally:
            torch.autograd.Function.apply = original


class _Functions(TorchFunctionMode):
    """Python's functions: linear, where the dispatcher sees addmm."""

    def __init__(self, recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, function, types, args=(), kwargs=None):
        before = len(self.recorder.records)
        outputs = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        if name and name not in ("__get__", "__set__", "detach", "numpy"):
            self.recorder.add(outputs, name, (args, kwargs), before)
        return outputs


class _Operators(TorchDispatchMode):
    def __init__(self, recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        before = len(self.recorder.records)
        outputs = function(*args, **(kwargs or {}))
        namespace, name = function._schema.name.split("::")
        custom = namespace not in ("aten", "prim", "prims")
        self.recorder.add(outputs, name, (args, kwargs), before, custom)
        return outputs


def tensors_of(value):
    """Every tensor inside nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return []
    return [t for item in value for t in tensors_of(item)]


def _source():
    """The innermost line outside of torch and opbridge: "network.py:12"."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_HIDDEN) and not re.match(r"<(frozen|string)", file):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
