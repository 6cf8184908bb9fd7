// From a live RGB-D frame to the poses of known objects, with a PVN3D model that was exported end to end.
//
//   opbridge::PoseOptions options;
//   options.session.libraries = {"libpvn3d_custom_op.so"};
//   const opbridge::PoseEstimator estimator(opbridge::Runtime::find(), "pvn3d.onnx", options);
//
//   opbridge::Frame frame;
//   frame.color = {rgb, 640, 480};   // 8-bit RGB, as the camera's driver hands it over
//   frame.depth = {depth, 640, 480};  // 16-bit millimetres, registered to the colour
//   frame.camera = {600, 600, 320, 240};
//   const opbridge::Estimate result = estimator.estimate(frame, {{"mug", {200, 100, 160, 120}}});
//   if (result.poses[0].valid == 1) grasp(result.poses[0].rotation, result.poses[0].translation);
//
// Camera frame: x right, y down, z forward [m]. Everything here throws opbridge::Error and prints nothing.
// Link opbridge::runner.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "opbridge/runner.h"

namespace opbridge {

/// The order of a colour pixel's bytes.
enum class ColorFormat { kRgb, kBgr, kRgba, kBgra, kGrey };

/// An 8-bit picture in the caller's memory.
struct ColorView {
  const uint8_t* data = nullptr;
  int width = 0, height = 0;  // [pixel]
  ColorFormat format = ColorFormat::kRgb;
  size_t stride = 0;  // bytes from one row to the next; 0: rows without gaps
};

/// A depth picture in the caller's memory: the distance along z, not along the ray. 0, NaN and infinity are
/// "not measured".
struct DepthView {
  const void* data = nullptr;
  int width = 0, height = 0;  // [pixel], the colour's
  DType dtype = DType::u16;   // u16 or f32
  double scale = 1000;        // depth / scale = metres; 1 for f32 in metres
  size_t stride = 0;          // bytes from one row to the next; 0: rows without gaps
};

/// Pinhole camera without distortion [pixel]; pixel centres are at integers, so x = (u - cx) z / fx.
struct Camera {
  double fx = 0, fy = 0, cx = 0, cy = 0;
  int width = 0,
      height = 0;  // of the pictures it was calibrated for, to compare with the frame's; 0: unknown
};

/// One moment of an RGB-D camera. Nothing is copied: the memory must stay while the frame is used.
/// A depth without data is "no depth": no point, and no object is found.
struct Frame {
  ColorView color;
  DepthView depth;
  Camera camera;
};

/// A frame of pictures as read_png() returns them: colour u8[H,W,3], [H,W,4] or [H,W,1], depth u16[H,W,1].
Frame make_frame(const Array& color, const Array& depth, const Camera& camera, double depth_scale = 1000);

/// Part of a picture [pixel]; its left upper corner is that of pixel (x, y). May reach over the picture's
/// edge. All zero: the whole picture.
struct Box {
  double x = 0, y = 0, width = 0, height = 0;
};

struct PointOptions {
  int points = 0;                         // N
  int crop_height = 0, crop_width = 0;    // H, W
  double min_depth = 0, max_depth = 1e3;  // [m], inclusive; depth outside counts as not measured
};

/// What a PVN3D network is fed with. `measured` is how many of the H x W crop cells have depth; with none, N
/// is 0.
struct Points {
  Array pointcloud;  // f32[N,9]: x y z [m, camera frame], r g b in 0..1, unit normal to the camera or 0 0 0
  Array rgb;         // f32[3,H,W] in 0..1
  Array choose;      // i64[1,N]: the crop cell of each point, row-major
  int64_t measured = 0;
  double median_depth = 0;  // [m] of the depths in the crop, in or out of range; 0 where there are none
};

/// Crops `box` to H x W (nearest pixels) and takes N of its cells with depth: every V/N-th of V in row-major
/// order, or, where V < N, all of them again and again. Normals come from the neighbouring cells' depth, in
/// which gaps of up to 4 cells are filled; 0 0 0 at the crop's edge, at gaps and at jumps of over 5 cm.
/// Errors: a frame or box that cannot be, each named with what was expected; depth of which the median is
/// below 5 mm or above 200 m (a wrong scale).
Points make_points(const Frame& frame, const Box& box, const PointOptions& options);

/// An object that a model knows; lengths in metres, object frame.
struct PoseObject {
  std::string name;
  std::vector<std::array<double, 3>> keypoints;  // K
  std::array<double, 3> center{};                // of the bounding box
  double radius = 0;                             // half of the box's diagonal
  double diameter = 0;                           // largest distance of two of its points
  std::vector<std::array<double, 3>> corners;    // of the box, 8
  bool symmetric = false;                        // by rotation: the keypoints lie on its axis
};

struct PoseOptions {
  SessionOptions session;               // libraries, provider, allow_fallback, threads
  int points = 0;                       // per object; 0: as the model was trained
  int crop_height = 0, crop_width = 0;  // 0: as the model was trained
};

struct PoseRequest {
  std::string object;
  Box box;  // where to look, e.g. a detector's box
};

struct Pose {
  std::string object;
  std::array<double, 9> rotation = {1, 0, 0, 0, 1, 0, 0, 0, 1};  // row-major R: camera = R object + t
  std::array<double, 3> translation{};                           // t [m]
  int valid = 0;        // 0 not found, 1 the pose, 2 not the only one (a symmetric object)
  int64_t inliers = 0;  // points that agree on the object's centre
  int64_t points = 0;   // cells of the crop with depth that the network was given
  double residual = 0;  // [m] RMS distance of the voted keypoints and the posed object's; NaN if not valid
  std::vector<std::array<double, 3>> keypoints;  // voted [m, camera frame]: K, then the centre
};

struct Estimate {
  std::vector<Pose> poses;                           // one for each request, in their order
  double points_ms = 0, model_ms = 0, total_ms = 0;  // pictures to points; the ONNX model; all
  std::vector<std::string> warnings;                 // what looks wrong without being impossible
};

/// A PVN3D model with the pose solver in its graph, ready to run. Everything is const and may be called from
/// several threads.
class PoseEstimator {
 public:
  /// Errors: whatever keeps a Session from loading (also operators whose declaration has changed since the
  /// export), a model without the metadata 'opbridge.pvn3d' or with other inputs or outputs, options that a
  /// fixed dimension of it contradicts.
  PoseEstimator(const Runtime& runtime, const std::string& model, const PoseOptions& options = {});
  ~PoseEstimator();
  PoseEstimator(PoseEstimator&&) noexcept;
  PoseEstimator& operator=(PoseEstimator&&) noexcept;

  /// The pose of each request, all in one run of the model. An object that is not there, or a box without
  /// depth, gives valid = 0. Errors: those of make_points(), and a name that the model does not know.
  Estimate estimate(const Frame& frame, const std::vector<PoseRequest>& requests) const;

  const std::vector<PoseObject>& objects() const;
  /// N, the crop and the range of depth in use.
  const PointOptions& point_options() const;
  const Session& session() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Reads a PNG: u8[H,W,C] or, of 16-bit files, u16[H,W,C]; C is 1 (grey), 3 (RGB) or 4 (RGBA). Palettes
/// become RGB, grey with alpha RGBA, fewer than 8 bits 8. Values are those of the file: no gamma.
Array read_png(const std::string& path);

/// Writes u8[H,W,3] as an RGB PNG.
void write_png(const std::string& path, const Array& picture);

}  // namespace opbridge
