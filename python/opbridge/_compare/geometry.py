"""Are two different answers of a point operator both right? Indices of equally far points may be told in any order."""

import itertools

import numpy as np

from .metrics import TIE_TOLERANCES

# Operator -> its index output, and the inputs that hold the points that are searched and those that they are searched
# for. The names are those of the operators' signatures (ops/pvn3d).
_SEARCHES = {"KNN": (0, 0, 1), "ThreeNN": (1, 1, 0), "BallQuery": (0, 0, 1)}


def explain(op, output, inputs, attributes):
    """For metrics.compare(): a function of two index arrays that gives True for each entry that is not explained by
    a tie, or None where output number `output` of operator `op` is no index into points.

    `inputs`: the operator's arrays; `attributes`: its attributes by name.
    """
    if op == "FarthestPointSample" and output == 0:
        return lambda a, e: _differing(a, e, *(_sampled_right(v, inputs[0], attributes) for v in (a, e)))
    if op not in _SEARCHES or _SEARCHES[op][0] != output:
        return None
    points, queries = (inputs[n] for n in _SEARCHES[op][1:])
    if op == "BallQuery":
        return lambda a, e: _differing(a, e, *(_found_right(v, points, queries, attributes) for v in (a, e)))
    return lambda a, e: _farther(a, e, points, queries)


def _differing(a, e, right_a, right_e):
    """Entries that differ in rows which are wrong on either side."""
    return (a != e) & ~(right_a & right_e)[..., None]


def _distances(points, queries, index):
    """Distances (B, M, k) from query m to the points with the given indices; NaN where an index is none."""
    valid = (index >= 0) & (index < points.shape[1])
    batch = np.arange(len(points))[:, None, None]
    found = points.astype(np.float64)[batch, np.where(valid, index, 0)]
    with np.errstate(invalid="ignore", over="ignore"):
        distances = np.linalg.norm(found - queries.astype(np.float64)[:, :, None], axis=-1)
    return np.where(valid, distances, np.nan)


def _tie(points):
    return TIE_TOLERANCES.get(points.dtype.name, 1e-5)


def _farther(a, e, points, queries):
    """Nearest neighbours: the distance at each rank decides, not the index; a point may be told once only."""
    if points.shape[1] == 0:
        return a != e
    da, de = (_distances(points, queries, v) for v in (a, e))
    scale = np.abs(points).max(initial=0, where=np.isfinite(points)) * 1.0
    with np.errstate(invalid="ignore"):
        near = np.abs(da - de) <= _tie(points) * (np.maximum(da, de) + scale)
    ordered = np.sort(a, -1)
    twice = (
        (ordered[..., 1:] == ordered[..., :-1]).any(-1) if a.shape[-1] > 1 else np.zeros(a.shape[:-1], bool)
    )
    return (a != e) & (~near | twice[..., None])


def _found_right(index, points, queries, attributes):
    """(B, M): the row holds the first `nsample` points closer than the radius, give or take those right at it."""
    radius, nearest = attributes["radius"], attributes.get("min_radius", 0.0)
    slots = index.shape[-1]
    right = np.zeros(index.shape[:2], bool)
    for b, m in np.ndindex(right.shape):
        with np.errstate(invalid="ignore", over="ignore"):
            d = np.linalg.norm(points[b].astype(np.float64) - queries[b, m].astype(np.float64), axis=-1)
            scale = _tie(points) * (radius + np.abs(queries[b, m]).max(initial=0))
            sure = (d < radius - scale) & ((d >= nearest + scale) | (d == 0))
            may = (d < radius + scale) & ((d >= nearest - scale) | (d == 0))
        row = index[b, m]
        told = list(dict.fromkeys(row.tolist()))
        if not may.any():
            right[b, m] = not row.any()
            continue
        if told == [0] and not may[0] and not sure.any():
            right[b, m] = True  # nothing found, where all that may count lies at the radius
            continue
        if min(told) < 0 or max(told) >= len(d) or not may[told].all() or told != sorted(told):
            continue
        last = told[-1] if len(told) == slots else len(d)
        right[b, m] = set(np.flatnonzero(sure[:last])) <= set(told)
    return right


def _sampled_right(index, points, attributes):
    """(B): each point is as far from those before it as any is."""
    right = np.zeros(len(index), bool)
    floor = attributes.get("min_sq_norm", -1.0)
    for b, row in enumerate(index):
        p = points[b].astype(np.float64)
        if not len(row):
            right[b] = True
            continue
        if row.min() < 0 or row.max() >= len(p) or row[0] != attributes.get("start", 0):
            continue
        allowed = np.isfinite(p).all(-1) & (np.square(p).sum(-1) > floor)
        nearest = np.full(len(p), np.inf)
        right[b] = True
        scale = _tie(points) * np.abs(p[allowed]).max(initial=0)
        for before, chosen in itertools.pairwise(row):
            nearest = np.minimum(nearest, np.linalg.norm(p - p[before], axis=-1))
            best = nearest[allowed].max(initial=0)
            if best > scale and not nearest[chosen] >= best - scale:
                right[b] = False
                break
    return right
