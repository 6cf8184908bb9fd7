#include <algorithm>

#include "pvn3d_pose_solve.h"

namespace {

using opbridge::Call;
using opbridge::dispatch;
using opbridge::f16;
using opbridge::Tensor;
using pvn3d::Arena;
using pvn3d::bytes_of;
using pvn3d::Compute;
using pvn3d::kCount;
using pvn3d::kCtrOf;
using pvn3d::kKpOf;
using pvn3d::kKps;
using pvn3d::kLabels;
using pvn3d::kMeshCtr;
using pvn3d::kMeshKps;
using pvn3d::kPoints;
using pvn3d::kRadii;
using pvn3d::kRotation;
using pvn3d::kTranslation;
using pvn3d::kValid;
using pvn3d::Point;
using pvn3d::PoseSizes;
using pvn3d::VoteSet;

// What a frame keeps between the steps: its points by object, and each object's centre.
template <class C>
struct Frame {
  Frame(Arena& arena, int64_t n, int64_t m, int64_t k)
      : label(arena.take<int32_t>(n)),
        member(arena.take<int32_t>(n)),
        voter(arena.take<int32_t>(n)),
        start(arena.take<int32_t>(m + 2)),
        voters(arena.take<int32_t>(m)),
        present(arena.take<int32_t>(m)),
        centre(arena.take<C>(3 * m)),
        count(arena.take<int32_t>(m)),
        keypoint(arena.take<C>(3 * m * k)),
        voted(arena.take<int32_t>(m * k)) {}

  int32_t* label;    // (N) object of each point, -1 none
  int32_t* member;   // (N) points of object m: member[start[m]] .. member[start[m + 1]], ascending
  int32_t* voter;    // (N) those of them that vote for keypoints: voter[start[m]] .. + voters[m]
  int32_t* start;    // (M + 2)
  int32_t* voters;   // (M)
  int32_t* present;  // (M) the object had a centre before refining
  C* centre;         // (M, 3)
  int32_t* count;    // (M)
  C* keypoint;       // (M, K, 3)
  int32_t* voted;    // (M, K) votes for it
};

template <class C>
size_t workspace_of(const PoseSizes& s) {
  const int64_t problems = std::min(s.b * s.m * std::max<int64_t>(1, s.k), pvn3d::kSlots);
  return bytes_of<Frame<C>>(s.n, s.m, s.k) * static_cast<size_t>(s.b) +
         bytes_of<VoteSet<C>>(s.n) * static_cast<size_t>(problems);
}

size_t pose_workspace(const Call& call) {
#if defined(OPBRIDGE_WITH_CUDA)
  if (call.device() == opbridge::Device::kCuda) return pvn3d_pose_solve_cuda_workspace(call);
#endif
  const PoseSizes s(call);
  return call.input_dtype(kPoints) == opbridge::DType::f64 ? workspace_of<double>(s) : workspace_of<float>(s);
}

// Sorts a frame's points by object, keeping their order.
template <class C>
void sort_members(const Frame<C>& f, int64_t n, int64_t m) {
  std::fill_n(f.start, m + 2, 0);
  for (int64_t i = 0; i < n; ++i) {
    if (f.label[i] >= 0) ++f.start[f.label[i] + 2];
  }
  for (int64_t o = 0; o < m; ++o) f.start[o + 2] += f.start[o + 1];
  for (int64_t i = 0; i < n; ++i) {
    if (f.label[i] >= 0) f.member[f.start[f.label[i] + 1]++] = static_cast<int32_t>(i);
  }
}

template <class T>
class Solver {
 public:
  using C = Compute<T>;

  explicit Solver(const Call& call)
      : call_(call),
        s_(call),
        options_(pvn3d::mean_shift_options(call)),
        sign_(static_cast<C>(pvn3d::offset_sign(call))),
        points_(call.input<T>(kPoints)),
        kp_of_(call.input<T>(kKpOf)),
        ctr_of_(call.input<T>(kCtrOf)),
        mesh_kps_(call.input<T>(kMeshKps)),
        mesh_ctr_(call.input<T>(kMeshCtr)),
        radii_(call.input<T>(kRadii)) {}

  template <class I>
  void run(const I* labels) const {
    call_.parallel_for(s_.b, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const Frame<C> f = frame(b);
        for (int64_t i = 0; i < s_.n; ++i) {
          const I label = labels[b * s_.n + i];
          f.label[i] =
              label >= 1 && static_cast<int64_t>(label) <= s_.m ? static_cast<int32_t>(label) - 1 : -1;
        }
        sort_members(f, s_.n, s_.m);
        for (int64_t o = 0; o < s_.m; ++o) f.present[o] = f.start[o + 1] > f.start[o];
      }
    });
    if (radii_) {
      find_centres();
      refine();
    }
    find_centres();
    find_keypoints();
    align();
  }

 private:
  Frame<C> frame(int64_t b) const {
    Arena arena(static_cast<char*>(call_.workspace()) +
                bytes_of<Frame<C>>(s_.n, s_.m, s_.k) * static_cast<size_t>(b));
    return {arena, s_.n, s_.m, s_.k};
  }
  template <class Body>
  void for_each_problem(int64_t count, const Body& body) const {
    pvn3d::for_each_problem(call_, count, bytes_of<Frame<C>>(s_.n, s_.m, s_.k) * static_cast<size_t>(s_.b),
                            bytes_of<VoteSet<C>>(s_.n), [&](int64_t i, Arena& arena) {
                              const VoteSet<C> p(arena, s_.n);
                              body(i, p);
                            });
  }
  const T* points(int64_t b) const { return points_.data() + b * s_.n * 3; }
  const T* centre_offsets(int64_t b) const { return ctr_of_.data() + b * s_.n * 3; }

  // Mean shift on each object's centre votes: its centre, and who votes for its keypoints.
  void find_centres() const {
    const bool filter = call_.attr_bool("ctr_filter");
    for_each_problem(s_.b * s_.m, [&](int64_t i, const VoteSet<C>& p) {
      const int64_t b = i / s_.m, o = i % s_.m;
      const Frame<C> f = frame(b);
      const int32_t* members = f.member + f.start[o];
      const int64_t count = f.start[o + 1] - f.start[o];
      const int64_t votes =
          p.collect(points(b), centre_offsets(b), sign_, count, [=](int64_t j) { return members[j]; });
      const auto result = pvn3d::mean_shift(p.votes, votes, options_);
      std::copy_n(result.centre, 3, f.centre + 3 * o);
      f.count[o] = static_cast<int32_t>(result.count);
      int32_t* voter = f.voter + f.start[o];
      if (!filter) {
        std::copy_n(members, count, voter);
        f.voters[o] = static_cast<int32_t>(count);
        return;
      }
      const C h = static_cast<C>(options_.bandwidth);
      int32_t voters = 0;
      for (int64_t j = 0; j < votes; ++j) {
        // Blurring has moved the votes, and counts them there.
        const C d2 = pvn3d::squared_distance(p.votes.x[j], p.votes.y[j], p.votes.z[j], p.votes.x[result.seed],
                                             p.votes.y[result.seed], p.votes.z[result.seed]);
        if (d2 < h * h) voter[voters++] = p.point[j];
      }
      f.voters[o] = voters;
    });
  }

  // A point whose centre vote falls near an object's centre belongs to that object.
  void refine() const {
    const C ratio = static_cast<C>(call_.attr_float("refine_ratio"));
    call_.parallel_for(s_.b, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const Frame<C> f = frame(b);
        for (int64_t i = 0; i < s_.n; ++i) {
          if (f.label[i] < 0) continue;
          const Point<C> v = pvn3d::vote<C>(points(b), centre_offsets(b), i, sign_);
          f.label[i] = pvn3d::refined_label<T>(f.label[i], v, f.centre, radii_.data(), ratio, s_.m,
                                               [&](int64_t o) { return f.present[o] && f.count[o] > 0; });
        }
        sort_members(f, s_.n, s_.m);
      }
    });
  }

  void find_keypoints() const {
    for_each_problem(s_.b * s_.m * s_.k, [&](int64_t i, const VoteSet<C>& p) {
      const int64_t b = i / (s_.m * s_.k), o = i / s_.k % s_.m, k = i % s_.k;
      const Frame<C> f = frame(b);
      const int64_t votes = p.collect(points(b), kp_of_.data() + (b * s_.k + k) * s_.n * 3, sign_,
                                      f.voters[o], [&](int64_t j) { return f.voter[f.start[o] + j]; });
      const auto result = pvn3d::mean_shift(p.votes, votes, options_);
      std::copy_n(result.centre, 3, f.keypoint + 3 * (o * s_.k + k));
      f.voted[o * s_.k + k] = static_cast<int32_t>(votes);
    });
  }

  void align() const {
    const auto rotation = call_.output<T>(kRotation), translation = call_.output<T>(kTranslation),
               kps = call_.output<T>(kKps);
    const auto valid = call_.output<int32_t>(kValid), count = call_.output<int32_t>(kCount);
    const bool use_ctr = call_.attr_bool("use_ctr");
    call_.parallel_for(s_.b * s_.m, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t o = i % s_.m;
        const Frame<C> f = frame(i / s_.m);
        const bool there = f.present[o] && f.count[o] > 0;
        const pvn3d::PoseCorrespondences<T> c{mesh_kps_.data() + 3 * o * s_.k,
                                              mesh_ctr_.data() + 3 * o,
                                              f.keypoint + 3 * o * s_.k,
                                              f.centre + 3 * o,
                                              f.voted + o * s_.k,
                                              s_.k};
        pvn3d::write_pose<T>(c, there, use_ctr, f.count[o], rotation.data() + 9 * i,
                             translation.data() + 3 * i, valid.data() + i,
                             kps ? kps.data() + 3 * (s_.k + 1) * i : nullptr,
                             count ? count.data() + i : nullptr);
      }
    });
  }

  const Call& call_;
  PoseSizes s_;
  pvn3d::MeanShiftOptions options_;
  C sign_;
  Tensor<const T> points_, kp_of_, ctr_of_, mesh_kps_, mesh_ctr_, radii_;
};

void pose_solve(const Call& call) {
  dispatch<f16, float, double>(call.input_dtype(kPoints), [&](auto zero) {
    const Solver<decltype(zero)> solver(call);
    dispatch<int32_t, int64_t>(call.input_dtype(kLabels),
                               [&](auto index) { solver.run(call.input<decltype(index)>(kLabels).data()); });
  });
}

}  // namespace

OPBRIDGE_OPERATORS(pvn3d_pose_solve) {
  return {
      opbridge::Operator(R"sig(
        "Poses of all objects of a frame, from the points, labels and offsets of a PVN3D or FFB6D network: votes, mean shift, Kabsch."
        PVN3DPoseSolve(points: T[B,N,3]   "points, camera frame [m]",
                       labels: I[B,N]     "class of each point: 0 background, m + 1 object m; others count as background",
                       kp_of: T[B,K,N,3]  "offsets of the keypoints [m]; a vote is point + offset_sign * offset",
                       ctr_of: T[B,1,N,3] "offsets of the object's centre [m]",
                       mesh_kps: T[M,K,3] "keypoints of the M objects, object frame [m]",
                       mesh_ctr: T[M,3]   "centres of the objects, object frame [m]",
                       radii?: T[M]       "half of each bounding box's diagonal [m]; absent: labels are taken as they are";
                       bandwidth: float in [1e-9, 1e9] = 0.08 "of the mean shift [m]; FFB6D uses 0.04",
                       max_iter: int in [0, 100000] = 300 "at most max_iter + 1 updates",
                       tol: float in (0, inf) = 1e-3 "at rest when a step is shorter than tol * bandwidth",
                       stop: string in {converged, upstream} = converged "as in VoteAggregate",
                       offset_sign: int in [-1, 1] = -1 "-1 for networks that predict point - keypoint (the published ones), 1 for keypoint - point",
                       use_ctr: bool = true "the centre is one more keypoint",
                       ctr_filter: bool = true "keypoint votes come only from points whose centre votes agree (YCB; LineMOD: false)",
                       refine_ratio: float in [0, inf) = 0.8 "with radii: a point joins the object whose centre is within refine_ratio * radius of its centre vote",
                       variant: string in {pvn3d, ffb6d} = pvn3d "as in VoteAggregate")
            -> (rotation: T[B,M,3,3]  "R, det +1: camera = R object + t",
                translation: T[B,M,3] "t, camera frame [m]",
                valid: i32[B,M]       "0 the object is not there (R = I, t = 0), 1 its pose, 2 not the only best pose",
                kps?: T[B,M,K+1,3]    "voted keypoints and, last, the centre, camera frame [m]",
                count?: i32[B,M]      "points whose centre votes agree")
            where T in {f16, f32, f64}, I in {i32, i64}
      )sig")
          .cpu(pose_solve)
          .cuda(OPBRIDGE_CUDA_KERNEL(pvn3d_pose_solve_cuda))
          .workspace(pose_workspace),
  };
}
