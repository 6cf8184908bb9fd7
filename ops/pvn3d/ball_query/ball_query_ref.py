"""BallQuery, slow and obvious."""

import numpy as np

OPERATOR = "BallQuery"
COMPARE = {"idx": "exact", "count": "exact"}


@np.errstate(all="ignore")
def reference(inputs, attributes):
    xyz, new_xyz = inputs["xyz"], inputs["new_xyz"]
    compute = np.result_type(xyz.dtype, np.float32).type
    radius, min_radius = (
        compute(np.float32(attributes["radius"])),
        compute(np.float32(attributes.get("min_radius", 0))),
    )
    idx = np.zeros((*new_xyz.shape[:2], attributes["nsample"]), np.int32)
    count = np.zeros(new_xyz.shape[:2], np.int32)
    for b, m in np.ndindex(count.shape):
        d = xyz[b].astype(compute) - new_xyz[b, m].astype(compute)
        d2 = (d[:, 0] * d[:, 0] + d[:, 1] * d[:, 1]) + d[:, 2] * d[:, 2]
        hit = np.flatnonzero((d2 < radius * radius) & ((d2 >= min_radius * min_radius) | (d2 == 0)))
        hit = hit[: attributes["nsample"]]
        count[b, m] = len(hit)
        if len(hit):
            idx[b, m] = hit[0]
            idx[b, m, : len(hit)] = hit
    return {"idx": idx, "count": count}


def cases():
    rng = np.random.default_rng(2)

    def case(name, xyz, new_xyz, radius, nsample, **attributes):
        return dict(
            name=name,
            inputs=dict(xyz=np.asarray(xyz), new_xyz=np.asarray(new_xyz)),
            attributes=dict(radius=radius, nsample=nsample, **attributes),
        )

    cloud = rng.normal(0, 0.1, (2, 500, 3))
    f32 = cloud.astype(np.float32)
    grid = (
        np.stack(np.meshgrid(*[np.arange(6.0)] * 3, indexing="ij"), -1).reshape(1, -1, 3).astype(np.float32)
    )
    for dtype in (np.float16, np.float32, np.float64):
        yield case(
            f"cloud_{np.dtype(dtype).name}", cloud.astype(dtype), cloud[:, :70].astype(dtype), 0.05, 16
        )
    yield case("other_centres", f32, rng.normal(0, 0.1, (2, 90, 3)).astype(np.float32), 0.03, 8)
    yield case("one_slot", f32, f32[:, ::7], 0.1, 1)
    yield case("more_slots_than_points", f32[:, :5], f32[:, :5], 0.3, 16)
    yield case("many_slots", f32, f32[:, :20], 0.2, 1024)
    yield case("everything_inside", f32, f32, 10.0, 32)
    yield case("infinite_radius_squared", f32, f32[:, :9], 1e30, 32)
    yield case("nothing_inside", f32, np.full((2, 3, 3), 9, np.float32), 0.1, 4)
    yield case("tiny_radius", f32, f32[:, :40], 1e-9, 4)
    yield case("radius_whose_square_vanishes", f32, f32[:, :4], 1e-30, 4)
    yield case("boundary_excluded", grid, grid[:, ::3], 2.0, 32)
    yield case("ring", grid, grid, 3.0, 64, min_radius=2.0)
    yield case("ring_of_a_cloud", f32, f32[:, :60], 0.1, 16, min_radius=0.05)
    yield case("duplicates", np.tile(f32[:, :40], (1, 5, 1)), f32[:, :40], 0.04, 8)
    yield case("identical_points", np.ones((1, 300, 3), np.float32), np.ones((1, 3, 3), np.float32), 0.1, 16)
    broken, centres = f32.copy(), f32[:, :30].copy()
    broken[0, [0, 5]] = np.nan
    broken[1, 7, 1] = -np.inf
    centres[0, 2] = np.nan
    centres[1, 3, 0] = np.inf
    yield case("not_finite", broken, centres, 0.08, 16)
    yield case("all_nan", np.full((1, 9, 3), np.nan, np.float32), centres[:1], 0.1, 4)
    yield case("far_from_the_origin", f32 + 1000, f32[:, :30] + 1000, 0.05, 16)
    yield case(
        "outlier", np.concatenate([f32, np.full((2, 1, 3), 1e6, np.float32)], 1), f32[:, :50], 0.05, 16
    )
    yield case("far_outside", f32, (cloud[:, :20] * 1e30).astype(np.float32), 0.05, 4)
    big = rng.random((1, 6000, 3)).astype(np.float32)
    yield case("large", big, big[:, :400], 0.1, 32)
    yield case("no_centre", f32, np.zeros((2, 0, 3), np.float32), 0.1, 4)
    yield case("no_centre_no_point", np.zeros((2, 0, 3), np.float32), np.zeros((2, 0, 3), np.float32), 0.1, 4)
    yield case("no_cloud", np.zeros((0, 9, 3), np.float32), np.zeros((0, 3, 3), np.float32), 0.1, 4)
