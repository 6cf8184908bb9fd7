"""cmake --install: a stranger's project finds the package, wherever it was moved, and needs nothing else."""

import re
import shutil

import numpy as np
import onnxruntime
import pytest
from conftest import ROOT
from project import environment, install, run, runtime

PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(stranger LANGUAGES CXX)
find_package(opbridge 0.1 REQUIRED)
"""
PLUGIN = "opbridge_add_library(my_ops DOMAIN my_namespace VERSION 1 OPS my_clip)\n"
RUNNER = """
#include <cstdio>
#include "opbridge/runner.h"
int main(int, char** argv) {
  const opbridge::Runtime runtime = opbridge::Runtime::find();
  opbridge::SessionOptions options;
  options.libraries = {argv[2]};
  const opbridge::Session session(runtime, argv[1], options);
  const opbridge::Array x = opbridge::Array::of<float>({3}, {-2, 0.5f, 7}), min = opbridge::Array::of<float>({}, {-1}),
                        max = opbridge::Array::of<float>({}, {1});
  const opbridge::Arrays out = session.run({{"x", x}, {"min", min}, {"max", max}});
  for (int i = 0; i < 3; ++i) std::printf("%g ", out.at("y").as<float>()[i]);
}
"""


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    return install(tmp_path_factory.mktemp("prefix"))


@pytest.fixture
def project(tmp_path):
    """A folder outside the tree with the CPU sources of one operator."""
    folder = tmp_path / "stranger"
    (folder / "my_clip").mkdir(parents=True)
    for name in "my_clip.h", "my_clip_cpu.cpp":
        shutil.copy(ROOT / "ops/my_clip" / name, folder / "my_clip")
    return folder


def configure(project, prefix, *options, code=0):
    return run("cmake", "-B", "build", f"-DCMAKE_PREFIX_PATH={prefix}", *options, cwd=project, code=code)


def test_stranger_builds_and_runs_a_plugin(project, prefix, make_model, run_python):
    (project / "CMakeLists.txt").write_text(
        PROJECT + PLUGIN + "add_executable(inference inference.cpp)\n"
        "target_link_libraries(inference PRIVATE opbridge::runner)\n"
    )
    (project / "inference.cpp").write_text(RUNNER)
    log = configure(project, prefix)
    assert "CUDA" not in log, "without .cu files nothing looks for CUDA"
    run("cmake", "--build", "build", cwd=project)
    library = project / "build/lib/libmy_ops.so"

    symbols = run("nm", "-D", "--defined-only", library, cwd=project)
    assert sorted(line.split()[-1] for line in symbols.splitlines()) == [
        "RegisterCustomOps",
        "opbridge_get_library",
    ]
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-dW", library, cwd=project)))
    assert needed <= {"libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libc.so.6", "ld-linux-x86-64.so.2"}

    code = "import sys, opbridge, numpy as np; lib = opbridge.load(sys.argv[1], torch=False); "
    code += "print(lib.ops.my_clip(np.float32([-2, 0.5, 7]), np.float32(-1), np.float32(1)).tolist())"
    assert run_python(code, str(library)) == "[-1.0, 0.5, 1.0]\n"

    model = make_model()
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(library))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = {name: np.array(v, np.float32) for name, v in (("x", [-2, 0.5, 7]), ("min", -1), ("max", 1))}
    assert session.run(None, feeds)[0].tolist() == [-1, 0.5, 1]

    (project / "m.onnx").write_bytes(model.SerializeToString())
    out = run("build/inference", "m.onnx", library, cwd=project, env=environment(**runtime()))
    assert out.split() == ["-1", "0.5", "1"]


def test_nothing_points_back(prefix):
    for file in prefix.rglob("*.cmake"):
        assert str(ROOT) not in file.read_text(), file
        assert str(prefix.parent) not in file.read_text(), file
    binaries = [
        prefix / "bin/opbridge",
        *(prefix / "lib").glob("*.so"),
        *(prefix / "libexec").rglob("opbridge_*"),
    ]
    assert len(binaries) >= 3
    for file in binaries:
        assert not re.search("RPATH|RUNPATH", run("readelf", "-dW", file, cwd=prefix)), file


def test_both_libraries_and_the_command_work_where_they_are(prefix):
    for library in "my_custom_ops", "pvn3d_custom_op":
        assert library in run(prefix / "bin/opbridge", "inspect", f"lib/lib{library}.so", cwd=prefix)


def test_runner_keeps_its_dependencies_to_itself(prefix):
    """A program may link its own protobuf, zlib and JSON library beside opbridge::runner."""
    symbols = run("nm", "--defined-only", "--extern-only", "lib/libopbridge_runner.a", cwd=prefix)
    names = [line.split()[-1] for line in symbols.splitlines() if len(line.split()) == 3]
    assert any("opbridge7Runtime4find" in name for name in names)
    assert [name for name in names if "8opbridge" not in name] == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (PLUGIN.replace("my_clip)", "my_clap)"), "OPS names 'my_clap', but there is no"),
        (PLUGIN.replace("my_namespace", "ai.onnx"), "the domain 'ai.onnx' belongs to ONNX"),
        (PLUGIN.replace("my_namespace", "my-namespace"), "DOMAIN is words of letters"),
        (PLUGIN.replace("VERSION 1", "VERSION 0"), "VERSION is an integer from 1 to 1000"),
        (PLUGIN.replace("VERSION 1", ""), "needs VERSION, as in"),
        (PLUGIN.replace("my_ops", "my_ops SHARED"), "what is 'SHARED'?"),
        ("find_package(opbridge 9.9 REQUIRED)", 'compatible with requested version "9.9"'),
    ],
)
def test_wrong_calls_say_what_is_wrong(project, prefix, line, message):
    (project / "CMakeLists.txt").write_text(PROJECT + line)
    assert message in re.sub(r"\s+", " ", configure(project, prefix, code=1))


def test_cuda_required_without_nvcc(project, prefix):
    (project / "CMakeLists.txt").write_text(PROJECT + PLUGIN)
    (project / "my_clip/my_clip_cuda.cu").write_text("")
    log = configure(project, prefix, "-DOPBRIDGE_CUDA=ON", "-DOPBRIDGE_NVCC=", code=1)
    assert "OPBRIDGE_CUDA=ON, but no nvcc was found" in re.sub(r"\s+", " ", log)
    assert "CPU kernels only" in configure(project, prefix, "-DOPBRIDGE_CUDA=AUTO", "-DOPBRIDGE_NVCC=")


def test_wrong_signature_fails_the_build(project, prefix):
    source = project / "my_clip/my_clip_cpu.cpp"
    source.write_text(source.read_text().replace("-> y: T[*S]", "-> y: T[*Q]"))
    (project / "CMakeLists.txt").write_text(PROJECT + PLUGIN)
    configure(project, prefix)
    log = run("cmake", "--build", "build", cwd=project, code=2)
    assert "my_clip" in log
    assert "Q" in log.split("error:")[-1]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_from_source_by_add_subdirectory(project):
    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(stranger LANGUAGES C CXX)\n"
        f"set(OPBRIDGE_CUDA OFF)\nadd_subdirectory({ROOT} opbridge EXCLUDE_FROM_ALL)\n{PLUGIN}"
    )
    run("cmake", "-B", "build", "-DCMAKE_BUILD_TYPE=Debug", cwd=project)
    run("cmake", "--build", "build", "-j2", cwd=project)
    built = {file.name for file in (project / "build").rglob("*.so")}
    assert built == {"libmy_ops.so"}
