"""Where nodes run, with ONNX Runtime's Azure provider in CUDA's place (tests/cuda), and runs without copies."""

import json
import os
import subprocess

import numpy as np
import onnx
import opbridge
import pytest
import torch
from conftest import BUILD, built
from onnx import TensorProto, helper

CPU = "CPUExecutionProvider"


def make_model():
    """z = my_clip(x + x, 0)"""
    scalar = helper.make_tensor("low", TensorProto.FLOAT, [], [0.0])
    nodes = [
        helper.make_node("Add", ["x", "x"], ["twice"], name="add"),
        helper.make_node("my_clip", ["twice", "low"], ["z"], name="clip", domain="my_namespace"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, ["n"])], [value("z", TensorProto.FLOAT, ["n"])], [scalar]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my_namespace", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.fixture
def model():
    return make_model()


def test_says_which_nodes_fell_back(model, run_python, tmp_path):
    onnx.save(model, tmp_path / "m.onnx")
    print_placement = """
import sys
import numpy as np, opbridge
model, library = sys.argv[1:]
x = np.arange(-2, 2, dtype=np.float32)
print(opbridge.placement(model, {"x": x}, [library], providers=["AzureExecutionProvider", "CPUExecutionProvider"]))
"""
    # In a process of its own: here another build of the domain may be loaded.
    found = run_python(print_placement, str(tmp_path / "m.onnx"), built("my_custom_ops_emulated"))
    assert sorted(found.splitlines()) == [
        "AzureExecutionProvider: my_clip 'clip'",
        "CPUExecutionProvider: Add 'add'",
        "copies between host and device: 0",
    ]


def run_stand_in(tmp_path, model, *arguments, code=0):
    """`opbridge run`, built with the Azure provider in CUDA's place."""
    import onnxruntime

    onnx.save(model, tmp_path / "m.onnx")
    command = [
        BUILD / "bin/opbridge_stand_in",
        "run",
        tmp_path / "m.onnx",
        "--library",
        built("my_custom_ops_emulated"),
    ]
    environment = os.environ | {"OPBRIDGE_ORT": os.path.dirname(onnxruntime.__file__)}
    done = subprocess.run(
        [*command, "--random", "--provider", "cuda", *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def test_the_command_refuses_silent_fallback(model, tmp_path):
    message = run_stand_in(tmp_path, model, code=1)
    assert "fallback to CPU EP has been explicitly disabled" in message
    assert "--allow-fallback" in message


def test_the_command_says_what_fell_back(model, tmp_path):
    text = run_stand_in(tmp_path, model, "--allow-fallback")
    assert "AzureExecutionProvider: 1 node: my_clip 'clip'\nCPUExecutionProvider: 1 node: Add 'add'\n" in text
    assert "copies between host and device: 0\n" in text
    assert json.loads(run_stand_in(tmp_path, model, "--allow-fallback", "--json"))["placement"] == {
        "nodes": [
            {"name": "add", "op": "Add", "provider": CPU},
            {"name": "clip", "op": "my_clip", "provider": "AzureExecutionProvider"},
        ],
        "copies": 0,
    }


def test_a_node_that_runs_often_is_told_once(tmp_path):
    """The body of a Loop, three times."""
    tensor, value = helper.make_tensor, helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "v"], ["w"], name="double"),
            helper.make_node("Identity", ["c"], ["d"], name="on"),
        ],
        "body",
        [
            value("i", TensorProto.INT64, []),
            value("c", TensorProto.BOOL, []),
            value("v", TensorProto.FLOAT, [1]),
        ],
        [value("d", TensorProto.BOOL, []), value("w", TensorProto.FLOAT, [1])],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["trips", "", "x"], ["y"], name="loop", body=body)],
        "g",
        [value("x", TensorProto.FLOAT, [1])],
        [value("y", TensorProto.FLOAT, [1])],
        [tensor("trips", TensorProto.INT64, [], [3])],
    )
    looped = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = opbridge.placement(looped, {"x": np.ones(1, np.float32)})
    assert found.on(CPU).count("double") == 1
    assert "loop" in found.on(CPU)


def test_fallback_of_a_missing_provider_shows(model, my_clip_path):
    found = opbridge.placement(
        model, {"x": np.zeros(2, np.float32)}, [my_clip_path], provider="cuda", allow_fallback=True
    )
    assert (found.on(CPU), found.on("CUDAExecutionProvider"), found.copies) == (["add", "clip"], [], 0)


def test_an_error_of_the_run_is_raised(model, my_clip_path):
    with pytest.raises(Exception, match="Unexpected input data type"):
        opbridge.placement(model, {"x": np.zeros(2)}, [my_clip_path])


def test_runs_torch_tensors_where_they_are(model, my_clip_path):
    session = opbridge.session(model, [my_clip_path])
    x = torch.arange(-3.0, 3.0)[::2]  # not contiguous
    z = opbridge.run_on_device(session, {"x": x})["z"]
    assert (z.device, z.tolist()) == (x.device, [0, 0, 2])
    del session
    assert z.tolist() == [0, 0, 2]  # its memory is its own


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.bool]
)
def test_every_dtype_keeps_its_bits(dtype):
    kind = {torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16", torch.float64: "DOUBLE", torch.int32: "INT32",
            torch.int64: "INT64", torch.bool: "BOOL"}[dtype]  # fmt: skip
    value = [helper.make_tensor_value_info(n, getattr(TensorProto, kind), ["n"]) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", value[:1], value[1:])
    session = opbridge.session(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )
    x = torch.tensor([0, 1, 1, 0, 3]).to(dtype)
    y = opbridge.run_on_device(session, {"x": x})["y"]
    assert y.dtype == dtype
    assert torch.equal(x, y)


def test_what_cannot_be_bound_is_refused(model, my_clip_path):
    session = opbridge.session(model, [my_clip_path])
    with pytest.raises(opbridge.ArgumentTypeError, match="takes torch tensors"):
        opbridge.run_on_device(session, {"x": np.zeros(2, np.float32)})
    with pytest.raises(opbridge.InvalidArgumentError, match="got meta"):
        opbridge.run_on_device(session, {"x": torch.zeros(2, device="meta")})
    onnx.checker.check_model(model)
