// Optional leading dimensions, an attribute and arithmetic as dimensions, workspace, an optional output, an
// input on the host.
#include <algorithm>

#include "opbridge/op.h"

namespace {

using opbridge::Call;

size_t workspace(const Call& call) { return static_cast<size_t>(call.input_arg(1).count()) * sizeof(float); }

void pairs(const Call& call) {
  const auto a = call.input<float>(0), b = call.input<float>(1);
  const auto start = call.input<int64_t>(2);
  const auto sum = call.output<float>(0);
  const auto idx = call.output<int32_t>(1);
  auto* scratch = static_cast<float*>(call.workspace());
  for (int64_t i = 0; i < b.count(); ++i) scratch[i] = a[i % a.count()] + b[i];
  std::copy(scratch, scratch + b.count(), sum.data());
  const int64_t k = call.attr_int("k");
  for (int64_t i = 0; i < idx.count(); ++i) idx[i] = static_cast<int32_t>((start ? start[0] : 0) + i % k);
  if (call.has_output(2)) {
    const auto twice = call.output<float>(2);
    std::fill(twice.data(), twice.data() + twice.count(), 2.0F);
  }
}

}  // namespace

OPBRIDGE_OPERATORS(pairs) {
  return {opbridge::Operator(R"(
      Pairs(a: f32[*B?,N,3], b: f32[*B,N,3], start?: i64[]|[1] @host; k: int in [0, 64])
        -> (sum: f32[*B,N,3], idx: i32[*B,k], twice?: f32[*B,2*N+k-1]))")
              .cpu(pairs)
              .workspace(workspace)};
}
