"""`opbridge run`: inputs, outputs, comparisons and what it says when something is wrong."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / os.environ.get("OPBRIDGE_BUILD", "build/release")
LIBRARY = BUILD / "lib/libmy_custom_ops.so"


def opbridge(*arguments, code=0, **environment):
    """Runs the command; returns stdout of a success, stderr of a failure."""
    environment = {"OPBRIDGE_ORT": str(Path(onnxruntime.__file__).parent), **environment}
    done = subprocess.run(
        [BUILD / "bin/opbridge", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stderr if code else done.stdout


def run_json(*arguments, **environment):
    return json.loads(opbridge("run", *arguments, "--json", **environment))


def tensor(name, shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def save(path, nodes, inputs, outputs, initializers=(), domains=(), metadata=None):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(d, 1) for d in domains)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    helper.set_model_props(model, metadata or {})
    onnx.save(model, path)
    return path


@pytest.fixture
def clip(tmp_path):
    """y = clip(x, -0.5, 0.5) for x: f32[batch,3]; the bounds are initializers."""
    bounds = [numpy_helper.from_array(np.float32(v), n) for v, n in ((-0.5, "low"), (0.5, "high"))]
    node = helper.make_node("Clip", ["x", "low", "high"], ["y"])
    return save(
        tmp_path / "clip.onnx", [node], [tensor("x", ["batch", 3])], [tensor("y", ["batch", 3])], bounds
    )


@pytest.fixture
def add(tmp_path):
    """sum = a + b, product = a * b, all f32[n, ?]."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("Mul", ["a", "b"], ["/out/product:0"]),
    ]
    inputs = [tensor("a", ["n", None]), tensor("b", ["n", None])]
    outputs = [tensor("sum", ["n", None]), tensor("/out/product:0", ["n", None])]
    return save(tmp_path / "add.onnx", nodes, inputs, outputs)


X = np.array([[-2, 0.25, 7], [0.5, -0.5, np.nan]], np.float32)
CLIPPED = np.clip(X, -0.5, 0.5)


class TestInputs:
    def test_each_kind_of_file(self, clip, tmp_path):
        np.save(tmp_path / "x.npy", X)
        np.save(tmp_path / "other.npy", X)
        np.save(tmp_path / "fortran.npy", np.asfortranarray(X))
        np.save(tmp_path / "big.npy", X.astype(">f4"))
        np.savez(tmp_path / "stored.npz", x=X)
        np.savez_compressed(tmp_path / "deflated.npz", x=X)
        np.savez(tmp_path / "several.npz", x=X, y=np.zeros(3))
        (tmp_path / "x.pb").write_bytes(numpy_helper.from_array(X, "x").SerializeToString())
        folder = tmp_path / "test_data_set_0"
        folder.mkdir()
        (folder / "input_0.pb").write_bytes(numpy_helper.from_array(X).SerializeToString())
        specs = [
            "x.npy",
            "other.npy",
            "fortran.npy",
            "big.npy",
            "stored.npz",
            "deflated.npz",
            "x.pb",
            folder.name,
        ]
        named = [f"x={tmp_path / s}" for s in [*specs, "several.npz"]]
        for spec in [str(tmp_path / s) for s in specs] + named:
            opbridge("run", clip, "--input", spec, "--output-dir", tmp_path / "out")
            np.testing.assert_array_equal(np.load(tmp_path / "out/y.npy"), CLIPPED, err_msg=spec)
            (tmp_path / "out/y.npy").unlink()

    def test_one_file_with_all_inputs(self, add, tmp_path):
        a, b = np.float32([[1, 2]]), np.float32([[3, 4]])
        np.savez(tmp_path / "both.npz", a=a, b=b)
        opbridge(
            "run", add, "--input", tmp_path / "both.npz", "-o", tmp_path / "out", "--output-format", "npz"
        )
        with np.load(tmp_path / "out/outputs.npz") as outputs:
            assert sorted(outputs) == ["/out/product:0", "sum"]
            np.testing.assert_array_equal(outputs["sum"], a + b)
            np.testing.assert_array_equal(outputs["/out/product:0"], a * b)

    @pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"])
    def test_every_dtype(self, dtype, tmp_path):
        onnx_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        values = [tensor("x", [4], onnx_type)], [tensor("y", [4], onnx_type)]
        model = save(tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], *values)
        x = np.array([0, 1, 2, 100]).astype(dtype)
        np.save(tmp_path / "x.npy", x)
        opbridge("run", model, "--input", tmp_path / "x.npy", "-o", tmp_path / "out")
        y = np.load(tmp_path / "out/y.npy")
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(y, x)

    def test_bfloat16(self, tmp_path):
        ml_dtypes = pytest.importorskip("ml_dtypes")
        values = [tensor("x", [3], TensorProto.BFLOAT16)], [tensor("y", [3], TensorProto.BFLOAT16)]
        model = save(tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], *values)
        x = np.array([1, -2.5, 3e38], ml_dtypes.bfloat16)
        np.save(tmp_path / "x.npy", x)
        result = run_json(model, "--input", tmp_path / "x.npy", "-o", tmp_path / "out")
        assert result["outputs"][0]["dtype"] == "bf16"
        assert result["outputs"][0]["min"] == -2.5
        np.testing.assert_array_equal(np.load(tmp_path / "out/y.npy").view(ml_dtypes.bfloat16), x)

    def test_pb_outputs_are_test_data(self, add, tmp_path):
        a, b = np.float32([[1, 2]]), np.float32([[3, 4]])
        out = tmp_path / "out"
        np.savez(tmp_path / "both.npz", a=a, b=b)
        opbridge("run", add, "--input", tmp_path / "both.npz", "-o", out, "--output-format", "pb")
        stored = onnx.load_tensor(out / "output_0.pb")
        assert stored.name == "sum"
        np.testing.assert_array_equal(numpy_helper.to_array(stored), a + b)
        assert onnx.load_tensor(out / "output_1.pb").name == "/out/product:0"
        for i, array in enumerate((a, b)):
            (out / f"input_{i}.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())
        assert "all equal" in opbridge("run", add, "--test-data", out)

    def test_names_of_outputs_become_file_names(self, add, tmp_path):
        result = run_json(add, "--random", "-o", tmp_path / "out")
        assert [Path(o["file"]).name for o in result["outputs"]] == ["sum.npy", "out_product_0.npy"]
        assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["out_product_0.npy", "sum.npy"]

    def test_an_initializer_may_be_replaced_but_is_not_asked_for(self, tmp_path):
        weight = numpy_helper.from_array(np.float32([10]), "w")
        inputs = [tensor("x", [1]), tensor("w", [1])]
        model = save(
            tmp_path / "m.onnx",
            [helper.make_node("Add", ["x", "w"], ["y"])],
            inputs,
            [tensor("y", [1])],
            [weight],
        )
        np.save(tmp_path / "x.npy", np.float32([1]))
        np.save(tmp_path / "w.npy", np.float32([2]))
        assert run_json(model, "-i", tmp_path / "x.npy")["outputs"][0]["max"] == 11
        assert (
            run_json(model, "-i", f"x={tmp_path}/x.npy", "-i", f"w={tmp_path}/w.npy")["outputs"][0]["max"]
            == 3
        )


class TestRandom:
    def test_is_repeatable_and_seeded(self, add, tmp_path):
        def sums(*arguments):
            opbridge(
                "run",
                add,
                "--random",
                "--dim",
                "n=4",
                "--dim",
                "a:1=5",
                "--dim",
                "b:1=5",
                "-o",
                tmp_path,
                *arguments,
            )
            return np.load(tmp_path / "sum.npy")

        first = sums()
        assert first.shape == (4, 5)
        np.testing.assert_array_equal(first, sums())
        assert (first != sums("--seed", 1)).all()

    def test_values(self, tmp_path):
        types = {
            "f": TensorProto.FLOAT,
            "h": TensorProto.FLOAT16,
            "i": TensorProto.INT64,
            "b": TensorProto.BOOL,
        }
        nodes = [helper.make_node("Identity", [n], [n + "_out"]) for n in types]
        inputs = [tensor(n, [1000], t) for n, t in types.items()]
        outputs = [tensor(n + "_out", [1000], t) for n, t in types.items()]
        rows = {
            r["name"]: r
            for r in run_json(save(tmp_path / "m.onnx", nodes, inputs, outputs), "--random")["inputs"]
        }
        for name in "fh":
            assert -1 <= rows[name]["min"] < -0.95
            assert 0.95 < rows[name]["max"] <= 1
            assert abs(rows[name]["mean"]) < 0.1
        for name in "ib":
            assert (rows[name]["min"], rows[name]["max"]) == (0, 1)
            assert 0.4 < rows[name]["mean"] < 0.6

    def test_says_which_dimensions_it_made_up(self, clip):
        text = opbridge("run", clip, "--random")
        assert "dimension 'batch' of input 'x' is dynamic: 1 taken, --dim batch=N sets it" in text
        result = run_json(clip, "--random", "--dim", "batch=4")
        assert result["inputs"][0]["shape"] == [4, 3]
        assert result["notes"] == []

    def test_takes_dimensions_from_given_inputs(self, add, tmp_path):
        np.save(tmp_path / "a.npy", np.ones((7, 1), np.float32))
        result = run_json(add, "--input", f"a={tmp_path}/a.npy", "--random")
        assert {i["name"]: (i["shape"], i["source"]) for i in result["inputs"]} == {
            "a": ([7, 1], f"{tmp_path}/a.npy"),
            "b": ([7, 1], "random"),
        }

    def test_numbers(self, tmp_path):
        """--input NAME=NUMBER fills an input, whatever its type."""
        types = {
            "f": TensorProto.FLOAT16,
            "d": TensorProto.DOUBLE,
            "i": TensorProto.INT8,
            "s": TensorProto.INT64,
        }
        nodes = [helper.make_node("Identity", [n], [n + "_out"]) for n in types]
        inputs = [tensor(n, [] if n == "s" else ["k", 2], t) for n, t in types.items()]
        outputs = [tensor(n + "_out", None, t) for n, t in types.items()]
        model = save(tmp_path / "m.onnx", nodes, inputs, outputs)
        given = {"f": "0.5", "d": "0.1", "i": "-7", "s": "16000"}
        arguments = [a for n, v in given.items() for a in ("--input", f"{n}={v}")]
        opbridge("run", model, *arguments, "--dim", "k=3", "-o", tmp_path)
        for name, value in given.items():
            result = np.load(tmp_path / f"{name}_out.npy")
            assert result.shape == (() if name == "s" else (3, 2))
            assert (result == result.dtype.type(value)).all()
        for wrong in ("i=300", "i=0.5"):
            message = opbridge("run", model, "--input", wrong, "--random", code=1)
            assert f"--input {wrong}: 'i' is i8[k,2]" in message

    def test_a_failure_tells_what_was_assumed(self, tmp_path):
        """Sizes that were made up may be its cause. "?" is no name: its axes are told apart."""
        node = helper.make_node("Concat", ["x", "w"], ["y"], axis=0)
        two = numpy_helper.from_array(np.ones((1, 2), np.float32), "w")
        model = save(tmp_path / "m.onnx", [node], [tensor("x", ["?", "?"])], [tensor("y", None)], [two])
        message = opbridge("run", model, "--random", code=1)
        assert "note: dimension 'x:1' of input 'x' is dynamic: 1 taken, --dim x:1=N sets it" in message
        assert "note" not in opbridge("run", model, "--random", "--dim", "x:0=1", "--dim", "x:1=2")

    def test_zero_sized(self, clip):
        result = run_json(clip, "--random", "--dim", "batch=0")
        assert result["outputs"][0]["shape"] == [0, 3]
        assert result["outputs"][0]["min"] is None


class TestOutput:
    def test_table(self, clip, tmp_path):
        np.save(tmp_path / "x.npy", X)
        text = opbridge("run", clip, "-i", tmp_path / "x.npy", "--repeat", 3, "--warmup", 2)
        rows = {line.split()[0]: line.split() for line in text.splitlines() if line.startswith("  ")}
        assert rows["x"] == ["x", "f32", "[2,3]", "-2", "7", "1.05", "1", "NaN", f"{tmp_path}/x.npy"]
        assert rows["y"][:6] == ["y", "f32", "[2,3]", "-0.5", "0.5", "0.05"]
        assert "output 'y' has 1 NaN and 0 infinite elements of 6" in text
        assert "(3 runs after 2 warm-up)" in text
        assert f"ONNX Runtime {onnxruntime.__version__}" in text
        assert "OPBRIDGE_ORT" in text
        assert "\x1b[" not in text

    def test_json(self, clip):
        result = run_json(clip, "--random", "--repeat", 5)
        times = result["times_ms"]
        assert 0 < times["min"] <= times["median"] <= times["max"]
        assert times["repeat"] == 5
        assert result["runtime"]["version"] == onnxruntime.__version__
        assert Path(result["runtime"]["path"]).name.startswith("libonnxruntime.so")

    def test_options_reach_onnx_runtime(self, clip):
        for options in (
            ["--threads", 1],
            ["--optimize", "none"],
            ["--optimize", "extended"],
            ["--provider", "cpu"],
        ):
            run_json(clip, "--random", *options)

    def test_finds_the_runtime_of_the_python_environment(self, clip):
        prefix = Path(onnxruntime.__file__).parents[4]
        result = run_json(clip, "--random", OPBRIDGE_ORT="", VIRTUAL_ENV=str(prefix))
        assert result["runtime"]["source"] == "Python environment VIRTUAL_ENV"
        assert result["runtime"]["version"] == onnxruntime.__version__


class TestTestData:
    def make(self, folder, x, y):
        folder.mkdir(parents=True)
        (folder / "input_0.pb").write_bytes(numpy_helper.from_array(x, "x").SerializeToString())
        (folder / "output_0.pb").write_bytes(numpy_helper.from_array(y, "y").SerializeToString())
        return folder

    def test_equal_and_different(self, clip, tmp_path):
        self.make(tmp_path / "data/test_data_set_0", X, CLIPPED)
        assert "all equal" in opbridge("run", clip, "--test-data", tmp_path / "data")
        self.make(tmp_path / "data/test_data_set_1", X, CLIPPED + np.float32(0.01))
        done = json.loads(
            subprocess.run(
                [BUILD / "bin/opbridge", "run", clip, "--test-data", tmp_path / "data", "--json"],
                capture_output=True,
                env={**os.environ, "OPBRIDGE_ORT": str(Path(onnxruntime.__file__).parent)},
            ).stdout
        )
        assert [c["equal"] for c in done["comparisons"]] == [True, False]
        assert done["comparisons"][1]["max_difference"] == pytest.approx(0.01, rel=1e-5)
        assert done["comparisons"][1]["verdict"] == "5 of 6 elements differ"
        assert not done["equal"]
        opbridge("run", clip, "--test-data", tmp_path / "data", code=1)
        opbridge("run", clip, "--test-data", tmp_path / "data", "--atol", 0.02)

    @pytest.mark.parametrize(
        ("expected", "verdict"),
        [
            (CLIPPED[:1], "got f32[2,3], expected f32[1,3]"),
            (CLIPPED.astype(np.float64), "got f32[2,3], expected f64[2,3]"),
            (np.nan_to_num(CLIPPED, nan=0.5), "1 of 6 elements differ"),
            (np.full_like(CLIPPED, np.inf), "6 of 6 elements differ"),
        ],
    )
    def test_what_counts_as_different(self, clip, tmp_path, expected, verdict):
        data = self.make(tmp_path / "data", X, expected)
        done = subprocess.run(
            [BUILD / "bin/opbridge", "run", clip, "--test-data", data],
            capture_output=True,
            text=True,
            env={**os.environ, "OPBRIDGE_ORT": str(Path(onnxruntime.__file__).parent)},
        )
        assert done.returncode == 1
        assert verdict in done.stdout
        assert "DIFFERENT" in done.stdout

    def test_nothing_to_compare_is_an_error(self, clip, tmp_path):
        data = self.make(tmp_path / "data", X, CLIPPED)
        (data / "output_0.pb").unlink()
        assert "has no output_0.pb" in opbridge("run", clip, "--test-data", data, code=1)
        assert "is not a folder" in opbridge("run", clip, "--test-data", tmp_path / "no", code=1)


class TestErrors:
    """What came, what was expected, what to do."""

    def test_inputs(self, clip, add, tmp_path):
        np.save(tmp_path / "x.npy", X)
        np.save(tmp_path / "double.npy", X.astype(np.float64))
        np.save(tmp_path / "wide.npy", np.zeros((2, 4), np.float32))
        np.save(tmp_path / "flat.npy", np.zeros(3, np.float32))
        np.save(tmp_path / "text.npy", np.array(["a"]))
        np.savez(tmp_path / "two.npz", p=X, q=X)
        (tmp_path / "cut.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-1])
        cases = [
            (clip, [], ["inputs are missing", "--input x=FILE    for f32[batch,3]", "--random"]),
            (clip, ["-i", f"X={tmp_path}/x.npy"], ["no input 'X'; did you mean 'x'?"]),
            (clip, ["-i", f"image={tmp_path}/x.npy"], ["no input 'image'; it has x"]),
            (clip, ["-i", tmp_path / "double.npy"], ["must be f32[batch,3], got f64[2,3]", "astype"]),
            (clip, ["-i", tmp_path / "wide.npy"], ["must be f32[batch,3], got f32[2,4]"]),
            (clip, ["-i", tmp_path / "flat.npy"], ["must be f32[batch,3], got f32[3]"]),
            (clip, ["-i", tmp_path / "text.npy"], ["holds text ('<U1')", "numbers and bools"]),
            (clip, ["-i", tmp_path / "cut.npy"], ["cut.npy' is cut off"]),
            (clip, ["-i", tmp_path / "no.npy"], ["no.npy' cannot be opened: No such file"]),
            (clip, ["-i", f"x={tmp_path}/two.npz"], ["has no array called 'x'; it has p or q"]),
            (clip, ["-i", tmp_path / "x.npy", "-i", f"x={tmp_path}/x.npy"], ["input 'x' is given twice"]),
            (add, ["-i", tmp_path / "x.npy"], ["which input is", "NAME is a or b"]),
            (add, ["-i", f"a={tmp_path}/x.npy"], ["--input b=FILE    for f32[n,?]"]),
            (clip, ["--random", "--dim", "bacth=2"], ["no dynamic dimension 'bacth'", "batch"]),
            (
                clip,
                ["-i", tmp_path / "x.npy", "--dim", "batch=4"],
                ["dimension 'batch' is 4", "has 2 in axis 0"],
            ),
            (clip, ["--random", "--output-dir", tmp_path / "x.npy"], ["x.npy"]),
        ]
        for model, arguments, wanted in cases:
            message = opbridge("run", model, *arguments, code=1)
            assert message.startswith("error: ")
            for part in wanted:
                assert part in message, arguments

    def test_unknown_rank_cannot_be_random(self, tmp_path):
        model = save(
            tmp_path / "m.onnx",
            [helper.make_node("Relu", ["x"], ["y"])],
            [tensor("x", None)],
            [tensor("y", None)],
        )
        assert "does not say what shape input 'x' has" in opbridge("run", model, "--random", code=1)
        np.save(tmp_path / "x.npy", X)
        assert run_json(model, "-i", tmp_path / "x.npy")["outputs"][0]["shape"] == [2, 3]
        np.save(tmp_path / "x.npy", np.float32(3))
        assert run_json(model, "-i", tmp_path / "x.npy")["outputs"][0]["shape"] == []

    def test_scalar_is_not_unknown_rank(self, tmp_path):
        model = save(
            tmp_path / "m.onnx",
            [helper.make_node("Relu", ["x"], ["y"])],
            [tensor("x", [])],
            [tensor("y", [])],
        )
        assert run_json(model, "--random")["inputs"][0]["shape"] == []
        np.save(tmp_path / "x.npy", X)
        assert "must be f32[], got f32[2,3]" in opbridge("run", model, "-i", tmp_path / "x.npy", code=1)

    def test_models(self, tmp_path):
        text = tmp_path / "text.onnx"
        text.write_text("not a model")
        assert "is not an ONNX model" in opbridge("run", text, "--random", code=1)
        assert "No such file" in opbridge("run", tmp_path / "no.onnx", "--random", code=1)
        strings = [tensor("x", [1], TensorProto.STRING)], [tensor("y", [1], TensorProto.STRING)]
        model = save(tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], *strings)
        assert "input 'x' is a tensor of string" in opbridge("run", model, "--random", code=1)

    def test_missing_weights(self, clip, tmp_path):
        big = numpy_helper.from_array(np.ones((1, 3), np.float32), "w")
        node = helper.make_node("Add", ["x", "w"], ["y"])
        model = save(tmp_path / "m.onnx", [node], [tensor("x", [1, 3])], [tensor("y", [1, 3])], [big])
        onnx.save(onnx.load(model), model, save_as_external_data=True, location="w.bin", size_threshold=0)
        run_json(model, "--random")
        (tmp_path / "w.bin").unlink()
        assert "keeps weights in 'w.bin', which is not beside it" in opbridge(
            "run", model, "--random", code=1
        )

    def test_runtimes(self, clip, tmp_path):
        assert "no.so" in opbridge("run", clip, "--random", "--ort", tmp_path / "no.so", code=1)
        message = opbridge("run", clip, "--random", "--ort", tmp_path, code=1)
        assert "has no libonnxruntime.so*" in message
        assert "pip install onnxruntime" in message
        # A Python environment is a place where one can be, too.
        package = tmp_path / "venv/lib/python3.11/site-packages/onnxruntime"
        package.parent.mkdir(parents=True)
        package.symlink_to(os.path.dirname(onnxruntime.__file__))
        assert onnxruntime.__version__ in opbridge("run", clip, "--random", "--ort", tmp_path / "venv")

    def test_cuda_on_a_cpu_runtime(self, clip):
        if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
            pytest.skip("this runtime has CUDA")
        message = opbridge("run", clip, "--random", "--provider", "cuda", code=1)
        assert "has no CUDA provider (it has" in message
        assert "onnxruntime-gpu" in message
        result = run_json(clip, "--random", "--provider", "cuda", "--allow-fallback")
        assert result["provider"] == "cpu"
        assert any("Running on the CPU" in w for w in result["warnings"])

    @pytest.mark.parametrize(
        "arguments",
        [
            [],
            ["run"],
            ["run", "m.onnx", "--no-such-option"],
            ["run", "m.onnx", "--dim", "batch=four"],
            ["run", "m.onnx", "--dim", "=4"],
            ["run", "m.onnx", "--dim", "batch=-1"],
            ["run", "m.onnx", "--provider", "gpu"],
            ["run", "m.onnx", "--optimize", "much"],
            ["run", "m.onnx", "--repeat", "0"],
            ["run", "m.onnx", "--output-format", "npz"],
            ["run", "m.onnx", "--allow-fallback"],
            ["run", "m.onnx", "--rtol", "1"],
            ["run", "m.onnx", "--test-data", "d", "--random"],
            ["no-such-command"],
        ],
    )
    def test_wrong_command_lines(self, arguments):
        assert "--help" in opbridge(*arguments, code=2)

    def test_help(self):
        assert "Exit codes" in opbridge("--help")
        text = opbridge("run", "--help")
        assert "Examples:" in text
        assert "Exit codes: 0 done, 1 failed" in text
        assert opbridge("--version").startswith("opbridge ")


class TestCustomOperators:
    def model(self, path, op="my_clip", domain="my_namespace", metadata=None, **attributes):
        node = helper.make_node(op, ["x", "low", "high"], ["y"], "clip", domain=domain, **attributes)
        bounds = [numpy_helper.from_array(np.float32(v), n) for v, n in ((-0.5, "low"), (0.5, "high"))]
        values = [tensor("x", ["n", 3])], [tensor("y", ["n", 3])]
        return save(path / "custom.onnx", [node], *values, bounds, [domain] if domain else [], metadata)

    def test_runs(self, tmp_path, monkeypatch):
        model = self.model(tmp_path)
        np.save(tmp_path / "x.npy", X)
        opbridge("run", model, "--library", LIBRARY, "-i", tmp_path / "x.npy", "-o", tmp_path)
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), CLIPPED)
        # The same library twice, and by a name without a folder.
        opbridge("run", model, "-l", LIBRARY, "-l", LIBRARY.resolve(), "--random")
        monkeypatch.chdir(LIBRARY.parent)
        opbridge("run", model, "--library", LIBRARY.name, "--random")

    def test_what_keeps_a_model_from_running(self, tmp_path):
        cases = [
            (
                {},
                None,
                "a custom operator, and no library was given. Pass the one that has my_namespace::my_clip",
            ),
            ({"op": "MyClip"}, LIBRARY, "has no operator 'MyClip'; did you mean 'my_clip'?"),
            ({"op": "my_clop"}, LIBRARY, "has no operator 'my_clop'; did you mean 'my_clip'?"),
            ({"domain": "my_ops"}, LIBRARY, "libmy_custom_ops.so has my_namespace::my_clip"),
            ({"domain": ""}, LIBRARY, "The node has no domain; the operator is my_namespace::my_clip"),
            ({"colour": 1}, LIBRARY, "unknown attribute 'colour'"),
            (
                {"metadata": {"opbridge.fingerprint.my_namespace::my_clip": "0123456789abcdef"}},
                LIBRARY,
                "my_namespace::my_clip: its declaration has changed since the model was exported",
            ),
        ]
        for changes, library, wanted in cases:
            model = self.model(tmp_path, **changes)
            arguments = ["--library", library] if library else []
            assert wanted in opbridge("run", model, "--random", *arguments, code=1), changes

    def test_matching_fingerprint(self, tmp_path):
        manifest = json.loads(opbridge("inspect", LIBRARY, "--json"))["manifest"]
        fingerprint = next(o["fingerprint"] for o in manifest["operators"] if o["name"] == "my_clip")
        model = self.model(tmp_path, metadata={"opbridge.fingerprint.my_namespace::my_clip": fingerprint})
        opbridge("run", model, "--random", "--library", LIBRARY)

    def test_an_error_of_the_operator_is_told(self, tmp_path):
        node = helper.make_node("my_clip", ["x", "low"], ["y"], "clip", domain="my_namespace")
        inputs = [tensor("x", [3]), tensor("low", [None])]
        model = save(tmp_path / "m.onnx", [node], inputs, [tensor("y", [3])], domains=["my_namespace"])
        message = opbridge("run", model, "--random", "--dim", "low:0=2", "-l", LIBRARY, code=1)
        assert "my_namespace::my_clip (node 'clip')" in message
        assert "'min'" in message
        assert "[2]" in message

    def test_what_is_no_operator_library(self, tmp_path):
        model = self.model(tmp_path)
        text = tmp_path / "text.so"
        text.write_text("not a library")
        assert "does not start as an ELF file" in opbridge("run", model, "--random", "-l", text, code=1)
        assert "No such file" in opbridge("run", model, "--random", "-l", tmp_path / "no.so", code=1)
        capi = Path(onnxruntime.__file__).parent / "capi"
        module = next(capi.glob("onnxruntime_pybind11_state*.so"))
        message = opbridge("run", model, "--random", "-l", module, code=1)
        assert "it is a Python module: it exports no RegisterCustomOps" in message
        extension = next((Path(onnx.__file__).parent).glob("onnx_cpp2py_export*.so"))
        assert "is not a custom-operator library" in opbridge(
            "run", model, "--random", "-l", extension, code=1
        )
