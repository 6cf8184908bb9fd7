"""One build of the libraries under every ONNX Runtime that is supported, each in an interpreter of its own.

tests/matrix/models.py writes the cases, tests/matrix/worker.py runs them. `scripts/ort_matrix.sh` fetches the runtimes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ROOT / os.environ.get("OPBRIDGE_BUILD", "build/release") / "lib"
VERSIONS = ["1.16.3", "1.17.3", "1.18.1", "1.20.1", "1.23.2", "1.24.1", "1.27.0", "1.28.0", "1.32.0"]
TOO_OLD = "1.15.1"


@pytest.fixture(scope="session")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("matrix")
    subprocess.run([sys.executable, ROOT / "tests/matrix/models.py", folder], check=True)
    return folder


def run(version, cases, only=None, timeout=240):
    python = ROOT / "build/ort" / version / "bin/python"
    assert python.exists(), f"no ONNX Runtime {version}: run make matrix"
    command = [python, ROOT / "tests/matrix/worker.py", cases, LIBRARIES] + ([only] if only else [])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as e:
        pytest.fail(f"ONNX Runtime {version} hangs in: {(e.stdout or b'').decode().splitlines()[-1:]}")
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, (
        f"ONNX Runtime {version} ended with {done.returncode} in {results[-1:]}\n{done.stderr[-3000:]}"
    )
    return [r for r in results if "ok" in r], done


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_version(version, cases):
    results, done = run(version, cases)
    wrong = [f"{r['name']}: {r['detail']}" for r in results if not r["ok"]]
    assert not wrong, f"{len(wrong)} of {len(results)} fail under ONNX Runtime {version}:\n" + "\n".join(
        wrong
    )
    assert len(results) > 250, "the worker ran fewer cases than there are"
    assert "opbridge" not in done.stderr, (
        f"the library printed, or something went to the log:\n{done.stderr[:3000]}"
    )


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_version_in_short(version, cases):
    """A few cases under the oldest and the newest, for `make check`, which does not fetch runtimes."""
    if not (ROOT / "build/ort" / version).exists():
        pytest.skip(f"no ONNX Runtime {version}: make matrix fetches it")
    for only in ("my_clip f", "attributes:", "optional outputs", "parallel"):
        results, _ = run(version, cases, only)
        assert [r["ok"] for r in results] == [True] * max(len(results), 1), [
            r for r in results if not r["ok"]
        ]


@pytest.mark.slow
def test_too_old_runtime_is_refused_politely(cases):
    results, done = run(TOO_OLD, cases)
    assert [r["ok"] for r in results] == [True], results
    assert "needs ONNX Runtime 1.16 or newer, but was loaded by 1.15.1" in results[0]["detail"]
    assert done.stderr == ""


@pytest.mark.slow
def test_the_harness_can_fail(cases, tmp_path):
    """A check that cannot fail is a defect: wrong expectations are noticed."""
    for f in cases.iterdir():
        (tmp_path / f.name).symlink_to(f)
    listed = json.loads((cases / "cases.json").read_text())
    by_name = {c["name"]: c for c in listed}
    by_name["my_clip f32: both"]["expected"] = by_name["my_clip f32: none"]["expected"]
    by_name["attributes: too large"]["texts"].append("words that do not come")
    by_name["attributes: defaults"].update(error="load", texts=[])
    (tmp_path / "cases.json").unlink()
    (tmp_path / "cases.json").write_text(json.dumps(listed))
    for name in ("my_clip f32: both", "attributes: too large", "attributes: defaults"):
        results, _ = run(VERSIONS[-1], tmp_path, name)
        assert not results[0]["ok"], name
