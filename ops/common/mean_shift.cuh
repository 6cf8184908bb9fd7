// Mean shift on CUDA, many problems at once; the CPU's sums and decisions, so the CPU's bits. See mean_shift.h.
#pragma once

#include "common/arena.h"
#include "common/mean_shift.h"
#include "common/points.h"
#include "opbridge/cuda.h"

namespace pvn3d {

/// The votes of all problems and what mean shift finds, in device memory. Kernels on the same stream fill the votes and
/// call begin() before mean_shift_cuda() is called; kernels after it read the results.
template <class C>
struct MeanShiftProblems {
  /// `votes`: room for the votes of all problems together; `moving`: whether all votes move (blurring or upstream).
  MeanShiftProblems(Arena& arena, int64_t problems, int64_t votes, const MeanShiftOptions& o)
      : count(problems),
        x(arena.take<C>(votes)),
        y(arena.take<C>(votes)),
        z(arena.take<C>(votes)),
        moved(arena.take<C>(o.upstream || o.blurring ? 3 * votes : 0)),
        stride(votes),
        start(arena.take<int64_t>(problems)),
        size(arena.take<int32_t>(problems)),
        rounds(arena.take<int32_t>(problems)),
        best(arena.take<unsigned long long>(problems)),
        farthest(arena.take<unsigned long long>(3 * problems)),
        centre(arena.take<C>(3 * problems)),
        seed(arena.take<int32_t>(problems)),
        inliers(arena.take<int32_t>(problems)) {}

  /// Problem p has the n votes from place `at` on. One thread calls it.
  __device__ void begin(int64_t p, int64_t at, int32_t n) const {
    start[p] = at;
    size[p] = n;
    rounds[p] = 0;
    best[p] = farthest[3 * p] = farthest[3 * p + 1] = farthest[3 * p + 2] = 0;
  }

  int64_t count;
  C *x, *y, *z;  // the votes
  C* moved;      // where they or the seeds are on their way: x, y and z, `stride` apart
  int64_t stride;
  int64_t* start;            // (count)
  int32_t* size;             // (count)
  int32_t* rounds;           // (count) updates done, where all votes move
  unsigned long long* best;  // (count) the densest vote so far: its count above the complement of its number
  unsigned long long* farthest;  // (count, 3) bits of the longest step of the last, this and the next round
  C* centre;                     // (count, 3) result; 0 without votes
  int32_t* seed;     // (count) result: number of the winning vote in its problem, -1 without votes
  int32_t* inliers;  // (count) result: its votes
};

/// The votes of a problem, where they are after `rounds` updates.
template <class C>
struct VotesOf {
  __device__ VotesOf(const MeanShiftProblems<C>& m, int64_t p, int32_t rounds) {
    const bool other = rounds % 2 != 0;  // blurring alternates between two arrays
    x = (other ? m.moved : m.x) + m.start[p];
    y = (other ? m.moved + m.stride : m.y) + m.start[p];
    z = (other ? m.moved + 2 * m.stride : m.z) + m.start[p];
  }
  C *x, *y, *z;
};

/// Votes after mean shift has ended: where the winner and the counts are.
template <class C>
__device__ VotesOf<C> final_votes(const MeanShiftProblems<C>& m, int64_t p, bool blurring) {
  return {m, p, blurring ? m.rounds[p] : 0};
}

/// Finds the centre of every problem; `capacity`: the most votes that one can have. The launches depend on these sizes and
/// the options alone.
template <class C>
void mean_shift_cuda(const opbridge::Call& call, const MeanShiftProblems<C>& m, int64_t capacity,
                     const MeanShiftOptions& options);

extern template void mean_shift_cuda(const opbridge::Call&, const MeanShiftProblems<float>&, int64_t,
                                     const MeanShiftOptions&);
extern template void mean_shift_cuda(const opbridge::Call&, const MeanShiftProblems<double>&, int64_t,
                                     const MeanShiftOptions&);

/// One block for each item; blocks go on in steps of gridDim.x.
inline opbridge::Grid block_for_each(int64_t items, unsigned threads) {
  constexpr int64_t kMaxBlocks = 1 << 20;
  return {dim3(static_cast<unsigned>(items < kMaxBlocks ? items : kMaxBlocks)), dim3(threads), 0};
}

constexpr unsigned kCollectThreads = 256;

/// Passes on those of `candidates` items that keep(i) takes, in their order: put(place, i) with places from 0 on. The
/// whole block calls it. Returns how many there are.
template <class Keep, class Put>
__device__ int64_t collect_in_order(int64_t candidates, const Keep& keep, const Put& put) {
  __shared__ int32_t of_warp[kCollectThreads / 32];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  int64_t taken = 0;
  for (int64_t base = 0; base < candidates; base += blockDim.x) {
    const int64_t i = base + threadIdx.x;
    const bool kept = i < candidates && keep(i);
    const unsigned ballot = __ballot_sync(0xffffffffu, kept);
    if (lane == 0) of_warp[warp] = __popc(ballot);
    __syncthreads();
    int before = __popc(ballot & ((1u << lane) - 1)), all = 0;
    for (int w = 0; w < static_cast<int>(blockDim.x / 32); ++w) {
      if (w < warp) before += of_warp[w];
      all += of_warp[w];
    }
    if (kept) put(taken + before, i);
    taken += all;
    __syncthreads();  // before of_warp is written again
  }
  return taken;
}

}  // namespace pvn3d
