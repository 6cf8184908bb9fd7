// `opbridge replay`: runs calls again that OPBRIDGE_DUMP wrote down.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "command.h"
#include "core/node.h"
#include "difference.h"
#include "doctor/child.h"
#include "opbridge/abi.h"
#include "runner/library_file.h"
#include "runner/node_model.h"
#include "runner/temporary_folder.h"
#include "runner/visit.h"
#include "terminal.h"

namespace opbridge::cli {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Options {
  std::vector<std::string> files;
  std::string library, ort;
  std::string provider = "cpu";
  int threads = 0;
  double timeout = 600;
  bool json = false;
};

constexpr const char* kExamples = R"(Examples:
  OPBRIDGE_DUMP=calls python infer.py             writes an .npz of each call of an opbridge operator
  OPBRIDGE_DUMP=calls OPBRIDGE_DUMP_ON=error ./infer    only of calls that fail or crash
  opbridge replay calls                           runs them all again
  opbridge replay calls/20260801T101502.123456-knn-4711.npz --library build/lib/libmy_ops.so
  opbridge replay calls --ort /opt/onnxruntime-1.20 --provider cuda

A call is made through the library's own interface, without ONNX Runtime; with --ort or --provider cuda as a model of
one node. Each runs in a child process, so that a crash is an answer. docs/tracing.md has the rest.
Exit codes: 0 every call did what it did then (the same bits, the same error, a crash again), 1 one did not,
2 wrong command line.)";

// --- the file

struct Dump {
  std::string path;
  Json call, result;  // result is null where the process ended inside the call
  Arrays arrays;

  std::string text(const char* field) const { return call.at(field).get<std::string>(); }
  std::string title() const {
    const std::string node = text("node");
    return text("domain") + "::" + text("operator") + (node.empty() ? "" : " (node '" + node + "')");
  }
  // Null where there was none.
  std::vector<const Array*> tensors(const char* list) const {
    std::vector<const Array*> found;
    for (const Json& name : call.at(list)) {
      const auto at = name.is_null() ? arrays.end() : arrays.find(name.get<std::string>());
      found.push_back(at == arrays.end() ? nullptr : &at->second);
    }
    return found;
  }
  std::vector<bool> wanted() const {
    std::vector<bool> list;
    for (const Json& name : call.at("outputs")) list.push_back(!name.is_null());
    return list;
  }
  Arrays attributes() const {
    const std::string prefix = "attributes/";
    Arrays found;
    for (const auto& [name, array] : arrays) {
      if (name.rfind(prefix, 0) == 0) found.emplace(name.substr(prefix.size()), array);
    }
    return found;
  }
};

Json parse_text(const Array& array) {
  return Json::parse(std::string(static_cast<const char*>(array.data()), array.bytes()));
}

Dump read_dump(const std::string& path) {
  Dump dump;
  dump.path = path;
  dump.arrays = read_arrays(path);
  const auto call = dump.arrays.find("call"), result = dump.arrays.find("result");
  if (call == dump.arrays.end())
    throw InvalidArgument("'" + path + "' is no call that OPBRIDGE_DUMP wrote: it has no array 'call'");
  try {
    dump.call = parse_text(call->second);
    if (result != dump.arrays.end()) dump.result = parse_text(result->second);
    for (const char* field : {"domain", "operator", "node", "file", "fingerprint"}) dump.text(field);
    for (const char* list : {"inputs", "outputs"}) {
      for (const Json& name : dump.call.at(list)) {
        if (!name.is_null() && list[0] == 'i') dump.arrays.at(name.get<std::string>());
      }
    }
  } catch (const std::exception& e) {
    throw InvalidArgument("'" + path + "' is damaged: " + e.what());
  }
  return dump;
}

// --- the call

struct Answer {
  std::string error;
  std::vector<std::optional<Array>> outputs;
};

// The outputs' types: what the signature makes of the inputs, as far as they say it.
std::vector<DType> output_types(const Signature& s, const std::vector<const Array*>& inputs) {
  std::vector<DType> types;
  for (const Argument& output : s.outputs) {
    DType type = output.concrete;
    for (size_t i = inputs.size(); output.type_variable >= 0 && i-- > 0;) {
      const size_t declared = std::min(i, s.inputs.size() - 1);
      if (inputs[i] != nullptr && s.inputs[declared].type_variable == output.type_variable)
        type = inputs[i]->dtype();
    }
    types.push_back(type);
  }
  return types;
}

Answer through_runtime(const Dump& dump, const LibraryFile& library, const Signature& signature,
                       const Options& options) {
  NodeCall call{dump.text("domain"), dump.text("operator"),  dump.text("node"),
                dump.attributes(),   dump.tensors("inputs"), {},
                dump.wanted()};
  call.output_types = output_types(signature, call.inputs);
  call.wanted.resize(call.output_types.size(), true);
  const TemporaryFolder folder;
  const std::string model = folder.path / "call.onnx";
  write_node_model(model, call);
  SessionOptions session_options;
  session_options.libraries = {library.path};
  session_options.provider = options.provider;
  session_options.threads = options.threads;
  const Runtime runtime = Runtime::find(options.ort);
  Answer answer;
  answer.outputs.resize(call.output_types.size());
  try {
    const Session session(runtime, model, session_options);
    Arrays inputs;
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      if (call.inputs[i] != nullptr) inputs.emplace("i" + std::to_string(i), *call.inputs[i]);
    }
    const Arrays outputs = session.run(inputs);
    for (const auto& [name, array] : outputs) answer.outputs.at(std::stoul(name.substr(1))) = array;
  } catch (const Error& e) {
    answer.error = e.what();
  }
  return answer;
}

struct DlType {
  DType dtype;
  uint8_t code, bits;
};
constexpr DlType kDlTypes[] = {{DType::f16, 2, 16},   {DType::bf16, 4, 16}, {DType::f32, 2, 32},
                               {DType::f64, 2, 64},   {DType::i8, 0, 8},    {DType::i16, 0, 16},
                               {DType::i32, 0, 32},   {DType::i64, 0, 64},  {DType::u8, 1, 8},
                               {DType::u16, 1, 16},   {DType::u32, 1, 32},  {DType::u64, 1, 64},
                               {DType::boolean, 6, 8}};

OpbridgeTensor tensor_of(const Array& array) {
  OpbridgeTensor t{};
  for (const DlType& type : kDlTypes) {
    if (type.dtype != array.dtype()) continue;
    t.dtype_code = type.code;
    t.dtype_bits = type.bits;
  }
  t.dtype_lanes = 1;
  t.data = array.data();
  t.device_type = 1;
  t.ndim = static_cast<int32_t>(array.shape().size());
  t.shape = const_cast<int64_t*>(array.shape().data());
  return t;
}

Answer through_interface(const Dump& dump, const LibraryFile& library, const Signature& signature,
                         const Options& options) {
  void* handle = dlopen(library.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw Error(ErrorKind::kNotSupported, dlerror());
  const auto get = reinterpret_cast<decltype(&opbridge_get_library)>(dlsym(handle, "opbridge_get_library"));
  OpbridgeError error{};
  error.size = sizeof error;
  const OpbridgeLibrary& table = *get(OPBRIDGE_ABI_VERSION, &error);
  Answer answer;
  const auto refused = [&](int32_t kind) {
    if (kind != 0) answer.error = error.message;
    return kind != 0;
  };

  const Arrays given = dump.attributes();
  std::vector<OpbridgeAttribute> attributes;
  std::vector<std::string> strings;
  strings.reserve(given.size());
  for (const auto& [name, value] : given) {
    OpbridgeAttribute a{};
    a.name = name.c_str();
    const Attribute* declared = signature.find_attribute(name);
    if (declared == nullptr) {
      answer.error = "attribute '" + name + "' is unknown";
      return answer;
    }
    a.type = static_cast<int32_t>(declared->type);
    a.count = static_cast<size_t>(value.count());
    if (value.dtype() == DType::u8) {
      strings.emplace_back(static_cast<const char*>(value.data()), value.bytes());
      a.s = strings.back().c_str();
    } else if (value.dtype() == DType::i64) {
      a.ints = value.as<int64_t>();
      if (value.shape().empty()) a.i = *a.ints;
    } else {
      a.floats = value.as<float>();
      if (value.shape().empty()) a.f = static_cast<double>(*a.floats);
    }
    attributes.push_back(a);
  }
  OpbridgeNode* node = nullptr;
  if (refused(table.create_node(signature.name.c_str(), dump.text("node").c_str(), attributes.data(),
                                attributes.size(), &node, &error)))
    return answer;

  const std::vector<const Array*> inputs = dump.tensors("inputs");
  std::vector<OpbridgeTensor> tensors;
  tensors.reserve(inputs.size() + signature.outputs.size());
  std::vector<const OpbridgeTensor*> in, out;
  for (const Array* array : inputs) {
    if (array != nullptr) tensors.push_back(tensor_of(*array));
    in.push_back(array == nullptr ? nullptr : &tensors.back());
  }
  std::vector<OpbridgeTensorSpec> specs(signature.outputs.size());
  if (refused(table.infer(node, in.data(), in.size(), specs.data(), specs.size(), &error))) return answer;
  std::vector<bool> wanted = dump.wanted();
  wanted.resize(specs.size(), true);
  for (size_t i = 0; i < specs.size(); ++i) {
    answer.outputs.emplace_back();
    if (wanted[i] || !signature.outputs[i].optional) {
      const auto& s = specs[i];
      const auto* type = std::find_if(std::begin(kDlTypes), std::end(kDlTypes), [&](const DlType& t) {
        return t.code == s.dtype_code && t.bits == s.dtype_bits;
      });
      answer.outputs.back() = Array(type->dtype, {s.shape, s.shape + s.ndim});
      tensors.push_back(tensor_of(*answer.outputs.back()));
    }
    out.push_back(answer.outputs.back() ? &tensors.back() : nullptr);
  }
  OpbridgeHost host{};
  host.size = sizeof host;
  host.threads = options.threads;
  if (refused(table.workspace_bytes(node, in.data(), in.size(), 1, &host.workspace_bytes, &error)))
    return answer;
  const std::unique_ptr<void, decltype(&std::free)> workspace(
      std::aligned_alloc(kWorkspaceAlignment,
                         (host.workspace_bytes / kWorkspaceAlignment + 1) * kWorkspaceAlignment),
      std::free);
  host.workspace = workspace.get();
  refused(table.compute(node, in.data(), in.size(), out.data(), out.size(), &host, &error));
  return answer;
}

// --- what came of it

// "3 of 6 elements, first at [0,1]: 0.5 then, 0.25 now"; two arrays of one type and shape.
std::string where(const Array& now, const Array& then) {
  const size_t size = dtype_size(now.dtype());
  int64_t count = 0, first = -1;
  for (int64_t i = 0; i < now.count(); ++i) {
    const size_t at = static_cast<size_t>(i) * size;
    if (std::memcmp(static_cast<const char*>(now.data()) + at, static_cast<const char*>(then.data()) + at,
                    size) == 0)
      continue;
    if (count++ == 0) first = i;
  }
  const auto value = [&](const Array& a) {
    double v = 0;
    visit(a, [&](const auto* data) { v = as_double(data[first]); });
    return number(v);
  };
  return std::to_string(count) + " of " + std::to_string(now.count()) + " elements, first at " +
         index_text(now.shape(), first) + ": " + value(then) + " then, " + value(now) + " now";
}

// {"outcome", "as_then", "text", "outputs"} of a call that has come back.
Json judge(const Dump& dump, const Signature& signature, const Answer& answer) {
  const std::string status = dump.result.is_null() ? "" : dump.result.at("status").get<std::string>();
  if (!answer.error.empty()) {
    if (status.empty())
      return {{"outcome", "fails"},
              {"as_then", false},
              {"text", "fails, where the process ended then: " + answer.error}};
    if (status == "ok")
      return {{"outcome", "fails"}, {"as_then", false}, {"text", "fails, but did not then: " + answer.error}};
    const std::string then = dump.result.at("error");
    if (answer.error.find(then) != std::string::npos)
      return {{"outcome", "fails"}, {"as_then", true}, {"text", "fails as it did then: " + then}};
    return {{"outcome", "fails"},
            {"as_then", false},
            {"text", "fails otherwise: " + answer.error + " (then: " + then + ")"}};
  }
  if (status != "ok") {
    return {
        {"outcome", "works"},
        {"as_then", false},
        {"text", status.empty() ? std::string("works, but the process ended inside it then")
                                : "works, but failed then: " + dump.result.at("error").get<std::string>()}};
  }
  const std::vector<const Array*> expected = dump.tensors("outputs");
  Json outputs = Json::array();
  std::string text;
  bool identical = true;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == nullptr || i >= answer.outputs.size() || !answer.outputs[i]) continue;
    const Array& now = *answer.outputs[i];
    Difference d = compare(now, *expected[i]);
    std::string how = d.problem;
    if (how.empty() && !d.identical) how = where(now, *expected[i]) + "; largest difference " + number(d.max);
    const std::string name = i < signature.outputs.size() ? signature.outputs[i].name : std::to_string(i);
    outputs.push_back(
        {{"name", name}, {"type", now.to_string()}, {"where", how}, {"difference", d.to_json()}});
    if (d.identical) continue;
    identical = false;
    text += (text.empty() ? "" : "; ") + name + " " + now.to_string() + ": " + how;
  }
  if (identical)
    return {{"outcome", "same"}, {"as_then", true}, {"text", "the same bits"}, {"outputs", outputs}};
  return {{"outcome", "differs"}, {"as_then", false}, {"text", "differs: " + text}, {"outputs", outputs}};
}

Json replay(const Dump& dump, const Options& options) {
  const std::string file = options.library.empty() ? dump.text("file") : options.library;
  Json result;
  const doctor::Outcome outcome = doctor::in_child(
      [&](const doctor::Say& say) {
        unsetenv("OPBRIDGE_DUMP");
        const LibraryFile library = read_library(file);
        const std::string op = dump.text("operator");
        const auto* declared = library.find_operator(op);
        if (declared == nullptr || library.domain() != dump.text("domain"))
          throw InvalidArgument("'" + file + "' has no operator " + dump.text("domain") + "::" + op +
                                ": give the library that has it with --library");
        const Signature signature = parse_signature(declared->at("signature").get<std::string>());
        if (declared->at("fingerprint") != dump.call.at("fingerprint"))
          say("note", "the operator's declaration has changed since: " + signature.to_string());
        say("calling", true);
        const bool runtime = !options.ort.empty() || options.provider != "cpu";
        const Answer answer = runtime ? through_runtime(dump, library, signature, options)
                                      : through_interface(dump, library, signature, options);
        say("result", judge(dump, signature, answer));
      },
      options.timeout);
  if (!outcome.last("result").is_null()) {  // also where the process then stumbled at its end
    result = outcome.last("result");
  } else if (!outcome.crash.empty()) {
    const bool then = dump.result.is_null() && !outcome.last("calling").is_null();
    result = {{"outcome", "crashes"},
              {"as_then", then},
              {"text", std::string("crashes") + (then ? " again" : "") + ": the process " + outcome.crash}};
  } else {
    throw InvalidArgument(outcome.error);
  }
  if (!outcome.last("note").is_null()) result["note"] = outcome.last("note");
  return result;
}

std::vector<std::string> files_of(const std::vector<std::string>& given) {
  std::vector<std::string> files;
  for (const std::string& path : given) {
    if (!fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    const size_t before = files.size();
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.path().extension() == ".npz") files.push_back(entry.path().string());
    }
    if (files.size() == before) throw InvalidArgument("'" + path + "' is a folder without .npz files");
    std::sort(files.begin() + static_cast<std::ptrdiff_t>(before), files.end());  // by time
  }
  return files;
}

int run(const Options& options) {
  Json calls = Json::array();
  size_t other = 0;
  const std::vector<std::string> files = files_of(options.files);
  for (size_t i = 0; i < files.size(); ++i) {
    Dump dump;
    Json result;
    try {
      dump = read_dump(files[i]);
      const Progress progress(!options.json && files.size() > 1);
      progress(i + 1, files.size(), dump.title());
      result = replay(dump, options);
    } catch (const Error& e) {
      if (files.size() == 1) throw;
      // One bad file among many hides nothing of the others.
      ++other;
      calls.push_back({{"file", files[i]},
                       {"outcome", "unreadable"},
                       {"as_then", false},
                       {"text", std::string(e.what())}});
      if (!options.json)
        std::printf("%s: cannot be replayed: %s\n", printable(fs::path(files[i]).filename().string()).c_str(),
                    printable(e.what()).c_str());
      continue;
    }
    other += !result.at("as_then").get<bool>();
    Json call = {{"file", dump.path},
                 {"operator", dump.text("domain") + "::" + dump.text("operator")},
                 {"node", dump.text("node")}};
    call.update(result);
    calls.push_back(call);
    if (options.json) continue;
    std::printf("%s %s: %s\n", printable(fs::path(dump.path).filename().string()).c_str(),
                heading(printable(dump.title())).c_str(),
                printable(result.at("text").get<std::string>()).c_str());
    if (result.contains("note"))
      std::printf("  note: %s\n", printable(result.at("note").get<std::string>()).c_str());
    if (dump.text("device") == "cuda" && options.provider == "cpu")
      std::printf("  note: it ran on CUDA then, on the CPU now; --provider cuda runs it there\n");
  }
  if (options.json) {
    print_json({{"calls", calls}, {"as_then", calls.size() - other}, {"otherwise", other}});
  } else if (calls.size() > 1) {
    std::printf("%zu calls: %zu as they were then, %zu otherwise\n", calls.size(), calls.size() - other,
                other);
  }
  return other == 0 ? kOk : kFailed;
}

}  // namespace

Command add_replay(CLI::App& parent) {
  const auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand(
      "replay", "Runs calls again that OPBRIDGE_DUMP wrote in a running process, and says what is different");
  app->footer(kExamples);
  app->add_option("files", o->files, "What OPBRIDGE_DUMP wrote: .npz files, or folders of these")
      ->required()
      ->option_text("FILE...");
  app->add_option("-l,--library", o->library, "The operator library [the one that made the call]")
      ->option_text("FILE");
  app->add_option("--ort", o->ort, "Calls it through this ONNX Runtime: libonnxruntime.so.* or its folder")
      ->option_text("PATH");
  app->add_option("--provider", o->provider, "cpu or cuda [cpu]; cuda calls it through ONNX Runtime")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->option_text("NAME");
  app->add_option("--threads", o->threads, "Threads inside the operator; 0: as many as there are [0]")
      ->check(CLI::Range(0, 4096))
      ->option_text("N");
  app->add_option("--timeout", o->timeout, "Seconds after which a call is given up [600]")
      ->check(CLI::Range(0.1, 1e6))
      ->option_text("S");
  app->add_flag("--json", o->json, "Prints one JSON object instead of text");
  return {app, [o] { return run(*o); }};
}

}  // namespace opbridge::cli
