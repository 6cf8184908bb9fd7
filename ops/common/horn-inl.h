// The arithmetic of rigid.h that is the same for one problem and for several side by side: `Real` is double or a
// vector of doubles (neighbours of each other: Lanes in kabsch_solver_cpu.cpp), with a comparison's result as the mask
// that select() and any() take. Included inside a namespace, once for each: a SIMD target's vectors can be used only by
// functions that are compiled for it. So there is no guard, and it includes nothing.

/// Rotation matrix, row-major, of the unit quaternion (w, x, y, z).
template <class Real>
OPBRIDGE_HD void quaternion_to_matrix(const Real* q, Real* r) {
  const Real w = q[0], x = q[1], y = q[2], z = q[3];
  r[0] = 1 - 2 * (y * y + z * z), r[1] = 2 * (x * y - w * z), r[2] = 2 * (x * z + w * y);
  r[3] = 2 * (x * y + w * z), r[4] = 1 - 2 * (x * x + z * z), r[5] = 2 * (y * z - w * x);
  r[6] = 2 * (x * z - w * y), r[7] = 2 * (y * z + w * x), r[8] = 1 - 2 * (x * x + y * y);
}

/// Cofactors of row `row` of a 4x4 matrix; for a symmetric one of rank 3 they are along its null vector.
template <class Real>
OPBRIDGE_HD void cofactors(const Real (&m)[4][4], int row, Real* out) {
  // Rows 0 and 1 need the 2x2 minors of rows 2 and 3, and the other way round; `o` is the row beside them.
  const int p = row < 2 ? 2 : 0, q = p + 1, o = row ^ 1;
  const Real* c = m[p];
  const Real* d = m[q];
  const Real* b = m[o];
  const Real t01 = c[0] * d[1] - c[1] * d[0], t02 = c[0] * d[2] - c[2] * d[0],
             t03 = c[0] * d[3] - c[3] * d[0];
  const Real t12 = c[1] * d[2] - c[2] * d[1], t13 = c[1] * d[3] - c[3] * d[1],
             t23 = c[2] * d[3] - c[3] * d[2];
  const double sign = row % 2 == 0 ? 1 : -1;
  out[0] = sign * (b[1] * t23 - b[2] * t13 + b[3] * t12);
  out[1] = -sign * (b[0] * t23 - b[2] * t03 + b[3] * t02);
  out[2] = sign * (b[0] * t13 - b[1] * t03 + b[3] * t01);
  out[3] = -sign * (b[0] * t12 - b[1] * t02 + b[2] * t01);
}

/// Horn's matrix of h (1987): the quaternion of the best rotation is the eigenvector of its largest eigenvalue.
template <class Real>
OPBRIDGE_HD void horn_matrix(const Real* h, Real (&a)[4][4]) {
  const Real xx = h[0], xy = h[1], xz = h[2], yx = h[3], yy = h[4], yz = h[5], zx = h[6], zy = h[7],
             zz = h[8];
  a[0][0] = xx + yy + zz, a[1][1] = xx - yy - zz, a[2][2] = -xx + yy - zz, a[3][3] = -xx - yy + zz;
  a[0][1] = a[1][0] = yz - zy, a[0][2] = a[2][0] = zx - xz, a[0][3] = a[3][0] = xy - yx;
  a[1][2] = a[2][1] = xy + yx, a[1][3] = a[3][1] = zx + xz, a[2][3] = a[3][2] = yz + zy;
}

/// The unit eigenvector of the largest eigenvalue of Horn's matrix of h, where that stands clear of the
/// others: Newton's method on the characteristic polynomial, which falls from above without overshooting
/// (Theobald 2005). False where it does not stand clear; then Jacobi's method takes over.
template <class Real>
OPBRIDGE_HD auto dominant_quaternion(const Real* h, const Real (&a)[4][4], Real* q) {
  Real norm2 = h[0] * h[0];
  for (int i = 1; i < 9; ++i) norm2 = norm2 + h[i] * h[i];
  const Real det_h = h[0] * (h[4] * h[8] - h[5] * h[7]) - h[1] * (h[3] * h[8] - h[5] * h[6]) +
                     h[2] * (h[3] * h[7] - h[4] * h[6]);
  Real c[4];
  cofactors(a, 0, c);
  const Real c2 = -2 * norm2, c1 = -8 * det_h,
             c0 = a[0][0] * c[0] + a[0][1] * c[1] + a[0][2] * c[2] + a[0][3] * c[3];
  Real x = sqrt(3 * norm2);  // the sum of the singular values is at most this
  auto falling = x > 0;
  for (int i = 0; i < 30 && any(falling); ++i) {
    const Real x2 = x * x, value = ((x2 + c2) * x + c1) * x + c0;
    const Real slope = (4 * x2 + 2 * c2) * x + c1;
    const Real step = value / slope;
    falling = falling & (slope > 0);
    x = select(falling, x - step, x);
    falling = falling & (step > 1e-14 * x);
  }
  const Real slope = (4 * x * x + 2 * c2) * x + c1;  // the product of the distances to the other eigenvalues
  const auto clear = (slope > 0) & (slope > 1e-3 * x * x * x);
  Real m[4][4];
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) m[i][j] = i == j ? a[i][j] - x : a[i][j];
  }
  // Row i of the cofactors is slope * q_i * q, and one component of a unit vector is at least 1/2.
  Real length2 = 1;
  auto wanted = clear;
  for (int row = 0; row < 4 && any(wanted); ++row) {
    cofactors(m, row, c);
    const Real n2 = c[0] * c[0] + c[1] * c[1] + c[2] * c[2] + c[3] * c[3];
    const auto good = wanted & (n2 > 0.2 * slope * slope);
    length2 = select(good, n2, length2);
    for (int i = 0; i < 4; ++i) q[i] = select(good, c[i], q[i]);
    wanted = wanted & !good;
  }
  const Real scale = 1 / sqrt(length2);
  for (int i = 0; i < 4; ++i) q[i] = q[i] * scale;
  return clear & !wanted;
}

/// h = sum w (a - mean a)(b - mean b)^T, row-major -> the rotation r (row-major, det +1) that maximises
/// trace(r h), where that is clear; where it is not, or h is not finite, false.
template <class Real>
OPBRIDGE_HD auto clear_rotation(const Real* h, Real* r) {
  Real largest = fabs(h[0]);
  for (int i = 1; i < 9; ++i) largest = select(fabs(h[i]) > largest, fabs(h[i]), largest);
  const Real s = 1 / largest;
  Real k[9], a[4][4], q[4] = {1, 0, 0, 0};
  for (int i = 0; i < 9; ++i) k[i] = h[i] * s;
  horn_matrix(k, a);
  const auto clear = dominant_quaternion(k, a, q);
  quaternion_to_matrix(q, r);
  return clear;
}

/// Weighted means of two point sets and their cross-covariance h = sum w (a - mean a)(b - mean b)^T,
/// row-major.
template <class Real = double>
struct Covariance {
  Real total = 0, mean_a[3] = {0, 0, 0}, mean_b[3] = {0, 0, 0}, h[9] = {0, 0, 0, 0, 0, 0, 0, 0, 0};

  /// `set` has point_a(i), point_b(i) (Point<Real>) and weight(i) for i in [0, n).
  template <class Set>
  OPBRIDGE_HD Covariance(const Set& set, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const Real w = set.weight(i);
      const Point<Real> a = set.point_a(i), b = set.point_b(i);
      total = total + w;
      mean_a[0] = mean_a[0] + w * a.x, mean_a[1] = mean_a[1] + w * a.y, mean_a[2] = mean_a[2] + w * a.z;
      mean_b[0] = mean_b[0] + w * b.x, mean_b[1] = mean_b[1] + w * b.y, mean_b[2] = mean_b[2] + w * b.z;
    }
    if (!any(valid())) return;
    for (int k = 0; k < 3; ++k) mean_a[k] = mean_a[k] / total, mean_b[k] = mean_b[k] / total;
    for (int64_t i = 0; i < n; ++i) {
      const Real w = set.weight(i);
      const Point<Real> a = set.point_a(i), b = set.point_b(i);
      const Real da[3] = {w * (a.x - mean_a[0]), w * (a.y - mean_a[1]), w * (a.z - mean_a[2])};
      const Real db[3] = {b.x - mean_b[0], b.y - mean_b[1], b.z - mean_b[2]};
      for (int p = 0; p < 3; ++p) {
        for (int q = 0; q < 3; ++q) h[3 * p + q] = h[3 * p + q] + da[p] * db[q];
      }
    }
  }

  OPBRIDGE_HD auto valid() const { return (total > 0) & (total - total == 0); }
};

/// t = mean b - r mean a.
template <class Real>
OPBRIDGE_HD void translation_of(const Covariance<Real>& c, const Real* r, Real* t) {
  for (int k = 0; k < 3; ++k)
    t[k] = c.mean_b[k] - (r[3 * k] * c.mean_a[0] + r[3 * k + 1] * c.mean_a[1] + r[3 * k + 2] * c.mean_a[2]);
}
