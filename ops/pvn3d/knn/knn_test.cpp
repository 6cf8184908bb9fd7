#include "knn/knn.h"

#include <algorithm>

#include "common/op_test.h"

namespace {

using pvn3d::test::Array;
using pvn3d::test::call;

// Sizes around the levels of the tree, k around the sizes of its buffers, duplicates and identical clouds
// among them.
TEST(KNN, EverySizeAgreesWithTheDefinition) {
  for (const int64_t n : {1, 16, 17, 256, 257, 700, 4097}) {
    for (const int64_t copies : {1, 3}) {
      std::vector<float> p = pvn3d::test::random(static_cast<size_t>(n) * 3, 5);
      for (size_t i = 0; i < p.size(); ++i)
        p[i] = copies == 1 ? p[i] : p[i % static_cast<size_t>((n + copies - 1) / copies * 3)];
      const std::vector<float> q = pvn3d::test::random(140 * 3, 6);
      const Array xyz = Array::of<float>({1, n, 3}, p), query = Array::of<float>({1, 140, 3}, q);
      for (const int64_t k : {1, 3, 16, 63, 64, 65, 200, 1024}) {
        const auto r = call("KNN", {xyz, query}, {{"k", static_cast<double>(k)}}, 2);
        ASSERT_EQ(r.error, "");
        const auto idx = r.outputs[0].as<int32_t>();
        for (int64_t i = 0; i < 140; ++i) {
          const auto c = pvn3d::load_point(q.data(), i);
          std::vector<std::pair<float, int32_t>> all;
          for (int64_t j = 0; j < n; ++j) {
            const auto x = pvn3d::load_point(p.data(), j);
            all.emplace_back(pvn3d::squared_distance(x.x, x.y, x.z, c.x, c.y, c.z), static_cast<int32_t>(j));
          }
          std::sort(all.begin(), all.end());
          all.resize(static_cast<size_t>(k), {0.0f, 0});
          for (int64_t s = 0; s < k; ++s) {
            ASSERT_EQ(idx[static_cast<size_t>(i * k + s)], all[static_cast<size_t>(s)].second)
                << "N " << n << " k " << k << " query " << i << " slot " << s;
          }
        }
      }
    }
  }
}

TEST(KNN, NoPointsIsAnErrorOnlyWhereThereAreQueries) {
  const Array none = Array::of<float>({1, 0, 3}, {}), one = Array::of<float>({1, 1, 3}, {0, 0, 0});
  EXPECT_NE(call("KNN", {none, one}, {{"k", 2}}).error.find("'xyz' has no points"), std::string::npos);
  EXPECT_EQ(call("KNN", {none, none}, {{"k", 2}}).error, "");
}

}  // namespace
