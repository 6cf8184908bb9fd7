// Finds, loads and negotiates with an ONNX Runtime.
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "ort.h"
#include "python.h"

namespace opbridge {

namespace fs = std::filesystem;

namespace {

constexpr const char* kHowToGetOne =
    "Install one with 'pip install onnxruntime' (1.19 or newer) in the active Python environment, or name "
    "the library: "
    "--ort PATH, or OPBRIDGE_ORT=PATH (libonnxruntime.so.*, or a folder that has it).";

struct Candidate {
  std::string path;  // or a bare soname for the dynamic loader to look up
  std::string source;
};

// libonnxruntime.so* in a folder, newest first. Links to the same file count once.
std::vector<std::string> runtimes_in(const fs::path& folder) {
  std::vector<std::string> found;
  std::vector<fs::path> seen;
  for (const fs::path& p : newest_first(folder, "libonnxruntime.so")) {
    std::error_code ec;
    const fs::path real = fs::canonical(p, ec);
    if (ec || std::find(seen.begin(), seen.end(), real) != seen.end()) continue;
    seen.push_back(real);
    found.push_back(p);
  }
  return found;
}

// What a Python prefix such as a virtual environment offers.
void add_python_prefix(const fs::path& prefix, const std::string& source, std::vector<Candidate>& candidates,
                       std::vector<std::string>& tried) {
  bool any = false;
  for (const fs::path& site : site_packages(prefix)) {
    const fs::path capi = site / "onnxruntime" / "capi";
    std::error_code ec;
    if (!fs::is_directory(capi, ec)) continue;
    any = true;
    const std::vector<std::string> found = runtimes_in(capi);
    for (const std::string& p : found) candidates.push_back({p, source});
    if (found.empty()) {
      tried.push_back(source + ": " + capi.string() +
                      " has no libonnxruntime.so (wheels carry it from onnxruntime 1.19 on)");
    }
  }
  if (!any) tried.push_back(source + ": no onnxruntime package in " + prefix.string());
}

// A file, or a folder that has the library itself, in lib/, as an installed Python package in capi/, or is a Python
// environment with that package.
std::vector<Candidate> named_by_user(const std::string& path, const std::string& source) {
  std::error_code ec;
  if (!fs::is_directory(path, ec)) return {{path, source}};
  std::vector<Candidate> found;
  for (const char* sub : {"", "lib", "lib64", "capi", "onnxruntime/capi"}) {
    for (const std::string& p : runtimes_in(fs::path(path) / sub)) found.push_back({p, source});
  }
  std::vector<std::string> tried;
  if (found.empty()) add_python_prefix(path, source, found, tried);
  if (found.empty()) {
    throw Error(
        ErrorKind::kNotSupported,
        source + ": the folder '" + path +
            "' has no libonnxruntime.so* (nor its lib/, lib64/ or capi/, and as a Python environment: " +
            tried.back().substr(source.size() + 2) + "). " + kHowToGetOne);
  }
  return found;
}

}  // namespace

Runtime::Impl::Impl(const std::string& candidate, const std::string& found_as) : source(found_as) {
  std::error_code ec;
  const bool bare = candidate.find('/') == std::string::npos && !fs::exists(candidate, ec);
  path = bare ? candidate : fs::absolute(candidate, ec).string();
  // Local, so that several versions can live in one process. Never closed: its threads may outlive us.
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw Error(ErrorKind::kNotSupported, std::string("cannot be loaded: ") + dlerror());
  const auto get_base = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(handle, "OrtGetApiBase"));
  if (get_base == nullptr)
    throw Error(ErrorKind::kNotSupported, "is not an ONNX Runtime: it has no OrtGetApiBase");
  const OrtApiBase* base = get_base();

  link_map* map = nullptr;
  if (bare && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map->l_name != nullptr) path = map->l_name;
  version = base->GetVersionString();
  unsigned major = 0, minor = 0;
  if (std::sscanf(version.c_str(), "%u.%u", &major, &minor) != 2) {
    throw Error(ErrorKind::kNotSupported, "says its version is '" + version + "', which cannot be read");
  }
  if (major != 1 || minor < kOldestRuntime) {
    throw Error(ErrorKind::kNotSupported, "is ONNX Runtime " + version + ", but opbridge needs 1." +
                                              std::to_string(kOldestRuntime) + " or newer of 1.x");
  }
  api_version = static_cast<int>(minor);
  // Asking for more than the runtime has prints to stderr and gives null.
  api = base->GetApi(std::min<uint32_t>(minor, ORT_API_VERSION));
  if (api == nullptr) {
    throw Error(ErrorKind::kNotSupported, "is ONNX Runtime " + version + ", but does not offer its own API");
  }
  const auto silent = [](void*, OrtLoggingLevel, const char*, const char*, const char*, const char*) {};
  check(api, api->CreateEnvWithCustomLogger(silent, nullptr, ORT_LOGGING_LEVEL_FATAL, "opbridge", &env));
}

Runtime::Impl::~Impl() {
  if (env != nullptr) api->ReleaseEnv(env);
}

Runtime Runtime::find(const std::string& path) {
  std::vector<std::string> tried;
  std::shared_ptr<Impl> found;
  const auto any_usable = [&](const std::vector<Candidate>& candidates) {
    for (const Candidate& c : candidates) {
      try {
        found = std::make_shared<Impl>(c.path, c.source);
        return true;
      } catch (const Error& e) {
        tried.push_back(c.source + ": " + c.path + " " + e.what());
      }
    }
    return false;
  };
  const std::string from_environment = environment("OPBRIDGE_ORT");
  const bool named = !path.empty() || !from_environment.empty();
  if (named) {
    any_usable(path.empty() ? named_by_user(from_environment, "OPBRIDGE_ORT")
                            : named_by_user(path, "the given path"));
  } else {
    bool python = false;
    const bool there = any_python_prefix([&](const PythonPrefix& prefix) {
      python = python || prefix.source.rfind("Python /", 0) == 0;
      std::vector<Candidate> candidates;
      add_python_prefix(prefix.path, prefix.source, candidates, tried);
      return any_usable(candidates);
    });
    if (!there) {
      if (!python) tried.push_back("Python: no python3 on PATH");
      any_usable({{"libonnxruntime.so.1", "the system"}, {"libonnxruntime.so", "the system"}});
    }
  }
  if (found) return Runtime(std::move(found));
  std::string message = named ? "no usable ONNX Runtime:" : "no usable ONNX Runtime found. Tried:";
  for (const std::string& t : tried) message += "\n  " + t;
  throw Error(ErrorKind::kNotSupported, message + "\n" + kHowToGetOne);
}

const std::string& Runtime::version() const { return impl_->version; }
const std::string& Runtime::path() const { return impl_->path; }
const std::string& Runtime::source() const { return impl_->source; }
int Runtime::api_version() const { return impl_->api_version; }

std::vector<std::string> Runtime::providers() const {
  char** names = nullptr;
  int count = 0;
  check(impl_->api, impl_->api->GetAvailableProviders(&names, &count));
  const std::vector<std::string> providers(names, names + count);
  check(impl_->api, impl_->api->ReleaseAvailableProviders(names, count));
  return providers;
}

void check(const OrtApi* api, OrtStatus* status, const std::string& what) {
  if (status == nullptr) return;
  std::string message = api->GetErrorMessage(status);
  message.erase(message.find_last_not_of(" \n") + 1);
  const OrtErrorCode code = api->GetErrorCode(status);
  api->ReleaseStatus(status);
  ErrorKind kind = ErrorKind::kInternal;
  switch (code) {
    case ORT_INVALID_ARGUMENT:
    case ORT_NO_SUCHFILE:
    case ORT_NO_MODEL:
    case ORT_INVALID_PROTOBUF:
    case ORT_INVALID_GRAPH:
      kind = ErrorKind::kInvalidArgument;
      break;
    case ORT_NOT_IMPLEMENTED:
      kind = ErrorKind::kNotSupported;
      break;
    default:
      break;
  }
  throw Error(kind, what.empty() ? message : what + ": " + message);
}

}  // namespace opbridge
