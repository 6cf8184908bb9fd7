#include "provider_cuda.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>

#include "core/text.h"

namespace opbridge {

namespace fs = std::filesystem;

namespace {

// A wheel's CUDA provider needs CUDA libraries that pip puts beside it, where the dynamic loader does not
// look. Those that are loaded already it takes by their names. What is missing is left to the provider's own
// message.
void preload_cuda_libraries(const fs::path& runtime) {
  const fs::path packages = runtime.parent_path().parent_path().parent_path() / "nvidia";
  for (const char* name : {"libcudart.so.", "libcublasLt.so.", "libcublas.so.", "libnvrtc.so.",
                           "libnvJitLink.so.", "libcurand.so.", "libcufft.so.", "libcudnn.so."}) {
    std::error_code ec;
    for (fs::directory_iterator package(packages, ec), end; !ec && package != end; package.increment(ec)) {
      std::error_code no_lib;
      for (fs::directory_iterator it(package->path() / "lib", no_lib); !no_lib && it != end;
           it.increment(no_lib)) {
        if (it->path().filename().string().rfind(name, 0) == 0)
          dlopen(it->path().c_str(), RTLD_NOW | RTLD_LOCAL);
      }
    }
  }
}

// Python packages of one folder that overwrite each other's files: which of them this runtime is, nobody knows.
std::string conflict(const fs::path& runtime) {
  const fs::path site = runtime.parent_path().parent_path().parent_path();
  std::vector<std::string> found;
  std::error_code ec;
  for (fs::directory_iterator it(site, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (it->path().extension() != ".dist-info") continue;
    const std::string package = name.substr(0, name.find('-'));
    if (package == "onnxruntime" || package == "onnxruntime_gpu") found.push_back(package);
  }
  return found.size() < 2 ? ""
                          : ". onnxruntime and onnxruntime-gpu are both installed in " + site.string() +
                                " and overwrite each other's files: pip uninstall -y onnxruntime "
                                "onnxruntime-gpu, then pip install onnxruntime-gpu";
}

}  // namespace

void append_cuda(const Runtime& runtime, const OrtApi* api, OrtSessionOptions* options, int device_id) {
  const std::vector<std::string> offered = runtime.providers();
  if (std::find(offered.begin(), offered.end(), "CUDAExecutionProvider") == offered.end()) {
    throw Error(ErrorKind::kNotSupported, "ONNX Runtime " + runtime.version() + " at " + runtime.path() +
                                              " has no CUDA provider (it has " + list_of(offered) +
                                              "): install onnxruntime-gpu, name another runtime (--ort, "
                                              "OPBRIDGE_ORT), or take the provider cpu" +
                                              conflict(runtime.path()));
  }
  preload_cuda_libraries(runtime.path());
  const std::string what = "the CUDA provider of ONNX Runtime " + runtime.version() + " cannot be used";
  OrtPtr<OrtCUDAProviderOptionsV2> cuda(api->ReleaseCUDAProviderOptions);
  const std::string device = std::to_string(device_id);
  const char* keys[] = {"device_id"};
  const char* values[] = {device.c_str()};
  try {
    check(api, api->CreateCUDAProviderOptions(cuda.out()), what);
    check(api, api->UpdateCUDAProviderOptions(cuda.get(), keys, values, 1), what);
    check(api, api->SessionOptionsAppendExecutionProvider_CUDA_V2(options, cuda.get()), what);
  } catch (const Error& e) {
    throw Error(e.kind(),
                std::string(e.what()) +
                    ". It needs a GPU driver and the CUDA and cuDNN libraries it was built with: pip "
                    "install 'onnxruntime-gpu[cuda,cudnn]'" +
                    conflict(runtime.path()));
  }
}

OrtMemoryInfo* cuda_memory(const OrtApi* api, int device_id) {
  OrtMemoryInfo* info = nullptr;
  check(api, api->CreateMemoryInfo("Cuda", OrtDeviceAllocator, device_id, OrtMemTypeDefault, &info));
  return info;
}

}  // namespace opbridge
