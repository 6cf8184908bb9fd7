// A variadic last input.
#include "opbridge/op.h"

OPBRIDGE_OPERATORS(variadic_sum) {
  return {opbridge::Operator("VariadicSum(scale: T[], xs...: T[*S]) -> y: T[*S] where T in {f32, i64}")
              .cpu([](const opbridge::Call& call) {
                opbridge::dispatch<float, int64_t>(call.input_dtype(0), [&](auto zero) {
                  using T = decltype(zero);
                  const auto y = call.output<T>(0);
                  for (int64_t i = 0; i < y.count(); ++i) {
                    T sum = 0;
                    for (int k = 1; k < call.inputs(); ++k) sum += call.input<T>(k)[i];
                    y[i] = call.input<T>(0)[0] * sum;
                  }
                });
              })};
}
