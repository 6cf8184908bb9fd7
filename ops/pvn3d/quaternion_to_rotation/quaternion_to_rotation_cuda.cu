#include "common/rotations.cuh"
#include "quaternion_to_rotation.h"

namespace {

struct Convert {
  bool scalar_first;
  __device__ void operator()(const double* row, double* r) const {
    pvn3d::quaternion_row_to_matrix(row, scalar_first, r);
  }
};

struct Back {
  bool scalar_first;
  __device__ void operator()(const double* row, const double* g, double* grad_row) const {
    pvn3d::quaternion_gradient(row, g, scalar_first, grad_row);
  }
};

}  // namespace

void quaternion_to_rotation_cuda(const opbridge::Call& call) {
  pvn3d::convert_rotations_cuda<4>(call, Convert{call.attr_bool("scalar_first")});
}

void quaternion_to_rotation_grad_cuda(const opbridge::Call& call) {
  pvn3d::convert_rotations_grad_cuda<4>(call, Back{call.attr_bool("scalar_first")});
}
