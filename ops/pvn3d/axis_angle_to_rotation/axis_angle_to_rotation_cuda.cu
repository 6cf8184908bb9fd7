#include "axis_angle_to_rotation.h"
#include "common/rotations.cuh"

namespace {

struct Convert {
  __device__ void operator()(const double* v, double* r) const { pvn3d::axis_angle_to_matrix(v, r); }
};

struct Back {
  __device__ void operator()(const double* v, const double* g, double* grad_v) const {
    pvn3d::axis_angle_gradient(v, g, grad_v);
  }
};

}  // namespace

void axis_angle_to_rotation_cuda(const opbridge::Call& call) {
  pvn3d::convert_rotations_cuda<3>(call, Convert{});
}

void axis_angle_to_rotation_grad_cuda(const opbridge::Call& call) {
  pvn3d::convert_rotations_grad_cuda<3>(call, Back{});
}
