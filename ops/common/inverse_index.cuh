// Builds CudaInverseIndex: a stable radix sort of the positions by their targets, eight bits at a time, in which every
// number of every list is decided by its place alone: the same lists in every run, and those of the CPU.
#pragma once

#include "common/block.cuh"
#include "common/inverse_index.h"

namespace pvn3d {

namespace inverse {

constexpr int kThreads = 256, kWarps = kThreads / kWarp, kDigits = 1 << CudaInverseIndex::kDigit;
static_assert(kThreads == kDigits, "a thread for each digit");

/// Targets as the caller gives them: those out of range come last, as n.
template <class I>
struct Given {
  const I* index;
  int64_t n;
  __device__ uint32_t target(int64_t at) const {
    return in_range(index[at], n) ? static_cast<uint32_t>(index[at]) : static_cast<uint32_t>(n);
  }
  __device__ int32_t position(int64_t, int64_t p) const { return static_cast<int32_t>(p); }
};

/// Targets and positions as the pass before has left them.
struct Sorted {
  const uint32_t* targets;
  const int32_t* positions;
  __device__ uint32_t target(int64_t at) const { return targets[at]; }
  __device__ int32_t position(int64_t at, int64_t) const { return positions[at]; }
};

/// How often each digit occurs in each tile.
template <class Source>
__global__ void __launch_bounds__(kThreads)
    count_kernel(Source source, int shift, int64_t batches, int64_t count, int64_t tile, int64_t tiles,
                 int32_t* digit_counts) {
  __shared__ int32_t counts[kDigits];
  for_each_task(batches, count, tile, [&](int64_t b, int64_t first) {
    const int64_t end = first + tile < count ? first + tile : count;
    __syncthreads();
    counts[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t p = first + threadIdx.x; p < end; p += kThreads) {
      atomicAdd(&counts[(source.target(b * count + p) >> shift) % kDigits], 1);
    }
    __syncthreads();
    digit_counts[(b * tiles + blockIdx.x) * kDigits + threadIdx.x] = counts[threadIdx.x];
  });
}

/// The sum of v over the threads before this one.
__device__ __forceinline__ int32_t sum_before(int32_t v) {
  __shared__ int32_t of_warp[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int32_t sum = warp_inclusive_sum(v);
  if (lane_index() == kWarp - 1) of_warp[warp] = sum;
  __syncthreads();
  int32_t before = sum - v;
  for (int w = 0; w < warp; ++w) before += of_warp[w];
  return before;
}

/// Moves the positions of each tile to where they belong by this digit. A warp has a run of the tile.
template <class Source>
__global__ void __launch_bounds__(kThreads)
    move_kernel(Source source, int shift, int64_t batches, int64_t count, int64_t tile, int64_t tiles,
                const int32_t* digit_counts, uint32_t* targets, int32_t* positions) {
  __shared__ int32_t next[kWarps][kDigits];  // where a warp's next position of a digit goes
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = lane_index();
  for_each_task(batches, count, tile, [&](int64_t b, int64_t tile_first) {
    const int64_t first = tile_first + warp * (tile / kWarps);
    const int64_t end = first + tile / kWarps < count ? first + tile / kWarps : count;
    for (int w = 0; w < kWarps; ++w) next[w][thread] = 0;
    __syncthreads();
    for (int64_t p = first + lane; p < end; p += kWarp) {
      atomicAdd(&next[warp][(source.target(b * count + p) >> shift) % kDigits], 1);
    }
    // Before this tile's positions of digit `thread`: all of lower digits, and this digit's of the tiles before.
    int32_t total = 0, before = 0;
    for (int64_t t = 0; t < tiles; ++t) {
      if (t == blockIdx.x) before = total;
      total += digit_counts[(b * tiles + t) * kDigits + thread];
    }
    before += sum_before(total);
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) {
      const int32_t mine = next[w][thread];
      next[w][thread] = before;
      before += mine;
    }
    __syncthreads();
    for (int64_t p = first; p < end; p += kWarp) {
      const int64_t at = b * count + p + lane;
      const bool real = p + lane < end;
      const uint32_t target = real ? source.target(at) : 0;
      const int digit = static_cast<int>((target >> shift) % kDigits);
      unsigned same = __ballot_sync(kAllLanes, real);  // lanes with this digit
#pragma unroll
      for (int bit = 0; bit < CudaInverseIndex::kDigit; ++bit) {
        const unsigned set = __ballot_sync(kAllLanes, digit >> bit & 1);
        same &= (digit >> bit & 1) != 0 ? set : ~set;
      }
      if (real) {
        const int64_t to = b * count + next[warp][digit] + __popc(same & lanes_below());
        targets[to] = target;
        positions[to] = source.position(at, p + lane);
      }
      __syncwarp();
      if (real && (same & lanes_below()) == 0) next[warp][digit] += __popc(same);
      __syncwarp();
    }
    __syncthreads();
  });
}

/// Where each target's positions start: the first sorted one whose target is not below it.
static __global__ void start_kernel(const uint32_t* targets, int64_t batches, int64_t n, int64_t count,
                                    int32_t* start) {
  for (int64_t i = opbridge::thread_index(); i < batches * (n + 1); i += opbridge::thread_count()) {
    const Division which = divide(i, n + 1);
    const uint32_t* sorted = targets + which.quotient * count;
    int64_t low = 0, high = count;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (static_cast<int64_t>(sorted[middle]) < which.remainder) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    start[i] = static_cast<int32_t>(low);
  }
}

}  // namespace inverse

/// Builds the lists of index (batches, count) in a workspace of cuda_inverse_index_bytes().
template <class I>
CudaInverseIndex cuda_inverse_index(const opbridge::Call& call, const I* index, int64_t batches, int64_t n,
                                    int64_t count) {
  Arena arena(call.workspace());
  const CudaInverseIndex lists(arena, batches, n, count);
  const opbridge::Grid blocks = blocks_for(lists.tiles, batches, inverse::kThreads);
  const auto sort = [&](auto source, int pass) {
    using Source = decltype(source);
    const int shift = pass * CudaInverseIndex::kDigit;
    opbridge::launch<inverse::count_kernel<Source>>(call, blocks, source, shift, batches, count, lists.tile,
                                                    lists.tiles, lists.digit_counts);
    opbridge::launch<inverse::move_kernel<Source>>(call, blocks, source, shift, batches, count, lists.tile,
                                                   lists.tiles, lists.digit_counts, lists.targets[pass % 2],
                                                   lists.positions[pass % 2]);
  };
  sort(inverse::Given<I>{index, n}, 0);
  for (int pass = 1; pass < lists.passes; ++pass) {
    sort(inverse::Sorted{lists.targets[(pass - 1) % 2], lists.positions[(pass - 1) % 2]}, pass);
  }
  opbridge::launch<inverse::start_kernel>(call, opbridge::grid_for(batches * (n + 1)),
                                          lists.targets[(lists.passes - 1) % 2], batches, n, count,
                                          lists.start);
  return lists;
}

}  // namespace pvn3d
