"""opbridge.session: what it finds before ONNX Runtime is asked, and what ONNX Runtime then says with our
libraries."""

import shutil

import onnx
import onnxruntime
import opbridge
import pytest
from onnx import TensorProto, helper
from opbridge.ort_session import check_model


def session(model, *libraries, **options):
    return opbridge.session(model, libraries=libraries, **options)


AFFINE = {"op": "Affine", "domain": "test.ops", "inputs": ("x",)}


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (
            {"domain": "my_Namespace"},
            "no library given has domain 'my_Namespace', but .* under another domain, my_namespace::my_clip",
        ),
        (
            {"domain": "my_Namespace", "op": "other"},
            r"has domain 'my_Namespace' \(did you mean 'my_namespace'\?\)",
        ),
        (
            {"op": "My_Clip"},
            r"has domain 'my_namespace', but no operator 'My_Clip' \(did you mean 'my_clip'\?\)",
        ),
        (
            {"op": "my_clipp"},
            r"no operator 'my_clipp' \(did you mean 'my_clip'\?\); it has my_clip, my_clip_grad",
        ),
        ({"op": "Softmax"}, "no operator 'Softmax'; it has my_clip"),
        ({"op": "Affine"}, "has domain 'my_namespace', but no operator 'Affine'"),
        (
            {"domain": "other.ops"},
            "no library given has domain 'other.ops', but .* has the same operator under another domain, "
            "my_namespace::my_clip: export the model with that domain",
        ),
        (
            {"domain": "ai.onnx.contrib", "op": "Inverse"},
            "no library given has domain 'ai.onnx.contrib'; given are",
        ),
        ({"attributes": {"lower": 0.0}}, r"unknown attribute 'lower'; it has none"),
        (
            AFFINE | {"attributes": {"scal": 1.0}},
            r"unknown attribute 'scal' \(did you mean 'scale'\?\); it has scale, sh",
        ),
        (
            AFFINE | {"attributes": {"scale": 1.0, "Shift": 1}},
            r"unknown attribute 'Shift' \(did you mean 'shift'\?\)",
        ),
    ],
)
def test_names_and_attributes(my_clip, test_ops, make_model, model, text):
    with pytest.raises(opbridge.ModelError, match=text) as caught:
        session(make_model(**model), my_clip, test_ops)
    assert "node 'n0'" in str(caught.value)
    assert caught.value.kind == "model"


def test_no_library_at_all(make_model):
    model = make_model(metadata={"opbridge.library.my_namespace": "my_custom_ops 1"})
    with pytest.raises(
        opbridge.ModelError,
        match=r"no library given has domain 'my_namespace': the model was exported with my_custom_ops 1; give lib",
    ):
        session(model)


def test_every_problem_is_told_once(my_clip, make_model):
    model = make_model(op="clip", attributes={"low": 1.0})
    other = helper.make_node("my_clip", ["x"], ["z"], name="n1", domain="my_namespace", low=1.0)
    model.graph.node.extend([other, other])
    problems = check_model(model, [my_clip])
    assert len(problems) == 2
    assert "no operator 'clip'" in problems[0]
    assert "node 'n1'" in problems[1]


def test_subgraphs_and_local_functions_are_looked_into(my_clip, make_model):
    inner = make_model(op="inner_clip").graph.node[0]
    branch = helper.make_graph(
        [inner], "b", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )
    model = make_model()
    model.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch))
    assert "inner_clip" in check_model(model, [my_clip])[0]
    model = make_model(op="local")
    assert "no operator 'local'" in check_model(model, [my_clip])[0]
    model.functions.append(
        helper.make_function(
            "my_namespace", "local", ["x"], ["y"], [inner], [helper.make_opsetid("my_namespace", 1)]
        )
    )
    problems = check_model(model, [my_clip])  # the function itself is served by the model
    assert len(problems) == 1
    assert "inner_clip" in problems[0]


@pytest.mark.parametrize("library_recorded", [None, "my_custom_ops 7"])
def test_a_changed_declaration_says_re_export(my_clip, make_model, library_recorded):
    key = "opbridge.fingerprint.my_namespace::my_clip"
    good = {key: my_clip.operators["my_clip"].fingerprint}
    assert session(make_model(metadata=good), my_clip).get_inputs()[0].name == "x"
    bad = {key: "0000000000000000"}
    if library_recorded:
        bad["opbridge.library.my_namespace"] = library_recorded
    with pytest.raises(opbridge.ModelError, match=r"another declaration .*: re-export the model") as caught:
        session(make_model(metadata=bad), my_clip)
    assert (library_recorded or "another library") in str(caught.value)


# --- what the library finds when the session is made


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({}, r"attribute 'scale' \(float\) is required, but missing"),
        ({"scale": 1}, "attribute 'scale' must be of type float, got int"),
        ({"scale": "1"}, "attribute 'scale' must be of type float, got string"),
        ({"scale": 0.0}, r"attribute 'scale' must lie in \(0, inf\), got 0"),
        ({"scale": 1.0, "shift": 2.0}, "attribute 'shift' must be of type int, got float"),
        ({"scale": 1.0, "shift": [1]}, "attribute 'shift' must be of type int, got"),
        ({"scale": 1.0, "mode": "cube"}, "attribute 'mode' must be one of"),
        ({"scale": 1.0, "negate": 2}, "attribute 'negate' must be 0 or 1, got 2"),
        ({"scale": 1.0, "picks": [1, 200]}, r"attribute 'picks' must lie in \[0, 100\], got 200"),
    ],
)
def test_attribute_values(test_ops, make_model, attributes, text):
    with pytest.raises(Exception, match=text) as caught:
        session(make_model(**AFFINE, attributes=attributes), test_ops)
    assert "Affine" in str(caught.value)
    assert "n0" in str(caught.value)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ({"inputs": ("",)}, "n0.*(empty string|required|'x')"),
        ({"inputs": ("x", "min", "max", "more"), "shapes": {"more": []}}, "n0.*4.*range"),
        ({"dtypes": {"x": "float32", "min": "float64", "max": "float32", "y": "float32"}}, "Type|type"),
        (
            {"dtypes": {"x": "float32", "min": "float32", "max": "float32", "y": "float64"}},
            r"Type.*\(y\).*n0",
        ),
    ],
)
def test_inputs_and_types(my_clip, make_model, model, text):
    with pytest.raises(Exception, match=text):
        session(make_model(**model), my_clip)


# --- libraries


def test_libraries_that_cannot_be_used(make_model, my_clip, my_clip_path, tmp_path):
    import torch

    with pytest.raises(opbridge.LoadError, match="no file"):
        session(make_model(), tmp_path / "gone.so")
    with pytest.raises(opbridge.LoadError, match=r"is a Python module .*, not an operator library"):
        session(make_model(), torch._C.__file__)
    other = tmp_path / "other.so"
    shutil.copy(my_clip_path, other)
    with open(other, "ab") as file:
        file.write(b"\0")
    with pytest.raises(opbridge.LoadError, match="a different build, already serves"):
        session(make_model(), my_clip, other)


def test_a_library_that_is_not_ours_is_registered_unchecked(make_model, compile_c, my_clip):
    foreign = compile_c("foreign", "void* RegisterCustomOps(void* o, void* a) { return o == a ? 0 : 0; }")
    assert session(make_model(), foreign, my_clip).get_outputs()[0].name == "y"
    with pytest.raises(Exception, match=r"other.ops"):  # nobody has it: ONNX Runtime itself says so
        session(make_model(domain="other.ops"), foreign)
    with pytest.raises(opbridge.ModelError, match="no operator 'clip'"):
        session(make_model(op="clip"), foreign, my_clip)


def test_models_that_cannot_be_read(my_clip, tmp_path):
    with pytest.raises(opbridge.ModelError, match=r"no model file '.*gone.onnx'"):
        session(tmp_path / "gone.onnx", my_clip)


def test_old_onnxruntime(my_clip, make_model, monkeypatch):
    monkeypatch.setattr(onnxruntime, "__version__", "1.15.1")
    with pytest.raises(
        opbridge.NotSupportedError, match=r"need ONNX Runtime 1.16 or newer, this is 1.15.1: upgrade"
    ):
        session(make_model(), my_clip)


# --- providers


def test_providers(my_clip, make_model, monkeypatch):
    model = make_model()
    for options in [{}, {"provider": "cpu"}, {"providers": ["CPUExecutionProvider"]}]:
        assert session(model, my_clip, **options).get_providers() == ["CPUExecutionProvider"]
    with pytest.raises(opbridge.InvalidArgumentError, match=r"give either provider= or providers="):
        session(model, my_clip, provider="cpu", providers=["CPUExecutionProvider"])
    with pytest.raises(opbridge.InvalidArgumentError, match="provider is one of 'cpu', 'cuda', got 'CUDA'"):
        session(model, my_clip, provider="CUDA")


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="needs a CPU-only wheel"
)
def test_cuda_without_cuda(my_clip, make_model):
    with pytest.raises(
        opbridge.NotSupportedError, match=r"has no CUDAExecutionProvider, only .*: install onnxruntime-gpu"
    ):
        session(make_model(), my_clip, provider="cuda")
    fallback = session(make_model(), my_clip, provider="cuda", allow_fallback=True)
    assert fallback.get_providers() == ["CPUExecutionProvider"]


def test_cuda_needs_cuda_kernels(test_ops, make_model, monkeypatch):
    monkeypatch.setattr(
        onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
    )
    with pytest.raises(
        opbridge.NotSupportedError, match=r"no CUDA kernel for test.ops::Affine \(node 'n0'\)"
    ):
        session(make_model(**AFFINE, attributes={"scale": 1.0}), test_ops, provider="cuda")


def test_model_proto_is_not_changed(my_clip, make_model):
    model = make_model()
    before = model.SerializeToString()
    session(model, my_clip)
    assert model.SerializeToString() == before
    onnx.checker.check_model(model)
