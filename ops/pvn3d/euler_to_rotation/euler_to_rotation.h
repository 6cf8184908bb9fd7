#pragma once

#include <cmath>

#include "common/rotations.h"

/// Rotation matrices of Euler angles.
///   angles     (*S, 3)     T          [rad], about the axes of `order`, first to last
///   order      attr string = xyz      the axes of the three angles: xyz, xzy, ... or with one twice: xyx, zxz, ...
///   extrinsic  attr bool = true       about fixed axes: R = R3 R2 R1 (for xyz: Rz(e2) Ry(e1) Rx(e0));
///                                     false: about axes that turn with the body: R = R1 R2 R3
///   rotation   (*S, 3, 3)  T          row-major, det +1, for column vectors
/// T is f16, f32 or f64.
/// Edges: any angle is allowed; NaN gives NaN.
/// Numerics: computed in f64.
/// Memory: no workspace; an output may not alias an input.   Cost: O(S).
/// Gradient: euler_to_rotation_grad.
/// Errors: shape, dtype or attribute outside this table.
/// Source: transformations.py (Gohlke), whose "sxyz" is the default; SciPy writes extrinsic orders in lower case.
void euler_to_rotation_cuda(const opbridge::Call& call);
void euler_to_rotation_grad_cuda(const opbridge::Call& call);

namespace pvn3d {

/// The three axes, 0 to 2, in the order in which their matrices are multiplied from the right.
struct EulerOrder {
  int axis[3];
  int angle[3];  // which angle belongs to each

  EulerOrder(const char* order, bool extrinsic) {
    for (int i = 0; i < 3; ++i) {
      angle[i] = extrinsic ? 2 - i : i;
      axis[i] = order[angle[i]] - 'x';
    }
  }
};

inline EulerOrder euler_order(const opbridge::Call& call) {
  return {call.attr_string("order").c_str(), call.attr_bool("extrinsic")};
}

/// Rotation about one axis, or its derivative with respect to the angle.
OPBRIDGE_HD void axis_rotation(int axis, double angle, bool derivative, double* r) {
  const double c = derivative ? -sin(angle) : cos(angle), s = derivative ? cos(angle) : sin(angle);
  const int p = (axis + 1) % 3, q = (axis + 2) % 3;
  for (int i = 0; i < 9; ++i) r[i] = 0;
  r[4 * axis] = derivative ? 0 : 1;
  r[4 * p] = r[4 * q] = c;
  r[3 * p + q] = -s;
  r[3 * q + p] = s;
}

/// The product of the three; the factor `derive` (0 to 2, or -1) is replaced by its derivative.
OPBRIDGE_HD void euler_product(const EulerOrder& order, const double* angles, int derive, double* r) {
  double a[9], b[9], c[9], ab[9];
  axis_rotation(order.axis[0], angles[order.angle[0]], derive == 0, a);
  axis_rotation(order.axis[1], angles[order.angle[1]], derive == 1, b);
  axis_rotation(order.axis[2], angles[order.angle[2]], derive == 2, c);
  multiply(a, b, ab);
  multiply(ab, c, r);
}

/// Gradient of the angles from that of the product.
OPBRIDGE_HD void euler_gradient(const EulerOrder& order, const double* angles, const double* grad_r,
                                double* grad_angles) {
  for (int i = 0; i < 3; ++i) {
    double d[9];
    euler_product(order, angles, i, d);
    grad_angles[order.angle[i]] = dot9(grad_r, d);
  }
}

}  // namespace pvn3d
