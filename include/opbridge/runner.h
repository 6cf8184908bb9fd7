// Runs ONNX models with whatever ONNX Runtime the machine has, found and loaded at run time.
//
//   const opbridge::Runtime runtime = opbridge::Runtime::find();
//   opbridge::SessionOptions options;
//   options.libraries = {"libmy_custom_ops.so"};
//   opbridge::Session session(runtime, "m.onnx", options);
//   const opbridge::Arrays out = session.run({{"x", opbridge::Array::of<float>({1, 3}, {-2, 0.5f, 7})}});
//   const float* y = out.at("y").as<float>();
//
// Everything here throws opbridge::Error and prints nothing. Link opbridge::runner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "opbridge/context.h"
#include "opbridge/error.h"
#include "opbridge/tensor.h"

namespace opbridge {

/// A tensor with its memory: contiguous, row-major, on the CPU. Copies share the memory.
class Array {
 public:
  Array() : Array(DType::f32, {0}) {}
  /// Zeros.
  Array(DType dtype, std::vector<int64_t> shape);
  /// Wraps memory that holds the elements; `data` keeps it alive.
  Array(DType dtype, std::vector<int64_t> shape, std::shared_ptr<void> data);
  /// Array::of<float>({2, 2}, {1, 2, 3, 4})
  template <class T>
  static Array of(std::vector<int64_t> shape, const std::vector<T>& values) {
    Array a(DTypeOf<T>::value, std::move(shape));
    if (static_cast<size_t>(a.count()) != values.size()) {
      throw InvalidArgument(std::to_string(values.size()) + " values given for an array of " +
                            std::to_string(a.count()) + " elements");
    }
    for (size_t i = 0; i < values.size(); ++i) a.as<T>()[i] = values[i];
    return a;
  }

  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t count() const { return count_; }
  size_t bytes() const { return static_cast<size_t>(count_) * dtype_size(dtype_); }
  void* data() const { return data_.get(); }
  /// Shares the ownership of the memory.
  const std::shared_ptr<void>& memory() const { return data_; }
  /// The elements; T must be the element type.
  template <class T>
  T* as() const {
    expect(DTypeOf<T>::value);
    return static_cast<T*>(data());
  }
  /// "f32[2,3]"
  std::string to_string() const;

 private:
  void expect(DType dtype) const;

  DType dtype_;
  std::vector<int64_t> shape_;
  int64_t count_ = 0;
  std::shared_ptr<void> data_;
};

using Arrays = std::map<std::string, Array>;

/// A tensor where it is, on the CPU or on a GPU: contiguous, row-major. Copies share the memory.
struct DeviceArray {
  DeviceArray() = default;
  /// The same memory.
  DeviceArray(const Array& array) : dtype(array.dtype()), shape(array.shape()), memory(array.memory()) {}
  /// `memory` holds the elements, and keeps them alive.
  DeviceArray(DType dtype_, std::vector<int64_t> shape_, std::shared_ptr<void> memory_,
              Device device_ = Device::kCpu, int device_id_ = 0)
      : dtype(dtype_),
        shape(std::move(shape_)),
        memory(std::move(memory_)),
        device(device_),
        device_id(device_id_) {}

  size_t bytes() const;
  /// "f32[2,3] on CUDA device 0"
  std::string to_string() const;
  /// As an Array; throws for memory of a GPU, which this does not copy.
  Array on_cpu() const;

  DType dtype = DType::f32;
  std::vector<int64_t> shape = {0};
  std::shared_ptr<void> memory;  // on CUDA a device pointer
  Device device = Device::kCpu;
  int device_id = 0;
};

using DeviceArrays = std::map<std::string, DeviceArray>;

/// Reads .npy, .npz, an ONNX TensorProto (.pb), or a folder of .npy and .pb files. Names are those inside an
/// .npz or .pb, else the file's without its ending. numpy writes bfloat16 as '<V2', so two-byte voids are
/// read as bf16.
Arrays read_arrays(const std::string& path);

/// The folder layout of ONNX's test data (input_0.pb, input_1.pb, ...): the arrays by position, with the
/// names stored in them ("" where there is none). `stem` is "input" or "output".
std::vector<std::pair<std::string, Array>> read_test_data(const std::string& folder, const std::string& stem);

void write_npy(const std::string& path, const Array& array);
void write_npz(const std::string& path, const Arrays& arrays);
void write_pb(const std::string& path, const std::string& name, const Array& array);

/// One dimension of a model's input or output.
struct Dimension {
  int64_t size = -1;   // -1: dynamic
  std::string symbol;  // its name in the model, may be empty
};

struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  bool optional = false;    // an input that has an initializer as its default
  bool rank_known = false;  // false: any rank
  std::vector<Dimension> dims;
  /// "f32[batch,3,?]"
  std::string to_string() const;
};

/// An ONNX Runtime library loaded into this process. Copies refer to the same one; it stays loaded until the
/// process ends. Several versions can be loaded side by side.
class Runtime {
 public:
  /// The first usable of: `path` (the library, or a folder that has it), the environment variable
  /// OPBRIDGE_ORT (likewise), the Python environment (VIRTUAL_ENV, CONDA_PREFIX, where this program is
  /// installed, python3 on PATH), the system. When `path` or OPBRIDGE_ORT is given, nothing else is tried.
  /// The error lists everything tried.
  static Runtime find(const std::string& path = {});

  const std::string& version() const;  // "1.21.0"
  const std::string& path() const;
  const std::string& source() const;  // which of the places above, in words
  int api_version() const;            // 21
  std::vector<std::string> providers() const;

 private:
  friend class Session;
  struct Impl;
  explicit Runtime(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

enum class Optimization { kNone, kBasic, kExtended, kAll };

struct SessionOptions {
  std::vector<std::string> libraries;  // custom-operator libraries
  std::string provider = "cpu";        // or "cuda"
  /// With "cuda": what has no CUDA kernel, or everything where CUDA does not work, runs on the CPU (with a
  /// warning) instead of being an error.
  bool allow_fallback = false;
  int device_id = 0;
  int threads = 0;  // inside an operator; 0: ONNX Runtime decides
  Optimization optimization = Optimization::kAll;
  /// Not empty: ONNX Runtime records what it does, and end_profiling() writes it to <profile>_<time>.json.
  std::string profile;
};

/// A model ready to run. Before ONNX Runtime sees it, the model is checked against the libraries' manifests:
/// operators that none of them has, unknown attributes and declarations that changed since the export are
/// errors.
class Session {
 public:
  Session(const Runtime& runtime, const std::string& model, const SessionOptions& options = {});
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  /// In the model's order. Initializers are not inputs, but those that may be replaced come last, as
  /// optional.
  const std::vector<TensorInfo>& inputs() const;
  const std::vector<TensorInfo>& outputs() const;

  /// Checks the inputs against inputs(), computes all outputs. May be called from several threads.
  Arrays run(const Arrays& inputs) const;

  /// run() on tensors where they are (ONNX Runtime's I/O binding). The inputs lie on the CPU or on the GPU of a
  /// session on CUDA; the result is all outputs, in GPU memory there, on the CPU elsewhere. An output that `outputs` has
  /// is computed into that memory, whose shape must be the one that comes out, and which no input may overlap. Nothing
  /// is copied between host and device but what lies on the other side. What fills the inputs must be done before the
  /// call; the outputs are ready when it returns.
  DeviceArrays run_on_device(const DeviceArrays& inputs, const DeviceArrays& outputs = {}) const;

  /// Writes the profile that SessionOptions::profile asked for, and returns its file. Once.
  std::string end_profiling();

  /// The provider it got: "cpu" also where CUDA was asked for, does not work and fallback is allowed.
  const std::string& provider() const;

  /// What ONNX Runtime warned about so far, oldest first (from 1.17 on; at most 100).
  std::vector<std::string> warnings() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Which provider ran the nodes of a model.
struct Placement {
  struct Node {
    std::string name, op, provider;  // provider: "CPUExecutionProvider"
    double milliseconds = 0;         // in one run: the median of its calls, times how often a run calls it
  };
  std::vector<Node> nodes;  // each that ran once, in their order, without copies
  int64_t copies = 0;       // how often a run copied a tensor between host and device memory for a node
};

/// Runs the model, in a session of its own, and says where its nodes ran and how long they took: with fallback allowed, which of
/// them CUDA left to the CPU, and what that cost. Throws what the session and its run throw.
Placement find_placement(const Runtime& runtime, const std::string& model, const Arrays& inputs,
                         SessionOptions options, int runs = 1);

}  // namespace opbridge
