"""`opbridge inspect`: libraries and models, without a session."""

import json
import os
import shutil
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
FOREIGN = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))


def inspect(*arguments, code=0):
    done = subprocess.run(
        [BUILD / "bin/opbridge", "inspect", *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stderr if code else done.stdout


def inspect_json(*arguments):
    return json.loads(inspect(*arguments, "--json"))


class TestLibraries:
    def test_ours(self):
        facts = inspect_json(LIBRARY)
        assert facts["kind"] == "library"
        assert facts["opbridge"]
        assert facts["onnxruntime_loadable"]
        assert facts["file"]["exported"] == ["RegisterCustomOps", "opbridge_get_library"]
        assert not [n for n in facts["file"]["linked"] if "onnxruntime" in n or "torch" in n or "cudart" in n]
        manifest = facts["manifest"]
        assert (manifest["library"], manifest["domain"]) == ("my_custom_ops", "my_namespace")
        clip = next(o for o in manifest["operators"] if o["name"] == "my_clip")
        assert [i["name"] for i in clip["inputs"]] == ["x", "min", "max"]

    def test_ours_as_text(self):
        text = inspect(LIBRARY)
        for part in (
            "my_custom_ops 1, domain my_namespace",
            "ONNX Runtime: 1.16 and newer",
            "CUDA: ",
            "my_namespace::my_clip",
            "T: f16, bf16, f32, f64, i32, i64",
            "[] or [1]",
            "optional",
            "fingerprint: ",
            "linked libraries",
            "2 exported symbols",
            "RegisterCustomOps, opbridge_get_library",
        ):
            assert part in text
        assert "\x1b[" not in text

    def test_somebody_elses_is_read_but_not_loaded(self):
        facts = inspect_json(FOREIGN)
        assert not facts["opbridge"]
        assert not facts["onnxruntime_loadable"]
        assert facts["manifest"] is None
        assert "OrtGetApiBase" in facts["file"]["exported"]
        assert "libc.so.6" in facts["file"]["linked"]
        assert "ONNX Runtime cannot load it" in inspect(FOREIGN)

    def test_never_executes_a_foreign_library(self, tmp_path):
        source, library, trace = tmp_path / "f.c", tmp_path / "libf.so", tmp_path / "executed"
        source.write_text(
            "#include <stdio.h>\n"
            f'__attribute__((constructor)) static void run(void) {{ fclose(fopen("{trace}", "w")); }}\n'
            "int RegisterCustomOps(void) { return 0; }\n"
        )
        subprocess.run([shutil.which("cc") or "gcc", "-shared", "-fPIC", "-o", library, source], check=True)
        assert "exports RegisterCustomOps: ONNX Runtime can load it" in inspect(library)
        assert not trace.exists()

    def test_bad_files(self, tmp_path):
        whole = LIBRARY.read_bytes()

        def error(name, content):
            (tmp_path / name).write_bytes(content)
            return inspect(tmp_path / name, code=1)

        assert "No such file" in inspect(tmp_path / "no.so", code=1)
        assert "does not start as an ELF file" in error("text.so", b"plain text")
        assert "the file is empty" in error("empty.so", b"")
        assert "cut off" in error("cut.so", whole[: len(whole) // 2])
        assert "32-bit" in error("32.so", whole[:4] + b"\x01" + whole[5:])
        assert "is built for riscv, this machine is" in error(
            "riscv.so", whole[:18] + b"\xf3\x00" + whole[20:]
        )
        assert "neither a shared library (.so) nor an ONNX model (.onnx)" in error("notes.txt", b"plain text")
        assert "is a folder" in inspect(tmp_path, code=1)

    def test_a_newer_abi_is_refused(self, tmp_path):
        """A library that knows none of our ABI versions says so; nothing crashes."""
        source, library = tmp_path / "f.c", tmp_path / "libf.so"
        source.write_text(
            "#include <string.h>\n"
            "struct error { unsigned size; int kind; char message[2040]; };\n"
            "const void* opbridge_get_library(unsigned version, struct error* e) {\n"
            '  (void)version; e->kind = 2; strcpy(e->message, "needs a host of ABI 7"); return 0;\n'
            "}\n"
        )
        subprocess.run([shutil.which("cc") or "gcc", "-shared", "-fPIC", "-o", library, source], check=True)
        assert "libf.so': needs a host of ABI 7" in inspect(library, code=1)


def value(name, shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


@pytest.fixture
def model(tmp_path):
    """A custom node in the main graph, one in a branch of an If, one in a function of the model."""
    half = numpy_helper.from_array(np.float32(0.5), "half")
    one = helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(np.float32([1])))
    clip = helper.make_node("my_clip", ["x", "", "one"], ["c"], "clip", domain="my_namespace")
    branch = [
        helper.make_graph(
            [helper.make_node(op, ["c", "half"], [out], f"in_{op}", domain=domain)],
            op,
            [],
            [value(out, ["batch", 3])],
        )
        for op, domain, out in (("my_clip", "my_namespace", "t"), ("Mul", "", "e"))
    ]
    choice = helper.make_node("If", ["flag"], ["b"], "choice", then_branch=branch[0], else_branch=branch[1])
    call = helper.make_node("Local", ["b"], ["y"], "call", domain="local")
    function = helper.make_function(
        "local",
        "Local",
        ["i"],
        ["o"],
        [helper.make_node("Other", ["i"], ["o"], "other", domain="elsewhere", scale=0.08, names=["p", "q"])],
        [helper.make_opsetid("elsewhere", 1)],
    )
    graph = helper.make_graph(
        [one, clip, choice, call],
        "g",
        [value("x", ["batch", 3]), value("flag", [], TensorProto.BOOL)],
        [value("y", ["batch", 3])],
        [half],
    )
    domains = {"": 17, "my_namespace": 1, "local": 1, "elsewhere": 1}
    opsets = [helper.make_opsetid(d, v) for d, v in domains.items()]
    m = helper.make_model(
        graph, opset_imports=opsets, ir_version=9, producer_name="tests", functions=[function]
    )
    helper.set_model_props(m, {"opbridge.library.my_namespace": "my_custom_ops 1"})
    onnx.save(m, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


class TestModels:
    def test_json(self, model):
        facts = inspect_json(model)
        assert facts["kind"] == "model"
        assert facts["ir_version"] == 9
        assert facts["producer"] == "tests"
        assert facts["opsets"] == {"ai.onnx": 17, "elsewhere": 1, "local": 1, "my_namespace": 1}
        assert facts["metadata"] == {"opbridge.library.my_namespace": "my_custom_ops 1"}
        assert facts["inputs"] == [
            {"name": "x", "type": "f32", "shape": ["batch", 3]},
            {"name": "flag", "type": "bool", "shape": []},
        ]
        assert facts["functions"] == ["local::Local"]
        assert facts["problems"] == []
        clip, inner, other = facts["custom_nodes"]
        assert (clip["domain"], clip["op"], clip["name"], clip["where"]) == (
            "my_namespace",
            "my_clip",
            "clip",
            "",
        )
        assert clip["inputs"] == ["x", "", "one"]
        assert clip["constant_inputs"] == {"2": "f32[1] 1.0"}
        assert clip["library"] is None
        assert inner["where"] == "then_branch of If 'choice'"
        assert inner["constant_inputs"] == {"1": "f32[] 0.5"}
        assert other["where"] == "function local::Local"
        assert other["attributes"] == {
            "names": {"type": "strings", "value": ["p", "q"]},
            "scale": {"type": "float", "value": 0.08},
        }

    def test_with_libraries(self, model):
        facts = inspect_json(model, "--library", LIBRARY)
        assert [n["library"] and Path(n["library"]).name for n in facts["custom_nodes"]] == [
            LIBRARY.name
        ] * 2 + [None]
        assert len(facts["problems"]) == 1
        assert "elsewhere::Other (node 'other'): none of the given libraries" in facts["problems"][0]

    def test_text(self, model):
        text = inspect(model)
        for part in (
            "ai.onnx 17",
            "f32[batch,3]",
            "my_namespace::my_clip (node 'clip')",
            "(absent)",
            "constant f32[1] 1.0",
            "in then_branch of If 'choice'",
            "in function local::Local",
            "scale = 0.08",
            "Pass --library",
        ):
            assert part in text
        text = inspect(model, "-l", LIBRARY)
        assert str(LIBRARY) in text
        assert "NONE of the given libraries" in text

    def test_unknown_attributes(self, tmp_path):
        node = helper.make_node("my_clip", ["x"], ["y"], "clip", domain="my_namespace", limit=1.0)
        graph = helper.make_graph([node], "g", [value("x", [3])], [value("y", [3])])
        path = tmp_path / "m.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("my_namespace", 1)]), path)
        facts = inspect_json(path, "-l", LIBRARY)
        assert "unknown attribute 'limit'" in facts["custom_nodes"][0]["unknown_attributes"][0]
        assert facts["problems"] == facts["custom_nodes"][0]["unknown_attributes"]

    def test_no_custom_nodes(self, tmp_path):
        graph = helper.make_graph(
            [helper.make_node("Relu", ["x"], ["y"])], "g", [value("x", None)], [value("y", None)]
        )
        path = tmp_path / "m.onnx"
        onnx.save(helper.make_model(graph), path)
        assert "No custom operators" in inspect(path)
        assert inspect_json(path)["inputs"] == [{"name": "x", "type": "f32", "shape": None}]

    def test_nothing_in_a_model_reaches_the_terminal_unseen(self, tmp_path):
        """Bytes that are not UTF-8, and escape sequences."""
        node = helper.make_node("Op", ["x"], ["y"], "n\x1b[2J", domain="d", text=b"\xff\xfe")
        graph = helper.make_graph([node], "g", [value("x", [3])], [value("y", [3])])
        path = tmp_path / "m.onnx"
        onnx.save(helper.make_model(graph), path)
        assert inspect_json(path)["custom_nodes"][0]["attributes"]["text"]["value"] == "\ufffd\ufffd"
        text = inspect(path)
        assert "text = \ufffd\ufffd" in text
        assert "(node 'n [2J')" in text
        assert "\x1b" not in text

    def test_bad_files(self, tmp_path, model):
        bad = tmp_path / "bad.onnx"
        bad.write_bytes(model.read_bytes()[:-3])
        assert "is not an ONNX model, or is damaged or cut off" in inspect(bad, code=1)
        bad.write_bytes(b"")
        assert "is empty, not an ONNX model" in inspect(bad, code=1)
        assert "No such file" in inspect(tmp_path / "no.onnx", code=1)
        assert "--library goes with a model" in inspect(LIBRARY, "--library", LIBRARY, code=1)
        inspect(code=2)
