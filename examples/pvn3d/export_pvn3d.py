"""Exports the trained network: what a C++ program needs is one file, end to end, that also says what its objects are.

  python examples/pvn3d/export_pvn3d.py OUT.onnx [--network-only] [--exporter torchscript] [--weights FILE.npz]

End to end: pointcloud, rgb, choose -> rotation, translation, valid, kps, count, with PVN3DPoseSolve in the graph.
Network only: -> kp_of, seg, ctr_of. Batch, number of points and crop are dynamic. docs/pvn3d.md has the metadata.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import onnx
import opbridge
import torch
from frames import CROP, MAX_DEPTH, MIN_DEPTH, POINTS, load_frames, make_points
from network import WEIGHTS, PoseModel, load_network
from objects import load_objects

INPUTS = "pointcloud", "rgb", "choose"
NETWORK_OUTPUTS = "kp_of", "seg", "ctr_of"
POSE_OUTPUTS = "rotation", "translation", "valid", "kps", "count"
DYNAMIC = {
    "pointcloud": {0: "batch", 1: "points"},
    "rgb": {0: "batch", 2: "height", 3: "width"},
    "choose": {0: "batch", 2: "points"},
}
METADATA = "opbridge.pvn3d"


def metadata(points=POINTS):
    return {
        "version": 1,
        "objects": load_objects(),
        "crop": list(CROP),
        "points": points,
        "min_depth": MIN_DEPTH,
        "max_depth": MAX_DEPTH,
    }


def example_inputs(count=2, points=POINTS, crop=CROP):
    """Inputs of the first `count` views of the committed frames: a batch (count, ...) of each."""
    camera, frames = load_frames()
    views = [(frame, view) for frame in frames for view in frame["objects"]][:count]
    made = [make_points(f["color"], f["depth"], camera, v["box"], crop, points) for f, v in views]
    return tuple(torch.from_numpy(np.stack(field)) for field in zip(*made, strict=True))


def export(path, *, network_only=False, exporter="dynamo", weights=WEIGHTS, points=POINTS):
    """Writes the model and its metadata to `path` and returns opbridge's report."""
    network = load_network(weights)
    report = opbridge.export(
        network if network_only else PoseModel(network).eval(),
        example_inputs(),
        path,
        exporter=exporter,
        input_names=INPUTS,
        output_names=NETWORK_OUTPUTS if network_only else POSE_OUTPUTS,
        dynamic_shapes=DYNAMIC,
        check_inputs=example_inputs(3, points=700, crop=(72, 95)),
    )
    model = onnx.load(path)
    onnx.helper.set_model_props(model, {
        **{p.key: p.value for p in model.metadata_props}, METADATA: json.dumps(metadata(points)),
    })  # fmt: skip
    onnx.save(model, path)
    return report


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--network-only", action="store_true")
    parser.add_argument("--exporter", choices=["dynamo", "torchscript"], default="dynamo")
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    args = parser.parse_args()
    print(export(args.path, network_only=args.network_only, exporter=args.exporter, weights=args.weights))


if __name__ == "__main__":
    main()
