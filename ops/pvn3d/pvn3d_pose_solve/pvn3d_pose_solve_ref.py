"""PVN3DPoseSolve, slow and obvious: step by step with the references of VoteAggregate and KabschSolver."""

import kabsch_solver_ref as kabsch_ref
import numpy as np
import vote_aggregate_ref as votes_ref

OPERATOR = "PVN3DPoseSolve"
COMPARE = {
    "rotation": ("close", 1e-3, 1e-3),
    "translation": ("close", 1e-4, 1e-4),
    "valid": "exact",
    "kps": ("close", 1e-4, 3e-5),
    "count": "exact",
}


def centre_of(votes, attributes):
    """Centre and mask of the agreeing votes; votes that are not finite take no part."""
    finite = np.isfinite(votes).all(1)
    agree = np.zeros(len(votes), bool)
    if not finite.any():
        return np.zeros(3), agree
    centre, _, _, near = votes_ref.mean_shift(votes[finite], attributes)
    agree[np.flatnonzero(finite)[near]] = True
    return centre, agree


def one_frame(points, labels, kp_of, ctr_of, mesh_kps, mesh_ctr, radii, attributes):
    compute = np.result_type(points.dtype, np.float32).type
    sign = compute(attributes.get("offset_sign", -1))
    m, k = mesh_kps.shape[:2]
    points = points.astype(compute)
    centre_votes, keypoint_votes = (
        points + sign * ctr_of[0].astype(compute),
        points + sign * kp_of.astype(compute),
    )
    labels = np.where((labels >= 1) & (labels <= m), labels, 0)
    present = [(labels == o + 1).any() for o in range(m)]
    if radii is not None:
        found = [centre_of(centre_votes[labels == o + 1], attributes) for o in range(m)]
        centres = (
            np.array([c if a.any() else np.full(3, np.inf) for c, a in found]).reshape(m, 3).astype(compute)
        )
        distances = np.linalg.norm(centre_votes[:, None] - centres[None], axis=2)
        distances[~np.isfinite(distances)] = np.inf
        refined = labels.copy()
        for i in np.flatnonzero(labels > 0):
            nearest = int(distances[i].argmin())
            if distances[i, nearest] < compute(radii[nearest]) * compute(
                np.float32(attributes.get("refine_ratio", 0.8))
            ):
                refined[i] = nearest + 1
        labels = refined
    rotation, translation, valid = np.tile(np.eye(3), (m, 1, 1)), np.zeros((m, 3)), np.zeros(m, np.int32)
    kps, count = np.zeros((m, k + 1, 3)), np.zeros(m, np.int32)
    for o in range(m):
        members = np.flatnonzero(labels == o + 1)
        centre, agree = centre_of(centre_votes[members], attributes)
        if not present[o] or not agree.any():
            continue
        voters = members[agree] if attributes.get("ctr_filter", True) else members
        weights = np.ones(k + 1)
        for j in range(k):
            kps[o, j], voted = centre_of(keypoint_votes[j][voters], attributes)
            weights[j] = voted.any()
        kps[o, k], count[o] = centre, agree.sum()
        used = k + attributes.get("use_ctr", True)
        template = np.concatenate([mesh_kps[o], mesh_ctr[o][None]])[:used]
        rotation[o], translation[o], valid[o] = kabsch_ref.solve(template, kps[o, :used], weights[:used])
    return rotation, translation, valid, kps, count


@np.errstate(all="ignore")
def reference(inputs, attributes):
    frames = zip(*(inputs[name] for name in ("points", "labels", "kp_of", "ctr_of")), strict=True)
    meshes = inputs["mesh_kps"], inputs["mesh_ctr"], inputs.get("radii")
    solved = [one_frame(*frame, *meshes, attributes) for frame in frames]
    dtype, b, (m, k) = inputs["points"].dtype, len(inputs["points"]), inputs["mesh_kps"].shape[:2]
    shapes = {
        "rotation": (m, 3, 3),
        "translation": (m, 3),
        "valid": (m,),
        "kps": (m, k + 1, 3),
        "count": (m,),
    }
    return {
        name: np.array([s[i] for s in solved])
        .reshape(b, *shape)
        .astype(np.int32 if name in ("valid", "count") else dtype)
        for i, (name, shape) in enumerate(shapes.items())
    }


def frame(rng, m, k, n, mesh_kps, mesh_ctr, wrong=0.15, swapped=10):
    """Points of m objects and background, with offsets that are right but for noise and outliers, and some wrong
    labels."""
    labels = rng.integers(0, m + 1, n)
    points = rng.uniform(-0.5, 0.5, (n, 3)) + [0, 0, 1.2]
    kp_of, ctr_of = rng.normal(0, 0.5, (k, n, 3)), rng.normal(0, 0.5, (1, n, 3))
    for o in range(m):
        r, t = kabsch_ref.random_rotation(rng), np.array([0.35 * o - 0.3, 0.1 * o, 0.9])
        own = np.flatnonzero(labels == o + 1)
        points[own] = rng.uniform(-0.06, 0.06, (len(own), 3)) @ r.T + t
        ctr_of[0, own] = points[own] - (r @ mesh_ctr[o] + t) + rng.normal(0, 0.004, (len(own), 3))
        kp_of[:, own] = (
            points[own] - (mesh_kps[o] @ r.T + t)[:, None] + rng.normal(0, 0.004, (k, len(own), 3))
        )
        bad = own[: int(wrong * len(own))]
        kp_of[:, bad] += rng.uniform(-0.3, 0.3, (k, len(bad), 3))
        ctr_of[0, bad] += rng.uniform(-0.3, 0.3, (len(bad), 3))
    if m > 1 and swapped:
        labels[np.flatnonzero(labels == 1)[-swapped:]] = 2
    return points, labels, kp_of, ctr_of


def cases():
    rng = np.random.default_rng(12)
    m, k, n = 3, 8, 500
    mesh_kps, mesh_ctr = rng.uniform(-0.08, 0.08, (m, k, 3)), rng.normal(0, 0.003, (m, 3))
    frames = [frame(rng, m, k, n, mesh_kps, mesh_ctr) for _ in range(2)]
    points, labels, kp_of, ctr_of = (np.stack(x) for x in zip(*frames, strict=True))
    radii = np.full(m, 0.12)

    def case(name, dtype=np.float32, index=np.int32, use_radii=False, **changes):
        inputs = dict(
            points=points, labels=labels, kp_of=kp_of, ctr_of=ctr_of, mesh_kps=mesh_kps, mesh_ctr=mesh_ctr
        )
        inputs |= dict(radii=radii) if use_radii else {}
        inputs |= {key: changes.pop(key) for key in list(changes) if key in inputs}
        inputs = {key: np.asarray(x, index if key == "labels" else dtype) for key, x in inputs.items()}
        return dict(name=name, inputs=inputs, attributes=changes)

    yield case("linemod", ctr_filter=False)
    yield case("linemod_float64", np.float64, np.int64, ctr_filter=False)
    yield case("ycb", use_radii=True)
    yield case("ycb_int64", index=np.int64, use_radii=True, refine_ratio=0.5)
    yield case("without_centre", use_ctr=False)
    few = dict(
        points=points[:, :200], labels=labels[:, :200], kp_of=kp_of[:, :, :200], ctr_of=ctr_of[:, :, :200]
    )
    yield case("upstream", stop="upstream", use_radii=True, max_iter=60, **few)
    yield case("ffb6d", variant="ffb6d", bandwidth=0.04, use_radii=True, max_iter=60, **few)
    yield case("positive_offsets", kp_of=-kp_of, ctr_of=-ctr_of, offset_sign=1)
    yield case("object_missing", labels=np.where(labels == 2, 0, labels), use_radii=True)
    yield case("only_background", labels=labels * 0, use_radii=True)
    yield case("labels_of_no_object", labels=np.where(labels == 3, 9, labels) - 5 * (labels == 0))
    yield case("one_point_an_object", labels=np.where(np.arange(n) < 3, np.arange(n) + 1, 0) + 0 * labels)
    broken_k, broken_c = kp_of.copy(), ctr_of.copy()
    broken_k[:, 2, ::7], broken_c[:, 0, ::5] = np.nan, np.inf
    yield case("not_finite", kp_of=broken_k, ctr_of=broken_c, use_radii=True)
    lost = kp_of.copy()
    lost[:, 5] = np.nan
    yield case("a_keypoint_without_votes", kp_of=lost)
    yield case(
        "no_points",
        points=points[:, :0],
        labels=labels[:, :0],
        kp_of=kp_of[:, :, :0],
        ctr_of=ctr_of[:, :, :0],
    )
    yield case("no_frames", points=points[:0], labels=labels[:0], kp_of=kp_of[:0], ctr_of=ctr_of[:0])
    yield case("no_objects", mesh_kps=mesh_kps[:0], mesh_ctr=mesh_ctr[:0])
