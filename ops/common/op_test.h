// For the operators' C++ tests: calls an operator of this library through the C interface, with poisoned
// outputs and workspace, and guards behind both.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "opbridge/abi.h"
#include "opbridge/tensor.h"

namespace pvn3d::test {

struct Array {
  uint8_t code, bits;
  std::vector<int64_t> shape;
  std::vector<char> data;

  template <class T>
  static Array of(std::vector<int64_t> shape, const std::vector<T>& values) {
    constexpr bool real = !std::is_integral_v<T>;
    Array a{static_cast<uint8_t>(real ? 2 : 0), static_cast<uint8_t>(8 * sizeof(T)), std::move(shape), {}};
    a.data.resize(values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(a.data.data(), values.data(), a.data.size());
    return a;
  }
  template <class T>
  std::vector<T> as() const {
    EXPECT_EQ(8 * sizeof(T), bits);
    std::vector<T> values(data.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), data.data(), data.size());
    return values;
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
  std::string error;
};

inline OpbridgeTensor tensor(Array& a) {
  return {a.data.data(),  1,       0, static_cast<int32_t>(a.shape.size()), a.code, a.bits, 1,
          a.shape.data(), nullptr, 0};
}

/// Calls `op`; on failure `error` says why and there are no outputs.
inline Result call(const char* op, std::vector<Array> inputs, const std::vector<Attribute>& attributes,
                   int threads = 1) {
  OpbridgeError error{};
  error.size = sizeof error;
  const OpbridgeLibrary* library = opbridge_get_library(OPBRIDGE_ABI_VERSION, &error);
  if (library == nullptr) return {{}, error.message};
  std::vector<OpbridgeAttribute> attrs;
  for (const Attribute& a : attributes) {
    attrs.push_back({a.name,
                     a.text != nullptr ? 4
                     : a.is_int        ? 1
                                       : 2,
                     0, static_cast<int64_t>(a.value), a.value, a.text, nullptr, nullptr, 0});
  }
  OpbridgeNode* node = nullptr;
  if (library->create_node(op, nullptr, attrs.data(), attrs.size(), &node, &error) != 0)
    return {{}, error.message};
  Result result;
  std::vector<OpbridgeTensor> in, out;
  for (Array& a : inputs) in.push_back(tensor(a));
  std::vector<const OpbridgeTensor*> in_pointers, out_pointers;
  for (const OpbridgeTensor& t : in) in_pointers.push_back(&t);
  OpbridgeTensorSpec specs[4];
  size_t count = 1, workspace_bytes = 0;  // as many outputs as the operator has
  while (library->infer(node, in_pointers.data(), in.size(), specs, count, &error) != 0) {
    if (++count > 4) {
      library->destroy_node(node);
      return {{}, error.message};
    }
  }
  constexpr size_t kGuard = 512;
  constexpr char kPoison = static_cast<char>(0xab);
  for (size_t i = 0; i < count; ++i) {
    Array a{specs[i].dtype_code, specs[i].dtype_bits, {specs[i].shape, specs[i].shape + specs[i].ndim}, {}};
    size_t bytes = a.bits / 8;
    for (const int64_t s : a.shape) bytes *= static_cast<size_t>(s);
    a.data.assign(bytes + kGuard, kPoison);
    result.outputs.push_back(std::move(a));
  }
  for (Array& a : result.outputs) out.push_back(tensor(a));
  for (const OpbridgeTensor& t : out) out_pointers.push_back(&t);
  EXPECT_EQ(library->workspace_bytes(node, in_pointers.data(), in.size(), 1, &workspace_bytes, &error), 0)
      << error.message;
  std::vector<char> workspace(workspace_bytes + 256 + kGuard, kPoison);
  char* aligned = workspace.data() + (256 - reinterpret_cast<uintptr_t>(workspace.data()) % 256) % 256;
  OpbridgeHost host{};
  host.size = sizeof host;
  host.threads = threads;
  host.workspace = aligned;
  host.workspace_bytes = workspace_bytes;
  const int status =
      library->compute(node, in_pointers.data(), in.size(), out_pointers.data(), count, &host, &error);
  library->destroy_node(node);
  for (size_t i = 0; i < kGuard; ++i)
    EXPECT_EQ(aligned[workspace_bytes + i], kPoison) << "wrote behind the workspace";
  for (Array& a : result.outputs) {
    for (size_t i = a.data.size() - kGuard; i < a.data.size(); ++i)
      EXPECT_EQ(a.data[i], kPoison) << "wrote behind an output";
    a.data.resize(a.data.size() - kGuard);
  }
  if (status != 0) return {{}, error.message};
  return result;
}

/// n numbers in [0, 1), the same ones every time.
inline std::vector<float> random(size_t n, uint32_t seed = 1) {
  std::vector<float> values(n);
  for (float& v : values) {
    seed = seed * 1664525u + 1013904223u;
    v = static_cast<float>(seed >> 8) * 0x1p-24f;
  }
  return values;
}

}  // namespace pvn3d::test
