#include "knn/knn.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "knn/knn_cpu.cpp"
#include "common/simd.h"
// After it, always.
#include "common/neighbors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pvn3d::HWY_NAMESPACE {

void knn(const opbridge::Call& call) {
  const int64_t clouds = call.input_arg(0).shape[0], n = call.input_arg(0).shape[1],
                m = call.input_arg(1).shape[1];
  if (!::knn::check(call)) return;
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    nearest_neighbors<T>(call, call.input<T>(0).data(), n, call.input<T>(1).data(), m, clouds,
                         call.attr_int("k"), false, call.output<int32_t>(0).data(),
                         call.has_output(1) ? call.output<T>(1).data() : nullptr);
  });
}

size_t knn_workspace(const opbridge::Call& call) {
  if (call.device() == opbridge::Device::kCuda) return 0;
  const int64_t clouds = call.input_arg(0).shape[0], n = call.input_arg(0).shape[1],
                m = call.input_arg(1).shape[1];
  const int64_t each = call.input_dtype(0) == opbridge::DType::f64 ? NeighborsLayout<double>::size(n, m)
                                                                   : NeighborsLayout<float>::size(n, m);
  return static_cast<size_t>(clouds * each);
}

}  // namespace pvn3d::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pvn3d {
OPBRIDGE_DISPATCHED_KERNEL(knn)
OPBRIDGE_DISPATCHED_WORKSPACE(knn_workspace)
}  // namespace pvn3d

OPBRIDGE_OPERATORS(knn) {
  return {opbridge::Operator(R"(
    "The k nearest points of each query."
    KNN(xyz: T[B,N,3]   "clouds of points",
        query: T[B,M,3] "query points, in the same frame";
        k: int in [1, 1024] "neighbours a query")
        -> (idx: i32[B,M,k]  "indices by distance, then by index; 0 where there are fewer than k points",
            dist?: T[B,M,k]  "Euclidean distances; +inf where there are fewer than k points")
        where T in {f16, f32, f64}
  )")
              .cpu(pvn3d::best_knn())
              .cuda(OPBRIDGE_CUDA_KERNEL(knn_cuda))
              .workspace(pvn3d::any_knn_workspace)};
}
#endif
