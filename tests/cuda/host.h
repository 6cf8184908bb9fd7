// A small host of the C interface: runs an operator of a library on the CPU and on CUDA, with sentinels
// around every buffer on the device. On a real GPU or on the emulated one.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#if defined(OPBRIDGE_CUDA_EMULATION)
#include "cuda_emulation.h"
#else
#include <cuda_runtime_api.h>
#endif

#include "opbridge/abi.h"
#include "opbridge/error.h"
#include "opbridge/tensor.h"

namespace host {

using opbridge::DType;
using opbridge::Error;
using opbridge::ErrorKind;

inline void check_cuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw Error(ErrorKind::kDevice,
              std::string(cudaGetErrorString(error)) + " (" + cudaGetErrorName(error) + ")");
}

/// A tensor in host memory.
struct Tensor {
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<unsigned char> bytes;

  Tensor(DType dtype_, std::vector<int64_t> shape_)
      : dtype(dtype_), shape(std::move(shape_)), bytes(count() * opbridge::dtype_size(dtype)) {}
  size_t count() const {
    size_t n = 1;
    for (const int64_t d : shape) n *= static_cast<size_t>(d);
    return n;
  }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(bytes.data());
  }
};

/// t[i] = v, rounded to the element type.
inline void store(Tensor& t, size_t i, double v) {
  switch (t.dtype) {
    case DType::f16:
      t.as<opbridge::f16>()[i] = opbridge::f16(static_cast<float>(v));
      break;
    case DType::bf16:
      t.as<opbridge::bf16>()[i] = opbridge::bf16(static_cast<float>(v));
      break;
    case DType::f32:
      t.as<float>()[i] = static_cast<float>(v);
      break;
    case DType::f64:
      t.as<double>()[i] = v;
      break;
    case DType::i32:
      t.as<int32_t>()[i] = static_cast<int32_t>(v);
      break;
    default:
      t.as<int64_t>()[i] = static_cast<int64_t>(v);
      break;
  }
}

/// Attributes of a node.
inline OpbridgeAttribute integer(const char* name, int64_t value) {
  return {name, 1, 0, value, 0, nullptr, nullptr, nullptr, 0};
}
inline OpbridgeAttribute real(const char* name, double value) {
  return {name, 2, 0, 0, value, nullptr, nullptr, nullptr, 0};
}
inline OpbridgeAttribute boolean(const char* name, bool value) {
  return {name, 3, 0, value, 0, nullptr, nullptr, nullptr, 0};
}
inline OpbridgeAttribute text(const char* name, const char* value) {
  return {name, 4, 0, 0, 0, value, nullptr, nullptr, 0};
}

/// Inputs of a call; an optional one may be absent.
using Inputs = std::vector<std::optional<Tensor>>;

/// A tensor as the C interface takes it; the shape must outlive it.
inline OpbridgeTensor view(void* data, int device_type, int device_id, DType dtype,
                           std::vector<int64_t>& shape) {
  static constexpr uint8_t kCodes[] = {2, 4, 2, 2, 0, 0, 0, 0, 1, 1, 1, 1, 6};
  return {data,
          device_type,
          device_id,
          static_cast<int32_t>(shape.size()),
          kCodes[static_cast<int>(dtype)],
          static_cast<uint8_t>(8 * opbridge::dtype_size(dtype)),
          1,
          shape.data(),
          nullptr,
          0};
}

/// A library of operators.
class Library {
 public:
  explicit Library(const std::string& path) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw Error(ErrorKind::kInvalidArgument, dlerror());
    const auto get = reinterpret_cast<decltype(&opbridge_get_library)>(dlsym(handle, "opbridge_get_library"));
    if (get == nullptr) throw Error(ErrorKind::kInvalidArgument, dlerror());
    OpbridgeError error{};
    error.size = sizeof error;
    table_ = get(OPBRIDGE_ABI_VERSION, &error);
    if (table_ == nullptr) throw Error(static_cast<ErrorKind>(error.kind), error.message);
  }
  const OpbridgeLibrary* operator->() const { return table_; }

 private:
  const OpbridgeLibrary* table_;
};

/// An operator of a library.
class Node {
 public:
  Node(const Library& library, const char* op, const std::vector<OpbridgeAttribute>& attributes = {})
      : library_(library) {
    OpbridgeNode* node = nullptr;
    call(library_->create_node, op, nullptr, attributes.data(), attributes.size(), &node);
    node_ = {node, library_->destroy_node};
  }

  /// Outputs of the right type and shape, zeros.
  std::vector<Tensor> infer(Inputs& inputs, size_t outputs) const {
    const Views in(inputs);
    std::vector<OpbridgeTensorSpec> specs(outputs);
    call(library_->infer, node_.get(), in.pointers.data(), in.pointers.size(), specs.data(), specs.size());
    std::vector<Tensor> result;
    for (const OpbridgeTensorSpec& s : specs)
      result.emplace_back(dtype(s), std::vector<int64_t>(s.shape, s.shape + s.ndim));
    return result;
  }

  std::vector<Tensor> run_on_cpu(Inputs inputs, size_t outputs = 1) const {
    std::vector<Tensor> result = infer(inputs, outputs);
    const Views in(inputs), out(result);
    std::vector<unsigned char> workspace(workspace_bytes(in.pointers, 1) + 256);
    const auto aligned = (reinterpret_cast<uintptr_t>(workspace.data()) + 255) / 256 * 256;
    OpbridgeHost h{};
    h.size = sizeof h;
    h.workspace = reinterpret_cast<void*>(aligned);
    h.workspace_bytes = workspace.size() - 256;
    compute(in.pointers, out.pointers, h);
    return result;
  }

  size_t cuda_workspace_bytes(Inputs& inputs) const { return workspace_bytes(Views(inputs).pointers, 2); }

  size_t workspace_bytes(const std::vector<const OpbridgeTensor*>& inputs, int device) const {
    size_t bytes = 0;
    call(library_->workspace_bytes, node_.get(), inputs.data(), inputs.size(), device, &bytes);
    return bytes;
  }

  void compute(const std::vector<const OpbridgeTensor*>& inputs,
               const std::vector<const OpbridgeTensor*>& outputs, const OpbridgeHost& h) const {
    call(library_->compute, node_.get(), inputs.data(), inputs.size(), outputs.data(), outputs.size(), &h);
  }

 private:
  struct Views {
    explicit Views(Inputs& tensors) {
      for (auto& t : tensors) add(t ? &*t : nullptr);
    }
    explicit Views(std::vector<Tensor>& tensors) {
      for (auto& t : tensors) add(&t);
    }
    void add(Tensor* t) {
      if (t != nullptr)
        tensors_.push_back(std::make_unique<OpbridgeTensor>(view(t->bytes.data(), 1, 0, t->dtype, t->shape)));
      pointers.push_back(t == nullptr ? nullptr : tensors_.back().get());
    }
    std::vector<const OpbridgeTensor*> pointers;

   private:
    std::vector<std::unique_ptr<OpbridgeTensor>> tensors_;
  };

  static DType dtype(const OpbridgeTensorSpec& s) {
    for (int i = 0; i < opbridge::kDTypeCount; ++i) {
      std::vector<int64_t> none;
      const OpbridgeTensor t = view(nullptr, 1, 0, static_cast<DType>(i), none);
      if (t.dtype_code == s.dtype_code && t.dtype_bits == s.dtype_bits) return static_cast<DType>(i);
    }
    throw Error(ErrorKind::kInternal, "an output has an unknown element type");
  }

  template <class F, class... A>
  static void call(F f, A... arguments) {
    OpbridgeError error{};
    error.size = sizeof error;
    if (f(arguments..., &error) != 0) throw Error(static_cast<ErrorKind>(error.kind), error.message);
  }

  Library library_;
  std::unique_ptr<OpbridgeNode, void (*)(OpbridgeNode*)> node_{nullptr, nullptr};
};

/// Device memory, `offset` bytes behind an address aligned to 256, between sentinels. The address sanitizer sees
/// every access to these, others only what is written.
class DeviceBuffer {
 public:
  DeviceBuffer(size_t bytes, size_t offset)
      : bytes_(bytes), begin_(kGuard + offset), all_(begin_ + bytes + kGuard, kSentinel) {
    check_cuda(cudaMalloc(&memory_, all_.size()));
    check_cuda(cudaMemcpy(memory_, all_.data(), all_.size(), cudaMemcpyHostToDevice));
    guard(true);
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() {
    guard(false);
    cudaFree(memory_);
  }

  void* data() const { return static_cast<unsigned char*>(memory_) + begin_; }
  void write(const void* from) { check_cuda(cudaMemcpy(data(), from, bytes_, cudaMemcpyHostToDevice)); }
  /// Throws when a sentinel is gone.
  void read(void* to, const std::string& name) {
    guard(false);
    check_cuda(cudaMemcpy(all_.data(), memory_, all_.size(), cudaMemcpyDeviceToHost));
    guard(true);
    for (size_t i = 0; i < all_.size(); ++i) {
      if (i >= begin_ && i < begin_ + bytes_) continue;
      if (all_[i] != kSentinel) {
        const long where = static_cast<long>(i) - static_cast<long>(begin_);
        throw Error(ErrorKind::kInternal, "the kernel wrote byte " + std::to_string(where) + " of " + name +
                                              ", which has " + std::to_string(bytes_));
      }
    }
    std::copy_n(all_.data() + begin_, bytes_, static_cast<unsigned char*>(to));
  }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr unsigned char kSentinel = 0xa7;

  void guard(bool on) const {
#if defined(OPBRIDGE_CUDA_EMULATION) && defined(__SANITIZE_ADDRESS__)
    const auto* memory = static_cast<const unsigned char*>(memory_);
    const size_t end = begin_ + bytes_;
    if (on) {
      __asan_poison_memory_region(memory, begin_ / 8 * 8);
      __asan_poison_memory_region(memory + end, all_.size() - end);
    } else {
      __asan_unpoison_memory_region(memory, all_.size());
    }
#else
    (void)on;
#endif
  }

  size_t bytes_, begin_;
  std::vector<unsigned char> all_;
  void* memory_ = nullptr;
};

class Stream {
 public:
  Stream() { check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }
  operator cudaStream_t() const { return stream_; }
  void synchronize() const { check_cuda(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// A call with its tensors on the device, each `offset` elements behind an aligned address. Outputs start as
/// sentinels, so that an element left unwritten shows.
class CudaCall {
 public:
  CudaCall(const Node& node, Inputs inputs, size_t outputs = 1, size_t offset = 0, int device = 0)
      : node_(node), inputs_(std::move(inputs)), outputs_(node.infer(inputs_, outputs)) {
    for (auto& t : inputs_) add(t ? &*t : nullptr, offset, device, in_);
    for (auto& t : outputs_) add(&t, offset, device, out_);
    workspace_bytes_ = node_.cuda_workspace_bytes(inputs_);
    if (workspace_bytes_ > 0) workspace_ = std::make_unique<DeviceBuffer>(workspace_bytes_, 0);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (inputs_[i]) in_.buffers[i]->write(inputs_[i]->bytes.data());
    }
  }

  void set_input(size_t i, const Tensor& t) {
    inputs_[i]->bytes = t.bytes;
    in_.buffers[i]->write(t.bytes.data());
  }

  void enqueue(cudaStream_t stream) const {
    OpbridgeHost h{};
    h.size = sizeof h;
    h.stream = stream;
    h.workspace = workspace_ ? workspace_->data() : nullptr;
    h.workspace_bytes = workspace_bytes_;
    node_.compute(in_.pointers, out_.pointers, h);
  }

  /// After synchronising. Also checks that no input has changed.
  std::vector<Tensor> read() {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!inputs_[i]) continue;
      std::vector<unsigned char> now(inputs_[i]->bytes.size());
      in_.buffers[i]->read(now.data(), "input " + std::to_string(i));
      if (now != inputs_[i]->bytes)
        throw Error(ErrorKind::kInternal, "the kernel changed input " + std::to_string(i));
    }
    for (size_t i = 0; i < outputs_.size(); ++i)
      out_.buffers[i]->read(outputs_[i].bytes.data(), "output " + std::to_string(i));
    if (workspace_) {
      std::vector<unsigned char> ignored(workspace_bytes_);
      workspace_->read(ignored.data(), "the workspace");
    }
    return outputs_;
  }

  std::vector<Tensor> run(const Stream& stream) {
    enqueue(stream);
    stream.synchronize();
    return read();
  }

 private:
  struct Side {
    std::vector<std::unique_ptr<DeviceBuffer>> buffers;
    std::vector<std::unique_ptr<OpbridgeTensor>> tensors;
    std::vector<const OpbridgeTensor*> pointers;
  };
  static void add(Tensor* t, size_t offset, int device, Side& side) {
    if (t == nullptr) {
      side.buffers.push_back(nullptr);
      side.pointers.push_back(nullptr);
      return;
    }
    side.buffers.push_back(
        std::make_unique<DeviceBuffer>(t->bytes.size(), offset * opbridge::dtype_size(t->dtype)));
    side.tensors.push_back(
        std::make_unique<OpbridgeTensor>(view(side.buffers.back()->data(), 2, device, t->dtype, t->shape)));
    side.pointers.push_back(side.tensors.back().get());
  }

  const Node& node_;
  Inputs inputs_;
  std::vector<Tensor> outputs_;
  Side in_, out_;
  size_t workspace_bytes_ = 0;
  std::unique_ptr<DeviceBuffer> workspace_;
};

}  // namespace host
