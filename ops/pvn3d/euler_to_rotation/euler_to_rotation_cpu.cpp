#include "euler_to_rotation.h"

namespace {

void convert(const opbridge::Call& call) {
  const pvn3d::EulerOrder order = pvn3d::euler_order(call);
  pvn3d::convert_rotations<3>(
      call, [&](const double* angles, double* r) { pvn3d::euler_product(order, angles, -1, r); });
}

void convert_grad(const opbridge::Call& call) {
  const pvn3d::EulerOrder order = pvn3d::euler_order(call);
  pvn3d::convert_rotations_grad<3>(call, [&](const double* angles, const double* g, double* grad_angles) {
    pvn3d::euler_gradient(order, angles, g, grad_angles);
  });
}

}  // namespace

OPBRIDGE_OPERATORS(euler_to_rotation) {
  return {
      opbridge::Operator(R"sig(
        "Rotation matrices of Euler angles in radians."
        EulerToRotation(angles: T[*S,3] "about the axes of `order`, first to last [rad]";
                        order: string in {xyz, xzy, yxz, yzx, zxy, zyx, xyx, xzx, yxy, yzy, zxz, zyz} = xyz "axes of the three angles",
                        extrinsic: bool = true "about fixed axes: R = R3 R2 R1; false: about axes that turn with the body: R = R1 R2 R3")
            -> rotation: T[*S,3,3] "row-major, det +1, for column vectors"
            where T in {f16, f32, f64}
            grad: EulerToRotationGrad
      )sig")
          .cpu(convert)
          .cuda(OPBRIDGE_CUDA_KERNEL(euler_to_rotation_cuda)),
      opbridge::Operator(R"sig(
        "Gradient of EulerToRotation."
        EulerToRotationGrad(grad_rotation: T[*S,3,3] "gradient of rotation",
                            angles: T[*S,3]          "as given to EulerToRotation";
                            order: string in {xyz, xzy, yxz, yzx, zxy, zyx, xyx, xzx, yxy, yzy, zxz, zyz} = xyz "as given to EulerToRotation",
                            extrinsic: bool = true "as given to EulerToRotation")
            -> grad_angles: T[*S,3] "gradient of angles"
            where T in {f16, f32, f64}
      )sig")
          .cpu(convert_grad)
          .cuda(OPBRIDGE_CUDA_KERNEL(euler_to_rotation_grad_cuda)),
  };
}
