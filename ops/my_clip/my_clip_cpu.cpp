#include "my_clip.h"

namespace {

using opbridge::bf16;
using opbridge::Call;
using opbridge::dispatch;
using opbridge::f16;
using opbridge::Tensor;

constexpr int64_t kGrain = 1 << 16;  // elements a thread takes at a time: about 20 us of memory traffic

// y[i] = of(i) for all i, on the host's threads.
template <class T, class Of>
void fill(const Call& call, T* y, int64_t count, const Of& shared) {
  call.parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
    const Of of = shared;  // a copy, which no y[i] can change: else the loop is not vectorised
    for (int64_t i = begin; i < end; ++i) y[i] = of(i);
  });
}

// Calls body(use_min, min, use_max, max) with constants for which bounds there are, so that loops have no
// tests inside.
template <class T, class Body>
void with_bounds(const Tensor<const T>& min, const Tensor<const T>& max, const Body& body) {
  const T lo = min ? min[0] : T{}, hi = max ? max[0] : T{};
  const std::true_type yes;
  const std::false_type no;
  if (min && max)
    body(yes, lo, yes, hi);
  else if (min)
    body(yes, lo, no, hi);
  else if (max)
    body(no, lo, yes, hi);
  else
    body(no, lo, no, hi);
}

template <class T>
bool is_nan(T v) {
  if constexpr (std::is_integral_v<T>)
    return false;
  else
    return v != v;
}

void clip(const Call& call) {
  dispatch<f16, bf16, float, double, int32_t, int64_t>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const T* x = call.input<T>(0).data();
    T* y = call.output<T>(0).data();
    with_bounds<T>(call.input<T>(1), call.input<T>(2), [&](auto use_min, T min, auto use_max, T max) {
      const int64_t count = call.input<T>(0).count();
      // Compilers make vector instructions of these comparisons, but not of at_least() and at_most(), from which they
      // differ only where a bound is NaN.
      if (!is_nan(min) && !is_nan(max)) {
        fill(call, y, count, [=](int64_t i) {
          T v = x[i];
          if constexpr (use_min) v = v < min ? min : v;
          if constexpr (use_max) v = v > max ? max : v;
          return v;
        });
      } else {
        fill(call, y, count, [=](int64_t i) {
          T v = x[i];
          if constexpr (use_min) v = my_clip::at_least(v, min);
          if constexpr (use_max) v = my_clip::at_most(v, max);
          return v;
        });
      }
    });
  });
}

void clip_grad(const Call& call) {
  dispatch<f16, bf16, float, double, int32_t, int64_t>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const T* grad_y = call.input<T>(0).data();
    const T* x = call.input<T>(1).data();
    T* grad_x = call.output<T>(0).data();
    with_bounds<T>(call.input<T>(2), call.input<T>(3), [&](auto use_min, T min, auto use_max, T max) {
      fill(call, grad_x, call.input<T>(1).count(),
           [=](int64_t i) { return my_clip::gradient(grad_y[i], x[i], use_min, min, use_max, max); });
    });
  });
}

}  // namespace

OPBRIDGE_OPERATORS(my_clip) {
  return {
      opbridge::Operator(R"(
        "Limits every element of x to [min, max], as torch.clamp does."
        my_clip(x: T[*S]        "values",
                min?: T[]|[1]   "lower bound; absent: none",
                max?: T[]|[1]   "upper bound; absent: none")
            -> y: T[*S]         "x where neither bound bites; min > max gives max; NaN in x or a bound gives NaN"
            where T in {f16, bf16, f32, f64, i32, i64}
            grad: my_clip_grad
      )")
          .cpu(clip)
          .cuda(OPBRIDGE_CUDA_KERNEL(my_clip_cuda)),
      opbridge::Operator(R"(
        "Gradient of my_clip with respect to x."
        my_clip_grad(grad_y: T[*S] "gradient of y",
                     x: T[*S]      "the input of my_clip",
                     min?: T[]|[1] "as given to my_clip",
                     max?: T[]|[1] "as given to my_clip")
            -> grad_x: T[*S]       "grad_y where min <= x <= max, else 0"
            where T in {f16, bf16, f32, f64, i32, i64}
      )")
          .cpu(clip_grad)
          .cuda(OPBRIDGE_CUDA_KERNEL(my_clip_grad_cuda)),
  };
}
