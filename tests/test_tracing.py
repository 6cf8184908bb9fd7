"""Looking into a running process, and running its calls again: OPBRIDGE_TRACE, OPBRIDGE_DUMP, OPBRIDGE_SYNC, NVTX
ranges and `opbridge replay` (docs/tracing.md). Each host is a process of its own, as the variables are a process's."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import BUILD, ROOT, built, model_of

LIBRARY = built("trace_ops")
CHANGED = built("trace_ops_changed")
OLDEST = ROOT / "build/ort/1.16.3/bin/python"
PRELUDE = "import json, os, sys; import numpy as np; x = np.array([1, -2, 4], np.float32)\n"
DIRECT = (
    PRELUDE
    + """import opbridge
ops = opbridge.load(sys.argv[1], torch=False).ops
"""
)
TORCH = (
    PRELUDE
    + """import opbridge, torch
opbridge.load(sys.argv[1])
y = torch.ops.trace_test.scale(torch.from_numpy(x), factor=0.5)
"""
)
RUNTIME = (
    PRELUDE
    + """import onnxruntime as ort
options = ort.SessionOptions()
options.register_custom_ops_library(sys.argv[1])
session = ort.InferenceSession(sys.argv[2], options, providers=["CPUExecutionProvider"])
"""
)


def process(code, *arguments, python=sys.executable, code_expected=0, **variables):
    """Runs Python code with OPBRIDGE_* as given and returns its stderr."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OPBRIDGE_", "NVTX"))}
    environment |= {"PYTHONPATH": str(ROOT / "python"), "OPBRIDGE_BUILD": str(BUILD)}
    done = subprocess.run(
        [python, "-c", code, *map(str, arguments)],
        env=environment | {k: str(v) for k, v in variables.items()},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == code_expected, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stderr


def direct(call, code_expected=0, library=LIBRARY, **variables):
    return process(DIRECT + call, library, code_expected=code_expected, **variables)


def replay(*arguments, code=0):
    done = subprocess.run(
        [BUILD / "bin/opbridge", "replay", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | {"OPBRIDGE_ORT": str(Path(onnxruntime.__file__).parent)},
    )
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout or done.stderr


def read(path):
    """A dump: (what was called, what came of it or None, the arrays)."""
    with np.load(path) as file:
        arrays = dict(file)
    call = json.loads(arrays.pop("call").tobytes())
    result = json.loads(arrays.pop("result").tobytes()) if "result" in arrays else None
    return call, result, arrays


@pytest.fixture
def dumps(tmp_path):
    """The folder of a test's dumps, and what is in it."""
    folder = tmp_path / "calls"
    return folder, lambda: sorted(folder.iterdir()) if folder.exists() else []


@pytest.fixture
def model(tmp_path):
    """A model of one Scale node."""

    def save(**attributes):
        path = tmp_path / "scale.onnx"
        onnx.save(
            model_of("Scale", "trace.test", inputs=("x",), attributes=attributes, shapes={"x": ["n"]}), path
        )
        return path

    return save


class TestTrace:
    def test_says_what_a_call_got_gave_and_took(self):
        text = direct("ops.scale(x, factor=0.5, offset=True, offsets=[3, 4])", OPBRIDGE_TRACE=1)
        assert re.fullmatch(
            r"opbridge: trace\.test::Scale \d+\.\d us on the CPU: x f32\[3\] in \[-2, 4\]; factor = 0\.5; offset = "
            r"true; offsets = \[3, 4\]; unused = \[0\.5, -inf\]; limit = inf; repeat = 1; then = "
            r"work -> y f32\[3\] in \[2, 5\]\n",
            text,
        )

    @pytest.mark.parametrize(
        ("values", "said"),
        [
            ("[1, np.nan, -np.inf]", "x f32[3] in [-inf, 1] and 1 NaN"),
            ("[np.nan, np.nan]", "x f32[2] all NaN"),
            ("[np.nan, 2, 1]", "x f32[3] in [1, 2] and 1 NaN"),
            ("[7]", "x f32[1] = 7"),
            ("[]", "x f32[0] empty"),
        ],
    )
    def test_ranges(self, values, said):
        assert said in direct(f"ops.scale(np.array({values}, np.float32))", OPBRIDGE_TRACE=1)

    def test_element_types_and_absent_inputs(self, my_clip_path):
        call = "ops.my_clip(np.array([1, -5, 300]), max=7); ops.my_clip(x.astype(np.float16))"
        first, second = direct(call, library=my_clip_path, OPBRIDGE_TRACE=1).splitlines()
        assert "x i64[3] in [-5, 300]; min absent; max i64[] = 7 -> y i64[3] in [-5, 7]" in first
        assert "x f16[3] in [-2, 4]; min absent; max absent -> y f16[3] in [-2, 4]" in second

    def test_names_what_is_refused_and_what_fails(self, my_clip_path):
        refused = direct("ops.my_clip(x, np.zeros(3, np.float32))", 1, my_clip_path, OPBRIDGE_TRACE=1)
        assert (
            "opbridge: my_namespace::my_clip refused on the CPU: x f32[3] in [-2, 4]; min f32[3] in [0, 0]; max "
            "absent: input 'min' must have shape [] or [1], got [3]\n"
        ) in refused
        assert re.search(
            r"trace\.test::Scale failed after \d+\.\d us on the CPU: x .* then = fail: it was told to fail\n",
            direct("ops.scale(x, then='fail')", 1, OPBRIDGE_TRACE=1),
        )

    @pytest.mark.parametrize("off", [{}, {"OPBRIDGE_TRACE": "0"}, {"OPBRIDGE_TRACE": ""}])
    def test_is_silent_unless_asked_for(self, off):
        assert direct("ops.scale(x)", **off) == ""

    def test_in_torch(self):
        assert "trace.test::Scale" in process(TORCH, LIBRARY, OPBRIDGE_TRACE=1)

    @pytest.mark.parametrize("python", [sys.executable, OLDEST], ids=["newest", "1.16.3"])
    def test_goes_through_the_log_of_onnxruntime(self, python, model):
        code = RUNTIME + "session.run(None, {'x': x})"
        text = process(code, LIBRARY, model(), python=python, OPBRIDGE_TRACE=1)
        # "[W:onnxruntime:..., opbridge:0 trace] opbridge: trace.test::Scale (node 'n0') 1.2 us ..."
        assert re.search(
            r"onnxruntime:.*opbridge:0 trace\] opbridge: trace\.test::Scale \(node 'n0'\) \d.* -> y f32\[3\] in",
            text,
        )

    @pytest.mark.parametrize("level", [0, 1, 2, 3])
    def test_is_shown_at_every_level_of_a_session(self, level, model):
        code = RUNTIME.replace("options = ", f"ort.set_default_logger_severity({level}); options = ")
        text = process(code + "session.run(None, {'x': x})", LIBRARY, model(), OPBRIDGE_TRACE=1)
        assert text.count("opbridge: trace.test::Scale (node 'n0')") == 1


class TestDump:
    def test_holds_the_whole_call(self, dumps):
        folder, files = dumps
        assert direct("ops.scale(x, factor=0.1, offset=True)", OPBRIDGE_DUMP=folder) == ""
        (path,) = files()
        assert re.fullmatch(r"\d{8}T\d{6}\.\d{6}-scale-\d+\.npz", path.name)
        call, result, arrays = read(path)
        assert {
            k: call[k] for k in ("library", "version", "domain", "operator", "node", "device", "file")
        } == {
            "library": "trace_ops",
            "version": 1,
            "domain": "trace.test",
            "operator": "Scale",
            "node": "",
            "device": "cpu",
            "file": os.path.realpath(LIBRARY),
        }
        assert call["inputs"] == ["inputs/x"]
        assert call["outputs"] == ["outputs/y"]
        assert result["status"] == "ok"
        assert result["microseconds"] > 0
        x = np.array([1, -2, 4], np.float32)
        np.testing.assert_array_equal(arrays.pop("inputs/x"), x)
        np.testing.assert_array_equal(arrays.pop("outputs/y"), x * np.float32(0.1) + 1)
        assert arrays.pop("attributes/then").tobytes() == b"work"
        attributes = {k: (v.dtype.name, v.tolist()) for k, v in arrays.items()}
        assert attributes == {
            "attributes/factor": ("float32", float(np.float32(0.1))),
            "attributes/offset": ("int64", 1),
            "attributes/offsets": ("int64", [1, 2]),
            "attributes/unused": ("float32", [0.5, -np.inf]),
            "attributes/limit": ("float32", np.inf),
            "attributes/repeat": ("int64", 1),
        }

    def test_every_element_type_is_read_by_numpy(self, my_clip_path, dumps):
        folder, files = dumps
        types = ("float16", "float32", "float64", "int32", "int64")
        direct(
            f"[ops.my_clip(x.astype(t).reshape(1, 3), -1) for t in {types}]",
            library=my_clip_path,
            OPBRIDGE_DUMP=folder,
        )
        found = [read(path)[2] for path in files()]
        assert [a["outputs/y"].dtype.name for a in found] == list(types)
        assert all(a["outputs/y"].tolist() == [[1, -1, 4]] and a["inputs/min"].shape == () for a in found)
        assert "2 calls" not in replay(folder)
        assert replay(folder).endswith("5 as they were then, 0 otherwise\n")

    def test_only_of_what_fails(self, dumps):
        folder, files = dumps
        code = "ops.scale(x)\ntry: ops.scale(x, then='fail')\nexcept opbridge.Error: pass\nops.scale(x)"
        text = direct(code, OPBRIDGE_DUMP=folder, OPBRIDGE_DUMP_ON="error")
        (path,) = files()
        assert "opbridge: trace.test::Scale failed after" in text
        assert text.endswith(f"the call is in {path}\n")
        assert read(path)[1] == {"status": "failed", "error": "it was told to fail"}
        assert "fails as it did then: it was told to fail" in replay(path)
        assert "works, but failed then" in replay(edited(path, then=b"work"), code=1)

    def test_a_crash_leaves_the_call_that_made_it(self, dumps):
        folder, files = dumps
        code = "ops.scale(x); ops.scale(x, then='crash')"
        direct(code, -signal.SIGSEGV, OPBRIDGE_DUMP=folder, OPBRIDGE_DUMP_ON="error")
        (path,) = files()
        assert read(path)[1] is None
        assert "crashes again: the process was ended by signal 11" in replay(path)
        assert "works, but the process ended inside it then" in replay(edited(path, then=b"work"), code=1)

    def test_what_is_refused_is_there(self, my_clip_path, dumps):
        folder, files = dumps
        direct("ops.my_clip(x, np.zeros(3, np.float32))", 1, my_clip_path, OPBRIDGE_DUMP=folder)
        (path,) = files()
        _, result, arrays = read(path)
        assert result == {"status": "refused", "error": "input 'min' must have shape [] or [1], got [3]"}
        assert arrays["inputs/min"].tolist() == [0, 0, 0]
        assert "fails as it did then" in replay(path)

    def test_in_torch(self, dumps):
        folder, files = dumps
        process(TORCH, LIBRARY, OPBRIDGE_DUMP=folder)
        assert [read(p)[2]["outputs/y"].tolist() for p in files()] == [[0.5, -1, 2]]

    @pytest.mark.parametrize("python", [sys.executable, OLDEST], ids=["newest", "1.16.3"])
    def test_in_onnxruntime(self, python, model, dumps):
        folder, files = dumps
        code = RUNTIME + "session.run(None, {'x': x}); session.run(None, {'x': -x})"
        process(code, LIBRARY, model(factor=3.0), python=python, OPBRIDGE_DUMP=folder)
        assert [read(p)[2]["outputs/y"].tolist() for p in files()] == [[3, -6, 12], [-3, 6, -12]]
        assert {read(p)[0]["node"] for p in files()} == {"n0"}
        assert "2 as they were then" in replay(folder)

    def test_of_many_threads(self, dumps):
        folder, files = dumps
        code = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    list(pool.map(lambda i: ops.scale(np.full(100, i, np.float32), factor=2), range(200)))
"""
        text = direct(code, OPBRIDGE_DUMP=folder, OPBRIDGE_TRACE=1)
        assert text.count("\n") == 200
        assert all(line.startswith("opbridge: ") for line in text.splitlines())
        arrays = [read(path)[2] for path in files()]
        assert sorted(a["inputs/x"][0] for a in arrays) == list(range(200))
        assert all((a["outputs/y"] == 2 * a["inputs/x"]).all() for a in arrays)

    @pytest.mark.parametrize("folder", ["/proc/nowhere", __file__])
    def test_where_it_cannot_be_written_the_calls_go_on(self, folder):
        text = direct("print(ops.scale(x)); assert ops.scale(x, factor=2)[0] == 2", OPBRIDGE_DUMP=folder)
        assert text.count("opbridge: warning: tracing: cannot write") == 1
        assert text.endswith("the calls go on without\n")
        assert text.count("\n") == 1

    def test_an_unknown_switch_is_told(self, dumps):
        text = direct("ops.scale(x)", OPBRIDGE_DUMP=dumps[0], OPBRIDGE_DUMP_ON="crash")
        assert "OPBRIDGE_DUMP_ON is 'crash', neither 'all' nor 'error': taken as 'all'" in text
        assert len(dumps[1]()) == 1


def edited(path, **attributes):
    """A copy of a dump with other text in some attributes."""
    with np.load(path) as file:
        arrays = dict(file)
    for name, text in attributes.items():
        arrays[f"attributes/{name}"] = np.frombuffer(text, np.uint8)
    target = path.with_name("edited.npz")
    np.savez(target, **arrays)
    return target


class TestReplay:
    @pytest.fixture
    def dump(self, dumps):
        folder, files = dumps
        direct("ops.scale(x, factor=0.5, offset=True, offsets=[2, 3])", OPBRIDGE_DUMP=folder)
        return files()[0]

    def test_the_same_bits(self, dump):
        assert replay(dump).endswith("trace.test::Scale: the same bits\n")

    @pytest.mark.parametrize("version", ["1.20.1", "1.32.0"])
    def test_through_a_runtime(self, dump, version):
        runtime = ROOT / "build/ort/lib" / version
        assert replay(dump, "--ort", runtime).endswith("the same bits\n")
        changed = replay(dump, "--ort", runtime, "--library", CHANGED, code=1)
        assert "differs: y f32[3]: 1 of 3 elements, first at [2]: 4 then, 4.5 now" in changed

    def test_a_library_that_differs(self, dump):
        text = replay(dump, "--library", CHANGED, code=1)
        assert text.endswith(
            "differs: y f32[3]: 1 of 3 elements, first at [2]: 4 then, 4.5 now; largest difference 0.5\n"
        )
        (call,) = json.loads(replay(dump, "--library", CHANGED, "--json", code=1))["calls"]
        assert call["outcome"] == "differs"
        assert call["as_then"] is False
        assert call["outputs"][0]["difference"]["max"] == 0.5

    def test_a_call_that_now_fails_or_crashes(self, dump):
        assert "fails, but did not then: " in replay(edited(dump, then=b"fail"), code=1)
        assert "crashes: the process was ended by signal 11" in replay(edited(dump, then=b"crash"), code=1)

    def test_another_library(self, dump, my_clip_path):
        text = replay(dump, "--library", my_clip_path, code=1)
        assert "has no operator trace.test::Scale: give the library that has it with --library" in text

    def test_one_bad_file_hides_nothing_of_the_others(self, dump):
        folder = Path(dump).parent
        (folder / "0.npz").write_bytes(Path(dump).read_bytes()[:100])
        told = json.loads(replay(folder, "--json", code=1))
        assert [call["outcome"] for call in told["calls"]] == ["unreadable", "same"]
        assert (told["as_then"], told["otherwise"]) == (1, 1)
        assert "0.npz: cannot be replayed: " in replay(folder, code=1)

    def test_what_is_no_dump(self, tmp_path):
        np.savez(tmp_path / "a.npz", x=np.zeros(3))
        assert "is no call that OPBRIDGE_DUMP wrote" in replay(tmp_path / "a.npz", code=1)
        assert "cannot be opened" in replay(tmp_path / "b.npz", code=1)
        (tmp_path / "empty").mkdir()
        assert "is a folder without .npz files" in replay(tmp_path / "empty", code=1)


CUDA = (
    PRELUDE
    + """
from opbridge import _abi
api = _abi.Api(sys.argv[1])
x, y = np.array([1, -2, np.nan], np.float32), np.empty(3, np.float32)
def call():
    plan = _abi.Plan(api, api.node("my_clip", []), [((3,), 2, 32, _abi.CUDA, 1, x.ctypes.data)], 1, (_abi.CUDA, 1))
    plan.tensors[1].data = y.ctypes.data
    plan.run()
"""
)


class TestCuda:
    """The emulated device: its memory is the host's, and its launches end before they return. Faults and
    captured streams are in tests/cuda/my_clip_test.cpp."""

    LIBRARY = built("my_custom_ops_emulated")

    def test_data_on_the_device_is_left_alone(self):
        text = process(CUDA + "call()", self.LIBRARY, OPBRIDGE_TRACE=1)
        assert re.search(
            r"my_clip \d+\.\d us, enqueued, on CUDA device 1: x f32\[3\] on the device -> y f32\[3\] on the device\n",
            text,
        )

    def test_sync_looks_at_it(self):
        text = process(CUDA + "call()", self.LIBRARY, OPBRIDGE_TRACE=1, OPBRIDGE_SYNC=1)
        assert re.search(r"my_clip \d+\.\d us on CUDA device 1: x f32\[3\] in \[-2, 1\] and 1 NaN -> y", text)

    def test_dump_copies_it(self, dumps):
        folder, files = dumps
        process(CUDA + "call()", self.LIBRARY, OPBRIDGE_DUMP=folder)
        call, result, arrays = read(files()[0])
        assert call["device"] == "cuda"
        assert result["status"] == "ok"
        np.testing.assert_array_equal(arrays["outputs/y"], [1, -2, np.nan])
        assert "it ran on CUDA then, on the CPU now" in replay(
            files()[0], "--library", built("my_custom_ops")
        )


INJECTION = r"""
#include <stdio.h>
#include <nvtx3/nvToolsExt.h>
static void* create(const char* name) { return (void*)name; }
static int push(void* domain, const nvtxEventAttributes_t* e) {
  return fprintf(stderr, "push %s: %s\n", (const char*)domain, e->message.ascii), 0;
}
static int pop(void* domain) { return fprintf(stderr, "pop %s\n", (const char*)domain), 0; }
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get) {
  const NvtxExportTableCallbacks* callbacks = get(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table;
  unsigned size;
  callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size);
  *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create;
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
  *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
  return 1;
}
"""


def test_nvtx_ranges_name_operator_and_node(tmp_path, my_clip_path):
    include = re.search(
        r"CUDAToolkit:INTERNAL=\[([^\]]+)\]", (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")
    )
    if include is None:
        pytest.skip("this build has no CUDA, so its libraries have no NVTX")
    profiler = tmp_path / "profiler.so"
    command = ["cc", "-shared", "-fPIC", "-I", include[1], "-x", "c", "-", "-o", profiler]
    subprocess.run(command, input=INJECTION, text=True, check=True)
    model = tmp_path / "clip.onnx"
    onnx.save(model_of(), model)
    code = (
        RUNTIME
        + "session.run(None, {'x': x, 'min': np.array(0, np.float32), 'max': np.array(1, np.float32)})"
    )
    ranges = "push opbridge: my_namespace::my_clip (node 'n0')\npop opbridge\n"
    assert process(code, my_clip_path, model, NVTX_INJECTION64_PATH=profiler) == ranges
    assert process(code, my_clip_path, model, NVTX_INJECTION64_PATH=profiler, OPBRIDGE_NVTX=0) == ""
