"""`opbridge check`: every wrong operator of the zoo is named, and right libraries stay without a finding."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import onnx
import opbridge
import pytest
from conftest import BUILD, ROOT, built
from onnx import TensorProto, helper, numpy_helper

COMMAND = BUILD / "bin/opbridge"
OLDEST, NEWEST = (ROOT / "build/ort/lib" / v for v in ("1.17.1", "1.32.0"))

# What is wrong with each operator of tests/zoo. Those without a code are right.
ZOO = {
    "opbridge_zoo": {
        "Memory": None,
        "WritesNothing": "output-not-written",
        "ForgetsTheLast": "output-not-written",
        "ReadsPastTheEnd": "read-out-of-bounds",
        "ReadsBeforeTheStart": "read-out-of-bounds",
        "TrustsIndices": "read-out-of-bounds",
        "WritesPastTheEnd": "write-out-of-bounds",
        "ShapeOfItsOwn": "write-out-of-bounds",
        "WritesToItsInput": "input-written",
        "WorkspaceTooSmall": "workspace-too-small",
        "AddsToWhatWasThere": "reads-stale-memory",
        "CrashesOnEmpty": "crash-on-empty",
        "Values": None,
        "OneTypeWrong": "element-type-differs",
        "DependsOnTheTime": "not-deterministic",
        "CountsCalls": "state-between-calls",
        "RemembersTheLastSize": "state-between-calls",
        "DependsOnOrder": "depends-on-threads",
        "SharesScratch": "not-thread-safe",
        "MixesTheBatch": "batch-items-mix",
        "ComparesPointers": "aliasing-unsafe",
        "RoundsUp": "float-mode-changed",
        "Calls": None,
        "SwallowsItsError": "output-not-written",
        "ThrowsAnInt": "odd-exception",
        "ThrowsWhatItIs": "internal-error",
        "Leaks": "leak",
        "LeaksFiles": "leak",
        "LeaksWhenItRefuses": "leak",
        "HangsOnNan": "hang",
        "CrashesWhenLarge": "crash",
        "Prints": "prints",
        "RefusesAll": "never-ran",
        "GetsTired": "state-between-calls",
    },
    "opbridge_zoo_lies": {
        "Lies": None,
        "MakesShapesUp": "shape-rule-wrong",
        "AcceptsAnything": "wrong-call-accepted",
        "RefusesTheRight": "right-call-refused",
        "SaysNothing": "error-unclear",
        "IsUpsetByErrors": "wrong-after-error",
        "ThrowsAcrossC": "odd-exception",
        "IgnoresOffsets": "byte-offset-ignored",
        "IgnoresStrides": "strides-ignored",
        "DiffersFromItself": "onnxruntime-differs",
        "Ghost": "session-fails",
        "Mumbles": "manifest-wrong",
    },
}
OPERATORS = [(library, op) for library, ops in ZOO.items() for op in ops]


def check(*arguments):
    command = [COMMAND, "check", *map(str, arguments), "--json"]
    environment = os.environ | {"VIRTUAL_ENV": sys.prefix}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.stdout, f"exit {done.returncode}: {done.stderr}"
    report = json.loads(done.stdout)
    assert done.returncode == (1 if report["errors"] else 2 if report["warnings"] else 0)
    return report


def codes(report, subject=None):
    return [f["code"] for f in report["findings"] if subject in (None, f["subject"])]


@pytest.fixture(scope="module")
def zoo():
    return {library: check(built(library), "--timeout", 1) for library in ZOO}


@pytest.mark.parametrize(("library", "op"), OPERATORS, ids=[op for _, op in OPERATORS])
def test_the_zoo(zoo, library, op):
    domain = library.replace("_", ".")
    found = codes(zoo[library], f"{domain}::{op}")
    expected = ZOO[library][op]
    assert expected in found if expected else not found


def test_every_code_has_an_animal(zoo, compile_c):
    page = subprocess.run(
        [COMMAND, "check", "--catalogue"], capture_output=True, text=True, check=True
    ).stdout
    assert (ROOT / "docs/check.md").read_text() == page, (
        "run: build/release/bin/opbridge check --catalogue > docs/check.md"
    )
    library = page.split("## Findings about a library")[1].split("\n## ")[0]
    known = {line.split("`")[1] for line in library.splitlines() if line.startswith("| `")}
    foreign = compile_c("foreign", "void* RegisterCustomOps(void* options, void* api) { return 0; }")
    shown = {code for ops in ZOO.values() for code in ops.values() if code} | set(codes(check(foreign)))
    assert "not-opbridge" in shown
    assert known == shown


def test_findings_say_what_was_seen(zoo):
    findings = reversed(zoo["opbridge_zoo"]["findings"])  # of several about one operator, the first
    by_subject = {f["subject"].split("::")[1]: f["evidence"] for f in findings}
    assert "it read 0 bytes past the end of input 'x' f32[5]" in by_subject["ReadsPastTheEnd"]
    assert "output 'y' f32[5]: 1 of 5 elements were not written, first [4]" in by_subject["ForgetsTheLast"]
    assert "x f32[0]" in by_subject["CrashesOnEmpty"]
    assert "signal 8" in by_subject["CrashesOnEmpty"]
    assert "100 bytes" in by_subject["Leaks"] or "112 bytes" in by_subject["Leaks"]
    assert "values: NaN among them: no answer within 1 s" in by_subject["HangsOnNan"]
    assert "'a' and 'b'" in by_subject["ComparesPointers"]


@pytest.mark.parametrize("name", ["my_custom_ops", "pvn3d_custom_op", "python_test_ops"])
def test_right_libraries_pass(name):
    report = check(built(name), "--ort", OLDEST, "--ort", NEWEST)
    assert report["findings"] == []
    assert report["verdict"] == "passes: nothing found"
    assert [r["version"] for r in report["runtimes"]] == ["1.17.1", "1.32.0"]
    assert report["skipped"] == []
    assert all(op["computed"] > 50 and op["wrong_calls"] > 5 for op in report["operators"])


def test_python():
    report = opbridge.check(opbridge.load(built("opbridge_zoo")), op="CountsCalls", seed=3)
    assert not report.ok
    assert [f.code for f in report.findings] == ["state-between-calls"]
    assert report.findings[0].subject == "opbridge.zoo::CountsCalls"
    assert [op["name"] for op in report.facts["operators"]] == ["opbridge.zoo::CountsCalls"]
    with pytest.raises(opbridge.Error, match="no operator 'CountCalls'; did you mean 'CountsCalls'"):
        opbridge.check(built("opbridge_zoo"), op="CountCalls")
    with pytest.raises(opbridge.InvalidArgumentError):
        opbridge.check(built("opbridge_zoo"), timeout=0)
    with pytest.raises(opbridge.InvalidArgumentError, match="--dim are for models"):
        opbridge.check(built("opbridge_zoo"), dims={"n": 1})


def test_missing_file_is_doctors_finding(tmp_path):
    assert codes(check(tmp_path / "libnone.so")) == ["library-missing"]


def test_text():
    done = subprocess.run(
        [COMMAND, "check", built("opbridge_zoo"), "--op", "Prints", "--op", "Memory", "--ort", NEWEST],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "warning prints: opbridge.zoo::Prints" in done.stdout
    assert "not checked: two ONNX Runtimes in one process" in done.stdout
    assert done.stdout.endswith("passes, but: 1 warning\n")
    assert "\x1b" not in done.stdout + done.stderr


# ------------------------------------------------------------------------------------------------------------- models

ZOO_DOMAIN = "opbridge.zoo"
BATCH = ["batch", 4]


def model(tmp_path, nodes, shapes=None, *, weights=(), inner=()):
    """The path of a model from x to the last node's output. `nodes`: (op, inputs, output)[, domain]."""
    shapes = {"x": BATCH} | (shapes or {})
    output = nodes[-1][2]

    def value(name, shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    made = [
        helper.make_node(op, i, [o], name=f"node_{o}", domain=domain[0] if domain else "")
        for op, i, o, *domain in nodes
    ]
    graph = helper.make_graph(
        made,
        "g",
        [value("x", shapes["x"])],
        [value(output, shapes.get(output, shapes["x"]))],
        [numpy_helper.from_array(w, name) for name, w in weights],
        value_info=[value(name, shape) for name, shape in inner],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(ZOO_DOMAIN, 1)]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    return path


FLAT = np.int64([1, 4])
ROW = np.int64([1, -1])
# code -> (arguments of model(), options, what the evidence says)
MODELS = {
    "dimension-fixed": (
        dict(nodes=[("Relu", ["x"], "r"), ("Reshape", ["r", "s"], "y")], weights=[("s", FLAT)]),
        (),
        "it runs with batch=1 only; batch=2: .*first tensor of fixed shape is 'y' f32\\[1,4\\], made by Reshape "
        "\\(node 'node_y'\\) from 'r' f32\\[batch,4\\]",
    ),
    "batch-lost": (
        dict(
            nodes=[("Reshape", ["x", "s"], "f"), ("ReduceSum", ["f"], "y")],
            shapes={"y": [1, 1]},
            weights=[("s", ROW)],
        ),
        (),
        "'y' is f32\\[1,1\\] with batch=1 and with batch=2",
    ),
    "batch-items-differ": (
        dict(nodes=[("ReduceMean", ["x"], "m"), ("Sub", ["x", "m"], "y")]),
        (),
        "item 0 of batch=2: output 'y' f32\\[1,4\\] differs from that of the item alone by ",
    ),
    "output-shape-wrong": (
        dict(nodes=[("Reshape", ["x", "s"], "y")], shapes={"y": ["batch", "n"]}, weights=[("s", ROW)]),
        (),
        "'y' is declared f32\\[batch,n\\], with batch=2 it is f32\\[1,8\\]",
    ),
    "shape-frozen": (
        dict(nodes=[("Relu", ["x"], "h"), ("Neg", ["h"], "y")], inner=[("h", [1, 4])]),
        (),
        "the first is 'h', made by Relu .*: inferred as f32\\[1,4\\], with batch=2 it is f32\\[2,4\\]",
    ),
    "model-not-deterministic": (
        dict(nodes=[("RandomNormalLike", ["x"], "noise"), ("Add", ["x", "noise"], "y")]),
        (),
        "output 'y' f32\\[1,4\\], 4 of 4 elements differ.*first tensor that differs is 'noise', made by RandomNormal",
    ),
    "rotation-wrong": (
        dict(nodes=[("Identity", ["x"], "R")], shapes={"x": ["batch", 3, 3]}),
        (),
        "1 of 1 matrices; matrix 0 has det\\(R\\) = ",
    ),
    "translation-not-finite": (
        dict(nodes=[("Div", ["x", "z"], "translation")], weights=[("z", np.float32([0]))]),
        (),
        "4 elements that are NaN or infinite; the first are in 'translation', made by Div",
    ),
    "not-finite": (
        dict(nodes=[("Log", ["x"], "l"), ("Neg", ["l"], "y")]),
        (),
        "the first are in 'l', made by Log \\(node 'node_l'\\) from 'x'",
    ),
    "memory-grows": (
        dict(nodes=[("Neg", ["x"], "n"), ("Leaks", ["n"], "y", ZOO_DOMAIN)], shapes={"x": ["n"]}),
        (),
        "every run of 1000 keeps 1\\d\\d bytes",
    ),
    "model-crashes": (
        dict(nodes=[("CrashesWhenLarge", ["x"], "y", ZOO_DOMAIN)], shapes={"x": ["n"]}),
        ("--dim", "n=40"),
        "ended by signal 6",
    ),
    "model-hangs": (
        dict(nodes=[("Log", ["x"], "l"), ("HangsOnNan", ["l"], "y", ZOO_DOMAIN)], shapes={"x": ["n"]}),
        (),
        "a run with n=16: no answer within 2 s",
    ),
    "model-never-ran": (
        dict(nodes=[("RefusesAll", ["x"], "y", ZOO_DOMAIN)], shapes={"x": ["n"]}),
        (),
        "n=16: .*a multiple of 1000",
    ),
    "model-does-not-load": (
        dict(nodes=[("NoSuchOperator", ["x"], "y", ZOO_DOMAIN)]),
        (),
        "NoSuchOperator",
    ),
    "model-run-fails": (
        dict(nodes=[("GetsTired", ["x"], "y", ZOO_DOMAIN)], shapes={"x": ["n"]}),
        (),
        "run 2 of 20|repeated runs|run \\d+ of 20: .*tired",
    ),
}


@pytest.mark.parametrize("code", MODELS)
def test_wrong_models(code, tmp_path):
    arguments, options, evidence = MODELS[code]
    path = model(tmp_path, **arguments)
    report = check(path, "--library", built("opbridge_zoo"), "--timeout", 2, "--ort", NEWEST, *options)
    assert codes(report) == [code]
    assert re.search(evidence, report["findings"][0]["evidence"], flags=re.DOTALL), report["findings"][0]


def test_every_code_of_models_is_provoked():
    page = (ROOT / "docs/check.md").read_text().split("## Findings about a model")[1]
    assert {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")} == set(MODELS)


@pytest.mark.parametrize("ort", [OLDEST, NEWEST], ids=["oldest", "newest"])
def test_the_shipped_model_passes(ort):
    report = check(
        ROOT / "examples/pvn3d/models/pvn3d.onnx", "--library", built("pvn3d_custom_op"),
        "--ort", ort, "--memory-seconds", 1,
    )  # fmt: skip
    assert report["findings"] == []
    ran = {d["name"]: d["ran"] for d in report["dimensions"]}
    assert ran == {"batch": [1, 2], "points": [16, 17], "height": [16, 17], "width": [16, 17]}


def test_right_models_pass(tmp_path):
    path = model(tmp_path, [("Memory", ["x"], "y", ZOO_DOMAIN)], {"x": ["n"]})
    report = opbridge.check(path, built("opbridge_zoo"), inputs={"x": np.float32([1, 2, 3])}, ort=NEWEST)
    assert report.findings == ()
    assert report.facts["skipped"] == [{"what": "sizes of 'n'", "why": "it was given"}]
    assert report.facts["memory_runs"] == 1000
    report = opbridge.check(path, built("opbridge_zoo"), dims={"n": 5}, ort=NEWEST, runs=100)
    assert (report.findings, report.facts["memory_runs"]) == ((), 100)


def test_dimensions_that_agree_without_a_common_name(tmp_path):
    nodes = [("Shape", ["x"], "s"), ("Expand", ["w", "s"], "e"), ("Add", ["x", "e"], "y")]
    path = model(tmp_path, nodes, {"x": ["n", 4]}, weights=[("w", np.float32([1]))])
    proto = onnx.load(path)
    proto.graph.input.append(helper.make_tensor_value_info("state", TensorProto.FLOAT, ["m", 4]))
    proto.graph.node.append(helper.make_node("Where", ["c", "x", "state"], ["z"]))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([[True, False, True, False]]), "c"))
    proto.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 4]))
    onnx.save(proto, path)
    report = check(path, "--ort", NEWEST)
    assert report["findings"] == []
    ran = {d["name"]: d["ran"] for d in report["dimensions"]}
    assert ran == {"n": [16], "m": [16], "m = n": [16, 17]}


def test_weights_outside_the_model(tmp_path):
    path = model(
        tmp_path, [("Mul", ["x", "w"], "p"), ("Log", ["p"], "y")], weights=[("w", np.float32([1, 2, 3, -4]))]
    )
    loaded = onnx.load(path)
    onnx.save(loaded, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    report = check(path, "--ort", NEWEST)
    assert codes(report) == ["not-finite"]
    assert "made by Log" in report["findings"][0]["evidence"]
