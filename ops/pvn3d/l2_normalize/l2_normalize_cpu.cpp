#include <algorithm>
#include <string>

#include "l2_normalize/l2_normalize.h"

namespace {

using opbridge::Call;

// x as (outer, length, inner), normalised over `length`.
struct Shape {
  int64_t outer = 1, length = 1, inner = 1;

  explicit Shape(const Call& call, int input) {
    const opbridge::TensorArg& x = call.input_arg(input);
    const int64_t given = call.attr_int("axis"), axis = given < 0 ? given + x.rank : given;
    if (axis < 0 || axis >= x.rank) {
      throw opbridge::InvalidArgument("attribute 'axis' is " + std::to_string(given) + ", but 'x' has " +
                                      std::to_string(x.rank) + (x.rank == 1 ? " dimension" : " dimensions"));
    }
    for (int i = 0; i < axis; ++i) outer *= x.shape[i];
    length = x.shape[axis];
    for (int i = static_cast<int>(axis) + 1; i < x.rank; ++i) inner *= x.shape[i];
  }
  int64_t grain() const { return std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(1, length)); }
};

// The sum of a[i] * b[i] along the axis, in the order of the contract.
template <class T>
double dot(const T* a, const T* b, int64_t length, int64_t stride) {
  double sums[l2_normalize::kPartialSums] = {};
  for (int64_t i = 0; i < length; ++i) {
    sums[i % l2_normalize::kPartialSums] +=
        static_cast<double>(a[i * stride]) * static_cast<double>(b[i * stride]);
  }
  return l2_normalize::sum_tree(sums);
}

void l2_normalize_cpu(const Call& call) {
  const Shape s(call, 0);
  const double eps = static_cast<double>(call.attr_float("eps"));
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    call.parallel_for(s.outer * s.inner, s.grain(), [&](int64_t begin, int64_t end) {
      for (int64_t v = begin; v < end; ++v) {
        const int64_t at = v / s.inner * s.length * s.inner + v % s.inner;
        const T* x = call.input<T>(0).data() + at;
        T* y = call.output<T>(0).data() + at;
        const double scale = l2_normalize::scale(dot(x, x, s.length, s.inner), eps);
        for (int64_t i = 0; i < s.length; ++i)
          y[i * s.inner] = static_cast<T>(static_cast<double>(x[i * s.inner]) * scale);
      }
    });
  });
}

void l2_normalize_grad_cpu(const Call& call) {
  const Shape s(call, 1);
  const double eps = static_cast<double>(call.attr_float("eps"));
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    call.parallel_for(s.outer * s.inner, s.grain(), [&](int64_t begin, int64_t end) {
      for (int64_t v = begin; v < end; ++v) {
        const int64_t at = v / s.inner * s.length * s.inner + v % s.inner;
        const T *g = call.input<T>(0).data() + at, *x = call.input<T>(1).data() + at;
        T* grad_x = call.output<T>(0).data() + at;
        const double squared_length = dot(x, x, s.length, s.inner),
                     scale = l2_normalize::scale(squared_length, eps);
        // y . g / |x|, or nothing where the length is the constant eps
        const double along = sqrt(squared_length) < eps ? 0 : dot(x, g, s.length, s.inner) * scale * scale;
        for (int64_t i = 0; i < s.length; ++i) {
          grad_x[i * s.inner] = static_cast<T>(
              (static_cast<double>(g[i * s.inner]) - static_cast<double>(x[i * s.inner]) * along) * scale);
        }
      }
    });
  });
}

}  // namespace

OPBRIDGE_OPERATORS(l2_normalize) {
  return {
      opbridge::Operator(R"(
        "Divides the vectors along one axis by their Euclidean length."
        L2Normalize(x: T[*S] "vectors; at least one dimension";
                    axis: int in [-16, 15] = -1 "the axis that the vectors lie along",
                    eps: float in [0, inf) = 1e-12 "a shorter length counts as this")
            -> y: T[*S] "x / max(length, eps); zeros stay zeros"
            where T in {f16, f32, f64}
            grad: L2NormalizeGrad
      )")
          .cpu(l2_normalize_cpu),
      opbridge::Operator(R"(
        "Gradient of L2Normalize."
        L2NormalizeGrad(grad_y: T[*S] "gradient of y",
                        x: T[*S]      "as given to L2Normalize";
                        axis: int in [-16, 15] = -1 "as given to L2Normalize",
                        eps: float in [0, inf) = 1e-12 "as given to L2Normalize")
            -> grad_x: T[*S] "gradient of x"
            where T in {f16, f32, f64}
      )")
          .cpu(l2_normalize_grad_cpu),
  };
}
