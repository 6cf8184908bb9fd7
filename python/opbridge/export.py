"""Exports a PyTorch model with custom operators to ONNX, and checks the result before calling it good."""

import contextlib
import inspect
import os
import tempfile
from dataclasses import dataclass, field

import onnx
import torch
from torch.utils import _pytree as pytree

from . import library as _library
from . import onnx_schema
from ._export import check as _check
from ._export import model as _model
from ._export import targets as _targets
from .errors import ExportError, InvalidArgumentError, nearest

OPSET_VERSION = 18


def export(
    model,
    args,
    path,
    *,
    kwargs=None,
    exporter="dynamo",
    input_names=None,
    output_names=None,
    dynamic_shapes=None,
    dynamic_axes=None,
    map=None,
    libraries=None,
    opset_version=OPSET_VERSION,
    check=True,
    check_inputs=None,
    tolerance=None,
):
    """Writes `model`, called with `args` and `kwargs`, to the ONNX file `path` and returns an ExportReport.

    `exporter`: "dynamo" (torch.export) or "torchscript" (torch.jit.trace); the custom nodes come out the same.
    `input_names`, `output_names`: by default the names of forward's parameters, and "output", "output_<n>" or the keys
    of a dict. Tensors inside tuples, lists and dicts are inputs and outputs of their own; other values are constants.
    `dynamic_shapes` or `dynamic_axes`: {input: {axis: name}}; torch's other spellings are understood. Equal names say
    equal sizes. `map`: {an autograd.Function class or torch operator: "domain::Operator" or ("domain::Operator",
    adapter)}; arguments are the operator's inputs, then its attributes, in order, unless adapter(*args) returns
    (inputs, attributes). `libraries`: paths or Library objects, by default all that are loaded.

    With `check` the file is run in ONNX Runtime against the model: on `args`, and, where dimensions are dynamic, at a
    second size, or on `check_inputs` (a tuple like `args`, a dict of inputs by name, or a list of either). `tolerance`
    is relative to the root mean square of each output. No file is written unless all of it holds.

    The model is exported in eval mode and left as it was. One export at a time: while it runs, mapped classes are
    patched, for the calling thread only, and torch's exporters keep global state.

    Raises ExportError, InvalidArgumentError for wrong arguments, and what torch raises for what it cannot export.
    """
    if exporter not in ("dynamo", "torchscript"):
        raise InvalidArgumentError(f"exporter is 'dynamo' or 'torchscript', got {exporter!r}")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise InvalidArgumentError(f"no folder '{folder}' to write the model to")
    libraries = _open(libraries)
    functions, foreign = _targets.resolve(map, libraries)
    operators = _targets.native(libraries) | foreign
    for library in libraries:
        onnx_schema.register(library)
    with _evaluating(model) as was_training:
        call = _Call(model, args, kwargs or {}, input_names, dynamic_shapes, dynamic_axes)
        results = {cls: [] for cls in functions}
        with _targets.patched("forward", {cls: _recording(results[cls]) for cls in functions}):
            expected = _check.run_eager(call, call.inputs)
        results = {cls: _agreed(cls, found) for cls, found in results.items()}
        output_names = _output_names(output_names, call.output_paths)
        common = (call, call.inputs, call.axes, functions, operators, results, opset_version)
        if exporter == "dynamo":
            from ._export import dynamo

            proto, rewritten = dynamo.export(*common, call.input_names, output_names)
        else:
            from ._export import torchscript

            outer = {n: a for n, a in _axis_names(dynamic_axes).items() if n in output_names}
            proto, rewritten = torchscript.export(*common, call.input_names, output_names, outer)
        rewritten += _model.cast_where_declared_otherwise(proto, libraries)
        named = [{axis: a.name for axis, a in per.items()} for per in call.axes]
        proto, more = _model.finish(proto, libraries, exporter, opset_version, named)
        rewritten += more
        _require_mapped(foreign, proto, libraries)
        report = ExportReport(os.fspath(path), exporter, opset_version, proto, libraries, rewritten)
        if was_training:
            report.notes.append("exported in eval mode; the model itself is in training mode, as before")
        report.notes += [
            f"{name} = {value!r} is a constant of the exported model" for name, value in call.constants
        ]
        if check:
            checker = _check.Checker(proto, libraries, call, functions, operators, tolerance)
            report.checks.append(checker.run(call.inputs, expected))
            for inputs, outputs in _second(call, check_inputs):
                report.checks.append(checker.run(inputs, outputs))
    _write(proto, path)
    return report


@dataclass
class ExportReport:
    """What export() wrote: `nodes` are the custom ones as (operator, node name, attributes); `rewritten` says what the
    graph lost or gained besides; `checks` lists the runs that were compared."""

    path: str
    exporter: str
    opset_version: int
    _proto: onnx.ModelProto = field(repr=False)
    _libraries: list = field(repr=False)
    rewritten: list
    notes: list = field(default_factory=list)
    checks: list = field(default_factory=list)

    def __post_init__(self):
        graph = self._proto.graph
        self.inputs = {i.name: _spell_type(i) for i in graph.input}
        self.outputs = {o.name: _spell_type(o) for o in graph.output}
        self.nodes = [
            (
                f"{n.domain}::{n.op_type}",
                n.name,
                {a.name: onnx.helper.get_attribute_value(a) for a in n.attribute},
            )
            for n in _model.custom_nodes(self._proto, self._libraries)
        ]

    def __str__(self):
        lines = [f"{self.path}: exporter {self.exporter}, opset {self.opset_version}"]
        lines += [f"  input   {name}: {kind}" for name, kind in self.inputs.items()]
        lines += [f"  output  {name}: {kind}" for name, kind in self.outputs.items()]
        for operator, name, attributes in self.nodes:
            shown = "".join(
                f" {k}={v.decode() if isinstance(v, bytes) else v}" for k, v in attributes.items()
            )
            lines.append(f"  node    {operator} '{name}'{shown}")
        lines += [f"  rewritten  {text}" for text in self.rewritten]
        lines += [f"  note    {text}" for text in self.notes]
        lines += [f"  checked {result}" for result in self.checks] or ["  not checked"]
        return "\n".join(lines)


def _spell_type(value):
    dtype, sizes = onnx_schema.dtype_and_sizes(value.type)
    return f"{dtype}[{'...' if sizes is None else ','.join('?' if s is None else str(s) for s in sizes)}]"


@dataclass
class Axis:
    """A dynamic dimension: its name, and the sizes it may have."""

    name: str
    min: int | None = None
    max: int | None = None


class _Call(torch.nn.Module):
    """A call of the user's model as a module from tensors to a tuple of tensors."""

    def __init__(self, model, args, kwargs, input_names, dynamic_shapes, dynamic_axes):
        super().__init__()
        self.model = model
        self.structure_of(args, kwargs)
        names = [name for name, value in self.leaves if isinstance(value, torch.Tensor)]
        self.input_names = list(input_names or names)
        if len(self.input_names) != len(names):
            raise InvalidArgumentError(
                f"{len(self.input_names)} input_names for {len(names)} input tensors ({', '.join(names)})"
            )
        self.constants = [(n, v) for n, v in self.leaves if not isinstance(v, torch.Tensor) and v is not None]
        if dynamic_shapes is not None and dynamic_axes is not None:
            raise InvalidArgumentError("give either dynamic_shapes or dynamic_axes")
        spec = dynamic_shapes if dynamic_shapes is not None else dynamic_axes
        self.axes = _axes(spec, self.arguments, self.inputs, self.input_names, dynamic_axes is not None)
        self.output_paths = None
        self.train(getattr(model, "training", False))

    def structure_of(self, args, kwargs):
        args = tuple(args) if isinstance(args, (tuple, list)) else (args,)
        self.arguments = _bound(self.model, args, kwargs)
        self.leaves = [leaf for name, value in self.arguments.items() for leaf in _named_leaves(name, value)]
        self.inputs = [v.detach() for _, v in self.leaves if isinstance(v, torch.Tensor)]
        flat, self.structure = pytree.tree_flatten((args, kwargs))
        self.flat = [None if isinstance(v, torch.Tensor) else v for v in flat]
        self.places = [i for i, v in enumerate(flat) if isinstance(v, torch.Tensor)]
        if len(self.places) != len(self.inputs):
            raise InvalidArgumentError("args hold tensors inside objects that are no tuple, list or dict")

    def forward(self, *inputs):
        flat = list(self.flat)
        for place, value in zip(self.places, inputs, strict=True):
            flat[place] = value
        args, kwargs = pytree.tree_unflatten(flat, self.structure)
        leaves = list(_named_leaves("output", self.model(*args, **kwargs)))
        outputs = [(name, value) for name, value in leaves if isinstance(value, torch.Tensor)]
        if not outputs:
            raise ExportError("the model returns no tensor")
        self.output_paths = [name for name, _ in outputs]
        return tuple(value for _, value in outputs)


def _bound(model, args, kwargs):
    """{parameter of forward: argument}, in the order of args and kwargs."""
    try:
        signature = inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model)
    except ValueError:
        return {f"input_{n}": value for n, value in enumerate(args)} | kwargs
    positional = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += [f"{parameter.name}_{n}" for n in range(len(args) - len(positional))]
        elif parameter.kind is not parameter.VAR_KEYWORD and parameter.kind is not parameter.KEYWORD_ONLY:
            positional.append(parameter.name)
    signature.bind(*args, **kwargs)
    return dict(zip(positional, args, strict=False)) | kwargs


def _named_leaves(name, value):
    """(name, leaf) of everything in nested tuples, lists and dicts, in pytree's order."""
    if isinstance(value, dict):
        prefix = "" if name == "output" else f"{name}_"
        for key, item in value.items():
            yield from _named_leaves(f"{prefix}{key}", item)
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from _named_leaves(f"{name}_{index}", item)
    else:
        yield name, value


# --- dynamic dimensions


def _axes(spec, arguments, inputs, input_names, by_input_name):
    """One {axis: Axis} for each input tensor."""
    if not spec:
        return [{} for _ in inputs]
    if isinstance(spec, dict) and (by_input_name or set(spec) <= set(input_names)):
        unknown = [name for name in spec if name not in input_names]
        if unknown and not by_input_name:
            raise InvalidArgumentError(
                f"dynamic_shapes names '{unknown[0]}'{nearest(unknown[0], input_names)}"
            )
        entries = [spec.get(name) for name in input_names]
    else:
        if not isinstance(spec, dict):
            if len(spec) != len(arguments):
                raise InvalidArgumentError(
                    f"dynamic_shapes has {len(spec)} entries for {len(arguments)} arguments"
                )
            spec = dict(zip(arguments, spec, strict=True))
        unknown = [name for name in spec if name not in arguments]
        if unknown:
            known = [*input_names, *arguments]
            raise InvalidArgumentError(
                f"dynamic_shapes names '{unknown[0]}'{nearest(unknown[0], known)}; the inputs are "
                f"{', '.join(input_names)}"
            )
        entries = [e for name, value in arguments.items() for e in _entries(value, spec.get(name))]
    axes = [_input_axes(*given) for given in zip(input_names, inputs, entries, strict=True)]
    sizes = {}
    for name, tensor, per in zip(input_names, inputs, axes, strict=True):
        for axis, a in per.items():
            size, other = sizes.setdefault(a.name, (tensor.shape[axis], name))
            if size != tensor.shape[axis]:
                raise InvalidArgumentError(
                    f"dimension '{a.name}' is {size} in '{other}' and {tensor.shape[axis]} in '{name}': equal names "
                    "say equal sizes"
                )
    return axes


def _entries(value, spec):
    """The part of a nested dynamic_shapes that belongs to each tensor in `value`."""
    if isinstance(value, torch.Tensor):
        yield spec
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _entries(item, spec.get(key) if spec else None)
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from _entries(item, spec[index] if spec else None)


def _input_axes(name, tensor, entry):
    if entry is None:
        return {}
    if not isinstance(entry, dict):
        only_numbers = all(isinstance(e, int) for e in entry) and len(entry) != tensor.dim()
        entry = {e: f"{name}_dim{e}" for e in entry} if only_numbers else dict(enumerate(entry))
    axes = {}
    for axis, dim in entry.items():
        if not isinstance(axis, int) or not -tensor.dim() <= axis < tensor.dim():
            raise InvalidArgumentError(f"'{name}' has {tensor.dim()} dimensions, no dimension {axis!r}")
        axis %= tensor.dim()
        a = _axis(dim, f"{name}_dim{axis}")
        if a is not None:
            axes[axis] = a
    return axes


def _axis(dim, default_name):
    """The Axis that an entry of dynamic_shapes or dynamic_axes asks for, None for a static one."""
    if isinstance(dim, str):
        return Axis(dim)
    hint = getattr(dim, "type", None)  # torch.export.Dim.AUTO, DYNAMIC or STATIC
    if hint is not None and hasattr(hint, "name"):
        if hint.name == "STATIC":
            return None
        return Axis(default_name, getattr(dim, "min", None), getattr(dim, "max", None))
    name = getattr(dim, "__name__", None)
    if name is None:
        if dim is None or isinstance(dim, int):
            return None
        raise InvalidArgumentError(f"{dim!r} is no dynamic dimension: give a name or a torch.export.Dim")
    low, high = getattr(dim, "min", None), getattr(dim, "max", None)
    if not name.isidentifier():
        return Axis(name)  # 2*batch
    return Axis(name, low if low else None, high if isinstance(high, int) and high < 2**31 else None)


def _axis_names(dynamic_axes):
    """{name: {axis: dimension name}} of the `dynamic_axes` that name their dimensions."""
    return {name: axes for name, axes in (dynamic_axes or {}).items() if isinstance(axes, dict)}


# --- the parts of export()


def _open(libraries):
    if libraries is None:
        return list(_library._libraries.values())
    if isinstance(libraries, (str, os.PathLike, _library.Library)):
        libraries = [libraries]
    return [lib if isinstance(lib, _library.Library) else _library.load(lib) for lib in libraries]


@contextlib.contextmanager
def _evaluating(model):
    """The model in eval mode; yields whether it was in training mode."""
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    modes = [m.training for m in modules]
    for module in modules:
        module.training = False
    try:
        yield any(modes)
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


def _recording(results):
    """For patched(): notes the dtypes that each call returns."""

    def replace(original):
        def forward(*args, **kwargs):
            outputs = original(*args, **kwargs)
            many = isinstance(outputs, (tuple, list))
            results.append(tuple(o.dtype for o in outputs) if many else outputs.dtype)
            return outputs

        return forward

    return replace


def _agreed(cls, results):
    """What every call of an autograd.Function returns: a dtype, or a tuple of them; None where it varies."""
    if not results:
        raise ExportError(f"map has {cls.__name__}, which the model never calls")
    many = [r for r in results if isinstance(r, tuple)]
    if len({len(r) for r in many}) > 1 or len(many) not in (0, len(results)):
        raise ExportError(
            f"{cls.__name__} returns another number of tensors from one call to the next: {results}"
        )
    # Where the calls differ in type, it follows from their inputs, in the operator as well.
    if many:
        return tuple(r[0] if len(set(r)) == 1 else None for r in zip(*results, strict=True))
    return results[0] if len(set(results)) == 1 else None


def _require_mapped(foreign, proto, libraries):
    made = {(n.domain, n.op_type) for n in _model.custom_nodes(proto, libraries)}
    for name, target in foreign.items():
        if (target.operator.domain, target.operator.name) not in made:
            raise ExportError(f"map has {name}, which the model never calls")


def _output_names(given, paths):
    if given is None:
        return paths if len(set(paths)) == len(paths) else [f"output_{n}" for n in range(len(paths))]
    if len(given) != len(paths):
        raise InvalidArgumentError(
            f"{len(given)} output_names for {len(paths)} output tensors ({', '.join(paths)})"
        )
    return list(given)


def _second(call, check_inputs):
    """(inputs, what the model returns for them) of the further checks."""
    if check_inputs is not None:
        for given in check_inputs if isinstance(check_inputs, list) else [check_inputs]:
            inputs = _flat_inputs(call, given)
            yield inputs, _check.run_eager(call, inputs)
        return
    if not any(call.axes):
        return
    failure = None
    for sizes in _check.other_sizes(call.axes, call.inputs):
        inputs = _check.resized(call.inputs, call.axes, sizes)
        try:
            outputs = _check.run_eager(call, inputs)
        except Exception as e:
            failure = failure or (sizes, e)
            continue
        yield inputs, outputs
        return
    told = f"; with {failure[0]} it says: {failure[1]}" if failure else ""
    raise ExportError(
        "dimensions are dynamic, but no second size was found on which the model runs: give check_inputs="
        f"{told}"
    )


def _flat_inputs(call, given):
    if isinstance(given, dict):
        unknown = [name for name in given if name not in call.input_names]
        if unknown:
            raise InvalidArgumentError(
                f"check_inputs names '{unknown[0]}'{nearest(unknown[0], call.input_names)}; the inputs are "
                f"{', '.join(call.input_names)}"
            )
        return [given.get(n, v) for n, v in zip(call.input_names, call.inputs, strict=True)]
    given = given if isinstance(given, tuple) else (given,)
    inputs = [v for v in pytree.tree_flatten(given)[0] if isinstance(v, torch.Tensor)]
    if len(inputs) != len(call.inputs):
        raise InvalidArgumentError(
            f"check_inputs holds {len(inputs)} tensors, the model has {len(call.inputs)} inputs"
        )
    return inputs


def _write(proto, path):
    """In one step: readers see the old file or the whole new one."""
    path = os.fspath(path)
    folder = os.path.dirname(os.path.abspath(path))
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".onnx")
    os.close(handle)
    try:
        onnx.save(proto, temporary)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
