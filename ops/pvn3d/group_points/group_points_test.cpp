#include "group_points/group_points.h"

#include "common/op_test.h"

namespace {

using pvn3d::test::Array;
using pvn3d::test::call;

// The feature behind the last is there in memory: reading it would show.
template <class I>
void bad_indices_read_as_zero(I far) {
  const Array features = Array::of<float>({1, 2, 3}, {1, 2, 3, 4, 5, 6});
  const Array idx = Array::of<I>({1, 5, 1}, {2, 3, -1, far, 0});
  const auto r = call("GroupPoints", {features, idx}, {});
  ASSERT_EQ(r.error, "");
  EXPECT_EQ(r.outputs[0].as<float>(), (std::vector<float>{3, 0, 0, 0, 1, 6, 0, 0, 0, 4}));
  const Array grad_out = Array::of<float>({1, 2, 5, 1}, {1, 10, 10, 10, 2, 3, 10, 10, 10, 4});
  const auto g = call("GroupPointsGrad", {grad_out, features, idx}, {});
  ASSERT_EQ(g.error, "");
  EXPECT_EQ(g.outputs[0].as<float>(), (std::vector<float>{2, 0, 1, 4, 0, 3}));
}

TEST(GroupPoints, BadIndicesReadAsZero) {
  bad_indices_read_as_zero<int32_t>(2147483647);
  bad_indices_read_as_zero<int64_t>(int64_t{1} << 40);  // 0 in its lower half
}

}  // namespace
