// An operator with every kind of attribute, that fails or crashes when it is told to.
#include <csignal>
#include <stdexcept>

#include "opbridge/op.h"

namespace {

void scale(const opbridge::Call& call) {
  const auto x = call.input<float>(0);
  const auto y = call.output<float>(0);
  if (call.attr_choice("then") == 1) throw std::runtime_error("it was told to fail");
  if (call.attr_choice("then") == 2) std::raise(SIGSEGV);
  const float offset = call.attr_bool("offset") ? static_cast<float>(call.attr_ints("offsets")[0]) : 0;
  for (int64_t i = 0; i < x.count(); ++i) y[i] = x[i] * call.attr_float("factor") + offset;
#if defined(CHANGED)
  if (y.count() > 2) y[2] += 0.5F;
#endif
}

}  // namespace

OPBRIDGE_OPERATORS(scale) {
  return {opbridge::Operator(
              "Scale(x: f32[N]; factor: float = 0.1, offset: bool = false, offsets: int[] = [1, 2],"
              " unused: float[] = [0.5, -inf], limit: float in (0, inf] = inf, repeat: int = 1, then: string "
              "in {work, fail, crash} = work) -> y: "
              "f32[N]")
              .cpu(scale)};
}
