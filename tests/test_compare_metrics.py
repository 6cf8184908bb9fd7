"""How far two tensors are apart: values, indices with ties, rotations, translations. Quick: no torch, no session."""

import numpy as np
import pytest
from opbridge._compare import geometry, metrics
from opbridge._compare.metrics import compare

RNG = np.random.default_rng(0)


def rotation(degrees, axis=(0, 0, 1)):
    axis = np.float64(axis) / np.linalg.norm(axis)
    k = np.cross(np.eye(3), axis)
    angle = np.radians(degrees)
    return np.eye(3) + np.sin(angle) * -k + (1 - np.cos(angle)) * (k @ k)


class TestValues:
    def test_equal(self):
        x = RNG.normal(size=(4, 5)).astype(np.float32)
        d = compare(x, x.copy())
        assert d.equal
        assert (d.max, d.mean, d.relative, d.error) == (0, 0, 0, 0)
        assert d.cosine == pytest.approx(1)

    def test_numbers(self):
        d = compare(np.float32([1, 2, 3.5]), np.float32([1, 2, 3]))
        assert d.max == 0.5
        assert d.mean == pytest.approx(0.5 / 3)
        assert d.relative == pytest.approx(0.5 / np.sqrt(14 / 3))
        assert d.cosine == pytest.approx(15.5 / np.sqrt(14 * 17.25))
        assert not d.equal

    @pytest.mark.parametrize("dtype", metrics.TOLERANCES)
    def test_tolerance_by_type(self, dtype):
        import ml_dtypes

        kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
        expected = np.full(8, 1.0)
        limit = metrics.TOLERANCES[dtype]
        for part, equal in ((0.5, True), (2.5, False)):
            assert compare((expected + part * limit).astype(kind), expected.astype(kind)).equal == equal

    def test_the_coarser_type_decides(self):
        x = np.full(8, 1.0)
        assert compare((x * 1.005).astype(np.float16), x.astype(np.float32)).equal
        assert not compare((x * 1.005).astype(np.float32), x.astype(np.float32)).equal

    def test_own_tolerance(self):
        assert compare(np.float32([1.05]), np.float32([1]), tolerance=0.1).equal

    def test_against_zeros_only_zeros_are_equal(self):
        assert compare(np.zeros(3), np.zeros(3)).equal
        assert not compare(np.float32([1e-30, 0]), np.float32([0, 0])).equal

    def test_shape_and_type(self):
        assert compare(np.zeros((2, 3)), np.zeros(3)).problem == "has shape [2, 3], not [3]"
        assert compare(np.zeros(3, np.int32), np.zeros(3, np.float32)).problem == "is int32, not float32"

    def test_not_finite(self):
        x = np.float32([1, np.nan, np.inf])
        assert compare(x, x.copy()).equal
        assert compare(np.float32([np.nan, np.nan, np.inf]), x).problem == "has 2 NaN of 3 values, expected 1"
        assert "infinite values in other places" in compare(np.float32([1, np.nan, -np.inf]), x).problem

    def test_empty_and_scalar(self):
        assert compare(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)).equal
        assert compare(np.float32(2), np.float32(2)).equal
        assert compare(np.int64(2), np.int64(3)).details["rows"] == 1
        assert compare(np.zeros((0, 3), np.int32), np.zeros((0, 3), np.int32)).equal


class TestRotations:
    @pytest.mark.parametrize("degrees", [1e-4, 0.03, 1, 90, 180])
    def test_angle(self, degrees):
        base = rotation(40, (1, 2, 3))
        d = compare((rotation(degrees, (0, 1, 1)) @ base)[None], base[None])
        assert d.kind == "rotation"
        assert d.error == pytest.approx(degrees, rel=1e-6)
        assert not d.equal  # float64: 1e-5 degrees

    def test_limit(self):
        base = rotation(40).astype(np.float32)
        assert compare((rotation(0.03) @ base).astype(np.float32), base).equal
        assert not compare((rotation(0.1) @ base).astype(np.float32), base).equal

    def test_reflection(self):
        d = compare(np.diag([1.0, 1, -1]), np.eye(3))
        assert d.details["det"] == pytest.approx(-1)
        assert not d.equal

    def test_the_worst_of_many(self):
        expected = np.stack([np.eye(3)] * 3)
        actual = np.stack([np.eye(3), rotation(5), rotation(2)])
        assert compare(actual, expected).error == pytest.approx(5)

    def test_what_is_none(self):
        assert compare(np.ones((3, 3)), np.ones((3, 3))).kind == "value"
        assert compare(np.zeros((0, 3, 3)), np.zeros((0, 3, 3))).kind == "value"


def test_an_absolute_tolerance_beside_the_relative_one():
    """A sigmoid that says no everywhere: one rounding next to 1 is all of it."""
    a, e = np.float32([3e-8, 0, 1.5e-7]), np.float32([3e-8, 0, 3e-8])
    assert not compare(a, e).equal
    assert compare(a, e, atol=1e-6).equal
    assert not compare(a, e, atol=1e-7).equal
    assert not compare(np.float32([np.nan]), np.float32([0]), atol=1).equal


def test_translations_in_millimetres():
    a, e = np.float32([[0, 0, 1.003], [0.004, 0, 1]]), np.float32([[0, 0, 1], [0, 0, 1]])
    assert compare(a, e, kind="translation").details["millimetres"] == pytest.approx(4)
    assert compare(a, e, kind="translation", unit="mm").details["millimetres"] == pytest.approx(0.004)
    assert "mm apart" in str(compare(a, e, kind="translation"))


class TestIndices:
    def test_without_points(self):
        d = compare(np.int32([[0, 1], [2, 3]]), np.int32([[1, 0], [2, 4]]))
        assert not d.equal
        assert d.details == {"entries": 3, "count": 4, "rows": 1, "ties": None}

    GRID = (
        np.stack(np.meshgrid(*[np.arange(3.0)] * 3, indexing="ij"), -1).reshape(1, 27, 3).astype(np.float32)
    )
    CENTRE = np.float32([[[1, 1, 1]]])

    def test_nearest_neighbours_tie(self):
        """The centre of a grid has six neighbours at distance 1."""
        tie = geometry.explain("KNN", 0, [self.GRID, self.CENTRE], {"k": 3})
        expected = np.int32([[[13, 4, 10]]])
        d = compare(np.int32([[[13, 10, 4]]]), expected, geometry=tie)
        assert d.equal
        assert d.details["ties"] == 2
        assert compare(np.int32([[[13, 22, 16]]]), expected, geometry=tie).equal
        assert not compare(np.int32([[[13, 4, 0]]]), expected, geometry=tie).equal  # a corner is farther
        assert not compare(np.int32([[[13, 10, 10]]]), expected, geometry=tie).equal  # twice
        assert not compare(np.int32([[[13, 4, -1]]]), expected, geometry=tie).equal

    def test_three_nearest_has_its_inputs_the_other_way_round(self):
        tie = geometry.explain("ThreeNN", 1, [self.CENTRE, self.GRID], {})
        assert compare(np.int32([[[13, 10, 4]]]), np.int32([[[13, 4, 10]]]), geometry=tie).equal
        assert geometry.explain("ThreeNN", 0, [self.CENTRE, self.GRID], {}) is None

    def test_ball_query_at_its_radius(self):
        points = np.float32([[[0, 0, 0], [0.5, 0, 0], [1, 0, 0], [0, 0.9, 0]]])
        tie = geometry.explain("BallQuery", 0, [points, np.zeros((1, 1, 3), np.float32)], {"radius": 1.0})
        expected = np.int32([[[0, 1, 3, 0]]])
        assert compare(np.int32([[[0, 1, 2, 3]]]), expected, geometry=tie).equal  # 2 lies at the radius
        assert not compare(np.int32([[[0, 1, 0, 0]]]), expected, geometry=tie).equal  # 3 is missing
        assert not compare(np.int32([[[0, 3, 1, 0]]]), expected, geometry=tie).equal  # not ascending
        two = compare(np.int32([[[1, 2]]]), np.int32([[[0, 1]]]), geometry=tie)
        assert not two.equal  # 0 is inside and comes first

    def test_farthest_points_tie(self):
        square = np.float32([[[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]]])
        tie = geometry.explain("FarthestPointSample", 0, [square], {"start": 0})
        expected = np.int32([[0, 3, 1, 2]])
        assert compare(np.int32([[0, 3, 2, 1]]), expected, geometry=tie).equal
        assert not compare(np.int32([[0, 1, 2, 3]]), expected, geometry=tie).equal  # 3 is farther than 1
        assert not compare(np.int32([[1, 2, 0, 3]]), expected, geometry=tie).equal  # the start is given
        assert not compare(np.int32([[0, 3, 2, 9]]), expected, geometry=tie).equal

    def test_other_operators_have_no_ties(self):
        assert geometry.explain("TopK", 1, [self.GRID], {}) is None
