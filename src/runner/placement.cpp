#include "placement.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "proto.h"
#include "temporary_folder.h"

namespace opbridge {

Placement read_profile(const std::string& json, int runs) {
  Placement placement;
  // The body of a loop runs often.
  std::map<std::tuple<std::string, std::string, std::string>, std::vector<double>> times;
  const nlohmann::json events = nlohmann::json::parse(json, nullptr, false);
  if (!events.is_array())
    throw Error(ErrorKind::kInternal, "ONNX Runtime's profile is not what it should be");
  for (const nlohmann::json& event : events) {
    static const std::string kEnd = "_kernel_time";
    const std::string name = event.value("name", "");
    if (name.size() < kEnd.size() || name.compare(name.size() - kEnd.size(), kEnd.size(), kEnd) != 0)
      continue;
    const nlohmann::json arguments = event.value("args", nlohmann::json::object());
    if (!arguments.contains("provider")) continue;
    const std::string op = arguments.value("op_name", "");
    if (op == "MemcpyFromHost" || op == "MemcpyToHost") {
      ++placement.copies;
      continue;
    }
    Placement::Node node;
    node.name = name.substr(0, name.size() - kEnd.size());
    node.op = op;
    node.provider = arguments.at("provider");
    std::vector<double>& calls = times[{node.name, node.op, node.provider}];
    if (calls.empty()) placement.nodes.push_back(std::move(node));
    calls.push_back(event.value("dur", 0.0) / 1000);
  }
  for (Placement::Node& node : placement.nodes) {
    std::vector<double>& calls = times[{node.name, node.op, node.provider}];
    const auto middle = calls.begin() + static_cast<std::ptrdiff_t>(calls.size() / 2);
    std::nth_element(calls.begin(), middle, calls.end());
    node.milliseconds = *middle * static_cast<double>(calls.size()) / runs;
  }
  placement.copies /= runs;
  return placement;
}

Placement find_placement(const Runtime& runtime, const std::string& model, const Arrays& inputs,
                         SessionOptions options, int runs) {
  const TemporaryFolder folder;
  options.profile = (folder.path / "profile").string();
  Session session(runtime, model, options);
  for (int i = 0; i < runs; ++i) session.run(inputs);
  return read_profile(read_file(session.end_profiling()), runs);
}

}  // namespace opbridge
