"""Times a frame of 12288 points and one object, everything after the pictures: `opbridge::PoseEstimator` against
the same network in PyTorch eager with these operators, and with upstream's voting instead of ours.

  python bench/bench_pose.py [--threads 1] [--runs 7] [--points 12288] [--json FILE]

Every contestant's pose is compared with the C++ runner's before anything is timed. All are timed in turn, in process
CPU time; medians. The C++ runner is `opbridge pose`, a process of its own: many estimates of one frame less a single
one, so that loading does not count, but turning pictures into points does (PyTorch is given points). Upstream's voting
is PVN3D's mean shift, in which every vote is a seed: in torch, without its N x N x 3 tensors.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PARSER = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
PARSER.add_argument("--threads", type=int, default=1)
PARSER.add_argument("--runs", type=int, default=7)
PARSER.add_argument("--points", type=int, default=12288)
PARSER.add_argument("--json", type=Path)
ARGS = PARSER.parse_args()
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(ARGS.threads)

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples/pvn3d"
sys.path.insert(0, str(EXAMPLE))

import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402
import torch  # noqa: E402
from frames import FRAMES, load_frames, make_points  # noqa: E402
from network import BANDWIDTH, PoseModel, load_network  # noqa: E402
from objects import NAMES  # noqa: E402
from opbridge.paths import library_path  # noqa: E402
from upstream import mean_shift_of_all  # noqa: E402

torch.set_num_threads(ARGS.threads)
torch.set_grad_enabled(False)
COMMAND = Path(os.environ.get("OPBRIDGE_BUILD", ROOT / "build/release")) / "bin/opbridge"
ESTIMATES = 10  # of one run of the C++ runner
OURS, EAGER, UPSTREAM = "C++ runner", "PyTorch eager, these operators", "PyTorch eager, upstream's voting"
GOALS = {EAGER: 1, UPSTREAM: 5}  # times the C++ runner's


def clearest_view():
    """The camera, and the frame and view of the asymmetric object that is hidden least."""
    camera, frames = load_frames()
    for frame, listed in zip(frames, json.loads((FRAMES / "frames.json").read_text())["frames"], strict=True):
        frame["files"] = {kind: FRAMES / listed[kind] for kind in ("color", "depth")}
    views = [(f, v) for f in frames for v in f["objects"] if v["name"] != "bottle"]
    return camera, *max(views, key=lambda fv: fv[1]["visible"])


def peak_memory(pid="self", name="python"):
    """[MB]; 0 of a process that has ended, or is not yet called `name`: before, it is a copy of this one."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^Name:\s*{name}.*^VmHWM:\s*(\d+) kB", status, flags=re.DOTALL | re.MULTILINE)
    return int(found[1]) / 1024 if found else 0


class CppRunner:
    """`opbridge pose` on one view."""

    def __init__(self, camera, frame, view):
        model, library = EXAMPLE / "models/pvn3d.onnx", library_path("pvn3d_custom_op")
        self.command = [COMMAND, "pose", model, "--library", library]
        self.command += [part for kind, file in frame["files"].items() for part in (f"--{kind}", file)]
        self.command += ["--camera", ",".join(str(camera[k]) for k in ("fx", "fy", "cx", "cy"))]
        self.command += ["--object", view["name"], "--box", ",".join(map(str, view["box"])), "--json"]
        self.command += ["--points", ARGS.points, "--threads", ARGS.threads]
        self.peak = 0

    def run(self, repeat):
        """(result, CPU seconds)"""
        env = os.environ | {"OPBRIDGE_ORT": str(Path(onnxruntime.__file__).parent)}
        command = [str(part) for part in [*self.command, "--repeat", repeat]]
        with tempfile.TemporaryFile("w+") as out:
            child = subprocess.Popen(command, stdout=out, env=env)
            done = 0
            while not done:  # the peak of its rusage would be this process's, of before it became another
                self.peak = max(self.peak, peak_memory(child.pid, COMMAND.name))
                time.sleep(0.02)
                done, status, usage = os.wait4(child.pid, os.WNOHANG)
            out.seek(0)
            text = out.read()
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            sys.exit("the C++ runner failed")
        self.peak = max(self.peak, usage.ru_maxrss / 1024)
        return json.loads(text), usage.ru_utime + usage.ru_stime

    def seconds(self):
        return (self.run(1 + ESTIMATES)[1] - self.run(1)[1]) / ESTIMATES


def upstream_pose(model, index, pointcloud, rgb, choose):
    """PVN3D's cal_frame_poses for one object: centre, its inliers' keypoints, best fit by SVD."""
    kp_of, seg, ctr_of = model.network(pointcloud, rgb, choose)
    own = seg[0].argmax(1) == index + 1
    xyz = pointcloud[0, own, :3]
    centre, near = mean_shift_of_all(xyz - ctr_of[0, 0, own], BANDWIDTH)
    kps = [mean_shift_of_all((xyz - offsets[own])[near], BANDWIDTH)[0] for offsets in kp_of[0]]
    b = torch.stack([*kps, centre]).double()
    a = torch.cat([model.mesh_kps[index], model.mesh_ctr[index][None]]).double()
    u, _, vh = torch.linalg.svd((a - a.mean(0)).T @ (b - b.mean(0)))
    v = vh.T.clone()
    v[:, 2] *= torch.det(v @ u.T).sign()
    return v @ u.T, b.mean(0) - v @ u.T @ a.mean(0)


def main():
    camera, frame, view = clearest_view()
    index = NAMES.index(view["name"])
    cpp = CppRunner(camera, frame, view)
    result, _ = cpp.run(1)
    (pose,) = result["frames"][0]["poses"]
    if pose["valid"] != 1:
        sys.exit(f"the {view['name']} is not found")

    model = PoseModel(load_network()).eval()
    made = make_points(frame["color"], frame["depth"], camera, view["box"], points=ARGS.points)
    inputs = [torch.from_numpy(array)[None] for array in made]

    def eager():
        rotation, translation, *_ = model(*inputs)
        return rotation[0, index], translation[0, index]

    run = {EAGER: eager, UPSTREAM: lambda: upstream_pose(model, index, *inputs)}
    tolerance = {EAGER: (1e-4, 1e-4), UPSTREAM: (2e-3, 2e-4)}  # in R; [m]. Upstream stops earlier
    print(f"{view['name']} in {frame['files']['color'].name}, {ARGS.points} points, {pose['inliers']} of them agree, "
          f"{ARGS.threads} thread(s), torch {torch.__version__}, "
          f"ONNX Runtime {result['runtime']['version']}")  # fmt: skip
    for name in run:
        rotation, translation = (x.double().numpy() for x in run[name]())
        off = np.abs(rotation - np.reshape(pose["rotation"], (3, 3))).max()
        apart = np.linalg.norm(translation - pose["translation"])
        print(f"{name}: {off:.1e} in R and {1e3 * apart:.4f} mm from the C++ runner")
        if not (off <= tolerance[name][0] and apart <= tolerance[name][1]):
            sys.exit(f"{name}: another pose")

    times = {OURS: [], EAGER: [], UPSTREAM: []}
    for i in range(ARGS.runs):
        times[OURS].append(cpp.seconds())
        for name in run:
            if name == UPSTREAM and i > 0:
                continue  # once is enough for what takes so long
            start = time.process_time()
            run[name]()
            times[name].append(time.process_time() - start)
    ms = {name: 1e3 * statistics.median(t) for name, t in times.items()}
    missed = []
    for name, goal in GOALS.items():
        ratio = ms[name] / ms[OURS]
        print(
            f"{name:34s} {ms[name]:10.1f} ms   the C++ runner {ms[OURS]:.1f} ms: {ratio:.2f}x (goal {goal}x)"
        )
        if not ratio >= goal:
            missed.append(name)
    memory = {
        OURS: cpp.peak,
        "Python with PyTorch": peak_memory(),
    }
    print("peak memory of the process: " + ", ".join(f"{name} {mb:.0f} MB" for name, mb in memory.items()))
    print("goals missed: " + (", ".join(missed) or "none"))
    if ARGS.json:
        report = {
            "ms": ms,
            "memory_mb": memory,
            "points": ARGS.points,
            "threads": ARGS.threads,
            "missed": missed,
        }
        ARGS.json.write_text(json.dumps(report, indent=1))


main()
