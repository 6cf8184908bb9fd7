"""pip install: the wheel fits any Python 3 and holds all that a user needs."""

import fcntl
import os
import sys
import sysconfig
import zipfile

import pytest
from conftest import ROOT
from project import PYTHON_BIN, ccache, environment, run, runtime

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from the source tree without network; build/wheel keeps what was compiled."""
    out = tmp_path_factory.mktemp("wheel")
    options = ["--no-build-isolation", "--no-deps", "--no-index"]
    # The flags of preset release, so that ccache has most of it.
    options += ["-C", "cmake.define.OPBRIDGE_CUDA=OFF", "-C", "cmake.define.OPBRIDGE_WERROR=ON"]
    env = environment(PYTHON_BIN, **ccache())
    # One build at a time: pytest's workers share the folder, and its cache names where one wheel's files go.
    with open(ROOT / "build/wheel.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(sys.executable, "-m", "pip", "wheel", "-v", *options, "-w", out, ROOT, cwd=out, env=env)
    (file,) = out.iterdir()
    return file


@pytest.fixture(scope="module")
def venv(wheel, tmp_path_factory):
    """A fresh environment with the wheel; numpy, torch and the like are those of this Python."""
    folder = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin/python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        wheel,
        cwd=folder,
    )
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    with open(os.path.join(site, "borrowed.pth"), "w") as file:
        file.write(sysconfig.get_path("purelib"))
    return folder


def test_tag_and_contents(wheel):
    assert wheel.name.startswith("opbridge-")
    assert "-py3-none-" in wheel.name, "the compiled parts know no Python"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith("/METADATA"))).decode()
    for name in (
        "opbridge/__init__.py",
        "opbridge/lib/libmy_custom_ops.so",
        "opbridge/lib/libpvn3d_custom_op.so",
        "opbridge/lib/libopbridge_core.a",
        "opbridge/lib/cmake/opbridge/opbridgeConfig.cmake",
        "opbridge/include/opbridge/op.h",
    ):
        assert name in names
    assert any(n.endswith(".data/scripts/opbridge") for n in names)
    assert not any("__pycache__" in n or "/tests/" in n for n in names)
    required = [
        line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra" not in line
    ]
    assert sorted(line.split()[1] for line in required) == ["numpy", "onnx"]


def test_installed_package_and_command(venv):
    env = environment(venv / "bin", **runtime())
    code = "import sys, opbridge, numpy as np; path = opbridge.library_path('my_custom_ops'); "
    code += "lib = opbridge.load(path, torch=False); "
    code += "print(opbridge.__file__, lib.ops.my_clip(np.float32([-2, 7]), 0, 1).tolist(), 'torch' in sys.modules)"
    file, result = run("python", "-c", code, cwd=venv, env=env).split(" ", 1)
    assert file.startswith(str(venv))
    assert result == "[0.0, 1.0] False\n"
    assert "new" in run("opbridge", "--help", cwd=venv, env=env)
    library = run(
        "python", "-c", "import opbridge; print(opbridge.library_path('my_custom_ops'))", cwd=venv, env=env
    )
    assert "my_namespace" in run("opbridge", "inspect", library.strip(), cwd=venv, env=env)


def test_new_project_builds_with_what_pip_installed(venv, tmp_path):
    env = environment(venv / "bin", **runtime())
    run("opbridge", "new", "my_ops", "--op", "my_clip", "--no-cuda", cwd=tmp_path, env=env)
    run("make", cwd=tmp_path / "my_ops", env=env)
    assert " passed" in run("make", "test", cwd=tmp_path / "my_ops", env=env)
    assert str(venv) in (tmp_path / "my_ops/build/CMakeCache.txt").read_text()
