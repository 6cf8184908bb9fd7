// What a .cu file needs: checked launches, grids of any size, vectors of elements.
//
//   template <class T>
//   __global__ void scale_kernel(const T* x, T* y, int64_t n) {
//     for (int64_t i = opbridge::thread_index(); i < n; i += opbridge::thread_count()) y[i] = x[i] * T(2);
//   }
//   void scale_cuda(const opbridge::Call& call) {
//     const int64_t n = call.input<float>(0).count();
//     opbridge::launch<scale_kernel<float>>(call, opbridge::grid_for(n), call.input<float>(0).data(),
//                                           call.output<float>(0).data(), n);
//   }
//
// With OPBRIDGE_CUDA_EMULATION the same source is plain C++ and runs on the CPU (tests/cuda/emulation).
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>

#if defined(OPBRIDGE_CUDA_EMULATION)
#include "cuda_emulation.h"
#else
#include <cuda_runtime.h>
#endif

#include "opbridge/op.h"

namespace opbridge {

/// How a kernel is launched. A grid with a zero in it is not launched at all.
struct Grid {
  dim3 blocks;
  dim3 threads;             // of a block: at most 1024
  size_t shared_bytes = 0;  // dynamic shared memory of a block
};

/// One thread for each of n items, as far as a grid reaches: kernels go on in steps of thread_count().
inline Grid grid_for(int64_t n, unsigned threads = 256) {
  constexpr int64_t kMaxBlocks = 1 << 16;  // enough to fill any GPU many times over
  const int64_t blocks = n <= 0 ? 0 : (n - 1) / threads + 1;
  return {dim3(static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks)), dim3(threads), 0};
}

/// N elements that are loaded and stored at once.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T values[N];
};

/// How many elements of T make the widest load.
template <class T>
constexpr int kPackSize = static_cast<int>(16 / sizeof(T));

/// Whether all pointers may be read and written as Pack<T, kPackSize<T>>.
template <class... P>
bool aligned_for_packs(const P*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) | ...) & 15) == 0;
}

namespace detail {

/// Throws what a failed CUDA call means: driver, device and architectures are named (cmake/cuda_support.cpp).
[[noreturn]] void fail_cuda(cudaError_t error);
[[noreturn]] void fail_launch(cudaError_t error, const char* kernel, const Grid& grid);

template <class... P>
std::tuple<P...> parameters_of(void (*)(P...));

template <class... P, size_t... I>
cudaError_t enqueue(void (*kernel)(P...), const char* name, const Grid& grid, void* stream,
                    std::tuple<P...>& parameters, std::index_sequence<I...>) {
#if defined(OPBRIDGE_CUDA_EMULATION)
  return emulation::launch(name, grid.blocks, grid.threads, grid.shared_bytes,
                           static_cast<cudaStream_t>(stream), [=] { kernel(std::get<I>(parameters)...); });
#else
  (void)name;
  const void* function = reinterpret_cast<const void*>(kernel);
  if (grid.shared_bytes > 48 * 1024) {  // more than every GPU has must be asked for
    const cudaError_t error = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(grid.shared_bytes));
    if (error != cudaSuccess) return error;
  }
  void* pointers[] = {static_cast<void*>(&std::get<I>(parameters))..., nullptr};
  return cudaLaunchKernel(function, grid.blocks, grid.threads, pointers, grid.shared_bytes,
                          static_cast<cudaStream_t>(stream));
#endif
}

}  // namespace detail

/// Launches `kernel` on the call's stream. Throws when that fails; faults while the kernel runs are the
/// host's to see.
template <auto kernel, class... Arguments>
void launch(const Call& call, const Grid& grid, Arguments... arguments) {
  const auto empty = [](const dim3& d) { return d.x == 0 || d.y == 0 || d.z == 0; };
  if (empty(grid.blocks) || empty(grid.threads)) return;
  using Parameters = decltype(detail::parameters_of(kernel));
  static_assert(std::tuple_size_v<Parameters> == sizeof...(Arguments),
                "the kernel takes another number of arguments");
  Parameters parameters(arguments...);
  cudaError_t error = detail::enqueue(kernel, __PRETTY_FUNCTION__, grid, call.stream(), parameters,
                                      std::make_index_sequence<sizeof...(Arguments)>());
  const cudaError_t last =
      cudaGetLastError();  // takes the error away; one left standing would fail every later call
  if (error == cudaSuccess) error = last;
  if (error != cudaSuccess) detail::fail_launch(error, __PRETTY_FUNCTION__, grid);
}

#if defined(__CUDACC__) || defined(OPBRIDGE_CUDA_EMULATION)

/// This thread's number in a one-dimensional grid, and how many there are.
__device__ __forceinline__ int64_t thread_index() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ int64_t thread_count() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

/// Declares `T* name`, the block's dynamic shared memory (Grid::shared_bytes), aligned to 16.
#if defined(OPBRIDGE_CUDA_EMULATION)
#define OPBRIDGE_DYNAMIC_SHARED(T, name) \
  T* const name = static_cast<T*>(opbridge::emulation::dynamic_shared())
#else
#define OPBRIDGE_DYNAMIC_SHARED(T, name)                            \
  extern __shared__ __align__(16) unsigned char opbridge_shared_[]; \
  T* const name = reinterpret_cast<T*>(opbridge_shared_)
#endif

#endif

}  // namespace opbridge
