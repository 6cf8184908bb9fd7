"""KabschSolver, slow and obvious: by the singular value decomposition. Cases have one best pose, or none."""

import numpy as np

OPERATOR = "KabschSolver"
COMPARE = {"rotation": ("close", 1e-5, 1e-6), "translation": ("close", 1e-5, 1e-6), "valid": "exact"}


def solve(a, b, w):
    a, b, w = a.astype(np.float64), b.astype(np.float64), w.astype(np.float64)
    total = w.sum()
    finite = np.isfinite(a).all() and np.isfinite(b).all() and np.isfinite(total)
    if not finite or not total > 0:
        return np.eye(3), np.zeros(3), 0
    mean_a, mean_b = w @ a / total, w @ b / total
    u, s, vt = np.linalg.svd((w[:, None] * (a - mean_a)).T @ (b - mean_b))
    d = 1.0 if np.linalg.det(vt.T @ u.T) >= 0 else -1.0
    if s[0] == 0:
        return np.eye(3), mean_b - mean_a, 2
    r = vt.T @ np.diag([1, 1, d]) @ u.T
    return r, mean_b - r @ mean_a, 1 if s[1] + d * s[2] > 1e-9 * s[0] else 2


def reference(inputs, attributes):
    a, b, w = inputs["template_kps"], inputs["pred_kps"], inputs.get("weights")
    lead, n = b.shape[:-2], b.shape[-2]
    a = np.broadcast_to(a, b.shape)
    w = np.broadcast_to(np.ones(n) if w is None else w, b.shape[:-1])
    solved = [solve(a[at], b[at], w[at]) for at in np.ndindex(lead)]
    rotation = np.array([s[0] for s in solved]).reshape(*lead, 3, 3).astype(b.dtype)
    translation = np.array([s[1] for s in solved]).reshape(*lead, 3).astype(b.dtype)
    return {
        "rotation": rotation,
        "translation": translation,
        "valid": np.array([s[2] for s in solved], np.int32).reshape(lead),
    }


def random_rotation(rng):
    q, r = np.linalg.qr(rng.normal(size=(3, 3)))
    q = q * np.sign(np.diag(r))
    return q if np.linalg.det(q) > 0 else -q


def cases():
    rng = np.random.default_rng(5)

    def case(name, a, b, w=None, dtype=np.float32):
        inputs = dict(template_kps=np.asarray(a, dtype), pred_kps=np.asarray(b, dtype))
        return dict(
            name=name,
            inputs=inputs | ({} if w is None else dict(weights=np.asarray(w, dtype))),
            attributes={},
        )

    a = rng.normal(0, 0.08, (9, 3))
    r, t = random_rotation(rng), np.array([0.1, -0.2, 0.9])
    moved = a @ r.T + t + rng.normal(0, 0.003, a.shape)
    w = rng.uniform(0.1, 1, 9)
    for dtype in (np.float16, np.float32, np.float64):
        yield case(f"two_dimensional_{np.dtype(dtype).name}", a, moved, dtype=dtype)
    many = np.stack([a @ random_rotation(rng).T + rng.normal(0, 1, 3) for _ in range(130)])
    yield case("template_for_all", a, many)
    yield case("batch", np.broadcast_to(a, many.shape) + rng.normal(0, 0.01, many.shape), many)
    yield case("two_leading_dimensions", a, many[:6].reshape(2, 3, 9, 3), np.broadcast_to(w, (2, 3, 9)))
    yield case("weights_for_all", a, many[:4], w)
    yield case("weights_scaled", a, moved, w * 1e6)
    yield case("planar", a * [1, 1, 0], (a * [1, 1, 0]) @ r.T + t)
    yield case("planar_mirrored", a * [1, 1, 0], (a * [-1, 1, 0]) @ r.T + t)
    yield case("mirrored", a, (a * [1, 1, -1]) @ r.T + t)
    yield case("half_turn", a, a * [1, -1, -1])
    yield case("millimetres", a * 1e3, moved * 1e3)
    yield case("tiny", a * 1e-4, (a * 1e-4) @ r.T, dtype=np.float64)
    yield case("far_away", a, moved + [100, -50, 200], dtype=np.float64)
    yield case("three_points", a[:3], moved[:3])
    yield case("no_weight", a, moved, np.zeros(9))
    yield case("negative_weight", a, moved, -w)
    yield case("no_points", a[:0], moved[:0])
    yield case("no_problems", a, many[:0])
    broken = np.stack([moved] * 4)
    broken[1, 2, 1], broken[2, 0, 0] = np.nan, np.inf
    yield case("not_finite", a, broken)
    yield case("coincident", np.tile(a[:1], (5, 1)), np.tile(moved[:1], (5, 1)))
