#include "common/gather.cuh"
#include "three_interpolate/three_interpolate.h"

namespace {

using opbridge::Call;
using pvn3d::Compute;
using pvn3d::divide;
using pvn3d::Division;

// N outputs a thread, for several channels: indices and weights are read once.
template <class T, class I, int N>
__global__ void interpolate_kernel(const T* __restrict__ features, const I* __restrict__ idx,
                                   const T* __restrict__ weight, T* __restrict__ out, int64_t batches,
                                   int64_t channels, int64_t m, int64_t n, int64_t each) {
  using C = Compute<T>;
  const int64_t packs = n / N, groups = (channels + each - 1) / each;
  for (int64_t i = opbridge::thread_index(); i < batches * groups * packs; i += opbridge::thread_count()) {
    const Division pack = divide(i, packs), group = divide(pack.quotient, groups);
    const int64_t b = group.quotient, p = pack.remainder * N, first = group.remainder * each;
    const int64_t last = first + each < channels ? first + each : channels;
    I at[3 * N];
    T w[3 * N];
#pragma unroll
    for (int j = 0; j < 3; ++j) {
      I indices[N];
      T weights[N];
      pvn3d::load_many<N>(idx + (b * n + p) * 3 + j * N, indices);
      pvn3d::load_many<N>(weight + (b * n + p) * 3 + j * N, weights);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        at[j * N + k] = indices[k];
        w[j * N + k] = weights[k];
      }
    }
#pragma unroll 2
    for (int64_t c = first; c < last; ++c) {
      const T* row = features + (b * channels + c) * m;
      const auto feature = [&](int k) { return static_cast<C>(pvn3d::read_or_zero(row, at[k], m)); };
      opbridge::Pack<T, N> values;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        values.values[k] = static_cast<T>(three_interpolate::weighted_sum<C>(
            static_cast<C>(w[3 * k]), feature(3 * k), static_cast<C>(w[3 * k + 1]), feature(3 * k + 1),
            static_cast<C>(w[3 * k + 2]), feature(3 * k + 2)));
      }
      *reinterpret_cast<opbridge::Pack<T, N>*>(out + (b * channels + c) * n + p) = values;
    }
  }
}

template <class T, class I>
void interpolate(const Call& call) {
  const int64_t batches = call.input_arg(0).shape[0], channels = call.input_arg(0).shape[1],
                m = call.input_arg(0).shape[2], n = call.input_arg(1).shape[1];
  const T *features = call.input<T>(0).data(), *weight = call.input<T>(2).data();
  const I* idx = call.input<I>(1).data();
  T* out = call.output<T>(0).data();
  const auto launch = [&](auto pack) {
    constexpr int N = decltype(pack)::value;
    const int64_t columns = batches * (n / N), each = pvn3d::channels_each(columns, channels);
    opbridge::launch<interpolate_kernel<T, I, N>>(
        call, opbridge::grid_for(columns * ((channels + each - 1) / each)), features, idx, weight, out,
        batches, channels, m, n, each);
  };
  constexpr int N = sizeof(T) == 8 ? 2 : 4;
  if (n % N == 0 && opbridge::aligned_for_packs(idx, weight, out)) {
    launch(std::integral_constant<int, N>());
  } else {
    launch(std::integral_constant<int, 1>());
  }
}

// grad_weight[b, p, j] = the sum of features[b, c, idx[b, p, j]] * grad_out[b, c, p] over the channels, ascending, in
// f64. A thread for each weight.
template <class T, class I>
__global__ void grad_weight_kernel(const T* __restrict__ grad_out, const T* __restrict__ features,
                                   const I* __restrict__ idx, T* __restrict__ grad_weight, int64_t batches,
                                   int64_t channels, int64_t m, int64_t n) {
  for (int64_t i = opbridge::thread_index(); i < batches * n * 3; i += opbridge::thread_count()) {
    const Division batch = divide(i, n * 3);
    const T* f = features + batch.quotient * channels * m;
    const T* g = grad_out + batch.quotient * channels * n + batch.remainder / 3;
    const I at = idx[i];
    double sum = 0;
#pragma unroll 4
    for (int64_t c = 0; c < channels; ++c) {
      sum += static_cast<double>(g[c * n]) * static_cast<double>(pvn3d::read_or_zero(f + c * m, at, m));
    }
    grad_weight[i] = static_cast<T>(sum);
  }
}

}  // namespace

void three_interpolate_cuda(const Call& call) {
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto t) {
    opbridge::dispatch<int32_t, int64_t>(call.input_dtype(1),
                                         [&](auto i) { interpolate<decltype(t), decltype(i)>(call); });
  });
}

void three_interpolate_grad_cuda(const Call& call) {
  const int64_t batches = call.input_arg(1).shape[0], channels = call.input_arg(1).shape[1],
                m = call.input_arg(1).shape[2], n = call.input_arg(2).shape[1];
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto t) {
    opbridge::dispatch<int32_t, int64_t>(call.input_dtype(2), [&](auto i) {
      using T = decltype(t);
      using I = decltype(i);
      const T *grad_out = call.input<T>(0).data(), *features = call.input<T>(1).data(),
              *weight = call.input<T>(3).data();
      const I* idx = call.input<I>(2).data();
      pvn3d::gather_columns_grad<true>(call, grad_out, weight, idx, call.output<T>(0).data(), batches,
                                       channels, m, n * 3);
      opbridge::launch<grad_weight_kernel<T, I>>(call, opbridge::grid_for(batches * n * 3), grad_out,
                                                 features, idx, call.output<T>(1).data(), batches, channels,
                                                 m, n);
    });
  });
}
