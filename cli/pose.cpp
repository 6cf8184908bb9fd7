// `opbridge pose`: from PNG files to the poses of known objects.
#include "opbridge/pose.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include "command.h"
#include "core/text.h"
#include "model_options.h"
#include "terminal.h"

namespace opbridge::cli {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;
using Vec3 = std::array<double, 3>;

struct Options {
  std::string model;
  PoseOptions pose;
  std::string ort;
  std::string color, depth, camera, frames;
  std::optional<double> depth_scale;
  std::vector<std::string> objects, boxes;
  std::string crop;
  std::string save, save_inputs;
  int repeat = 1;
  bool json = false;
};

constexpr const char* kExamples = R"(Examples:
  opbridge pose pvn3d.onnx --library libpvn3d_custom_op.so --color c.png --depth d.png --camera 600,600,320,240
  opbridge pose pvn3d.onnx --library libpvn3d_custom_op.so --color c.png --depth d.png --camera camera.json \
      --object mug --box 200,100,160,120 --save found.png
  opbridge pose pvn3d.onnx --library libpvn3d_custom_op.so --frames frames.json --json

Colour is an 8-bit PNG, depth a 16-bit grey one, registered to the colour. The camera file is JSON:
{"fx": .., "fy": .., "cx": .., "cy": ..} in pixels, also below "camera"; width, height and depth_scale are optional.
A frames file is {"camera": {..}, "frames": [{"color": FILE, "depth": FILE, "objects": [{"name": .., "box": [x, y,
width, height], "rotation": [9], "translation": [3]}]}]}; box and true pose are optional, files are beside it.
Poses: camera = R object + t, camera frame x right, y down, z forward [m].
Exit codes: 0 done (also when nothing was found), 1 failed, 2 wrong command line.)";

// --- what to look at

struct TruePose {
  std::array<double, 9> rotation{};
  Vec3 translation{};
};

struct View {
  std::string name;  // the colour's file
  std::string color, depth;
  Camera camera;
  double depth_scale = 1000;
  std::vector<PoseRequest> requests;
  std::vector<std::optional<TruePose>> truth;  // of each request
};

Json read_json(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw InvalidArgument("'" + path + "' cannot be opened");
  try {
    return Json::parse(in);
  } catch (const Json::exception& e) {
    throw InvalidArgument("'" + path + "' is not JSON: " + e.what());
  }
}

// Calls read(), with the file's name in its JSON errors.
template <class F>
auto reading(const std::string& path, F&& read) {
  try {
    return read();
  } catch (const Json::exception& e) {
    throw InvalidArgument("'" + path + "': " + e.what());
  }
}

Camera camera_of(const Json& json, double& depth_scale) {
  Camera camera;
  camera.fx = json.at("fx").get<double>();
  camera.fy = json.at("fy").get<double>();
  camera.cx = json.at("cx").get<double>();
  camera.cy = json.at("cy").get<double>();
  camera.width = json.value("width", 0);
  camera.height = json.value("height", 0);
  depth_scale = json.value("depth_scale", depth_scale);
  return camera;
}

// "a,b,c,d" as numbers, or nothing.
std::optional<std::array<double, 4>> four_numbers(const std::string& text) {
  std::array<double, 4> values{};
  const char* at = text.c_str();
  for (size_t i = 0; i < 4; ++i) {
    char* end = nullptr;
    values[i] = std::strtod(at, &end);
    if (end == at || *end != (i < 3 ? ',' : '\0')) return std::nullopt;
    at = end + 1;
  }
  return values;
}

std::string check_box_text(const std::string& text) {
  return four_numbers(text) ? "" : "'" + text + "' is not X,Y,WIDTH,HEIGHT in pixels";
}

Camera read_camera(const std::string& text, double& depth_scale) {
  if (const auto v = four_numbers(text)) return {(*v)[0], (*v)[1], (*v)[2], (*v)[3]};
  std::error_code ec;
  if (text.find(',') != std::string::npos && !fs::exists(text, ec))
    throw InvalidArgument("--camera '" + text + "' is neither FX,FY,CX,CY in pixels nor a file");
  const Json json = read_json(text);
  return reading(text,
                 [&] { return camera_of(json.contains("camera") ? json.at("camera") : json, depth_scale); });
}

// Every object of the command line in every box, or in its own box where there are as many.
std::vector<PoseRequest> requests_of(const Options& o, const std::vector<PoseObject>& known) {
  std::vector<std::string> names = o.objects;
  if (names.empty()) {
    for (const PoseObject& object : known) names.push_back(object.name);
  }
  std::vector<Box> boxes;
  for (const std::string& text : o.boxes) {
    const auto v = *four_numbers(text);
    boxes.push_back({v[0], v[1], v[2], v[3]});
  }
  if (boxes.empty()) boxes.emplace_back();
  std::vector<PoseRequest> requests;
  if (!o.objects.empty() && names.size() == boxes.size()) {
    for (size_t i = 0; i < names.size(); ++i) requests.push_back({names[i], boxes[i]});
    return requests;
  }
  for (const Box& box : boxes) {
    for (const std::string& name : names) requests.push_back({name, box});
  }
  return requests;
}

std::vector<View> read_frames(const Options& o) {
  const Json json = read_json(o.frames);
  return reading(o.frames, [&] {
    double depth_scale = json.value("depth_scale", 1000.0);
    const Camera camera = camera_of(json.at("camera"), depth_scale);
    const fs::path folder = fs::path(o.frames).parent_path();
    std::vector<View> views;
    for (const Json& frame : json.at("frames")) {
      View view;
      view.name = frame.at("color").get<std::string>();
      view.color = (folder / view.name).string();
      view.depth = (folder / frame.at("depth").get<std::string>()).string();
      view.camera = camera;
      view.depth_scale = o.depth_scale.value_or(depth_scale);
      for (const Json& object : frame.at("objects")) {
        PoseRequest request{object.at("name").get<std::string>(), {}};
        if (!o.objects.empty() &&
            std::find(o.objects.begin(), o.objects.end(), request.object) == o.objects.end())
          continue;
        if (object.contains("box")) {
          const auto b = object.at("box").get<std::array<double, 4>>();
          request.box = {b[0], b[1], b[2], b[3]};
        }
        view.requests.push_back(request);
        view.truth.emplace_back();
        if (object.contains("rotation")) {
          view.truth.back() = TruePose{object.at("rotation").get<std::array<double, 9>>(),
                                       object.at("translation").get<Vec3>()};
        }
      }
      views.push_back(std::move(view));
    }
    return views;
  });
}

// --- geometry

Vec3 transform(const std::array<double, 9>& r, const Vec3& t, const Vec3& p) {
  Vec3 q{};
  for (size_t i = 0; i < 3; ++i) q[i] = r[3 * i] * p[0] + r[3 * i + 1] * p[1] + r[3 * i + 2] * p[2] + t[i];
  return q;
}

// RMS distance [m] of the object's keypoints in both poses. Those of a symmetric object lie on its axis, so
// that turning it makes no difference.
double keypoint_error(const PoseObject& object, const Pose& pose, const TruePose& truth) {
  double sum = 0;
  for (const Vec3& p : object.keypoints) {
    const Vec3 a = transform(pose.rotation, pose.translation, p),
               b = transform(truth.rotation, truth.translation, p);
    for (size_t i = 0; i < 3; ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  }
  return std::sqrt(sum / static_cast<double>(object.keypoints.size()));
}

// Axis times angle [degrees]; the axis from R + R^T where the angle is near 180.
Vec3 rotation_vector(const std::array<double, 9>& r) {
  constexpr double kDegrees = 180 / 3.14159265358979323846;
  const Vec3 twist = {(r[7] - r[5]) / 2, (r[2] - r[6]) / 2, (r[3] - r[1]) / 2};  // axis * sin(angle)
  const double sine = std::sqrt(twist[0] * twist[0] + twist[1] * twist[1] + twist[2] * twist[2]);
  const double cosine = (r[0] + r[4] + r[8] - 1) / 2, angle = std::atan2(sine, cosine);
  Vec3 v{};
  if (sine > 1e-3 || cosine > 0) {
    const double scale = sine > 1e-12 ? angle / sine : 1;
    for (size_t i = 0; i < 3; ++i) v[i] = twist[i] * scale * kDegrees;
    return v;
  }
  size_t k = 0;
  for (size_t i = 1; i < 3; ++i) {
    if (r[4 * i] > r[4 * k]) k = i;
  }
  const double largest = std::sqrt(std::max(0.0, (r[4 * k] - cosine) / (1 - cosine)));
  for (size_t i = 0; i < 3; ++i)
    v[i] = (i == k ? largest : (r[3 * i + k] + r[3 * k + i]) / 2 / (1 - cosine) / largest) * angle * kDegrees;
  if (v[0] * twist[0] + v[1] * twist[1] + v[2] * twist[2] < 0) {
    for (double& x : v) x = -x;
  }
  return v;
}

// --- the picture

using Rgb = std::array<uint8_t, 3>;

class Canvas {
 public:
  Canvas(const Array& color, const Camera& camera)
      : picture_(DType::u8, {color.shape()[0], color.shape()[1], 3}), camera_(camera) {
    const auto channels = static_cast<size_t>(color.shape()[2]);
    const uint8_t* from = color.as<uint8_t>();
    for (int64_t i = 0; i < picture_.count() / 3; ++i, from += channels) {
      for (size_t k = 0; k < 3; ++k)
        picture_.as<uint8_t>()[3 * static_cast<size_t>(i) + k] = from[channels < 3 ? 0 : k];
    }
  }

  const Array& picture() const { return picture_; }

  void draw(const PoseObject& object, const std::array<double, 9>& r, const Vec3& t, Rgb box_color,
            bool with_axes) {
    for (size_t i = 0; i < 8; ++i) {
      for (size_t j = i + 1; j < 8; ++j) {
        int same = 0;  // an edge joins corners that differ along one axis only
        for (size_t k = 0; k < 3; ++k)
          same += std::abs(object.corners[i][k] - object.corners[j][k]) < 1e-6 * object.radius;
        if (same == 2)
          line(transform(r, t, object.corners[i]), transform(r, t, object.corners[j]), box_color);
      }
    }
    if (!with_axes) return;
    for (size_t k = 0; k < 3; ++k) {
      Vec3 tip = object.center;
      tip[k] += object.radius;
      Rgb color = {0, 0, 0};
      color[k] = 255;
      line(transform(r, t, object.center), transform(r, t, tip), color);
    }
  }

  void dots(const std::vector<Vec3>& points, Rgb color) {
    for (const Vec3& p : points) {
      if (p[2] > 0) dot(u(p), v(p), 2, color);
    }
  }

 private:
  double u(const Vec3& p) const { return camera_.fx * p[0] / p[2] + camera_.cx; }
  double v(const Vec3& p) const { return camera_.fy * p[1] / p[2] + camera_.cy; }

  void dot(double x, double y, int radius, Rgb color) {
    const int64_t height = picture_.shape()[0], width = picture_.shape()[1];
    if (!(std::abs(x) < 1e6 && std::abs(y) < 1e6)) return;
    for (int64_t r = std::llround(y) - radius; r <= std::llround(y) + radius; ++r) {
      for (int64_t c = std::llround(x) - radius; c <= std::llround(x) + radius; ++c) {
        if (r >= 0 && r < height && c >= 0 && c < width)
          std::copy(color.begin(), color.end(), picture_.as<uint8_t>() + 3 * (r * width + c));
      }
    }
  }

  void line(const Vec3& a, const Vec3& b, Rgb color) {
    if (a[2] <= 0 || b[2] <= 0) return;  // behind the camera
    const double length = std::max(std::abs(u(a) - u(b)), std::abs(v(a) - v(b)));
    const int steps = static_cast<int>(std::min(std::ceil(length), 10000.0)) + 1;
    for (int i = 0; i <= steps; ++i) {
      const double s = static_cast<double>(i) / steps;
      dot(u(a) + s * (u(b) - u(a)), v(a) + s * (v(b) - v(a)), i % 2, color);
    }
  }

  Array picture_;
  Camera camera_;
};

constexpr Rgb kTrueColor = {255, 255, 255}, kFoundColor = {0, 230, 64}, kKeypointColor = {255, 210, 0};

const PoseObject& object_of(const PoseEstimator& estimator, const std::string& name) {
  return *std::find_if(estimator.objects().begin(), estimator.objects().end(),
                       [&](const PoseObject& o) { return o.name == name; });
}

void save_picture(const PoseEstimator& estimator, const View& view, const Array& color,
                  const Estimate& estimate, const std::string& path) {
  Canvas canvas(color, view.camera);
  for (size_t i = 0; i < estimate.poses.size(); ++i) {
    const Pose& pose = estimate.poses[i];
    const PoseObject& object = object_of(estimator, pose.object);
    if (view.truth[i])
      canvas.draw(object, view.truth[i]->rotation, view.truth[i]->translation, kTrueColor, false);
    if (pose.valid == 0) continue;
    canvas.draw(object, pose.rotation, pose.translation, kFoundColor, true);
    canvas.dots(pose.keypoints, kKeypointColor);
  }
  write_png(path, canvas.picture());
}

// What the model was given for each request, one after the other: only those that have depth.
void save_inputs(const PoseEstimator& estimator, const View& view, const Frame& frame,
                 const std::string& path) {
  const PointOptions& o = estimator.point_options();
  std::vector<Points> all;
  for (const PoseRequest& request : view.requests) {
    Points points = make_points(frame, request.box, o);
    if (points.measured > 0) all.push_back(std::move(points));
  }
  const auto rows = static_cast<int64_t>(all.size());
  const Arrays arrays = {{"pointcloud", Array(DType::f32, {rows, o.points, 9})},
                         {"rgb", Array(DType::f32, {rows, 3, o.crop_height, o.crop_width})},
                         {"choose", Array(DType::i64, {rows, 1, o.points})}};
  for (size_t i = 0; i < all.size(); ++i) {
    const std::pair<const char*, const Array*> parts[] = {
        {"pointcloud", &all[i].pointcloud}, {"rgb", &all[i].rgb}, {"choose", &all[i].choose}};
    for (const auto& [name, part] : parts) {
      std::copy_n(static_cast<const char*>(part->data()), part->bytes(),
                  static_cast<char*>(arrays.at(name).data()) + i * part->bytes());
    }
  }
  write_npz(path, arrays);
}

// --- results

struct Times {
  std::vector<double> points, model, total;
  void add(const Estimate& e) {
    points.push_back(e.points_ms);
    model.push_back(e.model_ms);
    total.push_back(e.total_ms);
  }
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n == 0 ? 0 : (values[(n - 1) / 2] + values[n / 2]) / 2;
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

std::string three(const Vec3& v, int digits) {
  return fixed(v[0], digits) + " " + fixed(v[1], digits) + " " + fixed(v[2], digits);
}

Json pose_json(const Pose& pose, const Box& box, std::optional<double> error) {
  Json json = {{"object", pose.object},
               {"valid", pose.valid},
               {"rotation", pose.rotation},
               {"translation", pose.translation},
               {"inliers", pose.inliers},
               {"points", pose.points},
               {"residual", pose.valid != 0 ? Json(pose.residual) : Json(nullptr)},
               {"keypoints", pose.keypoints}};
  if (box.width != 0) json["box"] = {box.x, box.y, box.width, box.height};
  if (error) json["keypoint_error"] = *error;
  return json;
}

int run(const Options& o) {
  PoseOptions pose_options = o.pose;
  if (!o.crop.empty())
    std::sscanf(o.crop.c_str(), "%dx%d", &pose_options.crop_height, &pose_options.crop_width);
  const Runtime runtime = Runtime::find(o.ort);
  const PoseEstimator estimator(runtime, o.model, pose_options);

  std::vector<View> views;
  if (!o.frames.empty()) {
    views = read_frames(o);
  } else {
    View view{o.color, o.color, o.depth, {}, 1000, requests_of(o, estimator.objects()), {}};
    view.camera = read_camera(o.camera, view.depth_scale);
    view.depth_scale = o.depth_scale.value_or(view.depth_scale);
    view.truth.resize(view.requests.size());
    views.push_back(std::move(view));
  }
  if (!o.save.empty() && !o.frames.empty()) {
    std::error_code ec;
    fs::create_directories(o.save, ec);
    if (ec) throw InvalidArgument("the folder '" + o.save + "' cannot be made: " + ec.message());
  }

  const bool with_truth = std::any_of(views.begin(), views.end(), [](const View& v) {
    return std::any_of(v.truth.begin(), v.truth.end(), [](const auto& t) { return t.has_value(); });
  });
  std::vector<std::vector<std::string>> rows = {
      {"object", "pose", "inliers", "points", "residual [mm]", "x y z [m]", "rotation vector [deg]"}};
  if (!o.frames.empty()) rows[0].insert(rows[0].begin(), "frame");
  if (with_truth) rows[0].emplace_back("error [mm]");
  Json frames = Json::array();
  Times times;
  int known = 0, near = 0, found = 0, asked = 0;
  for (const View& view : views) {
    const Array color = read_png(view.color), depth = read_png(view.depth);
    const auto look = [&] {
      try {
        const Frame frame = make_frame(color, depth, view.camera, view.depth_scale);
        Estimate estimate = estimator.estimate(frame, view.requests);
        for (int i = 1; i < o.repeat; ++i) times.add(estimator.estimate(frame, view.requests));
        if (!o.save_inputs.empty()) save_inputs(estimator, view, frame, o.save_inputs);
        return estimate;
      } catch (const Error& e) {
        throw Error(e.kind(), "'" + view.color + "' with '" + view.depth + "': " + e.what());
      }
    };
    const Estimate estimate = look();
    times.add(estimate);
    Json poses = Json::array();
    for (size_t i = 0; i < estimate.poses.size(); ++i) {
      const Pose& pose = estimate.poses[i];
      const PoseObject& object = object_of(estimator, pose.object);
      ++asked;
      found += pose.valid != 0;
      std::optional<double> error;
      if (view.truth[i]) {
        ++known;
        if (pose.valid != 0) error = keypoint_error(object, pose, *view.truth[i]);
        near += error && *error < 0.1 * object.diameter;
      }
      poses.push_back(pose_json(pose, view.requests[i].box, error));
      const bool valid = pose.valid != 0;
      std::vector<std::string> row = {pose.object,
                                      !valid            ? "not found"
                                      : pose.valid == 1 ? "found"
                                                        : "one of many",
                                      std::to_string(pose.inliers),
                                      std::to_string(pose.points),
                                      valid ? fixed(1e3 * pose.residual, 2) : "-",
                                      valid ? three(pose.translation, 4) : "-",
                                      valid ? three(rotation_vector(pose.rotation), 2) : "-"};
      if (!o.frames.empty()) row.insert(row.begin(), view.name);
      if (with_truth) row.push_back(error ? fixed(1e3 * *error, 2) : "-");
      rows.push_back(std::move(row));
    }
    frames.push_back(
        {{"color", view.color}, {"depth", view.depth}, {"poses", poses}, {"warnings", estimate.warnings}});
    if (!o.save.empty()) {
      const fs::path path =
          o.frames.empty() ? fs::path(o.save) : fs::path(o.save) / fs::path(view.name).filename();
      save_picture(estimator, view, color, estimate, path.string());
    }
    for (const std::string& w : estimate.warnings)
      std::fprintf(stderr, "%s %s: %s\n", warning_label().c_str(), printable(view.name).c_str(),
                   printable(w).c_str());
  }

  const PointOptions& points = estimator.point_options();
  if (o.json) {
    print_json({{"model", o.model},
                {"runtime",
                 {{"version", runtime.version()}, {"path", runtime.path()}, {"source", runtime.source()}}},
                {"provider", estimator.session().provider()},
                {"points", points.points},
                {"crop", {points.crop_height, points.crop_width}},
                {"frames", frames},
                {"times_ms",
                 {{"points", median(times.points)},
                  {"model", median(times.model)},
                  {"total", median(times.total)},
                  {"runs", times.total.size()}}}});
    return kOk;
  }
  std::printf("%s on ONNX Runtime %s, provider %s: %d points, crop %d x %d\n\n%s\n",
              heading(printable(o.model)).c_str(), runtime.version().c_str(),
              estimator.session().provider().c_str(), points.points, points.crop_height, points.crop_width,
              table(rows).c_str());
  std::printf("found %d of %d", found, asked);
  if (with_truth) std::printf("; error below 10%% of the diameter: %d of %d", near, known);
  std::printf("\ntimes per frame (median of %zu): points %s ms, model %s ms, total %s ms\n",
              times.total.size(), fixed(median(times.points), 2).c_str(),
              fixed(median(times.model), 2).c_str(), fixed(median(times.total), 2).c_str());
  return kOk;
}

}  // namespace

Command add_pose(CLI::App& parent) {
  const auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand("pose", "Finds the poses of objects in colour and depth pictures");
  app->footer(kExamples);
  app->add_option("model", o->model, "A PVN3D model, exported end to end (.onnx)")
      ->required()
      ->option_text(" ");
  auto* color = app->add_option("--color", o->color, "The colour picture: 8-bit PNG")->option_text("FILE");
  auto* depth =
      app->add_option("--depth", o->depth, "The depth picture: 16-bit grey PNG")->option_text("FILE");
  auto* camera =
      app->add_option("--camera", o->camera, "FX,FY,CX,CY in pixels, or a JSON file")->option_text("CAMERA");
  color->needs(depth)->needs(camera);
  depth->needs(color);
  camera->needs(color);
  auto* frames =
      app->add_option("--frames", o->frames, "A JSON file that lists several frames and what to look for")
          ->excludes(color)
          ->option_text("FILE");
  app->add_option("--depth-scale", o->depth_scale, "Depth / scale = metres [the camera file's, else 1000]")
      ->option_text("X");
  app->add_option("--object", o->objects, "What to look for; may be repeated [every object of the model]")
      ->allow_extra_args(false)
      ->option_text("NAME");
  app->add_option("--box", o->boxes,
                  "Where to look, X,Y,WIDTH,HEIGHT in pixels: one for all objects, or one for each [the "
                  "whole picture]")
      ->allow_extra_args(false)
      ->check(check_box_text)
      ->excludes(frames)
      ->option_text("BOX");
  app->add_option("--points", o->pose.points, "Points for each object [as the model was trained]")
      ->check(CLI::Range(1, 1 << 24))
      ->option_text("N");
  app->add_option("--crop", o->crop, "Rows and columns of the crop, e.g. 80x80 [as the model was trained]")
      ->check([](const std::string& text) {
        int rows = 0, columns = 0, end = 0;
        const bool fits = std::sscanf(text.c_str(), "%5dx%5d%n", &rows, &columns, &end) == 2 &&
                          static_cast<size_t>(end) == text.size() && rows > 0 && columns > 0;
        return fits ? std::string() : "'" + text + "' is not ROWSxCOLUMNS";
      })
      ->option_text("HxW");
  add_session_options(*app, o->pose.session, o->ort);
  app->add_option("--save", o->save,
                  "Draws boxes, axes and keypoints (the true pose white) into this PNG; with --frames, into "
                  "this folder")
      ->option_text("PATH");
  app->add_option("--save-inputs", o->save_inputs,
                  "Writes what the model was given: an .npz with a row per request")
      ->excludes(frames)
      ->option_text("FILE");
  app->add_option("--repeat", o->repeat, "Estimates each frame so often, for the times [1]")
      ->check(CLI::Range(1, 1000000))
      ->option_text("N");
  app->add_flag("--json", o->json, "Prints one JSON object instead of text");
  app->final_callback([o] {
    if (o->frames.empty() && o->color.empty())
      throw CLI::RequiredError("--color, --depth and --camera, or --frames,");
  });
  return {app, [o] { return run(*o); }};
}

}  // namespace opbridge::cli
