// Meshes as PVN3D needs them: vertices from a PLY file, and an object's keypoints, box, radius and diameter.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace opbridge {

using Vertex = std::array<double, 3>;

/// The vertices of a PLY file (ascii, binary of either byte order); whatever else it has is skipped.
/// Errors: not a PLY file, malformed, cut off, no vertices, a vertex that is not finite.
std::vector<Vertex> read_ply(const std::string& path);

/// The bounding box along the axes of the object's frame.
struct Bounds {
  Vertex low{}, high{};
  Vertex center() const;
  std::vector<Vertex> corners() const;  // 8: x changes slowest, z fastest
  double radius() const;                // half of the diagonal
};
Bounds bounds_of(const std::vector<Vertex>& vertices);

/// Farthest-point sampling as PVN3D's data-set tool does it: the first is the vertex farthest from the box's
/// centre, and every further one is farthest from that centre and all chosen ones; the lowest index wins
/// ties. Error: fewer different vertices than `count`.
std::vector<Vertex> farthest_keypoints(const std::vector<Vertex>& vertices, int count);

/// For a shape that looks the same however it is turned about `axis` (0 x, 1 y, 2 z): `count` points evenly
/// spaced on the box's line through the centre, from end to end (the centre where count is 1).
std::vector<Vertex> axis_keypoints(const Bounds& bounds, int axis, int count);

/// The largest distance of two vertices. Exact: a tree of boxes, in which a pair of boxes is opened only when
/// their farthest corners are farther apart than the best pair found so far.
double diameter_of(std::vector<Vertex> vertices);

}  // namespace opbridge
