#include "my_clip.h"
#include "opbridge/cuda.h"

namespace {

using opbridge::bf16;
using opbridge::Call;
using opbridge::dispatch;
using opbridge::f16;
using opbridge::Pack;

// The bounds, read on the device: reading them on the host would need a copy and a synchronisation.
template <class T>
struct Bounds {
  __device__ Bounds(const T* min, const T* max)
      : use_min(min != nullptr),
        use_max(max != nullptr),
        min(use_min ? *min : T(0)),
        max(use_max ? *max : T(0)) {}
  bool use_min, use_max;
  T min, max;
};

// N elements at a time, then the few that are left.
template <class T, int N>
__global__ void clip_kernel(const T* x, const T* min, const T* max, T* y, int64_t n) {
  const Bounds<T> bounds(min, max);
  const auto clip = [&](T v) {
    if (bounds.use_min) v = my_clip::at_least(v, bounds.min);
    if (bounds.use_max) v = my_clip::at_most(v, bounds.max);
    return v;
  };
  const int64_t packs = n / N;
  for (int64_t i = opbridge::thread_index(); i < packs; i += opbridge::thread_count()) {
    Pack<T, N> v = reinterpret_cast<const Pack<T, N>*>(x)[i];
    for (T& value : v.values) value = clip(value);
    reinterpret_cast<Pack<T, N>*>(y)[i] = v;
  }
  for (int64_t i = packs * N + opbridge::thread_index(); i < n; i += opbridge::thread_count())
    y[i] = clip(x[i]);
}

template <class T, int N>
__global__ void clip_grad_kernel(const T* grad_y, const T* x, const T* min, const T* max, T* grad_x,
                                 int64_t n) {
  const Bounds<T> bounds(min, max);
  const auto gradient = [&](T g, T v) {
    return my_clip::gradient(g, v, bounds.use_min, bounds.min, bounds.use_max, bounds.max);
  };
  const int64_t packs = n / N;
  for (int64_t i = opbridge::thread_index(); i < packs; i += opbridge::thread_count()) {
    Pack<T, N> g = reinterpret_cast<const Pack<T, N>*>(grad_y)[i];
    const Pack<T, N> v = reinterpret_cast<const Pack<T, N>*>(x)[i];
    for (int k = 0; k < N; ++k) g.values[k] = gradient(g.values[k], v.values[k]);
    reinterpret_cast<Pack<T, N>*>(grad_x)[i] = g;
  }
  for (int64_t i = packs * N + opbridge::thread_index(); i < n; i += opbridge::thread_count()) {
    grad_x[i] = gradient(grad_y[i], x[i]);
  }
}

}  // namespace

void my_clip_cuda(const Call& call) {
  dispatch<f16, bf16, float, double, int32_t, int64_t>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    constexpr int N = opbridge::kPackSize<T>;
    const T* x = call.input<T>(0).data();
    const T* min = call.input<T>(1).data();
    const T* max = call.input<T>(2).data();
    T* y = call.output<T>(0).data();
    const int64_t n = call.input<T>(0).count();
    if (opbridge::aligned_for_packs(x, y)) {
      opbridge::launch<clip_kernel<T, N>>(call, opbridge::grid_for((n + N - 1) / N), x, min, max, y, n);
    } else {
      opbridge::launch<clip_kernel<T, 1>>(call, opbridge::grid_for(n), x, min, max, y, n);
    }
  });
}

void my_clip_grad_cuda(const Call& call) {
  dispatch<f16, bf16, float, double, int32_t, int64_t>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    constexpr int N = opbridge::kPackSize<T>;
    const T* grad_y = call.input<T>(0).data();
    const T* x = call.input<T>(1).data();
    const T* min = call.input<T>(2).data();
    const T* max = call.input<T>(3).data();
    T* grad_x = call.output<T>(0).data();
    const int64_t n = call.input<T>(1).count();
    if (opbridge::aligned_for_packs(grad_y, x, grad_x)) {
      opbridge::launch<clip_grad_kernel<T, N>>(call, opbridge::grid_for((n + N - 1) / N), grad_y, x, min, max,
                                               grad_x, n);
    } else {
      opbridge::launch<clip_grad_kernel<T, 1>>(call, opbridge::grid_for(n), grad_y, x, min, max, grad_x, n);
    }
  });
}
