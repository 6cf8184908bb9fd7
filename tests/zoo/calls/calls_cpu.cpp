// What kernels do wrong around their work. Calls itself is right: it refuses what it cannot do.
#include <fcntl.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "opbridge/op.h"

namespace {

using opbridge::Call;

void copy(const Call& call) {
  const auto x = call.input<float>(0);
  for (int64_t i = 0; i < x.count(); ++i) call.output<float>(0)[i] = x[i];
}

bool has_nan(const Call& call) {
  const auto x = call.input<float>(0);
  for (int64_t i = 0; i < x.count(); ++i) {
    if (std::isnan(x[i])) return true;
  }
  return false;
}

void refuse_nan(const Call& call) {
  if (has_nan(call)) throw opbridge::InvalidArgument("'x' has NaN");
  copy(call);
}

}  // namespace

OPBRIDGE_OPERATORS(calls) {
  using opbridge::Operator;
  return {
      Operator("Calls(x: f32[N]) -> y: f32[N]").cpu(refuse_nan),
      Operator("SwallowsItsError(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        try {
          refuse_nan(call);
        } catch (...) {
        }
      }),
      Operator("ThrowsAnInt(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        if (has_nan(call)) throw 42;
        copy(call);
      }),
      Operator("ThrowsWhatItIs(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        if (has_nan(call)) throw std::out_of_range("vector::at");
        copy(call);
      }),
      Operator("Leaks(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        static char* volatile last;
        last = new char[100];
        copy(call);
      }),
      Operator("LeaksFiles(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        static volatile int last;
        last = open("/dev/null", O_RDONLY);
        copy(call);
      }),
      Operator("LeaksWhenItRefuses(x: f32[N]; k: int in [0, 9] = 0) -> y: f32[N]").cpu([](const Call& call) {
        char* buffer = new char[100];
        std::memset(buffer, 0, 100);
        if (call.input<float>(0).count() % 2 == 1)
          throw opbridge::InvalidArgument("'x' must be of even size");
        copy(call);
        delete[] buffer;
      }),
      Operator("HangsOnNan(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        const auto x = call.input<float>(0);
        for (int64_t i = 0; i < x.count(); ++i) {
          volatile float left = x[i];
          while (!(left < 1)) left = left < 1e9f ? left - 1 : left > 1e9f ? 0 : left;
          call.output<float>(0)[i] = left;
        }
      }),
      Operator("CrashesWhenLarge(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        if (call.input<float>(0).count() > 32) std::abort();
        copy(call);
      }),
      Operator("Prints(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        std::printf("%d elements\n", static_cast<int>(call.input<float>(0).count()));
        copy(call);
      }),
      Operator("RefusesAll(x: f32[N]) -> y: f32[N]").cpu([](const Call&) {
        throw opbridge::InvalidArgument("'x' must have a length that is a multiple of 1000");
      }),
      Operator("GetsTired(x: f32[N]) -> y: f32[N]").cpu([](const Call& call) {
        static std::atomic<int> calls{0};
        if (++calls > 12) throw opbridge::InvalidArgument("'x' comes too often: tired");
        copy(call);
      }),
  };
}
