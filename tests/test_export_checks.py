"""What opbridge.export refuses to call good, and what it says."""

import os
import subprocess
import sys

import onnx
import opbridge
import pytest
import torch
from conftest import ROOT
from opbridge._export import check
from test_export_models import ClipFunction, both, export, module


class SwappedFunction(torch.autograd.Function):
    """Its arguments are (x, high, low): mapping them in order makes a wrong model."""

    @staticmethod
    def forward(ctx, x, high, low):
        return torch.clamp(x, low, high)

    @staticmethod
    def backward(ctx, grad):
        return grad, None, None


@both
def test_a_wrong_map_is_caught_and_the_node_is_named(my_clip, tmp_path, exporter):
    net = module(lambda x: (ClipFunction.apply(x, -1.0, 1.0) + 1, SwappedFunction.apply(x, 0.5, -0.5)))
    with pytest.raises(opbridge.ExportError) as error:
        export(
            net, torch.randn(20), tmp_path, exporter, output_names=["good", "bad"],
            map={f: "my_namespace::my_clip" for f in (ClipFunction, SwappedFunction)},
        )  # fmt: skip
    text = str(error.value)
    assert "output 'bad' differs by up to" in text
    assert "my_clip_1' (my_namespace::my_clip)" in text
    assert list(tmp_path.iterdir()) == []


def test_an_older_file_survives_a_failed_export(my_clip, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_text("older")
    with pytest.raises(opbridge.ExportError):
        opbridge.export(
            module(lambda x: SwappedFunction.apply(x, 0.5, -0.5)), torch.randn(20), path, exporter="torchscript",
            map={SwappedFunction: "my_namespace::my_clip"},
        )  # fmt: skip
    assert path.read_text() == "older"


def test_a_size_baked_by_tracing_is_caught_at_the_second_size(my_clip, tmp_path):
    net = module(lambda x: ClipFunction.apply(x, -1.0, 1.0) * float(x.shape[0]))
    options = {"map": {ClipFunction: "my_namespace::my_clip"}, "dynamic_axes": {"args_0": {0: "n"}}}
    with pytest.raises(opbridge.ExportError, match=r"args_0 \[2, 3\]"):
        export(net, torch.randn(4, 3), tmp_path, "torchscript", **options)
    assert list(tmp_path.iterdir()) == []
    report, _ = export(net, torch.randn(4, 3), tmp_path, "torchscript", check=False, **options)
    assert "not checked" in str(report)


def test_a_dimension_that_the_model_fixes_is_said(my_clip, tmp_path):
    def fixed(x):
        assert x.shape[0] == 4
        return ClipFunction.apply(x, -1.0, 1.0)

    with pytest.raises(opbridge.ExportError, match=r"dynamic dimensions asked for \(n\)"):
        export(
            module(fixed), torch.randn(4, 3), tmp_path, "dynamo", map={ClipFunction: "my_namespace::my_clip"},
            dynamic_shapes=[{0: "n"}],
        )  # fmt: skip


def test_check_inputs(my_clip, tmp_path):
    def halves(x):
        if x.shape[0] % 8:
            raise ValueError("needs a multiple of 8")
        return ClipFunction.apply(x, -1.0, 1.0).reshape(-1, 8, 3)

    options = {"map": {ClipFunction: "my_namespace::my_clip"}, "dynamic_axes": {"args_0": {0: "n"}}}
    report, _ = export(module(halves), torch.randn(8, 3), tmp_path, "torchscript", **options)
    assert [c.shapes["args_0"] for c in report.checks] == [(8, 3), (16, 3)]
    given = [(torch.randn(24, 3),), {"args_0": torch.randn(32, 3)}]
    report, _ = export(
        module(halves), torch.randn(8, 3), tmp_path, "torchscript", check_inputs=given, **options
    )
    assert [c.shapes["args_0"] for c in report.checks] == [(8, 3), (24, 3), (32, 3)]

    def picky(x):
        if x.shape[0] != 9:
            raise ValueError("only 9")
        return ClipFunction.apply(x, -1.0, 1.0)

    with pytest.raises(opbridge.ExportError, match=r"give check_inputs=.*only 9"):
        export(module(picky), torch.randn(9, 3), tmp_path, "torchscript", **options)


def test_a_model_that_is_random_is_named_as_such(my_clip, tmp_path):
    with pytest.raises(opbridge.ExportError, match="another result on each run"):
        export(
            module(lambda x: ClipFunction.apply(x + torch.rand_like(x), -9.0, 9.0)), torch.randn(30), tmp_path,
            "torchscript", map={ClipFunction: "my_namespace::my_clip"},
        )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"exporter": "script"}, "exporter is 'dynamo' or 'torchscript'"),
        (
            {"map": {ClipFunction: "my_namespace::MyClip"}},
            r"no loaded library has \(did you mean 'my_namespace::my_clip'",
        ),
        ({"map": {"clip": "my_namespace::my_clip"}}, "map has the key 'clip'"),
        ({"dynamic_axes": {"args_0": {0: "n"}}, "dynamic_shapes": [{0: "n"}]}, "either"),
        ({"dynamic_shapes": {"arg_0": {0: "n"}}}, r"'arg_0' \(did you mean 'args_0'"),
        ({"dynamic_shapes": [{2: "n"}]}, "'args_0' has 2 dimensions, no dimension 2"),
        ({"dynamic_shapes": [{0: "n", 1: "n"}]}, "equal names say equal sizes"),
        ({"input_names": ["a", "b"]}, "2 input_names for 1 input"),
        ({"output_names": ["a", "b"]}, "2 output_names for 1 output"),
        ({"check_inputs": {"y": torch.zeros(1)}}, "check_inputs names 'y'"),
        ({"exporter": "dynamo", "opset_version": 13}, "opset 18 or newer"),
        ({"path": "no/such/folder/m.onnx"}, "no folder '.*no/such/folder'"),
    ],
)
def test_wrong_arguments(my_clip, tmp_path, options, text):
    net = module(lambda x: ClipFunction.apply(x, -1.0, 1.0))
    options = {"exporter": "torchscript", "map": {ClipFunction: "my_namespace::my_clip"}} | options
    path = tmp_path / options.pop("path", "m.onnx")
    with pytest.raises(opbridge.InvalidArgumentError, match=text):
        opbridge.export(net, torch.randn(4, 3), path, **options)


@both
@pytest.mark.parametrize(
    ("apply", "text"),
    [
        (
            lambda x: ClipFunction.apply(x.int(), -1.5, 2.0),
            "'min' is -1.5, which its integer type cannot hold",
        ),
        (lambda x: SwappedFunction.apply(None, x, 1.0), "input 'x' is missing"),
    ],
)
def test_arguments_that_do_not_fit(my_clip, tmp_path, exporter, apply, text, monkeypatch):
    monkeypatch.setattr(SwappedFunction, "forward", staticmethod(lambda ctx, a, x, b: x + b))
    used = SwappedFunction if "missing" in text else ClipFunction
    with pytest.raises(opbridge.InvalidArgumentError, match=text):
        export(module(apply), torch.randn(4), tmp_path, exporter, map={used: "my_namespace::my_clip"})


def test_a_map_entry_that_is_never_called(my_clip, tmp_path):
    clip = torch.ops.my_namespace.my_clip
    with pytest.raises(opbridge.ExportError, match="ClipFunction, which the model never calls"):
        export(
            module(lambda x: clip(x)),
            torch.randn(4),
            tmp_path,
            "dynamo",
            map={ClipFunction: "my_namespace::my_clip"},
        )


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("actual", "expected", "problem"),
    [
        ([1.0, 2.0], [1.0, 2.0005], None),
        ([1.0, 2.0], [1.0, 2.1], "differs by up to 0.1"),
        ([NAN, 1.0], [NAN, 1.0], None),
        ([NAN, 1.0], [1.0, NAN], "NaN"),
        ([INF, 1.0], [INF, 1.0], None),
        ([-INF, 1.0], [INF, 1.0], "infinities"),
        ([1.0], [1.0, 1.0], "shape"),
        ([1, 2], [1, 2], None),
        ([1, 2], [1, 3], "differs by up to 1"),
        ([1, 2], [1.0, 2.0], "torch.int64, not torch.float32"),
        ([], [], None),
    ],
)
def test_comparison(actual, expected, problem):
    found = check.compare(torch.tensor(actual), torch.tensor(expected))[1]
    assert (found is None) == (problem is None)
    assert problem is None or problem in found


def test_written_model_is_complete(my_clip, tmp_path):
    report = opbridge.export(
        module(lambda x: ClipFunction.apply(x, -1.0, 1.0)), torch.randn(4), tmp_path / "m.onnx",
        exporter="torchscript", map={ClipFunction: "my_namespace::my_clip"},
    )  # fmt: skip
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    onnx.checker.check_model(onnx.load(report.path), full_check=True)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_the_example(my_clip_path, tmp_path, exporter):
    example = ROOT / "examples" / "custom_op_ort"
    path = tmp_path / "m.onnx"
    output = subprocess.run(
        [sys.executable, "-m", "pytorch_custom_op.export", "--exporter", exporter,
         "--library", my_clip_path, "--output", path],
        cwd=example, env=os.environ | {"PYTHONPATH": str(ROOT / "python")}, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert "node    my_namespace::my_clip" in output
    assert "checked input [2, 3, 224, 224]: max difference output 0" in output
    x = torch.randn(5, 3, 4, 4).numpy()
    (y,) = opbridge.session(str(path), [my_clip_path]).run(
        None, {"input": x[:, :, :1].repeat(224, 2).repeat(56, 3)}
    )
    assert y.min() == -0.5
    assert y.max() == 0.5
