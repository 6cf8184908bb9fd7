// What a model file says, without a session: inputs, custom operators, and whether given libraries can serve
// them.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "library_file.h"
#include "opbridge/runner.h"

namespace opbridge {

namespace pb {
class ModelProto;  // proto.h
}

/// A model's input or output. `type` is an element type ("f32"), or e.g. "sequence" for what is not a tensor.
struct ValueInfo {
  std::string name;
  std::string type;
  bool has_default = false;  // an initializer that an input may replace
  bool rank_known = false;
  std::vector<Dimension> dims;
};

/// "f32[batch,3,?]", or "f32" when the rank is not known.
std::string type_and_shape(const std::string& type, bool rank_known, const std::vector<Dimension>& dims);

struct NodeAttribute {
  std::string name;
  std::string type;  // "int", "float", "string", "ints", "floats", "strings", "tensor", "graph", ...
  nlohmann::ordered_json value;  // tensors as text
};

/// A node of an operator that neither ONNX nor ONNX Runtime defines, wherever in the model it is.
struct CustomNode {
  std::string name, domain, op;
  std::string where;  // empty in the main graph; else e.g. "then_branch of 'if1'"
  std::vector<NodeAttribute> attributes;
  std::vector<std::string> inputs, outputs;       // "" where absent
  std::map<size_t, std::string> constant_inputs;  // by position: "f32[] 0.5"

  std::string title() const;  // "my_namespace::my_clip (node 'clip')"
};

struct ModelInfo {
  std::string path;
  int64_t ir_version = 0;
  std::string producer;
  std::map<std::string, int64_t> opsets;  // "" is ai.onnx
  std::map<std::string, std::string> metadata;
  std::vector<ValueInfo> inputs, outputs;  // inputs without initializers, but see has_default
  std::vector<CustomNode> custom_nodes;
  std::vector<std::string> functions;         // "domain::name" defined in the model itself
  std::map<std::string, bool> external_data;  // file beside the model -> whether it is there
  size_t node_count = 0;                      // subgraphs and functions included
};

/// Throws Error for a file that is missing, is no ONNX model, or is damaged.
ModelInfo read_model(const std::string& path);
/// The same of a model that has been read already from `path`.
ModelInfo describe_model(const pb::ModelProto& model, const std::string& path);

/// Everything that would keep `model` from running with `libraries`, or would make it run wrongly, each as
/// one message that says what to do. Empty: nothing found.
std::vector<std::string> find_problems(const ModelInfo& model, const std::vector<LibraryFile>& libraries);

/// The library that serves a node, or null.
const LibraryFile* find_library(const CustomNode& node, const std::vector<LibraryFile>& libraries);

/// Attributes of the node that the operator does not have, each with the nearest it has.
std::vector<std::string> unknown_attributes(const CustomNode& node, const LibraryFile& library);

}  // namespace opbridge
