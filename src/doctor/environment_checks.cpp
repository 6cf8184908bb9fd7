// Python packages and CUDA on this machine.
#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "core/text.h"
#include "internal.h"
#include "opbridge/error.h"
#include "runner/python.h"

namespace opbridge::doctor {

namespace fs = std::filesystem;

namespace {

// site-packages of the Python environment in use, or of `prefix`; or empty.
fs::path first_site_packages(const std::string& prefix = "") {
  if (!prefix.empty()) {
    const std::vector<fs::path> found = site_packages(prefix);
    return found.empty() ? fs::path() : found[0];
  }
  fs::path first;
  any_python_prefix([&](const PythonPrefix& python) {
    const std::vector<fs::path> found = site_packages(python.path);
    if (!found.empty()) first = found[0];
    return !found.empty();
  });
  return first;
}

// Package -> version, as pip wrote them down.
std::map<std::string, std::string> packages_in(const fs::path& site) {
  std::map<std::string, std::string> found;
  std::error_code ec;
  for (fs::directory_iterator it(site, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    const size_t stop = name.rfind(".dist-info");
    const size_t dash = stop == std::string::npos ? stop : name.rfind('-', stop);
    if (dash == std::string::npos) continue;
    std::string package = name.substr(0, dash);
    std::replace(package.begin(), package.end(), '_', '-');
    std::transform(package.begin(), package.end(), package.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    found[package] = name.substr(dash + 1, stop - dash - 1);
  }
  return found;
}

// The folders that Python looks into before site-packages: PYTHONPATH's.
std::vector<fs::path> python_path() {
  std::vector<fs::path> folders;
  std::stringstream path(environment("PYTHONPATH"));
  for (std::string folder; std::getline(path, folder, ':');)
    folders.emplace_back(folder.empty() ? "." : folder);
  return folders;
}

// Whether a folder has a file whose name starts so: a package's compiled part.
bool has_part(const fs::path& folder, const std::string& start) {
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->path().filename().string().rfind(start, 0) == 0) return true;
  }
  return false;
}

// A clone of a package's sources, or a script of its name, where Python finds it first.
void check_shadows(Report& report) {
  struct Package {
    const char *name, *folder, *part;
  };
  static constexpr Package kPackages[] = {{"onnxruntime", "capi", "onnxruntime_pybind11_state"},
                                          {"onnx", ".", "onnx_cpp2py_export"},
                                          {"torch", ".", "_C."},
                                          {"numpy", "_core", "_multiarray_umath."}};
  std::error_code ec;
  std::vector<fs::path> folders = python_path();
  folders.insert(folders.begin(), fs::current_path(ec));
  for (const fs::path& folder : folders) {
    for (const Package& p : kPackages) {
      const fs::path script = folder / (std::string(p.name) + ".py"), package = folder / p.name;
      const std::string where = "Python started in this folder imports it instead of the package";
      if (fs::exists(package / "__init__.py", ec)) {
        if (!has_part(package / p.folder, p.part) && !has_part(package / "core", p.part))
          report.add("python-shadowed", package.string(),
                     "it has __init__.py and not the package's compiled part; " + where);
      } else if (fs::exists(script, ec)) {
        report.add("python-shadowed", script.string(), where);
      }
    }
  }
}

}  // namespace

std::pair<std::string, std::string> python_runtime(const std::string& ort) {
  if (ort.empty() && !environment("OPBRIDGE_ORT").empty()) return {};
  const fs::path site = first_site_packages(ort);
  if (site.empty()) return {};
  const fs::path python = site.parent_path().parent_path().parent_path() / "bin/python3";
  std::error_code ec;
  std::map<std::string, std::string> packages = packages_in(site);
  for (const char* name : {"onnxruntime", "onnxruntime-gpu"}) {
    if (packages.count(name) != 0 && fs::exists(python, ec)) return {python.string(), packages[name]};
  }
  return {};
}

void check_python(const Options& options, const RuntimeFacts& runtime, Report& report) {
  const fs::path site = first_site_packages();
  if (site.empty()) return;
  check_shadows(report);
  std::map<std::string, std::string> packages;
  for (const fs::path& folder : python_path()) packages.merge(packages_in(folder));
  packages.merge(packages_in(site));
  Json shown = Json::object();
  for (const char* name : {"onnxruntime", "onnxruntime-gpu", "onnxruntime-training", "onnx", "onnxscript",
                           "torch", "numpy", "opbridge"}) {
    if (packages.count(name) != 0) shown[name] = packages[name];
  }
  report.facts["python"] = {{"site_packages", site.string()}, {"packages", shown}};

  if (packages.count("torch") != 0 && packages.count("onnxscript") == 0 &&
      version_numbers(packages["torch"]) >= version_numbers("2.5"))
    report.add("python-no-onnxscript", site.string(), "torch " + packages["torch"] + " and no onnxscript");
  // Packages that all bring the module onnxruntime.
  std::vector<std::string> runtimes, texts;
  for (const char* name :
       {"onnxruntime", "onnxruntime-gpu", "onnxruntime-training", "onnxruntime-openvino",
        "onnxruntime-directml", "onnxruntime-rocm", "onnxruntime-migraphx", "onnxruntime-qnn"}) {
    if (packages.count(name) == 0) continue;
    runtimes.emplace_back(name);
    texts.push_back(name + (" " + packages[name]));
  }
  if (runtimes.size() > 1) {
    std::string uninstall = "pip uninstall -y";
    for (const std::string& name : runtimes) uninstall += " " + name;
    const bool cuda = options.provider == "cuda";
    report.add(cuda ? "python-two-runtimes-cuda" : "python-two-runtimes", site.string(),
               list_of(texts, "and"),
               uninstall + (cuda ? ", then pip install onnxruntime-gpu" : ", then install one"));
  }
  const bool cpu = packages.count("onnxruntime") != 0, gpu = packages.count("onnxruntime-gpu") != 0;
  if (!cpu && !gpu) return;
  const std::string version = gpu ? packages["onnxruntime-gpu"] : packages["onnxruntime"];
  if (runtime.usable && version != runtime.version && options.ort.empty())  // a named one is meant
    report.add(
        "python-other-runtime", site.string(),
        "Python has onnxruntime " + version + ", this looked at " + runtime.version + " (" + runtime.path +
            ")",
        "--ort " + (site / "onnxruntime").string() + ", or pip install onnxruntime==" + runtime.version);
  if (packages.count("numpy") != 0 && version_numbers(packages["numpy"])[0] >= 2 &&
      version_numbers(version) < version_numbers("1.19"))
    report.add("python-numpy-2", site.string(),
               "onnxruntime " + version + " with numpy " + packages["numpy"]);
  if (packages.count("opbridge") != 0 && packages["opbridge"] != OPBRIDGE_VERSION)
    report.add("python-other-opbridge", site.string(),
               "Python has opbridge " + packages["opbridge"] + ", this command is " OPBRIDGE_VERSION,
               "pip install opbridge==" OPBRIDGE_VERSION);
}

namespace {

struct Driver {
  int cuda = 0;              // the newest CUDA it serves: 12040 is 12.4; 0 where there is none
  std::vector<int> devices;  // compute capabilities: 86 is 8.6
  std::string why;           // where there is none
};

// Asks the driver itself, in a child process.
Driver ask_driver() {
  Driver driver;
  const std::string path = find_dependency("libcuda.so.1", "/", {});
  if (path.empty()) {
    driver.why = "libcuda.so.1 is not found";
    return driver;
  }
  const Outcome outcome = in_child(
      [&](const Say& say) {
        void* handle = dlopen(path.c_str(), RTLD_NOW);
        if (handle == nullptr) throw Error(ErrorKind::kDevice, dlerror());
        const auto call = [&](const char* name, auto... arguments) {
          const auto f = reinterpret_cast<int (*)(decltype(arguments)...)>(dlsym(handle, name));
          const int error = f == nullptr ? -1 : f(arguments...);
          if (error != 0)
            throw Error(ErrorKind::kDevice,
                        std::string(name) + " of " + path + " gives error " + std::to_string(error));
        };
        int version = 0, count = 0;
        call("cuDriverGetVersion", &version);
        say("cuda", version);
        call("cuInit", 0U);
        call("cuDeviceGetCount", &count);
        for (int i = 0; i < count; ++i) {
          constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
          int device = 0, major = 0, minor = 0;
          call("cuDeviceGet", &device, i);
          call("cuDeviceGetAttribute", &major, kMajor, device);
          call("cuDeviceGetAttribute", &minor, kMinor, device);
          say("device", major * 10 + minor);
        }
      },
      60);
  if (!outcome.last("cuda").is_null()) driver.cuda = outcome.last("cuda");
  for (const Json& d : outcome.all("device")) driver.devices.push_back(d);
  driver.why = outcome.error.empty() ? outcome.crash : outcome.error;
  if (driver.why.empty() && driver.devices.empty()) driver.why = "the driver sees no GPU";
  return driver;
}

// Whether a build for `architectures` ("80-real", "90", "120-virtual") holds code for a device.
bool has_code_for(const Json& architectures, int device) {
  for (const Json& entry : architectures) {
    const std::string text = entry.is_string() ? entry.get<std::string>() : entry.dump();
    const int number = std::atoi(text.c_str());
    const bool machine = text.find("-virtual") == std::string::npos,
               ptx = text.find("-real") == std::string::npos;
    if (machine && number / 10 == device / 10 && number <= device) return true;
    if (ptx && number <= device) return true;
  }
  return false;
}

// A library that is not found, and the version of it that is: "libcudnn.so.9 (but libcudnn.so.8)".
std::string missing_library(const std::string& name, const std::string& file, const ElfFacts& elf) {
  const size_t stop = name.rfind(".so.");
  if (stop == std::string::npos) return name;
  constexpr int kNewest = 30;
  for (int version = kNewest; version > 0; --version) {
    const std::string other = name.substr(0, stop + 4) + std::to_string(version);
    if (!find_dependency(other, file, elf).empty()) return name + " (but " + other + ")";
  }
  return name;
}

std::string version_text(int cuda) {
  return std::to_string(cuda / 1000) + "." + std::to_string(cuda % 1000 / 10);
}

}  // namespace

void check_cuda(const RuntimeFacts& runtime, const std::vector<Library>& libraries, Report& report) {
  const Driver driver = ask_driver();
  if (driver.devices.empty()) report.add("driver-missing", "NVIDIA driver", driver.why);
  for (const Library& library : libraries) {
    if (!library.file.is_opbridge()) continue;
    const Json cuda = library.file.manifest.value("cuda", Json());
    if (!cuda.is_object()) {
      report.add("operator-cpu-only-library", library.path, "its manifest says: CUDA none");
      continue;
    }
    const std::string toolkit = cuda.value("toolkit", "0");
    if (driver.cuda > 0 && version_numbers(toolkit)[0] > driver.cuda / 1000)
      report.add(
          "driver-too-old", library.path,
          "it was built with CUDA " + toolkit + ", the driver serves up to " + version_text(driver.cuda));
    for (const int device : driver.devices) {
      const Json architectures = cuda.value("architectures", Json::array());
      if (!has_code_for(architectures, device))
        report.add("gpu-architecture", library.path,
                   "the GPU is sm_" + std::to_string(device) + ", the library holds " + architectures.dump(),
                   "build it with -DCMAKE_CUDA_ARCHITECTURES=" + std::to_string(device));
    }
  }
  if (!runtime.usable) return;
  const auto& providers = runtime.providers;
  if (std::find(providers.begin(), providers.end(), "CUDAExecutionProvider") == providers.end()) {
    report.add("provider-missing", runtime.path,
               "ONNX Runtime " + runtime.version + " has " + list_of(providers, "and"));
    return;
  }
  ElfFacts beside;
  beside.run_path = {fs::path(runtime.path).parent_path().string()};
  const std::string provider = find_dependency("libonnxruntime_providers_cuda.so", runtime.path, beside);
  if (provider.empty()) {
    report.add("provider-library-missing", runtime.path, "libonnxruntime_providers_cuda.so is not beside it");
    return;
  }
  ElfFacts elf = read_elf(provider);
  // pip puts CUDA's libraries beside the package, where only ONNX Runtime's own preloading finds them.
  std::error_code ec;
  const fs::path nvidia = fs::path(runtime.path).parent_path().parent_path().parent_path() / "nvidia";
  for (fs::directory_iterator it(nvidia, ec), end; !ec && it != end; it.increment(ec))
    elf.run_path.push_back((it->path() / "lib").string());
  std::vector<std::string> missing;
  for (const std::string& n : elf.needed) {
    if (find_dependency(n, provider, elf).empty()) missing.push_back(missing_library(n, provider, elf));
  }
  if (!missing.empty())
    report.add("provider-library-missing", provider,
               some_of(missing, 8) + (missing.size() == 1 ? " is" : " are") + " not found");
}

}  // namespace opbridge::doctor
