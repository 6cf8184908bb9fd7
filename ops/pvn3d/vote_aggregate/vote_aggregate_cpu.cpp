#include <algorithm>
#include <cmath>

#include "common/exp.h"
#include "common/rigid.h"
#include "common/votes.h"
#include "vote_aggregate.h"

namespace {

using opbridge::Call;
using opbridge::dispatch;
using opbridge::f16;
using opbridge::Tensor;
using pvn3d::Arena;
using pvn3d::Compute;
using pvn3d::Point;
using pvn3d::VoteSet;

// A mask of whatever type, or none.
struct Mask {
  explicit Mask(const Call& call, int input) {
    if (!call.has_input(input)) return;
    data = call.input_arg(input).data;
    bytes = opbridge::dtype_size(call.input_dtype(input));
  }
  bool operator()(int64_t i) const {
    if (data == nullptr) return true;
    if (bytes == 1) return static_cast<const uint8_t*>(data)[i] != 0;
    return bytes == 4 ? static_cast<const int32_t*>(data)[i] != 0 : static_cast<const int64_t*>(data)[i] != 0;
  }
  const void* data = nullptr;
  size_t bytes = 0;
};

size_t aggregate_workspace(const Call& call) {
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
    const Mask mask(call, 2);
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

// At rest sum_j w_j (v_j - c) = 0 with w_j = exp(-|v_j - c|^2 / 2 h^2), so dc = A^-1 sum_j B_j dv_j with
// B_j = w_j (I - (v_j - c)(v_j - c)^T / h^2) and A = sum_j B_j; everything is symmetric.
void aggregate_grad(const Call& call) {
  if (call.attr_string("variant") == "ffb6d") {
    throw opbridge::Error(opbridge::ErrorKind::kNotSupported,
                          "variant ffb6d has no gradient: its votes move too; train with variant pvn3d");
  }
  const int sign = pvn3d::offset_sign(call);
  const double h = static_cast<double>(call.attr_float("bandwidth")), h2 = h * h;
  dispatch<f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const auto grad_kps = call.input<T>(0), points = call.input<T>(1), offsets = call.input<T>(2),
               kps = call.input<T>(3);
    const Mask mask(call, 4);
    const auto grad_points = call.output<T>(0), grad_offsets = call.output<T>(1);
    const int64_t n = points.size(1), k = offsets.size(1);
    const auto each_vote = [&](int64_t problem, const auto& body) {
      const int64_t batch = problem / k;
      for (int64_t i = 0; i < n; ++i) {
        double b[6] = {0, 0, 0, 0, 0, 0};  // upper triangle of B_j
        const Point<C> v =
            pvn3d::vote<C>(points.data() + batch * n * 3, offsets.data() + problem * n * 3, i, C(sign));
        if (mask(batch * n + i) && pvn3d::is_finite(v.x, v.y, v.z)) {
          const double d[3] = {static_cast<double>(v.x) - static_cast<double>(kps[3 * problem]),
                               static_cast<double>(v.y) - static_cast<double>(kps[3 * problem + 1]),
                               static_cast<double>(v.z) - static_cast<double>(kps[3 * problem + 2])};
          const double w = pvn3d::exp_nonpositive(-0.5 * pvn3d::squared_norm(d[0], d[1], d[2]) / h2);
          for (int u = 0, at = 0; u < 3; ++u) {
            for (int c = u; c < 3; ++c, ++at) b[at] = w * ((u == c) - d[u] * d[c] / h2);
          }
        }
        body(i, b);
      }
    };
    call.parallel_for(points.size(0) * k, 1, [&](int64_t begin, int64_t end) {
      for (int64_t problem = begin; problem < end; ++problem) {
        double a[6] = {0, 0, 0, 0, 0, 0};
        each_vote(problem, [&](int64_t, const double* b) {
          for (int q = 0; q < 6; ++q) a[q] += b[q];
        });
        // y = A^-1 grad through A's eigenvectors. At a mode A is positive definite; where it is not, nothing
        // pulls.
        double m[3][3] = {{a[0], a[1], a[2]}, {a[1], a[3], a[4]}, {a[2], a[4], a[5]}}, e[3][3],
               y[3] = {0, 0, 0};
        pvn3d::jacobi_eigen(m, e);
        const double top = std::max({m[0][0], m[1][1], m[2][2]});
        for (int q = 0; q < 3; ++q) {
          if (!(m[q][q] > 1e-9 * top)) continue;
          double along = 0;
          for (int u = 0; u < 3; ++u) along += e[u][q] * static_cast<double>(grad_kps[3 * problem + u]);
          for (int u = 0; u < 3; ++u) y[u] += along / m[q][q] * e[u][q];
        }
        each_vote(problem, [&](int64_t i, const double* b) {
          const double g[3] = {b[0] * y[0] + b[1] * y[1] + b[2] * y[2],
                               b[1] * y[0] + b[3] * y[1] + b[4] * y[2],
                               b[2] * y[0] + b[4] * y[1] + b[5] * y[2]};
          for (int u = 0; u < 3; ++u) grad_offsets[3 * (problem * n + i) + u] = static_cast<T>(sign * g[u]);
        });
      }
    });
    // A point votes for every keypoint.
    call.parallel_for(points.size(0) * n, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int u = 0; u < 3; ++u) {
          double sum = 0;
          for (int64_t q = 0; q < k; ++q)
            sum += static_cast<double>(grad_offsets[3 * ((i / n * k + q) * n + i % n) + u]);
          grad_points[3 * i + u] = static_cast<T>(sign * sum);
        }
      }
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
          .cpu(aggregate_grad),
  };
}
