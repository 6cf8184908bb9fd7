"""A frame of two blocks whose colours say where on the block a pixel is, and a model that reads those colours.

Red, green and blue are a point's coordinates in its block's frame, 0 to 255 from one side to the other (blue: 1 to
120 on "block", 130 to 250 on "slab", 0 elsewhere). The model turns them into votes, so PVN3DPoseSolve must find the
pose that the blocks were drawn with: if the points, colours and indices that it is given are right.
"""

import json

import numpy as np
import onnx
from PIL import Image

WIDTH, HEIGHT = 160, 120
CAMERA = {"fx": 150.0, "fy": 152.0, "cx": 80.5, "cy": 58.25}
SCALE = 20000.0  # of depth
OBJECTS = {  # low and high corner [m], first code of blue and number of its steps
    "block": ((-0.02, -0.01, 0.03), (0.10, 0.07, 0.08), 1, 119),
    "slab": ((0.01, -0.03, -0.05), (0.11, 0.03, 0.04), 130, 120),
}


def rotation(axis, angle):
    """Rodrigues."""
    x, y, z = np.asarray(axis) / np.linalg.norm(axis)
    k = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * k + (1 - np.cos(angle)) * k @ k


POSES = {
    "block": (rotation((1, 2, -1), 2.1), np.array([-0.12, -0.01, 0.62])),
    "slab": (rotation((0.3, -1, 0.5), 0.8), np.array([0.13, 0.05, 0.55])),
}
BOXES = {"block": (12, 20, 64, 72), "slab": (92, 34.5, 60.5, 60)}


def corners(name):
    low, high = OBJECTS[name][:2]
    return [[x, y, z] for x in (low[0], high[0]) for y in (low[1], high[1]) for z in (low[2], high[2])]


def keypoints(name):
    return [[float(v) for v in np.round(c, 6)] for c in corners(name)][:4]


def draw(poses=POSES, camera=CAMERA):
    """Colour (h, w, 3) u8 and depth (h, w) [m], 0 where nothing is: rays against boxes. A wall is at 1.2 m."""
    u, v = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
    rays = np.stack(
        [(u - camera["cx"]) / camera["fx"], (v - camera["cy"]) / camera["fy"], np.ones_like(u)], -1
    )
    depth = np.full((HEIGHT, WIDTH), 1.2)
    color = np.stack([u % 256, v % 256, np.zeros_like(u)], -1).astype(np.uint8)
    for name, (r, t) in poses.items():
        low, high, first, steps = OBJECTS[name]
        origin, direction = -r.T @ t, rays @ r  # in the block's frame
        with np.errstate(divide="ignore"):
            a, b = (np.array(low) - origin) / direction, (np.array(high) - origin) / direction
        near, far = np.minimum(a, b).max(-1), np.maximum(a, b).min(-1)
        hit = (near < far) & (near > 0) & (near < depth)
        depth[hit] = near[hit]
        code = (origin + direction * near[..., None] - low) / (np.array(high) - low)
        levels = np.round(code * [255, 255, steps] + [0, 0, first])
        color[hit] = np.clip(levels, [0, 0, first], [255, 255, first + steps])[hit]
    return color, depth


def write_frame(folder, color, depth, name="frame"):
    """PNG files of a frame; returns the arguments that `opbridge pose` takes for it."""
    Image.fromarray(color).save(folder / f"{name}_color.png")
    Image.fromarray(np.round(depth * SCALE).astype(np.uint16)).save(folder / f"{name}_depth.png")
    camera = folder / "camera.json"
    camera.write_text(json.dumps(CAMERA | {"width": WIDTH, "height": HEIGHT, "depth_scale": SCALE}))
    return [
        "--color",
        folder / f"{name}_color.png",
        "--depth",
        folder / f"{name}_depth.png",
        "--camera",
        camera,
    ]


def metadata(**change):
    objects = []
    for name, (low, high, _, _) in OBJECTS.items():
        diameter = float(np.linalg.norm(np.subtract(high, low)))
        objects.append({
            "name": name, "keypoints": keypoints(name), "corners": corners(name), "symmetric": False,
            "center": [(a + b) / 2 for a, b in zip(low, high, strict=True)], "radius": diameter / 2,
            "diameter": diameter,
        })  # fmt: skip
    known = {
        "version": 1,
        "objects": objects,
        "crop": [60, 60],
        "points": 1024,
        "min_depth": 0.2,
        "max_depth": 1.0,
    }
    return known | change


def numbers(values):
    return "{" + ", ".join(repr(float(v)) for v in np.ravel(values)) + "}"


def model(path, meta=None, more=None, batch="B", points="N"):
    """Writes the end-to-end model, with the metadata `meta` and the properties `more`."""
    constants, body, parts = "", "", {"kp_of": [], "ctr_of": []}
    described = metadata()["objects"]
    k = len(described[0]["keypoints"])
    for m, (name, (low, high, first, steps)) in enumerate(OBJECTS.items(), 1):
        constants += f"""
          float[3] low{m} = {numbers(low)}, float[3] size{m} = {numbers(np.subtract(high, low))},
          float[3] first{m} = {numbers([0, 0, first])}, float[3] steps{m} = {numbers([255, 255, steps])},
          float[1,{k},1,3] kps{m} = {numbers(keypoints(name))},
          float[1,1,1,3] ctr{m} = {numbers(described[m - 1]["center"])}, int64[1] class{m} = {{{m}}},"""
        body += f"""
          code{m}a = Sub(code, first{m})
          code{m}b = Div(code{m}a, steps{m})
          code{m}c = Mul(code{m}b, size{m})
          own{m} = Add(code{m}c, low{m})
          is{m} = Equal(labels, class{m})
          weight{m} = Cast <to = 1>(is{m})
          r{m}, t{m} = pvn3d.custom_ops.KabschSolver(own{m}, xyz, weight{m})
          r{m}t = Transpose <perm = [0, 2, 1]>(r{m})
          r{m}u = Unsqueeze(r{m}t, i1)
          own{m}u = Unsqueeze(own{m}, i1)
          from_kps{m} = Sub(own{m}u, kps{m})
          from_ctr{m} = Sub(own{m}u, ctr{m})
          kp_of{m} = MatMul(from_kps{m}, r{m}u)
          ctr_of{m} = MatMul(from_ctr{m}, r{m}u)"""
        for part in parts:
            parts[part].append(f"{part}{m}")
    text = f"""
      <ir_version: 8, opset_import: ["" : 17, "pvn3d.custom_ops" : 1]>
      poses (float[{batch},{points},9] pointcloud, float[{batch},3,H,W] rgb, int64[{batch},1,{points}] choose)
        => (float[{batch},2,3,3] rotation, float[{batch},2,3] translation, int32[{batch},2] valid,
            float[{batch},2,{k + 1},3] kps, int32[{batch},2] count)
      < {constants}
        float[2,{k},3] mesh_kps = {numbers([o["keypoints"] for o in described])},
        float[2,3] mesh_ctr = {numbers([o["center"] for o in described])},
        int64[1] i0 = {{0}}, int64[1] i1 = {{1}}, int64[1] i2 = {{2}}, int64[1] i3 = {{3}}, int64[1] i6 = {{6}},
        int64[3] flat = {{0, 3, -1}}, int64[3] three = {{1, 3, 1}}, float white = {{255}},
        float some = {{0.5}}, float second = {{129.5}}
      > {{
        xyz = Slice(pointcloud, i0, i3, i2)
        color = Slice(pointcloud, i3, i6, i2)
        pixels = Reshape(rgb, flat)
        cells = Expand(choose, three)
        picked = GatherElements <axis = 2>(pixels, cells)
        picked_color = Transpose <perm = [0, 2, 1]>(picked)
        rg = Slice(picked_color, i0, i2, i2)
        blue = Slice(color, i2, i3, i2)
        code01 = Concat <axis = 2>(rg, blue)
        code255 = Mul(code01, white)
        code = Round(code255)
        blue_code = Slice(code, i2, i3, i2)
        blues = Squeeze(blue_code, i2)
        is_block = Greater(blues, some)
        is_slab = Greater(blues, second)
        label_a = Cast <to = 7>(is_block)
        label_b = Cast <to = 7>(is_slab)
        labels = Add(label_a, label_b)
        {body}
        first_class = Unsqueeze(is1, i1)
        is_first = Unsqueeze(first_class, i3)
        kp_of = Where(is_first, {", ".join(parts["kp_of"])})
        ctr_of = Where(is_first, {", ".join(parts["ctr_of"])})
        rotation, translation, valid, kps, count =
          pvn3d.custom_ops.PVN3DPoseSolve(xyz, labels, kp_of, ctr_of, mesh_kps, mesh_ctr)
      }}"""
    proto = onnx.parser.parse_model(text)
    onnx.helper.set_model_props(proto, {"opbridge.pvn3d": json.dumps(meta or metadata()), **(more or {})})
    onnx.save(proto, path)
    return path
