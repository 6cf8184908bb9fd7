"""Where an ONNX Runtime session runs its nodes, and running it without copies between host and device."""

import json
import os
import tempfile
from dataclasses import dataclass

import numpy as np

from .errors import ArgumentTypeError, InvalidArgumentError
from .ort_session import _onnxruntime, session

_ONNX_BFLOAT16, _ONNX_BOOL = 16, 9
_COPIES = ("MemcpyFromHost", "MemcpyToHost")


@dataclass(frozen=True)
class Placement:
    """One run of a model. `nodes`: (name, operator, provider) of each node that ran once, in their order, copies left
    out; `copies`: how often a tensor was copied between host and device memory for a node."""

    nodes: tuple
    copies: int

    def on(self, provider):
        """The names of the nodes that ran on a provider, such as "CPUExecutionProvider"."""
        return [name for name, _, where in self.nodes if where == provider]

    def __str__(self):
        providers = dict.fromkeys(provider for _, _, provider in self.nodes)
        lines = [
            f"{provider}: "
            + ", ".join(f"{op} '{name}'" for name, op, where in self.nodes if where == provider)
            for provider in providers
        ]
        return "\n".join([*lines, f"copies between host and device: {self.copies}"])


def placement(model, inputs, libraries=(), *, session_options=None, **options):
    """Runs `model` once on `inputs` (arrays by name) and returns its Placement. The other arguments are session()'s:
    with provider="cuda", allow_fallback=True it says what fell back to the CPU. Works with every ONNX Runtime that
    session() takes, from its profile. Raises what session() and the run raise."""
    with tempfile.TemporaryDirectory() as folder:
        session_options = session_options or _onnxruntime().SessionOptions()
        session_options.enable_profiling = True
        session_options.profile_file_prefix = os.path.join(folder, "profile")
        opened = session(model, libraries, session_options=session_options, **options)
        try:
            opened.run(None, inputs)
        finally:
            path = opened.end_profiling()
        with open(path) as f:
            events = json.load(f)
    nodes, copies = [], 0
    for event in events:
        arguments = event.get("args", {})
        if not event["name"].endswith("_kernel_time") or "provider" not in arguments:
            continue
        if arguments.get("op_name") in _COPIES:
            copies += 1
        else:
            nodes.append(
                (event["name"].removesuffix("_kernel_time"), arguments["op_name"], arguments["provider"])
            )
    return Placement(tuple(dict.fromkeys(nodes)), copies)


def run_on_device(opened, inputs):
    """Runs an InferenceSession on torch tensors where they are: {input name: tensor} -> {output name: tensor}, outputs
    on the inputs' device. CUDA tensors are neither copied to the host nor back (I/O binding); work queued on torch's
    current stream is waited for, and the outputs are ready on return. Raises InvalidArgumentError for tensors on
    several devices or a session whose providers do not reach the device, ArgumentTypeError for what is no tensor."""
    import torch

    if not inputs or not all(isinstance(t, torch.Tensor) for t in inputs.values()):
        raise ArgumentTypeError("run_on_device() takes torch tensors by input name")
    devices = {t.device for t in inputs.values()}
    if len(devices) > 1:
        raise InvalidArgumentError(
            f"the inputs lie on several devices: {', '.join(sorted(map(str, devices)))}"
        )
    device = devices.pop()
    if device.type not in ("cpu", "cuda"):
        raise InvalidArgumentError(f"tensors lie on the CPU or a CUDA device, got {device}")
    if device.type == "cuda" and not any("CUDA" in p.upper() for p in opened.get_providers()):
        raise InvalidArgumentError(
            f"the session has only {', '.join(opened.get_providers())}; tensors on {device} need its CUDA provider: "
            "session(.., provider='cuda')"
        )
    index = device.index or 0
    tensors = {name: t.detach().contiguous() for name, t in inputs.items()}  # kept until the run is over
    binding = opened.io_binding()
    for name, t in tensors.items():
        element = (
            _ONNX_BFLOAT16 if t.dtype == torch.bfloat16 else np.dtype(str(t.dtype).removeprefix("torch."))
        )
        binding.bind_input(name, device.type, index, element, list(t.shape), t.data_ptr())
    outputs = [o.name for o in opened.get_outputs()]
    for name in outputs:
        binding.bind_output(name, device.type, index)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    opened.run_with_iobinding(binding)
    binding.synchronize_outputs()
    return {name: _to_torch(torch, value) for name, value in zip(outputs, binding.get_outputs(), strict=True)}


def _to_torch(torch, value):
    """A torch tensor on an OrtValue's memory."""
    native = value._get_c_value() if hasattr(value, "_get_c_value") else value._ortvalue
    tensor = torch.utils.dlpack.from_dlpack(native.to_dlpack())
    return (
        tensor.to(torch.bool) if value.element_type() == _ONNX_BOOL else tensor
    )  # bytes in DLPack's first version
