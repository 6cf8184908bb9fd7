// All operators of one shared library, parsed and checked once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "node.h"
#include "opbridge/library.h"

namespace opbridge {

struct LibraryOperator {
  Operator op;
  Signature signature;
  std::string folder;
  std::string full_name;  // domain::Name
};

struct Library {
  LibraryDefinition definition;
  std::vector<LibraryOperator> operators;
  std::string manifest;

  const LibraryOperator* find(const std::string& name) const;
  std::unique_ptr<Node> create_node(
      const LibraryOperator& op, const std::string& node_name,
      const std::vector<std::pair<std::string, AttributeValue>>& attributes) const;
};

/// "my_namespace::my_clip (node 'clip1')", which messages start with.
std::string node_title(const LibraryOperator& op, const std::string& node_name);

/// Parses and checks a definition: throws when a signature is wrong, a name is taken twice, or a gradient
/// does not fit its operator.
Library make_library(LibraryDefinition definition);

/// This shared library's own. Built at the first call, freed when the library is unloaded; throws the same
/// error every time when the definition is wrong.
const Library& this_library();

/// The lowest ONNX Runtime that libraries run in, 1.kMinOrtApi.
constexpr int kMinOrtApi = 16;
/// The API version of the header the adapter was compiled with (adapters/onnxruntime).
extern const int kBuiltOrtApi;

}  // namespace opbridge
