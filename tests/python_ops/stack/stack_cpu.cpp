// A variadic input.
#include "opbridge/op.h"

namespace {

using opbridge::Call;

void stack(const Call& call) {
  const auto y = call.output<float>(0);
  for (int64_t i = 0; i < y.count(); ++i) {
    y[i] = 0;
    for (int n = 0; n < call.inputs(); ++n) y[i] += call.input<float>(n)[i];
  }
}

}  // namespace

OPBRIDGE_OPERATORS(stack) {
  return {opbridge::Operator(R"("Sum of all inputs." Stack(xs...: f32[N]) -> y: f32[N])").cpu(stack)};
}
