// Loads a model into an ONNX Runtime and runs it.
#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <set>

#include "core/text.h"
#include "library_file.h"
#include "model.h"
#include "onnx_types.h"
#include "opbridge/runner.h"
#include "opbridge/signature.h"
#include "ort.h"

namespace opbridge {

namespace fs = std::filesystem;

std::string TensorInfo::to_string() const { return type_and_shape(dtype_name(dtype), rank_known, dims); }

struct Session::Impl {
  explicit Impl(std::shared_ptr<Runtime::Impl> runtime)
      : runtime(std::move(runtime)), api(this->runtime->api) {}
  ~Impl() {
    if (session != nullptr) api->ReleaseSession(session);
    if (memory != nullptr) api->ReleaseMemoryInfo(memory);
  }

  void create(const std::string& model, const SessionOptions& options,
              const std::vector<LibraryFile>& libraries);
  void use_cuda(OrtSessionOptions* native, const SessionOptions& options) const;
  void read_arguments(const ModelInfo& model);
  TensorInfo read_argument(const std::string& name, OrtTypeInfo* type, const char* role) const;
  OrtValue* wrap(const TensorInfo& info, const Array& array) const;

  void warn(const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (warnings.size() < 100) warnings.push_back(text);
  }
  // ONNX Runtime calls this from any thread.
  static void ORT_API_CALL log(void* self, OrtLoggingLevel level, const char*, const char*, const char*,
                               const char* message) {
    try {
      if (level >= ORT_LOGGING_LEVEL_WARNING) static_cast<Impl*>(self)->warn(message);
    } catch (...) {  // out of memory: a warning less
    }
  }

  std::shared_ptr<Runtime::Impl> runtime;
  const OrtApi* api;
  OrtSession* session = nullptr;
  OrtMemoryInfo* memory = nullptr;
  std::string provider;
  std::vector<TensorInfo> inputs, outputs;
  mutable std::mutex mutex;
  std::vector<std::string> warnings;
};

namespace {

// The custom operators given, each file once however it is spelt.
std::vector<LibraryFile> read_libraries(const std::vector<std::string>& paths) {
  std::vector<LibraryFile> libraries;
  std::set<fs::path> seen;
  for (const std::string& path : paths) {
    std::error_code ec;
    const fs::path real = fs::canonical(path, ec);
    if (ec || seen.insert(real).second) libraries.push_back(read_operator_library(path));
  }
  return libraries;
}

// What to do about a model that ONNX Runtime refuses, where its text alone does not say.
std::string advice(const std::string& text, const std::vector<LibraryFile>& libraries) {
  const auto says = [&](const char* part) { return text.find(part) != std::string::npos; };
  const std::string no_op = "No Op registered for ";
  const size_t at = text.find(no_op);
  if (at != std::string::npos) {
    const std::string op =
        text.substr(at + no_op.size(), text.find(' ', at + no_op.size()) - at - no_op.size());
    for (const LibraryFile& library : libraries) {
      if (library.find_operator(op) == nullptr) continue;
      return ". The node has no domain; the operator is " + library.domain() + "::" + op + " of '" +
             library.path + "': export the model with that domain";
    }
  }
  if (says("Unsupported model IR version") || says("is under development and support for this is limited") ||
      says("Current official support for domain")) {
    return ". The model is newer than this runtime: take a newer ONNX Runtime, or export for an older opset";
  }
  if (says("fallback to the CPU EP has been explicitly disabled")) {
    return ". Some of its operators have no CUDA kernel; allowing fallback (--allow-fallback) runs those on "
           "the CPU";
  }
  return "";
}

// A wheel's CUDA provider needs CUDA libraries that pip puts beside it, where the dynamic loader does not
// look. Those that are loaded already it takes by their names. What is missing is left to the provider's own
// message.
void preload_cuda_libraries(const fs::path& runtime) {
  const fs::path packages = runtime.parent_path().parent_path().parent_path() / "nvidia";
  for (const char* name : {"libcudart.so.", "libcublasLt.so.", "libcublas.so.", "libnvrtc.so.",
                           "libnvJitLink.so.", "libcurand.so.", "libcufft.so.", "libcudnn.so."}) {
    std::error_code ec;
    for (fs::directory_iterator package(packages, ec), end; !ec && package != end; package.increment(ec)) {
      std::error_code no_lib;
      for (fs::directory_iterator it(package->path() / "lib", no_lib); !no_lib && it != end;
           it.increment(no_lib)) {
        if (it->path().filename().string().rfind(name, 0) == 0)
          dlopen(it->path().c_str(), RTLD_NOW | RTLD_LOCAL);
      }
    }
  }
}

GraphOptimizationLevel native_level(Optimization level) {
  switch (level) {
    case Optimization::kNone:
      return ORT_DISABLE_ALL;
    case Optimization::kBasic:
      return ORT_ENABLE_BASIC;
    case Optimization::kExtended:
      return ORT_ENABLE_EXTENDED;
    case Optimization::kAll:
      break;
  }
  return ORT_ENABLE_ALL;
}

}  // namespace

// Adds the CUDA provider. Without fallback the CPU provider is not in the list and the runtime is told to
// refuse nodes that only it could run.
void Session::Impl::use_cuda(OrtSessionOptions* native, const SessionOptions& options) const {
  const std::vector<std::string> offered = Runtime(runtime).providers();
  if (std::find(offered.begin(), offered.end(), "CUDAExecutionProvider") == offered.end()) {
    throw Error(ErrorKind::kNotSupported, "ONNX Runtime " + runtime->version + " at " + runtime->path +
                                              " has no CUDA provider (it has " + list_of(offered) +
                                              "): install onnxruntime-gpu, name another runtime (--ort, "
                                              "OPBRIDGE_ORT), or take the provider cpu");
  }
  preload_cuda_libraries(runtime->path);
  const std::string what = "the CUDA provider of ONNX Runtime " + runtime->version + " cannot be used";
  OrtPtr<OrtCUDAProviderOptionsV2> cuda(api->ReleaseCUDAProviderOptions);
  const std::string device = std::to_string(options.device_id);
  const char* keys[] = {"device_id"};
  const char* values[] = {device.c_str()};
  try {
    check(api, api->CreateCUDAProviderOptions(cuda.out()), what);
    check(api, api->UpdateCUDAProviderOptions(cuda.get(), keys, values, 1), what);
    check(api, api->SessionOptionsAppendExecutionProvider_CUDA_V2(native, cuda.get()), what);
  } catch (const Error& e) {
    throw Error(e.kind(),
                std::string(e.what()) +
                    ". It needs a GPU driver and the CUDA and cuDNN libraries it was built with: pip "
                    "install 'onnxruntime-gpu[cuda,cudnn]'");
  }
  if (!options.allow_fallback) {
    check(api, api->AddSessionConfigEntry(native, "session.disable_cpu_ep_fallback", "1"));
  }
}

void Session::Impl::create(const std::string& model, const SessionOptions& options,
                           const std::vector<LibraryFile>& libraries) {
  if (options.provider != "cpu" && options.provider != "cuda") {
    throw InvalidArgument("unknown provider '" + options.provider + "': cpu or cuda");
  }
  if (options.threads < 0)
    throw InvalidArgument("a negative number of threads: " + std::to_string(options.threads));
  OrtPtr<OrtSessionOptions> native(api->ReleaseSessionOptions);
  check(api, api->CreateSessionOptions(native.out()));
  if (runtime->api_version >= 17) {
    check(api, api->SetUserLoggingFunction(native.get(), log, this));
    check(api, api->SetSessionLogSeverityLevel(native.get(), ORT_LOGGING_LEVEL_WARNING));
  }
  if (options.threads > 0) check(api, api->SetIntraOpNumThreads(native.get(), options.threads));
  check(api, api->SetSessionGraphOptimizationLevel(native.get(), native_level(options.optimization)));
  if (options.provider == "cuda") use_cuda(native.get(), options);
  for (const LibraryFile& library : libraries) {
    check(api, api->RegisterCustomOpsLibrary_V2(native.get(), library.path.c_str()),
          "'" + library.path + "'");
  }
  try {
    check(api, api->CreateSession(runtime->env, model.c_str(), native.get(), &session));
  } catch (const Error& e) {
    throw Error(e.kind(), "ONNX Runtime " + runtime->version + " does not load '" + model + "': " + e.what() +
                              advice(e.what(), libraries));
  }
  check(api, api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  provider = options.provider;
}

TensorInfo Session::Impl::read_argument(const std::string& name, OrtTypeInfo* type, const char* role) const {
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  check(api, api->CastTypeInfoToTensorInfo(type, &tensor));
  ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  if (tensor != nullptr) check(api, api->GetTensorElementType(tensor, &element));
  const auto dtype = from_onnx_type(element);
  if (tensor == nullptr || !dtype) {
    throw Error(ErrorKind::kNotSupported,
                std::string(role) + " '" + name + "' is " +
                    (tensor == nullptr ? "not a tensor" : "a tensor of " + onnx_type_name(element)) +
                    "; the runner handles tensors of f16, bf16, f32, f64, integers and bool");
  }
  TensorInfo info;
  info.name = name;
  info.dtype = *dtype;
  size_t rank = 0;
  check(api, api->GetDimensionsCount(tensor, &rank));
  std::vector<int64_t> sizes(rank);
  std::vector<const char*> symbols(rank);
  check(api, api->GetDimensions(tensor, sizes.data(), rank));
  check(api, api->GetSymbolicDimensions(tensor, symbols.data(), rank));
  for (size_t i = 0; i < rank; ++i) {
    Dimension d;
    d.size = sizes[i] < 0 ? -1 : sizes[i];
    if (symbols[i] != nullptr) d.symbol = symbols[i];
    info.dims.push_back(d);
  }
  info.rank_known =
      rank > 0;  // the C API shows an unknown rank and a scalar alike; the model tells them apart
  return info;
}

void Session::Impl::read_arguments(const ModelInfo& model) {
  OrtAllocator* allocator = nullptr;
  check(api, api->GetAllocatorWithDefaultOptions(&allocator));
  const auto read = [&](auto get_count, auto get_name, auto get_type, const char* role,
                        std::vector<TensorInfo>& into, const std::vector<ValueInfo>& in_model) {
    size_t count = 0;
    check(api, get_count(session, &count));
    for (size_t i = 0; i < count; ++i) {
      char* raw = nullptr;
      check(api, get_name(session, i, allocator, &raw));
      const std::string name = raw;
      allocator->Free(allocator, raw);
      OrtPtr<OrtTypeInfo> type(api->ReleaseTypeInfo);
      check(api, get_type(session, i, type.out()));
      TensorInfo info = read_argument(name, type.get(), role);
      for (const ValueInfo& v : in_model) {
        if (v.name == name) info.rank_known = info.rank_known || v.rank_known;
      }
      into.push_back(std::move(info));
    }
  };
  read(api->SessionGetInputCount, api->SessionGetInputName, api->SessionGetInputTypeInfo, "input", inputs,
       model.inputs);
  const size_t required = inputs.size();
  read(api->SessionGetOverridableInitializerCount, api->SessionGetOverridableInitializerName,
       api->SessionGetOverridableInitializerTypeInfo, "input", inputs, model.inputs);
  for (size_t i = required; i < inputs.size(); ++i) inputs[i].optional = true;
  read(api->SessionGetOutputCount, api->SessionGetOutputName, api->SessionGetOutputTypeInfo, "output",
       outputs, model.outputs);
}

Session::Session(const Runtime& runtime, const std::string& model, const SessionOptions& options)
    : impl_(std::make_unique<Impl>(runtime.impl_)) {
  const std::vector<LibraryFile> libraries = read_libraries(options.libraries);
  const ModelInfo info = read_model(model);
  const std::vector<std::string> problems = find_problems(info, libraries);
  if (!problems.empty()) {
    std::string message = "'" + model + "' cannot run:";
    for (const std::string& p : problems) message += "\n  " + p;
    throw InvalidArgument(message);
  }
  try {
    impl_->create(model, options, libraries);
  } catch (const Error& e) {
    if (options.provider != "cuda" || !options.allow_fallback) throw;
    SessionOptions on_cpu = options;
    on_cpu.provider = "cpu";
    impl_->warn(std::string(e.what()) + ". Running on the CPU, as fallback is allowed");
    impl_->create(model, on_cpu, libraries);
  }
  impl_->read_arguments(info);
}

Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

const std::vector<TensorInfo>& Session::inputs() const { return impl_->inputs; }
const std::vector<TensorInfo>& Session::outputs() const { return impl_->outputs; }

const std::string& Session::provider() const { return impl_->provider; }

std::vector<std::string> Session::warnings() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->warnings;
}

// Checks one input against what the model declares and hands its memory over.
OrtValue* Session::Impl::wrap(const TensorInfo& info, const Array& array) const {
  bool fits = array.dtype() == info.dtype && (!info.rank_known || array.shape().size() == info.dims.size());
  for (size_t i = 0; fits && info.rank_known && i < info.dims.size(); ++i) {
    fits = info.dims[i].size < 0 || info.dims[i].size == array.shape()[i];
  }
  if (!fits) {
    throw InvalidArgument(
        "input '" + info.name + "' must be " + info.to_string() + ", got " + array.to_string() +
        (array.dtype() == info.dtype ? "" : "; convert it (numpy: x.astype(...)) before it is saved"));
  }
  OrtValue* value = nullptr;
  check(api, api->CreateTensorWithDataAsOrtValue(
                 memory, array.data(), array.bytes(), array.shape().data(), array.shape().size(),
                 static_cast<ONNXTensorElementDataType>(to_onnx_type(array.dtype())), &value));
  return value;
}

Arrays Session::run(const Arrays& inputs) const {
  const OrtApi* api = impl_->api;
  std::vector<std::string> known;
  for (const TensorInfo& info : impl_->inputs) known.push_back(info.name);
  for (const auto& given : inputs) {
    if (std::find(known.begin(), known.end(), given.first) == known.end()) {
      std::string hint = did_you_mean(given.first, known);
      if (hint.empty()) hint = known.empty() ? "; it has none" : "; it has " + list_of(known);
      throw InvalidArgument("the model has no input '" + given.first + "'" + hint);
    }
  }
  std::vector<std::shared_ptr<OrtValue>> keep;
  std::vector<const char*> input_names, output_names;
  std::vector<const OrtValue*> input_values;
  for (const TensorInfo& info : impl_->inputs) {
    const auto given = inputs.find(info.name);
    if (given == inputs.end()) {
      if (info.optional) continue;
      throw InvalidArgument("input '" + info.name + "' (" + info.to_string() + ") is missing");
    }
    keep.emplace_back(impl_->wrap(info, given->second), api->ReleaseValue);
    input_names.push_back(info.name.c_str());
    input_values.push_back(keep.back().get());
  }
  for (const TensorInfo& info : impl_->outputs) output_names.push_back(info.name.c_str());
  std::vector<OrtValue*> raw(output_names.size(), nullptr);
  OrtStatus* status = api->Run(impl_->session, nullptr, input_names.data(), input_values.data(),
                               input_values.size(), output_names.data(), output_names.size(), raw.data());
  std::vector<std::shared_ptr<OrtValue>> values;
  for (OrtValue* v : raw)
    values.emplace_back(v, [api](OrtValue* p) {
      if (p != nullptr) api->ReleaseValue(p);
    });
  check(api, status);

  Arrays outputs;
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string& name = impl_->outputs[i].name;
    if (values[i] == nullptr) {
      throw Error(ErrorKind::kInternal, "output '" + name +
                                            "' was never computed: the operator that makes it "
                                            "returned success without allocating it");
    }
    OrtPtr<OrtTensorTypeAndShapeInfo> shape_info(api->ReleaseTensorTypeAndShapeInfo);
    check(api, api->GetTensorTypeAndShape(values[i].get(), shape_info.out()), "output '" + name + "'");
    ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    check(api, api->GetTensorElementType(shape_info.get(), &element));
    size_t rank = 0;
    check(api, api->GetDimensionsCount(shape_info.get(), &rank));
    std::vector<int64_t> shape(rank);
    check(api, api->GetDimensions(shape_info.get(), shape.data(), rank));
    void* data = nullptr;
    check(api, api->GetTensorMutableData(values[i].get(), &data));
    const auto dtype = from_onnx_type(element);
    if (!dtype)
      throw Error(ErrorKind::kNotSupported, "output '" + name + "' holds " + onnx_type_name(element));
    // The array keeps ONNX Runtime's own memory alive: nothing is copied. The runtime must outlive it.
    auto owner = std::make_shared<std::pair<std::shared_ptr<Runtime::Impl>, std::shared_ptr<OrtValue>>>(
        impl_->runtime, values[i]);
    outputs.emplace(name, Array(*dtype, std::move(shape), std::shared_ptr<void>(owner, data)));
  }
  return outputs;
}

}  // namespace opbridge
