// CUDA's part of a session. A file of its own, so that a test without a GPU can put another provider there.
#pragma once

#include "ort.h"

namespace opbridge {

/// Adds the CUDA provider on GPU `device_id`. Throws Error where `runtime` has none or it does not work.
void append_cuda(const Runtime& runtime, const OrtApi* api, OrtSessionOptions* options, int device_id);

/// Memory of that GPU. The caller releases it.
OrtMemoryInfo* cuda_memory(const OrtApi* api, int device_id);

}  // namespace opbridge
