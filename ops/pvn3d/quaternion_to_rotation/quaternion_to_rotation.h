#pragma once

#include <cmath>

#include "common/rigid.h"
#include "common/rotations.h"

/// Rotation matrices of quaternions, which need not have length 1.
///   quaternion    (*S, 4)     T      (w, x, y, z), or (x, y, z, w)
///   scalar_first  attr bool = true   w comes first
///   rotation      (*S, 3, 3)  T      row-major, det +1, for column vectors
/// T is f16, f32 or f64.
/// Edges: |q|^2 < 1e-12 gives the identity (and gradient 0); NaN gives NaN.
/// Numerics: computed in f64.
/// Memory: no workspace; an output may not alias an input.   Cost: O(S).
/// Gradient: quaternion_to_rotation_grad; along the quaternion itself it is 0.
/// Errors: shape, dtype or attribute outside this table.
/// Source: Hamilton; the order (w, x, y, z) is that of pytorch3d and Eigen's constructor, (x, y, z, w) that of
///   SciPy and ROS.
void quaternion_to_rotation_cuda(const opbridge::Call& call);
void quaternion_to_rotation_grad_cuda(const opbridge::Call& call);

namespace pvn3d {

/// Component i (w, x, y, z) stands at this place of the row.
OPBRIDGE_HD int quaternion_at(int i, bool scalar_first) { return scalar_first ? i : (i + 3) % 4; }

OPBRIDGE_HD void quaternion_row_to_matrix(const double* row, bool scalar_first, double* r) {
  double q[4], n2 = 0;
  for (int i = 0; i < 4; ++i) q[i] = row[quaternion_at(i, scalar_first)], n2 += q[i] * q[i];
  if (n2 < 1e-12) {
    for (int i = 0; i < 9; ++i) r[i] = i % 4 == 0;
    return;
  }
  const double n = sqrt(n2);
  for (int i = 0; i < 4; ++i) q[i] /= n;
  quaternion_to_matrix(q, r);
}

OPBRIDGE_HD void quaternion_gradient(const double* row, const double* g, bool scalar_first,
                                     double* grad_row) {
  double q[4], n2 = 0;
  for (int i = 0; i < 4; ++i) q[i] = row[quaternion_at(i, scalar_first)], n2 += q[i] * q[i], grad_row[i] = 0;
  if (n2 < 1e-12) return;
  const double n = sqrt(n2);
  for (int i = 0; i < 4; ++i) q[i] /= n;
  const double w = q[0], x = q[1], y = q[2], z = q[3];
  // With respect to the unit quaternion, then without the part along it.
  const double u[4] = {
      2 * (-z * g[1] + y * g[2] + z * g[3] - x * g[5] - y * g[6] + x * g[7]),
      2 * (y * g[1] + z * g[2] + y * g[3] - 2 * x * g[4] - w * g[5] + z * g[6] + w * g[7] - 2 * x * g[8]),
      2 * (-2 * y * g[0] + x * g[1] + w * g[2] + x * g[3] + z * g[5] - w * g[6] + z * g[7] - 2 * y * g[8]),
      2 * (-2 * z * g[0] - w * g[1] + x * g[2] + w * g[3] - 2 * z * g[4] + y * g[5] + x * g[6] + y * g[7])};
  const double along = u[0] * w + u[1] * x + u[2] * y + u[3] * z;
  for (int i = 0; i < 4; ++i) grad_row[quaternion_at(i, scalar_first)] = (u[i] - along * q[i]) / n;
}

}  // namespace pvn3d
