#include "vote_aggregate/vote_aggregate.h"

#include <algorithm>

#include "common/op_test.h"

namespace {

using pvn3d::test::Array;
using pvn3d::test::Attribute;
using pvn3d::test::call;

// Votes themselves as points, with no offsets.
pvn3d::test::Result aggregate(const std::vector<float>& votes, const std::vector<Attribute>& attributes = {},
                              Array mask = Array::none(), int threads = 1) {
  const auto n = static_cast<int64_t>(votes.size() / 3);
  return call("VoteAggregate",
              {Array::of<float>({1, n, 3}, votes),
               Array::of<float>({1, 1, n, 3}, std::vector<float>(votes.size())), std::move(mask)},
              attributes, threads);
}

// Around the sizes of vectors, buckets and lanes: counts and winner by the definition.
TEST(VoteAggregate, EverySizeAgreesWithTheDefinition) {
  for (const int64_t n : {1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 255, 256, 257, 700}) {
    const auto v = pvn3d::test::random(static_cast<size_t>(n) * 3, 11);
    for (const float bandwidth : {0.05f, 0.3f, 3.0f}) {
      int64_t best = 0, seed = 0;
      for (int64_t i = 0; i < n; ++i) {
        const auto a = pvn3d::load_point(v.data(), i);
        int64_t count = 0;
        for (int64_t j = 0; j < n; ++j) {
          const auto b = pvn3d::load_point(v.data(), j);
          count += pvn3d::squared_distance(a.x, a.y, a.z, b.x, b.y, b.z) < bandwidth * bandwidth;
        }
        if (count > best) best = count, seed = i;
      }
      const auto one = aggregate(v, {{"bandwidth", bandwidth, false}}),
                 two = aggregate(v, {{"bandwidth", bandwidth, false}}, Array::none(), 2);
      ASSERT_EQ(one.error + two.error, "");
      EXPECT_EQ(one.outputs[1].as<int32_t>()[0], best) << "N " << n << " bandwidth " << bandwidth;
      EXPECT_EQ(one.outputs[2].as<int32_t>()[0], seed) << "N " << n << " bandwidth " << bandwidth;
      EXPECT_EQ(one.outputs[0].data, two.outputs[0].data);
    }
  }
}

TEST(VoteAggregate, NobodyAndOne) {
  const auto check = [](const pvn3d::test::Result& r, std::vector<float> kps, int32_t count, int32_t seed) {
    ASSERT_EQ(r.error, "");
    EXPECT_EQ(r.outputs[0].as<float>(), kps);
    EXPECT_EQ(r.outputs[1].as<int32_t>()[0], count);
    EXPECT_EQ(r.outputs[2].as<int32_t>()[0], seed);
  };
  const float nan = std::nanf("");
  for (const char* variant : {"pvn3d", "ffb6d"}) {
    const std::vector<Attribute> attributes = {{"variant", 0, true, variant}};
    check(aggregate({}, attributes), {0, 0, 0}, 0, -1);
    check(aggregate({nan, 0, 0, 0, INFINITY, 0}, attributes), {0, 0, 0}, 0, -1);
    check(aggregate({1, 2, 3}, attributes), {1, 2, 3}, 1, 0);
    check(aggregate({1, 2, 3, 4, 5, 6}, attributes, Array::of<int32_t>({1, 2}, {0, 7})), {4, 5, 6}, 1, 1);
    check(aggregate({nan, 2, 3, 4, 5, 6}, attributes), {4, 5, 6}, 1, 1);
  }
}

// A vote at exactly the bandwidth does not count.
TEST(VoteAggregate, TheBandwidthIsOutside) {
  const auto r = aggregate({0, 0, 0, 0.5f, 0, 0, 0.25f, 0, 0}, {{"bandwidth", 0.5, false}});
  ASSERT_EQ(r.error, "");
  EXPECT_EQ(r.outputs[1].as<int32_t>()[0], 3);
  EXPECT_EQ(r.outputs[2].as<int32_t>()[0], 2);
}

TEST(VoteAggregate, SignsAreThoseOfTheNetwork) {
  const Array points = Array::of<float>({1, 1, 3}, {1, 1, 1}),
              offsets = Array::of<float>({1, 1, 1, 3}, {0.25f, 0, 0});
  const auto minus = call("VoteAggregate", {points, offsets, Array::none()}),
             plus = call("VoteAggregate", {points, offsets, Array::none()}, {{"offset_sign", 1}});
  EXPECT_EQ(minus.outputs[0].as<float>()[0], 0.75f);
  EXPECT_EQ(plus.outputs[0].as<float>()[0], 1.25f);
}

TEST(VoteAggregate, ErrorsNameTheAttribute) {
  EXPECT_NE(aggregate({0, 0, 0}, {{"offset_sign", 0}}).error.find("'offset_sign' must be -1 or 1"),
            std::string::npos);
  EXPECT_NE(aggregate({0, 0, 0}, {{"bandwidth", 0, false}}).error.find("'bandwidth'"), std::string::npos);
}

// All weight that reaches the centre reaches the points: the gradient of a shift of everything is the shift.
TEST(VoteAggregate, GradientsOfAllPointsAddUp) {
  const int64_t n = 50;
  auto v = pvn3d::test::random(static_cast<size_t>(n) * 3, 3);
  for (float& x : v) x *= 0.05f;
  const Array points = Array::of<float>({1, n, 3}, v),
              offsets = Array::of<float>({1, 1, n, 3}, std::vector<float>(v.size()));
  const auto r = call("VoteAggregate", {points, offsets, Array::none()});
  const auto g = call("VoteAggregateGrad", {Array::of<float>({1, 1, 3}, {1, -2, 3}), points, offsets,
                                            r.outputs[0], Array::none()});
  ASSERT_EQ(g.error, "");
  double sums[3] = {};
  const auto grad_points = g.outputs[0].as<float>(), grad_offsets = g.outputs[1].as<float>();
  for (size_t i = 0; i < grad_points.size(); ++i) {
    sums[i % 3] += static_cast<double>(grad_points[i]);
    EXPECT_EQ(grad_points[i], -grad_offsets[i]);
  }
  EXPECT_NEAR(sums[0], 1, 1e-4);
  EXPECT_NEAR(sums[1], -2, 1e-4);
  EXPECT_NEAR(sums[2], 3, 1e-4);
}

}  // namespace
