"""A PVN3D small enough to train on a CPU (He et al. 2020): colour and point branches, dense fusion, three heads.

Inputs: pointcloud (B, N, 9) f32: xyz [m] in the camera's frame, rgb in 0..1, unit normals (0 where unknown);
rgb (B, 3, H, W) f32 in 0..1: the crop; choose (B, 1, N) i64: each point's cell in it, row-major.
Outputs: kp_of (B, K, N, 3) [m], seg (B, N, C) logits with class 0 the background, ctr_of (B, 1, N, 3) [m].
A point's vote is point minus offset. Any N from 1 and any B.
"""

import itertools
from pathlib import Path

import numpy as np
import torch
from objects import KEYPOINTS, NAMES, load_objects
from opbridge import pvn3d
from opbridge.pointnet2 import (
    PointnetFPModule,
    PointnetSAModule,
    furthest_point_sample,
    gather_operation,
)
from torch import nn

WEIGHTS = Path(__file__).parent / "models" / "pvn3d.npz"
CLASSES = len(NAMES) + 1
BANDWIDTH = 0.04  # [m] of the mean shift over votes
MIN_SHARE = (
    0.02  # of the points: a class with fewer is taken for a mistake, so that an absent object has valid 0
)
UNIT = 0.1  # [m]: the network computes in decimetres, which keeps its numbers near one


def conv(before, after, stride=1):
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(True)
    )


def dense(*channels):
    """Layers on each point by itself, (B, C, N): the last without normalisation and activation."""
    layers = []
    for before, after in itertools.pairwise(channels[:-1]):
        layers += [nn.Conv1d(before, after, 1, bias=False), nn.BatchNorm1d(after), nn.ReLU(True)]
    return nn.Sequential(*layers, nn.Conv1d(channels[-2], channels[-1], 1))


class ColourBranch(nn.Module):
    """An encoder with a summary of the whole crop, and a decoder up to half the crop's resolution."""

    def __init__(self, widths=(16, 32, 64, 96), out=32, decoder=40):
        super().__init__()
        self.stem = conv(3, widths[0], 2)
        self.down = nn.ModuleList(conv(a, b, 2) for a, b in itertools.pairwise(widths))
        self.mix = nn.ModuleList(conv(b, b) for b in widths[1:])
        self.top = nn.Conv2d(2 * widths[-1], decoder, 1)
        self.lateral = nn.ModuleList(nn.Conv2d(c, decoder, 1) for c in widths[-2:0:-1])
        self.smooth = nn.ModuleList(conv(decoder, decoder) for _ in widths[-2:0:-1])
        self.fine, self.last = nn.Conv2d(widths[0], out, 1), nn.Conv2d(decoder, out, 1)
        self.features, self.summary = out, widths[-1]

    def forward(self, rgb):
        """rgb (B, 3, H, W) -> features (B, out, H / 2, W / 2), summary (B, C, 1)."""
        levels = [self.stem((rgb - 0.5) / 0.25)]
        for down, mix in zip(self.down, self.mix, strict=True):
            x = down(levels[-1])
            levels.append(x + mix(x))
        summary = levels[-1].mean((2, 3), keepdim=True)
        x = self.top(torch.cat([levels[-1], summary.expand_as(levels[-1])], 1))
        for lateral, smooth, level in zip(self.lateral, self.smooth, levels[-2:0:-1], strict=True):
            x = nn.functional.interpolate(x, size=level.shape[2:], mode="nearest") + lateral(level)
            x = smooth(x)
        fine = self.fine(levels[0])
        x = nn.functional.interpolate(self.last(x), size=fine.shape[2:], mode="nearest") + fine
        return x.relu(), summary.flatten(2)


class PVN3D(nn.Module):
    def __init__(self, classes=CLASSES, keypoints=KEYPOINTS):
        super().__init__()
        self.keypoints = keypoints
        self.colour = ColourBranch()
        # Grouping starts from 512 points far from each other, so that it sees the same density whatever N is.
        self.base = 512
        self.sa1 = PointnetSAModule([9, 32, 64], npoint=128, radius=0.45, nsample=16)
        self.sa2 = PointnetSAModule([64, 64, 128], npoint=32, radius=1.0, nsample=16)
        self.sa3 = PointnetSAModule([128, 128, 256])
        self.fp3 = PointnetFPModule([128 + 256, 128])
        self.fp2 = PointnetFPModule([64 + 128, 96])
        self.fp1 = PointnetFPModule([9 + 96, 64])
        wide = 128
        self.local = nn.Conv1d(64 + self.colour.features, wide, 1, bias=False)
        self.whole = nn.Conv1d(256 + self.colour.summary, wide, 1)
        self.fused = nn.Sequential(nn.BatchNorm1d(wide), nn.ReLU(True))
        self.seg = dense(wide, 64, classes)
        self.offsets = dense(wide, 128, 3 * (keypoints + 1))

    def forward(self, pointcloud, rgb, choose, subset=None):
        """subset (B, S) i64: the points that outputs are wanted for, which then have S instead of N (training)."""
        xyz = pointcloud[..., :3] / UNIT
        features = torch.cat(
            [xyz - self.centre(xyz), (pointcloud[..., 3:6] - 0.5) / 0.25, pointcloud[..., 6:]], 2
        )
        features = features.transpose(1, 2).contiguous()
        xyz = xyz.contiguous()

        # Levels of points: base, 128, 32 and one that stands for all. xyz is around the camera, not around the object:
        # sampling as upstream does it leaves out what is near the origin.
        idx = furthest_point_sample(xyz, self.base)
        base = gather_operation(xyz.transpose(1, 2).contiguous(), idx).transpose(1, 2).contiguous()
        xyz1, f1 = self.sa1(base, gather_operation(features, idx))
        xyz2, f2 = self.sa2(xyz1, f1)
        _, f3 = self.sa3(xyz2, f2)

        colour, summary = self.colour(rgb)
        if subset is not None:
            at = subset.unsqueeze(1)
            features = features.gather(2, at.expand(-1, 9, -1))
            xyz = xyz.gather(1, subset.unsqueeze(2).expand(-1, -1, 3))
            choose = choose.gather(2, at)
        f2 = self.fp3(xyz2, None, f2, f3)
        f1 = self.fp2(xyz1, xyz2, f1, f2)
        points = self.fp1(xyz, xyz1, features, f1)

        width, half_width = rgb.shape[3], colour.shape[3]
        row = choose // width
        cell = (
            row // 2 * half_width + (choose - row * width) // 2
        )  # not %, which dynamo cannot export by a size
        picked = colour.flatten(2).gather(2, cell.expand(-1, self.colour.features, -1))

        fused = self.local(torch.cat([points, picked], 1)) + self.whole(torch.cat([f3, summary], 1))
        fused = self.fused(fused)
        offsets = UNIT * self.offsets(fused)
        # Sizes by name: the older exporter writes what unflatten() computes as constants.
        offsets = offsets.reshape(offsets.shape[0], self.keypoints + 1, 3, offsets.shape[2]).transpose(2, 3)
        return offsets[:, : self.keypoints], self.seg(fused).transpose(1, 2), offsets[:, self.keypoints :]

    @staticmethod
    def centre(xyz):
        """(B, 1, 3): a mean in which far background weighs little."""
        centre = xyz.mean(1, keepdim=True)
        for _ in range(2):
            weight = 1 / (1 + ((xyz - centre) ** 2).sum(2, keepdim=True))
            centre = (weight * xyz).sum(1, keepdim=True) / weight.sum(1, keepdim=True)
        return centre


class PoseModel(nn.Module):
    """The network and what follows it, in one graph: rotation (B, M, 3, 3), translation (B, M, 3), valid (B, M),
    kps (B, M, K + 1, 3), count (B, M). A symmetric object's valid is 2, since every turn about its z axis fits; of
    these the rotation is the one whose x axis looks towards the camera, so that it does not jump about."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        objects = load_objects()
        self.register_buffer("mesh_kps", torch.tensor([o["keypoints"] for o in objects]))
        self.register_buffer("mesh_ctr", torch.tensor([o["center"] for o in objects]))
        self.register_buffer("symmetric", torch.tensor([o["symmetric"] for o in objects])[:, None, None])

    def forward(self, pointcloud, rgb, choose):
        kp_of, seg, ctr_of = self.network(pointcloud, rgb, choose)
        labels = seg.argmax(2)
        share = nn.functional.one_hot(labels, seg.shape[2]).float().mean(1)
        labels = labels * (share.gather(1, labels) >= MIN_SHARE)
        rotation, translation, valid, kps, count = pvn3d.solve_poses(
            pointcloud[..., :3].contiguous(), labels, kp_of.contiguous(), ctr_of.contiguous(),
            self.mesh_kps, self.mesh_ctr, bandwidth=BANDWIDTH,
        )  # fmt: skip
        turned = self.symmetric & (valid > 0)[..., None, None]
        return (
            torch.where(turned, self.towards_camera(rotation, translation), rotation),
            translation,
            valid,
            kps,
            count,
        )

    @staticmethod
    def towards_camera(rotation, translation):
        """The same z axes, with x axes that look towards the origin."""
        z = rotation[..., 2]
        x = -translation - (-translation * z).sum(-1, keepdim=True) * z
        x = nn.functional.normalize(x, dim=-1, eps=1e-6)
        return torch.stack([x, torch.linalg.cross(z, x), z], -1)


def save_weights(state, path=WEIGHTS):
    """Half precision is enough for weights and halves the file."""
    half = {name: value.numpy() for name, value in state.items() if not name.endswith("num_batches_tracked")}
    np.savez_compressed(path, **{name: value.astype(np.float16) for name, value in half.items()})


def load_network(path=WEIGHTS):
    network = PVN3D()
    with np.load(path) as weights:
        state = {name: torch.from_numpy(weights[name].astype(np.float32)) for name in weights}
    missing, unexpected = network.load_state_dict(state, strict=False)
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing or unexpected:
        raise ValueError(f"{path} is not of this network: missing {missing}, unexpected {unexpected}")
    return network.eval()
