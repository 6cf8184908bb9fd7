#include "l2_normalize/l2_normalize.h"

#include "common/op_test.h"

namespace {

using pvn3d::test::Array;
using pvn3d::test::call;

// The fast paths (rows of three, rows) and the strided one add up in the same order.
TEST(L2Normalize, SameBitsWhereverTheAxisLies) {
  for (const int64_t length : {1, 2, 3, 5, 8, 16, 37, 128}) {
    const int64_t rows = 13;
    const auto x = pvn3d::test::random(static_cast<size_t>(rows * length));
    std::vector<float> transposed(x.size());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < length; ++c)
        transposed[static_cast<size_t>(c * rows + r)] = x[static_cast<size_t>(r * length + c)];
    }
    const auto y = call("L2Normalize", {Array::of<float>({rows, length}, x)}, {{"axis", -1}});
    const auto z = call("L2Normalize", {Array::of<float>({length, rows}, transposed)}, {{"axis", 0}});
    ASSERT_EQ(y.error + z.error, "");
    const auto a = y.outputs[0].as<float>(), b = z.outputs[0].as<float>();
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < length; ++c)
        EXPECT_EQ(a[static_cast<size_t>(r * length + c)], b[static_cast<size_t>(c * rows + r)])
            << "length " << length;
    }
  }
}

TEST(L2Normalize, AxisOutsideTheRankIsAnError) {
  const Array x = Array::of<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  for (const double axis : {2.0, -3.0}) {
    const std::string error = call("L2Normalize", {x}, {{"axis", axis}}).error;
    EXPECT_NE(error.find("'x' has 2 dimensions"), std::string::npos) << error;
  }
}

}  // namespace
