#include <algorithm>

#include "vote_aggregate.h"

namespace {

using opbridge::Call;
using opbridge::dispatch;
using opbridge::f16;
using pvn3d::Arena;
using pvn3d::Compute;
using pvn3d::VoteMask;
using pvn3d::VoteSet;

size_t aggregate_workspace(const Call& call) {
#if defined(OPBRIDGE_WITH_CUDA)
  if (call.device() == opbridge::Device::kCuda) return vote_aggregate_cuda_workspace(call);
#endif
  const int64_t n = call.input_arg(0).shape[1],
                problems = call.input_arg(1).shape[0] * call.input_arg(1).shape[1];
  const size_t bytes = call.input_dtype(0) == opbridge::DType::f64 ? pvn3d::bytes_of<VoteSet<double>>(n)
                                                                   : pvn3d::bytes_of<VoteSet<float>>(n);
  return bytes * static_cast<size_t>(std::min(problems, pvn3d::kSlots));
}

void aggregate(const Call& call) {
  const pvn3d::MeanShiftOptions options = pvn3d::mean_shift_options(call);
  const int sign = pvn3d::offset_sign(call);
  dispatch<f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const auto points = call.input<T>(0), offsets = call.input<T>(1);
    const VoteMask mask(call, 2);
    const auto kps = call.output<T>(0);
    const auto count = call.output<int32_t>(1), seed = call.output<int32_t>(2);
    const int64_t n = points.size(1), k = offsets.size(1);
    pvn3d::for_each_problem(
        call, points.size(0) * k, 0, pvn3d::bytes_of<VoteSet<C>>(n), [&](int64_t problem, Arena& arena) {
          const VoteSet<C> set(arena, n);
          const int64_t batch = problem / k;
          const int64_t votes =
              set.collect(points.data() + batch * n * 3, offsets.data() + problem * n * 3, C(sign), n,
                          [&](int64_t i) { return mask(batch * n + i) ? i : -1; });
          const auto result = pvn3d::mean_shift(set.votes, votes, options);
          for (int a = 0; a < 3; ++a) kps[3 * problem + a] = static_cast<T>(result.centre[a]);
          if (count) count[problem] = static_cast<int32_t>(result.count);
          if (seed) seed[problem] = result.seed < 0 ? -1 : set.point[result.seed];
        });
  });
}

void aggregate_grad(const Call& call) {
  pvn3d::require_gradient(call);
  const int sign = pvn3d::offset_sign(call);
  const double h = static_cast<double>(call.attr_float("bandwidth"));
  dispatch<f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    using Gradient = pvn3d::VoteGradient<T>;
    constexpr int64_t kLanes = pvn3d::kLanes;
    const auto grad_kps = call.input<T>(0), points = call.input<T>(1), offsets = call.input<T>(2),
               kps = call.input<T>(3);
    const VoteMask mask(call, 4);
    const auto grad_points = call.output<T>(0), grad_offsets = call.output<T>(1);
    const int64_t n = points.size(1), k = offsets.size(1);
    call.parallel_for(points.size(0) * k, 1, [&](int64_t begin, int64_t end) {
      for (int64_t problem = begin; problem < end; ++problem) {
        const int64_t first = problem / k * n;
        const Gradient g{points.data() + 3 * first,
                         offsets.data() + 3 * problem * n,
                         kps.data() + 3 * problem,
                         first,
                         mask,
                         static_cast<typename Gradient::C>(sign),
                         h * h};
        // A in the order of mean shift's sums.
        double lanes[6][kLanes] = {}, a[6], b[6], y[3];
        for (int64_t i = 0; i < n; ++i) {
          g.jacobian(i, b);
          for (int q = 0; q < 6; ++q) lanes[q][i % kLanes] += b[q];
        }
        for (int q = 0; q < 6; ++q) {
          for (int64_t half = kLanes / 2; half > 0; half /= 2) {
            for (int64_t i = 0; i < half; ++i) lanes[q][i] += lanes[q][half + i];
          }
          a[q] = lanes[q][0];
        }
        Gradient::solve(a, grad_kps.data() + 3 * problem, y);
        for (int64_t i = 0; i < n; ++i) {
          g.jacobian(i, b);
          Gradient::of_offset(b, y, sign, grad_offsets.data() + 3 * (problem * n + i));
        }
      }
    });
    call.parallel_for(points.size(0) * n, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        pvn3d::point_gradient(grad_offsets.data(), i, n, k, sign, grad_points.data() + 3 * i);
    });
  });
}

}  // namespace

OPBRIDGE_OPERATORS(vote_aggregate) {
  return {
      opbridge::Operator(R"sig(
        "Keypoints that a cloud votes for: the centre of the densest votes, by mean shift (PVN3D, FFB6D)."
        VoteAggregate(points: T[B,N,3]    "points, camera frame [m]",
                      offsets: T[B,K,N,3] "each point's offset for each keypoint [m]; a vote is point + offset_sign * offset",
                      mask?: M[B,N]       "nonzero: the point votes; absent: all do";
                      bandwidth: float in [1e-9, 1e9] = 0.08 "of the Gaussian kernel, and the radius within which votes agree [m]",
                      max_iter: int in [0, 100000] = 300 "at most max_iter + 1 updates",
                      tol: float in (0, inf) = 1e-3 "at rest when a step is shorter than tol * bandwidth",
                      stop: string in {converged, upstream} = converged "converged: move the winning vote until it rests; upstream: repeat upstream's number of updates",
                      offset_sign: int in [-1, 1] = -1 "-1 for networks that predict point - keypoint (the published ones), 1 for keypoint - point",
                      variant: string in {pvn3d, ffb6d} = pvn3d "pvn3d: votes stand still; ffb6d: they move too (blurring)")
            -> (kps: T[B,K,3]    "keypoints, camera frame [m]; 0 when nobody votes",
                count?: i32[B,K] "votes within bandwidth of the winning one",
                seed?: i32[B,K]  "point whose vote won, the first of equals; -1 when nobody votes")
            where T in {f16, f32, f64}, M in {bool, i32, i64}
            grad: VoteAggregateGrad
      )sig")
          .cpu(aggregate)
          .cuda(OPBRIDGE_CUDA_KERNEL(vote_aggregate_cuda))
          .workspace(aggregate_workspace),
      opbridge::Operator(R"sig(
        "Gradient of VoteAggregate's keypoints, by implicit differentiation where mean shift is at rest."
        VoteAggregateGrad(grad_kps: T[B,K,3]  "gradient of kps",
                          points: T[B,N,3]    "as given to VoteAggregate",
                          offsets: T[B,K,N,3] "as given to VoteAggregate",
                          kps: T[B,K,3]       "as VoteAggregate returned them",
                          mask?: M[B,N]       "as given to VoteAggregate";
                          bandwidth: float in [1e-9, 1e9] = 0.08 "as given to VoteAggregate",
                          offset_sign: int in [-1, 1] = -1 "as given to VoteAggregate",
                          variant: string in {pvn3d, ffb6d} = pvn3d "as given to VoteAggregate; ffb6d has no gradient")
            -> (grad_points: T[B,N,3]    "gradient of points",
                grad_offsets: T[B,K,N,3] "gradient of offsets")
            where T in {f16, f32, f64}, M in {bool, i32, i64}
      )sig")
          .cpu(aggregate_grad)
          .cuda(OPBRIDGE_CUDA_KERNEL(vote_aggregate_grad_cuda)),
  };
}
