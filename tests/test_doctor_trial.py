"""The trial of `opbridge doctor`: working projects broken in many ways, and some that work (doctor_trial.py,
doctor_trial_more.py and doctor_trial_third.py, thirty and ten each).

Each break is real: plain ONNX Runtime refuses the project or computes something wrong, which is checked first. Then
doctor must name the true cause, and nothing that is not true."""

import json
import os
import random
import re
import subprocess
import sys

import doctor_trial
import doctor_trial_more  # noqa: F401  (adds its cases to doctor_trial's)
import doctor_trial_third  # noqa: F401
import pytest
from doctor_trial import Absent, Project

PYTHON_OF = {"1.14.1": "1.15.1", "1.17.1": "1.17.3"}  # the nearest version that there is as a Python package


class Plain:
    """ONNX Runtimes of several versions, each in a process of its own that answers any number of questions."""

    def __init__(self):
        self.processes = {}

    def __call__(self, project):
        version = PYTHON_OF.get(project.runtime, project.runtime)
        python = doctor_trial.ORT / version / "bin/python" if version else sys.executable
        if version not in self.processes:
            self.processes[version] = subprocess.Popen(
                [python, doctor_trial.ROOT / "tests/doctor_trial_plain.py"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        process = self.processes[version]
        job = {
            "model": str(project.model) if project.model else None,
            "libraries": [str(p) for p in project.libraries],
            "feeds": project.feeds,
        }
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    def close(self):
        for process in self.processes.values():
            process.stdin.close()
            process.wait(20)


@pytest.fixture(scope="session")
def plain():
    runtimes = Plain()
    yield runtimes
    runtimes.close()


def made(make, tmp_path):
    """The project, or the reason why this machine cannot have it."""
    try:
        project = make(tmp_path)
    except Absent as e:
        pytest.skip(str(e))
    if project.runtime and not (doctor_trial.ORT / "lib" / project.runtime).exists():
        pytest.skip(f"no ONNX Runtime {project.runtime}: make matrix fetches it")
    if project.ort and not project.ort.exists():
        pytest.skip(f"no {project.ort}: make matrix fetches it")
    return project


def doctor(project: Project):
    """The exit code and the report of `opbridge doctor`."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPBRIDGE_")}
    environment |= {"VIRTUAL_ENV": sys.prefix} | project.environment
    done = subprocess.run(
        [doctor_trial.BUILD / "bin/opbridge", "doctor", *project.arguments(), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        cwd=project.folder,
    )
    assert done.returncode in (0, 1, 2), f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.returncode, json.loads(done.stdout)


def text_of(finding, folder):
    """What the finding says, less the project's folder, whose name may tell the cause."""
    text = "\n".join(finding[k] for k in ("subject", "cause", "evidence", "fix"))
    return text.replace(str(folder), "")


@pytest.mark.parametrize("case", doctor_trial.CASES, ids=lambda c: c.name)
def test_the_break_is_real(case, tmp_path, plain):
    project = made(case.make, tmp_path)
    if callable(case.plain):
        assert case.plain(project, plain)
    else:
        assert re.search(case.plain, plain(project).get("error", "no error"))


@pytest.mark.parametrize("project", doctor_trial.HEALTHY, ids=lambda h: h.name)
def test_the_healthy_project_works(project, tmp_path, plain):
    healthy = made(project.make, tmp_path)
    if healthy.build_log:
        assert healthy.build_log.read_text().endswith("exit code 0\n")
        return
    answer = plain(healthy)
    assert answer.get("shapes"), answer
    assert answer["finite"]


@pytest.mark.parametrize("case", doctor_trial.CASES, ids=lambda c: c.name)
def test_names_the_true_cause(case, tmp_path):
    code, report = doctor(made(case.make, tmp_path))
    named = [
        f
        for f in report["findings"]
        if (f["code"] in case.code.split("|") if case.code else f["code"] != "session-fails")
        and all(re.search(p, text_of(f, tmp_path)) for p in case.says)
    ]
    assert named, f"{case.cause}\nbut doctor says: {json.dumps(report['findings'], indent=1)}"
    assert code == (0 if case.exit == 0 else 1 if report["errors"] else 2)
    true = {*case.code.split("|"), *case.also, "python-other-runtime"}
    false = [f for f in report["findings"] if f["severity"] != "note" and f["code"] not in true]
    assert false == [] or not case.code


@pytest.mark.parametrize("project", doctor_trial.HEALTHY, ids=lambda h: h.name)
def test_no_false_alarm(project, tmp_path):
    code, report = doctor(made(project.make, tmp_path))
    alarms = [f for f in report["findings"] if f["severity"] in ("error", "warning")]
    assert (code, alarms) == (0, [])


def damaged(data, rng):
    """The bytes of a file, cut short, with random bytes in its head or anywhere, or with a block of zeros."""
    data = bytearray(data)
    at = rng.randrange(len(data))
    kind = rng.choice(["cut", "head", "anywhere", "zeros"])
    if kind == "cut":
        del data[at:]
    elif kind == "zeros":
        data[at : at + 500] = bytes(len(data[at : at + 500]))
    else:
        for _ in range(4):
            data[rng.randrange(len(data) if kind == "anywhere" else min(len(data), 512))] = rng.randrange(256)
    return bytes(data)


@pytest.mark.parametrize("seed", range(6))
def test_damaged_files_get_an_answer(seed, tmp_path):
    """A damaged model, a damaged opbridge library, a damaged foreign one that is run: doctor neither crashes nor
    hangs."""
    rng = random.Random(seed)
    model = doctor_trial.points_model(tmp_path / "good.onnx")
    bad_model = tmp_path / "bad.onnx"
    bad_model.write_bytes(damaged(model.read_bytes(), rng))
    bad_library = tmp_path / "libbad.so"
    bad_library.write_bytes(damaged(doctor_trial.PVN3D.read_bytes(), rng))
    bad_foreign = tmp_path / "libforeign.so"
    bad_foreign.write_bytes(damaged(doctor_trial.foreign(tmp_path / "libgood.so").read_bytes(), rng))
    for project in (
        Project(bad_model, [doctor_trial.PVN3D]),
        Project(model, [bad_library]),
        Project(model, [bad_foreign], load=True),
    ):
        code, report = doctor(project)
        assert (code == 1) == bool(report["errors"])
