"""examples/pvn3d in Python: what docs/pvn3d.md says of the network, its data, training and export, on committed frames.

The C++ side is in test_cli_pose.py and test_pose_frames.py.
"""

import json
import subprocess
import sys

import numpy as np
import onnx
import opbridge
import pytest
import torch
from conftest import ROOT, built
from PIL import Image

EXAMPLE = ROOT / "examples/pvn3d"
sys.path.insert(0, str(EXAMPLE))

import crops  # noqa: E402
import demo  # noqa: E402
import evaluate  # noqa: E402
import export_pvn3d  # noqa: E402
import frames  # noqa: E402
import network  # noqa: E402
import objects  # noqa: E402
import train  # noqa: E402

MODEL = EXAMPLE / "models/pvn3d.onnx"


@pytest.fixture(scope="module")
def pytorch():
    return evaluate.in_pytorch(network.PoseModel(network.load_network()).eval())


@pytest.fixture(scope="module")
def session():
    return opbridge.session(MODEL, libraries=[built("pvn3d_custom_op")])


@pytest.fixture(scope="module")
def ort(session):
    def run(*arrays):
        return session.run(
            list(export_pvn3d.POSE_OUTPUTS), dict(zip(export_pvn3d.INPUTS, arrays, strict=True))
        )

    return run


@pytest.fixture(scope="module")
def scene():
    camera, all_frames = frames.load_frames()
    return camera, all_frames, evaluate.views_of(all_frames)


def batch(scene, count, **options):
    camera, _, views = scene
    made = [frames.make_points(f["color"], f["depth"], camera, v["box"], **options) for f, v in views[:count]]
    return [np.stack(field) for field in zip(*made, strict=True)]


# --- the frames, and how a network's inputs are made of them


def test_committed_frames(scene):
    camera, all_frames, views = scene
    assert set(camera) == {"fx", "fy", "cx", "cy", "depth_scale"}
    assert len(all_frames) >= 24
    visible = np.array([view["visible"] for _, view in views])
    assert (visible >= 0.7).sum() >= 30
    assert ((visible >= 0.4) & (visible < 0.7)).sum() >= 15
    assert {view["name"] for _, view in views} == set(objects.NAMES)
    for frame in all_frames:
        assert frame["color"].dtype == np.uint8
        assert frame["color"].shape == (480, 640, 3)
        assert frame["depth"].dtype == np.uint16
        assert frame["depth"].shape == (480, 640)
        assert (frame["depth"] == 0).any()  # depth has holes
    for _, view in views:
        rotation = np.reshape(view["rotation"], (3, 3))
        np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-5)


def test_true_poses_fit_the_depth(scene):
    """Points on a model's surface, posed and projected, are at the depth that the sensor measured there, or covered."""
    camera, _, views = scene
    for frame, view in views:
        points = objects.surface_points(view["name"], 3000) @ np.reshape(view["rotation"], (3, 3)).T
        points += view["translation"]
        u = np.rint(camera["fx"] * points[:, 0] / points[:, 2] + camera["cx"]).astype(int)
        v = np.rint(camera["fy"] * points[:, 1] / points[:, 2] + camera["cy"]).astype(int)
        inside = (u >= 0) & (u < 640) & (v >= 0) & (v < 480)
        z = frames.measured_depth(frame["depth"])[v[inside], u[inside]]
        behind = points[inside, 2] - z  # positive: something, often the object itself, is before the point
        near = np.abs(behind[np.isfinite(behind)]) < 0.008
        assert near.sum() > 0.1 * view["visible"] * len(points), view
        assert (behind[np.isfinite(behind)] < -0.015).mean() < 0.1, (
            view
        )  # nothing is behind what should be there


def slow_points(color, depth, camera, box, crop, count):
    """make_points, one cell after the other."""
    height, width = crop
    z, source = np.full(crop, np.nan), {}
    for r in range(height):
        for c in range(width):
            v = int(min(max(np.floor(box[1] + (r + 0.5) * box[3] / height), 0), depth.shape[0] - 1))
            u = int(min(max(np.floor(box[0] + (c + 0.5) * box[2] / width), 0), depth.shape[1] - 1))
            source[r, c] = v, u
            metres = float(depth[v, u]) / camera["depth_scale"]
            if frames.MIN_DEPTH <= metres <= frames.MAX_DEPTH:
                z[r, c] = metres

    def filled(r, c):
        if not np.isnan(z[r, c]):
            return z[r, c]
        for dr, dc in ((0, 1), (1, 0)):
            for d in range(1, 5):
                for side in (-d, d):
                    y, x = r + side * dr, c + side * dc
                    if 0 <= y < height and 0 <= x < width and not np.isnan(z[y, x]):
                        return z[y, x]
        return np.nan

    def point(r, c, metres):
        v, u = source[r, c]
        x, y = (u - camera["cx"]) * metres / camera["fx"], (v - camera["cy"]) * metres / camera["fy"]
        return np.array([x, y, metres])

    def normal(r, c):
        around = [(r, c + 1), (r, c - 1), (r + 1, c), (r - 1, c)]
        if not (0 < r < height - 1 and 0 < c < width - 1):
            return np.zeros(3)
        here, depths = filled(r, c), [filled(*cell) for cell in around]
        if any(np.isnan(d) or abs(d - here) > 0.05 for d in depths):
            return np.zeros(3)
        right, left, down, up = (point(*cell, d) for cell, d in zip(around, depths, strict=True))
        n = np.cross(right - left, down - up)
        if not n.any():  # both neighbours are one pixel, at the picture's edge
            return n
        n /= np.linalg.norm(n)
        return -n if n @ point(r, c, here) > 0 else n

    valid = [(r, c) for r in range(height) for c in range(width) if not np.isnan(z[r, c])]
    picked = [valid[i * len(valid) // count if len(valid) >= count else i % len(valid)] for i in range(count)]
    rows = [np.concatenate([point(*p, z[p]), color[source[p]] / 255, normal(*p)]) for p in picked]
    return np.float32(rows), [r * width + c for r, c in picked]


@pytest.mark.parametrize("count", [50, 900])  # fewer and more than there are cells with depth
def test_points_against_a_slow_reference(count):
    random = np.random.default_rng(count)
    depth = (700 + 60 * random.random((60, 80)) + 200 * (np.arange(80) > 40)).astype(np.uint16)
    depth[random.random(depth.shape) < 0.35] = 0
    depth[:5, :5] = 60000
    color = random.integers(0, 256, (60, 80, 3), dtype=np.uint8)
    camera = {"fx": 70.0, "fy": 71.0, "cx": 39.5, "cy": 30.2, "depth_scale": 1000}
    box, crop = (-3.2, 4.7, 70.0, 61.3), (24, 28)  # reaches over the picture's edge
    cloud, rgb, choose = frames.make_points(color, depth, camera, box, crop, count)
    expected, cells = slow_points(color, depth, camera, box, crop, count)
    np.testing.assert_array_equal(choose[0], cells)
    np.testing.assert_allclose(cloud, expected, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(rgb.reshape(3, -1)[:, choose[0]].T, cloud[:, 3:6])
    lengths = np.linalg.norm(cloud[:, 6:], axis=1)
    assert np.all((np.abs(lengths - 1) < 1e-6) | (lengths == 0))
    assert 0.05 < (lengths == 0).mean() < 0.95


def test_no_depth_gives_no_points(scene):
    camera, all_frames, _ = scene
    assert frames.make_points(all_frames[0]["color"], np.zeros((480, 640), np.uint16), camera) is None


# --- the objects


def test_objects_are_what_the_shapes_are():
    assert objects.load_objects() == [objects.describe(name) for name in objects.NAMES]


def test_meshes(tmp_path):
    for name in objects.NAMES:
        objects.write_ply(tmp_path / "mesh.ply", *objects.mesh(name))
        assert (tmp_path / "mesh.ply").read_text() == (EXAMPLE / f"meshes/{name}.ply").read_text()
        vertices, faces, _ = objects.mesh(name)
        assert np.isclose(vertices[:, 2].min(), 0)
        edges = np.sort(np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]), axis=1)
        places = np.unique(vertices.round(6), axis=0, return_inverse=True)[1]
        _, count = np.unique(np.sort(places[edges], axis=1), axis=0, return_counts=True)
        assert (count % 2 == 0).all()  # closed: at each edge as many triangles on one side as on the other


# --- the trained network


def test_accuracy(pytorch, scene):
    """docs/pvn3d.md: ADD (ADD-S) below 10% of the diameter."""
    camera, _, views = scene
    inputs, _ = evaluate.inputs_of(views, camera)
    poses, _ = evaluate.poses_by(pytorch, views, inputs)
    rows = evaluate.accuracy(evaluate.errors_of(poses, views), views)
    assert rows["70% or more", "all"][1] >= 95
    assert rows["40% or more", "all"][1] >= 80
    symmetric = {view["name"]: valid for (_, view), valid in zip(views, poses["valid"], strict=True) if valid}
    assert symmetric["bottle"] == 2
    assert symmetric["drill"] == 1


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (1, {}),
        (9, {}),
        (3, {"points": 600}),
        (3, {"points": 2500}),
        (2, {"points": 12288, "crop": (120, 120)}),
        (2, {"crop": (64, 95)}),
    ],
)
def test_ort_agrees_with_pytorch(pytorch, ort, scene, count, options):
    arrays = batch(scene, count, **options)
    expected, found = pytorch(*arrays), ort(*arrays)
    np.testing.assert_array_equal(found[2], expected[2])
    np.testing.assert_array_equal(found[4], expected[4])
    np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=1e-4)
    np.testing.assert_allclose(found[1], expected[1], rtol=0, atol=1e-4)
    assert (found[2] > 0).any()


def test_a_batch_is_its_views(ort, scene):
    arrays = batch(scene, 6)
    together = ort(*arrays)
    for i in range(6):
        alone = ort(*(array[i : i + 1] for array in arrays))
        np.testing.assert_array_equal(alone[2][0], together[2][i])
        np.testing.assert_allclose(alone[0][0], together[0][i], rtol=0, atol=1e-4)
        np.testing.assert_allclose(alone[1][0], together[1][i], rtol=0, atol=1e-4)


def test_absent_objects_are_not_found(ort, scene):
    camera, all_frames, _ = scene
    count, right = evaluate.absent_poses(ort, all_frames, camera)
    assert count >= 15
    assert right >= 95


def test_a_frame_without_objects(pytorch, ort):
    """A table and nothing on it."""
    random = np.random.default_rng(3)
    depth = np.rint(np.linspace(1200, 800, 480)[:, None] + random.normal(0, 1.5, (480, 640))).astype(
        np.uint16
    )
    color = np.full((480, 640, 3), (120, 130, 110), np.uint8)
    camera = {"fx": 570.0, "fy": 570.0, "cx": 320.0, "cy": 239.0, "depth_scale": 1000}
    arrays = [array[None] for array in frames.make_points(color, depth, camera, (200, 150, 200, 200))]
    for run in (pytorch, ort):
        rotation, translation, valid, _, _ = map(np.asarray, run(*arrays))
        assert (valid == 0).all()
        np.testing.assert_array_equal(rotation[0], np.tile(np.eye(3), (len(objects.NAMES), 1, 1)))
        assert (translation == 0).all()


def test_symmetric_pose_looks_at_the_camera():
    random = np.random.default_rng(0)
    rotation = torch.from_numpy(np.linalg.qr(random.normal(size=(50, 3, 3)))[0])
    rotation *= torch.linalg.det(rotation)[:, None, None]
    translation = torch.from_numpy(random.normal(size=(50, 3))) + torch.tensor([0, 0, 4])
    turned = network.PoseModel.towards_camera(rotation, translation)
    np.testing.assert_allclose(turned[..., 2], rotation[..., 2])
    np.testing.assert_allclose(turned @ turned.mT, torch.eye(3).expand(50, 3, 3), atol=1e-6)
    np.testing.assert_allclose(torch.linalg.det(turned), 1, atol=1e-6)
    # In the object's frame the camera is above or below +x.
    camera = -(turned.mT @ translation[..., None])[..., 0]
    np.testing.assert_allclose(camera[:, 1], 0, atol=1e-6)
    assert (camera[:, 0] > 0).all()


# --- evaluation and demo


def true_poses(views):
    return {
        "rotation": np.array([np.reshape(view["rotation"], (3, 3)) for _, view in views]),
        "translation": np.array([view["translation"] for _, view in views]),
        "valid": np.ones(len(views), int),
    }


def test_errors(scene):
    """Of true poses 0, of a shift its length, of a bottle turned about its axis 0, of no pose infinity."""
    views = scene[2][:40]
    diameters = np.array(
        [{o["name"]: o["diameter"] for o in objects.load_objects()}[v["name"]] for _, v in views]
    )
    poses = true_poses(views)
    assert evaluate.errors_of(poses, views).max() < 1e-5
    shifted = poses | {"translation": poses["translation"] + [0.03, 0, 0.04]}
    shifts = evaluate.errors_of(shifted, views) * diameters
    symmetric = np.array([view["name"] in objects.SYMMETRIC for _, view in views])
    np.testing.assert_allclose(shifts[~symmetric], 0.05, atol=1e-5)
    assert (shifts[symmetric] < 0.05).all()
    turn = np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1.0]])
    turned = evaluate.errors_of(poses | {"rotation": poses["rotation"] @ turn}, views)
    assert turned[symmetric].max() < 0.02  # as far apart as the surface's points
    assert turned[~symmetric].min() > 0.1
    lost = poses | {"valid": np.zeros(len(views), int)}
    assert np.isinf(evaluate.errors_of(lost, views)).all()
    rows = evaluate.accuracy(evaluate.errors_of(lost, views), views)
    assert rows["40% or more", "all"][1] == 0


def test_differences(scene):
    poses = true_poses(scene[2])
    moved = {name: values.copy() for name, values in poses.items()}
    moved["rotation"][3, 1, 2] += 1e-3
    moved["translation"][5, 0] -= 2e-3
    moved["valid"][7] = 0
    np.testing.assert_allclose(evaluate.differences(poses, moved), (1e-3, 2, 1), atol=1e-6)
    assert evaluate.differences(poses, poses) == (0, 0, 0)


def test_picture(scene, tmp_path):
    """The estimated boxes are drawn where there is an estimate."""
    pink = [int(demo.ESTIMATED[i : i + 2], 16) for i in (1, 3, 5)]
    poses, counts = true_poses(scene[2]), []
    for valid in (1, 0):
        demo.picture(poses | {"valid": np.full(len(scene[2]), valid)}, tmp_path / "poses.png")
        picture = np.asarray(Image.open(tmp_path / "poses.png").convert("RGB")).astype(int)
        counts.append((np.abs(picture - pink).max(2) < 40).sum())
    assert counts[0] > 1000 > 100 > counts[1]


# --- export


def test_committed_model_is_this_network():
    model = onnx.load(MODEL)
    metadata = {p.key: p.value for p in model.metadata_props}
    assert json.loads(metadata[export_pvn3d.METADATA]) == export_pvn3d.metadata()
    assert [value.name for value in model.graph.input] == list(export_pvn3d.INPUTS)
    assert [value.name for value in model.graph.output] == list(export_pvn3d.POSE_OUTPUTS)


@pytest.mark.slow
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("network_only", [False, True])
def test_export(exporter, network_only, scene, tmp_path):
    """opbridge.export compares with PyTorch, at two sizes; here the custom operators that it wrote."""
    path = tmp_path / "pvn3d.onnx"
    export_pvn3d.export(path, network_only=network_only, exporter=exporter)
    model = onnx.load(path)
    custom = {node.op_type for node in model.graph.node if node.domain == "pvn3d.custom_ops"}
    layers = {
        "FarthestPointSample",
        "BallQuery",
        "GatherPoints",
        "GroupPoints",
        "ThreeNN",
        "ThreeInterpolate",
    }
    assert custom == (layers if network_only else layers | {"PVN3DPoseSolve"})
    outputs = opbridge.session(path, libraries=[built("pvn3d_custom_op")]).run(
        None, dict(zip(export_pvn3d.INPUTS, batch(scene, 2, points=800), strict=True))
    )
    if network_only:
        shapes = [(2, objects.KEYPOINTS, 800, 3), (2, 800, len(objects.NAMES) + 1), (2, 1, 800, 3)]
        assert [output.shape for output in outputs] == shapes


def test_python_example():
    done = subprocess.run(
        [sys.executable, EXAMPLE / "test_python_op.py", MODEL, built("pvn3d_custom_op"), "700"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED" in done.stdout


# --- training


class Perfect(torch.nn.Module):
    """Says the truth of the one sample that it was made for."""

    def __init__(self, places, labels):
        super().__init__()
        self.places, self.labels = places, labels

    def forward(self, cloud, rgb, choose, subset):
        labels = self.labels[:, subset[0]]
        votes = self.places[:, (labels[0] - 1).clamp(min=0)]  # (1, S, K + 1, 3)
        offsets = (cloud[:, subset[0], None, :3] - votes).transpose(1, 2)
        seg = 50.0 * torch.nn.functional.one_hot(labels, len(objects.NAMES) + 1)
        return offsets[:, :-1], seg, offsets[:, -1:]


def region(seed):
    """A made-up region: a ball of class 2 over a slope."""
    random = np.random.default_rng(seed)
    n = crops.REGION
    y, x = np.mgrid[:n, :n]
    ball = (y - n / 2) ** 2 + (x - n / 2) ** 2 < 900
    depth = np.where(ball, 800, 900 + y).astype(np.uint16)
    depth[random.random(depth.shape) < 0.05] = 0
    pose = np.zeros((len(objects.NAMES), 3, 4), np.float32)
    pose[1, :, :3], pose[1, :, 3] = np.linalg.qr(random.normal(size=(3, 3)))[0], (0.02, -0.01, 0.85)
    return {
        "colour": random.integers(0, 256, (n, n, 3), dtype=np.uint8), "depth": depth,
        "normals": np.zeros((n, n, 3), np.int8), "labels": np.where(ball, 2, 0).astype(np.uint8),
        "u": np.arange(264, 264 + n, dtype=np.int16), "v": np.arange(184, 184 + n, dtype=np.int16), "pose": pose,
        "target": np.int64(2), "visible": np.float32(1),
    }  # fmt: skip


def test_loss_of_the_truth_is_zero():
    sample = crops.sample(region(0), np.random.default_rng(0))
    one = train.batch_of([sample])
    keypoints = train.keypoints_and_centres()
    pose = one[4][0].double()
    places = (keypoints[1:].double() @ pose[:, :, :3].mT + pose[:, None, :, 3]).float()[None]
    total, vote, entropy = train.loss_of(Perfect(places, one[3]), one, keypoints)
    assert total < 1e-6
    assert vote < 1e-6
    wrong = train.loss_of(Perfect(places + 0.05, one[3]), one, keypoints)[
        1
    ]  # 5 cm in x, y and z, in decimetres
    assert abs(wrong - 3 * (0.5 - 0.05)) < 1e-3
    assert entropy < 1e-6


def test_training_samples_are_points_of_the_region():
    sample = crops.sample(region(1), np.random.default_rng(5))
    cloud, rgb, choose, labels, _, subset = sample
    assert cloud.shape == (crops.POINTS, 9)
    assert rgb.shape == (3, *frames.CROP)
    assert len(subset) == crops.FOREGROUND + crops.ANYWHERE
    assert (labels[subset[: crops.FOREGROUND]] == 2).all()
    np.testing.assert_allclose(cloud[:, 3:6], rgb.reshape(3, -1)[:, choose[0]].T, atol=1e-6)
    np.testing.assert_array_equal(labels == 2, np.isclose(cloud[:, 2], 0.8))  # the ball's depth


def test_training_goes_on_where_it_stopped(tmp_path, monkeypatch):
    """Two steps, a stop and two more give the weights of four in one go, bit for bit."""
    regions = [region(seed) for seed in range(6)]
    for name in crops.FIELDS:
        np.save(tmp_path / f"0001-000-{name}.npy", np.stack([r[name] for r in regions]))
    (tmp_path / "0001-000.done").touch()

    def run(weights, *more):
        arguments = [
            tmp_path,
            "--validation",
            tmp_path,
            "--steps",
            4,
            "--batch",
            2,
            "--weights",
            weights,
            *more,
        ]
        monkeypatch.setattr(sys, "argv", ["train.py", *map(str, arguments)])
        train.main()

    threads = torch.get_num_threads()
    try:
        run(tmp_path / "once.npz")
        run(tmp_path / "twice.npz", "--stop", 2)
        assert not (tmp_path / "twice.log").read_text()  # it has not come to its end
        run(tmp_path / "twice.npz")
    finally:
        torch.set_num_threads(threads)
    with np.load(tmp_path / "once.npz") as once, np.load(tmp_path / "twice.npz") as twice:
        assert set(once) == set(twice)
        for name in once:
            np.testing.assert_array_equal(once[name], twice[name])
    (line,) = (tmp_path / "twice.log").read_text().splitlines()
    assert json.loads(line)["step"] == 4
    network.load_network(tmp_path / "twice.npz")


def test_training_without_data_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", str(tmp_path), "--validation", str(tmp_path)])
    with pytest.raises(SystemExit, match="no crops in"):
        train.main()


def test_weights_of_another_network_are_refused(tmp_path):
    np.savez(tmp_path / "w.npz", other=np.zeros(3))
    with pytest.raises(ValueError, match=r"w\.npz is not of this network: missing \['colour"):
        network.load_network(tmp_path / "w.npz")


# --- generating


def test_generator(tmp_path):
    """Crops and frames of the renderer, where it is installed: only training needs it."""
    pytest.importorskip("pybullet", reason="pybullet (requirements/train.txt) only makes new training data")
    for what, *more in (("crops", "--count", "6", "--shard", "4"), ("frames", "--count", "2")):
        command = [sys.executable, EXAMPLE / "generate.py", what, tmp_path / what, "--seed", "7", *more]
        subprocess.run(command, check=True, capture_output=True, timeout=200)
    data = crops.Crops(tmp_path / "crops")
    assert len(data) >= 6
    assert crops.sample(data[0], np.random.default_rng(0)) is not None
    camera, made = frames.load_frames(tmp_path / "frames")
    assert len(made) == 2
    assert camera == json.loads((EXAMPLE / "frames/frames.json").read_text())["camera"]
