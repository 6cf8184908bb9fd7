"""KNN, slow and obvious."""

import numpy as np

OPERATOR = "KNN"
COMPARE = {"idx": "exact", "dist": "exact"}


@np.errstate(all="ignore")
def reference(inputs, attributes):
    xyz, query, k = inputs["xyz"], inputs["query"], attributes["k"]
    compute = np.result_type(xyz.dtype, np.float32).type
    idx = np.zeros((*query.shape[:2], k), np.int32)
    dist = np.full(idx.shape, np.inf, xyz.dtype)
    for b, m in np.ndindex(query.shape[:2]):
        d = xyz[b].astype(compute) - query[b, m].astype(compute)
        d2 = (d[:, 0] * d[:, 0] + d[:, 1] * d[:, 1]) + d[:, 2] * d[:, 2]
        near = np.argsort(d2, kind="stable")
        near = near[np.isfinite(d2[near])][:k]
        idx[b, m, : len(near)] = near
        dist[b, m, : len(near)] = np.sqrt(d2[near])
    return {"idx": idx, "dist": dist}


def cases():
    rng = np.random.default_rng(3)

    def case(name, xyz, query, k):
        return dict(
            name=name, inputs=dict(xyz=np.asarray(xyz), query=np.asarray(query)), attributes=dict(k=k)
        )

    cloud = rng.normal(0, 0.1, (2, 400, 3))
    f32 = cloud.astype(np.float32)
    grid = (
        np.stack(np.meshgrid(*[np.arange(6.0)] * 3, indexing="ij"), -1).reshape(1, -1, 3).astype(np.float32)
    )
    for dtype in (np.float16, np.float32, np.float64):
        yield case(f"cloud_{np.dtype(dtype).name}", cloud.astype(dtype), cloud.astype(dtype), 16)
    for k in (1, 2, 5, 33, 130):
        yield case(f"k{k}", f32, rng.normal(0, 0.15, (2, 50, 3)).astype(np.float32), k)
    yield case("k_exceeds_points", f32[:, :6], f32[:, :9], 11)
    yield case("k_equals_points", f32[:, :16], f32[:, :9], 16)
    yield case("one_point", f32[:, :1], f32[:, :4], 3)
    yield case("grid", grid, grid + 0.5, 8)
    yield case("grid_on_points", grid, grid, 27)
    yield case("duplicates", np.tile(f32[:, :30], (1, 6, 1)), f32[:, :40], 8)
    yield case("identical_points", np.ones((1, 300, 3), np.float32), np.ones((1, 5, 3), np.float32), 16)
    origin = f32.copy()
    origin[:, ::2] = 0  # FFB6D: pixels without depth all lie at the origin
    yield case("half_at_the_origin", origin, origin, 16)
    broken, query = f32.copy(), f32[:, :30].copy()
    broken[0, [0, 5]] = np.nan
    broken[1, 7, 1] = -np.inf
    query[0, 2] = np.nan
    query[1, 3, 0] = np.inf
    yield case("not_finite", broken, query, 9)
    yield case("all_nan", np.full((1, 9, 3), np.nan, np.float32), query[:1], 4)
    yield case(
        "overflow", np.float32([[[0, 0, 0], [3e38, 0, 0], [1e18, 0, 0]]]), np.float32([[[0, 0, 0]]]), 3
    )
    yield case("far_queries", f32, (cloud[:, :20] * 1e8).astype(np.float32), 4)
    yield case("outlier", np.concatenate([f32, np.full((2, 1, 3), 1e6, np.float32)], 1), f32[:, :50], 6)
    yield case("uneven", np.concatenate([f32, f32 * 1e-3, f32 * 100], 1), f32[:, :90] * 0.01, 16)
    big = rng.random((1, 5000, 3)).astype(np.float32)
    yield case("large", big, big[:, :600], 16)
    yield case("no_query", f32, np.zeros((2, 0, 3), np.float32), 4)
    yield case("no_cloud", np.zeros((0, 9, 3), np.float32), np.zeros((0, 3, 3), np.float32), 4)
