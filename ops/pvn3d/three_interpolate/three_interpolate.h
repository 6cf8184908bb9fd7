#pragma once

#include "common/points.h"
#include "opbridge/op.h"

/// Weighted sum of the features of three points.
///   features  (B, C, M) T
///   idx       (B, N, 3) i32 or i64
///   weight    (B, N, 3) T           used as given
///   out       (B, C, N) T           w0 f[idx0] + w1 f[idx1] + w2 f[idx2]
/// T is f16, f32 or f64.
/// Edges: a feature at an index outside 0..M-1 (all of them when M is 0) counts as 0.0 and is not read.
/// Numerics: (w0 f0 + w1 f1) + w2 f2 in f32 (f64 for f64), in this order and without fused multiply-add: the same
///   bits on every device.
/// Memory: workspace 24 N bytes a batch and 16 M for each of up to 16 groups of channels (f32 on the CPU);
///   ThreeInterpolateGrad 4 M + 12 N a batch, on CUDA up to 4 M + 48 N; no output may alias an input.
/// Cost: O(B C N), bound by memory traffic.
/// Gradient: ThreeInterpolateGrad, for features and weight, sums in ascending order and in f64, so the same bits
///   whatever the threads; none for idx.
/// Errors: shape or dtype outside this table.
/// Source: PointNet++ (Qi et al. 2017), section 3.3. The gradient of PVN3D's own extension is wrong (it launches
///   the forward kernel).
void three_interpolate_cuda(const opbridge::Call& call);
void three_interpolate_grad_cuda(const opbridge::Call& call);

namespace three_interpolate {

template <class C>
OPBRIDGE_HD C weighted_sum(C w0, C f0, C w1, C f1, C w2, C f2) {
  return (w0 * f0 + w1 * f1) + w2 * f2;
}

}  // namespace three_interpolate
