// What `compare` and `bench` set against each other: models, libraries, runtimes and settings, in every combination.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "model_options.h"
#include "opbridge/runner.h"

namespace opbridge::cli {

struct SideOptions {
  std::string model, second;
  std::vector<std::string> libraries, libraries_b, orts, providers, levels;
  std::vector<int> threads;
  bool allow_fallback = false;
  int device_id = 0;
};

/// Declares the two models, --library, --library-b, --ort, --provider, --threads, --optimize, --allow-fallback and
/// --device-id.
void add_side_options(CLI::App& app, SideOptions& options);

/// One way of running a model.
struct Side {
  std::string model, ort, provider, level;
  std::vector<std::string> libraries;
  bool second_libraries = false;
  int threads = 0;

  SessionOptions session_options(const SideOptions& options) const;
  /// What tells it apart from the others, in words; `version` is its runtime's.
  std::string label(const SideOptions& options, const std::string& version) const;
};

/// All combinations; the first is what the others are compared with.
std::vector<Side> sides_of(const SideOptions& options);

/// `arrays` as `session`'s inputs, by name. Throws Error where it has one that `first`, whose inputs they are, has not.
Arrays same_inputs(const Session& session, const Arrays& arrays, const std::string& model,
                   const std::string& first);

}  // namespace opbridge::cli
