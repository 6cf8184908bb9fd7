"""my_namespace::my_clip, the smallest operator, as a torch module."""

import torch

from .library import load
from .paths import library_path


class MyClip(torch.nn.Module):
    """Limits every element to [min_val, max_val]; None leaves that side open.

    x: (...) of the bounds' kind (floating or integer), any such type -> the same shape and type. NaN stays NaN. No
    gradient flows to the bounds; they are buffers that move and convert with the module but are not in its state_dict.
    `dtype` is theirs, by default torch's default dtype; give an integer type for integer tensors.
    Raises TypeError where floating bounds meet an integer x, and the operator's own errors.
    """

    def __init__(self, min_val=None, max_val=None, *, dtype=None, device=None):
        super().__init__()
        _load()
        dtype = dtype or torch.get_default_dtype()
        for name, value in (("min_val", min_val), ("max_val", max_val)):
            bound = None if value is None else torch.tensor(value, dtype=dtype, device=device)
            self.register_buffer(name, bound, persistent=False)

    def __setstate__(self, state):
        super().__setstate__(state)
        _load()  # unpickled in a new process

    def forward(self, x):
        return torch.ops.my_namespace.my_clip(x, self._bound("min_val", x), self._bound("max_val", x))

    def _bound(self, name, x):
        bound = getattr(self, name)
        if bound is None or bound.dtype == x.dtype:
            return bound
        if bound.is_floating_point() and not x.is_floating_point():
            raise TypeError(
                f"MyClip's {name} is {bound.dtype}, x is {x.dtype}: construct it with dtype={x.dtype}"
            )
        return bound.to(x.dtype)

    def extra_repr(self):
        bounds = ((name, getattr(self, name)) for name in ("min_val", "max_val"))
        return ", ".join(f"{name}={None if bound is None else bound.item()}" for name, bound in bounds)


def _load():
    load(library_path("my_custom_ops"), torch=True)
