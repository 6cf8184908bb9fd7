#include "group_points/group_points.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "group_points/group_points_cpu.cpp"
#include "common/simd.h"
// After it, always.
#include "common/gather-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pvn3d::HWY_NAMESPACE {

void group_points_cpu(const opbridge::Call& call) {
  const int64_t *features = call.input_arg(0).shape, *idx = call.input_arg(1).shape;
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto t) {
    opbridge::dispatch<int32_t, int64_t>(call.input_dtype(1), [&](auto i) {
      using T = decltype(t);
      using I = decltype(i);
      gather_columns<T, I>(call, call.input<T>(0).data(), call.input<I>(1).data(), call.output<T>(0).data(),
                           features[0], features[1], features[2], idx[1] * idx[2]);
    });
  });
}

size_t group_points_workspace(const opbridge::Call& call) {
  if (call.device() == opbridge::Device::kCuda) return 0;
  const int64_t* features = call.input_arg(0).shape;
  return Tasks(features[0], features[1]).workspace(call.input_dtype(0), features[2]);
}

size_t group_points_grad_workspace(const opbridge::Call& call) {
  const int64_t *features = call.input_arg(1).shape, *idx = call.input_arg(2).shape;
  const bool cuda = call.device() == opbridge::Device::kCuda;
  return (cuda ? cuda_inverse_index_bytes : inverse_index_bytes)(features[0], features[2], idx[1] * idx[2]);
}

void group_points_grad_cpu(const opbridge::Call& call) {
  const int64_t *features = call.input_arg(1).shape, *idx = call.input_arg(2).shape;
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto t) {
    opbridge::dispatch<int32_t, int64_t>(call.input_dtype(2), [&](auto i) {
      using T = decltype(t);
      using I = decltype(i);
      gather_columns_grad<T, I>(call, call.input<T>(0).data(), call.input<I>(2).data(),
                                call.output<T>(0).data(), features[0], features[1], features[2],
                                idx[1] * idx[2]);
    });
  });
}

}  // namespace pvn3d::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pvn3d {
OPBRIDGE_DISPATCHED_KERNEL(group_points_cpu)
OPBRIDGE_DISPATCHED_WORKSPACE(group_points_workspace)
OPBRIDGE_DISPATCHED_KERNEL(group_points_grad_cpu)
OPBRIDGE_DISPATCHED_WORKSPACE(group_points_grad_workspace)
}  // namespace pvn3d

OPBRIDGE_OPERATORS(group_points) {
  return {
      opbridge::Operator(R"(
        "Takes groups of points out of channel-first features."
        GroupPoints(features: T[B,C,N] "features, channel first",
               idx: I[B,M,S]  "points to take; an index out of range reads as 0")
            -> out: T[B,C,M,S]  "features at idx"
            where T in {f16, f32, f64}, I in {i32, i64}
            grad: GroupPointsGrad
      )")
          .cpu(pvn3d::best_group_points_cpu())
          .cuda(OPBRIDGE_CUDA_KERNEL(group_points_cuda))
          .workspace(pvn3d::any_group_points_workspace),
      opbridge::Operator(R"(
        "Gradient of GroupPoints with respect to features."
        GroupPointsGrad(grad_out: T[B,C,M,S] "gradient of out",
               features: T[B,C,N] "as given to GroupPoints; only its shape counts",
               idx: I[B,M,S]  "as given to GroupPoints")
            -> grad_features: T[B,C,N] "sums of grad_out, each in ascending order of positions, in f64"
            where T in {f16, f32, f64}, I in {i32, i64}
      )")
          .cpu(pvn3d::best_group_points_grad_cpu())
          .cuda(OPBRIDGE_CUDA_KERNEL(group_points_grad_cuda))
          .workspace(pvn3d::any_group_points_grad_workspace),
  };
}
#endif
