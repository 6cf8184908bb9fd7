"""The four objects of the example: their shapes, made here, and what a pose needs to know of each.

  python examples/pvn3d/objects.py    writes meshes/*.ply and meshes/objects.json

An object's frame: metres, z up, standing on z = 0. Class 0 is the background, object m has class m + 1.
"""

import itertools
import json
from pathlib import Path

import numpy as np

MESHES = Path(__file__).parent / "meshes"
NAMES = ("drill", "truck", "can", "bottle")
SYMMETRIC = ("bottle",)  # about its z axis
KEYPOINTS = 8


def box(size, centre):
    """Vertices (24, 3) and triangles (12, 3) of a box; each side has its own vertices, so that its edges are sharp."""
    corners = np.array(list(itertools.product((-0.5, 0.5), repeat=3))) * size + centre
    sides = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    faces = [f for i in range(0, 24, 4) for f in ((i, i + 1, i + 2), (i, i + 2, i + 3))]
    return corners[np.ravel(sides)], np.array(faces)


def tube(start, end, start_radius, end_radius, segments=20):
    """A closed cone frustum between two points."""
    start, end = np.array(start, float), np.array(end, float)
    axis = (end - start) / np.linalg.norm(end - start)
    side = np.cross(axis, [0, 1, 0] if abs(axis[1]) < 0.9 else [1, 0, 0])
    side /= np.linalg.norm(side)
    angle = np.arange(segments) * 2 * np.pi / segments
    ring = np.outer(np.cos(angle), side) + np.outer(np.sin(angle), np.cross(axis, side))
    low, high = start + ring * start_radius, end + ring * end_radius
    # The wall and the two lids do not share vertices.
    vertices = np.concatenate([low, high, low, [start], high, [end]])
    n, faces = segments, []
    for i in range(n):
        j = (i + 1) % n
        faces += [(i, j, n + j), (i, n + j, n + i), (2 * n + j, 2 * n + i, 3 * n)]
        faces += [(3 * n + 1 + i, 3 * n + 1 + j, 4 * n + 1)]
    return vertices, np.array(faces)


def merge(*pieces):
    counts = np.cumsum([0] + [len(vertices) for vertices, _ in pieces])
    faces = [faces + count for (_, faces), count in zip(pieces, counts[:-1], strict=True)]
    return np.concatenate([vertices for vertices, _ in pieces]), np.concatenate(faces)


def parts(name):
    """[(colour (3) u8, vertices (V, 3), triangles (F, 3))]: one piece for each colour."""
    if name == "drill":
        return [
            ((235, 190, 30), *tube((-0.07, 0, 0.175), (0.07, 0, 0.175), 0.032, 0.032)),
            ((205, 40, 40), *tube((0.07, 0, 0.175), (0.135, 0, 0.175), 0.024, 0.010)),
            ((55, 55, 65), *box((0.045, 0.036, 0.12), (-0.035, 0, 0.09))),
            ((30, 150, 150), *box((0.10, 0.06, 0.032), (-0.02, 0, 0.016))),
        ]
    if name == "truck":
        wheels = [
            tube((x, y - 0.01, 0.024), (x, y + 0.01, 0.024), 0.024, 0.024)
            for x in (-0.075, 0.07)
            for y in (-0.05, 0.05)
        ]
        return [
            ((40, 55, 150), *box((0.22, 0.08, 0.03), (0, 0, 0.04))),
            ((215, 50, 45), *box((0.06, 0.09, 0.075), (0.075, 0, 0.0925))),
            ((225, 225, 210), *box((0.13, 0.09, 0.045), (-0.04, 0, 0.0775))),
            ((35, 35, 35), *merge(*wheels)),
        ]
    if name == "can":
        handle = [
            box((0.02, 0.018, 0.09), (-0.10, 0, 0.075)),
            box((0.06, 0.018, 0.018), (-0.08, 0, 0.125)),
            box((0.06, 0.018, 0.018), (-0.08, 0, 0.03)),
        ]
        return [
            ((70, 175, 75), *box((0.06, 0.09, 0.14), (0.03, 0, 0.07))),
            ((215, 110, 170), *box((0.06, 0.09, 0.14), (-0.03, 0, 0.07))),
            ((70, 200, 220), *tube((0.055, 0, 0.04), (0.145, 0, 0.17), 0.012, 0.015, 14)),
            ((140, 90, 50), *merge(*handle)),
        ]
    if name == "bottle":
        return [
            ((40, 85, 200), *merge(tube((0, 0, 0), (0, 0, 0.05), 0.038, 0.038),
                                   tube((0, 0, 0.11), (0, 0, 0.15), 0.038, 0.038),
                                   tube((0, 0, 0.15), (0, 0, 0.20), 0.038, 0.014))),
            ((240, 240, 235), *tube((0, 0, 0.05), (0, 0, 0.11), 0.0385, 0.0385)),
            ((240, 130, 30), *tube((0, 0, 0.20), (0, 0, 0.235), 0.018, 0.018)),
        ]  # fmt: skip
    raise ValueError(f"no object '{name}': there are {', '.join(NAMES)}")


def farthest_vertices(vertices, count):
    """FPS as the datasets' tools do it: the first is the vertex farthest from the bounding box's centre, and that
    distance stays in the running minimum. Ties: the lowest index."""
    best = ((vertices - (vertices.min(0) + vertices.max(0)) / 2) ** 2).sum(1)
    chosen = []
    for _ in range(count):
        chosen.append(int(best.argmax()))
        best = np.minimum(best, ((vertices - vertices[chosen[-1]]) ** 2).sum(1))
    return vertices[chosen]


def mesh(name):
    """Vertices (V, 3), triangles (F, 3) and vertex colours (V, 3) of a whole object."""
    pieces = parts(name)
    vertices, faces = merge(*[(v, f) for _, v, f in pieces])
    return vertices, faces, np.concatenate([np.tile(np.uint8(c), (len(v), 1)) for c, v, _ in pieces])


def surface_points(name, count=1000, seed=0):
    """Points (count, 3) evenly over the surface, for ADD."""
    vertices, faces, _ = mesh(name)
    random = np.random.default_rng(seed)
    a, b, c = vertices[faces].transpose(1, 0, 2)
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1)
    i = random.choice(len(faces), count, p=area / area.sum())
    u, v = random.random((2, count, 1))
    u, v = np.where(u + v > 1, 1 - u, u), np.where(u + v > 1, 1 - v, v)
    return a[i] + u * (b - a)[i] + v * (c - a)[i]


def describe(name):
    """What the model file says about an object (docs/pvn3d.md)."""
    vertices, _, _ = mesh(name)
    vertices = np.round(vertices, 6)  # as the .ply has them
    low, high = vertices.min(0), vertices.max(0)
    if name in SYMMETRIC:
        # Any turn about the axis looks the same, so only points on the axis have one place.
        keypoints = np.linspace([0, 0, low[2]], [0, 0, high[2]], KEYPOINTS)
    else:
        keypoints = farthest_vertices(vertices, KEYPOINTS)
    corners = np.array(list(itertools.product(*zip(low, high, strict=True))))
    diameter = np.linalg.norm(vertices[:, None] - vertices, axis=-1).max()
    return {
        "name": name,
        "keypoints": np.round(keypoints, 6).tolist(),
        "center": np.round(corners.mean(0), 6).tolist(),
        "radius": round(float(np.linalg.norm(high - low)) / 2, 6),
        "diameter": round(float(diameter), 6),
        "corners": np.round(corners, 6).tolist(),
        "symmetric": name in SYMMETRIC,
    }


def load_objects():
    return json.loads((MESHES / "objects.json").read_text())


def write_ply(path, vertices, faces, colours):
    lines = ["ply", "format ascii 1.0", f"element vertex {len(vertices)}"]
    lines += [f"property float {axis}" for axis in "xyz"]
    lines += [f"property uchar {colour}" for colour in ("red", "green", "blue")]
    lines += [f"element face {len(faces)}", "property list uchar int vertex_indices", "end_header"]
    lines += [
        "{:.6g} {:.6g} {:.6g} {} {} {}".format(*np.round(v, 6) + 0.0, *c)
        for v, c in zip(vertices, colours, strict=True)
    ]
    lines += ["3 {} {} {}".format(*face) for face in faces]
    path.write_text("\n".join(lines) + "\n")


def main():
    MESHES.mkdir(exist_ok=True)
    for name in NAMES:
        write_ply(MESHES / f"{name}.ply", *mesh(name))
    text = json.dumps([describe(name) for name in NAMES], indent=1)
    (MESHES / "objects.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
