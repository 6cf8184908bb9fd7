"""opbridge.check(): what the `opbridge check` command finds, as data."""

import os
import tempfile

import numpy as np

from .doctor import run_report
from .paths import command_path


def check(file, library=(), *, op=(), ort=(), inputs=None, dims=None, seed=0, **more):
    """Whether a library, or a model, does what it says, whatever it is given; docs/check.md has all that is done.

    `file`: a library of opbridge operators (a path, or what load() returned), whose operators are called with
    everything that their signatures allow and much that they forbid; or an ONNX model, which is run with several sizes
    of its dynamic dimensions, and repeatedly. Both happen in child processes: a crash is a finding.

    `ort` names the ONNX Runtimes (libonnxruntime.so.* or a folder that has it; default: the one of this environment; of
    two, given for a library, both are loaded into one process). `op` names the operators to check (one or several;
    default: all). For models, `library` is the library or libraries that they need, `inputs` has arrays by name (the
    others are random), `dims` sizes that are not to be varied, by the name of the dimension. `more` are the command's
    other options: timeout [s], budget [s], threads, repeat, runs, memory_seconds.

    Returns a Report as doctor() does; `facts` has "skipped" (what was not checked, and why), "operators" (calls made,
    refused and wrong ones, seconds) or "dimensions" (sizes that ran and that were refused). Raises InvalidArgumentError
    for arguments that make no sense."""
    command = [command_path(), "check", str(getattr(file, "path", file)), "--json", "--seed", str(seed)]
    for option, values in (("--op", op), ("--ort", ort), ("--library", library)):
        one = isinstance(values, str) or hasattr(values, "__fspath__") or hasattr(values, "path")
        for value in [values] if one else values:
            command += [option, str(getattr(value, "path", value))]
    for name, size in (dims or {}).items():
        command += ["--dim", f"{name}={size}"]
    for name, value in more.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    with tempfile.TemporaryDirectory() as folder:
        for i, (name, array) in enumerate((inputs or {}).items()):
            path = os.path.join(folder, f"{i}.npy")
            np.save(path, np.asarray(array))
            command += ["--input", f"{name}={path}"]
        return run_report(command)
