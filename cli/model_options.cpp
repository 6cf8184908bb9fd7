#include "model_options.h"

#include <algorithm>
#include <filesystem>

#include "core/text.h"
#include "runner/visit.h"

namespace opbridge::cli {

namespace fs = std::filesystem;

namespace {

// "name=4" split at the last '='.
std::pair<std::string, std::string> split_dim(const std::string& text) {
  const size_t at = text.rfind('=');
  return at == std::string::npos ? std::pair(text, std::string())
                                 : std::pair(text.substr(0, at), text.substr(at + 1));
}

std::string check_dim(const std::string& text) {
  const auto [name, size] = split_dim(text);
  const bool digits =
      !size.empty() && size.size() < 16 && size.find_first_not_of("0123456789") == std::string::npos;
  return name.empty() || !digits
             ? "'" + text + "' is not NAME=SIZE (e.g. batch=4) or INPUT:AXIS=SIZE (e.g. x:0=4)"
             : "";
}

class Collector : public Inputs {
 public:
  Collector(const Session& session, const InputOptions& options) : session_(session) {
    for (const TensorInfo& info : session.inputs()) names_.push_back(info.name);
    read_dims(options.dims);
    for (const std::string& spec : options.files) read(spec);
    check_and_bind_dims();
    for (const auto& [name, text] : numbers_) fill(name, text);
    std::vector<std::string> missing;
    for (const TensorInfo& info : session.inputs()) {
      if (info.optional || arrays.count(info.name) != 0) continue;
      if (options.random)
        add(info.name, random(info, options.seed), "random");
      else
        missing.push_back("  --input " + info.name + "=FILE    for " + info.to_string());
    }
    if (!missing.empty()) {
      std::string message =
          "inputs are missing; give them as .npy, .npz or .pb files, or let --random make them:";
      for (const std::string& m : missing) message += "\n" + m;
      throw InvalidArgument(message);
    }
  }

 private:
  Error unknown_input(const std::string& name) const {
    std::string hint = did_you_mean(name, names_);
    if (hint.empty()) hint = names_.empty() ? "; it has no inputs" : "; it has " + list_of(names_);
    return InvalidArgument("the model has no input '" + name + "'" + hint);
  }

  bool known(const std::string& name) const {
    return std::find(names_.begin(), names_.end(), name) != names_.end();
  }

  void add(const std::string& name, const Array& array, const std::string& source) {
    if (!known(name)) throw unknown_input(name);
    if (!arrays.emplace(name, array).second) {
      throw InvalidArgument("input '" + name + "' is given twice: by '" + sources[name] + "' and by '" +
                            source + "'");
    }
    sources[name] = source;
  }

  // Exporters write "?" where they know no name: two of these are not the same size.
  static bool has_symbol(const Dimension& d) { return !d.symbol.empty() && d.symbol != "?"; }

  static std::string dim_name(const TensorInfo& info, size_t axis) {
    return has_symbol(info.dims[axis]) ? info.dims[axis].symbol : axis_name(info, axis);
  }

  static std::string axis_name(const TensorInfo& info, size_t axis) {
    return info.name + ":" + std::to_string(axis);
  }

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
        dynamic.push_back(dim_name(info, i));
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
      if (!added && at->second != value)
        throw InvalidArgument("--dim " + name + " is given twice, with two sizes");
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
    double value = 0;
    if (!fs::exists(path, ec) && CLI::detail::lexical_cast(path, value)) {
      numbers_.emplace_back(name, path);
      return;
    }
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
          throw InvalidArgument("dimension '" + (by_name ? info.dims[i].symbol : axis_name(info, i)) +
                                "' is " + std::to_string(wanted) + " (--dim or another input), but '" +
                                sources[info.name] + "' has " + std::to_string(got) + " in axis " +
                                std::to_string(i) + " of " + given->second.to_string());
        }
        if (has_symbol(info.dims[i])) dims_.emplace(info.dims[i].symbol, got);
      }
    }
  }

  // An input of the declared shape; dynamic dimensions that nothing fixes are 1, and noted.
  Array blank(const TensorInfo& info, const std::string& how) {
    if (!info.rank_known) {
      throw InvalidArgument("the model does not say what shape input '" + info.name + "' has, so " + how +
                            " cannot make it: give it with --input " + info.name + "=FILE");
    }
    std::vector<int64_t> shape;
    for (size_t i = 0; i < info.dims.size(); ++i) {
      int64_t size = info.dims[i].size >= 0 ? info.dims[i].size : fixed(info, i);
      if (size < 0) {
        size = 1;
        const std::string name = dim_name(info, i);
        notes.push_back("dimension '" + name + "' of input '" + info.name + "' is dynamic: 1 taken, --dim " +
                        name + "=N sets it");
      }
      shape.push_back(size);
    }
    return {info.dtype, shape};
  }

  // Every element the number that --input NAME=NUMBER gives, as its type has it.
  void fill(const std::string& name, const std::string& text) {
    const auto info = std::find_if(session_.inputs().begin(), session_.inputs().end(),
                                   [&name = name](const TensorInfo& t) { return t.name == name; });
    const Array array = blank(*info, "a number");
    visit(array, [&](auto* values) {
      using T = std::decay_t<decltype(*values)>;
      T value{};
      if constexpr (kIsFloat<T>) {
        if constexpr (std::is_same_v<T, double>)
          value = std::stod(text);
        else
          value = T(std::stof(text));
      } else {
        int64_t whole = 0;
        if (!CLI::detail::lexical_cast(text, whole) || static_cast<int64_t>(static_cast<T>(whole)) != whole)
          throw InvalidArgument("--input " + name + "=" + text + ": '" + name + "' is " + info->to_string());
        value = static_cast<T>(whole);
      }
      std::fill_n(values, array.count(), value);
    });
    add(name, array, text);
  }

  Array random(const TensorInfo& info, uint64_t seed) {
    const Array array = blank(info, "--random");
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
          values[i] =
              T(static_cast<float>(static_cast<int64_t>(next() >> 40) - (1 << 23)) / (1 << 23));  // 24 bits
        } else {
          values[i] = static_cast<T>(next() >> 63);
        }
      }
    });
    return array;
  }

  const Session& session_;
  std::vector<std::string> names_;
  std::map<std::string, int64_t> dims_;                       // by symbol, or "input:axis"
  std::vector<std::pair<std::string, std::string>> numbers_;  // inputs given as a number
};

}  // namespace

std::vector<CLI::Option*> add_input_options(CLI::App& app, InputOptions& options) {
  return {
      app.add_option("-i,--input", options.files,
                     "An input: .npy, .npz, .pb (ONNX TensorProto) or a folder of these; or NAME=NUMBER, "
                     "which fills it; "
                     "may be repeated")
          ->allow_extra_args(false)
          ->option_text("[NAME=]FILE"),
      app.add_flag("--random", options.random, "Random values for the inputs that are not given"),
      app.add_option("--seed", options.seed, "For --random [0]")->option_text("N"),
      app.add_option("--dim", options.dims,
                     "Fixes a dynamic dimension, also as INPUT:AXIS=N; may be repeated")
          ->allow_extra_args(false)
          ->check(check_dim)
          ->option_text("NAME=N"),
  };
}

Arrays run_first(const Session& session, const Arrays& arrays, const std::vector<std::string>& notes) {
  try {
    return session.run(arrays);
  } catch (const Error& e) {
    std::string message = e.what();
    for (const std::string& note : notes) message += "\nnote: " + note;
    throw Error(e.kind(), message);
  }
}

Inputs collect_inputs(const Session& session, const InputOptions& options) {
  return Collector(session, options);
}

const std::map<std::string, Optimization>& optimization_levels() {
  static const std::map<std::string, Optimization> levels = {{"none", Optimization::kNone},
                                                             {"basic", Optimization::kBasic},
                                                             {"extended", Optimization::kExtended},
                                                             {"all", Optimization::kAll}};
  return levels;
}

void add_session_options(CLI::App& app, SessionOptions& options, std::string& ort) {
  app.add_option("-l,--library", options.libraries, "A custom-operator library; may be repeated")
      ->allow_extra_args(false)
      ->option_text("FILE");
  app.add_option("--threads", options.threads, "Threads inside an operator; 0: ONNX Runtime decides [0]")
      ->check(CLI::Range(0, 4096))
      ->option_text("N");
  auto* provider = app.add_option("--provider", options.provider, "cpu or cuda [cpu]")
                       ->check(CLI::IsMember({"cpu", "cuda"}))
                       ->option_text("NAME");
  app.add_flag("--allow-fallback", options.allow_fallback,
               "With --provider cuda: what CUDA cannot run, runs on the CPU instead of being an error")
      ->needs(provider);
  app.add_option("--device-id", options.device_id, "Which GPU [0]")
      ->check(CLI::Range(0, 1023))
      ->option_text("N");
  app.add_option("--optimize", options.optimization,
                 "ONNX Runtime's graph optimisation: none, basic, extended or all [all]")
      ->transform(CLI::CheckedTransformer(optimization_levels()))
      ->option_text("LEVEL");
  app.add_option("--ort", ort,
                 "The ONNX Runtime to use: libonnxruntime.so.* or a folder that has it. Else the environment "
                 "variable OPBRIDGE_ORT, the Python environment's wheel, the system")
      ->option_text("PATH");
}

}  // namespace opbridge::cli
