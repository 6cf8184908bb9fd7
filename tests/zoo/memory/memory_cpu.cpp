// What kernels do wrong with memory. Memory itself is right.
#include "opbridge/op.h"

namespace {

using opbridge::Call;

void twice(const Call& call, int64_t begin, int64_t end) {
  const auto x = call.input<float>(0);
  const auto y = call.output<float>(0);
  for (int64_t i = begin; i < end; ++i) y[i] = 2 * x[i];
}

}  // namespace

OPBRIDGE_OPERATORS(memory) {
  using opbridge::Operator;
  return {
      Operator("Memory(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        twice(call, 0, call.input<float>(0).count());
      }),
      Operator("WritesNothing(x: f32[N]) -> y: f32[N]").cpu([](const Call&) {}),
      Operator("ForgetsTheLast(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        twice(call, 0, call.input<float>(0).count() - 1);
      }),
      Operator("ReadsPastTheEnd(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        const auto x = call.input<float>(0);
        for (int64_t i = 0; i < x.count(); ++i) call.output<float>(0)[i] = x[i] + x[i + 1];
      }),
      Operator("ReadsBeforeTheStart(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        const auto x = call.input<float>(0);
        for (int64_t i = 0; i < x.count(); ++i) call.output<float>(0)[i] = x[i] - x[i - 1];
      }),
      Operator("TrustsIndices(x: f32[N], idx: i64[M]) -> y: f32[M]").cpu([](const Call& call) {
        const auto x = call.input<float>(0);
        const auto idx = call.input<int64_t>(1);
        for (int64_t i = 0; i < idx.count(); ++i) call.output<float>(0)[i] = x[idx[i]];
      }),
      Operator("WritesPastTheEnd(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        const auto x = call.input<float>(0);
        twice(call, 0, x.count());
        call.output<float>(0)[x.count()] = 0;
      }),
      // Its rule says two numbers for each element, its kernel makes three.
      Operator("ShapeOfItsOwn(x: f32[N]) -> y: f32[N,2]").cpu([](const Call& call) {
        const auto x = call.input<float>(0);
        for (int64_t i = 0; i < x.count(); ++i) {
          for (int64_t k = 0; k < 3; ++k) call.output<float>(0)[3 * i + k] = x[i];
        }
      }),
      Operator("WritesToItsInput(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        const auto x = call.input<float>(0);
        twice(call, 0, x.count());
        if (x.count() > 0) const_cast<float&>(x[0]) = 0;
      }),
      Operator("WorkspaceTooSmall(x: f32[N]) -> y: f32[N]")
          .cpu([](const Call& call) {
            const auto x = call.input<float>(0);
            auto* copy = static_cast<volatile float*>(call.workspace());
            for (int64_t i = 0; i < x.count(); ++i) copy[i] = x[i];
            for (int64_t i = 0; i < x.count(); ++i) call.output<float>(0)[i] = copy[i];
          })
          .workspace([](const Call& call) { return static_cast<size_t>(call.input_arg(0).count()) * 2; }),
      Operator("AddsToWhatWasThere(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        const auto x = call.input<float>(0);
        for (int64_t i = 0; i < x.count(); ++i) call.output<float>(0)[i] += x[i];
      }),
      Operator("CrashesOnEmpty(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        const volatile int64_t n = call.input<float>(0).count();
        const auto step = static_cast<float>(1000 / n);
        for (int64_t i = 0; i < n; ++i) call.output<float>(0)[i] = step;
      }),
  };
}
