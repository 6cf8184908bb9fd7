#include "ball_query/ball_query.h"

#include "common/op_test.h"

namespace {

using pvn3d::test::Array;
using pvn3d::test::call;

Array cloud(int64_t n, uint32_t seed) {
  return Array::of<float>({1, n, 3}, pvn3d::test::random(static_cast<size_t>(n) * 3, seed));
}

std::vector<int32_t> brute(const Array& xyz, const Array& centres, float radius, int64_t k) {
  const auto p = xyz.as<float>(), c = centres.as<float>();
  std::vector<int32_t> idx;
  for (int64_t i = 0; i < centres.shape[1]; ++i) {
    const auto q = pvn3d::load_point(c.data(), i);
    std::vector<int32_t> row;
    for (int64_t j = 0; j < xyz.shape[1] && static_cast<int64_t>(row.size()) < k; ++j) {
      const auto r = pvn3d::load_point(p.data(), j);
      if (ball_query::inside(pvn3d::squared_distance(r.x, r.y, r.z, q.x, q.y, q.z), 0.0f, radius * radius)) {
        row.push_back(static_cast<int32_t>(j));
      }
    }
    row.resize(static_cast<size_t>(k), row.empty() ? 0 : row[0]);
    idx.insert(idx.end(), row.begin(), row.end());
  }
  return idx;
}

// From few hits to so many that the cloud is scanned in order instead.
TEST(BallQuery, EveryDensityAgreesWithTheDefinition) {
  for (const int64_t n : {1, 15, 16, 17, 300, 5000}) {
    const Array xyz = cloud(n, 3), centres = cloud(150, 4);
    for (const float radius : {0.02f, 0.1f, 0.3f, 0.6f, 2.0f}) {
      for (const int64_t k : {1, 16, 64}) {
        for (const int threads : {1, 2}) {
          const auto r = call("BallQuery", {xyz, centres},
                              {{"radius", radius, false}, {"nsample", static_cast<double>(k)}}, threads);
          ASSERT_EQ(r.error, "");
          EXPECT_EQ(r.outputs[0].as<int32_t>(), brute(xyz, centres, radius, k))
              << "N " << n << " radius " << radius << " k " << k;
        }
      }
    }
  }
}

TEST(BallQuery, NoPointsIsAnErrorOnlyWhereThereAreCentres) {
  const Array none = Array::of<float>({1, 0, 3}, {});
  EXPECT_NE(call("BallQuery", {none, cloud(2, 1)}, {{"radius", 1, false}, {"nsample", 4}})
                .error.find("'xyz' has no points"),
            std::string::npos);
  EXPECT_EQ(call("BallQuery", {none, none}, {{"radius", 1, false}, {"nsample", 4}}).error, "");
}

}  // namespace
