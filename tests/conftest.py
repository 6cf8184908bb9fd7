"""What the Python tests share: the built libraries, small models, and separate processes."""

import os
import subprocess
import sys
from pathlib import Path

import onnx
import opbridge
import pytest
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / os.environ.get("OPBRIDGE_BUILD", "build/release")
ONNX_TYPES = {
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
}


def built(name):
    """The path of a library of this build. A missing one is a failure, never a skip."""
    path = BUILD / "lib" / f"lib{name}.so"
    assert path.exists(), f"no {path}: run make build, or set OPBRIDGE_BUILD"
    return str(path)


@pytest.fixture(scope="session")
def my_clip_path():
    return built("my_custom_ops")


@pytest.fixture(scope="session")
def test_ops_path():
    return built("python_test_ops")


@pytest.fixture(scope="session")
def my_clip(my_clip_path):
    """Library my_custom_ops, registered with torch."""
    return opbridge.load(my_clip_path, torch=True)


@pytest.fixture(scope="session")
def test_ops(test_ops_path):
    """Library python_test_ops (tests/python_ops), registered with torch."""
    return opbridge.load(test_ops_path, torch=True)


@pytest.fixture
def run_python():
    """Runs code in a new Python process with this build's libraries; returns its output. Fails where that
    fails."""

    def run(code, *args):
        environment = os.environ | {"PYTHONPATH": str(ROOT / "python"), "OPBRIDGE_BUILD": str(BUILD)}
        result = subprocess.run(
            [sys.executable, "-c", code, *args], env=environment, capture_output=True, text=True, timeout=200
        )
        assert result.returncode == 0, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result.stdout

    return run


@pytest.fixture
def compile_c(tmp_path):
    """Compiles C source to a shared library and returns its path."""

    def compile_source(name, source):
        path = tmp_path / f"{name}.so"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-I", ROOT / "include", "-x", "c", "-", "-o", path],
            input=source,
            text=True,
            check=True,
        )
        return str(path)

    return compile_source


@pytest.fixture
def make_model():
    return model_of


def model_of(
    op="my_clip",
    domain="my_namespace",
    *,
    inputs=("x", "min", "max"),
    outputs=("y",),
    dtypes="float32",
    shapes=None,
    attributes=None,
    metadata=None,
    imports=True,
):
    """An onnx.ModelProto of one node named 'n0'. An input named '' is absent; `dtypes` and `shapes` are by
    name, and where a name is missing a scalar bound or a free vector."""
    dtypes = dtypes if isinstance(dtypes, dict) else dict.fromkeys([*inputs, *outputs], dtypes)
    default = {name: [] if name in ("min", "max") else ["n"] for name in [*inputs, *outputs]}
    shapes = default | (shapes or {})

    def value(name):
        return helper.make_tensor_value_info(name, ONNX_TYPES[dtypes[name]], shapes[name])

    node = helper.make_node(op, inputs, outputs, name="n0", domain=domain, **(attributes or {}))
    graph = helper.make_graph(
        [node], "g", [value(n) for n in dict.fromkeys(inputs) if n], [value(n) for n in outputs]
    )
    opsets = [helper.make_opsetid("", 17)] + ([helper.make_opsetid(domain, 1)] if imports else [])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.helper.set_model_props(model, metadata or {})
    return model
