// Mean shift on a set of votes: the densest vote, and the centre that it moves to. See vote_aggregate.h for
// the contract.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/arena.h"

namespace pvn3d {

struct MeanShiftOptions {
  float bandwidth;
  int64_t max_iter;
  float tol;
  bool upstream;  // stop when every seed has come to rest, not when the winning one has
  bool blurring;  // the votes move too (ffb6d)
};

/// Votes as three arrays, and room to work on them: 9 values of type C and an int32 for each vote.
template <class C>
struct MeanShiftMemory {
  MeanShiftMemory(Arena& arena, int64_t n)
      : x(arena.take<C>(n + kPadding)),
        y(arena.take<C>(n + kPadding)),
        z(arena.take<C>(n + kPadding)),
        moved(arena.take<C>(3 * n + kPadding)),
        sorted(arena.take<C>(3 * n + kPadding)),
        order(arena.take<int32_t>(n)),
        counts(arena.take<int32_t>(n)) {}

  static constexpr int64_t kPadding = 16;  // vectors may be read past the end
  C *x, *y, *z;                            // the votes; the caller fills them
  C* moved;                                // scratch: seeds on their way
  C* sorted;                               // scratch: votes in buckets
  int32_t* order;                          // scratch: which vote stands where in `sorted`
  int32_t* counts;                         // out: votes closer than the bandwidth, itself included
};

template <class C>
struct MeanShiftResult {
  C centre[3];
  int64_t seed;   // the winning vote; -1 when there are none
  int64_t count;  // its votes
};

/// Order of sums: votes j, j + 256, j + 512, ... in lane j, then the lanes pairwise. Any device can follow
/// it.
constexpr int64_t kLanes = 256;

/// Finds the centre of the n finite votes in `m`. Blurring leaves the moved votes in m.x, m.y and m.z.
template <class C>
MeanShiftResult<C> mean_shift(const MeanShiftMemory<C>& m, int64_t n, const MeanShiftOptions& options);

extern template MeanShiftResult<float> mean_shift(const MeanShiftMemory<float>&, int64_t,
                                                  const MeanShiftOptions&);
extern template MeanShiftResult<double> mean_shift(const MeanShiftMemory<double>&, int64_t,
                                                   const MeanShiftOptions&);

}  // namespace pvn3d
