#pragma once

#include "common/points.h"
#include "opbridge/op.h"

/// The `k` points of `xyz` nearest to each of `query`.
///   xyz    (B, N, 3) T             [m]
///   query  (B, M, 3) T             [m], same frame
///   k      attr int, 1..1024
///   idx    (B, M, k) i32           by distance, then by index; the query itself counts when it is in xyz
///   dist   (B, M, k) T, optional   Euclidean distances [m]
/// T is f16, f32 or f64.
/// Edges: NaN and infinity are nobody's neighbours and have none, nor has a pair so far apart that its squared
///   distance overflows; slots without a neighbour (k > N) hold idx 0 and dist +inf. B 0 or M 0 gives an empty
///   output.
/// Numerics: the squared distance in f32 (f64 for f64) decides, without fused multiply-add: CPU and CUDA agree
///   exactly.
/// Memory: workspace about 100 max(N, M) bytes a cloud (f32), none on CUDA; an output may not alias an input.
/// Cost: O((N + M) log N) on real clouds; on CUDA O(M N).
/// Errors: N = 0 with M > 0; shape, dtype or attribute outside this table.
/// Source: mmcv and FFB6D, whose layouts are [B,k,M] and [B,M,k]; ties are unspecified there, here the lowest
///   index wins.
void knn_cuda(const opbridge::Call& call);

namespace knn {

/// False where there are no queries. Throws where there are some, but no points to find.
inline bool check(const opbridge::Call& call) {
  const int64_t clouds = call.input_arg(0).shape[0], n = call.input_arg(0).shape[1],
                m = call.input_arg(1).shape[1];
  if (clouds == 0 || m == 0) return false;
  if (n == 0) throw opbridge::InvalidArgument("'xyz' has no points");
  return true;
}

}  // namespace knn
