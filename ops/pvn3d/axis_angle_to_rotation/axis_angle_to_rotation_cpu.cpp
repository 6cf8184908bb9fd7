#include "axis_angle_to_rotation.h"

namespace {

void convert(const opbridge::Call& call) { pvn3d::convert_rotations<3>(call, pvn3d::axis_angle_to_matrix); }
void convert_grad(const opbridge::Call& call) {
  pvn3d::convert_rotations_grad<3>(call, pvn3d::axis_angle_gradient);
}

}  // namespace

OPBRIDGE_OPERATORS(axis_angle_to_rotation) {
  return {
      opbridge::Operator(R"sig(
        "Rotation matrices of axis-angle vectors in radians (Rodrigues)."
        AxisAngleToRotation(axis_angle: T[*S,3] "the direction is the axis, the length the angle [rad]")
            -> rotation: T[*S,3,3] "row-major, det +1, for column vectors"
            where T in {f16, f32, f64}
            grad: AxisAngleToRotationGrad
      )sig")
          .cpu(convert)
          .cuda(OPBRIDGE_CUDA_KERNEL(axis_angle_to_rotation_cuda)),
      opbridge::Operator(R"sig(
        "Gradient of AxisAngleToRotation."
        AxisAngleToRotationGrad(grad_rotation: T[*S,3,3] "gradient of rotation",
                                axis_angle: T[*S,3]      "as given to AxisAngleToRotation")
            -> grad_axis_angle: T[*S,3] "gradient of axis_angle"
            where T in {f16, f32, f64}
      )sig")
          .cpu(convert_grad)
          .cuda(OPBRIDGE_CUDA_KERNEL(axis_angle_to_rotation_grad_cuda)),
  };
}
