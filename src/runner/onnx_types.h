// Element types as ONNX and ONNX Runtime number them (both the same).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "opbridge/tensor.h"

namespace opbridge {

int32_t to_onnx_type(DType dtype);
/// Empty for types the runner does not handle: strings, complex numbers, floats of 8 bits and less.
std::optional<DType> from_onnx_type(int32_t type);
/// As from_onnx_type() for what `dtype_name` would print, also for the types the runner does not handle.
std::string onnx_type_name(int32_t type);

}  // namespace opbridge
