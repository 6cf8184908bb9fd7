"""Walks a model up the ladder: export, checker, ONNX Runtime from Python and from C++, on the CPU and on CUDA.

python -m opbridge verify m.onnx ...      is what `opbridge verify` runs
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from ._compare import metrics
from .doctor import doctor
from .errors import Error, InvalidArgumentError, ModelError
from .paths import command_path

STEPS = ("export", "checker", "Python, CPU", "C++, CPU", "Python, CUDA", "C++, CUDA")
# Runs in a process of its own, so that a crash is an answer.
_IN_PYTHON = """
import json, sys, time
import numpy as np
import opbridge
spec = json.loads(sys.argv[1])
try:
    session = opbridge.session(spec["model"], spec["libraries"], provider=spec["provider"])
    inputs = dict(np.load(spec["inputs"]))
    start = time.perf_counter()
    outputs = session.run(None, inputs)
    milliseconds = 1e3 * (time.perf_counter() - start)
    np.savez(spec["outputs"], **{f"o{i}": o for i, o in enumerate(outputs)})
    names = [o.name for o in session.get_outputs()]
    print(json.dumps({"milliseconds": milliseconds, "names": names}))
except Exception as e:
    print(json.dumps({"error": f"{type(e).__name__}: {e}"}))
"""


@dataclass
class Step:
    """One rung. `outcome`: "ok", "skipped", "differs" or "failed". `difference`: the largest of the outputs, by
    opbridge.compare's measures, and `output` whose it is; None where nothing was compared."""

    name: str
    outcome: str
    text: str = ""
    milliseconds: float | None = None
    output: str | None = None
    difference: dict | None = None


@dataclass
class Report:
    """`steps` up to the first that differs or fails; `findings` of doctor: what to do about that, or what is to be
    known of a model that passes."""

    model: str
    steps: list[Step] = field(default_factory=list)
    findings: list = field(default_factory=list)
    advice: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self):
        return all(s.outcome in ("ok", "skipped") for s in self.steps)

    @property
    def exit_code(self):
        """0 works, 1 a step differs or fails, 2 works, but doctor warns."""
        if not self.ok:
            return 1
        return 2 if any(f.severity != "note" for f in self.findings) else 0

    @property
    def verdict(self):
        if not self.ok:
            last = self.steps[-1]
            return f"stops at '{last.name}', which {'differs' if last.outcome == 'differs' else 'fails'}"
        skipped = sum(s.outcome == "skipped" for s in self.steps)
        text = f"works: {len(self.steps) - skipped} steps agree" + (f", {skipped} skipped" if skipped else "")
        return text + ("; but see above" if self.exit_code == 2 else "")

    def to_json(self):
        return {
            "model": self.model,
            "ok": self.ok,
            "verdict": self.verdict,
            "steps": [asdict(s) for s in self.steps],
            "findings": [asdict(f) for f in self.findings],
            "advice": self.advice,
            "notes": self.notes,
        }

    def __str__(self):
        return "\n".join([*map(_line, self.steps), *self._rest()])

    def _rest(self):
        """The lines after the steps."""
        lines = [f"note: {n}" for n in self.notes]
        lines += [f"\n{f}" for f in self.findings]
        lines += [f"\nfix: {self.advice}"] if self.advice else []
        return [*lines, "\n" + self.verdict]


class _Failed(Exception):
    pass


def verify(
    model,
    inputs=None,
    *,
    expect=None,
    libraries=(),
    ort=None,
    tolerance=None,
    seed=0,
    dims=None,
    on_step=None,
    progress=None,
    **export_options,
):
    """A Report on how far `model` works: exported, checked, run by ONNX Runtime from Python and from C++, on the CPU
    and on CUDA, each step compared with the first that gave outputs. It ends at the first step that differs or fails.

    `model`: the path of an .onnx file, or a torch module; then `inputs` is the tuple it is called with,
    `export_options` go to opbridge.export, and its outputs are what the steps must reproduce. Of a file `inputs` is
    {input: array}; floating inputs that are missing are random in [-1, 1), others 0 or 1, by `seed`, with the sizes
    `dims` ({dimension: size}, by default 1). `expect`: {output: array}, what the steps must reproduce. `libraries`:
    paths of custom-op libraries. `ort`: the ONNX Runtime of the C++ steps, by default this Python's.
    `tolerance`: as in opbridge.compare. `on_step` is called with each Step when it is done, `progress` with the name of
    the step that begins.

    Steps that this machine cannot do are skipped and say why. Raises InvalidArgumentError for arguments that make no
    sense; what is wrong with the model is in the Report."""
    if isinstance(libraries, (str, os.PathLike)):
        libraries = [libraries]
    with tempfile.TemporaryDirectory(prefix="opbridge-verify-") as folder:
        ladder = _Ladder(Path(folder), [os.fspath(p) for p in libraries], ort, tolerance, on_step, progress)
        ladder.climb(model, inputs, expect, seed, dims or {}, export_options)
    return ladder.report


class _Ladder:
    def __init__(self, folder, libraries, ort, tolerance, on_step, progress):
        self.folder, self.libraries, self.ort, self.tolerance = folder, libraries, ort, tolerance
        self.on_step, self.progress = on_step or (lambda step: None), progress or (lambda name: None)
        self.expected = None  # {output: array}
        self.module = False

    def climb(self, model, inputs, expect, seed, dims, export_options):
        is_file = isinstance(model, (str, os.PathLike))
        self.report = Report(os.fspath(model) if is_file else type(model).__name__)
        self.path = os.fspath(model) if is_file else str(self.folder / "model.onnx")
        self.expected = None if expect is None else {k: np.asarray(v) for k, v in expect.items()}
        if is_file:
            self._add(Step("export", "skipped", "the model is an .onnx file"))
        elif not self._step("export", lambda: self._export(model, inputs, export_options)):
            return self._explain("cpu")
        if not self._step("checker", self._check):
            return self._explain("cpu")
        if is_file:
            inputs = self._inputs(dict(inputs or {}), seed, dims)
            np.savez(self.folder / "inputs.npz", **inputs)
        for provider in ("cpu", "cuda"):
            why = self._no_cuda() if provider == "cuda" else ""
            for language, run in (("Python", self._python), ("C++", self._cpp)):
                name = f"{language}, {provider.upper()}"
                if why:
                    self._add(Step(name, "skipped", why))
                elif not self._step(name, lambda run=run, provider=provider: run(provider)):
                    return self._explain(provider)
        return self._explain("cpu")

    def _add(self, step):
        self.report.steps.append(step)
        self.on_step(step)
        return step.outcome in ("ok", "skipped")

    def _step(self, name, run):
        """`run` returns (text, milliseconds or None, outputs or None). Whether the step is passed."""
        self.progress(name)
        start = time.perf_counter()
        try:
            text, milliseconds, outputs = run()
        except _Failed as e:
            return self._add(Step(name, "failed", str(e)))
        if milliseconds is None:
            milliseconds = 1e3 * (time.perf_counter() - start)
        step = Step(name, "ok", text, milliseconds)
        if outputs is not None and self.expected is None:
            self.expected, step.text = outputs, "what the next steps must reproduce"
        elif outputs is not None:
            self._compare(step, outputs)
        return self._add(step)

    def _compare(self, step, outputs):
        missing = [n for n in self.expected if n not in outputs]
        if missing:
            step.outcome = "differs"
            step.text = f"it has no output '{missing[0]}', only {', '.join(outputs)}"
            return
        worst = None
        for name, expected in self.expected.items():
            kind = "translation" if name == "translation" else None
            d = metrics.compare(outputs[name], expected, tolerance=self.tolerance, kind=kind)
            key = (not d.equal, d.error / d.limit if d.limit else d.error)
            if worst is None or key > worst[0]:
                worst = (key, name, d)
        if worst is None:
            return
        _, step.output, d = worst
        step.difference = d.to_json()
        step.outcome = "ok" if d.equal else "differs"
        step.text = (
            f"'{step.output}': {d}" if not d.equal else f"largest difference {d.max:.2g} ('{step.output}')"
        )

    # --- the rungs

    def _export(self, module, inputs, options):
        import torch

        from .export import _evaluating, export

        self.module = True
        inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        try:
            options = {"libraries": self.libraries or None, "check": False} | options
            written = export(module, inputs, self.path, **options)
            with _evaluating(module), torch.no_grad():
                outputs = module(*inputs, **options.get("kwargs", {}))
        except InvalidArgumentError:
            raise
        except Exception as e:
            raise _Failed(f"{type(e).__name__}: {e}") from e
        leaves = torch.utils._pytree.tree_leaves((inputs, options.get("kwargs", {})))
        given = [t.detach().cpu().numpy() for t in leaves if isinstance(t, torch.Tensor)]
        if len(given) != len(written.inputs):
            raise _Failed(
                f"the file has {len(written.inputs)} inputs, the module was given {len(given)} tensors"
            )
        np.savez(self.folder / "inputs.npz", **dict(zip(written.inputs, given, strict=True)))
        leaves = [t for t in torch.utils._pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor)]
        if self.expected is None:
            values = [t.detach().cpu().numpy() for t in leaves]
            self.expected = dict(zip(written.outputs, values, strict=True))
        return f"{written.exporter}, opset {written.opset_version}", None, None

    def _check(self):
        import onnx

        from .library import is_operator_library, load

        try:
            for path in self.libraries:
                if is_operator_library(path):
                    load(path, torch=False).register_with_onnx()
            onnx.checker.check_model(self.path, full_check=True)
        except Exception as e:
            raise _Failed(f"{type(e).__name__}: {str(e).strip()}") from e
        model = onnx.load(self.path, load_external_data=False)
        versions = ", ".join(f"{o.domain or 'ai.onnx'} {o.version}" for o in model.opset_import)
        return f"IR {model.ir_version}, {versions}", None, None

    def _python(self, provider):
        outputs = self.folder / f"python_{provider}.npz"
        spec = {
            "model": self.path,
            "libraries": self.libraries,
            "provider": provider,
            "inputs": str(self.folder / "inputs.npz"),
            "outputs": str(outputs),
        }
        done = self._process([sys.executable, "-c", _IN_PYTHON, json.dumps(spec)])
        try:
            said = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, json.JSONDecodeError):
            raise _Failed(_last(done.stderr) or f"Python ended with exit code {done.returncode}") from None
        if "error" in said:
            raise _Failed(said["error"])
        with np.load(outputs) as file:
            values = {name: file[f"o{i}"] for i, name in enumerate(said["names"])}
        return "", said["milliseconds"], values

    def _cpp(self, provider):
        folder = self.folder / f"cpp_{provider}"
        command = [command_path(), "run", self.path, "--provider", provider, "--json"]
        command += ["--input", str(self.folder / "inputs.npz")]
        command += ["--output-dir", str(folder), "--output-format", "npz"]
        for path in self.libraries:
            command += ["--library", path]
        done = self._process([*command, *self._runtime()])
        if done.returncode != 0:
            raise _Failed(done.stderr.strip().removeprefix("error: ") or _last(done.stdout))
        said = json.loads(done.stdout)
        with np.load(folder / "outputs.npz") as file:
            outputs = dict(file)
        times = said.get("times_ms", {})
        return "", times.get("mean") or times.get("median"), outputs

    def _runtime(self):
        if self.ort is not None:
            return ["--ort", str(self.ort)]
        if "OPBRIDGE_ORT" in os.environ:
            return []
        import onnxruntime

        return ["--ort", str(Path(onnxruntime.__file__).parent)]

    def _process(self, command):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment, check=False
        )
        if done.returncode < 0:
            raise _Failed(f"the process was ended by signal {-done.returncode}. {_last(done.stderr)}".strip())
        return done

    # --- what the rungs need

    def _inputs(self, given, seed, dims):
        import onnx

        model = onnx.load(self.path, load_external_data=False)
        initializers = {i.name for i in model.graph.initializer}
        declared = [i for i in model.graph.input if i.name not in initializers]
        unknown = [n for n in given if n not in {i.name for i in model.graph.input}]
        if unknown:
            names = ", ".join(i.name for i in declared) or "none"
            raise InvalidArgumentError(f"'{self.path}' has no input '{unknown[0]}'; it has {names}")
        generator = np.random.default_rng(seed)
        for value in declared:
            if value.name in given:
                continue
            tensor = value.type.tensor_type
            if tensor.elem_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
                what = (
                    "a tensor of strings" if tensor.elem_type else value.type.WhichOneof("value") or "untyped"
                )
                raise InvalidArgumentError(
                    f"input '{value.name}' is {what}: only tensors of numbers can be made up"
                )
            shape = [
                d.dim_value if d.HasField("dim_value") else dims.get(d.dim_param, 1) for d in tensor.shape.dim
            ]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            floating = metrics.is_floating(np.zeros(0, dtype))
            try:
                array = generator.uniform(-1, 1, shape) if floating else generator.integers(0, 2, shape)
            except (MemoryError, ValueError):
                raise InvalidArgumentError(
                    f"input '{value.name}' of shape {shape} does not fit into memory"
                ) from None
            given[value.name] = np.asarray(array).astype(dtype)
            self.report.notes.append(f"input '{value.name}' is random, {dtype.name}{shape}")
        return given

    def _no_cuda(self):
        """Why there are no steps on CUDA here, or nothing."""
        import onnxruntime

        providers = onnxruntime.get_available_providers()
        if "CUDAExecutionProvider" not in providers:
            return f"onnxruntime {onnxruntime.__version__} has no CUDAExecutionProvider"
        self.progress("looking for a GPU")
        for finding in doctor(provider="cuda", ort=self.ort).findings:
            if finding.code in ("driver-missing", "provider-missing", "provider-library-missing"):
                return f"{finding.subject}: {finding.evidence}"
        return ""

    def _explain(self, provider):
        """What doctor says: about a step that failed all of it, else what is wrong or doubtful about the model."""
        if os.path.exists(self.path):
            self.progress("asking doctor")
            findings = doctor(self.path, self.libraries, ort=self.ort, provider=provider).findings
            kinds = ("error", "warning")
            self.report.findings = [f for f in findings if f.severity in kinds]
        last = self.report.steps[-1]
        if self.report.ok or any(f.severity == "error" for f in self.report.findings):
            return
        if last.outcome == "differs" and self.module:
            self.report.advice = (
                "opbridge.export(module, inputs, 'm.onnx'), then opbridge.compare(module, 'm.onnx', inputs), names the "
                "first tensor that differs (docs/compare.md)"
            )
        elif last.outcome == "differs":
            other = " --provider cpu --provider cuda" if provider == "cuda" else ""
            self.report.advice = (
                f"opbridge compare {self.path} --random{other} compares settings of the runtime; against the module "
                "that it came from, opbridge.compare(module, 'm.onnx', inputs) names the first tensor that differs"
            )
        elif last.name == "export":
            self.report.advice = "docs/export.md: what the exporters refuse, and how to map it"
        elif last.name == "checker":
            self.report.advice = "export the model again, or mend what the checker names"


def _last(text):
    return text.strip().splitlines()[-1] if text.strip() else ""


def _line(step, colour=False):
    marks = {"ok": "32", "skipped": "2", "differs": "31", "failed": "31"}
    outcome = f"{step.outcome:8}"
    if colour:
        outcome = f"\033[{marks[step.outcome]}m{outcome}\033[0m"
    took = "" if step.milliseconds is None else f"{step.milliseconds:.1f} ms"
    return f"{step.name:13} {outcome} {took:>12}  {step.text}".rstrip()


# --- the command line


def _printable(text):
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def _read(path):
    """{name: array} of .npz, .npy or .pb; the name of a .npy is its file's."""
    path = Path(path)
    magic = {".npz": b"PK", ".npy": b"\x93NUMPY", ".pb": b""}.get(path.suffix)
    if magic is None:
        raise InvalidArgumentError(f"'{path}' is no .npz, .npy or .pb file")
    try:
        with path.open("rb") as file:
            if file.read(len(magic)) != magic:  # NumPy would take it for a pickle
                raise InvalidArgumentError(f"'{path}' is no {path.suffix} file, whatever its name says")
        if path.suffix == ".npz":
            with np.load(path) as file:
                return dict(file)
        if path.suffix == ".npy":
            return {path.stem: np.load(path)}
        import onnx

        tensor = onnx.load_tensor(path)
        return {tensor.name or path.stem: onnx.numpy_helper.to_array(tensor)}
    except OSError as e:
        raise InvalidArgumentError(f"cannot read '{path}': {e.strerror or e}") from None
    except InvalidArgumentError:
        raise
    except Exception as e:  # each format has its own: BadZipFile, DecodeError, ValueError, EOFError
        raise InvalidArgumentError(f"cannot read '{path}', which is truncated or damaged: {e}") from None


def _arrays(given):
    arrays = {}
    for text in given:
        name, equals, path = text.partition("=")
        found = _read(path if equals else text)
        if equals and len(found) != 1:
            raise InvalidArgumentError(f"'{path}' has {len(found)} arrays: give it without '{name}='")
        arrays |= {name: next(iter(found.values()))} if equals else found
    return arrays


def _dims(given):
    dims = {}
    for text in given:
        name, _, size = text.partition("=")
        if not name or not size.isdecimal():
            raise InvalidArgumentError(f"'{text}' is not NAME=N")
        dims[name] = int(size)
    return dims


def _seed(text):
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not 0 or a positive integer")
    return int(text)


_EXAMPLES = """\
examples:
  opbridge verify m.onnx --library libmy_custom_ops.so
  opbridge verify m.onnx --library libmy_custom_ops.so --input frame.npz --expect outputs.npz
  opbridge verify m.onnx --input x=x.npy --dim batch=4 --json

Steps: the onnx checker, ONNX Runtime from Python and from C++ on the CPU, the same on CUDA. It stops at the first that
fails, or whose outputs differ from --expect or from the first step's, and says what to do. Steps that this machine
cannot do are skipped. In Python, opbridge.verify(module, inputs) starts with the export of a torch module.
Exit codes: 0 works, 1 a step fails or differs, 2 works, but doctor warns (or a wrong command line)."""


def main(arguments):
    try:
        code = _main(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # `| head`: what is left has no reader
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _main(arguments):
    parser = argparse.ArgumentParser(
        "opbridge verify",
        description="Walks a model up the ladder: checker, Python, C++, CUDA.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    many = {"action": "append", "default": []}
    parser.add_argument("model", help="the .onnx file")
    parser.add_argument(
        "-l", "--library", metavar="FILE", help="a custom-operator library; may be repeated", **many
    )
    parser.add_argument(
        "-i", "--input", metavar="[NAME=]FILE", help="inputs: .npz, .npy or .pb; may be repeated", **many
    )
    parser.add_argument("--expect", metavar="FILE", help="outputs to reproduce: .npz, .npy or .pb", **many)
    parser.add_argument(
        "--dim", metavar="NAME=N", help="the size of a dynamic dimension of random inputs [1]", **many
    )
    parser.add_argument("--seed", type=_seed, default=0, help="of random inputs [0]")
    parser.add_argument(
        "--tolerance", type=float, metavar="X", help="as a part of the expected root mean square"
    )
    parser.add_argument("--ort", metavar="PATH", help="the ONNX Runtime of the C++ steps [this Python's]")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    args = parser.parse_args(arguments)

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def say(name):
        if sys.stderr.isatty() and not args.json:
            print(f"\r\033[K{name} ...", end="\r", file=sys.stderr, flush=True)

    def show(step):
        say_nothing()
        if not args.json:
            print(_line(replace(step, text=_printable(step.text)), colour), flush=True)

    def say_nothing():
        if sys.stderr.isatty() and not args.json:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    try:
        if not os.path.exists(args.model):
            raise ModelError(f"no model file '{args.model}'")
        report = verify(
            args.model,
            _arrays(args.input),
            expect=_arrays(args.expect) if args.expect else None,
            libraries=args.library,
            ort=args.ort,
            tolerance=args.tolerance,
            seed=args.seed,
            dims=_dims(args.dim),
            on_step=show,
            progress=say,
        )
    except BrokenPipeError:
        raise
    except (Error, OSError) as e:
        say_nothing()
        print(f"error: {_printable(str(e))}", file=sys.stderr)
        return 2 if isinstance(e, InvalidArgumentError) else 1
    say_nothing()
    if args.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        print(_printable("\n".join(report._rest())))
    return report.exit_code
