// What kernels that work in blocks and warps share.
#pragma once

#include "common/points.h"
#include "opbridge/cuda.h"

namespace pvn3d {

/// A block for each of `tasks` (x) of each of `clouds` (y), as far as a grid reaches: kernels go on in steps of
/// gridDim. Two dimensions spare the device a 64-bit division, which is a call.
inline opbridge::Grid blocks_for(int64_t tasks, int64_t clouds, unsigned threads) {
  constexpr int64_t kMost = 65535;
  return {dim3(static_cast<unsigned>(tasks < kMost ? tasks : kMost),
               static_cast<unsigned>(clouds < kMost ? clouds : kMost)),
          dim3(threads), 0};
}

/// Calls task(b, first) for what this block of a grid of blocks_for(items / each, rounded up, clouds) does: the items of
/// cloud b from `first` on, `each` of them.
template <class Task>
__device__ __forceinline__ void for_each_task(int64_t clouds, int64_t items, int64_t each, const Task& task) {
  for (int64_t b = blockIdx.y; b < clouds; b += gridDim.y) {
    for (int64_t first = blockIdx.x * each; first < items; first += gridDim.x * each) task(b, first);
  }
}

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x % kWarp); }
__device__ __forceinline__ unsigned lanes_below() { return (1u << lane_index()) - 1; }

/// The smallest of all lanes.
__device__ __forceinline__ uint32_t warp_min(uint32_t v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_min_sync(kAllLanes, v);
#else
  for (int offset = kWarp / 2; offset > 0; offset /= 2) v = min(v, __shfl_xor_sync(kAllLanes, v, offset));
  return v;
#endif
}

/// The largest of all lanes; of numbers that are not NaN, the negative ones all equal.
template <class C>
__device__ __forceinline__ C warp_max(C v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (sizeof(C) == 4) {  // the bits of floats of one sign are in the floats' order
    return __int_as_float(__reduce_max_sync(kAllLanes, __float_as_int(v)));
  } else
#endif
  {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const C other = __shfl_xor_sync(kAllLanes, v, offset);
      v = v < other ? other : v;
    }
    return v;
  }
}

/// The smallest of all lanes; of numbers that are not NaN.
template <class C>
__device__ __forceinline__ C warp_min_of_reals(C v) {
#pragma unroll 1
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const C other = __shfl_xor_sync(kAllLanes, v, offset);
    v = other < v ? other : v;
  }
  return v;
}

/// v of this lane and those before it, added up.
__device__ __forceinline__ int warp_inclusive_sum(int v) {
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int before = __shfl_up_sync(kAllLanes, v, offset);
    if (lane_index() >= offset) v += before;
  }
  return v;
}

struct Division {
  int64_t quotient, remainder;
};

/// a / b of numbers that are not negative; in 32 bits where that will do, which is several times faster.
__device__ __forceinline__ Division divide(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) {
    const uint32_t n = static_cast<uint32_t>(a), d = static_cast<uint32_t>(b);
    return {n / d, n % d};
  }
  return {a / b, a % b};
}

/// N elements at once, from an address aligned to them (or to 16 bytes, where they are more).
template <int N, class T>
__device__ __forceinline__ void load_many(const T* from, T (&to)[N]) {
  constexpr int kEach = N < opbridge::kPackSize<T> ? N : opbridge::kPackSize<T>;
  static_assert(N % kEach == 0, "whole packs");
#pragma unroll
  for (int i = 0; i < N; i += kEach) {
    const opbridge::Pack<T, kEach> pack = *reinterpret_cast<const opbridge::Pack<T, kEach>*>(from + i);
#pragma unroll
    for (int k = 0; k < kEach; ++k) to[i + k] = pack.values[k];
  }
}

/// Points of a cloud in shared memory, coordinate by coordinate, for all threads of a block to look at.
template <class C>
struct PointTile {
  static constexpr int kSize = 1024;
  static constexpr int kStep = 4 * kWarp;  // loops may run to the next multiple

  C x[kSize], y[kSize], z[kSize];

  /// Loads the points from `first` on, as many as fit, and NaN up to the next multiple of kStep. Returns how
  /// many there are. Barriers before, when nobody looks at the tile any more, and after are the caller's.
  template <class T>
  __device__ int load(const T* xyz, int64_t first, int64_t n) {
    const int count = static_cast<int>(n - first < kSize ? n - first : kSize);
    const int end = (count + kStep - 1) / kStep * kStep;
    for (int i = static_cast<int>(threadIdx.x); i < end; i += static_cast<int>(blockDim.x)) {
      const C nan = static_cast<C>(NAN);
      const Point<C> p = i < count ? load_point(xyz, first + i) : Point<C>{nan, nan, nan};
      x[i] = p.x;
      y[i] = p.y;
      z[i] = p.z;
    }
    return count;
  }

  __device__ __forceinline__ C squared_distance_to(int i, const Point<C>& q) const {
    return squared_distance(x[i], y[i], z[i], q.x, q.y, q.z);
  }
};

}  // namespace pvn3d
