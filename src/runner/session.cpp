// Loads a model into an ONNX Runtime and runs it.
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
#include "provider_cuda.h"

namespace opbridge {

namespace fs = std::filesystem;

std::string TensorInfo::to_string() const { return type_and_shape(dtype_name(dtype), rank_known, dims); }

struct Session::Impl {
  explicit Impl(std::shared_ptr<Runtime::Impl> runtime)
      : runtime(std::move(runtime)), api(this->runtime->api) {}
  ~Impl() {
    if (session != nullptr) api->ReleaseSession(session);
    for (OrtMemoryInfo* m : {cpu_memory, gpu_memory}) {
      if (m != nullptr) api->ReleaseMemoryInfo(m);
    }
  }

  void create(const ModelInfo& model, const SessionOptions& options,
              const std::vector<LibraryFile>& libraries);
  void read_arguments(const ModelInfo& model);
  TensorInfo read_argument(const std::string& name, OrtTypeInfo* type, const char* role) const;
  OrtValue* wrap(const TensorInfo& info, const DeviceArray& array, const char* role) const;
  DeviceArray unwrap(const TensorInfo& info, std::shared_ptr<OrtValue> value) const;
  template <class Given>
  std::vector<std::pair<const TensorInfo*, const typename Given::mapped_type*>> match_inputs(
      const Given& inputs) const;

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
  OrtMemoryInfo *cpu_memory = nullptr, *gpu_memory = nullptr;  // the latter with CUDA only
  std::string provider;
  int device_id = 0;
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
  if (says("fallback to CPU EP has been explicitly disabled")) {
    return ". Some of its operators have no CUDA kernel; allowing fallback (--allow-fallback) runs those on "
           "the CPU";
  }
  return "";
}

// Throws for nodes that the libraries themselves say CUDA cannot run: ONNX Runtime names none of them.
void check_kernels(const ModelInfo& model, const std::vector<LibraryFile>& libraries) {
  std::vector<std::string> without;
  for (const CustomNode& node : model.custom_nodes) {
    const LibraryFile* library = find_library(node, libraries);
    if (library == nullptr) continue;
    const auto& devices = library->find_operator(node.op)->at("devices");
    if (std::find(devices.begin(), devices.end(), "cuda") == devices.end()) without.push_back(node.title());
  }
  if (without.empty()) return;
  throw Error(ErrorKind::kNotSupported,
              "provider 'cuda': the library has no CUDA kernel for " + list_of(without, "and") +
                  ": use a library built with CUDA, or allow fallback (--allow-fallback) to run these nodes "
                  "on the CPU");
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

void Session::Impl::create(const ModelInfo& model, const SessionOptions& options,
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
  if (!options.profile.empty()) check(api, api->EnableProfiling(native.get(), options.profile.c_str()));
  if (options.provider == "cuda") {
    append_cuda(Runtime(runtime), api, native.get(), options.device_id);
    if (!options.allow_fallback) {
      check_kernels(model, libraries);
      // The CPU provider is not in the list, and the runtime is to refuse what only that could run.
      check(api, api->AddSessionConfigEntry(native.get(), "session.disable_cpu_ep_fallback", "1"));
    }
  }
  for (const LibraryFile& library : libraries) {
    check(api, api->RegisterCustomOpsLibrary_V2(native.get(), library.path.c_str()),
          "'" + library.path + "'");
  }
  try {
    check(api, api->CreateSession(runtime->env, model.path.c_str(), native.get(), &session));
  } catch (const Error& e) {
    throw Error(e.kind(), "ONNX Runtime " + runtime->version + " does not load '" + model.path +
                              "': " + e.what() + advice(e.what(), libraries));
  }
  check(api, api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &cpu_memory));
  if (options.provider == "cuda") gpu_memory = cuda_memory(api, options.device_id);
  provider = options.provider;
  device_id = options.device_id;
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
    impl_->create(info, options, libraries);
  } catch (const Error& e) {
    if (options.provider != "cuda" || !options.allow_fallback) throw;
    SessionOptions on_cpu = options;
    on_cpu.provider = "cpu";
    impl_->warn(std::string(e.what()) + ". Running on the CPU, as fallback is allowed");
    impl_->create(info, on_cpu, libraries);
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

std::string Session::end_profiling() {
  OrtAllocator* allocator = nullptr;
  check(impl_->api, impl_->api->GetAllocatorWithDefaultOptions(&allocator));
  char* file = nullptr;
  check(impl_->api, impl_->api->SessionEndProfiling(impl_->session, allocator, &file));
  const std::string path = file;
  allocator->Free(allocator, file);
  return path;
}

// Checks an array against what the model declares, and hands its memory over.
OrtValue* Session::Impl::wrap(const TensorInfo& info, const DeviceArray& array, const char* role) const {
  bool fits = array.dtype == info.dtype && (!info.rank_known || array.shape.size() == info.dims.size());
  for (size_t i = 0; fits && info.rank_known && i < info.dims.size(); ++i) {
    fits = info.dims[i].size < 0 || info.dims[i].size == array.shape[i];
  }
  const std::string what = std::string(role) + " '" + info.name + "' ";
  if (!fits) {
    throw InvalidArgument(
        what + "must be " + info.to_string() + ", got " + array.to_string() +
        (array.dtype == info.dtype ? "" : "; convert it (numpy: x.astype(...)) before it is saved"));
  }
  if (array.device != Device::kCpu && (gpu_memory == nullptr || array.device_id != device_id)) {
    throw InvalidArgument(what + "is " + array.to_string() + ", but the session runs on " +
                          (gpu_memory == nullptr ? "the CPU" : "CUDA device " + std::to_string(device_id)));
  }
  OrtValue* value = nullptr;
  check(api, api->CreateTensorWithDataAsOrtValue(
                 array.device == Device::kCpu ? cpu_memory : gpu_memory, array.memory.get(), array.bytes(),
                 array.shape.data(), array.shape.size(),
                 static_cast<ONNXTensorElementDataType>(to_onnx_type(array.dtype)), &value));
  return value;
}

// The result keeps ONNX Runtime's own memory alive: nothing is copied. The runtime must outlive it.
DeviceArray Session::Impl::unwrap(const TensorInfo& info, std::shared_ptr<OrtValue> value) const {
  if (value == nullptr) {
    throw Error(ErrorKind::kInternal, "output '" + info.name +
                                          "' was never computed: the operator that makes it "
                                          "returned success without allocating it");
  }
  DeviceArray array;
  OrtPtr<OrtTensorTypeAndShapeInfo> shape_info(api->ReleaseTensorTypeAndShapeInfo);
  check(api, api->GetTensorTypeAndShape(value.get(), shape_info.out()), "output '" + info.name + "'");
  ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  check(api, api->GetTensorElementType(shape_info.get(), &element));
  const auto dtype = from_onnx_type(element);
  if (!dtype)
    throw Error(ErrorKind::kNotSupported, "output '" + info.name + "' holds " + onnx_type_name(element));
  array.dtype = *dtype;
  size_t rank = 0;
  check(api, api->GetDimensionsCount(shape_info.get(), &rank));
  array.shape.resize(rank);
  check(api, api->GetDimensions(shape_info.get(), array.shape.data(), rank));
  void* data = nullptr;
  check(api, api->GetTensorMutableData(value.get(), &data));
  auto owner = std::make_shared<std::pair<std::shared_ptr<Runtime::Impl>, std::shared_ptr<OrtValue>>>(
      runtime, std::move(value));
  array.memory = std::shared_ptr<void>(owner, data);
  return array;
}

// What is given for each input of the model, in its order.
template <class Given>
std::vector<std::pair<const TensorInfo*, const typename Given::mapped_type*>> Session::Impl::match_inputs(
    const Given& given) const {
  std::vector<std::string> known;
  for (const TensorInfo& info : inputs) known.push_back(info.name);
  for (const auto& array : given) {
    if (std::find(known.begin(), known.end(), array.first) == known.end()) {
      std::string hint = did_you_mean(array.first, known);
      if (hint.empty()) hint = known.empty() ? "; it has none" : "; it has " + list_of(known);
      throw InvalidArgument("the model has no input '" + array.first + "'" + hint);
    }
  }
  std::vector<std::pair<const TensorInfo*, const typename Given::mapped_type*>> matched;
  for (const TensorInfo& info : inputs) {
    const auto array = given.find(info.name);
    if (array != given.end()) {
      matched.emplace_back(&info, &array->second);
    } else if (!info.optional) {
      throw InvalidArgument("input '" + info.name + "' (" + info.to_string() + ") is missing");
    }
  }
  return matched;
}

Arrays Session::run(const Arrays& inputs) const {
  const OrtApi* api = impl_->api;
  std::vector<std::shared_ptr<OrtValue>> keep;
  std::vector<const char*> input_names, output_names;
  std::vector<const OrtValue*> input_values;
  for (const auto& [info, array] : impl_->match_inputs(inputs)) {
    keep.emplace_back(impl_->wrap(*info, *array, "input"), api->ReleaseValue);
    input_names.push_back(info->name.c_str());
    input_values.push_back(keep.back().get());
  }
  for (const TensorInfo& info : impl_->outputs) output_names.push_back(info.name.c_str());
  std::vector<OrtValue*> raw(output_names.size(), nullptr);
  OrtStatus* status = api->Run(impl_->session, nullptr, input_names.data(), input_values.data(),
                               input_values.size(), output_names.data(), output_names.size(), raw.data());
  std::vector<std::shared_ptr<OrtValue>> values;
  for (OrtValue* v : raw)
    values.push_back(v == nullptr ? nullptr : std::shared_ptr<OrtValue>(v, api->ReleaseValue));
  check(api, status);

  Arrays outputs;
  for (size_t i = 0; i < values.size(); ++i) {
    const TensorInfo& info = impl_->outputs[i];
    outputs.emplace(info.name, impl_->unwrap(info, values[i]).on_cpu());
  }
  return outputs;
}

DeviceArrays Session::run_on_device(const DeviceArrays& inputs, const DeviceArrays& outputs) const {
  const OrtApi* api = impl_->api;
  for (const auto& given : outputs) {
    std::vector<std::string> known;
    for (const TensorInfo& info : impl_->outputs) known.push_back(info.name);
    if (std::find(known.begin(), known.end(), given.first) == known.end())
      throw InvalidArgument("the model has no output '" + given.first + "'; it has " + list_of(known));
  }
  std::vector<std::shared_ptr<OrtValue>> keep;
  OrtPtr<OrtIoBinding> binding(api->ReleaseIoBinding);
  check(api, api->CreateIoBinding(impl_->session, binding.out()));
  for (const auto& [info, array] : impl_->match_inputs(inputs)) {
    keep.emplace_back(impl_->wrap(*info, *array, "input"), api->ReleaseValue);
    check(api, api->BindInput(binding.get(), info->name.c_str(), keep.back().get()));
  }
  for (const TensorInfo& info : impl_->outputs) {
    const auto given = outputs.find(info.name);
    if (given == outputs.end()) {
      check(api,
            api->BindOutputToDevice(binding.get(), info.name.c_str(),
                                    impl_->gpu_memory == nullptr ? impl_->cpu_memory : impl_->gpu_memory));
    } else {
      keep.emplace_back(impl_->wrap(info, given->second, "output"), api->ReleaseValue);
      check(api, api->BindOutput(binding.get(), info.name.c_str(), keep.back().get()));
    }
  }
  check(api, api->SynchronizeBoundInputs(binding.get()));
  check(api, api->RunWithBinding(impl_->session, nullptr, binding.get()));
  check(api, api->SynchronizeBoundOutputs(binding.get()));

  OrtAllocator* allocator = nullptr;
  check(api, api->GetAllocatorWithDefaultOptions(&allocator));
  OrtValue** raw = nullptr;
  size_t count = 0;
  check(api, api->GetBoundOutputValues(binding.get(), allocator, &raw, &count));
  std::vector<std::shared_ptr<OrtValue>> values;
  for (size_t i = 0; i < count; ++i) values.emplace_back(raw[i], api->ReleaseValue);
  if (raw != nullptr) allocator->Free(allocator, raw);

  DeviceArrays result;
  for (size_t i = 0; i < values.size(); ++i) {  // in the order in which they were bound
    const TensorInfo& info = impl_->outputs[i];
    const auto given = outputs.find(info.name);
    if (given != outputs.end()) {
      result.emplace(info.name, given->second);
      continue;
    }
    DeviceArray array = impl_->unwrap(info, values[i]);
    if (impl_->gpu_memory != nullptr) {
      array.device = Device::kCuda;
      array.device_id = impl_->device_id;
    }
    result.emplace(info.name, std::move(array));
  }
  return result;
}

}  // namespace opbridge
