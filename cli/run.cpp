// `opbridge run`: runs a model on files, random values or test data.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "command.h"
#include "model_options.h"
#include "runner/visit.h"
#include "terminal.h"

namespace opbridge::cli {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string model;
  SessionOptions session;
  std::string ort;
  InputOptions inputs;
  std::string output_dir, output_format = "npy";
  std::string test_data;
  double rtol = 1e-3, atol = 1e-7;
  int repeat = 1, warmup = 0;
  bool json = false;
};

constexpr const char* kExamples = R"(Examples:
  opbridge run m.onnx --random
  opbridge run m.onnx --library libmy_custom_ops.so --input input=photo.npy --output-dir out
  opbridge run m.onnx --input batch.npz --dim batch=4 --random --repeat 100 --warmup 10
  opbridge run m.onnx --test-data test_data_set_0 --rtol 1e-4
  opbridge run m.onnx --random --provider cuda --ort /opt/onnxruntime/lib

With --provider cuda --allow-fallback one more run says which nodes ran where, and how many copies between host
and device that cost.
Random values: floats uniform in [-1, 1), integers and bools 0 or 1; the same for the same --seed.
Exit codes: 0 done, 1 failed or test data not reproduced, 2 wrong command line.)";

// --- describing arrays

struct Statistics {
  double min = std::numeric_limits<double>::quiet_NaN(), max = min, mean = min;  // of the finite elements
  int64_t nan = 0, inf = 0;
};

Statistics statistics(const Array& array) {
  Statistics s;
  double sum = 0;
  int64_t finite = 0;
  visit(array, [&](const auto* values) {
    for (int64_t i = 0; i < array.count(); ++i) {
      const double v = as_double(values[i]);
      if (std::isnan(v))
        ++s.nan;
      else if (std::isinf(v))
        ++s.inf;
      else {
        s.min = finite == 0 ? v : std::min(s.min, v);
        s.max = finite == 0 ? v : std::max(s.max, v);
        sum += v;
        ++finite;
      }
    }
  });
  if (finite > 0) s.mean = sum / static_cast<double>(finite);
  return s;
}

std::string shape_text(const Array& a) {
  return a.to_string().substr(std::string(dtype_name(a.dtype())).size());
}

std::vector<std::string> table_row(const std::string& name, const Array& a, const std::string& where) {
  const Statistics s = statistics(a);
  const auto show = [](double v) { return std::isnan(v) ? "-" : number(v); };
  std::string odd;
  if (s.nan > 0) odd = std::to_string(s.nan) + " NaN";
  if (s.inf > 0) odd += (odd.empty() ? "" : ", ") + std::to_string(s.inf) + " inf";
  if (odd.empty()) odd = "-";
  return {name, dtype_name(a.dtype()), shape_text(a), show(s.min), show(s.max), show(s.mean), odd, where};
}

Json json_row(const std::string& name, const Array& a) {
  const Statistics s = statistics(a);
  return {{"name", name},       {"dtype", dtype_name(a.dtype())},
          {"shape", a.shape()}, {"min", s.min},
          {"max", s.max},       {"mean", s.mean},
          {"nan", s.nan},       {"inf", s.inf}};
}

// --- writing outputs

// A file name from an output's name: "/head/Clip:0" -> "head_Clip_0".
std::string file_stem(const std::string& name) {
  std::string stem;
  for (const char c : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
    if (plain || !stem.empty()) stem += plain ? c : '_';
  }
  while (!stem.empty() && stem[0] == '.') stem.erase(0, 1);
  return stem.empty() ? "output" : stem;
}

// Writes all outputs; returns the file of each.
std::map<std::string, std::string> write_outputs(const Session& session, const Arrays& outputs,
                                                 const Options& options) {
  std::map<std::string, std::string> files;
  if (options.output_dir.empty()) return files;
  std::error_code ec;
  fs::create_directories(options.output_dir, ec);
  if (ec) throw InvalidArgument("the folder '" + options.output_dir + "' cannot be made: " + ec.message());
  const fs::path folder = options.output_dir;
  if (options.output_format == "npz") {
    write_npz((folder / "outputs.npz").string(), outputs);
    for (const auto& output : outputs) files[output.first] = (folder / "outputs.npz").string();
    return files;
  }
  std::set<std::string> taken;
  int position = 0;
  for (const TensorInfo& info : session.outputs()) {
    const Array& array = outputs.at(info.name);
    if (options.output_format == "pb") {
      files[info.name] = (folder / ("output_" + std::to_string(position++) + ".pb")).string();
      write_pb(files[info.name], info.name, array);
      continue;
    }
    std::string stem = file_stem(info.name);
    while (!taken.insert(stem).second) stem += "_";
    files[info.name] = (folder / (stem + ".npy")).string();
    write_npy(files[info.name], array);
  }
  return files;
}

// --- test data

struct Comparison {
  bool equal = false;
  std::string verdict;
  double max_difference = 0;
};

// As numpy.isclose(got, wanted, equal_nan=True) for floats; integers and bools must be the same.
Comparison compare(const Array& got, const Array& wanted, double rtol, double atol) {
  Comparison c;
  if (got.dtype() != wanted.dtype() || got.shape() != wanted.shape()) {
    c.max_difference = std::numeric_limits<double>::quiet_NaN();
    c.verdict = "got " + got.to_string() + ", expected " + wanted.to_string();
    return c;
  }
  int64_t wrong = 0;
  visit(got, [&](const auto* g) {
    using T = std::decay_t<decltype(*g)>;
    const auto* w = static_cast<const T*>(wanted.data());
    for (int64_t i = 0; i < got.count(); ++i) {
      const double a = as_double(g[i]), b = as_double(w[i]);
      if constexpr (kIsFloat<T>) {
        if (a == b || (std::isnan(a) && std::isnan(b))) continue;
        const double difference = std::abs(a - b);  // NaN or inf where only one is finite
        if (!(difference <= c.max_difference)) c.max_difference = difference;
        if (!std::isfinite(b) || !(difference <= atol + rtol * std::abs(b))) ++wrong;
      } else if (g[i] != w[i]) {
        c.max_difference = std::max(c.max_difference, std::abs(a - b));
        ++wrong;
      }
    }
  });
  c.equal = wrong == 0;
  c.verdict =
      c.equal ? "ok" : std::to_string(wrong) + " of " + std::to_string(got.count()) + " elements differ";
  return c;
}

// DIR itself, or its test_data_set_* folders.
std::vector<std::string> test_sets(const std::string& folder) {
  std::error_code ec;
  if (!fs::is_directory(folder, ec)) throw InvalidArgument("--test-data '" + folder + "' is not a folder");
  std::vector<std::string> sets;
  for (int i = 0;; ++i) {
    const fs::path set = fs::path(folder) / ("test_data_set_" + std::to_string(i));
    if (!fs::is_directory(set, ec)) break;
    sets.push_back(set.string());
  }
  if (sets.empty()) sets.push_back(folder);
  return sets;
}

// Gives the arrays of a test data folder their names: the stored one where the model has it, else by
// position.
Arrays named(const std::string& folder, const std::string& stem, const std::vector<TensorInfo>& infos) {
  Arrays arrays;
  const auto found = read_test_data(folder, stem);
  for (size_t i = 0; i < found.size(); ++i) {
    std::string name = found[i].first;
    const bool known =
        std::any_of(infos.begin(), infos.end(), [&](const TensorInfo& t) { return t.name == name; });
    if (!known && i >= infos.size()) {
      throw InvalidArgument("'" + folder + "' has " + stem + "_" + std::to_string(i) +
                            ".pb, but the model has only " + std::to_string(infos.size()) + " " + stem + "s");
    }
    if (!known) name = infos[i].name;
    if (!arrays.emplace(name, found[i].second).second) {
      throw InvalidArgument("'" + folder + "' has two files for the " + stem + " '" + name + "'");
    }
  }
  return arrays;
}

Json runtime_json(const Runtime& runtime) {
  return {{"version", runtime.version()}, {"path", runtime.path()}, {"source", runtime.source()}};
}

std::string title(const Options& options, const Runtime& runtime, const Session& session) {
  return heading(options.model) + " on ONNX Runtime " + runtime.version() + ", provider " +
         session.provider() + "\n  " + runtime.path() + " (" + runtime.source() + ")\n";
}

void print_warnings(const Session& session) {
  for (const std::string& w : session.warnings())
    std::fprintf(stderr, "%s %s\n", warning_label().c_str(), printable(w).c_str());
}

int run_test_data(const Runtime& runtime, const Session& session, const Options& options) {
  bool all_equal = true;
  Json results = Json::array();
  std::vector<std::vector<std::string>> rows = {{"test data", "output", "max difference", "result"}};
  for (const std::string& set : test_sets(options.test_data)) {
    const Arrays inputs = named(set, "input", session.inputs());
    const Arrays wanted = named(set, "output", session.outputs());
    if (wanted.empty())
      throw InvalidArgument("'" + set + "' has no output_0.pb: there is nothing to compare with");
    const Arrays outputs = session.run(inputs);
    for (const auto& [name, expected] : wanted) {
      const Comparison c = compare(outputs.at(name), expected, options.rtol, options.atol);
      all_equal = all_equal && c.equal;
      rows.push_back({set, name, number(c.max_difference), c.verdict});
      results.push_back({{"test_data", set},
                         {"output", name},
                         {"max_difference", c.max_difference},
                         {"equal", c.equal},
                         {"verdict", c.verdict}});
    }
  }
  print_warnings(session);
  if (options.json) {
    print_json({{"model", options.model},
                {"runtime", runtime_json(runtime)},
                {"provider", session.provider()},
                {"rtol", options.rtol},
                {"atol", options.atol},
                {"comparisons", results},
                {"equal", all_equal}});
  } else {
    std::printf("%s\n%s\n%s, rtol %s, atol %s\n", title(options, runtime, session).c_str(),
                table(rows).c_str(), all_equal ? "all equal" : "DIFFERENT", number(options.rtol).c_str(),
                number(options.atol).c_str());
  }
  return all_equal ? kOk : kFailed;
}

// Which provider ran what. Of the CPU's nodes each is named: those are what CUDA could not run.
std::string placement_text(const Placement& placement) {
  std::map<std::string, std::vector<std::string>> by_provider;
  for (const Placement::Node& node : placement.nodes)
    by_provider[node.provider].push_back(node.op + " '" + node.name + "'");
  std::string text;
  for (const auto& [provider, nodes] : by_provider) {
    text += provider + ": " + std::to_string(nodes.size()) + (nodes.size() == 1 ? " node" : " nodes");
    constexpr size_t kShown = 8;
    const size_t shown = provider == "CPUExecutionProvider" ? nodes.size() : std::min(kShown, nodes.size());
    for (size_t i = 0; i < shown; ++i) text += (i == 0 ? ": " : ", ") + nodes[i];
    if (shown < nodes.size()) text += " and " + std::to_string(nodes.size() - shown) + " more";
    text += "\n";
  }
  return text + "copies between host and device: " + std::to_string(placement.copies) + "\n";
}

Json placement_json(const Placement& placement) {
  Json nodes = Json::array();
  for (const Placement::Node& node : placement.nodes)
    nodes.push_back({{"name", node.name}, {"op", node.op}, {"provider", node.provider}});
  return {{"nodes", nodes}, {"copies", placement.copies}};
}

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

int run(const Options& options) {
  const Runtime runtime = Runtime::find(options.ort);
  const auto start = std::chrono::steady_clock::now();
  const Session session(runtime, options.model, options.session);
  const double load_ms = milliseconds_since(start);
  if (!options.test_data.empty()) return run_test_data(runtime, session, options);

  const Inputs inputs = collect_inputs(session, options.inputs);
  Arrays outputs;
  std::vector<double> times;
  for (int i = 0; i < options.warmup + options.repeat; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    outputs = i == 0 ? run_first(session, inputs.arrays, inputs.notes) : session.run(inputs.arrays);
    if (i >= options.warmup) times.push_back(milliseconds_since(begin));
  }
  std::sort(times.begin(), times.end());
  const double median = times.size() % 2 == 1 ? times[times.size() / 2]
                                              : (times[times.size() / 2 - 1] + times[times.size() / 2]) / 2;
  const auto files = write_outputs(session, outputs, options);
  const auto file_of = [&](const std::string& name) { return files.count(name) == 0 ? "" : files.at(name); };
  std::vector<std::string> notes = inputs.notes;
  for (const auto& [name, array] : outputs) {
    const Statistics s = statistics(array);
    if (s.nan + s.inf == 0) continue;
    notes.push_back("output '" + name + "' has " + std::to_string(s.nan) + " NaN and " +
                    std::to_string(s.inf) + " infinite elements of " + std::to_string(array.count()));
  }
  print_warnings(session);
  std::optional<Placement> placement;
  if (options.session.provider == "cuda" && options.session.allow_fallback)
    placement = find_placement(runtime, options.model, inputs.arrays, options.session);

  if (options.json) {
    Json in = Json::array(), out = Json::array();
    for (const auto& [name, array] : inputs.arrays) {
      in.push_back(json_row(name, array));
      in.back()["source"] = inputs.sources.at(name);
    }
    for (const TensorInfo& info : session.outputs()) {
      out.push_back(json_row(info.name, outputs.at(info.name)));
      if (!files.empty()) out.back()["file"] = file_of(info.name);
    }
    Json result = {{"model", options.model},
                   {"runtime", runtime_json(runtime)},
                   {"provider", session.provider()},
                   {"inputs", in},
                   {"outputs", out},
                   {"times_ms",
                    {{"load", load_ms},
                     {"median", median},
                     {"min", times.front()},
                     {"max", times.back()},
                     {"repeat", options.repeat},
                     {"warmup", options.warmup}}},
                   {"notes", notes},
                   {"warnings", session.warnings()}};
    if (placement) result["placement"] = placement_json(*placement);
    print_json(result);
    return kOk;
  }
  std::vector<std::vector<std::string>> rows = {
      {"input", "type", "shape", "min", "max", "mean", "not finite", "from"}};
  for (const TensorInfo& info : session.inputs()) {
    const auto given = inputs.arrays.find(info.name);
    if (given != inputs.arrays.end())
      rows.push_back(table_row(info.name, given->second, inputs.sources.at(info.name)));
  }
  rows.push_back({});
  rows.push_back(
      {"output", "type", "shape", "min", "max", "mean", "not finite", files.empty() ? "" : "file"});
  for (const TensorInfo& info : session.outputs()) {
    rows.push_back(table_row(info.name, outputs.at(info.name), file_of(info.name)));
  }
  std::printf("%s\n%s\n", title(options, runtime, session).c_str(), table(rows).c_str());
  if (placement) std::printf("%s", printable(placement_text(*placement)).c_str());
  for (const std::string& note : notes) std::printf("note: %s\n", printable(note).c_str());
  std::printf("load %s ms; run: median %s ms, min %s ms (%d run%s after %d warm-up)\n",
              number(load_ms).c_str(), number(median).c_str(), number(times.front()).c_str(), options.repeat,
              options.repeat == 1 ? "" : "s", options.warmup);
  return kOk;
}

}  // namespace

Command add_run(CLI::App& parent) {
  const auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand("run", "Runs an ONNX model on files, random values or test data");
  app->footer(kExamples);
  app->add_option("model", o->model, "The .onnx file")->required()->option_text(" ");
  add_session_options(*app, o->session, o->ort);
  const std::vector<CLI::Option*> inputs = add_input_options(*app, o->inputs);
  auto* output_dir = app->add_option("-o,--output-dir", o->output_dir, "Writes the outputs into this folder")
                         ->option_text("DIR");
  app->add_option("--output-format", o->output_format, "npy, npz or pb [npy]")
      ->check(CLI::IsMember({"npy", "npz", "pb"}))
      ->needs(output_dir)
      ->option_text("KIND");
  auto* test_data =
      app->add_option("--test-data", o->test_data,
                      "Runs input_0.pb.. of a folder (or of its test_data_set_0..) and compares with "
                      "output_0.pb..")
          ->option_text("DIR");
  test_data->excludes(output_dir);
  for (CLI::Option* input : inputs) test_data->excludes(input);
  app->add_option("--rtol", o->rtol, "Relative tolerance of --test-data [0.001]")
      ->needs(test_data)
      ->option_text("X");
  app->add_option("--atol", o->atol, "Absolute tolerance of --test-data [1e-07]")
      ->needs(test_data)
      ->option_text("X");
  app->add_option("--repeat", o->repeat, "Timed runs [1]")
      ->check(CLI::Range(1, 1000000))
      ->excludes(test_data)
      ->option_text("N");
  app->add_option("--warmup", o->warmup, "Runs before the timed ones [0]")
      ->check(CLI::Range(0, 1000000))
      ->excludes(test_data)
      ->option_text("N");
  app->add_flag("--json", o->json, "Prints one JSON object instead of text");
  return {app, [o] { return run(*o); }};
}

}  // namespace opbridge::cli
