"""Every tensor that an ONNX model computes in ONNX Runtime, its inner ones fetched as additional outputs.

The model with more outputs exists in memory only. Its weights stay where they are: external ones are read by ONNX
Runtime from their files, and those of a model too large for one message are handed over as they are.
"""

import ast
import os
import re
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto

from .. import ort_session
from ..errors import InvalidArgumentError, ModelError, NotSupportedError, nearest

# What one protobuf message may hold. Larger models are split; the tests make it small.
MESSAGE_LIMIT = 2**31 - 2**20
_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
_LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}


@dataclass
class Node:
    """A node of the main graph. `path`: the module that it comes from, where the exporter says so, and `scope` what
    tells several calls of one module apart; `target`: the torch operation; `group`: nodes with one name are one torch
    operation. `by`: whence that is known: "metadata", "scope", "names" or None."""

    proto: onnx.NodeProto
    index: int
    path: str | None = None
    scope: str | None = None
    target: str | None = None
    group: str | None = None
    by: str | None = None

    @property
    def op(self):
        domain = self.proto.domain
        return self.proto.op_type if domain in ("", "ai.onnx") else f"{domain}::{self.proto.op_type}"

    @property
    def name(self):
        return self.proto.name or f"the node that makes '{next(filter(None, self.proto.output), '')}'"


class Model:
    """An ONNX model to look into. `source`: a path, bytes or a ModelProto."""

    def __init__(self, source, libraries, optimize="all", session_options=None):
        if optimize not in _LEVELS:
            raise InvalidArgumentError(f"optimize is one of {', '.join(_LEVELS)}, got {optimize!r}")
        self.path = os.fspath(source) if isinstance(source, (str, os.PathLike)) else None
        self.libraries = libraries
        self.optimize = optimize
        self.proto = onnx.ModelProto()
        self.proto.CopyFrom(_read(source))
        if self.proto.functions:
            self.proto = onnx.inliner.inline_local_functions(self.proto)
        graph = self.proto.graph
        self.initializers = {i.name: i for i in graph.initializer}
        self.inputs = [i for i in graph.input if i.name not in self.initializers]
        self.outputs = [o.name for o in graph.output]
        self.nodes = [Node(n, k) for k, n in enumerate(graph.node)]
        self.producer = {name: n for n in self.nodes for name in n.proto.output if name}
        for node in self.nodes:
            _describe(node)

    @property
    def title(self):
        return self.path or self.proto.graph.name or "the model"

    def run(self, feeds, every=True):
        """{name: array} of the graph's outputs and, with `every`, of all nodes' that are tensors."""
        inner = []
        if every:
            inner = [
                name
                for name, n in self.producer.items()
                if n.proto.op_type != "Constant" and name not in self.outputs
            ]
        session = self._session(inner)
        tensors = [o.name for o in session.get_outputs() if o.type.startswith("tensor(")]
        import onnxruntime

        values = {name: _ort_value(onnxruntime, array) for name, array in feeds.items()}
        fetched = session.run_with_ort_values(tensors, values)
        return {name: _array(v) for name, v in zip(tensors, fetched, strict=True)}

    def _session(self, inner):
        onnxruntime = ort_session._onnxruntime()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # it warns of shapes that the additional outputs do not have
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, _LEVELS[self.optimize])
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        declared = {v.name: v for v in proto.graph.value_info}
        proto.graph.output.extend(declared.get(name) or onnx.ValueInfoProto(name=name) for name in inner)
        self._hand_over_weights(onnxruntime, proto, options)
        return ort_session.session(proto, self.libraries, session_options=options)

    def _hand_over_weights(self, onnxruntime, proto, options):
        if any(i.data_location == TensorProto.EXTERNAL for i in proto.graph.initializer):
            folder = os.path.dirname(os.path.abspath(self.path or "."))
            options.add_session_config_entry(_EXTERNAL_FOLDER, folder)
        size = sum(len(i.raw_data) for i in proto.graph.initializer)
        if size <= MESSAGE_LIMIT:
            return
        if not hasattr(options, "add_external_initializers"):
            raise NotSupportedError(
                f"'{self.title}' has {size / 2**30:.1f} GiB of weights inside: this needs a newer ONNX Runtime, "
                "or save it with its weights outside (onnx.save(.., save_as_external_data=True))"
            )
        names, values = [], []
        for initializer in proto.graph.initializer:
            if len(initializer.raw_data) < 1024:
                continue
            array = onnx.numpy_helper.to_array(initializer)
            names.append(initializer.name)
            values.append(_ort_value(onnxruntime, array))
            initializer.ClearField("raw_data")
            initializer.data_location = TensorProto.EXTERNAL
            initializer.external_data.add(key="location", value="in memory")
        options.add_external_initializers(names, values)
        self._kept = values  # the session reads them while it exists

    def constants(self):
        """{name: array} of initializers and Constant nodes that are at hand without reading a file of weights."""
        found = {}
        for name, initializer in self.initializers.items():
            if initializer.data_location != TensorProto.EXTERNAL:
                found[name] = initializer
        for node in self.nodes:
            if node.proto.op_type == "Constant":
                found[node.proto.output[0]] = node.proto
        return found

    def constant(self, name):
        """The array of an initializer or Constant node, or None."""
        if name in self.initializers:
            tensor = self.initializers[name]
            if tensor.data_location == TensorProto.EXTERNAL:
                loaded = onnx.TensorProto()
                loaded.CopyFrom(tensor)
                onnx.external_data_helper.load_external_data_for_tensor(
                    loaded, os.path.dirname(os.path.abspath(self.path or "."))
                )
                tensor = loaded
            return onnx.numpy_helper.to_array(tensor)
        node = self.producer.get(name)
        if node is None or node.proto.op_type != "Constant":
            return None
        attribute = node.proto.attribute[0]
        value = onnx.helper.get_attribute_value(attribute)
        if attribute.name in ("value", "sparse_value"):
            return onnx.numpy_helper.to_array(value) if attribute.name == "value" else None
        dtype = np.float32 if attribute.name.startswith("value_float") else np.int64
        return None if "string" in attribute.name else np.asarray(value, dtype)

    def feeds(self, given, what="the model"):
        """{input name: array} of `given`: a dict by name, or a list in the inputs' order."""
        names = [i.name for i in self.inputs]
        if not isinstance(given, dict):
            if len(given) != len(names):
                raise InvalidArgumentError(
                    f"{len(given)} inputs given, '{self.title}' has {len(names)} ({', '.join(names) or 'none'}): give "
                    "inputs={name: array}, with the names that the model kept"
                )
            given = dict(zip(names, given, strict=True))
        unknown = [name for name in given if name not in names]
        if unknown:
            raise InvalidArgumentError(
                f"'{self.title}' has no input '{unknown[0]}'{nearest(unknown[0], names)}; it has {', '.join(names)}"
            )
        missing = [name for name in names if name not in given]
        if missing:
            raise InvalidArgumentError(
                f"no value for input '{missing[0]}' of '{self.title}': give inputs={{name: array}}"
            )
        feeds = {}
        for value in self.inputs:
            array = (
                np.ascontiguousarray(given[value.name])
                if np.ndim(given[value.name])
                else np.asarray(given[value.name])
            )
            wanted = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            if array.dtype != wanted:
                raise InvalidArgumentError(
                    f"input '{value.name}' of '{self.title}' is {wanted}, got {array.dtype}: convert it with "
                    f".astype({wanted.name!r}), or in torch with .to(torch.{wanted.name})"
                )
            feeds[value.name] = array
        return feeds


def _read(source):
    try:
        return ort_session._proto(source)
    except ModelError:
        raise
    except Exception as e:
        raise ModelError(
            f"'{source if not isinstance(source, bytes) else 'bytes'}' is no ONNX model: {e}"
        ) from e


def _ort_value(onnxruntime, array):
    if array.dtype == ml_dtypes.bfloat16:
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
            array.view(np.uint16), TensorProto.BFLOAT16
        )
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _array(value):
    if value.element_type() == TensorProto.BFLOAT16:
        import torch  # NumPy has no such type to go through

        return torch.from_dlpack(value._ortvalue).view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy()
    return np.array(value.numpy(), copy=True)


# --- what exporters say about a node


def _describe(node):
    """torch.onnx's own notes where it wrote them, else what the names tell."""
    notes = {p.key: p.value for p in node.proto.metadata_props}
    scopes = _list(notes.get("pkg.torch.onnx.name_scopes"))
    classes = _list(notes.get("pkg.torch.onnx.class_hierarchy"))
    if scopes and classes:
        path = re.sub(r"@\d+", "", scopes[-2]) if len(scopes) > 1 else ""
        node.path, node.group = path, scopes[-1]
        node.target = _target(classes[-1])
        node.scope, node.by = path, "metadata"
        return
    name = node.proto.name
    if name.startswith("/"):  # /layer1/layer1.0/conv/Conv
        node.scope, node.by = name.rpartition("/")[0].strip("/"), "scope"
        return
    output = next(filter(None, node.proto.output), "")
    if name.startswith("node_") and not re.fullmatch(r"val_\d+", output):  # node_conv2d_1 makes conv2d_1
        node.target, node.group, node.by = re.sub(r"_\d+(__\d+)?$", "", name[5:]), name[5:], "names"


def _list(text):
    try:
        value = ast.literal_eval(text) if text else []
    except (SyntaxError, ValueError):
        return []
    return value if isinstance(value, list) else []


def _target(text):
    """'addmm' of 'aten.addmm.default', 'my_clip' of 'my_namespace.my_clip.default'."""
    parts = text.split(".")
    return parts[-2] if len(parts) > 2 else parts[-1]
