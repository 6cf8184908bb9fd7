// `opbridge compare`: two models, or one in several ways, on the same inputs.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>

#include "command.h"
#include "difference.h"
#include "page.h"
#include "runner/library_file.h"
#include "runner/model.h"
#include "sides.h"
#include "terminal.h"

namespace opbridge::cli {

namespace {

using Json = nlohmann::ordered_json;

struct Options {
  SideOptions sides;
  InputOptions inputs;
  std::string expect, html;
  std::vector<std::string> units;
  double tolerance = -1, atol = 0;
  bool json = false;
};

constexpr const char* kExamples = R"(Examples:
  opbridge compare a.onnx b.onnx --random
  opbridge compare m.onnx --library libmy_ops.so --random --ort /opt/ort-1.20 --ort /opt/ort-1.32
  opbridge compare m.onnx --random --threads 1 --threads 4 --optimize none --optimize all
  opbridge compare m.onnx --library new.so --library-b old.so --input frame.npz --html report.html
  opbridge compare m.onnx --input x.npy --expect outputs.npz
  opbridge compare m.onnx --random --provider cpu --provider cuda

Every combination of the models, libraries, runtimes, providers, thread counts and levels given is run on the same
inputs; the first, or what --expect names, is what the others must reproduce. Values may differ by a part of the
expected tensor's root mean square (f16 1e-2, bf16 5e-2, f32 1e-3, f64 1e-7, or --tolerance), rotations by an angle
(f16 0.5, bf16 3, f32 0.05, f64 1e-5 degrees). Indices must be the same, but for ties where the points are inputs.
For PyTorch against ONNX, layer by layer: opbridge.compare(module, "m.onnx", inputs) in Python (docs/compare.md).
Exit codes: 0 equal, 1 different or failed, 2 wrong command line.)";

// A side, and what came of it.
struct Outcome {
  Side side;
  std::string version, label, error, used_provider;
  Arrays outputs;
  std::vector<std::string> names;  // of the outputs, in order
  std::vector<std::string> warnings;
  double milliseconds = 0;
};

struct Row {
  size_t side;
  std::string output, type;
  Difference difference;
};

class Comparison {
 public:
  explicit Comparison(const Options& options) : options_(options) {
    for (const Side& side : sides_of(options.sides)) {
      sides_.emplace_back();
      sides_.back().side = side;
    }
  }

  int run() {
    if (sides_.size() < 2 && options_.expect.empty()) {
      std::fprintf(stderr,
                   "%s nothing to compare '%s' with: give a second model, --expect FILE, --library-b, or one "
                   "of --ort, "
                   "--provider, --threads and --optimize twice\n",
                   error_label().c_str(), printable(options_.sides.model).c_str());
      return kUsage;
    }
    {
      const Progress progress(!options_.json);
      for (size_t i = 0; i < sides_.size(); ++i) {
        sides_[i].label = sides_[i].side.model;
        progress(i + 1, sides_.size(),
                 sides_[i].side.model + (sides_[i].side.ort.empty() ? "" : " on " + sides_[i].side.ort));
        run_side(sides_[i], i == 0);
      }
    }
    if (!options_.expect.empty()) expected_ = read_arrays(options_.expect);
    for (size_t i = options_.expect.empty() ? 1 : 0; i < sides_.size(); ++i) compare_side(i);
    if (rows_.empty() && failed_ == 0)
      throw InvalidArgument("the two have no output in common: " + list_of_names(sides_.back()) +
                            " against " +
                            (options_.expect.empty() ? list_of_names(sides_[0]) : options_.expect));
    if (options_.json)
      print_json(to_json());
    else
      print();
    if (!options_.html.empty()) write_page();
    return equal() ? kOk : kFailed;
  }

 private:
  void run_side(Outcome& out, bool first) {
    const Side& side = out.side;
    try {
      const Runtime runtime = Runtime::find(side.ort);
      out.version = runtime.version();
      out.label = side.label(options_.sides, out.version);
      const Session session(runtime, side.model, side.session_options(options_.sides));
      if (first) {
        const Inputs inputs = collect_inputs(session, options_.inputs);
        inputs_ = inputs.arrays;
        sources_ = inputs.sources;
        notes_ = inputs.notes;
      }
      const Arrays inputs = same_inputs(session, inputs_, side.model, options_.sides.model);
      const auto start = std::chrono::steady_clock::now();
      out.outputs = run_first(session, inputs, notes_);
      out.milliseconds =
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
      for (const TensorInfo& info : session.outputs()) out.names.push_back(info.name);
      out.used_provider = session.provider();
      out.warnings = session.warnings();
    } catch (const Error& e) {
      if (first) throw;  // nothing to compare the others with
      if (out.version.empty()) out.label += side.ort.empty() ? "" : " on " + side.ort;
      out.error = e.what();
      ++failed_;
    }
  }

  static std::string list_of_names(const Outcome& side) {
    std::string text;
    for (const std::string& name : side.names) text += (text.empty() ? "'" : ", '") + name + "'";
    return text.empty() ? "none" : text;
  }

  void compare_side(size_t index) {
    const Outcome& side = sides_[index];
    if (!side.error.empty()) return;
    const bool against_file = !options_.expect.empty();
    const Arrays& expected = against_file ? expected_ : sides_[0].outputs;
    std::vector<std::string> expected_names = sides_[0].names;
    if (against_file) {
      expected_names.clear();
      for (const auto& e : expected) expected_names.push_back(e.first);
    }
    size_t common = 0;
    for (const std::string& name : side.names) common += expected.count(name);
    const bool by_position = common == 0 && side.names.size() == expected_names.size() &&
                             (!against_file || expected_names.size() == 1);
    if (by_position) note("the outputs have other names: they are compared by position");
    for (size_t i = 0; i < side.names.size(); ++i) {
      const std::string& name = side.names[i];
      const std::string other = by_position ? expected_names[i] : name;
      const auto found = expected.find(other);
      if (found == expected.end()) {
        note("output '" + name + "' of " + side.label + " is not in " +
             (against_file ? options_.expect : sides_[0].label) + ": not compared");
        continue;
      }
      const Array& actual = side.outputs.at(name);
      rows_.push_back(
          {index, name, actual.to_string(), compare(actual, found->second, how(side.side, name))});
    }
    if (by_position) return;
    for (const std::string& name : expected_names) {
      if (side.outputs.count(name) == 0)
        note("'" + name + "' of " + (against_file ? options_.expect : sides_[0].label) + " is no output of " +
             side.label + ": not compared");
    }
  }

  void note(const std::string& text) {
    if (std::find(notes_.begin(), notes_.end(), text) == notes_.end()) notes_.push_back(text);
  }

  // In which terms an output is compared: what its operator says it is.
  CompareOptions how(const Side& side, const std::string& output) {
    CompareOptions c;
    if (options_.tolerance >= 0) c.tolerance = options_.tolerance;
    c.atol = options_.atol;
    if (output == "translation") c.kind = Kind::kTranslation;
    for (const std::string& unit : options_.units) {
      const size_t at = unit.rfind('=');
      if (unit.substr(0, at) != output) continue;
      c.kind = Kind::kTranslation;
      const std::string what = unit.substr(at + 1);
      c.millimetres_per_unit = what == "mm" ? 1 : what == "cm" ? 10 : 1000;
    }
    const ModelInfo& info = model(side.model);
    for (const CustomNode& node : info.custom_nodes) {
      const auto at = std::find(node.outputs.begin(), node.outputs.end(), output);
      if (at == node.outputs.end() || !node.where.empty()) continue;
      const auto position = static_cast<size_t>(at - node.outputs.begin());
      Json attributes = Json::object();
      const LibraryFile* library = find_library(node, libraries(side));
      const Json* declared = library != nullptr ? library->find_operator(node.op) : nullptr;
      if (declared != nullptr) {
        for (const auto& a : declared->at("attributes")) {
          if (a.contains("default")) attributes[a.at("name").get<std::string>()] = a.at("default");
        }
        const auto& outputs = declared->at("outputs");
        const std::string name =
            position < outputs.size() ? outputs[position].at("name").get<std::string>() : "";
        if (name == "rotation") c.kind = Kind::kRotation;
        if (name == "translation") c.kind = Kind::kTranslation;
      }
      for (const NodeAttribute& a : node.attributes) attributes[a.name] = a.value;
      std::vector<const Array*> inputs;
      for (const std::string& name : node.inputs) {
        const auto given = inputs_.find(name);
        inputs.push_back(given == inputs_.end() ? nullptr : &given->second);
      }
      c.geometry = tie_geometry(node.op, position, inputs, attributes);
    }
    return c;
  }

  const std::vector<LibraryFile>& libraries(const Side& side) {
    const auto [found, fresh] = libraries_.try_emplace(side.libraries);
    if (fresh) {
      for (const std::string& path : side.libraries) found->second.push_back(read_operator_library(path));
    }
    return found->second;
  }

  const ModelInfo& model(const std::string& path) {
    const auto found = models_.find(path);
    return found != models_.end() ? found->second : models_.emplace(path, read_model(path)).first->second;
  }

  bool equal() const {
    return failed_ == 0 &&
           std::all_of(rows_.begin(), rows_.end(), [](const Row& r) { return r.difference.equal; });
  }

  std::string verdict() const {
    size_t different = 0, same = 0;
    for (const Row& r : rows_) {
      different += !r.difference.equal;
      same += r.difference.identical;
    }
    std::string text;
    if (different == 0 && failed_ == 0) {
      text = "equal: " + std::to_string(rows_.size()) + " comparison" + (rows_.size() == 1 ? "" : "s");
      if (same == rows_.size())
        text += ", every bit the same";
      else if (same > 0)
        text += ", " + std::to_string(same) + " of them the same bits";
      return text;
    }
    if (different > 0)
      text =
          "DIFFERENT: " + std::to_string(different) + " of " + std::to_string(rows_.size()) + " comparisons";
    if (failed_ > 0) text += (text.empty() ? "FAILED: " : "; ") + std::to_string(failed_) + " could not run";
    return text;
  }

  std::string baseline() const {
    if (!options_.expect.empty()) return options_.expect;
    const Outcome& s = sides_[0];
    return s.label + (options_.sides.orts.size() > 1
                          ? ""
                          : " (ONNX Runtime " + s.version + ", " + s.used_provider + ")");
  }

  std::vector<std::vector<std::string>> table_rows() const {
    std::vector<std::vector<std::string>> rows = {
        {"side", "output", "type", "max", "mean", "relative", "cosine", "limit", "result"}};
    const auto show = [](double v) { return std::isfinite(v) ? number(v) : "-"; };
    for (const Row& r : rows_) {
      const Difference& d = r.difference;
      const bool numbers = d.problem.empty() && d.kind != Kind::kIndex;
      std::string result = d.equal ? "equal" : "DIFFERENT";
      if (!d.to_string().empty()) result += ": " + d.to_string();
      rows.push_back({sides_[r.side].label, r.output, r.type, numbers ? show(d.max) : "-",
                      numbers ? show(d.mean) : "-", numbers ? show(d.relative) : "-",
                      numbers ? show(d.cosine) : "-", number(d.limit), result});
    }
    for (const Outcome& s : sides_) {
      if (!s.error.empty()) rows.push_back({s.label, "", "", "-", "-", "-", "-", "-", "FAILED"});
    }
    return rows;
  }

  void print() const {
    std::printf("%s against %s\n\n%s\n",
                heading(options_.sides.second.empty() ? options_.sides.model : options_.sides.second).c_str(),
                printable(baseline()).c_str(), table(table_rows()).c_str());
    for (const std::string& n : notes_) std::printf("note: %s\n", printable(n).c_str());
    for (const Outcome& s : sides_) {
      if (!s.error.empty())
        std::fprintf(stderr, "%s %s: %s\n", error_label().c_str(), printable(s.label).c_str(),
                     printable(s.error).c_str());
      for (const std::string& w : s.warnings)
        std::fprintf(stderr, "%s %s: %s\n", warning_label().c_str(), printable(s.label).c_str(),
                     printable(w).c_str());
    }
    std::printf("%s\n", verdict().c_str());
  }

  static Json side_json(const Outcome& s) {
    return {{"label", s.label},
            {"model", s.side.model},
            {"libraries", s.side.libraries},
            {"runtime", s.version},
            {"provider", s.side.provider},
            {"threads", s.side.threads},
            {"optimize", s.side.level},
            {"time_ms", s.milliseconds},
            {"warnings", s.warnings},
            {"error", s.error.empty() ? Json() : Json(s.error)}};
  }

  Json to_json() const {
    Json sides = Json::array(), inputs = Json::array();
    for (size_t i = 0; i < sides_.size(); ++i) {
      Json side = side_json(sides_[i]);
      side["outputs"] = Json::array();
      bool all = sides_[i].error.empty();
      for (const Row& r : rows_) {
        if (r.side != i) continue;
        all = all && r.difference.equal;
        side["outputs"].push_back(
            {{"name", r.output}, {"type", r.type}, {"difference", r.difference.to_json()}});
      }
      side["equal"] = all;
      sides.push_back(side);
    }
    for (const auto& [name, array] : inputs_)
      inputs.push_back({{"name", name}, {"type", array.to_string()}, {"source", sources_.at(name)}});
    return {{"equal", equal()}, {"verdict", verdict()}, {"baseline", baseline()},
            {"inputs", inputs}, {"sides", sides},       {"notes", notes_}};
  }

  void write_page() const {
    Page page("opbridge compare: " + options_.sides.model, verdict(), equal());
    std::vector<std::vector<std::string>> facts = {{"against", baseline()}};
    for (const auto& [name, array] : inputs_)
      facts.push_back({"input '" + name + "'", array.to_string() + ", " + sources_.at(name)});
    page.facts(facts);
    std::vector<Bar> bars;
    for (const Row& r : rows_) {
      const Difference& d = r.difference;
      const double ratio = d.error == 0  ? 0
                           : d.limit > 0 ? d.error / d.limit
                                         : std::numeric_limits<double>::infinity();
      bars.push_back({sides_[r.side].label + ": " + r.output, ratio, d.equal});
    }
    page.chart("Error of each output, as a part of what is allowed", bars);
    std::vector<std::string> classes;
    for (const Row& r : rows_) classes.emplace_back(r.difference.equal ? "" : "bad");
    for (size_t i = 0; i < failed_; ++i) classes.emplace_back("bad");
    page.table("Outputs", table_rows(), classes);
    std::vector<std::vector<std::string>> ways = {
        {"side", "model", "ONNX Runtime", "provider", "threads", "optimize", "time", "error"}};
    for (const Outcome& s : sides_) {
      ways.push_back({s.label, s.side.model, s.version, s.side.provider,
                      s.side.threads == 0 ? "ORT's choice" : std::to_string(s.side.threads), s.side.level,
                      number(s.milliseconds) + " ms", s.error});
    }
    page.table("What was run", ways, {});
    page.list("Notes", notes_);
    page.write(options_.html);
  }

  const Options& options_;
  std::vector<Outcome> sides_;
  Arrays inputs_, expected_;
  std::map<std::string, std::string> sources_;
  std::vector<std::string> notes_;
  std::map<std::string, ModelInfo> models_;
  std::map<std::vector<std::string>, std::vector<LibraryFile>> libraries_;
  std::vector<Row> rows_;
  size_t failed_ = 0;
};

std::string check_unit(const std::string& text) {
  const size_t at = text.rfind('=');
  const std::string unit = at == std::string::npos ? "" : text.substr(at + 1);
  return at > 0 && (unit == "m" || unit == "cm" || unit == "mm")
             ? ""
             : "'" + text + "' is not OUTPUT=m, OUTPUT=cm or OUTPUT=mm";
}

}  // namespace

Command add_compare(CLI::App& parent) {
  const auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand(
      "compare",
      "Runs models, runtimes, libraries and settings on the same inputs and says where outputs differ");
  app->footer(kExamples);
  add_side_options(*app, o->sides);
  add_input_options(*app, o->inputs);
  app->add_option("--expect", o->expect, "Outputs to reproduce: .npy, .npz, .pb or a folder of these")
      ->option_text("FILE");
  app->add_option("--tolerance", o->tolerance,
                  "Largest difference, as a part of the expected root mean square")
      ->check(CLI::Range(0.0, 1e9))
      ->option_text("X");
  app->add_option("--atol", o->atol, "Values that differ by no more than this are equal, too [0]")
      ->check(CLI::Range(0.0, 1e9))
      ->option_text("X");
  app->add_option("--unit", o->units,
                  "An output that is a translation, and its unit: m, cm or mm; may be repeated")
      ->allow_extra_args(false)
      ->check(check_unit)
      ->option_text("OUTPUT=UNIT");
  app->add_option("--html", o->html, "Writes a page that needs nothing else, to send on")
      ->option_text("FILE");
  app->add_flag("--json", o->json, "Prints one JSON object instead of text");
  return {app, [o] { return Comparison(*o).run(); }};
}

}  // namespace opbridge::cli
