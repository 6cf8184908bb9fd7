"""Times votes, poses and alignments against what a user would pick instead, in one process, side by side.

  python bench/bench_poses.py [--threads 1] [--runs 15] [--only votes,kabsch] [--json FILE]

The rivals of VoteAggregate: mean shift of every vote in torch, as PVN3D's own code does but without its N x N x 3
tensors. Of KabschSolver: Eigen's umeyama and torch's SVD. Of PVN3DPoseSolve: the same work as separate nodes of one
ONNX model (masks, VoteAggregate, inliers, VoteAggregate, KabschSolver for each object).
"""

import ctypes
from pathlib import Path

import numpy as np
import torch
from contest import OPS, OURS, run, session
from onnx import helper
from upstream import mean_shift_of_all

try:
    EIGEN = ctypes.CDLL(str(Path(OPS.path).parent / "libeigen_rival.so"))
except OSError:
    EIGEN = None
    print("not built, left out: Eigen (configure with -DOPBRIDGE_BENCH=ON where libeigen3-dev is installed)")

DOMAIN = OPS.domain


def cloud(rng, keypoints, n, noise=0.01, outliers=0.1):
    """Points of one object and offsets whose votes gather around keypoints, some of them wrong."""
    points = (rng.normal(0, 0.05, (n, 3)) + [0, 0, 0.8]).astype(np.float32)
    centres = rng.uniform(-0.1, 0.1, (keypoints, 1, 3)) + [0, 0, 0.8]
    offsets = points[None] - centres + rng.normal(0, noise, (keypoints, n, 3))
    wrong = int(outliers * n)
    offsets[:, :wrong] += rng.uniform(-0.3, 0.3, (keypoints, wrong, 3))
    return points, offsets.astype(np.float32)


def votes(keypoints, n):
    def case():
        points, offsets = cloud(np.random.default_rng(0), keypoints, n)
        t = torch.from_numpy(points)[None] - torch.from_numpy(offsets)
        contestants = {
            OURS: lambda: OPS.ops.vote_aggregate(points[None], offsets[None])[0][0],
            "torch, all seeds": lambda: torch.stack([mean_shift_of_all(v)[0] for v in t]).numpy(),
        }
        exact = torch.stack([mean_shift_of_all(v.double(), tol=1e-6)[0] for v in t]).numpy()
        return contestants, lambda name, r: np.abs(r - exact).max() < 1e-3 * 0.08

    return case


def kabsch(problems):
    def case():
        rng = np.random.default_rng(1)
        a = rng.normal(0, 0.1, (problems, 9, 3)).astype(np.float32)
        turn = OPS.ops.axis_angle_to_rotation(rng.normal(size=(problems, 3)))
        b = (
            a @ turn.transpose(0, 2, 1) + rng.normal(0, 0.003, a.shape) + rng.normal(size=(problems, 1, 3))
        ).astype(np.float32)
        ta, tb = torch.from_numpy(a), torch.from_numpy(b)

        def svd():
            h = (ta - ta.mean(1, keepdim=True)).mT @ (tb - tb.mean(1, keepdim=True))
            u, _, vh = torch.linalg.svd(h)
            v = vh.mT.clone()
            v[:, :, 2] *= torch.det(v @ u.mT).sign()[:, None]
            return (v @ u.mT).numpy()

        contestants = {OURS: lambda: OPS.ops.kabsch_solver(a, b)[0], "torch SVD": svd}
        if EIGEN:

            def eigen():
                r = np.empty((problems, 3, 3), np.float32)
                pointers = (ctypes.c_void_p(x.ctypes.data) for x in (a, b))
                EIGEN.eigen_umeyama(
                    *pointers, ctypes.c_int64(problems), ctypes.c_int64(9), ctypes.c_void_p(r.ctypes.data)
                )
                return r

            contestants["Eigen umeyama"] = eigen
        exact = OPS.ops.kabsch_solver(a.astype(np.float64), b.astype(np.float64))[0]
        return contestants, lambda name, r: np.abs(r - exact).max() < 1e-4

    return case


def separate_nodes(objects, h):
    """The pose of each object from general operators: what PVN3DPoseSolve does in one."""
    node = helper.make_node
    own = {"domain": DOMAIN}
    constants = {
        "square": np.float32(h * h), "axes": np.array([2], np.int64), "one": np.array([1], np.int64),
        "row": np.array([0], np.int64),
    } | {f"id{m}": np.int32(m + 1) for m in range(objects)}  # fmt: skip
    nodes = [node("Squeeze", ["ctr_of", "one"], ["ctr"]), node("Sub", ["points", "ctr"], ["votes"])]
    for m in range(objects):
        nodes += [
            node("Equal", ["labels", f"id{m}"], [f"mask{m}"]),
            node("VoteAggregate", ["points", "ctr_of", f"mask{m}"], [f"c{m}", f"n{m}", f"s{m}"], bandwidth=h, **own),
            node("Squeeze", [f"s{m}", "row"], [f"seed{m}"]),
            node("Gather", ["votes", f"seed{m}"], [f"winner{m}"], axis=1),
            node("Sub", ["votes", f"winner{m}"], [f"diff{m}"]),
            node("ReduceSumSquare", [f"diff{m}", "axes"], [f"d2{m}"], keepdims=0),
            node("Less", [f"d2{m}", "square"], [f"near{m}"]),
            node("And", [f"near{m}", f"mask{m}"], [f"in{m}"]),
            node("VoteAggregate", ["points", "kp_of", f"in{m}"], [f"k{m}"], bandwidth=h, **own),
            node("Concat", [f"k{m}", f"c{m}"], [f"all{m}"], axis=1),
            node("Gather", ["mesh", f"id{m}_"], [f"mesh{m}"], axis=0),
            node("KabschSolver", [f"mesh{m}", f"all{m}"], [f"r{m}", f"t{m}"], **own),
        ]  # fmt: skip
        constants[f"id{m}_"] = np.int64(m)
    nodes.append(node("Concat", [f"r{m}" for m in range(objects)], ["rotation"], axis=0))
    tensors = [
        helper.make_tensor(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape, np.atleast_1d(v).flatten())
        for k, v in constants.items()
    ]
    return nodes, tensors


def pose(objects, n=12288, keypoints=8, h=0.08):
    def case():
        rng = np.random.default_rng(2)
        mesh_kps = rng.uniform(-0.08, 0.08, (objects, keypoints, 3)).astype(np.float32)
        mesh_ctr = np.zeros((objects, 3), np.float32)
        labels = rng.integers(0, objects + 1, (1, n)).astype(np.int32)
        points = (rng.uniform(-0.5, 0.5, (1, n, 3)) + [0, 0, 1.2]).astype(np.float32)
        kp_of = rng.normal(0, 0.3, (1, keypoints, n, 3)).astype(np.float32)
        ctr_of = rng.normal(0, 0.3, (1, 1, n, 3)).astype(np.float32)
        turns = OPS.ops.axis_angle_to_rotation(rng.normal(size=(objects, 3)))
        for m in range(objects):
            own = labels[0] == m + 1
            count, at = own.sum(), rng.uniform(-0.4, 0.4, 3) + [0, 0, 1.0]
            points[0, own] = rng.uniform(-0.06, 0.06, (count, 3)) + at
            ctr_of[0, 0, own] = points[0, own] - at + rng.normal(0, 0.005, (count, 3))
            kp_of[0, :, own] = (
                points[0, own][:, None]
                - (mesh_kps[m] @ turns[m].T + at)
                + rng.normal(0, 0.005, (count, keypoints, 3))
            )
        inputs = dict(points=points, labels=labels, kp_of=kp_of, ctr_of=ctr_of)
        ours_inputs = inputs | dict(mesh_kps=mesh_kps, mesh_ctr=mesh_ctr)
        one = helper.make_node(
            "PVN3DPoseSolve",
            list(ours_inputs),
            ["rotation", "translation", "valid"],
            domain=DOMAIN,
            bandwidth=h,
        )
        mesh = np.concatenate([mesh_kps, mesh_ctr[:, None]], 1)
        nodes, constants = separate_nodes(objects, h)
        contestants = {
            OURS: session([one], ours_inputs, output="rotation", library=OPS),
            "separate nodes": session(
                nodes, inputs | dict(mesh=mesh), constants, output="rotation", library=OPS
            ),
        }
        return contestants, lambda name, r: np.abs(r.reshape(-1, 3, 3) - turns).max() < 0.02

    return case


CASES = {  # name: (case, goal)
    "votes 9 x 1000": (votes(9, 1000), 500),
    "votes 1 x 3000": (votes(1, 3000), 500),
    "kabsch 100": (kabsch(100), 3),
    "kabsch 10000": (kabsch(10000), 4),
    "pose 1 object": (pose(1), 1.2),
    "pose 5 objects": (pose(5), 1.2),
    "pose 21 objects": (pose(21), 1.2),
}

run(CASES, [])
