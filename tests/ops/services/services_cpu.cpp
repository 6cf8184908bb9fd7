// What a host lends: workspace, threads, host memory; and an operator with a CUDA kernel only.
#include <cstring>
#include <new>

#include "opbridge/op.h"

namespace {

using opbridge::Call;

size_t services_workspace(const Call& call) {
  const int64_t n = call.input_arg(0).count();
  if (call.input_arg(0).data != nullptr || call.output_arg(0).data != nullptr)
    throw opbridge::InvalidArgument("data in a workspace function");
  return static_cast<size_t>(n) * sizeof(float) + static_cast<size_t>(call.attr_int("extra"));
}

// Reverses x by way of the workspace, all of which is written.
void services(const Call& call) {
  const auto x = call.input<float>(0);
  const int64_t n = x.count();
  const size_t need = static_cast<size_t>(n) * sizeof(float) + static_cast<size_t>(call.attr_int("extra"));
  if (call.workspace_bytes() < need) throw opbridge::InvalidArgument("the workspace is too small");
  if (need > 0 && reinterpret_cast<uintptr_t>(call.workspace()) % 256 != 0)
    throw opbridge::InvalidArgument("the workspace is not aligned");
  if (need == 0) return;
  std::memset(call.workspace(), 0x5a, need);
  auto* scratch = static_cast<float*>(call.workspace());
  for (int64_t i = 0; i < n; ++i) scratch[i] = x[n - 1 - i];
  std::memcpy(call.output<float>(0).data(), scratch, static_cast<size_t>(n) * sizeof(float));
}

size_t parallel_workspace(const Call& call) {
  const int64_t n = call.input_arg(0).count(), grain = call.attr_int("grain");
  return static_cast<size_t>((n + grain - 1) / grain) * sizeof(float);
}

// Sums pieces of x in parallel and the pieces in order: in float, where any other order gives other bits.
void parallel_sum(const Call& call) {
  const auto x = call.input<float>(0);
  const int64_t n = x.count(), grain = call.attr_int("grain"), throw_at = call.attr_int("throw_at");
  auto* sums = static_cast<float*>(call.workspace());
  call.parallel_for(n, grain, [&](int64_t begin, int64_t end) {
    if (throw_at >= begin && throw_at < end) {
      switch (call.attr_choice("what")) {
        case 0:
          throw opbridge::InvalidArgument("thrown in the piece from " + std::to_string(begin));
        case 1:
          throw std::runtime_error("thrown by the standard library");
        case 2:
          throw std::bad_alloc();
        default:
          throw 42;
      }
    }
    float sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += x[i];
    sums[begin / grain] = sum;
  });
  float sum = 0;
  for (int64_t i = 0; i < (n + grain - 1) / grain; ++i) sum += sums[i];
  call.output<float>(0)[0] = sum;
}

}  // namespace

OPBRIDGE_OPERATORS(services) {
  using opbridge::Operator;
  return {
      Operator("Services(x: f32[N]; extra: int in [0, 9000000000000000000] = 0) -> y: f32[N]")
          .cpu(services)
          .workspace(services_workspace),
      Operator(R"(ParallelSum(x: f32[N]; grain: int in [1, inf] = 1000, throw_at: int = -1,
                              what: string in {error, std, memory, int} = error) -> y: f32[1])")
          .cpu(parallel_sum)
          .workspace(parallel_workspace),
      Operator("ScaleByHost(x: f32[*S], scale: f32[] @host) -> y: f32[*S]").cpu([](const Call& call) {
        const auto x = call.input<float>(0);
        for (int64_t i = 0; i < x.count(); ++i) call.output<float>(0)[i] = x[i] * call.input<float>(1)[0];
      }),
      // Never runs here: registered for the CUDA provider alone.
      Operator("CudaOnly(x: f32[*S]) -> y: f32[*S]").cuda([](const Call&) {
        throw opbridge::InvalidArgument("no CUDA in this test");
      }),
      // No input at all is a signature too.
      Operator("NoInputs(; n: int in [0, 100] = 4) -> y: f32[n]").cpu([](const Call& call) {
        for (int64_t i = 0; i < call.output<float>(0).count(); ++i)
          call.output<float>(0)[i] = static_cast<float>(i);
      }),
  };
}
