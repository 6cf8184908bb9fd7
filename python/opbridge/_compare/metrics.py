"""How far two tensors are apart, in the terms that suit what they hold.

A tensor is a value, an index, a rotation or a translation. `TOLERANCES` says what counts as equal; cli/compare.cpp uses
the same numbers, which a test holds together.
"""

from dataclasses import asdict, dataclass, field

import numpy as np

# Largest difference allowed, as a part of the root mean square of the expected tensor's finite elements.
TOLERANCES = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 1e-3, "float64": 1e-7}
# Largest angle between two rotations [degrees].
ROTATION_TOLERANCES = {"float16": 0.5, "bfloat16": 3.0, "float32": 0.05, "float64": 1e-5}
# Distances of two chosen points that count as a tie, as a part of the larger one.
TIE_TOLERANCES = {"float16": 5e-3, "bfloat16": 4e-2, "float32": 1e-5, "float64": 1e-12}
_UNITS = {"m": 1e3, "cm": 10.0, "mm": 1.0}  # in mm


@dataclass
class Difference:
    """`kind`: value, index, rotation or translation. `limit` is what `error`, the number that decides, may be.

    value: `error` is `relative`, the largest absolute difference as a part of the root mean square of what is expected;
    `max`, `mean`: absolute differences; `cosine`: of the two as vectors. rotation: `error` is the largest angle
    [degrees], `det` the determinant farthest from 1. translation: as value, and `millimetres`, the largest distance.
    index: `error` is the number of entries that differ and are no ties, `entries` of those that differ at all, `rows`
    of the rows whose sets differ.
    """

    kind: str = "value"
    equal: bool = True
    error: float = 0.0
    limit: float = 0.0
    max: float = 0.0
    mean: float = 0.0
    relative: float = 0.0
    cosine: float = 1.0
    problem: str = ""
    details: dict = field(default_factory=dict)

    def to_json(self):
        return {k: v for k, v in asdict(self).items() if v not in ("", {})}

    def __str__(self):
        if self.problem:
            return self.problem
        d = self.details
        if self.kind == "index":
            if not d["entries"]:
                return "the same indices"
            ties = "" if d["ties"] is None else f", {d['ties']} of them ties"
            return f"{d['entries']} of {d['count']} indices differ{ties}; {d['rows']} rows differ as sets"
        if self.kind == "rotation":
            return f"{self.error:.3g} degrees apart, det {d['det']:.6g}"
        text = f"max {self.max:.3g}, mean {self.mean:.3g}, relative {self.relative:.3g}, cosine {self.cosine:.6g}"
        return f"{d['millimetres']:.3g} mm apart, {text}" if self.kind == "translation" else text


def compare(actual, expected, *, tolerance=None, atol=0.0, kind=None, unit="m", geometry=None):
    """A Difference of two arrays. `atol`: values that differ by no more than this are equal, too. `kind`: as in
    Difference, by default what the tensors look like. `unit`: of a translation. `geometry`: what tells a tie from
    a wrong index, see geometry.explain()."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    wrong = incomparable("")
    if actual.shape != expected.shape:
        wrong.problem = f"has shape {list(actual.shape)}, not {list(expected.shape)}"
        return wrong
    floating = is_floating(expected)
    if is_floating(actual) != floating:
        wrong.problem = f"is {actual.dtype}, not {expected.dtype}"
        return wrong
    if not floating:
        return _indices(actual, expected, geometry)
    # The coarser of the two types says how much they can agree.
    dtype = max((actual.dtype.name, expected.dtype.name), key=lambda name: TOLERANCES.get(name, 0))
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    limit = TOLERANCES.get(dtype, 1e-3) if tolerance is None else tolerance
    if not np.array_equal(np.isnan(a), np.isnan(e)):
        wrong.problem = (
            f"has {int(np.isnan(a).sum())} NaN of {a.size} values, expected {int(np.isnan(e).sum())}"
        )
        return wrong
    special = np.isinf(a) | np.isinf(e)
    if not np.array_equal(a[special], e[special]):
        wrong.problem = (
            f"has infinite values in other places than expected ({int(np.isinf(a).sum())} of {a.size})"
        )
        return wrong
    result = _values(a, e, ~special & ~np.isnan(e), limit)
    result.equal = result.equal or result.max <= atol
    if kind == "rotation" or (kind is None and is_rotation(e)):
        return _rotations(a, e, result, ROTATION_TOLERANCES.get(dtype, 0.05), tolerance)
    if kind == "translation" and e.ndim and e.shape[-1] == 3:
        result.kind = "translation"
        distances = np.sqrt(np.nansum((a - e) ** 2, -1)) if e.size else np.zeros(1)
        result.details["millimetres"] = float(distances.max() * _UNITS[unit])
    return result


def incomparable(problem):
    """The Difference of what cannot be compared."""
    inf = float("inf")
    return Difference(
        equal=False, error=inf, max=inf, mean=inf, relative=inf, cosine=float("nan"), problem=problem
    )


def is_floating(array):
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _values(a, e, finite, limit):
    a, e = a[finite], e[finite]
    if not a.size:
        return Difference(limit=limit)
    with np.errstate(over="ignore", invalid="ignore"):
        difference = np.abs(a - e)
        rms = float(np.sqrt(np.mean(np.square(e))))
        largest = float(difference.max())
        # Against zeros only equality counts.
        relative = largest / rms if rms > 0 else float(np.inf if largest > 0 else 0)
        norms = float(np.linalg.norm(a) * np.linalg.norm(e))
        cosine = float(np.dot(a, e) / norms) if norms > 0 else float(largest == 0)
    return Difference(
        equal=relative <= limit,
        error=relative,
        limit=limit,
        max=largest,
        mean=float(difference.mean()),
        relative=relative,
        cosine=min(cosine, 1.0),
    )


def is_rotation(array):
    """Whether all of it are rotation matrices (..., 3, 3): orthonormal to 1e-2 with a positive determinant."""
    if array.ndim < 2 or array.shape[-2:] != (3, 3) or not array.size or not np.isfinite(array).all():
        return False
    r = array.reshape(-1, 3, 3).astype(np.float64)
    return bool(np.abs(r @ r.transpose(0, 2, 1) - np.eye(3)).max() < 1e-2 and (np.linalg.det(r) > 0).all())


def _rotations(a, e, result, limit, tolerance):
    a, e = a.reshape(-1, 3, 3), e.reshape(-1, 3, 3)
    result.kind = "rotation"
    result.limit = limit if tolerance is None else np.degrees(tolerance)
    det = np.linalg.det(a)
    result.details["det"] = float(det[np.abs(det - 1).argmax()]) if len(det) else 1.0
    # The chord |A - E| = sqrt(8) sin(angle / 2) is exact for small angles, where the trace is not.
    chord = np.linalg.norm((a - e).reshape(len(a), -1), axis=1) / np.sqrt(8)
    angle = np.degrees(2 * np.arcsin(np.minimum(chord, 1)))
    result.error = float(angle.max()) if len(angle) else 0.0
    result.equal = bool(result.error <= result.limit and abs(result.details["det"] - 1) < 1e-2)
    return result


def _indices(a, e, geometry):
    differing = a != e
    entries = int(differing.sum())
    rows_a, rows_e = (v.reshape(-1, v.shape[-1]) if v.ndim else v.reshape(1, 1) for v in (a, e))
    rows = 0
    if entries and a.size:
        rows = int((np.sort(rows_a, 1) != np.sort(rows_e, 1)).any(1).sum())
    wrong = entries if geometry is None or not entries else int(geometry(a, e).sum())
    difference = np.abs(a.astype(np.float64) - e.astype(np.float64))
    largest = float(difference.max()) if a.size else 0.0
    return Difference(
        kind="index",
        equal=wrong == 0,
        error=float(wrong),
        max=largest,
        mean=float(difference.mean()) if a.size else 0.0,
        relative=entries / a.size if a.size else 0.0,
        cosine=1.0 if entries == 0 else float("nan"),
        details={
            "entries": entries,
            "count": int(a.size),
            "rows": rows,
            "ties": None if geometry is None else entries - wrong,
        },
    )
