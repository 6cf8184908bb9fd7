#include <cstdlib>
#include <string_view>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/simd.cpp"
#include "common/simd.h"

#if HWY_ONCE
namespace pvn3d {

namespace {

SimdLevel supported() {
#if defined(__x86_64__)
#define OPBRIDGE_HAS(feature) __builtin_cpu_supports(feature)
  if (!(OPBRIDGE_HAS("sse4.2") && OPBRIDGE_HAS("pclmul") && OPBRIDGE_HAS("aes"))) return SimdLevel::kBaseline;
  if (!(OPBRIDGE_HAS("avx2") && OPBRIDGE_HAS("fma") && OPBRIDGE_HAS("bmi") && OPBRIDGE_HAS("bmi2") &&
        OPBRIDGE_HAS("f16c"))) {
    return SimdLevel::kSse4;
  }
  if (!(OPBRIDGE_HAS("avx512f") && OPBRIDGE_HAS("avx512vl") && OPBRIDGE_HAS("avx512dq") &&
        OPBRIDGE_HAS("avx512bw") && OPBRIDGE_HAS("avx512cd"))) {
    return SimdLevel::kAvx2;
  }
  return SimdLevel::kAvx512;
#undef OPBRIDGE_HAS
#else
  return SimdLevel::kBaseline;
#endif
}

}  // namespace

SimdLevel simd_level() {
  const SimdLevel has = supported();
  const char* wish = std::getenv("OPBRIDGE_SIMD");
  const std::string_view at_most = wish == nullptr ? "" : wish;
  const SimdLevel limit = at_most == "baseline" ? SimdLevel::kBaseline
                          : at_most == "sse4"   ? SimdLevel::kSse4
                          : at_most == "avx2"   ? SimdLevel::kAvx2
                                                : SimdLevel::kAvx512;
  return has < limit ? has : limit;
}

}  // namespace pvn3d
#endif
