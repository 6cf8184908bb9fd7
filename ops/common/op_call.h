// Calls an operator through the C interface, with poisoned outputs and workspace, and guards behind both.
#pragma once

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "opbridge/abi.h"
#include "opbridge/tensor.h"

namespace pvn3d::test {

struct Array {
  uint8_t code, bits;
  std::vector<int64_t> shape;
  std::vector<char> data;
  bool present = true;

  template <class T>
  static Array of(std::vector<int64_t> shape, const std::vector<T>& values) {
    constexpr bool real = !std::is_integral_v<T>;
    Array a{static_cast<uint8_t>(real ? 2 : 0), static_cast<uint8_t>(8 * sizeof(T)), std::move(shape), {}};
    a.data.resize(values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(a.data.data(), values.data(), a.data.size());
    return a;
  }
  /// An optional input that is not given.
  static Array none() { return {0, 0, {}, {}, false}; }

  template <class T>
  std::vector<T> as() const {
    if (8 * sizeof(T) != bits) throw std::logic_error("elements of " + std::to_string(bits) + " bits");
    std::vector<T> values(data.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), data.data(), data.size());
    return values;
  }
  size_t bytes() const {
    size_t n = bits / 8;
    for (const int64_t s : shape) n *= static_cast<size_t>(s);
    return n;
  }
};

struct Attribute {
  const char* name;
  double value;
  bool is_int = true;
  const char* text = nullptr;
};

struct Result {
  std::vector<Array> outputs;
  std::string error;  // empty: it worked, and nothing was written behind an output or the workspace
};

inline OpbridgeTensor tensor(Array& a) {
  return {a.data.data(),  1,       0, static_cast<int32_t>(a.shape.size()), a.code, a.bits, 1,
          a.shape.data(), nullptr, 0};
}

inline std::vector<const OpbridgeTensor*> pointers(const std::vector<OpbridgeTensor>& tensors,
                                                   const std::vector<Array>& arrays) {
  std::vector<const OpbridgeTensor*> all;
  for (size_t i = 0; i < tensors.size(); ++i) all.push_back(arrays[i].present ? &tensors[i] : nullptr);
  return all;
}

/// Calls `op`; on failure `error` says why and there are no outputs. Outputs and workspace hold `poison` before.
inline Result call(const OpbridgeLibrary& library, const char* op, std::vector<Array> inputs,
                   const std::vector<OpbridgeAttribute>& attributes, int threads = 1,
                   char poison = static_cast<char>(0xab)) {
  constexpr size_t kGuard = 512, kMostOutputs = 8;
  OpbridgeError error{};
  error.size = sizeof error;
  OpbridgeNode* node = nullptr;
  if (library.create_node(op, nullptr, attributes.data(), attributes.size(), &node, &error) != 0) {
    return {{}, error.message};
  }
  Result result;
  std::vector<OpbridgeTensor> in, out;
  for (Array& a : inputs) in.push_back(tensor(a));
  const auto in_pointers = pointers(in, inputs);
  OpbridgeTensorSpec specs[kMostOutputs];
  size_t count = 1, workspace_bytes = 0;  // as many outputs as the operator has
  while (library.infer(node, in_pointers.data(), in.size(), specs, count, &error) != 0) {
    if (++count > kMostOutputs) {
      library.destroy_node(node);
      return {{}, error.message};
    }
  }
  for (size_t i = 0; i < count; ++i) {
    Array a{specs[i].dtype_code, specs[i].dtype_bits, {specs[i].shape, specs[i].shape + specs[i].ndim}, {}};
    a.data.assign(a.bytes() + kGuard, poison);
    result.outputs.push_back(std::move(a));
  }
  for (Array& a : result.outputs) out.push_back(tensor(a));
  const auto out_pointers = pointers(out, result.outputs);
  int status = library.workspace_bytes(node, in_pointers.data(), in.size(), 1, &workspace_bytes, &error);
  std::vector<char> workspace(workspace_bytes + 256 + kGuard, poison);
  char* aligned = workspace.data() + (256 - reinterpret_cast<uintptr_t>(workspace.data()) % 256) % 256;
  OpbridgeHost host{};
  host.size = sizeof host;
  host.threads = threads;
  host.workspace = aligned;
  host.workspace_bytes = workspace_bytes;
  if (status == 0) {
    status = library.compute(node, in_pointers.data(), in.size(), out_pointers.data(), count, &host, &error);
  }
  library.destroy_node(node);
  if (status != 0) return {{}, error.message};
  const auto check_guard = [&](const char* guard, const std::string& what) {
    for (size_t i = 0; i < kGuard; ++i) {
      if (guard[i] != poison) result.error = "wrote behind " + what;
    }
  };
  check_guard(aligned + workspace_bytes, "the workspace");
  for (Array& a : result.outputs) {
    check_guard(a.data.data() + a.bytes(), "an output");
    a.data.resize(a.bytes());
  }
  return result;
}

}  // namespace pvn3d::test
