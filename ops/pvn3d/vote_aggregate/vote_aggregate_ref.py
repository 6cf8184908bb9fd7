"""VoteAggregate, slow and obvious: all votes against all; counts in the operator's own precision, moves in double."""

import numpy as np

OPERATOR = "VoteAggregate"
COMPARE = {"kps": ("close", 1e-5, 1e-5), "count": "exact", "seed": "exact"}


@np.errstate(all="ignore")
def square_distances(a, b):
    d = a[:, None] - b[None]
    return (d[..., 0] * d[..., 0] + d[..., 1] * d[..., 1]) + d[..., 2] * d[..., 2]


def move(centres, votes, h):
    centres, votes = centres.astype(np.float64), votes.astype(np.float64)
    w = np.exp(-square_distances(centres, votes) / (2 * h * h))
    return w @ votes / w.sum(1, keepdims=True)


def mean_shift(votes, attributes):
    """votes (n, 3) -> centre (3), seed, count, votes around the seed (n) bool."""
    h = votes.dtype.type(np.float32(attributes.get("bandwidth", 0.08)))
    tol, rounds = attributes.get("tol", 1e-3), attributes.get("max_iter", 300) + 1
    blurring, upstream = attributes.get("variant") == "ffb6d", attributes.get("stop") == "upstream"
    if blurring:
        for _ in range(rounds):
            before, votes = votes, move(votes, votes, h)
            if np.linalg.norm(votes - before, axis=1).max() < tol * h:
                break
        votes = votes.astype(h.dtype)
    near = square_distances(votes, votes) < h * h
    seed = int(near.sum(1).argmax())
    centre = votes[seed]
    if upstream and not blurring:
        centres = votes
        for _ in range(rounds):
            before, centres = centres, move(centres, votes, h)
            if np.linalg.norm(centres - before, axis=1).max() < tol * h:
                break
        centre = centres[seed]
    elif not blurring:
        for _ in range(rounds):
            before, centre = centre, move(centre[None], votes, h)[0]
            if np.linalg.norm(centre - before) < min(tol, 1e-4) * h:
                break
    return centre, seed, int(near[seed].sum()), near[seed]


@np.errstate(all="ignore")
def reference(inputs, attributes):
    points, offsets, mask = inputs["points"], inputs["offsets"], inputs.get("mask")
    compute = np.result_type(points.dtype, np.float32).type
    sign = compute(attributes.get("offset_sign", -1))
    b, k, _n = offsets.shape[:3]
    kps, count, seed = (
        np.zeros((b, k, 3), points.dtype),
        np.zeros((b, k), np.int32),
        np.full((b, k), -1, np.int32),
    )
    for i, j in np.ndindex(b, k):
        votes = points[i].astype(compute) + sign * offsets[i, j].astype(compute)
        who = np.isfinite(votes).all(1) & (True if mask is None else mask[i] != 0)
        who = np.flatnonzero(who)
        if len(who):
            kps[i, j], winner, count[i, j], _ = mean_shift(votes[who], attributes)
            seed[i, j] = who[winner]
    return {"kps": kps, "count": count, "seed": seed}


def cloud(rng, b, k, n, outliers=0.2, noise=0.005):
    """Points, and offsets whose votes gather around k keypoints, some of them wrong."""
    points = rng.normal(0, 0.05, (b, n, 3)) + [0, 0, 0.8]
    keypoints = rng.uniform(-0.1, 0.1, (b, k, 1, 3)) + [0, 0, 0.8]
    offsets = points[:, None] - keypoints + rng.normal(0, noise, (b, k, n, 3))
    offsets[:, :, rng.permutation(n)[: int(outliers * n)]] += rng.uniform(-0.3, 0.3, (int(outliers * n), 3))
    return points, offsets


def cases():
    rng = np.random.default_rng(8)

    def case(name, points, offsets, mask=None, dtype=np.float32, **attributes):
        inputs = dict(points=np.asarray(points, dtype), offsets=np.asarray(offsets, dtype))
        return dict(
            name=name, inputs=inputs | ({} if mask is None else dict(mask=mask)), attributes=attributes
        )

    points, offsets = cloud(rng, 2, 3, 150)
    for dtype in (np.float16, np.float32, np.float64):
        yield case(f"votes_{np.dtype(dtype).name}", points, offsets, dtype=dtype)
    few = points[:, :60], offsets[:, :, :60]  # all of these move
    yield case("upstream", *few, stop="upstream", max_iter=60)
    yield case("ffb6d", *few, variant="ffb6d", bandwidth=0.04, max_iter=60)
    yield case("small_bandwidth", points, offsets, bandwidth=0.01)
    yield case("one_update", points, offsets, max_iter=0)
    yield case("positive_offsets", points, -offsets, offset_sign=1)
    for dtype in (np.bool_, np.int32, np.int64):
        yield case(
            f"mask_{np.dtype(dtype).name}",
            points,
            offsets,
            (rng.random((2, 150)) < 0.5).astype(dtype) * dtype(3 if dtype is not np.bool_ else 1),
        )
    yield case("nobody_votes", points, offsets, np.zeros((2, 150), bool))
    yield case("one_votes", points, offsets, np.arange(150)[None] == [[3], [149]])
    yield case("one_point", points[:, :1], offsets[:, :, :1])
    yield case("two_points", points[:, :2], offsets[:, :, :2])
    yield case("identical_votes", np.ones((1, 300, 3)), np.zeros((1, 2, 300, 3)))
    yield case("two_equal_modes", np.repeat([[[0, 0, 1.0], [0.5, 0, 1]]], 40, 1), np.zeros((1, 1, 80, 3)))
    yield case("no_points", points[:, :0], offsets[:, :, :0])
    yield case("no_batch", points[:0], offsets[:0])
    yield case("no_keypoints", points, offsets[:, :0])
    broken = offsets.copy()
    broken[:, :, 3], broken[0, 1, 7, 2] = np.nan, np.inf
    yield case("not_finite", points, broken)
    yield case("all_nan", points, np.full_like(offsets, np.nan))
    yield case(
        "far_outlier", points, np.concatenate([offsets[:, :, :-1], np.full_like(offsets[:, :, :1], 1e30)], 2)
    )
    yield case("in_buckets", *cloud(rng, 1, 2, 900, noise=0.03))
    yield case("scattered", rng.uniform(-1, 1, (1, 700, 3)), np.zeros((1, 1, 700, 3)))
    yield case("large", *cloud(rng, 1, 2, 2500, outliers=0.4, noise=0.002))
