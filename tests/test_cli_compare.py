"""`opbridge compare`: models, runtimes, libraries and settings against each other, and what it says of them."""

import json
import os
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from opbridge._compare import geometry, metrics

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / os.environ.get("OPBRIDGE_BUILD", "build/release")
MY_CLIP = BUILD / "lib/libmy_custom_ops.so"
PVN3D = BUILD / "lib/libpvn3d_custom_op.so"
RUNTIMES = ROOT / "build/ort/lib"


def opbridge(*arguments, code=0, both=False, name="compare"):
    """Runs the command; returns its stdout, or stderr of a wrong command line or a failure without a report."""
    done = subprocess.run(
        [BUILD / "bin/opbridge", name, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OPBRIDGE_ORT": str(Path(onnxruntime.__file__).parent)},
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr if both else done.stdout or done.stderr


def compare_json(*arguments, code=0):
    return json.loads(opbridge(*arguments, "--json", code=code))


def tensor(name, shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def save(path, nodes, inputs, outputs, initializers=(), domains=()):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(d, 1) for d in domains)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def scaled(path, factor=2.0, output="y", inputs=("x",)):
    """y = x * factor."""
    nodes = [helper.make_node("Mul", [inputs[0], "factor"], [output])]
    factor = numpy_helper.from_array(np.float32(factor), "factor")
    return save(path, nodes, [tensor(i, ["n", 3]) for i in inputs], [tensor(output, ["n", 3])], [factor])


class TestSides:
    def test_equal_models(self, tmp_path):
        a, b = scaled(tmp_path / "a.onnx"), scaled(tmp_path / "b.onnx")
        assert "equal: 1 comparison, every bit the same" in opbridge(a, b, "--random")

    def test_different_models(self, tmp_path):
        a, b = scaled(tmp_path / "a.onnx"), scaled(tmp_path / "b.onnx", 3)
        result = compare_json(a, b, "--random", "--dim", "n=4", code=1)
        assert result["equal"] is False
        (side,) = [s for s in result["sides"] if s["outputs"]]
        difference = side["outputs"][0]["difference"]
        assert difference["relative"] > 0.1
        assert difference["cosine"] == pytest.approx(1)
        assert result["inputs"] == [{"name": "x", "type": "f32[4,3]", "source": "random"}]

    def test_matrix_of_runtimes_threads_and_levels(self, tmp_path):
        """Two runtimes in one process, with one library."""
        versions = ["1.20.1", "1.32.0"]
        node = helper.make_node("my_clip", ["x", "low", "high"], ["y"], domain="my_namespace")
        bounds = [numpy_helper.from_array(np.float32(v), n) for v, n in ((-0.5, "low"), (0.5, "high"))]
        model = save(
            tmp_path / "m.onnx", [node], [tensor("x", [64])], [tensor("y", [64])], bounds, ["my_namespace"]
        )
        result = compare_json(
            model, "--library", MY_CLIP, "--random", *(v for r in versions for v in ("--ort", RUNTIMES / r)),
            "--threads", 1, "--threads", 2, "--optimize", "none", "--optimize", "all",
        )  # fmt: skip
        assert len(result["sides"]) == 8
        assert {s["runtime"] for s in result["sides"]} == set(versions)
        assert {(s["threads"], s["optimize"]) for s in result["sides"]} == {
            (t, o) for t in (1, 2) for o in ("none", "all")
        }
        assert sum(len(s["outputs"]) for s in result["sides"]) == 7
        assert all(o["difference"]["identical"] for s in result["sides"] for o in s["outputs"])
        assert result["sides"][7]["label"] == "ORT 1.32.0, threads 2, optimize all"

    def test_a_side_that_cannot_run(self, tmp_path):
        """1.17.1 does not know IR version 11; the others are compared all the same."""
        model = onnx.load(scaled(tmp_path / "m.onnx"))
        model.ir_version = 11
        onnx.save(model, tmp_path / "m.onnx")
        orts = ("--ort", RUNTIMES / "1.32.0", "--ort", RUNTIMES / "1.17.1", "--ort", RUNTIMES / "1.28.0")
        text = opbridge(tmp_path / "m.onnx", "--random", *orts, code=1, both=True)
        assert "1 could not run" in text
        assert "1.17.1" in text
        assert "Unsupported model IR version" in text
        result = compare_json(tmp_path / "m.onnx", "--random", *orts, code=1)
        assert [s["error"] is None for s in result["sides"]] == [True, False, True]
        assert [len(s["outputs"]) for s in result["sides"]] == [0, 0, 1]

    def test_two_libraries(self, tmp_path):
        node = helper.make_node("my_clip", ["x"], ["y"], domain="my_namespace")
        model = save(
            tmp_path / "m.onnx", [node], [tensor("x", [8])], [tensor("y", [8])], [], ["my_namespace"]
        )
        other = BUILD / "lib/libmy_custom_ops_emulated.so"
        text = opbridge(model, "--library", MY_CLIP, "--library-b", other, "--random")
        assert "--library-b" in text
        assert "every bit the same" in text

    def test_expected_outputs(self, tmp_path):
        model = scaled(tmp_path / "m.onnx")
        x = np.float32([[1, 2, 3]])
        np.save(tmp_path / "x.npy", x)
        np.savez(tmp_path / "right.npz", y=2 * x)
        np.savez(tmp_path / "wrong.npz", y=2.1 * x)
        np.save(tmp_path / "single.npy", 2 * x)
        for name in ("right.npz", "single.npy"):
            assert "equal" in opbridge(model, "--input", tmp_path / "x.npy", "--expect", tmp_path / name)
        text = opbridge(model, "--input", tmp_path / "x.npy", "--expect", tmp_path / "wrong.npz", code=1)
        assert "DIFFERENT: 1 of 1" in text
        opbridge(model, "--input", tmp_path / "x.npy", "--expect", tmp_path / "wrong.npz", "--tolerance", 0.1)
        opbridge(model, "--input", tmp_path / "x.npy", "--expect", tmp_path / "wrong.npz", "--atol", 0.31)
        opbridge(
            model, "--input", tmp_path / "x.npy", "--expect", tmp_path / "wrong.npz", "--atol", 0.29, code=1
        )

    def test_outputs_in_one_model_only(self, tmp_path):
        a = scaled(tmp_path / "a.onnx")
        nodes = [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
        b = save(
            tmp_path / "b.onnx",
            nodes,
            [tensor("x", ["n", 3])],
            [tensor("y", ["n", 3]), tensor("z", ["n", 3])],
        )
        text = opbridge(a, b, "--random")
        assert "output 'z' of" in text
        assert "not compared" in text

    def test_outputs_with_other_names(self, tmp_path):
        text = opbridge(scaled(tmp_path / "a.onnx"), scaled(tmp_path / "b.onnx", output="z"), "--random")
        assert "compared by position" in text


class TestKinds:
    """The command and the Python package measure alike; the cases are those of tests/test_compare_metrics.py."""

    def identities(self, path, **arrays):
        """A model that returns its inputs."""
        nodes = [helper.make_node("Identity", [n], [f"{n}_out"]) for n in arrays]
        kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in arrays.items()}
        return save(
            path,
            nodes,
            [tensor(n, a.shape, kinds[n]) for n, a in arrays.items()],
            [tensor(f"{n}_out", a.shape, kinds[n]) for n, a in arrays.items()],
        )

    def test_same_numbers_as_python(self, tmp_path):
        rng = np.random.default_rng(1)
        c, s = np.cos(0.002), np.sin(0.002)
        turn = np.float32([[c, -s, 0], [s, c, 0], [0, 0, 1]])
        base = np.linalg.qr(rng.normal(size=(4, 3, 3)))[0]
        base *= np.sign(np.linalg.det(base))[:, None, None]
        x = rng.normal(size=(5, 7))
        given = {
            "f16": x.astype(np.float16),
            "f32": x.astype(np.float32),
            "f64": x,
            "rotation": base.astype(np.float32),
            "reflected": np.float32([np.diag([1, 1, -1])]),
            "translation": np.float32([[0, 0, 1], [0.1, 0, 2]]),
            "index": np.int32([[0, 1, 2], [3, 4, 5]]),
            "special": np.float32([np.nan, np.inf, 1]),
            "nan": np.float32([np.nan, 1]),
            "zeros": np.zeros(3, np.float32),
        }
        expected = {
            "f16": (x * 1.005).astype(np.float16),
            "f32": (x + 1e-4).astype(np.float32),
            "f64": x + 1e-6,
            "rotation": (turn @ base).astype(np.float32),
            "reflected": np.float32([np.eye(3)]),
            "translation": np.float32([[0, 0, 1.001], [0.1, 0, 2]]),
            "index": np.int32([[1, 0, 2], [3, 4, 6]]),
            "special": np.float32([np.nan, np.inf, 1]),
            "nan": np.float32([1, 1]),
            "zeros": np.zeros(3, np.float32),
        }
        model = self.identities(tmp_path / "m.onnx", **given)
        np.savez(tmp_path / "in.npz", **given)
        np.savez(tmp_path / "out.npz", **{f"{n}_out": a for n, a in expected.items()})
        result = compare_json(
            model, "--input", tmp_path / "in.npz", "--expect", tmp_path / "out.npz", "--unit", "translation_out=m",
            code=1,
        )  # fmt: skip
        outputs = {o["name"]: o["difference"] for o in result["sides"][0]["outputs"]}
        for name in given:
            got = outputs[f"{name}_out"]
            kind = "translation" if name == "translation" else None
            wanted = metrics.compare(given[name], expected[name], kind=kind)
            assert got["kind"] == wanted.kind, name
            assert got["equal"] == wanted.equal, name
            for field in ("error", "limit", "max", "mean", "relative", "cosine"):
                a, b = got[field], getattr(wanted, field)
                a = float("nan") if a is None else float(a)
                if np.isfinite(b):
                    assert a == pytest.approx(b, rel=1e-6, abs=1e-12), (name, field)
                else:
                    assert not np.isfinite(a), (name, field)
            for field in ("det", "millimetres", "entries", "rows", "ties"):
                if field in wanted.details:
                    assert got[field] == pytest.approx(wanted.details[field]), (name, field)

    GRID = (
        np.stack(np.meshgrid(*[np.arange(3.0)] * 3, indexing="ij"), -1).reshape(1, 27, 3).astype(np.float32)
    )
    CENTRE = np.float32([[[1, 1, 1]]])

    @pytest.mark.parametrize(
        ("op", "inputs", "attributes", "wrong_output"),
        [
            ("KNN", ("points", "queries"), {"k": 4}, [13, 4, 10, 0]),
            ("BallQuery", ("points", "queries"), {"radius": 1.0, "nsample": 4}, [0, 13, 13, 13]),
            ("ThreeNN", ("queries", "points"), {}, [13, 4, 0]),
            ("FarthestPointSample", ("points",), {"npoint": 3}, [0, 1, 26]),
        ],
    )
    def test_ties_are_told_from_wrong_indices(self, op, inputs, attributes, wrong_output, tmp_path):
        """What the operator returns, and the same answer otherwise told, where the points are the model's inputs."""
        names = {
            "KNN": ["idx"],
            "BallQuery": ["idx"],
            "ThreeNN": ["dist", "idx"],
            "FarthestPointSample": ["idx"],
        }[op]
        domain = "pvn3d.custom_ops"
        node = helper.make_node(op, inputs, names, domain=domain, **attributes)
        arrays = {"points": self.GRID, "queries": self.CENTRE}
        shape = [1, None] if op == "FarthestPointSample" else [1, 1, None]
        outputs = [tensor(n, shape, TensorProto.INT32 if n == "idx" else TensorProto.FLOAT) for n in names]
        model = save(
            tmp_path / "m.onnx", [node], [tensor(n, arrays[n].shape) for n in inputs], outputs, [], [domain]
        )
        np.savez(tmp_path / "in.npz", **{n: arrays[n] for n in inputs})
        ties = {
            "KNN": [13, 22, 16, 14],
            "BallQuery": [4, 10, 12, 13],  # all but the centre lie at the radius
            "ThreeNN": [13, 22, 16],
            "FarthestPointSample": [0, 26, 7],
        }[op]
        for told, code in ((ties, 0), (wrong_output, 1)):
            array = np.int32(told).reshape([1, -1] if op == "FarthestPointSample" else [1, 1, -1])
            np.savez(tmp_path / "out.npz", idx=array)
            result = compare_json(
                model,
                "--library",
                PVN3D,
                "--input",
                tmp_path / "in.npz",
                "--expect",
                tmp_path / "out.npz",
                code=code,
            )
            difference = next(o for o in result["sides"][0]["outputs"] if o["name"] == "idx")["difference"]
            assert difference["kind"] == "index"
            assert difference["equal"] == (code == 0)
            assert difference["ties"] == difference["entries"] - difference["error"]
            # Python agrees, given what the command saw.
            actual = np.load(self.outputs_of(model, tmp_path))["idx"]
            tie = geometry.explain(op, names.index("idx"), [arrays[n] for n in inputs], attributes)
            wanted = metrics.compare(actual, array, geometry=tie)
            assert wanted.equal == difference["equal"]
            assert wanted.error == difference["error"]
            assert wanted.details["entries"] == difference["entries"] > 0

    def outputs_of(self, model, tmp_path):
        subprocess.run(
            [
                BUILD / "bin/opbridge", "run", model, "--library", PVN3D, "--input", tmp_path / "in.npz", "-o",
                tmp_path / "run", "--output-format", "npz",
            ],
            check=True,
            capture_output=True,
            env=os.environ | {"OPBRIDGE_ORT": str(Path(onnxruntime.__file__).parent)},
        )  # fmt: skip
        return tmp_path / "run/outputs.npz"

    def test_rotation_of_an_operator(self, tmp_path):
        domain = "pvn3d.custom_ops"
        node = helper.make_node("KabschSolver", ["a", "b"], ["rotation", "translation"], domain=domain)
        model = save(
            tmp_path / "m.onnx",
            [node],
            [tensor("a", [1, 8, 3]), tensor("b", [1, 8, 3])],
            [tensor("rotation", [1, 3, 3]), tensor("translation", [1, 3])],
            [],
            [domain],
        )
        result = compare_json(model, "--library", PVN3D, "--random", "--threads", 1, "--threads", 2)
        kinds = {o["name"]: o["difference"]["kind"] for o in result["sides"][1]["outputs"]}
        assert kinds == {"rotation": "rotation", "translation": "translation"}


class TestUsage:
    def test_nothing_to_compare(self, tmp_path):
        text = opbridge(scaled(tmp_path / "a.onnx"), "--random", code=2)
        assert "nothing to compare" in text
        assert "--expect FILE" in text

    def test_no_model(self):
        assert "model is required" in opbridge(code=2, both=True)

    @pytest.mark.parametrize(
        "option", [("--optimize", "some"), ("--threads", "-1"), ("--provider", "tpu"), ("--unit", "y=inch")]
    )
    def test_wrong_values(self, option, tmp_path):
        a = scaled(tmp_path / "a.onnx")
        assert option[0] in opbridge(a, a, "--random", *option, code=2, both=True)

    def test_missing_inputs(self, tmp_path):
        a = scaled(tmp_path / "a.onnx")
        assert "--input x=FILE" in opbridge(a, a, code=1)

    def test_inputs_that_the_second_model_names_otherwise(self, tmp_path):
        a, b = scaled(tmp_path / "a.onnx"), scaled(tmp_path / "b.onnx", inputs=("image",))
        text = opbridge(a, b, "--random", code=1, both=True)
        assert "has the input 'image'" in text
        assert "(it has 'x')" in text

    def test_no_common_output(self, tmp_path):
        a = scaled(tmp_path / "a.onnx")
        np.savez(tmp_path / "out.npz", p=np.zeros(1), q=np.zeros(1))
        text = opbridge(a, "--random", "--expect", tmp_path / "out.npz", code=1, both=True)
        assert "no output in common: 'y'" in text

    def test_help_shows_examples_and_python(self):
        text = opbridge("--help")
        assert "--ort /opt" in text
        assert 'opbridge.compare(module, "m.onnx", inputs)' in text
        assert "Exit codes: 0 equal, 1 different" in text


class Page(HTMLParser):
    """Collects what a page refers to, and checks that its elements are closed."""

    VOID = frozenset(("meta", "br", "link", "img"))

    def __init__(self, text):
        super().__init__()
        self.open, self.references, self.tags, self.text = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.references += [v for k, v in attributes if k in ("src", "href", "xlink:href", "action", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def check_page(path):
    """A page that stands alone: nothing from outside, no script, both colour schemes."""
    text = Path(path).read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert page.references == []
    assert not re.search(r"https?://|@import|url\(", text)
    assert "script" not in page.tags
    assert "prefers-color-scheme: dark" in text
    assert "svg" in page.tags
    return page


def test_page(tmp_path):
    a, b = scaled(tmp_path / "a.onnx"), scaled(tmp_path / "b<i>.onnx", 3)
    opbridge(a, b, "--random", "--html", tmp_path / "page.html", code=1)
    page = check_page(tmp_path / "page.html")
    assert "DIFFERENT: 1 of 1 comparisons" in page.text
    assert "b<i>.onnx" in page.text
    assert "i" not in page.tags
    text = opbridge(a, b, "--random", "--html", tmp_path / "gone/page.html", code=1, both=True)
    assert "cannot be written" in text
