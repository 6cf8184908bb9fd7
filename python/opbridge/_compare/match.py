"""Which tensor of an ONNX model is which tensor of the other side.

In this order, and each pair says by which: "output" and "name" (the model's own), "metadata" (torch.onnx's notes in the
nodes: module and operation), "scope" (TorchScript's node names: the outputs of module calls), "names" (dynamo's value
names, where the notes were removed), and last "structure": operations that fit, with equal shapes, in the same order.
"""

import re
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass

from .metrics import is_floating


@dataclass
class Pair:
    value: str  # the ONNX model's name of the tensor
    node: object  # onnx_trace.Node, None for a graph input that is an output too
    record: int  # position in the other side's records; -1: outputs[position] there
    by: str
    note: str = ""


# ONNX operators that are called otherwise in torch. Besides, equal names fit.
_ALIKE = {
    "Conv": "conv1d conv2d conv3d convolution",
    "ConvTranspose": "conv_transpose1d conv_transpose2d conv_transpose3d convolution",
    "Gemm": "linear addmm",
    "MatMul": "linear matmul mm bmm addmm einsum rmatmul",
    "BatchNormalization": "batch_norm native_batch_norm",
    "LayerNormalization": "layer_norm native_layer_norm",
    "InstanceNormalization": "instance_norm group_norm",
    "Concat": "cat concat concatenate stack hstack vstack",
    "Clip": "clamp clip hardtanh relu6 clamp_min clamp_max",
    "Add": "add radd iadd",
    "Sub": "sub rsub isub subtract",
    "Mul": "mul rmul imul multiply",
    "Div": "div truediv rtruediv rdiv divide floordiv floor_divide",
    "Reshape": "reshape view flatten unsafe_view unflatten",
    "Flatten": "flatten view reshape",
    "Transpose": "permute transpose t swapaxes movedim mT T",
    "Gather": "index_select select embedding index getitem gather_points",
    "GatherElements": "gather take_along_dim",
    "GatherND": "index getitem",
    "Slice": "slice narrow getitem select",
    "Pow": "pow square rpow",
    "MaxPool": "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices",
    "AveragePool": "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool2d",
    "GlobalAveragePool": "adaptive_avg_pool1d adaptive_avg_pool2d mean",
    "GlobalMaxPool": "adaptive_max_pool1d adaptive_max_pool2d amax",
    "Resize": "interpolate upsample_nearest2d upsample_bilinear2d upsample_bicubic2d",
    "Cast": "to _to_copy type float double half int long bool",
    "Where": "where masked_fill",
    "Split": "split chunk split_with_sizes tensor_split unbind",
    "TopK": "topk sort max min",
    "ReduceMean": "mean",
    "ReduceSum": "sum",
    "ReduceMax": "amax max",
    "ReduceMin": "amin min",
    "ReduceProd": "prod",
    "ReduceL2": "norm linalg_vector_norm vector_norm",
    "ReduceLogSumExp": "logsumexp",
    "PRelu": "prelu _prelu_kernel",
    "LogSoftmax": "log_softmax",
}


def plain(name):
    """The name of an operation as both sides can have it: "_Softmax", "softmax" and "softmax_" are one."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])", "_", name).lower()
    if "batch_norm" in name:
        return "batchnorm"
    return name.replace("_", "")


_LINEAR = {"linear", "addmm"}
_ALIKE = {op: {plain(n) for n in names.split()} for op, names in _ALIKE.items()}


def fits(array, other):
    return array.shape == other.shape and is_floating(array) == is_floating(other)


class Matcher:
    """`model`: onnx_trace.Model; `values`: its tensors by name; `trace`: torch_trace.Trace."""

    def __init__(self, model, values, trace):
        self.model, self.values, self.trace = model, values, trace
        self.pairs = {}  # value name -> Pair
        self.taken = set()  # records
        self.users = {}  # value name -> nodes that read it
        for node in model.nodes:
            for name in _reads(node.proto):
                self.users.setdefault(name, []).append(node)
        self.names = [{plain(n) for n in r.names} for r in trace.records]
        self.calls = {}  # scope -> ModuleCall
        self.prefix = self._wrapper()

    def match(self):
        """Pairs in the model's order; each tensor of a node at most once."""
        self._outputs()
        self._groups("metadata")
        self._scopes()
        self._groups("names")
        self._structure()
        self._folded()
        order = {n: k for k, n in enumerate(self.model.producer)}
        return sorted(self.pairs.values(), key=lambda p: order.get(p.value, -1))

    def _wrapper(self):
        """The name under which an exported wrapper holds the model, if the scopes do not begin with its modules."""
        paths = {n.path for n in self.model.nodes if n.by == "metadata" and n.path}
        known = set(self.trace.paths)
        if not paths or paths & known:
            return ""
        heads = {p.split(".")[0] for p in paths}
        if len(heads) == 1 and all(p == next(iter(heads)) or p.split(".", 1)[1] in known for p in paths):
            return next(iter(heads))
        return ""

    def path_of(self, node):
        """The module a node comes from, as the model names it, or None."""
        if node.by == "scope":
            call = self._call(node.scope)
            return call.path if call else None
        if node.path is None or not self.prefix:
            return node.path
        return node.path.removeprefix(self.prefix).removeprefix(".")

    def _pair(self, name, record, by):
        if name in self.pairs or record is None or name not in self.values:
            return False
        if record >= 0 and not fits(self.values[name], self.trace.records[record].array):
            return False
        self.pairs[name] = Pair(name, self.model.producer.get(name), record, by)
        self.taken.add(record)
        return True

    def _outputs(self):
        for name, where in zip(self.model.outputs, self.trace.where, strict=False):
            if name in self.model.producer:
                self._pair(name, where, "output")

    def _leaving(self, nodes):
        """The tensors that `nodes` make for others."""
        inside = {n.index for n in nodes}
        for node in nodes:
            for name in node.proto.output:
                users = self.users.get(name, [])
                if name in self.values and (
                    name in self.model.outputs or any(u.index not in inside for u in users)
                ):
                    yield name

    def _groups(self, by):
        """Nodes that say which operation of which module they are: the k-th there is the k-th that ran."""
        groups = {}
        for node in self.model.nodes:
            if node.by == by and node.group is not None and node.proto.op_type != "Constant":
                groups.setdefault(node.group, []).append(node)
        wanted = {}
        for nodes in groups.values():
            key = (self.path_of(nodes[0]), plain(nodes[0].target))
            wanted.setdefault(key, []).append(nodes)
        ran = {}
        for position, record in enumerate(self.trace.records):
            for name in self.names[position]:
                for path in (record.path, None):
                    operations = ran.setdefault((path, name), {})
                    operations.setdefault(record.operation, []).append(position)
        for (path, target), members in wanted.items():
            operations = list(ran.get((path, target), {}).values())
            if len(operations) != len(members):
                continue  # some were optimised away: structure tells which are left
            for nodes, records in zip(members, operations, strict=True):
                left = list(records)
                for name in self._leaving(nodes):
                    fit = next(
                        (r for r in left if fits(self.values[name], self.trace.records[r].array)), None
                    )
                    if fit is not None and self._pair(name, fit, by):
                        left.remove(fit)

    def _call(self, scope):
        """The module call that a TorchScript scope ("layer1/layer1.0/relu_1") stands for, or None."""
        if scope in self.calls:
            return self.calls[scope]
        whole = next((c for c in self.trace.calls if c.path == ""), None)
        if not scope:
            return whole
        parent_scope, _, part = scope.rpartition("/")
        parent = self._call(parent_scope)
        found = None
        if parent is not None:
            for name, index in _readings(part):
                inside = [
                    c
                    for c in self.trace.calls
                    if c is not parent
                    and parent.first <= c.first
                    and c.last <= parent.last
                    and (c.path == name or c.path.endswith("." + name))
                    and c.path.startswith(parent.path)
                ]
                if inside:
                    path = min((c.path for c in inside), key=len)
                    calls = [c for c in inside if c.path == path]
                    if index >= len(calls):  # the parent's second call goes by the first one's name
                        calls = [c for c in self.trace.calls if c.path == path]
                    found = calls[index] if index < len(calls) else None
                    break
        self.calls[scope] = found
        return found

    def _scopes(self):
        scopes, times = {}, Counter(c.path for c in self.trace.calls)
        for node in self.model.nodes:
            if node.by == "scope":
                parts = node.scope.split("/") if node.scope else []
                for k in range(1, len(parts) + 1):
                    scopes.setdefault("/".join(parts[:k]), []).append(node)
        for scope, nodes in scopes.items():
            call = self._call(scope)
            if call is None:
                continue
            # In the second call of a module its submodules go by the first call's name: no telling what leaves it.
            if times[call.path] > 1 and any(c.path.startswith(call.path + ".") for c in self.trace.calls):
                continue
            leaving = list(self._leaving(nodes))
            records = [r for r in call.outputs if r is not None]
            if len(leaving) > 1 and len(records) == 1:  # the last that fits
                leaving = [n for n in leaving if fits(self.values[n], self.trace.records[records[0]].array)][
                    -1:
                ]
            if len(leaving) == len(records):
                for name, record in zip(leaving, records, strict=True):
                    self._pair(name, record, "scope")

    def _structure(self):
        """The longest sequence of what fits, for what is left."""
        by_shape = {}
        for position, record in enumerate(self.trace.records):
            if position not in self.taken:
                by_shape.setdefault((record.array.shape, is_floating(record.array)), []).append(position)
        after, before = self._bounds()
        ends, last, back = [], [], {}  # patience sorting over (record, value)
        values = [n for n in self._ends() if n in self.values and n not in self.pairs]
        for index, name in enumerate(values):
            array, node = self.values[name], self.model.producer[name]
            if node.proto.op_type == "Constant":
                continue
            candidates = by_shape.get((array.shape, is_floating(array)), [])
            low, high = after.get(name, -1), before.get(name, len(self.trace.records))
            for position in reversed([r for r in candidates if low < r < high and self._alike(node, r)]):
                at = bisect_left(ends, position)
                back[index, position] = last[at - 1] if at else None
                if at == len(ends):
                    ends.append(position)
                    last.append((index, position))
                else:
                    ends[at], last[at] = position, (index, position)
        step = last[-1] if last else None
        while step is not None:
            self._pair(values[step[0]], step[1], "structure")
            step = back[step]

    def _ends(self):
        """Tensors that torch has, too: where several nodes are one torch operation, what they make for others."""
        groups = {}
        for node in self.model.nodes:
            if node.by == "metadata":
                groups.setdefault(node.group, []).append(node)
        leaving = {name for nodes in groups.values() for name in self._leaving(nodes)}
        return [n for n, node in self.model.producer.items() if node.by != "metadata" or n in leaving]

    def _bounds(self):
        """({tensor: the last record that it is computed from}, {tensor: the first that is computed from it}), of those
        that are matched."""
        after, before = {}, {}
        for node in self.model.nodes:
            reads = list(_reads(node.proto))
            low = max((self._record(n, after.get(n, -1)) for n in reads), default=-1)
            after.update(dict.fromkeys(node.proto.output, low))
        for node in reversed(self.model.nodes):
            end = len(self.trace.records)
            high = min((self._record(n, before.get(n, end)) for n in node.proto.output if n), default=end)
            for name in _reads(node.proto):
                before[name] = min(before.get(name, end), high)
        return after, before

    def _record(self, name, otherwise):
        pair = self.pairs.get(name)
        return otherwise if pair is None else pair.record

    def _alike(self, node, position):
        record = self.trace.records[position]
        if node.by is not None and self.path_of(node) is not None:
            if self.path_of(node) != record.path:
                return False
            call = self.calls.get(node.scope)
            if node.by == "scope" and call is not None and call.call != record.call:
                return False
        names = self.names[position]
        if node.target is not None and plain(node.target) in names:
            return True
        if node.by == "metadata":
            return record.custom and node.proto.domain not in ("", "ai.onnx")
        if node.proto.domain not in ("", "ai.onnx"):
            return record.custom or plain(node.proto.op_type) in names
        op = node.proto.op_type
        if op == "MatMul" and names & _LINEAR and self._biased(node):
            return False
        if op == "Add" and names & _LINEAR:
            return any(
                n in self.model.producer and self._biased(self.model.producer[n]) for n in node.proto.input
            )
        return plain(op) in names or bool(_ALIKE.get(op, set()) & names)

    def _biased(self, node):
        """Whether the node is a MatMul that only an Add of a constant follows: a linear layer's first half."""
        users = self.users.get(node.proto.output[0], [])
        return (
            node.proto.op_type == "MatMul"
            and [u.proto.op_type for u in users] == ["Add"]
            and any(n in self.model.initializers for n in users[0].proto.input)
        )

    def _folded(self):
        """A convolution that took in the BatchNorm after it makes what that makes."""
        followers = {}
        for position, record in enumerate(self.trace.records):
            for parent in record.parents:
                followers.setdefault(parent, []).append(position)
        normalised = {
            p.record
            for p in self.pairs.values()
            if p.node is not None and p.node.proto.op_type == "BatchNormalization"
        }
        for pair in self.pairs.values():
            if (
                pair.node is None
                or pair.by == "metadata"
                or pair.node.proto.op_type not in ("Conv", "ConvTranspose", "Gemm")
            ):
                continue
            after = [p for p in followers.get(pair.record, []) if "batchnorm" in self.names[p]]
            users = [u.proto.op_type for u in self.users.get(pair.value, [])]
            if after and after[0] not in normalised and "BatchNormalization" not in users:
                pair.record = after[0]
                pair.note = f"with the BatchNorm '{self.trace.records[after[0]].path}' folded in"


def _readings(part):
    """A scope's last part as (module name, which call): relu_1 is a module of that name or relu's second call."""
    yield part, 0
    match = re.fullmatch(r"(.+)_(\d+)", part)
    if match:
        yield match[1], int(match[2])


def _reads(proto):
    """Names that a node reads, its subgraphs included."""
    yield from proto.input
    for attribute in proto.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for node in graph.node:
                yield from _reads(node)


class Models(Matcher):
    """As Matcher, where the other side is an ONNX model, too: equal names of tensors made by equal operators."""

    def __init__(self, model, values, trace):
        self.model, self.values, self.trace = model, values, trace
        self.pairs, self.taken, self.users, self.calls, self.prefix = {}, set(), {}, {}, ""
        self.names = [{plain(n) for n in r.names} for r in trace.records]

    def match(self):
        self._outputs()
        by_name = {r.value: k for k, r in enumerate(self.trace.records)}
        for name, node in self.model.producer.items():
            other = by_name.get(name)
            if other is not None and self.trace.records[other].names == [node.proto.op_type]:
                self._pair(name, other, "name")
        self._structure()
        order = {n: k for k, n in enumerate(self.model.producer)}
        return sorted(self.pairs.values(), key=lambda p: order.get(p.value, -1))

    def _alike(self, node, position):
        return plain(node.proto.op_type) in self.names[position]
