// `opbridge check`: does a library, or a model, do what it says, whatever it is given?
#include "check/check.h"

#include <cstdio>
#include <memory>

#include "command.h"
#include "findings.h"
#include "model_options.h"
#include "opbridge/error.h"
#include "runner/library_file.h"
#include "terminal.h"

namespace opbridge::cli {

namespace {

constexpr const char* kExamples = R"(Examples:
  opbridge check libmy_custom_ops.so
  opbridge check libmy_custom_ops.so --op my_clip --seed 7
  opbridge check libmy_custom_ops.so --ort onnxruntime-1.17/lib --ort onnxruntime-1.32/lib
  opbridge check m.onnx --library libmy_custom_ops.so
  opbridge check m.onnx --library libmy_custom_ops.so --input cloud=frame.npy --dim batch=2

A library's operators are called with everything that their signatures allow and much that they forbid, in child
processes, so that a crash or a hang is a finding. A model is run with several sizes of its dynamic dimensions, and
repeatedly.
Exit codes: 0 passes, 1 fails, 2 passes, but (or a wrong command line).)";

struct Options {
  checking::LibraryOptions library;
  checking::ModelOptions model;
  InputOptions inputs;
  std::string file;
  double timeout = 0;
  bool json = false, catalogue = false;
};

void print(const doctor::Report& report) {
  const auto& facts = report.facts;
  for (const auto& d : facts.value("dimensions", nlohmann::ordered_json::array())) {
    std::printf("  %-16s runs with %s%s\n", printable(d["name"].get<std::string>()).c_str(),
                d["ran"].dump().c_str(),
                d["refused"].empty() ? "" : (", refuses " + d["refused"].dump()).c_str());
  }
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

// By its name, or by what it is not.
bool is_model(const std::string& file) {
  const auto ends = [&](const std::string& end) {
    return file.size() > end.size() && file.compare(file.size() - end.size(), end.size(), end) == 0;
  };
  return ends(".onnx") || (file.find(".so") == std::string::npos && !is_elf(file));
}

doctor::Report check_library(Options& o, const std::function<void(const std::string&)>& progress) {
  o.library.library = o.file;
  o.library.seed = o.inputs.seed;
  o.library.progress = progress;
  if (o.timeout > 0) o.library.timeout = o.timeout;
  return checking::check_library(o.library);
}

doctor::Report check_model(Options& o, const std::function<void(const std::string&)>& progress) {
  o.model.model = o.file;
  if (o.library.orts.size() > 1) throw InvalidArgument("a model is checked with one --ort at a time");
  if (!o.library.orts.empty()) o.model.ort = o.library.orts[0];
  if (o.timeout > 0) o.model.timeout = o.timeout;
  for (const std::string& dim : o.inputs.dims) o.model.fixed.push_back(dim.substr(0, dim.rfind('=')));
  o.model.make_inputs = [&o](const Session& session, const std::map<std::string, int64_t>& sizes) {
    InputOptions options = o.inputs;
    options.random = true;
    for (const auto& [name, size] : sizes) options.dims.push_back(name + "=" + std::to_string(size));
    const Inputs inputs = collect_inputs(session, options);
    checking::Inputs result{inputs.arrays, {}};
    for (const auto& [name, source] : inputs.sources) {
      if (source != "random") result.given.push_back(name);
    }
    return result;
  };
  o.model.progress = progress;
  return checking::check_model(o.model);
}

}  // namespace

Command add_check(CLI::App& parent) {
  const auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand(
      "check", "Runs a library's operators, or a model, with whatever they allow and says what is wrong");
  app->footer(kExamples);
  app->add_option("file", o->file, "A library of opbridge operators, or a model")->option_text(" ");
  app->add_option("--op", o->library.operators, "Library: only this operator; may be repeated")
      ->allow_extra_args(false)
      ->option_text("NAME");
  app->add_option("--ort", o->library.orts,
                  "ONNX Runtime: libonnxruntime.so.*, or a folder that has it; twice: both in one process")
      ->allow_extra_args(false)
      ->option_text("PATH");
  app->add_option("--timeout", o->timeout, "A call, or a run, that takes longer hangs [10; a model: 60]")
      ->check(CLI::Range(1.0, 3600.0))
      ->option_text("SECONDS");
  app->add_option("--budget", o->library.budget,
                  "Library: time for one operator; what does not fit is named [20]")
      ->check(CLI::Range(0.1, 86400.0))
      ->option_text("SECONDS");
  app->add_option("-l,--library", o->model.libraries, "Model: a custom-operator library; may be repeated")
      ->allow_extra_args(false)
      ->option_text("FILE");
  const std::vector<CLI::Option*> input_options = add_input_options(*app, o->inputs);
  for (CLI::Option* option : input_options) {
    if (option->check_name("--random")) app->remove_option(option);  // always: what is not given is made up
  }
  app->get_option("--seed")->description("Of the values [0]");
  app->add_option("--threads", o->model.threads,
                  "Model: threads inside an operator; 0: ONNX Runtime decides [0]")
      ->check(CLI::Range(0, 4096))
      ->option_text("N");
  app->add_option("--repeat", o->model.repeats, "Model: runs that must agree bit for bit [20]")
      ->check(CLI::Range(2, 1000000))
      ->option_text("N");
  app->add_option("--runs", o->model.runs, "Model: runs during which memory must not grow [1000]")
      ->check(CLI::Range(100, 100000000))
      ->option_text("N");
  app->add_option("--memory-seconds", o->model.memory_seconds, "Model: at most this long for these [10]")
      ->check(CLI::Range(0.1, 86400.0))
      ->option_text("SECONDS");
  app->add_flag("--json", o->json, "Print JSON");
  app->add_flag("--catalogue", o->catalogue,
                "Print docs/check.md: what is checked, and every kind of finding");
  return {
      app, [o] {
        if (o->catalogue) {
          std::printf("%s", checking::page().c_str());
          return kOk;
        }
        if (o->file.empty()) {
          std::fprintf(stderr,
                       "%s give a library or a model: opbridge check lib<name>.so, opbridge check m.onnx\n",
                       error_label().c_str());
          return kUsage;
        }
        const bool model = is_model(o->file);
        const bool misplaced =
            model ? !o->library.operators.empty()
                  : !o->model.libraries.empty() || !o->inputs.files.empty() || !o->inputs.dims.empty();
        if (misplaced) {
          std::fprintf(stderr,
                       "%s %s is a %s: --op is for libraries, --library, --input and --dim are for models\n",
                       error_label().c_str(), printable(o->file).c_str(), model ? "model" : "library");
          return kUsage;
        }
        doctor::Report report;
        {
          const Progress progress(!o->json);
          const auto tell = [&](const std::string& what) { progress(what); };
          report = model ? check_model(*o, tell) : check_library(*o, tell);
        }
        if (o->json)
          print_json(report.to_json());
        else
          print(report);
        return exit_code(report);
      }};
}

}  // namespace opbridge::cli
