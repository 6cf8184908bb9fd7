"""Every case in a program without Python (tests/run_cases.cpp): any thread count, over poisoned memory, with guards
behind outputs and workspace, and the same bits with every instruction set that this processor has."""

import os
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT, built

LEVELS = ("baseline", "sse4", "avx2", "avx512")  # what the processor lacks is cut to what it has


@pytest.fixture(scope="module")
def case_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("cases") / "cases"
    command = [sys.executable, ROOT / "tests" / "cases.py", "--flat", built("pvn3d_custom_op"), path]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT / "python")}, check=True)
    return path


def run(case_file, bits, level):
    done = subprocess.run(
        [find_program(), built("pvn3d_custom_op"), case_file, bits],
        env=os.environ | {"OPBRIDGE_SIMD": level}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, f"OPBRIDGE_SIMD={level}\n{done.stdout[-3000:]}{done.stderr}"
    return bits.read_text()


def find_program():
    path = BUILD / "tests" / "run_cases"
    assert path.exists(), f"no {path}: run make build"
    return path


def test_same_bits_with_every_instruction_set(case_file, tmp_path):
    bits = {level: run(case_file, tmp_path / level, level) for level in LEVELS}
    assert bits["baseline"].count("\n") > 500
    for level in LEVELS[1:]:
        differ = set(bits["baseline"].splitlines()) ^ set(bits[level].splitlines())
        assert not differ, f"{level}: {sorted(differ)[:10]}"
