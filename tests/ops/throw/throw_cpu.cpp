// Kernels that throw.
#include <new>

#include "opbridge/op.h"

OPBRIDGE_OPERATORS(throw) {
  return {
      opbridge::Operator(
          "Throw(x: f32[N]; what: string in {error, std, memory, int, device, nothing} = error) -> y: f32[N]")
          .cpu([](const opbridge::Call& call) {
            const auto x = call.input<float>(0);
            for (int64_t i = 0; i < x.count(); ++i) call.output<float>(0)[i] = x[i];
            switch (call.attr_choice("what")) {
              case 0:
                throw opbridge::InvalidArgument("thrown on purpose");
              case 1:
                throw std::runtime_error("thrown by the standard library");
              case 2:
                throw std::bad_alloc();
              case 3:
                throw 42;
              case 4:
                throw opbridge::Error(opbridge::ErrorKind::kDevice, "the device is gone");
              default:
                break;
            }
          }),
      opbridge::Operator("ThrowInWorkspace(x: f32[N]) -> y: f32[N]")
          .cpu([](const opbridge::Call&) {})
          .workspace([](const opbridge::Call&) -> size_t { throw 42; }),
  };
}
