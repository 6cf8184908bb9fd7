#pragma once

#include "common/points.h"
#include "opbridge/op.h"

/// Indices of up to `nsample` points of `xyz` closer than `radius` to each of `new_xyz`.
///   xyz         (B, N, 3) T           [m]
///   new_xyz     (B, M, 3) T           [m] centres, same frame
///   radius      attr float > 0        [m]
///   nsample     attr int, 1..1024     slots a centre
///   min_radius  attr float >= 0, = 0  [m] points closer than this do not count, except at distance 0
///   idx         (B, M, nsample) i32   ascending; unused slots repeat the first hit
///   count       (B, M) i32, optional  hits, at most nsample
/// T is f16, f32 or f64.
/// Edges: a point at exactly `radius` is outside; NaN and infinity never match; no hit gives 0s and count 0.
///   B 0 or M 0 gives an empty output.
/// Numerics: the squared distance in f32 (f64 for f64) decides, without fused multiply-add: CPU and CUDA agree
///   exactly.
/// Memory: workspace about 100 max(N, M) bytes a cloud (f32), and 8 sqrt(N nsample) for each of up to 32 groups of
///   centres; none on CUDA; an output may not alias an input.
/// Cost: O(N log N + M * hits) on even clouds; on CUDA O(M N) at worst, each centre ends when its slots are full.
/// Errors: N = 0 with M > 0; shape, dtype or attribute outside this table.
/// Source: PointNet++ (Qi et al. 2017), section 3.2; min_radius as mmcv. Differs from pytorch3d, which pads
///   with -1.
void ball_query_cuda(const opbridge::Call& call);

namespace ball_query {

/// Whether a squared distance is a hit; false for NaN.
template <class C>
OPBRIDGE_HD bool inside(C d2, C min_radius2, C radius2) {
  return d2 < radius2 && (d2 >= min_radius2 || d2 == C(0));
}

/// False where there are no centres. Throws where there are some, but no points.
inline bool check(const opbridge::Call& call) {
  const int64_t clouds = call.input_arg(0).shape[0], n = call.input_arg(0).shape[1],
                m = call.input_arg(1).shape[1];
  if (clouds == 0 || m == 0) return false;
  if (n == 0) throw opbridge::InvalidArgument("'xyz' has no points");
  return true;
}

}  // namespace ball_query
