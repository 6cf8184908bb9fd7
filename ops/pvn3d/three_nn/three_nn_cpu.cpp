#include "three_nn/three_nn.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "three_nn/three_nn_cpu.cpp"
#include "common/simd.h"
// After it, always.
#include "common/neighbors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pvn3d::HWY_NAMESPACE {

void three_nn(const opbridge::Call& call) {
  const int64_t clouds = call.input_arg(0).shape[0], n = call.input_arg(0).shape[1],
                m = call.input_arg(1).shape[1];
  if (!::three_nn::check(call)) return;
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    nearest_neighbors<T>(call, call.input<T>(1).data(), m, call.input<T>(0).data(), n, clouds, 3,
                         call.attr_bool("squared"), call.output<int32_t>(1).data(), call.output<T>(0).data());
  });
}

size_t three_nn_workspace(const opbridge::Call& call) {
  if (call.device() == opbridge::Device::kCuda) return 0;
  const int64_t clouds = call.input_arg(0).shape[0], n = call.input_arg(0).shape[1],
                m = call.input_arg(1).shape[1];
  const int64_t each = call.input_dtype(0) == opbridge::DType::f64 ? NeighborsLayout<double>::size(m, n)
                                                                   : NeighborsLayout<float>::size(m, n);
  return static_cast<size_t>(clouds * each);
}

}  // namespace pvn3d::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pvn3d {
OPBRIDGE_DISPATCHED_KERNEL(three_nn)
OPBRIDGE_DISPATCHED_WORKSPACE(three_nn_workspace)
}  // namespace pvn3d

OPBRIDGE_OPERATORS(three_nn) {
  return {opbridge::Operator(R"(
    "The three nearest known points of each unknown one."
    ThreeNN(unknown: T[B,N,3] "points to find neighbours for",
            known: T[B,M,3]   "points to find them among, in the same frame";
            squared: bool = false "return squared distances, as the PointNet++ CUDA kernel does")
        -> (dist: T[B,N,3]  "Euclidean distances, ascending; +inf where there are fewer than 3 known points",
            idx: i32[B,N,3] "indices by distance, then by index; 0 where there are fewer than 3 known points")
        where T in {f16, f32, f64}
  )")
              .cpu(pvn3d::best_three_nn())
              .cuda(OPBRIDGE_CUDA_KERNEL(three_nn_cuda))
              .workspace(pvn3d::any_three_nn_workspace)};
}
#endif
