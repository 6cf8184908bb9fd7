// CUDA C++ and CUDA's runtime on the CPU, for tests on machines without a GPU: included by opbridge/cuda.h
// instead of CUDA's own header when OPBRIDGE_CUDA_EMULATION is defined. One fibre for each CUDA thread,
// blocks spread over the CPU's threads.
//
// Found and reported as a failed launch, with file and line: barriers that not all threads of a block reach,
// deadlocks between barriers, warp functions called by or reading from lanes outside the mask, configurations
// that no GPU takes. A missing barrier shows as results that depend on Settings::order. Not covered: warps
// without divergence-aware __activemask, textures, tensor cores, cooperative groups, async copies, inline
// PTX, __constant__ memory written by the host, timing, the memory model, threads that spin on a variable.
// Static
// __shared__ memory keeps the values of the block before, and does not count against the limit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

// ----------------------------------------------------------------------------------------------------------
// language

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ \
  thread_local  // in a function: static, one for each CPU thread, which runs one block at a time
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

constexpr int warpSize = 32;

// --------------------------------------------------------------------------------------------------- the
// runtime's API

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorUnsupportedPtxVersion = 222,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorLaunchFailure = 719,
  cudaErrorSystemDriverMismatch = 803,
};
enum cudaDeviceAttr { cudaDevAttrComputeCapabilityMajor = 75, cudaDevAttrComputeCapabilityMinor = 76 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal = 0 };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0, cudaStreamCaptureStatusActive = 1 };
constexpr unsigned cudaStreamNonBlocking = 1;
using cudaStream_t = struct CUstream_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;

#pragma GCC visibility push(default)

const char* cudaGetErrorString(cudaError_t error);
const char* cudaGetErrorName(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaMalloc(void** pointer, size_t bytes);
cudaError_t cudaFree(void* pointer);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

namespace opbridge::emulation {

// ------------------------------------------------------------------------------------------------------ what
// tests set

/// The machine that is pretended to be there, and how it runs threads.
struct Settings {
  /// "forward", "reverse" or "shuffled:<seed>": how the threads of a block, between two barriers, and the
  /// blocks follow each other; "warps": each warp goes on up to a barrier of the block, or its end, before the next
  /// one does; "last": only the last block runs. At first what OPBRIDGE_EMULATION_ORDER says.
  std::string order;
  unsigned cpu_threads = 0;  // blocks at the same time; 0: as many as the machine has
  bool dry_run = false;      // launches are checked and logged, but not run
  int devices = 2;
  int architecture = 80;  // of each device
  int driver_version = 13000;
  int toolkit_version = 13000;
  cudaError_t fail_with = cudaSuccess;  // what every call about devices returns
  cudaError_t launch_fails_with = cudaSuccess;
  cudaError_t waiting_fails_with = cudaSuccess;  // for a stream: as after a fault in a kernel
};
Settings& settings();

struct LaunchRecord {
  std::string kernel;
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
  int device;
};
/// The launches since the last call of this function.
std::vector<LaunchRecord> take_launches();

// ------------------------------------------------------------------------------------------------------ what
// kernels use

cudaError_t launch(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                   std::function<void()> thread);

struct Indices {
  uint3 thread, block;
  dim3 block_dim, grid_dim;
};
extern __thread const Indices* indices;

void* dynamic_shared();

/// Where a kernel waits: how barriers that do not belong together are told apart.
struct Site {
  const char* file;
  int line;
};

struct BarrierResult {
  int count, all, any;
};
BarrierResult block_barrier(int predicate, Site site);

struct WarpResult {
  uint64_t value;   // of lane `source`
  unsigned ballot;  // lanes whose value is not 0
};
WarpResult warp_barrier(unsigned mask, uint64_t value, int source, Site site);
unsigned lane();
unsigned lanes_of_warp();

template <class T>
T shuffle(unsigned mask, T value, int source, Site site) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = warp_barrier(mask, bits, source, site).value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T>
struct Identity {
  using type = T;
};
template <class T>
using Same = typename Identity<T>::type;

/// *p = f(*p), at once for all threads of all blocks; returns the old value.
template <class T, class F>
T atomic_update(T* p, F f) {
  T old, desired;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  do {
    desired = f(old);
  } while (!__atomic_compare_exchange(p, &old, &desired, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
  return old;
}

}  // namespace opbridge::emulation

#pragma GCC visibility pop

#define threadIdx (opbridge::emulation::indices->thread)
#define blockIdx (opbridge::emulation::indices->block)
#define blockDim (opbridge::emulation::indices->block_dim)
#define gridDim (opbridge::emulation::indices->grid_dim)

// The last two parameters of functions that wait: the caller's place.
#define OPBRIDGE_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(OPBRIDGE_SITE) { opbridge::emulation::block_barrier(0, {file, line}); }
inline int __syncthreads_count(int predicate, OPBRIDGE_SITE) {
  return opbridge::emulation::block_barrier(predicate, {file, line}).count;
}
inline int __syncthreads_and(int predicate, OPBRIDGE_SITE) {
  return opbridge::emulation::block_barrier(predicate, {file, line}).all;
}
inline int __syncthreads_or(int predicate, OPBRIDGE_SITE) {
  return opbridge::emulation::block_barrier(predicate, {file, line}).any;
}

inline void __syncwarp(unsigned mask = 0xffffffffu, OPBRIDGE_SITE) {
  opbridge::emulation::warp_barrier(mask, 0, -1, {file, line});
}
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, OPBRIDGE_SITE) {
  const int lane = static_cast<int>(opbridge::emulation::lane());
  return opbridge::emulation::shuffle(mask, value, (lane & -width) + (source & (width - 1)), {file, line});
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, OPBRIDGE_SITE) {
  const int lane = static_cast<int>(opbridge::emulation::lane()), source = lane + static_cast<int>(delta);
  return opbridge::emulation::shuffle(mask, value, (source & -width) == (lane & -width) ? source : lane,
                                      {file, line});
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, OPBRIDGE_SITE) {
  const int lane = static_cast<int>(opbridge::emulation::lane()), source = lane - static_cast<int>(delta);
  return opbridge::emulation::shuffle(mask, value, source >= (lane & -width) ? source : lane, {file, line});
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, OPBRIDGE_SITE) {
  const int lane = static_cast<int>(opbridge::emulation::lane()), source = lane ^ lane_mask;
  return opbridge::emulation::shuffle(mask, value, (source & -width) <= (lane & -width) ? source : lane,
                                      {file, line});
}
inline unsigned __ballot_sync(unsigned mask, int predicate, OPBRIDGE_SITE) {
  return opbridge::emulation::warp_barrier(mask, predicate != 0, -1, {file, line}).ballot;
}
inline int __any_sync(unsigned mask, int predicate, OPBRIDGE_SITE) {
  return __ballot_sync(mask, predicate, file, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, OPBRIDGE_SITE) {
  return __ballot_sync(mask, !predicate, file, line) == 0;
}
inline unsigned __activemask() { return opbridge::emulation::lanes_of_warp(); }

template <class T>
T atomicAdd(T* p, opbridge::emulation::Same<T> v) {
  return opbridge::emulation::atomic_update(p, [v](T old) { return static_cast<T>(old + v); });
}
template <class T>
T atomicMin(T* p, opbridge::emulation::Same<T> v) {
  return opbridge::emulation::atomic_update(p, [v](T old) { return v < old ? v : old; });
}
template <class T>
T atomicMax(T* p, opbridge::emulation::Same<T> v) {
  return opbridge::emulation::atomic_update(p, [v](T old) { return old < v ? v : old; });
}
template <class T>
T atomicExch(T* p, opbridge::emulation::Same<T> v) {
  return opbridge::emulation::atomic_update(p, [v](T) { return v; });
}
template <class T>
T atomicCAS(T* p, opbridge::emulation::Same<T> expected, opbridge::emulation::Same<T> v) {
  return opbridge::emulation::atomic_update(p, [expected, v](T old) { return old == expected ? v : old; });
}
template <class T>
T atomicOr(T* p, opbridge::emulation::Same<T> v) {
  return opbridge::emulation::atomic_update(p, [v](T old) { return static_cast<T>(old | v); });
}
template <class T>
T atomicAnd(T* p, opbridge::emulation::Same<T> v) {
  return opbridge::emulation::atomic_update(p, [v](T old) { return static_cast<T>(old & v); });
}
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __threadfence(); }

template <class T>
T __ldg(const T* p) {
  return *p;
}
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
inline unsigned __float_as_uint(float v) {
  unsigned bits;
  std::memcpy(&bits, &v, sizeof v);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float v;
  std::memcpy(&v, &bits, sizeof v);
  return v;
}
using std::max;
using std::min;
