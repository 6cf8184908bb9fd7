"""`opbridge check`: every wrong operator of the zoo is named, and right libraries stay without a finding."""

import json
import os
import subprocess
import sys

import opbridge
import pytest
from conftest import BUILD, ROOT, built

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
