"""Compares a PyTorch model with its ONNX file, or two ONNX files, tensor by tensor, and says where they part."""

import contextlib
import inspect
import os
import sys
from dataclasses import dataclass

import numpy as np

from . import library as _library
from ._compare import geometry, metrics, onnx_trace
from ._compare import match as _match
from ._compare.operators import compare_operators
from ._compare.report import NonFinite, Report, Row
from .errors import InvalidArgumentError
from .ort_session import _open


def compare(
    model,
    onnx_model,
    inputs,
    *,
    kwargs=None,
    libraries=None,
    tolerance=None,
    atol=0.0,
    optimize="all",
    units=None,
    references=None,
    library_b=None,
    progress=None,
):
    """A Report on how the ONNX model `onnx_model` computes what `model` does, in ONNX Runtime on the CPU.

    `model`: a torch module (or function), run on the CPU or wherever it is, in eval mode and left as it was; or
    another ONNX model. ONNX models are paths, bytes or ModelProtos; they may be larger than 2 GiB. `inputs`: what the
    module is called with (a tensor or a tuple; `kwargs` besides), or {input name of the ONNX model: array}, or for
    two ONNX models a list in the inputs' order. `libraries`: of the custom operators, paths or Library objects, by
    default all that are loaded. `tolerance`: largest difference allowed, as a part of the root mean square of each
    tensor; by default metrics.TOLERANCES by element type. `atol`: what differs by no more than this is equal, too, for
    outputs that may be next to nothing everywhere, such as a sigmoid's. `optimize`: "none", "basic", "extended" or
    "all", as ONNX Runtime knows them; what it fuses is computed apart while inner tensors are looked at, so the outputs
    are compared without that, too. `units`: {name of an output that is a translation: "m", "cm" or "mm"}; outputs
    called translation are in m.

    Each custom operator is also run alone on the inputs that it received, against itself in the model, against
    torch.ops where its library is registered there, against `references` ({operator: function(*inputs, **attributes)
    of NumPy arrays, or the path of an <op>_ref.py}, or a folder of such files) and against `library_b`, another library
    with the same operators.

    `progress`: print what is being done to stderr; by default if that is a terminal.

    Raises InvalidArgumentError for inputs that do not fit, ModelError for a model that does not fit the libraries,
    and what torch or ONNX Runtime raise. That the two differ is no error: see Report.equal.
    """
    units = dict(units or {})
    wrong = next((u for u in units.values() if u not in ("m", "cm", "mm")), None)
    if wrong is not None:
        raise InvalidArgumentError(f"units are m, cm or mm, got {wrong!r}")
    if libraries is None:
        libraries = list(_library._libraries.values())
    elif isinstance(libraries, (str, os.PathLike, _library.Library)):
        libraries = [libraries]
    say = _Progress(progress)
    with say:
        second = onnx_trace.Model(onnx_model, libraries, optimize)
        if _is_onnx(model):
            first = onnx_trace.Model(model, libraries, optimize)
            inputs = inputs if isinstance(inputs, (dict, list, tuple)) else [inputs]
            feeds = second.feeds(_arrays(inputs))
            say(f"running {first.title}")
            trace = _onnx_side(first, first.feeds(_arrays(inputs)))
        else:
            trace, feeds = _torch_side(model, second, inputs, kwargs, say)
        say(f"running {second.title} with every inner tensor as an output")
        values = second.run(feeds)
        plain = second.run(feeds, every=False)
        say("matching and comparing")
        opened, _ = _open(libraries)
        side = _Side(second, values, feeds, opened, units, atol)
        report = Report(_title(model), second.title, optimize, tolerance)
        _compare_outputs(report, side, trace, values, plain, tolerance)
        pairs = (_match.Models if _is_onnx(model) else _match.Matcher)(second, values, trace).match()
        _compare_inner(report, side, trace, pairs, tolerance)
        _find_origins(report, side, trace)
        report.operators = compare_operators(side, libraries, library_b, references, tolerance, say)
        if not _is_onnx(model):
            _look_at_weights(report, model, side)
        report.finish()
    return report


def _is_onnx(model):
    return isinstance(model, (str, os.PathLike, bytes)) or hasattr(model, "opset_import")


def _title(model):
    if isinstance(model, (str, os.PathLike)):
        return os.fspath(model)
    return (
        model.graph.name or "an ONNX model"
        if hasattr(model, "graph") and hasattr(model, "opset_import")
        else ("an ONNX model" if isinstance(model, bytes) else type(model).__name__)
    )


def _arrays(inputs):
    if isinstance(inputs, dict):
        return {name: _array(value) for name, value in inputs.items()}
    return [_array(value) for value in inputs]


def _array(value):
    if hasattr(value, "detach"):
        from ._compare.torch_trace import to_numpy

        return to_numpy(value)
    return np.asarray(value)


# --- the two sides


def _torch_side(model, onnx_model, inputs, kwargs, say):
    """(torch_trace.Trace, {input of the ONNX model: array})"""
    import torch

    # Not "from .export import ..": that would put the module in the place of the function opbridge.export.
    from . import export
    from ._compare import torch_trace

    exporting = export if inspect.ismodule(export) else sys.modules[export.__module__]

    if not callable(model):
        raise InvalidArgumentError(
            f"compare() takes a torch module, a function or an ONNX model first, got {type(model).__name__}"
        )
    names = [i.name for i in onnx_model.inputs]
    if isinstance(inputs, dict):
        missing = [name for name in names if name not in inputs]
        onnx_model.feeds({n: _array(v) for n, v in inputs.items()})
        args = tuple(torch.as_tensor(inputs[name]) for name in names if name not in missing)
    else:
        args = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    with exporting._evaluating(model):
        call = exporting._Call(model, tuple(args), kwargs or {}, None, None, None)
        if set(call.input_names) >= set(names) and set(names):
            given = dict(zip(call.input_names, call.inputs, strict=True))
            feeds = onnx_model.feeds({name: _array(given[name]) for name in names})
        else:
            feeds = onnx_model.feeds([_array(v) for v in call.inputs])
        say("running the PyTorch model")
        trace = torch_trace.trace(model, call, call.inputs)
    return trace, feeds


@dataclass
class _OnnxRecord:
    """As torch_trace.Record, of an ONNX model's tensor."""

    array: np.ndarray
    names: list
    path: str
    source: str
    parents: list
    value: str


@dataclass
class _OnnxSide:
    records: list
    outputs: list
    where: list
    names: list


def _onnx_side(model, feeds):
    values = model.run(feeds)
    records, known = [], {}
    for name, node in model.producer.items():
        if name in values:
            known[name] = len(records)
            parents = [known[p] for p in node.proto.input if p in known]
            records.append(
                _OnnxRecord(values[name], [node.proto.op_type], node.path or "", node.name, parents, name)
            )
    outputs = [values.get(name) for name in model.outputs]
    return _OnnxSide(records, outputs, [known.get(n) for n in model.outputs], model.outputs)


class _Side:
    """The ONNX model under test with what it computed."""

    def __init__(self, model, values, feeds, libraries, units, atol):
        self.model, self.values, self.feeds = model, values, feeds
        self.operators = {(o.domain, o.name): o for lib in libraries for o in lib.operators.values()}
        self.units, self.atol = units, atol

    def array(self, name):
        """The tensor of that name, or None."""
        for place in (self.values, self.feeds):
            if name in place:
                return place[name]
        return self.model.constant(name) if name else None

    def operator(self, node):
        return self.operators.get((node.proto.domain, node.proto.op_type)) if node is not None else None

    def attributes(self, node):
        """What the operator gets: the node's attributes, and the defaults of the others."""
        operator = self.operator(node)
        defaults = {a.name: a.default for a in operator.attributes if not a.required} if operator else {}
        return defaults | self.own(node)

    def own(self, node):
        """The node's attributes by name, as the operator's signature has them."""
        import onnx

        kinds = {a.name: a.type for a in self.operator(node).attributes} if self.operator(node) else {}
        found = {}
        for a in node.proto.attribute:
            value = onnx.helper.get_attribute_value(a)
            value = value.decode() if isinstance(value, bytes) else value
            found[a.name] = bool(value) if kinds.get(a.name) == "bool" else value
        return found

    def compare(self, name, node, actual, expected, tolerance):
        """A metrics.Difference in the terms that suit the tensor."""
        kind, ties = None, None
        operator = self.operator(node)
        index = list(node.proto.output).index(name) if node is not None and name in node.proto.output else -1
        if operator is not None and 0 <= index < len(operator.outputs):
            declared = operator.outputs[index].name
            kind = declared if declared in ("rotation", "translation") else None
        if name in self.units or (kind is None and name == "translation"):
            kind = "translation"
        if node is not None and not metrics.is_floating(expected) and actual.shape == expected.shape:
            arrays = [self.array(n) for n in node.proto.input]
            ties = geometry.explain(node.proto.op_type, index, arrays, self.attributes(node))
        return metrics.compare(
            actual,
            expected,
            tolerance=tolerance,
            atol=self.atol,
            kind=kind,
            unit=self.units.get(name, "m"),
            geometry=ties,
        )


# --- the parts of compare()


def _compare_outputs(report, side, trace, values, plain, tolerance):
    names = side.model.outputs
    if len(names) != len(trace.outputs):
        report.notes.append(
            f"the first model has {len(trace.outputs)} outputs, the second {len(names)}: the first "
            f"{min(len(names), len(trace.outputs))} are compared"
        )
    for name, expected in zip(names, trace.outputs, strict=False):
        if name not in plain or expected is None:
            report.notes.append(f"output '{name}' is no tensor and not compared")
            continue
        node = side.model.producer.get(name)
        row = _row(side, name, node, plain[name], expected, "output", tolerance)
        report.outputs.append(row)
        apart = side.compare(name, node, plain[name], values[name], tolerance)
        if not apart.equal:
            report.notes.append(
                f"output '{name}' is another with ONNX Runtime's fusions ({apart}) than with its inner tensors "
                "looked at: optimize='none' shows whether an optimisation is to blame"
            )


def _row(side, name, node, actual, expected, by, tolerance, record=None, note="", path=None):
    return Row(
        value=name,
        node=node.name if node else "",
        op=node.op if node else "",
        index=node.index if node else -1,
        module=path if path is not None else "",
        source=record.source if record else "",
        dtype=actual.dtype.name,
        shape=tuple(actual.shape),
        by=by,
        difference=side.compare(name, node, actual, expected, tolerance),
        note=note,
    )


def _compare_inner(report, side, trace, pairs, tolerance):
    rows = {}
    for pair in pairs:
        record = trace.records[pair.record]
        row = _row(
            side,
            pair.value,
            pair.node,
            side.values[pair.value],
            record.array,
            pair.by,
            tolerance,
            record,
            pair.note,
            record.path,
        )
        rows[pair.value] = row
        report.rows.append(row)
    wrong = _mismatched(report.rows, side.model)
    for name in wrong:
        del rows[name]
    report.rows = [r for r in report.rows if r.value in rows]
    count = sum(
        1 for n, node in side.model.producer.items() if n in side.values and node.proto.op_type != "Constant"
    )
    report.unmatched = count - len(rows)
    report.nodes = len(side.model.nodes)
    for row in report.rows:
        row.inherited = _upstream(row, rows, side.model)
    for row in report.outputs:
        inner = rows.get(row.value)
        if inner is not None:
            row.module, row.source = inner.module, inner.source
    declared = {n.by for n in side.model.nodes if n.proto.op_type != "Constant"}
    if report.rows and declared == {None}:
        report.notes.append(
            "the model does not say which module its nodes come from: tensors are matched by operation, shape and order"
        )


def _mismatched(rows, model):
    """Tensors matched by structure that differ, while all that is computed from them agrees: the match was wrong."""
    users = {}
    for node in model.nodes:
        for name in node.proto.input:
            users.setdefault(name, []).extend(n for n in node.proto.output if n)
    by_name, wrong = {r.value: r for r in rows}, set()
    for row in reversed(rows):
        if row.by != "structure" or row.difference.equal:
            continue
        seen, waiting, after = set(), list(users.get(row.value, [])), []
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in by_name and name not in wrong:
                after.append(by_name[name].difference.equal)
            else:
                waiting += users.get(name, [])
        if after and all(after):
            wrong.add(row.value)
    return wrong


def _upstream(row, rows, model):
    """The largest error of the nearest compared tensors that the row's node depends on; None where there are none."""
    seen, waiting, errors = set(), [row.value], []
    while waiting:
        node = model.producer.get(waiting.pop())
        for name in node.proto.input if node is not None else []:
            if name in seen:
                continue
            seen.add(name)
            if name in rows:
                errors.append(rows[name])
            else:
                waiting.append(name)
    if not errors:
        return None
    return not all(r.difference.equal for r in errors)


def _find_origins(report, side, trace):
    from ._compare.match import _reads

    for kind, has in (("NaN", lambda a: np.isnan(a).any()), ("infinite", lambda a: np.isinf(a).any())):

        def present(array, has=has):
            return array is not None and metrics.is_floating(array) and bool(has(array.astype(np.float32)))

        fed = next((name for name, a in side.feeds.items() if present(a)), None)
        if fed is not None:
            report.origins.append(NonFinite(kind, "input", fed, "", "", "", {}))
            continue
        for node in side.model.nodes:
            if node.proto.op_type == "Constant":
                continue
            made = next((n for n in node.proto.output if present(side.values.get(n))), None)
            if made is None:
                continue
            read = {n: side.array(n) for n in _reads(node.proto) if n}
            if any(present(a) for a in read.values()):
                continue
            row = next((r for r in report.rows if r.value == made), None)
            report.origins.append(
                NonFinite(
                    kind,
                    "onnx",
                    node.name,
                    node.op,
                    row.module if row else side.model.nodes[node.index].path or "",
                    row.source if row else "",
                    {n: _range(a) for n, a in read.items() if a is not None},
                )
            )
            break
        for record in trace.records:
            if present(record.array) and not any(present(trace.records[p].array) for p in record.parents):
                where = record.path if hasattr(record, "call") else record.value
                report.origins.append(
                    NonFinite(
                        kind,
                        "first",
                        where,
                        record.names[-1],
                        record.path,
                        record.source,
                        {trace.records[p].names[-1]: _range(trace.records[p].array) for p in record.parents},
                    )
                )
                break


def _range(array):
    if not array.size:
        return "empty"
    return f"{array.dtype.name}{list(array.shape)} in [{float(array.min()):.3g}, {float(array.max()):.3g}]"


def _look_at_weights(report, model, side):
    """Weights of the ONNX model that are not those of the module: the most frequent cause."""
    from ._compare.torch_trace import to_numpy

    state = {n: t for n, t in model.state_dict().items()} if hasattr(model, "state_dict") else {}
    folded = {row.index for row in report.rows if row.note}
    folded |= {
        n.index for n in side.model.nodes if n.target and "norm" in n.target and n.proto.op_type == "Conv"
    }
    changed = {name for index in folded for name in side.model.nodes[index].proto.input}
    for name, tensor in state.items():
        if name not in side.model.initializers or name in changed or not tensor.is_floating_point():
            continue
        array = side.model.constant(name)
        expected = to_numpy(tensor)
        if array.shape != expected.shape or array.dtype != expected.dtype:
            continue
        difference = metrics.compare(array, expected, kind="value")
        if not np.array_equal(array, expected, equal_nan=True):
            report.weights.append((name, difference))


class _Progress:
    def __init__(self, wanted):
        self.on = sys.stderr.isatty() if wanted is None else wanted
        self.erase = self.on and sys.stderr.isatty()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.erase:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def __call__(self, text):
        if self.on:
            with contextlib.suppress(OSError):
                print(
                    f"\r\x1b[K{text} .." if self.erase else f"{text} ..",
                    end="" if self.erase else "\n",
                    file=sys.stderr,
                    flush=True,
                )
