"""The trained PVN3D on the committed frames: the C++ runner against NumPy and PyTorch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from conftest import BUILD, ROOT, built

EXAMPLE = ROOT / "examples/pvn3d"
MODEL = EXAMPLE / "models/pvn3d.onnx"
LISTED = EXAMPLE / "frames/frames.json"


@pytest.fixture(scope="module")
def example():
    """The example's modules (frames, network, objects)."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        import frames
        import network
        import objects
    finally:
        sys.path.remove(str(EXAMPLE))
    return {"frames": frames, "network": network, "objects": objects}


@pytest.fixture(scope="module")
def views(example):
    """(camera, [(frame, view)]) of everything that is there to be seen."""
    camera, frames = example["frames"].load_frames()
    return camera, [(frame, view) for frame in frames for view in frame["objects"]]


@pytest.fixture(scope="module")
def pytorch(example, views):
    """Poses of all views by PyTorch eager: a function of the number of points."""
    model = example["network"].PoseModel(example["network"].load_network()).eval()
    camera, all_views = views

    def poses(points):
        results = []
        torch.set_num_threads(1)  # small layers: threads only wait for each other
        for frame, view in all_views:
            made = example["frames"].make_points(
                frame["color"], frame["depth"], camera, view["box"], points=points
            )
            with torch.inference_mode():
                outputs = model(*(torch.from_numpy(array)[None] for array in made))
            index = example["objects"].NAMES.index(view["name"])
            results.append([output[0, index].numpy() for output in outputs])
        return results

    return poses


def opbridge(*arguments):
    command = [
        BUILD / "bin/opbridge",
        "pose",
        MODEL,
        "--library",
        built("pvn3d_custom_op"),
        "--threads",
        1,
        *arguments,
    ]
    env = os.environ | {"OPBRIDGE_ORT": str(Path(onnxruntime.__file__).parent)}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_cpp(*arguments):
    """The poses of all frames, those of a frame in one batch."""
    result = json.loads(opbridge("--frames", LISTED, "--json", *arguments))
    return [pose for frame in result["frames"] for pose in frame["poses"]]


@pytest.mark.parametrize("points", [1024, 700])
def test_cpp_equals_pytorch(views, pytorch, points):
    """As the network was trained, and with another number of points: 1e-4 in R, 0.1 mm."""
    cpp, eager = in_cpp("--points", points), pytorch(points)
    assert len(cpp) == len(eager) >= 40
    found = 0
    for ours, (rotation, translation, valid, kps, count), (_, view) in zip(cpp, eager, views[1], strict=True):
        assert ours["object"] == view["name"]
        assert (ours["valid"], ours["inliers"]) == (valid, count if valid else 0)
        if not valid:
            continue
        found += 1
        got = np.reshape(ours["rotation"], (3, 3))
        if valid == 2:  # symmetric: every turn about its axis fits
            got, rotation = got[:, 2], rotation[:, 2]
        assert np.abs(got - rotation).max() < 1e-4
        assert np.linalg.norm(ours["translation"] - translation) < 1e-4
        assert np.abs(np.array(ours["keypoints"]) - kps).max() < 1e-4
    assert found > 0.9 * len(cpp)


def test_object_that_is_not_in_the_frame(tmp_path):
    """Looked for where another object is, or in the middle of an empty scene: not found, and no error."""
    scene = json.loads(LISTED.read_text())
    for frame in scene["frames"]:
        box = frame["objects"][0]["box"] if frame["objects"] else [240, 160, 160, 160]
        frame["objects"] = [{"name": name, "box": box} for name in frame["absent"]]
        frame |= {kind: str(LISTED.parent / frame[kind]) for kind in ("color", "depth")}
    (tmp_path / "absent.json").write_text(json.dumps(scene))
    result = json.loads(opbridge("--frames", tmp_path / "absent.json", "--json"))
    valid = [pose["valid"] for frame in result["frames"] for pose in frame["poses"]]
    assert len(valid) >= 10
    assert not any(valid)


def test_points_equal_numpy(example, views, tmp_path):
    camera, all_views = views
    scene = json.loads(LISTED.read_text())
    numbers = ",".join(str(camera[k]) for k in ("fx", "fy", "cx", "cy"))
    files = [frame for frame in scene["frames"] for _ in frame["objects"]]
    for (frame, view), file in list(zip(all_views, files, strict=True))[:: len(files) // 6]:
        pictures = ["--color", LISTED.parent / file["color"], "--depth", LISTED.parent / file["depth"]]
        place = ["--object", view["name"], "--box", ",".join(map(str, view["box"]))]
        opbridge(*pictures, "--camera", numbers, *place, "--save-inputs", tmp_path / "in.npz")
        got = np.load(tmp_path / "in.npz")
        cloud, rgb, choose = example["frames"].make_points(
            frame["color"], frame["depth"], camera, view["box"]
        )
        np.testing.assert_array_equal(got["choose"][0], choose)
        np.testing.assert_array_equal(got["rgb"][0], rgb)
        np.testing.assert_allclose(got["pointcloud"][0], cloud, rtol=0, atol=3e-7)
