"""What the packaging tests share: an installation, and commands in an environment that knows nothing of this tree."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnxruntime
from conftest import BUILD, ROOT

PYTHON_BIN = Path(sys.executable).parent


def install(folder):
    """This build installed somewhere else and then moved. Returns the prefix."""
    run("cmake", "--install", BUILD, "--prefix", folder / "first", cwd=folder)
    return (folder / "first").rename(folder / "moved")


def environment(*path, **more):
    """No variable of ours but what is given: PATH starts with `path`."""
    path = [*map(str, path), "/usr/local/bin", "/usr/bin", "/bin"]
    return {"PATH": os.pathsep.join(path), "HOME": os.environ.get("HOME", "/"), "LC_ALL": "C.UTF-8", **more}


def ccache():
    """Variables that make CMake compile what this build has compiled from ccache, as the Makefile does."""
    if shutil.which("ccache") is None:
        return {}
    launchers = {f"CMAKE_{language}_COMPILER_LAUNCHER": "ccache" for language in ("CXX", "CUDA")}
    return launchers | {"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"}


def runtime():
    """Variables that make programs use the ONNX Runtime of this Python."""
    return {"OPBRIDGE_ORT": str(Path(onnxruntime.__file__).parent)}


def run(*command, cwd, env=None, code=0):
    """Runs a command and returns what it printed. Fails on another exit code than `code`."""
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env or environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert result.returncode == code, f"exit {result.returncode} of {command}\n{result.stdout}"
    return result.stdout
