// What a model file says, against the libraries' signatures and the runtime's limits.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include "core/node.h"
#include "core/text.h"
#include "internal.h"
#include "opbridge/error.h"
#include "runner/onnx_types.h"
#include "runner/proto.h"

namespace opbridge::doctor {

namespace fs = std::filesystem;

namespace {

std::string in_quotes(const std::string& text) { return "'" + text + "'"; }

// ------------------------------------------------------------------------------------------------- the file

Format format_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  char buffer[4096] = {};
  in.read(buffer, sizeof buffer);
  const std::string head(buffer, static_cast<size_t>(in.gcount()));
  const Format neither = format_of_neither(head, "model-not-onnx");
  if (neither.code != nullptr) return neither;
  const auto other = [](const char* what) { return Format{"model-not-onnx", what, ""}; };
  if (starts_with(head,
                  "\x7f"
                  "ELF"))
    return other("it is a shared library or program; give it as --library");
  if (starts_with(head, "PK\x03\x04"))
    return other(
        "it is a ZIP archive: what torch.save, torch.jit.save or torch.export.save write; export the "
        "model to ONNX");
  if (head[0] == '\x80' && head.size() > 1 && head[1] >= 2 && head[1] <= 5)
    return other("it is a Python pickle: an old PyTorch checkpoint");
  if (head.size() > 8 && head.compare(4, 4, "ORTM") == 0) {
    if (fs::path(path).extension() == ".ort") return {"model-ort-format", "its nodes are not looked at", ""};
    return {"model-ort-renamed", "it is in ONNX Runtime's own format, and is not named .ort",
            "mv " + path + " " + fs::path(path).replace_extension(".ort").string()};
  }
  if (head.size() > 8 && head.compare(4, 4, "TFL3") == 0) return other("it is a TensorFlow Lite model");
  if (starts_with(head, "ftrt") || starts_with(head, "ptrt")) return other("it is a TensorRT engine");
  return {};
}

// What an IR version or opset is known to need; limits of versions in between are not guessed. Measured with
// the releases named.
constexpr std::pair<int64_t, const char*> kIr[] = {
    {9, "1.16"}, {10, "1.18"}, {11, "1.23"}, {13, "1.24"}, {14, "1.32"}};
constexpr std::pair<int64_t, const char*> kOpset[] = {{19, "1.16"}, {20, "1.17"}, {21, "1.18"}, {23, "1.23"},
                                                      {25, "1.24"}, {26, "1.27"}, {28, "1.32"}};

std::string oldest_runtime(const std::pair<int64_t, const char*>* table, size_t size, int64_t wanted) {
  for (size_t i = 0; i < size; ++i) {
    if (wanted <= table[i].first) return table[i].second;
  }
  return "";
}

void check_versions(const ModelInfo& model, const RuntimeFacts& runtime, Report& report) {
  const auto newer_runtime = [](const std::string& version) {
    return version.empty()
               ? std::string("a newer ONNX Runtime")
               : "ONNX Runtime " + version + " or newer (pip install 'onnxruntime>=" + version + "')";
  };
  if (runtime.max_ir > 0 && model.ir_version > runtime.max_ir) {
    const std::string limit = std::to_string(runtime.max_ir);
    report.add("model-ir-too-new", model.path,
               "the model has IR version " + std::to_string(model.ir_version) + ", ONNX Runtime " +
                   runtime.version + " takes up to " + limit,
               newer_runtime(oldest_runtime(kIr, std::size(kIr), model.ir_version)) +
                   ", or lower it: m = onnx.load('" + model.path + "'); m.ir_version = " + limit +
                   "; onnx.save(m, '" + model.path + "')");
  }
  const auto opset = model.opsets.find("");
  if (opset != model.opsets.end() && runtime.max_opset > 0 && opset->second > runtime.max_opset) {
    const std::string limit = std::to_string(runtime.max_opset);
    report.add("model-opset-too-new", model.path,
               "the model has opset " + std::to_string(opset->second) + ", ONNX Runtime " + runtime.version +
                   " takes up to " + limit,
               newer_runtime(oldest_runtime(kOpset, std::size(kOpset), opset->second)) +
                   ", or export with opset_version=" + limit +
                   ", or onnx.version_converter.convert_version(m, " + limit + ")");
  }
}

// ------------------------------------------------------------------------------------------------ its graph

struct Value {
  int32_t type = 0;  // ONNX's number; 0 unknown
  bool rank_known = false;
  std::vector<Dimension> dims;
};

// Types, producers and constants of all values. Names are taken as one space: exporters make them unique.
struct Graph {
  std::map<std::string, Value> values;
  std::map<std::string, const pb::NodeProto*> producers;
  std::set<std::string> constants;
  std::set<std::string> zeros;                           // of these, those that are 0
  std::map<std::string, std::vector<int64_t>> integers;  // of these, lists of int64: targets of Reshape
  std::vector<const pb::NodeProto*> nodes;
  std::set<std::string> external;  // tensors whose data is beside the model

  void add(const pb::ValueInfoProto& v) {
    if (!v.type().has_tensor_type()) return;
    Value& value = values[v.name()];
    value.type = v.type().tensor_type().elem_type();
    value.rank_known = v.type().tensor_type().has_shape();
    value.dims.clear();
    for (const auto& d : v.type().tensor_type().shape().dim()) {
      Dimension dim;
      if (d.has_dim_value() && d.dim_value() >= 0) dim.size = d.dim_value();
      dim.symbol = d.dim_param();
      value.dims.push_back(dim);
    }
  }
  void add(const std::string& name, const pb::TensorProto& t) {
    Value& value = values[name];
    value.type = t.data_type();
    value.rank_known = true;
    value.dims.clear();
    for (const int64_t d : t.dims()) value.dims.push_back({d, ""});
    constants.insert(name);
    constexpr int64_t kSmall = 16;
    int64_t count = 1;
    for (const int64_t d : t.dims())
      count = d >= 0 && d <= kSmall ? std::min(count * d, kSmall + 1) : kSmall + 1;
    if (count < 1 || count > kSmall || t.data_location() == pb::TensorProto::EXTERNAL ||
        !from_onnx_type(t.data_type()))
      return;
    try {
      const Array a = to_array(t, name);
      if (a.dtype() == DType::i64) integers[name].assign(a.as<int64_t>(), a.as<int64_t>() + count);
      const auto* bytes = static_cast<const unsigned char*>(a.data());
      if (std::all_of(bytes, bytes + a.bytes(), [](unsigned char b) { return b == 0; })) zeros.insert(name);
    } catch (const Error&) {  // damaged: ONNX Runtime says so
    }
  }
  void add(const pb::GraphProto& graph) {
    for (const auto& v : graph.value_info()) add(v);
    for (const auto& v : graph.input()) add(v);
    for (const auto& v : graph.output()) add(v);
    for (const auto& t : graph.initializer()) add(t.name(), t);
    for (const pb::NodeProto& node : graph.node()) {
      nodes.push_back(&node);
      for (const std::string& o : node.output()) producers[o] = &node;
      for (const auto& a : node.attribute()) {
        if (node.op_type() == "Constant" && node.output_size() == 1) {
          if (a.has_t())
            add(node.output(0), a.t());
          else
            constants.insert(node.output(0));
        }
        if (a.has_g()) add(a.g());
        for (const auto& g : a.graphs()) add(g);
      }
    }
  }
  const Value* find(const std::string& name) const {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : &found->second;
  }
  const pb::NodeProto* producer(const std::string& name) const {
    const auto found = producers.find(name);
    return found == producers.end() ? nullptr : found->second;
  }
};

std::string show(const Value& v) { return type_and_shape(onnx_type_name(v.type), v.rank_known, v.dims); }

// ------------------------------------------------------------------------------- a node and its signature

AttributeValue to_attribute(const NodeAttribute& a, AttributeType wanted) {
  AttributeValue value;
  const auto number = [](const Json& j) { return j.is_number() ? j.get<double>() : 0.0; };
  if (a.type == "int") {
    value.type = wanted == AttributeType::kBool ? AttributeType::kBool : AttributeType::kInt;
    value.i = a.value.get<int64_t>();
  } else if (a.type == "float") {
    value.type = AttributeType::kFloat;
    value.f = static_cast<float>(number(a.value));
  } else if (a.type == "string") {
    value.type = AttributeType::kString;
    value.s = a.value.get<std::string>();
  } else if (a.type == "ints") {
    value.type = AttributeType::kInts;
    for (const Json& i : a.value) value.ints.push_back(i.get<int64_t>());
  } else if (a.type == "floats") {
    value.type = AttributeType::kFloats;
    for (const Json& f : a.value) value.floats.push_back(static_cast<float>(number(f)));
  } else {
    throw InvalidArgument("attribute '" + a.name + "' is a " + a.type + ", the signature wants " +
                          attribute_type_name(wanted));
  }
  if (value.type == AttributeType::kInts && value.ints.empty() && wanted == AttributeType::kFloats)
    value.type = wanted;
  return value;
}

// Whether shapes can agree with a signature, where what is not known agrees with everything.
class Matcher {
 public:
  explicit Matcher(const Signature& s) : s_(s) {}

  /// The first contradiction, or empty. `inputs` in the signature's order, null where unknown or absent.
  std::string conflict(const std::vector<const Value*>& inputs) {
    names_.clear();
    prefixes_.clear();
    for (size_t i = 0; i < inputs.size() && i < s_.inputs.size(); ++i) {
      if (inputs[i] == nullptr || !inputs[i]->rank_known) continue;
      std::string first;
      bool fits = false;
      for (const ShapePattern& p : s_.inputs[i].shapes) {
        auto names = names_;
        auto prefixes = prefixes_;
        const std::string why = match(p, *inputs[i]);
        if (why.empty()) {
          fits = true;
          break;
        }
        names_ = names, prefixes_ = prefixes;
        if (first.empty())
          first = "'" + s_.inputs[i].name + "' must be " + shape_to_string(s_, p) + ", is " +
                  show(*inputs[i]) + why;
      }
      if (!fits) return first;
    }
    return "";
  }

 private:
  std::string match(const ShapePattern& p, const Value& v) {
    const size_t fixed = p.dims.size() - (p.has_prefix() ? 1 : 0);
    if (v.dims.size() < fixed || (!p.has_prefix() && v.dims.size() != fixed)) return " (rank)";
    const size_t leading = v.dims.size() - fixed;
    if (p.has_prefix()) {
      const bool none = p.dims[0].optional_prefix && leading == 0;
      std::vector<int64_t> sizes;
      for (size_t i = 0; i < leading; ++i) sizes.push_back(v.dims[i].size);
      auto& known = prefixes_[p.dims[0].slot];
      if (!none && known.second) {
        if (known.first.size() != sizes.size()) return " (leading dimensions)";
        for (size_t i = 0; i < sizes.size(); ++i) {
          if (sizes[i] >= 0 && known.first[i] >= 0 && sizes[i] != known.first[i])
            return " (leading dimensions)";
        }
      }
      if (!none && !known.second) known = {sizes, true};
    }
    for (size_t i = 0; i < fixed; ++i) {
      const Dim& d = p.dims[i + (p.has_prefix() ? 1 : 0)];
      const int64_t size = v.dims[leading + i].size;
      if (size < 0) continue;
      if (d.kind == Dim::Kind::kLiteral && d.value != size)
        return ": dimension " + std::to_string(leading + i) + " must be " + std::to_string(d.value);
      if (d.kind == Dim::Kind::kName) {
        const auto [known, fresh] = names_.emplace(d.slot, size);
        if (!fresh && known->second != size)
          return ", but " + s_.names[static_cast<size_t>(d.slot)] + " is " + std::to_string(known->second) +
                 " elsewhere";
      }
    }
    return "";
  }

  const Signature& s_;
  std::map<int, int64_t> names_;
  std::map<int, std::pair<std::vector<int64_t>, bool>> prefixes_;
};

class NodeChecks {
 public:
  NodeChecks(const CustomNode& node, const Graph& graph, const Json& op, Report& report)
      : node_(node),
        graph_(graph),
        report_(report),
        signature_(parse_signature(op.at("signature").get<std::string>())) {}

  void run() {
    if (!check_counts()) return;
    check_attributes();
    if (!check_types() || check_shapes()) check_baked();
  }

 private:
  std::string signature() const { return "; signature: " + signature_.to_string(); }
  const Argument& argument(size_t i) const {
    return signature_.inputs[std::min(i, signature_.inputs.size() - 1)];
  }

  bool check_counts() {
    const size_t given = node_.inputs.size(), most = signature_.inputs.size();
    bool ok = true;
    if (given > most && !signature_.variadic()) {
      std::string evidence =
          "it has " + std::to_string(given) + " inputs, the operator takes at most " + std::to_string(most);
      std::string fix;
      std::vector<std::string> constants;
      for (size_t i = most; i < given; ++i) {
        const auto constant = node_.constant_inputs.find(i);
        if (constant != node_.constant_inputs.end())
          constants.push_back("input " + std::to_string(i) + " is the constant " + constant->second);
      }
      if (!constants.empty()) {
        evidence += "; " + some_of(constants);
        std::vector<std::string> names;
        for (const Attribute& a : signature_.attributes) names.push_back(a.name);
        if (!names.empty()) {
          report_.add("operator-constant-input", node_.title(), some_of(constants) + signature(),
                      "export it as an attribute: the operator has " + list_of(names, "and"));
        }
      }
      report_.add("operator-inputs-too-many", node_.title(), evidence + signature(), fix);
      ok = false;
    }
    std::vector<std::string> missing;
    for (size_t i = 0; i < most; ++i) {
      if (signature_.inputs[i].optional || signature_.inputs[i].variadic) continue;
      if (i >= given || node_.inputs[i].empty())
        missing.push_back(in_quotes(signature_.inputs[i].name) + " (input " + std::to_string(i) + ")");
    }
    if (!missing.empty()) {
      report_.add(
          "operator-inputs-missing", node_.title(),
          list_of(missing, "and") + (missing.size() == 1 ? " is" : " are") + " missing" + signature());
      ok = false;
    }
    if (node_.outputs.size() > signature_.outputs.size()) {
      report_.add("operator-outputs-too-many", node_.title(),
                  "it has " + std::to_string(node_.outputs.size()) + " outputs, the operator makes " +
                      std::to_string(signature_.outputs.size()) + signature());
      ok = false;
    }
    return ok;
  }

  void check_attributes() {
    std::vector<std::string> known;
    for (const Attribute& a : signature_.attributes) known.push_back(a.name);
    std::vector<std::pair<std::string, AttributeValue>> given;
    for (const NodeAttribute& a : node_.attributes) {
      const Attribute* declared = signature_.find_attribute(a.name);
      if (declared == nullptr) {
        std::string near = did_you_mean(a.name, known);
        if (near.empty())
          near = known.empty() ? "; the operator has none" : "; the operator has " + list_of(known, "and");
        const bool input = std::any_of(signature_.inputs.begin(), signature_.inputs.end(),
                                       [&](const Argument& i) { return i.name == a.name; });
        report_.add("operator-attribute-unknown", node_.title(),
                    in_quotes(a.name) + " = " + a.value.dump() +
                        (input ? ", which is an input of the operator" : near),
                    input ? "Give it as the input " + in_quotes(a.name) +
                                ": in a symbolic g.op(\"...\", x, g.op(\"Constant\", value_t=...)), not " +
                                a.name + "_f=..."
                          : "");
        continue;
      }
      if (a.type == "reference") return;  // inside a function: known only where it is called
      try {
        given.emplace_back(a.name, to_attribute(a, declared->type));
      } catch (const Error& e) {
        report_.add("operator-attribute-invalid", node_.title(), e.what() + signature());
        return;
      }
    }
    try {
      resolve_attributes(signature_, given);
    } catch (const Error& e) {
      std::string fix;
      for (size_t i = 0; i < node_.inputs.size(); ++i) {
        if (std::string(e.what()).find("'" + node_.inputs[i] + "'") != std::string::npos &&
            node_.constant_inputs.count(i) != 0)
          fix = "export it as an attribute, not as a constant input";
      }
      report_.add("operator-attribute-invalid", node_.title(), std::string(e.what()) + signature(), fix);
    }
  }

  bool check_types() {
    std::map<int, std::pair<std::string, DType>> bound;  // type variable -> (input, type)
    bool ok = true;
    for (size_t i = 0; i < node_.inputs.size() && !signature_.inputs.empty(); ++i) {
      const Value* value = graph_.find(node_.inputs[i]);
      if (node_.inputs[i].empty() || value == nullptr || value->type == 0) continue;
      const Argument& a = argument(i);
      const auto dtype = from_onnx_type(value->type);
      std::vector<std::string> wanted;
      if (a.type_variable < 0) {
        wanted = {dtype_name(a.concrete)};
      } else {
        for (const DType d : signature_.type_variables[static_cast<size_t>(a.type_variable)].dtypes)
          wanted.push_back(dtype_name(d));
      }
      if (!dtype || std::find(wanted.begin(), wanted.end(), dtype_name(*dtype)) == wanted.end()) {
        report_.add("operator-input-type", node_.title(),
                    "input " + std::to_string(i) + " '" + a.name + "' is " + onnx_type_name(value->type) +
                        ", it takes " + list_of(wanted) + signature());
        ok = false;
        continue;
      }
      if (a.type_variable < 0) continue;
      const auto [first, fresh] = bound.emplace(a.type_variable, std::make_pair(a.name, *dtype));
      if (!fresh && first->second.second != *dtype) {
        report_.add("operator-input-type", node_.title(),
                    "'" + first->second.first + "' is " + dtype_name(first->second.second) + " but '" +
                        a.name + "' is " + dtype_name(*dtype) + "; both must have one type" + signature());
        ok = false;
      }
    }
    return ok;
  }

  // Whether nothing was found: sizes of inputs that are in each other's place say nothing more.
  bool check_shapes() {
    std::vector<const Value*> values;
    for (const std::string& name : node_.inputs) values.push_back(name.empty() ? nullptr : graph_.find(name));
    Matcher matcher(signature_);
    const std::string wrong = matcher.conflict(values);
    const auto swappable = [&](size_t i, size_t k) {
      return values[i] != nullptr && values[k] != nullptr && values[i]->type == values[k]->type &&
             argument(i).type_variable == argument(k).type_variable && k < signature_.inputs.size();
    };
    const auto both = [&](size_t i, size_t k) {
      return "'" + argument(i).name + "' and '" + argument(k).name + "'";
    };
    if (!wrong.empty()) {
      for (size_t i = 0; i < values.size(); ++i) {
        for (size_t k = i + 1; k < values.size(); ++k) {
          if (!swappable(i, k)) continue;
          std::vector<const Value*> swapped = values;
          std::swap(swapped[i], swapped[k]);
          if (!matcher.conflict(swapped).empty()) continue;
          report_.add("operator-inputs-swapped", node_.title(),
                      wrong + "; with " + both(i, k) + " swapped all shapes agree" + signature(),
                      "swap the arguments " + both(i, k));
          return false;
        }
      }
      report_.add("operator-input-shape", node_.title(), wrong + signature());
      return false;
    }
    const std::vector<std::string> now = output_symbols(values);
    for (size_t i = 0; i < values.size(); ++i) {
      for (size_t k = i + 1; k < values.size(); ++k) {
        if (!swappable(i, k)) continue;
        std::vector<const Value*> swapped = values;
        std::swap(swapped[i], swapped[k]);
        const std::vector<std::string> then = output_symbols(swapped);
        const std::vector<std::string> declared = declared_symbols(now);
        if (now == then || declared != then || !matcher.conflict(swapped).empty()) continue;
        report_.add("operator-inputs-maybe-swapped", node_.title(),
                    "the model says that its output is " + sizes(declared) +
                        ", which the signature gives only with " + both(i, k) +
                        " swapped; as they are it is " + sizes(now) + signature(),
                    "swap " + both(i, k) + ", unless the declared sizes are wrong");
        return false;
      }
    }
    // Points and a subset of them, by the field's names: the subset is not the larger one.
    static constexpr std::pair<const char*, const char*> kLargeAndSmall[] = {{"xyz", "new_xyz"},
                                                                             {"unknown", "known"}};
    for (const auto& [large, small] : kLargeAndSmall) {
      size_t at[2] = {values.size(), values.size()};
      for (size_t i = 0; i < values.size(); ++i) {
        if (argument(i).name == large) at[0] = i;
        if (argument(i).name == small) at[1] = i;
      }
      if (at[0] == values.size() || at[1] == values.size() || values[at[0]] == nullptr ||
          values[at[1]] == nullptr)
        continue;
      const auto count = [&](const Value& v) {
        return v.dims.size() < 2 ? -1 : v.dims[v.dims.size() - 2].size;
      };
      const int64_t many = count(*values[at[0]]), few = count(*values[at[1]]);
      if (many < 0 || few < 0 || few <= many) continue;
      report_.add("operator-inputs-maybe-swapped", node_.title(),
                  "'" + std::string(small) + "' has " + std::to_string(few) + " points, more than the " +
                      std::to_string(many) + " of '" + large + "'" + signature(),
                  "swap " + both(at[0], at[1]) + ", unless it is meant");
      return false;
    }
    return true;
  }

  // The first output's sizes by the signature, as "batch", "16", or "" where the inputs do not tell.
  std::vector<std::string> output_symbols(const std::vector<const Value*>& inputs) const {
    std::map<int, std::string> names;
    for (size_t i = 0; i < inputs.size() && i < signature_.inputs.size(); ++i) {
      const ShapePattern& p = signature_.inputs[i].shapes[0];
      if (inputs[i] == nullptr || !inputs[i]->rank_known || p.has_prefix() ||
          p.dims.size() != inputs[i]->dims.size())
        continue;
      for (size_t d = 0; d < p.dims.size(); ++d) {
        if (p.dims[d].kind == Dim::Kind::kName) names.emplace(p.dims[d].slot, text_of(inputs[i]->dims[d]));
      }
    }
    std::vector<std::string> result;
    if (signature_.outputs.empty()) return result;
    for (const Dim& d : signature_.outputs[0].shapes[0].dims) {
      const auto known = names.find(d.slot);
      result.push_back(d.kind != Dim::Kind::kName || known == names.end() ? "" : known->second);
    }
    return result;
  }
  // The same as the model declares them; "" where `like` has "".
  std::vector<std::string> declared_symbols(const std::vector<std::string>& like) const {
    const Value* v = node_.outputs.empty() ? nullptr : graph_.find(node_.outputs[0]);
    std::vector<std::string> result;
    if (v == nullptr || !v->rank_known || v->dims.size() != like.size()) return result;
    for (size_t d = 0; d < like.size(); ++d) result.push_back(like[d].empty() ? "" : text_of(v->dims[d]));
    return result;
  }
  static std::string sizes(std::vector<std::string> symbols) {
    std::replace(symbols.begin(), symbols.end(), std::string(), std::string("?"));
    return "[" + some_of(symbols, 16) + "]";
  }
  static std::string text_of(const Dimension& d) { return d.size >= 0 ? std::to_string(d.size) : d.symbol; }

  // A dimension that one of the inputs leaves open but an output has as a number.
  void check_baked() {
    std::set<int> open;
    for (size_t i = 0; i < node_.inputs.size() && i < signature_.inputs.size(); ++i) {
      const Value* v = graph_.find(node_.inputs[i]);
      if (v == nullptr || !v->rank_known || signature_.inputs[i].shapes.size() != 1) continue;
      const ShapePattern& p = signature_.inputs[i].shapes[0];
      if (p.has_prefix() || p.dims.size() != v->dims.size()) continue;
      for (size_t d = 0; d < p.dims.size(); ++d) {
        if (p.dims[d].kind == Dim::Kind::kName && v->dims[d].size < 0) open.insert(p.dims[d].slot);
        if (p.dims[d].kind == Dim::Kind::kName && v->dims[d].size >= 0) closed_.insert(p.dims[d].slot);
      }
    }
    for (size_t o = 0; o < node_.outputs.size() && o < signature_.outputs.size(); ++o) {
      const Value* v = graph_.find(node_.outputs[o]);
      if (v == nullptr || !v->rank_known) continue;
      const ShapePattern& p = signature_.outputs[o].shapes[0];
      if (p.has_prefix() || p.dims.size() != v->dims.size()) continue;
      for (size_t d = 0; d < p.dims.size(); ++d) {
        if (p.dims[d].kind != Dim::Kind::kName || open.count(p.dims[d].slot) == 0 ||
            closed_.count(p.dims[d].slot) != 0 || v->dims[d].size < 0)
          continue;
        report_.add("model-static-shape", node_.title(),
                    "output '" + node_.outputs[o] + "' is " + show(*v) + ", but " +
                        signature_.names[static_cast<size_t>(p.dims[d].slot)] + " is dynamic in its input" +
                        signature());
      }
    }
  }

  const CustomNode& node_;
  const Graph& graph_;
  Report& report_;
  Signature signature_;
  std::set<int> closed_;
};

// ---------------------------------------------------------------------------------------- who serves a node

// A foreign library's operators have types and counts, but no names and shapes.
void check_registered(const CustomNode& node, const Graph& graph, const Library& library, Report& report) {
  std::vector<const RegisteredOp*> ops;
  for (const RegisteredOp& op : library.registered) {
    if (op.domain == node.domain && op.name == node.op) ops.push_back(&op);
  }
  if (ops.empty()) return;
  const RegisteredOp& op = *ops[0];
  const int given = static_cast<int>(node.inputs.size());
  if (!op.variadic && given > op.inputs)
    report.add(
        "operator-inputs-too-many", node.title(),
        "it has " + std::to_string(given) + " inputs, the operator takes " + std::to_string(op.inputs));
  int present = 0;
  for (int i = 0; i < op.required_inputs; ++i)
    present += i < given && !node.inputs[static_cast<size_t>(i)].empty() ? 1 : 0;
  if (present < op.required_inputs)
    report.add("operator-inputs-missing", node.title(),
               "it has " + std::to_string(present) + " of the " + std::to_string(op.required_inputs) +
                   " inputs that the operator requires");
  if (static_cast<int>(node.outputs.size()) > op.outputs)
    report.add("operator-outputs-too-many", node.title(),
               "it has " + std::to_string(node.outputs.size()) + " outputs, the operator makes " +
                   std::to_string(op.outputs));
  if (op.variadic) return;
  for (size_t i = 0; i < node.inputs.size() && i < static_cast<size_t>(op.inputs); ++i) {
    const Value* v = graph.find(node.inputs[i]);
    if (v == nullptr || v->type == 0 || node.inputs[i].empty()) continue;
    std::set<std::string> wanted;
    bool fits = false;
    for (const RegisteredOp* o : ops) {
      const int type = i < o->input_types.size() ? o->input_types[i] : 0;
      fits = fits || type == 0 || type == v->type;
      wanted.insert(onnx_type_name(type));
    }
    if (!fits)
      report.add("operator-input-type", node.title(),
                 "input " + std::to_string(i) + " is " + onnx_type_name(v->type) + ", it takes " +
                     list_of({wanted.begin(), wanted.end()}));
  }
}

std::string normalised(const std::string& name) {
  std::string text;
  for (const char c : name) {
    if (c != '_' && c != '.' && c != ':' && c != '-')
      text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

// What an exporter writes for an operator that it does not know.
bool is_placeholder(const CustomNode& node) {
  static const std::set<std::string> kDomains = {"aten", "prim", "org.pytorch.prim", "onnxscript.atenlib"};
  return kDomains.count(node.domain) != 0 || node.op == "PythonOp" || node.op == "ATen";
}

// Domains that exporters give to functions which they write into the model itself.
bool is_function_domain(const std::string& domain) {
  static const std::set<std::string> kDomains = {"this", "__main__", "local"};
  return kDomains.count(domain) != 0 || starts_with(domain, "pkg.") || starts_with(domain, "torch.nn.");
}

void explain_unserved(const CustomNode& node, const ModelInfo& model, const std::vector<Library>& libraries,
                      Report& report) {
  const std::string full = node.domain + "::" + node.op;
  if (is_placeholder(node)) {
    std::string of, fix;  // what an autograd.Function or ATen operator is called
    for (const NodeAttribute& a : node.attributes) {
      if ((a.name == "pyname" || a.name == "operator" || a.name == "func_name") && a.value.is_string())
        of = a.value.get<std::string>();
    }
    for (const Library& library : libraries) {
      for (const std::string& domain : library.domains()) {
        for (const std::string& op : library.operators(domain)) {
          if (!of.empty() && starts_with(normalised(of), normalised(op)))
            fix = "opbridge.export(..., map={" + of + ": \"" + domain + "::" + op + "\"})";
        }
      }
    }
    report.add("operator-not-exported", node.title(),
               "the node is " + full + ", which is PyTorch's own name for it" +
                   (of.empty() ? "" : "; it stands for '" + of + "'"),
               fix);
    return;
  }
  if (is_function_domain(node.domain)) {
    report.add("model-functions-lost", node.title(),
               "'" + node.domain + "' is a domain of functions that exporters write, and the model has " +
                   (model.functions.empty() ? "none" : "only " + some_of(model.functions)));
    return;
  }
  std::string expected;
  const auto recorded = model.metadata.find("opbridge.library." + node.domain);
  if (recorded != model.metadata.end()) expected = "; the model was exported with '" + recorded->second + "'";
  if (libraries.empty()) {
    report.add(
        "operator-no-library", node.title(),
        "no library was given" + expected + (node.where.empty() ? "" : "; the node is in " + node.where),
        "--library " + (recorded == model.metadata.end() ? "<the library that has " + full + ">.so"
                                                         : "lib" + recorded->second + ".so"));
    return;
  }
  std::vector<std::string> names, files, domains;
  for (const Library& library : libraries) {
    files.push_back(library.name);
    for (const std::string& domain : library.domains()) {
      const std::set<std::string> ops = library.operators(domain);
      if (domain == node.domain) names.insert(names.end(), ops.begin(), ops.end());
      domains.push_back(domain);
      if (domain == node.domain) continue;
      for (const std::string& op : ops) {
        if (op != node.op && normalised(op) != normalised(node.op)) continue;
        report.add(
            "operator-wrong-domain", node.title(),
            in_quotes(full) + " is not in " + library.name + "; it has " + in_quotes(domain + "::" + op),
            "export the node as " + domain + "::" + op + (op == node.op ? "" : " (its name differs, too)"));
        return;
      }
    }
  }
  if (!names.empty()) {
    std::string near;
    for (const std::string& name : names) {
      if (normalised(name) == normalised(node.op)) near = "; it has " + in_quotes(node.domain + "::" + name);
    }
    if (near.empty()) near = did_you_mean(node.op, names);
    if (near.empty()) near = "; it has " + some_of(names, 8);
    report.add("operator-wrong-name", node.title(),
               in_quotes(full) + " is not in the library of this domain" + near);
    return;
  }
  std::string near = did_you_mean(node.domain, domains);
  if (near.empty() && !domains.empty()) near = "; they have " + list_of(domains, "and");
  report.add("operator-unserved", node.title(),
             some_of(files) + " " + (files.size() == 1 ? "has" : "have") + " no operators of the domain " +
                 in_quotes(node.domain) + near + expected +
                 (model.functions.empty() ? "" : "; nor is it one of the model's functions"));
}

// ------------------------------------------------------------------------------------------ the whole graph

// Divisions by what can be exactly 0, with nothing in between that keeps it away from 0.
void check_epsilons(const Graph& graph, const ModelInfo& model, Report& report) {
  std::set<std::string> custom;
  for (const CustomNode& node : model.custom_nodes) custom.insert(node.outputs.begin(), node.outputs.end());
  static const std::set<std::string> kThrough = {"Unsqueeze", "Squeeze",  "Reshape", "Transpose", "Cast",
                                                 "Expand",    "Identity", "Abs",     "Slice",     "Flatten"};
  for (const pb::NodeProto* node : graph.nodes) {
    const bool reciprocal = node->op_type() == "Reciprocal" && node->input_size() == 1;
    const bool division = node->op_type() == "Div" && node->input_size() == 2;
    if ((!reciprocal && !division) || !node->domain().empty()) continue;
    std::string at = node->input(reciprocal ? 0 : 1);
    bool root = false;
    std::string why, fix;
    for (int steps = 0; steps < 16; ++steps) {
      if (custom.count(at) != 0) {
        why = "it divides by '" + at + "', an operator's raw output";
        break;
      }
      const pb::NodeProto* producer = graph.producer(at);
      if (producer == nullptr) break;
      const std::string& op = producer->op_type();
      const bool adds = op == "Add" || op == "Sub" || op == "Max" || op == "Clip";
      const auto zero = [&](const std::string& name) { return graph.zeros.count(name) != 0; };
      if (adds && std::any_of(producer->input().begin(), producer->input().end(), zero)) {
        why = "it divides by " + op + " (node '" + producer->name() +
              "') with a constant that is 0: an epsilon too small for its type";
        fix =
            "an epsilon that its type can hold: 1e-4 (float16 has nothing below 6e-8), or keep these nodes "
            "in float32 (op_block_list)";
        break;
      }
      if (op == "ReduceL2" || op == "ReduceL1") {
        why = "it divides by a norm (" + op + ") that can be 0";
        break;
      }
      if (root && (op == "ReduceSum" || op == "ReduceSumSquare")) {
        why = "it divides by the square root of a sum that can be 0";
        break;
      }
      root = root || op == "Sqrt";
      if ((op != "Sqrt" && kThrough.count(op) == 0) || producer->input_size() == 0) break;
      at = producer->input(0);
    }
    const Value* type = graph.find(at);
    const bool integer = type != nullptr && type->type != 0 && type->type != 1 && type->type != 10 &&
                         type->type != 11 && type->type != 16;
    if (!why.empty() && !integer)
      report.add("model-epsilon-lost", node->op_type() + " (node '" + node->name() + "')", why, fix);
  }
}

// Nodes without a domain whose operator one of the libraries has, and ONNX has not.
void check_no_domain(const Graph& graph, const RuntimeFacts& runtime, const std::vector<Library>& libraries,
                     Report& report) {
  std::map<std::string, std::pair<std::string, std::string>> theirs;  // operator -> (library, domain)
  for (const Library& library : libraries) {
    for (const std::string& domain : library.domains()) {
      for (const std::string& op : library.operators(domain)) theirs[op] = {library.name, domain};
    }
  }
  std::set<std::string> asked;
  for (const pb::NodeProto* node : graph.nodes) {
    if ((node->domain().empty() || node->domain() == "ai.onnx") && theirs.count(node->op_type()) != 0)
      asked.insert(node->op_type());
  }
  if (asked.empty() || !runtime.usable) return;  // without a runtime nobody here knows ONNX's operators
  const std::map<std::string, std::vector<int>> of_onnx = opsets_with(runtime, asked);
  for (const pb::NodeProto* node : graph.nodes) {
    const std::string& op = node->op_type();
    if ((!node->domain().empty() && node->domain() != "ai.onnx") || asked.count(op) == 0 ||
        of_onnx.count(op) != 0)
      continue;
    const auto& [library, domain] = theirs[op];
    report.add("operator-no-domain", op + " (node '" + node->name() + "')",
               library + " has it as " + domain + "::" + op,
               "node.domain = '" + domain + "', and export it so");
  }
}

// Whether the value has a dimension that is not known before the model runs.
bool is_dynamic(const Graph& graph, std::string name) {
  static const std::set<std::string> kSameCount = {"Transpose", "Cast",    "Identity", "Unsqueeze",
                                                   "Squeeze",   "Relu",    "Clip",     "Neg",
                                                   "Abs",       "Sigmoid", "Tanh"};
  for (int steps = 0; steps < 32; ++steps) {
    const Value* v = graph.find(name);
    if (v != nullptr && v->rank_known)
      return std::any_of(v->dims.begin(), v->dims.end(),
                         [](const Dimension& d) { return d.size < 0 && !d.symbol.empty(); });
    const pb::NodeProto* producer = graph.producer(name);
    if (producer == nullptr || kSameCount.count(producer->op_type()) == 0 || producer->input_size() == 0)
      return false;
    name = producer->input(0);
  }
  return false;
}

// A Reshape to sizes that are all written down, of a value whose sizes are not.
void check_reshapes(const Graph& graph, Report& report) {
  for (const pb::NodeProto* node : graph.nodes) {
    if (node->op_type() != "Reshape" || node->input_size() < 2 || !node->domain().empty()) continue;
    const auto target = graph.integers.find(node->input(1));
    if (target == graph.integers.end() ||
        !std::all_of(target->second.begin(), target->second.end(), [](int64_t d) { return d > 0; }))
      continue;
    if (!is_dynamic(graph, node->input(0))) continue;
    report.add("model-static-shape", "Reshape (node '" + node->name() + "')",
               "it makes " + shape_to_string(target->second.data(), static_cast<int>(target->second.size())) +
                   " of '" + node->input(0) + "', whose sizes are dynamic");
  }
}

// Names that are written twice or never; those of functions are their own.
void check_names(const pb::GraphProto& graph, std::set<std::string> known, Report& report) {
  std::map<std::string, const pb::NodeProto*> makers;
  for (const auto& v : graph.input()) known.insert(v.name());
  for (const auto& t : graph.initializer()) known.insert(t.name());
  for (const auto& t : graph.sparse_initializer()) known.insert(t.values().name());
  const auto title = [](const pb::NodeProto& n) { return n.op_type() + " (node '" + n.name() + "')"; };
  for (const auto& node : graph.node()) {
    for (const std::string& o : node.output()) {
      if (o.empty()) continue;
      const auto [first, fresh] = makers.emplace(o, &node);
      if (!fresh)
        report.add("model-name-twice", title(node),
                   "it makes '" + o + "', which " + title(*first->second) + " also makes");
      known.insert(o);
    }
  }
  const std::vector<std::string> names(known.begin(), known.end());
  for (const auto& node : graph.node()) {
    for (const std::string& i : node.input()) {
      if (!i.empty() && known.count(i) == 0)
        report.add("model-name-missing", title(node),
                   "it reads '" + i + "', which nothing makes" +
                       (names.size() < 10000 ? did_you_mean(i, names) : ""));
    }
    for (const auto& a : node.attribute()) {
      if (a.has_g()) check_names(a.g(), known, report);
      for (const auto& g : a.graphs()) check_names(g, known, report);
    }
  }
  for (const auto& o : graph.output()) {
    if (known.count(o.name()) == 0)
      report.add("model-name-missing", "output '" + o.name() + "'",
                 "nothing makes it" + (names.size() < 10000 ? did_you_mean(o.name(), names) : ""));
  }
}

void check_external_data(const pb::ModelProto& model, const std::string& path, const ModelInfo& info,
                         Report& report) {
  for (const auto& [file, there] : info.external_data) {
    if (there) continue;
    const fs::path folder = fs::absolute(path).parent_path();
    const std::string other = fs::path(path).filename().string() + ".data";  // as exporters name it
    const bool renamed = other != file && fs::exists(folder / other);
    report.add(
        "model-weights-missing", path,
        "'" + file + "' is not beside the model" +
            (renamed ? "; '" + other + "' is, by its name the same under another one" : ""),
        renamed ? "rename '" + other + "' to '" + file + "': the model names the file that it was saved with"
                : "copy '" + file + "' to '" + folder.string() + "'");
  }
  std::map<std::string, int64_t> needed;
  const std::function<void(const pb::TensorProto&)> look = [&](const pb::TensorProto& t) {
    if (t.data_location() != pb::TensorProto::EXTERNAL) return;
    std::string location;
    int64_t offset = 0, length = 0;
    for (const auto& e : t.external_data()) {
      if (e.key() == "location") location = e.value();
      if (e.key() == "offset") offset = std::atoll(e.value().c_str());
      if (e.key() == "length") length = std::atoll(e.value().c_str());
    }
    needed[location] = std::max(needed[location], offset + length);
  };
  for (const auto& t : model.graph().initializer()) look(t);
  for (const auto& [file, bytes] : needed) {
    std::error_code ec;
    const auto size = fs::file_size(fs::path(path).parent_path() / file, ec);
    if (!ec && static_cast<int64_t>(size) < bytes)
      report.add("model-weights-short", path,
                 "'" + file + "' has " + std::to_string(size) + " bytes, the model reads up to byte " +
                     std::to_string(bytes));
  }
}

}  // namespace

std::pair<int, int> known_limits(int minor) {
  std::pair<int, int> limits = {0, 0};
  for (const auto& [ir, version] : kIr) {
    if (version_numbers(version)[1] <= minor) limits.first = static_cast<int>(ir);
  }
  for (const auto& [opset, version] : kOpset) {
    if (version_numbers(version)[1] <= minor) limits.second = static_cast<int>(opset);
  }
  return limits;
}

std::optional<ModelInfo> check_model(const Options& options, const RuntimeFacts& runtime,
                                     const std::vector<Library>& libraries, Report& report) {
  const std::string& path = options.model;
  std::error_code ec;
  if (!fs::exists(path, ec)) {
    report.add("model-missing", path, "no such file");
    return {};
  }
  if (fs::is_directory(path, ec)) {
    report.add("model-not-onnx", path, "it is a folder");
    return {};
  }
  const Format format = format_of(path);
  if (format.code != nullptr) {
    report.add(format.code, path, format.what, format.fix);
    return {};
  }
  ModelInfo model;
  pb::ModelProto proto;
  try {
    proto = parse_model(path);
    model = describe_model(proto, path);
  } catch (const Error& e) {
    report.add("model-not-onnx", path, e.what());
    return {};
  }
  Graph graph;
  graph.add(proto.graph());
  for (const auto& f : proto.functions()) {
    for (const auto& node : f.node()) graph.nodes.push_back(&node);
  }

  Json opsets = Json::object();
  for (const auto& [domain, version] : model.opsets) opsets[domain.empty() ? "ai.onnx" : domain] = version;
  report.facts["model"] = {
      {"path", path},     {"ir_version", model.ir_version}, {"producer", model.producer},
      {"opsets", opsets}, {"nodes", model.node_count},      {"custom_nodes", model.custom_nodes.size()}};

  check_versions(model, runtime, report);
  check_external_data(proto, path, model, report);
  const bool built_in = std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const pb::NodeProto* n) {
    return n->domain().empty() || n->domain() == "ai.onnx";
  });
  if (built_in && model.opsets.count("") == 0)
    report.add("model-opset-missing", path, "opset_import has no entry for ONNX's own domain");
  check_no_domain(graph, runtime, libraries, report);

  bool all_known = true;
  for (const Library& library : libraries) all_known = all_known && library.known();
  std::set<std::pair<std::string, std::string>> explained;
  std::set<std::string> domains;
  for (const CustomNode& node : model.custom_nodes) {
    domains.insert(node.domain);
    const Library* served = nullptr;
    for (const Library& library : libraries) {
      if (library.operators(node.domain).count(node.op) != 0) served = &library;
    }
    if (served == nullptr) {
      const bool domain_known = std::any_of(libraries.begin(), libraries.end(), [&](const Library& l) {
        return l.domains().count(node.domain) != 0;
      });
      // A library that could not be read may well be the one; what is wrong with it has been said.
      const bool unreadable =
          std::any_of(libraries.begin(), libraries.end(), [](const Library& l) { return !l.usable; });
      if ((all_known || domain_known || is_placeholder(node) || is_function_domain(node.domain)) &&
          !(unreadable && !domain_known) && explained.insert({node.domain, node.op}).second)
        explain_unserved(node, model, libraries, report);
      continue;
    }
    if (!served->file.is_opbridge()) {
      check_registered(node, graph, *served, report);
      continue;
    }
    const Json& op = *served->file.find_operator(node.op);
    NodeChecks(node, graph, op, report).run();
    const auto recorded = model.metadata.find("opbridge.fingerprint." + node.domain + "::" + node.op);
    const std::string now = op.at("fingerprint");
    if (recorded != model.metadata.end() && recorded->second != now &&
        explained.insert({node.domain, node.op}).second)
      report.add("model-changed-declaration", node.domain + "::" + node.op,
                 "the model has fingerprint " + recorded->second + ", " + served->name + " has " + now);
    const int64_t version = served->file.manifest.at("version").get<int64_t>();
    const auto imported = model.opsets.find(node.domain);
    if (imported != model.opsets.end() && imported->second != version &&
        explained.insert({node.domain, ""}).second)
      report.add("model-domain-version", path,
                 "it imports '" + node.domain + "' version " + std::to_string(imported->second) + ", " +
                     served->name + " has version " + std::to_string(version));
    if (options.provider == "cuda") {
      const Json& devices = op.at("devices");
      if (std::find(devices.begin(), devices.end(), "cuda") == devices.end() &&
          served->file.manifest.value("cuda", Json()).is_object())
        report.add("operator-no-cuda-kernel", node.title(),
                   served->name + " has it for the CPU only: it runs there, with copies of its " +
                       std::to_string(node.inputs.size()) + " inputs and " +
                       std::to_string(node.outputs.size()) + " outputs");
    }
    // ONNX Runtime before 1.18 guesses the type of an output only in simple cases.
    const bool gap =
        std::any_of(node.inputs.begin(), node.inputs.end(), [](const std::string& i) { return i.empty(); });
    for (const std::string& output : node.outputs) {
      const Value* v = graph.find(output);
      if (runtime.api > 0 && runtime.api < 18 && gap && !output.empty() && (v == nullptr || v->type == 0))
        report.add("model-untyped-output", node.title(),
                   "output '" + output +
                       "' has no type in the model, an input is left out, and this is ONNX Runtime " +
                       runtime.version);
    }
  }
  for (const std::string& domain : domains) {
    const auto imported = model.opsets.find(domain);
    if (imported == model.opsets.end())
      report.add("model-domain-not-imported", path, "opset_import has no '" + domain + "'",
                 "m.opset_import.append(onnx.helper.make_opsetid('" + domain + "', 1))");
    else if (imported->second > 1000)
      report.add("model-opset-too-new", path,
                 "it imports '" + domain + "' version " + std::to_string(imported->second) +
                     "; ONNX Runtime takes 1 to 1000 for a custom domain",
                 "import the library's version");
  }
  check_epsilons(graph, model, report);
  check_reshapes(graph, report);
  check_names(proto.graph(), {}, report);
  if (!model.inputs.empty() && std::all_of(model.inputs.begin(), model.inputs.end(), [](const ValueInfo& v) {
        return v.rank_known &&
               std::all_of(v.dims.begin(), v.dims.end(), [](const Dimension& d) { return d.size >= 0; });
      })) {
    std::vector<std::string> shown;
    for (const ValueInfo& v : model.inputs)
      shown.push_back(v.name + " " + type_and_shape(v.type, v.rank_known, v.dims));
    report.add("model-fixed-inputs", path, some_of(shown));
  }
  return model;
}

}  // namespace opbridge::doctor
