"""opbridge.export on both exporters: the same custom nodes, and the traps people fall into."""

import threading

import numpy as np
import onnx
import opbridge
import pytest
import torch
from torch import nn

EXPORTERS = ("dynamo", "torchscript")
both = pytest.mark.parametrize("exporter", EXPORTERS)


class ClipFunction(torch.autograd.Function):
    """A user's own operator, as the tutorials write it."""

    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward(x)
        return torch.clamp(x, low, high)

    @staticmethod
    def backward(ctx, grad):
        return grad, None, None


class LowerBoundFunction(torch.autograd.Function):
    """In the newer form: forward has no ctx."""

    @staticmethod
    def forward(x, low):
        return torch.maximum(x, low)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


captured_apply = ClipFunction.apply  # as `fps = FurthestPointSampling.apply` in the PointNet++ sources


class PairsFunction(torch.autograd.Function):
    """Other order of arguments than test.ops::Pairs, and int64 indices."""

    @staticmethod
    def forward(ctx, k, b, a):
        index = (torch.arange(k, device=b.device) % k).expand(*b.shape[:-2], k).contiguous()
        return a + b, index

    @staticmethod
    def backward(ctx, *grads):
        return None, None, None


@pytest.fixture(scope="session")
def foreign():
    """Torch operators that someone else defined: clip, and index, which returns int64."""
    library = torch.library.Library("export_test", "DEF")

    @torch.library.custom_op("export_test::clip", mutates_args=())
    def clip(x: torch.Tensor, low: float, high: float = 0.25) -> torch.Tensor:
        return torch.clamp(x, low, high).clone()

    clip.register_fake(lambda x, low, high=0.25: torch.empty_like(x))

    @torch.library.custom_op("export_test::index", mutates_args=())
    def index(a: torch.Tensor, b: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        return a + b, torch.arange(k).expand(*b.shape[:-2], k).contiguous()

    @index.register_fake
    def _(a, b, k):
        return torch.empty_like(b), b.new_empty((*b.shape[:-2], k), dtype=torch.int64)

    yield torch.ops.export_test
    library._destroy()


def module(function, **attributes):
    """A module whose forward is `function`."""

    class Wrapped(nn.Module):
        def forward(self, *args):
            return function(*args)

    result = Wrapped()
    for name, value in attributes.items():
        setattr(result, name, value)
    return result


def export(model, args, tmp_path, exporter, **options):
    report = opbridge.export(model, args, tmp_path / f"{exporter}.onnx", exporter=exporter, **options)
    return report, onnx.load(report.path)


def run(report, libraries, *inputs):
    session = opbridge.session(report.path, libraries)
    feeds = {i.name: np.asarray(v) for i, v in zip(session.get_inputs(), inputs, strict=True)}
    return session.run(None, feeds)


def custom_part(model, domain):
    """What both exporters must agree on: for each custom node its name, inputs (constants by value), attributes and
    which outputs it has."""
    constants = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            attribute = node.attribute[0]
            value = onnx.helper.get_attribute_value(attribute)
            constants[node.output[0]] = (
                onnx.numpy_helper.to_array(value) if attribute.name == "value" else np.asarray(value)
            )

    def spell(name):
        if name in constants:
            return str(constants[name].dtype), constants[name].tolist()
        return "value" if name else "absent"

    return [
        (
            node.op_type,
            [spell(name) for name in node.input],
            {a.name: (a.type, onnx.helper.get_attribute_value(a)) for a in node.attribute},
            [bool(name) for name in node.output],
        )
        for node in model.graph.node
        if node.domain == domain
    ]


def value_types(model):
    """{value: (element type, [dimensions])}"""
    return {
        v.name: (
            v.type.tensor_type.elem_type,
            [d.dim_value if d.HasField("dim_value") else d.dim_param for d in v.type.tensor_type.shape.dim],
        )
        for v in (*model.graph.value_info, *model.graph.output)
    }


# --- the module that comes with opbridge


@both
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64]
)
def test_every_type_of_my_clip(my_clip, tmp_path, exporter, dtype):
    from opbridge.my_clip import MyClip

    x = torch.tensor([[-3, -1, 0], [1, 2, 3]]).to(dtype)
    report, model = export(MyClip(-1, 2, dtype=dtype), x, tmp_path, exporter, dynamic_shapes=[{0: "n"}])
    assert [n for n, _, _ in report.nodes] == ["my_namespace::my_clip"]
    assert len(report.checks) == 2
    assert report.inputs["x"].endswith("[n,3]")
    (node,) = custom_part(model, "my_namespace")
    kind = str(dtype).removeprefix("torch.")
    assert node == ("my_clip", ["value", (kind, -1), (kind, 2)], {}, [True])


@both
@pytest.mark.parametrize(
    ("bounds", "inputs"),
    [
        ((None, 2), ["value", "absent", ("float32", 2)]),
        ((1, None), ["value", ("float32", 1)]),
        ((None, None), ["value"]),
    ],
)
def test_absent_bounds(my_clip, tmp_path, exporter, bounds, inputs):
    from opbridge.my_clip import MyClip

    _, model = export(MyClip(*bounds), torch.randn(5), tmp_path, exporter)
    assert custom_part(model, "my_namespace") == [("my_clip", inputs, {}, [True])]


@both
def test_types_names_and_metadata(my_clip, tmp_path, exporter):
    from opbridge.my_clip import MyClip

    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), MyClip(-0.5, 0.5), nn.Conv2d(4, 2, 1), MyClip(0, None))
    report, model = export(
        net, torch.randn(2, 3, 8, 8), tmp_path, exporter, input_names=["photo"], output_names=["mask"],
        dynamic_axes={"photo": {0: "batch"}, "mask": {0: "batch"}},
    )  # fmt: skip
    assert report.inputs == {"photo": "f32[batch,3,8,8]"}
    assert report.outputs == {"mask": "f32[batch,2,8,8]"}
    first, second = (n for n in model.graph.node if n.domain)
    types = value_types(model)
    assert types[first.output[0]] == (onnx.TensorProto.FLOAT, ["batch", 4, 8, 8])
    assert types[second.output[0]] == (onnx.TensorProto.FLOAT, ["batch", 2, 8, 8])
    assert {i.name for i in model.graph.initializer} >= {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert {o.domain: o.version for o in model.opset_import} == {"": 18, "my_namespace": 1}
    assert {p.key: p.value for p in model.metadata_props} == {
        "opbridge.exporter": exporter,
        "opbridge.library.my_namespace": f"my_custom_ops {my_clip.version}",
        "opbridge.fingerprint.my_namespace::my_clip": my_clip.operators["my_clip"].fingerprint,
    }
    text = str(report)
    assert "input   photo: f32[batch,3,8,8]" in text
    assert "checked photo [1, 3, 8, 8]: max difference mask" in text


@both
def test_training_mode_and_gradients_are_left_as_they_were(my_clip, tmp_path, exporter):
    from opbridge.my_clip import MyClip

    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9), nn.BatchNorm1d(4), MyClip(-1, 1))
    net[1].eval()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    report, _ = export(net, torch.randn(3, 4, requires_grad=True), tmp_path, exporter)
    assert [m.training for m in net] == [True, False, True, True]
    assert net.training
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert any("eval mode" in note for note in report.notes)


# --- map


@both
@pytest.mark.parametrize(
    "apply", [lambda *a: ClipFunction.apply(*a), captured_apply], ids=["apply", "captured"]
)
def test_autograd_function(my_clip, tmp_path, exporter, apply):
    forward = ClipFunction.__dict__["forward"]
    net = module(lambda x: LowerBoundFunction.apply(apply(x, -0.5, 0.5) * 2, net.low))
    net.register_buffer("low", torch.tensor(-0.25))
    report, model = export(
        net, torch.randn(4, 3), tmp_path, exporter, dynamic_shapes={"args_0": {0: "n"}},
        map={ClipFunction: "my_namespace::my_clip", LowerBoundFunction: "my_namespace::my_clip"},
    )  # fmt: skip
    expected = [
        ("my_clip", ["value", ("float32", -0.5), ("float32", 0.5)], {}, [True]),
        ("my_clip", ["value", ("float32", -0.25)], {}, [True]),
    ]
    assert custom_part(model, "my_namespace") == expected
    for size in (1, 2, 100):
        x = torch.randn(size, 3)
        (y,) = run(report, [my_clip], x)
        torch.testing.assert_close(torch.from_numpy(y), net(x))
    assert ClipFunction.__dict__["forward"] is forward
    assert "symbolic" not in ClipFunction.__dict__


@both
@pytest.mark.parametrize(
    "key", [lambda ops: "export_test::clip", lambda ops: ops.clip, lambda ops: ops.clip.default]
)
def test_foreign_operator(my_clip, foreign, tmp_path, exporter, key):
    net = module(lambda x: foreign.clip(x.double(), -0.5, high=0.75) + foreign.clip(x.double(), -1.0))
    _, model = export(net, torch.randn(4, 3), tmp_path, exporter, map={key(foreign): "my_namespace::my_clip"})
    assert custom_part(model, "my_namespace") == [
        ("my_clip", ["value", ("float64", -0.5), ("float64", 0.75)], {}, [True]),
        ("my_clip", ["value", ("float64", -1.0), ("float64", 0.25)], {}, [True]),
    ]


@both
def test_adapter_and_other_index_type(test_ops, tmp_path, exporter):
    def pairs(a, b):
        total, index = PairsFunction.apply(3, b, a)
        return total, torch.gather(total[..., 0], 1, index)

    a, b = torch.randn(2, 5, 3), torch.randn(2, 5, 3)
    adapter = lambda k, b, a: ((a, b), {"k": k})
    report, model = export(
        module(pairs), (a, b), tmp_path, exporter, map={PairsFunction: ("test.ops::Pairs", adapter)},
        dynamic_shapes=({0: "batch"}, {0: "batch"}),
    )  # fmt: skip
    ints = {"k": (onnx.AttributeProto.INT, 3)}
    assert custom_part(model, "test.ops") == [("Pairs", ["value", "value"], ints, [True, True])]
    assert [c.shapes["args_0"] for c in report.checks] == [(2, 5, 3), (1, 5, 3)]


@both
def test_foreign_operator_of_another_index_type(test_ops, foreign, tmp_path, exporter):
    def pairs(a, b):
        total, index = foreign.index(a, b, 3)
        return total, torch.gather(total[..., 0], 1, index), index

    report, model = export(
        module(pairs), (torch.randn(2, 5, 3), torch.randn(2, 5, 3)), tmp_path, exporter,
        map={"export_test::index": ("test.ops::Pairs", lambda a, b, k: ((a, b), {"k": k}))},
    )  # fmt: skip
    assert report.outputs["output_2"] == "i64[2,3]"
    (node,) = (n for n in model.graph.node if n.domain)
    assert value_types(model)[node.output[1]] == (onnx.TensorProto.INT32, [2, 3])
    (after,) = (n for n in model.graph.node if node.output[1] in n.input)
    assert (after.op_type, after.attribute[0].i) == ("Cast", onnx.TensorProto.INT64)


# --- attributes, variadic inputs, optional inputs and outputs


@both
def test_attributes_of_every_kind(test_ops, tmp_path, exporter):
    affine = torch.ops.test_ops.affine
    net = module(
        lambda x: (
            affine(x, scale=0.1, shift=-2, negate=True, mode="square", weights=[0.5, 3.0], picks=[4, 5])
            + affine(x, scale=2)
        )
    )
    _, model = export(net, torch.randn(3), tmp_path, exporter)
    kind = onnx.AttributeProto
    first, second = custom_part(model, "test.ops")
    assert first == (
        "Affine",
        ["value"],
        {
            "scale": (kind.FLOAT, float(np.float32(0.1))),
            "shift": (kind.INT, -2),
            "negate": (kind.INT, 1),
            "mode": (kind.STRING, b"square"),
            "weights": (kind.FLOATS, [0.5, 3.0]),
            "picks": (kind.INTS, [4, 5]),
        },
        [True],
    )
    assert second[2]["weights"] == (kind.FLOATS, [1.0])
    assert second[2]["mode"] == (kind.STRING, b"plain")
    assert second[2]["picks"] == (kind.INTS, [])


@both
def test_variadic_input(test_ops, tmp_path, exporter):
    net = module(lambda x, y: torch.ops.test_ops.stack([x, y, x + y]))
    _, model = export(
        net, (torch.randn(4), torch.randn(4)), tmp_path, exporter, dynamic_axes={"args_0": [0], "args_1": [0]}
    )
    assert custom_part(model, "test.ops") == [("Stack", ["value"] * 3, {}, [True])]


@both
def test_unused_optional_output_is_left_out(test_ops, tmp_path, exporter):
    pairs = torch.ops.test_ops.pairs
    net = module(lambda a, b: pairs(a, b, k=2)[:2])
    report, model = export(net, (torch.randn(4, 3), torch.randn(2, 4, 3)), tmp_path, exporter)
    (node,) = (n for n in model.graph.node if n.domain)
    assert len(node.output) == 2
    assert any("'twice'" in text and "left out" in text for text in report.rewritten)


@both
def test_one_node_for_all_outputs(test_ops, tmp_path, exporter):
    net = module(lambda a, b: torch.ops.test_ops.pairs(a, b, torch.tensor([7]), k=2))
    report, model = export(
        net, (torch.randn(4, 3), torch.randn(2, 4, 3)), tmp_path, exporter, output_names=["sum", "idx", "twice"],
        dynamic_shapes=({0: "points"}, {0: "batch", 1: "points"}),
    )  # fmt: skip
    (node,) = custom_part(model, "test.ops")
    assert node[1] == ["value", "value", ("int64", [7])]
    assert node[3] == [True, True, True]
    assert report.outputs["sum"] == "f32[batch,points,3]"
    assert report.outputs["idx"] == "i32[batch,2]"
    assert report.outputs["twice"].startswith("f32[batch,")
    assert "points" in report.outputs["twice"]
    for batch, points in ((1, 1), (5, 9)):
        results = run(report, [test_ops], torch.randn(points, 3), torch.randn(batch, points, 3))
        assert [r.shape for r in results] == [(batch, points, 3), (batch, 2), (batch, 2 * points + 1)]


# --- traps


@both
def test_tiny_epsilon_survives(my_clip, tmp_path, exporter):
    """The dynamo exporter's default optimiser deletes `+ 1e-8`: a point at distance 0 then gives NaN."""
    from opbridge.my_clip import MyClip

    clip = MyClip(-1, 1)
    net = module(lambda x: clip(x) / (clip(x).norm(dim=1, keepdim=True) + 1e-8), clip=clip)
    x = torch.randn(6, 3)
    x[2] = 0
    report, _ = export(net, x, tmp_path, exporter, dynamic_shapes=[{0: "n"}])
    (y,) = run(report, [my_clip], x)
    assert not np.isnan(y).any()
    assert (y[2] == 0).all()


@both
def test_batch_of_one_stays_dynamic(my_clip, tmp_path, exporter):
    from opbridge.my_clip import MyClip

    net = nn.Sequential(nn.Linear(3, 2), MyClip(-1, 1), nn.Flatten())
    report, _ = export(
        net, torch.randn(1, 4, 3), tmp_path, exporter, dynamic_shapes=[{0: "batch", 1: "points"}]
    )
    assert report.inputs == {"input": "f32[batch,points,3]"}
    for shape in ((1, 1, 3), (7, 100, 3), (2, 4096, 3)):
        x = torch.randn(shape)
        (y,) = run(report, [my_clip], x)
        torch.testing.assert_close(torch.from_numpy(y), net(x).detach(), rtol=1e-4, atol=1e-5)


@both
def test_structures_keywords_and_constants(my_clip, tmp_path, exporter):
    from opbridge.my_clip import MyClip

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.clip = MyClip(-1, 1)

        def forward(self, data, scale, *, offset):
            y = self.clip(data["xyz"] * scale) + offset
            return {"points": y, "parts": (y.sum(0), data["rgb"] + 1), "nothing": None}

    data = {"xyz": torch.randn(4, 3), "rgb": torch.randn(4, 3)}
    report, _ = export(
        Net(), (data, 2.0), tmp_path, exporter, kwargs={"offset": torch.ones(3)},
        dynamic_shapes={"data": {"xyz": {0: "n"}, "rgb": {0: torch.export.Dim("n")}}, "scale": None, "offset": None},
    )  # fmt: skip
    assert report.inputs == {"data_xyz": "f32[n,3]", "data_rgb": "f32[n,3]", "offset": "f32[3]"}
    assert report.outputs == {"points": "f32[n,3]", "parts_0": "f32[3]", "parts_1": "f32[n,3]"}
    assert "scale = 2.0 is a constant of the exported model" in report.notes


@both
def test_nothing_stays_patched_when_an_export_fails(my_clip, foreign, tmp_path, exporter):
    forward = ClipFunction.__dict__["forward"]

    def broken(x):
        y = foreign.clip(ClipFunction.apply(x, 0.0, 1.0), 0.0)
        if torch.compiler.is_exporting() or torch.jit.is_tracing():
            raise RuntimeError("not today")
        return y

    with pytest.raises(RuntimeError, match="not today"):
        export(
            module(broken), torch.randn(3), tmp_path, exporter,
            map={ClipFunction: "my_namespace::my_clip", "export_test::clip": "my_namespace::my_clip"},
        )  # fmt: skip
    assert ClipFunction.__dict__["forward"] is forward
    assert "symbolic" not in ClipFunction.__dict__
    assert list(tmp_path.iterdir()) == []
    from torch.onnx._internal.torchscript_exporter import registration

    for name in ("export_test::clip", "my_namespace::my_clip"):
        group = registration.registry.get_function_group(name)
        assert group is None or group.get(18) is None


def test_a_symbolic_of_the_users_own_is_used_again_afterwards(my_clip, foreign, tmp_path):
    from torch.onnx._internal.torchscript_exporter import registration

    own = lambda g, x, low, high: g.op("Identity", x)
    torch.onnx.register_custom_op_symbolic("export_test::clip", own, 13)
    torch.onnx.register_custom_op_symbolic("export_test::clip", own, 18)
    try:
        net = module(lambda x: foreign.clip(x, -0.5))
        _, model = export(
            net, torch.randn(4), tmp_path, "torchscript", map={"export_test::clip": "my_namespace::my_clip"}
        )
        assert len(custom_part(model, "my_namespace")) == 1
        group = registration.registry.get_function_group("export_test::clip")
        assert group.get(18) is own
        assert group.get(13) is own
        assert group.get(9) is None
    finally:
        torch.onnx.unregister_custom_op_symbolic("export_test::clip", 13)
        torch.onnx.unregister_custom_op_symbolic("export_test::clip", 18)


def test_other_threads_keep_the_original(my_clip, tmp_path):
    from opbridge._export.targets import patched

    seen = {}
    with patched("forward", {ClipFunction: lambda original: lambda ctx, x, low, high: x * 0}):
        thread = threading.Thread(
            target=lambda: seen.update(other=ClipFunction.apply(torch.ones(1), 0.0, 2.0))
        )
        thread.start()
        thread.join()
        seen["own"] = ClipFunction.apply(torch.ones(1), 0.0, 2.0)
    assert seen["other"].item() == 1
    assert seen["own"].item() == 0
    assert ClipFunction.apply(torch.ones(1), 0.0, 2.0).item() == 1


@pytest.mark.parametrize(("exporter", "opset"), [("dynamo", 20), ("torchscript", 17), ("torchscript", 20)])
def test_opset_versions(my_clip, tmp_path, exporter, opset):
    from opbridge.my_clip import MyClip

    report, model = export(MyClip(-1, 1), torch.randn(3), tmp_path, exporter, opset_version=opset)
    assert {o.domain: o.version for o in model.opset_import} == {"": opset, "my_namespace": 1}
    assert model.ir_version == {17: 8, 20: 9}[opset]
    assert len(report.checks) == 1
