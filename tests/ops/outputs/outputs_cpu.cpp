// Optional outputs, and two required ones.
#include "opbridge/op.h"

OPBRIDGE_OPERATORS(outputs) {
  using opbridge::Call;
  return {
      // Each output tells whether the others are there.
      opbridge::Operator("Outputs(x: f32[N]) -> (y: f32[N], twice?: f32[N], count?: i32[1])")
          .cpu([](const Call& call) {
            const auto x = call.input<float>(0);
            const auto y = call.output<float>(0), twice = call.output<float>(1);
            const auto count = call.output<int32_t>(2);
            for (int64_t i = 0; i < x.count(); ++i) {
              y[i] = x[i] + (twice ? 10.f : 0.f) + (count ? 100.f : 0.f);
              if (twice) twice[i] = 2 * x[i];
            }
            if (count) count[0] = static_cast<int32_t>(x.count());
          }),
      opbridge::Operator(
          "TwoOutputs(x: T[B,N], k?: I[]) -> (low: T[B], high: T[B]) where T in {f32, f64}, I in {i32, i64}")
          .cpu([](const Call& call) {
            opbridge::dispatch<float, double>(call.input_dtype(0), [&](auto zero) {
              using T = decltype(zero);
              const auto x = call.input<T>(0);
              for (int64_t b = 0; b < x.size(0); ++b) {
                T low = 0, high = 0;
                for (int64_t n = 0; n < x.size(1); ++n) {
                  const T v = x[b * x.size(1) + n];
                  if (n == 0 || v < low) low = v;
                  if (n == 0 || v > high) high = v;
                }
                call.output<T>(0)[b] = low;
                call.output<T>(1)[b] = high;
              }
            });
          }),
  };
}
