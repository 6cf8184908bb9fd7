"""my_clip and its gradient, slow and obvious: one element at a time, in the words of my_clip.h."""

import numpy as np

OPERATOR = "my_clip"
COMPARE = {"y": "exact"}
COMPARE_GRAD = {"grad_x": "exact"}


def bounds(inputs):
    """min and max as scalars, None where absent."""
    return [None if inputs.get(k) is None else inputs[k].reshape(-1)[0] for k in ("min", "max")]


def reference(inputs, attributes):
    y = inputs["x"].copy()
    low, high = bounds(inputs)
    for at, v in np.ndenumerate(inputs["x"]):
        if v != v:  # NaN in x stays NaN
            continue
        for bound, bites in ((low, np.less), (high, np.greater)):
            if bound is not None and (bound != bound or bites(v, bound)):  # a NaN bound gives NaN
                v = bound
        y[at] = v
    return {"y": y}


def reference_grad(inputs, attributes):
    grad_x = np.zeros_like(inputs["grad_y"])
    low, high = bounds(inputs)
    for at, v in np.ndenumerate(inputs["x"]):
        if v == v and (low is None or v >= low) and (high is None or v <= high):
            grad_x[at] = inputs["grad_y"][at]
    return {"grad_x": grad_x}


def cases():
    for dtype in (np.float16, np.float32, np.float64, np.int32, np.int64):
        yield from cases_of(np.dtype(dtype))


def cases_of(dtype):
    """Every value of the float32 cases is exact in bfloat16, too."""

    def case(name, x, low, high):
        inputs = {k: v for k, v in (("x", x), ("min", low), ("max", high)) if v is not None}
        return dict(name=f"{name}_{dtype.name}", inputs=inputs, attributes={})

    def array(values, shape=None):
        a = np.array(values, dtype=dtype)
        return a if shape is None else a.reshape(shape)

    values = [-8, -3, -2, -1, 0, 1, 2, 3, 8, 0, 100, -100]
    x = array(values, (3, 4))
    yield case("both", x, array(-2), array(3))
    yield case("none", x, None, None)
    yield case("min_only", x, array(-2), None)
    yield case("max_only", x, None, array(3))
    yield case("bounds_of_one_element", x, array([-2]), array([3]))
    yield case("bounds_of_both_shapes", x, array([-2]), array(3))
    yield case("min_above_max_gives_max", x, array(3), array(-2))
    yield case("equal_bounds", x, array(1), array(1))
    yield case("scalar", array(100), array(-2), array(3))
    yield case("one_element", array([-100]), array(-2), array(3))
    yield case("empty", array([], (0,)), array(-2), array(3))
    yield case("empty_axis", array([], (2, 0, 3)), array(-2), None)
    yield case("five_axes", array(values, (1, 2, 1, 3, 2)), array(-1), array(1))
    if dtype.kind == "f":
        x = array([np.nan, -np.inf, np.inf, -0.0, 0.0, 0.5, -0.5, np.nan])
        yield case("special_values", x, array(-0.5), array(0.5))
        yield case("infinite_bounds", x, array(-np.inf), array(np.inf))
        yield case("nan_as_min", x, array(np.nan), array(1))
        yield case("nan_as_max", x, array(-1), array(np.nan))
        yield case("signed_zeros", array([-0.0, 0.0]), array(0.0), array(-0.0))
    else:
        info = np.iinfo(dtype)
        x = array([info.min, info.max, 0, -1])
        yield case("extremes", x, array(info.min + 1), array(info.max - 1))
        if dtype.itemsize == 8:  # float64 arithmetic would round these
            yield case("above_2_to_53", array([2**53 + 1, 2**53 + 3]), array(2**53 + 2), array(2**62))


def grad_cases():
    for case in cases():
        x = case["inputs"]["x"]
        grad_y = np.arange(1, x.size + 1, dtype=x.dtype).reshape(x.shape)
        yield case | dict(inputs=dict(grad_y=grad_y, **case["inputs"]))
