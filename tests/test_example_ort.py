"""examples/custom_op_ort/test_inference.cc: builds on its own with two commands and checks what it says it checks."""

import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / os.environ.get("OPBRIDGE_BUILD", "build/release") / "lib/libmy_custom_ops.so"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    build = tmp_path_factory.mktemp("example")
    source = ROOT / "examples/custom_op_ort"
    prefix = Path(onnxruntime.__file__).parents[4]
    environment = {**os.environ, "VIRTUAL_ENV": str(prefix)}
    for command in (["cmake", "-S", source, "-B", build], ["cmake", "--build", build]):
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
    return build / "test_inference"


@pytest.fixture
def model(tmp_path):
    """y = my_clip(x, -0.08, 2) for x: f32[batch,3]."""
    bounds = [numpy_helper.from_array(np.float32(v), n) for v, n in ((-0.08, "low"), (2, "high"))]
    node = helper.make_node("my_clip", ["x", "low", "high"], ["y"], domain="my_namespace")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 3]) for n in "xy")
    graph = helper.make_graph([node], "g", [x], [y], bounds)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my_namespace", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def run(*command):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120)


def test_includes_nothing_of_opbridge():
    source = (ROOT / "examples/custom_op_ort/test_inference.cc").read_text()
    assert "#include <onnxruntime_cxx_api.h>" in source
    assert '#include "' not in source
    assert "#include <opbridge" not in source


def test_checks_the_range(program, model):
    done = run(program, model, LIBRARY, "-0.08", "2", "16")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "input  x [16,3]" in done.stdout
    assert "output y [16,3] from -0.08 to 2: 0 elements outside" in done.stdout
    assert f"PASSED with ONNX Runtime {onnxruntime.__version__}" in done.stdout
    for bounds in (("-0.07", "2"), ("-0.08", "1.9")):
        done = run(program, model, LIBRARY, *bounds, "16")
        assert done.returncode == 1
        assert "FAILED" in done.stdout


def test_a_bare_file_name_is_found(program, model, monkeypatch):
    monkeypatch.chdir(LIBRARY.parent)
    assert run(program, model, LIBRARY.name, "-0.08", "2").returncode == 0


def test_errors(program, model, tmp_path):
    done = run(program, model, tmp_path / "no.so", "0", "1")
    assert done.returncode == 1
    assert "no.so" in done.stderr
    done = run(program, tmp_path / "no.onnx", LIBRARY, "0", "1")
    assert done.returncode == 1
    assert "no.onnx" in done.stderr
    for arguments in ((), (model, LIBRARY), (model, LIBRARY, "zero", "1"), (model, LIBRARY, "0", "1", "-3")):
        done = run(program, *arguments)
        assert done.returncode == 2
        assert "usage: " in done.stderr
