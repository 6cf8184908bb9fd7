#pragma once

#include "common/rigid.h"
#include "common/votes.h"
#include "opbridge/op.h"

/// Poses of all objects of a frame, from what a PVN3D or FFB6D network predicts: votes, mean shift, Kabsch.
///   points        (B, N, 3)     T           [m], camera frame
///   labels        (B, N)        i32 or i64  class of each point: 0 background, m + 1 object m; others: background
///   kp_of         (B, K, N, 3)  T           [m] offsets of the keypoints; a vote is point + offset_sign * offset
///   ctr_of        (B, 1, N, 3)  T           [m] offsets of the object's centre
///   mesh_kps      (M, K, 3)     T           [m] keypoints of the M objects, object frame
///   mesh_ctr      (M, 3)        T           [m] centres, object frame: the mean of the bounding box's corners
///   radii         (M)           T           [m] half of the bounding box's diagonal; absent: labels stay as they are
///   bandwidth, max_iter, tol, stop, offset_sign, variant
///                                           as in VoteAggregate (FFB6D: bandwidth 0.04, variant ffb6d)
///   use_ctr       attr bool = true          the centre is one more keypoint
///   ctr_filter    attr bool = true          keypoint votes come from the points whose centre votes agree (YCB);
///                                           false: from all points of the object (LineMOD)
///   refine_ratio  attr float >= 0, = 0.8    with radii: a point joins the object whose centre is nearest to its
///                                           centre vote, when that is nearer than refine_ratio * radius
///   rotation      (B, M, 3, 3)    T         R, det +1: camera = R object + t
///   translation   (B, M, 3)       T         t [m], camera frame
///   valid         (B, M)          i32       0 the object is not there (R = I, t = 0, kps 0), 1 its pose,
///                                           2 a best pose, but not the only one
///   kps           (B, M, K+1, 3)  T         [m] voted keypoints and, last, the centre, camera frame
///   count         (B, M)          i32       points whose centre votes agree
/// T is f16, f32 or f64.
/// Edges: one class is one instance. Points with a vote that is NaN or infinite do not vote there; a keypoint
///   for which nobody votes is 0 and left out of the alignment. Refining never makes background of a point or a
///   point of background, and an object that was not there before refining is not there after it.
/// Numerics: votes in f32 (f64 for f64), the pose in f64.
/// Memory: workspace about 12 N bytes a frame and 40 N bytes (f32) for each of up to 8 problems at a time; on CUDA
///   (20 + 12 K) N for each frame, and (32 + 24 K) N with ffb6d or stop = upstream; no output may alias an input.
/// Cost: as VoteAggregate on each object's points alone.
/// Gradient: none.
/// Errors: shape, dtype or attribute outside this table.
/// Source: PVN3D's and FFB6D's cal_frame_poses (He et al. 2020, 2021).
void pvn3d_pose_solve_cuda(const opbridge::Call& call);
size_t pvn3d_pose_solve_cuda_workspace(const opbridge::Call& call);

namespace pvn3d {

enum PoseInputs { kPoints, kLabels, kKpOf, kCtrOf, kMeshKps, kMeshCtr, kRadii };
enum PoseOutputs { kRotation, kTranslation, kValid, kKps, kCount };

/// B frames of N points with M objects of K keypoints.
struct PoseSizes {
  explicit PoseSizes(const opbridge::Call& call)
      : b(call.input_arg(kPoints).shape[0]),
        n(call.input_arg(kPoints).shape[1]),
        k(call.input_arg(kKpOf).shape[1]),
        m(call.input_arg(kMeshKps).shape[0]) {}
  int64_t b, n, k, m;
};

/// What one object's pose comes from: its keypoints and, last, its centre, in the object's frame and as voted.
template <class T>
struct PoseCorrespondences {
  using C = Compute<T>;
  const T *mesh_kps, *mesh_ctr;
  const C *keypoint, *centre;  // camera frame
  const int32_t* voted;        // votes for each keypoint; 0 leaves it out
  int64_t k;

  OPBRIDGE_HD Point<double> point_a(int64_t i) const {
    return i < k ? widen(mesh_kps + 3 * i) : widen(mesh_ctr);
  }
  OPBRIDGE_HD Point<double> point_b(int64_t i) const {
    return i < k ? widen(keypoint + 3 * i) : widen(centre);
  }
  OPBRIDGE_HD double weight(int64_t i) const { return i < k ? voted[i] > 0 : 1; }

  template <class V>
  OPBRIDGE_HD static Point<double> widen(const V* p) {
    return {static_cast<double>(p[0]), static_cast<double>(p[1]), static_cast<double>(p[2])};
  }
};

/// Writes one object's outputs; `valid`, `kps` and `count` are its own elements, the last two null where unwanted.
template <class T>
OPBRIDGE_HD void write_pose(const PoseCorrespondences<T>& c, bool there, bool use_ctr, int32_t inliers,
                            T* rotation, T* translation, int32_t* valid, T* kps, int32_t* count) {
  using C = Compute<T>;
  double r[9], t[3];
  *valid = align(Covariance(c, there ? c.k + use_ctr : 0), r, t);
  for (int q = 0; q < 9; ++q) rotation[q] = static_cast<T>(r[q]);
  for (int q = 0; q < 3; ++q) translation[q] = static_cast<T>(t[q]);
  if (count != nullptr) *count = there ? inliers : 0;
  for (int64_t q = 0; kps != nullptr && q < 3 * (c.k + 1); ++q) {
    const C value = q < 3 * c.k ? c.keypoint[q] : c.centre[q - 3 * c.k];
    kps[q] = static_cast<T>(there ? value : C(0));
  }
}

/// The object that a point's centre vote belongs to: of those found, the one with the nearest centre, the first of equals,
/// when that is nearer than `ratio` of its radius; else `label`. `found(o)` says whether there is a centre.
template <class T, class Found>
OPBRIDGE_HD int32_t refined_label(int32_t label, const Point<Compute<T>>& vote, const Compute<T>* centres,
                                  const T* radii, Compute<T> ratio, int64_t objects, const Found& found) {
  using C = Compute<T>;
  C nearest = 0;
  int64_t object = -1;
  for (int64_t o = 0; o < objects; ++o) {
    if (!found(o)) continue;
    const C d2 =
        squared_distance(vote.x, vote.y, vote.z, centres[3 * o], centres[3 * o + 1], centres[3 * o + 2]);
    if (is_finite(d2) && (object < 0 || d2 < nearest)) nearest = d2, object = o;
  }
  return object >= 0 && sqrt(nearest) < static_cast<C>(radii[object]) * ratio ? static_cast<int32_t>(object)
                                                                              : label;
}

}  // namespace pvn3d
