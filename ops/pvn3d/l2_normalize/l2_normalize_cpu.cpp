#include <algorithm>
#include <type_traits>

#include "common/caches.h"
#include "l2_normalize/l2_normalize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "l2_normalize/l2_normalize_cpu.cpp"
#include "common/simd.h"
// After it, always.
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace pvn3d::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using l2_normalize::Shape;

int64_t grain(const Shape& s) { return std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(1, s.length)); }

// The sum of a[i] * b[i] along the axis, in the order of the contract.
template <class T>
double dot(const T* a, const T* b, int64_t length, int64_t stride) {
  double sums[l2_normalize::kPartialSums] = {};
  for (int64_t i = 0; i < length; ++i) {
    sums[i % l2_normalize::kPartialSums] +=
        static_cast<double>(a[i * stride]) * static_cast<double>(b[i * stride]);
  }
  return l2_normalize::sum_tree(sums);
}

using D64 = hn::CappedTag<double, l2_normalize::kPartialSums>;

/// The next elements as doubles, and back.
template <class T>
HWY_INLINE hn::Vec<D64> load(const T* x) {
  const D64 d;
  if constexpr (std::is_same_v<T, double>) {
    return hn::LoadU(d, x);
  } else {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D64>(), x));
  }
}
template <class T>
HWY_INLINE void store(hn::Vec<D64> v, bool stream, T* y) {
  if constexpr (std::is_same_v<T, double>) {
    hn::StoreU(v, D64(), y);
  } else {
    const hn::Rebind<float, D64> narrow;
    if (stream) {
      hn::Stream(hn::DemoteTo(narrow, v), narrow, y);
    } else {
      hn::StoreU(hn::DemoteTo(narrow, v), narrow, y);
    }
  }
}

// Whether rows of `length` from y on can be written past the caches, and should be.
template <class T>
bool streams(const T* y, int64_t length, int64_t count) {
  constexpr size_t kBytes = hn::MaxLanes(hn::Rebind<float, D64>()) * sizeof(float);
  return std::is_same_v<T, float> && kBytes >= 16 &&
         outgrows_caches(count * static_cast<int64_t>(sizeof(T))) &&
         length % l2_normalize::kPartialSums == 0 && reinterpret_cast<uintptr_t>(y) % kBytes == 0;
}

// Contiguous vectors of f32 or f64, one after the other; several at a time hide each other's latencies.
template <int kRows, class T>
HWY_INLINE void normalize_rows(const T* x, int64_t length, double eps, bool stream, T* y) {
  constexpr int64_t kSums = l2_normalize::kPartialSums;
  const D64 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), whole = length / kSums * kSums;
  constexpr int kVectors = static_cast<int>(kSums / hn::MaxLanes(D64()));
  hn::Vec<D64> partial[kRows][kVectors];
  for (auto& row : partial) {
    for (auto& sum : row) sum = hn::Zero(d);
  }
  for (int64_t i = 0; i < whole; i += kSums) {
    for (int r = 0; r < kRows; ++r) {
      for (int k = 0; k < kVectors; ++k) {
        const auto v = load(x + r * length + i + k * lanes);
        partial[r][k] = hn::Add(partial[r][k], hn::Mul(v, v));
      }
    }
  }
  double scale[kRows];
  for (int r = 0; r < kRows; ++r) {
    HWY_ALIGN double sums[kSums];
    for (int k = 0; k < kVectors; ++k) hn::Store(partial[r][k], d, sums + k * lanes);
    for (int64_t i = whole; i < length; ++i) {
      const double v = static_cast<double>(x[r * length + i]);
      sums[i - whole] += v * v;
    }
    scale[r] = l2_normalize::scale(l2_normalize::sum_tree(sums), eps);
  }
  for (int r = 0; r < kRows; ++r, x += length, y += length) {
    const auto factor = hn::Set(d, scale[r]);
    int64_t i = 0;
    for (; i < whole; i += kSums) {
      hwy::Prefetch(x + kRows * length + i);  // the rows that are read next: their sums would wait for them
      for (int k = 0; k < kVectors; ++k) {
        store(hn::Mul(load(x + i + k * lanes), factor), stream, y + i + k * lanes);
      }
    }
    for (; i < length; ++i) y[i] = static_cast<T>(static_cast<double>(x[i]) * scale[r]);
  }
}

// Several rows of three f32 at a time; returns how many rows it did.
inline int64_t normalize_triples(const float* x, int64_t rows, double eps, float* y) {
  int64_t r = 0;
  const D64 d;
  const hn::Rebind<float, D64> narrow;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto zero = hn::Zero(d), one = hn::Set(d, 1.0), least = hn::Set(d, eps);
  for (; r + lanes <= rows; r += lanes) {
    hn::Vec<hn::Rebind<float, D64>> x0, x1, x2;
    hn::LoadInterleaved3(narrow, x + 3 * r, x0, x1, x2);
    const auto a = hn::PromoteTo(d, x0), b = hn::PromoteTo(d, x1), c = hn::PromoteTo(d, x2);
    // sum_tree() and scale(), whose other partial sums are 0
    const auto length = hn::Sqrt(hn::Add(hn::Add(hn::Mul(a, a), hn::Mul(c, c)), hn::Mul(b, b)));
    const auto divisor = hn::IfThenElse(hn::Lt(length, least), least, length);
    const auto factor = hn::IfThenElse(hn::Eq(divisor, zero), zero, hn::Div(one, divisor));
    hn::StoreInterleaved3(hn::DemoteTo(narrow, hn::Mul(a, factor)), hn::DemoteTo(narrow, hn::Mul(b, factor)),
                          hn::DemoteTo(narrow, hn::Mul(c, factor)), narrow, y + 3 * r);
  }
  return r;
}

void l2_normalize_cpu(const opbridge::Call& call) {
  const Shape s(call, 0);
  const double eps = static_cast<double>(call.attr_float("eps"));
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const T* input = call.input<T>(0).data();
    T* output = call.output<T>(0).data();
    call.parallel_for(s.outer * s.inner, grain(s), [&](int64_t begin, int64_t end) {
      if constexpr (!std::is_same_v<T, opbridge::f16>) {
        if (s.inner == 1) {
          if constexpr (std::is_same_v<T, float>) {
            if (s.length == 3)
              begin += normalize_triples(input + 3 * begin, end - begin, eps, output + 3 * begin);
          }
          constexpr int kRows = 4;
          const bool stream = streams(output, s.length, s.outer * s.length);
          const auto at = [&](auto* p) { return p + begin * s.length; };
          for (; begin + kRows <= end; begin += kRows) {
            normalize_rows<kRows>(at(input), s.length, eps, stream, at(output));
          }
          for (; begin < end; ++begin) normalize_rows<1>(at(input), s.length, eps, stream, at(output));
          if (stream) hwy::FlushStream();
          return;
        }
      }
      for (int64_t v = begin; v < end; ++v) {
        const int64_t at = v / s.inner * s.length * s.inner + v % s.inner;
        const T* x = input + at;
        T* y = output + at;
        const double scale = l2_normalize::scale(dot(x, x, s.length, s.inner), eps);
        for (int64_t i = 0; i < s.length; ++i) {
          y[i * s.inner] = static_cast<T>(static_cast<double>(x[i * s.inner]) * scale);
        }
      }
    });
  });
}

void l2_normalize_grad_cpu(const opbridge::Call& call) {
  const Shape s(call, 1);
  const double eps = static_cast<double>(call.attr_float("eps"));
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    call.parallel_for(s.outer * s.inner, grain(s), [&](int64_t begin, int64_t end) {
      for (int64_t v = begin; v < end; ++v) {
        const int64_t at = v / s.inner * s.length * s.inner + v % s.inner;
        const T *g = call.input<T>(0).data() + at, *x = call.input<T>(1).data() + at;
        T* grad_x = call.output<T>(0).data() + at;
        const l2_normalize::Gradient gradient(dot(x, x, s.length, s.inner), dot(x, g, s.length, s.inner),
                                              eps);
        for (int64_t i = 0; i < s.length; ++i) {
          grad_x[i * s.inner] = static_cast<T>(
              gradient.of(static_cast<double>(g[i * s.inner]), static_cast<double>(x[i * s.inner])));
        }
      }
    });
  });
}

}  // namespace pvn3d::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pvn3d {
OPBRIDGE_DISPATCHED_KERNEL(l2_normalize_cpu)
OPBRIDGE_DISPATCHED_KERNEL(l2_normalize_grad_cpu)
}  // namespace pvn3d

OPBRIDGE_OPERATORS(l2_normalize) {
  return {
      opbridge::Operator(R"(
        "Divides the vectors along one axis by their Euclidean length."
        L2Normalize(x: T[*S] "vectors; at least one dimension";
                    axis: int in [-16, 15] = -1 "the axis that the vectors lie along",
                    eps: float in [0, inf) = 1e-12 "a shorter length counts as this")
            -> y: T[*S] "x / max(length, eps); zeros stay zeros"
            where T in {f16, f32, f64}
            grad: L2NormalizeGrad
      )")
          .cpu(pvn3d::best_l2_normalize_cpu())
          .cuda(OPBRIDGE_CUDA_KERNEL(l2_normalize_cuda)),
      opbridge::Operator(R"(
        "Gradient of L2Normalize."
        L2NormalizeGrad(grad_y: T[*S] "gradient of y",
                        x: T[*S]      "as given to L2Normalize";
                        axis: int in [-16, 15] = -1 "as given to L2Normalize",
                        eps: float in [0, inf) = 1e-12 "as given to L2Normalize")
            -> grad_x: T[*S] "gradient of x"
            where T in {f16, f32, f64}
      )")
          .cpu(pvn3d::best_l2_normalize_grad_cpu())
          .cuda(OPBRIDGE_CUDA_KERNEL(l2_normalize_grad_cuda)),
  };
}
#endif
