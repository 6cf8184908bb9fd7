#include "euler_to_rotation/euler_to_rotation.h"

#include "common/op_test.h"

namespace {

using pvn3d::test::Array;
using pvn3d::test::Attribute;
using pvn3d::test::call;

const char* const kOrders[] = {"xyz", "xzy", "yxz", "yzx", "zxy", "zyx",
                               "xyx", "xzx", "yxy", "yzy", "zxz", "zyz"};

std::vector<double> matrix(const std::vector<double>& angles, const char* order, bool extrinsic) {
  const auto r = call("EulerToRotation", {Array::of<double>({3}, angles)},
                      {{"order", 0, true, order}, {"extrinsic", extrinsic ? 1.0 : 0.0}});
  EXPECT_EQ(r.error, "");
  return r.outputs[0].as<double>();
}

// One angle at a time turns about its axis, counter-clockwise; angles backwards about turning axes are the same.
TEST(EulerToRotation, EveryOrder) {
  for (const char* order : kOrders) {
    for (int i = 0; i < 3; ++i) {
      std::vector<double> angles(3);
      angles[static_cast<size_t>(i)] = M_PI / 2;
      const auto m = matrix(angles, order, true);
      const size_t axis = static_cast<size_t>(order[i] - 'x'), p = (axis + 1) % 3, q = (axis + 2) % 3;
      EXPECT_EQ(m[4 * axis], 1) << order;
      EXPECT_EQ(m[3 * q + p], 1) << order;
      EXPECT_EQ(m[3 * p + q], -1) << order;
    }
    const std::string backwards = {order[2], order[1], order[0]};
    const auto fixed = matrix({0.3, -1.2, 2.5}, order, true),
               turning = matrix({2.5, -1.2, 0.3}, backwards.c_str(), false);
    pvn3d::test::expect_rotation(fixed.data(), 1e-14);
    EXPECT_EQ(fixed, turning) << order;
  }
}

TEST(EulerToRotation, GradientAgreesWithDifferences) {
  const std::vector<double> angles = {0.3, -1.2, 2.5}, g = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (const char* order : {"xyz", "zxz"}) {
    for (const bool extrinsic : {true, false}) {
      const auto grad =
          call("EulerToRotationGrad", {Array::of<double>({3, 3}, g), Array::of<double>({3}, angles)},
               {{"order", 0, true, order}, {"extrinsic", extrinsic ? 1.0 : 0.0}});
      ASSERT_EQ(grad.error, "");
      for (size_t i = 0; i < 3; ++i) {
        double slope = 0;
        for (const double step : {1e-6, -1e-6}) {
          auto moved = angles;
          moved[i] += step;
          const auto m = matrix(moved, order, extrinsic);
          for (size_t k = 0; k < 9; ++k) slope += g[k] * m[k] / (2 * step);
        }
        EXPECT_NEAR(grad.outputs[0].as<double>()[i], slope, 1e-7);
      }
    }
  }
}

TEST(EulerToRotation, UnknownOrdersAreErrors) {
  const Array angles = Array::of<float>({3}, {0, 0, 0});
  for (const char* order : {"xxy", "xyw", "", "XYZ"}) {
    EXPECT_NE(call("EulerToRotation", {angles}, {{"order", 0, true, order}}).error.find("'order'"),
              std::string::npos)
        << order;
  }
}

}  // namespace
