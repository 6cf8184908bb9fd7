"""The operator as a PyTorch user writes it: a torch.autograd.Function and a module around it. Nothing in this file
knows of ONNX or opbridge."""

import torch


class MyClipFunction(torch.autograd.Function):
    """Limits x to [min_val, max_val]; the gradient flows where the bounds do not bite."""

    @staticmethod
    def forward(ctx, x, min_val, max_val):
        ctx.save_for_backward(x)
        ctx.bounds = min_val, max_val
        return torch.clamp(x, min_val, max_val)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        min_val, max_val = ctx.bounds
        return grad_output * ((x >= min_val) & (x <= max_val)), None, None


class MyClip(torch.nn.Module):
    def __init__(self, min_val=-1.0, max_val=1.0):
        super().__init__()
        self.min_val = min_val
        self.max_val = max_val

    def forward(self, x):
        return MyClipFunction.apply(x, self.min_val, self.max_val)
