"""Every code block of README.md is run here, or is part of a file that a test runs.

A block is preceded by <!-- run -->, <!-- program --> (C++, built and run) or <!-- from FILE -->, where my_ops/ is what
`opbridge new my_ops --op my_clip` writes. Blocks without a language are the two commands of make.
"""

import re
import shutil

import pytest
from conftest import BUILD, ROOT
from project import PYTHON_BIN, environment, install, run, runtime

BLOCK = re.compile(r"(?:<!-- (.*?) -->\n)?```(\w*)\n(.*?)```\n", re.S)


def blocks():
    return [match.groups() for match in BLOCK.finditer((ROOT / "README.md").read_text())]


def test_every_block_is_checked():
    for how, language, text in blocks():
        if language:
            assert how, f"this block is neither run nor cut from a file:\n{text}"
        else:
            for target in re.findall(r"^make (\w+)", text, re.M):
                assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M), target
    assert {how.split()[0] for how, _, _ in blocks() if how} == {"run", "program", "from"}


def test_blocks_cut_from_files(tmp_path):
    run(BUILD / "bin/opbridge", "new", "my_ops", "--op", "my_clip", cwd=tmp_path)
    for how, _, text in blocks():
        if how and how.startswith("from "):
            name = how.removeprefix("from ")
            file = (tmp_path if name.startswith("my_ops/") else ROOT) / name
            assert text in file.read_text(), f"not in {name}:\n{text}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_blocks_that_run(tmp_path):
    prefix = install(tmp_path)
    env = environment(
        prefix / "bin", PYTHON_BIN, PYTHONPATH=str(ROOT / "python"), OPBRIDGE_BUILD=str(BUILD), **runtime()
    )
    shutil.copy(BUILD / "lib/libmy_custom_ops.so", tmp_path)
    python = ""
    for how, language, text in blocks():
        if how == "run" and language == "python":
            # The blocks are one program; what it has done stays done when a block of another language follows.
            python += text
            run("python3", "-c", python, cwd=tmp_path, env=env)
        elif how == "run":
            run("bash", "-euc", text, cwd=tmp_path, env=env)
        elif how == "program":
            (tmp_path / "main.cpp").write_text(text)
            (tmp_path / "CMakeLists.txt").write_text(
                "cmake_minimum_required(VERSION 3.22)\nproject(readme LANGUAGES CXX)\nfind_package(opbridge REQUIRED)\n"
                "add_executable(main main.cpp)\ntarget_link_libraries(main PRIVATE opbridge::runner)\n"
            )
            run("cmake", "-B", "build", cwd=tmp_path, env=env)
            run("cmake", "--build", "build", cwd=tmp_path, env=env)
            assert "f32[1,3], y[0] = " in run("build/main", cwd=tmp_path, env=env)
