#include "common/block.cuh"
#include "farthest_point_sample/farthest_point_sample.h"

namespace {

using farthest_point_sample::Block;
using farthest_point_sample::TieOrder;
using opbridge::Call;
using pvn3d::Compute;
using pvn3d::kAllLanes;
using pvn3d::kWarp;
using pvn3d::load_point;
using pvn3d::Point;

constexpr uint32_t kNobody = 0xffffffffu;

// A candidate for the next sample: who is farther, or as far and of lower rank, wins.
template <class C>
struct Far {
  C distance = C(-1);  // squared; of a point that may be selected it is not negative
  uint32_t rank = kNobody;
};

template <class C>
__device__ __forceinline__ Far<C> farthest_of_warp(Far<C> mine) {
  const C distance = pvn3d::warp_max(mine.distance);
  return {distance, pvn3d::warp_min(mine.distance == distance ? mine.rank : kNobody)};
}

// Where the warps of a block leave their candidates. Two sets take turns, so that one barrier a sample is enough: a
// set is written again only behind the next sample's barrier, which nobody passes who still reads it.
template <class C, int kThreads>
class Election {
 public:
  /// Of the warps' candidates the one that wins.
  __device__ Far<C> hold(const Far<C>& mine) {
    __shared__ C distances[2][kWarp];
    __shared__ uint32_t ranks[2][kWarp];
    const int lane = pvn3d::lane_index();
    if (lane == 0) {
      distances[turn_][threadIdx.x / kWarp] = mine.distance;
      ranks[turn_][threadIdx.x / kWarp] = mine.rank;
    }
    __syncthreads();
    Far<C> other;
    if (lane < kThreads / kWarp) other = {distances[turn_][lane], ranks[turn_][lane]};
    turn_ ^= 1;
    return farthest_of_warp(other);
  }

 private:
  int turn_ = 0;
};

// Samples cloud after cloud. update(p) takes p as the next sample: it brings the distances up to date and
// returns its candidate.
template <class T, int kThreads, class Update>
__device__ __forceinline__ void sample_cloud(Election<Compute<T>, kThreads>& election, const T* xyz,
                                             int npoint, int start, const TieOrder& ties, int32_t* idx,
                                             const Update& update) {
  const int thread = static_cast<int>(threadIdx.x);
  int last = start, j = 1;
  if (thread == 0) idx[0] = start;
  for (; j < npoint; ++j) {
    const Far<Compute<T>> winner = election.hold(update(load_point(xyz, last)));
    if (winner.rank != kNobody) last = static_cast<int>(ties.index(winner.rank));
    if (!(winner.distance > 0)) break;  // nobody to select, or all taken: it stays that way
    if (thread == 0) idx[j] = last;
  }
  for (j += thread; j < npoint; j += kThreads) idx[j] = last;
}

// The selectable points of a cloud, sorted by cells of a grid along a Z-curve, so that neighbours come together. Nothing
// depends on their order within a cell, which atomics decide.
template <class C, int kThreads, int kEach>
struct SortedCloud {
  static constexpr int kPoints = kThreads * kEach, kBits = kPoints > 2048 ? 4 : 3, kCells = 1 << (3 * kBits);
  static constexpr int kBuckets = kPoints / kWarp, kWarps = kThreads / kWarp;
  static_assert(kPoints <= 1 << 16 && kCells % kThreads == 0);

  uint16_t rank[kPoints];
  union {
    int cell_end[kCells];  // while sorting: how many points are in this cell and those before
    C box[6][kBuckets];    // then: low and high ends of 32 points that a warp holds in one register
  };
  C extent[6][kWarps];
  int of_warp[kWarps];

  // Calls f(point, index) for this thread's selectable points.
  template <class T, class F>
  static __device__ __forceinline__ void for_each(const T* cloud, int n, C min_sq_norm, const F& f) {
    for (int k = static_cast<int>(threadIdx.x); k < n; k += kThreads) {
      const Point<C> p = load_point(cloud, k);
      if (farthest_point_sample::selectable(p, min_sq_norm)) f(p, k);
    }
  }

  // A digit of the Z-curve's place, spread out. NaN is 0.
  static __device__ __forceinline__ int spread(C v, C low, C scale) {
    const C place = (v - low) * scale;
    const int cell = place > 0 ? place < C(1 << kBits) ? static_cast<int>(place) : (1 << kBits) - 1 : 0;
    int bits = 0;
#pragma unroll
    for (int i = 0; i < kBits; ++i) bits |= (cell >> i & 1) << (3 * i);
    return bits;
  }

  /// Returns how many points there are. Begins and ends with a barrier.
  template <class T>
  __device__ int sort(const T* cloud, int n, C min_sq_norm, const TieOrder& ties) {
    const int thread = static_cast<int>(threadIdx.x), lane = pvn3d::lane_index(), warp = thread / kWarp;
    const C infinity = static_cast<C>(INFINITY);
    C low[6] = {infinity, infinity, infinity, infinity, infinity, infinity};  // of x, y, z, -x, -y, -z
    for_each(cloud, n, min_sq_norm, [&](const Point<C>& p, int) {
      const C ends[6] = {p.x, p.y, p.z, -p.x, -p.y, -p.z};
#pragma unroll
      for (int i = 0; i < 6; ++i) low[i] = ends[i] < low[i] ? ends[i] : low[i];
    });
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 6; ++i) {
      low[i] = pvn3d::warp_min_of_reals(low[i]);
      if (lane == 0) extent[i][warp] = low[i];
    }
    for (int cell = thread; cell < kCells; cell += kThreads) cell_end[cell] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 6; ++i) low[i] = pvn3d::warp_min_of_reals(extent[i][lane % kWarps]);
    C widest = 0;
#pragma unroll
    for (int i = 0; i < 3; ++i) widest = -low[i + 3] - low[i] > widest ? -low[i + 3] - low[i] : widest;
    const C scale = C(1 << kBits) / widest;  // not finite where all are in one place: one cell will do
    const auto cell_of = [&](const Point<C>& p) {
      return spread(p.x, low[0], scale) | spread(p.y, low[1], scale) << 1 | spread(p.z, low[2], scale) << 2;
    };
    for_each(cloud, n, min_sq_norm, [&](const Point<C>& p, int) { atomicAdd(&cell_end[cell_of(p)], 1); });
    __syncthreads();
    constexpr int kShare = kCells / kThreads;
    int mine = 0;
    for (int i = 0; i < kShare; ++i) mine += cell_end[thread * kShare + i];
    const int sum = pvn3d::warp_inclusive_sum(mine);
    if (lane == kWarp - 1) of_warp[warp] = sum;
    __syncthreads();
    int before = sum - mine, count = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) before += of_warp[w];
      count += of_warp[w];
    }
    for (int i = 0; i < kShare; ++i) {
      const int here = cell_end[thread * kShare + i];
      cell_end[thread * kShare + i] = before;
      before += here;
    }
    __syncthreads();
    for_each(cloud, n, min_sq_norm, [&](const Point<C>& p, int k) {
      rank[atomicAdd(&cell_end[cell_of(p)], 1)] = static_cast<uint16_t>(ties.rank(static_cast<uint32_t>(k)));
    });
    __syncthreads();
    return count;
  }
};

// The cloud lies in registers, in buckets of 32 neighbours: one in each of a warp's registers, and neighbouring buckets
// in different warps. A bucket whose box is farther from a sample than its farthest member is from all samples before
// stays as it is. The bound of a box is computed as a distance is; since rounding is monotonic it is never above the
// computed distance of a point inside, so that this is exact. Lane s remembers of its warp's bucket s who is farthest.
template <class T, int kThreads, int kEach>
__global__ void __launch_bounds__(kThreads)
    resident_kernel(const T* xyz, int64_t clouds, int n, int npoint, int start, Compute<T> min_sq_norm,
                    TieOrder ties, int32_t* idx) {
  using C = Compute<T>;
  using Cloud = SortedCloud<C, kThreads, kEach>;
  static_assert(kEach <= kWarp, "a lane for each bucket");
  __shared__ Cloud shared;
  Election<C, kThreads> election;
  const int thread = static_cast<int>(threadIdx.x), lane = pvn3d::lane_index(), warp = thread / kWarp;
  for (int64_t b = blockIdx.x; b < clouds; b += gridDim.x) {
    const T* cloud = xyz + b * n * 3;
    const int count = shared.sort(cloud, n, min_sq_norm, ties), buckets = (count + kThreads - 1) / kThreads;
    C x[kEach], y[kEach], z[kEach], best[kEach];
#pragma unroll
    for (int s = 0; s < kEach; ++s) {
      const int at = s * kThreads + thread;
      const bool real = at < count;
      const Point<C> p = real ? load_point(cloud, ties.index(shared.rank[at])) : Point<C>{};
      x[s] = p.x;
      y[s] = p.y;
      z[s] = p.z;
      best[s] = real ? C(farthest_point_sample::kFarthest) : C(-1);
      if (s >= buckets) continue;
      const C infinity = static_cast<C>(INFINITY), ends[6] = {p.x, p.y, p.z, -p.x, -p.y, -p.z};
#pragma unroll
      for (int i = 0; i < 6; ++i) {
        const C end = pvn3d::warp_min_of_reals(real ? ends[i] : infinity);
        if (lane == 0) shared.box[i][warp * kEach + s] = end;
      }
    }
    __syncwarp();
    Far<C> of_bucket, of_warp;
    bool first = true;
    sample_cloud<T>(election, cloud, npoint, start, ties, idx + b * npoint, [&](const Point<C>& p) {
      bool touched = first && lane < buckets;
      if (lane < buckets && !first) {
        const C(*box)[Cloud::kBuckets] = shared.box;
        const int at = warp * kEach + lane;
        const auto outside = [](C low, C high_negated, C v) {  // how far v is beyond the ends
          const C below = low - v, above = v + high_negated, most = below > above ? below : above;
          return most > 0 ? most : C(0);
        };
        const C bound =
            pvn3d::squared_norm(outside(box[0][at], box[3][at], p.x), outside(box[1][at], box[4][at], p.y),
                                outside(box[2][at], box[5][at], p.z));
        touched = bound < of_bucket.distance;
      }
      first = false;
      const unsigned all = __ballot_sync(kAllLanes, touched);
      if (all == 0) return of_warp;
#pragma unroll
      for (int s = 0; s < kEach; ++s) {
        if ((all >> s & 1) == 0) continue;
        const C d2 = pvn3d::squared_distance(x[s], y[s], z[s], p.x, p.y, p.z);
        best[s] =
            d2 < best[s] ? d2 : best[s];  // false for NaN: a sample that is not finite is far from nobody
        const Far<C> farthest =
            farthest_of_warp<C>({best[s], best[s] >= 0 ? shared.rank[s * kThreads + thread] : kNobody});
        if (lane == s) of_bucket = farthest;
      }
      return of_warp = farthest_of_warp(of_bucket);
    });
  }
}

// The cloud is too large for that; its distances lie in the workspace.
template <class T, int kThreads>
__global__ void __launch_bounds__(kThreads)
    streamed_kernel(const T* xyz, int64_t clouds, int64_t n, int npoint, int start, Compute<T> min_sq_norm,
                    TieOrder ties, Compute<T>* distances, int32_t* idx) {
  using C = Compute<T>;
  Election<C, kThreads> election;
  for (int64_t b = blockIdx.x; b < clouds; b += gridDim.x) {
    const T* cloud = xyz + b * n * 3;
    C* best = distances + b * n;
    for (int64_t k = threadIdx.x; k < n; k += kThreads) {  // each thread reads only what it wrote itself
      best[k] = farthest_point_sample::selectable(load_point(cloud, k), min_sq_norm)
                    ? C(farthest_point_sample::kFarthest)
                    : C(-1);
    }
    sample_cloud<T>(election, cloud, npoint, start, ties, idx + b * npoint, [&](const Point<C>& p) {
      Far<C> mine;
#pragma unroll 4
      for (int64_t k = threadIdx.x; k < n; k += kThreads) {
        const Point<C> q = load_point(cloud, k);
        const C d2 = pvn3d::squared_distance(q.x, q.y, q.z, p.x, p.y, p.z);
        C distance = best[k];
        if (d2 < distance) best[k] = distance = d2;
        if (distance >= mine.distance && distance >= 0) {
          const uint32_t rank = ties.rank(static_cast<uint32_t>(k));
          if (distance > mine.distance || rank < mine.rank) mine = {distance, rank};
        }
      }
      return farthest_of_warp(mine);
    });
  }
}

template <class T>
void sample(const Call& call) {
  using C = Compute<T>;
  const int64_t clouds = call.input_arg(0).shape[0], n = call.input_arg(0).shape[1];
  const TieOrder ties(call.attr_choice("tie_order"), n);
  const T* xyz = call.input<T>(0).data();
  int32_t* idx = call.output<int32_t>(0).data();
  const int npoint = static_cast<int>(call.attr_int("npoint")),
            start = static_cast<int>(call.attr_int("start"));
  const C min_sq_norm = call.attr_float("min_sq_norm");
  const auto resident = [&](auto kernel_constants) {
    constexpr int kThreads = decltype(kernel_constants)::threads, kEach = decltype(kernel_constants)::each;
    opbridge::launch<resident_kernel<T, kThreads, kEach>>(call, pvn3d::blocks_for(clouds, 1, kThreads), xyz,
                                                          clouds, static_cast<int>(n), npoint, start,
                                                          min_sq_norm, ties, idx);
  };
  if (n <= Block<256, 4>::points) {
    resident(Block<256, 4>());
  } else if (n <= Block<512, 8>::points) {
    resident(Block<512, 8>());
  } else if (n <= farthest_point_sample::LargestBlock<C>::points) {
    resident(farthest_point_sample::LargestBlock<C>());
  } else {
    constexpr int kThreads = 1024;
    opbridge::launch<streamed_kernel<T, kThreads>>(call, pvn3d::blocks_for(clouds, 1, kThreads), xyz, clouds,
                                                   n, npoint, start, min_sq_norm, ties,
                                                   static_cast<C*>(call.workspace()), idx);
  }
}

}  // namespace

void farthest_point_sample_cuda(const Call& call) {
  if (!farthest_point_sample::check(call)) return;
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0),
                                                   [&](auto zero) { sample<decltype(zero)>(call); });
}
