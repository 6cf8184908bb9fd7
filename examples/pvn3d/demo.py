"""`make demo`, the main part: from RGB-D frames to poses, in PyTorch, in ONNX Runtime from Python, and in C++.

Exports the trained network end to end, runs the committed frames through every host, compares, and draws the poses.
Ends with exit code 1 if hosts disagree or poses are worse than docs/pvn3d.md says.
"""

import itertools
import sys
from pathlib import Path

import matplotlib
import numpy as np
import torch
from evaluate import console, evaluate, views_of
from export_pvn3d import export
from frames import load_frames
from network import PoseModel
from objects import load_objects

OUT = Path(__file__).parents[2] / "build" / "demo"
TRUE, ESTIMATED = "white", "#ff2bd6"
SHOWN = 6  # frames


def project(points, rotation, translation, camera):
    """Pixels (N, 2) of an object's points (N, 3)."""
    x, y, z = (np.asarray(points) @ np.reshape(rotation, (3, 3)).T + translation).T
    return np.stack([camera["fx"] * x / z + camera["cx"], camera["fy"] * y / z + camera["cy"]], 1)


def draw_box(axis, entry, rotation, translation, camera, colour):
    corners = np.array(entry["corners"])
    pixels = project(corners, rotation, translation, camera)
    for i, j in itertools.combinations(range(8), 2):
        if (corners[i] != corners[j]).sum() == 1:
            axis.plot(*pixels[[i, j]].T, color=colour, linewidth=1)


def draw_axes_and_keypoints(axis, entry, rotation, translation, camera):
    centre, length = np.array(entry["center"]), 0.6 * entry["radius"]
    tips = project([centre, *(centre + length * np.eye(3))], rotation, translation, camera)
    for tip, colour in zip(tips[1:], ("red", "lime", "blue"), strict=True):
        axis.plot(*np.stack([tips[0], tip]).T, color=colour, linewidth=1.5)
    keypoints = project(entry["keypoints"], rotation, translation, camera)
    axis.scatter(*keypoints.T, s=7, color="yellow", edgecolors="black", linewidths=0.4, zorder=3)


def picture(poses, path):
    """The frames with most objects: true boxes, and estimated boxes, axes and keypoints."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    camera, frames = load_frames()
    objects = {entry["name"]: entry for entry in load_objects()}
    of_frame = {frame["color_file"]: [] for frame in frames}
    for i, (frame, view) in enumerate(views_of(frames)):
        of_frame[frame["color_file"]].append((i, view))
    shown = sorted(frames, key=lambda frame: -len(frame["objects"]))[:SHOWN]
    figure, axes = plt.subplots(2, SHOWN // 2, figsize=(14, 7.4), layout="constrained")
    for axis, frame in zip(axes.ravel(), shown, strict=True):
        axis.imshow(frame["color"])
        for i, view in of_frame[frame["color_file"]]:
            entry = objects[view["name"]]
            true = np.reshape(view["rotation"], (3, 3)), np.array(view["translation"])
            if entry["symmetric"]:  # turned about its axis as the model turns it
                true = PoseModel.towards_camera(*map(torch.from_numpy, true)).numpy(), true[1]
            draw_box(axis, entry, *true, camera, TRUE)
            if poses["valid"][i]:
                estimate = poses["rotation"][i], poses["translation"][i]
                draw_box(axis, entry, *estimate, camera, ESTIMATED)
                draw_axes_and_keypoints(axis, entry, *estimate, camera)
        axis.set_xlim(0, frame["color"].shape[1])
        axis.set_ylim(frame["color"].shape[0], 0)
        axis.set_title(frame["color_file"], fontsize=9)
        axis.axis("off")
    figure.suptitle("boxes: true (white), estimated in C++ (pink), with its axes and keypoints")
    figure.savefig(path, dpi=70)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    model = OUT / "pvn3d.onnx"
    console.print(str(export(model)), highlight=False)
    wrong, hosts = evaluate(model=model)
    picture(hosts["ONNX Runtime, C++"], OUT / "poses.png")
    console.print(f"wrote {model} and {OUT / 'poses.png'}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
