"""`opbridge pose` and the C++ program of examples/pvn3d: from PNG files to poses."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pose_scene as scene
import pytest
from conftest import BUILD, ROOT, built
from PIL import Image
from project import environment, install, run, runtime


def opbridge(*arguments, code=0):
    """Runs `opbridge pose`; returns stdout of a success, stderr of a failure."""
    command = [BUILD / "bin/opbridge", "pose", *map(str, arguments), "--library", built("pvn3d_custom_op")]
    env = os.environ | {"OPBRIDGE_ORT": str(Path(onnxruntime.__file__).parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stderr if code else done.stdout


def found(*arguments):
    """The poses of the only frame."""
    (frame,) = json.loads(opbridge(*arguments, "--json"))["frames"]
    return frame["poses"]


def box(name):
    return ",".join(map(str, scene.BOXES[name]))


BOTH = [a for name in scene.BOXES for a in ("--object", name, "--box", box(name))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pose")


@pytest.fixture(scope="module")
def model(folder):
    return scene.model(folder / "m.onnx")


@pytest.fixture(scope="module")
def frame(folder):
    return scene.write_frame(folder, *scene.draw())


def check(pose, name, angle=1e-3, distance=1e-4):
    """[rad], [m]. Colours are 8 bits, so a vote is off by 0.3 mm, and the mean of hundreds by much less."""
    r, t = scene.POSES[name]
    assert pose["object"] == name
    assert pose["valid"] == 1
    estimated = np.reshape(pose["rotation"], (3, 3))
    assert np.linalg.norm(estimated - r) / np.sqrt(2) < angle
    assert np.linalg.norm(np.array(pose["translation"]) - t) < distance
    assert (
        np.abs(np.array(pose["keypoints"][:-1]) - (np.array(scene.keypoints(name)) @ r.T + t)).max()
        < 2 * distance
    )
    assert pose["residual"] < distance


# ------------------------------------------------------------------------------------------------------------ poses


def test_finds_both_blocks(model, frame):
    poses = found(model, *frame, *BOTH)
    for pose, name in zip(poses, scene.POSES, strict=True):
        check(pose, name)
        assert pose["box"] == list(scene.BOXES[name])
        assert 300 < pose["points"] <= 1024
        assert pose["inliers"] == 1024  # fewer points are repeated


def test_every_object_in_the_whole_picture(model, frame):
    poses = found(model, *frame, "--points", 3000, "--crop", "120x160")
    for pose, name in zip(poses, scene.POSES, strict=True):
        check(pose, name)
        assert pose["points"] < 3000


@pytest.mark.parametrize("points", [64, 700, 5000])
def test_other_numbers_of_points(model, frame, points):
    for pose, name in zip(found(model, *frame, *BOTH, "--points", points), scene.POSES, strict=True):
        check(pose, name, angle=5e-3, distance=5e-4)


def test_a_batch_is_its_rows(model, frame):
    batch = found(model, *frame, *BOTH)
    single = [found(model, *frame, "--object", n, "--box", box(n))[0] for n in scene.BOXES]
    assert batch == single


def test_object_that_is_not_there(model, folder):
    only = scene.write_frame(folder, *scene.draw({"block": scene.POSES["block"]}), "only")
    block, slab = found(model, *only, *BOTH)
    check(block, "block")
    assert (slab["valid"], slab["inliers"], slab["residual"]) == (0, 0, None)
    assert slab["rotation"] == [1, 0, 0, 0, 1, 0, 0, 0, 1]


def test_frame_without_depth(model, folder):
    color, depth = scene.draw()
    dark = scene.write_frame(folder, color, 0 * depth, "dark")
    assert [(p["valid"], p["points"]) for p in found(model, *dark, *BOTH)] == [(0, 0), (0, 0)]
    assert "not found" in opbridge(model, *dark)


def test_holes_in_the_depth(model, folder):
    color, depth = scene.draw()
    depth[np.random.default_rng(1).random(depth.shape) < 0.4] = 0
    holes = scene.write_frame(folder, color, depth, "holes")
    for pose, name in zip(found(model, *holes, *BOTH), scene.POSES, strict=True):
        check(pose, name)


def test_depth_out_of_the_models_range(folder, frame):
    near = scene.model(folder / "near.onnx", scene.metadata(max_depth=0.3))
    (result,) = json.loads(opbridge(near, *frame, "--object", "slab", "--box", box("slab"), "--json"))[
        "frames"
    ]
    assert result["poses"][0]["valid"] == 0
    (warning,) = result["warnings"]
    assert "the box of 'slab' has depth, but none from 0.2 to 0.3 m" in warning


def test_table(model, frame):
    text = opbridge(model, *frame, *BOTH)
    assert "1024 points, crop 60 x 60" in text
    assert "block   found  1024" in text
    assert "0.1300 0.0500 0.5500" in text
    assert "found 2 of 2" in text
    axis = np.array((0.3, -1, 0.5)) / np.linalg.norm((0.3, -1, 0.5)) * np.degrees(0.8)
    (row,) = (line for line in text.splitlines() if line.startswith("  slab"))
    np.testing.assert_allclose([float(x) for x in row.split()[-3:]], axis, atol=0.1)


def test_half_turn_as_rotation_vector(model, folder):
    """Where the sine of the angle says nothing about the axis."""
    r = scene.rotation((1, 0.2, -0.1), np.pi - 1e-5)
    poses = {"block": (r, np.array([-0.12, 0.02, 0.6]))}
    half = scene.write_frame(folder, *scene.draw(poses), "half")
    (row,) = (line for line in opbridge(model, *half, "--object", "block").splitlines() if "  block" in line)
    vector = np.array([float(x) for x in row.split()[-3:]])
    expected = 180 * np.array((1, 0.2, -0.1)) / np.linalg.norm((1, 0.2, -0.1))
    assert min(np.abs(vector - expected).max(), np.abs(vector + expected).max()) < 0.3


def test_picture(model, folder, frame):
    opbridge(model, *frame, *BOTH, "--save", folder / "found.png")
    before, after = (np.asarray(Image.open(p)) for p in (folder / "frame_color.png", folder / "found.png"))
    changed = (before != after).any(-1)
    assert after.shape == before.shape
    for name, (r, t) in scene.POSES.items():
        p = np.array(scene.corners(name)) @ r.T + t
        u, v = (np.round(scene.CAMERA[f] * p[:, i] / p[:, 2] + scene.CAMERA[c]).astype(int)
                for i, f, c in ((0, "fx", "cx"), (1, "fy", "cy")))  # fmt: skip
        assert changed[v, u].all(), "every corner has its edges"
    assert not changed[:15].any()
    assert not changed[-15:].any()


def test_frames_with_known_poses(model, folder):
    frames = []
    for i, angle in enumerate((0, 0.4)):
        turned = {n: (r @ scene.rotation((0, 0, 1), angle), t) for n, (r, t) in scene.POSES.items()}
        scene.write_frame(folder, *scene.draw(turned), f"f{i}")
        objects = [{"name": n, "rotation": r.ravel().tolist(), "translation": t.tolist(), "box": scene.BOXES[n]}
                   for n, (r, t) in turned.items()]  # fmt: skip
        frames.append({"color": f"f{i}_color.png", "depth": f"f{i}_depth.png", "objects": objects})
    frames[1]["objects"][1]["translation"][2] += 0.1  # a wrong one: 10 cm
    listed = folder / "frames.json"
    listed.write_text(json.dumps({"depth_scale": scene.SCALE, "camera": scene.CAMERA, "frames": frames}))
    text = opbridge(model, "--frames", listed, "--save", folder / "drawn", "--repeat", 2)
    assert "found 4 of 4; error below 10% of the diameter: 3 of 4" in text
    assert "median of 4" in text
    assert sorted(p.name for p in (folder / "drawn").iterdir()) == ["f0_color.png", "f1_color.png"]
    result = json.loads(opbridge(model, "--frames", listed, "--object", "slab", "--json"))
    errors = [f["poses"][0]["keypoint_error"] for f in result["frames"]]
    assert errors[0] < 1e-4
    assert abs(errors[1] - 0.1) < 1e-4


# ----------------------------------------------------------------------------------------------------------- points


def points_slowly(color, depth, box, crop, count, low, high):
    """What opbridge::make_points computes, cell by cell."""
    (height, width), cam = depth.shape, scene.CAMERA
    at = lambda start, size, i, cells, limit: int(
        np.clip(np.floor(start + (i + 0.5) * size / cells), 0, limit - 1)
    )
    v = [at(box[1], box[3], r, crop[0], height) for r in range(crop[0])]
    u = [at(box[0], box[2], c, crop[1], width) for c in range(crop[1])]
    z = np.zeros(crop)
    for r in range(crop[0]):
        for c in range(crop[1]):
            d = np.round(depth[v[r], u[c]] * scene.SCALE) / scene.SCALE
            z[r, c] = d if low <= d <= high else 0

    def filled(r, c):
        steps = [(0, s * d) for d in range(1, 5) for s in (-1, 1)]
        for dr, dc in [(0, 0)] + steps + [(d, s) for s, d in steps]:
            if 0 <= r + dr < crop[0] and 0 <= c + dc < crop[1] and z[r + dr, c + dc] > 0:
                return z[r + dr, c + dc]
        return 0

    def point(r, c, depth):
        return np.array(
            [(u[c] - cam["cx"]) * depth / cam["fx"], (v[r] - cam["cy"]) * depth / cam["fy"], depth]
        )

    def normal(r, c):
        around = [(r, c + 1), (r, c - 1), (r + 1, c), (r - 1, c)]
        if not all(0 <= i < crop[0] and 0 <= j < crop[1] for i, j in around):
            return np.zeros(3)
        depths = [filled(i, j) for i, j in around]
        if min(depths) == 0 or max(abs(d - z[r, c]) for d in depths) > 0.05:
            return np.zeros(3)
        right, left, down, up = (point(*cell, d) for cell, d in zip(around, depths, strict=True))
        n = np.cross(right - left, down - up)
        if not n.any():
            return np.zeros(3)
        return -np.sign(n @ point(r, c, z[r, c])) * n / np.linalg.norm(n)

    cells = [(r, c) for r in range(crop[0]) for c in range(crop[1]) if z[r, c] > 0]
    picked = [cells[i * len(cells) // count if len(cells) >= count else i % len(cells)] for i in range(count)]
    cloud = [[*point(r, c, z[r, c]), *color[v[r], u[c]] / 255, *normal(r, c)] for r, c in picked]
    rgb = color[np.ix_(v, u)].transpose(2, 0, 1) / 255
    return np.float32(cloud), np.float32(rgb), [r * crop[1] + c for r, c in picked]


@pytest.mark.parametrize(
    ("box", "crop", "count"),
    [
        ((12, 20, 64, 72), (40, 30), 300),
        ((-20.5, -8.25, 90, 70.75), (33, 41), 2000),
        ((60, 50, 9, 7), (20, 28), 100),
    ],
    ids=["downscaled", "over the edge", "finer than the picture"],
)
def test_points_equal_those_of_numpy(folder, model, box, crop, count):
    color, depth = scene.draw()
    generator = np.random.default_rng(2)
    depth += generator.normal(scale=5e-4, size=depth.shape)
    depth[generator.random(depth.shape) < 0.3] = 0
    depth[30:60, 30:38] = 0  # wider than what is filled
    noisy = scene.write_frame(folder, color, depth, "noisy")
    place = ["--object", "block", "--box", ",".join(map(str, box)), "--crop", f"{crop[0]}x{crop[1]}"]
    opbridge(model, *noisy, *place, "--points", count, "--save-inputs", folder / "in.npz")
    got = np.load(folder / "in.npz")
    cloud, rgb, choose = points_slowly(color, depth, box, crop, count, 0.2, 1.0)
    assert got["choose"].tolist() == [[choose]]
    np.testing.assert_array_equal(got["rgb"], rgb[None])
    np.testing.assert_allclose(got["pointcloud"], cloud[None], rtol=0, atol=3e-7)
    known = np.linalg.norm(cloud[:, 6:], axis=1)
    assert 0.1 < (known > 0).mean() < 1, "normals that are known, and some that are not"


def test_kinds_of_png(folder, model, frame):
    """Palette, grey and RGBA colour: the crop is what Pillow sees."""
    picture = Image.fromarray(scene.draw()[0])
    for mode in ("RGB", "RGBA", "P", "L", "1", "LA"):
        converted = picture.convert(mode)
        converted.save(folder / "kind.png", interlace=1)
        kind = ["--color", folder / "kind.png", *frame[2:], "--crop", "120x160", "--object", "block"]
        opbridge(model, *kind, "--save-inputs", folder / "kind.npz")
        expected = np.asarray(converted.convert("RGB")).transpose(2, 0, 1) / np.float32(255)
        np.testing.assert_array_equal(np.load(folder / "kind.npz")["rgb"][0], expected, err_msg=mode)


# -------------------------------------------------------------------------------------------------------- bad input


def fails(message, *arguments):
    text = opbridge(*arguments, code=1)
    assert message in text
    assert text.count("\n") <= 3, "a message, not a dump"


def test_wrong_pictures(folder, model, frame):
    color, depth = frame[1], frame[3]
    camera = ["--camera", "150,152,80.5,58.25", "--depth-scale", scene.SCALE]
    Image.open(depth).resize((80, 60), 0).save(folder / "small.png")
    Image.fromarray((np.asarray(Image.open(depth)) // 256).astype(np.uint8)).save(folder / "8bit.png")
    (folder / "cut.png").write_bytes(color.read_bytes()[:2000])
    (folder / "text.png").write_text("no picture")
    fails("depth is 80 x 60, the colour 160 x 120: they must be registered",
          model, "--color", color, "--depth", folder / "small.png", *camera)  # fmt: skip
    fails(
        "depth is u8; it must be u16 or f32", model, "--color", color, "--depth", folder / "8bit.png", *camera
    )
    fails(
        "the depth is u8[120,160,3]; it must be 16-bit grey",
        model,
        "--color",
        color,
        "--depth",
        color,
        *camera,
    )
    fails(
        "the colour is u16[120,160,1]; it must be 8-bit", model, "--color", depth, "--depth", depth, *camera
    )
    fails("cut.png' is a PNG file that cannot be read: the file is cut off",
          model, "--color", folder / "cut.png", "--depth", depth, *camera)  # fmt: skip
    fails("text.png' is not a PNG file", model, "--color", folder / "text.png", "--depth", depth, *camera)
    fails("No such file", model, "--color", folder / "none.png", "--depth", depth, *camera)


def test_wrong_cameras(folder, model, frame):
    pictures = frame[:4]
    for camera, message in {
        "0,152,80,60": "fx = 0 and fy = 152; focal lengths are positive numbers of pixels",
        "150,-152,80,60": "fy = -152",
        "nan,152,80,60": "fx = nan",
        "0.94,1.27,0.5,0.49": "focal lengths are in pixels of this picture, not in metres or picture widths",
        "150,152,1920,1080": "the principal point (1920, 1080) is far outside the picture of 160 x 120",
        "150,152,80": "--camera '150,152,80' is neither FX,FY,CX,CY in pixels nor a file",
        "none.json": "'none.json' cannot be opened",
    }.items():
        fails(message, model, *pictures, "--camera", camera, "--depth-scale", scene.SCALE)
    other = folder / "other.json"
    other.write_text(json.dumps(scene.CAMERA | {"width": 640, "height": 480}))
    fails(
        "the intrinsics are of pictures of 640 x 480, the frame has 160 x 120",
        model,
        *pictures,
        "--camera",
        other,
    )
    other.write_text('{"fx": 150}')
    fails("key 'fy' not found", model, *pictures, "--camera", other)
    fails("its median is 24000 m with the scale 1. Depth / scale must be metres: 1000 for millimetres, 1 for metres",
          model, *frame, "--depth-scale", 1)  # fmt: skip


def test_wrong_requests(model, frame):
    fails("the model knows no object 'blocks'; did you mean 'block'?; it knows block and slab",
          model, *frame, "--object", "blocks")  # fmt: skip
    fails("the box of 'slab' (x 160, y 0, width 10, height 10) is outside the picture of 160 x 120",
          model, *frame, "--object", "slab", "--box", "160,0,10,10")  # fmt: skip


def test_wrong_models(folder, frame):
    clip = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Abs(x) }'
    )
    onnx.save(clip, folder / "abs.onnx")
    fails("has no metadata 'opbridge.pvn3d', which names the objects, their keypoints, the crop and the points. It has "
          "the inputs x and the outputs y", folder / "abs.onnx", *frame)  # fmt: skip
    network = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] kp_of, float[n] seg, float[n] ctr_of) '
        "{ kp_of = Abs(x) seg = Abs(x) ctr_of = Abs(x) }"
    )
    onnx.save(network, folder / "network.onnx")
    fails("is the network alone (outputs kp_of, seg and ctr_of); the estimator needs the model with the pose solver",
          folder / "network.onnx", *frame)  # fmt: skip
    old = {"opbridge.fingerprint.pvn3d.custom_ops::PVN3DPoseSolve": "0123456789abcdef"}
    fails("PVN3DPoseSolve: its declaration has changed since the model was exported (fingerprint 0123456789abcdef",
          scene.model(folder / "old.onnx", more=old), *frame)  # fmt: skip
    fixed = scene.model(folder / "fixed.onnx", points=1024)
    check(found(fixed, *frame, *BOTH)[0], "block")
    fails("input 'pointcloud' must be f32[B,99,9], it is f32[B,1024,9]", fixed, *frame, "--points", 99)


def test_wrong_command_lines(model, frame):
    for arguments, message in {
        (): "--color, --depth and --camera, or --frames, is required",
        tuple(frame[:2]): "--color requires --depth",
        (*frame, "--box", "1,2,3"): "'1,2,3' is not X,Y,WIDTH,HEIGHT in pixels",
        (*frame, "--crop", "60"): "'60' is not ROWSxCOLUMNS",
        (*frame, "--frames", "f.json"): "excludes",
    }.items():
        assert message in opbridge(model, *arguments, code=2)


# --------------------------------------------------------------------------------------------------------- programs


@pytest.mark.timeout(600)
def test_program_from_an_installation(tmp_path, model):
    """examples/pvn3d/test_cpp_infer.cpp, built by a stranger against what was installed."""
    prefix = install(tmp_path)
    example = tmp_path / "example"
    example.mkdir()
    for name in "CMakeLists.txt", "test_cpp_infer.cpp":
        shutil.copy(ROOT / "examples/pvn3d" / name, example)
    run("cmake", "-B", "build", f"-DCMAKE_PREFIX_PATH={prefix}", cwd=example)
    run("cmake", "--build", "build", cwd=example)
    needed = run("readelf", "-dW", "build/test_cpp_infer", cwd=example)
    assert "png" not in needed
    assert "libz" not in needed

    color, depth = scene.draw()
    Image.fromarray(color).save(example / "c.png")
    Image.fromarray(np.round(depth * 1000).astype(np.uint16)).save(example / "d.png")
    program = [
        "build/test_cpp_infer",
        model,
        prefix / "lib/libpvn3d_custom_op.so",
        "c.png",
        "d.png",
        *scene.CAMERA.values(),
    ]
    env = environment(**runtime())
    text = run(*program, "block", *scene.BOXES["block"], cwd=example, env=env)
    assert text.startswith("block: found, 1024 of ")
    rows = np.array([[float(x) for x in line.replace("R", " ").replace("t", " ").rstrip(" m").split()]
                     for line in text.splitlines()[1:]])  # fmt: skip
    r, t = scene.POSES["block"]
    np.testing.assert_allclose(rows[:, :3], r, atol=0.01)
    np.testing.assert_allclose(rows[:, 3], t, atol=5e-4)
    assert "error: the model knows no object 'x'" in run(*program, "x", cwd=example, env=env, code=1)
    assert "usage: test_cpp_infer" in run(*program, cwd=example, env=env, code=2)


def test_code_of_the_page_is_the_programs():
    program = (ROOT / "examples/pvn3d/test_cpp_infer.cpp").read_text()
    blocks = re.findall(r"```cpp\n(.*?)```", (ROOT / "docs/pvn3d.md").read_text(), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        assert block in program
