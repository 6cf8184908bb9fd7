// `opbridge doctor`: looks at a model, its custom-operator libraries and the machine, and says what keeps
// them from working together, with evidence and a fix. Nothing foreign runs unless `load` is set, and then in
// a child process.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace opbridge::doctor {

enum class Severity : uint8_t { kError, kWarning, kNote };
const char* severity_name(Severity severity);

/// What is always true of a kind of finding; docs/doctor.md is printed from these.
struct Entry {
  const char* code;
  Severity severity;
  const char* symptom;  // what people see without doctor
  const char* cause;
  const char* fix;
};

/// Every kind of finding.
const std::vector<Entry>& catalogue();
/// Throws Error for a code that is not in the catalogue.
const Entry& find_entry(const std::string& code);
/// The catalogue as a page.
std::string catalogue_markdown();
/// Heading and row of a table of entries.
std::string table_heading(const std::string& title);
std::string table_row(const Entry& entry);

struct Finding {
  const Entry* entry;
  std::string subject;   // file, node or package
  std::string evidence;  // what was seen here
  std::string fix;       // the command or line that mends it here
};

struct Options {
  std::string model;                   // may be empty
  std::vector<std::string> libraries;  // custom-operator libraries
  std::string ort;                     // ONNX Runtime, as Runtime::find() takes it
  std::string provider = "cpu";        // or "cuda"
  bool load = false;                   // run the registration of libraries that are not opbridge's
  std::string build_log;               // output of a compiler to read, may be empty
  std::function<void(const std::string&)> progress;  // is told what is being looked at; may be empty
};

struct Report {
  std::vector<Finding> findings;  // errors first
  nlohmann::ordered_json facts;   // "runtime", "libraries", "model", "environment": what was looked at

  // What the verdict starts with.
  const char* right = "works";
  const char* wrong = "will not work";

  void add(const std::string& code, std::string subject, std::string evidence, std::string fix = {});
  /// The same of an entry that need not be in doctor's catalogue.
  void add(const Entry& entry, std::string subject, std::string evidence, std::string fix = {});
  /// Errors first, notes last.
  void sort();
  /// Whether there is such a finding about `subject`.
  bool has(const std::string& code, const std::string& subject) const;
  int count(Severity severity) const;
  /// "works", "works, but ..." or "will not work": with numbers.
  std::string verdict() const;
  nlohmann::ordered_json to_json() const;
};

/// "a, b, c and 3 more"
std::string some_of(const std::vector<std::string>& items, size_t shown = 3);

Report diagnose(const Options& options);

}  // namespace opbridge::doctor
