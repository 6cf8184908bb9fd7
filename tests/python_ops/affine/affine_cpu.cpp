// Attributes of every type; no gradient declared.
#include "opbridge/op.h"

namespace {

using opbridge::Call;

void affine(const Call& call) {
  opbridge::dispatch<float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const auto x = call.input<T>(0);
    const auto y = call.output<T>(0);
    T scale = call.attr_float("scale");
    for (const float weight : call.attr_floats("weights")) scale *= static_cast<T>(weight);
    T shift = static_cast<T>(call.attr_int("shift"));
    for (const int64_t pick : call.attr_ints("picks")) shift += static_cast<T>(pick);
    const bool square = call.attr_choice("mode") == 1, negate = call.attr_bool("negate");
    for (int64_t i = 0; i < x.count(); ++i) {
      const T v = (square ? x[i] * x[i] : x[i]) * scale + shift;
      y[i] = negate ? -v : v;
    }
  });
}

}  // namespace

OPBRIDGE_OPERATORS(affine) {
  return {opbridge::Operator(R"("y = x * scale * product(weights) + shift + sum(picks), negated on demand."
      Affine(x: T[*S]; scale: float in (0, inf), shift: int in [-10, 10] = 0, negate: bool = false,
             mode: string in {plain, square} = plain, weights: float[] in (0, inf) = [1],
             picks: int[] in [0, 100] = []) -> y: T[*S]
        where T in {f32, f64})")
              .cpu(affine)};
}
