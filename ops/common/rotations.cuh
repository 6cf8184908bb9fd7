// The rotation operators on CUDA: one thread for each row.
#pragma once

#include "common/rotations.h"
#include "opbridge/cuda.h"

namespace pvn3d {

template <int Width, class Convert, class T>
__global__ void convert_kernel(const T* rows, T* rotation, int64_t n, Convert convert) {
  for (int64_t i = opbridge::thread_index(); i < n; i += opbridge::thread_count()) {
    double row[Width], r[9];
    for (int k = 0; k < Width; ++k) row[k] = static_cast<double>(rows[Width * i + k]);
    convert(row, r);
    for (int k = 0; k < 9; ++k) rotation[9 * i + k] = static_cast<T>(r[k]);
  }
}

template <int Width, class Back, class T>
__global__ void convert_grad_kernel(const T* grad_rotation, const T* rows, T* grad_rows, int64_t n,
                                    Back back) {
  for (int64_t i = opbridge::thread_index(); i < n; i += opbridge::thread_count()) {
    double row[Width], g[9], grad_row[Width];
    for (int k = 0; k < Width; ++k) row[k] = static_cast<double>(rows[Width * i + k]);
    for (int k = 0; k < 9; ++k) g[k] = static_cast<double>(grad_rotation[9 * i + k]);
    back(row, g, grad_row);
    for (int k = 0; k < Width; ++k) grad_rows[Width * i + k] = static_cast<T>(grad_row[k]);
  }
}

/// convert_rotations() on CUDA; `convert` is copied to the device.
template <int Width, class Convert>
void convert_rotations_cuda(const opbridge::Call& call, const Convert& convert) {
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const int64_t n = call.output<T>(0).count() / 9;
    opbridge::launch<convert_kernel<Width, Convert, T>>(call, opbridge::grid_for(n), call.input<T>(0).data(),
                                                        call.output<T>(0).data(), n, convert);
  });
}

/// convert_rotations_grad() on CUDA.
template <int Width, class Back>
void convert_rotations_grad_cuda(const opbridge::Call& call, const Back& back) {
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const int64_t n = call.input<T>(0).count() / 9;
    opbridge::launch<convert_grad_kernel<Width, Back, T>>(call, opbridge::grid_for(n),
                                                          call.input<T>(0).data(), call.input<T>(1).data(),
                                                          call.output<T>(0).data(), n, back);
  });
}

}  // namespace pvn3d
