// What CMake's opbridge_add_library() writes down about a library; only its generated source includes this.
#pragma once

#include <vector>

#include "opbridge/abi.h"
#include "opbridge/op.h"

namespace opbridge {

struct LibraryDefinition {
  struct Folder {
    const char* name;
    std::vector<Operator> operators;
  };
  const char* name;
  const char* domain;
  int version;
  const char* opbridge_version;
  const char* cuda_toolkit;        // "" without CUDA
  const char* cuda_architectures;  // as CMake's list: "75-real;80-real;90"
  std::vector<Folder> folders;
};

/// Generated for each library.
LibraryDefinition library_definition();

/// What the library's two exported functions forward to.
const OpbridgeLibrary* get_library(uint32_t abi_version, OpbridgeError* error) noexcept;
void* register_custom_ops(void* session_options, const void* api_base) noexcept;

}  // namespace opbridge
