// Operators for ONNX Runtime through the plain C struct OrtCustomOp, negotiated at run time: built once,
// loaded by every version from 1.16 on.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>

#include "runtime.h"
#include "threads.h"

namespace opbridge {

const int kBuiltOrtApi = ORT_API_VERSION;

namespace ort {

namespace {

// In DType's order.
constexpr ONNXTensorElementDataType kOnnxTypes[kDTypeCount] = {
    ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,   ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8,    ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,   ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,   ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32,  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL};

const Overload& self(const OrtCustomOp* op) { return *static_cast<const Overload*>(op); }

}  // namespace

ONNXTensorElementDataType to_onnx(DType dtype) { return kOnnxTypes[static_cast<int>(dtype)]; }

DType from_onnx(ONNXTensorElementDataType type) {
  // The inverse of kOnnxTypes, since every input of every call passes here.
  constexpr int kNone = -1, kTypes = 17;
  static_assert(ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16 < kTypes, "");
  struct Inverse {
    int8_t dtype[kTypes];
    constexpr Inverse() : dtype() {
      for (int8_t& d : dtype) d = kNone;
      for (int i = 0; i < kDTypeCount; ++i) dtype[kOnnxTypes[i]] = static_cast<int8_t>(i);
    }
  };
  static constexpr Inverse inverse;
  const int index = static_cast<int>(type);
  if (index < 0 || index >= kTypes || inverse.dtype[index] == kNone) {
    throw InvalidArgument("ONNX element type " + std::to_string(index) + " is not one that operators know");
  }
  return static_cast<DType>(inverse.dtype[index]);
}

void throw_status(const OrtApi* api, OrtStatus* status) {
  const std::string message = api->GetErrorMessage(status);
  api->ReleaseStatus(status);
  throw Error(ErrorKind::kInternal, message);
}

OrtStatus* to_status(const OrtApi* api) noexcept {
  try {
    throw;
  } catch (const Error& e) {
    const OrtErrorCode code = e.kind() == ErrorKind::kInvalidArgument ? ORT_INVALID_ARGUMENT
                              : e.kind() == ErrorKind::kNotSupported  ? ORT_NOT_IMPLEMENTED
                              : e.kind() == ErrorKind::kDevice        ? ORT_EP_FAIL
                              : e.kind() == ErrorKind::kOutOfMemory   ? ORT_FAIL
                                                                      : ORT_RUNTIME_EXCEPTION;
    return api->CreateStatus(code, e.what());
  } catch (const std::bad_alloc&) {
    return api->CreateStatus(ORT_FAIL, "out of memory");
  } catch (const std::exception& e) {
    return api->CreateStatus(ORT_RUNTIME_EXCEPTION, e.what());
  } catch (...) {
    return api->CreateStatus(ORT_RUNTIME_EXCEPTION, "an exception of unknown type was thrown");
  }
}

namespace {

// --- attributes

// A node's attributes cannot be listed, so each declared one is asked for in every type until one answers.
bool read_attribute(const OrtApi* api, const OrtKernelInfo* info, const char* name, AttributeType type,
                    AttributeValue& value) {
  // A status of failure is the answer "not this type" here.
  const auto ok = [api](OrtStatus* status) {
    if (status != nullptr) api->ReleaseStatus(status);
    return status == nullptr;
  };
  value.type = type;
  switch (type) {
    case AttributeType::kInt:
      return ok(api->KernelInfoGetAttribute_int64(info, name, &value.i));
    case AttributeType::kFloat:
      return ok(api->KernelInfoGetAttribute_float(info, name, &value.f));
    case AttributeType::kString: {
      size_t size = 0;  // with the final null
      if (!ok(api->KernelInfoGetAttribute_string(info, name, nullptr, &size))) return false;
      value.s.resize(size);
      check(api, api->KernelInfoGetAttribute_string(info, name, &value.s[0], &size));
      value.s.resize(size == 0 ? 0 : size - 1);
      return true;
    }
    case AttributeType::kInts: {
      size_t count = 0;
      if (!ok(api->KernelInfoGetAttributeArray_int64(info, name, nullptr, &count))) return false;
      value.ints.resize(count);
      if (count > 0)
        check(api, api->KernelInfoGetAttributeArray_int64(info, name, value.ints.data(), &count));
      return true;
    }
    case AttributeType::kFloats: {
      size_t count = 0;
      if (!ok(api->KernelInfoGetAttributeArray_float(info, name, nullptr, &count))) return false;
      value.floats.resize(count);
      if (count > 0)
        check(api, api->KernelInfoGetAttributeArray_float(info, name, value.floats.data(), &count));
      return true;
    }
    case AttributeType::kBool:
      break;  // ONNX stores it as an int
  }
  return false;
}

bool is_tensor_attribute(const OrtApi* api, const OrtKernelInfo* info, const char* name) {
  OrtAllocator* allocator = nullptr;
  check(api, api->GetAllocatorWithDefaultOptions(&allocator));
  OrtValue* value = nullptr;
  OrtStatus* status = api->KernelInfoGetAttribute_tensor(info, name, allocator, &value);
  if (status != nullptr)
    api->ReleaseStatus(status);
  else
    api->ReleaseValue(value);
  return status == nullptr;
}

std::vector<std::pair<std::string, AttributeValue>> read_attributes(const OrtApi* api,
                                                                    const OrtKernelInfo* info,
                                                                    const Signature& s) {
  std::vector<std::pair<std::string, AttributeValue>> given;
  for (const Attribute& a : s.attributes) {
    const AttributeType declared = a.type == AttributeType::kBool ? AttributeType::kInt : a.type;
    std::vector<AttributeType> order = {declared};
    for (const AttributeType t : {AttributeType::kInt, AttributeType::kFloat, AttributeType::kString,
                                  AttributeType::kInts, AttributeType::kFloats}) {
      if (t != declared) order.push_back(t);
    }
    bool found = false;
    std::optional<AttributeValue> empty_list;
    for (const AttributeType t : order) {
      AttributeValue value;
      if (!read_attribute(api, info, a.name.c_str(), t, value)) continue;
      // An attribute of any other kind answers to lists as well, as an empty one: believed only when nothing
      // else fits.
      if ((t == AttributeType::kInts && value.ints.empty()) ||
          (t == AttributeType::kFloats && value.floats.empty())) {
        if (!empty_list) empty_list = std::move(value);
        continue;
      }
      given.emplace_back(a.name, std::move(value));
      found = true;
      break;
    }
    if (found) continue;
    if (is_tensor_attribute(api, info, a.name.c_str())) {
      throw InvalidArgument("attribute '" + a.name + "' must be of type " + attribute_type_name(a.type) +
                            ", got a tensor");
    }
    if (empty_list) given.emplace_back(a.name, std::move(*empty_list));
  }
  return given;
}

// A node may blank any output's name, but a kernel writes all those that its signature does not call
// optional.
void check_outputs(const OrtApi* api, const OrtKernelInfo* info, const Signature& s) {
  size_t count = 0;
  check(api, api->KernelInfo_GetOutputCount(info, &count));
  for (size_t i = 0; i < s.outputs.size(); ++i) {
    if (s.outputs[i].optional) continue;
    size_t size = 0;  // with the final null
    if (i < count) check(api, api->KernelInfo_GetOutputName(info, i, nullptr, &size));
    if (size <= 1)
      throw InvalidArgument("output '" + s.outputs[i].name + "' is not optional, but the node leaves it out");
  }
}

// --- kernel

// GetTensorElementTypeAndShapeDataReference came with 1.24 and is not in the headers this is built with. It
// returns the tensor's own dimensions without allocating, which halves the cost of a call.
using GetTypeAndShape = OrtStatus*(ORT_API_CALL*)(const OrtValue* value, ONNXTensorElementDataType* type,
                                                  const int64_t** shape, size_t* rank);
constexpr size_t kGetTypeAndShapeSlot = 414;
constexpr uint32_t kGetTypeAndShapeSince = 24;

// The types and shapes that infer() accepted last and what it said of them: most calls bring the same ones again.
// Packed, since a large graph's nodes share the caches.
class Accepted {
 public:
  /// Writes the specs of inputs like the last ones; false for others, and while another thread looks here.
  bool recall(const TensorArg* inputs, size_t count, TensorSpec* specs, size_t spec_count) {
    if (busy_.test_and_set(std::memory_order_acquire)) return false;
    const int64_t* next = words_;
    bool same = valid_;
    for (size_t i = 0; same && i < count; ++i) {
      const TensorArg& t = inputs[i];
      same = *next++ == head(t.dtype, t.present ? t.rank : -1);
      if (!same || !t.present) continue;
      same = std::equal(t.shape, t.shape + t.rank, next);
      next += t.rank;
    }
    for (size_t i = 0; same && i < spec_count; ++i) {
      specs[i].dtype = static_cast<DType>(*next & 0xff);
      specs[i].rank = static_cast<int32_t>(*next++ >> 8);
      std::copy_n(next, specs[i].rank, specs[i].shape);
      next += specs[i].rank;
    }
    busy_.clear(std::memory_order_release);
    return same;
  }

  void remember(const TensorArg* inputs, size_t count, const TensorSpec* specs, size_t spec_count) {
    size_t words = count + spec_count;
    for (size_t i = 0; i < count; ++i) words += inputs[i].present ? static_cast<size_t>(inputs[i].rank) : 0;
    for (size_t i = 0; i < spec_count; ++i) words += static_cast<size_t>(specs[i].rank);
    if (words > kRoom || busy_.test_and_set(std::memory_order_acquire)) return;
    int64_t* next = words_;
    for (size_t i = 0; i < count; ++i) {
      const TensorArg& t = inputs[i];
      *next++ = head(t.dtype, t.present ? t.rank : -1);
      if (t.present) next = std::copy_n(t.shape, t.rank, next);
    }
    for (size_t i = 0; i < spec_count; ++i) {
      *next++ = head(specs[i].dtype, specs[i].rank);
      next = std::copy_n(specs[i].shape, specs[i].rank, next);
    }
    valid_ = true;
    busy_.clear(std::memory_order_release);
  }

 private:
  static constexpr size_t kRoom = 48;
  static int64_t head(DType dtype, int32_t rank) {
    return static_cast<int64_t>(rank) * 256 + static_cast<int64_t>(dtype);
  }

  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  bool valid_ = false;
  int64_t words_[kRoom];
};

struct KernelState {
  const Runtime* runtime;
  Device device;
  std::unique_ptr<Node> node;
  GetTypeAndShape get_type_and_shape;  // null before 1.24
  size_t input_count;                  // of the node: trailing optional ones may be missing
  size_t output_count;
  uint64_t is_constant = 0;  // a bit for each input that is an initializer: no call has to ask for it
  std::vector<TensorArg> constants;
  std::vector<std::unique_ptr<int64_t[]>> constant_shapes;
  mutable Accepted accepted;
};

void read_constants(const OrtKernelInfo* info, KernelState& k);

OrtStatus* ORT_API_CALL create_kernel(const OrtCustomOp* op, const OrtApi*, const OrtKernelInfo* info,
                                      void** kernel) noexcept {
  const Overload& o = self(op);
  const OrtApi* api = o.runtime->api;
  try {
    size_t size = 0;
    check(api, api->KernelInfo_GetNodeName(info, nullptr, &size));
    std::string name(size, '\0');
    check(api, api->KernelInfo_GetNodeName(info, &name[0], &size));
    name.resize(size == 0 ? 0 : size - 1);
    auto state = std::make_unique<KernelState>();
    state->runtime = o.runtime;
    state->device = o.device;
    const std::string title = node_title(*o.op, name);
    std::vector<std::pair<std::string, AttributeValue>> attributes;
    try {
      check_outputs(api, info, o.signature());
      attributes = read_attributes(api, info, o.signature());
    } catch (...) {
      rethrow_with_title(title);
    }
    state->node = this_library().create_node(*o.op, name, attributes);
    state->get_type_and_shape = nullptr;
    if (o.runtime->minor >= kGetTypeAndShapeSince) {
      static_assert(sizeof(GetTypeAndShape) == sizeof(void*), "");
      std::memcpy(&state->get_type_and_shape,
                  reinterpret_cast<const char*>(api) + kGetTypeAndShapeSlot * sizeof(void*), sizeof(void*));
    }
    check(api, api->KernelInfo_GetInputCount(info, &state->input_count));
    check(api, api->KernelInfo_GetOutputCount(info, &state->output_count));
    if (state->input_count > static_cast<size_t>(kMaxArguments)) {
      throw InvalidArgument(title + ": at most " + std::to_string(kMaxArguments) +
                            " inputs are allowed, got " + std::to_string(state->input_count));
    }
    read_constants(info, *state);
    *kernel = state.release();
    return nullptr;
  } catch (...) {
    return to_status(api);
  }
}

void ORT_API_CALL destroy_kernel(void* kernel) noexcept { delete static_cast<KernelState*>(kernel); }

#if defined(OPBRIDGE_TEST_CUDA_PROVIDER)  // tests without a GPU let another provider stand in
constexpr const char *kCudaProvider = OPBRIDGE_TEST_CUDA_PROVIDER, *kCudaMemory = "Cpu";
#else
constexpr const char *kCudaProvider = "CUDAExecutionProvider", *kCudaMemory = "Cuda";
#endif

// Workspace from the provider's own allocator, returned when the call ends. On CUDA the launched kernels may
// still use it then; ONNX Runtime's arena hands it out again only to work on the same stream.
class Workspace {
 public:
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    if (allocator_ != nullptr && data_ != nullptr) allocator_->Free(allocator_, data_);
    if (allocator_ != nullptr) api_->ReleaseAllocator(allocator_);
    if (info_ != nullptr) api_->ReleaseMemoryInfo(info_);
  }
  void* allocate(const OrtApi* api, OrtKernelContext* context, Device device, int device_id, size_t bytes) {
    api_ = api;
    check(api, device == Device::kCpu ? api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &info_)
                                      : api->CreateMemoryInfo(kCudaMemory, OrtArenaAllocator, device_id,
                                                              OrtMemTypeDefault, &info_));
    check(api, api->KernelContext_GetAllocator(context, info_, &allocator_));
    try {
      data_ = allocator_->Alloc(allocator_, bytes + kWorkspaceAlignment);
    } catch (...) {  // the arena throws where others return null
    }
    if (data_ == nullptr)
      throw Error(ErrorKind::kOutOfMemory, "no memory for " + std::to_string(bytes) + " bytes of workspace");
    const uintptr_t aligned = (reinterpret_cast<uintptr_t>(data_) + kWorkspaceAlignment - 1) /
                              kWorkspaceAlignment * kWorkspaceAlignment;
    return reinterpret_cast<void*>(aligned);
  }

 private:
  const OrtApi* api_ = nullptr;
  OrtMemoryInfo* info_ = nullptr;
  OrtAllocator* allocator_ = nullptr;
  void* data_ = nullptr;
};

struct CallHost {
  const OrtApi* api;
  OrtKernelContext* context;
};

void parallel_for(void* host, void (*task)(void*, size_t), size_t chunks, void* data) {
  const CallHost& h = *static_cast<CallHost*>(host);
  check(h.api, h.api->KernelContext_ParallelFor(h.context, task, chunks, 0, data));
}

// A line of a trace, which was asked for: at the lowest level that the run shows.
void log(void* host, const char* line) {
  const CallHost& h = *static_cast<CallHost*>(host);
  const OrtLogger* logger = nullptr;
  OrtLoggingLevel level = ORT_LOGGING_LEVEL_INFO;
  check(h.api, h.api->KernelContext_GetLogger(h.context, &logger));
  check(h.api, h.api->Logger_GetLoggingSeverityLevel(logger, &level));
  check(h.api, h.api->Logger_LogMessage(logger, std::max(level, ORT_LOGGING_LEVEL_INFO), line, "opbridge", 0,
                                        "trace"));
}

// The dimensions of a tensor, copied where the runtime cannot show its own. Inline room for the usual call.
class Dimensions {
 public:
  int64_t* take(size_t rank) {
    if (used_ + rank > kInline) {
      more_.push_back(std::make_unique<int64_t[]>(rank));
      return more_.back().get();
    }
    used_ += rank;
    return inline_ + used_ - rank;
  }

 private:
  static constexpr size_t kInline = 64;
  int64_t inline_[kInline];
  size_t used_ = 0;
  std::vector<std::unique_ptr<int64_t[]>> more_;
};

void read_input(const KernelState& k, const OrtValue* value, Dimensions& dimensions, TensorArg& arg) {
  const OrtApi* api = k.runtime->api;
  ONNXTensorElementDataType type;
  size_t rank = 0;
  if (k.get_type_and_shape != nullptr) {
    check(api, k.get_type_and_shape(value, &type, &arg.shape, &rank));
    if (rank > static_cast<size_t>(kMaxRank))
      throw InvalidArgument("an input has " + std::to_string(rank) + " dimensions; at most 16 are allowed");
  } else {
    OrtTensorTypeAndShapeInfo* raw = nullptr;
    check(api, api->GetTensorTypeAndShape(value, &raw));
    const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(api->ReleaseTensorTypeAndShapeInfo)> info(
        raw, api->ReleaseTensorTypeAndShapeInfo);
    check(api, api->GetTensorElementType(info.get(), &type));
    check(api, api->GetDimensionsCount(info.get(), &rank));
    if (rank > static_cast<size_t>(kMaxRank))
      throw InvalidArgument("an input has " + std::to_string(rank) + " dimensions; at most 16 are allowed");
    int64_t* shape = dimensions.take(rank);
    check(api, api->GetDimensions(info.get(), shape, rank));
    arg.shape = shape;
  }
  // Inputs are read only; the function has no const twin that every version offers.
  check(api, api->GetTensorMutableData(const_cast<OrtValue*>(value), &arg.data));
  arg.rank = static_cast<int32_t>(rank);
  arg.dtype = from_onnx(type);
  arg.present = true;
}

// What runs on the CPU has its initializers there, for as long as the session.
void read_constants(const OrtKernelInfo* info, KernelState& k) {
  static_assert(kMaxArguments <= 64, "");  // bits
  const OrtApi* api = k.runtime->api;
  for (size_t i = 0; k.device == Device::kCpu && i < k.input_count; ++i) {
    int constant = 0;
    const OrtValue* value = nullptr;
    OrtStatus* status = api->KernelInfoGetConstantInput_tensor(info, i, &constant, &value);
    if (status != nullptr) api->ReleaseStatus(status);  // an input that is left out, or no tensor
    if (status != nullptr || !constant || value == nullptr) continue;
    Dimensions dimensions;
    TensorArg arg;
    read_input(k, value, dimensions, arg);
    const size_t rank = static_cast<size_t>(arg.rank);
    k.constant_shapes.push_back(std::make_unique<int64_t[]>(rank));
    std::copy_n(arg.shape, rank, k.constant_shapes.back().get());
    arg.shape = k.constant_shapes.back().get();
    k.constants.push_back(arg);
    k.is_constant |= uint64_t{1} << i;
  }
}

int device_id_of(const OrtApi* api, const OrtValue* value) {
  const OrtMemoryInfo* info = nullptr;
  int id = 0;
  check(api, api->GetTensorMemoryInfo(value, &info));
  check(api, api->MemoryInfoGetId(info, &id));
  return id;
}

void compute(const KernelState& k, OrtKernelContext* context) {
  const OrtApi* api = k.runtime->api;
  const Node& node = *k.node;
  TensorArg inputs[kMaxArguments], outputs[kMaxArguments];
  TensorSpec specs[kMaxArguments];
  Dimensions dimensions;

  const size_t input_count = k.input_count;
  const OrtValue* first = nullptr;  // on the device
  auto constant = k.constants.begin();
  for (size_t i = 0; i < input_count; ++i) {
    if (k.is_constant >> i & 1) {
      inputs[i] = *constant++;
      continue;
    }
    const OrtValue* value = nullptr;
    check(api, api->KernelContext_GetInput(context, i, &value));
    if (value == nullptr) {
      inputs[i] = {nullptr, nullptr, 0, DType::f32, false};
      continue;
    }
    const auto& declared_inputs = node.signature().inputs;
    if (first == nullptr && !declared_inputs[std::min(i, declared_inputs.size() - 1)].host) first = value;
    read_input(k, value, dimensions, inputs[i]);
  }
  CallHost call{api, context};
  HostServices host;
  host.log = log;
  host.log_host = &call;

  const size_t declared = node.signature().outputs.size();
  if (!k.accepted.recall(inputs, input_count, specs, declared)) {
    node.infer(inputs, static_cast<int>(input_count), specs, k.device, host);
    k.accepted.remember(inputs, input_count, specs, declared);
  }
  for (size_t i = 0; i < declared; ++i) {
    TensorArg& out = outputs[i];
    out = {nullptr, specs[i].shape, specs[i].rank, specs[i].dtype, false};
    if (i >= k.output_count) continue;
    OrtValue* value = nullptr;
    check(api, api->KernelContext_GetOutput(context, i, specs[i].shape, static_cast<size_t>(specs[i].rank),
                                            &value));
    if (value == nullptr)
      continue;  // an optional output that the model does not use; the others are checked at load
    check(api, api->GetTensorMutableData(value, &out.data));
    out.present = true;
  }

  if (k.device == Device::kCuda) check(api, api->KernelContext_GetGPUComputeStream(context, &host.stream));
  OwnThreads own(1);
  if (k.device == Device::kCpu) {
    if (k.runtime->minor >= 17) {
      host.parallel_for = parallel_for;
      host.parallel_host = &call;
    } else {
      own = OwnThreads(0);  // 1.16 does not lend its pool
      host.parallel_for = own_parallel_for;
      host.parallel_host = &own;
    }
  }
  Workspace workspace;
  if (node.has_workspace()) {
    TensorArg shapes[2 * kMaxArguments];  // without data, as a workspace function sees them
    for (size_t i = 0; i < input_count; ++i) (shapes[i] = inputs[i]).data = nullptr;
    for (size_t i = 0; i < declared; ++i) (shapes[kMaxArguments + i] = outputs[i]).data = nullptr;
    host.workspace_bytes =
        node.workspace_bytes(shapes, static_cast<int>(input_count), shapes + kMaxArguments, k.device);
    if (host.workspace_bytes > 0) {
      const int id = k.device == Device::kCuda && first != nullptr ? device_id_of(api, first) : 0;
      host.workspace = workspace.allocate(api, context, k.device, id, host.workspace_bytes);
    }
  }
  node.compute(inputs, static_cast<int>(input_count), outputs, k.device, host);
}

// The exception in flight as a status that starts with operator and node. Call in a catch block only.
OrtStatus* titled_status(const KernelState& k) noexcept {
  try {
    rethrow_with_title(k.node->title());
  } catch (...) {
    return to_status(k.runtime->api);
  }
}

OrtStatus* ORT_API_CALL compute_kernel(void* kernel, OrtKernelContext* context) noexcept {
  const KernelState& k = *static_cast<KernelState*>(kernel);
  try {
    compute(k, context);
    return nullptr;
  } catch (const std::exception& e) {
    // Checks made by the node name it already; what ONNX Runtime itself or this file reports does not.
    if (std::strncmp(e.what(), k.node->title().c_str(), k.node->title().size()) == 0)
      return to_status(k.runtime->api);
    return titled_status(k);
  } catch (...) {
    return titled_status(k);
  }
}

// --- description

OrtCustomOpInputOutputCharacteristic characteristic(const Argument& a) {
  return a.variadic ? INPUT_OUTPUT_VARIADIC : a.optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
}

void describe(Overload& o) {
  const Runtime& runtime = *o.runtime;
  OrtCustomOp& c = o;
  std::memset(static_cast<void*>(&c), 0, sizeof c);
  c.version = runtime.op_version;
  c.GetName = [](const OrtCustomOp* op) noexcept { return self(op).signature().name.c_str(); };
  c.GetExecutionProviderType = [](const OrtCustomOp* op) noexcept { return self(op).provider; };
  c.GetInputTypeCount = [](const OrtCustomOp* op) noexcept { return self(op).signature().inputs.size(); };
  c.GetOutputTypeCount = [](const OrtCustomOp* op) noexcept { return self(op).signature().outputs.size(); };
  c.GetInputType = [](const OrtCustomOp* op, size_t i) noexcept {
    return to_onnx(self(op).dtype(self(op).signature().inputs[i]));
  };
  c.GetOutputType = [](const OrtCustomOp* op, size_t i) noexcept {
    return to_onnx(self(op).dtype(self(op).signature().outputs[i]));
  };
  c.GetInputCharacteristic = [](const OrtCustomOp* op, size_t i) noexcept {
    return characteristic(self(op).signature().inputs[i]);
  };
  c.GetOutputCharacteristic = [](const OrtCustomOp* op, size_t i) noexcept {
    return characteristic(self(op).signature().outputs[i]);
  };
  c.GetInputMemoryType = [](const OrtCustomOp* op, size_t i) noexcept {
    return self(op).device == Device::kCuda && self(op).signature().inputs[i].host ? OrtMemTypeCPUInput
                                                                                   : OrtMemTypeDefault;
  };
  // 1.16 and newer ask these of variadic arguments only; 1 and homogeneous is what the signature language
  // offers.
  c.GetVariadicInputMinArity = [](const OrtCustomOp*) noexcept { return 1; };
  c.GetVariadicInputHomogeneity = [](const OrtCustomOp*) noexcept { return 1; };
  c.GetVariadicOutputMinArity = [](const OrtCustomOp*) noexcept { return 1; };
  c.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) noexcept { return 1; };
  // 1.16 takes the callbacks that return a status only where the old ones are null.
  c.CreateKernelV2 = create_kernel;
  c.KernelComputeV2 = compute_kernel;
  c.KernelDestroy = destroy_kernel;
  if (runtime.op_version >= 17) {
    c.GetStartVersion = [](const OrtCustomOp*) noexcept { return 1; };
    // 1.17 to 1.23 crash before they call a shape function when an optional input is absent.
    const auto& inputs = o.signature().inputs;
    const bool optional =
        std::any_of(inputs.begin(), inputs.end(), [](const Argument& a) { return a.optional; });
    if (!optional || runtime.minor >= 24) c.InferOutputShapeFn = infer_output_shape;
  }
}

// --- registration

// What one runtime has been given. Sessions keep pointers into it, so it stays until the library is unloaded.
// Its domain is not released even then: at the end of the process the runtime may have gone first.
struct Registration {
  Runtime runtime;
  std::vector<std::unique_ptr<Overload>> overloads;
  OrtCustomOpDomain* domain = nullptr;

  explicit Registration(Runtime r) : runtime(std::move(r)) {
    const Library& library = this_library();
    check(runtime.api, runtime.api->CreateCustomOpDomain(library.definition.domain, &domain));
    for (const LibraryOperator& op : library.operators) {
      if (op.op.kernel(Device::kCpu)) add_overloads(op, Device::kCpu, nullptr);
      if (op.op.kernel(Device::kCuda)) {
        add_overloads(op, Device::kCuda, kCudaProvider);
        // CUDA as a plug-in provider has a name of its own; usable from 1.24 on.
        if (runtime.minor >= 24) add_overloads(op, Device::kCuda, "CudaPluginExecutionProvider");
      }
    }
  }

  void add_overloads(const LibraryOperator& op, Device device, const char* provider) {
    const auto& variables = op.signature.type_variables;
    std::vector<size_t> choice(variables.size(), 0);
    while (true) {
      auto o = std::make_unique<Overload>();
      o->runtime = &runtime;
      o->op = &op;
      o->device = device;
      o->provider = provider;
      for (size_t v = 0; v < variables.size(); ++v) o->types.push_back(variables[v].dtypes[choice[v]]);
      describe(*o);
      check(runtime.api, runtime.api->CustomOpDomain_Add(domain, o.get()));
      overloads.push_back(std::move(o));
      size_t v = 0;  // counts through all combinations
      while (v < variables.size() && ++choice[v] == variables[v].dtypes.size()) choice[v++] = 0;
      if (v == variables.size()) return;
    }
  }
};

// One registration for each ONNX Runtime in the process, which all its sessions share.
std::map<const OrtApi*, std::unique_ptr<Registration>>* registrations = nullptr;

// As in core's library.cpp.
__attribute__((destructor)) void free_registrations() {
  if (Node::alive() == 0) delete registrations;
}

Runtime negotiate(const OrtApiBase* base) {
  Runtime r;
  r.version = base->GetVersionString();
  unsigned major = 0, minor = 0;
  if (std::sscanf(r.version.c_str(), "%u.%u", &major, &minor) != 2) {
    throw Error(ErrorKind::kNotSupported, "cannot read ONNX Runtime's version '" + r.version + "'");
  }
  r.minor = major > 1 ? 1000 : minor;
  r.op_version = std::min<uint32_t>(r.minor, ORT_API_VERSION);
  // Asking for more than the runtime has prints to stderr, so the version decides before the table is
  // fetched.
  r.api = major >= 1 && r.minor >= static_cast<uint32_t>(kMinOrtApi) ? base->GetApi(kMinOrtApi) : nullptr;
  if (r.api == nullptr) {
    throw Error(ErrorKind::kNotSupported, "library '" + std::string(this_library().definition.name) +
                                              "' (domain " + this_library().definition.domain +
                                              ") needs ONNX Runtime 1." + std::to_string(kMinOrtApi) +
                                              " or newer, but was loaded by " + r.version);
  }
  return r;
}

OrtStatus* register_library(OrtSessionOptions* options, const OrtApiBase* base) noexcept {
  const OrtApi* api = base->GetApi(1);  // every runtime has it; enough to report an error
  if (api == nullptr) return nullptr;
  try {
    Runtime runtime = negotiate(base);
    api = runtime.api;
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    if (registrations == nullptr)
      registrations = new std::map<const OrtApi*, std::unique_ptr<Registration>>();
    auto& registration = (*registrations)[api];
    // A runtime that was unloaded may have left its place to another one.
    if (registration != nullptr && registration->runtime.version != runtime.version) registration.release();
    if (registration == nullptr) registration = std::make_unique<Registration>(std::move(runtime));

    // A domain that is added twice fails the session with "Domain already set in registry", so the options
    // remember it.
    const LibraryDefinition& d = this_library().definition;
    const std::string key = "opbridge.registered." + std::string(d.domain);
    const std::string own = std::string(d.name) + " " + std::to_string(d.version);
    int present = 0;
    check(api, api->HasSessionConfigEntry(options, key.c_str(), &present));
    if (present) {
      size_t size = 0;
      check(api, api->GetSessionConfigEntry(options, key.c_str(), nullptr, &size));
      std::string other(size, '\0');
      check(api, api->GetSessionConfigEntry(options, key.c_str(), &other[0], &size));
      other.resize(size == 0 ? 0 : size - 1);
      if (other == own) return nullptr;
      throw InvalidArgument("library '" + own + "': domain '" + d.domain +
                            "' has been registered already, by library '" + other +
                            "'. A domain belongs to one library: give one of them another DOMAIN");
    }
    check(api, api->AddCustomOpDomain(options, registration->domain));
    check(api, api->AddSessionConfigEntry(options, key.c_str(), own.c_str()));
    return nullptr;
  } catch (...) {
    return to_status(api);
  }
}

}  // namespace
}  // namespace ort

void* register_custom_ops(void* session_options, const void* api_base) noexcept {
  return ort::register_library(static_cast<OrtSessionOptions*>(session_options),
                               static_cast<const OrtApiBase*>(api_base));
}

}  // namespace opbridge
