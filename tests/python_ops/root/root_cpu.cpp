// A gradient that needs an output and an attribute of the forward operator; an integer output beside the real
// one.
#include <cmath>

#include "opbridge/op.h"

namespace {

using opbridge::Call;

void root(const Call& call) {
  const auto x = call.input<double>(0);
  const auto y = call.output<double>(0);
  const auto positive = call.output<int32_t>(1);
  for (int64_t i = 0; i < x.count(); ++i) {
    y[i] = std::sqrt(x[i]) * static_cast<double>(call.attr_float("scale"));
    positive[i] = x[i] > 0;
  }
}

void root_grad(const Call& call) {
  const auto grad_y = call.input<double>(0), y = call.input<double>(1);
  const auto grad_x = call.output<double>(0);
  const double scale = static_cast<double>(call.attr_float("scale"));
  for (int64_t i = 0; i < y.count(); ++i) grad_x[i] = grad_y[i] * scale * scale / (2 * y[i]);
}

}  // namespace

OPBRIDGE_OPERATORS(root) {
  return {opbridge::Operator(
              R"(Root(x: f64[*S]; scale: float = 1) -> (y: f64[*S], positive: i32[*S]) grad: RootGrad)")
              .cpu(root),
          opbridge::Operator(R"(RootGrad(grad_y: f64[*S], y: f64[*S]; scale: float = 1) -> grad_x: f64[*S])")
              .cpu(root_grad)};
}
