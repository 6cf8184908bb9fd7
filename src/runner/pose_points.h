// From a frame to what a PVN3D network is fed with; what the estimator needs beyond make_points().
#pragma once

#include "opbridge/pose.h"

namespace opbridge {

/// Throws Error where the frame cannot be: sizes, element type, scale, intrinsics.
void check_frame(const Frame& frame);

/// The box of a request, the whole picture where it is all zero. `what` names it in errors.
Box check_box(const Box& box, const Frame& frame, const std::string& what);

/// Throws Error for no points, no crop or an impossible range of depth.
void check_options(const PointOptions& options);

struct PointCount {
  int64_t measured = 0;
  double median_depth = 0;  // as in Points
};

/// make_points() of what has been checked, into the caller's arrays: f32[N,9], f32[3,H,W], i64[N]. Without
/// measured depth `pointcloud` and `choose` are left as they are.
PointCount fill_points(const Frame& frame, const Box& box, const PointOptions& options, float* pointcloud,
                       float* rgb, int64_t* choose);

}  // namespace opbridge
