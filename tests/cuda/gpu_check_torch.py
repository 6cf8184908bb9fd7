"""gpu_check_torch.py MY_CLIP PVN3D CASES [--device cpu]: the CUDA kernels under torch, and how fast they are. Prints a
line for each check, as gpu_check does. With --device cpu the CPU kernels run, which tries the script itself."""

import argparse
import sys

import numpy as np


def line(status, name, detail):
    print(status, name, " ".join(str(detail).split()), sep="\t", flush=True)


class Checks:
    def __init__(self, torch, device):
        self.torch, self.device, self.failed = torch, device, 0
        self.cuda = device == "cuda"

    def check(self, name, f):
        """Reports what f() returns, or why it failed."""
        try:
            line("passed", name, f())
        except Exception as e:  # whatever it is, the report is to say it
            self.failed = 1
            line("failed", name, f"{type(e).__name__}: {e}")

    def milliseconds(self, f, runs=20):
        torch = self.torch
        for _ in range(3):
            f()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(runs):
            f()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / runs


def read_cases(path):
    """(operator, name, inputs, attributes) of each case."""
    arrays, cases = np.load(path), {}
    for key in arrays.files:
        operator, name, group, *what = key.split("/")
        inputs, attributes = cases.setdefault((operator, name), ({}, {}))
        if group == "in":
            inputs[what[0]] = arrays[key]
        elif group == "attr":
            attributes[what[0]] = arrays[key]
    return [(operator, name, *case) for (operator, name), case in cases.items()]


CONVERT = {"int": int, "float": float, "bool": bool}


def attribute(operator, name, value):
    kind = next(a.type for a in operator.attributes if a.name == name)
    return value.tobytes().decode() if kind == "string" else CONVERT[kind](value)


def as_tuple(result):
    return result if isinstance(result, (tuple, list)) else (result,)


def every_case(c, library, cases):
    torch = c.torch
    for operator in library.operators.values():
        if c.cuda and "cuda" not in operator.devices:
            line("skipped", f"torch {operator.name}", "the library has no CUDA kernel for it")
            continue
        op = getattr(getattr(torch.ops, operator.torch_namespace), operator.snake_name)
        own = [case for case in cases if case[0] == operator.name]

        def run(op=op, own=own, operator=operator):
            trigonometric = operator.name.startswith(("Euler", "AxisAngle"))  # each side its own sine
            for _, name, inputs, attributes in own:
                given = {k: attribute(operator, k, v) for k, v in attributes.items()}
                cpu = [
                    torch.from_numpy(inputs[i.name]) if i.name in inputs else None for i in operator.inputs
                ]
                there = [None if t is None else t.to(c.device) for t in cpu]
                for want, got in zip(as_tuple(op(*cpu, **given)), as_tuple(op(*there, **given)), strict=True):
                    tolerance = dict(rtol=1e-3, atol=1e-5) if trigonometric else dict(rtol=0, atol=0)
                    torch.testing.assert_close(got.cpu(), want, equal_nan=True, msg=name, **tolerance)
            return f"{len(own)} cases as on the CPU"

        c.check(f"torch {operator.name}", run)


def clip_equals_torch(c):
    torch, clip = c.torch, c.torch.ops.my_namespace.my_clip
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64):

        def run(dtype=dtype):
            x = (torch.randn(3, 1000, device=c.device) * 4).to(dtype)
            low, high = (torch.tensor(v, dtype=dtype, device=c.device) for v in (-2, 3))
            torch.testing.assert_close(clip(x, low, high), torch.clamp(x, low, high), rtol=0, atol=0)
            return "exact"

        c.check(f"my_clip equals torch.clamp, {dtype}", run)


def between_matmuls(c):
    """200 runs on a stream of their own, between two multiplications that must wait and be waited for."""
    torch = c.torch
    pvn3d = torch.ops.pvn3d_custom_ops
    torch.manual_seed(0)
    a = torch.randn(512, 512, device=c.device)
    points = torch.randn(2, 170, 3, device=c.device)

    def step():
        x = (a @ a).flatten()[: points.numel()].reshape(points.shape)
        offsets = (points + 0.001 * x)[:, None]
        kps, count, _ = pvn3d.vote_aggregate(points, offsets, None, bandwidth=0.5)
        rotation = pvn3d.quaternion_to_rotation(torch.nn.functional.pad(kps, (0, 1), value=1.0))
        return rotation.reshape(-1, 3) @ x[0, :3], count

    def run():
        runs = 200 if c.cuda else 5
        first = step()
        if not c.cuda:
            results = [step() for _ in range(runs)]
        else:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                results = [step() for _ in range(runs)]
            stream.synchronize()
        for result in results:
            assert all(torch.equal(x, y) for x, y in zip(first, result, strict=True)), "a run differs"
        return f"{runs} runs bit-identical"

    c.check("between two MatMuls on another stream", run)


def graph(c):
    torch = c.torch
    name = "torch CUDA graph, replayed with changed input"
    if not c.cuda:
        return line("skipped", name, "no CUDA device")

    def run():
        points, offsets = torch.randn(1, 500, 3, device="cuda"), torch.randn(1, 4, 500, 3, device="cuda")
        op = torch.ops.pvn3d_custom_ops.vote_aggregate
        op(points, offsets, None)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            out = op(points, offsets, None)
        for _ in range(3):
            points.copy_(torch.randn_like(points))
            captured.replay()
            for got, want in zip(out, op(points, offsets, None), strict=True):
                assert torch.equal(got, want)
        return "3 replays"

    c.check(name, run)


def second_device(c):
    torch = c.torch
    name = "tensors on another device than the current one"
    if not c.cuda or torch.cuda.device_count() < 2:
        return line("skipped", name, "there is no second CUDA device")

    def run():
        with torch.cuda.device(0):
            x = torch.randn(1000, device="cuda:1")
            y = torch.ops.my_namespace.my_clip(x, None, None)
            assert torch.cuda.current_device() == 0
            assert torch.equal(x, y)
        return "cuda:1 while cuda:0 is current"

    c.check(name, run)


def benchmarks(c):
    torch = c.torch
    if not c.cuda:
        return line("skipped", "benchmarks against torch", "no CUDA device")
    clip, pvn3d = torch.ops.my_namespace.my_clip, torch.ops.pvn3d_custom_ops
    x = torch.randn(1 << 26, device="cuda")
    low, high = torch.tensor(-1.0, device="cuda"), torch.tensor(1.0, device="cuda")

    def compare(name, own, rival, moved=None):
        def run():
            ours, theirs = c.milliseconds(own), c.milliseconds(rival)
            rate = f", {moved / ours / 1e6:.0f} GB/s" if moved else ""
            return f"{ours:.3f} ms{rate}; {theirs:.3f} ms; {theirs / ours:.2f} times as fast"

        c.check(f"benchmark {name}", run)

    compare(
        "my_clip, torch.clamp, 64 Mi f32",
        lambda: clip(x, low, high),
        lambda: torch.clamp(x, low, high),
        8 * x.numel(),
    )

    points = torch.rand(1, 4096, 3, device="cuda")
    offsets = (
        points[:, None]
        - torch.rand(1, 8, 1, 3, device="cuda")
        + 0.01 * torch.randn(1, 8, 4096, 3, device="cuda")
    )

    def mean_shift():  # the published one: all votes move, all pairs in memory
        for k in range(8):
            votes = (points - offsets[:, k])[0]
            centres = votes
            for _ in range(20):
                w = torch.exp(-0.5 * (torch.cdist(centres, votes) / 0.08) ** 2)
                centres = (w @ votes) / w.sum(1, keepdim=True)
            (torch.cdist(votes, votes) < 0.08).sum(1).argmax()

    compare(
        "VoteAggregate, torch mean shift, 8 x 4096 votes",
        lambda: pvn3d.vote_aggregate(points, offsets, None),
        mean_shift,
    )

    a, b = torch.randn(10000, 9, 3, device="cuda"), torch.randn(10000, 9, 3, device="cuda")

    def svd():
        h = (a - a.mean(1, keepdim=True)).mT @ (b - b.mean(1, keepdim=True))
        u, _, vt = torch.linalg.svd(h)
        return vt.mT @ u.mT

    compare("KabschSolver, torch.linalg.svd, 10,000 problems", lambda: pvn3d.kabsch_solver(a, b, None), svd)
    for package, call in (("torch_cluster", cluster), ("pytorch3d", pytorch3d)):
        try:
            call(c, compare, pvn3d)
        except ImportError as e:
            line("skipped", f"benchmarks against {package}", e)


def cluster(c, compare, pvn3d):
    import torch_cluster

    torch = c.torch
    xyz = torch.rand(12288, 3, device="cuda")
    compare("FarthestPointSample 12288 to 2048, torch_cluster",
            lambda: pvn3d.farthest_point_sample(xyz[None], npoint=2048),
            lambda: torch_cluster.fps(xyz, ratio=2048 / 12288, random_start=False))  # fmt: skip
    compare("KNN 12288 x 12288, k 16, torch_cluster", lambda: pvn3d.knn(xyz[None], xyz[None], k=16),
            lambda: torch_cluster.knn(xyz, xyz, 16))  # fmt: skip


def pytorch3d(c, compare, pvn3d):
    from pytorch3d import ops

    xyz = c.torch.rand(1, 12288, 3, device="cuda")
    centres = xyz[:, :2048].contiguous()
    compare("FarthestPointSample 12288 to 2048, pytorch3d", lambda: pvn3d.farthest_point_sample(xyz, npoint=2048),
            lambda: ops.sample_farthest_points(xyz, K=2048))  # fmt: skip
    compare("BallQuery 2048 of 12288, pytorch3d", lambda: pvn3d.ball_query(xyz, centres, radius=0.1, nsample=32),
            lambda: ops.ball_query(centres, xyz, K=32, radius=0.1))  # fmt: skip
    compare("KNN 2048 of 12288, k 16, pytorch3d", lambda: pvn3d.knn(xyz, centres, k=16),
            lambda: ops.knn_points(centres, xyz, K=16))  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("my_clip")
    parser.add_argument("pvn3d")
    parser.add_argument("cases")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments = parser.parse_args()
    try:
        import opbridge
        import torch
    except ImportError as e:
        line("skipped", "torch", e)
        return 0
    if arguments.device == "cuda" and not torch.cuda.is_available():
        line("skipped", "torch", f"torch {torch.__version__} sees no CUDA device")
        return 0
    line(
        "passed",
        "torch",
        f"{torch.__version__} on {torch.cuda.get_device_name() if arguments.device == 'cuda' else 'the CPU'}",
    )
    c = Checks(torch, arguments.device)
    opbridge.load(arguments.my_clip, torch=True)
    library = opbridge.load(arguments.pvn3d, torch=True)
    clip_equals_torch(c)
    every_case(c, library, read_cases(arguments.cases))
    between_matmuls(c)
    graph(c)
    second_device(c)
    benchmarks(c)
    return c.failed


if __name__ == "__main__":
    sys.exit(main())
