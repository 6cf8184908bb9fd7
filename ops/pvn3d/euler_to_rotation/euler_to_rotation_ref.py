"""EulerToRotation, slow and obvious."""

import numpy as np

OPERATOR = "EulerToRotation"
COMPARE = {"rotation": ("close", 1e-6, 1e-6)}


def about(axis, angle):
    r = np.eye(3)
    p, q = (axis + 1) % 3, (axis + 2) % 3
    r[p, p] = r[q, q] = np.cos(angle)
    r[p, q], r[q, p] = -np.sin(angle), np.sin(angle)
    return r


def reference(inputs, attributes):
    angles, order = inputs["angles"], attributes.get("order", "xyz")
    out = np.zeros((*angles.shape, 3), angles.dtype)
    for at in np.ndindex(angles.shape[:-1]):
        factors = [
            about("xyz".index(axis), angle)
            for axis, angle in zip(order, angles[at].astype(np.float64), strict=True)
        ]
        first, second, third = factors if not attributes.get("extrinsic", True) else factors[::-1]
        out[at] = first @ second @ third
    return {"rotation": out}


def cases():
    rng = np.random.default_rng(2)
    angles = rng.uniform(-np.pi, np.pi, (4, 3, 3))
    for dtype in (np.float16, np.float32, np.float64):
        yield dict(name=np.dtype(dtype).name, inputs=dict(angles=angles.astype(dtype)), attributes={})
    for order in ("xyz", "zyx", "zxz", "yxy"):
        for extrinsic in (True, False):
            name = f"{order}_{'extrinsic' if extrinsic else 'intrinsic'}"
            yield dict(
                name=name,
                inputs=dict(angles=angles.astype(np.float32)),
                attributes=dict(order=order, extrinsic=extrinsic),
            )
    yield dict(name="one", inputs=dict(angles=np.float32([0.1, -np.pi / 2, 0.2])), attributes={})
    yield dict(name="none", inputs=dict(angles=np.zeros((0, 3), np.float32)), attributes={})
    yield dict(name="many", inputs=dict(angles=rng.normal(size=(2500, 3)).astype(np.float32)), attributes={})
    yield dict(name="nan", inputs=dict(angles=np.float32([[np.nan] * 3, [0, 1, 2]])), attributes={})
