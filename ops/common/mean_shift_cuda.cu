#include "common/exp.h"
#include "common/mean_shift.cuh"

namespace pvn3d {

namespace {

constexpr unsigned kThreads = 256;
static_assert(kThreads == kLanes, "thread i is lane i of the sums");

// How many blocks or warps share a problem: together enough to fill a GPU, and no more than there is work for.
int64_t share(int64_t problems, int64_t work, int64_t enough) {
  const int64_t most = (enough + problems - 1) / problems;
  return work < most ? work : most;
}

// A step, which is not negative, as a number that is in the same order.
template <class C>
__device__ unsigned long long to_bits(C v) {
  unsigned long long bits = 0;
  memcpy(&bits, &v, sizeof v);
  return bits;
}
template <class C>
__device__ C from_bits(unsigned long long bits) {
  C v;
  memcpy(&v, &bits, sizeof v);
  return v;
}

// Sums over votes around a seed: of the weights, and of the weighted ways to the votes.
template <class C>
struct Sums {
  C w = 0, x = 0, y = 0, z = 0;

  __device__ void add(const VotesOf<C>& votes, int64_t j, const C* c, C scale) {
    const C dx = votes.x[j] - c[0], dy = votes.y[j] - c[1], dz = votes.z[j] - c[2];
    const C weight = exp_nonpositive(squared_norm(dx, dy, dz) * scale);
    if (weight > C(0)) w += weight, x += weight * dx, y += weight * dy, z += weight * dz;
  }
};

// The sum over kLanes values, of which each lane of a warp has every 32nd, v[0] to v[7]: halves are added up pairwise, as on
// the CPU. The result is in the warp's first lane.
template <class C>
__device__ C sum_lanes(const C* v) {
  static_assert(kLanes == 8 * 32, "");
  C sum = ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
  for (unsigned half = 16; half > 0; half /= 2) sum += __shfl_down_sync(0xffffffffu, sum, half);
  return sum;
}

// Moves the seed c to the mean of the votes around it; returns how far.
template <class C>
__device__ C move_seed(const Sums<C>& sums, C* c) {
  if (!(sums.w > C(0))) return C(0);  // every vote is out of reach: nothing pulls
  const C dx = sums.x / sums.w, dy = sums.y / sums.w, dz = sums.z / sums.w;
  c[0] += dx;
  c[1] += dy;
  c[2] += dz;
  return sqrt(squared_norm(dx, dy, dz));
}

// One update of a seed by a block; c is the same in all threads. Thread i is lane i of the CPU's sums, so the bits are the
// CPU's.
template <class C>
struct BlockMemory {
  C lanes[4][kThreads];
  C sums[4];
};
template <class C>
__device__ C update_by_block(const VotesOf<C>& votes, int64_t n, C h2, C* c, BlockMemory<C>& memory) {
  Sums<C> own;
  for (int64_t j = threadIdx.x; j < n; j += kThreads) own.add(votes, j, c, C(-0.5) / h2);
  memory.lanes[0][threadIdx.x] = own.w;
  memory.lanes[1][threadIdx.x] = own.x;
  memory.lanes[2][threadIdx.x] = own.y;
  memory.lanes[3][threadIdx.x] = own.z;
  __syncthreads();
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp < 4) {
    C v[8];
    for (int q = 0; q < 8; ++q) v[q] = memory.lanes[warp][lane + 32 * q];
    const C sum = sum_lanes(v);
    if (lane == 0) memory.sums[warp] = sum;
  }
  __syncthreads();
  Sums<C> all;
  all.w = memory.sums[0], all.x = memory.sums[1], all.y = memory.sums[2], all.z = memory.sums[3];
  return move_seed(all, c);
}

// The same by a warp, each of whose threads is eight lanes of the sums.
template <class C>
__device__ C update_by_warp(const VotesOf<C>& votes, int64_t n, C h2, C* c) {
  Sums<C> own[8];
  for (int64_t base = threadIdx.x % 32; base < n; base += kLanes) {
#pragma unroll
    for (int q = 0; q < 8; ++q) {
      if (base + 32 * q < n) own[q].add(votes, base + 32 * q, c, C(-0.5) / h2);
    }
  }
  C v[4][8];
#pragma unroll
  for (int q = 0; q < 8; ++q) v[0][q] = own[q].w, v[1][q] = own[q].x, v[2][q] = own[q].y, v[3][q] = own[q].z;
  C sums[4];
  for (int a = 0; a < 4; ++a) sums[a] = __shfl_sync(0xffffffffu, sum_lanes(v[a]), 0);
  Sums<C> all;
  all.w = sums[0], all.x = sums[1], all.y = sums[2], all.z = sums[3];
  return move_seed(all, c);
}

// One round in which all seeds move, `warps` of them at a time in each problem: those of upstream among votes that stand
// still, those of blurring are the votes. A problem whose last round's longest step was shorter than `rest` has come to rest.
template <class C>
__global__ void __launch_bounds__(kThreads)
    move_kernel(MeanShiftProblems<C> m, int64_t warps, int64_t round, C h2, C rest, bool blurring) {
  const bool leader = threadIdx.x % 32 == 0;
  for (int64_t item = opbridge::thread_index() / 32; item < m.count * warps;
       item += opbridge::thread_count() / 32) {
    const int64_t p = item / warps, first = item % warps;
    unsigned long long* const farthest = m.farthest + 3 * p;
    if (first == 0 && leader) farthest[(round + 1) % 3] = 0;
    if (round > 0 && from_bits<C>(farthest[(round + 2) % 3]) < rest) continue;
    const VotesOf<C> votes(m, p, blurring ? static_cast<int32_t>(round % 2) : 0);
    const VotesOf<C> from(m, p, blurring ? static_cast<int32_t>(round % 2) : round > 0);
    const VotesOf<C> to(m, p, blurring ? static_cast<int32_t>((round + 1) % 2) : 1);
    const int64_t n = m.size[p];
    for (int64_t i = first; i < n; i += warps) {
      C c[3] = {from.x[i], from.y[i], from.z[i]};
      const C step = update_by_warp(votes, n, h2, c);
      if (leader) {
        to.x[i] = c[0], to.y[i] = c[1], to.z[i] = c[2];
        if (step == step) atomicMax(&farthest[round % 3], to_bits(step));
      }
    }
    if (first == 0 && leader) m.rounds[p] = static_cast<int32_t>(round + 1);
  }
}

// best[p] = the vote with the most votes closer than the bandwidth, the first of equals. All pairs, a tile of votes in
// shared memory at a time.
template <class C>
__global__ void __launch_bounds__(kThreads)
    count_kernel(MeanShiftProblems<C> m, int64_t blocks, C h2, bool blurring) {
  struct alignas(4 * sizeof(C)) Vote {
    C x, y, z, unused;
  };
  __shared__ Vote tile[kThreads];
  __shared__ unsigned long long best;
  for (int64_t item = blockIdx.x; item < m.count * blocks; item += gridDim.x) {
    const int64_t p = item / blocks, n = m.size[p];
    const VotesOf<C> votes = final_votes(m, p, blurring);
    if (threadIdx.x == 0) best = 0;
    for (int64_t base = item % blocks * kThreads; base < n; base += blocks * kThreads) {
      const int64_t i = base + threadIdx.x, own = i < n ? i : n - 1;
      const C x = votes.x[own], y = votes.y[own], z = votes.z[own];
      unsigned count = 0;
      for (int64_t begin = 0; begin < n; begin += kThreads) {
        const int64_t j = begin + threadIdx.x;
        __syncthreads();  // the tile before has been read, and `best` is 0
        if (j < n) tile[threadIdx.x] = {votes.x[j], votes.y[j], votes.z[j], C(0)};
        __syncthreads();
        const int here = static_cast<int>(n - begin < kThreads ? n - begin : kThreads);
#pragma unroll 8
        for (int k = 0; k < here; ++k)
          count += squared_distance(tile[k].x, tile[k].y, tile[k].z, x, y, z) < h2;
      }
      const unsigned long long key =
          static_cast<unsigned long long>(count) << 32 | (0xffffffffu - static_cast<unsigned>(i));
      if (i < n) atomicMax(&best, key);
    }
    __syncthreads();
    if (threadIdx.x == 0 && best != 0) atomicMax(&m.best[p], best);
    __syncthreads();  // before the next problem's `best`
  }
}

// The result of each problem; where only the winning vote moves, it does so here, a block for each.
template <class C>
__global__ void __launch_bounds__(kThreads)
    finish_kernel(MeanShiftProblems<C> m, int64_t max_iter, C h2, C rest, bool upstream, bool blurring) {
  __shared__ BlockMemory<C> memory;
  for (int64_t p = blockIdx.x; p < m.count; p += gridDim.x) {
    const int64_t n = m.size[p];
    C c[3] = {0, 0, 0};
    int32_t seed = -1, inliers = 0;
    if (n > 0) {
      const unsigned long long best = m.best[p];
      seed = static_cast<int32_t>(0xffffffffu - static_cast<unsigned>(best & 0xffffffffu));
      inliers = static_cast<int32_t>(best >> 32);
      const VotesOf<C> votes = final_votes(m, p, blurring);
      const VotesOf<C> at = upstream && !blurring ? VotesOf<C>(m, p, 1) : votes;
      c[0] = at.x[seed], c[1] = at.y[seed], c[2] = at.z[seed];
      if (!upstream && !blurring) {
        for (int64_t round = 0; round <= max_iter; ++round) {
          if (update_by_block(votes, n, h2, c, memory) < rest) break;
        }
      }
    }
    if (threadIdx.x == 0) {
      for (int k = 0; k < 3; ++k) m.centre[3 * p + k] = c[k];
      m.seed[p] = seed;
      m.inliers[p] = inliers;
    }
  }
}

}  // namespace

template <class C>
void mean_shift_cuda(const opbridge::Call& call, const MeanShiftProblems<C>& m, int64_t capacity,
                     const MeanShiftOptions& o) {
  if (m.count == 0) return;
  const C h = static_cast<C>(o.bandwidth), h2 = h * h, rest = static_cast<C>(o.tol) * h;
  if ((o.upstream || o.blurring) && capacity > 0) {
    const int64_t warps = share(m.count, capacity, 8192), blocks = (m.count * warps + 7) / 8;
    for (int64_t round = 0; round <= o.max_iter; ++round) {
      opbridge::launch<move_kernel<C>>(call, block_for_each(blocks, kThreads), m, warps, round, h2, rest,
                                       o.blurring);
    }
  }
  if (capacity > 0) {
    const int64_t blocks = share(m.count, (capacity + kThreads - 1) / kThreads, 4096);
    opbridge::launch<count_kernel<C>>(call, block_for_each(m.count * blocks, kThreads), m, blocks, h2,
                                      o.blurring);
  }
  const C own_rest = (static_cast<C>(o.tol) < C(1e-4) ? static_cast<C>(o.tol) : C(1e-4)) * h;
  opbridge::launch<finish_kernel<C>>(call, block_for_each(m.count, kThreads), m, o.max_iter, h2, own_rest,
                                     o.upstream, o.blurring);
}

template void mean_shift_cuda(const opbridge::Call&, const MeanShiftProblems<float>&, int64_t,
                              const MeanShiftOptions&);
template void mean_shift_cuda(const opbridge::Call&, const MeanShiftProblems<double>&, int64_t,
                              const MeanShiftOptions&);

}  // namespace pvn3d
