#include "model.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <set>

#include "core/text.h"
#include "onnx_types.h"
#include "proto.h"
#include "visit.h"

namespace opbridge {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

// Domains whose operators ONNX Runtime itself brings.
bool is_built_in(const std::string& domain) {
  static constexpr const char* kBuiltIn[] = {"",
                                             "ai.onnx",
                                             "ai.onnx.ml",
                                             "ai.onnx.preview",
                                             "ai.onnx.training",
                                             "ai.onnx.preview.training",
                                             "com.microsoft",
                                             "com.microsoft.nchwc",
                                             "com.microsoft.dml",
                                             "com.microsoft.experimental",
                                             "com.ms.internal.nhwc",
                                             "org.pytorch.aten"};
  return std::find(std::begin(kBuiltIn), std::end(kBuiltIn), domain) != std::end(kBuiltIn);
}

// 0.08f as 0.08, not as 0.07999999821186066.
double shortest(float f) {
  if (!std::isfinite(f)) return f;
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text) - 1, f).ptr;
  *end = '\0';
  return std::strtod(text, nullptr);
}

Json number(float f) {
  if (std::isfinite(f)) return shortest(f);
  return std::isnan(f) ? "nan" : f > 0 ? "inf" : "-inf";  // JSON has no number for these
}

// "f32[2] 0.5 1", the values only where they are few.
std::string describe(const pb::TensorProto& t) {
  std::string text = onnx_type_name(t.data_type()) + "[";
  for (int i = 0; i < t.dims_size(); ++i) text += (i == 0 ? "" : ",") + std::to_string(t.dims(i));
  text += "]";
  if (t.data_location() == pb::TensorProto::EXTERNAL || !from_onnx_type(t.data_type())) return text;
  constexpr int64_t kShown = 8;
  int64_t count = 1;
  for (const int64_t d : t.dims()) {
    if (d < 0 || d > kShown) return text;
    count *= d;
    if (count > kShown) return text;
  }
  try {
    const Array a = to_array(t, t.name());
    visit(a, [&](const auto* values) {
      for (int64_t i = 0; i < count; ++i) {
        using T = std::decay_t<decltype(*values)>;
        if constexpr (kIsFloat<T> && !std::is_same_v<T, double>)
          text += " " + number(static_cast<float>(values[i])).dump();
        else
          text += " " + Json(values[i]).dump();
      }
    });
  } catch (const Error&) {
    text += " (damaged)";  // only shown; ONNX Runtime judges it
  }
  return text;
}

NodeAttribute describe(const pb::AttributeProto& a) {
  NodeAttribute out;
  out.name = a.name();
  if (!a.ref_attr_name().empty()) {
    out.type = "reference";
    out.value = a.ref_attr_name();
    return out;
  }
  out.value = Json::array();
  switch (a.type()) {
    case pb::AttributeProto::FLOAT:
      out.type = "float", out.value = number(a.f());
      break;
    case pb::AttributeProto::INT:
      out.type = "int", out.value = a.i();
      break;
    case pb::AttributeProto::STRING:
      out.type = "string", out.value = a.s();
      break;
    case pb::AttributeProto::TENSOR:
      out.type = "tensor", out.value = describe(a.t());
      break;
    case pb::AttributeProto::FLOATS:
      out.type = "floats";
      for (const float f : a.floats()) out.value.push_back(number(f));
      break;
    case pb::AttributeProto::INTS:
      out.type = "ints";
      for (const int64_t i : a.ints()) out.value.push_back(i);
      break;
    case pb::AttributeProto::STRINGS:
      out.type = "strings";
      for (const std::string& s : a.strings()) out.value.push_back(s);
      break;
    default:
      out.type = a.type() == pb::AttributeProto::GRAPH ? "graph" : "other";
      out.value = nullptr;
  }
  return out;
}

ValueInfo describe(const pb::ValueInfoProto& v) {
  ValueInfo out;
  out.name = v.name();
  if (!v.type().has_tensor_type()) {
    out.type = v.type().has_sequence_type()        ? "sequence"
               : v.type().has_map_type()           ? "map"
               : v.type().has_optional_type()      ? "optional"
               : v.type().has_sparse_tensor_type() ? "sparse tensor"
                                                   : "untyped";
    return out;
  }
  const auto& tensor = v.type().tensor_type();
  out.type = onnx_type_name(tensor.elem_type());
  out.rank_known = tensor.has_shape();
  for (const auto& d : tensor.shape().dim()) {
    Dimension dim;
    if (d.has_dim_value() && d.dim_value() >= 0) dim.size = d.dim_value();
    dim.symbol = d.dim_param();
    out.dims.push_back(dim);
  }
  return out;
}

// Collects the custom nodes of a model. A scope knows the constants of its graph and of those around it.
class Walker {
 public:
  Walker(const pb::ModelProto& model, ModelInfo& info) : info_(info) {
    for (const auto& f : model.functions()) {
      defined_.insert({f.domain(), f.name()});
      info_.functions.push_back(f.domain() + "::" + f.name());
    }
    walk(model.graph(), "", nullptr);
    for (const auto& f : model.functions())
      walk_nodes(f.node(), "function " + f.domain() + "::" + f.name(), Scope{});
  }

 private:
  struct Scope {
    const Scope* outer = nullptr;
    std::map<std::string, std::string> constants;  // value name -> description
  };

  void note_external(const pb::TensorProto& t) {
    if (t.data_location() != pb::TensorProto::EXTERNAL) return;
    for (const auto& entry : t.external_data()) {
      if (entry.key() != "location") continue;
      std::error_code ec;
      info_.external_data[entry.value()] = fs::exists(fs::path(info_.path).parent_path() / entry.value(), ec);
    }
  }

  void walk(const pb::GraphProto& graph, const std::string& where, const Scope* outer) {
    Scope scope;
    scope.outer = outer;
    for (const auto& t : graph.initializer()) {
      note_external(t);
      scope.constants[t.name()] = describe(t);
    }
    walk_nodes(graph.node(), where, std::move(scope));
  }

  template <class Nodes>
  void walk_nodes(const Nodes& nodes, const std::string& where, Scope scope) {
    for (const pb::NodeProto& node : nodes) {
      ++info_.node_count;
      const bool constant =
          node.op_type() == "Constant" && is_built_in(node.domain()) && node.output_size() == 1;
      for (const auto& a : node.attribute()) {
        if (a.has_t()) note_external(a.t());
        if (constant && a.has_t()) scope.constants[node.output(0)] = describe(a.t());
        if (constant && !a.has_t()) {
          scope.constants[node.output(0)] =
              describe(a).value.dump(-1, ' ', false, Json::error_handler_t::replace);
        }
        const std::string inside = a.name() + " of " + node.op_type() + " '" + node.name() + "'";
        if (a.has_g()) walk(a.g(), inside, &scope);
        for (const auto& g : a.graphs()) walk(g, inside, &scope);
      }
      if (is_built_in(node.domain()) || defined_.count({node.domain(), node.op_type()}) != 0) continue;
      CustomNode custom;
      custom.name = node.name();
      custom.domain = node.domain();
      custom.op = node.op_type();
      custom.where = where;
      for (const auto& a : node.attribute()) custom.attributes.push_back(describe(a));
      for (int i = 0; i < node.input_size(); ++i) {
        custom.inputs.push_back(node.input(i));
        for (const Scope* s = &scope; s != nullptr; s = s->outer) {
          const auto found = s->constants.find(node.input(i));
          if (found == s->constants.end() || node.input(i).empty()) continue;
          custom.constant_inputs[static_cast<size_t>(i)] = found->second;
          break;
        }
      }
      custom.outputs.assign(node.output().begin(), node.output().end());
      info_.custom_nodes.push_back(std::move(custom));
    }
  }

  ModelInfo& info_;
  std::set<std::pair<std::string, std::string>> defined_;
};

std::string file_name(const LibraryFile& library) { return fs::path(library.path).filename().string(); }

}  // namespace

std::string CustomNode::title() const {
  const std::string output = outputs.empty() ? "" : outputs[0];
  return domain + "::" + op +
         (name.empty() ? " (the node that makes '" + output + "')" : " (node '" + name + "')");
}

std::string type_and_shape(const std::string& type, bool rank_known, const std::vector<Dimension>& dims) {
  if (!rank_known) return type;
  std::string text = type + "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) text += ",";
    text += dims[i].size >= 0 ? std::to_string(dims[i].size) : dims[i].symbol.empty() ? "?" : dims[i].symbol;
  }
  return text + "]";
}

pb::ModelProto parse_model(const std::string& path) {
  const std::string bytes = read_file(path);
  const auto fail = [&](const std::string& why) { return InvalidArgument("'" + path + "' " + why); };
  if (bytes.empty()) throw fail("is empty, not an ONNX model");
  if (bytes.size() > 8 && bytes.compare(4, 4, "ORTM") == 0) {
    throw fail("is in ONNX Runtime's own .ort format; the .onnx it was made from is needed");
  }
  pb::ModelProto model;
  if (!model.ParseFromString(bytes)) throw fail("is not an ONNX model, or is damaged or cut off");
  if (!model.has_graph() || !model.has_ir_version()) throw fail("is not an ONNX model: it has no graph");
  return model;
}

ModelInfo read_model(const std::string& path) { return describe_model(parse_model(path), path); }

ModelInfo describe_model(const pb::ModelProto& model, const std::string& path) {
  ModelInfo info;
  info.path = path;
  info.ir_version = model.ir_version();
  info.producer =
      model.producer_name() + (model.producer_version().empty() ? "" : " " + model.producer_version());
  for (const auto& o : model.opset_import())
    info.opsets[o.domain() == "ai.onnx" ? "" : o.domain()] = o.version();
  for (const auto& m : model.metadata_props()) info.metadata[m.key()] = m.value();
  std::set<std::string> initializers;
  for (const auto& t : model.graph().initializer()) initializers.insert(t.name());
  for (const auto& t : model.graph().sparse_initializer()) initializers.insert(t.values().name());
  for (const auto& v : model.graph().input()) {
    ValueInfo input = describe(v);
    input.has_default = initializers.count(v.name()) != 0;
    // Before IR version 4 every initializer had to be listed as an input; it was a constant all the same.
    if (!input.has_default || info.ir_version >= 4) info.inputs.push_back(std::move(input));
  }
  for (const auto& v : model.graph().output()) info.outputs.push_back(describe(v));
  Walker(model, info);
  return info;
}

const LibraryFile* find_library(const CustomNode& node, const std::vector<LibraryFile>& libraries) {
  for (const LibraryFile& library : libraries) {
    if (library.domain() == node.domain && library.find_operator(node.op) != nullptr) return &library;
  }
  return nullptr;
}

std::vector<std::string> unknown_attributes(const CustomNode& node, const LibraryFile& library) {
  std::vector<std::string> known, unknown;
  for (const auto& a : library.find_operator(node.op)->at("attributes")) known.push_back(a.at("name"));
  for (const NodeAttribute& a : node.attributes) {
    if (std::find(known.begin(), known.end(), a.name) != known.end()) continue;
    std::string hint = did_you_mean(a.name, known);
    if (hint.empty()) hint = known.empty() ? "; it has none" : "; it has " + list_of(known);
    unknown.push_back(node.title() + ": unknown attribute '" + a.name + "'" + hint);
  }
  return unknown;
}

namespace {

// Why no library serves the node, and what to do about it.
std::string explain_unserved(const CustomNode& node, const ModelInfo& model,
                             const std::vector<LibraryFile>& libraries) {
  const std::string full = node.domain + "::" + node.op;
  std::vector<std::string> same_domain, files;
  for (const LibraryFile& library : libraries) {
    files.push_back(file_name(library));
    if (!library.is_opbridge()) continue;
    for (const auto& op : library.manifest.at("operators")) {
      const std::string name = op.at("name");
      if (name == node.op) {
        return node.title() + ": the same operator under another domain: " + file_name(library) + " has " +
               library.domain() + "::" + name +
               ". Export the model with that domain, or pass the library of '" + node.domain + "'";
      }
      if (library.domain() == node.domain) same_domain.push_back(name);
    }
  }
  std::string expected;
  const auto recorded = model.metadata.find("opbridge.library." + node.domain);
  if (recorded != model.metadata.end())
    expected = " (the model was exported with '" + recorded->second + "')";
  if (libraries.empty()) {
    return node.title() + ": a custom operator, and no library was given. Pass the one that has " + full +
           expected + ": --library lib<name>.so";
  }
  if (!same_domain.empty()) {
    std::string hint = did_you_mean(node.op, same_domain);
    if (hint.empty()) hint = "; it has " + list_of(same_domain);
    return node.title() + ": the library of '" + node.domain + "' has no operator '" + node.op + "'" + hint;
  }
  return node.title() + ": none of the given libraries (" + list_of(files) +
         ") has operators of the domain '" + node.domain + "'. Pass the one that has" + expected +
         ": --library lib<name>.so";
}

}  // namespace

std::vector<std::string> find_problems(const ModelInfo& model, const std::vector<LibraryFile>& libraries) {
  std::vector<std::string> problems;
  for (const auto& [file, there] : model.external_data) {
    if (!there) {
      problems.push_back("the model keeps weights in '" + file +
                         "', which is not beside it: copy that file next to '" + model.path + "'");
    }
  }
  for (size_t i = 0; i < libraries.size(); ++i) {
    for (size_t k = i + 1; k < libraries.size(); ++k) {
      if (libraries[i].is_opbridge() && libraries[i].domain() == libraries[k].domain()) {
        problems.push_back("'" + libraries[i].path + "' and '" + libraries[k].path +
                           "' both have the domain '" + libraries[i].domain() +
                           "', and ONNX Runtime takes only one library of a domain: give one");
      }
    }
  }
  // A library that is not opbridge's does not say what it has; ONNX Runtime must judge then.
  const bool all_known =
      std::all_of(libraries.begin(), libraries.end(), [](const LibraryFile& l) { return l.is_opbridge(); });
  std::set<std::pair<std::string, std::string>> reported;
  for (const CustomNode& node : model.custom_nodes) {
    const LibraryFile* library = find_library(node, libraries);
    if (library == nullptr) {
      const bool domain_known = std::any_of(libraries.begin(), libraries.end(), [&](const LibraryFile& l) {
        return l.is_opbridge() && l.domain() == node.domain;
      });
      if ((all_known || domain_known) && reported.insert({node.domain, node.op}).second) {
        problems.push_back(explain_unserved(node, model, libraries));
      }
      continue;
    }
    for (std::string& problem : unknown_attributes(node, *library)) problems.push_back(std::move(problem));
    const auto recorded = model.metadata.find("opbridge.fingerprint." + node.domain + "::" + node.op);
    const std::string now = library->find_operator(node.op)->at("fingerprint");
    if (recorded != model.metadata.end() && recorded->second != now &&
        reported.insert({node.domain, node.op}).second) {
      const auto with = model.metadata.find("opbridge.library." + node.domain);
      problems.push_back(
          node.domain + "::" + node.op +
          ": its declaration has changed since the model was exported (fingerprint " + recorded->second +
          (with == model.metadata.end() ? "" : " of '" + with->second + "'") + ", " + file_name(*library) +
          " has " + now +
          "). Re-export the model with this library, or pass the library it was exported with");
    }
  }
  return problems;
}

}  // namespace opbridge
