#include "common/mean_shift.cuh"
#include "vote_aggregate.h"

namespace {

using opbridge::Call;
using opbridge::dispatch;
using opbridge::f16;
using pvn3d::Arena;
using pvn3d::Compute;
using pvn3d::MeanShiftProblems;
using pvn3d::Point;
using pvn3d::VoteGradient;
using pvn3d::VoteMask;

// The workspace: the problems, and which point each vote came from.
template <class C>
struct Layout {
  Layout(Arena& arena, const Call& call)
      : b(call.input_arg(0).shape[0]),
        n(call.input_arg(0).shape[1]),
        k(call.input_arg(1).shape[1]),
        votes(arena, b * k, b * k * n, pvn3d::mean_shift_options(call)),
        point(arena.take<int32_t>(b * k * n)) {}

  int64_t b, n, k;
  MeanShiftProblems<C> votes;
  int32_t* point;
};

// A block for each problem.
template <class T, class C>
__global__ void collect_kernel(Layout<C> w, const T* points, const T* offsets, VoteMask mask, C sign) {
  for (int64_t p = blockIdx.x; p < w.votes.count; p += gridDim.x) {
    const int64_t first = p / w.k * w.n, start = p * w.n;
    const T *own_points = points + 3 * first, *own_offsets = offsets + 3 * start;
    const auto counts = [&](int64_t i) {
      const Point<C> v = pvn3d::vote<C>(own_points, own_offsets, i, sign);
      return mask(first + i) && pvn3d::is_finite(v.x, v.y, v.z);
    };
    const int64_t taken = pvn3d::collect_in_order(w.n, counts, [&](int64_t at, int64_t i) {
      const Point<C> v = pvn3d::vote<C>(own_points, own_offsets, i, sign);
      w.votes.x[start + at] = v.x;
      w.votes.y[start + at] = v.y;
      w.votes.z[start + at] = v.z;
      w.point[start + at] = static_cast<int32_t>(i);
    });
    if (threadIdx.x == 0) w.votes.begin(p, start, static_cast<int32_t>(taken));
  }
}

template <class T, class C>
__global__ void output_kernel(Layout<C> w, T* kps, int32_t* count, int32_t* seed) {
  for (int64_t p = opbridge::thread_index(); p < w.votes.count; p += opbridge::thread_count()) {
    for (int a = 0; a < 3; ++a) kps[3 * p + a] = static_cast<T>(w.votes.centre[3 * p + a]);
    const int32_t winner = w.votes.seed[p];
    if (count != nullptr) count[p] = w.votes.inliers[p];
    if (seed != nullptr) seed[p] = winner < 0 ? -1 : w.point[w.votes.start[p] + winner];
  }
}

constexpr unsigned kGradThreads = pvn3d::kLanes;

// A block for each problem; thread i is lane i of the CPU's sums.
template <class T>
__global__ void __launch_bounds__(kGradThreads)
    offset_grad_kernel(const T* grad_kps, VoteGradient<T> all, int64_t problems, int64_t n, int64_t k,
                       int sign, T* grad_offsets) {
  __shared__ double lanes[6][kGradThreads], y[3];
  for (int64_t p = blockIdx.x; p < problems; p += gridDim.x) {
    const int64_t first = p / k * n;
    const VoteGradient<T> g{
        all.points + 3 * first, all.offsets + 3 * p * n, all.kps + 3 * p, first, all.mask, all.sign, all.h2};
    double a[6] = {0, 0, 0, 0, 0, 0}, b[6];
    for (int64_t i = threadIdx.x; i < n; i += kGradThreads) {
      g.jacobian(i, b);
      for (int q = 0; q < 6; ++q) a[q] += b[q];
    }
    for (int q = 0; q < 6; ++q) lanes[q][threadIdx.x] = a[q];
    for (unsigned half = kGradThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half) {
        for (int q = 0; q < 6; ++q) lanes[q][threadIdx.x] += lanes[q][threadIdx.x + half];
      }
    }
    if (threadIdx.x == 0) {
      for (int q = 0; q < 6; ++q) a[q] = lanes[q][0];
      VoteGradient<T>::solve(a, grad_kps + 3 * p, y);
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += kGradThreads) {
      g.jacobian(i, b);
      VoteGradient<T>::of_offset(b, y, sign, grad_offsets + 3 * (p * n + i));
    }
    __syncthreads();  // before y and the lanes are written again
  }
}

template <class T>
__global__ void point_grad_kernel(const T* grad_offsets, int64_t count, int64_t n, int64_t k, int sign,
                                  T* grad_points) {
  for (int64_t i = opbridge::thread_index(); i < count; i += opbridge::thread_count())
    pvn3d::point_gradient(grad_offsets, i, n, k, sign, grad_points + 3 * i);
}

}  // namespace

size_t vote_aggregate_cuda_workspace(const Call& call) {
  Arena arena;
  if (call.input_dtype(0) == opbridge::DType::f64)
    Layout<double>(arena, call);
  else
    Layout<float>(arena, call);
  return arena.used();
}

void vote_aggregate_cuda(const Call& call) {
  const pvn3d::MeanShiftOptions options = pvn3d::mean_shift_options(call);
  const int sign = pvn3d::offset_sign(call);
  dispatch<f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    Arena arena(call.workspace());
    const Layout<C> w(arena, call);
    opbridge::launch<collect_kernel<T, C>>(call, pvn3d::block_for_each(w.votes.count, pvn3d::kCollectThreads),
                                           w, call.input<T>(0).data(), call.input<T>(1).data(),
                                           VoteMask(call, 2), static_cast<C>(sign));
    pvn3d::mean_shift_cuda(call, w.votes, w.n, options);
    opbridge::launch<output_kernel<T, C>>(call, opbridge::grid_for(w.votes.count), w,
                                          call.output<T>(0).data(), call.output<int32_t>(1).data(),
                                          call.output<int32_t>(2).data());
  });
}

void vote_aggregate_grad_cuda(const Call& call) {
  pvn3d::require_gradient(call);
  const int sign = pvn3d::offset_sign(call);
  const double h = static_cast<double>(call.attr_float("bandwidth"));
  dispatch<f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const auto points = call.input<T>(1), offsets = call.input<T>(2);
    const VoteGradient<T> all{points.data(),
                              offsets.data(),
                              call.input<T>(3).data(),
                              0,
                              VoteMask(call, 4),
                              static_cast<Compute<T>>(sign),
                              h * h};
    const int64_t problems = points.size(0) * offsets.size(1), n = points.size(1), k = offsets.size(1);
    T* const grad_offsets = call.output<T>(1).data();
    opbridge::launch<offset_grad_kernel<T>>(call, pvn3d::block_for_each(n > 0 ? problems : 0, kGradThreads),
                                            call.input<T>(0).data(), all, problems, n, k, sign, grad_offsets);
    const int64_t count = points.size(0) * n;
    opbridge::launch<point_grad_kernel<T>>(call, opbridge::grid_for(count), grad_offsets, count, n, k, sign,
                                           call.output<T>(0).data());
  });
}
