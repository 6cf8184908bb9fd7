// `opbridge doctor`: what keeps a model, its libraries and this machine from working together.
#include "doctor/doctor.h"

#include <cstdio>
#include <memory>

#include "command.h"
#include "findings.h"
#include "opbridge/error.h"
#include "terminal.h"

namespace opbridge::cli {

namespace {

constexpr const char* kExamples = R"(Examples:
  opbridge doctor m.onnx --library libmy_custom_ops.so
  opbridge doctor m.onnx --library libsomebody_elses.so --load
  opbridge doctor --library libmy_custom_ops.so --provider cuda
  opbridge doctor --build-log build.log
  opbridge doctor                        what Python and ONNX Runtime are here

A library that is not opbridge's is only read, unless --load is given: then its registration runs in a child
process, so that a crash there is a finding.
Exit codes: 0 works, 1 will not work, 2 works, but (or a wrong command line).)";

void print(const doctor::Report& report) {
  const auto& facts = report.facts;
  const auto line = [](const char* what, const std::string& text) {
    std::printf("  %-9s %s\n", what, printable(text).c_str());
  };
  if (facts.contains("runtime")) {
    const auto& r = facts["runtime"];
    line("runtime", "ONNX Runtime " + r["version"].get<std::string>() + ", " + r["path"].get<std::string>() +
                        " (" + r["source"].get<std::string>() + ")");
  }
  if (facts.contains("python") && !facts["python"]["packages"].empty()) {
    std::string text;
    for (const auto& [name, version] : facts["python"]["packages"].items())
      text += (text.empty() ? "" : ", ") + name + " " + version.get<std::string>();
    line("python", text);
  }
  for (const auto& library : facts.value("libraries", nlohmann::ordered_json::array())) {
    std::string text = library["path"].get<std::string>();
    for (const auto& [domain, ops] : library["operators"].items())
      text += ", " + domain + " (" + std::to_string(ops.size()) + " operators)";
    line("library", text);
  }
  if (facts.contains("model")) {
    const auto& m = facts["model"];
    std::string opsets;
    for (const auto& [domain, version] : m["opsets"].items()) opsets += ", " + domain + " " + version.dump();
    line("model", m["path"].get<std::string>() + ": IR version " + m["ir_version"].dump() + opsets + ", " +
                      m["nodes"].dump() + " nodes, " + m["custom_nodes"].dump() + " custom");
  }
  print_findings(report);
}

}  // namespace

Command add_doctor(CLI::App& parent) {
  struct Options {
    doctor::Options doctor;
    bool json = false, catalogue = false;
  };
  const auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand(
      "doctor", "Finds what keeps a model, its libraries and this machine from working together");
  app->footer(kExamples);
  app->add_option("model", o->doctor.model, "An ONNX model")->option_text(" ");
  app->add_option("-l,--library", o->doctor.libraries,
                  "A custom-operator library; may be given several times")
      ->option_text("FILE")
      ->allow_extra_args(false);
  app->add_option("--ort", o->doctor.ort, "ONNX Runtime: libonnxruntime.so.*, or a folder that has it")
      ->option_text("PATH");
  app->add_option("--provider", o->doctor.provider, "Where it is to run")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->option_text("cpu|cuda");
  app->add_flag("--load", o->doctor.load,
                "Run the registration of libraries that are not opbridge's, in a child process");
  app->add_option("--build-log", o->doctor.build_log, "A compiler's output to look for the usual errors")
      ->check(CLI::ExistingFile)
      ->option_text("FILE");
  app->add_flag("--json", o->json, "Print JSON");
  app->add_flag("--catalogue", o->catalogue, "Print every kind of finding as a Markdown page");
  return {app, [o] {
            if (o->catalogue) {
              std::printf("%s", doctor::catalogue_markdown().c_str());
              return kOk;
            }
            doctor::Report report;
            {
              const Progress progress(!o->json);
              o->doctor.progress = [&](const std::string& what) { progress(what); };
              report = doctor::diagnose(o->doctor);
            }
            if (o->json)
              print_json(report.to_json());
            else
              print(report);
            return exit_code(report);
          }};
}

}  // namespace opbridge::cli
