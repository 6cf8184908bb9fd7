#include "calls.h"

#include <algorithm>
#include <cfenv>
#include <cstring>

#include "core/text.h"
#include "memory.h"
#include "runner/visit.h"

namespace opbridge::checking {

namespace {

struct DlType {
  uint8_t code, bits;
};
constexpr DlType kDlTypes[kDTypeCount] = {{2, 16}, {4, 16}, {2, 32}, {2, 64}, {0, 8},  {0, 16}, {0, 32},
                                          {0, 64}, {1, 8},  {1, 16}, {1, 32}, {1, 64}, {6, 8}};

bool from_dlpack(uint8_t code, uint8_t bits, DType* dtype) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (kDlTypes[i].code != code || kDlTypes[i].bits != bits) continue;
    *dtype = static_cast<DType>(i);
    return true;
  }
  return false;
}

std::string type_text(DType dtype, const std::vector<int64_t>& shape) {
  return dtype_name(dtype) + shape_to_string(shape.data(), static_cast<int>(shape.size()));
}

// Rounding and what happens to denormals; exception flags do not count.
unsigned float_mode() {
#if defined(__x86_64__)
  return __builtin_ia32_stmxcsr() & 0xFFC0u;
#else
  return static_cast<unsigned>(std::fegetround());
#endif
}

void reset_float_mode() { std::fesetenv(FE_DFL_ENV); }

OpbridgeError new_error() {
  OpbridgeError error{};
  error.size = sizeof error;
  return error;
}

Result refusal_of(int32_t kind, const OpbridgeError& error) {
  Result r;
  r.kind = kind;
  r.message.assign(error.message, strnlen(error.message, sizeof error.message));
  return r;
}

// Memory of one tensor, guarded or ordinary.
struct Memory {
  std::unique_ptr<Guarded> guarded;
  std::vector<char> plain;
  char* data = nullptr;

  Memory(bool guard, Guarded::Kind kind, const std::string& name, size_t bytes, size_t alignment, bool at_end,
         uint8_t fill) {
    if (guard) {
      guarded = std::make_unique<Guarded>(kind, name, bytes, alignment, at_end, fill);
      data = static_cast<char*>(guarded->data());
      return;
    }
    plain.assign(bytes + alignment, static_cast<char>(fill));
    const auto at = reinterpret_cast<uintptr_t>(plain.data());
    data = plain.data() + (alignment - at % alignment) % alignment;
  }
};

}  // namespace

OpbridgeTensor describe_tensor(DType dtype, std::vector<int64_t>& shape, void* data) {
  OpbridgeTensor t{};
  t.data = data;
  t.device_type = 1;
  t.ndim = static_cast<int32_t>(shape.size());
  t.dtype_code = kDlTypes[static_cast<int>(dtype)].code;
  t.dtype_bits = kDlTypes[static_cast<int>(dtype)].bits;
  t.dtype_lanes = 1;
  t.shape = shape.data();
  return t;
}

Callee::NodePtr Callee::create(const GivenAttributes& given, Result* refusal) const {
  std::vector<OpbridgeAttribute> attributes;
  for (const auto& [name, v] : given) {
    OpbridgeAttribute a{};
    a.name = name.c_str();
    a.type = static_cast<int32_t>(v.type);
    a.i = v.i;
    a.f = static_cast<double>(v.f);
    a.s = v.s.c_str();
    a.ints = v.ints.data();
    a.floats = v.floats.data();
    a.count = v.type == AttributeType::kInts ? v.ints.size() : v.floats.size();
    attributes.push_back(a);
  }
  OpbridgeNode* node = nullptr;
  OpbridgeError error = new_error();
  const int32_t kind = table_->create_node(signature_.name.c_str(), "checked", attributes.data(),
                                           attributes.size(), &node, &error);
  if (kind != 0) {
    *refusal = refusal_of(kind, error);
    return nullptr;
  }
  return {node, table_->destroy_node};
}

std::string Callee::expected(const Case& c, std::vector<TensorSpec>* specs) const {
  try {
    const Node node(operator_, signature_, full_name_, resolve_attributes(signature_, c.attributes));
    std::vector<TensorArg> args;
    for (const CaseInput& in : c.inputs)
      args.push_back({nullptr, in.shape.data(), static_cast<int32_t>(in.shape.size()), in.dtype, in.present});
    TensorSpec found[kMaxArguments];
    node.infer(args.data(), static_cast<int>(args.size()), found);
    if (specs != nullptr) specs->assign(found, found + signature_.outputs.size());
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

int32_t Callee::infer(const OpbridgeNode* node, const Case& c, std::vector<TensorSpec>* specs,
                      std::string* message) const {
  std::vector<CaseInput> inputs = c.inputs;
  std::vector<OpbridgeTensor> tensors(inputs.size());
  std::vector<const OpbridgeTensor*> pointers;
  for (size_t i = 0; i < inputs.size(); ++i) {
    tensors[i] = describe_tensor(inputs[i].dtype, inputs[i].shape, nullptr);
    pointers.push_back(inputs[i].present ? &tensors[i] : nullptr);
  }
  std::vector<OpbridgeTensorSpec> found(signature_.outputs.size());
  OpbridgeError error = new_error();
  const int32_t kind =
      table_->infer(node, pointers.data(), pointers.size(), found.data(), found.size(), &error);
  *message = refusal_of(kind, error).message;
  specs->clear();
  for (const OpbridgeTensorSpec& f : found) {
    TensorSpec spec{};
    if (kind == 0 &&
        (f.ndim < 0 || f.ndim > kMaxRank || !from_dlpack(f.dtype_code, f.dtype_bits, &spec.dtype))) {
      *message = "infer() gives an output of rank " + std::to_string(f.ndim) + " and DLPack type " +
                 std::to_string(f.dtype_code) + "/" + std::to_string(f.dtype_bits);
      return -1;
    }
    spec.rank = f.ndim;
    std::copy_n(f.shape, std::max(0, std::min(f.ndim, OPBRIDGE_MAX_RANK)), spec.shape);
    specs->push_back(spec);
  }
  return kind;
}

Result Callee::call(const Case& c, const std::vector<Array>& inputs, const Passing& how) const {
  Result refusal;
  const NodePtr node = create(c.attributes, &refusal);
  return node == nullptr ? refusal : call(node.get(), c, inputs, how);
}

Result Callee::call(const OpbridgeNode* node, const Case& c, const std::vector<Array>& arrays,
                    const Passing& how) const {
  constexpr size_t kOffset = 64;
  Result result;
  std::vector<std::unique_ptr<Memory>> memory;  // inputs, outputs, workspace
  std::vector<std::string> names;
  const auto take = [&](Guarded::Kind kind, const std::string& name, size_t bytes, size_t alignment,
                        uint8_t fill) {
    memory.push_back(std::make_unique<Memory>(how.guarded, kind, name, bytes, alignment, how.at_end, fill));
    names.push_back(name);
    return memory.back()->data;
  };

  std::vector<CaseInput> inputs = c.inputs;
  std::vector<OpbridgeTensor> in(inputs.size());
  std::vector<std::vector<int64_t>> strides(inputs.size());
  std::vector<const OpbridgeTensor*> in_pointers;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].present) {
      in_pointers.push_back(nullptr);
      continue;
    }
    const Array& a = arrays[i];
    const std::string name =
        "input '" + argument_of(signature_, i).name + "' " + type_text(inputs[i].dtype, inputs[i].shape);
    char* data = nullptr;
    if (static_cast<int>(i) == how.same_as[1] && how.same_as[0] >= 0) {
      data = static_cast<char*>(in[static_cast<size_t>(how.same_as[0])].data);
    } else if (how.strided && a.bytes() > 0) {
      const size_t size = dtype_size(a.dtype());
      data = take(Guarded::Kind::kInput, name, 2 * a.bytes(), size, 0xA5);
      for (size_t k = 0; k < a.bytes(); k += size)
        std::memcpy(data + 2 * k, static_cast<char*>(a.data()) + k, size);
      if (how.guarded) memory.back()->guarded->protect();
    } else if (a.bytes() > 0 || !how.null_empty) {
      data = take(Guarded::Kind::kInput, name, a.bytes(), dtype_size(a.dtype()), 0);
      if (a.bytes() > 0) std::memcpy(data, a.data(), a.bytes());
      if (how.guarded) memory.back()->guarded->protect();
    }
    in[i] = describe_tensor(inputs[i].dtype, inputs[i].shape, data);
    if (how.strided) {
      int64_t stride = 2;
      strides[i].resize(inputs[i].shape.size());
      for (size_t d = strides[i].size(); d-- > 0; stride *= inputs[i].shape[d]) strides[i][d] = stride;
      in[i].strides = strides[i].data();
    }
    if (how.offset && data != nullptr) {
      in[i].data = data - kOffset;
      in[i].byte_offset = kOffset;
    }
    in_pointers.push_back(&in[i]);
  }

  std::vector<TensorSpec> specs;
  result.kind = infer(node, c, &specs, &result.message);
  if (result.kind != 0) return result;
  std::vector<std::vector<int64_t>> shapes;
  std::vector<OpbridgeTensor> out(specs.size());
  std::vector<const OpbridgeTensor*> out_pointers;
  std::vector<char*> out_data;
  shapes.reserve(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    shapes.emplace_back(specs[i].shape, specs[i].shape + specs[i].rank);
    if (!c.wanted[i]) {
      out_pointers.push_back(nullptr);
      out_data.push_back(nullptr);
      continue;
    }
    size_t bytes = dtype_size(specs[i].dtype);
    for (const int64_t size : shapes[i]) {
      if (size < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(size), &bytes) || bytes > (1u << 30))
        throw Error(ErrorKind::kInternal, "output '" + signature_.outputs[i].name +
                                              "' is to have the shape " +
                                              shape_to_string(specs[i].shape, specs[i].rank));
    }
    char* data = nullptr;
    if (bytes > 0 || !how.null_empty) {
      data = take(Guarded::Kind::kOutput,
                  "output '" + signature_.outputs[i].name + "' " + type_text(specs[i].dtype, shapes[i]),
                  bytes, dtype_size(specs[i].dtype), how.output_fill);
    }
    out[i] = describe_tensor(specs[i].dtype, shapes[i], data);
    out_pointers.push_back(&out[i]);
    out_data.push_back(data);
  }

  OpbridgeError error = new_error();
  size_t workspace = 0;
  result.kind = table_->workspace_bytes(node, in_pointers.data(), in_pointers.size(), 1, &workspace, &error);
  if (result.kind != 0) return refusal_of(result.kind, error);
  if (workspace > (4ull << 30))
    throw Error(ErrorKind::kInternal, "it asks for " + std::to_string(workspace) + " bytes of workspace");
  OpbridgeHost host{};
  host.size = sizeof host;
  host.threads = how.threads;
  host.parallel_for = how.parallel_for;
  host.parallel_host = how.parallel_host;
  if (workspace > 0) {
    host.workspace =
        take(Guarded::Kind::kWorkspace, "its workspace of " + std::to_string(workspace) + " bytes", workspace,
             kWorkspaceAlignment, how.workspace_fill);
    host.workspace_bytes = workspace;
  }

  const unsigned before = float_mode();
  error = new_error();
  const int32_t kind = table_->compute(node, in_pointers.data(), in_pointers.size(), out_pointers.data(),
                                       out_pointers.size(), &host, &error);
  if (float_mode() != before) {
    result.float_mode_changed = true;
    reset_float_mode();
  }
  for (size_t i = 0; i < memory.size(); ++i) {
    if (!memory[i]->guarded) continue;
    const std::string where = memory[i]->guarded->disturbed();
    if (where.empty() || !result.disturbed.empty()) continue;
    result.disturbed = "it wrote " + where + ": " + names[i];
    result.disturbed_code =
        workspace > 0 && i + 1 == memory.size() ? "workspace-too-small" : "write-out-of-bounds";
  }
  if (kind != 0) {
    const Result refusal = refusal_of(kind, error);
    result.kind = refusal.kind;
    result.message = refusal.message;
    return result;
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    Array a(specs[i].dtype, c.wanted[i] ? shapes[i] : std::vector<int64_t>{0});
    if (c.wanted[i] && a.bytes() > 0) std::memcpy(a.data(), out_data[i], a.bytes());
    result.outputs.push_back(a);
  }
  return result;
}

bool same_bits(const Result& a, const Result& b) {
  if (a.kind != b.kind || a.outputs.size() != b.outputs.size()) return false;
  for (size_t i = 0; i < a.outputs.size(); ++i) {
    const Array &x = a.outputs[i], &y = b.outputs[i];
    if (x.dtype() != y.dtype() || x.shape() != y.shape()) return false;
    if (x.bytes() > 0 && std::memcmp(x.data(), y.data(), x.bytes()) != 0) return false;
  }
  return true;
}

std::string element_text(const Array& array, int64_t i) {
  std::string text;
  visit(array, [&](auto* p) {
    using T = std::remove_pointer_t<decltype(p)>;
    if constexpr (kIsFloat<T>)
      text =
          std::is_same_v<T, double> ? to_text(as_double(p[i])) : to_text(static_cast<float>(as_double(p[i])));
    else
      text = std::to_string(p[i]);
  });
  return text;
}

std::string difference(const Signature& s, const Result& a, const Result& b) {
  const auto refusal = [](const Result& r) { return r.kind == 0 ? "done" : "refused (" + r.message + ")"; };
  if (a.kind != b.kind) return "once it is " + refusal(a) + ", once " + refusal(b);
  for (size_t i = 0; i < a.outputs.size() && i < b.outputs.size(); ++i) {
    const Array &x = a.outputs[i], &y = b.outputs[i];
    const std::string name = "output '" + s.outputs[i].name + "' " + x.to_string();
    if (x.dtype() != y.dtype() || x.shape() != y.shape()) return name + " and " + y.to_string();
    const size_t size = dtype_size(x.dtype());
    int64_t different = 0, first = -1;
    for (int64_t k = 0; k < x.count(); ++k) {
      const size_t at = static_cast<size_t>(k) * size;
      if (std::memcmp(static_cast<char*>(x.data()) + at, static_cast<char*>(y.data()) + at, size) == 0)
        continue;
      if (different++ == 0) first = k;
    }
    if (different > 0)
      return name + ": " + std::to_string(different) + " of " + std::to_string(x.count()) +
             " elements differ, first " + index_text(x.shape(), first) + ": " + element_text(x, first) +
             " and " + element_text(y, first);
  }
  return "";
}

}  // namespace opbridge::checking
