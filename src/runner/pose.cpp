// PoseEstimator: points of each box, one run of the model, poses with their residuals.
#include "opbridge/pose.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/text.h"
#include "model.h"
#include "pose_points.h"

namespace opbridge {

namespace {

using Json = nlohmann::json;
using Vec3 = std::array<double, 3>;

constexpr const char* kMetadata = "opbridge.pvn3d";
constexpr const char* kEndToEnd =
    "rotation f32[B,M,3,3], translation f32[B,M,3], valid i32[B,M], kps f32[B,M,K+1,3] and count i32[B,M]";

struct Description {
  std::vector<PoseObject> objects;
  PointOptions points;
};

std::vector<std::string> names_of(const std::vector<ValueInfo>& values) {
  std::vector<std::string> names;
  for (const ValueInfo& v : values) names.push_back(v.name);
  return names;
}

std::vector<Vec3> read_points(const Json& json, const std::string& what) {
  auto points = json.get<std::vector<Vec3>>();
  for (const Vec3& p : points) {
    for (const double v : p) {
      if (!std::isfinite(v)) throw InvalidArgument(what + " is not finite");
    }
  }
  return points;
}

// The metadata that the exporter writes: {"version": 1, "objects": [..], "crop": [H, W], "points": N, ..}
Description parse_metadata(const std::string& text) {
  const Json json = Json::parse(text);
  const int version = json.at("version").get<int>();
  if (version != 1)
    throw InvalidArgument("version " + std::to_string(version) + "; this opbridge knows version 1");
  Description d;
  d.points.points = json.at("points").get<int>();
  const auto crop = json.at("crop").get<std::array<int, 2>>();
  d.points.crop_height = crop[0];
  d.points.crop_width = crop[1];
  d.points.min_depth = json.at("min_depth").get<double>();
  d.points.max_depth = json.at("max_depth").get<double>();
  check_options(d.points);
  for (const Json& o : json.at("objects")) {
    PoseObject object;
    object.name = o.at("name").get<std::string>();
    const std::string what = "object '" + object.name + "': ";
    object.keypoints = read_points(o.at("keypoints"), what + "a keypoint");
    object.center = read_points(Json::array({o.at("center")}), what + "the center")[0];
    object.radius = o.at("radius").get<double>();
    object.diameter = o.at("diameter").get<double>();
    object.corners = read_points(o.at("corners"), what + "a corner");
    object.symmetric = o.at("symmetric").get<bool>();
    if (object.keypoints.empty() ||
        (!d.objects.empty() && d.objects[0].keypoints.size() != object.keypoints.size()))
      throw InvalidArgument(what + std::to_string(object.keypoints.size()) +
                            " keypoints; all objects have the same number, at least one");
    if (object.corners.size() != 8)
      throw InvalidArgument(what + std::to_string(object.corners.size()) + " corners; a box has 8");
    for (const PoseObject& other : d.objects) {
      if (other.name == object.name) throw InvalidArgument("two objects are called '" + object.name + "'");
    }
    d.objects.push_back(std::move(object));
  }
  if (d.objects.empty()) throw InvalidArgument("it has no objects");
  return d;
}

Description describe(const ModelInfo& model) {
  const std::vector<std::string> outputs = names_of(model.outputs);
  const auto has = [&](const char* name) {
    return std::find(outputs.begin(), outputs.end(), name) != outputs.end();
  };
  if (has("kp_of") && !has("rotation")) {
    throw InvalidArgument(
        "'" + model.path + "' is the network alone (outputs " + list_of(outputs, "and") +
        "); the estimator needs the model with the pose solver in it, exported end to end: " + kEndToEnd);
  }
  const auto found = model.metadata.find(kMetadata);
  if (found == model.metadata.end()) {
    throw InvalidArgument(
        "'" + model.path + "' has no metadata '" + kMetadata +
        "', which names the objects, their keypoints, the crop and the points. It has the inputs " +
        list_of(names_of(model.inputs), "and") + " and the outputs " + list_of(outputs, "and") +
        ": is it a PVN3D model exported end to end?");
  }
  const std::string what = "'" + model.path + "': the metadata '" + kMetadata + "' cannot be used: ";
  try {
    return parse_metadata(found->second);
  } catch (const Json::exception& e) {
    throw InvalidArgument(what + e.what());
  } catch (const Error& e) {
    throw InvalidArgument(what + e.what());
  }
}

// One input or output of an end-to-end model; -1 for dimensions that may be dynamic.
struct Wanted {
  const char* name;
  DType dtype;
  std::vector<int64_t> dims;
  const char* text;
};

void check_arguments(const std::string& model, const char* role, const std::vector<TensorInfo>& got,
                     const std::vector<Wanted>& wanted) {
  std::vector<std::string> all;
  for (const TensorInfo& t : got) all.push_back(t.name + " " + t.to_string());
  const auto fail = [&](const std::string& why) {
    return InvalidArgument("'" + model + "' is no PVN3D model that the estimator can run: " + why + ". Its " +
                           role + "s: " + list_of(all, "and"));
  };
  for (const Wanted& w : wanted) {
    const auto at =
        std::find_if(got.begin(), got.end(), [&](const TensorInfo& t) { return t.name == w.name; });
    if (at == got.end()) throw fail(std::string("it has no ") + role + " '" + w.name + "' (" + w.text + ")");
    bool fits = at->dtype == w.dtype && (!at->rank_known || at->dims.size() == w.dims.size());
    for (size_t i = 0; fits && at->rank_known && i < w.dims.size(); ++i)
      fits = at->dims[i].size < 0 || w.dims[i] < 0 || at->dims[i].size == w.dims[i];
    if (!fits)
      throw fail(std::string(role) + " '" + w.name + "' must be " + w.text + ", it is " + at->to_string());
  }
  for (const TensorInfo& t : got) {
    const bool known =
        std::any_of(wanted.begin(), wanted.end(), [&](const Wanted& w) { return t.name == w.name; });
    if (!known && !t.optional && role == std::string("input"))
      throw fail("it asks for an input '" + t.name + "' that the estimator does not know");
  }
}

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// Rows of the first axis; the memory is shared.
Array rows_of(const Array& a, int64_t begin, int64_t count) {
  std::vector<int64_t> shape = a.shape();
  const size_t row = a.bytes() / static_cast<size_t>(shape[0]);
  shape[0] = count;
  return Array(a.dtype(), shape,
               std::shared_ptr<void>(std::make_shared<Array>(a),
                                     static_cast<char*>(a.data()) + static_cast<size_t>(begin) * row));
}

// RMS distance between the voted keypoints and the template in its pose.
double residual_of(const PoseObject& object, const Pose& pose) {
  double sum = 0;
  int voted = 0;
  for (size_t k = 0; k < pose.keypoints.size(); ++k) {
    const Vec3& vote = pose.keypoints[k];
    if (vote == Vec3{}) continue;  // nobody voted; the solver leaves it out, too
    const Vec3& p = k < object.keypoints.size() ? object.keypoints[k] : object.center;
    for (size_t i = 0; i < 3; ++i) {
      const double* row = pose.rotation.data() + 3 * i;
      const double d = row[0] * p[0] + row[1] * p[1] + row[2] * p[2] + pose.translation[i] - vote[i];
      sum += d * d;
    }
    ++voted;
  }
  return std::sqrt(sum / voted);
}

}  // namespace

struct PoseEstimator::Impl {
  Impl(Session loaded, Description description)
      : session(std::move(loaded)), objects(std::move(description.objects)), points(description.points) {}

  size_t find(const std::string& name) const {
    std::vector<std::string> known;
    for (size_t m = 0; m < objects.size(); ++m) {
      if (objects[m].name == name) return m;
      known.push_back(objects[m].name);
    }
    throw InvalidArgument("the model knows no object '" + name + "'" + did_you_mean(name, known) +
                          "; it knows " + list_of(known, "and"));
  }

  // What a model computes may differ from what it declares.
  void check_outputs(const Arrays& outputs, int64_t batch) const {
    const auto m = static_cast<int64_t>(objects.size()),
               k = static_cast<int64_t>(objects[0].keypoints.size());
    const std::pair<const char*, Array> wanted[] = {{"rotation", Array(DType::f32, {batch, m, 3, 3})},
                                                    {"translation", Array(DType::f32, {batch, m, 3})},
                                                    {"valid", Array(DType::i32, {batch, m})},
                                                    {"kps", Array(DType::f32, {batch, m, k + 1, 3})},
                                                    {"count", Array(DType::i32, {batch, m})}};
    for (const auto& [name, like] : wanted) {
      const Array& got = outputs.at(name);
      if (got.dtype() != like.dtype() || got.shape() != like.shape())
        throw InvalidArgument(std::string("the model's output '") + name + "' is " + got.to_string() +
                              "; by its metadata it should be " + like.to_string());
    }
  }

  // Object `m` of row `row`.
  void read_pose(const Arrays& outputs, int64_t row, size_t m, Pose& pose) const {
    const size_t i = static_cast<size_t>(row) * objects.size() + m, k = objects[0].keypoints.size() + 1;
    pose.valid = outputs.at("valid").as<int32_t>()[i];
    if (pose.valid == 0) return;
    std::copy_n(outputs.at("rotation").as<float>() + 9 * i, 9, pose.rotation.begin());
    std::copy_n(outputs.at("translation").as<float>() + 3 * i, 3, pose.translation.begin());
    pose.inliers = outputs.at("count").as<int32_t>()[i];
    pose.keypoints.resize(k);
    for (size_t p = 0; p < k; ++p)
      std::copy_n(outputs.at("kps").as<float>() + 3 * (k * i + p), 3, pose.keypoints[p].begin());
    pose.residual = residual_of(objects[m], pose);
  }

  Session session;
  std::vector<PoseObject> objects;
  PointOptions points;
  bool one_by_one = false;  // the model's batch is fixed to 1
};

PoseEstimator::PoseEstimator(const Runtime& runtime, const std::string& model, const PoseOptions& options) {
  Description description = describe(read_model(model));
  PointOptions& p = description.points;
  if (options.points != 0) p.points = options.points;
  if (options.crop_height != 0) p.crop_height = options.crop_height;
  if (options.crop_width != 0) p.crop_width = options.crop_width;
  check_options(p);
  impl_ = std::make_unique<Impl>(Session(runtime, model, options.session), std::move(description));

  const auto n = static_cast<int64_t>(impl_->points.points);
  const auto m = static_cast<int64_t>(impl_->objects.size());
  const auto k = static_cast<int64_t>(impl_->objects[0].keypoints.size());
  const int64_t h = impl_->points.crop_height, w = impl_->points.crop_width;
  const std::string points = std::to_string(n), crop = std::to_string(h) + "," + std::to_string(w);
  const std::string cloud_text = "f32[B," + points + ",9]", rgb_text = "f32[B,3," + crop + "]",
                    choose_text = "i64[B,1," + points + "]";
  check_arguments(model, "input", impl_->session.inputs(),
                  {{"pointcloud", DType::f32, {-1, n, 9}, cloud_text.c_str()},
                   {"rgb", DType::f32, {-1, 3, h, w}, rgb_text.c_str()},
                   {"choose", DType::i64, {-1, 1, n}, choose_text.c_str()}});
  check_arguments(model, "output", impl_->session.outputs(),
                  {{"rotation", DType::f32, {-1, m, 3, 3}, "f32[B,M,3,3], M the objects"},
                   {"translation", DType::f32, {-1, m, 3}, "f32[B,M,3], M the objects"},
                   {"valid", DType::i32, {-1, m}, "i32[B,M], M the objects"},
                   {"kps", DType::f32, {-1, m, k + 1, 3}, "f32[B,M,K+1,3], K the keypoints"},
                   {"count", DType::i32, {-1, m}, "i32[B,M], M the objects"}});
  for (const TensorInfo& input : impl_->session.inputs()) {
    if (!input.rank_known || input.dims.empty() || input.dims[0].size < 0) continue;
    if (input.dims[0].size != 1) {
      throw InvalidArgument("'" + model + "': the batch of input '" + input.name + "' is fixed to " +
                            std::to_string(input.dims[0].size) + "; export it dynamic, or as 1");
    }
    impl_->one_by_one = true;
  }
}

PoseEstimator::~PoseEstimator() = default;
PoseEstimator::PoseEstimator(PoseEstimator&&) noexcept = default;
PoseEstimator& PoseEstimator::operator=(PoseEstimator&&) noexcept = default;

Estimate PoseEstimator::estimate(const Frame& frame, const std::vector<PoseRequest>& requests) const {
  const auto start = std::chrono::steady_clock::now();
  check_frame(frame);
  Estimate result;
  const PointOptions& options = impl_->points;
  const int width = frame.color.width, height = frame.color.height;
  if (frame.camera.cx < 0 || frame.camera.cy < 0 || frame.camera.cx >= width || frame.camera.cy >= height) {
    result.warnings.push_back("the principal point (" + to_text(frame.camera.cx) + ", " +
                              to_text(frame.camera.cy) + ") is outside the picture of " +
                              std::to_string(width) + " x " + std::to_string(height) +
                              ": are the intrinsics those of another size?");
  }

  // Requests with the same box share a row of the batch.
  struct Look {
    Box box;
    PointCount count;
    int64_t row = -1;  // -1: no depth
  };
  std::vector<Look> looks;
  std::vector<size_t> objects, look_of;
  for (const PoseRequest& request : requests) {
    objects.push_back(impl_->find(request.object));
    const Box box = check_box(request.box, frame, "the box of '" + request.object + "'");
    const auto same = std::find_if(looks.begin(), looks.end(), [&](const Look& l) {
      return l.box.x == box.x && l.box.y == box.y && l.box.width == box.width && l.box.height == box.height;
    });
    look_of.push_back(static_cast<size_t>(same - looks.begin()));
    if (same == looks.end()) looks.push_back({box, {}, -1});
  }
  const auto most = static_cast<int64_t>(looks.size());
  const int64_t n = options.points;
  const Array pointcloud(DType::f32, {most, n, 9}), choose(DType::i64, {most, 1, n}),
      rgb(DType::f32, {most, 3, options.crop_height, options.crop_width});
  int64_t rows = 0;
  for (size_t i = 0; i < looks.size(); ++i) {
    Look& look = looks[i];
    look.count = fill_points(frame, look.box, options, pointcloud.as<float>() + rows * n * 9,
                             rgb.as<float>() + rows * 3 * options.crop_height * options.crop_width,
                             choose.as<int64_t>() + rows * n);
    if (look.count.measured > 0) {
      look.row = rows++;
    } else if (look.count.median_depth > 0) {
      const size_t request =
          static_cast<size_t>(std::find(look_of.begin(), look_of.end(), i) - look_of.begin());
      result.warnings.push_back("the box of '" + requests[request].object + "' has depth, but none from " +
                                to_text(options.min_depth) + " to " + to_text(options.max_depth) +
                                " m, the model's range; the median is " +
                                to_text(static_cast<float>(look.count.median_depth)) +
                                " m: is the depth scale right?");
    }
  }
  result.points_ms = milliseconds_since(start);

  const auto model_start = std::chrono::steady_clock::now();
  const int64_t step = impl_->one_by_one ? 1 : std::max<int64_t>(rows, 1);
  std::vector<Arrays> outputs;
  for (int64_t begin = 0; begin < rows; begin += step) {
    outputs.push_back(impl_->session.run({{"pointcloud", rows_of(pointcloud, begin, step)},
                                          {"rgb", rows_of(rgb, begin, step)},
                                          {"choose", rows_of(choose, begin, step)}}));
    impl_->check_outputs(outputs.back(), step);
  }
  result.model_ms = milliseconds_since(model_start);

  for (size_t i = 0; i < requests.size(); ++i) {
    const Look& look = looks[look_of[i]];
    Pose pose;
    pose.residual = std::numeric_limits<double>::quiet_NaN();
    if (look.row >= 0)
      impl_->read_pose(outputs[static_cast<size_t>(look.row / step)], look.row % step, objects[i], pose);
    pose.object = requests[i].object;
    pose.points = std::min(look.count.measured, n);
    result.poses.push_back(std::move(pose));
  }
  result.total_ms = milliseconds_since(start);
  return result;
}

const std::vector<PoseObject>& PoseEstimator::objects() const { return impl_->objects; }
const PointOptions& PoseEstimator::point_options() const { return impl_->points; }
const Session& PoseEstimator::session() const { return impl_->session; }

}  // namespace opbridge
