#include "common/block.cuh"
#include "l2_normalize/l2_normalize.h"

namespace {

using l2_normalize::kPartialSums;
using l2_normalize::Shape;
using opbridge::Call;
using pvn3d::divide;
using pvn3d::Division;
using pvn3d::kAllLanes;

constexpr int kThreads = 256;

// Elements of a vector, `stride` apart. Others may be written through y while x is read: they may be the same array.
template <class T>
struct Vector {
  T* data;
  int64_t stride;
  __device__ T& operator[](int64_t i) const { return data[i * stride]; }
};

// What a thread does that has a vector for itself.
struct Alone {
  static constexpr int kLanes = 1;
  static __device__ int lane() { return 0; }
  template <class T>
  static __device__ double dot(Vector<const T> a, Vector<const T> b, int64_t length) {
    double sums[kPartialSums] = {};
    int64_t i = 0;
    for (; i + kPartialSums <= length; i += kPartialSums) {
#pragma unroll
      for (int s = 0; s < kPartialSums; ++s)
        sums[s] += static_cast<double>(a[i + s]) * static_cast<double>(b[i + s]);
    }
#pragma unroll
    for (int s = 0; s < kPartialSums; ++s) {
      if (i + s < length) sums[s] += static_cast<double>(a[i + s]) * static_cast<double>(b[i + s]);
    }
    return l2_normalize::sum_tree(sums);
  }
};

// What a thread does that shares a contiguous vector with seven others: each has one of the partial sums.
struct Together {
  static constexpr int kLanes = kPartialSums;
  static __device__ int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  template <class T>
  static __device__ double dot(Vector<const T> a, Vector<const T> b, int64_t length) {
    double sum = 0;
#pragma unroll 4
    for (int64_t i = lane(); i < length; i += kLanes)
      sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    // sum_tree: s0 + s4, then (s0 + s4) + (s2 + s6), then the odd ones. The order of two does not matter.
    for (int other = kLanes / 2; other > 0; other /= 2) sum += __shfl_xor_sync(kAllLanes, sum, other);
    return sum;
  }
};

template <class T, class Lanes>
__global__ void __launch_bounds__(kThreads) normalize_kernel(const T* x, T* y, Shape s, double eps) {
  constexpr int kVectors = kThreads / Lanes::kLanes;
  const int64_t vectors = s.outer * s.inner;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kVectors; first < vectors;
       first += static_cast<int64_t>(gridDim.x) * kVectors) {
    const int64_t v = first + threadIdx.x / Lanes::kLanes, length = v < vectors ? s.length : 0;
    const Division at = divide(v, s.inner);
    const int64_t begin = at.quotient * s.length * s.inner + at.remainder;
    const Vector<const T> from{x + begin, s.inner};
    const Vector<T> to{y + begin, s.inner};
    const double scale = l2_normalize::scale(Lanes::dot(from, from, length), eps);
#pragma unroll 4
    for (int64_t i = Lanes::lane(); i < length; i += Lanes::kLanes) {
      to[i] = static_cast<T>(static_cast<double>(from[i]) * scale);
    }
  }
}

template <class T, class Lanes>
__global__ void __launch_bounds__(kThreads)
    normalize_grad_kernel(const T* grad_y, const T* x, T* grad_x, Shape s, double eps) {
  constexpr int kVectors = kThreads / Lanes::kLanes;
  const int64_t vectors = s.outer * s.inner;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kVectors; first < vectors;
       first += static_cast<int64_t>(gridDim.x) * kVectors) {
    const int64_t v = first + threadIdx.x / Lanes::kLanes, length = v < vectors ? s.length : 0;
    const Division at = divide(v, s.inner);
    const int64_t begin = at.quotient * s.length * s.inner + at.remainder;
    const Vector<const T> g{grad_y + begin, s.inner}, from{x + begin, s.inner};
    const Vector<T> to{grad_x + begin, s.inner};
    const double squared_length = Lanes::dot(from, from, length), product = Lanes::dot(from, g, length);
    const l2_normalize::Gradient gradient(squared_length, product, eps);
#pragma unroll 4
    for (int64_t i = Lanes::lane(); i < length; i += Lanes::kLanes) {
      to[i] = static_cast<T>(gradient.of(static_cast<double>(g[i]), static_cast<double>(from[i])));
    }
  }
}

// Calls f with Alone or Together, and the grid.
template <class F>
void choose(const Shape& s, const F& f) {
  const auto grid = [&](int vectors_each) {
    return pvn3d::blocks_for((s.outer * s.inner + vectors_each - 1) / vectors_each, 1, kThreads);
  };
  if (s.inner == 1 && s.length > kPartialSums) {
    f(Together(), grid(kThreads / Together::kLanes));
  } else {
    f(Alone(), grid(kThreads));
  }
}

}  // namespace

void l2_normalize_cuda(const Call& call) {
  const Shape s(call, 0);
  if (s.length == 0) return;
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    choose(s, [&](auto lanes, const opbridge::Grid& grid) {
      opbridge::launch<normalize_kernel<T, decltype(lanes)>>(call, grid, call.input<T>(0).data(),
                                                             call.output<T>(0).data(), s,
                                                             static_cast<double>(call.attr_float("eps")));
    });
  });
}

void l2_normalize_grad_cuda(const Call& call) {
  const Shape s(call, 1);
  if (s.length == 0) return;
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    choose(s, [&](auto lanes, const opbridge::Grid& grid) {
      opbridge::launch<normalize_grad_kernel<T, decltype(lanes)>>(
          call, grid, call.input<T>(0).data(), call.input<T>(1).data(), call.output<T>(0).data(), s,
          static_cast<double>(call.attr_float("eps")));
    });
  });
}
