// One ONNX Runtime in this process, and the plain C descriptions of this library's operators for it.
#pragma once

#include <onnxruntime_c_api.h>

#include <string>
#include <vector>

#include "library.h"

namespace opbridge::ort {

struct Runtime {
  const OrtApi* api;
  uint32_t minor;  // 1.<minor>: functions newer than kMinOrtApi are called only when minor is high enough
  uint32_t op_version;  // what goes into OrtCustomOp::version: never more than the runtime knows
  std::string version;
};

/// One overload of an operator: a combination of element types under one execution provider. Its OrtCustomOp
/// part is what ONNX Runtime sees.
struct Overload : OrtCustomOp {
  const Runtime* runtime;
  const LibraryOperator* op;
  Device device;
  const char* provider;      // null: the CPU provider
  std::vector<DType> types;  // one for each type variable

  const Signature& signature() const { return op->signature; }
  DType dtype(const Argument& a) const {
    return a.type_variable >= 0 ? types[static_cast<size_t>(a.type_variable)] : a.concrete;
  }
};

ONNXTensorElementDataType to_onnx(DType dtype);
DType from_onnx(ONNXTensorElementDataType type);

/// Throws what a status says, and releases it.
[[noreturn]] void throw_status(const OrtApi* api, OrtStatus* status);
inline void check(const OrtApi* api, OrtStatus* status) {
  if (status != nullptr) throw_status(api, status);
}
/// The exception in flight as a status. Call in a catch block only.
OrtStatus* to_status(const OrtApi* api) noexcept;

/// OrtCustomOp::InferOutputShapeFn (shape_inference.cpp).
OrtStatus* infer_output_shape(const OrtCustomOp* op, OrtShapeInferContext* context) noexcept;

}  // namespace opbridge::ort
