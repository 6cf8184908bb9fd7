// Picking columns of channel-first features, and the gradient of that: what GatherPoints and GroupPoints do.
// Compiled once a SIMD target (see simd.h).
#if defined(OPBRIDGE_GATHER_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef OPBRIDGE_GATHER_INL_H
#undef OPBRIDGE_GATHER_INL_H
#else
#define OPBRIDGE_GATHER_INL_H
#endif

#include <algorithm>
#include <type_traits>

#include "common/inverse_index.h"
#include "hwy/cache_control.h"
#include "opbridge/op.h"

HWY_BEFORE_NAMESPACE();
namespace pvn3d::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class I>
bool all_in_range(const I* idx, int64_t count, int64_t n) {
  using Unsigned = std::make_unsigned_t<I>;
  Unsigned most = 0;  // a negative index is a large one
  for (int64_t i = 0; i < count; ++i) most = std::max(most, static_cast<Unsigned>(idx[i]));
  return count == 0 || static_cast<uint64_t>(most) < static_cast<uint64_t>(n);
}

/// out[p] = features[idx[p]], all in range. `stream`: past the caches, for an output larger than they are.
template <class T, class I>
void gather_row(const T* features, const I* idx, int64_t count, [[maybe_unused]] bool stream, T* out) {
  int64_t p = 0;
#if HWY_TARGET <= HWY_AVX2
  if constexpr (std::is_same_v<T, float> && std::is_same_v<I, int32_t>) {
    const hn::ScalableTag<float> d;
    const hn::RebindToSigned<decltype(d)> di;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    for (; p < count &&
           reinterpret_cast<uintptr_t>(out + p) % (sizeof(float) * static_cast<size_t>(lanes)) != 0;
         ++p) {
      out[p] = features[idx[p]];
    }
    if (stream) {
      for (; p + lanes <= count; p += lanes)
        hn::Stream(hn::GatherIndex(d, features, hn::LoadU(di, idx + p)), d, out + p);
    } else {
      for (; p + lanes <= count; p += lanes)
        hn::Store(hn::GatherIndex(d, features, hn::LoadU(di, idx + p)), d, out + p);
    }
  }
#endif
  for (; p < count; ++p) out[p] = features[idx[p]];
}

/// out[b, c, p] = features[b, c, idx[b, p]]; features (B, C, N), idx (B, P), out (B, C, P).
template <class T, class I>
void gather_columns(const opbridge::Call& call, const T* features, const I* idx, T* out, int64_t batches,
                    int64_t channels, int64_t n, int64_t positions) {
  constexpr int64_t kCacheBytes = 4 << 20;
  const bool stream = batches * channels * positions * static_cast<int64_t>(sizeof(T)) > kCacheBytes;
  const int64_t grain = std::clamp<int64_t>((1 << 17) / std::max<int64_t>(1, positions), 4, 64);
  const int64_t pieces = (channels + grain - 1) / grain;
  call.parallel_for(batches * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t b = piece / pieces, first = piece % pieces * grain,
                    last = std::min(first + grain, channels);
      const I* at = idx + b * positions;
      const bool good = all_in_range(at, positions, n);
      for (int64_t c = first; c < last; ++c) {
        const T* f = features + (b * channels + c) * n;
        T* o = out + (b * channels + c) * positions;
        if (good) {
          gather_row(f, at, positions, stream, o);
        } else {
          for (int64_t p = 0; p < positions; ++p) o[p] = read_or_zero(f, at[p], n);
        }
      }
    }
    if (stream) hwy::FlushStream();
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

}  // namespace pvn3d::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
