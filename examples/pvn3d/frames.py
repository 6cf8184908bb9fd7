"""From colour, depth and camera to a network's inputs, in NumPy: what opbridge::make_points does in C++.

The camera's frame: metres, x right, y down, z forward; pixel centres are at integers. A crop is H x W cells laid over
a box (x, y, width, height) of the picture; each takes its nearest source pixel. Functions work on one picture or on
many, with leading dimensions "...". Arithmetic is float64, rounded to float32 once.
"""

import json
from pathlib import Path

import numpy as np

FRAMES = Path(__file__).parent / "frames"
CROP = 80, 80  # cells, H x W
POINTS = 1024
MIN_DEPTH, MAX_DEPTH = 0.2, 2.5  # [m]
FILL = 4  # cells
JUMP = 0.05  # [m]


def source_pixels(start, size, count, limit):
    """The pixel (row or column) of each of `count` cells of a box from `start` that is `size` long, clamped to
    0..limit - 1."""
    at = np.floor(start + (np.arange(count) + 0.5) * size / count)
    return np.clip(at, 0, limit - 1).astype(np.int64)


def measured_depth(raw, depth_scale=1000.0, min_depth=MIN_DEPTH, max_depth=MAX_DEPTH):
    """Metres; NaN where nothing was measured."""
    z = raw.astype(np.float64) / depth_scale
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(z) & (z > 0) & (z >= min_depth) & (z <= max_depth), z, np.nan)


def shifted(values, rows, columns):
    """values (..., h, w) at (r + rows, c + columns); NaN outside."""
    out = np.full_like(values, np.nan)
    h, w = values.shape[-2:]
    to_r, to_c = slice(max(-rows, 0), h - max(rows, 0)), slice(max(-columns, 0), w - max(columns, 0))
    from_r, from_c = slice(max(rows, 0), h + min(rows, 0)), slice(max(columns, 0), w + min(columns, 0))
    out[..., to_r, to_c] = values[..., from_r, from_c]
    return out


def fill_depth(z):
    """Missing cells (NaN) of (..., h, w) from the nearest measured one within FILL cells of their row (left first),
    else of their column (up first)."""
    filled = z.copy()
    steps = [(0, side * d) for d in range(1, FILL + 1) for side in (-1, 1)]
    for rows, columns in steps + [(c, r) for r, c in steps]:
        filled = np.where(np.isnan(filled), shifted(z, rows, columns), filled)
    return filled


def back_project(z, u, v, camera):
    """Points (..., h, w, 3) [m] of depths (..., h, w) at source pixels u (..., w), v (..., h)."""
    x = (u[..., None, :] - camera["cx"]) * z / camera["fx"]
    y = (v[..., :, None] - camera["cy"]) * z / camera["fy"]
    return np.stack([x, y, z], -1)


def normals(points):
    """Unit normals (..., h, w, 3) towards the camera of points (NaN where missing) by differences of neighbours; zero
    at the border, beside missing points, and beside jumps of depth."""
    x, y, z = np.moveaxis(points, -1, 0)
    usable = np.ones(z.shape, bool)
    axes = []
    for rows, columns in ((0, 1), (1, 0)):
        difference = []
        for values in (x, y, z):
            after, before = shifted(values, rows, columns), shifted(values, -rows, -columns)
            difference.append(after - before)
        for side in (1, -1):
            with np.errstate(invalid="ignore"):
                usable &= np.abs(shifted(z, side * rows, side * columns) - z) <= JUMP
        axes.append(difference)
    (ax, ay, az), (bx, by, bz) = axes
    cross = np.stack([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx], -1)
    length = np.sqrt((cross * cross).sum(-1))
    usable &= length > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        unit = cross / length[..., None]
        unit = np.where(((unit * points).sum(-1) > 0)[..., None], -unit, unit)
    return np.where(usable[..., None], unit, 0.0)


def choose_cells(valid, count):
    """Indices (count) of cells, evenly from the row-major list of valid ones (h, w); None where there are none."""
    cells = np.flatnonzero(valid)
    if len(cells) == 0:
        return None
    i = np.arange(count)
    return cells[i * len(cells) // count if len(cells) >= count else i % len(cells)]


def make_points(
    color, depth, camera, box=None, crop=CROP, points=POINTS, min_depth=MIN_DEPTH, max_depth=MAX_DEPTH
):
    """A network's inputs: color (h, w, 3) u8, depth (h, w), camera {fx, fy, cx, cy, depth_scale}, box (x, y, width,
    height) or the whole picture -> pointcloud (points, 9) f32, rgb (3, H, W) f32, choose (1, points) i64; None where
    the box has no depth."""
    image_h, image_w = depth.shape
    x, y, width, height = box or (0, 0, image_w, image_h)
    v, u = source_pixels(y, height, crop[0], image_h), source_pixels(x, width, crop[1], image_w)
    pixels = np.ix_(v, u)
    z = measured_depth(depth[pixels], camera.get("depth_scale", 1000.0), min_depth, max_depth)
    choose = choose_cells(~np.isnan(z), points)
    if choose is None:
        return None
    rgb = color[pixels].astype(np.float32) / np.float32(255)
    normal = normals(back_project(fill_depth(z), u, v, camera)).reshape(-1, 3)[choose]
    xyz = back_project(z, u, v, camera).reshape(-1, 3)[choose]
    cloud = np.concatenate([xyz, rgb.reshape(-1, 3)[choose], normal], 1).astype(np.float32)
    return cloud, np.ascontiguousarray(rgb.transpose(2, 0, 1)), choose[None]


def load_frames(folder=FRAMES):
    """Camera and frames of frames.json, with pictures read: each a dict with color, depth,
    color_file, objects and absent."""
    from PIL import Image  # only here: whoever has the pictures in memory needs no Pillow

    folder = Path(folder)
    scene = json.loads((folder / "frames.json").read_text())
    frames = []
    for frame in scene["frames"]:
        pictures = {name: np.asarray(Image.open(folder / frame[name])) for name in ("color", "depth")}
        frames.append(frame | pictures | {"color_file": frame["color"]})
    return scene["camera"], frames
