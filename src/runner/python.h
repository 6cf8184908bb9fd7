// The Python environment that a user works in, found without Python.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace opbridge {

struct PythonPrefix {
  std::filesystem::path path;  // has lib/python3.x
  std::string source;          // how it was found, in words
};

/// Asks of one after the other whether it is the one wanted, until one is: VIRTUAL_ENV, CONDA_PREFIX, where this program
/// is installed, python3 on PATH (behind a shim such as pyenv's, where it says itself that it is: that starts a Python, so
/// only when nothing before was it), the user's own packages. They may not exist.
bool any_python_prefix(const std::function<bool(const PythonPrefix&)>& is_it);

/// The folders with packages that a prefix has, the newest Python's first.
std::vector<std::filesystem::path> site_packages(const std::filesystem::path& prefix);

/// An environment variable, "" where it is not set.
std::string environment(const char* name);

/// What a folder has whose name starts so, in descending order of the numbers in it: 1.10 before 1.9.
std::vector<std::filesystem::path> newest_first(const std::filesystem::path& folder,
                                                const std::string& start);

}  // namespace opbridge
