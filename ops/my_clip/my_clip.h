#pragma once

#include "opbridge/op.h"

/// x limited to [min, max]: y = x where neither bound bites.
///   x    (*S)        T   values
///   min  () or (1)   T   lower bound; absent: none
///   max  () or (1)   T   upper bound; absent: none
///   y    (*S)        T
/// T is f16, bf16, f32, f64, i32 or i64.
/// Edges: NaN in x stays NaN; a NaN bound gives NaN everywhere; min > max gives max; an empty x gives an empty y.
/// Numerics: only comparisons, so exact, and CPU and CUDA agree bit for bit.
/// Memory: no workspace; y may alias x.   Cost: O(x), bound by memory traffic.
/// Gradient: my_clip_grad, grad_y where min <= x <= max and 0 elsewhere (also where x or a bound is NaN); none
///   for the bounds.
/// Errors: shape or dtype outside this table.
/// Source: torch.clamp and ONNX Clip, whose results it equals.
void my_clip_cuda(const opbridge::Call& call);
void my_clip_grad_cuda(const opbridge::Call& call);

/// The arithmetic of one element, shared by CPU and CUDA.
namespace my_clip {

/// `v` unless the bound bites: a NaN in v is kept, a NaN bound is taken.
template <class T>
OPBRIDGE_HD T at_least(T v, T min) {
  return (v >= min) | (v != v) ? v : min;
}
template <class T>
OPBRIDGE_HD T at_most(T v, T max) {
  return (v <= max) | (v != v) ? v : max;
}

/// `grad_y` inside the bounds, 0 outside and where a comparison with NaN fails.
template <class T>
OPBRIDGE_HD T gradient(T grad_y, T x, bool use_min, T min, bool use_max, T max) {
  const bool inside = (x == x) & (!use_min | (x >= min)) & (!use_max | (x <= max));
  return inside ? grad_y : T(0);
}

}  // namespace my_clip
