// Typed access to an array whose element type is known only at run time.
#pragma once

#include "opbridge/context.h"
#include "opbridge/runner.h"
#include "opbridge/signature.h"

namespace opbridge {

/// Calls f(elements) with a pointer of the array's element type.
template <class F>
void visit(const Array& array, F&& f) {
  dispatch<f16, bf16, float, double, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
           bool>(array.dtype(), [&](auto zero) { f(static_cast<decltype(zero)*>(array.data())); });
}

template <class T>
constexpr bool kIsFloat = std::is_same_v<T, f16> || std::is_same_v<T, bf16> || std::is_floating_point_v<T>;

/// Elements as double; integers beyond 2^53 are rounded.
template <class T>
double as_double(T v) {
  if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>)
    return static_cast<float>(v);
  else
    return static_cast<double>(v);
}

/// "[1,2]" of a flat index.
inline std::string index_text(const std::vector<int64_t>& shape, int64_t flat) {
  std::vector<int64_t> index(shape.size());
  for (size_t d = index.size(); d-- > 0;) {
    index[d] = flat % shape[d];
    flat /= shape[d];
  }
  return shape_to_string(index.data(), static_cast<int>(index.size()));
}

}  // namespace opbridge
