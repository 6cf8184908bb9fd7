"""`opbridge keypoints`: what it picks from a mesh, and what it says about files that are none."""

import itertools
import json
import subprocess

import numpy as np
import pytest
from conftest import BUILD


def opbridge(*arguments, code=0):
    """Runs `opbridge keypoints`; returns stdout and stderr."""
    command = [BUILD / "bin/opbridge", "keypoints", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


def described(*arguments):
    return json.loads(opbridge(*arguments, "--json", "-")[0])


def cloud(n=500, seed=0, size=(0.1, 0.06, 0.2)):
    """Points on an ellipsoid, away from the origin."""
    p = np.random.default_rng(seed).normal(size=(n, 3))
    return (p / np.linalg.norm(p, axis=1, keepdims=True) * size + [0.02, -0.01, 0.3]).astype(np.float32)


def ply(path, vertices, kind="ascii", dtype="f4", newline="\n"):
    """With a property before, between and after x, y and z, elements before and after the vertices, and comments."""
    types = {"f4": "float", "f8": "double"}
    header = [
        "ply", f"format {kind} 1.0", "comment a mesh", "element material 2", "property list uchar short codes",
        f"element vertex {len(vertices)}", "property uchar red",
        f"property {types[dtype]} x", f"property {types[dtype]} y",
        "property list uint8 uint16 more", f"property {types[dtype]} z", "property int32 id", "element face 1",
        "property list uchar int vertex_indices", "end_header",
    ]  # fmt: skip
    data = newline.join(header).encode() + newline.encode()
    order = ">" if "big" in kind else "<"
    if kind == "ascii":
        lines = ["0", "2 7 8"]
        lines += [
            f"200 {x!r} {y!r} 1 5 {z!r} {i}" for i, (x, y, z) in enumerate(vertices.astype(float).tolist())
        ]
        data += newline.join([*lines, "3 0 1 2"]).encode() + newline.encode()
    else:
        number = lambda v, t: np.array(v, order + t).tobytes()
        data += b"\0" + b"\2" + number([7, 8], "i2")
        for i, (x, y, z) in enumerate(vertices):
            data += (
                b"\xc8" + number([x, y], dtype) + b"\1" + number(5, "u2") + number(z, dtype) + number(i, "i4")
            )
        data += b"\3" + number([0, 1, 2], "i4")
    path.write_bytes(data)
    return path


def farthest(vertices, count):
    v = vertices.astype(np.float64)
    best = ((v - (v.min(0) + v.max(0)) / 2) ** 2).sum(1)
    picked = []
    for _ in range(count):
        picked.append(int(best.argmax()))
        best = np.minimum(best, ((v - v[picked[-1]]) ** 2).sum(1))
    return v[picked]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("kind", ["ascii", "binary_little_endian", "binary_big_endian"])
def test_kinds_of_ply(tmp_path, kind, dtype, newline):
    v = cloud()
    mesh = described(ply(tmp_path / "mug.ply", v, kind, dtype, newline))
    assert mesh["name"] == "mug"
    assert mesh["symmetric"] is False
    np.testing.assert_array_equal(mesh["keypoints"], farthest(v, 8))
    v = v.astype(np.float64)
    low, high = v.min(0), v.max(0)
    np.testing.assert_allclose(mesh["center"], np.mean(mesh["corners"], 0), atol=1e-15)
    np.testing.assert_allclose(mesh["center"], (low + high) / 2, atol=1e-15)
    assert sorted(map(tuple, mesh["corners"])) == sorted(itertools.product(*zip(low, high, strict=True)))
    assert abs(mesh["radius"] - np.linalg.norm(high - low) / 2) < 1e-15
    assert abs(mesh["diameter"] - np.linalg.norm(v[:, None] - v[None], axis=-1).max()) < 1e-15


def test_count_scale_name_and_file(tmp_path):
    mesh = ply(tmp_path / "m.ply", 1000 * cloud())
    out, err = opbridge(
        mesh, "--count", 3, "--scale", 0.001, "--name", "cup", "--json", tmp_path / "cup.json"
    )
    assert err == ""
    assert "cup: 500 vertices" in out
    assert "keypoint 2" in out
    assert "keypoint 3" not in out
    saved = json.loads((tmp_path / "cup.json").read_text())
    assert saved["name"] == "cup"
    np.testing.assert_allclose(saved["keypoints"], farthest(1000 * cloud(), 3) / 1000)


def test_symmetric_objects(tmp_path):
    v = cloud(n=4000, size=(0.04, 0.04, 0.1))
    mesh = ply(tmp_path / "bottle.ply", v)
    bottle = described(mesh, "--symmetric-axis", "z")
    assert bottle["symmetric"] is True
    k = np.array(bottle["keypoints"])
    np.testing.assert_allclose(k[:, :2], np.tile(bottle["center"][:2], (8, 1)))
    np.testing.assert_allclose(k[:, 2], np.linspace(v[:, 2].min(), v[:, 2].max(), 8), atol=1e-9)
    assert opbridge(mesh, "--symmetric-axis", "z")[1] == ""
    assert (
        "it does not look the same however it is turned about it"
        in opbridge(mesh, "--symmetric-axis", "x")[1]
    )


def test_a_mesh_of_many_vertices_is_quick(tmp_path):
    """A sphere, where no pair of vertices is far from the largest: all pairs would be 10^10 distances."""
    v = np.random.default_rng(3).normal(size=(100_000, 3))
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    mesh = described(ply(tmp_path / "ball.ply", v, "binary_little_endian", "f8"))
    assert 1.999 < mesh["diameter"] <= 2


def test_units(tmp_path):
    _, err = opbridge(ply(tmp_path / "mm.ply", 1000 * cloud()))
    assert "warning: a diameter of " in err
    assert "if the mesh is in millimetres, pass --scale 0.001" in err
    assert "is --scale right?" in opbridge(ply(tmp_path / "m.ply", cloud()), "--scale", 0.001)[1]


TRIANGLE = "ply\nformat ascii 1.0\nelement vertex 3\nproperty float x\nproperty float y\nproperty float z\nend_header\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("solid box\n", "is not a PLY file: its first line is not 'ply'"),
        ("", "is not a PLY file"),
        ("ply\nformat ascii 1.0\n", "is not a PLY file, or is cut off in its header"),
        (TRIANGLE.replace("ascii", "binary_middle_endian"), "has the format 'binary_middle_endian'"),
        (TRIANGLE.replace("format ascii 1.0\n", ""), "has no line 'format'"),
        (TRIANGLE.replace("vertex 3", "vertex 0"), "has no vertices"),
        (
            TRIANGLE.replace("vertex 3", "vertex -3"),
            "has a malformed line in its header: 'element vertex -3'",
        ),
        (TRIANGLE.replace("element vertex", "element point"), "cut off at point 0 of 3"),
        (TRIANGLE.replace("vertex 3", "point 1") + "0 0 0\n", "declares no element 'vertex'"),
        (TRIANGLE.replace("float z", "float w"), "has vertices without the property 'z'"),
        (TRIANGLE.replace("float z", "half z"), "a property of the unknown type 'half'"),
        (
            TRIANGLE.replace("end_header", "endheader\nend_header"),
            "an unknown line in its header: 'endheader'",
        ),
        (TRIANGLE + "0 0 0\n1 0 0\n", "is cut off at vertex 2 of 3"),
        (TRIANGLE + "0 0 0\n1 0 one\n", "has 'one' where a number is needed, at vertex 1 of 3"),
        (
            TRIANGLE + "0 0 0\n1 nan 0\n0 1 0\n",
            "has a vertex that is not finite: vertex 1 of 3 is (1, nan, 0)",
        ),
        (TRIANGLE + "0 0 0\n1 0 0\n0 inf 0\n", "vertex 2 of 3 is (0, inf, 0)"),
        (
            TRIANGLE.replace("vertex 3", "vertex 4000000000") + "0 0 0\n",
            "is cut off at vertex 1 of 4000000000",
        ),
        (
            TRIANGLE + "0 0 0\n1 0 0\n0 1 0\n",
            "has 3 different vertices away from its centre; 8 keypoints were asked for",
        ),
    ],
)
def test_what_is_wrong_with_a_mesh(tmp_path, text, message):
    (tmp_path / "m.ply").write_text(text)
    assert message in opbridge(tmp_path / "m.ply", code=1)[1]


def test_wrong_command_lines(tmp_path):
    mesh = ply(tmp_path / "m.ply", cloud())
    assert "No such file" in opbridge(tmp_path / "none.ply", code=1)[1]
    for wrong in (["--count", 0], ["--scale", -1], ["--symmetric-axis", "w"]):
        assert "Run with --help" in opbridge(mesh, *wrong, code=2)[1]
    assert "cannot be written" in opbridge(mesh, "--json", tmp_path / "no/m.json", code=1)[1]
