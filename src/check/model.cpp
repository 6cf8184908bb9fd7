// A model under everything that its inputs allow.
#include "runner/model.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <regex>

#include "cases.h"
#include "check.h"
#include "core/text.h"
#include "doctor/child.h"
#include "memory.h"
#include "opbridge/error.h"
#include "runner/proto.h"
#include "runner/visit.h"

namespace opbridge::checking {

using Json = nlohmann::ordered_json;
using doctor::Outcome;
using doctor::Report;
using doctor::Say;

namespace {

using SizesByName = std::map<std::string, int64_t>;

std::string to_string(const SizesByName& sizes) {
  std::string text;
  for (const auto& [name, size] : sizes)
    text += (text.empty() ? "" : ", ") + name + "=" + std::to_string(size);
  return text.empty() ? "no dynamic dimension" : text;
}

// "Conv (node 'c1')"
std::string title_of(const pb::NodeProto& node) {
  const std::string op = node.domain().empty() ? node.op_type() : node.domain() + "::" + node.op_type();
  return node.name().empty() ? op : op + " (node '" + node.name() + "')";
}

bool same_bits(const Array& a, const Array& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         (a.bytes() == 0 || std::memcmp(a.data(), b.data(), a.bytes()) == 0);
}

// "3 of 8 elements differ, first [0,1]: 0.5 and 0.25"
std::string difference(const Array& a, const Array& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return a.to_string() + " and " + b.to_string();
  const size_t size = dtype_size(a.dtype());
  int64_t count = 0, first = 0;
  for (int64_t i = 0; i < a.count(); ++i) {
    const size_t at = static_cast<size_t>(i) * size;
    if (std::memcmp(static_cast<char*>(a.data()) + at, static_cast<char*>(b.data()) + at, size) == 0)
      continue;
    if (count++ == 0) first = i;
  }
  const auto element = [first](const Array& x) {
    std::string text;
    visit(x, [&](auto* p) {
      using T = std::remove_pointer_t<decltype(p)>;
      const double v = as_double(p[first]);
      text = std::is_same_v<T, double> ? to_text(v) : to_text(static_cast<float>(v));
    });
    return text;
  };
  return std::to_string(count) + " of " + std::to_string(a.count()) + " elements differ, the first " +
         element(a) + " and " + element(b);
}

// Elements that are NaN or infinite.
int64_t not_finite(const Array& a) {
  int64_t count = 0;
  visit(a, [&](auto* p) {
    using T = std::remove_pointer_t<decltype(p)>;
    if constexpr (kIsFloat<T>) {
      for (int64_t i = 0; i < a.count(); ++i) count += !std::isfinite(as_double(p[i]));
    }
  });
  return count;
}

std::vector<double> numbers_of(const Array& a) {
  std::vector<double> numbers;
  visit(a, [&](auto* p) {
    for (int64_t i = 0; i < a.count(); ++i) numbers.push_back(as_double(p[i]));
  });
  return numbers;
}

// Numbers: the root mean square of the difference as a part of that of `exact`. Integers: the part that differs.
double relative_error(const Array& a, const Array& exact) {
  if (a.dtype() != exact.dtype() || a.shape() != exact.shape()) return INFINITY;
  const std::vector<double> x = numbers_of(a), y = numbers_of(exact);
  double error = 0, scale = 0;
  size_t different = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    different += x[i] != y[i];
    if (!std::isfinite(x[i]) || !std::isfinite(y[i])) continue;
    error += (x[i] - y[i]) * (x[i] - y[i]);
    scale += y[i] * y[i];
  }
  const bool numbers = a.dtype() == DType::f16 || a.dtype() == DType::bf16 || a.dtype() == DType::f32 ||
                       a.dtype() == DType::f64;
  if (!numbers) return x.empty() ? 0 : static_cast<double>(different) / static_cast<double>(x.size());
  return error == 0 ? 0 : std::sqrt(error) / (std::sqrt(scale) + 1e-12);
}

// Weights that lie in files beside the model become part of it.
void embed_weights(pb::ModelProto& model, const std::string& path) {
  constexpr uint64_t kMost = 1'800'000'000;  // what one protobuf message can hold, less the rest
  uint64_t total = 0;
  for (pb::TensorProto& t : *model.mutable_graph()->mutable_initializer()) {
    if (t.data_location() != pb::TensorProto::EXTERNAL) continue;
    std::string location;
    uint64_t offset = 0, length = 0;
    for (const auto& e : t.external_data()) {
      if (e.key() == "location") location = e.value();
      if (e.key() == "offset") offset = std::stoull(e.value());
      if (e.key() == "length") length = std::stoull(e.value());
    }
    const auto file = std::filesystem::path(path).parent_path() / location;
    if (length == 0) length = std::filesystem::file_size(file) - offset;
    if ((total += length) > kMost)
      throw Error(ErrorKind::kNotSupported,
                  "its weights are larger than 1.8 GB, so its inner tensors are not shown");
    std::ifstream in(file, std::ios::binary);
    in.seekg(static_cast<std::streamoff>(offset));
    t.mutable_raw_data()->resize(length);
    in.read(t.mutable_raw_data()->data(), static_cast<std::streamsize>(length));
    if (!in) throw InvalidArgument("'" + file.string() + "' is shorter than the model says");
    t.clear_external_data();
    t.set_data_location(pb::TensorProto::DEFAULT);
  }
}

// The model with every tensor of its main graph as an output, made in memory.
class Traced {
 public:
  Traced(const ModelOptions& options, const Runtime& runtime) : model_(parse_model(options.model)) {
    embed_weights(model_, options.model);
    pb::GraphProto& graph = *model_.mutable_graph();
    std::map<std::string, pb::ValueInfoProto> declared;
    for (const auto& v : graph.value_info()) declared[v.name()] = v;
    std::vector<std::string> outputs;
    for (const auto& o : graph.output()) outputs.push_back(o.name());
    for (const pb::NodeProto& node : graph.node()) {
      for (const std::string& name : node.output()) {
        if (name.empty() || node.op_type() == "Constant") continue;
        if (std::find(outputs.begin(), outputs.end(), name) != outputs.end()) continue;
        const auto known = declared.find(name);
        if (known != declared.end())
          *graph.add_output() = known->second;
        else
          graph.add_output()->set_name(name);
      }
    }
    const MemoryFile file(model_.SerializeAsString());
    SessionOptions session_options;
    session_options.libraries = options.libraries;
    session_options.threads = options.threads;
    session_options.optimization = Optimization::kNone;
    session_.emplace(runtime, file.path(), session_options);
  }

  const Session& session() const { return *session_; }
  const pb::GraphProto& graph() const { return model_.graph(); }

 private:
  pb::ModelProto model_;
  std::optional<Session> session_;
};

// --- what is done in the child

class Inside {
 public:
  Inside(const ModelOptions& options, Mark* mark, Say say)
      : options_(options),
        mark_(mark),
        say_(std::move(say)),
        runtime_(Runtime::find(options.ort)),
        session_(make_session()),
        model_(read_model(options.model)) {
    for (const std::string& path : options_.libraries) libraries_.push_back(read_operator_library(path));
    say_("runtime", {{"version", runtime_.version()}, {"path", runtime_.path()}});
  }

  void run() {
    if (!find_sizes()) return;
    check_outputs(sizes_, base_outputs_);
    check_repetition();
    vary_sizes();
    check_rotations();
    check_finite();
    check_memory();
    alarm(0);
  }

 private:
  Session make_session() {
    doing("loading it");
    SessionOptions session_options;
    session_options.libraries = options_.libraries;
    session_options.threads = options_.threads;
    return Session(runtime_, options_.model, session_options);
  }

  void doing(const std::string& what) {
    mark_->say(what);
    alarm(static_cast<unsigned>(std::max(1.0, std::ceil(options_.timeout))));
  }

  void found(const char* code, const std::string& evidence) {
    say_("finding", {{"code", code}, {"evidence", evidence}});
  }
  void skip(const std::string& what, const std::string& why) {
    say_("skipped", {{"what", what}, {"why", why}});
  }

  Arrays inputs_for(const SizesByName& sizes) { return options_.make_inputs(session_, sizes).arrays; }

  // Empty, or why it does not run.
  std::string try_sizes(const SizesByName& sizes, Arrays* outputs) {
    doing("a run with " + to_string(sizes));
    try {
      *outputs = session_.run(inputs_for(sizes));
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  }

  // --- sizes

  // The first sizes that it runs with.
  bool find_sizes() {
    std::vector<std::string> given = options_.make_inputs(session_, {}).given;
    std::vector<std::string> first;  // of axis 0
    for (const TensorInfo& info : session_.inputs()) {
      for (size_t i = 0; i < info.dims.size(); ++i) {
        if (info.dims[i].size >= 0) continue;
        const std::string name =
            info.dims[i].symbol.empty() ? info.name + ":" + std::to_string(i) : info.dims[i].symbol;
        if (i == 0) first.push_back(name);
        if (std::find(given.begin(), given.end(), info.name) != given.end()) fixed_.push_back(name);
        sizes_[name] = 1;
      }
    }
    fixed_.insert(fixed_.end(), options_.fixed.begin(), options_.fixed.end());
    for (const std::string& name : fixed_) sizes_.erase(name);
    // A batch is what leads every input; names that say so are taken at their word.
    for (const auto& [name, size] : sizes_) {
      const bool leads_all =
          first.size() == session_.inputs().size() &&
          std::all_of(first.begin(), first.end(), [&, n = name](const std::string& f) { return f == n; });
      if (is_batch_name(name) || (leads_all && sizes_.size() > 1)) batch_.push_back(name);
    }
    std::string error;
    for (const int64_t size : {16, 32, 64, 128, 224, 256, 512, 1024, 8, 4, 3, 1}) {
      for (auto& [name, value] : sizes_) value = is_batch(name) ? 1 : size;
      const std::string why = try_sizes(sizes_, &base_outputs_);
      if (why.empty()) {
        say_("sizes", sizes_);
        return true;
      }
      if (error.empty()) error = to_string(sizes_) + ": " + why;
      if (sizes_.size() == batch_.size()) break;
    }
    found("model-never-ran", error);
    return false;
  }

  bool is_batch(const std::string& name) const {
    return std::find(batch_.begin(), batch_.end(), name) != batch_.end();
  }

  void vary_sizes() {
    for (const std::string& name : fixed_) skip("sizes of '" + name + "'", "it was given");
    std::map<int64_t, std::vector<std::string>> alone;  // by size: dimensions that no other size runs with
    std::map<std::string, std::string> errors;
    for (const auto& [name, base] : sizes_) {
      std::string error = vary({name}, base);
      if (error.empty()) continue;
      alone[base].push_back(name);
      errors[name] = std::move(error);
    }
    // Dimensions without a common name may have to agree all the same.
    for (const auto& [base, names] : alone) {
      if (names.size() > 1 && vary(names, base).empty()) continue;
      for (const std::string& name : names) {
        found("dimension-fixed", "it runs with " + name + "=" + std::to_string(base) + " only; " +
                                     errors.at(name) + first_fixed());
      }
    }
  }

  // Gives the dimensions another size, all the same, and looks at what comes. Returns why none runs.
  std::string vary(const std::vector<std::string>& names, int64_t base) {
    const std::vector<int64_t> others = is_batch(names[0])
                                            ? std::vector<int64_t>{2, 3, 4}
                                            : std::vector<int64_t>{base + 1, 2 * base, base + 32, 3 * base};
    Json ran = {base}, refused = Json::array();
    std::string error;
    SizesByName sizes = sizes_;
    Arrays outputs;
    for (const int64_t size : others) {
      for (const std::string& name : names) sizes[name] = size;
      const std::string why = try_sizes(sizes, &outputs);
      if (why.empty()) {
        ran.push_back(size);
        break;
      }
      refused.push_back(size);
      if (error.empty()) error = to_string(sizes) + ": " + why;
    }
    std::string title;
    for (const std::string& name : names) title += (title.empty() ? "" : " = ") + name;
    say_("dimension", {{"name", title}, {"ran", ran}, {"refused", refused}});
    if (ran.size() == 1) return error;
    check_outputs(sizes, outputs);
    check_growth(names[0], sizes, outputs);
    check_inner_shapes(sizes);
    check_items(names[0], sizes, outputs);
    return "";
  }

  // The items of a batch against each of them alone, where the batch leads every input and output. Another size may
  // be summed in another order, so that only differences beyond rounding count.
  void check_items(const std::string& name, const SizesByName& sizes, const Arrays& together) {
    const int64_t items = sizes.at(name);
    const auto is_led = [&](const TensorInfo& info) {
      return !info.dims.empty() && info.dims[0].symbol == name;
    };
    if (changes_ || !is_batch(name) ||
        !std::all_of(session_.inputs().begin(), session_.inputs().end(), is_led))
      return;
    const Arrays inputs = inputs_for(sizes);
    for (int64_t i = 0; i < items; ++i) {
      doing("item " + std::to_string(i) + " of a batch alone");
      Arrays item;
      for (const auto& [input, value] : inputs) item.emplace(input, slice(value, i));
      const Arrays alone = session_.run(item);
      for (const auto& [output, value] : together) {
        if (value.shape().empty() || value.shape()[0] != items || alone.at(output).shape()[0] != 1) continue;
        const Array part = slice(value, i);
        const double error = relative_error(part, alone.at(output));
        if (error <= 1e-2) continue;
        return found("batch-items-differ", "item " + std::to_string(i) + " of " + to_string(sizes) +
                                               ": output '" + output + "' " + part.to_string() +
                                               " differs from that of the item alone by " +
                                               to_text(static_cast<float>(error)) + " of its size; " +
                                               opbridge::checking::difference(part, alone.at(output)));
      }
    }
  }

  // Outputs against what the file declares; what ONNX Runtime infers is looked at with the inner tensors.
  void check_outputs(const SizesByName& sizes, const Arrays& outputs) {
    for (const ValueInfo& info : model_.outputs) {
      const auto output = outputs.find(info.name);
      if (!info.rank_known || output == outputs.end()) continue;
      const std::vector<int64_t>& shape = output->second.shape();
      bool kept = shape.size() == info.dims.size();
      for (size_t i = 0; kept && i < shape.size(); ++i) {
        const auto size = sizes.find(info.dims[i].symbol);
        const int64_t expected = info.dims[i].size >= 0 ? info.dims[i].size
                                 : size == sizes.end()  ? -1
                                                        : size->second;
        kept = expected < 0 || expected == shape[i];
      }
      if (kept) continue;
      found("output-shape-wrong", "output '" + info.name + "' is declared " +
                                      type_and_shape(info.type, info.rank_known, info.dims) + ", with " +
                                      to_string(sizes) + " it is " + output->second.to_string());
    }
  }

  void check_growth(const std::string& name, const SizesByName& sizes, const Arrays& outputs) {
    if (!is_batch(name)) return;
    for (const TensorInfo& info : session_.outputs()) {
      const Array &before = base_outputs_.at(info.name), &after = outputs.at(info.name);
      if (before.shape() != after.shape()) continue;
      found("batch-lost", "output '" + info.name + "' is " + before.to_string() + " with " +
                              to_string(sizes_) + " and with " + to_string(sizes) + first_fixed());
    }
  }

  // "; the first tensor of fixed shape: .." by what ONNX Runtime's shape inference says of the inner tensors.
  std::string first_fixed() {
    const Traced* traced = trace();
    if (traced == nullptr) return "";
    std::map<std::string, const TensorInfo*> known;
    for (const TensorInfo& info : traced->session().inputs()) known[info.name] = &info;
    for (const TensorInfo& info : traced->session().outputs()) known[info.name] = &info;
    const auto dynamic = [](const TensorInfo& info) {
      return std::any_of(info.dims.begin(), info.dims.end(), [](const Dimension& d) { return d.size < 0; });
    };
    for (const pb::NodeProto& node : traced->graph().node()) {
      if (node.op_type() == "Shape" || node.op_type() == "Size") continue;
      const TensorInfo* from = nullptr;
      for (const std::string& name : node.input()) {
        const auto found = known.find(name);
        if (from == nullptr && found != known.end() && dynamic(*found->second)) from = found->second;
      }
      for (const std::string& name : node.output()) {
        const auto found = known.find(name);
        if (from == nullptr || found == known.end() || found->second->dims.empty() || dynamic(*found->second))
          continue;
        return "; the first tensor of fixed shape is '" + name + "' " + found->second->to_string() +
               ", made by " + title_of(node) + " from '" + from->name + "' " + from->to_string();
      }
    }
    return "";
  }

  // Inner tensors whose inferred size is not what comes.
  void check_inner_shapes(const SizesByName& sizes) {
    const Traced* traced = trace();
    if (traced == nullptr || inner_shape_found_) return;
    doing("its inner tensors, with " + to_string(sizes));
    Arrays values;
    try {
      values = traced->session().run(inputs_for(sizes));
    } catch (const Error& e) {
      return skip("shapes of inner tensors", e.what());
    }
    std::map<std::string, const TensorInfo*> known;
    for (const TensorInfo& info : traced->session().outputs()) known[info.name] = &info;
    for (const pb::NodeProto& node : traced->graph().node()) {
      for (const std::string& name : node.output()) {
        const auto info = known.find(name);
        if (info == known.end()) continue;
        const std::vector<int64_t>& shape = values.at(name).shape();
        const std::vector<Dimension>& dims = info->second->dims;
        bool kept = dims.empty() || dims.size() == shape.size();
        for (size_t i = 0; kept && i < dims.size(); ++i) kept = dims[i].size < 0 || dims[i].size == shape[i];
        if (kept) continue;
        inner_shape_found_ = true;
        return found("shape-frozen", "the first is '" + name + "', made by " + title_of(node) +
                                         ": inferred as " + info->second->to_string() + ", with " +
                                         to_string(sizes) + " it is " + values.at(name).to_string());
      }
    }
  }

  // --- values

  void check_repetition() {
    const Arrays inputs = inputs_for(sizes_);
    std::string changed;
    for (int i = 1; i < options_.repeats && changed.empty(); ++i) {
      doing("run " + std::to_string(i + 1) + " of " + std::to_string(options_.repeats));
      const Arrays again = session_.run(inputs);
      for (const auto& [name, value] : first_run(inputs)) {
        if (!changed.empty() || same_bits(value, again.at(name))) continue;
        changed = "run " + std::to_string(i + 1) + ": output '" + name + "' " + value.to_string() + ", " +
                  opbridge::checking::difference(value, again.at(name));
      }
    }
    if (changed.empty()) return;
    changes_ = true;
    found("model-not-deterministic", changed + first_different(inputs));
  }

  const Arrays& first_run(const Arrays& inputs) {
    if (first_.empty()) first_ = session_.run(inputs);
    return first_;
  }

  // "; the first tensor that differs: .." in the order of the nodes.
  std::string first_different(const Arrays& inputs) {
    const Traced* traced = trace();
    if (traced == nullptr) return "";
    const Arrays before = traced->session().run(inputs);
    for (int i = 1; i < options_.repeats; ++i) {
      doing("its inner tensors, run " + std::to_string(i + 1) + " of " + std::to_string(options_.repeats));
      const Arrays again = traced->session().run(inputs);
      for (const pb::NodeProto& node : traced->graph().node()) {
        for (const std::string& name : node.output()) {
          const auto old = before.find(name);
          if (old == before.end() || same_bits(old->second, again.at(name))) continue;
          return "; the first tensor that differs is '" + name + "', made by " + title_of(node);
        }
      }
    }
    return "; with all inner tensors as outputs and without optimisation it does not change";
  }

  // What an output is: "rotation", "translation" or nothing, by its operator's declaration or by its name.
  std::string meaning(const std::string& output) const {
    for (const CustomNode& node : model_.custom_nodes) {
      const auto at = std::find(node.outputs.begin(), node.outputs.end(), output);
      if (at == node.outputs.end() || !node.where.empty()) continue;
      const LibraryFile* library = find_library(node, libraries_);
      const Json* op =
          library == nullptr || !library->is_opbridge() ? nullptr : library->find_operator(node.op);
      const auto i = static_cast<size_t>(at - node.outputs.begin());
      if (op != nullptr && i < op->at("outputs").size()) {
        const std::string name = op->at("outputs")[i].at("name");
        if (name == "rotation" || name == "translation") return name;
      }
    }
    std::string lower = output;
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    static const std::regex rotation("(^|[^a-z])(r|rots?|rotations?|rot_?mat|rotation_matrix)([^a-z]|$)");
    static const std::regex translation("(^|[^a-z])(t|trans|translations?)([^a-z]|$)");
    return std::regex_search(lower, rotation)      ? "rotation"
           : std::regex_search(lower, translation) ? "translation"
                                                   : "";
  }

  void check_rotations() {
    const Arrays inputs = inputs_for(sizes_);
    for (const auto& [name, value] : first_run(inputs)) {
      const std::string what = meaning(name);
      const std::vector<int64_t>& shape = value.shape();
      const bool matrices = shape.size() >= 2 && shape[shape.size() - 1] == 3 && shape[shape.size() - 2] == 3;
      if (what == "rotation" && matrices) {
        const double limit = value.dtype() == DType::f16 || value.dtype() == DType::bf16 ? 1e-2 : 1e-4;
        const std::vector<double> r = numbers_of(value);
        int64_t wrong = 0;
        std::string evidence;
        for (size_t m = 0; m + 9 <= r.size(); m += 9) {
          const double* a = r.data() + m;
          const double det = a[0] * (a[4] * a[8] - a[5] * a[7]) - a[1] * (a[3] * a[8] - a[5] * a[6]) +
                             a[2] * (a[3] * a[7] - a[4] * a[6]);
          double off = 0;
          for (int i = 0; i < 3; ++i) {
            for (int k = 0; k < 3; ++k) {
              double dot = 0;
              for (int l = 0; l < 3; ++l) dot += a[3 * l + i] * a[3 * l + k];
              const double error = std::fabs(dot - (i == k));
              off = std::isfinite(error) ? std::max(off, error) : INFINITY;
            }
          }
          if (std::fabs(det - 1) <= limit && off <= limit) continue;
          if (wrong++ == 0)
            evidence = "matrix " + std::to_string(m / 9) +
                       " has det(R) = " + to_text(static_cast<float>(det)) +
                       " and R^T R is off the identity by " + to_text(static_cast<float>(off));
        }
        if (wrong > 0)
          found("rotation-wrong", "output '" + name + "' " + value.to_string() + ": " +
                                      std::to_string(wrong) + " of " + std::to_string(r.size() / 9) +
                                      " matrices; " + evidence);
      }
    }
  }

  void check_finite() {
    const Arrays inputs = inputs_for(sizes_);
    for (const auto& [name, value] : first_run(inputs)) {
      const int64_t count = not_finite(value);
      if (count == 0) continue;
      found(meaning(name) == "translation" ? "translation-not-finite" : "not-finite",
            "output '" + name + "' " + value.to_string() + " has " + std::to_string(count) +
                " elements that are NaN or infinite" + first_not_finite(inputs));
    }
  }

  // "; the first are in '..'": of the tensors in the order of the nodes.
  std::string first_not_finite(const Arrays& inputs) {
    const Traced* traced = trace();
    if (traced == nullptr) return "";
    doing("its inner tensors");
    const Arrays values = traced->session().run(inputs);
    for (const pb::NodeProto& node : traced->graph().node()) {
      for (const std::string& name : node.output()) {
        const auto value = values.find(name);
        if (value == values.end() || not_finite(value->second) == 0) continue;
        std::string from;
        for (const std::string& input : node.input()) {
          if (!input.empty()) from += (from.empty() ? "'" : ", '") + input + "'";
        }
        return "; the first are in '" + name + "', made by " + title_of(node) + " from " + from;
      }
    }
    return "";
  }

  // --- memory

  void check_memory() {
    constexpr int kBlocks = 5;
    const Arrays inputs = inputs_for(sizes_);
    const auto start = std::chrono::steady_clock::now();
    const auto seconds = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    const int warm_up = std::max(1, options_.runs / 20);
    int runs = 0;
    for (; runs < warm_up && seconds() < options_.memory_seconds / 10; ++runs) {
      doing("repeated runs");
      session_.run(inputs);
    }
    // What the last block of runs adds to what each block before added as well.
    int64_t least = INT64_MAX;
    int counted = 0;
    for (int block = 0; block < kBlocks; ++block) {
      const int64_t before = Holdings::now().heap;
      const double until = options_.memory_seconds * (block + 2) / (kBlocks + 1);
      int done = 0;
      for (; done < options_.runs / kBlocks && (done == 0 || seconds() < until); ++done) {
        doing("repeated runs");
        session_.run(inputs);
      }
      counted += done;
      if (block > 0) least = std::min(least, (Holdings::now().heap - before) / done);
    }
    say_("memory_runs", counted);
    if (counted < 20) return skip("memory growth", std::to_string(counted) + " runs took all the time");
    if (least >= 16)
      found("memory-grows",
            "every run of " + std::to_string(counted) + " keeps " + std::to_string(least) + " bytes or more");
  }

  // Null where the inner tensors cannot be shown; that is said once.
  const Traced* trace() {
    if (!traced_ && !untraceable_) {
      doing("adding its inner tensors as outputs");
      try {
        traced_.emplace(options_, runtime_);
      } catch (const Error& e) {
        untraceable_ = true;
        skip("inner tensors", e.what());
      }
    }
    return traced_ ? &*traced_ : nullptr;
  }

  const ModelOptions& options_;
  Mark* mark_;
  Say say_;
  Runtime runtime_;
  Session session_;
  ModelInfo model_;
  std::vector<LibraryFile> libraries_;
  SizesByName sizes_;
  std::vector<std::string> fixed_, batch_;
  Arrays base_outputs_, first_;
  std::optional<Traced> traced_;
  bool untraceable_ = false, inner_shape_found_ = false;
  bool changes_ = false;  // results differ by themselves: comparing them says nothing
};

}  // namespace

Report check_model(const ModelOptions& options) {
  Report report;
  report.right = "passes";
  report.wrong = "fails";
  report.facts = Json::object();
  Mark* mark = Mark::make();
  if (options.progress) options.progress("running " + options.model);
  bool loaded = false;
  const Outcome outcome = doctor::in_child(
      [&](const Say& say) {
        Inside inside(options, mark, say);
        say("loaded", true);
        inside.run();
      },
      options.timeout * 20 + options.memory_seconds + 600);
  loaded = !outcome.last("loaded").is_null();
  for (const Json& f : outcome.all("finding"))
    report.add(find_entry(f.at("code")), options.model, f.at("evidence"));
  if (!outcome.crash.empty()) {
    const bool late = outcome.crash.find("signal " + std::to_string(SIGALRM)) != std::string::npos ||
                      outcome.crash.find("did not end") != std::string::npos;
    report.add(find_entry(late ? "model-hangs" : "model-crashes"), options.model,
               std::string(mark->doing) + ": " +
                   (late ? "no answer within " + to_text(static_cast<float>(options.timeout)) + " s"
                         : "the process " + outcome.crash));
  } else if (!outcome.error.empty()) {
    report.add(find_entry(loaded ? "model-run-fails" : "model-does-not-load"), options.model,
               (loaded ? std::string(mark->doing) + ": " : "") + outcome.error);
  }
  report.facts["model"] = options.model;
  report.facts["runtimes"] = outcome.all("runtime");
  report.facts["sizes"] = outcome.last("sizes");
  report.facts["dimensions"] = outcome.all("dimension");
  report.facts["memory_runs"] = outcome.last("memory_runs");
  report.facts["skipped"] = outcome.all("skipped");
  report.sort();
  return report;
}

}  // namespace opbridge::checking
