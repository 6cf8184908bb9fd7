#include "common/block.cuh"
#include "knn/knn.h"

namespace {

using opbridge::Call;
using pvn3d::Compute;
using pvn3d::kAllLanes;
using pvn3d::kWarp;
using pvn3d::Point;

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

template <class C, class T>
__device__ __forceinline__ void write(C d2, int32_t i, int64_t at, int32_t* idx, T* dist) {
  idx[at] = i;
  if (dist != nullptr) dist[at] = static_cast<T>(sqrt(d2));
}

// ------------------------------------------------------------------------------------------------ few neighbours

// The nearest so far of a warp's query, ascending: lane l holds the ranks l, 32 + l, ... The cloud is looked at in
// order, so that among equal distances those that are there already come first.
template <class C, int kRows>
struct Nearest {
  C d2[kRows];
  int32_t idx[kRows];

  __device__ __forceinline__ Nearest() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      d2[r] = static_cast<C>(INFINITY);
      idx[r] = 0;
    }
  }
  /// The squared distance of rank `rank`, in all lanes.
  __device__ __forceinline__ C distance_of(int rank) const {
    C mine = d2[0];
#pragma unroll
    for (int r = 1; r < kRows; ++r) mine = rank / kWarp == r ? d2[r] : mine;
    return __shfl_sync(kAllLanes, mine, rank % kWarp);
  }
  __device__ __forceinline__ void add(C d, int32_t i) {  // the same in all lanes
    int rank = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) rank += __popc(__ballot_sync(kAllLanes, d2[r] <= d));
#pragma unroll
    for (int r = kRows - 1; r >= 0; --r) {
      C before = __shfl_up_sync(kAllLanes, d2[r], 1);
      int32_t idx_before = __shfl_up_sync(kAllLanes, idx[r], 1);
      if (r > 0) {
        const C last = __shfl_sync(kAllLanes, d2[r > 0 ? r - 1 : 0], kWarp - 1);
        const int32_t idx_last = __shfl_sync(kAllLanes, idx[r > 0 ? r - 1 : 0], kWarp - 1);
        if (pvn3d::lane_index() == 0) {
          before = last;
          idx_before = idx_last;
        }
      }
      const int here = r * kWarp + pvn3d::lane_index();
      if (here >= rank) {
        d2[r] = here == rank ? d : before;
        idx[r] = here == rank ? i : idx_before;
      }
    }
  }
};

// A warp for each query; k is at most 32 kRows.
template <class T, int kRows>
__global__ void __launch_bounds__(kThreads) few_kernel(const T* xyz, const T* queries, int64_t clouds,
                                                       int64_t n, int64_t m, int k, int32_t* idx, T* dist) {
  using C = Compute<T>;
  using Tile = pvn3d::PointTile<C>;
  __shared__ Tile tile;
  const int lane = pvn3d::lane_index(), warp = static_cast<int>(threadIdx.x) / kWarp;
  pvn3d::for_each_task(clouds, m, kWarps, [&](int64_t b, int64_t first) {
    const int64_t query = first + warp;
    const bool mine = query < m;
    const Point<C> q = mine ? pvn3d::load_point(queries, b * m + query) : Point<C>{};
    Nearest<C, kRows> nearest;
    C limit = static_cast<C>(INFINITY);  // of rank k - 1; whatever is not below it is no neighbour
    for (int64_t base = 0; base < n; base += Tile::kSize) {
      __syncthreads();  // nobody looks at the tile any more
      const int count = tile.load(xyz + b * n * 3, base, n);
      __syncthreads();
      for (int i = lane; mine && i < count + lane; i += Tile::kStep) {
        C d2[Tile::kStep / kWarp];
        bool any = false;
#pragma unroll
        for (int s = 0; s < Tile::kStep / kWarp; ++s) {
          d2[s] = tile.squared_distance_to(i + s * kWarp, q);
          any |= d2[s] < limit;
        }
        if (!__any_sync(kAllLanes, any)) continue;
#pragma unroll
        for (int s = 0; s < Tile::kStep / kWarp; ++s) {
          for (unsigned near = __ballot_sync(kAllLanes, d2[s] < limit); near != 0; near &= near - 1) {
            const int source = __ffs(static_cast<int>(near)) - 1;
            const C d = __shfl_sync(kAllLanes, d2[s], source);
            if (!(d < limit)) continue;
            nearest.add(d, static_cast<int32_t>(base) + i - lane + s * kWarp + source);
            limit = nearest.distance_of(k - 1);
          }
        }
      }
    }
    if (!mine) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int rank = r * kWarp + lane;
      if (rank < k) write(nearest.d2[r], nearest.idx[r], (b * m + query) * k + rank, idx, dist);
    }
  });
}

// ----------------------------------------------------------------------------------------------- many neighbours

template <class C>
struct KeyOf;
template <>
struct KeyOf<float> {
  using type = uint32_t;
};
template <>
struct KeyOf<double> {
  using type = uint64_t;
};

/// The bits of a number that is not negative: they are in the numbers' order.
template <class C>
__device__ __forceinline__ typename KeyOf<C>::type key_of(C v) {
  typename KeyOf<C>::type bits;
  memcpy(&bits, &v, sizeof v);
  return bits;
}

constexpr int kDigit = 11, kBins = 1 << kDigit;

// Of keys that start with `prefix`, the one of rank `rank`, digit by digit. A histogram for each digit says where it
// is; it may be counted in any order.
template <class Key>
struct Selection {
  Key key = 0;  // the digits found so far
  int rank;     // among the keys that share them
  int sharing;  // how many those are

  /// visit(f) calls f(key) for this thread's share of the keys; bits: of a key.
  template <class Visit>
  __device__ void run(int bits, const Visit& visit) {
    __shared__ int bins[kBins];
    __shared__ int of_warp[kWarps];
    __shared__ int found[3];
    const int thread = static_cast<int>(threadIdx.x);
    for (int done = 0; done < bits;) {
      const int width = bits - done < kDigit ? bits - done : kDigit, shift = bits - done - width;
      for (int bin = thread; bin < kBins; bin += kThreads) bins[bin] = 0;
      __syncthreads();
      visit([&](Key k) {
        if (done > 0 && (k >> (shift + width)) != key) return;
        atomicAdd(&bins[static_cast<int>(k >> shift) & ((1 << width) - 1)], 1);
      });
      __syncthreads();
      constexpr int kShare = kBins / kThreads;
      int mine = 0;
      for (int bin = thread * kShare; bin < (thread + 1) * kShare; ++bin) mine += bins[bin];
      const int sum = pvn3d::warp_inclusive_sum(mine);
      if (thread % kWarp == kWarp - 1) of_warp[thread / kWarp] = sum;
      __syncthreads();
      int before = sum - mine;
      for (int w = 0; w < thread / kWarp; ++w) before += of_warp[w];
      if (before <= rank && rank < before + mine) {  // one thread's
        int bin = thread * kShare;
        for (; before + bins[bin] <= rank; ++bin) before += bins[bin];
        found[0] = bin;
        found[1] = before;
        found[2] = bins[bin];
      }
      __syncthreads();
      key = (key << width) | static_cast<Key>(found[0]);
      rank -= found[1];
      sharing = found[2];
      done += width;
    }
  }
};

constexpr int kMost = 1024;

// A block for each query: finds the k-th distance, then the last index among those equal to it, collects what is not
// beyond, and sorts.
template <class T>
__global__ void __launch_bounds__(kThreads) many_kernel(const T* xyz, const T* queries, int64_t clouds,
                                                        int64_t n, int64_t m, int k, int32_t* idx, T* dist) {
  using C = Compute<T>;
  using Key = typename KeyOf<C>::type;
  __shared__ C d2[kMost];
  __shared__ int32_t ids[kMost];
  __shared__ int count;
  const C infinity = static_cast<C>(INFINITY);
  pvn3d::for_each_task(clouds, m, 1, [&](int64_t b, int64_t first) {
    const int64_t query = b * m + first;
    const T* cloud = xyz + b * n * 3;
    const Point<C> q = pvn3d::load_point(queries, query);
    const auto for_each_neighbor = [&](const auto& f) {  // of this thread's points
      for (int64_t i = threadIdx.x; i < n; i += kThreads) {
        const Point<C> p = pvn3d::load_point(cloud, i);
        const C d = pvn3d::squared_distance(p.x, p.y, p.z, q.x, q.y, q.z);
        if (d < infinity) f(d, static_cast<int32_t>(i));
      }
    };
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    int neighbors = 0;
    for_each_neighbor([&](C, int32_t) { ++neighbors; });
    atomicAdd(&count, neighbors);
    __syncthreads();
    neighbors = count;
    __syncthreads();
    if (threadIdx.x == 0) count = 0;
    Key limit = key_of(infinity);
    int32_t last = 0x7fffffff;
    if (neighbors > k) {
      Selection<Key> distance;
      distance.rank = k - 1;
      distance.run(static_cast<int>(8 * sizeof(C)),
                   [&](const auto& f) { for_each_neighbor([&](C d, int32_t) { f(key_of(d)); }); });
      limit = distance.key;
      if (distance.rank + 1 < distance.sharing) {  // not all that are equally far
        Selection<uint32_t> index;
        index.rank = distance.rank;
        index.run(32 - __clz(static_cast<int>(n - 1)), [&](const auto& f) {
          for_each_neighbor([&](C d, int32_t i) {
            if (key_of(d) == limit) f(static_cast<uint32_t>(i));
          });
        });
        last = static_cast<int32_t>(index.key);
      }
    }
    const int size = k <= 256 ? 256 : k <= 512 ? 512 : kMost;
    for (int s = static_cast<int>(threadIdx.x); s < size; s += kThreads) {
      d2[s] = infinity;
      ids[s] = 0;
    }
    __syncthreads();
    for_each_neighbor([&](C d, int32_t i) {
      if (key_of(d) > limit || (key_of(d) == limit && i > last)) return;
      const int slot = atomicAdd(&count, 1);
      d2[slot] = d;
      ids[slot] = i;
    });
    __syncthreads();
    for (int run = 2; run <= size; run *= 2) {  // bitonic: runs of this length, every other one descending
      for (int step = run / 2; step > 0; step /= 2) {
        for (int pair = static_cast<int>(threadIdx.x); pair < size / 2; pair += kThreads) {
          const int a = 2 * pair - (pair & (step - 1)), b = a + step;
          const bool wrong = d2[b] < d2[a] || (d2[b] == d2[a] && ids[b] < ids[a]);
          const bool descending = (a & run) != 0;
          const bool equal = d2[b] == d2[a] && ids[b] == ids[a];
          if (!equal && wrong != descending) {
            const C d = d2[a];
            const int32_t i = ids[a];
            d2[a] = d2[b];
            ids[a] = ids[b];
            d2[b] = d;
            ids[b] = i;
          }
        }
        __syncthreads();
      }
    }
    for (int s = static_cast<int>(threadIdx.x); s < k; s += kThreads)
      write(d2[s], ids[s], query * k + s, idx, dist);
    __syncthreads();
  });
}

}  // namespace

void knn_cuda(const Call& call) {
  if (!knn::check(call)) return;
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const int64_t clouds = call.input_arg(0).shape[0], n = call.input_arg(0).shape[1],
                  m = call.input_arg(1).shape[1];
    const int k = static_cast<int>(call.attr_int("k"));
    const T *xyz = call.input<T>(0).data(), *queries = call.input<T>(1).data();
    int32_t* idx = call.output<int32_t>(0).data();
    T* dist = call.has_output(1) ? call.output<T>(1).data() : nullptr;
    const opbridge::Grid warps = pvn3d::blocks_for((m + kWarps - 1) / kWarps, clouds, kThreads);
    if (k <= kWarp) {
      opbridge::launch<few_kernel<T, 1>>(call, warps, xyz, queries, clouds, n, m, k, idx, dist);
    } else if (k <= 4 * kWarp) {
      opbridge::launch<few_kernel<T, 4>>(call, warps, xyz, queries, clouds, n, m, k, idx, dist);
    } else {
      opbridge::launch<many_kernel<T>>(call, pvn3d::blocks_for(m, clouds, kThreads), xyz, queries, clouds, n,
                                       m, k, idx, dist);
    }
  });
}
