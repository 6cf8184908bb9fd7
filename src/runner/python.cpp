#include "python.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace opbridge {

namespace fs = std::filesystem;

namespace {

std::vector<int> numbers_in(const std::string& name) {
  std::vector<int> numbers;
  for (size_t i = 0; i < name.size();) {
    if (name[i] < '0' || name[i] > '9') {
      ++i;
      continue;
    }
    int n = 0;
    for (; i < name.size() && name[i] >= '0' && name[i] <= '9'; ++i)
      n = n < 100000 ? n * 10 + (name[i] - '0') : n;
    numbers.push_back(n);
  }
  return numbers;
}

fs::path on_path(const std::string& program) {
  std::stringstream path(environment("PATH"));
  for (std::string folder; std::getline(path, folder, ':');) {
    std::error_code ec;
    const fs::path p = fs::path(folder) / program;
    if (!folder.empty() && fs::is_regular_file(p, ec)) return p;
  }
  return {};
}

// What a Python says its prefix is, or nothing.
fs::path asked(const fs::path& python) {
  std::string quoted = "'";
  for (const char c : python.string()) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  FILE* pipe = popen((quoted + "' -c 'import sys; print(sys.prefix)' 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return {};
  char line[4096] = "";
  const bool any = std::fgets(line, sizeof line, pipe) != nullptr;
  pclose(pipe);
  std::string prefix = any ? line : "";
  while (!prefix.empty() && prefix.back() == '\n') prefix.pop_back();
  return prefix;
}

}  // namespace

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<fs::path> newest_first(const fs::path& folder, const std::string& start) {
  std::vector<fs::path> found;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->path().filename().string().rfind(start, 0) == 0) found.push_back(it->path());
  }
  std::sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) {
    return numbers_in(a.filename()) > numbers_in(b.filename());
  });
  return found;
}

std::vector<fs::path> site_packages(const fs::path& prefix) {
  std::vector<fs::path> found;
  for (const char* lib : {"lib", "lib64", "local/lib"}) {
    for (const fs::path& python : newest_first(prefix / lib, "python")) {
      for (const char* site : {"site-packages", "dist-packages"}) {
        std::error_code ec;
        if (fs::is_directory(python / site, ec)) found.push_back(python / site);
      }
    }
  }
  return found;
}

bool any_python_prefix(const std::function<bool(const PythonPrefix&)>& is_it) {
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (!environment(name).empty() && is_it({environment(name), std::string("Python environment ") + name}))
      return true;
  }
  // A program that a wheel installed lies somewhere below the prefix of its environment.
  std::error_code ec;
  const fs::path self = fs::read_symlink("/proc/self/exe", ec);
  for (fs::path p = self.parent_path(); !ec && p.has_relative_path(); p = p.parent_path()) {
    if (!fs::exists(p / "pyvenv.cfg", ec)) continue;
    if (is_it({p, "Python environment of this program"})) return true;
    break;
  }
  const fs::path python = on_path("python3");
  if (!python.empty()) {
    fs::path prefix = python.parent_path().parent_path();
    if (site_packages(prefix).empty()) {
      const fs::path told = asked(python);
      if (!told.empty()) prefix = told;
    }
    if (is_it({prefix, "Python " + python.string()})) return true;
  }
  return !environment("HOME").empty() &&
         is_it({fs::path(environment("HOME")) / ".local", "Python user packages"});
}

}  // namespace opbridge
