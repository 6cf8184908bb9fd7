// A subcommand of `opbridge`: declares its arguments on the parser and says what to run when it was chosen.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace opbridge::cli {

constexpr int kOk = 0;
constexpr int kFailed = 1;  // the work could not be done, or a comparison failed
constexpr int kUsage = 2;   // the command line itself is wrong

struct Command {
  CLI::App* app;
  std::function<int()> run;  // returns the exit code; throws Error for kFailed
};

Command add_bench(CLI::App& parent);
Command add_check(CLI::App& parent);
Command add_compare(CLI::App& parent);
Command add_doctor(CLI::App& parent);
Command add_inspect(CLI::App& parent);
Command add_keypoints(CLI::App& parent);
Command add_new(CLI::App& parent);
Command add_pose(CLI::App& parent);
Command add_replay(CLI::App& parent);
Command add_run(CLI::App& parent);
Command add_verify(CLI::App& parent);

}  // namespace opbridge::cli
