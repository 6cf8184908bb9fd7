"""Votes, poses and rotations: the oracle's cases, poses that are not unique, gradients, and properties."""

import numpy as np
import opbridge
import pytest
import torch
from cases import oracle
from conftest import built


@pytest.fixture(scope="module")
def ops():
    return opbridge.load(built("pvn3d_custom_op"), torch=True).ops


@pytest.fixture(scope="module")
def torch_ops(ops):
    return torch.ops.pvn3d_custom_ops


def oracle_of(operator):
    return [pytest.param(o, case, id=f"{o}-{name}") for o, name, case in oracle() if o == operator]


@pytest.mark.parametrize("stop", ["converged", "upstream"])
@pytest.mark.parametrize(("_operator", "case"), oracle_of("VoteAggregate"))
def test_vote_oracle(ops, _operator, case, stop, request):
    inputs = {k: v[None] for k, v in case["in"].items()}
    bandwidth = case["attr"]["bandwidth"].item()
    variant = "ffb6d" if "ffb6d" in request.node.callspec.id else "pvn3d"
    kps, count, _ = ops.vote_aggregate(**inputs | {"offsets": inputs["offsets"].astype(np.float32)},
                                       bandwidth=bandwidth, variant=variant, stop=stop)  # fmt: skip
    np.testing.assert_array_equal(count[0], case["out"]["count"])
    np.testing.assert_allclose(kps[0], case["out"]["kps"], rtol=0, atol=1e-3 * bandwidth)


@pytest.mark.parametrize(("_operator", "case"), oracle_of("KabschSolver"))
def test_kabsch_oracle(ops, _operator, case):
    rotation, translation, valid = ops.kabsch_solver(**case["in"])
    expected, unique = case["out"], bool(case["out"].get("unique", True))
    invalid = not case["out"].get("valid", True)
    if unique or invalid:
        np.testing.assert_allclose(rotation, expected["rotation"], rtol=0, atol=1e-5)
        size = 1 + np.abs(case["in"]["pred_kps"]).max()
        np.testing.assert_allclose(translation, expected["translation"], rtol=0, atol=1e-5 * size)
        assert (valid == (0 if invalid else 1)).all()
        return
    # One of many: proper, and as good as the oracle's.
    assert valid == 2
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-6)
    assert abs(np.linalg.det(rotation) - 1) < 1e-6
    a, b = (case["in"][name].astype(np.float64) for name in ("template_kps", "pred_kps"))
    residual = np.sqrt(((a @ rotation.T + translation - b) ** 2).sum(1).mean())
    assert residual <= expected["rmsd"] + 1e-6


@pytest.mark.parametrize("stop", ["converged", "upstream"])
@pytest.mark.parametrize(("_operator", "case"), oracle_of("PVN3DPoseSolve"))
def test_pose_oracle(ops, _operator, case, stop):
    i, a, expected = case["in"], case["attr"], case["out"]
    f32 = {k: v.astype(np.float32) for k, v in i.items() if k != "labels"}
    arguments = dict(points=f32["points"][None], labels=i["labels"][None], kp_of=f32["kp_of"][None],
                     ctr_of=f32["ctr_of"][None, None], mesh_kps=f32["mesh_kps"], mesh_ctr=f32["mesh_ctr"])  # fmt: skip
    if a["refine"]:
        arguments["radii"] = a["radii"].astype(np.float32)
    rotation, translation, valid, kps, count = ops.pvn3d_pose_solve(
        **arguments, bandwidth=a["bandwidth"].item(), ctr_filter=bool(a["ctr_filter"]), use_ctr=bool(a["use_ctr"]),
        variant=str(a["variant"]), stop=stop,
    )  # fmt: skip
    np.testing.assert_array_equal(valid[0], expected["valid"])
    np.testing.assert_array_equal(count[0], expected["count"])
    np.testing.assert_allclose(rotation[0], expected["rotation"], atol=1e-5)
    np.testing.assert_allclose(translation[0], expected["translation"], atol=1e-6)
    np.testing.assert_allclose(kps[0], expected["kps"], atol=1e-6)


ROTATIONS = ["EulerToRotation", "AxisAngleToRotation", "QuaternionToRotation"]


@pytest.mark.parametrize(("operator", "case"), [p for name in ROTATIONS for p in oracle_of(name)])
def test_rotation_oracle(ops, operator, case):
    (rows,) = case["in"].values()
    attributes = {k: v.item() for k, v in case["attr"].items()}
    if "extrinsic" in attributes:
        attributes["extrinsic"] = bool(attributes["extrinsic"])
    np.testing.assert_allclose(getattr(ops, operator)(rows, **attributes), case["out"]["rotation"], atol=1e-6)


# --- gradients


def doubles(*shape, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(*shape, dtype=torch.float64, generator=generator)).requires_grad_()


@pytest.mark.parametrize("scale", [1.0, 1e-3, 0.0])
def test_axis_angle_gradient(torch_ops, scale):
    assert torch.autograd.gradcheck(torch_ops.axis_angle_to_rotation, (doubles(5, 3, scale=scale),))


@pytest.mark.parametrize("scalar_first", [True, False])
def test_quaternion_gradient(torch_ops, scalar_first):
    def convert(q):
        return torch_ops.quaternion_to_rotation(q, scalar_first=scalar_first)

    assert torch.autograd.gradcheck(convert, (doubles(5, 4),))


@pytest.mark.parametrize("order", ["xyz", "zxz"])
@pytest.mark.parametrize("extrinsic", [True, False])
def test_euler_gradient(torch_ops, order, extrinsic):
    def convert(angles):
        return torch_ops.euler_to_rotation(angles, order=order, extrinsic=extrinsic)

    assert torch.autograd.gradcheck(convert, (doubles(5, 3),))


def pose(torch_ops, *inputs):
    return torch_ops.kabsch_solver(*inputs)[:2]


def test_kabsch_gradient(torch_ops):
    weights = doubles(2, 7, seed=3).detach().abs().add(0.1).requires_grad_()
    inputs = doubles(2, 7, 3), doubles(2, 7, 3, seed=1), weights
    assert torch.autograd.gradcheck(lambda *x: pose(torch_ops, *x), inputs)


def test_kabsch_gradient_of_inputs_that_serve_all_problems(torch_ops):
    weights = doubles(7, seed=3).detach().abs().add(0.1).requires_grad_()
    inputs = doubles(7, 3), doubles(2, 7, 3, seed=1), weights
    assert torch.autograd.gradcheck(lambda *x: pose(torch_ops, *x), inputs)


@pytest.mark.parametrize("flat", [1.0, 1e-3, 0.0])
def test_kabsch_gradient_near_a_plane(torch_ops, flat):
    template = (doubles(7, 3) * torch.tensor([1, 1, flat])).detach()
    turn = torch_ops.axis_angle_to_rotation(doubles(3, seed=5)).detach()
    pred = (template @ turn.T + doubles(7, 3, scale=0.01, seed=2)).detach()
    assert torch.autograd.gradcheck(
        lambda *x: pose(torch_ops, *x), (template.requires_grad_(), pred.requires_grad_())
    )


@pytest.mark.parametrize(
    "points", [np.zeros((4, 3)), np.outer(np.arange(4.0), [1, 2, 3]), np.full((4, 3), np.nan)]
)
def test_kabsch_gradient_is_finite_where_the_pose_is_not_unique(torch_ops, points):
    template, pred = torch.tensor(points, requires_grad=True), torch.tensor(points + 1, requires_grad=True)
    rotation, translation = pose(torch_ops, template, pred)
    (rotation.sum() + translation.sum()).backward()
    if np.isfinite(points).all():
        assert torch.isfinite(template.grad).all()
        assert torch.isfinite(pred.grad).all()
    else:
        assert (template.grad == 0).all()
        assert (pred.grad == 0).all()


@pytest.mark.parametrize("masked", [False, True])
def test_vote_gradient(torch_ops, masked):
    mask = torch.arange(40)[None] % 3 != 0 if masked else None

    def vote(points, offsets):
        return torch_ops.vote_aggregate(points, offsets, mask, tol=1e-12, max_iter=100000)[0]

    inputs = doubles(1, 40, 3, scale=0.05), doubles(1, 2, 40, 3, scale=0.02, seed=1)
    assert torch.autograd.gradcheck(vote, inputs, eps=1e-7, atol=1e-4)


def test_moving_votes_have_no_gradient(torch_ops):
    offsets = doubles(1, 1, 9, 3)
    kps = torch_ops.vote_aggregate(doubles(1, 9, 3), offsets, variant="ffb6d")[0]
    with pytest.raises(opbridge.NotSupportedError, match="ffb6d has no gradient"):
        kps.sum().backward()


# --- properties


def test_the_pose_turns_with_the_cloud(ops):
    rng = np.random.default_rng(0)
    template, pred = rng.normal(size=(8, 3)), rng.normal(size=(8, 3))
    turn = ops.axis_angle_to_rotation(rng.normal(size=3))
    rotation, translation, _ = ops.kabsch_solver(template, pred)
    turned, moved, _ = ops.kabsch_solver(template, pred @ turn.T)
    np.testing.assert_allclose(turned, turn @ rotation, atol=1e-12)
    np.testing.assert_allclose(moved, turn @ translation, atol=1e-12)


def test_votes_do_not_depend_on_their_order(ops):
    rng = np.random.default_rng(0)
    points = rng.normal(0, 0.03, (1, 300, 3)).astype(np.float32)
    order = rng.permutation(300)
    offsets = np.zeros((1, 1, 300, 3), np.float32)
    kps, count, seed = ops.vote_aggregate(points, offsets)
    kps2, count2, seed2 = ops.vote_aggregate(points[:, order], offsets)
    assert count == count2
    if (count == count2).all() and order[seed2[0, 0]] == seed[0, 0]:
        np.testing.assert_allclose(kps, kps2, atol=1e-6)


def test_one_bad_vote_among_a_hundred_changes_nothing(ops):
    rng = np.random.default_rng(0)
    points = rng.normal(0, 0.01, (1, 100, 3)).astype(np.float32)
    offsets = np.zeros((1, 1, 100, 3), np.float32)
    clean = ops.vote_aggregate(points[:, 1:], offsets[:, :, 1:])
    points[0, 0, 1] = np.nan
    bad = ops.vote_aggregate(points, offsets)
    assert clean[0].tobytes() == bad[0].tobytes()
    assert clean[1] == bad[1]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (dict(bandwidth=0.0), r"'bandwidth' must lie in"),
        (dict(offset_sign=0), r"'offset_sign' must be -1 or 1"),
        (dict(variant="pvnet"), r"'variant' must be one of pvn3d or ffb6d, got 'pvnet'"),
    ],
)
def test_wrong_attributes(ops, attributes, message):
    with pytest.raises(opbridge.InvalidArgumentError, match=message):
        ops.vote_aggregate(np.zeros((1, 4, 3), np.float32), np.zeros((1, 1, 4, 3), np.float32), **attributes)


def test_half_precision_pose(ops):
    rng = np.random.default_rng(0)
    template = rng.normal(0, 0.1, (8, 3))
    turn = ops.axis_angle_to_rotation(np.array([0.3, -1, 0.5]))
    rotation = ops.kabsch_solver(template.astype(np.float16), (template @ turn.T).astype(np.float16))[0]
    angle = np.degrees(np.arccos(np.clip((np.trace(rotation.astype(float).T @ turn) - 1) / 2, -1, 1)))
    assert rotation.dtype == np.float16
    assert angle < 0.2
