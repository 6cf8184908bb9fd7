// One source, several instruction sets: how an operator's .cpp is compiled for each and the best one chosen.
//
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "knn/knn_cpu.cpp"  // this very file
//   #include "common/simd.h"
//   HWY_BEFORE_NAMESPACE();
//   namespace pvn3d::HWY_NAMESPACE { void knn(const opbridge::Call& call) {...} }
//   HWY_AFTER_NAMESPACE();
//   #if HWY_ONCE
//   namespace pvn3d { OPBRIDGE_DISPATCHED_KERNEL(knn) }
//   OPBRIDGE_OPERATORS(knn) { ... .cpu(pvn3d::best_knn()) ... }
//   #endif
//
// No guard against a second inclusion: the file is compiled once a target. Highway (libhwy-dev) is used for
// its headers only; choosing is done here, once, when the library declares its operators. All targets give
// the same bits.
#ifndef OPBRIDGE_SIMD_TARGETS
#define OPBRIDGE_SIMD_TARGETS
#if defined(__x86_64__)
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)  // leaves the baseline, SSE4, AVX2 and AVX3 (AVX-512)
#else
#undef HWY_COMPILE_ONLY_STATIC
#define HWY_COMPILE_ONLY_STATIC  // NEON on aarch64
#endif
#undef HWY_IS_DEBUG_BUILD
#define HWY_IS_DEBUG_BUILD 0  // its assertions abort; sanitizers check more

namespace pvn3d {

enum class SimdLevel { kBaseline, kSse4, kAvx2, kAvx512 };

/// What this processor has; at most what the environment variable OPBRIDGE_SIMD names, for tests: baseline,
/// sse4, avx2 or avx512.
SimdLevel simd_level();

template <class Function>
Function best_target(Function baseline, Function sse4, Function avx2, Function avx512) {
  const SimdLevel level = simd_level();
  if (level >= SimdLevel::kAvx512 && avx512 != nullptr) return avx512;
  if (level >= SimdLevel::kAvx2 && avx2 != nullptr) return avx2;
  if (level >= SimdLevel::kSse4 && sse4 != nullptr) return sse4;
  return baseline;
}

}  // namespace pvn3d

/// The function `f` of the SIMD namespaces for this processor. The static target is the baseline, and where
/// only that one is compiled (aarch64, sanitizers) the others are null.
#define OPBRIDGE_BEST_TARGET(f)                                                                        \
  ::pvn3d::best_target<decltype(&HWY_STATIC_DISPATCH(f))>(&HWY_STATIC_DISPATCH(f), HWY_CHOOSE_SSE4(f), \
                                                          HWY_CHOOSE_AVX2(f), HWY_CHOOSE_AVX3(f))

/// best_<f>(): the kernel `f` for this processor.
#define OPBRIDGE_DISPATCHED_KERNEL(f) \
  static opbridge::Kernel best_##f() { return OPBRIDGE_BEST_TARGET(f); }
/// any_<f>(): the workspace function `f`, which is the same for all.
#define OPBRIDGE_DISPATCHED_WORKSPACE(f) \
  static size_t any_##f(const opbridge::Call& call) { return HWY_STATIC_DISPATCH(f)(call); }
#endif  // OPBRIDGE_SIMD_TARGETS

#include "hwy/foreach_target.h"
// After it, always.
#include "hwy/highway.h"
