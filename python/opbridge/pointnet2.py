"""PointNet++ on opbridge's operators: the functions under their usual names and argument orders, and the modules.

Shapes: xyz (B, N, 3), features (B, C, N), indices (B, npoint[, nsample]) int32. Works on every device that the
operators
have kernels for, the CPU included. Results equal those of the compiled extension (Pointnet2_PyTorch, PVN3D, VoteNet)
bit
for bit where they are indices: its order among equally far points and its rule for points near the origin are passed
on.

Source: PointNet++ (Qi et al. 2017); the names and argument orders are those of erikwijmans/Pointnet2_PyTorch.
"""

import itertools

import torch

from .library import load
from .paths import library_path

load(library_path("pvn3d_custom_op"), torch=True)
_ops = getattr(torch.ops, "pvn3d_custom_ops")  # noqa: B009  (the namespace exists once the library is loaded)

# The compiled extension never selects points closer than 3.2 cm to the origin, which its users' clouds are padded with.
UPSTREAM_MIN_SQ_NORM = 1e-3


def furthest_point_sample(xyz, npoint, *, min_sq_norm=UPSTREAM_MIN_SQ_NORM, tie_order="pointnet2"):
    """Indices (B, npoint) int32 of points far from each other, starting with point 0.

    min_sq_norm [m^2]: points with x^2 + y^2 + z^2 at most this are never selected, as in the compiled extension; -1
    selects from all points, which a cloud around its own centre needs. Not differentiable.
    """
    return _ops.farthest_point_sample(xyz, npoint=npoint, min_sq_norm=min_sq_norm, tie_order=tie_order)


def gather_operation(features, idx):
    """features (B, C, N), idx (B, M) -> (B, C, M); differentiable in the features."""
    return _ops.gather_points(features, idx)


def grouping_operation(features, idx):
    """features (B, C, N), idx (B, M, S) -> (B, C, M, S); differentiable in the features."""
    return _ops.group_points(features, idx)


def ball_query(radius, nsample, xyz, new_xyz):
    """Indices (B, M, nsample) int32 of the first nsample points of xyz (B, N, 3) closer than radius [m] to each of
    new_xyz (B, M, 3); rows with fewer repeat the first, rows without any are 0. Not differentiable."""
    return _ops.ball_query(xyz, new_xyz, radius=radius, nsample=nsample)[0]


def three_nn(unknown, known):
    """Distances (B, N, 3) [m], ascending, and indices (B, N, 3) int32 of the three points of known (B, M, 3) nearest to
    each of unknown (B, N, 3). Where known has fewer: infinity and 0. Not differentiable."""
    return _ops.three_nn(unknown, known)


def three_interpolate(features, idx, weight):
    """features (B, C, M), idx and weight (B, N, 3) -> (B, C, N); differentiable in features and weight."""
    return _ops.three_interpolate(features, idx, weight)


def knn(k, xyz, query):
    """Distances (B, M, k) [m], ascending, and indices (B, M, k) int32 of the k points of xyz (B, N, 3) nearest to
    each of query (B, M, 3)."""
    idx, dist = _ops.knn(xyz, query, k=k)
    return dist, idx


class QueryAndGroup(torch.nn.Module):
    """The neighbourhood of each new_xyz: offsets of the points, and their features."""

    def __init__(self, radius, nsample, use_xyz=True):
        super().__init__()
        self.radius, self.nsample, self.use_xyz = radius, nsample, use_xyz

    def forward(self, xyz, new_xyz, features=None):
        """xyz (B, N, 3), new_xyz (B, M, 3), features (B, C, N) or None -> (B, 3 + C, M, nsample), without the 3 when
        use_xyz is off."""
        idx = ball_query(self.radius, self.nsample, xyz, new_xyz)
        grouped_xyz = grouping_operation(xyz.transpose(1, 2).contiguous(), idx)
        offsets = grouped_xyz - new_xyz.transpose(1, 2).unsqueeze(-1)
        if features is None:
            if not self.use_xyz:
                raise ValueError("QueryAndGroup has nothing to group: no features, and use_xyz is off")
            return offsets
        grouped = grouping_operation(features, idx)
        return torch.cat([offsets, grouped], 1) if self.use_xyz else grouped


class GroupAll(torch.nn.Module):
    """All points as one neighbourhood."""

    def __init__(self, use_xyz=True):
        super().__init__()
        self.use_xyz = use_xyz

    def forward(self, xyz, new_xyz, features=None):
        """-> (B, 3 + C, 1, N); new_xyz is not used."""
        grouped_xyz = xyz.transpose(1, 2).unsqueeze(2)
        if features is None:
            return grouped_xyz
        grouped = features.unsqueeze(2)
        return torch.cat([grouped_xyz, grouped], 1) if self.use_xyz else grouped


def build_shared_mlp(channels, bn=True):
    """1x1 convolutions, each followed by batch normalisation (with bn) and ReLU."""
    layers = []
    for before, after in itertools.pairwise(channels):
        layers.append(torch.nn.Conv2d(before, after, 1, bias=not bn))
        if bn:
            layers.append(torch.nn.BatchNorm2d(after))
        layers.append(torch.nn.ReLU(True))
    return torch.nn.Sequential(*layers)


class PointnetSAModuleMSG(torch.nn.Module):
    """Set abstraction at several scales: sample npoint points, group each one's neighbourhoods, and condense them.

    radii [m], nsamples and mlps have one entry for each scale; an mlp's first entry is the number of features that
    come in (without xyz). npoint None: one point that stands for all (radii and nsamples are not used).
    """

    def __init__(self, npoint, radii, nsamples, mlps, bn=True, use_xyz=True):
        super().__init__()
        if not len(radii) == len(nsamples) == len(mlps):
            raise ValueError(
                f"{len(radii)} radii, {len(nsamples)} nsamples and {len(mlps)} mlps: one of each for every scale"
            )
        self.npoint = npoint
        self.groupers = torch.nn.ModuleList()
        self.mlps = torch.nn.ModuleList()
        for radius, nsample, mlp in zip(radii, nsamples, mlps, strict=True):
            self.groupers.append(
                GroupAll(use_xyz) if npoint is None else QueryAndGroup(radius, nsample, use_xyz)
            )
            self.mlps.append(build_shared_mlp([mlp[0] + 3 * use_xyz, *mlp[1:]], bn))

    def forward(self, xyz, features=None):
        """xyz (B, N, 3), features (B, C, N) -> new_xyz (B, npoint, 3) or None, new_features (B, sum of the mlps'
        last, npoint)."""
        new_xyz = None
        if self.npoint is not None:
            idx = furthest_point_sample(xyz, self.npoint)
            new_xyz = gather_operation(xyz.transpose(1, 2).contiguous(), idx).transpose(1, 2).contiguous()
        # amax and not max_pool2d: exporters keep its shape dynamic.
        scales = [
            mlp(group(xyz, new_xyz, features)).amax(3)
            for group, mlp in zip(self.groupers, self.mlps, strict=True)
        ]
        return new_xyz, torch.cat(scales, 1)


class PointnetSAModule(PointnetSAModuleMSG):
    """Set abstraction at one scale."""

    def __init__(self, mlp, npoint=None, radius=None, nsample=None, bn=True, use_xyz=True):
        super().__init__(npoint, [radius], [nsample], [mlp], bn=bn, use_xyz=use_xyz)


class PointnetFPModule(torch.nn.Module):
    """Feature propagation: features of few points, interpolated to many and mixed with theirs."""

    def __init__(self, mlp, bn=True):
        super().__init__()
        self.mlp = build_shared_mlp(mlp, bn)

    def forward(self, unknown, known, unknow_feats, known_feats):
        """unknown (B, N, 3), known (B, M, 3) or None, unknow_feats (B, C1, N) or None, known_feats (B, C2, M) -> (B,
        mlp[-1], N)."""
        if known is None:
            interpolated = known_feats.expand(-1, -1, unknown.size(1))
        else:
            dist, idx = three_nn(unknown, known)
            # A clamp, not "+ 1e-8": exporters' optimisers take such an addition for one of zero.
            weight = 1.0 / dist.clamp(min=1e-8)
            interpolated = three_interpolate(known_feats, idx, weight / weight.sum(2, keepdim=True))
        if unknow_feats is not None:
            interpolated = torch.cat([interpolated, unknow_feats], 1)
        return self.mlp(interpolated.unsqueeze(-1)).squeeze(-1)
