#include "kabsch_solver/kabsch_solver.h"

#include <algorithm>

#include "common/op_test.h"

namespace {

using pvn3d::test::Array;
using pvn3d::test::call;

// A quarter turn about z and a shift, row by row.
std::vector<double> moved(const std::vector<double>& p) {
  std::vector<double> q;
  for (size_t i = 0; i < p.size(); i += 3) q.insert(q.end(), {-p[i + 1] + 1, p[i] + 2, p[i + 2] + 3});
  return q;
}

std::vector<double> cloud(int64_t n, uint32_t seed = 1) {
  const auto p = pvn3d::test::random(static_cast<size_t>(n) * 3, seed);
  return {p.begin(), p.end()};
}

Array rows(const std::vector<double>& p) {
  return Array::of<double>({static_cast<int64_t>(p.size() / 3), 3}, p);
}

TEST(KabschSolver, FindsAKnownPose) {
  for (const int64_t n : {3, 4, 9, 100}) {
    const auto p = cloud(n);
    const auto r = call("KabschSolver", {rows(p), rows(moved(p)), Array::none()});
    ASSERT_EQ(r.error, "");
    const std::vector<double> turn = {0, -1, 0, 1, 0, 0, 0, 0, 1}, shift = {1, 2, 3};
    for (size_t i = 0; i < 9; ++i) EXPECT_NEAR(r.outputs[0].as<double>()[i], turn[i], 1e-12);
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(r.outputs[1].as<double>()[i], shift[i], 1e-12);
    EXPECT_EQ(r.outputs[2].as<int32_t>(), std::vector<int32_t>{1});
  }
}

// Whatever the points: a rotation, and as good as no other of a thousand.
TEST(KabschSolver, DegenerateProblemsGetARotation) {
  const auto p = cloud(6);
  std::vector<double> line, point, mirrored, plane;
  for (size_t i = 0; i < p.size(); i += 3) {
    line.insert(line.end(), {p[i], 2 * p[i], -p[i]});
    point.insert(point.end(), {0.1, 0.2, 0.3});
    mirrored.insert(mirrored.end(), {p[i], p[i + 1], -p[i + 2]});
    plane.insert(plane.end(), {p[i], p[i + 1], 0});
  }
  const auto solve = [](const std::vector<double>& a, const std::vector<double>& b) {
    const auto r = call("KabschSolver", {rows(a), rows(b), Array::none()});
    EXPECT_EQ(r.error, "");
    pvn3d::test::expect_rotation(r.outputs[0].as<double>().data(), 1e-12);
    return r.outputs[2].as<int32_t>()[0];
  };
  EXPECT_EQ(solve(line, moved(line)), 2);
  EXPECT_EQ(solve(point, moved(point)), 2);
  EXPECT_EQ(solve(mirrored, p), 1);
  EXPECT_EQ(solve(plane, moved(plane)), 1);
  // An octahedron's corners and their mirror image: no axis is better than another.
  const std::vector<double> corners = {1, 0, 0, -1, 0, 0, 0, 1, 0, 0, -1, 0, 0, 0, 1, 0, 0, -1};
  std::vector<double> opposite;
  for (const double v : corners) opposite.push_back(-v);
  std::vector<double> uneven = corners, uneven_opposite;
  uneven[0] = 2;
  for (const double v : uneven) uneven_opposite.push_back(-v);
  EXPECT_EQ(solve(corners, opposite), 2);
  EXPECT_EQ(solve(uneven, uneven_opposite), 2);
}

TEST(KabschSolver, NoPoseIsTheIdentity) {
  const auto p = cloud(5);
  auto broken = p;
  broken[4] = std::nan("");
  for (const auto& r :
       {call("KabschSolver", {rows(p), rows(broken), Array::none()}),
        call("KabschSolver", {rows({}), rows({}), Array::none()}),
        call("KabschSolver", {rows(p), rows(p), Array::of<double>({5}, {0, 0, 0, 0, 0})}),
        call("KabschSolver", {rows(p), rows(p), Array::of<double>({5}, {1, INFINITY, 1, 1, 1})})}) {
    ASSERT_EQ(r.error, "");
    EXPECT_EQ(r.outputs[0].as<double>(), (std::vector<double>{1, 0, 0, 0, 1, 0, 0, 0, 1}));
    EXPECT_EQ(r.outputs[1].as<double>(), (std::vector<double>{0, 0, 0}));
    EXPECT_EQ(r.outputs[2].as<int32_t>(), std::vector<int32_t>{0});
  }
}

// Problems side by side get the bits that each gets alone, those with no pose or many of them included.
TEST(KabschSolver, ABatchGetsTheBitsOfItsProblems) {
  constexpr int64_t kProblems = 37, kPoints = 5;
  constexpr size_t kEach = 3 * kPoints;
  auto a = cloud(kProblems * kPoints), b = cloud(kProblems * kPoints, 2);
  std::vector<double> w(kProblems * kPoints, 0.5);
  for (size_t i = 0; i < kProblems; ++i) {
    double *pa = a.data() + kEach * i, *pb = b.data() + kEach * i;
    if (i % 5 == 1) std::fill_n(pa, kEach, 0.25);
    if (i % 7 == 2) pb[4] = i % 2 == 0 ? std::nan("") : INFINITY;
    if (i % 11 == 3) w[kPoints * i] = -9;
    if (i % 4 == 3) std::fill_n(pb, kEach - 3, 1.0);  // on a line
    if (i % 13 == 4) std::transform(pa, pa + kEach, pb, [](double v) { return -1e-170 * v; });
  }
  const auto problems = [&](const std::vector<double>& p, int64_t first, int64_t count) {
    const auto from = p.begin() + static_cast<std::ptrdiff_t>(kEach) * first;
    return Array::of<double>({count, kPoints, 3}, {from, from + static_cast<std::ptrdiff_t>(kEach) * count});
  };
  const auto solve = [&](int64_t first, int64_t count) {
    const auto from = w.begin() + kPoints * first;
    return call("KabschSolver", {problems(a, first, count), problems(b, first, count),
                                 Array::of<double>({count, kPoints}, {from, from + kPoints * count})});
  };
  const auto all = solve(0, kProblems);
  ASSERT_EQ(all.error, "");
  std::vector<std::vector<char>> joined(3);
  for (int64_t i = 0; i < kProblems; ++i) {
    const auto one = solve(i, 1);
    ASSERT_EQ(one.error, "");
    for (size_t k = 0; k < 3; ++k) {
      joined[k].insert(joined[k].end(), one.outputs[k].data.begin(), one.outputs[k].data.end());
    }
  }
  for (size_t k = 0; k < 3; ++k) EXPECT_EQ(all.outputs[k].data, joined[k]) << "output " << k;
  const auto valid = all.outputs[2].as<int32_t>();
  for (const int32_t worth : {0, 1, 2}) EXPECT_GT(std::count(valid.begin(), valid.end(), worth), 2);
}

// A weight of 0 takes a point out of it; only ratios of weights matter.
TEST(KabschSolver, WeightsChoosePoints) {
  auto p = cloud(6), q = moved(p);
  q[0] += 5;
  const auto r = call("KabschSolver", {rows(p), rows(q), Array::of<double>({6}, {0, 3, 3, 3, 3, 3})});
  ASSERT_EQ(r.error, "");
  EXPECT_NEAR(r.outputs[0].as<double>()[3], 1, 1e-12);
  EXPECT_NEAR(r.outputs[1].as<double>()[2], 3, 1e-12);
}

// The gradient of one entry, against differences; every case's neighbours in memory stay as they were.
TEST(KabschSolver, GradientAgreesWithDifferences) {
  const auto p = cloud(7), q0 = cloud(7, 9);
  const auto entry = [&](std::vector<double> q) {
    return call("KabschSolver", {rows(p), rows(q), Array::none()}).outputs[0].as<double>()[1];
  };
  const Array grad_r = Array::of<double>({3, 3}, {0, 1, 0, 0, 0, 0, 0, 0, 0}),
              grad_t = Array::of<double>({3}, {0, 0, 0});
  const auto g = call("KabschSolverGrad", {grad_r, grad_t, rows(p), rows(q0), Array::none()});
  ASSERT_EQ(g.error, "");
  const auto grad_pred = g.outputs[1].as<double>();
  for (size_t i = 0; i < q0.size(); i += 5) {
    auto up = q0, down = q0;
    up[i] += 1e-6;
    down[i] -= 1e-6;
    EXPECT_NEAR(grad_pred[i], (entry(up) - entry(down)) / 2e-6, 1e-7);
  }
}

TEST(KabschSolver, ErrorsNameTheArgument) {
  const auto p = cloud(4);
  const std::string error = call("KabschSolver", {rows(p), rows(cloud(5)), Array::none()}).error;
  EXPECT_NE(error.find("'pred_kps'"), std::string::npos) << error;
}

}  // namespace
