#pragma once

#include "common/points.h"
#include "opbridge/op.h"

/// The 3 points of `known` nearest to each of `unknown`.
///   unknown  (B, N, 3) T        [m]
///   known    (B, M, 3) T        [m], same frame
///   squared  attr bool = false  dist holds squared distances [m^2], as the CUDA kernel of PointNet++ returns them
///   dist     (B, N, 3) T        ascending, Euclidean [m]
///   idx      (B, N, 3) i32      by distance, then by index
/// T is f16, f32 or f64.
/// Edges: NaN and infinity are nobody's neighbours and have none, nor has a pair so far apart that its squared
///   distance overflows; slots without a neighbour (M < 3) hold idx 0 and dist +inf, hence interpolation
///   weight 0. B 0 or N 0 gives an empty output.
/// Numerics: the squared distance in f32 (f64 for f64) decides, without fused multiply-add: CPU and CUDA agree
///   exactly.
/// Memory: workspace about 16 N + 28 M bytes a cloud (f32), none on CUDA; an output may not alias an input.
/// Cost: O((N + M) log M) on real clouds; on CUDA O(M N).
/// Errors: M = 0 with N > 0; shape, dtype or attribute outside this table.
/// Source: PointNet++ (Qi et al. 2017), section 3.3.
void three_nn_cuda(const opbridge::Call& call);

namespace three_nn {

/// False where there are no unknown points. Throws where there are some, but no points to find.
inline bool check(const opbridge::Call& call) {
  const int64_t clouds = call.input_arg(0).shape[0], n = call.input_arg(0).shape[1],
                m = call.input_arg(1).shape[1];
  if (clouds == 0 || n == 0) return false;
  if (m == 0) throw opbridge::InvalidArgument("'known' has no points");
  return true;
}

}  // namespace three_nn
