// The best rotation between two centred point sets, from their 3x3 cross-covariance. Double precision, no
// iteration without a bound, no library: one function for CPU threads and CUDA threads.
#pragma once

#include <cmath>

#include "common/points.h"
#include "opbridge/tensor.h"

namespace pvn3d {

/// What a pose solution is worth.
enum PoseValid : int32_t {
  kNoPose = 0,  // nothing to align, or a number that is not finite: identity
  kPose = 1,    // the pose
  kOneOfMany =
      2,  // a best pose, but not the only one: points on a line, coincident, or mirrored without preference
};

/// Rotation matrix, row-major, of the unit quaternion (w, x, y, z).
OPBRIDGE_HD void quaternion_to_matrix(const double* q, double* r) {
  const double w = q[0], x = q[1], y = q[2], z = q[3];
  r[0] = 1 - 2 * (y * y + z * z), r[1] = 2 * (x * y - w * z), r[2] = 2 * (x * z + w * y);
  r[3] = 2 * (x * y + w * z), r[4] = 1 - 2 * (x * x + z * z), r[5] = 2 * (y * z - w * x);
  r[6] = 2 * (x * z - w * y), r[7] = 2 * (y * z + w * x), r[8] = 1 - 2 * (x * x + y * y);
}

/// Eigenvalues (on the diagonal of a) and eigenvectors (columns of v) of a symmetric N x N matrix: cyclic
/// Jacobi.
template <int N>
OPBRIDGE_HD void jacobi_eigen(double (&a)[N][N], double (&v)[N][N]) {
  for (int i = 0; i < N; ++i) {
    for (int j = 0; j < N; ++j) v[i][j] = i == j;
  }
  for (int sweep = 0; sweep < 16; ++sweep) {  // quadratic: 5 to 7 are enough
    double off = 0, diagonal = 0;
    for (int i = 0; i < N; ++i) {
      diagonal += a[i][i] * a[i][i];
      for (int j = i + 1; j < N; ++j) off += a[i][j] * a[i][j];
    }
    if (!(off > 1e-40 * diagonal)) return;
    for (int p = 0; p < N; ++p) {
      for (int q = p + 1; q < N; ++q) {
        if (a[p][q] == 0) continue;
        const double theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
        const double t = (theta >= 0 ? 1 : -1) / (fabs(theta) + sqrt(theta * theta + 1));
        const double c = 1 / sqrt(t * t + 1), s = t * c;
        for (int k = 0; k < N; ++k) {
          const double kp = a[k][p], kq = a[k][q];
          a[k][p] = c * kp - s * kq;
          a[k][q] = s * kp + c * kq;
        }
        for (int k = 0; k < N; ++k) {
          const double pk = a[p][k], qk = a[q][k];
          a[p][k] = c * pk - s * qk;
          a[q][k] = s * pk + c * qk;
        }
        for (int k = 0; k < N; ++k) {
          const double kp = v[k][p], kq = v[k][q];
          v[k][p] = c * kp - s * kq;
          v[k][q] = s * kp + c * kq;
        }
      }
    }
  }
}

/// Cofactors of row `row` of a 4x4 matrix; for a symmetric one of rank 3 they are along its null vector.
OPBRIDGE_HD void cofactors(const double (&m)[4][4], int row, double* out) {
  // Rows 0 and 1 need the 2x2 minors of rows 2 and 3, and the other way round; `o` is the row beside them.
  const int p = row < 2 ? 2 : 0, q = p + 1, o = row ^ 1;
  const double* c = m[p];
  const double* d = m[q];
  const double* b = m[o];
  const double t01 = c[0] * d[1] - c[1] * d[0], t02 = c[0] * d[2] - c[2] * d[0],
               t03 = c[0] * d[3] - c[3] * d[0];
  const double t12 = c[1] * d[2] - c[2] * d[1], t13 = c[1] * d[3] - c[3] * d[1],
               t23 = c[2] * d[3] - c[3] * d[2];
  const double sign = row % 2 == 0 ? 1 : -1;
  out[0] = sign * (b[1] * t23 - b[2] * t13 + b[3] * t12);
  out[1] = -sign * (b[0] * t23 - b[2] * t03 + b[3] * t02);
  out[2] = sign * (b[0] * t13 - b[1] * t03 + b[3] * t01);
  out[3] = -sign * (b[0] * t12 - b[1] * t02 + b[2] * t01);
}

/// The unit eigenvector of the largest eigenvalue of Horn's matrix of h, where that stands clear of the
/// others: Newton's method on the characteristic polynomial, which falls from above without overshooting
/// (Theobald 2005). False where it does not stand clear; then Jacobi's method takes over.
OPBRIDGE_HD bool dominant_quaternion(const double* h, const double (&a)[4][4], double* q) {
  double norm2 = 0;
  for (int i = 0; i < 9; ++i) norm2 += h[i] * h[i];
  const double det_h = h[0] * (h[4] * h[8] - h[5] * h[7]) - h[1] * (h[3] * h[8] - h[5] * h[6]) +
                       h[2] * (h[3] * h[7] - h[4] * h[6]);
  double c[4];
  cofactors(a, 0, c);
  const double c2 = -2 * norm2, c1 = -8 * det_h,
               c0 = a[0][0] * c[0] + a[0][1] * c[1] + a[0][2] * c[2] + a[0][3] * c[3];
  double x = sqrt(3 * norm2), slope = 0;  // the sum of the singular values is at most this
  for (int i = 0; i < 30; ++i) {
    const double x2 = x * x, value = ((x2 + c2) * x + c1) * x + c0;
    slope = (4 * x2 + 2 * c2) * x + c1;
    if (!(slope > 0)) return false;
    const double step = value / slope;
    x -= step;
    if (!(step > 1e-14 * x)) break;
  }
  slope = (4 * x * x + 2 * c2) * x + c1;  // the product of the distances to the other eigenvalues
  if (!(slope > 1e-3 * x * x * x)) return false;
  double m[4][4];
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) m[i][j] = a[i][j] - (i == j ? x : 0);
  }
  for (int row = 0; row < 4; ++row) {
    cofactors(m, row, q);
    const double n2 = q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3];
    // Row i is slope * q_i * q, and one component of a unit vector is at least 1/2.
    if (!(n2 > 0.2 * slope * slope)) continue;
    const double scale = 1 / sqrt(n2);
    for (int i = 0; i < 4; ++i) q[i] *= scale;
    return true;
  }
  return false;
}

/// h = sum w (a - mean a)(b - mean b)^T, row-major -> the rotation r (row-major, det +1) that maximises
/// trace(r h), and how far it is determined. Horn 1987: r's quaternion is the eigenvector of the largest
/// eigenvalue of a 4x4 matrix. Its two largest eigenvalues differ by 2 (s1 + d s2) and add up to 2 s0, in
/// singular values s0 >= s1 >= s2 and d = +-1.
OPBRIDGE_HD PoseValid best_rotation(const double* h, double* r) {
  for (int i = 0; i < 9; ++i) r[i] = i % 4 == 0;
  double largest = 0;
  for (int i = 0; i < 9; ++i) {
    if (!is_finite(h[i])) return kNoPose;
    largest = fabs(h[i]) > largest ? fabs(h[i]) : largest;
  }
  if (!(largest > 0)) return kOneOfMany;  // all points of a set coincide
  const double s = 1 / largest;
  if (!is_finite(s)) return kOneOfMany;
  double k[9];
  for (int i = 0; i < 9; ++i) k[i] = h[i] * s;
  const double xx = k[0], xy = k[1], xz = k[2], yx = k[3], yy = k[4], yz = k[5], zx = k[6], zy = k[7],
               zz = k[8];
  double a[4][4] = {{xx + yy + zz, yz - zy, zx - xz, xy - yx},
                    {yz - zy, xx - yy - zz, xy + yx, zx + xz},
                    {zx - xz, xy + yx, -xx + yy - zz, yz + zy},
                    {xy - yx, zx + xz, yz + zy, -xx - yy + zz}};
  double q[4];
  if (dominant_quaternion(k, a, q)) {
    quaternion_to_matrix(q, r);
    return kPose;
  }
  double v[4][4];
  jacobi_eigen(a, v);
  int first = 0;
  for (int i = 1; i < 4; ++i) first = a[i][i] > a[first][first] ? i : first;
  double second = -4;
  for (int i = 0; i < 4; ++i) second = i != first && a[i][i] > second ? a[i][i] : second;
  double norm = 0;
  for (int i = 0; i < 4; ++i) norm += v[i][first] * v[i][first];
  norm = sqrt(norm);
  for (int i = 0; i < 4; ++i) q[i] = v[i][first] / norm;
  quaternion_to_matrix(q, r);
  const double gap = a[first][first] - second, sum = a[first][first] + second;
  return gap > 2e-9 * sum ? kPose : kOneOfMany;
}

/// Weighted means of two point sets and their cross-covariance h = sum w (a - mean a)(b - mean b)^T,
/// row-major.
struct Covariance {
  double total = 0, mean_a[3] = {0, 0, 0}, mean_b[3] = {0, 0, 0}, h[9] = {0, 0, 0, 0, 0, 0, 0, 0, 0};

  /// `set` has point_a(i), point_b(i) (Point<double>) and weight(i) for i in [0, n).
  template <class Set>
  OPBRIDGE_HD Covariance(const Set& set, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const double w = set.weight(i);
      const Point<double> a = set.point_a(i), b = set.point_b(i);
      total += w;
      mean_a[0] += w * a.x, mean_a[1] += w * a.y, mean_a[2] += w * a.z;
      mean_b[0] += w * b.x, mean_b[1] += w * b.y, mean_b[2] += w * b.z;
    }
    if (!valid()) return;
    for (int k = 0; k < 3; ++k) mean_a[k] /= total, mean_b[k] /= total;
    for (int64_t i = 0; i < n; ++i) {
      const double w = set.weight(i);
      const Point<double> a = set.point_a(i), b = set.point_b(i);
      const double da[3] = {w * (a.x - mean_a[0]), w * (a.y - mean_a[1]), w * (a.z - mean_a[2])};
      const double db[3] = {b.x - mean_b[0], b.y - mean_b[1], b.z - mean_b[2]};
      for (int p = 0; p < 3; ++p) {
        for (int q = 0; q < 3; ++q) h[3 * p + q] += da[p] * db[q];
      }
    }
  }

  OPBRIDGE_HD bool valid() const { return total > 0 && is_finite(total); }
};

/// The alignment b = r a + t with the least weighted squared error. Where it returns kNoPose, r is the
/// identity and t 0.
OPBRIDGE_HD PoseValid align(const Covariance& c, double* r, double* t) {
  const PoseValid worth = c.valid() ? best_rotation(c.h, r) : kNoPose;
  if (worth == kNoPose) {
    for (int i = 0; i < 9; ++i) r[i] = i % 4 == 0;
    t[0] = t[1] = t[2] = 0;
    return worth;
  }
  for (int k = 0; k < 3; ++k)
    t[k] = c.mean_b[k] - (r[3 * k] * c.mean_a[0] + r[3 * k + 1] * c.mean_a[1] + r[3 * k + 2] * c.mean_a[2]);
  return worth;
}

}  // namespace pvn3d
