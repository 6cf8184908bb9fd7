#include "kabsch_solver.h"

namespace {

using opbridge::Call;
using opbridge::dispatch;
using opbridge::f16;
using pvn3d::KabschProblems;

constexpr int64_t kGrain = 64;  // problems a thread takes at a time

void solve(const Call& call) {
  dispatch<f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const KabschProblems<T> problems(call.input<T>(0), call.input<T>(1), call.input<T>(2));
    const auto rotation = call.output<T>(0), translation = call.output<T>(1);
    const auto valid = call.output<int32_t>(2);
    call.parallel_for(problems.count, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double r[9], t[3];
        const auto p = problems[i];
        const int32_t worth = pvn3d::align(pvn3d::Covariance(p, p.n), r, t);
        for (int k = 0; k < 9; ++k) rotation[9 * i + k] = static_cast<T>(r[k]);
        for (int k = 0; k < 3; ++k) translation[3 * i + k] = static_cast<T>(t[k]);
        if (valid) valid[i] = worth;
      }
    });
  });
}

void solve_grad(const Call& call) {
  dispatch<f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const auto grad_r = call.input<T>(0), grad_t = call.input<T>(1);
    const KabschProblems<T> problems(call.input<T>(2), call.input<T>(3), call.input<T>(4));
    const auto grad_a = call.output<T>(0), grad_b = call.output<T>(1), grad_w = call.output<T>(2);
    const int64_t n = problems.n;
    call.parallel_for(problems.count, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double gr[9], gt[3];
        for (int k = 0; k < 9; ++k) gr[k] = static_cast<double>(grad_r[9 * i + k]);
        for (int k = 0; k < 3; ++k) gt[k] = static_cast<double>(grad_t[3 * i + k]);
        pvn3d::kabsch_gradient<T>(problems[i], gr, gt, grad_a.data() + 3 * n * i, grad_b.data() + 3 * n * i,
                                  grad_w.data() + n * i);
      }
    });
  });
}

}  // namespace

OPBRIDGE_OPERATORS(kabsch_solver) {
  return {
      opbridge::Operator(R"sig(
        "Rotation and translation that bring template_kps onto pred_kps with the least squared error (Kabsch)."
        KabschSolver(template_kps: T[*B?,N,3] "points in the object's frame [m]; without leading dimensions they serve every problem",
                     pred_kps: T[*B,N,3]      "the same points in the camera's frame [m]",
                     weights?: T[*B?,N]       "how much each point counts, >= 0; absent: all alike")
            -> (rotation: T[*B,3,3]   "R, det +1: pred = R template + t for column vectors",
                translation: T[*B,3]  "t [m]",
                valid?: i32[*B]       "0 no pose (R = I, t = 0), 1 the pose, 2 a best pose but not the only one")
            where T in {f16, f32, f64}
            grad: KabschSolverGrad
      )sig")
          .cpu(solve)
          .cuda(OPBRIDGE_CUDA_KERNEL(kabsch_solver_cuda)),
      opbridge::Operator(R"sig(
        "Gradient of KabschSolver; gradients of an input without leading dimensions are to be summed over them."
        KabschSolverGrad(grad_rotation: T[*B,3,3]  "gradient of rotation",
                         grad_translation: T[*B,3] "gradient of translation",
                         template_kps: T[*B?,N,3]  "as given to KabschSolver",
                         pred_kps: T[*B,N,3]       "as given to KabschSolver",
                         weights?: T[*B?,N]        "as given to KabschSolver")
            -> (grad_template_kps: T[*B,N,3] "gradient for each problem",
                grad_pred_kps: T[*B,N,3]     "gradient of pred_kps",
                grad_weights: T[*B,N]        "gradient for each problem")
            where T in {f16, f32, f64}
      )sig")
          .cpu(solve_grad)
          .cuda(OPBRIDGE_CUDA_KERNEL(kabsch_solver_grad_cuda)),
  };
}
