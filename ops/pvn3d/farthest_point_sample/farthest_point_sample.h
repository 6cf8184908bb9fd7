#pragma once

#include <string>

#include "common/points.h"
#include "opbridge/op.h"

/// Indices of `npoint` points of each cloud, each the farthest from those taken before it.
///   xyz          (B, N, 3) T             [m]
///   npoint       attr int, 0..1048576    points to take
///   start        attr int, 0..N-1, = 0   the first index
///   min_sq_norm  attr float = -1         [m^2] points with x*x+y*y+z*z <= this are never selected; below 0: none
///   tie_order    attr string             who wins among equally far points: lowest_index (default), or pointnet2,
///                                        the order of the PointNet++ CUDA kernel: smallest (k mod threads, k)
///   idx          (B, npoint) i32         in the order taken
/// T is f16, f32 or f64.
/// Edges: a point that is not finite is never selected, and as `start` is at no distance from anyone; `start`
///   itself is not tested. No selectable point gives `start` everywhere. npoint > N repeats the winner among
///   distances 0. Distances count up to 1e10 m^2, as upstream. npoint 0 or B 0 gives an empty output.
/// Numerics: squared distances in f32 (f64 for f64) decide, without fused multiply-add: CPU and CUDA agree exactly.
/// Memory: workspace about 80 N bytes a cloud (f32), on CUDA 4 N for N > 13312 and none below; an output may not alias
///   an input.
/// Cost: O(N log N + npoint * N / 8) at worst, a fraction of it on real clouds; clouds run in parallel.
/// Errors: N = 0 with npoint > 0; start >= N; shape, dtype or attribute outside this table.
/// Source: Gonzalez 1985; Qi et al. 2017 (PointNet++), whose kernel this equals with start 0, min_sq_norm 1e-3
///   and tie_order pointnet2.
void farthest_point_sample_cuda(const opbridge::Call& call);

namespace farthest_point_sample {

constexpr float kFarthest = 1e10f;  // upstream's initial distance: nothing is farther

/// Tells who wins a tie: the smaller rank. Ranks are distinct, and index() undoes rank().
struct TieOrder {
  uint32_t threads = 1;  // of upstream's block
  uint32_t rows = 1;     // points a thread strides over

  /// choice: 0 lowest_index, 1 pointnet2.
  OPBRIDGE_HD TieOrder(int choice, int64_t n) {
    if (choice == 1) {
      while (threads < 512 && static_cast<int64_t>(threads) * 2 <= n) threads *= 2;
    }
    rows = static_cast<uint32_t>((n + threads - 1) / threads);
  }
  OPBRIDGE_HD uint32_t rank(uint32_t k) const {
    return threads == 1 ? k : (k % threads) * rows + k / threads;
  }
  OPBRIDGE_HD uint32_t index(uint32_t rank) const {
    return threads == 1 ? rank : (rank % rows) * threads + rank / rows;
  }
};

template <class C>
OPBRIDGE_HD bool selectable(pvn3d::Point<C> p, C min_sq_norm) {
  return pvn3d::is_finite(p.x, p.y, p.z) && !(pvn3d::squared_norm(p.x, p.y, p.z) <= min_sq_norm);
}

/// False where there is nothing to sample. Throws where there is nothing to sample from.
inline bool check(const opbridge::Call& call) {
  const int64_t n = call.input_arg(0).shape[1], start = call.attr_int("start");
  if (call.input_arg(0).shape[0] == 0 || call.attr_int("npoint") == 0) return false;
  if (n == 0) throw opbridge::InvalidArgument("'xyz' has no point to sample from");
  if (start >= n) {
    throw opbridge::InvalidArgument("attribute 'start' must be less than N=" + std::to_string(n) + ", got " +
                                    std::to_string(start));
  }
  return true;
}

/// A CUDA block that keeps a cloud in its registers.
template <int kThreads, int kEach>
struct Block {
  static constexpr int threads = kThreads, each = kEach, points = kThreads * kEach;
};
template <class C>
struct LargestBlock : Block<512, sizeof(C) == 4 ? 26 : 11> {};

/// On CUDA larger clouds keep their distances in the workspace.
inline size_t cuda_workspace(const opbridge::Call& call) {
  const int64_t clouds = call.input_arg(0).shape[0], n = call.input_arg(0).shape[1];
  const bool f64 = call.input_dtype(0) == opbridge::DType::f64;
  const bool resident = n <= (f64 ? LargestBlock<double>::points : LargestBlock<float>::points);
  return resident ? 0 : static_cast<size_t>(clouds * n) * (f64 ? sizeof(double) : sizeof(float));
}

}  // namespace farthest_point_sample
