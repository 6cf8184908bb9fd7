#include "farthest_point_sample/farthest_point_sample.h"

#include <algorithm>

#include "common/op_test.h"

namespace {

using pvn3d::test::Array;
using pvn3d::test::call;

Array cloud(int64_t n) {
  return Array::of<float>({1, n, 3}, pvn3d::test::random(static_cast<size_t>(n) * 3));
}

std::vector<int32_t> indices(const pvn3d::test::Result& r) {
  EXPECT_EQ(r.error, "");
  return r.outputs.empty() ? std::vector<int32_t>{} : r.outputs[0].as<int32_t>();
}

// Every size around the widths of vectors, leaves and buckets, against the definition.
TEST(FarthestPointSample, EverySizeAgreesWithTheDefinition) {
  for (int64_t n = 1; n < 200; n += n < 70 ? 1 : 13) {
    const Array xyz = cloud(n);
    const auto p = xyz.as<float>();
    std::vector<int32_t> expected;
    std::vector<float> best(static_cast<size_t>(n), 1e10f);
    for (int64_t last = 0; static_cast<int64_t>(expected.size()) < n;) {
      expected.push_back(static_cast<int32_t>(last));
      const auto q = pvn3d::load_point(p.data(), last);
      for (int64_t k = 0; k < n; ++k) {
        const auto r = pvn3d::load_point(p.data(), k);
        auto& b = best[static_cast<size_t>(k)];
        b = std::min(b, pvn3d::squared_distance(r.x, r.y, r.z, q.x, q.y, q.z));
      }
      last = std::max_element(best.begin(), best.end()) - best.begin();
    }
    EXPECT_EQ(indices(call("FarthestPointSample", {xyz}, {{"npoint", static_cast<double>(n)}})), expected)
        << "N " << n;
  }
}

TEST(FarthestPointSample, RanksAreAPermutationThatIndexUndoes) {
  for (const int choice : {0, 1}) {
    for (const int64_t n : {1, 2, 3, 511, 512, 600, 1024, 5000}) {
      const farthest_point_sample::TieOrder order(choice, n);
      uint32_t before = 0;
      for (uint32_t k = 0; k < n; ++k) {
        EXPECT_EQ(order.index(order.rank(k)), k);
        EXPECT_TRUE(choice == 1 || order.rank(k) == k);
        before = std::max(before, order.rank(k));
      }
      EXPECT_LT(before, static_cast<uint32_t>(n) + order.threads);
    }
  }
}

TEST(FarthestPointSample, ErrorsNameTheArgument) {
  const Array none = Array::of<float>({1, 0, 3}, {});
  EXPECT_NE(call("FarthestPointSample", {none}, {{"npoint", 2}}).error.find("'xyz' has no point"),
            std::string::npos);
  EXPECT_EQ(call("FarthestPointSample", {none}, {{"npoint", 0}}).error, "");
  const std::string error = call("FarthestPointSample", {cloud(4)}, {{"npoint", 2}, {"start", 4}}).error;
  EXPECT_NE(error.find("'start' must be less than N=4, got 4"), std::string::npos) << error;
}

}  // namespace
