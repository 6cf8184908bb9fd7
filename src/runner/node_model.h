// One call of an operator as a model of one node.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "opbridge/runner.h"

namespace opbridge {

struct NodeCall {
  std::string domain, op, node;
  /// int: i64[], float: f32[], string: u8[N], ints: i64[N], floats: f32[N]
  std::map<std::string, Array> attributes;
  std::vector<const Array*> inputs;  // null where absent; called i0, i1, ... in the model
  std::vector<DType> output_types;   // called o0, o1, ...
  std::vector<bool> wanted;          // of the outputs; the others' names are blank
};

/// Writes the model. Inputs and outputs have a type but no shape, so that only the operator's own checks see it.
void write_node_model(const std::string& path, const NodeCall& call);

}  // namespace opbridge
