#pragma once

#include <math.h>

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

namespace l2_normalize {

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

}  // namespace l2_normalize
