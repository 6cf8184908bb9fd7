#include "library.h"

#include <algorithm>
#include <cmath>

#include "opbridge/abi.h"
#include "text.h"

namespace opbridge {

namespace {

// --- manifest

std::string number(double v) {
  if (!std::isfinite(v)) return "null";
  return to_text(v);
}

// JSON has no infinity, and a number as large as to round to it is an error to some readers: it is a string.
std::string number_or_infinity(float v) {
  return std::isinf(v) ? (v < 0 ? "\"-inf\"" : "\"inf\"") : number(static_cast<double>(v));
}

const char* boolean(bool v) { return v ? "true" : "false"; }

template <class List, class F>
std::string array(const List& list, F item) {
  std::string out;
  for (const auto& x : list) out += (out.empty() ? "" : ", ") + item(x);
  return "[" + out + "]";
}

std::string dim_json(const Signature& s, const Dim& d) {
  const auto binary = [&](const char* op) {
    return "{\"op\": \"" + std::string(op) +
           "\", \"args\": " + array(d.args, [&](const Dim& a) { return dim_json(s, a); }) + "}";
  };
  switch (d.kind) {
    case Dim::Kind::kLiteral:
      return std::to_string(d.value);
    case Dim::Kind::kName:
      return quoted(s.names[static_cast<size_t>(d.slot)]);
    case Dim::Kind::kPrefix:
      return "{\"prefix\": " + quoted(s.prefixes[static_cast<size_t>(d.slot)]) +
             ", \"optional\": " + boolean(d.optional_prefix) + "}";
    case Dim::Kind::kAdd:
      return binary("+");
    case Dim::Kind::kSub:
      return binary("-");
    case Dim::Kind::kMul:
      return binary("*");
    case Dim::Kind::kFloorDiv:
      return binary("//");
  }
  return "null";
}

std::string argument_json(const Signature& s, const Argument& a) {
  return "{\"name\": " + quoted(a.name) + ", \"doc\": " + quoted(a.doc) + ", \"dtype\": " + quoted(a.dtype) +
         ", \"optional\": " + boolean(a.optional) + ", \"variadic\": " + boolean(a.variadic) +
         ", \"host\": " + boolean(a.host) + ", \"shapes\": " +
         array(a.shapes,
               [&](const ShapePattern& p) {
                 return array(p.dims, [&](const Dim& d) { return dim_json(s, d); });
               }) +
         "}";
}

std::string default_json(const Attribute& a) {
  const AttributeValue& v = a.default_value;
  switch (a.type) {
    case AttributeType::kInt:
      return std::to_string(v.i);
    case AttributeType::kFloat:
      return number_or_infinity(v.f);
    case AttributeType::kBool:
      return boolean(v.i != 0);
    case AttributeType::kString:
      return quoted(v.s);
    case AttributeType::kInts:
      return array(v.ints, [](int64_t x) { return std::to_string(x); });
    case AttributeType::kFloats:
      return array(v.floats, number_or_infinity);
  }
  return "null";
}

std::string attribute_json(const Attribute& a) {
  const char* type = a.type == AttributeType::kInts     ? "ints"
                     : a.type == AttributeType::kFloats ? "floats"
                                                        : attribute_type_name(a.type);
  std::string out = "{\"name\": " + quoted(a.name) + ", \"doc\": " + quoted(a.doc) + ", \"type\": \"" + type +
                    "\", \"required\": " + boolean(a.required);
  if (!a.required) out += ", \"default\": " + default_json(a);
  if (a.type == AttributeType::kString) {
    out += ", \"choices\": " + array(a.choices, quoted);
  } else if (a.type != AttributeType::kBool) {
    out += ", \"min\": " + number(a.min) + ", \"max\": " + number(a.max) +
           ", \"min_open\": " + boolean(a.min_open) + ", \"max_open\": " + boolean(a.max_open);
  }
  return out + "}";
}

std::string operator_json(const LibraryOperator& op) {
  const Signature& s = op.signature;
  const auto argument = [&](const Argument& a) { return argument_json(s, a); };
  std::string types;
  for (const TypeVariable& t : s.type_variables) {
    types += (types.empty() ? "" : ", ") + quoted(t.name) + ": " +
             array(t.dtypes, [](DType d) { return quoted(dtype_name(d)); });
  }
  std::vector<std::string> devices;
  if (op.op.kernel(Device::kCpu)) devices.push_back("cpu");
  if (op.op.kernel(Device::kCuda)) devices.push_back("cuda");
  return "    {\"name\": " + quoted(s.name) + ", \"snake_name\": " + quoted(snake_case(s.name)) +
         ", \"folder\": " + quoted(op.folder) + ",\n     \"doc\": " + quoted(s.doc) +
         ",\n     \"signature\": " + quoted(s.to_string()) +
         ",\n     \"fingerprint\": " + quoted(s.fingerprint()) + ", \"devices\": " + array(devices, quoted) +
         ", \"grad\": " + (s.grad.empty() ? "null" : quoted(s.grad)) + ",\n     \"dtypes\": {" + types +
         "},\n     \"inputs\": " + array(s.inputs, argument) +
         ",\n     \"outputs\": " + array(s.outputs, argument) +
         ",\n     \"attributes\": " + array(s.attributes, attribute_json) + "}";
}

std::string manifest_json(const Library& library) {
  const LibraryDefinition& d = library.definition;
  std::string cuda = "null";
  if (d.cuda_toolkit[0] != '\0') {
    std::vector<std::string> architectures(1);
    for (const char* c = d.cuda_architectures; *c; ++c) {
      if (*c == ';')
        architectures.emplace_back();
      else
        architectures.back() += *c;
    }
    cuda = "{\"toolkit\": " + quoted(d.cuda_toolkit) +
           ", \"architectures\": " + array(architectures, quoted) + "}";
  }
  std::string operators;
  for (const LibraryOperator& op : library.operators)
    operators += (operators.empty() ? "\n" : ",\n") + operator_json(op);
  return "{\"opbridge\": " + quoted(d.opbridge_version) +
         ", \"abi\": " + std::to_string(OPBRIDGE_ABI_VERSION) + ", \"library\": " + quoted(d.name) +
         ", \"domain\": " + quoted(d.domain) + ", \"version\": " + std::to_string(d.version) +
         ",\n \"onnxruntime\": {\"min\": \"1." + std::to_string(kMinOrtApi) +
         "\", \"built_api\": " + std::to_string(kBuiltOrtApi) + "}, \"cuda\": " + cuda +
         ",\n \"operators\": [" + operators + "\n]}\n";
}

// --- gradients

template <class List>
bool has_name(const List& list, const std::string& name) {
  return std::any_of(list.begin(), list.end(), [&](const auto& x) { return x.name == name; });
}

void check_gradient(const LibraryOperator& forward, const Library& library) {
  const Signature& f = forward.signature;
  const LibraryOperator* grad = library.find(f.grad);
  const auto wrong = [&](const std::string& what) {
    throw InvalidArgument(forward.full_name + ": its gradient '" + f.grad + "' " + what);
  };
  if (grad == nullptr) wrong("is not an operator of this library");
  const Signature& g = grad->signature;
  for (const Argument& a : g.inputs) {
    const bool known = has_name(f.inputs, a.name) || has_name(f.outputs, a.name) ||
                       (a.name.rfind("grad_", 0) == 0 && has_name(f.outputs, a.name.substr(5)));
    if (!known)
      wrong("has an input '" + a.name +
            "', which is neither grad_<output> nor an input or output of the operator");
  }
  for (const Argument& a : g.outputs) {
    if (a.name.rfind("grad_", 0) != 0 || !has_name(f.inputs, a.name.substr(5))) {
      wrong("has an output '" + a.name + "', which is not grad_<input>");
    }
  }
  for (const Attribute& a : g.attributes) {
    const Attribute* same = f.find_attribute(a.name);
    if (same == nullptr || same->type != a.type)
      wrong("has an attribute '" + a.name + "', which the operator does not have");
  }
}

}  // namespace

const LibraryOperator* Library::find(const std::string& name) const {
  const auto it = std::find_if(operators.begin(), operators.end(),
                               [&](const auto& op) { return op.signature.name == name; });
  return it == operators.end() ? nullptr : &*it;
}

std::string node_title(const LibraryOperator& op, const std::string& node_name) {
  return node_name.empty() ? op.full_name : op.full_name + " (node '" + node_name + "')";
}

std::unique_ptr<Node> Library::create_node(
    const LibraryOperator& op, const std::string& node_name,
    const std::vector<std::pair<std::string, AttributeValue>>& attributes) const {
  const std::string title = node_title(op, node_name);
  try {
    return std::make_unique<Node>(op.op, op.signature, title, resolve_attributes(op.signature, attributes),
                                  make_trace(definition, op.signature, node_name));
  } catch (...) {
    rethrow_with_title(title);
  }
}

Library make_library(LibraryDefinition definition) {
  Library library;
  library.definition = std::move(definition);
  const LibraryDefinition& d = library.definition;
  for (const LibraryDefinition::Folder& folder : d.folders) {
    bool named = false;
    for (const Operator& op : folder.operators) {
      LibraryOperator o{op, parse_signature(op.signature_text()), folder.name, ""};
      o.full_name = std::string(d.domain) + "::" + o.signature.name;
      named = named || snake_case(o.signature.name) == folder.name;
      for (const LibraryOperator& other : library.operators) {
        if (snake_case(other.signature.name) == snake_case(o.signature.name)) {
          throw InvalidArgument("library '" + std::string(d.name) + "': operator '" + o.signature.name +
                                "' is declared twice");
        }
      }
      if (!op.kernel(Device::kCpu) && !op.kernel(Device::kCuda)) {
        throw InvalidArgument(o.full_name + ": has neither a CPU nor a CUDA kernel");
      }
      library.operators.push_back(std::move(o));
    }
    if (!named) {
      throw InvalidArgument("library '" + std::string(d.name) + "': folder '" + folder.name +
                            "' declares no operator of that name");
    }
  }
  for (const LibraryOperator& op : library.operators) {
    if (!op.signature.grad.empty()) check_gradient(op, library);
  }
  library.manifest = manifest_json(library);
  return library;
}

namespace {

const Library* built = nullptr;

// Runs when the library is unloaded, and at the very end of the process: nodes that are alive then keep what
// they need.
__attribute__((destructor)) void free_library() {
  if (Node::alive() == 0) delete built;
}

}  // namespace

const Library& this_library() {
  static const Library* const library = built = new Library(make_library(library_definition()));
  return *library;
}

}  // namespace opbridge
