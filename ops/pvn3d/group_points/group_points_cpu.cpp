#include "group_points/group_points.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "group_points/group_points_cpu.cpp"
#include "common/simd.h"
// After it, always.
#include "common/gather-inl.h"

#if HWY_ONCE
namespace pvn3d {
OPBRIDGE_DISPATCHED_KERNEL(gather)
OPBRIDGE_DISPATCHED_WORKSPACE(gather_workspace)
OPBRIDGE_DISPATCHED_KERNEL(gather_grad)
OPBRIDGE_DISPATCHED_WORKSPACE(gather_grad_workspace)
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
          .cpu(pvn3d::best_gather())
          .cuda(OPBRIDGE_CUDA_KERNEL(group_points_cuda))
          .workspace(pvn3d::any_gather_workspace),
      opbridge::Operator(R"(
        "Gradient of GroupPoints with respect to features."
        GroupPointsGrad(grad_out: T[B,C,M,S] "gradient of out",
               features: T[B,C,N] "as given to GroupPoints; only its shape counts",
               idx: I[B,M,S]  "as given to GroupPoints")
            -> grad_features: T[B,C,N] "sums of grad_out, each in ascending order of positions, in f64"
            where T in {f16, f32, f64}, I in {i32, i64}
      )")
          .cpu(pvn3d::best_gather_grad())
          .cuda(OPBRIDGE_CUDA_KERNEL(group_points_grad_cuda))
          .workspace(pvn3d::any_gather_grad_workspace),
  };
}
#endif
