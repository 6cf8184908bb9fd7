// What doctor's parts share.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "child.h"
#include "doctor.h"
#include "runner/library_file.h"
#include "runner/model.h"

namespace opbridge::doctor {

using Json = nlohmann::ordered_json;

/// An operator as a library's registration showed it to ONNX Runtime.
struct RegisteredOp {
  std::string domain, name, provider;
  int version = 0;  // of the struct: the API it was built with
  int inputs = 0, outputs = 0;
  int required_inputs = 0;
  bool variadic = false;
  std::vector<int> input_types;  // ONNX element types, 0 undefined
};

/// A library as far as it could be read.
struct Library {
  std::string path;                      // as given
  std::string name;                      // its file name
  LibraryFile file;                      // with the manifest of an opbridge library
  bool usable = false;                   // ONNX Runtime could load it: nothing above a warning was found
  std::vector<RegisteredOp> registered;  // after --load

  bool known() const { return file.is_opbridge() || !registered.empty(); }
  std::set<std::string> domains() const;
  std::set<std::string> operators(const std::string& domain) const;
};

struct RuntimeFacts {
  bool usable = false;
  std::string version, path, source;
  int api = 0;
  std::vector<std::string> providers;
  int max_ir = 0, max_opset = 0;  // 0: could not be learnt
  std::string
      python;  // where only a Python module is ONNX Runtime (before 1.19): the interpreter that has it
};

inline bool starts_with(const std::string& text, const std::string& start) {
  return text.rfind(start, 0) == 0;
}

/// "1.21.3" -> {1, 21, 3}; these compare as versions do.
std::vector<int> version_numbers(const std::string& version);

/// What a file is instead of what it should be.
struct Format {
  const char* code = nullptr;  // of the finding; null where nothing is wrong
  std::string what, fix;       // fix may be empty: the catalogue's
};

/// Of files that are neither a library nor a model, `code`: empty, a Git LFS pointer, a web page.
Format format_of_neither(const std::string& bytes, const char* code);

/// Where the dynamic loader finds `name` for `file`, or empty.
std::string find_dependency(const std::string& name, const std::string& file, const ElfFacts& elf);

/// Reads a library's file: everything that needs no code of it to run. An opbridge library's manifest is
/// asked for in a child process.
Library check_library(const std::string& path, Report& report);
/// What several libraries do to each other.
void check_libraries(const std::vector<Library>& libraries, Report& report);

RuntimeFacts check_runtime(const Options& options, Report& report);
/// The interpreter of the Python environment in use (or of the one that `ort` names) and the version of its
/// onnxruntime; empty where there is none.
std::pair<std::string, std::string> python_runtime(const std::string& ort);
/// What releases up to `minor` are known to take: the IR version and ONNX's opset.
std::pair<int, int> known_limits(int minor);
/// The opsets of ONNX, as this runtime knows it, that have an operator of each of these names.
std::map<std::string, std::vector<int>> opsets_with(const RuntimeFacts& runtime,
                                                    const std::set<std::string>& operators);
void check_python(const Options& options, const RuntimeFacts& runtime, Report& report);
void check_cuda(const RuntimeFacts& runtime, const std::vector<Library>& libraries, Report& report);

/// Registers the libraries (those that may be run) in a child process and makes a session of the model, or of
/// a model of one node where `model` is empty.
void probe_registration(const Options& options, const RuntimeFacts& runtime, std::vector<Library>& libraries,
                        Report& report);
void probe_session(const Options& options, const RuntimeFacts& runtime, const std::vector<Library>& libraries,
                   Report& report);

/// What the model says, before any session.
std::optional<ModelInfo> check_model(const Options& options, const RuntimeFacts& runtime,
                                     const std::vector<Library>& libraries, Report& report);

void check_build_log(const std::string& path, Report& report);

}  // namespace opbridge::doctor
