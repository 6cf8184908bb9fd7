"""opbridge.check(): what the `opbridge check` command finds, as data."""

from .doctor import run_report
from .paths import command_path


def check(file, *, op=(), ort=(), seed=0, timeout=None, budget=None):
    """Calls the operators of an opbridge library (`file`: a path, or what load() returned) with everything that their
    signatures allow and much that they forbid, in child processes: a crash is a finding.

    `op` names the operators to check (one or several; default: all), `ort` the ONNX Runtimes (libonnxruntime.so.* or a
    folder that has it; default: the one of this environment; two of them are loaded into one process). `timeout` [s] is
    how long a call may take, `budget` [s] how long an operator may.

    Returns a Report as doctor() does; `facts` has "operators" (calls made, refused and wrong ones, seconds), "skipped"
    (what was not checked, and why) and "runtimes". Raises InvalidArgumentError for arguments that make no sense."""
    command = [command_path(), "check", str(getattr(file, "path", file)), "--json", "--seed", str(seed)]
    for option, values in (("--op", op), ("--ort", ort)):
        for value in [values] if isinstance(values, str) or hasattr(values, "__fspath__") else values:
            command += [option, str(value)]
    command += ["--timeout", str(timeout)] if timeout is not None else []
    command += ["--budget", str(budget)] if budget is not None else []
    return run_report(command)
