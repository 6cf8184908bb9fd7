// Picking columns of channel-first features, and the gradient of that: what GatherPoints and GroupPoints do.
#pragma once

#include <algorithm>

#include "common/inverse_index.h"
#include "opbridge/op.h"

namespace pvn3d {

/// features[at], or 0 where the index is out of range.
template <class T, class I>
OPBRIDGE_HD T read_or_zero(const T* features, I at, int64_t n) {
  return in_range(at, n) ? features[at] : T{};
}

/// out[b, c, p] = features[b, c, idx[b, p]]; features (B, C, N), idx (B, P), out (B, C, P).
template <class T, class I>
void gather_columns(const opbridge::Call& call, const T* features, const I* idx, T* out, int64_t batches,
                    int64_t channels, int64_t n, int64_t positions) {
  const int64_t grain = std::max<int64_t>(1, (1 << 16) / std::max<int64_t>(1, positions));
  call.parallel_for(batches * channels, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const I* at = idx + row / channels * positions;
      const T* f = features + row * n;
      T* o = out + row * positions;
      for (int64_t p = 0; p < positions; ++p) o[p] = read_or_zero(f, at[p], n);
    }
  });
}

/// grad_features[b, c, t] = the sum of grad_out[b, c, p] over p with idx[b, p] == t, in ascending order of p,
/// in f64.
template <class T, class I>
void gather_columns_grad(const opbridge::Call& call, const T* grad_out, const I* idx, T* grad_features,
                         int64_t batches, int64_t channels, int64_t n, int64_t positions) {
  call.parallel_for(batches, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      inverse_index(call, b, n, positions).build(idx + b * positions, positions, n);
    }
  });
  const int64_t grain = std::max<int64_t>(1, (1 << 16) / std::max<int64_t>(1, n + positions));
  call.parallel_for(batches * channels, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const InverseIndex who = inverse_index(call, row / channels, n, positions);
      const T* g = grad_out + row * positions;
      T* out = grad_features + row * n;
      for (int64_t t = 0; t < n; ++t) {
        double sum = 0;
        for (int32_t i = who.start[t]; i < who.start[t + 1]; ++i) sum += static_cast<double>(g[who.order[i]]);
        out[t] = static_cast<T>(sum);
      }
    }
  });
}

}  // namespace pvn3d
