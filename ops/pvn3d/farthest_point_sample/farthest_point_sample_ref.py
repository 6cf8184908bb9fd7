"""FarthestPointSample, slow and obvious."""

import numpy as np

OPERATOR = "FarthestPointSample"
COMPARE = {"idx": "exact"}


def reference(inputs, attributes):
    xyz, npoint, start = inputs["xyz"], attributes["npoint"], attributes.get("start", 0)
    idx = np.zeros((len(xyz), npoint), np.int32)
    for cloud, row in zip(xyz, idx, strict=True):
        sample(cloud.astype(np.result_type(cloud.dtype, np.float32)), row, start, attributes)
    return {"idx": idx}


@np.errstate(all="ignore")
def sample(p, row, start, attributes):
    mag = (p[:, 0] * p[:, 0] + p[:, 1] * p[:, 1]) + p[:, 2] * p[:, 2]
    limit = p.dtype.type(np.float32(attributes.get("min_sq_norm", -1)))
    selectable = np.isfinite(p).all(1) & ~(mag <= limit)
    k = np.arange(len(p))
    order = k  # in which equally far points are preferred
    if attributes.get("tie_order", "lowest_index") == "pointnet2":
        threads = 1
        while threads < 512 and 2 * threads <= len(p):
            threads *= 2
        order = np.lexsort((k, k % threads))
    best, last = np.full(len(p), 1e10, p.dtype), start
    for j in range(len(row)):
        row[j] = last
        d = p - p[last]
        best = np.fmin(best, (d[:, 0] * d[:, 0] + d[:, 1] * d[:, 1]) + d[:, 2] * d[:, 2])
        masked = np.where(selectable, best, -1)[order]
        last = order[np.argmax(masked)] if selectable.any() else start


def cases():
    rng = np.random.default_rng(1)

    def case(name, xyz, npoint, **attributes):
        return dict(name=name, inputs=dict(xyz=np.asarray(xyz)), attributes=dict(npoint=npoint, **attributes))

    cloud = rng.normal(0, 0.2, (2, 700, 3))
    grid = (
        np.stack(np.meshgrid(*[np.arange(9.0)] * 3, indexing="ij"), -1).reshape(1, -1, 3).astype(np.float32)
    )
    duplicates = np.tile(cloud[:1, :200].astype(np.float32), (1, 3, 1))
    broken = cloud[:1, :90].astype(np.float32)
    broken[0, [3, 40]] = np.nan
    broken[0, 11, 2] = np.inf
    for dtype in (np.float16, np.float32, np.float64):
        yield case(f"cloud_{np.dtype(dtype).name}", cloud.astype(dtype), 150)
    yield case("start", cloud.astype(np.float32), 20, start=699)
    yield case("all_points", cloud[:, :65].astype(np.float32), 65)
    yield case("more_samples_than_points", cloud[:, :5].astype(np.float32), 12)
    yield case("one_point", cloud[:, :1].astype(np.float32), 3)
    for order in ("lowest_index", "pointnet2"):
        yield case(f"grid_{order}", grid, 400, tie_order=order)
        yield case(f"duplicates_{order}", duplicates, 330, tie_order=order)
        yield case(f"identical_{order}", np.ones((1, 37, 3), np.float32), 9, tie_order=order)
    for n, twin in ((600, 512), (511, 256)):  # two equally far points; pointnet2 prefers the second
        p = np.zeros((1, n, 3), np.float32)
        p[0, [1, twin], 0] = 1
        yield case(f"twins_{n}_lowest_index", p, 2)
        yield case(f"twins_{n}_pointnet2", p, 2, tie_order="pointnet2")
    yield case(
        "near_origin_skipped", (cloud * 0.15).astype(np.float32), 64, min_sq_norm=1e-3, tie_order="pointnet2"
    )
    yield case("nothing_selectable", np.zeros((2, 7, 3), np.float32), 4, min_sq_norm=1e-3, start=2)
    yield case("not_finite", broken, 60)
    yield case("not_finite_start", broken, 12, start=3)
    yield case("infinite_start", broken, 12, start=11)
    yield case("all_nan", np.full((1, 9, 3), np.nan, np.float32), 4, start=5)
    yield case("huge", (cloud * 1e6).astype(np.float32), 40)
    yield case("overflow", (cloud * 1e37).astype(np.float32), 40)
    yield case("tiny", (cloud * 1e-30).astype(np.float32), 40)
    yield case("outlier", np.concatenate([cloud, np.full((2, 1, 3), 1e4)], 1).astype(np.float32), 100)
    yield case("large", rng.normal(0, 0.2, (1, 5000, 3)).astype(np.float32), 600)
    yield case("plane", np.c_[rng.random((3000, 2)), np.zeros(3000)][None].astype(np.float32), 500)
    yield case("no_sample", cloud.astype(np.float32), 0)
    yield case("no_sample_of_nothing", np.zeros((2, 0, 3), np.float32), 0)
    yield case("no_cloud", np.zeros((0, 9, 3), np.float32), 4)
