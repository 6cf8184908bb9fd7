"""ThreeInterpolate and its gradient, slow and obvious."""

import numpy as np

OPERATOR = "ThreeInterpolate"
COMPARE = {"out": "exact"}
COMPARE_GRAD = {"grad_features": ("close", 1e-6, 1e-6), "grad_weight": ("close", 1e-6, 1e-6)}


def taken(features, idx, dtype):
    """features at idx as (B, N, 3, C), 0 where the index is out of range"""
    m = features.shape[2]
    padded = np.concatenate([features, np.zeros((*features.shape[:2], 1), features.dtype)], 2).astype(dtype)
    safe = np.where((idx >= 0) & (idx < m), idx, m)
    return (
        np.stack([padded[b].T[safe[b]] for b in range(len(idx))])
        if len(idx)
        else np.zeros((*idx.shape, 0), dtype)
    )


def reference(inputs, attributes):
    features, idx, weight = inputs["features"], inputs["idx"], inputs["weight"]
    compute = np.result_type(features.dtype, np.float32)
    t = taken(features, idx, compute) * weight.astype(compute)[..., None]
    out = (t[:, :, 0] + t[:, :, 1]) + t[:, :, 2]
    shape = (features.shape[0], features.shape[1], idx.shape[1])
    return {"out": out.transpose(0, 2, 1).astype(features.dtype).reshape(shape)}


def reference_grad(inputs, attributes):
    grad_out, features, idx, weight = (inputs[k] for k in ("grad_out", "features", "idx", "weight"))
    grad = np.zeros(features.shape)
    g = grad_out.astype(np.float64)
    for b, n, j in np.ndindex(idx.shape):
        if 0 <= idx[b, n, j] < features.shape[2]:
            grad[b, :, idx[b, n, j]] += float(weight[b, n, j]) * g[b, :, n]
    grad_weight = np.zeros(weight.shape)
    if grad_out.size:
        grad_weight = (
            (taken(features, idx, np.float64) * g.transpose(0, 2, 1)[:, :, None])
            .sum(-1)
            .reshape(weight.shape)
        )
    return {"grad_features": grad.astype(features.dtype), "grad_weight": grad_weight.astype(weight.dtype)}


def cases():
    rng = np.random.default_rng(7)

    def case(name, features, idx):
        weight = rng.random(idx.shape).astype(features.dtype)
        return dict(name=name, inputs=dict(features=features, idx=idx, weight=weight), attributes={})

    def features(b, c, m, dtype=np.float32):
        return rng.normal(size=(b, c, m)).astype(dtype)

    for dtype in (np.float16, np.float32, np.float64):
        for index in (np.int32, np.int64):
            idx = rng.integers(0, 20, (2, 33, 3)).astype(index)
            yield case(f"{np.dtype(dtype).name}_{np.dtype(index).name}", features(2, 5, 20, dtype), idx)
    idx = rng.integers(0, 9, (2, 21, 3)).astype(np.int32)
    idx[0, :4, 1] = [-1, 9, 2**31 - 1, -(2**31)]
    yield case("bad_index", features(2, 3, 9), idx)
    yield case("no_known_point", features(2, 3, 0), idx)
    yield case("no_output_point", features(2, 3, 9), idx[:, :0])
    yield case("no_channel", features(2, 0, 9), idx)
    yield case("no_batch", features(0, 3, 9), idx[:0])
    yield case("many", features(1, 9, 300), rng.integers(0, 300, (1, 3000, 3)).astype(np.int32))


def grad_cases():
    rng = np.random.default_rng(8)
    for case in cases():
        out = reference(case["inputs"], {})["out"]
        grad_out = rng.normal(size=out.shape).astype(out.dtype)
        yield dict(name=case["name"], inputs=dict(grad_out=grad_out, **case["inputs"]), attributes={})
