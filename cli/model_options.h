// What the commands that run a model share: where its inputs come from and how it is run.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

#include "opbridge/runner.h"

namespace opbridge::cli {

struct InputOptions {
  std::vector<std::string> files;  // "NAME=FILE", "NAME=NUMBER" or "FILE"
  bool random = false;
  uint64_t seed = 0;
  std::vector<std::string> dims;  // "NAME=N" or "INPUT:AXIS=N"
};

/// Declares --input, --random, --seed and --dim. Returns the options, for excludes().
std::vector<CLI::Option*> add_input_options(CLI::App& app, InputOptions& options);

/// Everything about the inputs of one run.
struct Inputs {
  Arrays arrays;
  std::map<std::string, std::string> sources;  // input -> its file, or "random"
  std::vector<std::string> notes;              // what had to be assumed
};

/// Reads the files, makes the random ones. Throws Error that says how to give what is missing.
Inputs collect_inputs(const Session& session, const InputOptions& options);

/// Runs. Where that fails, the error also tells what had to be assumed about the inputs: it may be the cause.
Arrays run_first(const Session& session, const Arrays& arrays, const std::vector<std::string>& notes);

/// The names of the levels that --optimize takes.
const std::map<std::string, Optimization>& optimization_levels();

/// Declares --library, --threads, --provider, --allow-fallback, --device-id, --optimize and --ort.
void add_session_options(CLI::App& app, SessionOptions& options, std::string& ort);

}  // namespace opbridge::cli
