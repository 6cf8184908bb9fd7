#include "common/mean_shift.cuh"
#include "pvn3d_pose_solve.h"

namespace {

using opbridge::Call;
using opbridge::dispatch;
using opbridge::f16;
using pvn3d::Arena;
using pvn3d::Compute;
using pvn3d::kCollectThreads;
using pvn3d::MeanShiftProblems;
using pvn3d::Point;

// The workspace. Votes of a frame's objects lie one object behind the other, since no point has two.
template <class C>
struct Layout {
  Layout(Arena& arena, const pvn3d::PoseSizes& sizes, const pvn3d::MeanShiftOptions& options)
      : s(sizes),
        centres(arena, s.b * s.m, s.b * s.n, options),
        point(arena.take<int32_t>(s.b * s.n)),
        present(arena.take<int32_t>(s.b * s.m)),
        refined(arena.take<int32_t>(s.b * s.n)),
        keypoints(arena, s.b * s.m * s.k, s.b * s.k * s.n, options) {}

  pvn3d::PoseSizes s;
  MeanShiftProblems<C> centres;    // problem b * M + m
  int32_t* point;                  // which point each centre vote came from
  int32_t* present;                // (B, M) the object has points, before refining
  int32_t* refined;                // (B, N) labels after refining
  MeanShiftProblems<C> keypoints;  // problem (b * M + m) * K + k
};

// The object of a label, -1 for background.
template <class I>
__device__ int64_t object_of(I label, int64_t objects) {
  return label >= 1 && static_cast<int64_t>(label) <= objects ? static_cast<int64_t>(label) - 1 : -1;
}

// How many items the threads of the block count together.
__device__ int64_t block_total(int64_t own) {
  __shared__ int64_t of_warp[kCollectThreads / 32];
  for (int half = 16; half > 0; half /= 2) own += __shfl_down_sync(0xffffffffu, own, half);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = own;
  __syncthreads();
  int64_t sum = 0;
  for (unsigned w = 0; w < kCollectThreads / 32; ++w) sum += of_warp[w];
  __syncthreads();  // before of_warp is written again
  return sum;
}

// The centre votes of each object, a block for each. They begin where those of the lower objects end.
template <class T, class C, class I>
__global__ void __launch_bounds__(kCollectThreads)
    collect_centres_kernel(Layout<C> w, const T* points, const I* labels, const T* ctr_of, C sign,
                           bool first_time) {
  const int64_t n = w.s.n;
  for (int64_t p = blockIdx.x; p < w.centres.count; p += gridDim.x) {
    const int64_t b = p / w.s.m, object = p % w.s.m;
    const I* const label = labels + b * n;
    const T *own_points = points + 3 * b * n, *own_offsets = ctr_of + 3 * b * n;
    int64_t lower = 0, members = 0;
    for (int64_t i = threadIdx.x; i < n; i += kCollectThreads) {
      const int64_t o = object_of(label[i], w.s.m);
      lower += o >= 0 && o < object;
      members += o == object;
    }
    const int64_t start = b * n + block_total(lower);
    members = block_total(members);
    const auto votes = [&](int64_t i) {
      if (object_of(label[i], w.s.m) != object) return false;
      const Point<C> v = pvn3d::vote<C>(own_points, own_offsets, i, sign);
      return pvn3d::is_finite(v.x, v.y, v.z);
    };
    const int64_t taken = pvn3d::collect_in_order(n, votes, [&](int64_t at, int64_t i) {
      const Point<C> v = pvn3d::vote<C>(own_points, own_offsets, i, sign);
      w.centres.x[start + at] = v.x;
      w.centres.y[start + at] = v.y;
      w.centres.z[start + at] = v.z;
      w.point[start + at] = static_cast<int32_t>(i);
    });
    if (threadIdx.x == 0) {
      w.centres.begin(p, start, static_cast<int32_t>(taken));
      if (first_time) w.present[p] = members > 0;
    }
  }
}

// A point whose centre vote falls near an object's centre belongs to that object.
template <class T, class C, class I>
__global__ void refine_kernel(Layout<C> w, const T* points, const I* labels, const T* ctr_of, const T* radii,
                              C sign, C ratio) {
  for (int64_t i = opbridge::thread_index(); i < w.s.b * w.s.n; i += opbridge::thread_count()) {
    const int64_t first = i / w.s.n * w.s.m;
    int32_t object = static_cast<int32_t>(object_of(labels[i], w.s.m));
    if (object >= 0) {
      object = pvn3d::refined_label<T>(
          object, pvn3d::vote<C>(points, ctr_of, i, sign), w.centres.centre + 3 * first, radii, ratio, w.s.m,
          [&](int64_t o) { return w.present[first + o] && w.centres.inliers[first + o] > 0; });
    }
    w.refined[i] = object + 1;
  }
}

// The votes for each keypoint of each object, a block for each: of the points whose centre votes agree with the winner, or
// of all the object's.
template <class T, class C, class I>
__global__ void __launch_bounds__(kCollectThreads)
    collect_keypoints_kernel(Layout<C> w, const T* points, const I* labels, const T* kp_of, C sign,
                             bool filter, C h2, bool blurring) {
  const int64_t n = w.s.n, k = w.s.k;
  for (int64_t q = blockIdx.x; q < w.keypoints.count; q += gridDim.x) {
    const int64_t p = q / k, b = p / w.s.m, object = p % w.s.m, row = b * k + q % k;
    const int64_t centres = w.centres.start[p], start = row * n + (centres - b * n);
    const T *own_points = points + 3 * b * n, *own_offsets = kp_of + 3 * row * n;
    const auto is_vote = [&](int64_t i) {
      const Point<C> v = pvn3d::vote<C>(own_points, own_offsets, i, sign);
      return pvn3d::is_finite(v.x, v.y, v.z);
    };
    const auto put = [&](int64_t at, int64_t i) {
      const Point<C> v = pvn3d::vote<C>(own_points, own_offsets, i, sign);
      w.keypoints.x[start + at] = v.x;
      w.keypoints.y[start + at] = v.y;
      w.keypoints.z[start + at] = v.z;
    };
    int64_t taken = 0;
    if (filter) {
      const int32_t seed = w.centres.seed[p];
      const pvn3d::VotesOf<C> votes = pvn3d::final_votes(w.centres, p, blurring);
      const auto agrees = [&](int64_t j) {
        const C d2 = pvn3d::squared_distance(votes.x[j], votes.y[j], votes.z[j], votes.x[seed], votes.y[seed],
                                             votes.z[seed]);
        return d2 < h2 && is_vote(w.point[centres + j]);
      };
      taken = pvn3d::collect_in_order(w.centres.size[p], agrees,
                                      [&](int64_t at, int64_t j) { put(at, w.point[centres + j]); });
    } else {
      const I* const label = labels + b * n;
      taken = pvn3d::collect_in_order(
          n, [&](int64_t i) { return object_of(label[i], w.s.m) == object && is_vote(i); }, put);
    }
    if (threadIdx.x == 0) w.keypoints.begin(q, start, static_cast<int32_t>(taken));
  }
}

// One thread for each object.
template <class T, class C>
__global__ void align_kernel(Layout<C> w, const T* mesh_kps, const T* mesh_ctr, bool use_ctr, T* rotation,
                             T* translation, int32_t* valid, T* kps, int32_t* count) {
  const int64_t k = w.s.k;
  for (int64_t i = opbridge::thread_index(); i < w.centres.count; i += opbridge::thread_count()) {
    const int64_t o = i % w.s.m;
    const int32_t inliers = w.centres.inliers[i];
    const bool there = w.present[i] && inliers > 0;
    const pvn3d::PoseCorrespondences<T> c{mesh_kps + 3 * o * k,           mesh_ctr + 3 * o,
                                          w.keypoints.centre + 3 * i * k, w.centres.centre + 3 * i,
                                          w.keypoints.size + i * k,       k};
    pvn3d::write_pose<T>(c, there, use_ctr, inliers, rotation + 9 * i, translation + 3 * i, valid + i,
                         kps == nullptr ? nullptr : kps + 3 * (k + 1) * i,
                         count == nullptr ? nullptr : count + i);
  }
}

template <class T>
class Solver {
 public:
  using C = Compute<T>;

  Solver(const Call& call, Arena arena)
      : call_(call),
        options_(pvn3d::mean_shift_options(call)),
        w_(arena, pvn3d::PoseSizes(call), options_),
        sign_(static_cast<C>(pvn3d::offset_sign(call))),
        points_(call.input<T>(pvn3d::kPoints).data()),
        ctr_of_(call.input<T>(pvn3d::kCtrOf).data()) {}

  template <class I>
  void run(const I* labels) const {
    find_centres(labels, true);
    if (!call_.has_input(pvn3d::kRadii)) return find_poses(labels);
    opbridge::launch<refine_kernel<T, C, I>>(call_, opbridge::grid_for(w_.s.b * w_.s.n), w_, points_, labels,
                                             ctr_of_, call_.input<T>(pvn3d::kRadii).data(), sign_,
                                             static_cast<C>(call_.attr_float("refine_ratio")));
    find_centres<int32_t>(w_.refined, false);
    find_poses<int32_t>(w_.refined);
  }

 private:
  template <class I>
  void find_centres(const I* labels, bool first_time) const {
    opbridge::launch<collect_centres_kernel<T, C, I>>(
        call_, pvn3d::block_for_each(w_.centres.count, kCollectThreads), w_, points_, labels, ctr_of_, sign_,
        first_time);
    pvn3d::mean_shift_cuda(call_, w_.centres, w_.s.n, options_);
  }

  template <class I>
  void find_poses(const I* labels) const {
    const C h = static_cast<C>(options_.bandwidth);
    opbridge::launch<collect_keypoints_kernel<T, C, I>>(
        call_, pvn3d::block_for_each(w_.keypoints.count, kCollectThreads), w_, points_, labels,
        call_.input<T>(pvn3d::kKpOf).data(), sign_, call_.attr_bool("ctr_filter"), h * h, options_.blurring);
    pvn3d::mean_shift_cuda(call_, w_.keypoints, w_.s.n, options_);
    opbridge::launch<align_kernel<T, C>>(
        call_, opbridge::grid_for(w_.centres.count, 64), w_, call_.input<T>(pvn3d::kMeshKps).data(),
        call_.input<T>(pvn3d::kMeshCtr).data(), call_.attr_bool("use_ctr"),
        call_.output<T>(pvn3d::kRotation).data(), call_.output<T>(pvn3d::kTranslation).data(),
        call_.output<int32_t>(pvn3d::kValid).data(), call_.output<T>(pvn3d::kKps).data(),
        call_.output<int32_t>(pvn3d::kCount).data());
  }

  const Call& call_;
  pvn3d::MeanShiftOptions options_;
  Layout<C> w_;
  C sign_;
  const T *points_, *ctr_of_;
};

}  // namespace

size_t pvn3d_pose_solve_cuda_workspace(const Call& call) {
  Arena arena;
  const pvn3d::PoseSizes sizes(call);
  const pvn3d::MeanShiftOptions options = pvn3d::mean_shift_options(call);
  if (call.input_dtype(pvn3d::kPoints) == opbridge::DType::f64)
    Layout<double>(arena, sizes, options);
  else
    Layout<float>(arena, sizes, options);
  return arena.used();
}

void pvn3d_pose_solve_cuda(const Call& call) {
  dispatch<f16, float, double>(call.input_dtype(pvn3d::kPoints), [&](auto zero) {
    const Solver<decltype(zero)> solver(call, Arena(call.workspace()));
    dispatch<int32_t, int64_t>(call.input_dtype(pvn3d::kLabels), [&](auto index) {
      solver.run(call.input<decltype(index)>(pvn3d::kLabels).data());
    });
  });
}
