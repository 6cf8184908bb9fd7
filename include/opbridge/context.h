// What a kernel sees of one call: its arguments, attributes, workspace, and the host's threads and stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "opbridge/error.h"
#include "opbridge/signature.h"
#include "opbridge/tensor.h"

namespace opbridge {

enum class Device : int32_t { kCpu = 1, kCuda = 2 };  // DLPack's codes

/// Runs task(data, chunk) for every chunk in [0, chunks), in any order, on any threads; returns when all are
/// done.
using ParallelFor = void (*)(void* host, void (*task)(void* data, size_t chunk), size_t chunks, void* data);

/// One call of an operator. Shapes, dtypes and attributes have been checked against the signature; output
/// tensors are allocated. Arguments are numbered as declared; attributes are found by name.
class Call {
 public:
  // --- arguments
  int inputs() const { return input_count_; }  // more than declared when the last one is variadic
  const TensorArg& input_arg(int i) const { return inputs_[i]; }
  const TensorArg& output_arg(int i) const { return outputs_[i]; }
  bool has_input(int i) const { return i < input_count_ && inputs_[i].present; }
  bool has_output(int i) const { return outputs_[i].present; }
  /// Typed view; T must be the tensor's element type (dispatch() gives it).
  template <class T>
  Tensor<const T> input(int i) const {
    return has_input(i) ? Tensor<const T>(inputs_[i]) : Tensor<const T>();
  }
  template <class T>
  Tensor<T> output(int i) const {
    return Tensor<T>(outputs_[i]);
  }
  DType input_dtype(int i) const { return inputs_[i].dtype; }

  // --- attributes, by name; defaults are filled in and ranges checked
  int64_t attr_int(std::string_view name) const { return attribute(name, AttributeType::kInt).i; }
  float attr_float(std::string_view name) const { return attribute(name, AttributeType::kFloat).f; }
  bool attr_bool(std::string_view name) const { return attribute(name, AttributeType::kBool).i != 0; }
  const std::string& attr_string(std::string_view name) const {
    return attribute(name, AttributeType::kString).s;
  }
  /// Index of a string attribute's value in its declared set.
  int attr_choice(std::string_view name) const {
    return static_cast<int>(attribute(name, AttributeType::kString).i);
  }
  const std::vector<int64_t>& attr_ints(std::string_view name) const {
    return attribute(name, AttributeType::kInts).ints;
  }
  const std::vector<float>& attr_floats(std::string_view name) const {
    return attribute(name, AttributeType::kFloats).floats;
  }

  // --- what the host provides
  Device device() const { return device_; }
  /// The bytes that the operator's workspace function asked for, aligned to 256; contents undefined.
  void* workspace() const { return workspace_; }
  size_t workspace_bytes() const { return workspace_bytes_; }
  /// cudaStream_t on CUDA. Launch there and never synchronise. Null is CUDA's default stream.
  void* stream() const { return stream_; }
  /// The CUDA device of the tensors, or -1 where the host has made it current. It is current while a kernel
  /// runs.
  int device_id() const { return device_id_; }

  /// Calls body(begin, end) for consecutive pieces of [0, n), each of `grain` items (the last may be
  /// shorter), possibly at the same time on several threads of the host. The pieces depend on n and grain
  /// alone, never on the number of threads, so that results can be made independent of it. A piece worth less
  /// than about 20 microseconds is too small.
  template <class Body>
  void parallel_for(int64_t n, int64_t grain, const Body& body) const {
    if (n <= 0) return;
    if (grain < 1) grain = 1;
    if (n <= grain) {
      body(static_cast<int64_t>(0), n);
      return;
    }
    struct Range {
      const Body* body;
      int64_t n, grain;
    } range{&body, n, grain};
    run_chunks(
        [](void* data, size_t chunk) {
          const Range& r = *static_cast<Range*>(data);
          const int64_t begin = static_cast<int64_t>(chunk) * r.grain;
          const int64_t end = r.n - begin < r.grain ? r.n : begin + r.grain;
          (*r.body)(begin, end);
        },
        static_cast<size_t>((n + grain - 1) / grain), &range);
  }

 private:
  friend class Node;  // src/core/node.h fills it

  const AttributeValue& attribute(std::string_view name, AttributeType type) const;
  /// Carries an exception of a chunk from the host's thread to the caller's.
  void run_chunks(void (*task)(void*, size_t), size_t chunks, void* data) const;

  const TensorArg* inputs_ = nullptr;
  const TensorArg* outputs_ = nullptr;
  int input_count_ = 0;
  Device device_ = Device::kCpu;
  const Signature* signature_ = nullptr;
  const AttributeValue* attributes_ = nullptr;  // in the signature's order
  void* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
  void* stream_ = nullptr;
  int device_id_ = -1;
  ParallelFor parallel_ = nullptr;
  void* parallel_host_ = nullptr;
};

/// Calls f(T{}) with the C++ type of `dtype`, which must be one of Types (the signature has made sure of it):
///   dispatch<float, double>(call.input_dtype(0), [&](auto zero) { using T = decltype(zero); ... });
template <class... Types, class F>
void dispatch(DType dtype, F&& f) {
  const bool found = ((dtype == DTypeOf<Types>::value && (f(Types{}), true)) || ...);
  if (!found)
    throw Error(ErrorKind::kInternal, std::string("no kernel for element type ") + dtype_name(dtype));
}

}  // namespace opbridge
