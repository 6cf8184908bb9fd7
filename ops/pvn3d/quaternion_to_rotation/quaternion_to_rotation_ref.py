"""QuaternionToRotation, slow and obvious."""

import numpy as np

OPERATOR = "QuaternionToRotation"
COMPARE = {"rotation": ("close", 1e-6, 1e-6)}


def reference(inputs, attributes):
    quaternions = inputs["quaternion"]
    out = np.zeros((*quaternions.shape[:-1], 3, 3), quaternions.dtype)
    for at in np.ndindex(quaternions.shape[:-1]):
        q = quaternions[at].astype(np.float64)
        if q @ q < 1e-12:
            out[at] = np.eye(3)
            continue
        w, x, y, z = (q if attributes.get("scalar_first", True) else np.roll(q, 1)) / np.sqrt(q @ q)
        # The rotation of each unit vector e: q e q^-1.
        u = np.array([x, y, z])
        out[at] = np.stack(
            [e + 2 * w * np.cross(u, e) + 2 * np.cross(u, np.cross(u, e)) for e in np.eye(3)], 1
        )
    return {"rotation": out}


def cases():
    rng = np.random.default_rng(2)
    q = rng.normal(size=(4, 3, 4))
    special = [
        [1, 0, 0, 0],
        [0, 1, 0, 0],
        [0, 0, 0, 0],
        [2, 0, 0, 0],
        [1e-7, 0, 0, 0],
        [0, 0, 1e-5, 0],
        [-1, -1, 1, 1],
    ]
    for dtype in (np.float16, np.float32, np.float64):
        yield dict(name=np.dtype(dtype).name, inputs=dict(quaternion=q.astype(dtype)), attributes={})
    for scalar_first in (True, False):
        name = "scalar_first" if scalar_first else "scalar_last"
        yield dict(
            name=name, inputs=dict(quaternion=np.array(special)), attributes=dict(scalar_first=scalar_first)
        )
    yield dict(name="one", inputs=dict(quaternion=np.float32([0.1, 0, -2, 1])), attributes={})
    yield dict(name="none", inputs=dict(quaternion=np.zeros((0, 4), np.float32)), attributes={})
    yield dict(
        name="many", inputs=dict(quaternion=rng.normal(size=(2500, 4)).astype(np.float32)), attributes={}
    )
    yield dict(
        name="nan", inputs=dict(quaternion=np.float32([[np.nan, 0, 0, 1], [0, 1, 2, 0]])), attributes={}
    )
