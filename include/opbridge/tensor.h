// Element types and typed views of contiguous tensors. No allocation, no ownership, no host's header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define OPBRIDGE_HD __host__ __device__ inline
#else
#define OPBRIDGE_HD inline
#endif

namespace opbridge {

enum class DType : int32_t { f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, boolean };
constexpr int kDTypeCount = 13;
constexpr int kMaxRank = 16;

/// "f32", "bool", ... as the signature language spells it.
const char* dtype_name(DType dtype);
/// Bytes of one element.
size_t dtype_size(DType dtype);

/// IEEE binary16, storage only: arithmetic happens in float. Rounds to nearest, ties to even, everywhere.
struct f16 {
  uint16_t bits;
  f16() = default;
  OPBRIDGE_HD explicit f16(float v);
  OPBRIDGE_HD operator float() const;
};

/// bfloat16, storage only: arithmetic happens in float. Rounds to nearest, ties to even, everywhere.
struct bf16 {
  uint16_t bits;
  bf16() = default;
  OPBRIDGE_HD explicit bf16(float v);
  OPBRIDGE_HD operator float() const;
};

namespace detail {
OPBRIDGE_HD uint32_t float_bits(float v) {
  uint32_t u;
  memcpy(&u, &v, 4);
  return u;
}
OPBRIDGE_HD float bits_float(uint32_t u) {
  float v;
  memcpy(&v, &u, 4);
  return v;
}
}  // namespace detail

OPBRIDGE_HD f16::operator float() const {
#if defined(__CUDA_ARCH__)
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
  return v;
#else
  const uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return detail::bits_float(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude >= 0x400u) return detail::bits_float(sign | ((magnitude + 0x1c000u) << 13));
  const float subnormal = static_cast<float>(magnitude) * 5.9604644775390625e-8f;  // 2^-24, exact
  return detail::bits_float(sign | detail::float_bits(subnormal));
#endif
}

OPBRIDGE_HD f16::f16(float v) {
#if defined(__CUDA_ARCH__)
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
#else
  const uint32_t u = detail::float_bits(v), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) {
    bits = static_cast<uint16_t>(sign | 0x7e00u);  // NaN stays NaN
  } else if (a >= 0x477ff000u) {
    bits = static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above round to infinity
  } else if (a >= 0x38800000u) {
    bits = static_cast<uint16_t>(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
  } else {
    // Subnormal: adding 0.5 lets the FPU's own rounding place the 10 bits at the end of the mantissa.
    bits = static_cast<uint16_t>(sign | (detail::float_bits(detail::bits_float(a) + 0.5f) - 0x3f000000u));
  }
#endif
}

OPBRIDGE_HD bf16::operator float() const { return detail::bits_float(static_cast<uint32_t>(bits) << 16); }

OPBRIDGE_HD bf16::bf16(float v) {
  const uint32_t u = detail::float_bits(v);
  if ((u & 0x7fffffffu) > 0x7f800000u) {
    bits = static_cast<uint16_t>((u >> 16) | 0x40u);  // NaN stays NaN
  } else {
    bits = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
}

template <class T>
struct DTypeOf;
#define OPBRIDGE_DTYPE_OF(type, name)           \
  template <>                                   \
  struct DTypeOf<type> {                        \
    static constexpr DType value = DType::name; \
  };
OPBRIDGE_DTYPE_OF(f16, f16)
OPBRIDGE_DTYPE_OF(bf16, bf16)
OPBRIDGE_DTYPE_OF(float, f32)
OPBRIDGE_DTYPE_OF(double, f64)
OPBRIDGE_DTYPE_OF(int8_t, i8)
OPBRIDGE_DTYPE_OF(int16_t, i16)
OPBRIDGE_DTYPE_OF(int32_t, i32)
OPBRIDGE_DTYPE_OF(int64_t, i64)
OPBRIDGE_DTYPE_OF(uint8_t, u8)
OPBRIDGE_DTYPE_OF(uint16_t, u16)
OPBRIDGE_DTYPE_OF(uint32_t, u32)
OPBRIDGE_DTYPE_OF(uint64_t, u64)
OPBRIDGE_DTYPE_OF(bool, boolean)
#undef OPBRIDGE_DTYPE_OF

/// A tensor as hosts hand it over: contiguous, row-major. `present` is false for an optional one that is
/// absent; `data` may be null for a present tensor of zero elements.
struct TensorArg {
  void* data;
  const int64_t* shape;
  int32_t rank;
  DType dtype;
  bool present;

  int64_t count() const {
    uint64_t n = 1;  // unsigned: [2^40, 2^40, 0] may wrap on its way to 0
    for (int i = 0; i < rank; ++i) n *= static_cast<uint64_t>(shape[i]);
    return static_cast<int64_t>(n);
  }
};

/// A typed view of a TensorArg; T is const for inputs.
template <class T>
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(const TensorArg& arg)
      : data_(static_cast<T*>(arg.data)), shape_(arg.shape), rank_(arg.rank), present_(arg.present) {}

  /// False for an optional argument that the caller left out.
  explicit operator bool() const { return present_; }
  T* data() const { return data_; }
  int rank() const { return rank_; }
  /// Extent of an axis; negative axes count from the end.
  int64_t size(int axis) const { return shape_[axis < 0 ? axis + rank_ : axis]; }
  const int64_t* shape() const { return shape_; }
  int64_t count() const {
    uint64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= static_cast<uint64_t>(shape_[i]);
    return static_cast<int64_t>(n);
  }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  const int64_t* shape_ = nullptr;
  int rank_ = 0;
  bool present_ = false;
};

}  // namespace opbridge
