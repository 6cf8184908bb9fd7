// Declares operators. An operator's folder <op>/ holds <op>_cpu.cpp with
//
//   OPBRIDGE_OPERATORS(my_clip) {
//     return {opbridge::Operator(R"(my_clip(x: T[*S], ...) -> y: T[*S] where T in {f32, f64} grad:
//     my_clip_grad)")
//                 .cpu(clip_cpu)
//                 .cuda(OPBRIDGE_CUDA_KERNEL(clip_cuda)),
//             opbridge::Operator(R"(my_clip_grad(...) -> ...)").cpu(clip_grad_cpu)};
//   }
//
// and CMake's opbridge_add_library(my_custom_ops DOMAIN my_namespace VERSION 1 OPS my_clip) makes the library
// of it.
#pragma once

#include <string>
#include <vector>

#include "opbridge/context.h"
#include "opbridge/error.h"
#include "opbridge/signature.h"
#include "opbridge/tensor.h"

namespace opbridge {

/// Computes the outputs of one call. Allocates nothing, never synchronises, reports by throwing Error. On
/// CUDA it only launches: whether the device can do the work is decided by shapes and attributes, never by
/// data.
using Kernel = void (*)(const Call& call);

/// Bytes of workspace a call needs. Sees shapes, dtypes, attributes and device; every data pointer is null.
using WorkspaceBytes = size_t (*)(const Call& call);

/// One operator: its signature and its kernels.
class Operator {
 public:
  explicit Operator(const char* signature) : signature_(signature) {}
  Operator& cpu(Kernel kernel) { return cpu_ = kernel, *this; }
  /// Null (a build without CUDA) leaves the operator on the CPU only.
  Operator& cuda(Kernel kernel) { return cuda_ = kernel, *this; }
  Operator& workspace(WorkspaceBytes bytes) { return workspace_ = bytes, *this; }

  const char* signature_text() const { return signature_; }
  Kernel kernel(Device device) const { return device == Device::kCpu ? cpu_ : cuda_; }
  WorkspaceBytes workspace_function() const { return workspace_; }

 private:
  const char* signature_;
  Kernel cpu_ = nullptr;
  Kernel cuda_ = nullptr;
  WorkspaceBytes workspace_ = nullptr;
};

}  // namespace opbridge

/// The operators of a folder: the one it is named after and, where it has one, the operator of its gradient.
#define OPBRIDGE_OPERATORS(folder) std::vector<opbridge::Operator> opbridge_operators_##folder()

namespace opbridge::detail {

/// Makes a CUDA device (-1: whichever it is) current, and the one before it again at the end
/// (cmake/cuda_support.cpp).
class CudaDeviceGuard {
 public:
  explicit CudaDeviceGuard(int device);
  ~CudaDeviceGuard();
  CudaDeviceGuard(const CudaDeviceGuard&) = delete;
  CudaDeviceGuard& operator=(const CudaDeviceGuard&) = delete;

 private:
  int previous_ = -1;
};

template <Kernel kernel>
void on_cuda_device(const Call& call) {
  const CudaDeviceGuard guard(call.device_id());
  kernel(call);
}

}  // namespace opbridge::detail

/// The kernel that a .cu file defines as `function`, or null when the library is built without CUDA.
#if defined(OPBRIDGE_WITH_CUDA)
#define OPBRIDGE_CUDA_KERNEL(function) (&opbridge::detail::on_cuda_device<&function>)
#else
#define OPBRIDGE_CUDA_KERNEL(function) (static_cast<opbridge::Kernel>(nullptr))
#endif
