"""What follows a PVN3D or FFB6D network: votes to keypoints, keypoints to poses, poses to scores.

Points and keypoints are in metres, rotations act on column vectors: camera = R object + t. Everything takes torch
tensors. Source: PVN3D (He et al. 2020), FFB6D (He et al. 2021); the metrics are those of their evaluation code.
"""

import torch

from .pointnet2 import _ops


def mean_shift(votes, bandwidth=0.08, max_iter=300, **options):
    """The centre of the densest of N votes (N, 3) [m] -> centre (3), inlier mask (N) bool.

    `options`: tol, stop ("converged" or "upstream") and variant ("pvn3d" or "ffb6d"), as operator VoteAggregate has
    them. No votes give centre 0. For variant ffb6d the mask is of the votes around the centre, since the moved ones are
    not kept.
    """
    points, offsets = votes[None], torch.zeros_like(votes)[None, None]
    centre, _, seed = _ops.vote_aggregate(points, offsets, bandwidth=bandwidth, max_iter=max_iter, **options)
    around = centre[0, 0]
    if options.get("variant", "pvn3d") == "pvn3d" and len(votes):
        around = votes[seed[0, 0].long()]
    return centre[0, 0], ((votes - around) ** 2).sum(-1) < torch.tensor(bandwidth, dtype=votes.dtype) ** 2


class MeanShiftTorch:
    """Stands in for the class of the same name in PVN3D and FFB6D."""

    def __init__(self, bandwidth=0.05, max_iter=300):
        self.bandwidth, self.max_iter = bandwidth, max_iter

    def fit(self, votes):
        """votes (N, 3) -> centre (3), inlier mask (N) bool."""
        return mean_shift(votes, self.bandwidth, self.max_iter)


def vote_keypoints(points, offsets, mask=None, **attributes):
    """points (B, N, 3), offsets (B, K, N, 3), mask (B, N) or None -> keypoints (B, K, 3), count (B, K), seed (B, K).
    `attributes`: of operator VoteAggregate; differentiable in points and offsets."""
    return _ops.vote_aggregate(points, offsets, mask, **attributes)


def best_fit_transform(template_kps, pred_kps, weights=None):
    """Kabsch: (*B, N, 3) or (N, 3) twice -> rotation (*B, 3, 3), translation (*B, 3), valid (*B): 0 no pose, 1 the
    pose, 2 not the only one. Differentiable in everything."""
    return _ops.kabsch_solver(template_kps, pred_kps, weights)


def solve_poses(points, labels, kp_of, ctr_of, mesh_kps, mesh_ctr, radii=None, **attributes):
    """A frame's poses from a network's outputs, as operator PVN3DPoseSolve: points (B, N, 3), labels (B, N) with
    class m + 1 for object m, kp_of (B, K, N, 3), ctr_of (B, 1, N, 3), mesh_kps (M, K, 3), mesh_ctr (M, 3), radii (M)
    or None -> rotation (B, M, 3, 3), translation (B, M, 3), valid (B, M), keypoints (B, M, K + 1, 3), count (B, M).

    The published settings: YCB  radii given, ctr_filter=True; LineMOD  no radii, ctr_filter=False (PVN3D) or True
    (FFB6D); FFB6D  bandwidth=0.04, variant="ffb6d".
    """
    return _ops.pvn3d_pose_solve(points, labels, kp_of, ctr_of, mesh_kps, mesh_ctr, radii, **attributes)


def transform(points, rotation, translation):
    """points (N, 3), rotation (*B, 3, 3), translation (*B, 3) -> (*B, N, 3)."""
    return points @ rotation.mT + translation.unsqueeze(-2)


def add(rotation, translation, true_rotation, true_translation, points):
    """ADD [m]: the mean distance of the object's points (N, 3) under two poses; (*B, 3, 3) and (*B, 3) twice ->
    (*B)."""
    estimated = transform(points, rotation, translation)
    return (estimated - transform(points, true_rotation, true_translation)).norm(dim=-1).mean(-1)


def adds(rotation, translation, true_rotation, true_translation, points):
    """ADD-S [m], for symmetric objects: each true point's distance to the nearest estimated one, averaged; as add()."""
    estimated = transform(points, rotation, translation)
    truth = transform(points, true_rotation, true_translation).expand_as(estimated)
    flat = estimated.reshape(-1, *points.shape), truth.reshape(-1, *points.shape)
    nearest, _ = _ops.three_nn(flat[1].contiguous(), flat[0].contiguous())
    return nearest[..., 0].mean(-1).reshape(estimated.shape[:-2])


def auc(distances, limit=0.1):
    """Area below the accuracy-threshold curve [%]: distances [m] of all frames (ADD or ADD-S), thresholds from 0 to
    limit.
    100: all are 0. Between two distances the accuracy counts that the larger one reaches, as in the evaluation of
    YCB-Video."""
    distances = torch.as_tensor(distances, dtype=torch.float64).flatten()
    if len(distances) == 0:
        raise ValueError("no distances: the area is not defined")
    reached = distances[distances <= limit].sort().values  # a NaN is no success
    if len(reached) == 0:
        return 0.0
    accuracy = torch.arange(1, len(reached) + 1, dtype=torch.float64) / len(distances)
    widths = torch.diff(reached, prepend=reached.new_zeros(1))
    return float(((widths * accuracy).sum() + (limit - reached[-1]) * accuracy[-1]) / limit * 100)


def success_rate(distances, diameter, ratio=0.1):
    """Share of poses [%] whose distance is below `ratio` of the object's diameter [m]."""
    return float((torch.as_tensor(distances) < ratio * diameter).double().mean() * 100)
