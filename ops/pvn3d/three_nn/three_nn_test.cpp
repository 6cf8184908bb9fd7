#include "three_nn/three_nn.h"

#include <limits>

#include "common/op_test.h"

namespace {

using pvn3d::test::Array;
using pvn3d::test::call;

TEST(ThreeNN, FewerThanThreeKnownPointsLeaveInfinity) {
  const Array unknown = Array::of<float>({1, 2, 3}, {0, 0, 0, 5, 0, 0}),
              known = Array::of<float>({1, 2, 3}, {3, 0, 0, 4, 0, 0});
  const auto r = call("ThreeNN", {unknown, known}, {});
  ASSERT_EQ(r.error, "");
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(r.outputs[0].as<float>(), (std::vector<float>{3, 4, inf, 1, 2, inf}));
  EXPECT_EQ(r.outputs[1].as<int32_t>(), (std::vector<int32_t>{0, 1, 0, 1, 0, 0}));
  const auto squared = call("ThreeNN", {unknown, known}, {{"squared", 1}});
  EXPECT_EQ(squared.outputs[0].as<float>(), (std::vector<float>{9, 16, inf, 1, 4, inf}));
}

TEST(ThreeNN, NoKnownPointIsAnErrorOnlyWhereThereAreUnknownOnes) {
  const Array none = Array::of<float>({1, 0, 3}, {}), one = Array::of<float>({1, 1, 3}, {0, 0, 0});
  EXPECT_NE(call("ThreeNN", {one, none}, {}).error.find("'known' has no points"), std::string::npos);
  EXPECT_EQ(call("ThreeNN", {none, none}, {}).error, "");
}

}  // namespace
