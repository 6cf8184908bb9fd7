// Linked in place of src/runner/provider_cuda.cpp where there is no GPU: what asks for CUDA gets ONNX Runtime's Azure
// provider, under which the emulated libraries register their CUDA kernels (opbridge_emulated_adapter), and whose memory is
// the CPU's.
#include "runner/provider_cuda.h"

// What ONNX Runtime keeps to the end of the process is no leak of ours.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libonnxruntime.so\n"; }

namespace opbridge {

void append_cuda(const Runtime&, const OrtApi* api, OrtSessionOptions* options, int) {
  check(api, api->SessionOptionsAppendExecutionProvider(options, "AZURE", nullptr, nullptr, 0));
}

OrtMemoryInfo* cuda_memory(const OrtApi* api, int) {
  OrtMemoryInfo* info = nullptr;
  check(api, api->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &info));
  return info;
}

}  // namespace opbridge
