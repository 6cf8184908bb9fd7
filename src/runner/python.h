// The Python environment that a user works in, found without Python.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace opbridge {

struct PythonPrefix {
  std::filesystem::path path;  // has lib/python3.x
  std::string source;          // how it was found, in words
};

/// In the order in which a user means them: VIRTUAL_ENV, CONDA_PREFIX, where this program is installed, python3 on PATH
/// (behind a shim such as pyenv's, where it says itself that it is), the user's own packages. They may not exist.
std::vector<PythonPrefix> python_prefixes();

/// The folders with packages that a prefix has, the newest Python's first.
std::vector<std::filesystem::path> site_packages(const std::filesystem::path& prefix);

/// What a folder has whose name starts so, in descending order of the numbers in it: 1.10 before 1.9.
std::vector<std::filesystem::path> newest_first(const std::filesystem::path& folder,
                                                const std::string& start);

}  // namespace opbridge
