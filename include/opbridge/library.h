// What CMake's opbridge_add_library() writes down about a library; only its generated source includes this.
#pragma once

#include <vector>

#include "opbridge/abi.h"
#include "opbridge/op.h"

namespace opbridge {

/// What tracing needs of CUDA (cmake/cuda_support.cpp). `device` as in Call::device_id().
struct CudaServices {
  /// Waits until the stream's work is done and throws Error for what it met. Returns false, without waiting,
  /// while the stream is captured into a graph.
  bool (*synchronize)(int device, void* stream);
  /// Throws Error.
  void (*copy_to_host)(int device, void* to, const void* from, size_t bytes);
  /// NVTX ranges of the calling thread.
  void (*push_range)(const char* text);
  void (*pop_range)();
};

namespace detail {
#if defined(OPBRIDGE_WITH_CUDA)
const CudaServices* cuda_services();
#else
inline const CudaServices* cuda_services() { return nullptr; }
#endif
}  // namespace detail

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
  const CudaServices* cuda = nullptr;  // null without CUDA
};

/// Generated for each library.
LibraryDefinition library_definition();

/// What the library's two exported functions forward to.
const OpbridgeLibrary* get_library(uint32_t abi_version, OpbridgeError* error) noexcept;
void* register_custom_ops(void* session_options, const void* api_base) noexcept;

}  // namespace opbridge
