"""Loading libraries, and calling operators on NumPy arrays."""

import gc
import itertools
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import opbridge
import pytest

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
DTYPES = [*FLOATS, np.int32, np.int64]
SHAPES = [(), (0,), (1,), (7,), (3, 0, 5), (33, 5), (2, 3, 4, 5)]


def values(shape, dtype, seed=0):
    """Numbers in [-5, 5], with NaN and infinities among the floating ones."""
    x = np.random.default_rng(seed).uniform(-5, 5, shape).astype(dtype)
    if dtype in FLOATS and x.size > 3:
        x.reshape(-1)[:3] = np.nan, np.inf, -np.inf
    return x


def clip_reference(x, low, high):
    y = x.astype(np.float64)  # exact for these values
    if low is not None:
        y = np.where(np.isnan(low) | (y < low), low, y)
    if high is not None:
        y = np.where(np.isnan(high) | (y > high), high, y)
    return y.reshape(x.shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bound_shape", [(), (1,)], ids=str)
def test_clip_values(my_clip, dtype, shape, bound_shape):
    x = values(shape, dtype)
    bounds = {"low": np.full(bound_shape, -2, dtype), "high": np.full(bound_shape, 3, dtype)}
    for low, high in itertools.product([None, bounds["low"]], [None, bounds["high"]]):
        y = my_clip.ops.my_clip(x, low, high)
        assert type(y) is np.ndarray
        assert (y.dtype, y.shape) == (x.dtype, x.shape)
        np.testing.assert_array_equal(y.astype(np.float64), clip_reference(x, low, high))
        assert y.size == 0 or not np.shares_memory(x, y)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
def test_clip_nan_bounds_and_crossed_bounds(my_clip, dtype):
    x = values((5,), dtype)
    nan = np.asarray(np.nan, dtype)
    assert np.isnan(my_clip.ops.my_clip(x, min=nan).astype(np.float32)).all()
    assert np.isnan(my_clip.ops.my_clip(x, max=nan).astype(np.float32)).all()
    crossed = my_clip.ops.my_clip(np.zeros(3, dtype), min=2, max=-1)
    assert (crossed == -1).all()


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.T,
        lambda x: x[::2],
        lambda x: x[:, ::-1],
        lambda x: np.asfortranarray(x),
        lambda x: np.broadcast_to(x[0], (4, *x[0].shape)),
        lambda x: x[1:1],
    ],
    ids=["transposed", "strided", "reversed", "fortran", "broadcast", "empty"],
)
def test_non_contiguous(my_clip, view):
    x = view(values((6, 5), np.float32))
    np.testing.assert_array_equal(
        my_clip.ops.my_clip(x, -1.0, 1.0), clip_reference(x, np.float32(-1), np.float32(1))
    )


def test_read_only_and_list_inputs(my_clip):
    x = values((9,), np.float64)
    x.flags.writeable = False
    assert (my_clip.ops.my_clip(x, min=0)[3:] >= 0).all()
    np.testing.assert_array_equal(my_clip.ops.my_clip([-1.0, 0.5, 2.0], 0, 1), [0, 0.5, 1])


def test_python_scalars_take_the_type_of_the_others(my_clip):
    for dtype in DTYPES:
        assert my_clip.ops.my_clip(values((4,), dtype), 0, max=3).dtype == dtype
    for bad, where in [(0.5, "min"), (float("nan"), "max"), (2**40, "min")]:
        with pytest.raises(
            opbridge.InvalidArgumentError, match=rf"input '{where}' is {bad}, which int32 cannot hold"
        ):
            my_clip.ops.my_clip(np.zeros(3, np.int32), **{where: bad})
    with pytest.raises(
        opbridge.ArgumentTypeError, match=r"nothing fixes the element type of 'x' = 1.5: give an array"
    ):
        my_clip.ops.my_clip(1.5)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda f: f(np.zeros(3, np.uint8)), ValueError, "input 'x' must be of type .*f16.* got u8"),
        (
            lambda f: f(np.zeros(3), np.zeros((), np.float32)),
            ValueError,
            "'min' must be of the same type as 'x'.*f32",
        ),
        (
            lambda f: f(np.zeros(3), np.zeros(2)),
            ValueError,
            r"input 'min' must have shape \[\] or \[1\].*\[2\]",
        ),
        (lambda f: f(np.zeros(3), np.zeros((1, 1))), ValueError, r"input 'min' must have shape"),
        (lambda f: f(), ValueError, "input 'x' is required, but missing"),
        (lambda f: f(min=np.zeros(())), ValueError, "input 'x' is required, but missing"),
        (lambda f: f(np.zeros(3), mim=0), TypeError, r"no input or attribute 'mim' \(did you mean 'min'\?\)"),
        (lambda f: f(np.zeros(3), MIN=0), TypeError, r"no input or attribute 'MIN' \(did you mean 'min'\?\)"),
        (lambda f: f(np.zeros(3), 0, 1, 2), TypeError, r"takes 3 inputs \(x, min, max\), got 4"),
        (lambda f: f(np.zeros(3), x=np.zeros(3)), TypeError, "input 'x' is given twice"),
        (
            lambda f: f(np.zeros(3, complex)),
            TypeError,
            "input 'x' is of dtype dtype\\('complex128'\\), which no operator",
        ),
        (lambda f: f(np.zeros(3, ">f4")), TypeError, r"convert it with .astype\('float32'\)"),
        (lambda f: f("text"), TypeError, "which no operator takes"),
        (lambda f: f(np.zeros((1,) * 17)), ValueError, "17 dimensions"),
    ],
)
def test_bad_calls(my_clip, call, kind, text):
    with pytest.raises(opbridge.Error, match=text) as caught:
        call(my_clip.ops.my_clip)
    assert isinstance(caught.value, kind)
    assert caught.value.kind == "invalid_argument"
    assert str(caught.value).startswith("my_namespace::my_clip")
    assert my_clip.ops.my_clip(np.ones(2), max=0).tolist() == [0, 0]  # the next call is fine


def test_errors_are_the_builtin_ones():
    for error, builtin in [
        (opbridge.InvalidArgumentError, ValueError),
        (opbridge.ArgumentTypeError, TypeError),
        (opbridge.NotSupportedError, NotImplementedError),
        (opbridge.OutOfMemoryError, MemoryError),
        (opbridge.DeviceError, RuntimeError),
        (opbridge.InternalError, RuntimeError),
        (opbridge.LoadError, RuntimeError),
        (opbridge.ModelError, ValueError),
    ]:
        assert issubclass(error, builtin)
        assert issubclass(error, opbridge.Error)


# --- attributes, several outputs, variadic inputs


def test_attributes_of_every_type(test_ops):
    x = np.asarray([1.0, -2.0], np.float32)
    f = test_ops.ops.affine
    np.testing.assert_array_equal(f(x, scale=2), [2, -4])
    np.testing.assert_array_equal(f(x, scale=np.float32(2), shift=np.int64(3)), [5, -1])
    np.testing.assert_array_equal(f(x, scale=1, negate=True), [-1, 2])
    np.testing.assert_array_equal(f(x, scale=1, mode="square", weights=[2, 3], picks=(4, 5)), [15, 33])
    np.testing.assert_array_equal(f(x, scale=1, shift=None), x)  # None: the default


@pytest.mark.parametrize(
    ("attributes", "kind", "text"),
    [
        ({}, ValueError, r"attribute 'scale' \(float\) is required, but missing"),
        ({"scale": 0}, ValueError, r"attribute 'scale' must lie in \(0, inf\), got 0"),
        ({"scale": float("nan")}, ValueError, "attribute 'scale' must lie in"),
        ({"scale": "2"}, TypeError, "attribute 'scale' must be a number, got '2'"),
        ({"scale": True}, TypeError, "attribute 'scale' must be a number, got True"),
        ({"scale": 1, "shift": 1.0}, TypeError, "attribute 'shift' must be an integer of 64 bits, got 1.0"),
        ({"scale": 1, "shift": 2**63}, TypeError, "attribute 'shift' must be an integer of 64 bits"),
        ({"scale": 1, "shift": 11}, ValueError, r"attribute 'shift' must lie in \[-10, 10\], got 11"),
        ({"scale": 1, "negate": 1}, TypeError, "attribute 'negate' must be True or False, got 1"),
        ({"scale": 1, "mode": "squares"}, ValueError, "'mode' must be one of .*plain.*square.*got 'squares'"),
        ({"scale": 1, "mode": 1}, TypeError, "attribute 'mode' must be a string, got 1"),
        ({"scale": 1, "weights": 1.0}, TypeError, "attribute 'weights' must be a list of numbers, got 1.0"),
        ({"scale": 1, "picks": [1, 101]}, ValueError, r"attribute 'picks' must lie in \[0, 100\], got 101"),
        ({"scal": 1}, TypeError, r"no input or attribute 'scal' \(did you mean 'scale'\?\)"),
    ],
)
def test_bad_attributes(test_ops, attributes, kind, text):
    # A good call with equal-looking values first: what is cached must not let bad ones in.
    test_ops.ops.affine(np.zeros(1), scale=1, shift=1, negate=True)
    with pytest.raises(opbridge.Error, match=text) as caught:
        test_ops.ops.affine(np.zeros(1), **attributes)
    assert isinstance(caught.value, kind)


def test_float_attributes_are_rounded_to_float32(test_ops):
    assert test_ops.ops.affine(np.ones(1), scale=0.1)[0] == np.float64(np.float32(0.1))


def test_optional_and_integer_outputs_and_workspace(test_ops):
    a, b = values((4, 3), np.int32).astype(np.float32), np.ones((2, 4, 3), np.float32)
    total, idx, twice = test_ops.ops.pairs(a, b, k=5)
    np.testing.assert_array_equal(total, a + b)
    np.testing.assert_array_equal(idx, [[0, 1, 2, 3, 4]] * 2)
    assert idx.dtype == np.int32
    np.testing.assert_array_equal(twice, np.full((2, 12), 2, np.float32))
    assert test_ops.ops.pairs(a, b, 7, k=2)[1].tolist() == [[7, 8]] * 2  # a scalar for an int64 input
    with pytest.raises(
        opbridge.InvalidArgumentError, match=r"input 'a' must have shape \[\*B\?,N,3\].*got \[4,3\]"
    ):
        test_ops.ops.pairs(a, b[:, :3], k=1)
    with pytest.raises(opbridge.InvalidArgumentError, match="output 'twice' would have shape"):
        test_ops.ops.pairs(a[:0], b[:, :0], k=0)


def test_no_input_at_all(test_ops):
    assert test_ops.ops.ramp(n=3).tolist() == [0, 1, 2]
    with pytest.raises(opbridge.ArgumentTypeError, match="takes 0 inputs"):
        test_ops.ops.ramp(np.zeros(3), n=3)


def test_variadic_input(test_ops):
    parts = [np.full(3, n, np.float32) for n in range(5)]
    assert test_ops.ops.stack(parts).tolist() == [10, 10, 10]
    assert test_ops.ops.stack(xs=parts[:2]).tolist() == [1, 1, 1]
    with pytest.raises(opbridge.ArgumentTypeError, match="input 'xs' must be a list of tensors"):
        test_ops.ops.stack(parts[0])
    with pytest.raises(opbridge.InvalidArgumentError, match="takes 1 or more inputs, got 0"):
        test_ops.ops.stack([])
    with pytest.raises(opbridge.InvalidArgumentError, match="input 'xs' must have shape"):
        test_ops.ops.stack([parts[0], parts[1][:2]])


def test_operators_describe_themselves(my_clip, test_ops):
    assert dir(test_ops.ops) == ["affine", "pairs", "ramp", "root", "root_grad", "stack"]
    assert test_ops.ops.RootGrad is test_ops.ops.root_grad
    assert "Limits" in my_clip.ops.my_clip.__doc__
    with pytest.raises(AttributeError, match=r"no operator 'my_clp' \(did you mean 'my_clip'\?\)"):
        my_clip.ops.my_clp  # noqa: B018
    assert (my_clip.name, my_clip.domain, my_clip.version) == ("my_custom_ops", "my_namespace", 1)


def test_many_shapes_and_attributes_do_not_pile_up(test_ops):
    function = test_ops.ops.affine
    for n in range(600):
        assert function(np.ones(n % 300, np.float64), scale=1 + n / 1000).shape == (n % 300,)
    gc.collect()
    assert len(function._nodes) <= 64
    node = function.node({"scale": 1.0})
    for n in range(600):
        function(np.ones(n, np.float64), scale=1.0)
    assert len(node.plans) <= 256


# --- threads and processes


def test_threads(my_clip, test_ops):
    def work(seed):
        for n in range(100):
            x = values((1 + (seed + n) % 7, 11), np.float32, seed)
            np.testing.assert_array_equal(my_clip.ops.my_clip(x, -1, 1), clip_reference(x, -1, 1))
            assert test_ops.ops.affine(np.ones(3), scale=1 + seed)[0] == 1 + seed
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))


def test_result_does_not_depend_on_the_threads(my_clip):
    x = values((300_000,), np.float32)
    before, results = my_clip.threads, []
    for my_clip.threads in (1, 2, 5):
        results.append(my_clip.ops.my_clip(x, -1, 1).tobytes())
    my_clip.threads = before
    assert len(set(results)) == 1


FORK = """
import os, signal, sys, numpy as np, opbridge
library = opbridge.load(opbridge.library_path("my_custom_ops"), torch=False)
library.threads = 4
x = np.linspace(-2, 2, 1_000_000, dtype=np.float32)  # enough for several threads
expected = np.clip(x, -1, 1)
assert (library.ops.my_clip(x, -1, 1) == expected).all()
child = os.fork()
if child == 0:
    signal.alarm(60)
    ok = (library.ops.my_clip(x, -1, 1) == expected).all() and library.ops.my_clip(x[:3], max=0).max() <= 0
    os._exit(0 if ok else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert (library.ops.my_clip(x, -1, 1) == expected).all()
"""


def test_fork(run_python):
    run_python(FORK)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # import torch fails
import numpy as np, opbridge
path = opbridge.library_path("my_custom_ops")
library = opbridge.load(path)
assert library.ops.my_clip(np.asarray([-3.0, 3.0]), -1, 1).tolist() == [-1, 1]
try:
    opbridge.load(path, torch=True)
except opbridge.LoadError as e:
    assert "cannot be registered with torch" in str(e), e
else:
    sys.exit("torch=True without torch must fail")
assert sys.modules["torch"] is None and "onnx" not in sys.modules
"""


def test_numpy_alone_without_torch(run_python):
    run_python(WITHOUT_TORCH)


def test_torch_is_not_touched_when_not_wanted(run_python):
    run_python(
        """
import sys, numpy as np, opbridge
library = opbridge.load(opbridge.library_path("my_custom_ops"), torch=False)
library.ops.my_clip(np.zeros(3), max=0)
assert "torch" not in sys.modules
import torch
try:
    library.ops.my_clip(torch.zeros(3), max=0)
except TypeError as e:
    assert "load it with torch=True" in str(e)
else:
    sys.exit("a tensor must be refused")
opbridge.load(library.path, torch=True)
assert library.ops.my_clip(torch.ones(3), max=0).tolist() == [0, 0, 0]
"""
    )


# --- loading


def test_same_file_gives_the_same_library(my_clip, my_clip_path, tmp_path, monkeypatch):
    link, copy = tmp_path / "link.so", tmp_path / "copy.so"
    link.symlink_to(my_clip_path)
    shutil.copy(my_clip_path, copy)
    monkeypatch.chdir(os.path.dirname(my_clip_path))
    for path in (my_clip_path, link, copy, os.path.basename(my_clip_path)):
        assert opbridge.load(path) is my_clip


def test_another_build_of_a_loaded_domain_is_refused(my_clip, my_clip_path, tmp_path):
    other = tmp_path / "libmy_custom_ops.so"
    shutil.copy(my_clip_path, other)
    with open(other, "ab") as file:
        file.write(b"\0")  # still loads, but is not the same file
    with pytest.raises(
        opbridge.LoadError, match=r"domain 'my_namespace', which .* a different build, already serves"
    ):
        opbridge.load(other)
    assert opbridge.load(my_clip_path) is my_clip


def test_a_rebuilt_file_is_refused(run_python, my_clip_path, tmp_path):
    path = tmp_path / "lib.so"
    shutil.copy(my_clip_path, path)
    run_python(
        """
import os, shutil, sys, opbridge
path = sys.argv[1]
opbridge.load(path, torch=False)
shutil.copy(path, path + ".new")
os.replace(path + ".new", path)
try:
    opbridge.load(path, torch=False)
except opbridge.LoadError as e:
    assert "has changed since it was loaded: start a new process" in str(e), e
else:
    sys.exit("a changed file must be refused")
""",
        str(path),
    )


def test_what_is_not_an_operator_library(tmp_path, compile_c):
    import torch

    empty, text, model = tmp_path / "empty.so", tmp_path / "text.so", tmp_path / "model.onnx"
    empty.touch()
    text.write_text("hello")
    model.write_bytes(b"\x08\x08")
    foreign = compile_c("foreign", "void* RegisterCustomOps(void* o, void* a) { return o == a ? 0 : 0; }")
    for path, text_expected in [
        (tmp_path / "gone.so", "no file '.*gone.so'"),
        (tmp_path, "is a folder, not a library"),
        (empty, "is an empty file, not a library"),
        (text, "is not an ELF shared library: give the .so that opbridge_add_library built"),
        (model, "is an ONNX model: give the .so"),
        (torch._C.__file__, r"is a Python module \(it has the symbol PyInit__C\), not an operator library"),
        (compile_c("plain", "int f(void) { return 1; }"), "a shared library without operators"),
        (foreign, r"was not built with opbridge \(it exports RegisterCustomOps only\)"),
    ]:
        with pytest.raises(opbridge.LoadError, match=text_expected) as caught:
            opbridge.load(path)
        assert caught.value.kind == "load"


def test_pytorch_extension_is_named_as_such(compile_c):
    # What a TORCH_LIBRARY block leaves in the symbol table: a reference to torch::Library's constructor.
    source = "extern void _ZN5torch7LibraryC1E(void); void f(void) { _ZN5torch7LibraryC1E(); }"
    with pytest.raises(opbridge.LoadError, match="is a PyTorch extension"):
        opbridge.load(compile_c("extension", source))


def test_library_with_a_missing_symbol_or_dependency(compile_c):
    source = """#include "opbridge/abi.h"
    extern int gone_symbol;
    const OpbridgeLibrary* opbridge_get_library(uint32_t v, OpbridgeError* e) { return v ? 0 : (void*)&gone_symbol; }"""
    with pytest.raises(opbridge.LoadError, match=r"cannot load .*undefined symbol: gone_symbol"):
        opbridge.load(compile_c("undefined", source))


NEWER = """#include "opbridge/abi.h"
#include <string.h>
static OpbridgeLibrary table = {sizeof(OpbridgeLibrary), 2, "{}"};
const OpbridgeLibrary* opbridge_get_library(uint32_t version, OpbridgeError* error) {
  if (REFUSE) { error->kind = OPBRIDGE_NOT_SUPPORTED; strcpy(error->message, "asks too little"); return 0; }
  return &table;
}"""


def test_library_of_a_newer_interface(compile_c):
    with pytest.raises(
        opbridge.LoadError, match=r"speaks version 2 of opbridge's C interface, this .* version 1: install"
    ):
        opbridge.load(compile_c("newer", NEWER.replace("REFUSE", "0")))
    with pytest.raises(opbridge.LoadError, match="asks too little"):
        opbridge.load(compile_c("refusing", NEWER.replace("REFUSE", "1")))


def test_library_path(my_clip_path, tmp_path, monkeypatch):
    assert opbridge.library_path("my_custom_ops") == my_clip_path
    own = tmp_path / "libmy_custom_ops.so"
    shutil.copy(my_clip_path, own)
    monkeypatch.setenv("OPBRIDGE_LIBRARY_PATH", f"/nowhere{os.pathsep}{tmp_path}")
    assert opbridge.library_path("my_custom_ops") == str(own)
    with pytest.raises(opbridge.LoadError, match=r"no libgone.so in /nowhere, .*OPBRIDGE_LIBRARY_PATH"):
        opbridge.library_path("gone")


def test_functions_stay_functions_whatever_is_imported():
    """Each lies in a module of its own name, and some import each other's."""
    code = "import opbridge, opbridge.doctor, opbridge.compare, opbridge.export; from opbridge.verify import verify; "
    code += (
        "import types; names = ['check', 'compare', 'doctor', 'export', 'placement', 'session', 'verify']; "
    )
    code += "print([type(getattr(opbridge, n)).__name__ for n in names])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(["function"] * 7)
