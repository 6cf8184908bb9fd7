#include "quaternion_to_rotation.h"

namespace {

void convert(const opbridge::Call& call) {
  const bool scalar_first = call.attr_bool("scalar_first");
  pvn3d::convert_rotations<4>(
      call, [=](const double* row, double* r) { pvn3d::quaternion_row_to_matrix(row, scalar_first, r); });
}

void convert_grad(const opbridge::Call& call) {
  const bool scalar_first = call.attr_bool("scalar_first");
  pvn3d::convert_rotations_grad<4>(call, [=](const double* row, const double* g, double* grad) {
    pvn3d::quaternion_gradient(row, g, scalar_first, grad);
  });
}

}  // namespace

OPBRIDGE_OPERATORS(quaternion_to_rotation) {
  return {
      opbridge::Operator(R"sig(
        "Rotation matrices of quaternions, which need not have length 1."
        QuaternionToRotation(quaternion: T[*S,4] "(w, x, y, z), or (x, y, z, w) with scalar_first = false";
                             scalar_first: bool = true "w comes first")
            -> rotation: T[*S,3,3] "row-major, det +1, for column vectors; the identity where |q|^2 < 1e-12"
            where T in {f16, f32, f64}
            grad: QuaternionToRotationGrad
      )sig")
          .cpu(convert)
          .cuda(OPBRIDGE_CUDA_KERNEL(quaternion_to_rotation_cuda)),
      opbridge::Operator(R"sig(
        "Gradient of QuaternionToRotation."
        QuaternionToRotationGrad(grad_rotation: T[*S,3,3] "gradient of rotation",
                                 quaternion: T[*S,4]      "as given to QuaternionToRotation";
                                 scalar_first: bool = true "as given to QuaternionToRotation")
            -> grad_quaternion: T[*S,4] "gradient of quaternion"
            where T in {f16, f32, f64}
      )sig")
          .cpu(convert_grad)
          .cuda(OPBRIDGE_CUDA_KERNEL(quaternion_to_rotation_grad_cuda)),
  };
}
