// Work in a child process, so that its crash is an answer and not the end.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace opbridge::doctor {

/// What is said from inside the child; survives a crash that follows.
using Say = std::function<void(const std::string& key, const nlohmann::ordered_json& value)>;

struct Outcome {
  std::map<std::string, std::vector<nlohmann::ordered_json>> said;
  std::string error;    // what the work threw
  std::string crash;    // "was ended by signal 11 (Segmentation fault)", "did not end within 60 s"
  std::string printed;  // stdout and stderr of the child, the last few kilobytes

  bool ok() const { return error.empty() && crash.empty(); }
  /// The last value said under `key`, or null.
  nlohmann::ordered_json last(const std::string& key) const;
  const std::vector<nlohmann::ordered_json>& all(const std::string& key) const;
};

Outcome in_child(const std::function<void(const Say&)>& work, double seconds);

}  // namespace opbridge::doctor
