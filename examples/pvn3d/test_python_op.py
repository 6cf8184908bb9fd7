"""The operators from Python: one committed view through the exported model in ONNX Runtime, and through PyTorch.

  python examples/pvn3d/test_python_op.py [models/pvn3d.onnx] [libpvn3d_custom_op.so] [points]

Prints both poses and the true one; exit code 1 if the two differ by more than 1e-4 in rotation or 0.1 mm.
"""

import os
import sys
from pathlib import Path

import numpy as np
import opbridge
import torch
from frames import POINTS, load_frames, make_points
from network import PoseModel, load_network
from objects import NAMES

HERE = Path(__file__).parent
BUILD = Path(os.environ.get("OPBRIDGE_BUILD", HERE.parents[1] / "build/release"))


def main():
    given = dict(enumerate(sys.argv[1:]))
    model = given.get(0, HERE / "models/pvn3d.onnx")
    library = given.get(1, BUILD / "lib/libpvn3d_custom_op.so")
    points = int(given.get(2, POINTS))

    camera, frames = load_frames()
    frame, view = next((frame, view) for frame in frames for view in frame["objects"])
    arrays = make_points(frame["color"], frame["depth"], camera, view["box"], points=points)
    pointcloud, rgb, choose = (array[None] for array in arrays)

    session = opbridge.session(model, libraries=[library])
    rotation, translation, valid = session.run(
        ["rotation", "translation", "valid"], {"pointcloud": pointcloud, "rgb": rgb, "choose": choose}
    )
    with torch.inference_mode():
        expected = PoseModel(load_network()).eval()(*map(torch.from_numpy, (pointcloud, rgb, choose)))

    m = NAMES.index(view["name"])
    print(f"{view['name']} in {frame['color_file']}, {points} points: valid {valid[0, m]}")
    print(f"  true          t {np.round(view['translation'], 4)}  R {np.round(view['rotation'], 3)}")
    print(f"  ONNX Runtime  t {translation[0, m].round(4)}  R {rotation[0, m].ravel().round(3)}")
    angle = np.abs(rotation - expected[0].numpy()).max()
    distance = 1e3 * np.abs(translation - expected[1].numpy()).max()
    print(f"  PyTorch differs by at most {angle:.1e} in rotation, {distance:.1e} mm in translation")
    same = angle <= 1e-4 and distance <= 0.1 and (valid == expected[2].numpy()).all()
    print("PASSED" if same else "FAILED")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
