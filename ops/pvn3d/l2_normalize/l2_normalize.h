#pragma once

#include <math.h>

#include <string>

#include "common/points.h"
#include "opbridge/op.h"

/// Vectors along one axis divided by their Euclidean length.
///   x     (*S) T                    at least one dimension
///   axis  attr int = -1             negative counts from the end
///   eps   attr float >= 0, = 1e-12  a shorter length counts as this
///   y     (*S) T                    x / max(|x|, eps)
/// T is f16, f32 or f64.
/// Edges: a vector of zeros stays zeros, also with eps 0; NaN in a vector makes all of it NaN; an infinite
///   component gives NaN there and 0 elsewhere; an empty x gives an empty y.
/// Numerics: lengths in f64 for every T, so they neither overflow nor vanish in f32. The sum runs in 8 partial
///   sums, of every eighth square, added up in a fixed tree (sum_tree): the same bits whatever the vector width,
///   threads or device.
/// Memory: no workspace; y may alias x.   Cost: O(x), bound by memory traffic.
/// Gradient: L2NormalizeGrad, (g - y (y.g)) / |x| where |x| >= eps, else g / eps.
/// Errors: axis outside the rank of x; shape or dtype outside this table.
/// Source: torch.nn.functional.normalize with p = 2.
void l2_normalize_cuda(const opbridge::Call& call);
void l2_normalize_grad_cuda(const opbridge::Call& call);

namespace l2_normalize {

/// x as (outer, length, inner), normalised over `length`.
struct Shape {
  int64_t outer = 1, length = 1, inner = 1;

  /// Of an input. Throws where it lacks the axis.
  Shape(const opbridge::Call& call, int input) {
    const opbridge::TensorArg& x = call.input_arg(input);
    const int64_t given = call.attr_int("axis"), axis = given < 0 ? given + x.rank : given;
    if (axis < 0 || axis >= x.rank) {
      throw opbridge::InvalidArgument("attribute 'axis' is " + std::to_string(given) + ", but 'x' has " +
                                      std::to_string(x.rank) + (x.rank == 1 ? " dimension" : " dimensions"));
    }
    for (int i = 0; i < axis; ++i) outer *= x.shape[i];
    length = x.shape[axis];
    for (int i = static_cast<int>(axis) + 1; i < x.rank; ++i) inner *= x.shape[i];
  }
};

constexpr int kPartialSums = 8;

template <class S>
OPBRIDGE_HD double sum_tree(const S* s) {
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/// The factor a vector is multiplied by, from its squared length.
OPBRIDGE_HD double scale(double squared_length, double eps) {
  const double length = sqrt(squared_length), divisor = length < eps ? eps : length;
  return divisor > 0 || divisor != divisor ? 1.0 / divisor : 0.0;
}

/// What becomes of the gradient of one vector y = x / max(|x|, eps).
struct Gradient {
  double scale, along;

  /// From |x|^2 and x . grad_y.
  OPBRIDGE_HD Gradient(double squared_length, double product, double eps)
      : scale(l2_normalize::scale(squared_length, eps)),
        along(sqrt(squared_length) < eps ? 0 : product * scale * scale) {
  }  // nothing where the length is constant
  OPBRIDGE_HD double of(double grad_y, double x) const { return (grad_y - x * along) * scale; }
};

}  // namespace l2_normalize
