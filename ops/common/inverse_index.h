// Who refers to whom: turns a scatter-add into sums of fixed order.
#pragma once

#include "common/arena.h"
#include "common/points.h"
#include "opbridge/op.h"

namespace pvn3d {

/// For each target t in [0, n) the positions p with index[p] == t, ascending: order[start[t]] ..
/// order[start[t + 1]]. Positions whose index is out of range are in no list. Adding up in this order gives
/// the same bits whatever the number of threads. Memory: 4 (n + 1) + 4 count bytes.
struct InverseIndex {
  int32_t* start;
  int32_t* order;

  InverseIndex(Arena& arena, int64_t n, int64_t count)
      : start(arena.take<int32_t>(n + 1)), order(arena.take<int32_t>(count)) {}

  template <class I>
  void build(const I* index, int64_t count, int64_t n) {
    for (int64_t t = 0; t <= n; ++t) start[t] = 0;
    for (int64_t p = 0; p < count; ++p) {
      if (in_range(index[p], n)) ++start[index[p]];
    }
    int32_t sum = 0;
    for (int64_t t = 0; t <= n; ++t) {
      const int32_t here = t < n ? start[t] : 0;
      start[t] = sum;
      sum += here;
    }
    for (int64_t p = 0; p < count; ++p) {
      if (in_range(index[p], n)) order[start[index[p]]++] = static_cast<int32_t>(p);
    }
    for (int64_t t = n; t > 0; --t) start[t] = start[t - 1];  // filling moved each start to the next one
    start[0] = 0;
  }
};

/// The workspace of `batches` inverse indices, one for each batch.
inline size_t inverse_index_bytes(int64_t batches, int64_t n, int64_t count) {
  Arena arena;
  InverseIndex(arena, n, count);
  return arena.used() * static_cast<size_t>(batches);
}

/// The one of batch b, in the workspace of a call that asked for inverse_index_bytes().
inline InverseIndex inverse_index(const opbridge::Call& call, int64_t b, int64_t n, int64_t count) {
  Arena arena(static_cast<char*>(call.workspace()) + inverse_index_bytes(b, n, count));
  return {arena, n, count};
}

}  // namespace pvn3d
