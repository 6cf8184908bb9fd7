// Picking columns of channel-first features on CUDA, and the gradient of that: what GatherPoints, GroupPoints and the
// gradient of ThreeInterpolate do.
#pragma once

#include "common/block.cuh"
#include "common/inverse_index.cuh"

namespace pvn3d {

/// How many channels a thread does, one after the other: several, so that it reads its indices once for all of them,
/// but not so many that the GPU runs out of threads. `columns`: threads if each did all channels.
inline int64_t channels_each(int64_t columns, int64_t channels) {
  constexpr int64_t kFull = 1 << 18, kMost = 8;  // threads that fill a GPU
  const int64_t each = columns * channels / kFull;
  return each < 1 ? 1 : each < kMost ? each : kMost;
}

/// out[b, c, p] = features[b, c, idx[b, p]], N positions a thread.
template <class T, class I, int N>
__global__ void gather_kernel(const T* __restrict__ features, const I* __restrict__ idx, T* __restrict__ out,
                              int64_t batches, int64_t channels, int64_t n, int64_t positions, int64_t each) {
  const int64_t packs = positions / N, groups = (channels + each - 1) / each;
  for (int64_t i = opbridge::thread_index(); i < batches * groups * packs; i += opbridge::thread_count()) {
    const Division pack = divide(i, packs), group = divide(pack.quotient, groups);
    const int64_t b = group.quotient, p = pack.remainder * N, first = group.remainder * each;
    const int64_t last = first + each < channels ? first + each : channels;
    I at[N];
    load_many<N>(idx + b * positions + p, at);
#pragma unroll 2
    for (int64_t c = first; c < last; ++c) {
      const T* row = features + (b * channels + c) * n;
      opbridge::Pack<T, N> values;
#pragma unroll
      for (int k = 0; k < N; ++k) values.values[k] = read_or_zero(row, at[k], n);
      *reinterpret_cast<opbridge::Pack<T, N>*>(out + (b * channels + c) * positions + p) = values;
    }
  }
}

template <class T, class I>
void gather_columns(const opbridge::Call& call, const T* features, const I* idx, T* out, int64_t batches,
                    int64_t channels, int64_t n, int64_t positions) {
  const auto launch = [&](auto pack) {
    constexpr int N = decltype(pack)::value;
    const int64_t columns = batches * (positions / N), each = channels_each(columns, channels);
    opbridge::launch<gather_kernel<T, I, N>>(call,
                                             opbridge::grid_for(columns * ((channels + each - 1) / each)),
                                             features, idx, out, batches, channels, n, positions, each);
  };
  constexpr int N = opbridge::kPackSize<T>;
  if (positions % N == 0 && opbridge::aligned_for_packs(idx, out)) {
    launch(std::integral_constant<int, N>());
  } else {
    launch(std::integral_constant<int, 1>());
  }
}

/// grad_features[b, c, t] = the sum of grad_out[b, c, p] over the positions p that took t, ascending, in f64. kTriples:
/// three positions share an element of grad_out, and each has its weight.
template <class T, bool kTriples>
__global__ void gather_grad_kernel(const T* __restrict__ grad_out, const T* __restrict__ weight,
                                   const int32_t* __restrict__ start, const int32_t* __restrict__ order,
                                   T* __restrict__ grad_features, int64_t batches, int64_t channels,
                                   int64_t n, int64_t positions) {
  constexpr int kChannels = 4;
  const int64_t groups = (channels + kChannels - 1) / kChannels,
                length = kTriples ? positions / 3 : positions;
  for (int64_t i = opbridge::thread_index(); i < batches * groups * n; i += opbridge::thread_count()) {
    const Division target = divide(i, n), group = divide(target.quotient, groups);
    const int64_t b = group.quotient, first = group.remainder * kChannels, t = target.remainder;
    const int32_t end = start[b * (n + 1) + t + 1];
    double sums[kChannels] = {};
#pragma unroll 2
    for (int32_t at = start[b * (n + 1) + t]; at < end; ++at) {
      const int32_t p = order[b * positions + at];
      const T* g = grad_out + (b * channels + first) * length + (kTriples ? p / 3 : p);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        if (first + c >= channels) break;
        const double value = static_cast<double>(g[c * length]);
        sums[c] += kTriples ? static_cast<double>(weight[b * positions + p]) * value : value;
      }
    }
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      if (first + c >= channels) break;
      grad_features[(b * channels + first + c) * n + t] = static_cast<T>(sums[c]);
    }
  }
}

/// `weight` is for kTriples only. Needs a workspace of cuda_inverse_index_bytes(batches, n, positions).
template <bool kTriples, class T, class I>
void gather_columns_grad(const opbridge::Call& call, const T* grad_out, const T* weight, const I* idx,
                         T* grad_features, int64_t batches, int64_t channels, int64_t n, int64_t positions) {
  if (batches * channels * n == 0) return;
  const CudaInverseIndex lists = cuda_inverse_index(call, idx, batches, n, positions);
  opbridge::launch<gather_grad_kernel<T, kTriples>>(
      call, opbridge::grid_for(batches * ((channels + 3) / 4) * n), grad_out, weight, lists.start,
      lists.order, grad_features, batches, channels, n, positions);
}

}  // namespace pvn3d
