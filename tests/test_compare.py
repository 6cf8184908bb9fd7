"""opbridge.compare: what it finds, what it matches by, and what it says."""

import contextlib
import io

import numpy as np
import onnx
import opbridge
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from opbridge._compare import onnx_trace
from opbridge._compare.torch_trace import trace


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 3, 3, padding=1)
        self.bn = torch.nn.BatchNorm2d(3)
        self.act = torch.nn.GELU()

    def forward(self, x):
        return self.act(self.bn(self.conv(x))) + x


class Net(torch.nn.Module):
    """A module called twice, one in a container, a decomposed operator, a custom one, operations without a module."""

    def __init__(self):
        super().__init__()
        from opbridge.my_clip import MyClip

        self.blocks = torch.nn.Sequential(Block(), Block())
        self.clip = MyClip(-0.5, 0.5)
        self.head = torch.nn.Linear(3, 2)
        self.relu = torch.nn.ReLU()

    def forward(self, x):
        x = self.relu(self.blocks(x))
        x = self.relu(self.clip(x) * 2)
        return torch.softmax(self.head(x.mean((2, 3))), -1)


X = torch.linspace(-2, 2, 192).reshape(1, 3, 8, 8)


@pytest.fixture(scope="module")
def net(my_clip):
    torch.manual_seed(1)
    return Net().eval()


@pytest.fixture(scope="module")
def files(net, tmp_path_factory):
    """{exporter: path}, each exported once."""
    folder = tmp_path_factory.mktemp("compare")
    paths = {e: str(folder / f"{e}.onnx") for e in ("dynamo", "torchscript")}
    for exporter, path in paths.items():
        opbridge.export(net, (X,), path, exporter=exporter)
    return paths


@pytest.fixture(params=["dynamo", "torchscript"])
def path(request, files):
    return files[request.param]


def row(report, module, op):
    return next(r for r in report.rows if r.module == module and op in r.op)


def change_input(path, tmp_path, find, position=1, change=lambda w: w * 1.5):
    """A copy of the model whose first node that `find` likes has another constant; (its path, the node's name)."""
    model = onnx.load(path)
    node = next(n for n in model.graph.node if find(n))
    name = node.input[position]
    for tensor in (
        *model.graph.initializer,
        *(n.attribute[0].t for n in model.graph.node if n.op_type == "Constant" and n.output[0] == name),
    ):
        if tensor.name == name or tensor not in model.graph.initializer:
            tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), tensor.name))
    onnx.save(model, tmp_path / "changed.onnx")
    return tmp_path / "changed.onnx", node.name


class TestTorchAgainstOnnx:
    def test_no_difference(self, net, path):
        report = opbridge.compare(net, path, (X,))
        assert report.equal, str(report)
        assert report.first_divergence is None
        assert not report.weights
        assert not report.origins
        assert report.verdict().startswith("equal")
        assert len(report.rows) >= 13
        clip = row(report, "clip", "my_clip")
        assert clip.difference.max < 1e-6
        assert (
            clip.source.endswith(f"my_clip.py:{clip.source.rpartition(':')[2]}")
            or "test_compare.py" in clip.source
        )

    @pytest.mark.parametrize("block", [0, 1])
    def test_names_the_wrong_layer(self, net, path, block, tmp_path):
        conv = [n for n in onnx.load(path).graph.node if n.op_type == "Conv"][block]
        changed, node = change_input(path, tmp_path, lambda n: n.name == conv.name)
        report = opbridge.compare(net, changed, (X,))
        assert not report.equal
        first = report.first_divergence
        assert first.node == node
        # TorchScript folds the BatchNorm into the convolution: the tensor is that of blocks.N.bn.
        assert first.module in (f"blocks.{block}.conv", f"blocks.{block}.bn")
        assert "test_compare.py:" in first.source
        assert first.inherited is (False if block else None)
        assert f"node '{node}'" in report.verdict()
        if "dynamo" in path:
            assert [name for name, _ in report.weights] == [f"blocks.{block}.conv.weight"]

    def test_names_the_wrong_custom_operator(self, net, path, tmp_path):
        changed, node = change_input(
            path, tmp_path, lambda n: n.op_type == "my_clip", 2, lambda w: np.float32(0.25) + 0 * w
        )
        report = opbridge.compare(net, changed, (X,))
        assert report.first_divergence.node == node
        assert report.first_divergence.op == "my_namespace::my_clip"
        assert report.first_divergence.module == "clip"

    def test_a_module_called_twice(self, net, path):
        """Both calls of self.relu, each with its own tensor."""
        report = opbridge.compare(net, path, (X,))
        twice = [r for r in report.rows if r.module == "relu"]
        assert len(twice) == 2
        assert all(r.difference.max < 1e-6 for r in twice)

    def test_what_it_matches_by(self, net, files, tmp_path):
        by = {e: {r.by for r in opbridge.compare(net, p, (X,)).rows} for e, p in files.items()}
        assert by["dynamo"] == {"metadata", "output"}
        assert by["torchscript"] == {"scope", "structure", "output"}
        model = onnx.load(files["dynamo"])
        for node in model.graph.node:
            del node.metadata_props[:]
        onnx.save(model, tmp_path / "names.onnx")
        report = opbridge.compare(net, tmp_path / "names.onnx", (X,))
        assert {r.by for r in report.rows} >= {"names"}
        assert report.equal
        for k, node in enumerate(model.graph.node):
            node.name = str(k)
        onnx.save(model, tmp_path / "bare.onnx")
        report = opbridge.compare(net, tmp_path / "bare.onnx", (X,))
        assert {r.by for r in report.rows} == {"structure", "output"}
        assert any("does not say which module" in note for note in report.notes)
        assert report.first_divergence is None

    @pytest.mark.parametrize("dynamo", [True, False])
    def test_files_of_torch_itself(self, net, dynamo, tmp_path):
        """torch's own optimised export: BatchNorm fused, and the rest of its notes kept."""
        plain = Net().eval()
        plain.load_state_dict(net.state_dict(), strict=False)
        plain.clip = torch.nn.Hardtanh(-0.5, 0.5)
        path = tmp_path / "m.onnx"
        with contextlib.redirect_stdout(io.StringIO()):
            torch.onnx.export(plain, (X,), path, dynamo=dynamo, opset_version=18)
        report = opbridge.compare(plain, path, (X,))
        assert report.equal
        assert report.first_divergence is None, str(report)
        assert not report.weights
        assert len(report.rows) >= 12

    def test_an_autograd_function(self, my_clip, tmp_path):
        """What a mapped class returns belongs to the node that stands for it, however it computes."""

        class Limit(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, low, high):
                return torch.minimum(torch.maximum(x, x.new_tensor(low)), x.new_tensor(high))

        class Limited(torch.nn.Module):
            def forward(self, x):
                return Limit.apply(x.exp(), 0.5, 1.5) + 1

        for exporter in ("dynamo", "torchscript"):
            path = tmp_path / f"{exporter}.onnx"
            opbridge.export(Limited(), (X,), path, exporter=exporter, map={Limit: "my_namespace::my_clip"})
            report = opbridge.compare(Limited(), path, (X,))
            assert report.equal
            assert [r.op for r in report.rows if "my_clip" in r.op] == ["my_namespace::my_clip"], str(report)

    def test_shared_containers_and_lists(self, tmp_path):
        class Shared(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = torch.nn.ModuleList(
                    [torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)] * 2
                )
                self.embed = torch.nn.Embedding(10, 8)

            def forward(self, i):
                x = self.embed(i)
                for layer in self.layers:
                    x = layer(x)
                x = x + 0
                x.relu_()
                a, b = x.chunk(2, -1)
                return {"product": a * b, "order": x.sort(-1)[1]}

        torch.manual_seed(0)
        model, tokens = Shared().eval(), torch.tensor([[1, 2, 3], [4, 5, 6]])
        for exporter in ("dynamo", "torchscript"):
            opbridge.export(model, (tokens,), tmp_path / "m.onnx", exporter=exporter)
            report = opbridge.compare(model, tmp_path / "m.onnx", (tokens,))
            assert report.equal
            assert report.first_divergence is None, report.verdict()
            assert len(report.rows) > 25

    def test_a_wrong_constant_is_found_between_modules(self, net, path, tmp_path):
        """x * 2 belongs to no module of its own."""
        before = next(n for n in onnx.load(path).graph.node if n.op_type == "my_clip").output[0]

        def scales(node):
            return node.op_type == "Mul" and before in node.input

        model = onnx.load(path)
        node = next(n for n in model.graph.node if scales(n))
        model.graph.initializer.append(numpy_helper.from_array(np.float32(3), "three"))
        node.input[1] = "three"
        onnx.save(model, tmp_path / "m.onnx")
        first = opbridge.compare(net, tmp_path / "m.onnx", (X,)).first_divergence
        assert first.node == node.name
        assert first.inherited is False
        assert abs(first.difference.relative - 0.5) < 0.5

    def test_the_model_is_left_as_it_was(self, net, files):
        net.train()
        apply = torch.autograd.Function.__dict__["apply"]
        statistics = net.blocks[0].bn.running_mean.clone()
        opbridge.compare(net, files["dynamo"], (X,))
        assert net.training
        assert torch.equal(net.blocks[0].bn.running_mean, statistics)
        assert torch.autograd.Function.__dict__["apply"] is apply
        assert not net.blocks[0]._forward_hooks
        assert not net.blocks[0]._forward_pre_hooks
        net.eval()

    def test_inputs_by_name(self, net, path):
        assert opbridge.compare(net, path, {"x": X.numpy()}).equal

    def test_bfloat16(self, tmp_path):
        class Half(torch.nn.Module):
            def forward(self, x):
                return x.to(torch.bfloat16).transpose(1, 2)

        with contextlib.redirect_stdout(io.StringIO()):
            torch.onnx.export(Half(), (X,), tmp_path / "m.onnx", dynamo=True)
        report = opbridge.compare(Half(), tmp_path / "m.onnx", (X,))
        assert report.equal
        assert report.outputs[0].dtype == "bfloat16"


class TestNotFinite:
    @pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
    def test_origin(self, exporter, tmp_path):
        class Root(torch.nn.Module):
            def forward(self, x):
                x = x * 2
                x = torch.sqrt(x)
                return x + 1

        opbridge.export(Root(), (X.abs(),), tmp_path / "m.onnx", exporter=exporter)
        report = opbridge.compare(Root(), tmp_path / "m.onnx", (X,))
        assert report.equal  # both have them, in the same places
        onnx_side, torch_side = (next(o for o in report.origins if o.side == s) for s in ("onnx", "first"))
        assert onnx_side.kind == torch_side.kind == "NaN"
        assert onnx_side.op == "Sqrt"
        assert "sqrt" in torch_side.op
        assert "test_compare.py:" in torch_side.source
        assert "in [-4, 4]" in str(onnx_side)

    def test_only_in_onnx(self, tmp_path):
        class Divide(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = torch.nn.Parameter(torch.tensor([2.0]))

            def forward(self, x):
                return torch.tanh(x) / self.scale

        model = Divide()
        opbridge.export(model, (X,), tmp_path / "m.onnx")
        changed, node = change_input(
            tmp_path / "m.onnx", tmp_path, lambda n: n.op_type == "Div", 1, lambda w: 0 * w
        )
        report = opbridge.compare(model, changed, (X,))
        assert not report.equal
        assert report.origins
        assert {o.side for o in report.origins} == {"onnx"}
        assert report.origins[0].kind == "infinite"
        assert report.origins[0].name == node
        assert report.first_divergence.node == node

    def test_in_the_input(self, net, files):
        x = X.clone()
        x[0, 0, 0, 0] = torch.nan
        report = opbridge.compare(net, files["dynamo"], (x,))
        assert "in the input 'x' already" in str(report)


def save(path, nodes, initializers=(), outputs=("y",)):
    """A model of x: f32[n,3]."""
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph(nodes, "g", [value("x")], [value(o) for o in outputs], list(initializers))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


class TestTwoModels:
    def model(self, path, factor=2.0, names=("a", "b")):
        nodes = [
            helper.make_node("Mul", ["x", "factor"], [names[0]], "scale"),
            helper.make_node("Relu", [names[0]], [names[1]], "relu"),
            helper.make_node("Add", [names[1], "x"], ["y"], "sum"),
        ]
        return save(path, nodes, [numpy_helper.from_array(np.float32(factor), "factor")])

    X = np.float32([[-1, 0.5, 2]])

    def test_equal(self, tmp_path):
        report = opbridge.compare(self.model(tmp_path / "a.onnx"), self.model(tmp_path / "b.onnx"), [self.X])
        assert report.equal
        assert [r.by for r in report.rows] == ["name", "name", "output"]

    def test_different(self, tmp_path):
        a, b = self.model(tmp_path / "a.onnx"), self.model(tmp_path / "b.onnx", 3.0)
        report = opbridge.compare(a, b, {"x": self.X})
        assert not report.equal
        assert report.first_divergence.node == "scale"
        assert report.first_divergence.difference.max == 2

    def test_other_names(self, tmp_path):
        a, b = self.model(tmp_path / "a.onnx"), self.model(tmp_path / "b.onnx", 3.0, ("c", "d"))
        report = opbridge.compare(a, b, [self.X])
        assert [r.by for r in report.rows] == ["structure", "structure", "output"]
        assert report.first_divergence.value == "c"


class TestLargeModels:
    """The limit is made small; the way is the same."""

    def model(self, path, **options):
        weight = numpy_helper.from_array(np.arange(600, dtype=np.float32).reshape(3, 200), "weight")
        back = numpy_helper.from_array(np.ones((200, 3), np.float32), "back")
        nodes = [
            helper.make_node("MatMul", ["x", "weight"], ["inner"], "first"),
            helper.make_node("MatMul", ["inner", "back"], ["y"], "second"),
        ]
        save(path, nodes, [weight, back])
        if options:
            onnx.save(onnx.load(path), path, **options)
        return path

    def test_weights_inside(self, tmp_path, monkeypatch):
        a, b = self.model(tmp_path / "a.onnx"), self.model(tmp_path / "b.onnx")
        whole = opbridge.compare(a, b, [np.float32([[1, 2, 3]])])
        monkeypatch.setattr(onnx_trace, "MESSAGE_LIMIT", 1000)
        before = sorted(p.name for p in tmp_path.iterdir())
        given = {}
        original = onnx_trace.ort_session.session

        def watch(proto, *args, **kwargs):
            given["bytes"] = len(proto.SerializeToString())
            return original(proto, *args, **kwargs)

        monkeypatch.setattr(onnx_trace.ort_session, "session", watch)
        split = opbridge.compare(a, b, [np.float32([[1, 2, 3]])])
        assert split.equal
        assert [r.value for r in split.rows] == [r.value for r in whole.rows] == ["inner", "y"]
        assert given["bytes"] < 1000  # of 4800 bytes of weights none is in the message
        assert sorted(p.name for p in tmp_path.iterdir()) == before

    def test_weights_outside(self, tmp_path, monkeypatch):
        (tmp_path / "m").mkdir()
        external = self.model(
            tmp_path / "m/m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
        )
        monkeypatch.chdir(tmp_path)
        report = opbridge.compare(self.model(tmp_path / "a.onnx"), external, [np.float32([[1, 2, 3]])])
        assert report.equal
        assert len(report.rows) == 2
        assert sorted(p.name for p in (tmp_path / "m").iterdir()) == ["m.onnx", "w.bin"]


class TestOperatorsAlone:
    """Each custom operator on the very inputs that it received."""

    def against(self, report):
        return {r.against: r.difference for r in report.operators}

    def test_all_agree(self, net, files, my_clip):
        from test_cli_compare import BUILD, ROOT

        other = BUILD / "lib/libmy_custom_ops_emulated.so"
        report = opbridge.compare(net, files["dynamo"], (X,), references=ROOT / "ops", library_b=other)
        found = self.against(report)
        assert list(found) == ["the whole model", "torch.ops", "reference", "libmy_custom_ops_emulated.so"]
        assert all(d.max == 0 for d in found.values()), str(report)
        assert report.operators[0].output == "y"
        assert report.equal

    def test_a_wrong_reference_is_told(self, net, files):
        calls = []

        def reference(x, low, high):
            calls.append((x.shape, float(low), float(high)))
            return np.clip(x, low, high) + np.float32(0.1)

        report = opbridge.compare(net, files["dynamo"], (X,), references={"my_clip": reference})
        assert calls == [((1, 3, 8, 8), -0.5, 0.5)]
        assert not report.equal
        assert self.against(report)["reference"].max == pytest.approx(0.1)
        assert self.against(report)["torch.ops"].equal
        assert "my_namespace::my_clip" in str(report)

    def test_a_library_without_the_operator(self, net, files, test_ops_path):
        report = opbridge.compare(net, files["dynamo"], (X,), library_b=test_ops_path)
        (difference,) = (r.difference for r in report.operators if "python_test_ops" in r.against)
        assert "does not run" in difference.problem
        assert not report.equal

    def test_wrong_references(self, net, files):
        with pytest.raises(opbridge.InvalidArgumentError, match=r"'my_clop' \(did you mean 'my_clip'"):
            opbridge.compare(net, files["dynamo"], (X,), references={"my_clop": np.clip})
        with pytest.raises(opbridge.InvalidArgumentError, match="no folder 'gone'"):
            opbridge.compare(net, files["dynamo"], (X,), references="gone")
        with pytest.raises(opbridge.InvalidArgumentError, match="returns 0 arrays"):
            opbridge.compare(net, files["dynamo"], (X,), references={"my_clip": lambda *_: ()})


def test_names_of_the_package_stay(run_python):
    """compare() needs the module opbridge.export, whose name is that of a function."""
    run_python(
        "import opbridge, torch\n"
        "try: opbridge.compare(torch.nn.ReLU(), b'', torch.zeros(1))\n"
        "except opbridge.Error: pass\n"
        "import opbridge.compare as compare, opbridge.export as export\n"
        "assert callable(compare) and callable(export)"
    )


class TestErrors:
    def test_wrong_number_of_inputs(self, net, path):
        with pytest.raises(opbridge.InvalidArgumentError, match=r"2 inputs given, .* has 1 \(x\)"):
            opbridge.compare(path, path, [X.numpy(), X.numpy()])

    def test_unknown_input(self, net, path):
        with pytest.raises(opbridge.InvalidArgumentError, match=r"has no input 'X'.*did you mean 'x'"):
            opbridge.compare(net, path, {"X": X})

    def test_missing_input(self, path):
        with pytest.raises(opbridge.InvalidArgumentError, match="no value for input 'x'"):
            opbridge.compare(path, path, {})

    def test_wrong_type(self, net, path):
        with pytest.raises(opbridge.InvalidArgumentError, match=r"'x' of .* is float32, got float64.*astype"):
            opbridge.compare(path, path, [X.numpy().astype(np.float64)])

    def test_no_such_file(self, net):
        with pytest.raises(opbridge.ModelError, match=r"no model file 'gone\.onnx'"):
            opbridge.compare(net, "gone.onnx", (X,))

    def test_no_model(self, net, tmp_path):
        (tmp_path / "m.onnx").write_bytes(b"\xff\xffnot a model")
        with pytest.raises(opbridge.ModelError, match="is no ONNX model"):
            opbridge.compare(net, tmp_path / "m.onnx", (X,))

    def test_no_module(self, path):
        with pytest.raises(
            opbridge.InvalidArgumentError, match="a torch module, a function or an ONNX model"
        ):
            opbridge.compare(3, path, (X,))

    def test_options(self, net, path):
        with pytest.raises(opbridge.InvalidArgumentError, match="optimize is one of"):
            opbridge.compare(net, path, (X,), optimize="some")
        with pytest.raises(opbridge.InvalidArgumentError, match="units are m, cm or mm"):
            opbridge.compare(net, path, (X,), units={"output": "inch"})


def test_report_as_data(net, files):
    import json

    report = opbridge.compare(net, files["dynamo"], (X,))
    data = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert data["equal"] is True
    assert data["first_divergence"] is None
    assert data["rows"][0]["difference"]["cosine"] <= 1
    assert all(w in str(report) for w in ("my_clip", "matched by", "no counterpart"))


def test_page(net, files, tmp_path):
    from test_cli_compare import check_page

    changed, node = change_input(files["dynamo"], tmp_path, lambda n: n.op_type == "Conv")
    opbridge.compare(net, changed, (X,)).html(tmp_path / "page.html")
    page = check_page(tmp_path / "page.html")
    assert f"different: first at node '{node}'" in page.text
    assert "weight 'blocks.0.conv.weight' is not the module's" in page.text
    assert page.tags.count("rect") == len(opbridge.compare(net, changed, (X,)).rows)


def test_plot(net, files, tmp_path):
    opbridge.compare(net, files["dynamo"], (X,)).plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes()[:4] == b"\x89PNG"


def test_progress_goes_to_stderr(net, files, capsys):
    opbridge.compare(net, files["dynamo"], (X,), progress=True)
    captured = capsys.readouterr()
    assert "running the PyTorch model" in captured.err
    assert captured.out == ""


def test_records_in_place_operations():
    def function(x):
        y = x * 2
        y.add_(1)
        return (y.relu(),)

    found = trace(function, function, [torch.tensor([1.0, -2.0])])
    values = [r.array.tolist() for r in found.records]
    assert values == [[2, -4], [3, -3], [3, 0]]
    assert [r.parents for r in found.records] == [[], [0], [1]]
