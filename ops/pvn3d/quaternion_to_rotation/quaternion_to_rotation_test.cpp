#include "quaternion_to_rotation/quaternion_to_rotation.h"

#include "common/op_test.h"

namespace {

using pvn3d::test::Array;
using pvn3d::test::call;

std::vector<double> matrix(const std::vector<double>& q, bool scalar_first = true) {
  const auto r =
      call("QuaternionToRotation", {Array::of<double>({4}, q)}, {{"scalar_first", scalar_first ? 1.0 : 0.0}});
  EXPECT_EQ(r.error, "");
  return r.outputs[0].as<double>();
}

TEST(QuaternionToRotation, LengthAndSignDoNotMatter) {
  const std::vector<double> q = {0.5, -1, 2, 0.25};
  const auto m = matrix(q);
  pvn3d::test::expect_rotation(m.data(), 1e-14);
  for (const double scale : {-1.0, 1e-5, 1e6}) {
    const auto other = matrix({q[0] * scale, q[1] * scale, q[2] * scale, q[3] * scale});
    for (size_t i = 0; i < 9; ++i) EXPECT_NEAR(m[i], other[i], 1e-14);
  }
  EXPECT_EQ(matrix({q[1], q[2], q[3], q[0]}, false), m);
  EXPECT_NEAR(matrix({1, 0, 0, 1})[3], 1, 1e-15);  // a quarter turn about z
}

TEST(QuaternionToRotation, NextToNothingIsTheIdentity) {
  const std::vector<double> identity = {1, 0, 0, 0, 1, 0, 0, 0, 1};
  EXPECT_EQ(matrix({0, 0, 0, 0}), identity);
  EXPECT_EQ(matrix({0, 9e-7, 0, 0}), identity);
  EXPECT_EQ(matrix({0, 1.1e-6, 0, 0})[4], -1);
  EXPECT_TRUE(std::isnan(matrix({0, std::nan(""), 0, 0})[0]));
  const auto grad = call("QuaternionToRotationGrad", {Array::of<double>({3, 3}, std::vector<double>(9, 1)),
                                                      Array::of<double>({4}, {0, 0, 0, 0})});
  EXPECT_EQ(grad.outputs[0].as<double>(), std::vector<double>(4));
}

TEST(QuaternionToRotation, GradientAgreesWithDifferences) {
  const std::vector<double> q = {0.5, -1, 2, 0.25}, g = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (const bool scalar_first : {true, false}) {
    const auto grad =
        call("QuaternionToRotationGrad", {Array::of<double>({3, 3}, g), Array::of<double>({4}, q)},
             {{"scalar_first", scalar_first ? 1.0 : 0.0}});
    ASSERT_EQ(grad.error, "");
    const auto found = grad.outputs[0].as<double>();
    double along = 0;
    for (size_t i = 0; i < 4; ++i) {
      double slope = 0;
      for (const double step : {1e-6, -1e-6}) {
        auto moved = q;
        moved[i] += step;
        const auto m = matrix(moved, scalar_first);
        for (size_t k = 0; k < 9; ++k) slope += g[k] * m[k] / (2 * step);
      }
      EXPECT_NEAR(found[i], slope, 1e-7);
      along += found[i] * q[i];
    }
    EXPECT_NEAR(along, 0, 1e-12);
  }
}

}  // namespace
