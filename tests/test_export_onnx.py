"""The onnx package on models with our operators: schemas, shape inference, reference evaluation, quantisation."""

import numpy as np
import onnx
import opbridge
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from onnxruntime.quantization.shape_inference import quant_pre_process
from opbridge import onnx_schema
from opbridge.onnx_schema import Size
from test_export_models import both, export


@pytest.fixture(autouse=True)
def registered(my_clip, test_ops):
    for library in (my_clip, test_ops):
        onnx_schema.register(library)


def inferred(model, name="y", **options):
    model = onnx.shape_inference.infer_shapes(model, **options)
    value = next(v for v in (*model.graph.output, *model.graph.value_info) if v.name == name)
    dtype, sizes = onnx_schema.dtype_and_sizes(value.type)
    # onnx names unknown dimensions unk__<n>
    return dtype, sizes and [None if str(s).startswith("unk__") else s for s in sizes]


@both
def test_an_exported_model_works_with_the_onnx_tools(my_clip, tmp_path, exporter):
    from opbridge.my_clip import MyClip

    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), MyClip(-0.5, 0.5))
    x = torch.randn(2, 3, 8, 8)
    report, model = export(net, x, tmp_path, exporter, dynamic_shapes=[{0: "batch"}], output_names=["y"])
    onnx.checker.check_model(model, full_check=True)
    assert inferred(model, strict_mode=True, data_prop=True) == ("f32", ["batch", 4, 6, 6])
    (y,) = ReferenceEvaluator(model, new_ops=onnx_schema.reference_ops(my_clip)).run(
        None, {"input": x.numpy()}
    )
    np.testing.assert_allclose(y, net(x).detach().numpy(), rtol=1e-4, atol=1e-6)
    quant_pre_process(report.path, tmp_path / "prepared.onnx", skip_optimization=True)
    assert [
        n.op_type for n in onnx.load(tmp_path / "prepared.onnx").graph.node if n.op_type != "Constant"
    ] == [
        "Conv",
        "my_clip",
    ]


def test_schema_says_what_the_signature_says(test_ops):
    schema = onnx.defs.get_schema("Pairs", "test.ops")
    option = onnx.defs.OpSchema.FormalParameterOption
    assert [(i.name, i.option) for i in schema.inputs] == [
        ("a", option.Single), ("b", option.Single), ("start", option.Optional)]  # fmt: skip
    assert [o.option for o in schema.outputs] == [option.Single, option.Single, option.Optional]
    assert schema.attributes["k"].required
    affine = onnx.defs.get_schema("Affine", "test.ops")
    assert affine.attributes["weights"].default_value.floats == [1.0]
    assert affine.attributes["mode"].default_value.s == b"plain"
    assert affine.attributes["scale"].required
    assert [sorted(t.allowed_type_strs) for t in affine.type_constraints] == [
        ["tensor(double)", "tensor(float)"]
    ]
    assert onnx.defs.get_schema("Stack", "test.ops").inputs[0].option == option.Variadic


@pytest.mark.parametrize(
    ("shape", "expected"), [(["n", 3], ["n", 3]), ([2, None], [2, None]), (None, None)], ids=str
)
def test_shapes_of_my_clip(make_model, shape, expected):
    model = make_model(shapes={"x": shape, "y": None, "min": [1]})
    assert inferred(model, strict_mode=True) == ("f32", expected)


def test_arithmetic_on_dimensions(make_model):
    def shapes(a, b, k=2):
        model = make_model(
            "Pairs", "test.ops", inputs=("a", "b"), outputs=("sum", "idx", "twice"), attributes={"k": k},
            shapes={"a": a, "b": b, "sum": None, "idx": None, "twice": None},
            dtypes={"a": "float32", "b": "float32", "sum": "float32", "idx": "int32", "twice": "float32"},
        )  # fmt: skip
        return [inferred(model, name) for name in ("sum", "idx", "twice")]

    assert shapes([5, 3], [2, 5, 3]) == [("f32", [2, 5, 3]), ("i32", [2, 2]), ("f32", [2, 11])]
    assert shapes(["n", 3], ["b", "n", 3])[0] == ("f32", ["b", "n", 3])
    assert shapes(["n", 3], ["b", "n", 3])[2] == ("f32", ["b", "(((2 * n) + 2) - 1)"])
    assert shapes([None, 3], ["b", None, 3])[2] == ("f32", ["b", None])
    assert shapes(None, ["b", "n", 3])[1] == ("i32", None)
    with pytest.raises(
        onnx.shape_inference.InferenceError, match=r"test.ops::Pairs: input 'b' must have shape"
    ):
        shapes([5, 3], [2, 6, 3])


def test_unknown_attribute_and_type_are_refused_by_the_checker(make_model):
    onnx.checker.check_model(make_model(), full_check=True)
    with pytest.raises(onnx.checker.ValidationError, match="radius"):
        onnx.checker.check_model(make_model(attributes={"radius": 1.0}))
    with pytest.raises(onnx.shape_inference.InferenceError):
        onnx.checker.check_model(make_model(dtypes="float32", shapes={"min": [2]}), full_check=True)


def test_reference_evaluation_with_attributes_and_lists(test_ops, make_model):
    x = np.array([1, 2, 3], np.float32)
    ops = onnx_schema.reference_ops(test_ops)
    model = make_model(
        "Affine",
        "test.ops",
        inputs=("x",),
        attributes={"scale": 2.0, "negate": 1, "mode": "square", "picks": [1, 2]},
    )
    expected = test_ops.ops.affine(x, scale=2.0, negate=True, mode="square", picks=[1, 2])
    np.testing.assert_array_equal(ReferenceEvaluator(model, new_ops=ops).run(None, {"x": x})[0], expected)
    model = make_model("Stack", "test.ops", inputs=("a", "b", "c"))
    (y,) = ReferenceEvaluator(model, new_ops=ops).run(None, {"a": x, "b": x, "c": x})
    np.testing.assert_array_equal(y, 3 * x)


def test_a_schema_of_someone_else_is_an_error(my_clip, monkeypatch):
    monkeypatch.setattr(onnx_schema, "_registered", set())
    with pytest.raises(opbridge.LoadError, match="onnx already has a schema of my_namespace::my_clip"):
        onnx_schema.register(my_clip)


def test_sizes_compare_only_what_is_known():
    assert Size(3) == 3
    assert not Size(3) == 4  # noqa: SIM201
    assert Size("n") == 4
    assert Size(None) == Size("n")
    assert (2 * Size("n") // 3).value == "((2 * n) // 3)"
    assert (7 - Size(3)).value == 4
    assert (Size(None) + 1).value is None
