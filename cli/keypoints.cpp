// `opbridge keypoints`: from a mesh to the keypoints, box, radius and diameter that PVN3D is trained on.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

#include "command.h"
#include "opbridge/error.h"
#include "runner/mesh.h"
#include "terminal.h"

namespace opbridge::cli {

namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string mesh, name, output, axis;
  int count = 8;
  double scale = 1;
};

constexpr const char* kExamples = R"(Examples:
  opbridge keypoints mug.ply --json mug.json
  opbridge keypoints obj_01.ply --scale 0.001        a mesh in millimetres
  opbridge keypoints bottle.ply --symmetric-axis z   keypoints on the axis of a shape that may be turned about it

Keypoints are vertices by farthest-point sampling from the centre of the bounding box, as PVN3D's data-set tool takes
them. Lengths in metres, object frame; the JSON is an entry of a model's metadata 'opbridge.pvn3d'.)";

std::string row_text(const Vertex& v) {
  char text[96];
  std::snprintf(text, sizeof(text), "% .6f  % .6f  % .6f", v[0], v[1], v[2]);
  return text;
}

// What looks wrong without being impossible.
std::vector<std::string> hints(const Options& o, const Bounds& bounds, double diameter) {
  std::vector<std::string> found;
  if (diameter > 5) {
    found.push_back("a diameter of " + number(diameter) + " m: if the mesh is in millimetres, pass --scale " +
                    number(o.scale * 1e-3));
  }
  if (diameter < 2e-3) found.push_back("a diameter of " + number(diameter) + " m: is --scale right?");
  if (!o.axis.empty()) {
    const auto axis = static_cast<size_t>(o.axis[0] - 'x');
    const auto extent = [&](size_t k) { return bounds.high[k] - bounds.low[k]; };
    const double a = extent((axis + 1) % 3), b = extent((axis + 2) % 3);
    if (std::abs(a - b) > 0.05 * std::max(a, b)) {
      found.push_back("across the axis " + o.axis + " the mesh is " + number(std::min(a, b)) + " by " +
                      number(std::max(a, b)) + " m: it does not look the same however it is turned about it");
    }
  }
  return found;
}

int run(const Options& o) {
  std::vector<Vertex> vertices = read_ply(o.mesh);
  for (Vertex& v : vertices) {
    for (double& x : v) x *= o.scale;
  }
  const Bounds bounds = bounds_of(vertices);
  const std::vector<Vertex> keypoints = o.axis.empty() ? farthest_keypoints(vertices, o.count)
                                                       : axis_keypoints(bounds, o.axis[0] - 'x', o.count);
  const double diameter = diameter_of(vertices);
  for (const std::string& hint : hints(o, bounds, diameter))
    std::fprintf(stderr, "%s %s\n", warning_label().c_str(), hint.c_str());

  const std::string name = o.name.empty() ? std::filesystem::path(o.mesh).stem().string() : o.name;
  if (!o.output.empty()) {
    const Json json = {{"name", name},
                       {"keypoints", keypoints},
                       {"center", bounds.center()},
                       {"radius", bounds.radius()},
                       {"diameter", diameter},
                       {"corners", bounds.corners()},
                       {"symmetric", !o.axis.empty()}};
    if (o.output == "-") {
      print_json(json);
      return kOk;
    }
    std::ofstream out(o.output, std::ios::trunc);
    out << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
    out.close();
    if (!out) throw InvalidArgument("'" + o.output + "' cannot be written");
  }
  std::printf("%s: %zu vertices\n\n", heading(printable(name)).c_str(), vertices.size());
  for (size_t i = 0; i < keypoints.size(); ++i)
    std::printf("  keypoint %zu  %s\n", i, row_text(keypoints[i]).c_str());
  std::printf("  center      %s\n", row_text(bounds.center()).c_str());
  std::printf("  box low     %s\n  box high    %s\n", row_text(bounds.low).c_str(),
              row_text(bounds.high).c_str());
  std::printf(
      "\nradius %.6f m (half of the box's diagonal), diameter %.6f m (largest distance of two vertices)\n",
      bounds.radius(), diameter);
  return kOk;
}

}  // namespace

Command add_keypoints(CLI::App& parent) {
  const auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand("keypoints", "Picks an object's keypoints from its mesh");
  app->footer(kExamples);
  app->add_option("mesh", o->mesh, "A PLY file, ascii or binary")->required()->option_text(" ");
  app->add_option("--count", o->count, "How many keypoints [8]")
      ->check(CLI::Range(1, 10000))
      ->option_text("K");
  app->add_option("--scale", o->scale, "Metres per unit of the mesh, 0.001 for millimetres [1]")
      ->check(CLI::Range(1e-12, 1e12))
      ->option_text("X");
  app->add_option("--symmetric-axis", o->axis,
                  "x, y or z: the shape looks the same however it is turned about it")
      ->check(CLI::IsMember({"x", "y", "z"}))
      ->option_text("AXIS");
  app->add_option("--name", o->name, "The object's name [the file's]")->option_text("NAME");
  app->add_option("--json", o->output, "Writes all of it into this file; - prints it")->option_text("FILE");
  return {app, [o] { return run(*o); }};
}

}  // namespace opbridge::cli
