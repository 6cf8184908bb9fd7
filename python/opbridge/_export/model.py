"""What an exported ONNX model gets whichever exporter made it."""

import ast
import re
from collections import Counter

import onnx

from .. import onnx_schema
from ..errors import ExportError

# torch.onnx's notes on a node: the modules it comes from, outermost first and the operation last, and their classes.
ORIGIN = ("pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy")
# The first IR version that goes with an opset; older readers refuse newer ones.
_IR_VERSIONS = ((23, 11), (21, 10), (19, 9), (0, 8))


def finish(model, libraries, exporter, opset_version, input_axes):
    """Brings an onnx.ModelProto into its final form and returns (model, what was rewritten).

    Unused optional outputs are left out; dimensions have the names asked for; each custom node's outputs have a type;
    the domains, library versions and fingerprints are recorded; the IR version is the lowest that fits.
    """
    operators = {(o.domain, o.name): o for library in libraries for o in library.operators.values()}
    rewritten = _blank_unused(model, operators)
    _drop_wrapper(model)
    _name_dimensions(model, input_axes)
    used = {
        (n.domain, n.op_type)
        for graph in _graphs(model)
        for n in graph.node
        if (n.domain, n.op_type) in operators
    }
    versions = {library.domain: library.version for library in libraries}
    domains = sorted({domain for domain, _ in used})
    imports = {o.domain: o.version for o in model.opset_import} | {d: versions[d] for d in domains}
    del model.opset_import[:]
    model.opset_import.extend(onnx.helper.make_opsetid(d, v) for d, v in imports.items())
    model.ir_version = next(ir for opset, ir in _IR_VERSIONS if opset_version >= opset)
    _stamp(model, libraries, exporter, domains, [operators[key] for key in sorted(used)])
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        _require_types(model, operators)
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as e:
        raise ExportError(f"the exported model is not valid ONNX: {e}") from e
    return model, rewritten


def custom_nodes(model, libraries):
    """The nodes of the main graph and its subgraphs that the libraries serve, in order."""
    operators = {(o.domain, o.name) for library in libraries for o in library.operators.values()}
    return [n for graph in _graphs(model) for n in graph.node if (n.domain, n.op_type) in operators]


def _graphs(model):
    """The main graph and every subgraph."""
    waiting = [model.graph]
    while waiting:
        graph = waiting.pop(0)
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                waiting.extend([attribute.g] if attribute.HasField("g") else [])
                waiting.extend(attribute.graphs)


def _blank_unused(model, operators):
    used = {o.name for graph in _graphs(model) for o in graph.output}
    used |= {name for graph in _graphs(model) for node in graph.node for name in node.input}
    rewritten = []
    for graph in _graphs(model):
        dropped = set()
        for node in graph.node:
            operator = operators.get((node.domain, node.op_type))
            if operator is None:
                continue
            names = [
                "" if declared.optional and name not in used else name
                for name, declared in zip(node.output, operator.outputs, strict=False)
            ]
            dropped |= set(node.output) - set(names)
            rewritten += [
                f"output '{declared.name}' of {operator.qualified_name} left out: nothing uses it"
                for before, after, declared in zip(node.output, names, operator.outputs, strict=False)
                if before and not after
            ]
            _set_trimmed(node.output, names)
            _set_trimmed(node.input, list(node.input))
        kept = [v for v in graph.value_info if v.name not in dropped]
        del graph.value_info[:]
        graph.value_info.extend(kept)
    return [f"{count} x {text}" if count > 1 else text for text, count in Counter(rewritten).items()]


def _set_trimmed(field, names):
    """Sets a node's inputs or outputs, without empty names at the end."""
    while names and not names[-1]:
        names.pop()
    del field[:]
    field.extend(names)


def _drop_wrapper(model):
    """Names are those of the user's model, not of the exporter's wrapper (`model`) around it."""
    values = [*model.graph.initializer, *model.graph.input]
    taken = {v.name for v in values} | {
        name for graph in _graphs(model) for n in graph.node for name in n.output
    }

    def name_of(name):
        short = (
            name.removeprefix("model.") if name.startswith("model.") else re.sub(r"^/model(?=/)", "", name)
        )
        return name if short in taken else short

    names = {name: name_of(name) for name in taken}
    for graph in _graphs(model):
        for value in (*graph.initializer, *graph.value_info, *graph.output):
            value.name = names.get(value.name, value.name)
        for node in graph.node:
            node.name = re.sub(r"^/model(?=/)", "", node.name)
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]
            for note in node.metadata_props:
                if note.key in ORIGIN:
                    parts = ast.literal_eval(note.value)  # ['', 'model', 'model.head', 'linear']
                    note.value = str(
                        ["", *(p.removeprefix("model.") for p in parts[2:])]
                        if note.key == ORIGIN[0]
                        else parts[1:]
                    )


def _name_dimensions(model, input_axes):
    """Gives the dimensions the names in `input_axes`, one {axis: name} for each graph input, wherever they appear."""
    names = {}
    for value, axes in zip(model.graph.input, input_axes, strict=True):
        for axis, name in axes.items():
            dim = value.type.tensor_type.shape.dim[axis]
            if not dim.HasField("dim_param"):
                raise ExportError(
                    f"dimension {axis} of '{value.name}' ('{name}') was asked to be dynamic, but the exporter made it "
                    f"always {dim.dim_value}: something in the model depends on that very size"
                )
            names.setdefault(dim.dim_param, name)
    pattern = re.compile(
        r"(?<!\w)(" + "|".join(map(re.escape, sorted(names, key=len, reverse=True))) + r")(?!\w)"
    )
    for graph in _graphs(model):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if names and dim.HasField("dim_param"):
                    dim.dim_param = pattern.sub(lambda match: names[match[1]], dim.dim_param)


def _stamp(model, libraries, exporter, domains, operators):
    entries = {"opbridge.exporter": exporter}
    for library in libraries:
        if library.domain in domains:
            entries[f"opbridge.library.{library.domain}"] = f"{library.name} {library.version}"
    for operator in operators:
        entries[f"opbridge.fingerprint.{operator.qualified_name}"] = operator.fingerprint
    kept = {p.key: p.value for p in model.metadata_props}
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, kept | entries)


def _require_types(model, operators):
    """ONNX Runtime 1.15 to 1.17 need the type of every output of a custom node."""
    for graph in _graphs(model):
        typed = {v.name for v in (*graph.output, *graph.value_info) if v.type.tensor_type.elem_type}
        for node in graph.node:
            if (node.domain, node.op_type) not in operators:
                continue
            missing = [name for name in node.output if name and name not in typed]
            if missing:
                raise ExportError(
                    f"the element type of '{missing[0]}', an output of {node.domain}::{node.op_type} (node "
                    f"'{node.name}'), does not follow from the model: nothing says the type of its inputs"
                )


def cast_where_declared_otherwise(model, libraries):
    """Adds a Cast after each custom node whose output the model takes for another element type than the operator
    gives, as where a replaced operator returned int64 indices. Returns what was rewritten."""
    operators = {(o.domain, o.name): o for library in libraries for o in library.operators.values()}
    rewritten = []
    for graph in _graphs(model):
        types = {v.name: v.type for v in (*graph.input, *graph.output, *graph.value_info)}
        types |= {
            i.name: onnx.helper.make_tensor_type_proto(i.data_type, list(i.dims)) for i in graph.initializer
        }
        nodes = []
        for node in graph.node:
            nodes.append(node)
            operator = operators.get((node.domain, node.op_type))
            if operator is None:
                continue
            given = [
                [onnx_schema.dtype_and_sizes(types[name])] if name in types else []
                for name in list(node.input)[: len(operator.inputs)]
            ]
            given += [[] for _ in operator.inputs[len(given) :]]
            dtypes = onnx_schema.output_dtypes(operator, given)
            for index, (name, dtype) in enumerate(zip(node.output, dtypes, strict=False)):
                declared = types.get(name)
                if not name or declared is None or dtype is None:
                    continue
                wanted = declared.tensor_type.elem_type
                actual = onnx_schema.type_proto(dtype, None).tensor_type.elem_type
                if wanted in (0, actual):
                    continue
                node.output[index] = f"{name}_{dtype}"
                nodes.append(
                    onnx.helper.make_node("Cast", [node.output[index]], [name], f"{name}_cast", to=wanted)
                )
                rewritten.append(
                    f"Cast added after {operator.qualified_name}: the replaced call returns another type"
                )
        del graph.node[:]
        graph.node.extend(nodes)
    return rewritten
