"""The table of registers and spills, and that it fails a build whose kernels grew (cmake/ptxas_table.py)."""

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


def compile_with(tmp_path, budget, toolkit="13.0"):
    """Runs the launcher on a compiler that says what ptxas says, for a source named scale_cuda.cu."""
    (tmp_path / "budget.txt").write_text(budget)
    compiler = [sys.executable, "-c", f"import sys; sys.stderr.write({PTXAS!r})", "scale_cuda.cu"]
    table = [sys.executable, ROOT / "cmake" / "ptxas_table.py", "--budget", tmp_path / "budget.txt", toolkit]
    return subprocess.run([*table, *compiler], capture_output=True, text=True)


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


def test_a_new_kernel_shows_its_line(tmp_path):
    done = compile_with(tmp_path, "13.0 80\nother_cuda.cu scale 1 0 0 0\n")
    assert done.returncode == 0
    assert "\nscale_cuda.cu scale 40 16 12 512\n" in done.stdout
