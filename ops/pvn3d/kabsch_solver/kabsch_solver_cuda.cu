#include "kabsch_solver.h"
#include "opbridge/cuda.h"

namespace {

using opbridge::Call;
using opbridge::dispatch;
using opbridge::f16;
using pvn3d::KabschProblems;

// One thread for each problem: everything is in its registers, and problems are many and small.
template <class T>
__global__ void solve_kernel(KabschProblems<T> problems, T* rotation, T* translation, int32_t* valid) {
  for (int64_t i = opbridge::thread_index(); i < problems.count; i += opbridge::thread_count()) {
    const auto p = problems[i];
    double r[9], t[3];
    const int32_t worth = pvn3d::align(pvn3d::Covariance(p, p.n), r, t);
    for (int k = 0; k < 9; ++k) rotation[9 * i + k] = static_cast<T>(r[k]);
    for (int k = 0; k < 3; ++k) translation[3 * i + k] = static_cast<T>(t[k]);
    if (valid != nullptr) valid[i] = worth;
  }
}

template <class T>
__global__ void solve_grad_kernel(KabschProblems<T> problems, const T* grad_rotation,
                                  const T* grad_translation, T* grad_a, T* grad_b, T* grad_w) {
  for (int64_t i = opbridge::thread_index(); i < problems.count; i += opbridge::thread_count()) {
    double gr[9], gt[3];
    for (int k = 0; k < 9; ++k) gr[k] = static_cast<double>(grad_rotation[9 * i + k]);
    for (int k = 0; k < 3; ++k) gt[k] = static_cast<double>(grad_translation[3 * i + k]);
    const int64_t n = problems.n;
    pvn3d::kabsch_gradient<T>(problems[i], gr, gt, grad_a + 3 * n * i, grad_b + 3 * n * i, grad_w + n * i);
  }
}

constexpr unsigned kThreads = 64;  // registers are what there is too little of

}  // namespace

void kabsch_solver_cuda(const Call& call) {
  dispatch<f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const KabschProblems<T> problems(call.input<T>(0), call.input<T>(1), call.input<T>(2));
    opbridge::launch<solve_kernel<T>>(call, opbridge::grid_for(problems.count, kThreads), problems,
                                      call.output<T>(0).data(), call.output<T>(1).data(),
                                      call.output<int32_t>(2).data());
  });
}

void kabsch_solver_grad_cuda(const Call& call) {
  dispatch<f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const KabschProblems<T> problems(call.input<T>(2), call.input<T>(3), call.input<T>(4));
    opbridge::launch<solve_grad_kernel<T>>(call, opbridge::grid_for(problems.count, kThreads), problems,
                                           call.input<T>(0).data(), call.input<T>(1).data(),
                                           call.output<T>(0).data(), call.output<T>(1).data(),
                                           call.output<T>(2).data());
  });
}
