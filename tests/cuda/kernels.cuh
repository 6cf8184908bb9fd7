// Small kernels of the kinds that operators use, and broken ones. nvcc compiles them unchanged (kernels.cu).
#pragma once

#include "opbridge/cuda.h"

namespace kernels {

template <class T>
__device__ __forceinline__ T warp_sum(T v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_down_sync(0xffffffffu, v, offset);
  return v;
}

/// The sum over the block, in thread 0.
template <class T>
__device__ T block_sum(T v) {
  __shared__ T of_warp[32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  v = warp_sum(v);
  __syncthreads();
  if (lane == 0) of_warp[warp] = v;
  __syncthreads();
  v = threadIdx.x < blockDim.x / 32 ? of_warp[lane] : T(0);
  return warp == 0 ? warp_sum(v) : v;
}

template <class T>
__global__ void sum_kernel(const T* __restrict__ x, T* out, int64_t n) {
  T v = 0;
  for (int64_t i = opbridge::thread_index(); i < n; i += opbridge::thread_count()) v += __ldg(x + i);
  v = block_sum(v);
  if (threadIdx.x == 0) atomicAdd(out, v);
}

/// One row for each block, kept in dynamic shared memory.
__global__ void __launch_bounds__(128) softmax_kernel(const float* x, float* y, int columns) {
  OPBRIDGE_DYNAMIC_SHARED(float, row);
  __shared__ float of_warp[4], total;
  x += static_cast<size_t>(blockIdx.x) * columns;
  y += static_cast<size_t>(blockIdx.x) * columns;
  float largest = -INFINITY;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    row[c] = x[c];
    largest = fmaxf(largest, row[c]);
  }
  for (int offset = 16; offset > 0; offset /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = largest;
  __syncthreads();
  largest = fmaxf(fmaxf(of_warp[0], of_warp[1]), fmaxf(of_warp[2], of_warp[3]));
  float sum = 0;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    row[c] = expf(row[c] - largest);
    sum += row[c];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) total = sum;
  __syncthreads();
  for (int c = threadIdx.x; c < columns; c += blockDim.x) y[c] = row[c] / total;
}

/// Reverses x within each block; without the barrier, what a thread reads may not be there yet.
template <bool barrier>
__global__ void reverse_kernel(const int* x, int* y) {
  __shared__ int values[1024];
  values[threadIdx.x] = x[opbridge::thread_index()];
  if (barrier) __syncthreads();
  y[opbridge::thread_index()] = values[blockDim.x - 1 - threadIdx.x];
}

/// Two warps exchange numbers, twice: 1 and 1, then 2 and 2. Without the second barrier a warp may write its second number
/// before the other has read its first.
template <bool barrier>
__global__ void exchange_kernel(int* out) {
  __shared__ int of_warp[2];
  int sums = 0;
  for (int round = 1; round <= 2; ++round) {
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = round;
    __syncthreads();
    sums = 16 * sums + __shfl_sync(0xffffffffu, of_warp[0] + of_warp[1], 0);
    if (barrier) __syncthreads();
  }
  out[threadIdx.x] = sums;
}

/// Every index of a three-dimensional grid once.
__global__ void indices_kernel(int* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] += 1 + static_cast<int>(thread);
}

/// What the warp functions give, one word after another for each of 32 threads.
__global__ void warp_kernel(int* out) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const unsigned all = 0xffffffffu;
  int* o = out + threadIdx.x * 12;
  o[0] = __shfl_sync(all, lane, 5);
  o[1] = __shfl_sync(all, lane, 1, 8);
  o[2] = __shfl_up_sync(all, lane, 3);
  o[3] = __shfl_down_sync(all, lane, 3, 16);
  o[4] = __shfl_xor_sync(all, lane, 9);
  o[5] = static_cast<int>(__ballot_sync(all, lane % 3 == 0));
  o[6] = __any_sync(all, lane == 31) + 2 * __any_sync(all, lane == 32);
  o[7] = __all_sync(all, lane < 32) + 2 * __all_sync(all, lane < 31);
  o[8] = static_cast<int>(__activemask());
  if (lane < 8) o[9] = __shfl_sync(0xffu, lane * lane, 7);
  __syncwarp();
  o[10] = static_cast<int>(__shfl_sync(all, 1.5 * lane, 4));  // eight bytes
  o[11] = __popc(static_cast<unsigned>(lane)) + 100 * __ffs(lane) + 10000 * __clz(lane);
}

__global__ void atomics_kernel(int* i, unsigned long long* u, float* f) {
  const int t = static_cast<int>(opbridge::thread_index());
  atomicAdd(&i[0], 1);
  atomicMin(&i[1], -t);
  atomicMax(&i[2], t);
  atomicOr(&i[3], 1 << (t % 31));
  atomicAnd(&i[4], ~(1 << (t % 31)));
  atomicCAS(&i[5], t, t + 1);
  if (t == 0) i[6] = atomicExch(&i[7], 3);
  atomicAdd(&u[0], 1ull << 40);
  atomicAdd(&f[0], 0.5f);
}

/// Barriers that also count.
__global__ void counting_kernel(int* out) {
  const int odd = threadIdx.x % 2;
  const int count = __syncthreads_count(odd), any = __syncthreads_or(odd), all = __syncthreads_and(odd);
  out[threadIdx.x] = count * 4 + (any ? 2 : 0) + (all ? 1 : 0);
}

// -------------------------------------------------------------------------------------------------------------
// broken

__global__ void early_exit_kernel(int* x) {
  if (threadIdx.x == 3) return;
  __syncthreads();
  x[threadIdx.x] = 1;
}

__global__ void divergent_barrier_kernel(int* x) {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  x[threadIdx.x] = 1;
}

/// Half of the block waits for the block, the other half for its warp.
__global__ void deadlock_kernel(int* x) {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncwarp();
  }
  x[threadIdx.x] = 1;
}

__global__ void lane_outside_mask_kernel(int* x) { x[threadIdx.x] = __shfl_sync(0xffffu, x[threadIdx.x], 0); }

__global__ void reads_outside_mask_kernel(int* x) {
  if (threadIdx.x < 16) x[threadIdx.x] = __shfl_sync(0xffffu, x[threadIdx.x], 20);
}

__global__ void reads_returned_lane_kernel(int* x) {
  if (threadIdx.x >= 16) return;
  x[threadIdx.x] = __shfl_down_sync(0xffffffffu, x[threadIdx.x], 1);
}

__global__ void shared_overrun_kernel(int* x) {
  OPBRIDGE_DYNAMIC_SHARED(int, values);
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  x[threadIdx.x] = values[threadIdx.x];
}

__global__ void writes_past_end_kernel(int* x, int n) { x[n] = static_cast<int>(threadIdx.x); }

}  // namespace kernels
