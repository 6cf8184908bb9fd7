// The C interface of abi.h over Library and Node.
#include "opbridge/abi.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

#include "library.h"
#include "text.h"
#include "threads.h"

struct OpbridgeNode {
  std::unique_ptr<opbridge::Node> node;
};

namespace opbridge {

namespace {

static_assert(sizeof(OpbridgeTensor) == 48 && offsetof(OpbridgeTensor, device_type) == 8 &&
                  offsetof(OpbridgeTensor, ndim) == 16 && offsetof(OpbridgeTensor, dtype_code) == 20 &&
                  offsetof(OpbridgeTensor, shape) == 24 && offsetof(OpbridgeTensor, strides) == 32 &&
                  offsetof(OpbridgeTensor, byte_offset) == 40,
              "OpbridgeTensor is laid out as DLPack's DLTensor");
static_assert(sizeof(OpbridgeError) == 2048 && sizeof(OpbridgeTensorSpec) == 136 &&
                  sizeof(OpbridgeAttribute) == 64 && sizeof(OpbridgeHost) == 48 &&
                  sizeof(OpbridgeLibrary) == 56,
              "these layouts are version 1 of the interface and frozen");
static_assert(kMaxRank == OPBRIDGE_MAX_RANK && static_cast<int>(ErrorKind::kInternal) == OPBRIDGE_INTERNAL,
              "");

// --- errors

int32_t report(OpbridgeError* error, ErrorKind kind, const char* message) noexcept {
  if (error != nullptr && error->size > offsetof(OpbridgeError, message)) {
    error->kind = static_cast<int32_t>(kind);
    const size_t room = std::min(error->size - offsetof(OpbridgeError, message), sizeof error->message) - 1;
    size_t length = std::strlen(message);
    if (length > room) {
      length = room;
      while (length > 0 && (static_cast<unsigned char>(message[length]) & 0xc0u) == 0x80u)
        --length;  // not inside a character
    }
    std::memcpy(error->message, message, length);
    error->message[length] = '\0';
  }
  return static_cast<int32_t>(kind);
}

// Runs f; whatever it throws becomes the returned kind and the message.
template <class F>
int32_t guarded(OpbridgeError* error, F&& f) noexcept {
  try {
    f();
    return 0;
  } catch (const Error& e) {
    return report(error, e.kind(), e.what());
  } catch (const std::bad_alloc&) {
    return report(error, ErrorKind::kOutOfMemory, "out of memory");
  } catch (const std::exception& e) {
    return report(error, ErrorKind::kInternal, e.what());
  } catch (...) {
    return report(error, ErrorKind::kInternal, "an exception of unknown type was thrown");
  }
}

// --- tensors

// DLPack's (code, bits) of each DType, in DType's order.
struct DlType {
  uint8_t code, bits;
};
constexpr DlType kDlTypes[kDTypeCount] = {{2, 16}, {4, 16}, {2, 32}, {2, 64}, {0, 8},  {0, 16}, {0, 32},
                                          {0, 64}, {1, 8},  {1, 16}, {1, 32}, {1, 64}, {6, 8}};

DType from_dlpack(const OpbridgeTensor& t) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (kDlTypes[i].code == t.dtype_code && kDlTypes[i].bits == t.dtype_bits && t.dtype_lanes == 1)
      return static_cast<DType>(i);
  }
  throw InvalidArgument("element type with DLPack code " + std::to_string(t.dtype_code) + ", " +
                        std::to_string(t.dtype_bits) + " bits and " + std::to_string(t.dtype_lanes) +
                        " lanes is not one that operators know");
}

void check_contiguous(const OpbridgeTensor& t) {
  if (t.strides == nullptr) return;
  for (int i = 0; i < t.ndim; ++i) {
    if (t.shape[i] == 0) return;  // strides of an empty tensor mean nothing
  }
  int64_t expected = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    if (t.shape[i] != 1 && t.strides[i] != expected) {
      throw InvalidArgument("a tensor of shape " + shape_to_string(t.shape, t.ndim) + " has strides " +
                            shape_to_string(t.strides, t.ndim) +
                            "; operators take contiguous, row-major tensors");
    }
    expected *= t.shape[i];
  }
}

// `tensors` as kernels see them.
void read_tensors(const OpbridgeTensor* const* tensors, size_t count, TensorArg* out) {
  if (count > static_cast<size_t>(kMaxArguments))
    throw InvalidArgument("at most 64 tensors can be passed, got " + std::to_string(count));
  if (tensors == nullptr && count > 0) throw InvalidArgument("the list of tensors is a null pointer");
  for (size_t i = 0; i < count; ++i) {
    const OpbridgeTensor* t = tensors[i];
    if (t == nullptr) {
      out[i] = {nullptr, nullptr, 0, DType::f32, false};
      continue;
    }
    if (t->ndim < 0 || t->ndim > kMaxRank)
      throw InvalidArgument("a tensor has " + std::to_string(t->ndim) + " dimensions; 0 to 16 are allowed");
    if (t->ndim > 0 && t->shape == nullptr) throw InvalidArgument("a tensor's shape is a null pointer");
    const DType dtype = from_dlpack(*t);
    bool empty = false, overflow = false;
    int64_t bytes = static_cast<int64_t>(dtype_size(dtype));
    for (int d = 0; d < t->ndim; ++d) {
      empty = empty || t->shape[d] == 0;
      overflow = overflow || __builtin_mul_overflow(bytes, t->shape[d], &bytes);
      if (t->shape[d] < 0) throw InvalidArgument("a tensor has shape " + shape_to_string(t->shape, t->ndim));
    }
    if (overflow && !empty)
      throw InvalidArgument("a tensor has shape " + shape_to_string(t->shape, t->ndim) +
                            ", which fits no memory");
    check_contiguous(*t);
    out[i] = {t->data == nullptr ? nullptr : static_cast<char*>(t->data) + t->byte_offset, t->shape, t->ndim,
              dtype, true};
  }
}

// Where a tensor lies. On the CPU the number means nothing.
struct Place {
  explicit Place(const OpbridgeTensor& t) : type(t.device_type), id(t.device_type == 1 ? 0 : t.device_id) {}
  bool operator!=(const Place& other) const { return type != other.type || id != other.id; }
  std::string to_string() const {
    return (type == 1   ? "CPU"
            : type == 2 ? "CUDA"
                        : "DLPack " + std::to_string(type)) +
           " device " + std::to_string(id);
  }

  int32_t type, id;
};

Device to_device(int32_t code) {
  if (code == 1) return Device::kCpu;
  if (code == 2) return Device::kCuda;
  throw Error(
      ErrorKind::kNotSupported,
      "operators run on the CPU (DLPack device 1) and CUDA (2), not on device " + std::to_string(code));
}

// Where a trace finds the data: with the first input that is not in host memory.
Place place_of(const Signature& s, const OpbridgeTensor* const* inputs, size_t count) {
  OpbridgeTensor cpu{};
  cpu.device_type = 1;
  for (size_t i = 0; i < count; ++i) {
    if (inputs[i] != nullptr && !s.inputs.empty() && !s.inputs[std::min(i, s.inputs.size() - 1)].host)
      return Place(*inputs[i]);
  }
  return Place(cpu);
}

// infer() of a call.
void infer_call(const Node& n, const TensorArg* in, const OpbridgeTensor* const* inputs, size_t input_count,
                TensorSpec* specs, void* stream) {
  const Place place = place_of(n.signature(), inputs, input_count);
  HostServices services;
  services.stream = stream;
  if (place.type != 1) services.device_id = place.id;
  n.infer(in, static_cast<int>(input_count), specs, place.type == 1 ? Device::kCpu : Device::kCuda, services);
}

// The outputs that infer() describes, as TensorArgs without data.
void spec_args(const TensorSpec* specs, size_t count, TensorArg* out) {
  for (size_t i = 0; i < count; ++i) out[i] = {nullptr, specs[i].shape, specs[i].rank, specs[i].dtype, true};
}

// --- functions

AttributeValue read_attribute(const OpbridgeAttribute& a) {
  AttributeValue v;
  if (a.type < 1 || a.type > 6)
    throw InvalidArgument("attribute '" + std::string(a.name) + "' has no type of this interface");
  v.type = static_cast<AttributeType>(a.type);
  v.i = a.i;
  v.f = static_cast<float>(a.f);
  if (a.s != nullptr) v.s = a.s;
  if (v.type == AttributeType::kInts && a.ints != nullptr) v.ints.assign(a.ints, a.ints + a.count);
  if (v.type == AttributeType::kFloats && a.floats != nullptr) v.floats.assign(a.floats, a.floats + a.count);
  return v;
}

int32_t create_node(const char* op, const char* node_name, const OpbridgeAttribute* attributes, size_t count,
                    OpbridgeNode** out, OpbridgeError* error) noexcept {
  return guarded(error, [&] {
    if (op == nullptr || out == nullptr || (attributes == nullptr && count > 0))
      throw InvalidArgument("create_node() was passed a null pointer");
    const Library& library = this_library();
    const LibraryOperator* found = library.find(op);
    if (found == nullptr) {
      std::vector<std::string> names;
      for (const LibraryOperator& o : library.operators) names.push_back(o.signature.name);
      throw InvalidArgument("library '" + std::string(library.definition.name) + "' has no operator '" + op +
                            "'" + did_you_mean(op, names) + " (it has " + list_of(names, "and") + ")");
    }
    std::vector<std::pair<std::string, AttributeValue>> given;
    for (size_t i = 0; i < count; ++i) {
      if (attributes[i].name == nullptr)
        throw InvalidArgument(found->full_name + ": attribute number " + std::to_string(i) + " has no name");
      given.emplace_back(attributes[i].name, read_attribute(attributes[i]));
    }
    *out = new OpbridgeNode{library.create_node(*found, node_name == nullptr ? "" : node_name, given)};
  });
}

void destroy_node(OpbridgeNode* node) noexcept { delete node; }

int32_t infer(const OpbridgeNode* node, const OpbridgeTensor* const* inputs, size_t input_count,
              OpbridgeTensorSpec* outputs, size_t output_count, OpbridgeError* error) noexcept {
  return guarded(error, [&] {
    const Node& n = *node->node;
    TensorArg in[kMaxArguments];
    try {
      read_tensors(inputs, input_count, in);
    } catch (...) {
      rethrow_with_title(n.title());
    }
    TensorSpec specs[kMaxArguments];
    infer_call(n, in, inputs, input_count, specs, nullptr);
    if (outputs == nullptr || output_count < n.signature().outputs.size()) {
      throw InvalidArgument(n.title() + ": has " + std::to_string(n.signature().outputs.size()) +
                            " outputs, got room for " +
                            std::to_string(outputs == nullptr ? 0 : output_count));
    }
    for (size_t i = 0; i < n.signature().outputs.size(); ++i) {
      const DlType type = kDlTypes[static_cast<int>(specs[i].dtype)];
      outputs[i].dtype_code = type.code;
      outputs[i].dtype_bits = type.bits;
      outputs[i].reserved = 0;
      outputs[i].ndim = specs[i].rank;
      std::memcpy(outputs[i].shape, specs[i].shape, sizeof(int64_t) * static_cast<size_t>(specs[i].rank));
    }
  });
}

int32_t workspace_bytes(const OpbridgeNode* node, const OpbridgeTensor* const* inputs, size_t input_count,
                        int32_t device_type, size_t* bytes, OpbridgeError* error) noexcept {
  return guarded(error, [&] {
    const Node& n = *node->node;
    *bytes = 0;
    if (!n.has_workspace()) return;
    TensorArg in[kMaxArguments], out[kMaxArguments];
    TensorSpec specs[kMaxArguments];
    try {
      read_tensors(inputs, input_count, in);
    } catch (...) {
      rethrow_with_title(n.title());
    }
    n.infer(in, static_cast<int>(input_count), specs);
    for (size_t i = 0; i < input_count; ++i) in[i].data = nullptr;
    spec_args(specs, n.signature().outputs.size(), out);
    *bytes = n.workspace_bytes(in, static_cast<int>(input_count), out, to_device(device_type));
  });
}

int32_t compute(const OpbridgeNode* node, const OpbridgeTensor* const* inputs, size_t input_count,
                const OpbridgeTensor* const* outputs, size_t output_count, const OpbridgeHost* host,
                OpbridgeError* error) noexcept {
  return guarded(error, [&] {
    const Node& n = *node->node;
    const auto fail = [&](const std::string& what) { throw InvalidArgument(n.title() + ": " + what); };
    const Signature& s = n.signature();
    TensorArg in[kMaxArguments], out[kMaxArguments];
    TensorSpec specs[kMaxArguments];
    try {
      read_tensors(inputs, input_count, in);
      read_tensors(outputs, output_count, out);
    } catch (...) {
      rethrow_with_title(n.title());
    }
    // The host's struct may be older and shorter, or newer and longer, than ours.
    OpbridgeHost h{};
    if (host != nullptr) {
      if (host->size < sizeof host->size) fail("OpbridgeHost::size is not set");
      std::memcpy(&h, host, std::min<size_t>(host->size, sizeof h));
    }
    infer_call(n, in, inputs, input_count, specs, h.stream);
    if (output_count != s.outputs.size()) {
      fail("has " + std::to_string(s.outputs.size()) + " outputs, got memory for " +
           std::to_string(output_count));
    }
    // All tensors lie on one device, except those that the signature wants in host memory.
    const auto argument = [&](size_t i) -> const Argument& {
      return s.inputs[std::min(i, s.inputs.size() - 1)];
    };
    const OpbridgeTensor* first = nullptr;
    for (size_t i = 0; i < input_count && first == nullptr; ++i) {
      if (in[i].present && !argument(i).host) first = inputs[i];
    }
    for (size_t i = 0; i < output_count && first == nullptr; ++i) first = outputs[i];
    if (first == nullptr) fail("was given no tensor to compute");
    const Place place(*first);
    // The kernel writes what infer() promised, so smaller memory must not pass.
    for (size_t i = 0; i < output_count; ++i) {
      if (!out[i].present) {
        if (!s.outputs[i].optional) fail("output '" + s.outputs[i].name + "' is not optional");
        out[i].shape = specs[i].shape;
        out[i].rank = specs[i].rank;
        out[i].dtype = specs[i].dtype;
        continue;
      }
      const bool same = out[i].rank == specs[i].rank && out[i].dtype == specs[i].dtype &&
                        std::equal(out[i].shape, out[i].shape + out[i].rank, specs[i].shape);
      if (!same) {
        fail("output '" + s.outputs[i].name + "' will be " + dtype_name(specs[i].dtype) +
             shape_to_string(specs[i].shape, specs[i].rank) + ", got memory for " + dtype_name(out[i].dtype) +
             shape_to_string(out[i].shape, out[i].rank));
      }
      if (out[i].data == nullptr && out[i].count() != 0)
        fail("output '" + s.outputs[i].name + "' has no memory");
      if (const Place p(*outputs[i]); p != place) {
        fail("output '" + s.outputs[i].name + "' lies on " + p.to_string() + ", expected " +
             place.to_string() + " like the inputs");
      }
    }
    for (size_t i = 0; i < input_count; ++i) {
      if (!in[i].present) continue;
      const Argument& a = argument(i);
      if (in[i].data == nullptr && in[i].count() != 0) fail("input '" + a.name + "' has no memory");
      const Place p(*inputs[i]);
      if (a.host && p.type != 1)
        fail("input '" + a.name + "' lies on " + p.to_string() + ", but its signature asks for host memory");
      if (!a.host && p != place) {
        fail("input '" + a.name + "' lies on " + p.to_string() + ", expected " + place.to_string() +
             " like the first input");
      }
    }
    const Device device = to_device(place.type);
    HostServices services;
    services.stream = h.stream;
    if (device == Device::kCuda) services.device_id = place.id;
    services.workspace = h.workspace;
    services.workspace_bytes = h.workspace_bytes;
    OwnThreads own(h.threads);
    if (h.parallel_for != nullptr) {
      services.parallel_for = h.parallel_for;
      services.parallel_host = h.parallel_host;
    } else if (own.count > 1) {
      services.parallel_for = own_parallel_for;
      services.parallel_host = &own;
    }
    if (n.has_workspace()) {
      TensorArg shapes[kMaxArguments];
      std::copy_n(in, input_count, shapes);
      for (size_t i = 0; i < input_count; ++i) shapes[i].data = nullptr;
      TensorArg out_shapes[kMaxArguments];
      spec_args(specs, output_count, out_shapes);
      const size_t need = n.workspace_bytes(shapes, static_cast<int>(input_count), out_shapes, device);
      if (need > 0 && (h.workspace == nullptr || h.workspace_bytes < need)) {
        fail("needs " + std::to_string(need) + " bytes of workspace, got " +
             std::to_string(h.workspace == nullptr ? 0 : h.workspace_bytes));
      }
      if (need > 0 && reinterpret_cast<uintptr_t>(h.workspace) % kWorkspaceAlignment != 0)
        fail("its workspace must be aligned to 256 bytes");
    }
    n.compute(in, static_cast<int>(input_count), out, device, services);
  });
}

}  // namespace

// Called by the generated entry point (cmake/library.cpp.in).
const OpbridgeLibrary* get_library(uint32_t abi_version, OpbridgeError* error) noexcept {
  static OpbridgeLibrary table;
  const int32_t failed = guarded(error, [&] {
    if (abi_version == 0 || abi_version > OPBRIDGE_ABI_VERSION) {
      throw Error(ErrorKind::kNotSupported,
                  "the host asks for version " + std::to_string(abi_version) +
                      " of opbridge's C interface, but this library was built with opbridge " +
                      this_library().definition.opbridge_version + ", which knows versions 1 to " +
                      std::to_string(OPBRIDGE_ABI_VERSION) +
                      ". Rebuild the library with the host's opbridge");
    }
    static const bool filled = [] {
      table = {sizeof(OpbridgeLibrary),
               OPBRIDGE_ABI_VERSION,
               this_library().manifest.c_str(),
               create_node,
               destroy_node,
               infer,
               workspace_bytes,
               compute};
      return true;
    }();
    (void)filled;
  });
  return failed ? nullptr : &table;
}

}  // namespace opbridge
