#include "common/gather.cuh"
#include "group_points/group_points.h"

void group_points_cuda(const opbridge::Call& call) {
  const int64_t *features = call.input_arg(0).shape, *idx = call.input_arg(1).shape;
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto t) {
    opbridge::dispatch<int32_t, int64_t>(call.input_dtype(1), [&](auto i) {
      using T = decltype(t);
      using I = decltype(i);
      pvn3d::gather_columns<T, I>(call, call.input<T>(0).data(), call.input<I>(1).data(),
                                  call.output<T>(0).data(), features[0], features[1], features[2],
                                  idx[1] * idx[2]);
    });
  });
}

void group_points_grad_cuda(const opbridge::Call& call) {
  const int64_t *features = call.input_arg(1).shape, *idx = call.input_arg(2).shape;
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto t) {
    opbridge::dispatch<int32_t, int64_t>(call.input_dtype(2), [&](auto i) {
      using T = decltype(t);
      using I = decltype(i);
      pvn3d::gather_columns_grad<false, T, I>(call, call.input<T>(0).data(), nullptr, call.input<I>(2).data(),
                                              call.output<T>(0).data(), features[0], features[1], features[2],
                                              idx[1] * idx[2]);
    });
  });
}
