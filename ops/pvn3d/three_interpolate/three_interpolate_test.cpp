#include "three_interpolate/three_interpolate.h"

#include "common/op_test.h"

namespace {

using pvn3d::test::Array;
using pvn3d::test::call;

TEST(ThreeInterpolate, BadIndicesCountAsZero) {
  const Array features = Array::of<float>({1, 1, 2}, {1, 2});
  const Array weight = Array::of<float>({1, 2, 3}, {0.5f, 0.25f, 0.25f, 1, 2, 3});
  for (const int64_t far : {int64_t{2}, int64_t{-1}, int64_t{1} << 32}) {
    const Array idx = Array::of<int64_t>({1, 2, 3}, {0, 1, 1, far, 0, 1});
    const auto r = call("ThreeInterpolate", {features, idx, weight}, {});
    ASSERT_EQ(r.error, "");
    EXPECT_EQ(r.outputs[0].as<float>(), (std::vector<float>{1.5f, 8}));
    const auto g =
        call("ThreeInterpolateGrad", {Array::of<float>({1, 1, 2}, {1, 10}), features, idx, weight}, {});
    ASSERT_EQ(g.error, "");
    EXPECT_EQ(g.outputs[0].as<float>(), (std::vector<float>{20.5f, 30.5f}));
    EXPECT_EQ(g.outputs[1].as<float>(), (std::vector<float>{1, 2, 2, 0, 10, 20}));
  }
}

}  // namespace
