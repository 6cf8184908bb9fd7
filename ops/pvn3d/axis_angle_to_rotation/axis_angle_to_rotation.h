#pragma once

#include <cmath>

#include "common/rotations.h"

/// Rotation matrices of axis-angle vectors (rotation vectors): the direction is the axis, the length the angle.
///   axis_angle  (*S, 3)     T   [rad]
///   rotation    (*S, 3, 3)  T   row-major, det +1, for column vectors
/// T is f16, f32 or f64.
/// Edges: 0 gives the identity; below 1e-4 rad a series replaces sin(t)/t and (1 - cos t)/t^2; NaN gives NaN.
/// Numerics: computed in f64.
/// Memory: no workspace; an output may not alias an input.   Cost: O(S).
/// Gradient: axis_angle_to_rotation_grad, smooth through 0.
/// Errors: shape or dtype outside this table.
/// Source: Rodrigues.
void axis_angle_to_rotation_cuda(const opbridge::Call& call);
void axis_angle_to_rotation_grad_cuda(const opbridge::Call& call);

namespace pvn3d {

/// R = I + a K + b K^2 with K = [v]x; da and db are da/dt / t and db/dt / t.
struct Rodrigues {
  double a, b, da, db;

  OPBRIDGE_HD explicit Rodrigues(const double* v) {
    const double t2 = v[0] * v[0] + v[1] * v[1] + v[2] * v[2], t = sqrt(t2);
    if (t < 1e-4) {
      a = 1 - t2 / 6;
      b = 0.5 - t2 / 24;
    } else {
      a = sin(t) / t;
      b = (1 - cos(t)) / t2;
    }
    if (t < 0.05) {  // the closed forms cancel here; the next terms are below 1e-12
      da = -1.0 / 3 + t2 / 30 - t2 * t2 / 840 + t2 * t2 * t2 / 45360;
      db = -1.0 / 12 + t2 / 180 - t2 * t2 / 6720 + t2 * t2 * t2 / 453600;
    } else {
      da = (cos(t) - a) / t2;
      db = (a - 2 * b) / t2;
    }
  }
};

OPBRIDGE_HD void axis_angle_to_matrix(const double* v, double* r) {
  const Rodrigues c(v);
  const double k[9] = {0, -v[2], v[1], v[2], 0, -v[0], -v[1], v[0], 0};
  double k2[9];
  multiply(k, k, k2);
  for (int i = 0; i < 9; ++i) r[i] = (i % 4 == 0) + c.a * k[i] + c.b * k2[i];
}

OPBRIDGE_HD void axis_angle_gradient(const double* v, const double* g, double* grad_v) {
  const Rodrigues c(v);
  const double k[9] = {0, -v[2], v[1], v[2], 0, -v[0], -v[1], v[0], 0};
  double k2[9];
  multiply(k, k, k2);
  const double through_length = c.da * dot9(g, k) + c.db * dot9(g, k2);
  for (int axis = 0; axis < 3; ++axis) {
    const double unit[3] = {axis == 0 ? 1.0 : 0.0, axis == 1 ? 1.0 : 0.0, axis == 2 ? 1.0 : 0.0};
    const double e[9] = {0, -unit[2], unit[1], unit[2], 0, -unit[0], -unit[1], unit[0], 0};
    double ek[9], ke[9];
    multiply(e, k, ek);
    multiply(k, e, ke);
    grad_v[axis] = v[axis] * through_length + c.a * dot9(g, e) + c.b * (dot9(g, ek) + dot9(g, ke));
  }
}

}  // namespace pvn3d
