"""opbridge.doctor(): what the `opbridge doctor` command finds, as data."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from .errors import Error, InvalidArgumentError
from .paths import command_path


@dataclass(frozen=True)
class Finding:
    """One thing that doctor found; docs/doctor.md lists every code."""

    code: str  # "operator-wrong-name"
    severity: str  # "error" (will not work), "warning" (works, but), "note"
    subject: str  # the file, node or package
    cause: str
    evidence: str  # what was seen here
    fix: str  # the command or line that mends it

    def __str__(self):
        title = f"{self.severity} {self.code}: {self.subject}"
        return f"{title}\n  cause: {self.cause}\n  found: {self.evidence}\n  fix:   {self.fix}"


@dataclass(frozen=True)
class Report:
    """`ok` says that there is no error; `facts` has what was looked at: "runtime", "python", "libraries", "model"."""

    verdict: str
    findings: tuple[Finding, ...]
    facts: dict[str, Any]

    @property
    def ok(self):
        return not any(f.severity == "error" for f in self.findings)

    def __str__(self):
        return "\n\n".join([*map(str, self.findings), self.verdict])


def doctor(model=None, library=(), *, ort=None, provider="cpu", load=False, build_log=None):
    """Finds what keeps `model` (a path), its custom-operator libraries (`library`: a path or several) and this machine
    from working together. `ort` names the ONNX Runtime to look at (libonnxruntime.so.* or a folder that has it;
    default: the one of this environment), `provider` is "cpu" or "cuda". A library that is not opbridge's is only
    read, unless `load` is set: then its registration runs in a child process. `build_log` is a file with a compiler's
    output.

    Returns a Report. Raises InvalidArgumentError for arguments that make no sense; what is wrong with the files is a
    finding, never an exception."""
    libraries = [library] if isinstance(library, str) or hasattr(library, "__fspath__") else list(library)
    command = [command_path(), "doctor", "--json", "--provider", provider]
    command += [str(model)] if model is not None else []
    for path in libraries:
        command += ["--library", str(path)]
    command += ["--ort", str(ort)] if ort is not None else []
    command += ["--load"] if load else []
    command += ["--build-log", str(build_log)] if build_log is not None else []
    return run_report(command)


def run_report(command):
    """What a command that prints a report as JSON says. Raises InvalidArgumentError for a wrong command line, Error
    where there is no report."""
    # This Python's environment, whether or not it has been activated.
    environment = {"VIRTUAL_ENV": sys.prefix} | os.environ
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    try:
        facts = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise (InvalidArgumentError if done.returncode == 2 else Error)(
            f"{done.stderr.strip() or f'{command[0]} ended with {done.returncode}'}"
        ) from None
    findings = tuple(Finding(**f) for f in facts.pop("findings"))
    verdict = facts.pop("verdict")
    return Report(verdict, findings, {k: v for k, v in facts.items() if k not in ("errors", "warnings")})
