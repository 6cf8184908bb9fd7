#pragma once

#include "common/mean_shift.h"
#include "common/rigid.h"
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
/// Memory: workspace about 12 N bytes a frame and 40 N bytes (f32) for each of up to 8 problems at a time; no
///   output may alias an input.
/// Cost: as VoteAggregate on each object's points alone.
/// Gradient: none.
/// Errors: shape, dtype or attribute outside this table.
/// Source: PVN3D's and FFB6D's cal_frame_poses (He et al. 2020, 2021).
void pvn3d_pose_solve_cuda(const opbridge::Call& call);
