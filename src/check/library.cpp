// Drives the battery: one operator after another, each in child processes that may end as they like.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>

#include "check.h"
#include "core/text.h"
#include "doctor/internal.h"
#include "jobs.h"
#include "memory.h"
#include "opbridge/error.h"
#include "sessions.h"

namespace opbridge::checking {

using doctor::Json;
using doctor::Outcome;
using doctor::Report;
using doctor::Say;

namespace {

const OpbridgeLibrary* load(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw Error(ErrorKind::kNotSupported, dlerror());
  const auto get = reinterpret_cast<decltype(&opbridge_get_library)>(dlsym(handle, "opbridge_get_library"));
  OpbridgeError error{};
  error.size = sizeof error;
  const OpbridgeLibrary* table = get == nullptr ? nullptr : get(OPBRIDGE_ABI_VERSION, &error);
  if (table == nullptr) throw Error(ErrorKind::kNotSupported, error.message);
  return table;
}

struct Subject {
  Signature signature;
  std::string full_name, short_name;
};

class Battery {
 public:
  Battery(const LibraryOptions& options, const doctor::Library& library, Report& report)
      : options_(options), library_(library), report_(report), mark_(Mark::make()) {}

  void run() {
    const auto subjects = choose();
    Json operators = Json::array();
    for (const Subject& subject : subjects) {
      if (options_.progress)
        options_.progress("[" + std::to_string(operators.size() + 1) + "/" + std::to_string(subjects.size()) +
                          "] " + subject.short_name);
      operators.push_back(check_operator(subject));
    }
    check_sessions(subjects);
    add_findings();
    report_.facts["operators"] = operators;
    report_.facts["skipped"] = skipped_;
  }

 private:
  static constexpr int kMostCrashes = 8;  // of one operator

  struct Seen {
    std::string first;
    size_t times = 0;
  };

  std::vector<Subject> choose() {
    std::vector<Subject> subjects;
    std::vector<std::string> names;
    for (const Json& op : library_.file.manifest.at("operators")) names.push_back(op.at("name"));
    for (const std::string& wanted : options_.operators) {
      if (std::find(names.begin(), names.end(), wanted) == names.end())
        throw InvalidArgument("'" + options_.library + "' has no operator '" + wanted + "'" +
                              did_you_mean(wanted, names) + " (it has " + list_of(names, "and") + ")");
    }
    for (const Json& op : library_.file.manifest.at("operators")) {
      const std::string name = op.at("name"), full = library_.file.domain() + "::" + name;
      const auto& chosen = options_.operators;
      if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), name) == chosen.end()) continue;
      const auto devices = op.at("devices").get<std::vector<std::string>>();
      if (std::find(devices.begin(), devices.end(), "cpu") == devices.end()) {
        skip(full, "it has no CPU kernel");
        continue;
      }
      try {
        subjects.push_back({parse_signature(op.at("signature").get<std::string>()), full, name});
      } catch (const Error& e) {
        found(full, "manifest-wrong", e.what());
      }
    }
    return subjects;
  }

  void skip(const std::string& what, const std::string& why) {
    skipped_.push_back({{"what", what}, {"why", why}});
  }

  void found(const std::string& subject, const std::string& code, const std::string& evidence) {
    Seen& seen = findings_[{subject, code}];
    if (seen.times++ == 0) seen.first = evidence;
  }

  void add_findings() {
    for (const auto& [key, seen] : findings_) {
      std::string evidence = seen.first;
      if (seen.times > 1)
        evidence += " (and " + std::to_string(seen.times - 1) + " more case" + (seen.times == 2 ? ")" : "s)");
      report_.add(find_entry(key.second), key.first, evidence);
    }
  }

  // What the end of a child says. Returns how much of the patience with an operator it has used up.
  int crashed(const std::string& subject, const Outcome& outcome) {
    const std::string label = mark_->doing;
    const std::string printed =
        outcome.printed.empty() ? "" : "; it printed: " + outcome.printed.substr(0, 400);
    if (mark_->fault_code[0] != '\0') {
      found(subject, mark_->fault_code, label + ": " + mark_->fault + ", and the process " + outcome.crash);
    } else if (outcome.crash.find("signal " + std::to_string(SIGALRM)) != std::string::npos ||
               outcome.crash.find("did not end") != std::string::npos) {
      found(subject, "hang",
            label + ": no answer within " + to_text(static_cast<float>(options_.timeout)) + " s");
      return kMostCrashes / 2;
    } else {
      found(subject, mark_->empty ? "crash-on-empty" : "crash",
            label + ": the process " + outcome.crash + printed);
    }
    return 1;
  }

  Outcome in_process(const Subject& subject, const std::function<void(Bench&)>& work, double seconds) {
    const auto inside = [&](const Say& say) {
      const OpbridgeLibrary* table = load(library_.file.path);
      note_faults(mark_);
      const Callee callee(table, subject.signature, subject.full_name);
      Bench bench(callee, mark_, say, options_.seed, options_.timeout);
      work(bench);
      alarm(0);
    };
    mark_->fault_code[0] = '\0';
    return doctor::in_child(inside, seconds);
  }

  Json check_operator(const Subject& subject) {
    const std::vector<Job> jobs = make_jobs(subject.signature, options_.seed);
    const auto start = std::chrono::steady_clock::now();
    const auto seconds = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    mark_->unrepeatable = false;
    std::vector<Json> sequences;
    std::string refusal, printed;
    size_t computed = 0, refused = 0, wrong_calls = 0;
    int crashes = 0;
    for (int next = 0; next < static_cast<int>(jobs.size());) {
      mark_->job = -1;
      const Outcome outcome = in_process(
          subject,
          [&](Bench& bench) {
            for (int i = next; i < static_cast<int>(jobs.size()); ++i) {
              const Job& job = jobs[static_cast<size_t>(i)];
              if (job.compares && mark_->unrepeatable) continue;
              if (seconds() > options_.budget) {
                bench.say("late", {{"job", job.name}});
                return;
              }
              mark_->job = i;
              mark_->say(job.name);
              try {
                job.run(bench);
              } catch (const std::exception& e) {
                bench.found("internal-error", std::string(mark_->doing) + ": " + e.what());
              } catch (...) {
                bench.found("odd-exception",
                            std::string(mark_->doing) + ": it was thrown through the C interface");
              }
            }
          },
          options_.budget + options_.timeout * 2 + 30);
      take(subject.full_name, outcome);
      for (const Json& s : outcome.all("sequence")) sequences.push_back(s);
      computed += outcome.all("computed").size();
      refused += outcome.all("refused").size();
      for (const Json& n : outcome.all("wrong_calls")) wrong_calls += n.get<size_t>();
      if (refusal.empty() && !outcome.all("refused").empty()) refusal = outcome.all("refused")[0];
      for (const Json& late : outcome.all("late"))
        skip(subject.full_name,
             "out of time at '" + late.at("job").get<std::string>() + "' and what follows");
      if (outcome.crash.empty()) {
        if (!outcome.error.empty()) found(subject.full_name, "internal-error", outcome.error);
        printed = outcome.printed;
        break;
      }
      crashes += crashed(subject.full_name, outcome);
      if (crashes >= kMostCrashes) {
        skip(subject.full_name, "it ended one process after another: the rest was left out");
        break;
      }
      next = mark_->job + 1;
    }
    if (!printed.empty())
      found(subject.full_name, "prints", "on stdout or stderr: " + printed.substr(0, 400));
    check_other_process(subject, jobs, sequences);
    const auto first = findings_.lower_bound({subject.full_name, ""});
    if (computed == 0 && (first == findings_.end() || first->first.first != subject.full_name))
      found(subject.full_name, "never-ran", refusal.empty() ? "no call was made" : "refused: " + refusal);
    return {{"name", subject.full_name},
            {"computed", computed},
            {"refused", refused},
            {"wrong_calls", wrong_calls},
            {"seconds", seconds()}};
  }

  // The same calls in another process: what differs there depends on chance, what only changes with each call
  // is kept between calls.
  void check_other_process(const Subject& subject, const std::vector<Job>& jobs,
                           const std::vector<Json>& here) {
    if (here.empty()) return;
    const Outcome outcome = in_process(
        subject,
        [&](Bench& bench) {
          for (const Job& job : jobs) {
            if (job.repeats) job.run(bench);
          }
        },
        options_.timeout * 2 + 30);
    const std::vector<Json>& there = outcome.all("sequence");
    for (size_t i = 0; i < std::min(here.size(), there.size()); ++i) {
      const std::string label = here[i].at("label"), changed = here[i].at("changed");
      if (here[i].at("hashes") != there[i].at("hashes"))
        return found(subject.full_name, "not-deterministic",
                     label + ": " + (changed.empty() ? "another process gets another result" : changed));
      if (!changed.empty()) return found(subject.full_name, "state-between-calls", label + ": " + changed);
    }
  }

  void check_sessions(const std::vector<Subject>& subjects) {
    std::vector<std::string> orts = options_.orts;
    if (orts.empty()) orts.emplace_back();
    const Outcome probe = doctor::in_child(
        [&](const Say& say) {
          for (const std::string& ort : orts) {
            const Runtime runtime = Runtime::find(ort);
            say("runtime", {{"version", runtime.version()}, {"path", runtime.path()}});
          }
        },
        60);
    if (!probe.ok()) {
      const std::string why = probe.error + probe.crash;
      if (!options_.orts.empty()) throw InvalidArgument(why);
      skip("ONNX Runtime", "none was found: " + why.substr(0, why.find('\n')));
      return;
    }
    report_.facts["runtimes"] = probe.all("runtime");
    if (orts.size() < 2) skip("two ONNX Runtimes in one process", "give --ort twice, with two of them");
    int crashes = 0;
    for (size_t next = 0; next < subjects.size();) {
      mark_->job = -1;
      mark_->fault_code[0] = '\0';
      const Outcome outcome = doctor::in_child(
          [&](const Say& say) {
            Served served;
            served.library = library_.file.path;
            served.domain = library_.file.domain();
            served.version = library_.file.manifest.at("version");
            for (const std::string& ort : orts) served.runtimes.push_back(Runtime::find(ort));
            const OpbridgeLibrary* table = load(library_.file.path);
            note_faults(mark_);
            for (size_t i = next; i < subjects.size(); ++i) {
              const Callee callee(table, subjects[i].signature, subjects[i].full_name);
              Bench bench(
                  callee, mark_,
                  [&](const std::string& key, const Json& value) {
                    say(key, {{"subject", subjects[i].full_name}, {"value", value}});
                  },
                  options_.seed, options_.timeout);
              mark_->job = static_cast<int>(i);
              // Nothing is compared that is known to change.
              mark_->unrepeatable = has(subjects[i].full_name, {"not-deterministic", "state-between-calls",
                                                                "output-not-written", "reads-stale-memory"});
              if (has_crashed(subjects[i].full_name)) continue;
              try {
                check_in_sessions(bench, served);
              } catch (const std::exception& e) {
                bench.found("session-fails", std::string(mark_->doing) + ": " + e.what());
              } catch (...) {
                bench.found("odd-exception",
                            std::string(mark_->doing) + ": it was thrown through the C interface");
              }
            }
            alarm(0);
          },
          30 + 10 * static_cast<double>(subjects.size()));
      for (const Json& f : outcome.all("finding"))
        found(f.at("subject"), f.at("value").at("code"), f.at("value").at("evidence"));
      if (outcome.crash.empty()) {
        if (!outcome.error.empty()) throw Error(ErrorKind::kNotSupported, outcome.error);
        return;
      }
      const auto at = static_cast<size_t>(std::max(0, mark_->job));
      crashed(subjects[at].full_name, outcome);
      next = at + 1;
      if (++crashes == kMostCrashes)
        return skip("ONNX Runtime", "the operators after " + subjects[at].full_name);
    }
  }

  // Whether it is known to end processes: ONNX Runtime would tell nothing new.
  bool has_crashed(const std::string& subject) const {
    return has(subject, {"crash", "crash-on-empty", "hang", "input-written", "write-out-of-bounds",
                         "read-out-of-bounds", "workspace-too-small"});
  }

  bool has(const std::string& subject, std::initializer_list<const char*> codes) const {
    return std::any_of(codes.begin(), codes.end(),
                       [&](const char* code) { return findings_.count({subject, code}) > 0; });
  }

  void take(const std::string& subject, const Outcome& outcome) {
    for (const Json& f : outcome.all("finding")) found(subject, f.at("code"), f.at("evidence"));
  }

  const LibraryOptions& options_;
  const doctor::Library& library_;
  Report& report_;
  Mark* mark_;
  std::map<std::pair<std::string, std::string>, Seen> findings_;
  Json skipped_ = Json::array();
};

}  // namespace

Report check_library(const LibraryOptions& options) {
  Report report;
  report.right = "passes";
  report.wrong = "fails";
  report.facts = Json::object();
  if (options.progress) options.progress("reading " + options.library);
  const doctor::Library library = doctor::check_library(options.library, report);
  if (library.file.is_opbridge()) {
    report.facts["library"] = {{"path", options.library},
                               {"domain", library.file.domain()},
                               {"version", library.file.manifest.at("version")}};
    Battery(options, library, report).run();
  } else if (report.count(doctor::Severity::kError) == 0) {
    report.add(find_entry("not-opbridge"), options.library, "it has no opbridge_get_library");
  }
  report.sort();
  return report;
}

}  // namespace opbridge::checking
