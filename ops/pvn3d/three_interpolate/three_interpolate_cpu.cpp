#include <algorithm>

#include "three_interpolate/three_interpolate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "three_interpolate/three_interpolate_cpu.cpp"
#include "common/simd.h"
// After it, always.
#include "common/gather-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pvn3d::HWY_NAMESPACE {

/// Indices and weights of one batch, each of the three apart, and whether all indices are in range.
template <class C>
struct Columns {
  int32_t* idx[3];
  C* weight[3];
  bool* good;
  size_t bytes;

  /// Of batch b.
  Columns(void* workspace, int64_t b, int64_t n)
      : Columns(Arena(static_cast<char*>(workspace) + b * size(n)), n) {}

  static int64_t size(int64_t n) { return static_cast<int64_t>(Columns(Arena(), n).bytes); }

 private:
  Columns(Arena a, int64_t n) : good(a.take<bool>(1)) {
    for (int32_t*& i : idx) i = a.take<int32_t>(n);
    for (C*& w : weight) w = a.take<C>(n);
    bytes = a.used();
  }
};

// One channel, all indices in range.
template <class T, class C>
void interpolate_row(const T* features, const Columns<C>& columns, int64_t n, T* out) {
  const auto& idx = columns.idx;
  const auto& w = columns.weight;
  for (int64_t p = 0; p < n; ++p) {
    out[p] = static_cast<T>(three_interpolate::weighted_sum<C>(
        w[0][p], features[idx[0][p]], w[1][p], features[idx[1][p]], w[2][p], features[idx[2][p]]));
  }
}

// Four channels, all indices in range.
inline void interpolate_block(const float* block, const Columns<float>& columns, int64_t n, bool stream,
                              float* out) {
  const hn::CappedTag<float, kBlock> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  write_block(n, stream, out, [&](int64_t first, int64_t count, float* tile) HWY_ATTR {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t p = first + i;
      for (int l = 0; l < kBlock; l += lanes) {
        const auto term = [&](int j) HWY_ATTR {
          return hn::Mul(hn::Set(d, columns.weight[j][p]),
                         hn::Load(d, block + columns.idx[j][p] * kBlock + l));
        };
        hn::Store(hn::Add(hn::Add(term(0), term(1)), term(2)), d, tile + i * kBlock + l);
      }
    }
  });
}

template <class T, class I>
void interpolate(const opbridge::Call& call) {
  using C = Compute<T>;
  const int64_t batches = call.input_arg(0).shape[0], channels = call.input_arg(0).shape[1],
                m = call.input_arg(0).shape[2];
  const int64_t n = call.input_arg(1).shape[1];
  const T *features = call.input<T>(0).data(), *weight = call.input<T>(2).data();
  const I* idx = call.input<I>(1).data();
  T* out = call.output<T>(0).data();
  call.parallel_for(batches, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const Columns<C> columns(call.workspace(), b, n);
      *columns.good = all_in_range(idx + b * n * 3, n * 3, m);
      for (int64_t p = 0; p < n; ++p) {
        for (int j = 0; j < 3; ++j) {
          columns.idx[j][p] = static_cast<int32_t>(idx[(b * n + p) * 3 + j]);
          columns.weight[j][p] = static_cast<C>(weight[(b * n + p) * 3 + j]);
        }
      }
    }
  });
  const Tasks tasks(batches, channels);
  const bool stream = outgrows_caches(batches * channels * n * static_cast<int64_t>(sizeof(T)));
  call.parallel_for(tasks.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / tasks.per_batch, first = task % tasks.per_batch * tasks.channels_each;
      const int64_t last = std::min(first + tasks.channels_each, channels);
      const Columns<C> columns(call.workspace(), b, n);
      int64_t c = first;
      if constexpr (std::is_same_v<T, float>) {
        float* block =
            Tasks::block(static_cast<char*>(call.workspace()) + batches * Columns<C>::size(n), task, m);
        for (; *columns.good && c + kBlock <= last; c += kBlock) {
          interleave(features + (b * channels + c) * m, m, block);
          interpolate_block(block, columns, n, stream, out + (b * channels + c) * n);
        }
      }
      for (; c < last; ++c) {
        const T* f = features + (b * channels + c) * m;
        T* o = out + (b * channels + c) * n;
        if (*columns.good) {
          interpolate_row(f, columns, n, o);
          continue;
        }
        const I* at = idx + b * n * 3;
        const auto& w = columns.weight;
        const auto feature = [&](int64_t i) { return static_cast<C>(read_or_zero(f, at[i], m)); };
        for (int64_t p = 0; p < n; ++p) {
          o[p] = static_cast<T>(three_interpolate::weighted_sum<C>(
              w[0][p], feature(3 * p), w[1][p], feature(3 * p + 1), w[2][p], feature(3 * p + 2)));
        }
      }
    }
  });
}

void three_interpolate_cpu(const opbridge::Call& call) {
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto t) {
    opbridge::dispatch<int32_t, int64_t>(call.input_dtype(1),
                                         [&](auto i) { interpolate<decltype(t), decltype(i)>(call); });
  });
}

size_t three_interpolate_workspace(const opbridge::Call& call) {
  if (call.device() == opbridge::Device::kCuda) return 0;
  const int64_t batches = call.input_arg(0).shape[0], channels = call.input_arg(0).shape[1],
                m = call.input_arg(0).shape[2];
  const int64_t n = call.input_arg(1).shape[1];
  const bool f64 = call.input_dtype(0) == opbridge::DType::f64;
  return static_cast<size_t>(batches * (f64 ? Columns<double>::size(n) : Columns<float>::size(n))) +
         Tasks(batches, channels).workspace(call.input_dtype(0), m);
}

size_t three_interpolate_grad_workspace(const opbridge::Call& call) {
  const bool cuda = call.device() == opbridge::Device::kCuda;
  return (cuda ? cuda_inverse_index_bytes : inverse_index_bytes)(
      call.input_arg(1).shape[0], call.input_arg(1).shape[2], call.input_arg(2).shape[1] * 3);
}

void three_interpolate_grad_cpu(const opbridge::Call& call) {
  const int64_t batches = call.input_arg(1).shape[0], channels = call.input_arg(1).shape[1],
                m = call.input_arg(1).shape[2];
  const int64_t n = call.input_arg(2).shape[1];
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto t) {
    opbridge::dispatch<int32_t, int64_t>(call.input_dtype(2), [&](auto i) {
      using T = decltype(t);
      using I = decltype(i);
      const T *grad_out = call.input<T>(0).data(), *features = call.input<T>(1).data(),
              *weight = call.input<T>(3).data();
      const I* idx = call.input<I>(2).data();
      T *grad_features = call.output<T>(0).data(), *grad_weight = call.output<T>(1).data();
      call.parallel_for(batches, 1, [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b)
          inverse_index(call, b, m, n * 3).build(idx + b * n * 3, n * 3, m);
      });
      call.parallel_for(batches * channels, std::max<int64_t>(1, (1 << 15) / (m + n + 1)),
                        [&](int64_t begin, int64_t end) {
                          for (int64_t row = begin; row < end; ++row) {
                            const InverseIndex who = inverse_index(call, row / channels, m, n * 3);
                            const T *g = grad_out + row * n, *w = weight + row / channels * n * 3;
                            for (int64_t k = 0; k < m; ++k) {
                              double sum = 0;
                              for (int32_t p = who.start[k]; p < who.start[k + 1]; ++p) {
                                const int32_t at = who.order[p];
                                sum += static_cast<double>(w[at]) * static_cast<double>(g[at / 3]);
                              }
                              grad_features[row * m + k] = static_cast<T>(sum);
                            }
                          }
                        });
      constexpr int64_t kBlock =
          256;  // points at a time: their sums stay in the cache while the channels stream by
      call.parallel_for(batches * n, kBlock, [&](int64_t begin, int64_t end) {
        double sums[kBlock][3] = {};
        for (int64_t c = 0; c < channels; ++c) {
          for (int64_t p = begin; p < end; ++p) {
            const int64_t row = p / n * channels + c;
            const double g = static_cast<double>(grad_out[row * n + p % n]);
            for (int j = 0; j < 3; ++j) {
              sums[p - begin][j] +=
                  g * static_cast<double>(read_or_zero(features + row * m, idx[3 * p + j], m));
            }
          }
        }
        for (int64_t p = begin; p < end; ++p) {
          for (int j = 0; j < 3; ++j) grad_weight[3 * p + j] = static_cast<T>(sums[p - begin][j]);
        }
      });
    });
  });
}

}  // namespace pvn3d::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pvn3d {
OPBRIDGE_DISPATCHED_KERNEL(three_interpolate_cpu)
OPBRIDGE_DISPATCHED_WORKSPACE(three_interpolate_workspace)
OPBRIDGE_DISPATCHED_KERNEL(three_interpolate_grad_cpu)
OPBRIDGE_DISPATCHED_WORKSPACE(three_interpolate_grad_workspace)
}  // namespace pvn3d

OPBRIDGE_OPERATORS(three_interpolate) {
  return {
      opbridge::Operator(R"(
        "Weighted sum of the features of three points."
        ThreeInterpolate(features: T[B,C,M] "features, channel first",
                         idx: I[B,N,3]      "three points for each output; an index out of range counts as feature 0",
                         weight: T[B,N,3]   "their weights, used as given")
            -> out: T[B,C,N] "interpolated features"
            where T in {f16, f32, f64}, I in {i32, i64}
            grad: ThreeInterpolateGrad
      )")
          .cpu(pvn3d::best_three_interpolate_cpu())
          .cuda(OPBRIDGE_CUDA_KERNEL(three_interpolate_cuda))
          .workspace(pvn3d::any_three_interpolate_workspace),
      opbridge::Operator(R"(
        "Gradient of ThreeInterpolate with respect to features and weight."
        ThreeInterpolateGrad(grad_out: T[B,C,N] "gradient of out",
                             features: T[B,C,M] "as given to ThreeInterpolate",
                             idx: I[B,N,3]      "as given to ThreeInterpolate",
                             weight: T[B,N,3]   "as given to ThreeInterpolate")
            -> (grad_features: T[B,C,M] "sums of weight times grad_out, each in ascending order of positions, in f64",
                grad_weight: T[B,N,3]   "sums of features times grad_out over the channels in order, in f64")
            where T in {f16, f32, f64}, I in {i32, i64}
      )")
          .cpu(pvn3d::best_three_interpolate_grad_cpu())
          .cuda(OPBRIDGE_CUDA_KERNEL(three_interpolate_grad_cuda))
          .workspace(pvn3d::any_three_interpolate_grad_workspace),
  };
}
#endif
