// `opbridge check`: runs whatever a library's signatures, or a model's inputs, allow and says what is wrong.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "doctor/doctor.h"
#include "opbridge/runner.h"

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

struct Inputs {
  Arrays arrays;
  std::vector<std::string> given;  // those that were not made up: their shapes are what they are
};

struct ModelOptions {
  std::string model;
  std::vector<std::string> libraries;
  std::string ort;
  int threads = 0;
  double timeout = 60;             // [s] a run that takes longer hangs
  int repeats = 20;                // runs that must agree bit for bit
  int runs = 1000;                 // during which memory must not grow
  double memory_seconds = 10;      // at most, for these
  std::vector<std::string> fixed;  // dimensions whose size is not to be varied
  /// Inputs for a session; sizes of dynamic dimensions by their name, or as "input:axis".
  std::function<Inputs(const Session&, const std::map<std::string, int64_t>& sizes)> make_inputs;
  std::function<void(const std::string&)> progress;  // is told what is being looked at; may be empty
};

/// Sizes, repetition, rotations, NaN and memory of a model, in child processes.
doctor::Report check_model(const ModelOptions& options);

}  // namespace opbridge::checking
