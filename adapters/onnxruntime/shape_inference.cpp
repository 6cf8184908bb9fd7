// Output shapes while a model is loaded, where dimensions may be known, symbols ("batch"), or unknown.
#include <atomic>
#include <optional>

#include "runtime.h"

namespace opbridge::ort {

namespace {

struct SymbolicDim {
  int64_t value = -1;  // -1: not a number
  std::string symbol;  // may be empty: unknown
};
using SymbolicShape = std::vector<SymbolicDim>;

struct Input {
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  SymbolicShape shape;
};

struct Bindings {
  // ONNX Runtime asks the first overload of an operator on behalf of all, so the types come from the inputs.
  std::vector<ONNXTensorElementDataType> types;
  std::vector<std::optional<SymbolicDim>> names;
  std::vector<std::optional<SymbolicShape>> prefixes;
};

// A dimension that nothing is known of needs a name that no other has: without one it would be written back
// as -1.
std::string fresh_symbol() {
  static std::atomic<uint64_t> next{0};
  return "opbridge_" + std::to_string(next++);
}

Input read_input(const OrtApi* api, OrtShapeInferContext* context, size_t index) {
  OrtTensorTypeAndShapeInfo* info = nullptr;  // owned by the context
  check(api, api->ShapeInferContext_GetInputTypeShape(context, index, &info));
  if (info == nullptr) return {};
  size_t rank = 0;
  check(api, api->GetDimensionsCount(info, &rank));
  std::vector<int64_t> values(rank);
  std::vector<const char*> symbols(rank);
  check(api, api->GetDimensions(info, values.data(), rank));
  check(api, api->GetSymbolicDimensions(info, symbols.data(), rank));
  Input input;
  check(api, api->GetTensorElementType(info, &input.type));
  for (size_t i = 0; i < rank; ++i)
    input.shape.push_back({values[i], symbols[i] == nullptr ? "" : symbols[i]});
  return input;
}

std::optional<int64_t> read_int_attribute(const OrtApi* api, OrtShapeInferContext* context,
                                          const Attribute& a) {
  const OrtOpAttr* attribute = nullptr;
  OrtStatus* status = api->ShapeInferContext_GetAttribute(context, a.name.c_str(), &attribute);
  if (status != nullptr || attribute == nullptr) {
    if (status != nullptr) api->ReleaseStatus(status);
    if (a.required) return std::nullopt;
    return a.default_value.i;
  }
  int64_t value = 0;
  size_t size = 0;
  status = api->ReadOpAttr(attribute, ORT_OP_ATTR_INT, &value, sizeof value, &size);
  if (status == nullptr) return value;
  api->ReleaseStatus(status);
  return std::nullopt;
}

void bind(const Argument& a, const Input& input, Bindings& b) {
  if (a.type_variable >= 0) b.types[static_cast<size_t>(a.type_variable)] = input.type;
  const SymbolicShape& shape = input.shape;
  if (shape.empty()) return;  // a scalar, or unknown: ONNX Runtime does not say which
  const ShapePattern* chosen = nullptr;
  for (const ShapePattern& p : a.shapes) {
    const size_t fixed = p.dims.size() - p.has_prefix();
    if (p.has_prefix() ? shape.size() < fixed : shape.size() != fixed) continue;
    if (chosen != nullptr) return;  // more than one alternative fits
    chosen = &p;
  }
  if (chosen == nullptr) return;  // wrong, and said so at run time
  const size_t skip = chosen->has_prefix(), fixed = chosen->dims.size() - skip, prefix = shape.size() - fixed;
  if (skip && !chosen->dims[0].optional_prefix) {
    auto& bound = b.prefixes[static_cast<size_t>(chosen->dims[0].slot)];
    if (!bound) bound.emplace(shape.begin(), shape.begin() + static_cast<long>(prefix));
  }
  for (size_t i = 0; i < fixed; ++i) {
    const Dim& d = chosen->dims[skip + i];
    if (d.kind != Dim::Kind::kName) continue;
    auto& bound = b.names[static_cast<size_t>(d.slot)];
    // A number says more than a symbol, a symbol more than nothing.
    const SymbolicDim& dim = shape[prefix + i];
    if (!bound || (bound->value < 0 && (dim.value >= 0 || bound->symbol.empty()))) bound = dim;
  }
}

std::optional<int64_t> evaluate(const Dim& d, const Bindings& b) {
  if (d.kind == Dim::Kind::kLiteral) return d.value;
  if (d.kind == Dim::Kind::kName) {
    const auto& bound = b.names[static_cast<size_t>(d.slot)];
    return bound && bound->value >= 0 ? std::optional<int64_t>(bound->value) : std::nullopt;
  }
  const auto x = evaluate(d.args[0], b), y = evaluate(d.args[1], b);
  if (!x || !y) return std::nullopt;
  int64_t result = 0;
  return dim_arithmetic(d.kind, *x, *y, &result) ? std::optional<int64_t>(result) : std::nullopt;
}

void set_output(const OrtApi* api, OrtShapeInferContext* context, size_t index,
                ONNXTensorElementDataType type, const SymbolicShape& shape) {
  std::vector<int64_t> values;
  std::vector<const char*> symbols;
  for (const SymbolicDim& d : shape) {
    values.push_back(d.value);
    symbols.push_back(d.symbol.c_str());
  }
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  check(api, api->CreateTensorTypeAndShapeInfo(&raw));
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(api->ReleaseTensorTypeAndShapeInfo)> info(
      raw, api->ReleaseTensorTypeAndShapeInfo);
  check(api, api->SetTensorElementType(raw, type));
  check(api, api->SetDimensions(raw, values.data(), values.size()));
  check(api, api->SetSymbolicDimensions(raw, symbols.data(), symbols.size()));
  check(api, api->ShapeInferContext_SetOutputTypeShape(context, index, raw));
}

}  // namespace

// Says what is certain and leaves the rest open. Wrong inputs are reported when the model runs, in the
// checks' own words: ONNX Runtime does not read the status of this function.
OrtStatus* infer_output_shape(const OrtCustomOp* op, OrtShapeInferContext* context) noexcept {
  const Overload& o = *static_cast<const Overload*>(op);
  const OrtApi* api = o.runtime->api;
  try {
    const Signature& s = o.signature();
    Bindings b;
    b.names.resize(s.names.size());
    b.prefixes.resize(s.prefixes.size());
    b.types.resize(s.type_variables.size(), ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED);
    for (const Attribute& a : s.attributes) {
      if (a.name_slot < 0) continue;
      if (const auto value = read_int_attribute(api, context, a))
        b.names[static_cast<size_t>(a.name_slot)] = SymbolicDim{*value, ""};
    }
    size_t input_count = 0;
    check(api, api->ShapeInferContext_GetInputCount(context, &input_count));
    for (size_t i = 0; i < input_count; ++i) {
      const Argument& a = s.inputs[std::min(i, s.inputs.size() - 1)];
      if (!a.optional) bind(a, read_input(api, context, i), b);
    }
    for (size_t i = 0; i < s.outputs.size(); ++i) {
      if (s.outputs[i].optional) continue;  // the node may not have it
      SymbolicShape shape;
      bool rank_known = true;
      for (const Dim& d : s.outputs[i].shapes[0].dims) {
        if (d.kind == Dim::Kind::kPrefix) {
          const auto& prefix = b.prefixes[static_cast<size_t>(d.slot)];
          rank_known = rank_known && prefix.has_value();
          if (prefix) shape.insert(shape.end(), prefix->begin(), prefix->end());
          continue;
        }
        SymbolicDim dim;
        if (d.kind == Dim::Kind::kName && b.names[static_cast<size_t>(d.slot)])
          dim = *b.names[static_cast<size_t>(d.slot)];
        if (const auto value = evaluate(d, b)) dim = {*value, ""};
        shape.push_back(dim);
      }
      if (!rank_known) continue;
      for (SymbolicDim& d : shape) {
        if (d.value < 0 && d.symbol.empty()) d.symbol = fresh_symbol();
        if (d.value < 0) d.value = -1;
      }
      const Argument& a = s.outputs[i];
      const auto type =
          a.type_variable >= 0 ? b.types[static_cast<size_t>(a.type_variable)] : to_onnx(a.concrete);
      if (type != ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED) set_output(api, context, i, type, shape);
    }
    return nullptr;
  } catch (...) {
    return to_status(api);
  }
}

}  // namespace opbridge::ort
