"""A user's own operator in PyTorch, as it was before opbridge; see export.py for the way out."""

from .op_impl import MyClip, MyClipFunction

__all__ = ["MyClip", "MyClipFunction"]
