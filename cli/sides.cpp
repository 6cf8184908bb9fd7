#include "sides.h"

namespace opbridge::cli {

void add_side_options(CLI::App& app, SideOptions& o) {
  app.add_option("model", o.model, "The .onnx file")->required()->option_text(" ");
  app.add_option("second", o.second, "Another .onnx file, to compare with the first")->option_text(" ");
  const auto many = [&](const char* name, auto& target, const char* help, const char* text) {
    return app.add_option(name, target, help)->allow_extra_args(false)->option_text(text);
  };
  many("-l,--library", o.libraries, "A custom-operator library; may be repeated", "FILE");
  many("--library-b", o.libraries_b,
       "A library in the place of those: of the second model, or the same model again", "FILE");
  many("--ort", o.orts, "An ONNX Runtime: libonnxruntime.so.* or a folder that has it; repeat to compare",
       "PATH");
  many("--provider", o.providers, "cpu or cuda [cpu]; repeat to compare", "NAME")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  many("--threads", o.threads, "Threads inside an operator; 0: ONNX Runtime decides [0]; repeat to compare",
       "N")
      ->check(CLI::Range(0, 4096));
  std::vector<std::string> levels;
  for (const auto& level : optimization_levels()) levels.push_back(level.first);
  many("--optimize", o.levels, "none, basic, extended or all [all]; repeat to compare", "LEVEL")
      ->check(CLI::IsMember(levels));
  app.add_flag("--allow-fallback", o.allow_fallback, "With cuda: what CUDA cannot run, runs on the CPU");
  app.add_option("--device-id", o.device_id, "Which GPU [0]")->check(CLI::Range(0, 1023))->option_text("N");
}

std::vector<Side> sides_of(const SideOptions& o) {
  const auto or_default = [](std::vector<std::string> given, const char* otherwise) {
    if (given.empty()) given.emplace_back(otherwise);
    return given;
  };
  const auto orts = or_default(o.orts, ""), providers = or_default(o.providers, "cpu"),
             levels = or_default(o.levels, "all");
  const std::vector<int> threads = o.threads.empty() ? std::vector<int>{0} : o.threads;
  std::vector<Side> models(1);
  models[0].model = o.model;
  models[0].libraries = o.libraries;
  if (!o.second.empty() || !o.libraries_b.empty()) {
    Side second = models[0];
    if (!o.second.empty()) second.model = o.second;
    if (!o.libraries_b.empty()) second.libraries = o.libraries_b;
    second.second_libraries = !o.libraries_b.empty();
    models.push_back(second);
  }
  std::vector<Side> sides;
  for (const Side& m : models) {
    for (const std::string& ort : orts) {
      for (const std::string& provider : providers) {
        for (const int t : threads) {
          for (const std::string& level : levels) {
            Side side = m;
            side.ort = ort;
            side.provider = provider;
            side.threads = t;
            side.level = level;
            sides.push_back(side);
          }
        }
      }
    }
  }
  return sides;
}

SessionOptions Side::session_options(const SideOptions& o) const {
  SessionOptions options;
  options.libraries = libraries;
  options.provider = provider;
  options.allow_fallback = o.allow_fallback;
  options.device_id = o.device_id;
  options.threads = threads;
  options.optimization = optimization_levels().at(level);
  return options;
}

std::string Side::label(const SideOptions& o, const std::string& version) const {
  std::string text;
  const auto add = [&](bool varies, const std::string& part) {
    if (varies) text += (text.empty() ? "" : ", ") + part;
  };
  add(!o.second.empty(), model);
  add(!o.libraries_b.empty(), second_libraries ? "--library-b" : "--library");
  add(o.orts.size() > 1, "ORT " + version);
  add(o.providers.size() > 1, provider);
  add(o.threads.size() > 1, threads == 0 ? "threads: ORT's choice" : "threads " + std::to_string(threads));
  add(o.levels.size() > 1, "optimize " + level);
  return text.empty() ? model : text;
}

Arrays same_inputs(const Session& session, const Arrays& arrays, const std::string& model,
                   const std::string& first) {
  Arrays inputs;
  for (const TensorInfo& info : session.inputs()) {
    const auto given = arrays.find(info.name);
    if (given != arrays.end()) {
      inputs.emplace(info.name, given->second);
    } else if (!info.optional) {
      std::string have;
      for (const auto& a : arrays) have += (have.empty() ? "'" : ", '") + a.first + "'";
      throw InvalidArgument("'" + model + "' has the input '" + info.name + "', which '" + first +
                            "' does not (it has " + (have.empty() ? "none" : have) +
                            "): both get the same inputs by name");
    }
  }
  return inputs;
}

}  // namespace opbridge::cli
