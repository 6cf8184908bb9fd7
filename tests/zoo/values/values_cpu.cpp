// What kernels do wrong with values. Values itself is right.
#include <atomic>
#include <cfenv>
#include <chrono>
#include <vector>

#include "opbridge/op.h"

namespace {

using opbridge::Call;

// y = f(x) in the type of x.
template <class F>
void map(const Call& call, F f) {
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const auto x = call.input<T>(0);
    for (int64_t i = 0; i < x.count(); ++i) call.output<T>(0)[i] = f(x[i]);
  });
}

}  // namespace

OPBRIDGE_OPERATORS(values) {
  using opbridge::Operator;
  return {
      Operator("Values(x: T[N]) -> y: T[N] where T in {f16, f32, f64}").cpu([](const Call& call) {
        map(call, [](auto x) { return decltype(x)(x * x); });
      }),
      Operator("OneTypeWrong(x: T[N]) -> y: T[N] where T in {f16, f32, f64}").cpu([](const Call& call) {
        const float factor = call.input_dtype(0) == opbridge::DType::f16 ? 3.0f : 2.0f;
        map(call, [&](auto x) { return decltype(x)(factor * x); });
      }),
      Operator("DependsOnTheTime(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
        map(call, [&](auto x) { return decltype(x)(x + static_cast<float>(now % 1009)); });
      }),
      Operator("CountsCalls(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        static std::atomic<int> calls{0};
        const auto n = static_cast<float>(++calls);
        map(call, [&](auto x) { return decltype(x)(x + n); });
      }),
      Operator("RemembersTheLastSize(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        static std::atomic<int64_t> last{0};
        const int64_t before = last.exchange(call.input<float>(0).count());
        map(call, [&](auto x) { return decltype(x)(before == 0 ? 0 : x); });
      }),
      Operator("DependsOnOrder(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        const auto x = call.input<float>(0);
        std::atomic<int> pieces{0};
        call.parallel_for(x.count(), 64, [&](int64_t begin, int64_t end) {
          const auto piece = static_cast<float>(pieces++);
          for (int64_t i = begin; i < end; ++i) call.output<float>(0)[i] = x[i] + piece;
        });
      }),
      Operator("SharesScratch(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        static std::vector<float> scratch(1 << 24);
        const auto x = call.input<float>(0);
        for (int64_t i = 0; i < x.count(); ++i) scratch[static_cast<size_t>(i)] = x[i];
        for (int64_t i = 0; i < x.count(); ++i) call.output<float>(0)[i] = scratch[static_cast<size_t>(i)];
      }),
      Operator("MixesTheBatch(x: f32[B,N]) -> y: f32[B,N]").cpu([](const Call& call) {
        const auto x = call.input<float>(0);
        for (int64_t i = 0; i < x.count(); ++i) call.output<float>(0)[i] = x[i] - x[i % x.size(1)];
      }),
      Operator("ComparesPointers(a: f32[N], b: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        const auto a = call.input<float>(0), b = call.input<float>(1);
        const bool same = a.data() == b.data();
        for (int64_t i = 0; i < a.count(); ++i) call.output<float>(0)[i] = same ? a[i] : a[i] + b[i];
      }),
      Operator("RoundsUp(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        std::fesetround(FE_UPWARD);
        map(call, [](auto x) { return x; });
      }),
  };
}
