// From frames to points to poses; PNG and PLY files. What needs NumPy or a picture is in test_cli_pose.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "opbridge/pose.h"
#include "runner/mesh.h"
#include "runner/proto.h"
#include "runner_test.h"

#if defined(__SANITIZE_ADDRESS__)
// ONNX Runtime keeps some things until the process ends.
extern "C" const char* __lsan_default_suppressions() { return "leak:libonnxruntime.so\n"; }
#endif

namespace opbridge {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

// A picture of 8 x 6 pixels whose red is 10 column + row, 1 m deep everywhere.
struct Scene {
  static constexpr int kWidth = 8, kHeight = 6;
  std::vector<uint8_t> color = std::vector<uint8_t>(kWidth * kHeight * 3);
  std::vector<uint16_t> depth = std::vector<uint16_t>(kWidth * kHeight, 1000);

  Scene() {
    for (int v = 0; v < kHeight; ++v) {
      for (int u = 0; u < kWidth; ++u) {
        uint8_t* p = color.data() + 3 * (v * kWidth + u);
        p[0] = static_cast<uint8_t>(10 * u + v), p[1] = 100, p[2] = 200;
      }
    }
  }
  uint16_t& at(int v, int u) { return depth[static_cast<size_t>(v) * kWidth + u]; }

  Frame frame() const {
    Frame f;
    f.color = {color.data(), kWidth, kHeight};
    f.depth = {depth.data(), kWidth, kHeight};
    f.camera = {10, 20, 4, 3};
    return f;
  }
  Points points(const Box& box = {}, PointOptions o = {48, kHeight, kWidth}) const {
    return make_points(frame(), box, o);
  }
};

std::vector<int64_t> chosen(const Points& p) {
  const int64_t* begin = p.choose.as<int64_t>();
  return {begin, begin + p.choose.count()};
}

std::vector<float> row(const Points& p, int64_t i) {
  const float* begin = p.pointcloud.as<float>() + 9 * i;
  return {begin, begin + 9};
}

TEST(MakePoints, BackProjectsEveryPixel) {
  const Scene scene;
  const Points p = scene.points();
  EXPECT_EQ(p.pointcloud.to_string(), "f32[48,9]");
  EXPECT_EQ(p.rgb.to_string(), "f32[3,6,8]");
  EXPECT_EQ(p.choose.to_string(), "i64[1,48]");
  EXPECT_EQ(p.measured, 48);
  EXPECT_EQ(p.median_depth, 1);
  // Row 2, column 6: (6 - 4) / 10, (2 - 3) / 20; the plane faces the camera.
  EXPECT_THAT(row(p, 2 * 8 + 6),
              ElementsAre(0.2f, -0.05f, 1, 62 / 255.f, 100 / 255.f, 200 / 255.f, 0, 0, -1));
  EXPECT_THAT(row(p, 0),
              ElementsAre(-0.4f, -0.15f, 1, 0, 100 / 255.f, 200 / 255.f, 0, 0, 0));  // the crop's edge
  EXPECT_EQ(p.rgb.as<float>()[2 * 8 + 6], 62 / 255.f);
  EXPECT_EQ(p.rgb.as<float>()[2 * 48], 200 / 255.f);
}

TEST(MakePoints, CropsToTheNearestPixels) {
  const Scene scene;
  const auto red = [&](const Box& box, int rows, int columns) {
    const Points p = scene.points(box, {1, rows, columns});
    std::vector<int> codes;
    for (int i = 0; i < rows * columns; ++i)
      codes.push_back(static_cast<int>(std::lround(p.rgb.as<float>()[i] * 255)));
    return codes;
  };
  EXPECT_THAT(red({2, 1, 2, 2}, 2, 2), ElementsAre(21, 31, 22, 32));
  EXPECT_THAT(red({2, 1, 4, 2}, 1, 2), ElementsAre(32, 52));     // every second: floor(2 + (c + 0.5) 2)
  EXPECT_THAT(red({2.75, 1, 1, 1}, 1, 2), ElementsAre(31, 31));  // floor(3.0), floor(3.5)
  EXPECT_THAT(red({-1, 1, 3, 1}, 1, 3), ElementsAre(1, 1, 11));  // clamped at the edge
  EXPECT_THAT(red({6, 5, 4, 2}, 2, 4), ElementsAre(65, 75, 75, 75, 65, 75, 75, 75));
}

TEST(MakePoints, TakesNOfVPoints) {
  Scene scene;
  EXPECT_THAT(chosen(scene.points({}, {5, 6, 8})), ElementsAre(0, 9, 19, 28, 38));  // floor(i 48 / 5)
  scene.depth.assign(48, 0);
  for (const int cell : {3, 17, 40}) scene.depth[static_cast<size_t>(cell)] = 900;
  const Points few = scene.points({}, {7, 6, 8});
  EXPECT_EQ(few.measured, 3);
  EXPECT_THAT(chosen(few), ElementsAre(3, 17, 40, 3, 17, 40, 3));
  EXPECT_EQ(row(few, 0), row(few, 6));
  scene.depth.assign(48, 0);
  const Points none = scene.points();
  EXPECT_EQ(none.measured, 0);
  EXPECT_EQ(none.median_depth, 0);
  EXPECT_EQ(none.pointcloud.to_string(), "f32[0,9]");
  EXPECT_EQ(none.choose.to_string(), "i64[1,0]");
  EXPECT_EQ(none.rgb.to_string(), "f32[3,6,8]");
}

TEST(MakePoints, FillsGapsForNormalsOnly) {
  Scene scene;
  scene.at(2, 3) = 0;
  const Points gap = scene.points();
  EXPECT_EQ(gap.measured, 47);
  EXPECT_THAT(chosen(gap), testing::Not(testing::Contains(2 * 8 + 3)));
  EXPECT_EQ(row(gap, 2 * 8 + 2)[8], -1);  // its right neighbour is filled
  // A gap of more than 4 cells to either side, in a crop whose column is missing, too.
  scene.depth.assign(48, 0);
  scene.at(2, 0) = scene.at(2, 1) = scene.at(2, 7) = scene.at(3, 1) = scene.at(1, 1) = 1000;
  const Points wide = scene.points({}, {5, 6, 8});
  EXPECT_EQ(wide.measured, 5);
  EXPECT_THAT(row(wide, 2), ElementsAre(-0.3f, -0.05f, 1, testing::_, testing::_, testing::_, 0, 0, -1));
}

TEST(MakePoints, NoNormalAtJumps) {
  Scene scene;
  for (int v = 0; v < 6; ++v) scene.at(v, 5) = 1050;  // exactly 5 cm: 1.05 - 1 in binary is a little more
  EXPECT_EQ(row(scene.points(), 2 * 8 + 4)[8], 0);
  for (int v = 0; v < 6; ++v) scene.at(v, 5) = 1049;
  const Points slope = scene.points();
  EXPECT_LT(row(slope, 2 * 8 + 4)[8], -0.5f);
  EXPECT_NEAR(std::hypot(row(slope, 20)[6], row(slope, 20)[7], row(slope, 20)[8]), 1, 1e-6);
}

TEST(MakePoints, RangeOfDepth) {
  Scene scene;
  scene.at(0, 0) = 199, scene.at(0, 1) = 200, scene.at(0, 2) = 1500, scene.at(0, 3) = 1501;
  const Points p = scene.points({}, {48, 6, 8, 0.2, 1.5});
  EXPECT_EQ(p.measured, 46);
  EXPECT_EQ(p.choose.as<int64_t>()[0], 1);
  EXPECT_EQ(p.choose.as<int64_t>()[2], 4);
}

TEST(MakePoints, FormatsAndStrides) {
  const Scene scene;
  const Points expected = scene.points();
  const auto same = [&](const Frame& frame) {
    const Points p = make_points(frame, {}, {48, 6, 8});
    return std::memcmp(p.pointcloud.data(), expected.pointcloud.data(), expected.pointcloud.bytes()) == 0 &&
           std::memcmp(p.rgb.data(), expected.rgb.data(), expected.rgb.bytes()) == 0;
  };
  const auto recolored = [&](size_t channels, std::vector<size_t> order, size_t stride) {
    std::vector<uint8_t> to(stride * 6, 77);
    for (size_t v = 0; v < 6; ++v) {
      for (size_t u = 0; u < 8; ++u) {
        for (size_t k = 0; k < order.size(); ++k)
          to[v * stride + u * channels + k] = scene.color[3 * (8 * v + u) + order[k]];
      }
    }
    return to;
  };
  Frame frame = scene.frame();
  const auto bgr = recolored(3, {2, 1, 0}, 31), rgba = recolored(4, {0, 1, 2}, 32),
             bgra = recolored(4, {2, 1, 0}, 40);
  frame.color = {bgr.data(), 8, 6, ColorFormat::kBgr, 31};
  EXPECT_TRUE(same(frame));
  frame.color = {rgba.data(), 8, 6, ColorFormat::kRgba};
  EXPECT_TRUE(same(frame));
  frame.color = {bgra.data(), 8, 6, ColorFormat::kBgra, 40};
  EXPECT_TRUE(same(frame));
  frame.color = {bgr.data(), 8, 6, ColorFormat::kRgb, 31};
  EXPECT_FALSE(same(frame));

  const auto grey = recolored(1, {0}, 8);
  frame.color = {grey.data(), 8, 6, ColorFormat::kGrey};
  EXPECT_THAT(row(make_points(frame, {}, {48, 6, 8}), 9),
              ElementsAre(testing::_, testing::_, testing::_, 11 / 255.f, 11 / 255.f, 11 / 255.f, 0, 0, -1));

  // Metres in f32, rows with an odd number of bytes between them; NaN and infinity are not measured.
  frame = scene.frame();
  std::vector<char> floats(35 * 6);
  for (size_t v = 0; v < 6; ++v) {
    for (size_t u = 0; u < 8; ++u) {
      const float one = 1;
      std::memcpy(floats.data() + 35 * v + 4 * u, &one, 4);
    }
  }
  frame.depth = {floats.data(), 8, 6, DType::f32, 1, 35};
  EXPECT_TRUE(same(frame));
  for (const float odd :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -1.f}) {
    std::memcpy(floats.data() + 35 + 4, &odd, 4);
    EXPECT_EQ(make_points(frame, {}, {48, 6, 8}).measured, 47);
  }
  frame.depth = {};
  EXPECT_EQ(make_points(frame, {}, {48, 6, 8}).measured, 0);
}

TEST(MakePoints, SaysWhatIsWrong) {
  const Scene scene;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto error = [&](const std::function<void(Frame&)>& change, const Box& box = {},
                         const PointOptions& o = {48, 6, 8}) {
    Frame frame = scene.frame();
    change(frame);
    return error_of([&] { make_points(frame, box, o); });
  };
  const auto nothing = [](Frame&) {};
  EXPECT_THAT(error([](Frame& f) { f.color.data = nullptr; }), HasSubstr("color.data is null"));
  EXPECT_THAT(error([](Frame& f) { f.color.width = 0; }), HasSubstr("0 x 6"));
  EXPECT_THAT(error([](Frame& f) { f.color.stride = 23; }), HasSubstr("take 24 bytes, but the stride is 23"));
  EXPECT_THAT(error([](Frame& f) { f.color.format = static_cast<ColorFormat>(9); }),
              HasSubstr("unknown format 9"));
  EXPECT_THAT(error([](Frame& f) { f.depth.data = nullptr; }),
              HasSubstr("depth: a picture of 8 x 6, but data is null"));
  EXPECT_THAT(error([](Frame& f) { f.depth.width = 4, f.depth.height = 3; }),
              HasSubstr("depth is 4 x 3, the colour 8 x 6: they must be registered"));
  EXPECT_THAT(error([](Frame& f) { f.depth.dtype = DType::u8; }),
              HasSubstr("depth is u8; it must be u16 or f32"));
  EXPECT_THAT(error([](Frame& f) { f.depth.stride = 15; }), HasSubstr("take 16 bytes, but the stride is 15"));
  EXPECT_THAT(error([](Frame& f) { f.depth.scale = 0; }), HasSubstr("the depth scale is 0; it is positive"));
  EXPECT_THAT(error([&](Frame& f) { f.depth.scale = nan; }), HasSubstr("the depth scale is nan"));
  EXPECT_THAT(
      error([](Frame& f) { f.depth.scale = 1; }),
      HasSubstr("its median is 1000 m with the scale 1. Depth / scale must be metres: 1000 for millimetres"));
  EXPECT_THAT(error([](Frame& f) { f.depth.scale = 1e6; }), HasSubstr("its median is 0.001 m"));

  EXPECT_THAT(error([](Frame& f) { f.camera.fx = 0; }),
              HasSubstr("fx = 0 and fy = 20; focal lengths are positive"));
  EXPECT_THAT(error([](Frame& f) { f.camera.fy = -20; }), HasSubstr("fy = -20"));
  EXPECT_THAT(error([&](Frame& f) { f.camera.fx = nan; }), HasSubstr("fx = nan"));
  EXPECT_THAT(error([](Frame& f) { f.camera.fx = 0.02; }), HasSubstr("a field of view of 179.43 degrees"));
  EXPECT_THAT(error([](Frame& f) { f.camera.fy = 601; }),
              HasSubstr("fx = 10 and fy = 601 for a picture of 8 x 6"));
  EXPECT_THAT(error([](Frame& f) { f.camera.cx = 17; }),
              HasSubstr("the principal point (17, 3) is far outside the picture of 8 x 6"));
  EXPECT_THAT(error([&](Frame& f) { f.camera.cy = nan; }), HasSubstr("the principal point (4, nan)"));
  EXPECT_THAT(error([](Frame& f) { f.camera.width = 16, f.camera.height = 12; }),
              HasSubstr("the intrinsics are of pictures of 16 x 12, the frame has 8 x 6"));

  EXPECT_THAT(error(nothing, {8, 0, 2, 2}),
              HasSubstr("the box (x 8, y 0, width 2, height 2) is outside the picture"));
  EXPECT_THAT(error(nothing, {0, -3, 2, 3}), HasSubstr("is outside the picture of 8 x 6"));
  EXPECT_THAT(error(nothing, {0, 0, 2, 0}), HasSubstr("has no area"));
  EXPECT_THAT(error(nothing, {0, nan, 2, 2}), HasSubstr("is not finite"));
  EXPECT_THAT(error(nothing, {}, {0, 6, 8}), HasSubstr("the number of points is 0"));
  EXPECT_THAT(error(nothing, {}, {1, 6, 0}), HasSubstr("a crop of 6 rows and 0 columns"));
  EXPECT_THAT(error(nothing, {}, {1, 6, 8, 2, 1}), HasSubstr("the range of depth is 2 to 1 m"));
}

TEST(MakeFrame, TakesPictures) {
  const Array rgb(DType::u8, {2, 3, 3}), depth(DType::u16, {2, 3, 1});
  const Frame frame = make_frame(rgb, depth, {10, 10, 1, 1}, 500);
  EXPECT_EQ(frame.color.width, 3);
  EXPECT_EQ(frame.depth.height, 2);
  EXPECT_EQ(frame.depth.scale, 500);
  EXPECT_EQ(make_frame(Array(DType::u8, {2, 3, 4}), depth, {}).color.format, ColorFormat::kRgba);
  EXPECT_EQ(make_frame(Array(DType::u8, {2, 3, 1}), depth, {}).color.format, ColorFormat::kGrey);
  EXPECT_THAT(error_of([&] { make_frame(Array(DType::u16, {2, 3, 3}), depth, {}); }),
              HasSubstr("the colour is u16[2,3,3]; it must be 8-bit"));
  EXPECT_THAT(error_of([&] { make_frame(Array(DType::u8, {2, 3, 2}), depth, {}); }), HasSubstr("u8[2,3,2]"));
  EXPECT_THAT(error_of([&] { make_frame(rgb, Array(DType::u16, {2, 3, 3}), {}); }),
              HasSubstr("the depth is u16[2,3,3]; it must be 16-bit grey"));
}

class PoseFiles : public FolderTest {
 protected:
};

// --- PNG

TEST_F(PoseFiles, PngThereAndBack) {
  const Array picture(DType::u8, {5, 7, 3});
  for (int64_t i = 0; i < picture.count(); ++i) picture.as<uint8_t>()[i] = static_cast<uint8_t>(37 * i);
  write_png(path("p.png"), picture);
  const Array back = read_png(path("p.png"));
  ASSERT_EQ(back.to_string(), "u8[5,7,3]");
  EXPECT_EQ(std::memcmp(back.data(), picture.data(), picture.bytes()), 0);

  // Cut off anywhere, and damaged anywhere: an error or a picture, never a crash.
  const std::string bytes = read_file(path("p.png"));
  for (size_t n = 0; n < bytes.size() - 12; ++n)
    EXPECT_THAT(error_of([&] { read_png(write("cut.png", bytes.substr(0, n))); }), HasSubstr("cut.png' is "));
  for (size_t n = 0; n < bytes.size(); ++n) {
    std::string damaged = bytes;
    damaged[n] = static_cast<char>(damaged[n] ^ 0x55);
    try {
      read_png(write("damaged.png", damaged));
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr("damaged.png' is "));
    }
  }
}

TEST_F(PoseFiles, PngErrors) {
  EXPECT_THAT(error_of([&] { read_png(path("no.png")); }), HasSubstr("No such file"));
  EXPECT_THAT(error_of([&] { read_png(write("jpeg.png", "\xff\xd8\xff and so on")); }),
              HasSubstr("is not a PNG file"));
  EXPECT_THAT(error_of([&] { write_png(path("x.png"), Array(DType::u8, {2, 2, 4})); }),
              HasSubstr("got u8[2,2,4]"));
  EXPECT_THAT(error_of([&] { write_png(path("no/x.png"), Array(DType::u8, {2, 2, 3})); }),
              HasSubstr("no/x.png' cannot be written"));
}

// --- meshes

TEST_F(PoseFiles, PlyCutOffAnywhere) {
  const std::string head =
      "ply\nformat binary_little_endian 1.0\nelement vertex 2\nproperty float x\n"
      "property float y\nproperty float z\nproperty list uchar int more\nend_header\n";
  std::string bytes = head;
  for (const float v : {1.f, 2.f, 3.f, 4.f, 5.f, 6.f}) {
    char raw[4];
    std::memcpy(raw, &v, 4);
    bytes.append(raw, 4);
    if (v == 3 || v == 6) bytes += std::string("\x01", 1) + "abcd";
  }
  EXPECT_THAT(read_ply(write("m.ply", bytes)), ElementsAre(Vertex{1, 2, 3}, Vertex{4, 5, 6}));
  for (size_t n = 0; n < bytes.size(); ++n) {
    const std::string message = error_of([&] { read_ply(write("cut.ply", bytes.substr(0, n))); });
    EXPECT_THAT(message, HasSubstr("cut.ply' is ")) << n;
    if (n >= head.size()) {
      EXPECT_THAT(message, HasSubstr("cut off at vertex " + std::to_string((n - head.size()) / 17)));
    }
  }
}

TEST(Mesh, DiameterIsExact) {
  std::mt19937 generator(5);
  std::normal_distribution<double> normal;
  const auto brute = [](const std::vector<Vertex>& v) {
    double best = 0;
    for (const Vertex& a : v) {
      for (const Vertex& b : v) best = std::max(best, std::hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]));
    }
    return best;
  };
  for (const int shape : {0, 1, 2, 3}) {
    for (const int count : {1, 2, 17, 1500}) {
      std::vector<Vertex> vertices;
      for (int i = 0; i < count; ++i) {
        Vertex v = {normal(generator), normal(generator), normal(generator)};
        const double length = std::hypot(v[0], v[1], v[2]);
        for (double& x : v) x = shape == 1 ? x / length : shape == 2 ? 1.5 : x;  // a sphere, one point
        if (shape == 3) v[0] *= 100;
        vertices.push_back(v);
      }
      EXPECT_NEAR(diameter_of(vertices), brute(vertices), 1e-12) << shape << " " << count;
    }
  }
}

TEST(Mesh, KeypointsAreFarApart) {
  std::vector<Vertex> grid;
  for (const double x : {0., 1., 2., 3.}) {
    for (const double y : {0., 1., 2.}) grid.push_back({x, y, 0});
  }
  // All four corners are as far from the centre: the lowest index is the first. Then the opposite one.
  const std::vector<Vertex> k = farthest_keypoints(grid, 4);
  EXPECT_THAT(k, ElementsAre(Vertex{0, 0, 0}, Vertex{0, 2, 0}, Vertex{3, 0, 0}, Vertex{3, 2, 0}));
  EXPECT_THAT(error_of([] { farthest_keypoints({{0, 0, 0}, {1, 0, 0}, {1, 0, 0}}, 3); }),
              HasSubstr("has 2 different vertices away from its centre; 3 keypoints were asked for"));
  const Bounds bounds = bounds_of(grid);
  EXPECT_THAT(axis_keypoints(bounds, 0, 4),
              ElementsAre(Vertex{0, 1, 0}, Vertex{1, 1, 0}, Vertex{2, 1, 0}, Vertex{3, 1, 0}));
  EXPECT_THAT(axis_keypoints(bounds, 1, 1), ElementsAre(Vertex{1.5, 1, 0}));
  EXPECT_NEAR(bounds.radius(), std::sqrt(13) / 2, 1e-15);
  EXPECT_THAT(bounds.corners()[1], ElementsAre(0, 0, 0));
  EXPECT_THAT(bounds.corners()[4], ElementsAre(3, 0, 0));
}

// --- PoseEstimator

// An end-to-end model of one object, "thing": reddish points belong to it, and their votes are the keypoints
// in a known pose. Nothing but the solver is left to go wrong.
class Estimator : public PoseFiles {
 protected:
  static constexpr double kAngle = 0.5;
  const std::vector<Vertex> keypoints_ = {{0.1, 0, 0}, {0, 0.1, 0}, {0, 0, 0.1}};
  const Vertex translation_ = {0.01, -0.02, 1};

  Vertex posed(const Vertex& p) const {  // about z
    const double c = std::cos(kAngle), s = std::sin(kAngle);
    return {c * p[0] - s * p[1] + translation_[0], s * p[0] + c * p[1] + translation_[1],
            p[2] + translation_[2]};
  }

  nlohmann::json metadata() const {
    const Bounds bounds = {{0, 0, 0}, {0.1, 0.1, 0.1}};
    return {{"version", 1},
            {"objects",
             {{{"name", "thing"},
               {"keypoints", keypoints_},
               {"center", Vertex{0, 0, 0}},
               {"radius", bounds.radius()},
               {"diameter", 0.15},
               {"corners", bounds.corners()},
               {"symmetric", false}}}},
            {"crop", {6, 8}},
            {"points", 48},
            {"min_depth", 0.2},
            {"max_depth", 2.0}};
  }

  static void floats(pb::GraphProto* g, const char* name, const std::vector<int64_t>& shape,
                     const std::vector<Vertex>& values) {
    auto* t = g->add_initializer();
    t->set_name(name);
    t->set_data_type(pb::TensorProto::FLOAT);
    for (const int64_t d : shape) t->add_dims(d);
    for (const Vertex& v : values) {
      for (const double x : v) t->add_float_data(static_cast<float>(x));
    }
  }
  static void ints(pb::GraphProto* g, const char* name, const std::vector<int64_t>& values) {
    auto* t = g->add_initializer();
    t->set_name(name);
    t->set_data_type(pb::TensorProto::INT64);
    t->add_dims(static_cast<int64_t>(values.size()));
    for (const int64_t v : values) t->add_int64_data(v);
  }
  static void node(pb::GraphProto* g, const char* op, const std::vector<const char*>& in,
                   const std::vector<const char*>& out, const char* domain = "") {
    auto* n = g->add_node();
    n->set_op_type(op);
    n->set_domain(domain);
    for (const char* name : in) n->add_input(name);
    for (const char* name : out) n->add_output(name);
  }
  static void value(pb::ValueInfoProto* v, const char* name, int type, const std::vector<int64_t>& shape) {
    v->set_name(name);
    auto* tensor = v->mutable_type()->mutable_tensor_type();
    tensor->set_elem_type(type);
    for (const int64_t d : shape) {
      auto* dim = tensor->mutable_shape()->add_dim();
      if (d >= 0) dim->set_dim_value(d);
    }
  }

  // `change` may break the model before it is written.
  std::string model(const nlohmann::json& metadata, const std::function<void(pb::ModelProto&)>& change = {},
                    int64_t batch = -1, int64_t points = -1) const {
    constexpr int kFloat = pb::TensorProto::FLOAT, kInt32 = pb::TensorProto::INT32,
                  kInt64 = pb::TensorProto::INT64;
    const char* domain = "pvn3d.custom_ops";
    pb::ModelProto m;
    m.set_ir_version(8);
    m.add_opset_import()->set_version(17);
    auto* opset = m.add_opset_import();
    opset->set_domain(domain);
    opset->set_version(1);
    auto* meta = m.add_metadata_props();
    meta->set_key("opbridge.pvn3d");
    meta->set_value(metadata.dump());
    pb::GraphProto* g = m.mutable_graph();
    g->set_name("g");
    value(g->add_input(), "pointcloud", kFloat, {batch, points, 9});
    value(g->add_input(), "rgb", kFloat, {batch, 3, -1, -1});
    value(g->add_input(), "choose", kInt64, {batch, 1, points});
    value(g->add_output(), "rotation", kFloat, {batch, 1, 3, 3});
    value(g->add_output(), "translation", kFloat, {batch, 1, 3});
    value(g->add_output(), "valid", kInt32, {batch, 1});
    value(g->add_output(), "kps", kFloat, {batch, 1, 4, 3});
    value(g->add_output(), "count", kInt32, {batch, 1});
    std::vector<Vertex> camera;
    for (const Vertex& k : keypoints_) camera.push_back(posed(k));
    floats(g, "kps_camera", {1, 3, 1, 3}, camera);
    floats(g, "ctr_camera", {1, 1, 1, 3}, {posed({0, 0, 0})});
    floats(g, "mesh_kps", {1, 3, 3}, keypoints_);
    floats(g, "mesh_ctr", {1, 3}, {{0, 0, 0}});
    ints(g, "i0", {0}), ints(g, "i1", {1}), ints(g, "i3", {3}), ints(g, "i2", {2}), ints(g, "i4", {4});
    auto* half = g->add_initializer();
    half->set_name("half");
    half->set_data_type(kFloat);
    half->add_float_data(0.5f);
    node(g, "Slice", {"pointcloud", "i0", "i3", "i2"}, {"xyz"});
    node(g, "Slice", {"pointcloud", "i3", "i4", "i2"}, {"red3"});
    node(g, "Squeeze", {"red3", "i2"}, {"red"});
    node(g, "Greater", {"red", "half"}, {"is_thing"});
    node(g, "Cast", {"is_thing"}, {"labels"});
    auto* to = g->mutable_node(g->node_size() - 1)->add_attribute();
    to->set_name("to");
    to->set_type(pb::AttributeProto::INT);
    to->set_i(kInt64);
    node(g, "Unsqueeze", {"xyz", "i1"}, {"xyz1"});
    node(g, "Sub", {"xyz1", "kps_camera"}, {"kp_of"});
    node(g, "Sub", {"xyz1", "ctr_camera"}, {"ctr_of"});
    node(g, "PVN3DPoseSolve", {"xyz", "labels", "kp_of", "ctr_of", "mesh_kps", "mesh_ctr"},
         {"rotation", "translation", "valid", "kps", "count"}, domain);
    if (change) change(m);
    std::ofstream(path("m.onnx"), std::ios::binary) << m.SerializeAsString();
    return path("m.onnx");
  }

  static PoseOptions options() {
    PoseOptions o;
    o.session.libraries = {TEST_PVN3D_LIBRARY};
    return o;
  }

  void expect_the_pose(const Pose& pose) const {
    EXPECT_EQ(pose.object, "thing");
    EXPECT_EQ(pose.valid, 1);
    const double c = std::cos(kAngle), s = std::sin(kAngle);
    const double expected[9] = {c, -s, 0, s, c, 0, 0, 0, 1};
    for (size_t i = 0; i < 9; ++i) EXPECT_NEAR(pose.rotation[i], expected[i], 1e-5);
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(pose.translation[i], translation_[i], 1e-6);
    ASSERT_EQ(pose.keypoints.size(), 4u);
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(pose.keypoints[1][i], posed(keypoints_[1])[i], 1e-6);
    EXPECT_LT(pose.residual, 1e-6);
  }

  // Red in columns 4 to 7.
  static Scene scene() {
    Scene s;
    for (int i = 0; i < Scene::kWidth * Scene::kHeight; ++i)
      s.color[3 * i] = i % Scene::kWidth >= 4 ? 200 : 10;
    return s;
  }
};

TEST_F(Estimator, FindsThePose) {
  const PoseEstimator estimator(Runtime::find(), model(metadata()), options());
  ASSERT_EQ(estimator.objects().size(), 1u);
  EXPECT_EQ(estimator.objects()[0].name, "thing");
  EXPECT_EQ(estimator.point_options().points, 48);
  EXPECT_EQ(estimator.point_options().max_depth, 2);
  const Scene s = scene();
  // Left: nothing of it. Whole picture: 24 of 48. Right: all. The same box again.
  const Estimate e = estimator.estimate(
      s.frame(), {{"thing", {0, 0, 4, 6}}, {"thing", {}}, {"thing", {4, 0, 4, 6}}, {"thing", {0, 0, 8, 6}}});
  ASSERT_EQ(e.poses.size(), 4u);
  EXPECT_TRUE(e.warnings.empty());
  EXPECT_EQ(e.poses[0].valid, 0);
  EXPECT_EQ(e.poses[0].inliers, 0);
  EXPECT_EQ(e.poses[0].points, 48);
  EXPECT_TRUE(std::isnan(e.poses[0].residual));
  EXPECT_THAT(e.poses[0].rotation, ElementsAre(1, 0, 0, 0, 1, 0, 0, 0, 1));
  for (const size_t i : {1, 2, 3}) expect_the_pose(e.poses[i]);
  EXPECT_EQ(e.poses[1].inliers, 24);
  EXPECT_EQ(e.poses[2].inliers, 48);
  EXPECT_EQ(e.poses[3].inliers, 24);
  EXPECT_GT(e.model_ms, 0);
  EXPECT_GE(e.total_ms, e.model_ms + e.points_ms);
  EXPECT_TRUE(estimator.estimate(s.frame(), {}).poses.empty());
}

TEST_F(Estimator, FramesWithoutDepthAreNoErrors) {
  const PoseEstimator estimator(Runtime::find(), model(metadata()), options());
  Scene s = scene();
  Frame none = s.frame();
  none.depth = {};
  for (int v = 0; v < 6; ++v) {
    for (int u = 4; u < 8; ++u) s.at(v, u) = 0;
  }
  const Frame left = s.frame();
  EXPECT_EQ(estimator.estimate(none, {{"thing", {}}}).poses[0].valid, 0);
  const Estimate e = estimator.estimate(left, {{"thing", {4, 0, 4, 6}}, {"thing", {0, 0, 4, 6}}});
  EXPECT_EQ(e.poses[0].valid, 0);
  EXPECT_EQ(e.poses[0].points, 0);
  EXPECT_EQ(e.poses[1].points, 48);
  EXPECT_TRUE(e.warnings.empty());

  s.depth.assign(48, 3000);
  const Estimate far = estimator.estimate(s.frame(), {{"thing", {}}});
  EXPECT_EQ(far.poses[0].valid, 0);
  EXPECT_THAT(far.warnings,
              ElementsAre(HasSubstr("the box of 'thing' has depth, but none from 0.2 to 2 m, the "
                                    "model's range; the median is 3 m")));
  const Scene whole = scene();
  Frame frame = whole.frame();
  frame.camera.cx = 9;
  EXPECT_THAT(estimator.estimate(frame, {}).warnings,
              ElementsAre(HasSubstr("(9, 3) is outside the picture")));
}

TEST_F(Estimator, OtherNumbersOfPoints) {
  const Scene s = scene();
  for (const int n : {1, 7, 48, 1000}) {
    PoseOptions o = options();
    o.points = n;
    o.crop_height = 12;
    o.crop_width = 8;
    const PoseEstimator estimator(Runtime::find(), model(metadata()), o);
    const Pose pose = estimator.estimate(s.frame(), {{"thing", {4, 0, 4, 6}}}).poses[0];
    expect_the_pose(pose);
    EXPECT_EQ(pose.inliers, n);
    EXPECT_EQ(pose.points, std::min(n, 96));
  }
}

TEST_F(Estimator, ModelsOfOneAtATime) {
  const PoseEstimator estimator(Runtime::find(), model(metadata(), {}, 1), options());
  const Scene s = scene();
  const Estimate e =
      estimator.estimate(s.frame(), {{"thing", {0, 0, 4, 6}}, {"thing", {}}, {"thing", {4, 0, 4, 6}}});
  EXPECT_EQ(e.poses[0].valid, 0);
  expect_the_pose(e.poses[1]);
  expect_the_pose(e.poses[2]);
  EXPECT_EQ(e.poses[2].inliers, 48);
  EXPECT_THAT(error_of([&] { PoseEstimator(Runtime::find(), model(metadata(), {}, 2), options()); }),
              HasSubstr("the batch of input 'pointcloud' is fixed to 2; export it dynamic, or as 1"));
}

TEST_F(Estimator, FromManyThreads) {
  const PoseEstimator estimator(Runtime::find(), model(metadata()), options());
  const Scene s = scene();
  const Pose expected = estimator.estimate(s.frame(), {{"thing", {}}}).poses[0];
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        const Pose pose = estimator.estimate(s.frame(), {{"thing", {}}}).poses[0];
        wrong[t] += pose.rotation != expected.rotation || pose.translation != expected.translation ||
                    pose.inliers != expected.inliers;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST_F(Estimator, UnknownObject) {
  nlohmann::json meta = metadata();
  const PoseEstimator estimator(Runtime::find(), model(meta), options());
  const Scene s = scene();
  EXPECT_THAT(error_of([&] { estimator.estimate(s.frame(), {{"things", {}}}); }),
              HasSubstr("the model knows no object 'things'; did you mean 'thing'?; it knows thing"));
  EXPECT_THAT(error_of([&] { estimator.estimate(s.frame(), {{"thing", {9, 9, 1, 1}}}); }),
              HasSubstr("the box of 'thing' (x 9, y 9, width 1, height 1) is outside the picture of 8 x 6"));
}

TEST_F(Estimator, ModelsThatDoNotFit) {
  const Runtime runtime = Runtime::find();
  const auto error = [&](const std::function<void(nlohmann::json&)>& change_metadata,
                         const std::function<void(pb::ModelProto&)>& change = {},
                         const PoseOptions& o = options()) {
    nlohmann::json meta = metadata();
    if (change_metadata) change_metadata(meta);
    const std::string file = model(meta, change);
    return error_of([&] { PoseEstimator(runtime, file, o); });
  };
  using J = nlohmann::json;
  using M = pb::ModelProto;
  EXPECT_THAT(error({}, [](M& m) { m.clear_metadata_props(); }),
              HasSubstr("has no metadata 'opbridge.pvn3d', which names the objects"));
  EXPECT_THAT(error({}, [](M& m) { m.mutable_metadata_props(0)->set_value("{"); }),
              HasSubstr("the metadata 'opbridge.pvn3d' cannot be used: "));
  EXPECT_THAT(error([](J& j) { j["version"] = 2; }), HasSubstr("version 2; this opbridge knows version 1"));
  EXPECT_THAT(error([](J& j) { j.erase("crop"); }), HasSubstr("key 'crop' not found"));
  EXPECT_THAT(error([](J& j) { j["objects"] = J::array(); }), HasSubstr("it has no objects"));
  EXPECT_THAT(error([](J& j) { j["objects"].push_back(j["objects"][0]); }),
              HasSubstr("two objects are called 'thing'"));
  EXPECT_THAT(error([](J& j) { j["points"] = 0; }), HasSubstr("the number of points is 0"));
  EXPECT_THAT(error([](J& j) { j["objects"][0]["corners"].erase(0); }), HasSubstr("7 corners; a box has 8"));
  EXPECT_THAT(error([](J& j) { j["objects"][0]["keypoints"].erase(0); }),
              HasSubstr("output 'kps' must be f32[B,M,K+1,3], K the keypoints, it is f32[?,1,4,3]"));
  EXPECT_THAT(error({}, [](M& m) { m.mutable_graph()->mutable_input(1)->set_name("image"); }),
              HasSubstr("image"));
  EXPECT_THAT(error({}, [](M& m) { m.mutable_graph()->mutable_output()->RemoveLast(); }),
              HasSubstr("it has no output 'count'"));
  EXPECT_THAT(error({},
                    [](M& m) {
                      auto* g = m.mutable_graph();
                      g->clear_output();
                      value(g->add_output(), "kp_of", pb::TensorProto::FLOAT, {-1, 3, -1, 3});
                    }),
              HasSubstr("is the network alone (outputs kp_of); the estimator needs"));
  EXPECT_THAT(
      error({},
            [](M& m) {
              auto* p = m.add_metadata_props();
              p->set_key("opbridge.fingerprint.pvn3d.custom_ops::PVN3DPoseSolve");
              p->set_value("0123456789abcdef");
            }),
      HasSubstr("its declaration has changed since the model was exported (fingerprint 0123456789abcdef"));
  PoseOptions without = options();
  without.session.libraries.clear();
  EXPECT_THAT(error({}, {}, without), HasSubstr("a custom operator, and no library was given"));
  PoseOptions few = options();
  few.points = 7;
  EXPECT_THAT(error_of([&] { PoseEstimator(runtime, model(metadata(), {}, -1, 48), few); }),
              HasSubstr("input 'pointcloud' must be f32[B,7,9], it is f32[?,48,9]"));
  few.points = -1;
  EXPECT_THAT(error({}, {}, few), HasSubstr("the number of points is -1"));
}

}  // namespace
}  // namespace opbridge
