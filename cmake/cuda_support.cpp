// Compiled into every library that has CUDA kernels: the device of a call, and what CUDA's errors mean to a
// user.
#include <cstdio>
#include <string>

#include "opbridge/cuda.h"
#include "opbridge/library.h"
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#endif

namespace opbridge::detail {

namespace {

// "13.0" from 13000
std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// The oldest driver branch that runs a toolkit of this major version.
int oldest_driver(int toolkit) {
  const int major = toolkit / 1000;
  return major <= 11 ? 450 : major == 12 ? 525 : 580;
}

// "550.54.15", or empty when the driver does not say.
std::string installed_driver() {
  char line[256] = "", version[32] = "";
  if (std::FILE* f = std::fopen("/proc/driver/nvidia/version", "r")) {
    if (std::fgets(line, sizeof line, f) == nullptr) line[0] = '\0';
    std::fclose(f);
  }
  for (const char* c = line; *c != '\0'; ++c) {  // the first word with a number like 550.54
    int parts = 0;
    if ((c == line || c[-1] == ' ') && std::sscanf(c, "%*u.%*u%n", &parts) == 0 && parts > 0) {
      std::sscanf(c, "%31s", version);
      break;
    }
  }
  return version;
}

// What the user can do about it; empty where CUDA's own words have to do.
std::string explain(cudaError_t error) {
  int toolkit = 0, driver = 0, device = 0, major = 0, minor = 0;
  switch (error) {
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorUnsupportedPtxVersion: {
      cudaRuntimeGetVersion(&toolkit);
      cudaDriverGetVersion(&driver);
      const std::string needs = "CUDA " + version_text(toolkit) + " needs driver " +
                                std::to_string(oldest_driver(toolkit)) + " or newer, found ";
      if (driver == 0) return needs + "none";
      const std::string installed = installed_driver();
      return needs + (installed.empty() ? "one" : installed) + " for CUDA " + version_text(driver);
    }
    case cudaErrorNoDevice:
      return "this machine shows no CUDA device (CUDA_VISIBLE_DEVICES may hide it)";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
      cudaGetDevice(&device);
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
      return "the library was built for the GPU architectures " OPBRIDGE_CUDA_ARCHITECTURES ", but device " +
             std::to_string(device) + " is " + std::to_string(major) + std::to_string(minor) +
             ": rebuild it with -DOPBRIDGE_CUDA_ARCHITECTURES=" + std::to_string(major) +
             std::to_string(minor);
    default:
      return "";
  }
}

std::string describe(cudaError_t error) {
  const std::string more = explain(error);
  cudaGetLastError();  // also what explain() may have left
  return (more.empty() ? cudaGetErrorString(error) : more) + " (" + cudaGetErrorName(error) + ")";
}

// "clip_kernel<float, 4>" from __PRETTY_FUNCTION__ of launch(), whose first template argument it is.
std::string kernel_name(const std::string& function) {
  const size_t begin = function.find("kernel = ");
  if (begin == std::string::npos) return "a kernel";
  std::string name = function.substr(begin + 9, function.find_first_of(";]", begin) - begin - 9);
  const size_t scope = name.rfind("::", name.find('<'));
  return scope == std::string::npos ? name : name.substr(scope + 2);
}

std::string extent(const dim3& d) {
  return std::to_string(d.x) + "x" + std::to_string(d.y) + "x" + std::to_string(d.z);
}

void check(cudaError_t error) {
  if (error != cudaSuccess) fail_cuda(error);
}

}  // namespace

void fail_cuda(cudaError_t error) { throw Error(ErrorKind::kDevice, describe(error)); }

void fail_launch(cudaError_t error, const char* kernel, const Grid& grid) {
  throw Error(ErrorKind::kDevice, kernel_name(kernel) + " with grid " + extent(grid.blocks) + ", block " +
                                      extent(grid.threads) + " and " + std::to_string(grid.shared_bytes) +
                                      " bytes of shared memory: " + describe(error));
}

CudaDeviceGuard::CudaDeviceGuard(int device) {
  if (device < 0) return;
  int current = 0;
  check(cudaGetDevice(&current));
  if (current == device) return;
  check(cudaSetDevice(device));
  previous_ = current;
}

CudaDeviceGuard::~CudaDeviceGuard() {
  if (previous_ >= 0) cudaSetDevice(previous_);
}

// --- tracing

namespace {

bool synchronize(int device, void* stream) {
  const CudaDeviceGuard guard(device);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status));
  if (status != cudaStreamCaptureStatusNone) return false;
  check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
  return true;
}

void copy_to_host(int device, void* to, const void* from, size_t bytes) {
  const CudaDeviceGuard guard(device);
  check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

#if __has_include(<nvtx3/nvToolsExt.h>)
// The profiler's library is looked for at the first range.
nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t handle = nvtxDomainCreateA("opbridge");
  return handle;
}

void push_range(const char* text) {
  nvtxEventAttributes_t event{};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.messageType = NVTX_MESSAGE_TYPE_ASCII;
  event.message.ascii = text;
  nvtxDomainRangePushEx(domain(), &event);
}

void pop_range() { nvtxDomainRangePop(domain()); }
#else
void push_range(const char*) {}
void pop_range() {}
#endif

}  // namespace

const CudaServices* cuda_services() {
  static constexpr CudaServices services = {synchronize, copy_to_host, push_range, pop_range};
  return &services;
}

}  // namespace opbridge::detail
