"""GatherPoints and its gradient, slow and obvious."""

import numpy as np

OPERATOR = "GatherPoints"
COMPARE = {"out": "exact"}
COMPARE_GRAD = {"grad_features": ("close", 1e-6, 1e-6)}


def reference(inputs, attributes):
    features, idx = inputs["features"], inputs["idx"]
    channels, n = features.shape[1:]
    out = np.zeros((idx.shape[0], channels, *idx.shape[1:]), features.dtype)
    for at in np.ndindex(idx.shape):
        if 0 <= idx[at] < n:
            out[(at[0], slice(None), *at[1:])] = features[at[0], :, idx[at]]
    return {"out": out}


def reference_grad(inputs, attributes):
    grad_out, features, idx = inputs["grad_out"], inputs["features"], inputs["idx"]
    grad = np.zeros(features.shape)
    for at in np.ndindex(idx.shape):
        if 0 <= idx[at] < features.shape[2]:
            grad[at[0], :, idx[at]] += grad_out[(at[0], slice(None), *at[1:])]
    return {"grad_features": grad.astype(features.dtype)}


def cases():
    yield from cases_of((33,), (5000,))


def cases_of(positions, many):
    """Cases whose idx is (B, *positions)."""
    rng = np.random.default_rng(5)

    def case(name, features, idx):
        return dict(name=name, inputs=dict(features=features, idx=idx), attributes={})

    def features(b, c, n, dtype=np.float32):
        return rng.normal(size=(b, c, n)).astype(dtype)

    for dtype in (np.float16, np.float32, np.float64):
        for index in (np.int32, np.int64):
            idx = rng.integers(0, 50, (2, *positions)).astype(index)
            yield case(f"{np.dtype(dtype).name}_{np.dtype(index).name}", features(2, 5, 50, dtype), idx)
    idx = rng.integers(0, 9, (2, *positions)).astype(np.int32)
    for at, bad in enumerate([-1, 9, 2**31 - 1, -(2**31)]):
        idx[0, at] = bad
    yield case("bad_index", features(2, 3, 9), idx)
    wide = idx.astype(np.int64)
    wide[1, :2] = 2**40
    yield case("bad_wide_index", features(2, 3, 9), wide)
    yield case("no_points", features(2, 3, 0), idx)
    yield case("no_index", features(2, 3, 9), idx[:, :0])
    yield case("no_channel", features(2, 0, 9), idx)
    yield case("no_batch", features(0, 3, 9), idx[:0])
    yield case("many", features(1, 9, 3000), rng.integers(-1, 3001, (1, *many)).astype(np.int32))


def grad_cases():
    yield from grad_cases_of(cases())


def grad_cases_of(cases):
    rng = np.random.default_rng(6)
    for case in cases:
        out = reference(case["inputs"], {})["out"]
        grad_out = rng.normal(size=out.shape).astype(out.dtype)
        yield dict(name=case["name"], inputs=dict(grad_out=grad_out, **case["inputs"]), attributes={})
