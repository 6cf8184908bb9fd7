// my_clip's CUDA kernels, emulated: equal to the CPU's bit for bit, within their buffers, launched as they
// should be.
#include <gtest/gtest.h>

#include <cstdio>

#include "my_clip_cases.h"

namespace {

using host::CudaCall;
using host::Inputs;
using host::Library;
using host::Node;
using host::Stream;
using host::Tensor;
using my_clip_cases::kDTypes;
using opbridge::emulation::settings;
using opbridge::emulation::take_launches;

class MyClipCuda : public testing::Test {
 protected:
  ~MyClipCuda() override { settings() = saved_; }

  void expect_equal(const Node& node, const Inputs& inputs, size_t offset, const std::string& what) {
    const std::vector<Tensor> cpu = node.run_on_cpu(inputs),
                              cuda = CudaCall(node, inputs, 1, offset).run(stream_);
    ASSERT_EQ(cpu[0].bytes, cuda[0].bytes) << what;
  }

  opbridge::emulation::Settings saved_ = settings();
  Library library_{OPBRIDGE_TEST_EMULATED_LIBRARY};
  Node clip_{library_, "my_clip"}, grad_{library_, "my_clip_grad"};
  Stream stream_;
};

TEST_F(MyClipCuda, EqualsTheCpu) {
  for (const char* order : {"forward", "reverse", "shuffled:3"}) {
    settings().order = order;
    unsigned seed = 0;
    for (const auto dtype : kDTypes) {
      for (const int64_t n : {0, 1, 31, 32, 33, 255, 256, 257, 1025}) {
        for (const auto& bounds : my_clip_cases::all_bounds()) {
          for (const size_t offset : {0, 1}) {  // one element behind an aligned address: no wide loads
            const std::string what = std::string(opbridge::dtype_name(dtype)) + ", " + std::to_string(n) +
                                     " elements, bounds " + bounds.name + ", offset " +
                                     std::to_string(offset) + ", order " + order;
            expect_equal(clip_, my_clip_cases::clip(dtype, n, bounds, ++seed), offset, what);
            expect_equal(grad_, my_clip_cases::clip_grad(dtype, n, bounds, ++seed), offset,
                         "gradient, " + what);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_F(MyClipCuda, EqualsTheCpuOnManyElements) {
  for (const auto dtype : kDTypes) {
    const auto& bounds = my_clip_cases::all_bounds()[3];
    expect_equal(clip_, my_clip_cases::clip(dtype, 1000003, bounds, 1), 0, opbridge::dtype_name(dtype));
    expect_equal(grad_, my_clip_cases::clip_grad(dtype, 1000003, bounds, 2), 0, opbridge::dtype_name(dtype));
  }
}

// ------------------------------------------------------------------------------------------------------------
// launches

// What a call on n elements at `address` would launch. The address is nobody's: reading it on the host would
// crash.
std::vector<opbridge::emulation::LaunchRecord> dry_run(const Node& node, opbridge::DType dtype, int64_t n,
                                                       uintptr_t address) {
  settings().dry_run = true;
  std::vector<int64_t> shape = {n}, scalar;
  void* const p = reinterpret_cast<void*>(address);
  const OpbridgeTensor x = host::view(p, 2, 0, dtype, shape), bound = host::view(p, 2, 0, dtype, scalar);
  OpbridgeHost h{};
  h.size = sizeof h;
  take_launches();
  node.compute({&x, &bound, &bound}, {&x}, h);
  return take_launches();
}

TEST_F(MyClipCuda, LaunchesFitAnySize) {
  for (const auto dtype : kDTypes) {
    const int64_t pack = static_cast<int64_t>(16 / opbridge::dtype_size(dtype));
    for (const int64_t n : {int64_t{1}, int64_t{256}, int64_t{1000003}, int64_t{5000000}, int64_t{1} << 31,
                            int64_t{5000000000}}) {
      for (const uintptr_t address :
           {uintptr_t{1} << 40, (uintptr_t{1} << 40) + opbridge::dtype_size(dtype)}) {
        const auto launches = dry_run(clip_, dtype, n, address);
        ASSERT_EQ(launches.size(), 1u);
        const auto& l = launches[0];
        const int64_t per_thread = address % 16 == 0 ? pack : 1;
        const int64_t blocks = ((n + per_thread - 1) / per_thread + 255) / 256;
        EXPECT_EQ(l.grid.x, std::min<int64_t>(blocks, 65536)) << n;
        EXPECT_EQ(l.block.x, 256u);
        EXPECT_EQ(l.shared_bytes, 0u);
      }
    }
    EXPECT_EQ(dry_run(clip_, dtype, 0, uintptr_t{1} << 40).size(), 0u);
  }
}

TEST_F(MyClipCuda, RunsOnTheCallersStreamAndDevice) {
  CudaCall call(clip_, my_clip_cases::clip(opbridge::DType::f32, 100, my_clip_cases::all_bounds()[3], 1), 1,
                0, 1);
  take_launches();
  call.enqueue(stream_);
  const auto launches = take_launches();
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_EQ(launches[0].stream, static_cast<cudaStream_t>(stream_));
  EXPECT_EQ(launches[0].device, 1);
  int device = -1;
  cudaGetDevice(&device);
  EXPECT_EQ(device, 0);  // as before the call
}

// --------------------------------------------------------------------------------------------------------------
// errors

std::string error_of(const CudaCall& call, cudaStream_t stream) {
  try {
    call.enqueue(stream);
  } catch (const opbridge::Error& e) {
    EXPECT_EQ(e.kind(), opbridge::ErrorKind::kDevice);
    return e.what();
  }
  return "no error";
}

TEST_F(MyClipCuda, NamesWhatIsWrongWithTheMachine) {
  const CudaCall call(clip_,
                      my_clip_cases::clip(opbridge::DType::f32, 100, my_clip_cases::all_bounds()[3], 1));
  const auto error = [&](cudaError_t e) {
    settings().fail_with = e;
    const std::string what = error_of(call, stream_);
    settings().fail_with = cudaSuccess;
    EXPECT_EQ(error_of(call, stream_), "no error");  // nothing is left standing
    return what;
  };
  settings().driver_version = 12040;
  EXPECT_EQ(error(cudaErrorInsufficientDriver)
                .find("my_namespace::my_clip: CUDA 13.0 needs driver 580 or newer, found "),
            0u);
  EXPECT_NE(error(cudaErrorInsufficientDriver).find(" for CUDA 12.4 (cudaErrorInsufficientDriver)"),
            std::string::npos);
  settings().driver_version = 0;
  EXPECT_EQ(
      error(cudaErrorInsufficientDriver),
      "my_namespace::my_clip: CUDA 13.0 needs driver 580 or newer, found none (cudaErrorInsufficientDriver)");
  settings().toolkit_version = 11080;
  EXPECT_NE(error(cudaErrorInsufficientDriver).find("CUDA 11.8 needs driver 450 or newer, found none"),
            std::string::npos);
  EXPECT_EQ(error(cudaErrorNoDevice),
            "my_namespace::my_clip: this machine shows no CUDA device (CUDA_VISIBLE_DEVICES may hide it) "
            "(cudaErrorNoDevice)");
}

TEST_F(MyClipCuda, NamesTheArchitectures) {
  settings().architecture = 61;
  const CudaCall call(clip_,
                      my_clip_cases::clip(opbridge::DType::f32, 100, my_clip_cases::all_bounds()[3], 1));
  // Found by the launch itself: the guard has no reason to fail.
  settings().launch_fails_with = cudaErrorNoKernelImageForDevice;
  EXPECT_EQ(error_of(call, stream_),
            "my_namespace::my_clip: clip_kernel<float, 4> with grid 1x1x1, block 256x1x1 and 0 bytes of "
            "shared memory: the library "
            "was built for the GPU architectures 75, 80, but device 0 is 61: rebuild it with "
            "-DOPBRIDGE_CUDA_ARCHITECTURES=61 "
            "(cudaErrorNoKernelImageForDevice)");
}

TEST_F(MyClipCuda, RefusesADeviceThatIsNotThere) {
  const CudaCall call(
      clip_, my_clip_cases::clip(opbridge::DType::f32, 100, my_clip_cases::all_bounds()[3], 1), 1, 0, 7);
  EXPECT_EQ(error_of(call, stream_),
            "my_namespace::my_clip: cudaErrorInvalidDevice (cudaErrorInvalidDevice)");
}

TEST_F(MyClipCuda, SyncFindsTheFaultWhereItIs) {
  const auto inputs = my_clip_cases::clip(opbridge::DType::f32, 100, my_clip_cases::all_bounds()[3], 1);
  setenv("OPBRIDGE_SYNC", "1", 1);
  const Node watched(library_, "my_clip");
  unsetenv("OPBRIDGE_SYNC");
  const CudaCall call(watched, inputs), unwatched(clip_, inputs);
  EXPECT_EQ(error_of(call, stream_), "no error");

  settings().waiting_fails_with = cudaErrorLaunchFailure;
  EXPECT_EQ(error_of(unwatched, stream_), "no error");  // the next one to wait will meet it
  EXPECT_EQ(error_of(call, stream_)
                .find("my_namespace::my_clip: what was enqueued before it on its stream failed: "),
            0u);

  // While its stream is captured into a graph it must not wait.
  host::check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  EXPECT_EQ(error_of(call, stream_), "no error");
  cudaGraph_t graph;
  host::check_cuda(cudaStreamEndCapture(stream_, &graph));
  host::check_cuda(cudaGraphDestroy(graph));
}

TEST_F(MyClipCuda, TensorsOfOneCallLieOnOneDevice) {
  std::vector<int64_t> shape = {4};
  float data[4] = {};
  const OpbridgeTensor x = host::view(data, 2, 0, opbridge::DType::f32, shape),
                       y = host::view(data, 2, 1, opbridge::DType::f32, shape);
  OpbridgeHost h{};
  h.size = sizeof h;
  try {
    clip_.compute({&x, nullptr, nullptr}, {&y}, h);
    FAIL() << "no error";
  } catch (const opbridge::Error& e) {
    EXPECT_STREQ(
        e.what(),
        "my_namespace::my_clip: output 'y' lies on CUDA device 1, expected CUDA device 0 like the inputs");
  }
}

// The library that users get, on a machine without a driver.
TEST(MyClipCudaLibrary, SaysThatThereIsNoDriver) {
#if !defined(OPBRIDGE_TEST_LIBRARY_HAS_CUDA)
  GTEST_SKIP() << "built without CUDA";
#endif
  if (std::FILE* f = std::fopen("/proc/driver/nvidia/version", "r")) {
    std::fclose(f);
    GTEST_SKIP() << "this machine has a driver";
  }
  const Library library(OPBRIDGE_TEST_LIBRARY);
  const Node clip(library, "my_clip");
  EXPECT_EQ(clip.run_on_cpu(my_clip_cases::clip(opbridge::DType::f32, 100, my_clip_cases::all_bounds()[3], 1))
                .size(),
            1u);
  std::vector<int64_t> shape = {4};
  float data[4] = {};
  const OpbridgeTensor x = host::view(data, 2, 0, opbridge::DType::f32, shape);
  OpbridgeHost h{};
  h.size = sizeof h;
  try {
    clip.compute({&x, nullptr, nullptr}, {&x}, h);
    FAIL() << "no error";
  } catch (const opbridge::Error& e) {
    const std::string what = e.what();
    EXPECT_NE(what.find(" needs driver "), std::string::npos) << what;
    EXPECT_NE(what.find(" or newer, found none (cudaErrorInsufficientDriver)"), std::string::npos) << what;
  }
}

}  // namespace
