"""`opbridge verify`: a model that passes, and one that stops at each step."""

import json
import os
import subprocess
import sys

import numpy as np
import onnx
import opbridge
import pytest
import torch
from conftest import BUILD, ROOT, built, model_of
from onnx import TensorProto, helper

LIBRARY = built("my_custom_ops")


def verify(*arguments, code=0):
    """Runs the command; returns stdout, or stderr of a wrong command line and where there is nothing else."""
    environment = {k: v for k, v in os.environ.items() if k != "OPBRIDGE_ORT"}
    environment |= {
        "VIRTUAL_ENV": sys.prefix,
        "PYTHONPATH": str(ROOT / "python"),
        "OPBRIDGE_BUILD": str(BUILD),
    }
    done = subprocess.run(
        [BUILD / "bin/opbridge", "verify", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stderr if code == 2 else done.stdout or done.stderr


def outcomes(report):
    return {s["name"]: s["outcome"] for s in report["steps"]}


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "clip.onnx"
    onnx.save(model_of(), path)
    return path


@pytest.fixture
def files(tmp_path):
    """Inputs of the model, and its outputs."""
    x = np.array([-3, 0.5, 3], np.float32)
    np.savez(tmp_path / "in.npz", x=x, min=np.float32(-1), max=np.float32(1))
    np.savez(tmp_path / "out.npz", y=np.clip(x, -1, 1))
    return tmp_path / "in.npz", tmp_path / "out.npz"


HEALTHY = {
    "export": "skipped",
    "checker": "ok",
    "Python, CPU": "ok",
    "C++, CPU": "ok",
    "Python, CUDA": "skipped",
    "C++, CUDA": "skipped",
}


@pytest.fixture
def no_cuda():
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA: other steps run")


def test_a_healthy_model(model, files, no_cuda):
    text = verify(model, "--library", LIBRARY, "--input", files[0], "--expect", files[1])
    lines = text.splitlines()
    assert [line.split("  ")[0] for line in lines[:6]] == list(HEALTHY)
    assert "largest difference 0 ('y')" in lines[2]
    assert "has no CUDAExecutionProvider" in lines[5]
    assert lines[-1] == "works: 3 steps agree, 3 skipped"
    assert "\033" not in text
    report = json.loads(verify(model, "--library", LIBRARY, "--dim", "n=4", "--json"))
    assert outcomes(report) == HEALTHY
    assert report["ok"] is True
    assert "input 'x' is random, float32[4]" in report["notes"]


def test_stops_at_the_checker(tmp_path):
    node = helper.make_node("Relu", ["nothing"], ["y"], name="r")
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy"]
    graph = helper.make_graph([node], "g", value[:1], value[1:])
    path = tmp_path / "wrong.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    report = json.loads(verify(path, "--json", code=1))
    assert outcomes(report) == {"export": "skipped", "checker": "failed"}
    assert "nothing" in report["steps"][-1]["text"]
    assert report["verdict"] == "stops at 'checker', which fails"
    assert report["advice"] or report["findings"]


def test_stops_where_onnxruntime_refuses_with_doctors_fix(model):
    report = json.loads(verify(model, "--json", code=1))  # without its library
    assert list(outcomes(report).items())[-1] == ("Python, CPU", "failed")
    (finding,) = [f for f in report["findings"] if f["severity"] == "error"]
    assert finding["code"] == "operator-unknown" or "my_clip" in finding["subject"] + finding["evidence"]
    assert finding["fix"]
    assert finding["fix"] in verify(model, code=1)


def test_stops_where_the_outputs_differ(model, files):
    np.savez(files[1], y=np.array([-1, 0.5, 1.25], np.float32))
    arguments = (model, "--library", LIBRARY, "--input", files[0], "--expect", files[1])
    report = json.loads(verify(*arguments, "--json", code=1))
    last = report["steps"][-1]
    assert (last["name"], last["outcome"], last["output"]) == ("Python, CPU", "differs", "y")
    assert last["difference"]["max"] == 0.25
    assert "opbridge compare" in report["advice"]
    assert verify(*arguments, code=1).endswith("stops at 'Python, CPU', which differs\n")
    assert "works" in verify(*arguments, "--tolerance", "1")


def test_stops_at_cpp(model, tmp_path):
    text = verify(model, "--library", LIBRARY, "--ort", tmp_path, code=1)
    assert "C++, CPU      failed" in text
    assert "has no libonnxruntime.so" in text


def test_a_crash_is_a_failed_step(tmp_path):
    path = tmp_path / "crash.onnx"
    onnx.save(
        model_of("Scale", "trace.test", inputs=("x",), attributes={"then": "crash"}, shapes={"x": ["n"]}),
        path,
    )
    report = json.loads(verify(path, "--library", built("trace_ops"), "--json", code=1))
    assert list(outcomes(report).items())[-1] == ("Python, CPU", "failed")
    assert "ended by signal 11" in report["steps"][-1]["text"]


def test_a_wrong_command_line(model, files, tmp_path):
    assert "the following arguments are required: model" in verify(code=2)
    assert "has no input 'z'; it has x, min, max" in verify(model, "--input", f"z={save(tmp_path)}", code=2)
    assert "is not NAME=N" in verify(model, "--dim", "n", code=2)
    assert "no model file" in verify(tmp_path / "none.onnx", code=1)
    assert "opbridge verify m.onnx --library libmy_custom_ops.so" in verify("--help")


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".pb"])
def test_a_damaged_file(files, tmp_path, suffix):
    path = tmp_path / f"damaged{suffix}"
    for content in (b"no such format", files[0].read_bytes()[:100], b"\x93NUMPY\x01\x00"):
        path.write_bytes(content)
        with pytest.raises(opbridge.InvalidArgumentError, match=path.name):
            sys.modules[opbridge.verify.__module__]._arrays([str(path)])
    path.unlink()
    with pytest.raises(opbridge.InvalidArgumentError, match="No such file"):
        sys.modules[opbridge.verify.__module__]._arrays([str(path)])


@pytest.mark.parametrize(
    ("kind", "what"), [(TensorProto.STRING, "a tensor of strings"), (TensorProto.FLOAT, "does not fit")]
)
def test_inputs_that_cannot_be_made_up(tmp_path, kind, what):
    path = tmp_path / "m.onnx"
    x, y = (helper.make_tensor_value_info(name, kind, ["n"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)
    with pytest.raises(opbridge.InvalidArgumentError, match=what):
        opbridge.verify(path, dims={"n": 10**15})


def save(folder):
    np.save(folder / "z.npy", np.zeros(3, np.float32))
    return folder / "z.npy"


class Clip(torch.nn.Module):
    def forward(self, x, low):
        return torch.ops.my_namespace.my_clip(x * 2, low, None)


def test_a_module(my_clip):
    steps = []
    report = opbridge.verify(
        Clip(), (torch.tensor([-3.0, 1.0]), torch.tensor(-1.0)), libraries=LIBRARY, on_step=steps.append
    )
    assert report.ok, str(report)
    assert steps == report.steps
    assert [s.outcome for s in steps[:4]] == ["ok"] * 4
    assert [s.difference["max"] for s in steps[2:4]] == [0, 0]


def test_a_module_that_cannot_be_exported():
    class Data(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    report = opbridge.verify(Data(), torch.ones(3), libraries=[])
    assert [(s.name, s.outcome) for s in report.steps] == [("export", "failed")]
    assert "docs/export.md" in report.advice
    assert report.exit_code == 1


def test_a_module_whose_file_differs(my_clip):
    """What the module does is held against what it says it does: here it is not deterministic."""

    class Drifts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.calls

    report = opbridge.verify(Drifts(), torch.ones(3), libraries=[], exporter="torchscript")
    assert (report.steps[-1].name, report.steps[-1].outcome) == ("Python, CPU", "differs")
    assert "opbridge.compare(module, 'm.onnx', inputs)" in report.advice
    assert report.model == "Drifts"
    assert report.exit_code == 1
