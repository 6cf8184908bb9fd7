"""What must hold whatever the numbers are: turning a cloud turns the answer, and the order of points does not matter.

That batches equal their parts, threads change no bit, and nothing depends on what was in memory is tested on every
case, in test_ops_reference.py and test_cases_cpp.py. A quarter turn about z changes no squared distance by a bit, so
indices must stay exactly as they are.
"""

import numpy as np
import opbridge
import pytest
from conftest import built

QUARTER = np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1]], np.float32)
SEEDS = range(3)
each_seed = pytest.mark.parametrize("seed", SEEDS)


@pytest.fixture(scope="module")
def ops():
    return opbridge.load(built("pvn3d_custom_op"), torch=False).ops


def cloud(rng, n, b=2):
    return rng.normal(0, 0.1, (b, n, 3)).astype(np.float32)


def turn(x):
    return np.ascontiguousarray(x @ QUARTER.T)


def random_turn(ops, rng):
    return ops.quaternion_to_rotation(rng.normal(size=4))


# Operators that take clouds and give indices into them: (xyz, others) -> outputs by name.
def fps(ops, xyz, _):
    return {"idx": ops.farthest_point_sample(xyz, npoint=90, min_sq_norm=1e-3)}


def ball(ops, xyz, centres):
    idx, count = ops.ball_query(xyz, centres, radius=0.08, nsample=600)
    return {"idx": idx, "count": count}


def knn(ops, xyz, query):
    idx, dist = ops.knn(xyz, query, k=12)
    return {"idx": idx, "dist": dist}


def three_nn(ops, xyz, unknown):
    dist, idx = ops.three_nn(unknown, xyz)
    return {"idx": idx, "dist": dist}


@each_seed
@pytest.mark.parametrize("search", [fps, ball, knn, three_nn])
def test_neighbours_turn_with_the_cloud(ops, search, seed):
    rng = np.random.default_rng(seed)
    xyz, others = cloud(rng, 600), cloud(rng, 70)
    before, after = search(ops, xyz, others), search(ops, turn(xyz), turn(others))
    for name in before:
        assert before[name].tobytes() == after[name].tobytes(), name


@each_seed
@pytest.mark.parametrize("search", [knn, three_nn])
def test_neighbours_do_not_depend_on_the_order(ops, search, seed):
    rng = np.random.default_rng(seed)
    xyz, others, order = cloud(rng, 600), cloud(rng, 70), rng.permutation(600)
    before, after = search(ops, xyz, others), search(ops, xyz[:, order], others)
    np.testing.assert_array_equal(before["idx"], order[after["idx"]])
    np.testing.assert_array_equal(before["dist"], after["dist"])


@each_seed
def test_hits_do_not_depend_on_the_order(ops, seed):
    rng = np.random.default_rng(seed)
    xyz, others, order = cloud(rng, 600), cloud(rng, 70), rng.permutation(600)
    before, after = ball(ops, xyz, others), ball(ops, xyz[:, order], others)
    np.testing.assert_array_equal(before["count"], after["count"])
    for one, other, n in zip(
        *(x.reshape(140, -1) for x in (before["idx"], after["idx"], before["count"])), strict=True
    ):
        assert set(one[: n[0]]) == set(order[other[: n[0]]])
    assert before["count"].max() > 20


@each_seed
def test_samples_do_not_depend_on_the_order(ops, seed):
    rng = np.random.default_rng(seed)
    xyz, order = cloud(rng, 600), rng.permutation(600)
    before = ops.farthest_point_sample(xyz, npoint=90, start=int(order[17]))
    after = ops.farthest_point_sample(xyz[:, order], npoint=90, start=17)
    np.testing.assert_array_equal(before, order[after])


@each_seed
def test_features_move_with_their_points(ops, seed):
    rng = np.random.default_rng(seed)
    features, order = rng.normal(size=(2, 6, 50)).astype(np.float32), rng.permutation(50)
    where = np.argsort(order)  # of point i among the reordered ones
    idx, weight = rng.integers(0, 50, (2, 40, 3)), rng.random((2, 40, 3)).astype(np.float32)
    mixed = np.ascontiguousarray(features[:, ::-1])  # channels take no part in each other's results
    for op, arguments in (
        (ops.group_points, ()),
        (ops.three_interpolate, (weight,)),
        (lambda f, i: ops.gather_points(f, i[..., 0]), ()),
    ):
        out = op(features, idx, *arguments)
        np.testing.assert_array_equal(op(features[:, :, order], where[idx], *arguments), out)
        np.testing.assert_array_equal(op(mixed, idx, *arguments), out[:, ::-1])


@each_seed
def test_lengths_are_one_whichever_way_they_point(ops, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, 3))
    r = random_turn(ops, rng)
    y = ops.l2_normalize(x)
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), 1, atol=1e-15)
    np.testing.assert_allclose(ops.l2_normalize(x @ r.T), y @ r.T, atol=1e-15)
    order = rng.permutation(40)
    assert ops.l2_normalize(x[order]).tobytes() == y[order].tobytes()


@each_seed
def test_votes_turn_with_the_cloud(ops, seed):
    rng = np.random.default_rng(seed)
    points, offsets = cloud(rng, 300), rng.normal(0, 0.02, (2, 3, 300, 3)).astype(np.float32)
    kps, count, winner = ops.vote_aggregate(points, offsets, bandwidth=0.05)
    kps2, count2, winner2 = ops.vote_aggregate(turn(points), turn(offsets), bandwidth=0.05)
    np.testing.assert_array_equal(count, count2)
    np.testing.assert_array_equal(winner, winner2)
    np.testing.assert_allclose(turn(kps), kps2, atol=1e-7)


@each_seed
def test_a_pose_does_not_depend_on_the_order(ops, seed):
    rng = np.random.default_rng(seed)
    a, b, w, order = rng.normal(size=(9, 3)), rng.normal(size=(9, 3)), rng.random(9), rng.permutation(9)
    for one, other in zip(
        ops.kabsch_solver(a, b, w), ops.kabsch_solver(a[order], b[order], w[order]), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-13)


@each_seed
def test_poses_turn_with_the_frame(ops, seed):
    rng = np.random.default_rng(seed)
    n, k, m = 300, 5, 2
    mesh = rng.uniform(-0.08, 0.08, (m, k, 3)).astype(np.float32)
    labels = rng.integers(0, m + 1, (1, n)).astype(np.int32)
    centres = np.float32([[0, 0, 1], [0.4, 0.1, 0.9]])
    of_point = np.maximum(labels[0] - 1, 0)
    points = centres[of_point][None] + rng.uniform(-0.05, 0.05, (1, n, 3)).astype(np.float32)
    ctr_of = (points - centres[of_point])[:, None]
    kp_of = points[:, None] - (mesh + centres[:, None])[of_point].transpose(1, 0, 2)[None]
    ctr_of, kp_of = (x + rng.normal(0, 0.004, x.shape).astype(np.float32) for x in (ctr_of, kp_of))

    def solve(points, kp_of, ctr_of):
        return ops.pvn3d_pose_solve(points, labels, kp_of, ctr_of, mesh, np.zeros((m, 3), np.float32))

    rotation, translation, valid, kps, count = solve(points, kp_of, ctr_of)
    turned = solve(turn(points), turn(kp_of), turn(ctr_of))
    assert (valid == 1).all()
    np.testing.assert_array_equal(count, turned[4])
    np.testing.assert_allclose(QUARTER @ rotation, turned[0], atol=2e-5)
    np.testing.assert_allclose(turn(translation), turned[1], atol=2e-6)
    np.testing.assert_allclose(turn(kps), turned[3], atol=1e-6)
    order = rng.permutation(n)
    labels = labels[:, order]
    again = solve(points[:, order], kp_of[:, :, order], ctr_of[:, :, order])
    np.testing.assert_array_equal(count, again[4])
    np.testing.assert_allclose(rotation, again[0], atol=2e-3)  # another vote of equals may win


@each_seed
def test_rotations_are_a_group(ops, seed):
    rng = np.random.default_rng(seed)
    r, v, angles = random_turn(ops, rng), rng.normal(size=3), rng.normal(size=3)
    # The same turn seen from a turned frame.
    np.testing.assert_allclose(
        ops.axis_angle_to_rotation(r @ v), r @ ops.axis_angle_to_rotation(v) @ r.T, atol=1e-14
    )
    np.testing.assert_allclose(
        ops.axis_angle_to_rotation(-v), ops.axis_angle_to_rotation(v).T, atol=1e-15
    )  # its inverse
    half = np.linalg.norm(v) / 2
    q = np.r_[np.cos(half), np.sin(half) * v / np.linalg.norm(v)]
    np.testing.assert_allclose(ops.quaternion_to_rotation(q), ops.axis_angle_to_rotation(v), atol=1e-14)
    x, y, z = (ops.axis_angle_to_rotation(angle * e) for angle, e in zip(angles, np.eye(3), strict=True))
    np.testing.assert_allclose(ops.euler_to_rotation(angles), z @ y @ x, atol=1e-14)
