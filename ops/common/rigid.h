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

// What horn-inl.h asks of its numbers beside arithmetic.
OPBRIDGE_HD double select(bool which, double yes, double no) { return which ? yes : no; }
OPBRIDGE_HD bool any(bool mask) { return mask; }

#include "common/horn-inl.h"

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

/// h = sum w (a - mean a)(b - mean b)^T, row-major -> the rotation r (row-major, det +1) that maximises
/// trace(r h), and how far it is determined. Horn 1987: r's quaternion is the eigenvector of the largest
/// eigenvalue of a 4x4 matrix. Its two largest eigenvalues differ by 2 (s1 + d s2) and add up to 2 s0, in
/// singular values s0 >= s1 >= s2 and d = +-1.
OPBRIDGE_HD PoseValid best_rotation(const double* h, double* r) {
  if (clear_rotation(h, r)) return kPose;
  for (int i = 0; i < 9; ++i) r[i] = i % 4 == 0;
  double largest = 0;
  for (int i = 0; i < 9; ++i) {
    if (!is_finite(h[i])) return kNoPose;
    largest = fabs(h[i]) > largest ? fabs(h[i]) : largest;
  }
  if (!(largest > 0)) return kOneOfMany;  // all points of a set coincide
  const double s = 1 / largest;
  if (!is_finite(s)) return kOneOfMany;
  double k[9], a[4][4], v[4][4], q[4];
  for (int i = 0; i < 9; ++i) k[i] = h[i] * s;
  horn_matrix(k, a);
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

/// The alignment b = r a + t with the least weighted squared error. Where it returns kNoPose, r is the
/// identity and t 0.
OPBRIDGE_HD PoseValid align(const Covariance<>& c, double* r, double* t) {
  const PoseValid worth = c.valid() ? best_rotation(c.h, r) : kNoPose;
  if (worth == kNoPose) {
    for (int i = 0; i < 9; ++i) r[i] = i % 4 == 0;
    t[0] = t[1] = t[2] = 0;
    return worth;
  }
  translation_of(c, r, t);
  return worth;
}

}  // namespace pvn3d
