"""Operators registered with torch: values, fake kernels, gradients, compile and export."""

import threading

import numpy as np
import opbridge
import pytest
import torch
from opbridge import shapes, torch_ops
from opbridge.my_clip import MyClip
from torch.export import Dim
from torch.library import opcheck

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
DTYPES = [*FLOATS, torch.int32, torch.int64]
SHAPES = [(), (0,), (7,), (3, 0, 5), (33, 5)]


@pytest.fixture
def clip(my_clip):
    return torch.ops.my_namespace.my_clip


@pytest.fixture
def ops(test_ops):
    return torch.ops.test_ops


def values(shape, dtype=torch.float32, seed=0):
    """Numbers in [-5, 5], with NaN and infinities among the floating ones."""
    x = (torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 10 - 5).to(
        dtype
    )
    if dtype.is_floating_point and x.numel() > 3:
        x.view(-1)[:3] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    return x


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


# --- my_clip against torch.clamp


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("low", "high"), [(None, None), (-2, None), (None, 3), (-2, 3), (3, -2)])
def test_clip_equals_clamp(clip, dtype, shape, low, high):
    x = values(shape, dtype)
    bounds = [None if b is None else torch.tensor(b, dtype=dtype) for b in (low, high)]
    expected = x if low is None and high is None else torch.clamp(x, *bounds)
    assert_same(clip(x, *bounds), expected)
    assert_same(clip(x, min=bounds[0], max=None if high is None else bounds[1].reshape(1)), expected)
    if x.dim() > 1:
        assert_same(clip(x.transpose(0, 1), *bounds), expected.transpose(0, 1).contiguous())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_bounds(clip, dtype):
    nan = torch.tensor(float("nan"), dtype=dtype)
    x = values((5,), dtype)
    assert clip(x, nan).isnan().all()
    assert clip(x, None, nan).isnan().all()


@pytest.mark.parametrize(("low", "high"), [(None, None), (-2.0, None), (None, 3.0), (-2.0, 3.0), (3.0, -2.0)])
def test_clip_gradient_equals_clamp(clip, low, high):
    x = values((40,))
    x[5:7] = torch.tensor([-2.0, 3.0])  # exactly on the bounds
    bounds = [None if b is None else torch.tensor(b) for b in (low, high)]
    weight = values((40,), seed=1).nan_to_num(1, 1, 1)
    grads = []
    for function in (clip, lambda x, a, b: x * 1 if a is None and b is None else torch.clamp(x, a, b)):
        leaf = x.clone().requires_grad_()
        (function(leaf, *bounds) * weight).sum().backward()
        grads.append(leaf.grad)
    expected = torch.where(x.isnan() & (low is not None or high is not None), 0, grads[1])
    mask = ~x.isnan() if low is None and high is None else torch.ones_like(x, dtype=torch.bool)
    assert_same(grads[0][mask], expected[mask])


def test_bounds_get_no_gradient(clip):
    x, low = values((5,)), torch.tensor(-1.0, requires_grad=True)
    clip(x, low, None).nansum().backward()
    assert low.grad is None
    x.requires_grad_()
    clip(x, low, None).nansum().backward()
    assert low.grad is None
    assert x.grad is not None


def test_undefined_and_non_contiguous_output_gradients(clip, ops):
    x = values((3, 4), seed=2).nan_to_num(0, 0, 0).requires_grad_()
    clip(x, None, torch.tensor(1.0)).t().sum().backward()  # the incoming gradient is expanded
    assert_same(x.grad, (x <= 1).float())
    z = torch.rand(4, dtype=torch.float64, requires_grad=True)
    root, positive = ops.root(z)
    assert not positive.requires_grad
    (grad,) = torch.autograd.grad(root.sum() * 0 + z.sum(), z)  # root's own gradient is zero
    assert_same(grad, torch.ones_like(z))


@pytest.mark.parametrize("shape", [(), (0,), (3, 4)], ids=str)
def test_gradcheck(clip, ops, shape):
    x = (torch.rand(shape, dtype=torch.float64) * 4 - 2).requires_grad_()
    low, high = torch.tensor(-1.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    away_from_kinks = ((x.abs() - 1).abs() > 1e-3).all()
    assert away_from_kinks or shape == (3, 4)
    x = torch.where((x.abs() - 1).abs() > 1e-3, x, 0.5).detach().requires_grad_()
    for bounds in [(low, high), (low, None), (None, high), (None, None)]:
        assert torch.autograd.gradcheck(clip, (x, *bounds))
    positive = (torch.rand(shape, dtype=torch.float64) + 0.5).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: ops.root(x, scale=2.0)[0], (positive,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64], ids=str)
def test_opcheck_clip(clip, dtype):
    low, high = torch.tensor(-1, dtype=dtype), torch.tensor(1, dtype=dtype)
    for shape in SHAPES:
        x = torch.nan_to_num(values(shape, dtype)).requires_grad_(
            dtype.is_floating_point
        )  # opcheck takes NaN != NaN
        for bounds in [(low, high), (low.reshape(1), None), (None, high), ()]:
            opcheck(clip.default, (x, *bounds))
    x = torch.nan_to_num(values((6, 5), dtype))
    opcheck(clip.default, (x.t()[::2], low, high))
    opcheck(torch.ops.my_namespace.my_clip_grad.default, (x, x, low, high))


def test_opcheck_other_operators(ops):
    x = torch.rand(5, dtype=torch.float64)
    opcheck(ops.affine.default, (x,), {"scale": 0.5, "mode": "square", "weights": [2.0], "picks": [1, 2]})
    opcheck(ops.pairs.default, (torch.rand(4, 3), torch.rand(2, 4, 3)), {"k": 3})
    opcheck(ops.pairs.default, (torch.rand(4, 3), torch.rand(4, 3), torch.tensor([1])), {"k": 0})
    opcheck(ops.ramp.default, (), {"n": 3})
    assert ops.ramp(n=3).tolist() == [0, 1, 2]
    opcheck(ops.stack.default, ([torch.rand(3), torch.rand(3)],))
    opcheck(ops.root.default, (x.requires_grad_(),), {"scale": 2.0})


# --- errors


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda f: f(torch.zeros(3, dtype=torch.uint8)), ValueError, "input 'x' must be of type .* got u8"),
        (lambda f: f(torch.zeros(3), torch.zeros((), dtype=torch.float64)), ValueError, "same type as 'x'"),
        (
            lambda f: f(torch.zeros(3), torch.zeros(2)),
            ValueError,
            r"input 'min' must have shape \[\] or \[1\]",
        ),
        (
            lambda f: f(torch.zeros(3, dtype=torch.complex64)),
            ValueError,
            "no operator takes tensors of torch.complex64",
        ),
        (lambda f: f(torch.zeros(3), mim=torch.zeros(())), RuntimeError, "mim"),
        (lambda f: f(), RuntimeError, "missing value for argument 'x'"),
    ],
)
def test_bad_calls(clip, call, kind, text):
    with pytest.raises(kind, match=text):
        call(clip)
    assert clip(torch.ones(2), max=torch.zeros(())).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda f: f(torch.zeros(3, dtype=torch.uint8)), "input 'x' must be f16 or .* got u8"),
        (
            lambda f: f(torch.zeros(3), torch.zeros((), dtype=torch.float64)),
            "input 'min' must be f32 .* got f64",
        ),
        (
            lambda f: f(torch.zeros(3), torch.zeros(2)),
            r"input 'min' must have shape \[\] or \[1\], got \[2\]",
        ),
        (lambda f: f(torch.zeros(3, dtype=torch.complex64)), "no operator takes tensors of torch.complex64"),
    ],
)
def test_fake_tensors_fail_as_real_ones_do(clip, call, text):
    with torch.device("meta"), pytest.raises(opbridge.InvalidArgumentError, match=text):
        call(clip)


def test_bad_attributes(ops):
    x = torch.zeros(1)
    with pytest.raises(ValueError, match=r"attribute 'scale' must lie in \(0, inf\), got -1"):
        ops.affine(x, scale=-1.0)
    with pytest.raises(ValueError, match="'mode' must be one of"):
        ops.affine(x, scale=1.0, mode="cube")
    with pytest.raises(RuntimeError, match="scale"):
        ops.affine(x)


def test_schemas(clip, ops):
    assert (
        str(clip.default._schema)
        == "my_namespace::my_clip(Tensor x, Tensor? min=None, Tensor? max=None) -> Tensor"
    )
    assert str(ops.affine.default._schema) == (
        'test_ops::affine(Tensor x, *, float scale, int shift=0, bool negate=False, str mode="plain", '
        "float[] weights=[1.], int[] picks=[]) -> Tensor"
    )
    assert str(ops.stack.default._schema) == "test_ops::stack(Tensor[] xs) -> Tensor"
    assert str(ops.pairs.default._schema) == (
        "test_ops::pairs(Tensor a, Tensor b, Tensor? start=None, *, int k) -> (Tensor, Tensor, Tensor)"
    )


def test_an_infinite_default_is_left_to_the_library(my_clip):
    operator = my_clip.operators["my_clip"]
    attribute = opbridge.manifest.Attribute("radius", "float", required=False, default=float("inf"))
    changed = opbridge.manifest.Operator(**operator.__dict__ | {"attributes": [attribute]})
    assert (
        torch_ops.schema(changed)
        == "my_clip(Tensor x, Tensor? min=None, Tensor? max=None, *, float? radius=None) -> Tensor"
    )


# --- registration


def test_loading_again_does_not_register_again(my_clip, clip):
    for torch_wanted in (None, True, False):
        assert opbridge.load(my_clip.path, torch=torch_wanted) is my_clip
    assert torch.ops.my_namespace.my_clip is clip


def test_an_operator_that_something_else_defined_is_refused(run_python):
    run_python(
        """
import sys, torch, opbridge
library = torch.library.Library("my_namespace", "FRAGMENT")
library.define("my_clip(Tensor x) -> Tensor")
try:
    opbridge.load(opbridge.library_path("my_custom_ops"))
except opbridge.LoadError as e:
    assert "torch already has an operator my_namespace::my_clip" in str(e), e
else:
    sys.exit("a taken name must be refused")
"""
    )


def test_calls_through_the_library(my_clip, test_ops):
    x = values((5,), torch.float64).requires_grad_()
    y = my_clip.ops.my_clip(x, -1, max=1)  # Python numbers take x's type
    assert_same(y, torch.clamp(x, -1, 1))
    assert y.requires_grad
    assert_same(test_ops.ops.affine(torch.ones(2), scale=2, shift=1), torch.full((2,), 3.0))
    assert_same(test_ops.ops.stack([torch.ones(2), torch.ones(2)]), torch.full((2,), 2.0))
    with pytest.raises(
        opbridge.InvalidArgumentError, match=r"input 'min' is 0.5, which torch.int32 cannot hold"
    ):
        my_clip.ops.my_clip(torch.zeros(2, dtype=torch.int32), 0.5)
    with pytest.raises(opbridge.ArgumentTypeError, match="did you mean 'min'"):
        my_clip.ops.my_clip(torch.zeros(2), mim=0)


# --- gradients by a Python formula


def test_registered_gradient(ops, test_ops):
    x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    with pytest.raises(
        opbridge.NotSupportedError, match=r"Affine declares no gradient: give one with library.register_"
    ):
        ops.affine(x, scale=3.0).sum().backward()
    with pytest.raises(
        opbridge.ArgumentTypeError, match="has a parameter 'grad_z'; it can have grad_y, x, y, scale"
    ):
        test_ops.register_gradient("affine", lambda grad_z: {})

    def gradient(grad_y, x, scale, mode, negate):
        slope = scale * (2 * x if mode == "square" else torch.ones_like(x))
        return {"x": grad_y * (-slope if negate else slope)}

    try:
        test_ops.register_gradient("affine", gradient)
        for attributes in [{"scale": 2.0}, {"scale": 2.0, "mode": "square", "negate": True}]:
            assert torch.autograd.gradcheck(lambda x, a=attributes: ops.affine(x, **a), (x,))
            assert torch.autograd.gradgradcheck(lambda x, a=attributes: ops.affine(x, **a), (x,))
        test_ops.register_gradient("affine", lambda grad_y: {"z": grad_y})
        with pytest.raises(opbridge.ArgumentTypeError, match="returned one for 'z', which is no input"):
            ops.affine(x, scale=3.0).sum().backward()
    finally:
        test_ops._torch._operators["Affine"].gradient = None


def test_registered_gradient_of_a_variadic_input(ops, test_ops):
    xs = [torch.rand(3, requires_grad=True) for _ in range(3)]
    with pytest.raises(opbridge.NotSupportedError, match="Stack declares no gradient"):
        ops.stack(xs).sum().backward()
    try:
        test_ops.register_gradient("stack", lambda grad_y, xs: {"xs": [grad_y * n for n in range(len(xs))]})
        ops.stack(xs).sum().backward()
        for n, x in enumerate(xs):
            assert_same(x.grad, torch.full((3,), float(n)))
    finally:
        test_ops._torch._operators["Stack"].gradient = None


def test_integer_outputs_have_no_gradient(ops):
    a, b = torch.rand(4, 3, requires_grad=True), torch.rand(4, 3)
    total, idx, _ = ops.pairs(a, b, k=2)
    assert total.requires_grad
    assert not idx.requires_grad


# --- shapes: the manifest's expressions say what the library says


def library_infer(function, inputs, attributes):
    plan = function.node(attributes).plan(
        [None if i is None else (i[1], *opbridge.manifest.DTYPES[i[0]][:2], 1, 0) for i in inputs], (1, 0)
    )
    return [(opbridge.manifest.DTYPE_OF_CODE[code, bits], shape) for shape, code, bits in plan.outputs]


def python_infer(function, inputs, attributes):
    return shapes.infer(
        function.operator, [[] if i is None else [i] for i in inputs], attributes, torch_ops._require
    )


def test_inference_agrees_with_the_library(my_clip, test_ops):
    rng = np.random.default_rng(0)

    def shape():
        return tuple(int(n) for n in rng.choice([0, 1, 2, 3], rng.integers(0, 4)))

    def pick(*choices):
        return choices[rng.integers(len(choices))]

    agreed = refused = 0
    for _ in range(3000):
        lead, n = shape()[:2], pick(1, 2, 3)
        function, inputs, attributes = pick(
            (
                my_clip.ops.my_clip,
                [(pick("f32", "f64", "u8"), shape()), pick(None, (pick("f32", "f64"), shape()))],
                {},
            ),
            (
                test_ops.ops.pairs,
                [
                    ("f32", pick((n, 3), (*lead, n, 3), shape())),
                    ("f32", pick((*lead, n, 3), shape())),
                    pick(None, (pick("i64", "i32"), shape()[:1])),
                ],
                {"k": pick(0, 1, 5)},
            ),
            (test_ops.ops.root, [(pick("f64", "f32"), shape())], {}),
        )
        inputs += [None] * (len(function.operator.inputs) - len(inputs))
        try:
            expected = library_infer(function, inputs, attributes)
        except opbridge.InvalidArgumentError:
            refused += 1
            with pytest.raises(opbridge.InvalidArgumentError):
                python_infer(function, inputs, attributes)
        else:
            agreed += 1
            assert python_infer(function, inputs, attributes) == expected
    assert min(agreed, refused) > 300, (agreed, refused)  # both kinds were really tried


# --- compile and export


def chain(x, low, high):
    y = torch.ops.my_namespace.my_clip(x * 2, low, high)
    return torch.ops.my_namespace.my_clip(y + 0.5, None, high).sum(-1)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_without_graph_breaks(clip, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(chain, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    low, high = torch.tensor(-1.0), torch.tensor(1.0)
    for n in (3, 8, 1, 5):
        x = values((n, 4), seed=n).nan_to_num(0, 1, -1)
        grads = []
        for function in (chain, compiled):
            leaf = x.clone().requires_grad_()
            y = function(leaf, low, high)
            y.sum().backward()
            grads.append((y.detach(), leaf.grad))
        assert_same(grads[1], grads[0])


def test_compile_through_the_library_object(my_clip, test_ops):
    torch._dynamo.reset()
    functions = my_clip.ops.my_clip, test_ops.ops.affine

    def f(x):
        return functions[1](functions[0](x, min=-1.0), scale=2.0, mode="square")

    x = values((6,)).nan_to_num(0)
    assert_same(torch.compile(f, fullgraph=True, backend="aot_eager")(x), f(x))


@pytest.mark.slow
def test_inductor(clip):
    torch._dynamo.reset()
    compiled = torch.compile(chain, fullgraph=True)
    low, high = torch.tensor(-1.0), torch.tensor(1.0)
    x = values((9, 4)).nan_to_num(0, 1, -1)
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    for function, leaf in zip((chain, compiled), leaves, strict=True):
        function(leaf, low, high).sum().backward()
    assert_same(leaves[1].grad, leaves[0].grad)
    torch.testing.assert_close(compiled(x, low, high), chain(x, low, high))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.clip = MyClip(-1.0, 1.0)
        self.upper = MyClip(max_val=0.5)

    def forward(self, x):
        return self.upper(self.clip(x * 3))


class Points(torch.nn.Module):
    def forward(self, a, b):
        return torch.ops.test_ops.pairs(a, b, k=2)


def test_export_with_dynamic_dimensions(test_ops):
    net = Net()
    program = torch.export.export(net, (torch.zeros(4, 5),), dynamic_shapes={"x": {0: Dim("n"), 1: Dim.AUTO}})
    targets = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert targets.count("my_namespace.my_clip.default") == 2
    for shape in [(1, 5), (4, 5), (100, 3)]:
        x = values(shape)
        assert_same(program.module()(x), net(x))

    n, batch = Dim("n"), Dim("batch")
    example = torch.rand(4, 3), torch.rand(2, 4, 3)
    program = torch.export.export(Points(), example, dynamic_shapes={"a": {0: n}, "b": {0: batch, 1: n}})
    shape = program.graph.find_nodes(op="output")[0].args[0][2].meta["val"].shape
    assert all(isinstance(size, torch.SymInt) for size in shape)  # [*B, 2*N+k-1], nothing baked in
    a, b = torch.rand(7, 3), torch.rand(5, 7, 3)
    for actual, expected in zip(program.module()(a, b), Points()(a, b), strict=True):
        assert_same(actual, expected)


def test_export_finds_dimensions_that_must_agree(test_ops):
    example = torch.rand(4, 3), torch.rand(2, 4, 3)
    with pytest.raises(Exception, match=r"values of m .* and n .* must always be equal"):
        torch.export.export(
            Points(), example, dynamic_shapes={"a": {0: Dim("n")}, "b": {0: Dim.STATIC, 1: Dim("m")}}
        )
    program = torch.export.export(
        Points(), example, dynamic_shapes={"a": {0: Dim.AUTO}, "b": {0: Dim.STATIC, 1: Dim.AUTO}}
    )
    with pytest.raises(AssertionError, match="Guard failed"):
        program.module()(torch.rand(4, 3), torch.rand(2, 5, 3))


# --- the module


def test_module(tmp_path):
    net = torch.nn.Sequential(MyClip(-1, 1), MyClip(None, 0.5), MyClip())
    x = values((4, 5))
    assert_same(net(x), torch.clamp(x, -1, 0.5))
    assert net.state_dict() == {}
    assert repr(net[1]) == "MyClip(min_val=None, max_val=0.5)"
    assert_same(net.half()(x.half()), torch.clamp(x.half(), -1, 0.5))
    assert_same(MyClip(-1, 1)(x.double()), torch.clamp(x.double(), -1, 1))
    integers = MyClip(-1, 1, dtype=torch.int64)
    assert integers(torch.tensor([-5, 0, 5])).tolist() == [-1, 0, 1]
    assert integers(torch.tensor([-5.0, 0.5])).tolist() == [-1, 0.5]
    with pytest.raises(
        TypeError, match=r"min_val is torch.float32, x is torch.int64: construct it with dtype=torch.int64"
    ):
        MyClip(-1, 1)(torch.zeros(2, dtype=torch.int64))


def test_module_survives_pickling_into_a_new_process(run_python, tmp_path):
    path = tmp_path / "net.pt"
    torch.save(MyClip(-1, 1), path)
    out = run_python(
        f"import torch; print(torch.load({str(path)!r}, weights_only=False)(torch.tensor([-3.0, "
        "3.0])).tolist())"
    )
    assert out.strip() == "[-1.0, 1.0]"


# --- threads


def test_threads_with_gradients(clip, ops):
    errors = []

    def work(seed):
        try:
            for n in range(50):
                x = values((1 + (seed + n) % 5, 4), seed=seed).nan_to_num(0, 0, 0).requires_grad_()
                y = clip(x, torch.tensor(-1.0), torch.tensor(1.0))
                y.sum().backward()
                assert_same(x.grad, (x.abs() <= 1).float())
                assert_same(ops.affine(torch.ones(2), scale=float(seed + 1)), torch.full((2,), seed + 1.0))
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_torch_thread_setting_reaches_the_library(clip):
    x = values((300_000,))
    before, results = torch.get_num_threads(), []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            results.append(clip(x, torch.tensor(-1.0)))
    finally:
        torch.set_num_threads(before)
    assert_same(results[0], results[1])


def test_nothing_is_printed(run_python, clip):
    code = (
        "import sys, warnings; warnings.simplefilter('error'); sys.stderr = sys.stdout\n"
        "import torch; from opbridge.my_clip import MyClip\n"
        "MyClip(0, 2)(torch.ones(3, requires_grad=True)).sum().backward()"
    )
    assert run_python(code) == ""
