// How far two arrays are apart, in the terms that suit what they hold. python/opbridge/_compare/metrics.py
// and geometry.py are the same for Python; tests/test_cli_compare.py holds the two together.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "opbridge/runner.h"

namespace opbridge::cli {

enum class Kind { kValue, kIndex, kRotation, kTranslation };

/// `error` decides: at most `limit` is equal. value: `error` is `relative`, the largest absolute difference
/// as a part of the root mean square of what is expected. rotation: the largest angle [degrees]. index:
/// entries that differ and are no ties. translation: as value.
struct Difference {
  Kind kind = Kind::kValue;
  bool equal = true;
  bool identical = true;  // every bit
  double error = 0, limit = 0;
  double max = 0, mean = 0, relative = 0, cosine = 1;
  double det = 1;                 // rotation: the determinant farthest from 1
  double millimetres = 0;         // translation: the largest distance
  int64_t entries = 0, rows = 0;  // index: entries that differ, rows that differ as sets
  std::optional<int64_t> ties;    // index: differing entries that are ties, where that can be told
  std::string problem;            // why they cannot be compared

  std::string to_string() const;
  nlohmann::ordered_json to_json() const;
};

/// Tells which differing entries of two index arrays are no ties.
using Geometry = std::function<int64_t(const Array& actual, const Array& expected)>;

/// Geometry of output number `output` of operator `op` (its name, whatever the domain), given its inputs;
/// empty where the output is no index into points or an input is null. `attributes` holds the node's and the
/// operator's defaults.
Geometry tie_geometry(const std::string& op, size_t output, const std::vector<const Array*>& inputs,
                      const nlohmann::ordered_json& attributes);

struct CompareOptions {
  std::optional<double> tolerance;  // else by element type
  double atol = 0;                  // values that differ by no more are equal, whatever the rest is like
  std::optional<Kind> kind;         // else what the arrays look like
  double millimetres_per_unit = 1000;
  Geometry geometry;
};

Difference compare(const Array& actual, const Array& expected, const CompareOptions& options = {});

}  // namespace opbridge::cli
