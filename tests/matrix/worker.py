"""Runs the cases of models.py, and what cannot be said in a case, under the ONNX Runtime of this interpreter.

    worker.py FOLDER LIBRARIES [only]

Needs NumPy and onnxruntime only. Prints one JSON line before each check ({"start": name}) and one after it
({"name": ..., "ok": ..., "detail": ...}), so that a crash or a hang can be told from a failure.
"""

import gc
import json
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import onnxruntime as ort

FOLDER, LIBRARIES = Path(sys.argv[1]), Path(sys.argv[2])
ONLY = sys.argv[3] if len(sys.argv) > 3 else None
MINOR = int(ort.__version__.split(".")[1])
MY_OPS = str(LIBRARIES / "libmy_custom_ops.so")
TEST_OPS = str(LIBRARIES / "libopbridge_test_ops.so")
CASES = {c["name"]: c for c in json.loads((FOLDER / "cases.json").read_text())}


def options(libraries=(MY_OPS, TEST_OPS), intra=0, parallel=False):
    o = ort.SessionOptions()
    o.log_severity_level = 4
    o.intra_op_num_threads = intra
    if parallel:
        o.execution_mode = ort.ExecutionMode.ORT_PARALLEL
        o.inter_op_num_threads = 2
    for library in libraries:
        o.register_custom_ops_library(library)
    return o


def session(model, o=None, **config):
    return ort.InferenceSession(
        str(FOLDER / model), o or options(**config), providers=["CPUExecutionProvider"]
    )


def arrays(case, key):
    with np.load(FOLDER / case[key]) as data:
        return {k: data[k] for k in data.files}


def error_of(call):
    try:
        call()
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return None


def compare(names, outputs, expected):
    for name, got in zip(names, outputs, strict=True):
        want = expected[name]
        assert got is not None, f"{name} is None"
        assert (got.dtype, got.shape) == (want.dtype, want.shape), (
            f"{name} is {got.dtype}{got.shape}, expected {want.dtype}{want.shape}"
        )
        same = np.array_equal(got, want, equal_nan=got.dtype.kind == "f")
        assert same, f"{name} is\n{got}\nexpected\n{want}"
        # -0.0 equals 0.0, but bits are promised.
        assert got.dtype.kind != "f" or np.array_equal(
            np.signbit(got) & (got == 0), np.signbit(want) & (want == 0)
        ), f"{name}: signs of zeros"


def run_case(case):
    config, feeds = case.get("config", {}), arrays(case, "feeds")
    if "error" in case:
        made = []
        loading = error_of(lambda: made.append(session(case["model"], **config)))
        messages = [loading]
        if loading is None:
            assert case["error"] != "load", "loads, but should not"
            messages = [error_of(lambda: made[0].run(None, feeds)) for _ in range(case.get("repeat", 1))]
        else:
            assert case["error"] != "run", f"fails at load: {loading}"
        for message in messages:
            assert message is not None, "runs, but should not"
            for text in case["texts"]:
                assert text in message, f"{text!r} is not in: {message}"
        return messages[0]
    s = session(case["model"], **config)
    names = [o.name for o in s.get_outputs()]
    expected = arrays(case, "expected")
    first = None
    for _ in range(case.get("repeat", 1)):
        outputs = s.run(None, feeds)
        compare(names, outputs, expected)
        first = first or [o.tobytes() for o in outputs]
        assert first == [o.tobytes() for o in outputs], "the bits differ between runs"
    if "shapes" in case and case["shapes_since"] <= MINOR:
        for o in s.get_outputs():
            for got, want in zip(o.shape, case["shapes"][o.name], strict=True):
                assert got == want if want is not None else isinstance(got, (str, type(None))), (
                    f"{o.name} has shape {o.shape}, expected {case['shapes'][o.name]}"
                )
    return ""


# --------------------------------------------------------------------------------------------- what is no single case


def good_session(o=None):
    case = CASES["in the middle of a graph"]
    s = session(case["model"], o)
    return s, lambda: compare(["y"], s.run(None, arrays(case, "feeds")), arrays(case, "expected"))


def same_library_twice():
    _, run = good_session(options([MY_OPS, MY_OPS, MY_OPS]))
    run()


def copy_of_the_library():
    with tempfile.TemporaryDirectory() as folder:
        copy = str(shutil.copy(MY_OPS, Path(folder) / "copy.so"))
        _, run = good_session(options([MY_OPS, copy]))
        run()
        _, run = good_session(options([copy]))
        run()


def another_library_with_the_domain():
    message = error_of(lambda: options([TEST_OPS, str(LIBRARIES / "libopbridge_test_same_domain.so")]))
    for text in ("opbridge.test", "opbridge_test_ops", "opbridge_test_same_domain", "DOMAIN"):
        assert text in str(message), message
    # Each alone is fine, in one process.
    options([str(LIBRARIES / "libopbridge_test_same_domain.so")])
    options([TEST_OPS])


def options_reused_and_dead():
    o = options()
    (a, run_a), (_, run_b) = good_session(o), good_session(o)
    run_a(), run_b()
    del o
    gc.collect()
    run_a(), run_b()
    del a
    gc.collect()
    run_b()


def many_threads():
    case = CASES["my_clip f32: both"]
    s, failures = session(case["model"], intra=2), []
    feeds, expected = arrays(case, "feeds"), arrays(case, "expected")
    wrong = CASES["a piece throws error, 4 threads"]
    bad, bad_feeds = session(wrong["model"]), arrays(wrong, "feeds")

    def work(index):
        for _ in range(100):
            try:
                if index % 4 == 3:
                    assert error_of(lambda: bad.run(None, bad_feeds))
                else:
                    compare(["y"], s.run(None, feeds), expected)
            except AssertionError as e:
                failures.append(str(e))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failures, failures[0]


def sessions_on_many_threads():
    failures = []

    def work():
        for _ in range(10):
            failures.append(error_of(lambda: good_session()[1]()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not any(failures), next(f for f in failures if f)


def error_then_fine():
    case = CASES["bound of two elements"]
    s = session(case["model"])
    feeds = arrays(case, "feeds")
    assert error_of(lambda: s.run(None, feeds))
    feeds["min"] = feeds["min"][:1]
    compare(["y"], s.run(None, feeds), {"y": np.maximum(feeds["x"], feeds["min"])})


def resident_mb():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def no_leak():
    wrong = CASES["attributes: too large"]
    failing = CASES["a piece throws error, 1 threads"]

    def once():
        _, run = good_session()
        run()
        assert error_of(lambda: session(wrong["model"]))

    bad, feeds = session(failing["model"]), arrays(failing, "feeds")
    for _ in range(60):
        once()
    before = resident_mb()
    for _ in range(200):
        once()
    for _ in range(1000):
        assert error_of(lambda: bad.run(None, feeds))
    gc.collect()
    grown = resident_mb() - before
    assert grown < 12, f"{grown:.1f} MB more after 200 sessions and 1000 failing runs"
    return f"{grown:+.1f} MB after 200 sessions and 1000 failing runs"


def no_leak_where_the_library_is_unloaded_each_time():
    def once():
        good_session()[1]()
        gc.collect()

    # The heap takes its time to settle, by steps of megabytes: a leak shows in every hundred, not in one.
    grown = []
    for _ in range(5):
        before = resident_mb()
        for _ in range(100):
            once()
        grown.append(resident_mb() - before)
    assert MY_OPS not in Path("/proc/self/maps").read_text(), "the library is still mapped"
    text = f"{', '.join(f'{g:+.1f}' for g in grown)} MB in each 100 times"
    assert min(grown[1:]) < 0.75, text
    return text


def missing_and_foreign_files():
    for path, text in ((str(LIBRARIES / "libgone.so"), "libgone.so"), (__file__, "worker.py")):
        message = error_of(lambda p=path: options([p]))
        assert text in str(message), message


def cpu_kernels_are_taken():
    # In a CPU-only runtime the CUDA overloads do not get in the way and the CPU ones are taken.
    s, run = good_session()
    run()
    assert s.get_providers() == ["CPUExecutionProvider"], s.get_providers()


SPECIAL = [
    same_library_twice,
    copy_of_the_library,
    another_library_with_the_domain,
    options_reused_and_dead,
    many_threads,
    sessions_on_many_threads,
    error_then_fine,
    missing_and_foreign_files,
    cpu_kernels_are_taken,
    no_leak_where_the_library_is_unloaded_each_time,
    no_leak,
]


def refused():
    message = error_of(options)
    assert all(t in str(message) for t in (ort.__version__, "1.16", "my_custom_ops")), message
    assert error_of(options) == message
    return message


def main():
    def check(name, call):
        if ONLY and ONLY not in name:
            return
        print(json.dumps({"start": name}), flush=True)
        try:
            detail, ok = call(), True
        except Exception as e:
            detail, ok = f"{type(e).__name__}: {e}", False
        print(json.dumps({"name": name, "ok": ok, "detail": detail or ""}), flush=True)

    if MINOR < 16:
        check("refused", refused)
        return
    for case in CASES.values():
        if case.get("since", 0) <= MINOR <= case.get("until", 999):
            check(case["name"], lambda c=case: run_case(c))
    for special in SPECIAL:
        check(special.__name__, special)


main()
