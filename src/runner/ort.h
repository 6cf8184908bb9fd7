// A loaded ONNX Runtime, seen from the inside.
#pragma once

#include <onnxruntime_c_api.h>

#include <string>

#include "opbridge/runner.h"

namespace opbridge {

constexpr int kOldestRuntime = 16;  // 1.16: the first with CreateKernelV2 and disable_cpu_ep_fallback

struct Runtime::Impl {
  std::string path, version, source;
  int api_version = 0;  // what the runtime offers: the N of 1.N.x
  const OrtApi* api = nullptr;
  OrtEnv* env = nullptr;

  /// Loads `candidate`; throws Error when it is not an ONNX Runtime that opbridge can use.
  Impl(const std::string& candidate, const std::string& found_as);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();
};

/// Turns a failed status into an Error whose text starts with `what`.
void check(const OrtApi* api, OrtStatus* status, const std::string& what = {});

/// Releases what the C API hands out.
template <class T>
class OrtPtr {
 public:
  explicit OrtPtr(void(ORT_API_CALL* release)(T*)) : release_(release) {}
  OrtPtr(const OrtPtr&) = delete;
  OrtPtr& operator=(const OrtPtr&) = delete;
  ~OrtPtr() {
    if (p_ != nullptr) release_(p_);
  }
  T* get() const { return p_; }
  T** out() { return &p_; }
  T* take() {
    T* p = p_;
    p_ = nullptr;
    return p;
  }

 private:
  void(ORT_API_CALL* release_)(T*);
  T* p_ = nullptr;
};

}  // namespace opbridge
