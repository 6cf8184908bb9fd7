// No input at all.
#include "opbridge/op.h"

namespace {

void ramp(const opbridge::Call& call) {
  const auto y = call.output<float>(0);
  for (int64_t i = 0; i < y.count(); ++i) y[i] = static_cast<float>(i);
}

}  // namespace

OPBRIDGE_OPERATORS(ramp) {
  return {opbridge::Operator(R"(Ramp(; n: int in [0, 1000]) -> y: f32[n])").cpu(ramp)};
}
