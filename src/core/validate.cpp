// opbridge_validate LIBRARY.so: loads a library that has just been linked and lets it check its own
// declarations, so that a wrong signature fails the build.
#include <dlfcn.h>

#include <cstdio>

#include "opbridge/abi.h"

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: opbridge_validate LIBRARY.so\n"), 2;
  void* handle = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return std::fprintf(stderr, "error: %s\n", dlerror()), 1;
  const auto get = reinterpret_cast<decltype(&opbridge_get_library)>(dlsym(handle, "opbridge_get_library"));
  if (get == nullptr) return std::fprintf(stderr, "error: %s\n", dlerror()), 1;
  OpbridgeError error{};
  error.size = sizeof error;
  if (get(OPBRIDGE_ABI_VERSION, &error) == nullptr)
    return std::fprintf(stderr, "error: %s\n", error.message), 1;
  return 0;
}
