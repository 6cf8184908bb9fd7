// Who refers to whom: turns a scatter-add into sums of fixed order.
#pragma once

#include <string>

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

/// Throws for more positions or targets than an int32 numbers.
inline void check_inverse_index(int64_t n, int64_t count) {
  constexpr int64_t kMost = 0x7fffffff;
  if (n < kMost && count <= kMost) return;  // n itself stands for out of range
  throw opbridge::Error(opbridge::ErrorKind::kNotSupported,
                        "the gradient takes at most 2147483647 indices a batch, and fewer targets; got " +
                            std::to_string(count) + " and " + std::to_string(n));
}

/// The workspace of `batches` inverse indices, one for each batch.
inline size_t inverse_index_bytes(int64_t batches, int64_t n, int64_t count) {
  check_inverse_index(n, count);
  Arena arena;
  InverseIndex(arena, n, count);
  return arena.used() * static_cast<size_t>(batches);
}

/// The one of batch b, in the workspace of a call that asked for inverse_index_bytes().
inline InverseIndex inverse_index(const opbridge::Call& call, int64_t b, int64_t n, int64_t count) {
  Arena arena(static_cast<char*>(call.workspace()) + inverse_index_bytes(b, n, count));
  return {arena, n, count};
}

/// The same lists of all batches on CUDA (inverse_index.cuh builds them): of batch b, target t has the positions
/// order[b * count + p] for p from start[b * (n + 1) + t] to start[b * (n + 1) + t + 1]. Memory: up to 16 count + 4 n
/// bytes a batch.
struct CudaInverseIndex {
  static constexpr int kDigit = 8;                // bits that one pass of the radix sort looks at
  static constexpr int64_t kMostTiles = 64;       // of a batch
  static constexpr int64_t kTileStep = 256;       // a tile is a multiple of it
  static constexpr int64_t kSmallestTile = 2048;  // worth a block

  int64_t batches, n, count, tile, tiles;
  int passes;  // over targets 0 .. n, where n stands for all that are out of range
  int32_t* start;
  int32_t* order;        // after the last pass
  uint32_t* targets[2];  // of the sorted positions, where the passes leave them in turns
  int32_t* positions[2];
  int32_t* digit_counts;  // of each batch, tile and digit

  CudaInverseIndex(Arena& arena, int64_t batches_, int64_t n_, int64_t count_)
      : batches(batches_), n(n_), count(count_), passes(1) {
    const int64_t even = (count + kMostTiles - 1) / kMostTiles;
    tile = ((even < kSmallestTile ? kSmallestTile : even) + kTileStep - 1) / kTileStep * kTileStep;
    tiles = (count + tile - 1) / tile;
    while (passes * kDigit < 63 && (n >> (passes * kDigit)) > 0) ++passes;
    start = arena.take<int32_t>(batches * (n + 1));
    for (int i = 0; i < 2; ++i) {
      const int64_t size = i < passes ? batches * count : 0;
      targets[i] = arena.take<uint32_t>(size);
      positions[i] = arena.take<int32_t>(size);
    }
    digit_counts = arena.take<int32_t>((batches * tiles) << kDigit);
    order = positions[(passes - 1) % 2];
  }
};

inline size_t cuda_inverse_index_bytes(int64_t batches, int64_t n, int64_t count) {
  check_inverse_index(n, count);
  Arena arena;
  const CudaInverseIndex measured(arena, batches, n, count);
  return arena.used();
}

}  // namespace pvn3d
