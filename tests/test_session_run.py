"""Sessions that run: every type and shape, all ways to give a model, lifetimes, ONNX Runtime by hand."""

import gc
import itertools
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import opbridge
import pytest
from onnx import helper, numpy_helper

DTYPES = ["float16", "bfloat16", "float32", "float64", "int32", "int64"]
SHAPES = [(), (0,), (1,), (7,), (2, 0, 3), (33, 5)]


def numpy_dtype(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def by_hand(model, path):
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(path)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("given", list(itertools.product([False, True], repeat=2)), ids=str)
def test_values_equal_the_direct_call(my_clip, make_model, dtype, given):
    """Bits and all, whether the session is made by hand or by opbridge; absent in the middle or at the
    end."""
    names = ["x", "min" if given[0] else "", "max" if given[1] else ""]
    while not names[-1]:
        names.pop()
    direct = dtype != "bfloat16"  # ONNX Runtime's Python binding takes no bfloat16 arrays
    model = make_model(inputs=names, dtypes=dtype, shapes={"x": None, "y": None})
    if not direct:
        model = between_casts(model, dtype)
    sessions = by_hand(model, my_clip.path), opbridge.session(model, libraries=[my_clip])
    rng = np.random.default_rng(0)
    for shape, session in itertools.product(SHAPES, sessions):
        x = rng.uniform(-5, 5, shape).astype(numpy_dtype(dtype))
        if dtype.startswith(("float", "bfloat")) and x.size > 2:
            x.reshape(-1)[:2] = np.nan, np.inf
        feed = {"x": x, "min": np.asarray(-2, x.dtype), "max": np.asarray(3, x.dtype)}
        feed = {name: feed[name] for name in names if name}
        expected = my_clip.ops.my_clip(**feed)
        if not direct:
            feed = {name: value.astype(np.float32) for name, value in feed.items()}
        (y,) = session.run(None, feed)
        y = y.astype(x.dtype)
        assert (y.dtype, y.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(y.astype(np.float64), expected.astype(np.float64))


def between_casts(model, dtype):
    """The model with float32 inputs and outputs, cast to and from `dtype`."""
    graph = model.graph
    node = graph.node[0]
    to = onnx.TensorProto.DataType.Value(dtype.upper())
    casts = [helper.make_node("Cast", [i.name], [f"{i.name}_"], to=to) for i in graph.input]
    back = helper.make_node("Cast", ["y_"], ["y"], to=onnx.TensorProto.FLOAT)
    node.input[:] = [f"{name}_" if name else "" for name in node.input]
    node.output[:] = ["y_"]
    nodes = [*casts, node, back]
    for value in [*graph.input, *graph.output]:
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    new = helper.make_graph(nodes, "g", graph.input, graph.output)
    return helper.make_model(new, opset_imports=model.opset_import, ir_version=8)


def test_every_way_to_give_model_and_library(my_clip, my_clip_path, make_model, tmp_path):
    model = make_model()
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    for given in (model, path, str(path), model.SerializeToString()):
        for libraries in (my_clip, my_clip_path, [my_clip_path], [my_clip, my_clip_path]):
            session = opbridge.session(given, libraries=libraries)
            feed = {"x": np.asarray([-3, 3], np.float32), "min": np.float32(-1), "max": np.float32(1)}
            feed = {name: np.asarray(value) for name, value in feed.items()}
            assert session.run(None, feed)[0].tolist() == [-1, 1]


def test_model_with_external_data(my_clip, make_model, tmp_path):
    model = make_model(inputs=("x", "min"))
    model.graph.input.pop()
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(-1, np.float32), "min"))
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    session = opbridge.session(path, libraries=[my_clip])
    assert session.run(None, {"x": np.asarray([-3, 3], np.float32)})[0].tolist() == [-1, 3]


def test_shapes_change_from_run_to_run(my_clip, make_model):
    """What was accepted once says nothing about the next shapes; an initializer serves them all, on every thread."""
    model = make_model(shapes={"x": None, "y": None, "min": None})
    model.graph.input.pop()
    model.graph.initializer.append(numpy_helper.from_array(np.asarray([2], np.float32), "max"))
    session = opbridge.session(model, libraries=[my_clip])

    def run(shape, bound):
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        y = session.run(None, {"x": x, "min": np.full(bound, 1, np.float32)})[0]
        np.testing.assert_array_equal(y, np.clip(x, 1, 2))

    def run_many(thread):
        for i in range(100):
            run([(3,), (2, 2), (0,), (1, 5, 1), (4,)][(thread + i) % 5], [(), (1,)][i % 2])

    for _ in range(2):
        run((3,), (1,))
        with pytest.raises(Exception, match=r"input 'min' must have shape \[\] or \[1\], got \[2\]"):
            run((3,), (2,))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run_many, range(4)))


def test_options_are_used(my_clip, make_model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.register_custom_ops_library(my_clip.path)  # registered by hand, too: harmless
    session = opbridge.session(make_model(), libraries=[my_clip], session_options=options)
    assert session.get_session_options().intra_op_num_threads == 1


def test_domain_without_import_runs(my_clip, make_model):
    session = opbridge.session(make_model(inputs=("x",), imports=False), libraries=[my_clip])
    assert session.run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [1, 1]


def test_sessions_outlive_the_options(my_clip_path, make_model):
    def make():
        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library(my_clip_path)
        return [onnxruntime.InferenceSession(make_model().SerializeToString(), options) for _ in range(2)]

    first, second = make()
    gc.collect()
    feed = {
        "x": np.asarray([-3, 3], np.float32),
        "min": np.asarray(-1, np.float32),
        "max": np.asarray(1, np.float32),
    }
    for session in (first, second, second):
        assert session.run(None, feed)[0].tolist() == [-1, 1]
    del first
    gc.collect()
    assert second.run(None, feed)[0].tolist() == [-1, 1]


def test_a_failing_run_leaves_the_session_usable(my_clip, make_model):
    model = make_model(inputs=("x", "min"), shapes={"min": None})
    session = opbridge.session(model, libraries=[my_clip])
    x = np.asarray([-3, 3], np.float32)
    with pytest.raises(Exception, match=r"my_clip.*n0.*input 'min' must have shape \[\] or \[1\], got \[2\]"):
        session.run(None, {"x": x, "min": np.zeros(2, np.float32)})
    assert session.run(None, {"x": x, "min": np.zeros((), np.float32)})[0].tolist() == [0, 3]


def test_several_outputs_attributes_and_workspace(test_ops, make_model):
    model = make_model(
        op="Pairs",
        domain="test.ops",
        inputs=("a", "b"),
        outputs=("sum", "idx", "twice"),
        dtypes={"a": "float32", "b": "float32", "sum": "float32", "idx": "int32", "twice": "float32"},
        shapes={name: None for name in ("a", "b", "sum", "idx", "twice")},
        attributes={"k": 3},
    )
    session = opbridge.session(model, libraries=[test_ops])
    a, b = np.ones((4, 3), np.float32), np.ones((2, 4, 3), np.float32)
    for actual, expected in zip(
        session.run(None, {"a": a, "b": b}), test_ops.ops.pairs(a, b, k=3), strict=True
    ):
        np.testing.assert_array_equal(actual, expected)
    with pytest.raises(Exception, match=r"Pairs.*n0.*input 'a' must have shape"):
        session.run(None, {"a": a, "b": b[:, :3]})


def test_variadic_input(test_ops, make_model):
    names = ("p", "q", "r")
    session = opbridge.session(
        make_model(op="Stack", domain="test.ops", inputs=names, outputs=("y",)), libraries=[test_ops]
    )
    feed = {name: np.full(3, n, np.float32) for n, name in enumerate(names)}
    assert session.run(None, feed)[0].tolist() == [3, 3, 3]


def test_threads(my_clip, make_model):
    session = opbridge.session(make_model(), libraries=[my_clip])

    def work(seed):
        x = np.random.default_rng(seed).uniform(-5, 5, 200_000).astype(np.float32)
        feed = {"x": x, "min": np.asarray(-1, np.float32), "max": np.asarray(1, np.float32)}
        return all((session.run(None, feed)[0] == np.clip(x, -1, 1)).all() for _ in range(5))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))
