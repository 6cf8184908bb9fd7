// The one error type of opbridge. Kernels and checks throw it; each host turns it into its own error.
#pragma once

#include <stdexcept>
#include <string>

namespace opbridge {

enum class ErrorKind : int {
  kInvalidArgument = 1,  // the caller passed something the operator's signature does not allow
  kNotSupported = 2,     // right in itself, but not on this device, runtime or version
  kOutOfMemory = 3,
  kDevice = 4,    // a CUDA launch or the device itself failed
  kInternal = 5,  // a fault of the library
};

/// What went wrong, in the words of the operator's signature. Operator and node are added by the host.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

/// The usual case in a kernel: `throw InvalidArgument("'npoint' needs at least one point")`.
inline Error InvalidArgument(const std::string& message) { return {ErrorKind::kInvalidArgument, message}; }

}  // namespace opbridge
