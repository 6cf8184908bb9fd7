"""How well the trained network finds poses, and that PyTorch, ONNX Runtime and C++ find the same ones.

  python examples/pvn3d/evaluate.py [--frames FOLDER] [--model FILE.onnx] [--points N]

FOLDER: as `generate.py frames` writes it; by default the committed frames, which no training has seen. Prints ADD
(ADD-S for symmetric objects) by object and by visible share, CPU times, and the hosts' largest differences.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
import opbridge
import torch
from export_pvn3d import INPUTS, POSE_OUTPUTS, export
from frames import CROP, FRAMES, POINTS, load_frames, make_points
from network import PoseModel, load_network
from objects import NAMES, SYMMETRIC, load_objects, surface_points
from opbridge import pvn3d
from rich.console import Console
from rich.table import Table

BUILD = Path(os.environ.get("OPBRIDGE_BUILD", Path(__file__).parents[2] / "build/release"))
LIBRARY = BUILD / "lib/libpvn3d_custom_op.so"
SHARES = ("20 to 40%", 0.2, 0.4), ("40 to 70%", 0.4, 0.7), ("70% or more", 0.7, 2), ("40% or more", 0.4, 2)
REQUIRED = {"70% or more": 95.0, "40% or more": 80.0}  # [%] of views with ADD below 10% of the diameter

REPEAT = 3  # times the C++ program estimates again, for its times

console = Console()


def views_of(frames):
    """[(frame, object)] of every visible object."""
    return [(frame, view) for frame in frames for view in frame["objects"]]


def inputs_of(views, camera, points=POINTS, crop=CROP):
    """[(pointcloud, rgb, choose)] with a batch of one; None where a box has no depth. Also CPU time for each [ms]."""
    begin, made = time.process_time(), []
    for frame, view in views:
        made.append(make_points(frame["color"], frame["depth"], camera, view["box"], crop, points))
    ms = 1e3 * (time.process_time() - begin) / max(len(views), 1)
    return [inputs and tuple(array[None] for array in inputs) for inputs in made], ms


def poses_by(run, views, inputs):
    """{"rotation": (V, 3, 3), "translation", "valid"} of each view's own object, by run(pointcloud, rgb, choose) -> the
    outputs of PoseModel; and the median CPU time of a view [ms]."""
    rotation, translation = np.tile(np.eye(3), (len(views), 1, 1)), np.zeros((len(views), 3))
    valid, times = np.zeros(len(views), int), []
    for i, ((_, view), arrays) in enumerate(zip(views, inputs, strict=True)):
        if arrays is None:
            continue
        begin = time.process_time()
        outputs = run(*arrays)
        times.append(1e3 * (time.process_time() - begin))
        m = NAMES.index(view["name"])
        rotation[i], translation[i], valid[i] = (np.asarray(o)[0, m] for o in outputs[:3])
    return {"rotation": rotation, "translation": translation, "valid": valid}, float(np.median(times))


def in_pytorch(model):
    def run(*arrays):
        with torch.inference_mode():
            return model(*map(torch.from_numpy, arrays))

    return run


def in_ort(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = opbridge.session(path, libraries=[LIBRARY], session_options=options)
    return lambda *arrays: session.run(list(POSE_OUTPUTS), dict(zip(INPUTS, arrays, strict=True)))


def in_cpp(path, folder, points=POINTS):
    """The poses that `opbridge pose`, a C++ program, finds in a folder's frames; and the CPU time of a view [ms], from
    its points to its pose: what REPEAT further estimates of every frame take."""
    command = [BUILD / "bin/opbridge", "pose", path, "--library", LIBRARY, "--threads", "1", "--json"]
    command += ["--points", points]
    command = [str(part) for part in (*command, "--frames", Path(folder) / "frames.json")]

    def run(repeat):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        done = subprocess.run(
            [*command, "--repeat", str(repeat)], capture_output=True, text=True,
            env=os.environ | {"VIRTUAL_ENV": sys.prefix},
        )  # fmt: skip
        if done.returncode != 0:
            sys.exit(f"error: {' '.join(command)}\n{done.stderr}{done.stdout}")
        poses = [pose for frame in json.loads(done.stdout)["frames"] for pose in frame["poses"]]
        return poses, 1e3 * (resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)

    poses, once = run(1)
    _, often = run(1 + REPEAT)
    return {
        "rotation": np.array([pose["rotation"] for pose in poses]).reshape(-1, 3, 3),
        "translation": np.array([pose["translation"] for pose in poses]),
        "valid": np.array([pose["valid"] for pose in poses]),
    }, (often - once) / REPEAT / len(poses)


def errors_of(poses, views):
    """ADD or ADD-S of each view as a share of the object's diameter; infinite where no pose was found."""
    objects = {o["name"]: o for o in load_objects()}
    clouds = {name: torch.from_numpy(surface_points(name)).float() for name in NAMES}
    errors = np.full(len(views), np.inf)
    for i, (_, view) in enumerate(views):
        if poses["valid"][i] == 0:
            continue
        arrays = poses["rotation"][i], poses["translation"][i], view["rotation"], view["translation"]
        estimate = [torch.as_tensor(np.asarray(a, np.float32)) for a in arrays]
        name = view["name"]
        distance = pvn3d.adds if name in SYMMETRIC else pvn3d.add
        error = distance(estimate[0], estimate[1], estimate[2].reshape(3, 3), estimate[3], clouds[name])
        errors[i] = float(error) / objects[name]["diameter"]
    return errors


def differences(poses, others):
    """Largest difference of rotations' entries, of translations [mm], and of valid, between two hosts."""
    return tuple(
        float(np.abs(poses[name] - others[name]).max(initial=0)) * factor
        for name, factor in (("rotation", 1), ("translation", 1e3), ("valid", 1))
    )


def accuracy(errors, views):
    """{share: (views, percent below 10% of the diameter, median error [% of the diameter])}, over all and by object."""
    visible = np.array([view["visible"] for _, view in views])
    names = np.array([view["name"] for _, view in views])
    rows = {}
    for label, low, high in SHARES:
        for name in ("all", *NAMES):
            chosen = errors[(visible >= low) & (visible < high) & ((names == name) | (name == "all"))]
            if len(chosen):
                rows[label, name] = (
                    len(chosen),
                    100 * float((chosen < 0.1).mean()),
                    100 * float(np.median(chosen)),
                )
    return rows


def absent_poses(run, frames, camera):
    """Share [%] of absent objects, of frames that lack some, which are rightly not found in the whole picture."""
    right = []
    for frame in frames:
        arrays = frame["absent"] and make_points(frame["color"], frame["depth"], camera)
        if arrays:
            valid = np.asarray(run(*(array[None] for array in arrays))[2])[0]
            right += [valid[NAMES.index(name)] == 0 for name in frame["absent"]]
    return len(right), 100 * float(np.mean(right)) if right else 100.0


def accuracy_table(rows, title):
    table = Table(title=title)
    for column in ("object", *(label for label, _, _ in SHARES)):
        table.add_column(column, justify="right" if column != "object" else "left")
    for name in (*NAMES, "all"):
        cells = [rows.get((label, name)) for label, _, _ in SHARES]
        table.add_row(
            f"{name} (ADD-S)" if name in SYMMETRIC else name,
            *(f"{c[1]:.0f}% of {c[0]}; {c[2]:.1f}" if c else "-" for c in cells),
        )
    return table


def evaluate(folder=FRAMES, model=None, cpp=True, points=POINTS):
    """Prints the tables for a folder's frames. Returns how many statements of docs/pvn3d.md do not hold, and the poses
    (as poses_by) of each host."""
    torch.set_num_threads(1)
    camera, frames = load_frames(folder)
    views = views_of(frames)
    inputs, points_ms = inputs_of(views, camera, points)
    expected, torch_ms = poses_by(in_pytorch(PoseModel(load_network()).eval()), views, inputs)
    session = in_ort(model)
    found, ort_ms = poses_by(session, views, inputs)
    hosts = {"PyTorch": (expected, points_ms + torch_ms), "ONNX Runtime, Python": (found, points_ms + ort_ms)}
    if cpp:
        hosts["ONNX Runtime, C++"] = in_cpp(model, folder, points)

    rows = accuracy(errors_of(expected, views), views)
    title = f"views with ADD below 10% of the diameter, and median ADD in % of it: {len(frames)} frames"
    console.print(accuracy_table(rows, title))
    count, right = absent_poses(session, frames, camera)
    console.print(f"objects that are not in the frame: {right:.1f}% of {count} have valid = 0")

    table = Table(title=f"from picture to pose, {points} points; largest differences from PyTorch")
    for column in ("host", "CPU time [ms]", "rotation", "translation [mm]", "valid"):
        table.add_column(column, justify="left" if column == "host" else "right")
    wrong = right < 90
    for host, (poses, ms) in hosts.items():
        rotation, translation, valid = differences(poses, expected)
        wrong += not (rotation <= 1e-4 and translation <= 0.1 and valid == 0)
        cells = f"{ms:.1f}", f"{rotation:.1e}", f"{translation:.1e}", f"{valid:.0f}"
        table.add_row(host, *cells)
    console.print(table)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    console.print(f"peak memory of this process, PyTorch and ONNX Runtime: {memory:.0f} MiB")
    for label, percent in REQUIRED.items():
        if rows[label, "all"][1] < percent:
            wrong += 1
            console.print(f"[red]{label} visible: below {percent:.0f}%[/]")
    return wrong, {host: poses for host, (poses, _) in hosts.items()}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=Path, default=FRAMES)
    parser.add_argument("--model", type=Path, help="end to end; by default exported now")
    parser.add_argument("--points", type=int, default=POINTS, help="of a view; any number does")
    parser.add_argument("--without-cpp", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.model or Path(folder) / "pvn3d.onnx"
        if args.model is None:
            export(path)
        wrong, _ = evaluate(args.frames, path, not args.without_cpp, args.points)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
