#include "axis_angle_to_rotation/axis_angle_to_rotation.h"

#include "common/op_test.h"

namespace {

using pvn3d::test::Array;
using pvn3d::test::call;

// On both sides of where the series take over (1e-4, and 0.05 for the gradient), and at whole turns.
TEST(AxisAngleToRotation, EveryAngleGivesARotationAboutTheAxis) {
  for (const double angle :
       {0.0, 1e-300, 1e-9, 9.9e-5, 1.01e-4, 0.049, 0.051, 1.0, M_PI, 6.0, 2 * M_PI, 1e4}) {
    const std::vector<double> v = {angle * 2 / 3, -angle / 3, angle * 2 / 3};
    const auto r = call("AxisAngleToRotation", {Array::of<double>({3}, v)});
    ASSERT_EQ(r.error, "");
    const auto m = r.outputs[0].as<double>();
    pvn3d::test::expect_rotation(m.data(), 1e-9);
    EXPECT_NEAR(m[0] + m[4] + m[8], 1 + 2 * std::cos(angle), 1e-9) << "angle " << angle;
    for (size_t i = 0; i < 3; ++i) {  // the axis stays where it is
      EXPECT_NEAR(m[3 * i] * v[0] + m[3 * i + 1] * v[1] + m[3 * i + 2] * v[2], v[i], 1e-9 * (1 + angle));
    }
  }
}

TEST(AxisAngleToRotation, GradientAgreesWithDifferences) {
  for (const double scale : {1e-6, 0.0499, 0.0501, 1.0}) {
    const std::vector<double> v = {0.6 * scale, 0, 0.8 * scale}, g = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    const auto grad =
        call("AxisAngleToRotationGrad", {Array::of<double>({3, 3}, g), Array::of<double>({3}, v)});
    ASSERT_EQ(grad.error, "");
    for (size_t i = 0; i < 3; ++i) {
      double slope = 0;
      for (const double step : {1e-6, -1e-6}) {
        auto moved = v;
        moved[i] += step;
        const auto m = call("AxisAngleToRotation", {Array::of<double>({3}, moved)}).outputs[0].as<double>();
        for (size_t k = 0; k < 9; ++k) slope += g[k] * m[k] / (2 * step);
      }
      EXPECT_NEAR(grad.outputs[0].as<double>()[i], slope, 1e-7) << "scale " << scale;
    }
  }
}

TEST(AxisAngleToRotation, NoRowsAndNan) {
  EXPECT_EQ(call("AxisAngleToRotation", {Array::of<float>({2, 0, 3}, {})}).outputs[0].shape,
            (std::vector<int64_t>{2, 0, 3, 3}));
  const auto r = call("AxisAngleToRotation", {Array::of<float>({2, 3}, {std::nanf(""), 0, 0, 0, 0, 0})});
  EXPECT_TRUE(std::isnan(r.outputs[0].as<float>()[0]));
  EXPECT_EQ(r.outputs[0].as<float>()[9], 1);
  EXPECT_NE(call("AxisAngleToRotation", {Array::of<float>({4}, {0, 0, 0, 0})}).error.find("'axis_angle'"),
            std::string::npos);
}

}  // namespace
