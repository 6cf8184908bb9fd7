#include <algorithm>

#include "common/gather.h"
#include "common/inverse_index.h"
#include "three_interpolate/three_interpolate.h"

namespace {

using opbridge::Call;
using opbridge::dispatch;
using opbridge::f16;

void three_interpolate_cpu(const Call& call) {
  const int64_t batches = call.input_arg(0).shape[0], channels = call.input_arg(0).shape[1],
                m = call.input_arg(0).shape[2];
  const int64_t n = call.input_arg(1).shape[1];
  dispatch<f16, float, double>(call.input_dtype(0), [&](auto t) {
    dispatch<int32_t, int64_t>(call.input_dtype(1), [&](auto i) {
      using T = decltype(t);
      using I = decltype(i);
      using C = pvn3d::Compute<T>;
      const int64_t grain = std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(1, n));
      call.parallel_for(batches * channels, grain, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const T* f = call.input<T>(0).data() + row * m;
          const I* idx = call.input<I>(1).data() + row / channels * n * 3;
          const T* w = call.input<T>(2).data() + row / channels * n * 3;
          T* out = call.output<T>(0).data() + row * n;
          const auto feature = [&](I at) { return static_cast<C>(pvn3d::read_or_zero(f, at, m)); };
          for (int64_t p = 0; p < n; ++p) {
            out[p] = static_cast<T>(three_interpolate::weighted_sum<C>(
                w[3 * p], feature(idx[3 * p]), w[3 * p + 1], feature(idx[3 * p + 1]), w[3 * p + 2],
                feature(idx[3 * p + 2])));
          }
        }
      });
    });
  });
}

size_t grad_workspace(const Call& call) {
  return pvn3d::inverse_index_bytes(call.input_arg(1).shape[0], call.input_arg(1).shape[2],
                                    call.input_arg(2).shape[1] * 3);
}

void three_interpolate_grad_cpu(const Call& call) {
  const int64_t batches = call.input_arg(1).shape[0], channels = call.input_arg(1).shape[1],
                m = call.input_arg(1).shape[2];
  const int64_t n = call.input_arg(2).shape[1];
  dispatch<f16, float, double>(call.input_dtype(0), [&](auto t) {
    dispatch<int32_t, int64_t>(call.input_dtype(2), [&](auto i) {
      using T = decltype(t);
      using I = decltype(i);
      const T *grad_out = call.input<T>(0).data(), *features = call.input<T>(1).data(),
              *weight = call.input<T>(3).data();
      const I* idx = call.input<I>(2).data();
      T *grad_features = call.output<T>(0).data(), *grad_weight = call.output<T>(1).data();
      call.parallel_for(batches, 1, [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b)
          pvn3d::inverse_index(call, b, m, n * 3).build(idx + b * n * 3, n * 3, m);
      });
      call.parallel_for(
          batches * channels, std::max<int64_t>(1, (1 << 15) / (m + n + 1)), [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
              const pvn3d::InverseIndex who = pvn3d::inverse_index(call, row / channels, m, n * 3);
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
                  g * static_cast<double>(pvn3d::read_or_zero(features + row * m, idx[3 * p + j], m));
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

}  // namespace

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
          .cpu(three_interpolate_cpu),
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
          .cpu(three_interpolate_grad_cpu)
          .workspace(grad_workspace),
  };
}
