// `opbridge check`: does a library, or a model, do what it says, whatever it is given?
#include "check/check.h"

#include <cstdio>
#include <memory>

#include "command.h"
#include "findings.h"
#include "opbridge/error.h"
#include "terminal.h"

namespace opbridge::cli {

namespace {

constexpr const char* kExamples = R"(Examples:
  opbridge check libmy_custom_ops.so
  opbridge check libmy_custom_ops.so --op my_clip --seed 7
  opbridge check libmy_custom_ops.so --ort onnxruntime-1.17/lib --ort onnxruntime-1.32/lib

A library's operators are called with everything that their signatures allow and much that they forbid, in child
processes, so that a crash or a hang is a finding.
Exit codes: 0 passes, 1 fails, 2 passes, but (or a wrong command line).)";

struct Options {
  checking::LibraryOptions library;
  std::string file;
  bool json = false, catalogue = false;
};

void print(const doctor::Report& report) {
  const auto& facts = report.facts;
  if (facts.contains("operators")) {
    std::vector<std::vector<std::string>> rows = {{"operator", "calls", "refused", "wrong calls", "seconds"}};
    for (const auto& op : facts["operators"]) {
      rows.push_back({op["name"].get<std::string>(), op["computed"].dump(), op["refused"].dump(),
                      op["wrong_calls"].dump(), number(op["seconds"].get<double>())});
    }
    std::printf("%s", table(rows).c_str());
  }
  for (const auto& skipped : facts.value("skipped", nlohmann::ordered_json::array())) {
    std::printf("not checked: %s: %s\n", printable(skipped["what"].get<std::string>()).c_str(),
                printable(skipped["why"].get<std::string>()).c_str());
  }
  print_findings(report);
}

}  // namespace

Command add_check(CLI::App& parent) {
  const auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand(
      "check", "Calls a library's operators with everything their signatures allow and says what is wrong");
  app->footer(kExamples);
  app->add_option("file", o->file, "A library of opbridge operators")->option_text(" ");
  app->add_option("--op", o->library.operators, "Only this operator; may be repeated")
      ->allow_extra_args(false)
      ->option_text("NAME");
  app->add_option("--ort", o->library.orts,
                  "ONNX Runtime: libonnxruntime.so.*, or a folder that has it; twice: both in one process")
      ->allow_extra_args(false)
      ->option_text("PATH");
  app->add_option("--seed", o->library.seed, "Of the values [0]")->option_text("N");
  app->add_option("--timeout", o->library.timeout, "A call that takes longer hangs [10]")
      ->check(CLI::Range(1.0, 3600.0))
      ->option_text("SECONDS");
  app->add_option("--budget", o->library.budget, "Time for one operator; what does not fit is named [20]")
      ->check(CLI::Range(0.1, 86400.0))
      ->option_text("SECONDS");
  app->add_flag("--json", o->json, "Print JSON");
  app->add_flag("--catalogue", o->catalogue,
                "Print docs/check.md: what is checked, and every kind of finding");
  return {app, [o] {
            if (o->catalogue) {
              std::printf("%s", checking::page().c_str());
              return kOk;
            }
            if (o->file.empty()) {
              std::fprintf(stderr, "%s give a library: opbridge check lib<name>.so\n", error_label().c_str());
              return kUsage;
            }
            doctor::Report report;
            {
              const Progress progress(!o->json);
              o->library.library = o->file;
              o->library.progress = [&](const std::string& what) { progress(what); };
              report = checking::check_library(o->library);
            }
            if (o->json)
              print_json(report.to_json());
            else
              print(report);
            return exit_code(report);
          }};
}

}  // namespace opbridge::cli
