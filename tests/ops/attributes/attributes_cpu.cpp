// Attributes of all six kinds, written out as numbers.
#include <numeric>

#include "opbridge/op.h"

namespace {

void attributes(const opbridge::Call& call) {
  const auto y = call.output<double>(0);
  const auto& ints = call.attr_ints("ints");
  const auto& floats = call.attr_floats("floats");
  y[0] = static_cast<double>(call.attr_int("i"));
  y[1] = static_cast<double>(call.attr_float("f"));
  y[2] = call.attr_bool("b");
  y[3] = call.attr_choice("s");
  y[4] = static_cast<double>(ints.size());
  y[5] = static_cast<double>(std::accumulate(ints.begin(), ints.end(), int64_t{0}));
  y[6] = static_cast<double>(floats.size());
  y[7] = std::accumulate(floats.begin(), floats.end(), 0.0);
  y[8] = static_cast<double>(call.attr_string("s").size());
}

template <class T>
void copy(const opbridge::Call& call) {
  const auto x = call.input<T>(0);
  for (int64_t i = 0; i < x.count(); ++i) call.output<T>(0)[i] = x[i];
}

}  // namespace

OPBRIDGE_OPERATORS(attributes) {
  using opbridge::Call;
  using opbridge::Operator;
  return {
      Operator(R"(
        "All kinds of attributes."
        Attributes(x: f32[*S];
                   i: int in [0, 10] = 3              "an int",
                   f: float in (0, 0.3] = 0.1,
                   b: bool = true,
                   s: string in {low, middle, high} = middle,
                   ints: int[] in [-5, 100] = [1, 2],
                   floats: float[] in [0, inf) = [0.5])
            -> y: f64[9]
      )")
          .cpu(attributes),
      Operator("Required(x: f32[*S]; k: int, r: float in (0, inf)) -> y: f64[2]").cpu([](const Call& call) {
        call.output<double>(0)[0] = static_cast<double>(call.attr_int("k"));
        call.output<double>(0)[1] = static_cast<double>(call.attr_float("r"));
      }),
      // Kernels that do not know their own signature.
      Operator("ReadsWrongKind(x: f32[*S]; k: int = 1) -> y: f32[1]").cpu([](const Call& call) {
        call.output<float>(0)[0] = call.attr_float("k");
      }),
      Operator("ReadsUnknown(x: f32[*S]; k: int = 1) -> y: f32[1]").cpu([](const Call& call) {
        call.output<float>(0)[0] = call.attr_float("kk");
      }),
      Operator(R"(Same(x: T[*S]) -> y: T[*S]
                  where T in {bool, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64})")
          .cpu([](const Call& call) {
            using opbridge::bf16;
            using opbridge::f16;
            opbridge::dispatch<bool, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
                               f16, bf16, float, double>(call.input_dtype(0),
                                                         [&](auto zero) { copy<decltype(zero)>(call); });
          }),
  };
}
