#include "pvn3d_pose_solve/pvn3d_pose_solve.h"

#include "common/op_test.h"

namespace {

using pvn3d::test::Array;
using pvn3d::test::Attribute;
using pvn3d::test::call;

constexpr int64_t kPoints = 60, kKeypoints = 4, kObjects = 2;
const std::vector<float> kMeshKps = {0.1f, 0, 0, 0, 0.1f, 0, 0, 0, 0.1f, 0.1f, 0.1f, 0,
                                     0.2f, 0, 0, 0, 0.1f, 0, 0, 0, 0.1f, 0.1f, 0.2f, 0};

// Two objects, each only shifted, whose points all vote for the right keypoints; every third point is background.
struct Frame {
  std::vector<float> points, kp_of, ctr_of;
  std::vector<int32_t> labels;

  static float shift(int64_t object, int64_t axis) {
    return static_cast<float>(object) * 0.5f + static_cast<float>(axis) * 0.1f;
  }
  Frame() : kp_of(static_cast<size_t>(kKeypoints * kPoints * 3)) {
    const auto p = pvn3d::test::random(static_cast<size_t>(kPoints) * 3, 7);
    for (int64_t i = 0; i < kPoints; ++i) {
      labels.push_back(static_cast<int32_t>(i % 3));
      const int64_t object = std::max<int64_t>(i % 3 - 1, 0);
      for (int64_t axis = 0; axis < 3; ++axis) {
        const float at = shift(object, axis) + 0.1f * p[static_cast<size_t>(3 * i + axis)];
        points.push_back(at);
        ctr_of.push_back(at - shift(object, axis));
        for (int64_t k = 0; k < kKeypoints; ++k) {
          kp_of[static_cast<size_t>((k * kPoints + i) * 3 + axis)] =
              at - shift(object, axis) - kMeshKps[static_cast<size_t>((object * kKeypoints + k) * 3 + axis)];
        }
      }
    }
  }
  pvn3d::test::Result solve(const std::vector<Attribute>& attributes = {}, int threads = 1,
                            Array radii = Array::none()) const {
    return call(
        "PVN3DPoseSolve",
        {Array::of<float>({1, kPoints, 3}, points), Array::of<int32_t>({1, kPoints}, labels),
         Array::of<float>({1, kKeypoints, kPoints, 3}, kp_of), Array::of<float>({1, 1, kPoints, 3}, ctr_of),
         Array::of<float>({kObjects, kKeypoints, 3}, kMeshKps),
         Array::of<float>({kObjects, 3}, std::vector<float>(kObjects * 3)), std::move(radii)},
        attributes, threads);
  }
};

TEST(PVN3DPoseSolve, FindsObjectsThatWereShifted) {
  for (const int threads : {1, 2}) {
    const auto r = Frame().solve({}, threads);
    ASSERT_EQ(r.error, "");
    const auto rotation = r.outputs[0].as<float>(), translation = r.outputs[1].as<float>();
    EXPECT_EQ(r.outputs[2].as<int32_t>(), (std::vector<int32_t>{1, 1}));
    EXPECT_EQ(r.outputs[4].as<int32_t>(), (std::vector<int32_t>{kPoints / 3, kPoints / 3}));
    for (int64_t m = 0; m < kObjects; ++m) {
      pvn3d::test::expect_rotation(rotation.data() + 9 * m, 1e-5);
      for (int i = 0; i < 9; ++i) EXPECT_NEAR(rotation[static_cast<size_t>(9 * m + i)], i % 4 == 0, 1e-5);
      for (int i = 0; i < 3; ++i)
        EXPECT_NEAR(translation[static_cast<size_t>(3 * m + i)], Frame::shift(m, i), 1e-5);
    }
  }
}

TEST(PVN3DPoseSolve, WhatIsNotThereHasNoPose) {
  Frame frame;
  for (int32_t& label : frame.labels) label = label == 2 ? 99 : label;  // of no object: background
  for (const bool refine : {false, true}) {
    const auto r = frame.solve({}, 1, refine ? Array::of<float>({kObjects}, {0.1f, 0.1f}) : Array::none());
    ASSERT_EQ(r.error, "");
    EXPECT_EQ(r.outputs[2].as<int32_t>(), (std::vector<int32_t>{1, 0}));
    const auto rotation = r.outputs[0].as<float>();
    EXPECT_EQ(std::vector<float>(rotation.begin() + 9, rotation.end()),
              (std::vector<float>{1, 0, 0, 0, 1, 0, 0, 0, 1}));
    for (size_t i = 3; i < 6; ++i) EXPECT_EQ(r.outputs[1].as<float>()[i], 0);
    EXPECT_EQ(r.outputs[4].as<int32_t>()[1], 0);
  }
}

// A point of object 2 labelled 1 goes back to 2, since its centre vote lies there.
TEST(PVN3DPoseSolve, RefiningMovesPointsToTheirObject) {
  Frame frame;
  frame.labels[2] = 1;
  const auto plain = frame.solve(), refined = frame.solve({}, 1, Array::of<float>({kObjects}, {0.1f, 0.1f}));
  ASSERT_EQ(plain.error + refined.error, "");
  EXPECT_EQ(plain.outputs[4].as<int32_t>(), (std::vector<int32_t>{kPoints / 3, kPoints / 3 - 1}));
  EXPECT_EQ(refined.outputs[4].as<int32_t>(), (std::vector<int32_t>{kPoints / 3, kPoints / 3}));
}

// Nobody votes for keypoint 1: it is 0, and the others decide.
TEST(PVN3DPoseSolve, AKeypointWithoutVotesIsLeftOut) {
  Frame frame;
  for (int64_t i = 0; i < kPoints * 3; ++i) frame.kp_of[static_cast<size_t>(kPoints * 3 + i)] = std::nanf("");
  const auto r = frame.solve();
  ASSERT_EQ(r.error, "");
  EXPECT_EQ(r.outputs[2].as<int32_t>(), (std::vector<int32_t>{1, 1}));
  for (size_t i = 3; i < 6; ++i) EXPECT_EQ(r.outputs[3].as<float>()[i], 0);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(r.outputs[1].as<float>()[i], Frame::shift(0, static_cast<int64_t>(i)), 1e-5);
}

TEST(PVN3DPoseSolve, ErrorsNameTheArgument) {
  Frame frame;
  EXPECT_NE(frame.solve({{"offset_sign", 0}}).error.find("'offset_sign'"), std::string::npos);
  const std::string error = frame.solve({}, 1, Array::of<float>({1}, {0.1f})).error;
  EXPECT_NE(error.find("'radii'"), std::string::npos) << error;
}

}  // namespace
