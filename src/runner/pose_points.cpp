#include "pose_points.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/text.h"

namespace opbridge {

namespace {

constexpr int kFillReach = 4;                                   // cells
constexpr double kJump = 0.05;                                  // [m]
constexpr double kNearestMedian = 5e-3, kFarthestMedian = 200;  // [m], of a depth picture with a right scale

std::string size_text(int width, int height) {
  return std::to_string(width) + " x " + std::to_string(height);
}

size_t channels(ColorFormat format) {
  switch (format) {
    case ColorFormat::kGrey:
      return 1;
    case ColorFormat::kRgb:
    case ColorFormat::kBgr:
      return 3;
    case ColorFormat::kRgba:
    case ColorFormat::kBgra:
      return 4;
  }
  throw InvalidArgument("color: unknown format " + std::to_string(static_cast<int>(format)));
}

// The stride in bytes, checked against what a row takes.
size_t stride_of(const char* what, size_t stride, int width, size_t pixel) {
  const size_t row = static_cast<size_t>(width) * pixel;
  if (stride == 0) return row;
  if (stride < row) {
    throw InvalidArgument(std::string(what) + ": rows of " + std::to_string(width) + " pixels take " +
                          std::to_string(row) + " bytes, but the stride is " + std::to_string(stride));
  }
  return stride;
}

void check_camera(const Camera& c, int width, int height) {
  const auto fail = [](const std::string& why) { return InvalidArgument("camera: " + why); };
  const std::string focal = "fx = " + to_text(c.fx) + " and fy = " + to_text(c.fy);
  if (!std::isfinite(c.fx) || !std::isfinite(c.fy) || c.fx <= 0 || c.fy <= 0)
    throw fail(focal + "; focal lengths are positive numbers of pixels");
  if (c.fx < 0.05 * width || c.fy < 0.05 * height || c.fx > 100.0 * width || c.fy > 100.0 * height) {
    const double view = 2 * std::atan(0.5 * width / c.fx) * 180 / 3.14159265358979323846;
    char degrees[32];
    std::snprintf(degrees, sizeof(degrees), "%.2f", view);
    throw fail(focal + " for a picture of " + size_text(width, height) + " are a field of view of " +
               degrees +
               " degrees; focal lengths are in pixels of this picture, not in metres or picture widths");
  }
  const std::string point = "the principal point (" + to_text(c.cx) + ", " + to_text(c.cy) + ")";
  const bool near = c.cx >= -width && c.cx <= 2.0 * width && c.cy >= -height && c.cy <= 2.0 * height;
  if (!near) throw fail(point + " is far outside the picture of " + size_text(width, height));
  if ((c.width != 0 && c.width != width) || (c.height != 0 && c.height != height)) {
    throw fail("the intrinsics are of pictures of " + size_text(c.width, c.height) + ", the frame has " +
               size_text(width, height) + "; pass those of this size");
  }
}

// The crop's cells and the pixels they show.
class Crop {
 public:
  Crop(const Frame& frame, const Box& box, const PointOptions& o)
      : frame_(frame), rows_(o.crop_height), cols_(o.crop_width) {
    v_ = pixels(box.y, box.height, rows_, frame.color.height);
    u_ = pixels(box.x, box.width, cols_, frame.color.width);
    color_stride_ = stride_of("color", frame.color.stride, frame.color.width, channels(frame.color.format));
    const size_t size = dtype_size(frame.depth.dtype);
    depth_stride_ = stride_of("depth", frame.depth.stride, frame.depth.width, size);
  }

  int rows() const { return rows_; }
  int cols() const { return cols_; }

  // Metres; not positive or not finite where nothing was measured.
  double depth(int r, int c) const {
    const char* row =
        static_cast<const char*>(frame_.depth.data) + static_cast<size_t>(v_[r]) * depth_stride_;
    if (frame_.depth.dtype == DType::f32) return load<float>(row, u_[c]) / frame_.depth.scale;
    return load<uint16_t>(row, u_[c]) / frame_.depth.scale;
  }

  std::array<float, 3> rgb(int r, int c) const {
    const ColorFormat format = frame_.color.format;
    const uint8_t* p = frame_.color.data + static_cast<size_t>(v_[r]) * color_stride_ +
                       static_cast<size_t>(u_[c]) * channels(format);
    const auto shade = [](uint8_t byte) { return static_cast<float>(byte / 255.0); };
    if (format == ColorFormat::kGrey) return {shade(p[0]), shade(p[0]), shade(p[0])};
    if (format == ColorFormat::kBgr || format == ColorFormat::kBgra)
      return {shade(p[2]), shade(p[1]), shade(p[0])};
    return {shade(p[0]), shade(p[1]), shade(p[2])};
  }

  std::array<double, 3> back_project(int r, int c, double z) const {
    const Camera& k = frame_.camera;
    return {(u_[c] - k.cx) * z / k.fx, (v_[r] - k.cy) * z / k.fy, z};
  }

 private:
  static std::vector<int> pixels(double begin, double extent, int cells, int size) {
    std::vector<int> at(static_cast<size_t>(cells));
    for (int i = 0; i < cells; ++i) {
      const double pixel = std::floor(begin + (i + 0.5) * extent / cells);
      at[static_cast<size_t>(i)] = static_cast<int>(std::clamp(pixel, 0.0, size - 1.0));
    }
    return at;
  }

  template <class T>
  static double load(const char* row, int column) {
    T value;  // a stride may leave values unaligned
    std::memcpy(&value, row + static_cast<size_t>(column) * sizeof(T), sizeof(T));
    return static_cast<double>(value);
  }

  const Frame& frame_;
  int rows_, cols_;
  std::vector<int> u_, v_;
  size_t color_stride_ = 0, depth_stride_ = 0;
};

// The crop's depth with small gaps filled, as normals need it: each missing cell takes the nearest measured
// one of its row, else of its column; the left and the upper one on ties.
std::vector<double> filled(const std::vector<double>& z, int rows, int cols) {
  std::vector<double> out = z;
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) {
      double& cell = out[static_cast<size_t>(r) * cols + c];
      if (cell != 0) continue;
      for (const bool in_row : {true, false}) {
        for (int d = 1; d <= kFillReach && cell == 0; ++d) {
          for (const int step : {-d, d}) {
            const int rr = in_row ? r : r + step, cc = in_row ? c + step : c;
            if (cell == 0 && rr >= 0 && rr < rows && cc >= 0 && cc < cols)
              cell = z[static_cast<size_t>(rr) * cols + cc];
          }
        }
      }
    }
  }
  return out;
}

std::array<float, 3> normal(const Crop& crop, const std::vector<double>& z, int r, int c) {
  if (r == 0 || c == 0 || r == crop.rows() - 1 || c == crop.cols() - 1) return {};
  const auto depth = [&](int rr, int cc) { return z[static_cast<size_t>(rr) * crop.cols() + cc]; };
  const double here = depth(r, c);
  const int neighbours[4][2] = {{r, c + 1}, {r, c - 1}, {r + 1, c}, {r - 1, c}};
  std::array<double, 3> p[4];
  for (int i = 0; i < 4; ++i) {
    const double there = depth(neighbours[i][0], neighbours[i][1]);
    if (there == 0 || std::abs(there - here) > kJump) return {};
    p[i] = crop.back_project(neighbours[i][0], neighbours[i][1], there);
  }
  double a[3], b[3];
  for (int k = 0; k < 3; ++k) a[k] = p[0][k] - p[1][k], b[k] = p[2][k] - p[3][k];
  double n[3] = {a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]};
  double length = std::sqrt(n[0] * n[0] + n[1] * n[1] + n[2] * n[2]);
  if (length == 0) return {};  // a crop finer than the picture: neighbours show one pixel
  const auto point = crop.back_project(r, c, here);
  if (n[0] * point[0] + n[1] * point[1] + n[2] * point[2] > 0) length = -length;
  return {static_cast<float>(n[0] / length), static_cast<float>(n[1] / length),
          static_cast<float>(n[2] / length)};
}

double median(std::vector<double>& values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

void check_frame(const Frame& frame) {
  const ColorView& color = frame.color;
  if (color.data == nullptr) throw InvalidArgument("the frame has no colour: color.data is null");
  if (color.width <= 0 || color.height <= 0)
    throw InvalidArgument("color: a picture of " + size_text(color.width, color.height) + " pixels");
  stride_of("color", color.stride, color.width, channels(color.format));
  check_camera(frame.camera, color.width, color.height);

  const DepthView& depth = frame.depth;
  if (depth.data == nullptr && depth.width == 0 && depth.height == 0) return;
  if (depth.data == nullptr)
    throw InvalidArgument("depth: a picture of " + size_text(depth.width, depth.height) +
                          ", but data is null");
  if (depth.width != color.width || depth.height != color.height) {
    throw InvalidArgument("depth is " + size_text(depth.width, depth.height) + ", the colour " +
                          size_text(color.width, color.height) +
                          ": they must be registered, pixel by pixel of one camera");
  }
  if (depth.dtype != DType::u16 && depth.dtype != DType::f32) {
    throw InvalidArgument(std::string("depth is ") + dtype_name(depth.dtype) +
                          "; it must be u16 or f32 (8 bits are too few: a picture to look at?)");
  }
  stride_of("depth", depth.stride, depth.width, dtype_size(depth.dtype));
  if (!std::isfinite(depth.scale) || depth.scale <= 0) {
    throw InvalidArgument("the depth scale is " + to_text(depth.scale) +
                          "; it is positive, and depth / scale is metres (1000 for millimetres)");
  }
}

Box check_box(const Box& box, const Frame& frame, const std::string& what) {
  const double width = frame.color.width, height = frame.color.height;
  if (box.x == 0 && box.y == 0 && box.width == 0 && box.height == 0) return {0, 0, width, height};
  const std::string text = what + " (x " + to_text(box.x) + ", y " + to_text(box.y) + ", width " +
                           to_text(box.width) + ", height " + to_text(box.height) + ")";
  for (const double v : {box.x, box.y, box.width, box.height}) {
    if (!std::isfinite(v)) throw InvalidArgument(text + " is not finite");
  }
  if (box.width <= 0 || box.height <= 0) throw InvalidArgument(text + " has no area");
  if (box.x >= width || box.y >= height || box.x + box.width <= 0 || box.y + box.height <= 0) {
    throw InvalidArgument(text + " is outside the picture of " +
                          size_text(frame.color.width, frame.color.height));
  }
  return box;
}

void check_options(const PointOptions& o) {
  constexpr int kMostPoints = 1 << 24, kLargestCrop = 1 << 14;
  if (o.points < 1 || o.points > kMostPoints)
    throw InvalidArgument("the number of points is " + std::to_string(o.points) + "; it is 1 to 2^24");
  if (o.crop_height < 1 || o.crop_width < 1 || o.crop_height > kLargestCrop || o.crop_width > kLargestCrop) {
    throw InvalidArgument("a crop of " + std::to_string(o.crop_height) + " rows and " +
                          std::to_string(o.crop_width) + " columns; both are 1 to 16384");
  }
  if (!(o.min_depth >= 0) || !(o.max_depth > o.min_depth)) {
    throw InvalidArgument("the range of depth is " + to_text(o.min_depth) + " to " + to_text(o.max_depth) +
                          " m; it starts at 0 or more and is not empty");
  }
}

PointCount fill_points(const Frame& frame, const Box& box, const PointOptions& o, float* pointcloud,
                       float* rgb, int64_t* choose) {
  const Crop crop(frame, box, o);
  const int rows = o.crop_height, cols = o.crop_width;
  const size_t cells = static_cast<size_t>(rows) * static_cast<size_t>(cols);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) {
      const auto color = crop.rgb(r, c);
      for (size_t k = 0; k < 3; ++k) rgb[k * cells + static_cast<size_t>(r) * cols + c] = color[k];
    }
  }
  PointCount count;
  if (frame.depth.data == nullptr) return count;

  std::vector<double> z(cells, 0), any;  // 0: not measured
  std::vector<int64_t> measured;
  for (size_t i = 0; i < cells; ++i) {
    const double depth = crop.depth(static_cast<int>(i) / cols, static_cast<int>(i) % cols);
    if (!std::isfinite(depth) || depth <= 0) continue;
    any.push_back(depth);
    if (depth < o.min_depth || depth > o.max_depth) continue;
    z[i] = depth;
    measured.push_back(static_cast<int64_t>(i));
  }
  count.measured = static_cast<int64_t>(measured.size());
  count.median_depth = median(any);
  // A few stray values are no evidence.
  if (any.size() * 10 >= cells &&
      (count.median_depth < kNearestMedian || count.median_depth > kFarthestMedian)) {
    throw InvalidArgument("depth: its median is " + to_text(static_cast<float>(count.median_depth)) +
                          " m with the scale " + to_text(frame.depth.scale) +
                          ". Depth / scale must be metres: 1000 for millimetres, 1 for metres");
  }
  if (measured.empty()) return count;

  const std::vector<double> smooth = filled(z, rows, cols);
  for (int64_t i = 0; i < o.points; ++i) {
    const int64_t pick = count.measured >= o.points ? i * count.measured / o.points : i % count.measured;
    const int64_t cell = measured[static_cast<size_t>(pick)];
    choose[i] = cell;
    float* p = pointcloud + 9 * i;
    if (i >= count.measured) {  // a repetition
      std::copy_n(pointcloud + 9 * pick, 9, p);
      continue;
    }
    const int r = static_cast<int>(cell / cols), c = static_cast<int>(cell % cols);
    const auto xyz = crop.back_project(r, c, z[static_cast<size_t>(cell)]);
    const auto color = crop.rgb(r, c), n = normal(crop, smooth, r, c);
    for (size_t k = 0; k < 3; ++k) {
      p[k] = static_cast<float>(xyz[k]);
      p[3 + k] = color[k];
      p[6 + k] = n[k];
    }
  }
  return count;
}

Points make_points(const Frame& frame, const Box& given, const PointOptions& options) {
  check_frame(frame);
  check_options(options);
  const Box box = check_box(given, frame, "the box");
  Points points{Array(DType::f32, {options.points, 9}),
                Array(DType::f32, {3, options.crop_height, options.crop_width}),
                Array(DType::i64, {1, options.points})};
  const PointCount count = fill_points(frame, box, options, points.pointcloud.as<float>(),
                                       points.rgb.as<float>(), points.choose.as<int64_t>());
  points.measured = count.measured;
  points.median_depth = count.median_depth;
  if (count.measured == 0) {
    points.pointcloud = Array(DType::f32, {0, 9});
    points.choose = Array(DType::i64, {1, 0});
  }
  return points;
}

Frame make_frame(const Array& color, const Array& depth, const Camera& camera, double depth_scale) {
  const auto wrong = [](const char* what, const Array& got, const char* wanted) {
    return InvalidArgument(std::string(what) + " is " + got.to_string() + "; it must be " + wanted);
  };
  const auto side = [](const Array& a, size_t axis) { return static_cast<int>(a.shape()[axis]); };
  const char* color_wanted = "8-bit: u8[H,W,3] (RGB), [H,W,4] (RGBA) or [H,W,1] (grey)";
  if (color.dtype() != DType::u8 || color.shape().size() != 3) throw wrong("the colour", color, color_wanted);
  if (depth.shape().size() != 3 || depth.shape()[2] != 1)
    throw wrong("the depth", depth, "16-bit grey: u16[H,W,1], or f32[H,W,1]");
  Frame frame;
  frame.color = {color.as<uint8_t>(), side(color, 1), side(color, 0)};
  switch (color.shape()[2]) {
    case 1:
      frame.color.format = ColorFormat::kGrey;
      break;
    case 3:
      break;
    case 4:
      frame.color.format = ColorFormat::kRgba;
      break;
    default:
      throw wrong("the colour", color, color_wanted);
  }
  frame.depth = {depth.data(), side(depth, 1), side(depth, 0), depth.dtype(), depth_scale};
  frame.camera = camera;
  return frame;
}

}  // namespace opbridge
