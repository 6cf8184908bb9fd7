// exp(x) for x <= 0, the same bits on every device and with every SIMD width: only additions, multiplications
// and bit shifts, in one order. Accurate to 2 units in the last place.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "opbridge/tensor.h"

namespace pvn3d {

/// Constants of exp(x) = 2^n exp(r), x = n ln 2 + r, for C = float or double.
template <class C>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  using Bits = int32_t;
  static constexpr float kLowest = -87.0f;      // below, the result is 0
  static constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, in the low bits
  static constexpr int kMantissaBits = 23;
  static constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  static constexpr int kTerms = 6;  // polynomial of (exp(r) - 1 - r) / r^2, highest power first (Cephes)
  static constexpr float kPolynomial[kTerms] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                                4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
};

template <>
struct ExpConstants<double> {
  using Bits = int64_t;
  static constexpr double kLowest = -708.0;
  static constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr int kMantissaBits = 52;
  static constexpr double kLn2High = 6.93145751953125e-1, kLn2Low = 1.42860682030941723212e-6;
  static constexpr int kTerms = 12;  // Taylor: 1/13! .. 1/2!
  static constexpr double kPolynomial[kTerms] = {
      1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320,
      1.0 / 5040,       1.0 / 720,       1.0 / 120,      1.0 / 24,      1.0 / 6,      1.0 / 2};
};

namespace detail {

// One coefficient as a number of its own: device code has no constant arrays of a class.
template <class C, size_t i>
struct ExpTerm {
  static constexpr C value = ExpConstants<C>::kPolynomial[i];
};

template <class C, size_t... i>
OPBRIDGE_HD C exp_polynomial(C r, std::index_sequence<i...>) {
  C p = ExpTerm<C, 0>::value;
  ((p = p * r + ExpTerm<C, i + 1>::value), ...);
  return p;
}

}  // namespace detail

template <class C>
OPBRIDGE_HD C exp_nonpositive(C x) {
  using K = ExpConstants<C>;
  if (!(x > K::kLowest)) return C(0);
  const C shifted = x * C(1.44269504088896340736) + K::kMagic;
  const C n = shifted - K::kMagic;
  const C r = (x - n * K::kLn2High) - n * K::kLn2Low;
  const C p = detail::exp_polynomial(r, std::make_index_sequence<K::kTerms - 1>());
  const C e = (p * (r * r) + r) + C(1);
  typename K::Bits bits, one;
  const C unit = 1;
  memcpy(&bits, &shifted, sizeof bits);
  memcpy(&one, &unit, sizeof one);
  // Unsigned: what is pushed out at the top is meant to go.
  const typename K::Bits scale_bits =
      static_cast<typename K::Bits>(static_cast<uint64_t>(bits) << K::kMantissaBits) + one;
  C scale;
  memcpy(&scale, &scale_bits, sizeof scale);
  return e * scale;
}

}  // namespace pvn3d
