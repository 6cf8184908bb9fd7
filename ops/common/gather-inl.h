// Picking columns of channel-first features, and the gradient of that: what GatherPoints and GroupPoints do, which
// differ only in how many dimensions their positions have.
// Compiled once a SIMD target (see simd.h).
#if defined(OPBRIDGE_GATHER_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef OPBRIDGE_GATHER_INL_H
#undef OPBRIDGE_GATHER_INL_H
#else
#define OPBRIDGE_GATHER_INL_H
#endif

#include <algorithm>
#include <type_traits>

#include "common/caches.h"
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

/// Four channels side by side, so that one load serves all four.
constexpr int kBlock = 4;
/// Positions whose results wait, channels side by side, to be written channel by channel.
constexpr int64_t kTile = 64;

/// block[i] = four channels of point i.
inline void interleave(const float* features, int64_t n, float* block) {
  for (int64_t i = 0; i < n; ++i) {
    for (int c = 0; c < kBlock; ++c) block[i * kBlock + c] = features[c * n + i];
  }
}

/// Writes `count` positions of a tile to four rows, `stride` apart. `stream`: past the caches, for an output
/// larger than they are.
inline void deinterleave(const float* tile, int64_t count, bool stream, float* out, int64_t stride) {
  const hn::CappedTag<float, 16> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)),
                bytes = lanes * static_cast<int64_t>(sizeof(float));
  stream = stream && reinterpret_cast<intptr_t>(out) % bytes == 0 && stride % lanes == 0;
  int64_t p = 0;
  for (; p + lanes <= count; p += lanes) {
    hn::Vec<decltype(d)> v[kBlock];
    hn::LoadInterleaved4(d, tile + p * kBlock, v[0], v[1], v[2], v[3]);
    for (int c = 0; c < kBlock; ++c) {
      if (stream) {
        hn::Stream(v[c], d, out + c * stride + p);
      } else {
        hn::StoreU(v[c], d, out + c * stride + p);
      }
    }
  }
  for (; p < count; ++p) {
    for (int c = 0; c < kBlock; ++c) out[c * stride + p] = tile[p * kBlock + c];
  }
}

/// Calls fill(p, count, tile) for tile after tile and writes each to four rows of `count` positions.
template <class Fill>
void write_block(int64_t count, bool stream, float* out, const Fill& fill) {
  HWY_ALIGN float tile[kTile * kBlock];
  for (int64_t p = 0; p < count; p += kTile) {
    const int64_t here = std::min(kTile, count - p);
    fill(p, here, tile);
    deinterleave(tile, here, stream, out + p, count);
  }
  if (stream) hwy::FlushStream();
}

/// The work of a call: groups of channels of one batch, each with room for a block of n points in the
/// workspace.
struct Tasks {
  int64_t channels_each, per_batch, count;

  Tasks(int64_t batches, int64_t channels)
      : channels_each(std::max<int64_t>(kBlock, ((channels + 15) / 16 + kBlock - 1) / kBlock * kBlock)),
        per_batch((channels + channels_each - 1) / channels_each),
        count(batches * per_batch) {}

  static int64_t block_bytes(int64_t n) {
    return (n * kBlock * static_cast<int64_t>(sizeof(float)) + 63) / 64 * 64;
  }
  /// Only f32 is done in blocks.
  size_t workspace(opbridge::DType dtype, int64_t n) const {
    return dtype == opbridge::DType::f32 ? static_cast<size_t>(count * block_bytes(n)) : 0;
  }
  static float* block(void* workspace, int64_t task, int64_t n) {
    return reinterpret_cast<float*>(static_cast<char*>(workspace) + task * block_bytes(n));
  }
};

/// out[b, c, p] = features[b, c, idx[b, p]]; features (B, C, N), idx (B, P), out (B, C, P). Needs
/// Tasks::workspace().
template <class T, class I>
void gather_columns(const opbridge::Call& call, const T* features, const I* idx, T* out, int64_t batches,
                    int64_t channels, int64_t n, int64_t positions) {
  const Tasks tasks(batches, channels);
  const bool stream = outgrows_caches(batches * channels * positions * static_cast<int64_t>(sizeof(T)));
  call.parallel_for(tasks.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / tasks.per_batch, first = task % tasks.per_batch * tasks.channels_each;
      const int64_t last = std::min(first + tasks.channels_each, channels);
      const I* at = idx + b * positions;
      const bool good = all_in_range(at, positions, n);
      int64_t c = first;
      if constexpr (std::is_same_v<T, float>) {
        const hn::CappedTag<float, kBlock> d;
        const int lanes = static_cast<int>(hn::Lanes(d));
        float* block = Tasks::block(call.workspace(), task, n);
        for (; good && positions >= n && c + kBlock <= last; c += kBlock) {
          interleave(features + (b * channels + c) * n, n, block);
          write_block(positions, stream, out + (b * channels + c) * positions,
                      [&](int64_t p, int64_t count, float* tile) HWY_ATTR {
                        for (int64_t i = 0; i < count; ++i) {
                          for (int l = 0; l < kBlock; l += lanes) {
                            hn::Store(hn::Load(d, block + at[p + i] * kBlock + l), d, tile + i * kBlock + l);
                          }
                        }
                      });
        }
      }
      for (; c < last; ++c) {
        const T* f = features + (b * channels + c) * n;
        T* o = out + (b * channels + c) * positions;
        if (good) {
          for (int64_t p = 0; p < positions; ++p) o[p] = f[at[p]];
        } else {
          for (int64_t p = 0; p < positions; ++p) o[p] = read_or_zero(f, at[p], n);
        }
      }
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

/// The positions of one batch.
inline int64_t positions_of(const opbridge::TensorArg& idx) {
  int64_t count = 1;
  for (int i = 1; i < idx.rank; ++i) count *= idx.shape[i];
  return count;
}

/// The kernel over (features, idx) -> out, and its workspace.
inline void gather(const opbridge::Call& call) {
  const int64_t* features = call.input_arg(0).shape;
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto t) {
    opbridge::dispatch<int32_t, int64_t>(call.input_dtype(1), [&](auto i) {
      using T = decltype(t);
      using I = decltype(i);
      gather_columns<T, I>(call, call.input<T>(0).data(), call.input<I>(1).data(), call.output<T>(0).data(),
                           features[0], features[1], features[2], positions_of(call.input_arg(1)));
    });
  });
}

inline size_t gather_workspace(const opbridge::Call& call) {
  if (call.device() == opbridge::Device::kCuda) return 0;
  const int64_t* features = call.input_arg(0).shape;
  return Tasks(features[0], features[1]).workspace(call.input_dtype(0), features[2]);
}

/// The kernel over (grad_out, features, idx) -> grad_features, and its workspace.
inline void gather_grad(const opbridge::Call& call) {
  const int64_t* features = call.input_arg(1).shape;
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto t) {
    opbridge::dispatch<int32_t, int64_t>(call.input_dtype(2), [&](auto i) {
      using T = decltype(t);
      using I = decltype(i);
      gather_columns_grad<T, I>(call, call.input<T>(0).data(), call.input<I>(2).data(),
                                call.output<T>(0).data(), features[0], features[1], features[2],
                                positions_of(call.input_arg(2)));
    });
  });
}

inline size_t gather_grad_workspace(const opbridge::Call& call) {
  const int64_t* features = call.input_arg(1).shape;
  const bool cuda = call.device() == opbridge::Device::kCuda;
  return (cuda ? cuda_inverse_index_bytes : inverse_index_bytes)(features[0], features[2],
                                                                 positions_of(call.input_arg(2)));
}

}  // namespace pvn3d::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
