// Dimensions: names, attributes, arithmetic, prefixes, alternatives, two type variables.
#include "opbridge/op.h"

namespace {

using opbridge::Call;

// Fills every output with 1, so that only the shape matters.
template <class T>
void ones(const Call& call, int output) {
  const auto y = call.output<T>(output);
  for (int64_t i = 0; i < y.count(); ++i) y[i] = T(1);
}

template <class T, class I>
void gather_rows(const Call& call) {
  const auto x = call.input<T>(0);
  const auto idx = call.input<I>(1);
  const int64_t rows = x.size(0), columns = x.size(1);
  for (int64_t m = 0; m < idx.count(); ++m) {
    const bool inside = idx[m] >= 0 && idx[m] < rows;
    for (int64_t c = 0; c < columns; ++c)
      call.output<T>(0)[m * columns + c] = inside ? x[idx[m] * columns + c] : T(0);
  }
}

}  // namespace

OPBRIDGE_OPERATORS(shapes) {
  using opbridge::Operator;
  return {
      Operator(R"(Shapes(x: f32[*B,N]; times: int in [-9, 1000000000000] = 2, cut: int = 0)
                  -> (y: f32[*B,N*times-cut], half: i32[*B,N//2+1]))")
          .cpu([](const Call& call) { ones<float>(call, 0), ones<int32_t>(call, 1); }),
      Operator("Sampled(xyz: f32[B,N,3]; npoint: int in [0, 1048576]) -> idx: i32[B,npoint]")
          .cpu([](const Call& call) { ones<int32_t>(call, 0); }),
      Operator("Prefixes(x: f32[*B,N,3], w?: f32[*B?,N], c?: f32[N]|[1]) -> (y: f32[*B,3], norm: f32[*B])")
          .cpu([](const Call& call) { ones<float>(call, 0), ones<float>(call, 1); }),
      Operator("GatherRows(x: T[N,C], idx: I[M]) -> y: T[M,C] where T in {f32, f64}, I in {i32, i64}")
          .cpu([](const Call& call) {
            opbridge::dispatch<float, double>(call.input_dtype(0), [&](auto t) {
              opbridge::dispatch<int32_t, int64_t>(
                  call.input_dtype(1), [&](auto i) { gather_rows<decltype(t), decltype(i)>(call); });
            });
          }),
      Operator("Divides(x: f32[N]; by: int = 1) -> y: f32[N//by]").cpu([](const Call& call) {
        ones<float>(call, 0);
      }),
  };
}
