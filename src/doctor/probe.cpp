// What only ONNX Runtime and the libraries themselves can tell, asked in child processes.
#include <dlfcn.h>
#include <onnxruntime_c_api.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <regex>
#include <tuple>

#include "core/text.h"
#include "internal.h"
#include "opbridge/error.h"
#include "runner/onnx_types.h"
#include "runner/proto.h"

namespace opbridge::doctor {

namespace {

constexpr double kPatience = 120;  // seconds; a large model takes a while

// A model of one node, to learn a limit from its refusal or that any model works at all.
std::string tiny_model(int64_t ir_version, int64_t opset, const std::string& op = "Identity") {
  pb::ModelProto model;
  model.set_ir_version(ir_version);
  model.add_opset_import()->set_version(opset);
  pb::GraphProto& graph = *model.mutable_graph();
  graph.set_name("g");
  pb::NodeProto& node = *graph.add_node();
  node.set_op_type(op);
  node.add_input("x");
  node.add_output("y");
  const auto declare = [](pb::ValueInfoProto& v, const char* name) {
    v.set_name(name);
    auto& tensor = *v.mutable_type()->mutable_tensor_type();
    tensor.set_elem_type(pb::TensorProto::FLOAT);
    tensor.mutable_shape()->add_dim()->set_dim_value(1);
  };
  declare(*graph.add_input(), "x");
  declare(*graph.add_output(), "y");
  return model.SerializeAsString();
}

// The table of a runtime in this (child) process.
struct Api {
  const OrtApiBase* base = nullptr;
  const OrtApi* api = nullptr;
  OrtEnv* env = nullptr;

  explicit Api(const std::string& path, int version) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw Error(ErrorKind::kNotSupported, dlerror());
    base = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(handle, "OrtGetApiBase"))();
    api = base->GetApi(static_cast<uint32_t>(std::min(version, ORT_API_VERSION)));
    const auto silent = [](void*, OrtLoggingLevel, const char*, const char*, const char*, const char*) {};
    check(api->CreateEnvWithCustomLogger(silent, nullptr, ORT_LOGGING_LEVEL_FATAL, "opbridge", &env));
  }
  /// Throws what a status says.
  void check(OrtStatus* status) const {
    if (status == nullptr) return;
    std::string text = api->GetErrorMessage(status);
    api->ReleaseStatus(status);
    throw Error(ErrorKind::kInternal, text);
  }
  /// Empty, or why the model is refused.
  std::string refusal(const std::string& model, OrtSessionOptions* options) const {
    OrtSession* session = nullptr;
    try {
      check(api->CreateSessionFromArray(env, model.data(), model.size(), options, &session));
    } catch (const Error& e) {
      return e.what();
    }
    api->ReleaseSession(session);
    return "";
  }
};

int number_after(const std::string& text, const std::string& words) {
  const size_t at = text.find(words);
  return at == std::string::npos ? 0 : std::atoi(text.c_str() + at + words.size());
}

// ------------------------------------------------------------------------------------- what a library
// registers

// Notes what a library asks of the runtime and what it registers. One process holds one.
struct Spy {
  const OrtApiBase* real = nullptr;
  OrtApi original{};
  Say say;
  std::map<const OrtCustomOpDomain*, std::string> domains;
  // What the fields that every version has held when an operator was added, and its name.
  std::vector<
      std::tuple<const OrtCustomOp*, std::array<char, offsetof(OrtCustomOp, KernelCompute)>, std::string>>
      operators;
};
Spy spy;

const OrtApi* ORT_API_CALL spy_get_api(uint32_t version) noexcept {
  spy.say("asked_api", version);
  return spy.real->GetApi(version);
}

const char* ORT_API_CALL spy_version() noexcept { return spy.real->GetVersionString(); }

OrtStatus* ORT_API_CALL spy_create(const char* name, OrtCustomOpDomain** domain) noexcept {
  OrtStatus* status = spy.original.CreateCustomOpDomain(name, domain);
  if (status == nullptr) spy.domains[*domain] = name;
  return status;
}

OrtStatus* ORT_API_CALL spy_add(OrtCustomOpDomain* domain, const OrtCustomOp* op) noexcept {
  const char* provider = op->GetExecutionProviderType == nullptr ? nullptr : op->GetExecutionProviderType(op);
  const size_t inputs = op->GetInputTypeCount(op);
  Json types = Json::array();
  size_t required = 0;
  bool variadic = false;
  for (size_t i = 0; i < inputs; ++i) {
    types.push_back(static_cast<int>(op->GetInputType(op, i)));
    const auto kind = op->version < 8 ? INPUT_OUTPUT_REQUIRED : op->GetInputCharacteristic(op, i);
    if (kind == INPUT_OUTPUT_REQUIRED) required = i + 1;
    variadic = variadic || kind == INPUT_OUTPUT_VARIADIC;
  }
  spy.say("registered", {{"domain", spy.domains[domain]},
                         {"name", op->GetName(op)},
                         {"provider", provider == nullptr ? "CPUExecutionProvider" : provider},
                         {"version", op->version},
                         {"inputs", inputs},
                         {"required", required},
                         {"variadic", variadic},
                         {"outputs", op->GetOutputTypeCount(op)},
                         {"types", types}});
  auto& [object, bytes, full] = spy.operators.emplace_back();
  object = op;
  full = spy.domains[domain] + "::" + op->GetName(op);
  std::memcpy(bytes.data(), op, bytes.size());
  return spy.original.CustomOpDomain_Add(domain, op);
}

// The registered operators whose objects ended with RegisterCustomOps: they lie on the stack, or the memory
// has been used again.
std::vector<std::string> ended_operators() {
  pthread_attr_t attributes;
  void* stack = nullptr;
  size_t size = 0;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    pthread_attr_getstack(&attributes, &stack, &size);
    pthread_attr_destroy(&attributes);
  }
  std::vector<std::string> ended;
  for (const auto& [object, bytes, full] : spy.operators) {
    const auto at = reinterpret_cast<uintptr_t>(object), low = reinterpret_cast<uintptr_t>(stack);
    if (at >= low && at < low + size)
      ended.push_back(full + " (on the stack)");
    else if (std::memcmp(object, bytes.data(), bytes.size()) != 0)
      ended.push_back(full + " (its memory has changed)");
  }
  return ended;
}

// All versions of OrtApi are one table, which is read-only: two of its entries are replaced in this process.
void replace_entries(const OrtApi* table) {
  spy.original = *table;
  auto* writable = const_cast<OrtApi*>(table);
  const long page = sysconf(_SC_PAGESIZE);
  const auto begin = reinterpret_cast<uintptr_t>(table) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(table) + sizeof(OrtApi);
  if (mprotect(reinterpret_cast<void*>(begin), end - begin, PROT_READ | PROT_WRITE) != 0) return;
  writable->CreateCustomOpDomain = spy_create;
  writable->CustomOpDomain_Add = spy_add;
}

// In a child: loads the library as ONNX Runtime would, and registers it.
void register_library(const RuntimeFacts& runtime, const Library& library, const Say& say) {
  const Api ort(runtime.path, runtime.api);
  say("stage", "loading it");
  void* handle = dlopen(library.file.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw Error(ErrorKind::kNotSupported, dlerror());
  const auto entry = reinterpret_cast<OrtStatus*(ORT_API_CALL*)(OrtSessionOptions*, const OrtApiBase*)>(
      dlsym(handle, "RegisterCustomOps"));
  if (entry == nullptr) throw Error(ErrorKind::kNotSupported, dlerror());
  spy.real = ort.base;
  spy.say = say;
  replace_entries(ort.api);
  static constexpr OrtApiBase base{spy_get_api, spy_version};
  OrtSessionOptions* options = nullptr;
  ort.check(ort.api->CreateSessionOptions(&options));
  say("stage", "its RegisterCustomOps");
  OrtStatus* status = entry(options, &base);
  if (status != nullptr) {
    say("refused", ort.api->GetErrorMessage(status));
    return;
  }
  say("stage", "reading its operators after registration");
  if (const std::vector<std::string> ended = ended_operators(); !ended.empty()) {
    say("ended", some_of(ended));
    return;
  }
  say("stage", "a session of a model without custom operators");
  const std::string refusal = ort.refusal(tiny_model(8, 13), options);
  if (!refusal.empty()) say("breaks", refusal);
}

// The operators whose declarations ONNX Runtime cannot accept, as far as its rules are known.
std::string suspects(const std::vector<RegisteredOp>& ops) {
  std::vector<std::string> found;
  std::map<std::string, int> inputs;
  for (const RegisteredOp& op : ops) {
    const std::string name = op.domain + "::" + op.name;
    const auto undefined = std::count(op.input_types.begin(), op.input_types.end(), 0);
    if (undefined > 1)
      found.push_back(name + " has " + std::to_string(undefined) + " inputs of undefined type");
    const auto [first, fresh] = inputs.emplace(name, op.inputs);
    if (!fresh && first->second != op.inputs)
      found.push_back(name + " is registered with " + std::to_string(first->second) + " and with " +
                      std::to_string(op.inputs) + " inputs");
  }
  return found.empty() ? "" : some_of(found) + "; ONNX Runtime: ";
}

RegisteredOp to_op(const Json& j) {
  RegisteredOp op;
  op.domain = j.at("domain");
  op.name = j.at("name");
  op.provider = j.at("provider");
  op.version = j.at("version");
  op.inputs = j.at("inputs");
  op.outputs = j.at("outputs");
  op.required_inputs = j.at("required");
  op.variadic = j.at("variadic");
  for (const Json& t : j.at("types")) op.input_types.push_back(t);
  return op;
}

// ONNX Runtime's message without the place in its sources that it starts with.
std::string without_place(const std::string& message) {
  const size_t file = message.find(".cc:"), end = file == std::string::npos ? file : message.find(") ", file);
  return end == std::string::npos ? message : message.substr(end + 2);
}

std::string said(const std::string& printed) { return printed.empty() ? "" : "; it printed: " + printed; }

}  // namespace

RuntimeFacts check_runtime(const Options& options, Report& report) {
  const Outcome outcome = in_child(
      [&](const Say& say) {
        const Runtime runtime = Runtime::find(options.ort);
        say("runtime", {{"version", runtime.version()},
                        {"path", runtime.path()},
                        {"source", runtime.source()},
                        {"api", runtime.api_version()},
                        {"providers", runtime.providers()}});
        const Api ort(runtime.path(), runtime.api_version());
        OrtSessionOptions* native = nullptr;
        ort.check(ort.api->CreateSessionOptions(&native));
        say("max_ir", number_after(ort.refusal(tiny_model(1000, 13), native), "max supported IR version: "));
        say("max_opset", number_after(ort.refusal(tiny_model(8, 1000), native), "till opset "));
      },
      kPatience);
  RuntimeFacts facts;
  if (!outcome.crash.empty()) {
    report.add("runtime-crashes", options.ort.empty() ? "ONNX Runtime" : options.ort,
               "the process " + outcome.crash + " while it was loaded" + said(outcome.printed));
    return facts;
  }
  const Json runtime = outcome.last("runtime");
  if (runtime.is_null()) {
    const bool old = outcome.error.find("but opbridge needs 1.") != std::string::npos;
    std::string evidence = outcome.error;
    if (old) {  // of all the places that were tried, the one that has a runtime
      const size_t at = evidence.find("is ONNX Runtime ");
      evidence = "it " + evidence.substr(at, evidence.find('\n', at) - at);
    }
    const auto [python, version] = python_runtime(options.ort);
    if (!python.empty() && version_numbers(version) < version_numbers("1.19") &&
        version_numbers(version) >= version_numbers("1.16")) {
      facts.python = python;
      facts.version = version;
      facts.api = version_numbers(version)[1];
      std::tie(facts.max_ir, facts.max_opset) = known_limits(facts.api);
      report.add("runtime-python-only", python, "it has onnxruntime " + version);
      return facts;
    }
    report.add(old ? "runtime-too-old" : "runtime-missing",
               options.ort.empty() ? "ONNX Runtime" : options.ort, evidence);
    return facts;
  }
  facts.usable = true;
  facts.version = runtime.at("version");
  facts.path = runtime.at("path");
  facts.source = runtime.at("source");
  facts.api = runtime.at("api");
  facts.providers = runtime.at("providers").get<std::vector<std::string>>();
  facts.max_ir = outcome.last("max_ir").is_null() ? 0 : outcome.last("max_ir").get<int>();
  facts.max_opset = outcome.last("max_opset").is_null() ? 0 : outcome.last("max_opset").get<int>();
  report.facts["runtime"] = runtime;
  report.facts["runtime"]["max_ir_version"] = facts.max_ir;
  report.facts["runtime"]["max_opset"] = facts.max_opset;
  return facts;
}

void probe_registration(const Options& options, const RuntimeFacts& runtime, std::vector<Library>& libraries,
                        Report& report) {
  for (Library& library : libraries) {
    if (!library.usable) continue;
    if (!library.file.is_opbridge() && !options.load) {
      report.add("library-unread", library.path, "it is not opbridge's, so it was only read");
      continue;
    }
    const Outcome outcome =
        in_child([&](const Say& say) { register_library(runtime, library, say); }, kPatience);
    for (const Json& op : outcome.all("registered")) library.registered.push_back(to_op(op));
    uint32_t asked = 0;
    for (const Json& a : outcome.all("asked_api")) asked = std::max(asked, a.get<uint32_t>());
    int struct_version = 0;
    for (const RegisteredOp& op : library.registered) struct_version = std::max(struct_version, op.version);
    const std::string offered = "ONNX Runtime " + runtime.version + " has API " + std::to_string(runtime.api);
    const size_t before = report.findings.size();
    if (asked > static_cast<uint32_t>(runtime.api)) {
      report.add("library-api-newer", library.path,
                 "it asks for API " + std::to_string(asked) + ", " + offered +
                     (outcome.crash.empty() ? "" : "; the process then " + outcome.crash),
                 "take ONNX Runtime 1." + std::to_string(asked) +
                     " or newer, or build it with the headers of 1." + std::to_string(runtime.api));
    } else if (!outcome.last("ended").is_null()) {
      report.add("library-operators-ended", library.path, outcome.last("ended"));
    } else if (!outcome.crash.empty()) {
      const Json stage = outcome.last("stage");
      report.add(outcome.crash.find("ended itself") == 0 ? "library-ends-process" : "library-crashes",
                 library.path,
                 "the process " + outcome.crash + " in " +
                     (stage.is_null() ? "a child" : stage.get<std::string>()) + said(outcome.printed));
    } else if (!outcome.error.empty()) {
      library.usable = false;
      if (!report.has("library-needs-python", library.path))
        report.add("library-undefined-symbol", library.path, outcome.error);
    } else if (!outcome.last("refused").is_null()) {
      const std::string text = outcome.last("refused");
      report.add(text.find("API ") != std::string::npos && text.find("newer") != std::string::npos
                     ? "library-api-newer"
                     : "library-registration-fails",
                 library.path, text);
    } else if (struct_version > runtime.api && runtime.api < 28) {
      report.add("library-api-newer", library.path,
                 "its operators are of API " + std::to_string(struct_version) + ", " + offered,
                 "take ONNX Runtime 1." + std::to_string(struct_version) +
                     " or newer, or build it with the headers of 1." + std::to_string(runtime.api));
    } else if (!outcome.last("breaks").is_null()) {
      report.add("library-breaks-sessions", library.path,
                 suspects(library.registered) + without_place(outcome.last("breaks").get<std::string>()));
    }
    if (report.findings.size() > before) library.usable = false;
    std::set<std::string> seen;
    for (const RegisteredOp& op : library.registered) {
      std::string key = op.domain + "::" + op.name + " for " + op.provider + " (";
      for (size_t i = 0; i < op.input_types.size(); ++i)
        key += (i == 0 ? "" : ", ") +
               (op.input_types[i] == 0 ? std::string("any") : onnx_type_name(op.input_types[i]));
      if (!seen.insert(key).second && !library.file.is_opbridge())
        report.add("library-operator-twice", library.path, key + ")");
      if (op.domain.empty() || op.domain == "ai.onnx")
        report.add("library-unnamed-domain", library.path, "it registers '" + op.name + "' there");
    }
  }
  Json list = Json::array();
  for (const Library& library : libraries) {
    Json domains = Json::object();
    for (const std::string& d : library.domains()) domains[d] = library.operators(d);
    list.push_back({{"path", library.path},
                    {"opbridge", library.file.is_opbridge()},
                    {"usable", library.usable},
                    {"operators", domains}});
  }
  report.facts["libraries"] = list;
}

std::map<std::string, std::vector<int>> opsets_with(const RuntimeFacts& runtime,
                                                    const std::set<std::string>& operators) {
  const Outcome outcome = in_child(
      [&](const Say& say) {
        const Api ort(runtime.path, runtime.api);
        OrtSessionOptions* native = nullptr;
        ort.check(ort.api->CreateSessionOptions(&native));
        for (const std::string& op : operators) {
          for (int opset = 1; opset <= runtime.max_opset; ++opset) {
            if (ort.refusal(tiny_model(8, opset, op), native).find("Op registered for " + op) ==
                std::string::npos)
              say(op, opset);
          }
        }
      },
      kPatience);
  std::map<std::string, std::vector<int>> found;
  for (const std::string& op : operators) {
    for (const Json& opset : outcome.all(op)) found[op].push_back(opset);
  }
  return found;
}

namespace {

// A session in the Python that has the only ONNX Runtime here.
Outcome session_in_python(const std::string& python, const Options& options,
                          const std::vector<Library>& libraries) {
  static constexpr const char* kScript = R"(
import sys
import onnxruntime as ort
options = ort.SessionOptions()
options.log_severity_level = 4
try:
    for library in sys.argv[2:]:
        options.register_custom_ops_library(library)
    ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
except Exception as e:
    print(e)
    sys.exit(3)
)";
  Outcome outcome = in_child(
      [&](const Say&) {
        std::vector<const char*> arguments = {python.c_str(), "-c", kScript, options.model.c_str()};
        for (const Library& library : libraries) arguments.push_back(library.file.path.c_str());
        arguments.push_back(nullptr);
        execv(python.c_str(), const_cast<char**>(arguments.data()));
        throw Error(ErrorKind::kNotSupported, python + ": " + std::strerror(errno));
      },
      kPatience);
  if (starts_with(outcome.crash, "ended itself")) {  // as every program does
    if (outcome.crash != "ended itself with exit code 0") outcome.error = outcome.printed;
    outcome.crash.clear();
  }
  return outcome;
}

// A session as any program makes it, of a model that opbridge's runner does not read.
void plain_session(const RuntimeFacts& runtime, const std::vector<Library>& libraries,
                   const std::string& model) {
  const Api ort(runtime.path, runtime.api);
  OrtSessionOptions* native = nullptr;
  ort.check(ort.api->CreateSessionOptions(&native));
  for (const Library& library : libraries)
    ort.check(ort.api->RegisterCustomOpsLibrary_V2(native, library.file.path.c_str()));
  OrtSession* session = nullptr;
  ort.check(ort.api->CreateSession(ort.env, model.c_str(), native, &session));
}

// The runner's messages say themselves whose they are.
std::string by_runtime(const RuntimeFacts& runtime, const std::string& error) {
  return starts_with(error, "ONNX Runtime ") ? error : "ONNX Runtime " + runtime.version + ": " + error;
}

// What ONNX Runtime says of a node of ONNX or of its own, whose cause cannot be one of the libraries. Whether
// that was it.
bool explain_built_in(const std::string& error, const Options& options, const RuntimeFacts& runtime,
                      Report& report) {
  const std::string said_so = by_runtime(runtime, error);
  std::smatch match;
  static const std::regex kTheirs(
      "((?:com\\.microsoft|ai\\.onnx)[\\w.]*):(\\w+)\\(-?\\d+\\) is not a registered");
  if (std::regex_search(error, match, kTheirs)) {
    report.add("operator-not-in-runtime", match.str(1) + "::" + match.str(2), said_so);
    return true;
  }
  static const std::regex kMissing(
      "Op registered for (\\w+) (?:with|is deprecated in) domain_version of (\\d+)");
  if (runtime.usable && std::regex_search(error, match, kMissing)) {
    const auto known = opsets_with(runtime, {match.str(1)});
    if (known.empty()) return false;
    const std::vector<int>& opsets = known.begin()->second;
    report.add("model-opset-mismatch", options.model,
               "the model has opset " + match.str(2) + ", " + match.str(1) + " is there from " +
                   std::to_string(opsets.front()) + " to " + std::to_string(opsets.back()));
    return true;
  }
  static const std::regex kNode("In Node, \\(\"([^\"]*)\", (\\w+), \"\", -?\\d+\\)");
  for (const char* text : {"Unrecognized attribute", "has input size", "has output size",
                           "is marked single but has an empty string", "Required attribute"}) {
    if (error.find(text) == std::string::npos || !std::regex_search(error, match, kNode)) continue;
    report.add("model-opset-mismatch", match.str(2) + " (node '" + match.str(1) + "')", said_so);
    return true;
  }
  return false;
}

}  // namespace

void probe_session(const Options& options, const RuntimeFacts& runtime, const std::vector<Library>& libraries,
                   Report& report) {
  for (const Library& library : libraries) {
    if (!library.usable || !(runtime.usable ? library.known() : library.file.is_opbridge() || options.load))
      return;  // said already
  }
  const bool own_format = report.has("model-ort-format", options.model);
  const Outcome outcome = !runtime.usable ? session_in_python(runtime.python, options, libraries)
                                          : in_child(
                                                [&](const Say& say) {
                                                  if (own_format)
                                                    return plain_session(runtime, libraries, options.model);
                                                  SessionOptions session_options;
                                                  for (const Library& library : libraries)
                                                    session_options.libraries.push_back(library.path);
                                                  session_options.provider = options.provider;
                                                  const Session session(Runtime::find(runtime.path),
                                                                        options.model, session_options);
                                                  say("warnings", session.warnings());
                                                },
                                                kPatience);
  if (!outcome.last("warnings").is_null()) report.facts["session_warnings"] = outcome.last("warnings");
  // What opbridge's own runner cannot hold, such as strings, says nothing about ONNX Runtime.
  if (outcome.ok() || outcome.error.find("the runner handles tensors of") != std::string::npos) return;
  if (!outcome.crash.empty()) {
    report.add("runtime-crashes", options.model,
               "the process " + outcome.crash + " while ONNX Runtime " + runtime.version +
                   " loaded the model" + said(outcome.printed));
    return;
  }
  if (explain_built_in(outcome.error, options, runtime, report)) return;
  // One text has several causes; those that can be seen in the files have been ruled out by now.
  static constexpr std::pair<const char*, const char*> kTexts[] = {
      {"org.pytorch.aten:", "operator-not-exported"},  // only ONNX Runtime's training builds have it
      {"is not a registered function/op", "operator-unserved"},
      {"No Op registered for", "operator-no-domain"},
      {"No opset import for domain", "operator-no-library"},
      {"Domain already set in registry", "domain-shared"},
      {"has input size", "operator-inputs-missing"},
      {"is marked single but has an empty string", "operator-inputs-missing"},
      {"has output size", "operator-outputs-too-many"},
      {"of input parameter", "operator-input-type"},
      {"no kernel def matches", "node-no-kernel"},
      {"Could not find an implementation", "node-no-kernel"},
      {"does not match expected type", "output-type-mismatch"},
      {"type inference failed", "model-untyped-output"},
      {"Unsupported version", "library-api-newer"},
      {"Attribute name and type don't match", "operator-attribute-invalid"},
      {"No attribute with name", "operator-attribute-invalid"},
      {"Unsupported model IR version", "model-ir-too-new"},
      {"ONNX Runtime only *guarantees* support", "model-opset-too-new"},
      {"xternal data", "model-weights-missing"},
      {"has no CUDA kernel for", "operator-no-cuda-kernel"},
      {"fallback to CPU EP has been explicitly disabled", "operator-no-cuda-kernel"},
      {"Protobuf parsing failed", "model-not-onnx"},
  };
  for (const auto& [text, code] : kTexts) {
    if (outcome.error.find(text) == std::string::npos) continue;
    report.add(code, options.model, by_runtime(runtime, outcome.error));
    return;
  }
  report.add("session-fails", options.model, outcome.error);
}

}  // namespace opbridge::doctor
