// Eigen's umeyama() as a user would call it, behind a C interface for ctypes: what KabschSolver is measured against.
#include <Eigen/Geometry>
#include <cstdint>

extern "C" void eigen_umeyama(const float* a, const float* b, int64_t problems, int64_t n, float* rotation) {
  using Points = Eigen::Map<const Eigen::Matrix<float, 3, Eigen::Dynamic>>;
  for (int64_t i = 0; i < problems; ++i) {
    const Points from(a + 3 * n * i, 3, n), to(b + 3 * n * i, 3, n);
    const Eigen::Matrix4f pose = Eigen::umeyama(from, to, false);
    Eigen::Map<Eigen::Matrix<float, 3, 3, Eigen::RowMajor>>(rotation + 9 * i) = pose.topLeftCorner<3, 3>();
  }
}
