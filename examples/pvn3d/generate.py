"""Renders RGB-D scenes of the four objects with PyBullet's software renderer (requirements/train.txt).

  python examples/pvn3d/generate.py crops FOLDER --count 15000 --seed 1   training data, one process; run several
  python examples/pvn3d/generate.py frames FOLDER --count 28 --seed 900   whole frames, as in examples/pvn3d/frames/

Scenes: 2 to 4 of the objects on a table, tilted up to 15 degrees out of standing, any yaw; 3 to 9 distractors that
occlude them; the camera 0.75 to 1.1 m away, 25 to 80 degrees above the table, rolled up to 8 degrees. Depth has 1 to
2.5 mm of noise, partly smooth, millimetre steps, missing pixels at edges, and holes.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import pybullet
from crops import CAMERA, MARGIN, REGION
from frames import back_project, fill_depth, measured_depth, normals
from objects import NAMES, mesh, parts
from PIL import Image, ImageDraw
from rich.progress import track

WIDTH, HEIGHT, FOCAL = 640, 480, CAMERA["fx"]  # the renderer's principal point is (WIDTH / 2, HEIGHT / 2 - 1)
NEAR, FAR = 0.1, 20.0
TILT, ROLL = 15.0, 8.0  # [deg]
ELEVATION = 25.0, 80.0  # [deg]
DISTANCE = 0.75, 1.1  # [m]
FLOOR = -0.7  # [m]
AWAY = [0.0, 0.0, -1000.0]
MIN_VISIBLE = 0.2
OCCLUDERS = 0.5  # share of the distractors that are held between an object and the camera


def rotation_about(axis, angle):
    """Rodrigues' formula; angle [rad]."""
    x, y, z = np.asarray(axis) / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def quaternion(rotation):
    """x, y, z, w of a rotation matrix: the eigenvector of Bar-Itzhack's matrix."""
    r = rotation
    k = np.array([
        [r[0, 0] - r[1, 1] - r[2, 2], r[1, 0] + r[0, 1], r[2, 0] + r[0, 2], r[2, 1] - r[1, 2]],
        [r[1, 0] + r[0, 1], r[1, 1] - r[0, 0] - r[2, 2], r[2, 1] + r[1, 2], r[0, 2] - r[2, 0]],
        [r[2, 0] + r[0, 2], r[2, 1] + r[1, 2], r[2, 2] - r[0, 0] - r[1, 1], r[1, 0] - r[0, 1]],
        [r[2, 1] - r[1, 2], r[0, 2] - r[2, 0], r[1, 0] - r[0, 1], r[0, 0] + r[1, 1] + r[2, 2]],
    ])  # fmt: skip
    return np.linalg.eigh(k)[1][:, -1]


class Renderer:
    """PyBullet with the four objects and a pool of distractors, one scene at a time."""

    def __init__(self, random, occluders=OCCLUDERS):
        self.random, self.occluders = random, occluders
        self.client = pybullet.connect(pybullet.DIRECT)
        self.bodies = []  # for each object the bodies of its parts: a body has one colour
        self.classes = {}  # body -> class
        for m, name in enumerate(NAMES):
            self.bodies.append([self._body(v, f, colour) for colour, v, f in parts(name)])
            self.classes |= dict.fromkeys(self.bodies[-1], m + 1)
        self.meshes = [mesh(name)[:2] for name in NAMES]
        self.pool = [self._distractor() for _ in range(36)]
        fov = np.degrees(2 * np.arctan(HEIGHT / 2 / FOCAL))
        self.projection = pybullet.computeProjectionMatrixFOV(fov, WIDTH / HEIGHT, NEAR, FAR)
        u, v = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
        x, y = (u - CAMERA["cx"]) / CAMERA["fx"], (v - CAMERA["cy"]) / CAMERA["fy"]
        self.rays = np.stack([x, y, np.ones_like(x)], -1).astype(np.float32)

    def _body(self, vertices, faces, colour):
        visual = pybullet.createVisualShape(
            pybullet.GEOM_MESH,
            vertices=vertices.tolist(),
            indices=faces.ravel().tolist(),
            normals=vertex_normals(vertices, faces).tolist(),
            rgbaColor=[*(np.array(colour) / 255), 1],
        )
        return pybullet.createMultiBody(baseVisualShapeIndex=visual, basePosition=AWAY)

    def _distractor(self):
        """Body, radius and height of a random box, cylinder or ball that stands on z = 0."""
        random = self.random
        kind = random.integers(3)
        radius, height = random.uniform(0.015, 0.07), random.uniform(0.03, 0.26)
        kwargs = {}
        if kind == 0:
            half = [radius * random.uniform(0.4, 1), radius, height / 2]
            kwargs = {"shapeType": pybullet.GEOM_BOX, "halfExtents": half}
        elif kind == 1:
            kwargs = {"shapeType": pybullet.GEOM_CYLINDER, "radius": radius, "length": height}
        else:
            kwargs = {"shapeType": pybullet.GEOM_SPHERE, "radius": radius}
            height = 2 * radius
        visual = pybullet.createVisualShape(**kwargs)
        body = pybullet.createMultiBody(baseVisualShapeIndex=visual, basePosition=AWAY)
        return body, radius, height

    def _arrange(self, camera):
        """Poses T_table_object {class: (R, t)} of a few objects, and the distractors around and before them; camera
        (3): its place."""
        random, poses, taken = self.random, {}, []
        for body in self.classes:
            pybullet.resetBasePositionAndOrientation(body, AWAY, [0, 0, 0, 1])
        for body, _, _ in self.pool:
            pybullet.resetBasePositionAndOrientation(body, AWAY, [0, 0, 0, 1])
        for m in random.permutation(len(NAMES))[: random.integers(2, len(NAMES) + 1)]:
            angle = random.uniform(0, 2 * np.pi)
            rotation = rotation_about([np.cos(angle), np.sin(angle), 0], np.radians(random.uniform(0, TILT)))
            rotation = rotation @ rotation_about([0, 0, 1], random.uniform(0, 2 * np.pi))
            vertices = self.meshes[m][0] @ rotation.T
            centre = (vertices.min(0) + vertices.max(0))[:2] / 2
            radius = np.linalg.norm(vertices[:, :2] - centre, axis=1).max()
            spot = self._free(taken, radius, 0.32, 0.85)
            if spot is None:
                continue
            taken.append((spot, radius))
            poses[m + 1] = rotation, np.array([*(spot - centre), -vertices[:, 2].min()])
            for body in self.bodies[m]:
                pybullet.resetBasePositionAndOrientation(body, poses[m + 1][1], quaternion(rotation))
        for i in random.permutation(len(self.pool))[: random.integers(3, 10)]:
            body, radius, height = self.pool[i]
            above = 0.0
            if (
                poses and random.random() < self.occluders
            ):  # held between an object and the camera, to cover some of it
                spot, size = taken[random.integers(len(poses))]
                middle = np.array([*spot, random.uniform(0, 0.15)]) + random.uniform(-0.6, 0.6, 3) * size
                middle += random.uniform(0.12, 0.35) * (camera - middle)
                spot, above = middle[:2], max(middle[2] - height / 2, 0.0)
                if any(np.linalg.norm(spot - s) < 0.6 * (radius + r) and above < 0.15 for s, r in taken):
                    continue
            else:
                spot = self._free(taken, radius, 0.42, 0.75)
                if spot is None:
                    continue
                taken.append((spot, radius))
            yaw = random.uniform(0, 2 * np.pi)
            orientation = [0, 0, np.sin(yaw / 2), np.cos(yaw / 2)]
            pybullet.resetBasePositionAndOrientation(body, [*spot, above + height / 2], orientation)
            pybullet.changeVisualShape(body, -1, rgbaColor=[*random.uniform(0.05, 1, 3), 1])
        return poses

    def _free(self, taken, radius, extent, closeness):
        for _ in range(20):
            spot = self.random.uniform(-extent, extent, 2)
            if all(np.linalg.norm(spot - s) > closeness * (radius + r) for s, r in taken):
                return spot
        return None

    def _camera(self):
        """T_camera_table: (R, t), x right, y down, z forward."""
        random = self.random
        elevation = np.radians(random.uniform(*ELEVATION))
        azimuth = random.uniform(0, 2 * np.pi)
        target = np.array([*random.uniform(-0.12, 0.12, 2), 0.06])
        out = np.array(
            [np.cos(azimuth) * np.cos(elevation), np.sin(azimuth) * np.cos(elevation), np.sin(elevation)]
        )
        position = target + random.uniform(*DISTANCE) * out
        right = np.cross([0, 0, 1], out)
        right /= np.linalg.norm(right)
        rotation = np.stack([right, -np.cross(out, right), -out])
        rotation = rotation_about([0, 0, 1], np.radians(random.uniform(-ROLL, ROLL))) @ rotation
        return rotation, -rotation @ position

    def frame(self):
        """A scene: colour (h, w, 3) u8, depth (h, w) u16 [mm], labels (h, w) u8, poses {class: (R, t)} in the camera's
        frame, visible {class: share of the object's pixels that are in the picture and not covered}."""
        random = self.random
        rotation, translation = self._camera()
        poses = self._arrange(-rotation.T @ translation)
        view = np.eye(4)
        view[:3, :3], view[:3, 3] = np.diag([1, -1, -1]) @ rotation, np.diag([1, -1, -1]) @ translation
        light = random.uniform(0.6, 1.1)
        towards = [*random.uniform(-1, 1, 2), random.uniform(0.8, 2)]
        _, _, rgba, buffer, bodies = pybullet.getCameraImage(
            WIDTH, HEIGHT, view.T.ravel().tolist(), self.projection, lightDirection=towards, shadow=0,
            lightAmbientCoeff=random.uniform(0.4, 0.7), lightDiffuseCoeff=random.uniform(0.3, 0.6),
            lightSpecularCoeff=0.05, lightColor=[light] * 3, renderer=pybullet.ER_TINY_RENDERER,
        )  # fmt: skip
        buffer = np.asarray(buffer, np.float32).reshape(HEIGHT, WIDTH)
        bodies = np.asarray(bodies, np.int32).reshape(HEIGHT, WIDTH)
        colour = np.ascontiguousarray(np.asarray(rgba, np.uint8).reshape(HEIGHT, WIDTH, 4)[..., :3])
        depth = np.float32(FAR * NEAR) / (np.float32(FAR) - np.float32(FAR - NEAR) * buffer)

        # Table and floor are planes: composed here, which is faster than rendering them.
        plane, plane_colour = self._planes(rotation, translation, light)
        behind = (bodies < 0) | (depth > plane)
        np.copyto(depth, plane, where=behind)
        colour[behind] = plane_colour[behind]
        table = np.zeros(pybullet.getNumBodies() + 1, np.uint8)  # the last is -1, the background
        for body, label in self.classes.items():
            table[body] = label
        labels = table[bodies]
        labels[behind] = 0

        poses = {m: (rotation @ r, rotation @ t + translation) for m, (r, t) in poses.items()}
        visible = {m: (labels == m).sum() / max(self._silhouette(m, *pose), 1) for m, pose in poses.items()}
        return colour, self._sensor(depth), labels, poses, visible

    def _planes(self, rotation, translation, light):
        """Depth (h, w) and colour (h, w, 3) of the table z = 0 (a rectangle) and the floor below."""
        random = self.random
        position = (-rotation.T @ translation).astype(np.float32)
        across = self.rays @ rotation.astype(np.float32)  # the rays in the table's frame
        slope = np.minimum(across[..., 2], -1e-3)  # a ray's change of height with depth
        depth = -position[2] / slope
        x, y = across[..., 0] * depth + position[0], across[..., 1] * depth + position[1]
        half = random.uniform(0.45, 0.9, 2).astype(np.float32)
        outside = (np.abs(x) > half[0]) | (np.abs(y) > half[1])
        palette = random.uniform(30, 230, (3, 3))  # two colours of the table, one of the floor
        if random.random() < 0.4:
            palette[1] = palette[0]
        angle, scale = random.uniform(0, np.pi), random.uniform(8, 60)
        along, side = np.float32(np.cos(angle) * scale), np.float32(np.sin(angle) * scale)
        a, b = along * x + side * y, along * y - side * x
        kind = random.integers(3)
        if kind == 0:  # stripes
            pattern = (a - 2 * np.floor(a / 2)) > 1
        elif kind == 1:  # checks
            pattern = ((a - 2 * np.floor(a / 2)) > 1) ^ ((b - 2 * np.floor(b / 2)) > 1)
        else:  # waves
            pattern = np.sin(a + 2 * np.sin(b * np.float32(0.4))) > 0
        pattern = pattern.astype(np.uint8)
        pattern[outside] = 2
        depth = np.where(outside, (np.float32(FLOOR) - position[2]) / slope, depth)
        return np.minimum(depth, np.float32(FAR)), np.clip(palette * light, 0, 255).astype(np.uint8)[pattern]

    def _silhouette(self, m, rotation, translation):
        """Pixels that the object would cover, were it alone and the picture without end."""
        vertices, faces = self.meshes[m - 1]
        camera = vertices @ rotation.T + translation
        pixels = (
            camera[:, :2] / camera[:, 2:] * FOCAL * 3
        )  # three times as fine, so that the outline counts little
        low = np.floor(pixels.min(0)) - 1
        size = np.ceil(pixels.max(0) - low).astype(int) + 2
        image = Image.new("1", tuple(size.tolist()))
        draw = ImageDraw.Draw(image)
        a, b, c = camera[faces].transpose(1, 0, 2)
        facing = (np.cross(b - a, c - a) * a).sum(1) < 0
        for triangle in (pixels - low)[faces[facing]].reshape(-1, 6).tolist():
            draw.polygon(triangle, fill=1)
        return np.asarray(image).sum() / 9

    def _sensor(self, depth):
        """Depth in mm as a sensor would give it: noise, missing edges, holes."""
        random = self.random
        coarse = random.standard_normal((HEIGHT // 4 + 1, WIDTH // 4 + 1), np.float32)
        coarse = 1.5 * ROWS @ coarse @ COLUMNS.T
        noise = 0.5 * random.standard_normal(depth.shape, np.float32) + 0.85 * coarse
        noisy = depth * 1000 + random.uniform(1.0, 2.5) * noise
        jump = np.zeros(depth.shape, bool)
        for axis in (0, 1):
            edge = np.abs(np.diff(depth, axis=axis)) > 0.015
            for side in (slice(1, None), slice(None, -1)):
                where = (side, slice(None)) if axis == 0 else (slice(None), side)
                jump[where] |= edge
        jump[1:] |= jump[:-1].copy()
        jump[:, 1:] |= jump[:, :-1].copy()
        missing = jump & (random.random(depth.shape, np.float32) < random.uniform(0.3, 0.9))
        missing |= random.random(depth.shape, np.float32) < random.uniform(0, 0.02)
        for _ in range(random.integers(2, 8)):
            v, u = random.integers(HEIGHT), random.integers(WIDTH)
            a, b = random.integers(4, 20, 2)
            rows, columns = np.ogrid[max(v - b, 0) : v + b, max(u - a, 0) : u + a]
            hole = ((rows - v) / b) ** 2 + ((columns - u) / a) ** 2 < 1
            missing[max(v - b, 0) : v + b, max(u - a, 0) : u + a] |= hole[
                : HEIGHT - max(v - b, 0), : WIDTH - max(u - a, 0)
            ]
        return np.where(missing, 0, np.clip(np.rint(noisy), 0, 65535)).astype(np.uint16)


def vertex_normals(vertices, faces):
    normals = np.zeros_like(vertices)
    a, b, c = vertices[faces].transpose(1, 0, 2)
    for corner in faces.T:
        np.add.at(normals, corner, np.cross(b - a, c - a))
    return normals / np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12)


def linear_interpolation(fine, coarse):
    """Matrix (fine, coarse) that interpolates between every fourth value."""
    at = np.arange(fine) / 4
    return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(coarse))).astype(np.float32)


ROWS, COLUMNS = linear_interpolation(HEIGHT, HEIGHT // 4 + 1), linear_interpolation(WIDTH, WIDTH // 4 + 1)


def visible_box(labels, m):
    """Centre (x, y) and longer side of the box around an object's visible pixels."""
    v, u = np.nonzero(labels == m)
    low, high = np.array([u.min(), v.min()]), np.array([u.max(), v.max()]) + 1
    return (low + high) / 2, float((high - low).max())


def cells(start, side, count, limit):
    """Source pixel of each of `count` cells of a box's side."""
    return np.clip(np.floor(start + (np.arange(count) + 0.5) * side / count).astype(int), 0, limit - 1)


def write_crops(folder, count, seed, shard_size, occluders):
    """Regions of REGION x REGION cells around objects, and some without any, in shards of .npy files."""
    random = np.random.default_rng(seed)
    renderer = Renderer(random, occluders)
    folder.mkdir(parents=True, exist_ok=True)
    records = {}
    shard = 0

    def keep(frame, centre, side, target):
        colour, depth, labels, poses, visible = frame
        x, y = centre - MARGIN * side / 2
        v, u = (cells(a, MARGIN * side, REGION, n) for a, n in ((y, HEIGHT), (x, WIDTH)))
        if target == 0 and labels[np.ix_(v, u)].any():
            return False
        pose = np.zeros((len(NAMES), 3, 4), np.float32)
        for m, (r, t) in poses.items():
            pose[m - 1] = np.hstack([r, t[:, None]])
        z = measured_depth(depth[np.ix_(v, u)])
        normal = normals(back_project(fill_depth(z), u, v, CAMERA))
        record = {
            "normals": np.rint(127 * normal).astype(np.int8),
            "colour": colour[np.ix_(v, u)], "depth": depth[np.ix_(v, u)], "labels": labels[np.ix_(v, u)],
            "u": u.astype(np.int16), "v": v.astype(np.int16), "pose": pose, "target": np.int64(target),
            "visible": np.float32(visible.get(target, 0)),
        }  # fmt: skip
        for name, value in record.items():
            records.setdefault(name, []).append(value)
        return True

    done = 0
    for _ in track(range(count), description="crops"):
        if done >= count:
            break
        frame = renderer.frame()
        labels = frame[2]
        for m, visible in frame[4].items():
            if visible >= MIN_VISIBLE and (labels == m).sum() > 400:
                done += keep(frame, *visible_box(labels, m), m)
        if random.random() < 0.35:
            centre = random.uniform([60, 60], [WIDTH - 60, HEIGHT - 60])
            done += keep(frame, centre, random.uniform(50, 130), 0)
        while len(records["target"]) >= shard_size or (done >= count and records["target"]):
            for name, values in records.items():
                values, records[name] = values[:shard_size], values[shard_size:]
                np.save(folder / f"{seed:04d}-{shard:03d}-{name}.npy", np.stack(values))
            (folder / f"{seed:04d}-{shard:03d}.done").touch()
            shard += 1


def write_frames(folder, count, seed, occluders):
    """Whole frames as PNG files and frames.json: camera, poses, boxes as a detector gives them, visible shares."""
    random = np.random.default_rng(seed)
    renderer = Renderer(random, occluders)
    folder.mkdir(parents=True, exist_ok=True)
    frames = []
    for i in track(range(count), description="frames"):
        colour, depth, labels, poses, visible = renderer.frame()
        Image.fromarray(colour).save(folder / f"{i:03d}-color.png", optimize=True)
        Image.fromarray(depth).save(folder / f"{i:03d}-depth.png", optimize=True)
        objects = []
        for m, (rotation, translation) in sorted(poses.items()):
            if visible[m] < MIN_VISIBLE or (labels == m).sum() <= 400:
                continue
            centre, side = visible_box(labels, m)
            centre = centre + random.uniform(-0.06, 0.06, 2) * side
            side *= random.uniform(1.15, 1.35)
            objects.append({
                "name": NAMES[m - 1],
                "rotation": np.round(rotation, 7).ravel().tolist(),
                "translation": np.round(translation, 6).tolist(),
                "visible": round(float(visible[m]), 3),
                "box": np.round([*(centre - side / 2), side, side], 2).tolist(),
            })  # fmt: skip
        frames.append({
            "color": f"{i:03d}-color.png",
            "depth": f"{i:03d}-depth.png",
            "objects": objects,
            "absent": [name for m, name in enumerate(NAMES) if m + 1 not in poses],
        })  # fmt: skip
    frames = [json.dumps(frame) for frame in frames]
    camera = json.dumps(CAMERA | {"depth_scale": 1000})
    text = f'{{"camera": {camera},\n"frames": [\n' + ",\n".join(frames) + "\n]}\n"
    (folder / "frames.json").write_text(text)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["crops", "frames"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=15000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shard", type=int, default=2000, help="crops in a shard")
    parser.add_argument(
        "--occluders", type=float, default=OCCLUDERS, help="share of distractors before objects"
    )
    args = parser.parse_args()
    if args.what == "crops":
        write_crops(args.folder, args.count, args.seed, args.shard, args.occluders)
    else:
        write_frames(args.folder, args.count, args.seed, args.occluders)


if __name__ == "__main__":
    main()
