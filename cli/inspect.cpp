// `opbridge inspect`: what a library or a model says about itself, without a session.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "command.h"
#include "core/text.h"
#include "opbridge/error.h"
#include "runner/library_file.h"
#include "runner/model.h"
#include "terminal.h"

namespace opbridge::cli {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;
using Rows = std::vector<std::vector<std::string>>;

struct Options {
  std::string file;
  std::vector<std::string> libraries;
  bool json = false;
};

constexpr const char* kExamples = R"(Examples:
  opbridge inspect libmy_custom_ops.so
  opbridge inspect m.onnx --library libmy_custom_ops.so
  opbridge inspect m.onnx --json

A library that is not opbridge's is only read, never loaded.
Exit codes: 0 done, 1 failed, 2 wrong command line.)";

std::string joined(const std::vector<std::string>& items, const char* separator = ", ") {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : separator) + item;
  return text;
}

// --- libraries

// A dimension of the manifest as the signature spells it.
std::string dim_text(const Json& dim, bool nested = false) {
  if (dim.is_string()) return dim.get<std::string>();
  if (!dim.is_object()) return dim.dump();
  if (dim.contains("prefix"))
    return "*" + dim["prefix"].get<std::string>() + (dim["optional"] == true ? "?" : "");
  const std::string text =
      dim_text(dim["args"][0], true) + dim["op"].get<std::string>() + dim_text(dim["args"][1], true);
  return nested ? "(" + text + ")" : text;
}

std::string shapes_text(const Json& shapes) {
  std::vector<std::string> alternatives;
  for (const Json& shape : shapes) {
    std::vector<std::string> dims;
    for (const Json& dim : shape) dims.push_back(dim_text(dim));
    alternatives.push_back("[" + joined(dims, ",") + "]");
  }
  return joined(alternatives, " or ");
}

std::string list_text(const Json& list) {
  std::vector<std::string> items;
  for (const Json& item : list) items.push_back(item.is_string() ? item.get<std::string>() : item.dump());
  return joined(items);
}

std::string value_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string range_text(const Json& attribute) {
  if (attribute.contains("choices")) return "{" + list_text(attribute["choices"]) + "}";
  const Json min = attribute.value("min", Json()), max = attribute.value("max", Json());
  if (min.is_null() && max.is_null()) return "any";
  return (min.is_null() ? "(-inf" : (attribute.value("min_open", false) ? "(" : "[") + min.dump()) + ", " +
         (max.is_null() ? "inf)" : max.dump() + (attribute.value("max_open", false) ? ")" : "]"));
}

void print_operator(const Json& op, const std::string& domain) {
  std::printf("\n%s  (%s)\n", heading(domain + "::" + op["name"].get<std::string>()).c_str(),
              list_text(op["devices"]).c_str());
  const std::string doc = op.value("doc", "");
  if (!doc.empty()) std::printf("  %s\n", doc.c_str());
  std::printf("  %s\n", op["signature"].get<std::string>().c_str());
  const auto dtypes = [&](const std::string& dtype) {
    const Json variables = op.value("dtypes", Json::object());
    return variables.contains(dtype) ? dtype + ": " + list_text(variables[dtype]) : dtype;
  };
  Rows rows = {{"argument", "types", "shape", "", "meaning"}};
  for (const char* kind : {"inputs", "outputs"}) {
    const bool input = std::string(kind) == "inputs";
    for (const Json& a : op[kind]) {
      std::vector<std::string> notes;
      if (!input) notes.push_back("output");
      if (a.value("optional", false)) notes.push_back("optional");
      if (a.value("variadic", false)) notes.push_back("one or more");
      if (a.value("host", false)) notes.push_back("on the host");
      rows.push_back(
          {a["name"], dtypes(a["dtype"]), shapes_text(a["shapes"]), joined(notes), a.value("doc", "")});
    }
  }
  std::printf("%s", table(rows).c_str());
  if (!op["attributes"].empty()) {
    rows = {{"attribute", "type", "range", "default", "meaning"}};
    for (const Json& a : op["attributes"]) {
      rows.push_back({a["name"], a["type"], range_text(a),
                      a.contains("default") ? value_text(a["default"]) : "required", a.value("doc", "")});
    }
    std::printf("%s", table(rows).c_str());
  }
  if (op.contains("grad") && op["grad"].is_string())
    std::printf("  gradient: %s\n", value_text(op["grad"]).c_str());
  std::printf("  fingerprint: %s\n", value_text(op["fingerprint"]).c_str());
}

void print_library(const LibraryFile& library) {
  const ElfFacts& elf = library.elf;
  if (library.is_opbridge()) {
    const Json& m = library.manifest;
    std::printf("%s %s, domain %s, made with opbridge %s\n", heading(value_text(m["library"])).c_str(),
                m["version"].dump().c_str(), value_text(m["domain"]).c_str(),
                m.value("opbridge", "?").c_str());
    const Json ort = m.value("onnxruntime", Json::object());
    const Json cuda = m.value("cuda", Json());
    std::printf("  %s\n", library.path.c_str());
    std::printf("  ONNX Runtime: %s and newer (built with API %s)\n", ort.value("min", "?").c_str(),
                ort.value("built_api", Json("?")).dump().c_str());
    if (cuda.is_object()) {
      std::printf("  CUDA: toolkit %s, architectures %s\n", cuda.value("toolkit", "?").c_str(),
                  list_text(cuda.value("architectures", Json::array())).c_str());
    } else {
      std::printf("  CUDA: none, a build for the CPU only\n");
    }
    for (const Json& op : m["operators"]) print_operator(op, library.domain());
  } else {
    std::printf("%s\n  %s\n", heading(fs::path(library.path).filename().string()).c_str(),
                library.path.c_str());
    std::printf("  not an opbridge library (no opbridge_get_library); read without loading it\n");
    std::printf("  %s\n", elf.exports("RegisterCustomOps")
                              ? "exports RegisterCustomOps: ONNX Runtime can load it"
                              : "exports no RegisterCustomOps: ONNX Runtime cannot load it "
                                "as a custom-operator library");
    if (elf.has_cuda_code) std::printf("  contains CUDA kernels\n");
  }
  constexpr size_t kShown = 20;
  std::vector<std::string> shown = elf.exported;
  if (shown.size() > kShown) {
    shown.resize(kShown);
    shown.push_back("... (--json lists all)");
  }
  std::printf("\n%s\n", heading("File").c_str());
  Rows rows = {{"machine", elf.machine},
               {"linked libraries", elf.needed.empty() ? "none" : joined(elf.needed)},
               {"needs at least", elf.needed_versions.empty() ? "-" : joined(elf.needed_versions)}};
  if (!elf.soname.empty()) rows.push_back({"soname", elf.soname});
  if (!elf.run_path.empty()) rows.push_back({"run path", joined(elf.run_path)});
  rows.push_back({std::to_string(elf.exported.size()) + " exported symbols", joined(shown)});
  std::printf("%s", table(rows).c_str());
}

Json library_json(const LibraryFile& library) {
  const ElfFacts& elf = library.elf;
  return {{"kind", "library"},
          {"path", library.path},
          {"opbridge", library.is_opbridge()},
          {"onnxruntime_loadable", elf.exports("RegisterCustomOps")},
          {"manifest", library.manifest},
          {"file",
           {{"machine", elf.machine},
            {"soname", elf.soname},
            {"run_path", elf.run_path},
            {"linked", elf.needed},
            {"needed_versions", elf.needed_versions},
            {"exported", elf.exported},
            {"cuda_code", elf.has_cuda_code}}}};
}

// --- models

std::string type_of(const ValueInfo& v) { return type_and_shape(v.type, v.rank_known, v.dims); }

Json values_json(const std::vector<ValueInfo>& values) {
  Json list = Json::array();
  for (const ValueInfo& v : values) {
    Json dims = Json::array();
    for (const Dimension& d : v.dims)
      dims.push_back(d.size >= 0 ? Json(d.size) : d.symbol.empty() ? Json() : Json(d.symbol));
    list.push_back({{"name", v.name}, {"type", v.type}, {"shape", v.rank_known ? dims : Json()}});
    if (v.has_default) list.back()["has_default"] = true;
  }
  return list;
}

Json model_json(const ModelInfo& model, const std::vector<LibraryFile>& libraries,
                const std::vector<std::string>& problems) {
  Json opsets = Json::object(), external = Json::object(), nodes = Json::array();
  for (const auto& [domain, version] : model.opsets) opsets[domain.empty() ? "ai.onnx" : domain] = version;
  for (const auto& [file, there] : model.external_data) external[file] = there;
  for (const CustomNode& node : model.custom_nodes) {
    Json attributes = Json::object(), constants = Json::object();
    for (const NodeAttribute& a : node.attributes)
      attributes[a.name] = {{"type", a.type}, {"value", a.value}};
    for (const auto& [position, text] : node.constant_inputs) constants[std::to_string(position)] = text;
    const LibraryFile* library = find_library(node, libraries);
    nodes.push_back({{"name", node.name},
                     {"domain", node.domain},
                     {"op", node.op},
                     {"where", node.where},
                     {"attributes", attributes},
                     {"inputs", node.inputs},
                     {"outputs", node.outputs},
                     {"constant_inputs", constants},
                     {"library", library == nullptr ? Json() : Json(library->path)},
                     {"unknown_attributes",
                      library == nullptr ? std::vector<std::string>() : unknown_attributes(node, *library)}});
  }
  return {{"kind", "model"},
          {"path", model.path},
          {"ir_version", model.ir_version},
          {"producer", model.producer},
          {"opsets", opsets},
          {"metadata", model.metadata},
          {"inputs", values_json(model.inputs)},
          {"outputs", values_json(model.outputs)},
          {"nodes", model.node_count},
          {"functions", model.functions},
          {"external_data", external},
          {"custom_nodes", nodes},
          {"problems", problems}};
}

void print_model(const ModelInfo& model, const std::vector<LibraryFile>& libraries,
                 const std::vector<std::string>& problems) {
  std::vector<std::string> opsets;
  for (const auto& [domain, version] : model.opsets) {
    opsets.push_back((domain.empty() ? "ai.onnx" : domain) + " " + std::to_string(version));
  }
  std::printf("%s\n", heading(model.path).c_str());
  Rows rows = {{"IR version", std::to_string(model.ir_version)}, {"opsets", joined(opsets)}};
  if (!model.producer.empty()) rows.push_back({"producer", model.producer});
  rows.push_back({"nodes", std::to_string(model.node_count)});
  if (!model.functions.empty()) rows.push_back({"functions", joined(model.functions)});
  for (const auto& [file, there] : model.external_data)
    rows.push_back({"weights in", file + (there ? "" : " (MISSING)")});
  for (const auto& [key, value] : model.metadata) rows.push_back({"metadata", key + " = " + value});
  std::printf("%s\n", table(rows).c_str());

  rows = {{"input", "type"}};
  for (const ValueInfo& v : model.inputs)
    rows.push_back({v.name, type_of(v), v.has_default ? "has a default" : ""});
  rows.push_back({});
  rows.push_back({"output", "type"});
  for (const ValueInfo& v : model.outputs) rows.push_back({v.name, type_of(v)});
  std::printf("%s\n", table(rows).c_str());

  if (model.custom_nodes.empty()) {
    std::printf("No custom operators: any ONNX Runtime that knows these opsets can run it.\n");
  } else {
    std::printf("%s\n", heading("Custom nodes").c_str());
  }
  for (const CustomNode& node : model.custom_nodes) {
    const std::string title = node.title() + (node.where.empty() ? "" : " in " + node.where);
    std::printf("  %s\n", printable(title).c_str());
    Rows facts;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const auto constant = node.constant_inputs.find(i);
      facts.push_back({"  input " + std::to_string(i), node.inputs[i].empty() ? "(absent)" : node.inputs[i],
                       constant == node.constant_inputs.end() ? "" : "constant " + constant->second});
    }
    for (const NodeAttribute& a : node.attributes) {
      facts.push_back({"  attribute", a.name + " = " + value_text(a.value), a.type});
    }
    facts.push_back({"  outputs", joined(node.outputs)});
    if (!libraries.empty()) {
      const LibraryFile* library = find_library(node, libraries);
      const bool all_known = std::all_of(libraries.begin(), libraries.end(),
                                         [](const LibraryFile& l) { return l.is_opbridge(); });
      facts.push_back({"  served by", library != nullptr ? library->path
                                      : all_known ? "NONE of the given libraries"
                                                  : "not known: 'opbridge doctor --load' asks foreign ones"});
    }
    std::printf("%s", table(facts).c_str());
  }
  if (model.custom_nodes.empty() || !libraries.empty()) {
    for (const std::string& p : problems)
      std::printf("%s %s\n", heading("problem:").c_str(), printable(p).c_str());
  } else {
    std::printf("\nPass --library to see which library serves them.\n");
  }
}

int inspect(const Options& options) {
  if (is_elf(options.file)) {
    if (!options.libraries.empty())
      throw InvalidArgument("--library goes with a model, '" + options.file + "' is a library");
    const LibraryFile library = read_library(options.file);
    if (options.json)
      print_json(library_json(library));
    else
      print_library(library);
    return kOk;
  }
  std::error_code ec;
  const std::string extension = fs::path(options.file).extension().string();
  if (extension == ".so" || extension.rfind(".so.", 0) == 0)
    read_elf(options.file);  // says what is wrong with it
  ModelInfo model;
  try {
    model = read_model(options.file);
  } catch (const Error& e) {
    const bool readable = fs::is_regular_file(options.file, ec);
    if (!readable || extension == ".onnx" || extension == ".ort") throw;
    throw InvalidArgument("'" + options.file +
                          "' is neither a shared library (.so) nor an ONNX model (.onnx)");
  }
  std::vector<LibraryFile> libraries;
  for (const std::string& path : options.libraries) libraries.push_back(read_operator_library(path));
  std::vector<std::string> problems = find_problems(model, libraries);
  if (libraries.empty()) {  // then every custom node is a problem; what is missing besides still is one
    ModelInfo without = model;
    without.custom_nodes.clear();
    problems = find_problems(without, libraries);
  }
  if (options.json)
    print_json(model_json(model, libraries, problems));
  else
    print_model(model, libraries, problems);
  return kOk;
}

}  // namespace

Command add_inspect(CLI::App& parent) {
  const auto o = std::make_shared<Options>();
  CLI::App* app =
      parent.add_subcommand("inspect", "Shows what a custom-operator library or an ONNX model contains");
  app->footer(kExamples);
  app->add_option("file", o->file, "A shared library (.so) or a model (.onnx)")->required()->option_text(" ");
  app->add_option("-l,--library", o->libraries,
                  "For a model: says which operators this library has; may be repeated")
      ->allow_extra_args(false)
      ->option_text("FILE");
  app->add_flag("--json", o->json, "Prints one JSON object instead of text");
  return {app, [o] { return inspect(*o); }};
}

}  // namespace opbridge::cli
