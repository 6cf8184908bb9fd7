#include "placement.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "proto.h"

namespace opbridge {

namespace fs = std::filesystem;

Placement read_profile(const std::string& json) {
  Placement placement;
  std::set<std::tuple<std::string, std::string, std::string>> seen;  // the body of a loop runs often
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
    Placement::Node node{name.substr(0, name.size() - kEnd.size()), op, arguments.at("provider")};
    if (seen.insert({node.name, node.op, node.provider}).second) placement.nodes.push_back(std::move(node));
  }
  return placement;
}

Placement find_placement(const Runtime& runtime, const std::string& model, const Arrays& inputs,
                         SessionOptions options) {
  // A folder of its own, gone when this ends.
  struct Folder {
    Folder() {
      std::string name = (fs::temp_directory_path() / "opbridge_profile_XXXXXX").string();
      if (mkdtemp(name.data()) == nullptr)
        throw Error(ErrorKind::kInternal, "no temporary folder can be made");
      path = name;
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder() {
      std::error_code ec;
      fs::remove_all(path, ec);
    }
    fs::path path;
  } const folder;
  options.profile = (folder.path / "profile").string();
  Session session(runtime, model, options);
  session.run(inputs);
  return read_profile(read_file(session.end_profiling()));
}

}  // namespace opbridge
