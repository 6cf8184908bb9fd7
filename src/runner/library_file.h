// A shared library seen from outside, and what an opbridge library says about itself.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace opbridge {

/// Facts of an ELF file, read without executing any of it.
struct ElfFacts {
  std::string machine;                // "x86_64"
  std::string soname;                 // DT_SONAME
  std::vector<std::string> run_path;  // DT_RUNPATH, DT_RPATH
  std::vector<std::string> needed;    // DT_NEEDED
  std::vector<std::string> exported;  // defined, visible names of .dynsym, sorted
  std::vector<std::string>
      hidden;  // defined names of .symtab that are not exported, sorted; none if stripped
  std::vector<std::string> undefined;  // names that other libraries must have, weak ones left out, sorted
  std::vector<std::string> needed_versions;  // the newest of each family: "GLIBC_2.17", "GLIBCXX_3.4.21"
  bool has_cuda_code = false;                // sections with CUDA kernels
  bool executable_stack = false;             // asks for one (PT_GNU_STACK)

  bool exports(const std::string& symbol) const;
};

/// Whether the file starts as an ELF file does. False for a file that cannot be read.
bool is_elf(const std::string& path);

/// Throws Error: no such file, not an ELF file, damaged, not a shared library, for another machine.
ElfFacts read_elf(const std::string& path);
/// The same of a file's bytes; `path` is for messages.
ElfFacts parse_elf(const std::string& bytes, const std::string& path);

struct LibraryFile {
  std::string path;
  ElfFacts elf;
  nlohmann::ordered_json manifest;  // docs/manifest.md; null when the library is not opbridge's

  bool is_opbridge() const { return !manifest.is_null(); }
  std::string domain() const;
  /// An operator's entry in the manifest, or null.
  const nlohmann::ordered_json* find_operator(const std::string& name) const;
};

/// Reads the file and, only if it exports opbridge_get_library, loads it and asks for its manifest.
LibraryFile read_library(const std::string& path);

/// As read_library() for a library that ONNX Runtime is to load: throws Error when it has no
/// RegisterCustomOps.
LibraryFile read_operator_library(const std::string& path);

}  // namespace opbridge
