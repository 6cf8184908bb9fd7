"""The table of registers and spills, and that it fails a build whose kernels grew (cmake/ptxas_table.py)."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

PTXAS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z5scaleIfEvPKT_PS0_' for 'sm_80'
ptxas info    : Function properties for _Z5scaleIfEvPKT_PS0_
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 512 bytes smem, 368 bytes cmem[0]
"""


def compile_with(tmp_path, budget, toolkit="13.0", **environment):
    """Runs the launcher on a compiler that says what ptxas says, for a source named scale_cuda.cu."""
    (tmp_path / "budget.txt").write_text(budget)
    compiler = [sys.executable, "-c", f"import sys; sys.stderr.write({PTXAS!r})", "scale_cuda.cu"]
    table = [sys.executable, ROOT / "cmake" / "ptxas_table.py", "--budget", tmp_path / "budget.txt", toolkit]
    return subprocess.run(
        [*table, *compiler], capture_output=True, text=True, env={**os.environ, **environment}
    )


def test_within_the_budget(tmp_path):
    done = compile_with(tmp_path, "13.0 80\n# a comment\nscale_cuda.cu scale 40 16 12 512\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert "scale<float>    80         40     16      12     512" in done.stdout


@pytest.mark.parametrize("allowed", ["39 16 12 512", "40 15 12 512", "40 16 11 512", "40 16 12 511"])
def test_above_the_budget(tmp_path, allowed):
    done = compile_with(tmp_path, f"13.0 80\nscale_cuda.cu scale {allowed}\n")
    assert done.returncode == 1
    assert f"scale_cuda.cu scale 40 16 12 512  instead of {allowed}" in done.stderr


def test_another_toolkit_is_not_compared(tmp_path):
    assert compile_with(tmp_path, "13.0 80\nscale_cuda.cu scale 1 0 0 0\n", toolkit="12.4").returncode == 0


def test_a_new_kernel_needs_a_budget(tmp_path):
    done = compile_with(tmp_path, "13.0 80\nother_cuda.cu scale 1 0 0 0\n")
    assert done.returncode == 1
    assert "\nscale_cuda.cu scale 40 16 12 512  has no budget yet\n" in done.stderr
    assert "OPBRIDGE_UPDATE_PTXAS_BUDGET=1 cmake --build" in done.stderr


def test_the_command_writes_the_sources_lines_anew(tmp_path):
    before = (
        "13.0 80\n# a comment\na_cuda.cu a 1 0 0 0\nscale_cuda.cu scale 1 0 0 0\nscale_cuda.cu gone 9 9 9 9\n"
        "b_cuda.cu b 2 0 0 0\n"
    )
    assert compile_with(tmp_path, before, OPBRIDGE_UPDATE_PTXAS_BUDGET="1").returncode == 0
    after = (tmp_path / "budget.txt").read_text()
    assert after == (
        "13.0 80\n# a comment\na_cuda.cu a 1 0 0 0\nscale_cuda.cu scale 40 16 12 512\nb_cuda.cu b 2 0 0 0\n"
    )
    assert compile_with(tmp_path, after).returncode == 0


def test_every_source_has_its_lines():
    """Kernels that were never measured would be found only by a build with the budget's own toolkit."""
    lines = (ROOT / "ops/ptxas_budget.txt").read_text().splitlines()
    sources = {path.name for path in (ROOT / "ops").rglob("*_cuda.cu")}
    assert {line.split()[0] for line in lines[2:]} == sources
