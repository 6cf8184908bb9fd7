#pragma once

#include <string>

#include "opbridge/runner.h"

namespace opbridge {

/// What a profile of so many runs, the JSON that ONNX Runtime writes, says of where nodes ran.
Placement read_profile(const std::string& json, int runs = 1);

}  // namespace opbridge
