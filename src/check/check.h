// `opbridge check`: runs whatever a library's signatures, or a model's inputs, allow and says what is wrong.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "doctor/doctor.h"

namespace opbridge::checking {

/// Every kind of finding; docs/check.md is printed from these.
const std::vector<doctor::Entry>& catalogue();
/// Throws Error for a code that is not in the catalogue.
const doctor::Entry& find_entry(const std::string& code);
/// docs/check.md.
std::string page();

struct LibraryOptions {
  std::string library;
  std::vector<std::string> operators;  // ONNX names; empty: all
  std::vector<std::string> orts;       // as Runtime::find() takes them; empty: the one it finds
  uint64_t seed = 0;
  double timeout = 10;                               // [s] a call that takes longer hangs
  double budget = 20;                                // [s] for one operator
  std::function<void(const std::string&)> progress;  // is told what is being looked at; may be empty
};

/// Everything that a library's signatures allow, in child processes. What the file itself lacks is told in
/// doctor's words.
doctor::Report check_library(const LibraryOptions& options);

}  // namespace opbridge::checking
