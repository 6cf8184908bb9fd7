"""Models and libraries that others publish, through inspect, doctor, run, compare and bench.

scripts/third_party.sh fetches them."""

import json
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import BUILD, ROOT
from onnx import TensorProto, helper

PLACE = ROOT / "build/third_party"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PLACE.exists(), reason="no build/third_party: make matrix fetches it"),
]

random = np.random.default_rng(0)


def speech(*shape):
    return random.uniform(-1, 1, shape).astype(np.float32)


NOISE = ["--atol", "1e-6"]  # the text detector's sigmoid is next to 0 everywhere
STATE = {"state": speech(2, 1, 128)}
RATE = {"sr": np.array(16000)}
MODELS = {
    "basic_pitch/saved_models/icassp_2022/nmp.onnx": {"serving_default_input_2:0": speech(1, 43844, 1)},
    "magika/models/standard_v3_3/model.onnx": {"bytes": random.integers(0, 256, (2, 2048), dtype=np.int32)},
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx": {"x": speech(1, 3, 96, 64)},
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx": {"x": speech(2, 3, 48, 96)},
    "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx": {"x": speech(2, 3, 48, 192)},
    "silero_vad/data/silero_vad.onnx": {"input": speech(1, 512), **STATE, **RATE},
    "silero_vad/data/silero_vad_16k_op15.onnx": {"input": speech(1, 512), **STATE, **RATE},
    "silero_vad/data/silero_vad_half.onnx": {"input": speech(1, 512), **STATE},
    "silero_vad/data/silero_vad_op18_ifless.onnx": {"input": speech(1, 512), **STATE, **RATE},
    "silero_vad/data/silero_vad_openvino_16k.onnx": {"input": speech(1, 576), **STATE},
    "silero_vad/data/silero_vad_16k_sequence.onnx": {
        "input": speech(3, 576), "h": speech(1, 1, 128), "c": speech(1, 1, 128),
    },
}  # fmt: skip


def opbridge(*arguments, code=0):
    done = subprocess.run(
        [BUILD / "bin/opbridge", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "VIRTUAL_ENV": sys.prefix},
        timeout=120,
    )
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout) if "--json" in arguments else done.stdout + done.stderr


def codes(report):
    return sorted(f["code"] for f in report["findings"])


@pytest.fixture
def inputs(request, tmp_path):
    path = tmp_path / "inputs.npz"
    np.savez(path, **request.param)
    return path


each_model = pytest.mark.parametrize(
    ("name", "inputs"), MODELS.items(), indirect=["inputs"], ids=[n.split("/")[-1] for n in MODELS]
)


@each_model
def test_model(name, inputs, tmp_path):
    """Healthy to doctor; the same outputs as ONNX Runtime in Python, and without its optimiser."""
    model = PLACE / name
    report = opbridge("doctor", model, "--json")
    assert set(codes(report)) <= {"model-fixed-inputs"}, report["findings"]
    described = opbridge("inspect", model, "--json")
    assert {i["name"] for i in described["inputs"]} == set(MODELS[name])
    opbridge("run", model, "--input", inputs, "--output-dir", tmp_path, "--output-format", "npz")
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    outputs = dict(np.load(tmp_path / "outputs.npz"))
    for info, expected in zip(session.get_outputs(), session.run(None, MODELS[name]), strict=True):
        np.testing.assert_allclose(outputs[info.name], expected, rtol=1e-4, atol=1e-5)
    compared = opbridge(
        "compare", model, "--input", inputs, *NOISE, "--optimize", "all", "--optimize", "none", "--json"
    )
    assert compared["equal"]


@each_model
def test_runtimes_agree(name, inputs):
    """The oldest runtime that has a library, and the newest; where the oldest is too old, doctor says so."""
    oldest, newest = (ROOT / "build/ort/lib" / version for version in ("1.17.1", "1.32.0"))
    if onnx.load(PLACE / name, load_external_data=False).ir_version > 9:
        report = opbridge("doctor", PLACE / name, "--ort", oldest, "--json", code=1)
        assert codes(report) == ["model-ir-too-new"]
        return
    report = opbridge("doctor", PLACE / name, "--ort", oldest, "--json")
    assert set(codes(report)) <= {"model-fixed-inputs"}, report["findings"]
    compared = opbridge(
        "compare", PLACE / name, "--input", inputs, *NOISE, "--ort", oldest, "--ort", newest, "--json"
    )
    assert compared["equal"], compared


def test_exports_of_one_network_agree():
    """silero-vad's own second export against its first; the sample rate given as a number."""
    first, second = (PLACE / f"silero_vad/data/silero_vad{kind}.onnx" for kind in ("", "_op18_ifless"))
    arguments = ["--random", "--dim", "input:1=512", "--input", "sr=16000"]
    text = opbridge("compare", first, second, *arguments)
    assert "equal: 2 comparisons" in text
    # Without the length, the failure tells that it was assumed.
    text = opbridge("run", first, "--random", code=1)
    assert "note: dimension 'input:1' of input 'input' is dynamic: 1 taken, --dim input:1=N sets it" in text


def one_node(path, op, domain, inputs, output, **attributes):
    def value(name, shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    node = helper.make_node(op, list(inputs), ["y"], domain=domain, **attributes)
    graph = helper.make_graph([node], "g", [value(*i) for i in inputs.items()], [value("y", output)])
    opsets = [helper.make_opsetid("", 16)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def library(pattern):
    found = sorted(PLACE.glob(pattern))
    if not found:
        pytest.skip(f"no {pattern}: its package has no files for this processor")
    return found[0]


def test_openmmlab_operators(tmp_path):
    """grid_sampler of libmmdeploy_onnxruntime_ops.so is ONNX's GridSample."""
    path = library("mmdeploy/lib/libmmdeploy_onnxruntime_ops.so")
    shapes = {"x": [1, 2, 8, 8], "grid": [1, 4, 5, 2]}, [1, 2, 4, 5]
    custom = one_node(
        tmp_path / "custom.onnx", "grid_sampler", "mmdeploy", *shapes,
        align_corners=0, interpolation_mode=0, padding_mode=0,
    )  # fmt: skip
    builtin = one_node(tmp_path / "builtin.onnx", "GridSample", "", *shapes)
    report = opbridge("doctor", custom, "--library", path, "--load", "--json", code=2)
    # It is true that it is linked to libonnxruntime.so.1.15.1, which lies beside it.
    assert codes(report) == ["library-links-onnxruntime", "model-fixed-inputs"]
    wrong = one_node(tmp_path / "wrong.onnx", "grid_sample", "mmdeploy", *shapes)
    report = opbridge("doctor", wrong, "--library", path, "--load", "--json", code=1)
    (unserved,) = (f for f in report["findings"] if f["severity"] == "error")
    assert "grid_sampler" in unserved["evidence"] + unserved["fix"]
    text = opbridge("inspect", custom, "--library", path)
    assert "served by  not known" in text
    compared = opbridge("compare", custom, builtin, "--library", path, "--random", "--json")
    assert compared["equal"]
    timed = opbridge("bench", custom, builtin, "--library", path, "--random", "--runs", 20, "--json")
    assert all(side["equal"] for side in timed["sides"])


def test_tensorrt_plugins_are_none_for_onnxruntime():
    path = library("mmdeploy/lib/libmmdeploy_tensorrt_ops.so")
    assert "libnvinfer" in opbridge("inspect", path)
    report = opbridge("doctor", "--library", path, "--json", code=1)
    assert codes(report) == ["library-tensorrt-plugin"]


def test_microsofts_operators(tmp_path):
    """onnxruntime-extensions serves Python; its Inverse is numpy's."""
    path = library("onnxruntime_extensions/_extensions_pydll*.so")
    assert "exports RegisterCustomOps" in opbridge("inspect", path)
    model = one_node(tmp_path / "m.onnx", "Inverse", "ai.onnx.contrib", {"x": [3, 3]}, [3, 3])
    report = opbridge("doctor", model, "--library", path, "--load", "--json")
    assert codes(report) == ["library-needs-python", "model-fixed-inputs"]
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(path))
    x = random.uniform(-1, 1, (3, 3)).astype(np.float32)
    (y,) = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(
        None, {"x": x}
    )
    np.testing.assert_allclose(y, np.linalg.inv(x), rtol=1e-4)
    # A C++ program has no Python for it: an error that says so, and no crash.
    text = opbridge("run", model, "--library", path, "--random", code=1)
    assert "Py" in text
