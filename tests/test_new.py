"""opbridge new: the project it writes builds, and its own tests pass."""

import shutil

import pytest
from conftest import BUILD, ROOT
from project import PYTHON_BIN, environment, install, run, runtime

OPBRIDGE = BUILD / "bin/opbridge"


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    return install(tmp_path_factory.mktemp("prefix"))


def files(folder):
    return {str(f.relative_to(folder)): f.read_text() for f in folder.rglob("*") if f.is_file()}


def new(folder, *arguments, code=0):
    return run(OPBRIDGE, "new", *arguments, cwd=folder, code=code)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("my_clip", ("my_ops", "--op", "my_clip")),
        ("pvn3d_limit", ("pose_ops", "--op", "PVN3DLimit", "--domain", "my.pose", "--no-cuda")),
    ],
)
def test_builds_and_passes_its_own_tests(op, arguments, prefix, tmp_path):
    env = environment(prefix / "bin", PYTHON_BIN, PYTHONPATH=str(ROOT / "python"), **runtime())
    run("opbridge", "new", *arguments, cwd=tmp_path, env=env)
    project = tmp_path / arguments[0]
    run("make", cwd=project, env=env)
    log = run("make", "test", cwd=project, env=env)
    assert " passed" in log
    assert "failed" not in log
    (library,) = (project / "build").rglob(f"lib{arguments[0]}.so")
    assert "passes: nothing found" in run("opbridge", "check", library, cwd=project, env=env)
    run("python3", f"export_{op}.py", cwd=project, env=env)
    assert f"{op}.onnx f32[2,4] -> f32[2,3]" in run("build/inference", f"{op}.onnx", cwd=project, env=env)


def test_names_go_where_they_belong(tmp_path):
    new(tmp_path, "pose_ops", "--op", "PVN3DPoseSolve", "--domain", "my.pose", "--dir", "deep/er")
    project = files(tmp_path / "deep/er/pose_ops")
    assert "OPS pvn3d_pose_solve)" in project["CMakeLists.txt"]
    assert "lib(pose_ops DOMAIN my.pose VERSION 1" in project["CMakeLists.txt"].replace("add_library", "lib")
    assert "PVN3DPoseSolve(x: T[*S]" in project["pvn3d_pose_solve/pvn3d_pose_solve_cpu.cpp"]
    assert "torch.ops.my_pose.pvn3d_pose_solve(" in project["export_pvn3d_pose_solve.py"]
    assert [name for name, text in project.items() if "@" in name + text.replace("@pytest", "")] == []
    assert not any(line.endswith(" ") for text in project.values() for line in text.splitlines())


def test_cuda_or_not(tmp_path):
    new(tmp_path, "with_cuda", "--op", "my_clip")
    new(tmp_path, "without", "--op", "my_clip", "--no-cuda")
    assert set(files(tmp_path / "with_cuda")) - set(files(tmp_path / "without")) == {
        "my_clip/my_clip_cuda.cu"
    }
    assert "cuda" not in "".join(files(tmp_path / "without").values()).lower()


def test_written_in_this_projects_style(tmp_path):
    new(tmp_path, "my_ops", "--op", "my_clip")
    project = tmp_path / "my_ops"
    for name in ".clang-format", "ruff.toml":
        shutil.copy(ROOT / name, project)
    sources = [f for f in project.rglob("*") if f.suffix in (".h", ".cpp", ".cu")]
    run(PYTHON_BIN / "clang-format", "--dry-run", "--Werror", *sources, cwd=project)
    run(PYTHON_BIN / "ruff", "check", "--no-cache", ".", cwd=project)
    run(PYTHON_BIN / "ruff", "format", "--no-cache", "--check", ".", cwd=project)


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "my_ops").mkdir()
    (tmp_path / "my_ops/mine.txt").write_text("mine")
    assert "nothing is overwritten" in new(tmp_path, "my_ops", "--op", "my_clip", code=1)
    assert files(tmp_path) == {"my_ops/mine.txt": "mine"}
    (tmp_path / "file").write_text("mine")
    assert "nothing is overwritten" in new(tmp_path, "file", "--op", "my_clip", code=1)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("my-ops", "--op", "my_clip"), "'my-ops' is not a name"),
        (("../my_ops", "--op", "my_clip"), "'../my_ops' is not a name"),
        (("test", "--op", "my_clip"), "'test' is a target of every build"),
        (("my_ops", "--op", "2d"), "'2d' is not a name"),
        (("my_ops", "--op", "my__clip"), "'my__clip' is not a name"),
        (("my_ops", "--op", "Class"), "'class' means something"),
        (("my_ops", "--op", "lambda"), "'lambda' means something"),
        (("my_ops", "--op", "my_clip", "--domain", "my..ops"), "'my..ops' is not a domain"),
        (("my_ops", "--op", "my_clip", "--domain", "ai.onnx.ml"), "'ai.onnx.ml' belongs to"),
        (("my_ops",), "--op is required"),
    ],
)
def test_names_that_cannot_work(arguments, message, tmp_path):
    assert message in new(tmp_path, *arguments, code=2)
    assert list(tmp_path.iterdir()) == []
