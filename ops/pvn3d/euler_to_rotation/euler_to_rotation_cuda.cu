#include "common/rotations.cuh"
#include "euler_to_rotation.h"

namespace {

struct Convert {
  pvn3d::EulerOrder order;
  __device__ void operator()(const double* angles, double* r) const {
    pvn3d::euler_product(order, angles, -1, r);
  }
};

struct Back {
  pvn3d::EulerOrder order;
  __device__ void operator()(const double* angles, const double* g, double* grad_angles) const {
    pvn3d::euler_gradient(order, angles, g, grad_angles);
  }
};

}  // namespace

void euler_to_rotation_cuda(const opbridge::Call& call) {
  pvn3d::convert_rotations_cuda<3>(call, Convert{pvn3d::euler_order(call)});
}

void euler_to_rotation_grad_cuda(const opbridge::Call& call) {
  pvn3d::convert_rotations_grad_cuda<3>(call, Back{pvn3d::euler_order(call)});
}
