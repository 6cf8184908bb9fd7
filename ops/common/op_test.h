// For the operators' C++ tests: calls an operator of the library that the test is linked with.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "common/op_call.h"

namespace pvn3d::test {

/// See op_call.h.
inline Result call(const char* op, std::vector<Array> inputs, const std::vector<Attribute>& attributes = {},
                   int threads = 1) {
  OpbridgeError error{};
  error.size = sizeof error;
  const OpbridgeLibrary* library = opbridge_get_library(OPBRIDGE_ABI_VERSION, &error);
  if (library == nullptr) return {{}, error.message};
  std::vector<OpbridgeAttribute> given;
  for (const Attribute& a : attributes) {
    const int32_t type = a.text != nullptr ? 4 : a.is_int ? 1 : 2;
    given.push_back({a.name, type, 0, static_cast<int64_t>(a.value), a.value, a.text, nullptr, nullptr, 0});
  }
  return call(*library, op, std::move(inputs), given, threads);
}

/// n numbers in [0, 1), the same ones every time.
inline std::vector<float> random(size_t n, uint32_t seed = 1) {
  std::vector<float> values(n);
  for (float& v : values) {
    seed = seed * 1664525u + 1013904223u;
    v = static_cast<float>(seed >> 8) * 0x1p-24f;
  }
  return values;
}

/// Expects a row-major 3 x 3 matrix that turns and does not mirror: R R^T = I, det R = 1.
template <class T>
void expect_rotation(const T* r, double tolerance) {
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) {
      double dot = 0;
      for (int k = 0; k < 3; ++k)
        dot += static_cast<double>(r[3 * i + k]) * static_cast<double>(r[3 * j + k]);
      EXPECT_NEAR(dot, i == j, tolerance);
    }
  }
  const auto minor = [&](int a, int b) {
    return static_cast<double>(r[3 + a]) * static_cast<double>(r[6 + b]) -
           static_cast<double>(r[3 + b]) * static_cast<double>(r[6 + a]);
  };
  EXPECT_NEAR(static_cast<double>(r[0]) * minor(1, 2) - static_cast<double>(r[1]) * minor(0, 2) +
                  static_cast<double>(r[2]) * minor(0, 1),
              1, tolerance);
}

}  // namespace pvn3d::test
