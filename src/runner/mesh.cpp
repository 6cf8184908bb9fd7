#include "mesh.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <sstream>

#include "core/text.h"
#include "opbridge/error.h"
#include "proto.h"

namespace opbridge {

namespace {

// --- PLY

enum class Type { kI8, kU8, kI16, kU16, kI32, kU32, kF32, kF64 };

struct TypeName {
  const char *name, *alias;
  Type type;
  size_t size;
};
constexpr TypeName kTypes[] = {{"char", "int8", Type::kI8, 1},      {"uchar", "uint8", Type::kU8, 1},
                               {"short", "int16", Type::kI16, 2},   {"ushort", "uint16", Type::kU16, 2},
                               {"int", "int32", Type::kI32, 4},     {"uint", "uint32", Type::kU32, 4},
                               {"float", "float32", Type::kF32, 4}, {"double", "float64", Type::kF64, 8}};

size_t size_of(Type type) {
  return std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeName& t) { return t.type == type; })
      ->size;
}

struct Property {
  std::string name;
  Type type = Type::kF32;
  bool list = false;
  Type count_type = Type::kU8;  // of a list's length
};

struct Element {
  std::string name;
  uint64_t count = 0;
  std::vector<Property> properties;
};

class PlyReader {
 public:
  explicit PlyReader(const std::string& path) : path_(path), bytes_(read_file(path)) {}

  std::vector<Vertex> read() {
    read_header();
    std::vector<Vertex> vertices;
    bool any = false;
    for (const Element& element : elements_) {
      const bool wanted = element.name == "vertex";
      const auto axes = wanted ? axes_of(element) : std::array<size_t, 3>{};
      any = any || wanted;
      if (wanted && element.count == 0) fail("has no vertices");
      for (uint64_t i = 0; i < element.count; ++i) {
        where_ = element.name + " " + std::to_string(i) + " of " + std::to_string(element.count);
        Vertex v{};
        for (size_t p = 0; p < element.properties.size(); ++p) {
          const Property& property = element.properties[p];
          if (property.list) {
            skip_list(property);
            continue;
          }
          const double value = number(property.type);
          for (size_t k = 0; wanted && k < 3; ++k) {
            if (axes[k] == p) v[k] = value;
          }
        }
        if (!wanted) continue;
        if (!std::isfinite(v[0]) || !std::isfinite(v[1]) || !std::isfinite(v[2])) {
          fail("has a vertex that is not finite: " + where_ + " is (" + to_text(v[0]) + ", " + to_text(v[1]) +
               ", " + to_text(v[2]) + ")");
        }
        vertices.push_back(v);
      }
      if (wanted) return vertices;  // what follows, faces as a rule, is of no use here
    }
    fail(any ? "has no vertices" : "declares no element 'vertex'");
  }

 private:
  [[noreturn]] void fail(const std::string& why) const { throw InvalidArgument("'" + path_ + "' " + why); }
  [[noreturn]] void cut_off() const { fail("is cut off at " + where_); }

  std::string line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string::npos) fail("is not a PLY file, or is cut off in its header");
    std::string text = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    if (!text.empty() && text.back() == '\r') text.pop_back();
    return text;
  }

  Type type_of(const std::string& name) const {
    for (const TypeName& t : kTypes) {
      if (name == t.name || name == t.alias) return t.type;
    }
    fail("has a property of the unknown type '" + name + "' in its header");
  }

  void read_header() {
    if (bytes_.rfind("ply\n", 0) != 0 && bytes_.rfind("ply\r\n", 0) != 0)
      fail("is not a PLY file: its first line is not 'ply'");
    line();
    bool format = false;
    for (std::string text = line(); text != "end_header"; text = line()) {
      std::istringstream words(text);
      std::string word, name;
      words >> word;
      if (word.empty() || word == "comment" || word == "obj_info") continue;
      if (word == "format") {
        words >> name;
        ascii_ = name == "ascii";
        big_endian_ = name == "binary_big_endian";
        if (!ascii_ && !big_endian_ && name != "binary_little_endian")
          fail("has the format '" + name + "'; ascii, binary_little_endian and binary_big_endian are known");
        format = true;
      } else if (word == "element") {
        Element element;
        int64_t count = -1;
        words >> element.name >> count;
        if (!words || count < 0) fail("has a malformed line in its header: '" + text + "'");
        element.count = static_cast<uint64_t>(count);
        elements_.push_back(element);
      } else if (word == "property" && !elements_.empty()) {
        Property property;
        words >> name;
        property.list = name == "list";
        if (property.list) {
          words >> name;
          property.count_type = type_of(name);
          words >> name;
        }
        property.type = type_of(name);
        words >> property.name;
        if (!words) fail("has a malformed line in its header: '" + text + "'");
        elements_.back().properties.push_back(property);
      } else {
        fail("has an unknown line in its header: '" + text + "'");
      }
    }
    if (!format) fail("has no line 'format' in its header");
  }

  std::array<size_t, 3> axes_of(const Element& element) const {
    std::array<size_t, 3> axes{};
    for (size_t k = 0; k < 3; ++k) {
      const std::string axis(1, "xyz"[k]);
      const auto at = std::find_if(element.properties.begin(), element.properties.end(),
                                   [&](const Property& p) { return p.name == axis && !p.list; });
      if (at == element.properties.end()) fail("has vertices without the property '" + axis + "'");
      axes[k] = static_cast<size_t>(at - element.properties.begin());
    }
    return axes;
  }

  double number(Type type) {
    if (ascii_) return ascii_number();
    const size_t size = size_of(type);
    if (bytes_.size() - at_ < size) cut_off();
    char raw[8];
    std::memcpy(raw, bytes_.data() + at_, size);
    at_ += size;
    if (big_endian_) std::reverse(raw, raw + size);
    const auto as = [&](auto value) {
      std::memcpy(&value, raw, sizeof(value));
      return static_cast<double>(value);
    };
    switch (type) {
      case Type::kI8:
        return as(int8_t{});
      case Type::kU8:
        return as(uint8_t{});
      case Type::kI16:
        return as(int16_t{});
      case Type::kU16:
        return as(uint16_t{});
      case Type::kI32:
        return as(int32_t{});
      case Type::kU32:
        return as(uint32_t{});
      case Type::kF32:
        return as(float{});
      case Type::kF64:
        break;
    }
    return as(double{});
  }

  // Words of an ascii body may be spread over lines as they like.
  double ascii_number() {
    constexpr const char* kSpace = " \t\r\n";
    const size_t begin = bytes_.find_first_not_of(kSpace, at_);
    if (begin == std::string::npos) cut_off();
    const size_t end = std::min(bytes_.find_first_of(kSpace, begin), bytes_.size());
    const std::string word = bytes_.substr(begin, std::min<size_t>(end - begin, 64));
    char* parsed = nullptr;
    const double value = std::strtod(word.c_str(), &parsed);
    if (*parsed != '\0') fail("has '" + word + "' where a number is needed, at " + where_);
    at_ = end;
    return value;
  }

  void skip_list(const Property& property) {
    const double count = number(property.count_type);
    if (!(count >= 0) || count > static_cast<double>(bytes_.size())) cut_off();
    const auto n = static_cast<size_t>(count);
    if (!ascii_) {
      const size_t size = size_of(property.type);
      if ((bytes_.size() - at_) / size < n) cut_off();
      at_ += n * size;
      return;
    }
    for (size_t i = 0; i < n; ++i) ascii_number();
  }

  std::string path_, bytes_, where_ = "its header";
  size_t at_ = 0;
  bool ascii_ = false, big_endian_ = false;
  std::vector<Element> elements_;
};

double squared_distance(const Vertex& a, const Vertex& b) {
  const double x = a[0] - b[0], y = a[1] - b[1], z = a[2] - b[2];
  return x * x + y * y + z * z;
}

// --- diameter

class Diameter {
 public:
  explicit Diameter(std::vector<Vertex> vertices) : vertices_(std::move(vertices)) {
    build(0, vertices_.size());
    search(0, 0);
  }
  double value() const { return std::sqrt(best_); }

 private:
  struct Node {
    Bounds bounds;
    size_t begin = 0, end = 0;
    size_t left = 0, right = 0;  // 0: a leaf
  };
  static constexpr size_t kLeaf = 16;

  size_t build(size_t begin, size_t end) {
    const size_t at = nodes_.size();
    nodes_.emplace_back();
    Bounds bounds{vertices_[begin], vertices_[begin]};
    for (size_t i = begin; i < end; ++i) {
      for (size_t k = 0; k < 3; ++k) {
        bounds.low[k] = std::min(bounds.low[k], vertices_[i][k]);
        bounds.high[k] = std::max(bounds.high[k], vertices_[i][k]);
      }
    }
    size_t left = 0, right = 0;
    if (end - begin > kLeaf) {
      size_t axis = 0;
      for (size_t k = 1; k < 3; ++k) {
        if (bounds.high[k] - bounds.low[k] > bounds.high[axis] - bounds.low[axis]) axis = k;
      }
      const size_t middle = begin + (end - begin) / 2;
      const auto at_offset = [&](size_t i) { return vertices_.begin() + static_cast<std::ptrdiff_t>(i); };
      std::nth_element(at_offset(begin), at_offset(middle), at_offset(end),
                       [axis](const Vertex& a, const Vertex& b) { return a[axis] < b[axis]; });
      left = build(begin, middle);
      right = build(middle, end);
    }
    nodes_[at] = {bounds, begin, end, left, right};
    return at;
  }

  // No pair of their vertices is farther apart.
  double limit(size_t a, size_t b) const {
    const Bounds &p = nodes_[a].bounds, &q = nodes_[b].bounds;
    Vertex d{};
    for (size_t k = 0; k < 3; ++k) d[k] = std::max(p.high[k] - q.low[k], q.high[k] - p.low[k]);
    return squared_distance(d, {});
  }

  void search(size_t a, size_t b) {
    if (limit(a, b) <= best_) return;
    const Node &p = nodes_[a], &q = nodes_[b];
    if (p.left == 0 && q.left == 0) {
      for (size_t i = p.begin; i < p.end; ++i) {
        for (size_t j = q.begin; j < q.end; ++j)
          best_ = std::max(best_, squared_distance(vertices_[i], vertices_[j]));
      }
      return;
    }
    std::array<std::pair<size_t, size_t>, 3> pairs;
    size_t count = 2;
    if (a == b) {
      pairs = {{{p.left, p.right}, {p.left, p.left}, {p.right, p.right}}};
      count = 3;
    } else if (q.left == 0 || (p.left != 0 && p.end - p.begin >= q.end - q.begin)) {
      pairs = {{{p.left, b}, {p.right, b}, {}}};
    } else {
      pairs = {{{a, q.left}, {a, q.right}, {}}};
    }
    // The promising ones first: what they find spares the others.
    std::sort(
        pairs.begin(), pairs.begin() + static_cast<std::ptrdiff_t>(count),
        [&](const auto& s, const auto& t) { return limit(s.first, s.second) > limit(t.first, t.second); });
    for (size_t i = 0; i < count; ++i) search(pairs[i].first, pairs[i].second);
  }

  std::vector<Vertex> vertices_;
  std::vector<Node> nodes_;
  double best_ = 0;
};

}  // namespace

std::vector<Vertex> read_ply(const std::string& path) { return PlyReader(path).read(); }

Vertex Bounds::center() const {
  return {(low[0] + high[0]) / 2, (low[1] + high[1]) / 2, (low[2] + high[2]) / 2};
}

std::vector<Vertex> Bounds::corners() const {
  std::vector<Vertex> corners;
  for (const double x : {low[0], high[0]}) {
    for (const double y : {low[1], high[1]}) {
      for (const double z : {low[2], high[2]}) corners.push_back({x, y, z});
    }
  }
  return corners;
}

double Bounds::radius() const { return std::sqrt(squared_distance(low, high)) / 2; }

Bounds bounds_of(const std::vector<Vertex>& vertices) {
  if (vertices.empty()) throw InvalidArgument("no vertices have no bounding box");
  Bounds bounds{vertices[0], vertices[0]};
  for (const Vertex& v : vertices) {
    for (size_t k = 0; k < 3; ++k) {
      bounds.low[k] = std::min(bounds.low[k], v[k]);
      bounds.high[k] = std::max(bounds.high[k], v[k]);
    }
  }
  return bounds;
}

std::vector<Vertex> farthest_keypoints(const std::vector<Vertex>& vertices, int count) {
  const Vertex center = bounds_of(vertices).center();
  std::vector<double> best;
  for (const Vertex& v : vertices) best.push_back(squared_distance(v, center));
  std::vector<Vertex> keypoints;
  for (int i = 0; i < count; ++i) {
    const size_t next = static_cast<size_t>(std::max_element(best.begin(), best.end()) - best.begin());
    if (best[next] == 0) {
      throw InvalidArgument("the mesh has " + std::to_string(keypoints.size()) +
                            " different vertices away from its centre; " + std::to_string(count) +
                            " keypoints were asked for");
    }
    keypoints.push_back(vertices[next]);
    for (size_t k = 0; k < vertices.size(); ++k)
      best[k] = std::min(best[k], squared_distance(vertices[k], vertices[next]));
  }
  return keypoints;
}

std::vector<Vertex> axis_keypoints(const Bounds& bounds, int axis, int count) {
  const auto k = static_cast<size_t>(axis);
  std::vector<Vertex> keypoints(static_cast<size_t>(count), bounds.center());
  for (int i = 0; count > 1 && i < count; ++i)
    keypoints[static_cast<size_t>(i)][k] = bounds.low[k] + (bounds.high[k] - bounds.low[k]) * i / (count - 1);
  return keypoints;
}

double diameter_of(std::vector<Vertex> vertices) {
  if (vertices.empty()) throw InvalidArgument("no vertices have no diameter");
  return Diameter(std::move(vertices)).value();
}

}  // namespace opbridge
