"""Writes the models, inputs and expected outcomes that worker.py runs under every ONNX Runtime.

A case is a JSON object: name, model (file), feeds and expected (npz files), and either nothing more (it must compute
`expected`), or `error` ("load" or "run", what the message must contain in `texts`). `since` and `until` limit the
runtimes (1.<minor>), `config` is for SessionOptions, `shapes` what the session must say of its outputs' shapes.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import cases

TYPES = {
    "f16": (TensorProto.FLOAT16, np.float16),
    "bf16": (TensorProto.BFLOAT16, np.float32),  # fed as float32 through Cast nodes
    "f32": (TensorProto.FLOAT, np.float32),
    "f64": (TensorProto.DOUBLE, np.float64),
    "i32": (TensorProto.INT32, np.int32),
    "i64": (TensorProto.INT64, np.int64),
}
F32, F64, I32, I64 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64


def value(name, type_, shape=None):
    return helper.make_tensor_value_info(name, type_, shape)


def make_model(
    nodes,
    inputs,
    outputs,
    initializers=(),
    value_info=(),
    functions=(),
    domains=("my_namespace", "opbridge.test"),
):
    graph = helper.make_graph(
        nodes, "g", list(inputs), list(outputs), list(initializers), value_info=list(value_info)
    )
    opsets = [helper.make_opsetid("", 17)] + [helper.make_opsetid(d, 1) for d in domains]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=8)


def clip_node(inputs=("x", "min", "max"), output="y", name="clip"):
    return helper.make_node("my_clip", list(inputs), [output], name=name, domain="my_namespace")


def op_node(op, inputs, outputs, name="node7", **attributes):
    return helper.make_node(op, list(inputs), list(outputs), name=name, domain="opbridge.test", **attributes)


class Cases:
    def __init__(self, folder):
        self.folder = Path(folder)
        self.cases = []
        self.models = {}

    def add(self, name, model, feeds=None, expected=None, **options):
        data = model if isinstance(model, bytes) else model.SerializeToString()
        n = len(self.cases)
        if data not in self.models:
            self.models[data] = f"{n}.onnx"
            (self.folder / f"{n}.onnx").write_bytes(data)
        case = {"name": name, "model": self.models[data], **options}
        for key, arrays in (("feeds", feeds), ("expected", expected)):
            if arrays is not None:
                case[key] = f"{n}.{key}.npz"
                np.savez(self.folder / case[key], **arrays)
        assert name not in {c["name"] for c in self.cases}, name
        self.cases.append(case)

    def fails(self, name, model, when, texts, feeds=None, **options):
        self.add(name, model, feeds if feeds is not None else {}, error=when, texts=texts, **options)


# --------------------------------------------------------------------------------------------------------- my_clip


def clip_graph(dtype, has_min, has_max, min_shape, max_shape, rank):
    """x (and the bounds) -> my_clip -> y, with Casts around bfloat16."""
    onnx_type, _ = TYPES[dtype]
    outer = F32 if dtype == "bf16" else onnx_type
    names = ["x"] + (["min"] if has_min else []) + (["max"] if has_max else [])
    shapes = {"x": [f"d{i}" for i in range(rank)], "min": min_shape, "max": max_shape}
    inputs = [value(n, outer, shapes[n]) for n in names]
    arguments = {"x": "x", "min": "min" if has_min else "", "max": "max" if has_max else ""}
    nodes = []
    if dtype == "bf16":
        for n in names:
            nodes.append(helper.make_node("Cast", [n], [n + "_bf16"], to=onnx_type))
            arguments[n] += "_bf16"
    node_inputs = [arguments["x"], arguments["min"], arguments["max"]]
    while node_inputs[-1] == "":
        node_inputs.pop()
    nodes.append(clip_node(node_inputs, "y_bf16" if dtype == "bf16" else "y"))
    value_info = []
    if dtype == "bf16":
        nodes.append(helper.make_node("Cast", ["y_bf16"], ["y"], to=F32))
        value_info.append(value("y_bf16", onnx_type))
    return make_model(nodes, inputs, [value("y", outer)], value_info=value_info)


def my_clip_cases(c):
    forward, backward = cases.references("my_custom_ops")
    for dtype, (_, numpy_type) in TYPES.items():
        for case in forward.cases:
            feeds = case["inputs"]
            x, low, high = (feeds.get(k) for k in ("x", "min", "max"))
            if x.dtype != numpy_type:
                continue
            model = clip_graph(
                dtype,
                low is not None,
                high is not None,
                None if low is None else low.shape,
                None if high is None else high.shape,
                x.ndim,
            )
            name = case["name"].removesuffix(f"_{x.dtype.name}")
            c.add(f"my_clip {dtype}: {name}", model, feeds, forward.expected(case))
    x, gy = (
        np.array([[-3, -2, 0], [1, 3, np.nan]], np.float32),
        np.arange(1, 7, dtype=np.float32).reshape(2, 3),
    )
    for low, high in ((-2, 1), (None, 1), (-2, None), (None, None)):
        bounds = {k: np.float32(v) for k, v in (("min", low), ("max", high)) if v is not None}
        names = ["gy", "x"] + [k if k in bounds else "" for k in ("min", "max")]
        while names[-1] == "":
            names.pop()
        node = helper.make_node("my_clip_grad", names, ["gx"], name="grad", domain="my_namespace")
        model = make_model(
            [node],
            [value("gy", F32, ["a", "b"]), value("x", F32, ["a", "b"])] + [value(k, F32, []) for k in bounds],
            [value("gx", F32)],
        )
        bounds = {k: np.asarray(v) for k, v in bounds.items()}
        c.add(
            f"my_clip_grad {low} {high}",
            model,
            {"gy": gy, "x": x, **bounds},
            {"gx": backward.compute(dict(grad_y=gy, x=x, **bounds), {})["grad_x"]},
        )

    x = np.linspace(-2, 2, 24, dtype=np.float32).reshape(2, 3, 4)
    bounds = [helper.make_tensor("min", F32, [], [-1.0]), helper.make_tensor("max", F32, [1], [0.5])]
    xs, ys = value("x", F32, ["a", "b", "c"]), value("y", F32)
    expected = np.clip(x, -1, np.float32(0.5))
    c.add("bounds are initializers", make_model([clip_node()], [xs], [ys], bounds), {"x": x}, {"y": expected})
    constants = [helper.make_node("Constant", [], [b.name], value=b) for b in bounds]
    c.add(
        "bounds are Constant nodes",
        make_model([*constants, clip_node()], [xs], [ys]),
        {"x": x},
        {"y": expected},
    )
    folded = [helper.make_node("Constant", [], ["x"], value=helper.make_tensor("x", F32, [3], [-5, 0, 5]))]
    c.add(
        "all inputs constant",
        make_model([*folded, *constants, clip_node()], [], [ys]),
        {},
        {"y": np.array([-1, 0, 0.5], np.float32)},
    )
    middle = make_model(
        [
            helper.make_node("Mul", ["x", "x"], ["xx"]),
            clip_node(["xx", "min", "max"], "c"),
            helper.make_node("Neg", ["c"], ["y"]),
        ],
        [xs],
        [ys],
        bounds,
    )
    c.add("in the middle of a graph", middle, {"x": x}, {"y": -np.clip(x * x, -1, np.float32(0.5))})
    chain = [clip_node(["x", "min", "max"], "c0", "clip0")] + [
        helper.make_node("Add", ["c0", "c0"], ["d"]),
        clip_node(["d", "", "max"], "y", "clip1"),
    ]
    c.add(
        "two of them",
        make_model(chain, [xs], [ys], bounds),
        {"x": x},
        {"y": np.minimum(2 * expected, np.float32(0.5))},
    )
    for shape in ((0,), (0, 4), (2, 0, 3)):
        model = make_model([clip_node()], [value("x", F32, [None] * len(shape))], [ys], bounds)
        c.add(f"empty {shape}", model, {"x": np.zeros(shape, np.float32)}, {"y": np.zeros(shape, np.float32)})

    # If, Loop and a local function.
    def branch(name, node):
        return helper.make_graph([node], name, [], [value(f"y_{name}", F32)])

    choose = helper.make_node(
        "If",
        ["cond"],
        ["y"],
        then_branch=branch("then", clip_node(["x", "min", "max"], "y_then", "inside_then")),
        else_branch=branch("else", clip_node(["x", "", "max"], "y_else", "inside_else")),
    )
    model = make_model([choose], [value("cond", TensorProto.BOOL, []), xs], [ys], bounds)
    c.add("inside If, then", model, {"cond": np.array(True), "x": x}, {"y": expected})
    c.add("inside If, else", model, {"cond": np.array(False), "x": x}, {"y": np.minimum(x, np.float32(0.5))})
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "v"], ["v2"]),
            clip_node(["v2", "min", "max"], "v_out", "inside_loop"),
            helper.make_node("Identity", ["cond_in"], ["cond_out"]),
        ],
        "body",
        [value("i", I64, []), value("cond_in", TensorProto.BOOL, []), value("v", F32, ["a", "b", "c"])],
        [value("cond_out", TensorProto.BOOL, []), value("v_out", F32, ["a", "b", "c"])],
    )
    loop = helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)
    trips = helper.make_tensor("trips", I64, [], [3])
    looped = x
    for _ in range(3):
        looped = np.clip(2 * looped, -1, np.float32(0.5))
    c.add("inside Loop", make_model([loop], [xs], [ys], [*bounds, trips]), {"x": x}, {"y": looped})
    function = helper.make_function(
        "local",
        "twice",
        ["a", "lo", "hi"],
        ["b"],
        [clip_node(["a", "lo", "hi"], "t", "inside_function"), helper.make_node("Add", ["t", "t"], ["b"])],
        [helper.make_opsetid("", 17), helper.make_opsetid("my_namespace", 1)],
    )
    call = helper.make_node("twice", ["x", "min", "max"], ["y"], domain="local")
    c.add(
        "inside a local function",
        make_model([call], [xs], [ys], bounds, functions=[function], domains=("my_namespace", "local")),
        {"x": x},
        {"y": 2 * expected},
    )

    # Wrong models. `node_named`: ONNX Runtime's own words, which must at least name the operator.
    wrong = "my_clip"
    c.fails(
        "float bound of a double",
        make_model([clip_node(["x", "min"])], [value("x", F64, ["n"])], [value("y", F64)], bounds[:1]),
        "load",
        [wrong],
    )
    c.fails(
        "a dtype that it does not take",
        make_model(
            [clip_node(["x"])], [value("x", TensorProto.UINT8, ["n"])], [value("y", TensorProto.UINT8)]
        ),
        "load",
        [wrong],
    )
    c.fails("no input", make_model([clip_node([])], [xs], [ys]), "load", [])
    c.fails(
        "four inputs", make_model([clip_node(["x", "min", "max", "x"])], [xs], [ys], bounds), "load", [wrong]
    )
    c.fails("x is left out", make_model([clip_node(["", "min", "max"])], [xs], [ys], bounds), "load", [])
    c.fails(
        "another domain",
        make_model(
            [helper.make_node("my_clip", ["x"], ["y"], domain="my_names")], [xs], [ys], domains=("my_names",)
        ),
        "load",
        [wrong],
    )
    c.fails(
        "another letter case",
        make_model([helper.make_node("My_Clip", ["x"], ["y"], domain="my_namespace")], [xs], [ys]),
        "load",
        ["My_Clip"],
    )
    c.fails("output of another type", make_model([clip_node(["x"])], [xs], [value("y", F64)]), "load", [])
    two_bounds = make_model([clip_node(["x", "min"], name="clip_it")], [xs, value("min", F32, ["n"])], [ys])
    c.fails(
        "bound of two elements",
        two_bounds,
        "run",
        ["my_namespace::my_clip", "clip_it", "'min'", "[] or [1]", "[2]"],
        {"x": x, "min": np.zeros(2, np.float32)},
    )
    deep = make_model([clip_node(["x"], name="deep")], [value("x", F32, None)], [ys])
    c.fails(
        "17 dimensions",
        deep,
        "run",
        ["my_namespace::my_clip", "deep", "17", "16"],
        {"x": np.zeros([1] * 17, np.float32)},
    )
    c.add("16 dimensions", deep, {"x": np.ones([1] * 16, np.float32)}, {"y": np.ones([1] * 16, np.float32)})
    c.fails(
        "not a tensor",
        make_model([helper.make_node("SequenceConstruct", ["x"], ["s"]), clip_node(["s"])], [xs], [ys]),
        "load",
        [],
    )


# ---------------------------------------------------------------------------------------------------------- shapes


def shape_cases(c):
    """`shapes`: what the session says of output y, from 1.17 on; my_clip's only from 1.24 on where it has bounds."""
    bounds = [helper.make_tensor("min", F32, [], [-1.0]), helper.make_tensor("max", F32, [1], [0.5])]
    x = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
    y = {"y": np.clip(x, -1, np.float32(0.5))}
    for name, shape, found in (
        ("symbols", ["batch", "points"], ["batch", "points"]),
        ("numbers", [2, 3], [2, 3]),
        ("mixed", ["batch", 3], ["batch", 3]),
    ):
        model = make_model([clip_node()], [value("x", F32, shape)], [value("y", F32)], bounds)
        c.add(f"my_clip's shape: {name}", model, {"x": x}, y, shapes={"y": found}, shapes_since=24)
        model = make_model([clip_node(["x"])], [value("x", F32, shape)], [value("y", F32)])
        c.add(
            f"my_clip's shape without bounds: {name}",
            model,
            {"x": x},
            {"y": x},
            shapes={"y": found},
            shapes_since=24,
        )
        model = make_model([clip_node(["x", "", "max"])], [value("x", F32, shape)], [value("y", F32)], bounds)
        c.add(
            f"my_clip's shape, absent middle: {name}",
            model,
            {"x": x},
            {"y": np.minimum(x, np.float32(0.5))},
            shapes={"y": found},
            shapes_since=24,
        )
    # Unknown rank and unnamed dimensions, with something after it that looks at the shape.
    for name, shape in (
        ("unknown rank", None),
        ("unnamed dimensions", [None, None]),
        ("one unnamed dimension", [2, None]),
    ):
        for after, node, expected in (
            ("Transpose", helper.make_node("Transpose", ["c"], ["y"], perm=[1, 0]), y["y"].T),
            ("Concat", helper.make_node("Concat", ["c", "c"], ["y"], axis=0), np.concatenate([y["y"]] * 2)),
            (
                "Concat of itself",
                helper.make_node("Concat", ["c", "x"], ["y"], axis=1),
                np.concatenate([y["y"], x], 1),
            ),
            ("Reshape", helper.make_node("Reshape", ["c", "minus_one"], ["y"]), y["y"].reshape(-1)),
            ("MatMul", helper.make_node("MatMul", ["c", "eye"], ["y"]), y["y"]),
        ):
            extra = [
                helper.make_tensor("minus_one", I64, [1], [-1]),
                helper.make_tensor("eye", F32, [3, 3], np.eye(3, dtype=np.float32).ravel()),
            ]
            model = make_model(
                [clip_node(["x", "min", "max"], "c"), node],
                [value("x", F32, shape)],
                [value("y", F32)],
                [*bounds, *extra],
            )
            c.add(f"{name}, then {after}", model, {"x": x}, {"y": expected})
            # An operator without optional inputs, so that the shape function runs from 1.17 on.
            model = make_model(
                [op_node("Same", ["x"], ["c"]), node], [value("x", F32, shape)], [value("y", F32)], extra
            )
            plain = {
                "Transpose": x.T,
                "Concat": np.concatenate([x, x]),
                "Concat of itself": np.concatenate([x, x], 1),
                "Reshape": x.reshape(-1),
                "MatMul": x,
            }
            c.add(f"{name}, Same, then {after}", model, {"x": x}, {"y": plain[after]})

    xyz = np.zeros((2, 5, 3), np.float32)
    ones = np.ones
    for shape, found in (([2, 5, 3], [2, 7]), (["b", "n", 3], ["b", 7]), (None, [None, 7])):
        model = make_model(
            [op_node("Sampled", ["xyz"], ["y"], npoint=7)], [value("xyz", F32, shape)], [value("y", I32)]
        )
        c.add(
            f"attribute as a dimension {shape}",
            model,
            {"xyz": xyz},
            {"y": ones((2, 7), np.int32)},
            shapes={"y": found},
            shapes_since=17,
        )
    for shape, found, half in (
        ([2, 5, 4], [2, 5, 12], [2, 5, 3]),
        (["a", "b", 4], ["a", "b", 12], ["a", "b", 3]),
        (["a", "b", "n"], ["a", "b", None], ["a", "b", None]),
    ):
        model = make_model(
            [op_node("Shapes", ["x"], ["y", "half"], times=4, cut=4)],
            [value("x", F32, shape)],
            [value("y", F32), value("half", I32)],
        )
        c.add(
            f"arithmetic {shape}",
            model,
            {"x": np.zeros((2, 5, 4), np.float32)},
            {"y": ones((2, 5, 12), np.float32), "half": ones((2, 5, 3), np.int32)},
            shapes={"y": found, "half": half},
            shapes_since=17,
        )
    prefixes = make_model(
        [op_node("Prefixes", ["x", "w"], ["y", "norm"])],
        [value("x", F32, ["a", "b", "n", 3]), value("w", F32, ["n"])],
        [value("y", F32), value("norm", F32)],
    )
    c.add(
        "prefixes",
        prefixes,
        {"x": np.zeros((2, 4, 5, 3), np.float32), "w": np.zeros(5, np.float32)},
        {"y": ones((2, 4, 3), np.float32), "norm": ones((2, 4), np.float32)},
        shapes={"y": ["a", "b", 3], "norm": ["a", "b"]},
        shapes_since=24,
    )
    negative = make_model(
        [op_node("Shapes", ["x"], ["y", "half"], cut=100)],
        [value("x", F32, ["n"])],
        [value("y", F32), value("half", I32)],
    )
    c.fails(
        "a negative dimension",
        negative,
        "run",
        ["opbridge.test::Shapes", "node7", "'y'", "-92"],
        {"x": np.zeros(4, np.float32)},
    )
    c.fails(
        "a negative dimension, known at load",
        make_model(
            [op_node("Shapes", ["x"], ["y", "half"], cut=100)],
            [value("x", F32, [4])],
            [value("y", F32), value("half", I32)],
        ),
        "any",
        ["opbridge.test::Shapes", "-92"],
        {"x": np.zeros(4, np.float32)},
    )
    huge = make_model(
        [op_node("Shapes", ["x"], ["y", "half"], times=10**12)],
        [value("x", F32, ["a", "b", "c", "n"])],
        [value("y", F32), value("half", I32)],
    )
    c.fails(
        "an output that fits no memory",
        huge,
        "run",
        ["opbridge.test::Shapes", "memory"],
        {"x": np.zeros((9, 99, 99, 99), np.float32)},
    )
    for by, text in ((0, "divides by zero"), (-1, "-5")):
        for shape in ([5], ["n"]):
            model = make_model(
                [op_node("Divides", ["x"], ["y"], by=by)], [value("x", F32, shape)], [value("y", F32)]
            )
            c.fails(
                f"N // {by}, {shape}",
                model,
                "any",
                ["opbridge.test::Divides", text],
                {"x": np.zeros(5, np.float32)},
            )
    wrong_rank = make_model(
        [op_node("Sampled", ["xyz"], ["y"], npoint=7)], [value("xyz", F32, ["b", 3])], [value("y", I32)]
    )
    c.fails(
        "another rank than declared",
        wrong_rank,
        "any",
        ["opbridge.test::Sampled (node 'node7'): input 'xyz' must have shape [B,N,3], got [2,3]"],
        {"xyz": np.zeros((2, 3), np.float32)},
    )


# -------------------------------------------------------------------------------------------------------- the rest


def attribute_cases(c):
    x, y = value("x", F32, ["n"]), value("y", F64)
    feeds = {"x": np.zeros(2, np.float32)}

    def model(op="Attributes", raw=(), **attributes):
        node = op_node(op, ["x"], ["y"], **attributes)
        node.attribute.extend(raw)
        return make_model([node], [x], [y])

    f = float(np.float32(0.1))
    c.add("attributes: defaults", model(), feeds, {"y": np.array([3, f, 1, 1, 2, 3, 1, 0.5, 6])})
    third = float(np.float32(0.3))
    c.add(
        "attributes: given",
        model(i=10, f=0.3, b=0, s="high", ints=[-5, 100, 7], floats=[0.25, 1.0, 2.0]),
        feeds,
        {"y": np.array([10, third, 0, 2, 3, 102, 3, 3.25, 4])},
    )
    empty = [
        onnx.AttributeProto(name="ints", type=onnx.AttributeProto.INTS),
        onnx.AttributeProto(name="floats", type=onnx.AttributeProto.FLOATS),
    ]
    c.add("attributes: empty lists", model(raw=empty), feeds, {"y": np.array([3, f, 1, 1, 0, 0, 0, 0, 6])})
    c.add("attributes: required", model("Required", k=-7, r=0.5), feeds, {"y": np.array([-7, 0.5])})

    tensor = helper.make_attribute("i", helper.make_tensor("t", I64, [1], [1]))
    for name, wrong, texts in (
        ("required int missing", model("Required", r=0.5), ["'k'", "required"]),
        ("required float missing", model("Required", k=1), ["'r'", "required"]),
        ("open end", model("Required", k=1, r=0.0), ["'r'", "(0, inf)", "got 0"]),
        ("too large", model(i=11), ["'i'", "[0, 10]", "got 11"]),
        ("too small", model(i=-1), ["'i'", "got -1"]),
        ("far too large", model(i=2**62), ["'i'", str(2**62)]),
        ("float too large", model(f=0.31), ["'f'", "(0, 0.3]", "0.31"]),
        ("NaN", model(f=float("nan")), ["'f'", "nan"]),
        ("infinite", model(f=float("inf")), ["'f'", "inf"]),
        ("bool out of range", model(b=2), ["'b'", "2"]),
        (
            "not in the set",
            model(s="mddle"),
            ["'s'", "low, middle or high", "mddle", "did you mean 'middle'"],
        ),
        ("empty string", model(s=""), ["'s'", "low"]),
        ("element out of range", model(ints=[1, 101]), ["'ints'", "101"]),
        ("float element out of range", model(floats=[1.0, -0.5]), ["'floats'", "-0.5"]),
        ("int as float", model(i=1.0), ["'i'", "int", "float"]),
        ("int as string", model(i="1"), ["'i'", "string"]),
        ("int as ints", model(i=[1, 2]), ["'i'", "int[]"]),
        ("float as int", model(f=1), ["'f'", "got int"]),
        ("string as int", model(s=1), ["'s'", "got int"]),
        ("ints as int", model(ints=1), ["'ints'", "got int"]),
        ("ints as floats", model(ints=[1.0, 2.0]), ["'ints'", "got float[]"]),
        ("floats as ints", model(floats=[1, 2]), ["'floats'", "got int[]"]),
        ("floats as float", model(floats=1.0), ["'floats'", "got float"]),
        ("bool as string", model(b="true"), ["'b'", "got string"]),
        ("int as tensor", model(raw=[tensor]), ["'i'", "tensor"]),
        ("required int as float", model("Required", k=1.0, r=1.0), ["'k'", "got float"]),
    ):
        c.fails(f"attributes: {name}", wrong, "load", ["opbridge.test::", "(node 'node7')", *texts], feeds)
    one = value("y", F32)
    for op, text in (
        ("ReadsWrongKind", "as float, but the signature says int"),
        ("ReadsUnknown", "'kk', which the signature does not have"),
    ):
        c.fails(
            f"a kernel that {op}",
            make_model([op_node(op, ["x"], ["y"])], [x], [one]),
            "run",
            ["opbridge.test::" + op, "node7", text],
            feeds,
        )


def argument_cases(c):
    x = np.array([1, 2, 3], np.float32)
    xs = value("x", F32, ["n"])
    for name, outputs, expected in (
        ("all", ["y", "twice", "count"], {"y": x + 110, "twice": 2 * x, "count": np.array([3], np.int32)}),
        ("the first", ["y"], {"y": x}),
        ("the last left out", ["y", "twice"], {"y": x + 10, "twice": 2 * x}),
        ("the middle left out", ["y", "", "count"], {"y": x + 100, "count": np.array([3], np.int32)}),
        ("both blank", ["y", "", ""], {"y": x}),
    ):
        types = {"y": F32, "twice": F32, "count": I32}
        model = make_model(
            [op_node("Outputs", ["x"], outputs)], [xs], [value(o, types[o]) for o in outputs if o]
        )
        c.add(f"optional outputs: {name}", model, {"x": x}, expected)
    unused = make_model(
        [op_node("Outputs", ["x"], ["y", "twice", "count"])],
        [xs],
        [value("y", F32)],
        value_info=[value("twice", F32), value("count", I32)],
    )
    c.add("optional outputs: named, but read by nobody", unused, {"x": x}, {"y": x + 110})
    m = np.array([[3, 1, 2], [-1, -5, 0]], np.float32)
    two = [value("x", F32, ["b", "n"])]
    c.add(
        "two outputs",
        make_model(
            [op_node("TwoOutputs", ["x"], ["low", "high"])], two, [value("low", F32), value("high", F32)]
        ),
        {"x": m},
        {"low": m.min(1), "high": m.max(1)},
    )
    c.add(
        "two outputs, one read",
        make_model(
            [op_node("TwoOutputs", ["x"], ["low", "high"])],
            two,
            [value("high", F32)],
            value_info=[value("low", F32)],
        ),
        {"x": m},
        {"high": m.max(1)},
    )
    c.fails(
        "a required output is blank",
        make_model([op_node("TwoOutputs", ["x"], ["", "high"])], two, [value("high", F32)]),
        "any",
        ["node7"],
        {"x": m},
    )
    c.fails(
        "a required output is cut",
        make_model([op_node("TwoOutputs", ["x"], ["low"])], two, [value("low", F32)]),
        "any",
        ["node7"],
        {"x": m},
    )
    c.fails(
        "too many outputs",
        make_model([op_node("TwoOutputs", ["x"], ["low", "high", "more"])], two, [value("high", F32)]),
        "load",
        ["node7"],
    )

    for count in (1, 2, 5, 63):
        names = [f"x{i}" for i in range(count)]
        model = make_model(
            [op_node("VariadicSum", ["scale", *names], ["y"])],
            [value("scale", F32, [])] + [value(n, F32, ["n"]) for n in names],
            [value("y", F32)],
        )
        feeds = {n: np.full(3, i, np.float32) for i, n in enumerate(names)}
        c.add(f"variadic, {count}", model, {"scale": np.float32(2), **feeds}, {"y": 2 * sum(feeds.values())})
    names = [f"x{i}" for i in range(70)]
    many = make_model(
        [op_node("VariadicSum", ["scale", *names], ["y"])],
        [value("scale", F32, [])] + [value(n, F32, ["n"]) for n in names],
        [value("y", F32)],
    )
    c.fails(
        "variadic, 70",
        many,
        "load",
        ["opbridge.test::VariadicSum", "node7", "64", "71"],
        {"scale": np.float32(2), **{n: np.zeros(3, np.float32) for n in names}},
    )
    integers = make_model(
        [op_node("VariadicSum", ["s", "a", "b"], ["y"])],
        [value("s", I64, [])] + [value(n, I64, ["n"]) for n in "ab"],
        [value("y", I64)],
    )
    c.add(
        "variadic of int64",
        integers,
        {"s": np.int64(3), "a": np.array([1, 2]), "b": np.array([10, 20])},
        {"y": np.array([33, 66])},
    )
    pair = make_model(
        [op_node("VariadicSum", ["s", "a", "b"], ["y"])],
        [value("s", F32, []), value("a", F32, ["n"]), value("b", F32, ["m"])],
        [value("y", F32)],
    )
    c.fails(
        "variadic of other shapes",
        pair,
        "run",
        ["VariadicSum", "node7", "'xs'", "[4]"],
        {"s": np.float32(1), "a": np.zeros(3, np.float32), "b": np.zeros(4, np.float32)},
    )
    c.fails(
        "variadic, none",
        make_model([op_node("VariadicSum", ["s"], ["y"])], [value("s", F32, [])], [value("y", F32)]),
        "load",
        ["node7"],
    )

    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    for index, numpy_type in ((I32, np.int32), (I64, np.int64)):
        for data, data_type in ((F32, np.float32), (F64, np.float64)):
            model = make_model(
                [op_node("GatherRows", ["x", "idx"], ["y"])],
                [value("x", data, ["n", "c"]), value("idx", index, ["m"])],
                [value("y", data)],
            )
            idx = np.array([3, 0, -1, 4, 2**31 - 1], numpy_type)
            expected = np.stack([rows[3], rows[0], 0 * rows[0], 0 * rows[0], 0 * rows[0]]).astype(data_type)
            c.add(
                f"index type {numpy_type.__name__}, {data_type.__name__}",
                model,
                {"x": rows.astype(data_type), "idx": idx},
                {"y": expected},
                shapes={"y": ["m", "c"]},
                shapes_since=17,
            )
    index8 = make_model(
        [op_node("GatherRows", ["x", "idx"], ["y"])],
        [value("x", F32, ["n", "c"]), value("idx", TensorProto.INT16, ["m"])],
        [value("y", F32)],
    )
    c.fails("index type int16", index8, "load", ["GatherRows"])
    # Index outputs are int32: into a Concat with int64 is a type error at load, as it must be.
    to_concat = make_model(
        [
            op_node("Sampled", ["xyz"], ["idx"], npoint=2),
            helper.make_node("Concat", ["idx", "other"], ["y"], axis=0),
        ],
        [value("xyz", F32, ["b", "n", 3]), value("other", I64, ["b", 2])],
        [value("y", I64)],
    )
    c.fails("int32 index into a Concat with int64", to_concat, "load", [])

    same = [
        (TensorProto.BOOL, np.bool_),
        (TensorProto.INT8, np.int8),
        (TensorProto.INT16, np.int16),
        (I32, np.int32),
        (I64, np.int64),
        (TensorProto.UINT8, np.uint8),
        (TensorProto.UINT16, np.uint16),
        (TensorProto.UINT32, np.uint32),
        (TensorProto.UINT64, np.uint64),
        (TensorProto.FLOAT16, np.float16),
        (F32, np.float32),
        (F64, np.float64),
    ]
    for onnx_type, numpy_type in same:
        data = (
            np.array([0, 1, 1, 0], numpy_type)
            if numpy_type is np.bool_
            else np.array([0, 1, 100, 127], numpy_type)
        )
        model = make_model(
            [op_node("Same", ["x"], ["y"])], [value("x", onnx_type, ["n"])], [value("y", onnx_type)]
        )
        c.add(
            f"Same of {numpy_type.__name__}",
            model,
            {"x": data},
            {"y": data},
            shapes={"y": ["n"]},
            shapes_since=17,
        )
    scalar = make_model([op_node("Same", ["x"], ["y"])], [value("x", F32, [])], [value("y", F32)])
    c.add("Same of a scalar", scalar, {"x": np.float32(3)}, {"y": np.float32(3)})
    strings = make_model(
        [op_node("Same", ["x"], ["y"])],
        [value("x", TensorProto.STRING, ["n"])],
        [value("y", TensorProto.STRING)],
    )
    c.fails("Same of strings", strings, "load", ["Same"])


def service_cases(c):
    x = np.arange(5, dtype=np.float32)
    xs, ys = value("x", F32, ["n"]), value("y", F32)
    for extra in (0, 1, 1000, 50_000_000):
        model = make_model([op_node("Services", ["x"], ["y"], extra=extra)], [xs], [ys])
        c.add(f"workspace, {extra} more", model, {"x": x}, {"y": x[::-1].copy()})
    empty = np.zeros(0, np.float32)
    c.add(
        "workspace of 0 bytes",
        make_model([op_node("Services", ["x"], ["y"])], [xs], [ys]),
        {"x": empty},
        {"y": empty},
    )
    too_much = make_model([op_node("Services", ["x"], ["y"], extra=2**62)], [xs], [ys])
    c.fails(
        "more workspace than there is",
        too_much,
        "run",
        ["opbridge.test::Services (node 'node7'): no memory for 4611686018427387924 bytes of workspace"],
        {"x": x},
    )
    c.add(
        "@host input",
        make_model([op_node("ScaleByHost", ["x", "s"], ["y"])], [xs, value("s", F32, [])], [ys]),
        {"x": x, "s": np.float32(2)},
        {"y": 2 * x},
    )
    c.add("no inputs", make_model([op_node("NoInputs", [], ["y"], n=3)], [], [ys]), {}, {"y": x[:3]})
    c.fails(
        "an operator for CUDA only",
        make_model([op_node("CudaOnly", ["x"], ["y"])], [xs], [ys]),
        "load",
        ["CudaOnly"],
    )

    numbers = np.random.default_rng(5).standard_normal(100_003).astype(np.float32)
    pieces = [np.float32(0)]
    for begin in range(0, len(numbers), 1000):  # np.cumsum adds in order, as the kernel does
        pieces.append(np.cumsum(numbers[begin : begin + 1000], dtype=np.float32)[-1])
    total = np.cumsum(np.array(pieces, np.float32), dtype=np.float32)[-1:]
    for threads in (1, 4):
        model = make_model([op_node("ParallelSum", ["x"], ["y"])], [xs], [ys])
        c.add(
            f"parallel_for, {threads} threads",
            model,
            {"x": numbers},
            {"y": total},
            config={"intra": threads},
            repeat=20,
        )
        for what, text in (
            ("error", "thrown in the piece from 50000"),
            ("std", "thrown by the standard library"),
            ("memory", "out of memory"),
            ("int", "unknown type"),
        ):
            model = make_model([op_node("ParallelSum", ["x"], ["y"], throw_at=50_500, what=what)], [xs], [ys])
            c.fails(
                f"a piece throws {what}, {threads} threads",
                model,
                "run",
                ["opbridge.test::ParallelSum (node 'node7')", text],
                {"x": numbers},
                config={"intra": threads},
            )
    c.add(
        "parallel_for over nothing",
        make_model([op_node("ParallelSum", ["x"], ["y"])], [xs], [ys]),
        {"x": empty},
        {"y": np.zeros(1, np.float32)},
    )

    for parallel in (False, True):
        where = "parallel" if parallel else "sequential"
        for what, text in (
            ("error", "thrown on purpose"),
            ("std", "thrown by the standard library"),
            ("memory", "out of memory"),
            ("int", "an exception of unknown type"),
            ("device", "the device is gone"),
        ):
            nodes = [
                op_node("Throw", ["x"], ["t"], what=what),
                helper.make_node("Neg", ["x"], ["a"]),
                op_node("Throw", ["a"], ["b"], name="fine", what="nothing"),
                helper.make_node("Add", ["t", "b"], ["y"]),
            ]
            c.fails(
                f"a kernel throws {what}, {where}",
                make_model(nodes, [xs], [ys]),
                "run",
                ["opbridge.test::Throw (node 'node7'): " + text],
                {"x": x},
                config={"parallel": parallel},
                repeat=3,
            )
    c.fails(
        "a workspace function throws",
        make_model([op_node("ThrowInWorkspace", ["x"], ["y"])], [xs], [ys]),
        "run",
        ["ThrowInWorkspace", "node7", "unknown type"],
        {"x": x},
    )


def write(folder):
    c = Cases(folder)
    my_clip_cases(c)
    shape_cases(c)
    attribute_cases(c)
    argument_cases(c)
    service_cases(c)
    (Path(folder) / "cases.json").write_text(json.dumps(c.cases))


if __name__ == "__main__":
    import sys

    write(sys.argv[1])
