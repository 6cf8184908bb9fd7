// `opbridge run`: runs a model on files, random values or test data.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <set>

#include "command.h"
#include "core/text.h"
#include "opbridge/runner.h"
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
  std::vector<std::string> inputs;
  bool random = false;
  uint64_t seed = 0;
  std::vector<std::string> dims;
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

Random values: floats uniform in [-1, 1), integers and bools 0 or 1; the same for the same --seed.
Exit codes: 0 done, 1 failed or test data not reproduced, 2 wrong command line.)";

// "name=4" split at the last '='.
std::pair<std::string, std::string> split_dim(const std::string& text) {
  const size_t at = text.rfind('=');
  return at == std::string::npos ? std::pair(text, std::string()) : std::pair(text.substr(0, at), text.substr(at + 1));
}

std::string check_dim(const std::string& text) {
  const auto [name, size] = split_dim(text);
  const bool digits = !size.empty() && size.size() < 16 && size.find_first_not_of("0123456789") == std::string::npos;
  return name.empty() || !digits ? "'" + text + "' is not NAME=SIZE (e.g. batch=4) or INPUT:AXIS=SIZE (e.g. x:0=4)" : "";
}

// --- collecting the inputs

// Everything about the inputs of one run: the arrays, where each came from, and what had to be assumed.
class Inputs {
 public:
  Inputs(const Session& session, const Options& options) : session_(session) {
    for (const TensorInfo& info : session.inputs()) names_.push_back(info.name);
    read_dims(options.dims);
    for (const std::string& spec : options.inputs) read(spec);
    check_and_bind_dims();
    std::vector<std::string> missing;
    for (const TensorInfo& info : session.inputs()) {
      if (info.optional || arrays.count(info.name) != 0) continue;
      if (options.random) add(info.name, random(info, options.seed), "random");
      else missing.push_back("  --input " + info.name + "=FILE    for " + info.to_string());
    }
    if (!missing.empty()) {
      std::string message = "inputs are missing; give them as .npy, .npz or .pb files, or let --random make them:";
      for (const std::string& m : missing) message += "\n" + m;
      throw InvalidArgument(message);
    }
  }

  Arrays arrays;
  std::map<std::string, std::string> sources;
  std::vector<std::string> notes;

 private:
  Error unknown_input(const std::string& name) const {
    std::string hint = did_you_mean(name, names_);
    if (hint.empty()) hint = names_.empty() ? "; it has no inputs" : "; it has " + list_of(names_);
    return InvalidArgument("the model has no input '" + name + "'" + hint);
  }

  bool known(const std::string& name) const { return std::find(names_.begin(), names_.end(), name) != names_.end(); }

  void add(const std::string& name, const Array& array, const std::string& source) {
    if (!known(name)) throw unknown_input(name);
    if (!arrays.emplace(name, array).second) {
      throw InvalidArgument("input '" + name + "' is given twice: by '" + sources[name] + "' and by '" + source + "'");
    }
    sources[name] = source;
  }

  static std::string axis_name(const TensorInfo& info, size_t axis) { return info.name + ":" + std::to_string(axis); }

  // The size that --dim or a given array sets for a dynamic dimension, or -1.
  int64_t fixed(const TensorInfo& info, size_t axis) const {
    const auto by_axis = dims_.find(axis_name(info, axis));
    if (by_axis != dims_.end()) return by_axis->second;
    const auto by_name = dims_.find(info.dims[axis].symbol);
    return by_name == dims_.end() ? -1 : by_name->second;
  }

  void read_dims(const std::vector<std::string>& specs) {
    std::vector<std::string> dynamic, axes;
    for (const TensorInfo& info : session_.inputs()) {
      for (size_t i = 0; i < info.dims.size(); ++i) {
        if (info.dims[i].size >= 0) continue;
        axes.push_back(axis_name(info, i));
        if (!info.dims[i].symbol.empty()) dynamic.push_back(info.dims[i].symbol);
        else dynamic.push_back(axes.back());
      }
    }
    std::sort(dynamic.begin(), dynamic.end());
    dynamic.erase(std::unique(dynamic.begin(), dynamic.end()), dynamic.end());
    for (const std::string& spec : specs) {
      const auto [name, size] = split_dim(spec);
      const auto in = [&name = name](const std::vector<std::string>& v) {
        return std::find(v.begin(), v.end(), name) != v.end();
      };
      if (!in(dynamic) && !in(axes)) {
        std::string hint = did_you_mean(name, dynamic);
        if (hint.empty()) hint = dynamic.empty() ? "; all are fixed" : "; it has " + list_of(dynamic);
        throw InvalidArgument("--dim " + spec + ": the model has no dynamic dimension '" + name + "'" + hint);
      }
      const int64_t value = std::stoll(size);
      const auto [at, added] = dims_.emplace(name, value);
      if (!added && at->second != value) throw InvalidArgument("--dim " + name + " is given twice, with two sizes");
    }
  }

  void read(const std::string& spec) {
    std::error_code ec;
    const size_t at = spec.find('=');
    if (at == std::string::npos || fs::exists(spec, ec)) {
      read_unnamed(spec);
      return;
    }
    const std::string name = spec.substr(0, at), path = spec.substr(at + 1);
    if (!known(name)) throw unknown_input(name);
    const Arrays found = read_arrays(path);
    const auto same = found.find(name);
    if (same == found.end() && found.size() != 1) {
      std::vector<std::string> have;
      for (const auto& f : found) have.push_back(f.first);
      throw InvalidArgument("'" + path + "' has no array called '" + name + "'; it has " + list_of(have));
    }
    add(name, same == found.end() ? found.begin()->second : same->second, path);
  }

  // A file or folder that is to say itself which inputs it has.
  void read_unnamed(const std::string& path) {
    const auto by_position = read_test_data(path, "input");
    for (size_t i = 0; i < by_position.size(); ++i) {
      const auto& [name, array] = by_position[i];
      if (i >= names_.size()) throw InvalidArgument("'" + path + "' has more inputs than the model");
      add(known(name) ? name : names_[i], array, path + "/input_" + std::to_string(i) + ".pb");
    }
    if (!by_position.empty()) return;
    const Arrays found = read_arrays(path);
    if (found.size() == 1 && !known(found.begin()->first)) {
      std::vector<std::string> required;
      for (const TensorInfo& info : session_.inputs()) {
        if (!info.optional) required.push_back(info.name);
      }
      if (required.size() != 1) {
        throw InvalidArgument("which input is '" + path + "'? Say --input NAME=" + path + ", where NAME is " +
                              list_of(names_));
      }
      add(required[0], found.begin()->second, path);
      return;
    }
    for (const auto& [name, array] : found) add(name, array, path);
  }

  // What is given must agree with --dim, and fixes dimensions of the same name for the random ones.
  void check_and_bind_dims() {
    for (const TensorInfo& info : session_.inputs()) {
      const auto given = arrays.find(info.name);
      if (given == arrays.end() || given->second.shape().size() != info.dims.size()) continue;
      for (size_t i = 0; i < info.dims.size(); ++i) {
        if (info.dims[i].size >= 0) continue;
        const int64_t got = given->second.shape()[i], wanted = fixed(info, i);
        if (wanted >= 0 && wanted != got) {
          const bool by_name = dims_.count(info.dims[i].symbol) != 0;
          throw InvalidArgument("dimension '" + (by_name ? info.dims[i].symbol : axis_name(info, i)) + "' is " +
                                std::to_string(wanted) + " (--dim or another input), but '" + sources[info.name] +
                                "' has " + std::to_string(got) + " in axis " + std::to_string(i) + " of " +
                                given->second.to_string());
        }
        if (!info.dims[i].symbol.empty()) dims_.emplace(info.dims[i].symbol, got);
      }
    }
  }

  Array random(const TensorInfo& info, uint64_t seed) {
    if (!info.rank_known) {
      throw InvalidArgument("the model does not say what shape input '" + info.name + "' has, so --random cannot make "
                            "it: give it with --input " + info.name + "=FILE");
    }
    std::vector<int64_t> shape;
    for (size_t i = 0; i < info.dims.size(); ++i) {
      int64_t size = info.dims[i].size >= 0 ? info.dims[i].size : fixed(info, i);
      if (size < 0) {
        size = 1;
        const std::string name = info.dims[i].symbol.empty() ? axis_name(info, i) : info.dims[i].symbol;
        notes.push_back("dimension '" + name + "' of input '" + info.name + "' is dynamic: 1 taken, --dim " + name +
                        "=N sets it");
      }
      shape.push_back(size);
    }
    const Array array(info.dtype, shape);
    // SplitMix64; the name is part of the seed, so that an input's values do not depend on the other inputs.
    uint64_t state = seed ^ 0xcbf29ce484222325u;
    for (const char c : info.name) state = (state ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
    const auto next = [&state] {
      uint64_t z = state += 0x9e3779b97f4a7c15u;
      z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
      z = (z ^ z >> 27) * 0x94d049bb133111ebu;
      return z ^ z >> 31;
    };
    visit(array, [&](auto* values) {
      using T = std::decay_t<decltype(*values)>;
      for (int64_t i = 0; i < array.count(); ++i) {
        if constexpr (kIsFloat<T>) {
          values[i] = T(static_cast<float>(static_cast<int64_t>(next() >> 40) - (1 << 23)) / (1 << 23));  // 24 bits
        } else {
          values[i] = static_cast<T>(next() >> 63);
        }
      }
    });
    return array;
  }

  const Session& session_;
  std::vector<std::string> names_;
  std::map<std::string, int64_t> dims_;  // by symbol, or "input:axis"
};

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
      if (std::isnan(v)) ++s.nan;
      else if (std::isinf(v)) ++s.inf;
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

std::string shape_text(const Array& a) { return a.to_string().substr(std::string(dtype_name(a.dtype())).size()); }

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
  return {{"name", name}, {"dtype", dtype_name(a.dtype())}, {"shape", a.shape()}, {"min", s.min},
          {"max", s.max}, {"mean", s.mean},                 {"nan", s.nan},       {"inf", s.inf}};
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
std::map<std::string, std::string> write_outputs(const Session& session, const Arrays& outputs, const Options& options) {
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
  c.verdict = c.equal ? "ok" : std::to_string(wrong) + " of " + std::to_string(got.count()) + " elements differ";
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

// Gives the arrays of a test data folder their names: the stored one where the model has it, else by position.
Arrays named(const std::string& folder, const std::string& stem, const std::vector<TensorInfo>& infos) {
  Arrays arrays;
  const auto found = read_test_data(folder, stem);
  for (size_t i = 0; i < found.size(); ++i) {
    std::string name = found[i].first;
    const bool known = std::any_of(infos.begin(), infos.end(), [&](const TensorInfo& t) { return t.name == name; });
    if (!known && i >= infos.size()) {
      throw InvalidArgument("'" + folder + "' has " + stem + "_" + std::to_string(i) + ".pb, but the model has only " +
                            std::to_string(infos.size()) + " " + stem + "s");
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

std::string title(const Options& options, const Runtime& runtime) {
  return heading(options.model) + " on ONNX Runtime " + runtime.version() + ", provider " + options.session.provider +
         "\n  " + runtime.path() + " (" + runtime.source() + ")\n";
}

void print_warnings(const Session& session) {
  for (const std::string& w : session.warnings()) std::fprintf(stderr, "%s %s\n", warning_label().c_str(), printable(w).c_str());
}

int run_test_data(const Runtime& runtime, const Session& session, const Options& options) {
  bool all_equal = true;
  Json results = Json::array();
  std::vector<std::vector<std::string>> rows = {{"test data", "output", "max difference", "result"}};
  for (const std::string& set : test_sets(options.test_data)) {
    const Arrays inputs = named(set, "input", session.inputs());
    const Arrays wanted = named(set, "output", session.outputs());
    if (wanted.empty()) throw InvalidArgument("'" + set + "' has no output_0.pb: there is nothing to compare with");
    const Arrays outputs = session.run(inputs);
    for (const auto& [name, expected] : wanted) {
      const Comparison c = compare(outputs.at(name), expected, options.rtol, options.atol);
      all_equal = all_equal && c.equal;
      rows.push_back({set, name, number(c.max_difference), c.verdict});
      results.push_back({{"test_data", set}, {"output", name}, {"max_difference", c.max_difference},
                         {"equal", c.equal}, {"verdict", c.verdict}});
    }
  }
  print_warnings(session);
  if (options.json) {
    print_json({{"model", options.model}, {"runtime", runtime_json(runtime)}, {"provider", options.session.provider},
                {"rtol", options.rtol}, {"atol", options.atol}, {"comparisons", results}, {"equal", all_equal}});
  } else {
    std::printf("%s\n%s\n%s, rtol %s, atol %s\n", title(options, runtime).c_str(), table(rows).c_str(),
                all_equal ? "all equal" : "DIFFERENT", number(options.rtol).c_str(), number(options.atol).c_str());
  }
  return all_equal ? kOk : kFailed;
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

  const Inputs inputs(session, options);
  Arrays outputs;
  std::vector<double> times;
  for (int i = 0; i < options.warmup + options.repeat; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    outputs = session.run(inputs.arrays);
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
    notes.push_back("output '" + name + "' has " + std::to_string(s.nan) + " NaN and " + std::to_string(s.inf) +
                    " infinite elements of " + std::to_string(array.count()));
  }
  print_warnings(session);

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
    print_json({{"model", options.model}, {"runtime", runtime_json(runtime)}, {"provider", options.session.provider},
                {"inputs", in}, {"outputs", out},
                {"times_ms", {{"load", load_ms}, {"median", median}, {"min", times.front()}, {"max", times.back()},
                              {"repeat", options.repeat}, {"warmup", options.warmup}}},
                {"notes", notes}, {"warnings", session.warnings()}});
    return kOk;
  }
  std::vector<std::vector<std::string>> rows = {{"input", "type", "shape", "min", "max", "mean", "not finite", "from"}};
  for (const TensorInfo& info : session.inputs()) {
    const auto given = inputs.arrays.find(info.name);
    if (given != inputs.arrays.end()) rows.push_back(table_row(info.name, given->second, inputs.sources.at(info.name)));
  }
  rows.push_back({});
  rows.push_back({"output", "type", "shape", "min", "max", "mean", "not finite", files.empty() ? "" : "file"});
  for (const TensorInfo& info : session.outputs()) {
    rows.push_back(table_row(info.name, outputs.at(info.name), file_of(info.name)));
  }
  std::printf("%s\n%s\n", title(options, runtime).c_str(), table(rows).c_str());
  for (const std::string& note : notes) std::printf("note: %s\n", printable(note).c_str());
  std::printf("load %s ms; run: median %s ms, min %s ms (%d run%s after %d warm-up)\n", number(load_ms).c_str(),
              number(median).c_str(), number(times.front()).c_str(), options.repeat, options.repeat == 1 ? "" : "s",
              options.warmup);
  return kOk;
}

}  // namespace

Command add_run(CLI::App& parent) {
  const auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand("run", "Runs an ONNX model on files, random values or test data");
  app->footer(kExamples);
  app->add_option("model", o->model, "The .onnx file")->required()->option_text(" ");
  app->add_option("-l,--library", o->session.libraries, "A custom-operator library; may be repeated")
      ->allow_extra_args(false)->option_text("FILE");
  auto* input = app->add_option("-i,--input", o->inputs,
                                "An input: .npy, .npz, .pb (ONNX TensorProto) or a folder of these; may be repeated")
                    ->allow_extra_args(false)->option_text("[NAME=]FILE");
  auto* random = app->add_flag("--random", o->random, "Random values for the inputs that are not given");
  app->add_option("--seed", o->seed, "For --random [0]")->option_text("N");
  auto* dim = app->add_option("--dim", o->dims, "Fixes a dynamic dimension, also as INPUT:AXIS=N; may be repeated")
                  ->allow_extra_args(false)->check(check_dim)->option_text("NAME=N");
  auto* output_dir = app->add_option("-o,--output-dir", o->output_dir, "Writes the outputs into this folder")
                         ->option_text("DIR");
  app->add_option("--output-format", o->output_format, "npy, npz or pb [npy]")
      ->check(CLI::IsMember({"npy", "npz", "pb"}))->needs(output_dir)->option_text("KIND");
  auto* test_data = app->add_option("--test-data", o->test_data,
                                    "Runs input_0.pb.. of a folder (or of its test_data_set_0..) and compares with "
                                    "output_0.pb..")
                        ->option_text("DIR");
  test_data->excludes(input)->excludes(random)->excludes(dim)->excludes(output_dir);
  app->add_option("--rtol", o->rtol, "Relative tolerance of --test-data [0.001]")->needs(test_data)->option_text("X");
  app->add_option("--atol", o->atol, "Absolute tolerance of --test-data [1e-07]")->needs(test_data)->option_text("X");
  app->add_option("--repeat", o->repeat, "Timed runs [1]")->check(CLI::Range(1, 1000000))->excludes(test_data)
      ->option_text("N");
  app->add_option("--warmup", o->warmup, "Runs before the timed ones [0]")->check(CLI::Range(0, 1000000))
      ->excludes(test_data)->option_text("N");
  app->add_option("--threads", o->session.threads, "Threads inside an operator; 0: ONNX Runtime decides [0]")
      ->check(CLI::Range(0, 4096))->option_text("N");
  auto* provider = app->add_option("--provider", o->session.provider, "cpu or cuda [cpu]")
                       ->check(CLI::IsMember({"cpu", "cuda"}))->option_text("NAME");
  app->add_flag("--allow-fallback", o->session.allow_fallback,
                "With --provider cuda: nodes without a CUDA kernel run on the CPU instead of being an error")
      ->needs(provider);
  app->add_option("--device-id", o->session.device_id, "Which GPU [0]")->check(CLI::Range(0, 1023))->option_text("N");
  const std::map<std::string, Optimization> levels = {{"none", Optimization::kNone},
                                                      {"basic", Optimization::kBasic},
                                                      {"extended", Optimization::kExtended},
                                                      {"all", Optimization::kAll}};
  app->add_option("--optimize", o->session.optimization,
                  "ONNX Runtime's graph optimisation: none, basic, extended or all [all]")
      ->transform(CLI::CheckedTransformer(levels))->option_text("LEVEL");
  app->add_option("--ort", o->ort,
                  "The ONNX Runtime to use: libonnxruntime.so.* or a folder that has it. Else the environment variable "
                  "OPBRIDGE_ORT, the Python environment's wheel, the system")
      ->option_text("PATH");
  app->add_flag("--json", o->json, "Prints one JSON object instead of text");
  return {app, [o] { return run(*o); }};
}

}  // namespace opbridge::cli
