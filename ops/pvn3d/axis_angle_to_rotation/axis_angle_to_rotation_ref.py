"""AxisAngleToRotation, slow and obvious."""

import numpy as np

OPERATOR = "AxisAngleToRotation"
COMPARE = {"rotation": ("close", 1e-6, 1e-6)}


def reference(inputs, attributes):
    v = inputs["axis_angle"]
    out = np.zeros((*v.shape, 3), v.dtype)
    for at in np.ndindex(v.shape[:-1]):
        x, y, z = v[at].astype(np.float64)
        t = np.sqrt(x * x + y * y + z * z)
        a, b = (np.sin(t) / t, (1 - np.cos(t)) / t**2) if not t < 1e-4 else (1 - t * t / 6, 0.5 - t * t / 24)
        k = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
        out[at] = np.eye(3) + a * k + b * k @ k
    return {"rotation": out}


def cases():
    rng = np.random.default_rng(2)
    v = rng.normal(size=(4, 3, 3))
    special = [
        [0, 0, 0],
        [1e-6, 0, 0],
        [0, 1e-3, 0],
        [np.pi, 0, 0],
        [0, 0, 2 * np.pi],
        [9.99e-5, 0, 0],
        [0, 1.01e-4, 0],
    ]
    for dtype in (np.float16, np.float32, np.float64):
        yield dict(name=np.dtype(dtype).name, inputs=dict(axis_angle=v.astype(dtype)), attributes={})
    yield dict(name="special", inputs=dict(axis_angle=np.array(special)), attributes={})
    yield dict(name="one", inputs=dict(axis_angle=np.float32([0.1, 0, -2])), attributes={})
    yield dict(name="none", inputs=dict(axis_angle=np.zeros((2, 0, 3), np.float32)), attributes={})
    yield dict(
        name="many", inputs=dict(axis_angle=rng.normal(size=(2500, 3)).astype(np.float32)), attributes={}
    )
    yield dict(name="nan", inputs=dict(axis_angle=np.float32([[np.nan, 0, 0], [0, 1, 2]])), attributes={})
