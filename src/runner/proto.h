// What the runner's files share about protobuf messages. `pb` is ONNX's onnx-ml.proto in a namespace of our
// own, so that a program that also links onnx has no name twice.
#pragma once

#include <string>

#include "onnx.pb.h"
#include "opbridge/runner.h"

namespace opbridge {

/// The whole file.
std::string read_file(const std::string& path);

/// Throws Error for a file that is missing, is no ONNX model, or is damaged.
pb::ModelProto parse_model(const std::string& path);

/// `what` names the tensor in errors.
Array to_array(const pb::TensorProto& tensor, const std::string& what);

}  // namespace opbridge
