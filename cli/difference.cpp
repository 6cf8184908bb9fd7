#include "difference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "runner/visit.h"
#include "terminal.h"

namespace opbridge::cli {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Tolerances {
  double value, rotation, tie;
};

Tolerances tolerances(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return {1e-2, 0.5, 5e-3};
    case DType::bf16:
      return {5e-2, 3.0, 4e-2};
    case DType::f64:
      return {1e-7, 1e-5, 1e-12};
    default:
      return {1e-3, 0.05, 1e-5};
  }
}

bool is_floating(DType d) {
  return d == DType::f16 || d == DType::bf16 || d == DType::f32 || d == DType::f64;
}

std::vector<double> doubles(const Array& array) {
  std::vector<double> values(static_cast<size_t>(array.count()));
  visit(array, [&](const auto* v) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = as_double(v[i]);
  });
  return values;
}

std::string shape_text(const Array& a) {
  return a.to_string().substr(std::string(dtype_name(a.dtype())).size());
}

Difference wrong(const std::string& problem) {
  Difference d;
  d.equal = d.identical = false;
  d.error = d.max = d.mean = d.relative = kInfinity;
  d.cosine = std::numeric_limits<double>::quiet_NaN();
  d.problem = problem;
  return d;
}

double determinant(const double* r) {
  return r[0] * (r[4] * r[8] - r[5] * r[7]) - r[1] * (r[3] * r[8] - r[5] * r[6]) +
         r[2] * (r[3] * r[7] - r[4] * r[6]);
}

bool is_3x3(const Array& a) {
  const auto& s = a.shape();
  return s.size() >= 2 && s[s.size() - 1] == 3 && s[s.size() - 2] == 3;
}

// All of it are rotation matrices: orthonormal to 1e-2 with a positive determinant.
bool is_rotation(const Array& array, const std::vector<double>& values) {
  if (!is_3x3(array) || values.empty()) return false;
  for (size_t at = 0; at < values.size(); at += 9) {
    const double* r = &values[at];
    for (size_t i = 0; i < 3; ++i) {
      for (size_t j = 0; j < 3; ++j) {
        double dot = 0;
        for (size_t k = 0; k < 3; ++k) dot += r[3 * i + k] * r[3 * j + k];
        if (!(std::abs(dot - (i == j ? 1 : 0)) < 1e-2)) return false;
      }
    }
    if (!(determinant(r) > 0)) return false;
  }
  return true;
}

Difference compare_indices(const Array& actual, const Array& expected, const Geometry& geometry) {
  Difference d;
  d.kind = Kind::kIndex;
  const std::vector<double> a = doubles(actual), e = doubles(expected);
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - e[i]);
    d.entries += a[i] != e[i];
    d.max = std::max(d.max, difference);
    sum += difference;
  }
  if (!a.empty()) {
    d.mean = sum / static_cast<double>(a.size());
    d.relative = static_cast<double>(d.entries) / static_cast<double>(a.size());
  }
  if (d.entries > 0) {
    d.cosine = std::numeric_limits<double>::quiet_NaN();
    const size_t width = actual.shape().empty() ? 1 : static_cast<size_t>(actual.shape().back());
    for (size_t at = 0; at < a.size(); at += width) {
      std::vector<double> x(&a[at], &a[at] + width), y(&e[at], &e[at] + width);
      std::sort(x.begin(), x.end());
      std::sort(y.begin(), y.end());
      d.rows += x != y;
    }
  }
  int64_t bad = d.entries;
  if (geometry) {
    bad = d.entries > 0 ? geometry(actual, expected) : 0;
    d.ties = d.entries - bad;
  }
  d.error = static_cast<double>(bad);
  d.equal = bad == 0;
  return d;
}

}  // namespace

Difference compare(const Array& actual, const Array& expected, const CompareOptions& options) {
  if (actual.shape() != expected.shape())
    return wrong("has shape " + shape_text(actual) + ", not " + shape_text(expected));
  const bool floating = is_floating(expected.dtype());
  if (is_floating(actual.dtype()) != floating)
    return wrong(std::string("is ") + dtype_name(actual.dtype()) + ", not " + dtype_name(expected.dtype()));
  const bool identical =
      actual.dtype() == expected.dtype() &&
      (actual.bytes() == 0 || std::memcmp(actual.data(), expected.data(), actual.bytes()) == 0);
  if (!floating) {
    Difference d = compare_indices(actual, expected, options.geometry);
    d.identical = identical;
    return d;
  }
  // The coarser of the two types says how much they can agree.
  const Tolerances x = tolerances(actual.dtype()), y = tolerances(expected.dtype());
  const Tolerances by_type = x.value > y.value ? x : y;
  const std::vector<double> a = doubles(actual), e = doubles(expected);
  int64_t nan_a = 0, nan_e = 0;
  bool same_places = true, same_infinities = true;
  double sum = 0, squares = 0, dot = 0, aa = 0;
  int64_t finite = 0;
  Difference d;
  for (size_t i = 0; i < a.size(); ++i) {
    nan_a += std::isnan(a[i]);
    nan_e += std::isnan(e[i]);
    if (std::isnan(a[i]) != std::isnan(e[i])) same_places = false;
    if (std::isnan(a[i]) || std::isnan(e[i])) continue;
    if (std::isinf(a[i]) || std::isinf(e[i])) {
      if (a[i] != e[i]) same_infinities = false;
      continue;
    }
    const double difference = std::abs(a[i] - e[i]);
    d.max = std::max(d.max, difference);
    sum += difference;
    squares += e[i] * e[i];
    aa += a[i] * a[i];
    dot += a[i] * e[i];
    ++finite;
  }
  if (!same_places) {
    return wrong("has " + std::to_string(nan_a) + " NaN of " + std::to_string(a.size()) +
                 " values, expected " + std::to_string(nan_e));
  }
  if (!same_infinities) return wrong("has infinite values in other places than expected");
  d.limit = options.tolerance.value_or(by_type.value);
  if (finite > 0) {
    d.mean = sum / static_cast<double>(finite);
    const double rms = std::sqrt(squares / static_cast<double>(finite));
    d.relative = rms > 0 ? d.max / rms : d.max > 0 ? kInfinity : 0;
    const double norms = std::sqrt(aa) * std::sqrt(squares);
    d.cosine = norms > 0 ? std::min(1.0, dot / norms) : d.max == 0 ? 1 : 0;
  }
  d.error = d.relative;
  d.equal = d.error <= d.limit || d.max <= options.atol;
  d.identical = identical;
  const bool rotations = options.kind ? *options.kind == Kind::kRotation && is_3x3(expected) && nan_e == 0
                                      : is_rotation(expected, e);
  if (rotations) {
    d.kind = Kind::kRotation;
    d.limit = options.tolerance ? *options.tolerance * 180 / std::acos(-1.0) : by_type.rotation;
    d.error = 0;
    for (size_t at = 0; at < a.size(); at += 9) {
      // The chord |A - E| = sqrt(8) sin(angle / 2) is exact for small angles, where the trace is not.
      double chord = 0;
      for (size_t i = 0; i < 9; ++i) chord += (a[at + i] - e[at + i]) * (a[at + i] - e[at + i]);
      const double angle = 2 * std::asin(std::min(1.0, std::sqrt(chord / 8))) * 180 / std::acos(-1.0);
      d.error = std::max(d.error, angle);
      const double det = determinant(&a[at]);
      if (std::abs(det - 1) > std::abs(d.det - 1)) d.det = det;
    }
    d.equal = d.error <= d.limit && std::abs(d.det - 1) < 1e-2;
  } else if (options.kind == Kind::kTranslation && !expected.shape().empty() &&
             expected.shape().back() == 3) {
    d.kind = Kind::kTranslation;
    for (size_t at = 0; at < a.size(); at += 3) {
      double squared = 0;
      for (size_t i = 0; i < 3; ++i) {
        const double difference = a[at + i] - e[at + i];
        if (std::isfinite(difference)) squared += difference * difference;
      }
      d.millimetres = std::max(d.millimetres, std::sqrt(squared) * options.millimetres_per_unit);
    }
  }
  return d;
}

std::string Difference::to_string() const {
  if (!problem.empty()) return problem;
  if (kind == Kind::kIndex) {
    if (entries == 0) return "the same indices";
    return std::to_string(entries) + " indices differ" +
           (ties ? ", " + std::to_string(*ties) + " of them ties" : "") + "; " + std::to_string(rows) +
           " rows differ as sets";
  }
  if (identical) return "the same bits";
  if (kind == Kind::kRotation) return number(error) + " degrees apart, det " + number(det);
  if (kind == Kind::kTranslation) return number(millimetres) + " mm apart";
  return "";
}

nlohmann::ordered_json Difference::to_json() const {
  static const char* const names[] = {"value", "index", "rotation", "translation"};
  nlohmann::ordered_json j = {{"kind", names[static_cast<int>(kind)]},
                              {"equal", equal},
                              {"identical", identical},
                              {"error", error},
                              {"limit", limit},
                              {"max", max},
                              {"mean", mean},
                              {"relative", relative},
                              {"cosine", cosine}};
  if (!problem.empty()) j["problem"] = problem;
  if (kind == Kind::kRotation) j["det"] = det;
  if (kind == Kind::kTranslation) j["millimetres"] = millimetres;
  if (kind == Kind::kIndex) {
    j["entries"] = entries;
    j["rows"] = rows;
    j["ties"] = ties ? nlohmann::ordered_json(*ties) : nullptr;
  }
  return j;
}

// --- ties

namespace {

// Clouds (B, N, 3) as doubles.
struct Points {
  explicit Points(const Array& array) : values(doubles(array)), tie(tolerances(array.dtype()).tie) {
    if (array.shape().size() == 3 && array.shape()[2] == 3) {
      batches = static_cast<size_t>(array.shape()[0]);
      count = static_cast<size_t>(array.shape()[1]);
    }
  }
  const double* at(size_t b, size_t n) const { return &values[(b * count + n) * 3]; }
  std::vector<double> values;
  double tie;
  size_t batches = 0, count = 0;
};

double distance(const double* p, const double* q) {
  return std::sqrt((p[0] - q[0]) * (p[0] - q[0]) + (p[1] - q[1]) * (p[1] - q[1]) +
                   (p[2] - q[2]) * (p[2] - q[2]));
}

double largest(const double* v, size_t n) {
  double m = 0;
  for (size_t i = 0; i < n; ++i) {
    if (std::isfinite(v[i])) m = std::max(m, std::abs(v[i]));
  }
  return m;
}

// Rows of index arrays: f(b, m, actual row, expected row) -> how many of its entries are wrong.
template <class F>
int64_t count_rows(const Array& actual, const Array& expected, size_t rows_per_batch, F&& f) {
  const std::vector<double> a = doubles(actual), e = doubles(expected);
  const size_t width = static_cast<size_t>(actual.shape().back());
  int64_t bad = 0;
  for (size_t row = 0; row * width < a.size(); ++row) {
    const double *x = &a[row * width], *y = &e[row * width];
    if (!std::equal(x, x + width, y)) bad += f(row / rows_per_batch, row % rows_per_batch, x, y, width);
  }
  return bad;
}

int64_t differing(const double* x, const double* y, size_t width) {
  int64_t n = 0;
  for (size_t i = 0; i < width; ++i) n += x[i] != y[i];
  return n;
}

bool valid(double index, size_t count) { return index >= 0 && index < static_cast<double>(count); }

// Nearest neighbours: the distance at each rank decides, not the index; a point may be told once only.
int64_t farther(const Array& actual, const Array& expected, const Points& points, const Points& queries) {
  const double scale = largest(points.values.data(), points.values.size());
  return count_rows(actual, expected, queries.count,
                    [&](size_t b, size_t m, const double* x, const double* y, size_t width) {
                      std::vector<double> told(x, x + width);
                      std::sort(told.begin(), told.end());
                      if (std::adjacent_find(told.begin(), told.end()) != told.end())
                        return differing(x, y, width);
                      int64_t bad = 0;
                      for (size_t i = 0; i < width; ++i) {
                        if (x[i] == y[i]) continue;
                        if (!valid(x[i], points.count) || !valid(y[i], points.count)) {
                          ++bad;
                          continue;
                        }
                        const double dx = distance(points.at(b, static_cast<size_t>(x[i])), queries.at(b, m));
                        const double dy = distance(points.at(b, static_cast<size_t>(y[i])), queries.at(b, m));
                        bad += !(std::abs(dx - dy) <= points.tie * (std::max(dx, dy) + scale));
                      }
                      return bad;
                    });
}

// The row holds the first points closer than the radius, give or take those right at it.
bool found_right(const double* row, size_t width, const Points& points, size_t b, const double* query,
                 double radius, double nearest) {
  const double scale = points.tie * (radius + largest(query, 3));
  std::vector<char> sure(points.count), may(points.count);
  bool any = false, any_sure = false;
  for (size_t i = 0; i < points.count; ++i) {
    const double d = distance(points.at(b, i), query);
    sure[i] = d < radius - scale && (d >= nearest + scale || d == 0);
    may[i] = d < radius + scale && (d >= nearest - scale || d == 0);
    any = any || may[i];
    any_sure = any_sure || sure[i];
  }
  if (!any) return std::all_of(row, row + width, [](double v) { return v == 0; });
  std::vector<double> told;
  for (size_t i = 0; i < width; ++i) {
    if (std::find(told.begin(), told.end(), row[i]) == told.end()) told.push_back(row[i]);
  }
  if (told.size() == 1 && told[0] == 0 && !may[0] && !any_sure) return true;
  for (size_t i = 0; i < told.size(); ++i) {
    if (!valid(told[i], points.count) || !may[static_cast<size_t>(told[i])]) return false;
    if (i > 0 && told[i] <= told[i - 1]) return false;
  }
  const size_t last = told.size() == width ? static_cast<size_t>(told.back()) : points.count;
  for (size_t i = 0; i < last; ++i) {
    if (sure[i] && std::find(told.begin(), told.end(), static_cast<double>(i)) == told.end()) return false;
  }
  return true;
}

// Each point is as far from those before it as any is.
bool sampled_right(const double* row, size_t width, const Points& points, size_t b, double start,
                   double floor) {
  for (size_t i = 0; i < width; ++i) {
    if (!valid(row[i], points.count)) return false;
  }
  if (row[0] != start) return false;
  std::vector<size_t> allowed;
  double scale = 0;
  for (size_t i = 0; i < points.count; ++i) {
    const double* p = points.at(b, i);
    const double norm = p[0] * p[0] + p[1] * p[1] + p[2] * p[2];
    if (!std::isfinite(norm) || !(norm > floor)) continue;
    allowed.push_back(i);
    scale = std::max(scale, largest(p, 3));
  }
  scale *= points.tie;
  std::vector<double> nearest(points.count, kInfinity);
  for (size_t k = 1; k < width; ++k) {
    double best = 0;
    for (size_t i = 0; i < points.count; ++i) {
      const double d = distance(points.at(b, i), points.at(b, static_cast<size_t>(row[k - 1])));
      nearest[i] = std::min(nearest[i], d);
    }
    for (const size_t i : allowed) best = std::max(best, nearest[i]);
    if (best > scale && !(nearest[static_cast<size_t>(row[k])] >= best - scale)) return false;
  }
  return true;
}

}  // namespace

Geometry tie_geometry(const std::string& op, size_t output, const std::vector<const Array*>& inputs,
                      const nlohmann::ordered_json& attributes) {
  const auto attribute = [&](const char* name, double otherwise) {
    const auto found = attributes.find(name);
    return found != attributes.end() && found->is_number() ? found->get<double>() : otherwise;
  };
  const auto points = [&](size_t n) -> std::shared_ptr<Points> {
    if (n >= inputs.size() || inputs[n] == nullptr) return nullptr;
    auto p = std::make_shared<Points>(*inputs[n]);
    return p->count > 0 ? p : nullptr;
  };
  if (op == "FarthestPointSample" && output == 0) {
    const auto xyz = points(0);
    if (!xyz) return {};
    const double start = attribute("start", 0), floor = attribute("min_sq_norm", -1);
    return [=](const Array& a, const Array& e) {
      return count_rows(a, e, 1, [&](size_t b, size_t, const double* x, const double* y, size_t width) {
        const bool right =
            sampled_right(x, width, *xyz, b, start, floor) && sampled_right(y, width, *xyz, b, start, floor);
        return right ? 0 : differing(x, y, width);
      });
    };
  }
  const bool knn = op == "KNN" && output == 0, three = op == "ThreeNN" && output == 1,
             ball = op == "BallQuery" && output == 0;
  if (!knn && !three && !ball) return {};
  const auto searched = points(three ? 1 : 0), queries = points(three ? 0 : 1);
  if (!searched || !queries) return {};
  if (!ball) return [=](const Array& a, const Array& e) { return farther(a, e, *searched, *queries); };
  const double radius = attribute("radius", 0), nearest = attribute("min_radius", 0);
  return [=](const Array& a, const Array& e) {
    return count_rows(a, e, queries->count,
                      [&](size_t b, size_t m, const double* x, const double* y, size_t width) {
                        const double* q = queries->at(b, m);
                        const bool right = found_right(x, width, *searched, b, q, radius, nearest) &&
                                           found_right(y, width, *searched, b, q, radius, nearest);
                        return right ? 0 : differing(x, y, width);
                      });
  };
}

}  // namespace opbridge::cli
