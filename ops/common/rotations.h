// The frame of the rotation operators: rows of numbers in, 3x3 matrices out, and the gradient back.
#pragma once

#include "opbridge/op.h"

namespace pvn3d {

constexpr int64_t kRotationGrain = 1024;

/// rotation[i] = convert(row i of input 0); convert(const double* row, double* r) fills 9 numbers, row-major.
template <int Width, class Convert>
void convert_rotations(const opbridge::Call& call, const Convert& convert) {
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const auto in = call.input<T>(0);
    const auto out = call.output<T>(0);
    call.parallel_for(out.count() / 9, kRotationGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double row[Width], r[9];
        for (int k = 0; k < Width; ++k) row[k] = static_cast<double>(in[Width * i + k]);
        convert(row, r);
        for (int k = 0; k < 9; ++k) out[9 * i + k] = static_cast<T>(r[k]);
      }
    });
  });
}

/// The same for the gradient: input 0 is the gradient of the matrices, input 1 the rows, output 0 the
/// gradient of the rows. back(const double* row, const double* grad_r, double* grad_row).
template <int Width, class Back>
void convert_rotations_grad(const opbridge::Call& call, const Back& back) {
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const auto grad_r = call.input<T>(0), in = call.input<T>(1);
    const auto out = call.output<T>(0);
    call.parallel_for(grad_r.count() / 9, kRotationGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double row[Width], g[9], grad_row[Width];
        for (int k = 0; k < Width; ++k) row[k] = static_cast<double>(in[Width * i + k]);
        for (int k = 0; k < 9; ++k) g[k] = static_cast<double>(grad_r[9 * i + k]);
        back(row, g, grad_row);
        for (int k = 0; k < Width; ++k) out[Width * i + k] = static_cast<T>(grad_row[k]);
      }
    });
  });
}

/// c = a b, row-major; c is another array.
OPBRIDGE_HD void multiply(const double* a, const double* b, double* c) {
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j)
      c[3 * i + j] = a[3 * i] * b[j] + a[3 * i + 1] * b[3 + j] + a[3 * i + 2] * b[6 + j];
  }
}

/// The sum of products of all elements.
OPBRIDGE_HD double dot9(const double* a, const double* b) {
  double sum = 0;
  for (int i = 0; i < 9; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace pvn3d
