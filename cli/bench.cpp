// `opbridge bench`: latency and throughput of a model, and the ratio to another one, with its uncertainty.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "command.h"
#include "difference.h"
#include "page.h"
#include "runner/model.h"
#include "sides.h"
#include "terminal.h"

namespace opbridge::cli {

namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct Options {
  SideOptions sides;
  InputOptions inputs;
  int runs = 0, warmup = 5, sessions = 1;
  double seconds = 2;
  std::string cpus, html;
  bool profile = false, json = false;
};

constexpr const char* kExamples = R"(Examples:
  opbridge bench m.onnx --library libmy_ops.so --random --dim batch=1
  opbridge bench m.onnx --random --threads 1 --cpus 2 --runs 500
  opbridge bench custom.onnx builtin.onnx --library libmy_ops.so --input x.npy
  opbridge bench m.onnx --library new.so --library-b old.so --random --html report.html
  opbridge bench m.onnx --random --sessions 4 --seconds 5
  opbridge bench m.onnx --library libmy_ops.so --random --profile

With several models, libraries, runtimes or settings, runs take turns, in another order each round, so that whatever
else the machine does meets all of them alike. The ratio is the median over rounds of one time by the first one's in
the same round, with the interval that holds the true median in 95 of 100 cases. Outputs are compared with the first
one's before anything is timed. With --sessions, as many sessions run at once, each from its own thread.
--profile tells what the nodes take, and the custom operators' share of it, in a session of its own.
Exit codes: 0 done, 1 failed or outputs differ, 2 wrong command line.)";

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// The value below which `part` of the sorted times lie.
double percentile(const std::vector<double>& sorted, double part) {
  const double at = part * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

struct Ratio {
  double median = 1, low = 1, high = 1;
};

// The median, and the order statistics between which the true one lies with 95 %: no assumption on the distribution.
Ratio ratio_of(std::vector<double> ratios) {
  std::sort(ratios.begin(), ratios.end());
  const auto n = static_cast<double>(ratios.size());
  const double half = 0.98 * std::sqrt(n);
  const auto low = static_cast<size_t>(std::max(0.0, std::floor(n / 2 - half)));
  const auto high = static_cast<size_t>(std::min(n - 1, std::ceil(n / 2 + half)));
  return {percentile(ratios, 0.5), ratios[low], ratios[high]};
}

constexpr int kProfiledRuns = 20;
constexpr size_t kProfileRows = 12;

std::string short_number(double v) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g", v);
  return text;
}

struct Result {
  Side side;
  std::string version, label;
  double load_ms = 0, throughput = 0;
  std::vector<double> times;  // one a round
  bool equal = true;
  std::string difference;
  Ratio ratio;
  Placement profile;
  std::set<std::string> custom;  // operators of the model that ONNX does not have
  std::vector<std::unique_ptr<Session>> sessions;
  Arrays inputs;
};

// "0,2-3" as CPU numbers.
bool parse_cpus(const std::string& text, cpu_set_t& set) {
  CPU_ZERO(&set);
  size_t at = 0;
  while (at < text.size()) {
    size_t used = 0;
    const auto number_at = [&](size_t from) {
      used = 0;
      int value = 0;
      while (from + used < text.size() && std::isdigit(static_cast<unsigned char>(text[from + used])) != 0 &&
             used < 5)
        value = value * 10 + (text[from + used++] - '0');
      return value;
    };
    const int first = number_at(at);
    if (used == 0) return false;
    at += used;
    int last = first;
    if (at < text.size() && text[at] == '-') {
      last = number_at(at + 1);
      if (used == 0) return false;
      at += used + 1;
    }
    if (last < first || last >= CPU_SETSIZE) return false;
    for (int cpu = first; cpu <= last; ++cpu) CPU_SET(cpu, &set);
    if (at < text.size() && text[at++] != ',') return false;
    if (at == text.size() && text.back() == ',') return false;
  }
  return CPU_COUNT(&set) > 0;
}

std::string check_cpus(const std::string& text) {
  cpu_set_t set;
  return parse_cpus(text, set) ? "" : "'" + text + "' is no list of CPUs such as 0,2-3";
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {}

  int run() {
    pin();
    {
      const Progress progress(!options_.json);
      load(progress);
      check_outputs();
      time_rounds(progress);
      if (options_.sessions > 1) {
        for (size_t i = 0; i < results_.size(); ++i) {
          progress(i + 1, results_.size(), "throughput of " + results_[i].label);
          measure_throughput(results_[i]);
        }
      }
      for (size_t i = 0; options_.profile && i < results_.size(); ++i) {
        progress(i + 1, results_.size(), "profile of " + results_[i].label);
        profile(results_[i]);
      }
    }
    if (options_.json)
      print_json(to_json());
    else
      print();
    if (!options_.html.empty()) write_page();
    return std::all_of(results_.begin(), results_.end(), [](const Result& r) { return r.equal; }) ? kOk
                                                                                                  : kFailed;
  }

 private:
  // Before any session starts its threads, which inherit it.
  void pin() const {
    if (options_.cpus.empty()) return;
    cpu_set_t set;
    parse_cpus(options_.cpus, set);
    if (sched_setaffinity(0, sizeof(set), &set) != 0)
      throw InvalidArgument("--cpus " + options_.cpus + ": this process may not run there");
  }

  void load(const Progress& progress) {
    const std::vector<Side> sides = sides_of(options_.sides);
    for (const Side& side : sides) {
      progress(results_.size() + 1, sides.size(), "loading " + side.model);
      Result r;
      r.side = side;
      const Runtime runtime = Runtime::find(side.ort);
      r.version = runtime.version();
      r.label = side.label(options_.sides, r.version);
      const auto start = Clock::now();
      for (int i = 0; i < options_.sessions; ++i)
        r.sessions.push_back(
            std::make_unique<Session>(runtime, side.model, side.session_options(options_.sides)));
      r.load_ms = milliseconds_since(start) / options_.sessions;
      if (results_.empty()) {
        const Inputs inputs = collect_inputs(*r.sessions[0], options_.inputs);
        inputs_ = inputs.arrays;
        notes_ = inputs.notes;
      }
      r.inputs = same_inputs(*r.sessions[0], inputs_, side.model, sides[0].model);
      results_.push_back(std::move(r));
    }
  }

  // What is fast and wrong is not timed as if it were right.
  void check_outputs() {
    const Arrays expected = run_first(*results_[0].sessions[0], results_[0].inputs, notes_);
    for (size_t i = 1; i < results_.size(); ++i) {
      Result& r = results_[i];
      for (const auto& [name, actual] : r.sessions[0]->run(r.inputs)) {
        const auto found = expected.find(name);
        if (found == expected.end()) continue;
        const Difference d = compare(actual, found->second);
        if (d.equal) continue;
        r.equal = false;
        r.difference += (r.difference.empty() ? "" : "; ") + ("'" + name + "': ") +
                        (d.to_string().empty() ? "relative " + number(d.relative) : d.to_string());
      }
    }
  }

  void time_rounds(const Progress& progress) {
    for (Result& r : results_) {
      for (int i = 0; i < options_.warmup; ++i) r.sessions[0]->run(r.inputs);
    }
    const auto start = Clock::now();
    const double budget = options_.seconds * 1000 * static_cast<double>(results_.size());
    const int limit = options_.runs > 0 ? options_.runs : std::numeric_limits<int>::max();
    for (int round = 0; round < limit; ++round) {
      if (options_.runs == 0 && round >= 10 && milliseconds_since(start) > budget) break;
      if (round % 16 == 0 && options_.runs > 0)
        progress(static_cast<size_t>(round), static_cast<size_t>(limit), "rounds");
      for (size_t k = 0; k < results_.size(); ++k) {
        // Forwards and backwards in turn, so that none always follows the same one.
        Result& r = results_[round % 2 == 0 ? k : results_.size() - 1 - k];
        const auto begin = Clock::now();
        r.sessions[0]->run(r.inputs);
        r.times.push_back(milliseconds_since(begin));
      }
    }
    for (Result& r : results_) {
      std::vector<double> ratios;
      for (size_t i = 0; i < r.times.size(); ++i) ratios.push_back(r.times[i] / results_[0].times[i]);
      r.ratio = ratio_of(std::move(ratios));
    }
  }

  void measure_throughput(Result& r) const {
    std::atomic<int64_t> done{0};
    std::atomic<bool> stop{false};
    std::exception_ptr failure;
    std::mutex mutex;
    std::vector<std::thread> threads;
    const auto start = Clock::now();
    for (const auto& session : r.sessions) {
      threads.emplace_back([&, s = session.get()] {
        try {
          while (!stop) {
            s->run(r.inputs);
            ++done;
          }
        } catch (...) {
          const std::lock_guard<std::mutex> lock(mutex);
          failure = std::current_exception();
          stop = true;
        }
      });
    }
    while (!stop && milliseconds_since(start) < options_.seconds * 1000)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    stop = true;
    for (std::thread& t : threads) t.join();
    if (failure) std::rethrow_exception(failure);
    r.throughput = static_cast<double>(done) / (milliseconds_since(start) / 1000);
  }

  // ONNX Runtime's profiler costs about a microsecond a node, so it has a session of its own.
  void profile(Result& r) const {
    for (const CustomNode& node : read_model(r.side.model).custom_nodes) r.custom.insert(node.op);
    r.profile = find_placement(Runtime::find(r.side.ort), r.side.model, r.inputs,
                               r.side.session_options(options_.sides), kProfiledRuns);
    std::stable_sort(r.profile.nodes.begin(), r.profile.nodes.end(),
                     [](const auto& a, const auto& b) { return a.milliseconds > b.milliseconds; });
  }

  struct Share {
    double all = 0, custom = 0;
    double part() const { return all > 0 ? custom / all : 0; }
  };

  static Share share_of(const Result& r) {
    Share share;
    for (const Placement::Node& node : r.profile.nodes) {
      share.all += node.milliseconds;
      if (r.custom.count(node.op) != 0) share.custom += node.milliseconds;
    }
    return share;
  }

  static std::string share_text(const Result& r) {
    const Share share = share_of(r);
    return "nodes " + short_number(share.all) + " ms a run, of which custom operators " +
           short_number(share.custom) + " ms (" + short_number(100 * share.part()) + " %)";
  }

  // The slowest nodes first; the others in one line.
  static std::vector<std::vector<std::string>> profile_rows(const Result& r) {
    std::vector<std::vector<std::string>> rows = {{"node", "operator", "provider", "ms", "share", ""}};
    const double all = share_of(r).all;
    double rest = 0;
    size_t left_out = 0;
    for (const Placement::Node& node : r.profile.nodes) {
      if (rows.size() > kProfileRows) {
        rest += node.milliseconds;
        ++left_out;
        continue;
      }
      rows.push_back({node.name, node.op, node.provider, short_number(node.milliseconds),
                      percent(node.milliseconds, all), r.custom.count(node.op) != 0 ? "custom" : ""});
    }
    if (left_out > 0)
      rows.push_back(
          {"the other " + std::to_string(left_out), "", "", short_number(rest), percent(rest, all), ""});
    return rows;
  }

  static std::string percent(double part, double all) {
    return short_number(all > 0 ? 100 * part / all : 0) + " %";
  }

  std::vector<std::vector<std::string>> table_rows() const {
    std::vector<std::vector<std::string>> rows = {
        {"side", "p50 ms", "p90", "p99", "min", "mean", "load", "ratio", "95 %", "outputs"}};
    if (options_.sessions > 1)
      rows[0].insert(rows[0].begin() + 7, std::to_string(options_.sessions) + " at once");
    for (const Result& r : results_) {
      const std::vector<double> t = sorted(r);
      double sum = 0;
      for (const double v : t) sum += v;
      const auto show = short_number;
      const bool first = &r == &results_[0];
      std::vector<std::string> row = {r.label,
                                      show(percentile(t, 0.5)),
                                      show(percentile(t, 0.9)),
                                      show(percentile(t, 0.99)),
                                      show(t[0]),
                                      show(sum / static_cast<double>(t.size())),
                                      show(r.load_ms)};
      if (options_.sessions > 1) row.push_back(show(r.throughput) + " runs/s");
      row.push_back(first ? "1" : show(r.ratio.median));
      row.push_back(first ? "" : show(r.ratio.low) + " .. " + show(r.ratio.high));
      row.push_back(r.equal ? first ? "" : "equal" : "DIFFERENT: " + r.difference);
      rows.push_back(row);
    }
    return rows;
  }

  static std::vector<double> sorted(const Result& r) {
    std::vector<double> times = r.times;
    std::sort(times.begin(), times.end());
    return times;
  }

  std::string verdict() const {
    std::string text = std::to_string(results_[0].times.size()) + " rounds after " +
                       std::to_string(options_.warmup) + " warm-up runs";
    if (!options_.cpus.empty()) text += ", on CPU " + options_.cpus;
    return text;
  }

  void print() const {
    std::printf("%s on ONNX Runtime %s\n\n%s\n%s\n", heading(options_.sides.model).c_str(),
                results_[0].version.c_str(), table(table_rows()).c_str(), verdict().c_str());
    for (const std::string& n : notes_) std::printf("note: %s\n", printable(n).c_str());
    for (const Result& r : results_) {
      if (!options_.profile) break;
      std::printf("\n%s: %s\n%s", heading(r.label).c_str(), share_text(r).c_str(),
                  table(profile_rows(r)).c_str());
    }
  }

  Json to_json() const {
    Json sides = Json::array(), inputs = Json::array();
    for (const Result& r : results_) {
      const std::vector<double> t = sorted(r);
      double sum = 0;
      for (const double v : t) sum += v;
      sides.push_back({{"label", r.label},
                       {"model", r.side.model},
                       {"libraries", r.side.libraries},
                       {"runtime", r.version},
                       {"provider", r.side.provider},
                       {"threads", r.side.threads},
                       {"optimize", r.side.level},
                       {"load_ms", r.load_ms},
                       {"latency_ms",
                        {{"p50", percentile(t, 0.5)},
                         {"p90", percentile(t, 0.9)},
                         {"p99", percentile(t, 0.99)},
                         {"min", t.front()},
                         {"max", t.back()},
                         {"mean", sum / static_cast<double>(t.size())}}},
                       {"runs_per_second", r.throughput > 0 ? Json(r.throughput) : Json()},
                       {"ratio", {{"median", r.ratio.median}, {"low", r.ratio.low}, {"high", r.ratio.high}}},
                       {"equal", r.equal},
                       {"difference", r.difference}});
      if (!options_.profile) continue;
      const Share share = share_of(r);
      Json nodes = Json::array();
      for (const Placement::Node& node : r.profile.nodes)
        nodes.push_back({{"name", node.name},
                         {"operator", node.op},
                         {"provider", node.provider},
                         {"ms", node.milliseconds},
                         {"custom", r.custom.count(node.op) != 0}});
      sides.back()["profile"] = {{"runs", kProfiledRuns},
                                 {"ms", share.all},
                                 {"custom_ms", share.custom},
                                 {"copies", r.profile.copies},
                                 {"nodes", nodes}};
    }
    for (const auto& [name, array] : inputs_) inputs.push_back({{"name", name}, {"type", array.to_string()}});
    return {{"rounds", results_[0].times.size()},
            {"warmup", options_.warmup},
            {"sessions", options_.sessions},
            {"cpus", options_.cpus},
            {"inputs", inputs},
            {"sides", sides},
            {"notes", notes_}};
  }

  void write_page() const {
    const bool equal = std::all_of(results_.begin(), results_.end(), [](const Result& r) { return r.equal; });
    Page page("opbridge bench: " + options_.sides.model, verdict() + (equal ? "" : "; outputs DIFFER"),
              equal);
    std::vector<std::vector<std::string>> facts;
    for (const auto& [name, array] : inputs_) facts.push_back({"input '" + name + "'", array.to_string()});
    page.facts(facts);
    std::vector<Bar> bars;
    for (const Result& r : results_) bars.push_back({r.label, percentile(sorted(r), 0.5), r.equal});
    page.bars("Median latency [ms]", bars);
    page.table("Times", table_rows(), {});
    for (const Result& r : results_) {
      if (!options_.profile) break;
      std::vector<Bar> nodes;
      for (const Placement::Node& node : r.profile.nodes) {
        if (nodes.size() == kProfileRows) break;
        nodes.push_back({node.name + " (" + node.op + ")", node.milliseconds, r.custom.count(node.op) == 0});
      }
      page.bars("Nodes of " + r.label + " [ms], custom operators marked: " + share_text(r), nodes);
    }
    page.list("Notes", notes_);
    page.write(options_.html);
  }

  const Options& options_;
  std::vector<Result> results_;
  Arrays inputs_;
  std::vector<std::string> notes_;
};

}  // namespace

Command add_bench(CLI::App& parent) {
  const auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand(
      "bench", "Times a model, and its ratio to another model, library, runtime or setting");
  app->footer(kExamples);
  add_side_options(*app, o->sides);
  add_input_options(*app, o->inputs);
  app->add_option("--seconds", o->seconds, "How long each is timed [2]")
      ->check(CLI::Range(0.01, 3600.0))
      ->option_text("S");
  app->add_option("--runs", o->runs, "Times as many rounds instead of --seconds")
      ->check(CLI::Range(1, 10000000))
      ->option_text("N");
  app->add_option("--warmup", o->warmup, "Runs before the timed ones [5]")
      ->check(CLI::Range(0, 1000000))
      ->option_text("N");
  app->add_option("--sessions", o->sessions, "Also the throughput of as many sessions at once [1]")
      ->check(CLI::Range(1, 256))
      ->option_text("N");
  app->add_flag("--profile", o->profile, "Also what each node takes, and the custom operators' share");
  app->add_option("--cpus", o->cpus, "Runs on these CPUs only, such as 0,2-3")
      ->check(check_cpus)
      ->option_text("LIST");
  app->add_option("--html", o->html, "Writes a page that needs nothing else, to send on")
      ->option_text("FILE");
  app->add_flag("--json", o->json, "Prints one JSON object instead of text");
  return {app, [o] { return Bench(*o).run(); }};
}

}  // namespace opbridge::cli
