"""my_clip in slow, obvious NumPy, and the cases that every host must agree on."""

import numpy as np


def my_clip(x, min=None, max=None):
    """x limited to [min, max], one element at a time, in the words of my_clip.h."""
    y = x.copy()
    flat = y.reshape(-1)
    for i, v in enumerate(x.reshape(-1)):
        for bound, bites in ((min, np.less), (max, np.greater)):
            if bound is None or v != v:  # NaN in x stays NaN
                continue
            b = bound.reshape(-1)[0]
            if b != b or bites(v, b):  # a NaN bound gives NaN
                v = b
        flat[i] = v
    return y


def my_clip_grad(grad_y, x, min=None, max=None):
    """grad_y where min <= x <= max, else 0."""
    grad_x = np.zeros_like(grad_y)
    for i, v in enumerate(x.reshape(-1)):
        inside = v == v
        inside = inside and (min is None or v >= min.reshape(-1)[0])
        inside = inside and (max is None or v <= max.reshape(-1)[0])
        if inside:
            grad_x.reshape(-1)[i] = grad_y.reshape(-1)[i]
    return grad_x


def cases(dtype):
    """(name, x, min, max) for a NumPy dtype; absent bounds are None. bfloat16 hosts take the float32 ones: every
    value here is exact in it."""
    dtype = np.dtype(dtype)
    floating = dtype.kind == "f"

    def array(values, shape=None):
        a = np.array(values, dtype=dtype)
        return a if shape is None else a.reshape(shape)

    values = [-8, -3, -2, -1, 0, 1, 2, 3, 8, 0, 100, -100]
    x = array(values, (3, 4))
    yield "both", x, array(-2), array(3)
    yield "none", x, None, None
    yield "min only", x, array(-2), None
    yield "max only", x, None, array(3)
    yield "bounds of one element", x, array([-2]), array([3])
    yield "bounds of both shapes", x, array([-2]), array(3)
    yield "min above max gives max", x, array(3), array(-2)
    yield "equal bounds", x, array(1), array(1)
    yield "scalar", array(100), array(-2), array(3)
    yield "one element", array([-100]), array(-2), array(3)
    yield "empty", array([], (0,)), array(-2), array(3)
    yield "empty axis", array([], (2, 0, 3)), array(-2), None
    yield "five axes", array(values, (1, 2, 1, 3, 2)), array(-1), array(1)
    if floating:
        x = array([np.nan, -np.inf, np.inf, -0.0, 0.0, 0.5, -0.5, np.nan])
        yield "special values", x, array(-0.5), array(0.5)
        yield "infinite bounds", x, array(-np.inf), array(np.inf)
        yield "NaN as min", x, array(np.nan), array(1)
        yield "NaN as max", x, array(-1), array(np.nan)
        yield "signed zeros", array([-0.0, 0.0]), array(0.0), array(-0.0)
    else:
        info = np.iinfo(dtype)
        x = array([info.min, info.max, 0, -1])
        yield "extremes", x, array(info.min + 1), array(info.max - 1)
        if dtype.itemsize == 8:  # float64 arithmetic would round these
            yield "above 2^53", array([2**53 + 1, 2**53 + 3]), array(2**53 + 2), array(2**62)
