#include "common/block.cuh"
#include "three_nn/three_nn.h"

namespace {

using opbridge::Call;
using pvn3d::Compute;
using pvn3d::kAllLanes;
using pvn3d::Point;

constexpr int kThreads = 256, kLanes = 8;  // lanes that share a query
constexpr int kQueries = kThreads / kLanes;
constexpr int kAtOnce = 4;  // points that a lane looks at

// The three nearest so far, by distance, then by index.
template <class C>
struct Three {
  C d2[3] = {static_cast<C>(INFINITY), static_cast<C>(INFINITY), static_cast<C>(INFINITY)};
  int32_t idx[3] = {0, 0, 0};

  static __device__ __forceinline__ bool before(C da, int32_t ia, C db, int32_t ib) {
    return da < db || (da == db && ia < ib);
  }
  __device__ __forceinline__ void add(C d, int32_t i) {  // not NaN; an infinite one is no neighbour
    if (!before(d, i, d2[2], idx[2])) return;
    const bool first = before(d, i, d2[0], idx[0]), second = first || before(d, i, d2[1], idx[1]);
    d2[2] = second ? d2[1] : d;
    idx[2] = second ? idx[1] : i;
    d2[1] = first ? d2[0] : second ? d : d2[1];
    idx[1] = first ? idx[0] : second ? i : idx[1];
    if (first) {
      d2[0] = d;
      idx[0] = i;
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    three_nn_kernel(const T* unknown, const T* known, int64_t clouds, int64_t n, int64_t m, bool squared,
                    T* dist, int32_t* idx) {
  using C = Compute<T>;
  using Tile = pvn3d::PointTile<C>;
  static_assert(Tile::kStep % (kAtOnce * kLanes) == 0, "reads what the tile has filled in");
  __shared__ Tile tile;
  const int lane = static_cast<int>(threadIdx.x) % kLanes, row = static_cast<int>(threadIdx.x) / kLanes;
  pvn3d::for_each_task(clouds, n, kQueries, [&](int64_t b, int64_t first) {
    const int64_t query = first + row;
    const Point<C> q = query < n ? pvn3d::load_point(unknown, b * n + query) : Point<C>{};
    Three<C> best;
    for (int64_t base = 0; base < m; base += Tile::kSize) {
      __syncthreads();  // nobody looks at the tile any more
      const int count = tile.load(known + b * m * 3, base, m);
      __syncthreads();
      for (int i = lane; i < count; i += kAtOnce * kLanes) {
        C d2[kAtOnce];
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) d2[s] = tile.squared_distance_to(i + s * kLanes, q);
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) {
          if (d2[s] < best.d2[2]) best.add(d2[s], static_cast<int32_t>(base) + i + s * kLanes);
        }
      }
    }
#pragma unroll
    for (int other = 1; other < kLanes; other *= 2) {
      Three<C> theirs;
#pragma unroll
      for (int s = 0; s < 3; ++s) {
        theirs.d2[s] = __shfl_xor_sync(kAllLanes, best.d2[s], other);
        theirs.idx[s] = __shfl_xor_sync(kAllLanes, best.idx[s], other);
      }
#pragma unroll
      for (int s = 0; s < 3; ++s) best.add(theirs.d2[s], theirs.idx[s]);
    }
    if (query >= n || lane >= 3) return;
    const C d2 = lane == 0 ? best.d2[0] : lane == 1 ? best.d2[1] : best.d2[2];
    const int64_t at = (b * n + query) * 3 + lane;
    idx[at] = lane == 0 ? best.idx[0] : lane == 1 ? best.idx[1] : best.idx[2];
    dist[at] = static_cast<T>(squared ? d2 : sqrt(d2));
  });
}

}  // namespace

void three_nn_cuda(const Call& call) {
  if (!three_nn::check(call)) return;
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const int64_t clouds = call.input_arg(0).shape[0], n = call.input_arg(0).shape[1],
                  m = call.input_arg(1).shape[1];
    opbridge::launch<three_nn_kernel<T>>(
        call, pvn3d::blocks_for((n + kQueries - 1) / kQueries, clouds, kThreads), call.input<T>(0).data(),
        call.input<T>(1).data(), clouds, n, m, call.attr_bool("squared"), call.output<T>(0).data(),
        call.output<int32_t>(1).data());
  });
}
