"""CPU and CUDA kernels under one name: ONNX Runtime gives a node to the first listed provider that has a kernel.

No GPU is needed: the emulated library registers its CUDA kernels under AzureExecutionProvider, which every CPU
build of ONNX Runtime has and which, like CUDA's, is a second provider beside the CPU's.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import ROOT, built
from onnx import TensorProto, helper

VERSIONS = ["1.16.3", "1.17.3", "1.18.1", "1.20.1", "1.23.2", "1.24.1", "1.27.0", "1.28.0", "1.32.0"]

WORKER = """
import json, sys
import numpy as np, onnxruntime as ort
model, library, data, folder, *providers = sys.argv[1:]
options = ort.SessionOptions()
options.enable_profiling = True
options.profile_file_prefix = folder + "/profile"
options.register_custom_ops_library(library)
session = ort.InferenceSession(model, options, providers=providers)
y = session.run(None, {"x": np.load(data)})[0]
np.save(folder + "/y.npy", y)
events = json.load(open(session.end_profiling()))
print(json.dumps([e["args"]["provider"] for e in events if e["name"] == "clip_kernel_time"]))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("provider")
    scalar = lambda name, v: helper.make_tensor(name, TensorProto.FLOAT, [], [v])
    graph = helper.make_graph(
        [helper.make_node("my_clip", ["x", "low", "high"], ["y"], name="clip", domain="my_namespace")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [scalar("low", -1.5), scalar("high", 2.0)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my_namespace", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "m.onnx")
    x = np.random.default_rng(0).normal(0, 3, 10007).astype(np.float32)
    np.save(folder / "x.npy", x)
    return folder, x


def run(python, model, tmp_path, *providers):
    folder, _ = model
    library = built("my_custom_ops_emulated")
    done = subprocess.run(
        [python, "-c", WORKER, folder / "m.onnx", library, folder / "x.npy", tmp_path, *providers],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return np.load(Path(tmp_path) / "y.npy"), json.loads(done.stdout.splitlines()[-1])


def check(python, model, tmp_path):
    azure, cpu = "AzureExecutionProvider", "CPUExecutionProvider"
    for providers, expected in [((azure, cpu), azure), ((cpu,), cpu), ((cpu, azure), cpu)]:
        y, ran = run(python, model, tmp_path, *providers)
        assert ran == [expected], providers
        np.testing.assert_array_equal(y, np.clip(model[1], np.float32(-1.5), np.float32(2)))


def test_first_listed_provider_gets_the_node(model, tmp_path):
    check(sys.executable, model, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_in_every_version(version, model, tmp_path):
    check(ROOT / "build/ort" / version / "bin/python", model, tmp_path)
