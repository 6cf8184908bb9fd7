"""opbridge.pointnet2, opbridge.compat and opbridge.pvn3d."""

import sys

import numpy as np
import opbridge
import pytest
import torch
from conftest import built


@pytest.fixture(scope="module")
def p2():
    built("pvn3d_custom_op")
    from opbridge import pointnet2

    return pointnet2


def upstream_fps(xyz, npoint):
    """The compiled extension's rule, written down for one cloud: its order among equals, and its rule near the
    origin."""
    n = len(xyz)
    threads = min(512, 2 ** int(np.log2(n)))
    best, picked, last = np.full(n, np.float32(1e10)), [0], 0
    for _ in range(npoint - 1):
        d = xyz - xyz[last]
        far = (xyz**2).sum(1) > 1e-3
        best = np.where(
            far, np.minimum(best, (d[:, 0] * d[:, 0] + d[:, 1] * d[:, 1]) + d[:, 2] * d[:, 2]), best
        )
        candidates = np.flatnonzero(far & (best == best[far].max()))
        last = int(min(candidates, key=lambda k: (k % threads, k)))
        picked.append(last)
    return picked


def test_sampling_follows_the_compiled_extension_on_duplicates_and_near_the_origin(p2):
    rng = np.random.default_rng(1)
    grid = np.stack(np.meshgrid(*[np.arange(4.0)] * 3), -1).reshape(-1, 3)
    cloud = np.concatenate([np.repeat(grid, 10, 0)[rng.permutation(640)], np.full((5, 3), 0.01)]).astype(
        np.float32
    )
    cloud[0] = [1, 2, 3]
    idx = p2.furthest_point_sample(torch.from_numpy(cloud)[None], 50)
    assert idx.dtype == torch.int32
    assert idx[0].tolist() == upstream_fps(cloud, 50)


def test_modules_train_and_keep_their_shapes(p2):
    torch.manual_seed(0)
    xyz, features = torch.rand(2, 300, 3), torch.randn(2, 6, 300, requires_grad=True)
    down = p2.PointnetSAModuleMSG(64, [0.1, 0.2], [16, 32], [[6, 16, 32], [6, 16, 24]])
    everything = p2.PointnetSAModule([56, 40])
    up = p2.PointnetFPModule([56 + 6, 32])
    new_xyz, new_features = down(xyz, features)
    assert new_xyz.shape == (2, 64, 3)
    assert new_features.shape == (2, 56, 64)
    assert everything(new_xyz, new_features)[1].shape == (2, 40, 1)
    out = up(xyz, new_xyz, features, new_features)
    assert out.shape == (2, 32, 300)
    assert up(xyz, None, None, torch.randn(2, 62, 1)).shape == (2, 32, 300)
    out.sum().backward()
    assert torch.isfinite(features.grad).all()
    assert features.grad.abs().sum() > 0


def test_grouping_is_around_the_centre(p2):
    xyz = torch.rand(1, 50, 3)
    grouped = p2.QueryAndGroup(0.2, 8)(xyz, xyz[:, :5].contiguous(), torch.ones(1, 2, 50))
    assert grouped.shape == (1, 5, 5, 8)
    assert (grouped[:, :3].norm(dim=1) < 0.2).all()
    assert (grouped[:, 3:] == 1).all()


def test_no_points_where_two_values_are_swapped(p2):
    with pytest.raises(ValueError, match="nothing to group"):
        p2.QueryAndGroup(0.2, 8, use_xyz=False)(torch.rand(1, 5, 3), torch.rand(1, 2, 3))
    with pytest.raises(ValueError, match="1 radii, 2 nsamples"):
        p2.PointnetSAModuleMSG(4, [0.1], [4, 8], [[0, 8]])


NETWORK = """
import sys, torch, opbridge.compat
opbridge.compat.install("pointnet2_ops")
opbridge.compat.install("lib.pointnet2_utils._ext")
opbridge.compat.install("pointnet2_cuda")
# What a network written against the compiled extension does:
from pointnet2_ops.pointnet2_modules import PointnetSAModuleMSG
from pointnet2_ops import pointnet2_utils
import lib.pointnet2_utils._ext as _ext
import pointnet2_cuda
xyz = torch.rand(2, 100, 3)
assert PointnetSAModuleMSG(npoint=16, radii=[.2], nsamples=[8], mlps=[[0, 4]])(xyz)[1].shape == (2, 4, 16)
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, idx):
        ctx.idx, ctx.n = idx, features.shape[2]
        return _ext.gather_points(features, idx)
    @staticmethod
    def backward(ctx, grad):
        return _ext.gather_points_grad(grad, ctx.idx, ctx.n), None
features = torch.rand(2, 3, 100, requires_grad=True)
idx = _ext.furthest_point_sampling(xyz, 10)
Gather.apply(features, idx).sum().backward()
assert features.grad.sum() == 60
centres = xyz[:, :4].contiguous()
ball = _ext.ball_query(centres, xyz, .3, 6)
assert torch.equal(ball, pointnet2_utils.ball_query(.3, 6, xyz, centres))
assert torch.allclose(_ext.three_nn(centres, xyz)[0].sqrt(), pointnet2_utils.three_nn(centres, xyz)[0])
out = torch.empty(2, 4, 6, dtype=torch.int32)
assert pointnet2_cuda.ball_query_wrapper(2, 100, 4, .3, 6, centres, xyz, out) == 1 and torch.equal(out, ball)
weight = torch.rand(2, 4, 3)
near = _ext.three_nn(centres, xyz)[1]
grad = _ext.three_interpolate_grad(torch.ones(2, 5, 4), near, weight, 100)
assert grad.shape == (2, 5, 100) and torch.allclose(grad.sum((1, 2)), 5 * weight.sum((1, 2)))
assert opbridge.compat.installed() == ["lib", "lib.pointnet2_utils", "lib.pointnet2_utils._ext", "pointnet2_cuda",
    "pointnet2_ops", "pointnet2_ops._ext", "pointnet2_ops.pointnet2_modules", "pointnet2_ops.pointnet2_utils"]
print("fine")
"""


def test_a_network_written_against_the_compiled_extension(run_python):
    assert run_python(NETWORK).strip() == "fine"


def test_compat_names_that_mean_nothing(monkeypatch):
    from opbridge import compat

    with pytest.raises(ValueError, match="not a module that opbridge can stand in for"):
        compat.install("torch_cluster")
    monkeypatch.setitem(sys.modules, "numpy._ext", np)
    with pytest.raises(ImportError, match=r"'numpy\._ext' is loaded already"):
        compat.install("numpy._ext")


# --- poses and scores


def test_mean_shift_like_upstreams_class():
    from opbridge.pvn3d import MeanShiftTorch, mean_shift

    torch.manual_seed(0)
    votes = torch.cat([torch.randn(80, 3) * 0.005 + torch.tensor([0.1, 0.2, 0.9]), torch.rand(20, 3) * 5])
    centre, inliers = MeanShiftTorch(bandwidth=0.05).fit(votes)
    assert (centre - torch.tensor([0.1, 0.2, 0.9])).norm() < 0.003
    assert inliers.dtype == torch.bool
    assert inliers[:80].all()
    assert not inliers[80:].any()
    centre, inliers = mean_shift(torch.zeros(0, 3))
    assert (centre == 0).all()
    assert inliers.shape == (0,)


def test_scores():
    from opbridge import pvn3d

    points = torch.randn(200, 3, dtype=torch.float64)
    eye, zero = torch.eye(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    turn = torch.diag(torch.tensor([-1.0, -1, 1], dtype=torch.float64))
    shift = torch.tensor([0.03, 0, 0.04], dtype=torch.float64)
    assert abs(pvn3d.add(eye, shift, eye, zero, points) - 0.05) < 1e-12
    symmetric = torch.cat([points, points @ turn.T])
    assert pvn3d.adds(turn, zero, eye, zero, symmetric) < 1e-12 < pvn3d.add(turn, zero, eye, zero, symmetric)
    batch = pvn3d.adds(torch.stack([eye, turn]), torch.stack([zero, zero]), eye, zero, symmetric)
    assert batch.shape == (2,)
    assert (batch < 1e-12).all()
    # Brute force, for a pose that is neither.
    estimated, truth = symmetric @ turn.T + shift, symmetric
    expected = torch.cdist(truth, estimated).min(1).values.mean()
    assert abs(pvn3d.adds(turn, shift, eye, zero, symmetric) - expected) < 1e-9
    assert pvn3d.auc([0.0, 0.0]) == 100
    assert pvn3d.auc([0.2]) == 0
    assert pvn3d.auc([float("nan")]) == 0
    # Two of three below the limit: (0.02 * 1/3 + 0.03 * 2/3 + 0.05 * 2/3) / 0.1
    assert abs(pvn3d.auc([0.05, 0.02, 1.0]) - 60) < 1e-9
    assert pvn3d.success_rate([0.01, 0.2], 0.5) == 50
    with pytest.raises(ValueError, match="no distances"):
        pvn3d.auc([])


def test_poses_from_votes():
    from opbridge import pvn3d

    torch.manual_seed(0)
    mesh_kps, mesh_ctr = torch.randn(1, 8, 3) * 0.05, torch.zeros(1, 3)
    rotation = torch.linalg.qr(torch.randn(3, 3)).Q
    rotation = rotation * torch.det(rotation).sign()
    translation = torch.tensor([0.1, 0, 0.8])
    points = torch.randn(1, 400, 3) * 0.05 + translation
    kps = pvn3d.transform(mesh_kps[0], rotation, translation)
    kp_of = points[:, None] - kps[None, :, None] + torch.randn(1, 8, 400, 3) * 0.002
    ctr_of = points[:, None] - translation + torch.randn(1, 1, 400, 3) * 0.002
    labels = torch.ones(1, 400, dtype=torch.int64)
    found, moved, valid, voted, count = pvn3d.solve_poses(points, labels, kp_of, ctr_of, mesh_kps, mesh_ctr)
    assert valid.tolist() == [[1]]
    assert count.tolist() == [[400]]
    assert voted.shape == (1, 1, 9, 3)
    assert pvn3d.add(found[0, 0], moved[0, 0], rotation, translation, mesh_kps[0]) < 1e-3
    again = pvn3d.best_fit_transform(mesh_kps[0], voted[0, 0, :8])
    assert torch.allclose(again[0], found[0, 0], atol=0.02)
    assert opbridge.library_path("pvn3d_custom_op")
