"""Who knows whom (docs: DESIGN), and what a built library needs and shows."""

import ctypes
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ROOT / os.environ.get("OPBRIDGE_BUILD", "build/release") / "lib"
CXX = {".h", ".cpp", ".cu", ".cuh", ".cc", ".c", ".in"}


def tracked(*folders):
    """Tracked and new files, never what is built."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "--deduplicate", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [Path(f) for f in listed if (ROOT / f).is_file()]


def text(path):
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


def code(path):
    """C++ without comments."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text(path), flags=re.DOTALL)


def includes(path):
    """(is it "quoted", what) of every #include."""
    found = re.findall(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', code(path), flags=re.MULTILINE)
    return [(bool(quoted), quoted or angled) for quoted, angled in found]


def cxx(*folders):
    return [f for f in tracked(*folders) if f.suffix in CXX and "emulation" not in f.parts]


def operator_folders():
    """The folders that CMake's opbridge_add_library(... OPS ...) names below ops/."""
    return {f.parent for f in tracked("ops") if f.name == f"{f.parent.name}_cpu.cpp"}


def own_headers(folder):
    return {f.name for f in tracked(folder) if f.suffix in {".h", ".cuh"}}


def is_cuda_header(name):
    return bool(re.match(r"(cuda|cub/|thrust/|cooperative_groups|curand|nv/)", name))


def violations(files, allowed):
    return [
        f'{f}: #include "{name}"'
        for f in files
        for quoted, name in includes(f)
        if quoted and not allowed(f, name)
    ]


def test_public_headers_know_only_each_other():
    headers = cxx("include")
    assert len(headers) >= 8
    # cuda.h has a second face, for running kernels on the CPU in tests.
    emulated = ("cuda.h", "cuda_emulation.h")
    assert not violations(headers, lambda f, n: n.startswith("opbridge/") or (f.name, n) == emulated)


def test_core_knows_nobody():
    own = own_headers("src/core")
    assert not violations(cxx("src/core"), lambda f, n: n.startswith("opbridge/") or n in own)


def test_adapter_knows_core_and_onnxruntime():
    own = own_headers("src/core") | own_headers("adapters/onnxruntime")
    assert not violations(cxx("adapters/onnxruntime"), lambda f, n: n.startswith("opbridge/") or n in own)


def test_operators_know_the_public_headers_and_what_they_share():
    operators = operator_folders()
    assert Path("ops/my_clip") in operators

    def allowed(f, name):
        owner = next((p for p in [f.parent, *f.parents] if p in operators), None)
        if name.startswith(("opbridge/", "common/", "hwy/")):  # hwy: Highway, vector instructions in headers
            return True
        if "/" in name:
            return owner is not None and name.split("/")[:-1] == [owner.name]
        beside = (ROOT / f.parent / name).exists()
        return beside and (owner is None or (ROOT / owner / name).exists())

    assert not violations([f for f in cxx("ops") if not f.stem.endswith("_test")], allowed)


def test_no_operator_includes_another():
    operators = operator_folders()
    names = {p.name for p in operators}
    wrong = []
    for f in cxx("ops"):
        owner = next((p.name for p in [f.parent, *f.parents] if p in operators), None)
        for _, name in includes(f):
            stem = re.sub(r"(_cuda|_cpu)$", "", Path(name).stem)
            if stem in names and owner is not None and stem != owner and not name.startswith("common/"):
                wrong.append(f"{f}: {name}")
    assert not wrong


def test_onnxruntime_headers_stay_where_they_belong():
    allowed = ("adapters/onnxruntime/", "src/runner/", "src/doctor/", "examples/", "tests/", "bench/")
    wrong = [
        str(f)
        for f in cxx()
        if any("onnxruntime" in n and "/" not in n for _, n in includes(f)) and not str(f).startswith(allowed)
    ]
    assert not wrong
    wrong = [
        str(f)
        for f in cxx("adapters", "src")
        for _, n in includes(f)
        if n in ("onnxruntime_cxx_api.h", "onnxruntime_lite_custom_op.h")
    ]
    assert not wrong, "only the C header, whose layout is stable"


def test_cuda_headers_stay_where_they_belong():
    wrong = [
        f"{f}: {n}"
        for f in cxx("include", "src", "ops", "cli", "cmake")
        for _, n in includes(f)
        if is_cuda_header(n)
        and f.suffix not in (".cu", ".cuh")
        and f != Path("include/opbridge/cuda.h")
        and "cuda" not in f.name
    ]
    assert not wrong
    wrong = [
        f"{f}: {n}"
        for f in cxx("include", "src", "ops", "cli")
        if f.suffix in (".cpp", ".h")
        for _, n in includes(f)
        if n == "opbridge/cuda.h"
    ]
    assert not wrong, "only .cu files include opbridge/cuda.h"


def test_torch_is_known_in_python_only():
    assert not [f"{f}: {n}" for f in cxx() for _, n in includes(f) if re.match(r"(torch|ATen|c10)/", n)]
    allowed = ("python/", "examples/", "tests/", "bench/")
    python = [f for f in tracked() if f.suffix == ".py" and not str(f).startswith(allowed)]
    assert not [
        str(f) for f in python if re.search(r"^\s*(import|from) torch\b", text(f), flags=re.MULTILINE)
    ]


def test_mechanism_knows_no_operator_by_name():
    signatures = [
        re.search(r"(\w+)\(", s)
        for f in cxx("ops")
        for s in re.findall(r'R"\((.*?)\)"', text(f), flags=re.DOTALL)
    ]
    names = {m.group(1) for m in signatures if m} | {p.name for p in operator_folders()}
    assert "my_clip" in names
    names -= {"f", "T"}
    wrong = []
    for f in cxx("src/core", "adapters", "src/runner"):
        words = set(re.findall(r"\w+", code(f)))
        wrong += [f"{f}: {n}" for n in sorted(names & words) if len(n) > 3 and n not in {"gather"}]
    assert not wrong


def test_nothing_is_printed_and_nothing_ends_the_process():
    banned = re.compile(
        r"\bstd::(cout|cerr|clog)\b|(?<![\w:])(std::)?(printf|puts|abort|_?exit|terminate|quick_exit)\s*\(|\bfprintf\s*\("
    )
    files = [
        f
        for f in cxx("src/core", "adapters", "ops", "include", "cmake")
        if f.name != "validate.cpp" and not f.stem.endswith("_test")
    ]
    assert not [f"{f}: {m.group(0)}" for f in files for m in [banned.search(code(f))] if m]


def test_public_headers_compile_alone(tmp_path):
    for header in cxx("include"):
        if header.name == "cuda.h":
            continue
        source = tmp_path / "alone.cpp"
        name = header.relative_to("include")
        source.write_text(f'#include "{name}"\n#include "{name}"\n')
        command = [
            "c++",
            "-std=c++17",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fsyntax-only",
            "-I",
            ROOT / "include",
            source,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{header}:\n{done.stderr}"
    c = subprocess.run(
        [
            "cc",
            "-std=c99",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "-fsyntax-only",
            "-x",
            "c",
            ROOT / "include/opbridge/abi.h",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert c.returncode == 0, f"abi.h is not C99:\n{c.stderr}"


# ------------------------------------------------------------------------------------------------- built libraries


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def built_libraries():
    # Those for tests that carry a CPU emulation of CUDA are another matter.
    candidates = [p for p in sorted(LIBRARIES.glob("lib*.so")) if "emulat" not in p.name]
    found = [p for p in candidates if " opbridge_get_library" in output("nm", "-D", "--defined-only", p)]
    assert LIBRARIES / "libmy_custom_ops.so" in found, (
        f"no libmy_custom_ops.so in {LIBRARIES}: run make build"
    )
    return found


def has_cuda(path):
    class Head(ctypes.Structure):
        _fields_ = [("size", ctypes.c_uint32), ("abi", ctypes.c_uint32), ("manifest", ctypes.c_char_p)]

    get = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL).opbridge_get_library
    get.restype = ctypes.POINTER(Head)
    found = get(ctypes.c_uint32(1), None)
    return bool(found) and json.loads(found.contents.manifest)["cuda"] is not None


def test_libraries_export_two_symbols():
    for path in built_libraries():
        symbols = {line.split()[-1] for line in output("nm", "-D", "--defined-only", path).splitlines()}
        assert symbols == {"RegisterCustomOps", "opbridge_get_library"}, path
        assert not re.search(
            r" u ", output("nm", path) if ".symtab" in output("readelf", "-SW", path) else ""
        ), f"{path}: a GNU-unique symbol blocks unloading"


def test_libraries_need_no_host():
    for path in built_libraries():
        needed = re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-d", path))
        allowed = {
            "libstdc++.so.6",
            "libm.so.6",
            "libgcc_s.so.1",
            "libc.so.6",
            "libpthread.so.0",
            "libdl.so.2",
            "librt.so.1",
            "ld-linux-x86-64.so.2",
        }
        assert set(needed) <= allowed, f"{path} needs {needed}"
        assert "RPATH" not in output("readelf", "-d", path) or LIBRARIES in path.parents


def newest(versions, prefix):
    found = [tuple(map(int, v.split("."))) for v in re.findall(rf"\b{prefix}_([0-9.]+)\b", versions)]
    return max(found, default=(0,))


def test_libraries_load_on_old_systems():
    """What they ask of the C and C++ libraries: no more than ONNX Runtime does, in a build without CUDA less."""
    for path in built_libraries():
        versions = output("objdump", "-T", path)
        assert newest(versions, "GLIBCXX") <= (3, 4, 22), path
        assert newest(versions, "CXXABI") <= (1, 3, 11), path
        # The static CUDA runtime, linked here, brings in this system's C library (2.34).
        assert newest(versions, "GLIBC") <= ((2, 34) if has_cuda(path) else (2, 17)), path


def test_this_file_can_fail(tmp_path):
    """A check that cannot fail is a defect."""
    sample = tmp_path / "x.h"
    sample.write_text(
        '// #include "comment.h"\n#include "node.h"\n  # include <torch/all.h>\n/* #include "no.h" */'
    )
    assert includes(sample) == [(True, "node.h"), (False, "torch/all.h")]
    assert violations([sample], lambda f, n: False) == [f'{sample}: #include "node.h"']
    assert newest("a (GLIBC_2.2.5) (GLIBC_2.14)", "GLIBC") == (2, 14)
    with pytest.raises(AssertionError):
        assert newest("(GLIBC_2.34)", "GLIBC") <= (2, 17)
