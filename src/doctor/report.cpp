#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "internal.h"
#include "opbridge/error.h"

namespace opbridge::doctor {

std::vector<int> version_numbers(const std::string& version) {
  std::vector<int> numbers;
  std::stringstream stream(version);
  for (std::string part; std::getline(stream, part, '.');) numbers.push_back(std::atoi(part.c_str()));
  return numbers;
}

Format format_of_neither(const std::string& bytes, const char* code) {
  const std::string head = bytes.substr(0, 4096);
  if (head.empty()) return {code, "it is empty", ""};
  if (starts_with(head, "version https://git-lfs"))
    return {code, "it is a Git LFS pointer: run git lfs pull", "git lfs install && git lfs pull"};
  if (head.find("<html") != std::string::npos || head.find("<!DOCTYPE") != std::string::npos)
    return {code, "it is a web page (a download that went wrong?)",
            "download it again: the address gave a page, not the file"};
  return {};
}

void Report::add(const std::string& code, std::string subject, std::string evidence, std::string fix) {
  add(find_entry(code), std::move(subject), std::move(evidence), std::move(fix));
}

void Report::add(const Entry& entry, std::string subject, std::string evidence, std::string fix) {
  if (fix.empty()) fix = entry.fix;
  for (const Finding& f : findings) {
    if (f.entry == &entry && f.subject == subject && f.evidence == evidence) return;
  }
  findings.push_back({&entry, std::move(subject), std::move(evidence), std::move(fix)});
}

bool Report::has(const std::string& code, const std::string& subject) const {
  return std::any_of(findings.begin(), findings.end(),
                     [&](const Finding& f) { return code == f.entry->code && subject == f.subject; });
}

void Report::sort() {
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.entry->severity < b.entry->severity; });
}

int Report::count(Severity severity) const {
  return static_cast<int>(std::count_if(findings.begin(), findings.end(),
                                        [&](const Finding& f) { return f.entry->severity == severity; }));
}

std::string Report::verdict() const {
  const int errors = count(Severity::kError), warnings = count(Severity::kWarning);
  const auto times = [](int n, const std::string& what) {
    return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
  };
  if (errors > 0)
    return std::string(wrong) + ": " + times(errors, "error") +
           (warnings > 0 ? ", " + times(warnings, "warning") : "");
  if (warnings > 0) return std::string(right) + ", but: " + times(warnings, "warning");
  return std::string(right) + ": nothing found";
}

Json Report::to_json() const {
  Json list = Json::array();
  for (const Finding& f : findings) {
    list.push_back({{"code", f.entry->code},
                    {"severity", severity_name(f.entry->severity)},
                    {"subject", f.subject},
                    {"cause", f.entry->cause},
                    {"evidence", f.evidence},
                    {"fix", f.fix}});
  }
  Json result = {{"verdict", verdict()},
                 {"errors", count(Severity::kError)},
                 {"warnings", count(Severity::kWarning)},
                 {"findings", list}};
  for (const auto& [key, value] : facts.items()) result[key] = value;
  return result;
}

Report diagnose(const Options& options) {
  Report report;
  report.facts = Json::object();
  const auto progress = [&](const std::string& what) {
    if (options.progress) options.progress(what);
  };
  if (!options.build_log.empty()) check_build_log(options.build_log, report);
  const bool only_log = options.model.empty() && options.libraries.empty() && !options.build_log.empty();
  if (!only_log) {
    std::vector<Library> libraries;
    for (const std::string& path : options.libraries) {
      progress("reading " + path);
      libraries.push_back(check_library(path, report));
    }
    progress("looking for ONNX Runtime");
    const RuntimeFacts runtime = check_runtime(options, report);
    check_python(options, runtime, report);
    if (runtime.usable && !libraries.empty()) {
      progress("registering the libraries");
      probe_registration(options, runtime, libraries, report);
    }
    check_libraries(libraries, report);
    if (options.provider == "cuda") check_cuda(runtime, libraries, report);
    if (!options.model.empty()) {
      progress("reading " + options.model);
      const auto model = check_model(options, runtime, libraries, report);
      const bool readable = model || report.has("model-ort-format", options.model);
      if (readable && (runtime.usable || !runtime.python.empty()) && report.count(Severity::kError) == 0) {
        progress("making a session");
        probe_session(options, runtime, libraries, report);
      }
    }
  }
  report.sort();
  return report;
}

}  // namespace opbridge::doctor
