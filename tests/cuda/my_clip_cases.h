// Inputs of my_clip and my_clip_grad that reach every branch of their kernels.
#pragma once

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "host.h"

namespace my_clip_cases {

using host::DType;
using host::Inputs;
using host::store;
using host::Tensor;

struct Bounds {
  const char* name;
  std::optional<double> min, max;
};

inline const std::vector<Bounds>& all_bounds() {
  constexpr double inf = std::numeric_limits<double>::infinity(),
                   nan = std::numeric_limits<double>::quiet_NaN();
  static const std::vector<Bounds> bounds = {
      {"none", {}, {}},     {"min", -2.5, {}},       {"max", {}, 3},
      {"both", -3, 2.5},    {"crossed", 4, -4},      {"nan min", nan, 1},
      {"nan max", -1, nan}, {"infinite", -inf, inf}, {"equal", 1, 1}};
  return bounds;
}

constexpr DType kDTypes[] = {DType::f16, DType::bf16, DType::f32, DType::f64, DType::i32, DType::i64};

/// Values around the bounds, half of them with random bits: NaN of all kinds, infinities, subnormals.
inline Tensor values(DType dtype, int64_t n, unsigned seed) {
  Tensor t(dtype, {n});
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> near(-8, 8);
  const size_t size = opbridge::dtype_size(dtype);
  for (size_t i = 0; i < t.count(); ++i) {
    if (random() % 2 == 0) {
      store(t, i, random() % 4 == 0 ? static_cast<double>(static_cast<int>(random() % 9)) - 4 : near(random));
    } else {
      for (size_t b = 0; b < size; ++b) t.bytes[i * size + b] = static_cast<unsigned char>(random());
    }
  }
  return t;
}

/// Of shape [1] or [], as `seed` is odd or even.
inline std::optional<Tensor> bound(DType dtype, std::optional<double> v, unsigned seed) {
  if (!v) return {};
  Tensor t(dtype, seed % 2 ? std::vector<int64_t>{1} : std::vector<int64_t>{});
  const bool is_int = dtype == DType::i32 || dtype == DType::i64;
  if (is_int && !std::isfinite(*v)) v = std::isnan(*v) ? 0 : *v < 0 ? -1e9 : 1e9;
  store(t, 0, *v);
  return t;
}

inline Inputs clip(DType dtype, int64_t n, const Bounds& b, unsigned seed) {
  return {values(dtype, n, seed), bound(dtype, b.min, seed), bound(dtype, b.max, seed + 1)};
}

inline Inputs clip_grad(DType dtype, int64_t n, const Bounds& b, unsigned seed) {
  return {values(dtype, n, seed + 7), values(dtype, n, seed), bound(dtype, b.min, seed),
          bound(dtype, b.max, seed + 1)};
}

}  // namespace my_clip_cases
