#include "ball_query/ball_query.h"
#include "common/block.cuh"

namespace {

using opbridge::Call;
using pvn3d::Compute;
using pvn3d::kAllLanes;
using pvn3d::kWarp;
using pvn3d::Point;

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// A warp for each centre. It looks at the cloud in order and stops when it has found enough.
template <class T>
__global__ void __launch_bounds__(kThreads)
    ball_query_kernel(const T* xyz, const T* centres, int64_t clouds, int64_t n, int64_t m, int nsample,
                      Compute<T> min_radius2, Compute<T> radius2, int32_t* idx, int32_t* counts) {
  using C = Compute<T>;
  using Tile = pvn3d::PointTile<C>;
  __shared__ Tile tile;
  const int lane = pvn3d::lane_index(), warp = static_cast<int>(threadIdx.x) / kWarp;
  pvn3d::for_each_task(clouds, m, kWarps, [&](int64_t b, int64_t first) {
    const int64_t centre = first + warp;
    const bool mine = centre < m;
    const Point<C> q = mine ? pvn3d::load_point(centres, b * m + centre) : Point<C>{};
    int32_t* const row = idx + (b * m + centre) * nsample;
    int found = mine ? 0 : nsample;
    int32_t first_hit = 0;
    for (int64_t base = 0; base < n; base += Tile::kSize) {
      if (__syncthreads_and(found >= nsample)) break;  // nobody looks at the tile any more
      const int count = tile.load(xyz + b * n * 3, base, n);
      __syncthreads();
      for (int i = lane; i < count + lane && found < nsample; i += Tile::kStep) {
        bool inside[Tile::kStep / kWarp], any = false;
#pragma unroll
        for (int s = 0; s < Tile::kStep / kWarp; ++s) {
          inside[s] = ball_query::inside(tile.squared_distance_to(i + s * kWarp, q), min_radius2, radius2);
          any |= inside[s];
        }
        if (!__any_sync(kAllLanes, any)) continue;
#pragma unroll
        for (int s = 0; s < Tile::kStep / kWarp; ++s) {
          const unsigned hits = __ballot_sync(kAllLanes, inside[s]);
          const int at = found + __popc(hits & pvn3d::lanes_below());
          const int32_t here = static_cast<int32_t>(base) + i + s * kWarp;
          if (inside[s] && at < nsample) row[at] = here;
          if (found == 0 && hits != 0) first_hit = here - lane + __ffs(static_cast<int>(hits)) - 1;
          found += __popc(hits);
        }
      }
    }
    if (!mine) return;
    found = min(found, nsample);
    for (int s = found + lane; s < nsample; s += kWarp) row[s] = first_hit;
    if (counts != nullptr && lane == 0) counts[b * m + centre] = found;
  });
}

}  // namespace

void ball_query_cuda(const Call& call) {
  if (!ball_query::check(call)) return;
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const int64_t clouds = call.input_arg(0).shape[0], n = call.input_arg(0).shape[1],
                  m = call.input_arg(1).shape[1];
    const C radius = call.attr_float("radius"), min_radius = call.attr_float("min_radius");
    opbridge::launch<ball_query_kernel<T>>(
        call, pvn3d::blocks_for((m + kWarps - 1) / kWarps, clouds, kThreads), call.input<T>(0).data(),
        call.input<T>(1).data(), clouds, n, m, static_cast<int>(call.attr_int("nsample")),
        min_radius * min_radius, radius * radius, call.output<int32_t>(0).data(),
        call.has_output(1) ? call.output<int32_t>(1).data() : static_cast<int32_t*>(nullptr));
  });
}
