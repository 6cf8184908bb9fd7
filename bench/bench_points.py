"""Times the point-set operators against what a user would pick instead, in one process, side by side.

  python bench/bench_points.py [--threads 1] [--runs 15] [--only fps,knn] [--json FILE]

Every contestant's result is checked before it is timed. All contestants of a case run in turn, so that noise hits all
alike; the ratio is the best exact rival's median over ours (process CPU time with one thread, else wall time). Goals
are those of one thread. Rivals that are not installed are named and left out: pip install -r requirements/bench.txt,
apt install libnanoflann-dev.
"""

import ctypes
from pathlib import Path

import numpy as np
import torch
from contest import OPS, OURS, optional, run, session
from onnx import TensorProto, helper

fpsample, torch_quickfps, pykdtree = (
    optional("fpsample"),
    optional("torch_quickfps"),
    optional("pykdtree.kdtree"),
)
try:
    NANOFLANN = ctypes.CDLL(str(Path(OPS.path).parent / "libnanoflann_rival.so"))
except OSError:
    NANOFLANN = None
    print(
        "not built, left out: nanoflann (configure with -DOPBRIDGE_BENCH=ON where libnanoflann-dev is installed)"
    )


# ------------------------------------------------------------------------------------------------------------- data
def surface(n, seed):
    """A scene as a depth camera sees it: plane, sphere, box and cylinder of about a metre, 1 mm of noise."""
    g = np.random.default_rng(seed)
    k, r = n // 4, n - 3 * (n // 4)
    plane = np.c_[g.random((k, 2)) * 2 - 1, np.zeros(k)]
    sphere = g.normal(size=(k, 3))
    sphere = 0.3 * sphere / np.linalg.norm(sphere, axis=1, keepdims=True) + [0.3, 0.3, 0.3]
    box, face = g.random((k, 3)), g.integers(0, 6, k)
    box[np.arange(k), face // 2] = face % 2
    angle = g.random(r) * 2 * np.pi
    cylinder = np.c_[0.15 * np.cos(angle) - 0.3, 0.15 * np.sin(angle) + 0.5, g.random(r) * 0.6]
    points = np.r_[plane, sphere, box * 0.4 + [-0.6, -0.5, 0], cylinder] + g.normal(scale=0.001, size=(n, 3))
    return np.ascontiguousarray(points[g.permutation(n)].astype(np.float32))


def address(array):
    return ctypes.c_void_p(array.ctypes.data)


def axis_tensor(axis):
    return helper.make_tensor("axis", TensorProto.INT64, [1], [axis])


# ------------------------------------------------------------------------------------------------------------ cases
def squared(a, b):
    d = a - b
    d *= d
    return (d[..., 0] + d[..., 1]) + d[..., 2]


def fps(n, m):
    def case():
        p = surface(n, 1)
        contestants = {OURS: lambda: OPS.ops.farthest_point_sample(p[None], npoint=m)[0]}
        if fpsample:
            for h in (3, 5, 7):
                contestants[f"fpsample kdline h={h}"] = lambda h=h: fpsample.bucket_fps_kdline_sampling(
                    p, m, h=h, start_idx=0
                )
        if torch_quickfps:
            x = torch.from_numpy(p)[None]
            for h in (4, 5, 6, 7):
                contestants[f"torch-quickfps h={h}"] = lambda h=h: torch_quickfps.sample(
                    x, m, h=h, start_idx=0, return_points=False
                ).numpy()[0]
        expected = np.empty(m, np.int64)
        best, k = np.full(n, np.inf, np.float32), 0
        for i in range(m):
            expected[i] = k
            best = np.minimum(best, squared(p, p[k]))
            k = int(best.argmax())

        def reach(
            chosen,
        ):  # the largest distance from a point to the nearest chosen one: what FPS makes small
            return OPS.ops.knn(p[chosen][None], p[None], k=1)[1].max()

        # Rivals order ties and round otherwise, which leads to other, equally good points.
        def right(name, r):
            return (r == expected).all() if name == OURS else reach(r) < 1.02 * reach(expected)

        return contestants, right

    return case


def ball(radius, k):
    def case():
        p = surface(12288, 3)
        q = p[:2048].copy()
        contestants = {OURS: lambda: OPS.ops.ball_query(p[None], q[None], radius=radius, nsample=k)[0][0]}
        if NANOFLANN:

            def nanoflann():
                idx = np.empty((len(q), k), np.int32)
                NANOFLANN.nanoflann_ball(
                    address(p), ctypes.c_int64(len(p)), address(q), ctypes.c_int64(len(q)), ctypes.c_float(radius),
                    ctypes.c_int64(k), address(idx),
                )  # fmt: skip
                return idx

            contestants[f"nanoflann {NANOFLANN.nanoflann_version():#x}"] = nanoflann
        expected = np.zeros((len(q), k), np.int32)
        for i, centre in enumerate(q):
            hit = np.flatnonzero(squared(p, centre) < np.float32(radius) ** 2)[:k]
            expected[i] = hit[0]
            expected[i, : len(hit)] = hit
        return contestants, lambda name, r: (r == expected).mean() > (0.9999 if name == OURS else 0.99)

    return case


def nearest(d2, k):
    """The k smallest, by value, then by index."""
    near = np.flatnonzero(d2 <= np.partition(d2, k - 1)[k - 1])
    return near[np.argsort(d2[near], kind="stable")][:k]


def neighbours(n, m, k, ours):
    def case():
        q = surface(m, 4)
        p = q if n == m else q[:n].copy()
        contestants = {OURS: lambda: ours(p[None], q[None])}
        if NANOFLANN:

            def nanoflann():
                idx, d2 = np.empty((m, k), np.uint32), np.empty((m, k), np.float32)
                NANOFLANN.nanoflann_knn(
                    address(p),
                    ctypes.c_int64(n),
                    address(q),
                    ctypes.c_int64(m),
                    ctypes.c_int64(k),
                    address(idx),
                    address(d2),
                )
                return idx

            contestants[f"nanoflann {NANOFLANN.nanoflann_version():#x}"] = nanoflann
        if pykdtree:
            contestants["pykdtree"] = lambda: pykdtree.kdtree.KDTree(p, leafsize=16).query(q, k)[1]
        expected = np.stack([nearest(squared(p, x), k) for x in q])
        return contestants, lambda name, r: (r == expected).mean() > (0.999999 if name == OURS else 0.99)

    return case


def normalize(n, c):
    def case():
        x = np.random.default_rng(10).normal(size=(n, c)).astype(np.float32)
        t = torch.from_numpy(x)
        contestants = {
            OURS: lambda: OPS.ops.l2_normalize(x),
            "torch normalize": lambda: torch.nn.functional.normalize(t, dim=-1).numpy(),
            "ORT LpNormalization": session(
                [helper.make_node("LpNormalization", ["x"], ["y"], axis=-1, p=2)], {"x": x}
            ),
        }
        expected = x / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
        return contestants, lambda name, r: np.abs(r - expected).max() < 1e-6

    return case


def group():
    p = surface(12288, 3)
    idx = OPS.ops.ball_query(p[None], p[None, :2048], radius=0.1, nsample=32)[0]
    f = np.random.default_rng(11).normal(size=(1, 128, 12288)).astype(np.float32)
    flat = idx.reshape(-1)
    t, i = torch.from_numpy(f[0]), torch.from_numpy(flat.astype(np.int64))
    contestants = {
        OURS: lambda: OPS.ops.group_points(f, idx).reshape(128, -1),
        "numpy take": lambda: np.take(f[0], flat, axis=1),
        "torch index_select": lambda: t.index_select(1, i).numpy(),
        "torch gather": lambda: t.gather(1, i.expand(128, -1)).numpy(),
        "ORT Gather": session(
            [helper.make_node("Gather", ["f", "i"], ["y"], axis=1)], {"f": f[0], "i": flat}
        ),
    }
    expected = f[0][:, flat]
    return contestants, lambda name, r: (r == expected).all()


def interpolate():
    p = surface(12288, 5)
    dist, idx = OPS.ops.three_nn(p[None], p[None, :2048])
    w = 1 / (dist + np.float32(1e-8))
    w /= w.sum(-1, keepdims=True)
    f = np.random.default_rng(12).normal(size=(1, 128, 2048)).astype(np.float32)
    t, i, tw = (
        torch.from_numpy(f[0]),
        torch.from_numpy(idx[0].T.astype(np.int64).copy()),
        torch.from_numpy(w[0].T.copy()),
    )

    def torch_select():
        out = t.index_select(1, i[0]).mul_(tw[0])
        out.addcmul_(t.index_select(1, i[1]), tw[1][None])
        return out.addcmul_(t.index_select(1, i[2]), tw[2][None]).numpy()

    nodes = [
        helper.make_node("Gather", ["f", "i"], ["g"], axis=1),
        helper.make_node("Mul", ["g", "w"], ["t"]),
        helper.make_node("ReduceSum", ["t", "axis"], ["y"], keepdims=0),
    ]
    contestants = {
        OURS: lambda: OPS.ops.three_interpolate(f, idx, w)[0],
        "torch 3 x index_select": torch_select,
        "ORT Gather, Mul, ReduceSum": session(nodes, {"f": f[0], "i": idx[0], "w": w[0]}, [axis_tensor(2)]),
    }
    expected = (f[0][:, idx[0]].astype(np.float64) * w[0]).sum(-1)
    return contestants, lambda name, r: np.abs(r - expected).max() < 1e-5


CASES = {  # name: (case, goal)
    "fps 4096->1024": (fps(4096, 1024), 3.0),
    "fps 12288->4096": (fps(12288, 4096), 3.5),
    "fps 100000->4096": (fps(100000, 4096), 2.0),
    "ball r=0.05 k=16": (ball(0.05, 16), 3.5),
    "ball r=0.1 k=32": (ball(0.1, 32), 3.5),
    "knn k=16 12288 x 12288": (neighbours(12288, 12288, 16, lambda p, q: OPS.ops.knn(p, q, k=16)[0][0]), 2.0),
    "three_nn 12288 vs 2048": (neighbours(2048, 12288, 3, lambda p, q: OPS.ops.three_nn(q, p)[1][0]), 1.8),
    "l2_normalize 12288x3": (normalize(12288, 3), 2.0),
    "l2_normalize 12288x128": (normalize(12288, 128), 1.5),
    "group C=128 2048x32": (group, 1.1),
    "three_interpolate C=128 2048->12288": (interpolate, 2.0),
}


installed = [(fpsample, "fpsample"), (torch_quickfps, "torch-quickfps"), (pykdtree, "pykdtree")]
run(CASES, [name for module, name in installed if module])
