"""L2Normalize and its gradient, slow and obvious."""

import numpy as np

OPERATOR = "L2Normalize"
COMPARE = {"y": ("close", 3e-7, 0)}
COMPARE_GRAD = {"grad_x": ("close", 1e-6, 1e-6)}


@np.errstate(all="ignore")
def reference(inputs, attributes):
    x, axis = inputs["x"], attributes.get("axis", -1)
    length = np.sqrt((x.astype(np.float64) ** 2).sum(axis, keepdims=True))
    divisor = np.maximum(length, np.float32(attributes.get("eps", 1e-12)))
    return {"y": np.where(divisor == 0, 0, x.astype(np.float64) / divisor).astype(x.dtype)}


@np.errstate(all="ignore")
def reference_grad(inputs, attributes):
    g, x, axis = (
        inputs["grad_y"].astype(np.float64),
        inputs["x"].astype(np.float64),
        attributes.get("axis", -1),
    )
    eps = np.float32(attributes.get("eps", 1e-12)).astype(np.float64)
    length = np.sqrt((x**2).sum(axis, keepdims=True))
    divisor = np.maximum(length, eps)
    y = np.where(length < eps, 0, x / divisor)
    grad = np.where(divisor == 0, 0, (g - y * (y * g).sum(axis, keepdims=True)) / divisor)
    return {"grad_x": grad.astype(inputs["x"].dtype)}


def cases():
    rng = np.random.default_rng(9)

    def case(name, x, **attributes):
        return dict(name=name, inputs=dict(x=np.asarray(x)), attributes=attributes)

    def values(*shape):
        return rng.normal(size=shape).astype(np.float32)

    for dtype in (np.float16, np.float32, np.float64):
        for length in (1, 3, 4, 7, 8, 16, 37, 128):
            yield case(f"rows_{length}_{np.dtype(dtype).name}", rng.normal(size=(21, length)).astype(dtype))
        for axis in (0, 1, -2):
            yield case(
                f"axis_{axis}_{np.dtype(dtype).name}", rng.normal(size=(5, 13, 19)).astype(dtype), axis=axis
            )
    yield case("one_dimension", values(33))
    yield case("zeros", np.zeros((3, 5), np.float32))
    yield case("zeros_without_eps", np.zeros((3, 5), np.float32), eps=0.0)
    yield case("shorter_than_eps", values(4, 5) * 1e-3, eps=0.5)
    yield case("huge", values(4, 3) * 1e38)
    yield case("tiny", values(4, 3) * 1e-30)
    x = values(5, 9)
    x[0, 3], x[1, 4] = np.nan, np.inf
    yield case("not_finite", x)
    yield case("not_finite_axis_0", x, axis=0)
    yield case("empty", np.zeros((0, 3), np.float32))
    yield case("empty_rows", np.zeros((3, 0), np.float32))
    yield case("large", values(3000, 3))


def grad_cases():
    rng = np.random.default_rng(10)
    for case in cases():
        x = case["inputs"]["x"]
        if np.isfinite(x).all() and case["name"] not in ("huge", "tiny"):
            grad_y = rng.normal(size=x.shape).astype(x.dtype)
            yield dict(name=case["name"], inputs=dict(grad_y=grad_y, x=x), attributes=case["attributes"])
