// gpu_check LIBRARY [PART]...: CUDA kernels against the CPU's on this machine's GPU (or, as
// gpu_check_emulated, on the emulated one). Prints a line for each check: status, name and detail, separated
// by tabs. Ends with 0 when none failed, with 3 when there is no GPU. Driven by scripts/gpu_check.sh.
#include <cstdio>
#include <functional>
#include <map>

#include "my_clip_cases.h"

namespace {

using host::check_cuda;
using host::CudaCall;
using host::Inputs;
using host::Library;
using host::Node;
using host::Stream;
using host::Tensor;
using my_clip_cases::kDTypes;

#if defined(OPBRIDGE_CUDA_EMULATION)
constexpr bool kEmulated = true;
#else
constexpr bool kEmulated = false;
#endif

int failures = 0;

void report(const char* status, const std::string& name, const std::string& detail) {
  std::printf("%s\t%s\t%s\n", status, name.c_str(), detail.c_str());
  std::fflush(stdout);
}

// Runs a check, which returns its detail and throws when it fails.
void check(const std::string& name, const std::function<std::string()>& f) {
  try {
    report("passed", name, f());
  } catch (const std::exception& e) {
    ++failures;
    report("failed", name, e.what());
  }
}

void expect_equal(const Tensor& expected, const Tensor& got, const std::string& what) {
  if (expected.bytes == got.bytes) return;
  const size_t at = static_cast<size_t>(
      std::mismatch(expected.bytes.begin(), expected.bytes.end(), got.bytes.begin()).first -
      expected.bytes.begin());
  throw host::Error(host::ErrorKind::kInternal,
                    what + ": element " + std::to_string(at / opbridge::dtype_size(expected.dtype)) + " of " +
                        std::to_string(expected.count()) + " differs from the CPU's");
}

// Both operators on one set of values.
int compare(const Library& library, const Stream& stream, opbridge::DType dtype, int64_t n,
            const my_clip_cases::Bounds& bounds, size_t offset) {
  const unsigned seed = static_cast<unsigned>(n);
  const std::string what =
      std::to_string(n) + " elements, bounds " + bounds.name + ", offset " + std::to_string(offset);
  const Node clip(library, "my_clip"), grad(library, "my_clip_grad");
  const Inputs forward = my_clip_cases::clip(dtype, n, bounds, seed),
               backward = my_clip_cases::clip_grad(dtype, n, bounds, seed);
  expect_equal(clip.run_on_cpu(forward)[0], CudaCall(clip, forward, 1, offset).run(stream)[0], what);
  expect_equal(grad.run_on_cpu(backward)[0], CudaCall(grad, backward, 1, offset).run(stream)[0],
               "gradient, " + what);
  return 2;
}

void parity(const Library& library, const std::vector<int64_t>& sizes) {
  const Stream stream;
  for (const auto dtype : kDTypes) {
    check(std::string("my_clip equals the CPU, ") + opbridge::dtype_name(dtype), [&] {
      int calls = 0;
      for (const int64_t n : sizes) {
        for (const auto& bounds : my_clip_cases::all_bounds()) {
          for (const size_t offset : {size_t{0}, opbridge::dtype_size(dtype)})
            calls += compare(library, stream, dtype, n, bounds, offset);
        }
      }
      return std::to_string(calls) + " calls, bit for bit, sentinels whole";
    });
  }
}

// More elements than one grid has threads.
void large(const Library& library) {
  const char* name = "my_clip equals the CPU, 70 million f32";
  if (kEmulated) return report("skipped", name, "takes minutes in emulation");
  check(name, [&] {
    return std::to_string(compare(library, Stream(), opbridge::DType::f32, 70000003,
                                  my_clip_cases::all_bounds()[3], 0)) +
           " calls";
  });
}

void repeats(const Library& library) {
  check("my_clip 200 times on a non-blocking stream", [&] {
    const Stream stream;
    const Node clip(library, "my_clip");
    const Inputs inputs = my_clip_cases::clip(opbridge::DType::f32, kEmulated ? 10007 : 1000003,
                                              my_clip_cases::all_bounds()[3], 1);
    const Tensor expected = clip.run_on_cpu(inputs)[0];
    CudaCall call(clip, inputs);
    for (int i = 0; i < 200; ++i) {
      call.enqueue(stream);
      if (i % 10 != 9) continue;
      stream.synchronize();
      expect_equal(expected, call.read()[0], "after " + std::to_string(i + 1) + " runs");
    }
    return std::string("bit-identical");
  });
}

void graph(const Library& library) {
  check("my_clip captured in a CUDA graph and replayed", [&] {
    const Stream stream;
    const Node clip(library, "my_clip");
    const auto& bounds = my_clip_cases::all_bounds()[3];
    CudaCall call(clip, my_clip_cases::clip(opbridge::DType::f32, 10007, bounds, 1));
    call.run(stream);  // a first launch loads the kernel, which a capture does not allow
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    call.enqueue(stream);
    check_cuda(cudaStreamEndCapture(stream, &graph));
    check_cuda(cudaGraphInstantiateWithFlags(&executable, graph, 0));
    for (unsigned seed = 2; seed < 5; ++seed) {
      const Inputs changed = my_clip_cases::clip(opbridge::DType::f32, 10007, bounds, seed);
      call.set_input(0, *changed[0]);
      check_cuda(cudaGraphLaunch(executable, stream));
      stream.synchronize();
      expect_equal(clip.run_on_cpu({changed[0], my_clip_cases::bound(opbridge::DType::f32, bounds.min, 1),
                                    my_clip_cases::bound(opbridge::DType::f32, bounds.max, 2)})[0],
                   call.read()[0], "replay " + std::to_string(seed - 1));
    }
    check_cuda(cudaGraphExecDestroy(executable));
    check_cuda(cudaGraphDestroy(graph));
    return std::string("3 replays with changed input, bit for bit");
  });
}

}  // namespace

int main(int argc, char** argv) try {
  const std::map<std::string, std::function<void(const Library&)>> parts = {
      {"parity",
       [](const Library& l) { parity(l, {0, 1, 31, 32, 33, 255, 256, 257, kEmulated ? 1025 : 100003}); }},
      {"small", [](const Library& l) { parity(l, {1, 33, 257}); }},  // for compute-sanitizer
      {"large", large},
      {"repeats", repeats},
      {"graph", graph}};
  std::vector<std::string> chosen(argv + std::min(argc, 2), argv + argc);
  for (const std::string& part : chosen) {
    if (parts.count(part) == 0) argc = 0;
  }
  if (argc < 2) {
    std::fprintf(stderr, "usage: gpu_check LIBRARY [parity] [small] [large] [repeats] [graph]\n");
    return 2;
  }
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess || devices == 0) {
    report("skipped", "CUDA device", error == cudaSuccess ? "none found" : cudaGetErrorString(error));
    return 3;
  }
  const Library library(argv[1]);
  if (chosen.empty()) chosen = {"parity", "large", "repeats", "graph"};
  for (const std::string& part : chosen) parts.at(part)(library);
  return failures == 0 ? 0 : 1;
} catch (const std::exception& e) {
  report("failed", "gpu_check", e.what());
  return 1;
}
