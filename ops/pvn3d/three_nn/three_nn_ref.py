"""ThreeNN, slow and obvious."""

import numpy as np

OPERATOR = "ThreeNN"
COMPARE = {"dist": "exact", "idx": "exact"}


@np.errstate(all="ignore")
def reference(inputs, attributes):
    unknown, known = inputs["unknown"], inputs["known"]
    compute = np.result_type(known.dtype, np.float32).type
    idx = np.zeros((*unknown.shape[:2], 3), np.int32)
    dist = np.full(idx.shape, np.inf, known.dtype)
    for b, n in np.ndindex(unknown.shape[:2]):
        d = known[b].astype(compute) - unknown[b, n].astype(compute)
        d2 = (d[:, 0] * d[:, 0] + d[:, 1] * d[:, 1]) + d[:, 2] * d[:, 2]
        near = np.argsort(d2, kind="stable")
        near = near[np.isfinite(d2[near])][:3]
        idx[b, n, : len(near)] = near
        dist[b, n, : len(near)] = d2[near] if attributes.get("squared") else np.sqrt(d2[near])
    return {"dist": dist, "idx": idx}


def cases():
    rng = np.random.default_rng(4)

    def case(name, unknown, known, **attributes):
        inputs = dict(unknown=np.asarray(unknown), known=np.asarray(known))
        return dict(name=name, inputs=inputs, attributes=attributes)

    cloud = rng.normal(0, 0.1, (2, 300, 3))
    f32 = cloud.astype(np.float32)
    grid = (
        np.stack(np.meshgrid(*[np.arange(5.0)] * 3, indexing="ij"), -1).reshape(1, -1, 3).astype(np.float32)
    )
    for dtype in (np.float16, np.float32, np.float64):
        yield case(f"cloud_{np.dtype(dtype).name}", cloud.astype(dtype), cloud[:, :80].astype(dtype))
    yield case("squared", f32, f32[:, 200:], squared=True)
    for m in (1, 2, 3, 4):
        yield case(f"known_{m}", f32[:, :20], f32[:, :m])
    yield case("grid", grid + 0.5, grid)
    yield case("duplicates", f32[:, :50], np.tile(f32[:, :20], (1, 4, 1)))
    broken = f32[:, :90].copy()
    broken[0, [0, 5]] = np.nan
    broken[1, 7, 1] = -np.inf
    yield case("not_finite", broken[:, ::-1], broken)
    yield case("all_nan", broken[:1], np.full((1, 9, 3), np.nan, np.float32))
    big = rng.random((1, 4000, 3)).astype(np.float32)
    yield case("large", big, big[:, :1000])
    yield case("no_unknown", np.zeros((2, 0, 3), np.float32), f32)
    yield case("no_cloud", np.zeros((0, 9, 3), np.float32), np.zeros((0, 3, 3), np.float32))
