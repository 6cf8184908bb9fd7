"""Exports the user's module to models/my_clip_model.onnx without a change to it.

python -m pytorch_custom_op.export [--exporter dynamo|torchscript] [--library libmy_custom_ops.so] [--output PATH]
"""

import argparse
from pathlib import Path

import opbridge
import torch

from .op_impl import MyClip, MyClipFunction


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exporter", choices=["dynamo", "torchscript"], default="dynamo")
    parser.add_argument("--library", help="the operator library; by default the one that opbridge finds")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).resolve().parents[1] / "models" / "my_clip_model.onnx"
    )
    arguments = parser.parse_args()
    opbridge.load(arguments.library or opbridge.library_path("my_custom_ops"))
    arguments.output.parent.mkdir(exist_ok=True)
    report = opbridge.export(
        MyClip(min_val=-0.5, max_val=0.5),
        torch.randn(1, 3, 224, 224),
        arguments.output,
        exporter=arguments.exporter,
        input_names=["input"],
        output_names=["output"],
        dynamic_axes={"input": {0: "batch_size"}, "output": {0: "batch_size"}},
        map={MyClipFunction: "my_namespace::my_clip"},
    )
    print(report)


if __name__ == "__main__":
    main()
