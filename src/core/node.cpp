#include "node.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <mutex>
#include <new>

#include "text.h"

namespace opbridge {

// --- attributes

namespace {

// `v` is an int64_t or a float.
template <class T>
void check_range(const Attribute& a, T value) {
  const auto v = static_cast<long double>(value);  // exact for both
  const bool ok = (a.min_open ? v > a.min : v >= a.min) && (a.max_open ? v < a.max : v <= a.max);
  if (ok) return;
  std::string got;
  if constexpr (std::is_floating_point_v<T>)
    got = to_text(value);
  else
    got = std::to_string(value);
  throw InvalidArgument("attribute '" + a.name + "' must lie in " + range_to_text(a) + ", got " + got);
}

void check_value(const Attribute& a, AttributeValue& v) {
  switch (a.type) {
    case AttributeType::kInt:
      check_range(a, v.i);
      break;
    case AttributeType::kFloat:
      check_range(a, v.f);
      break;
    case AttributeType::kBool:
      if (v.i != 0 && v.i != 1)
        throw InvalidArgument("attribute '" + a.name + "' must be 0 or 1, got " + std::to_string(v.i));
      break;
    case AttributeType::kString: {
      const auto it = std::find(a.choices.begin(), a.choices.end(), v.s);
      if (it == a.choices.end()) {
        throw InvalidArgument("attribute '" + a.name + "' must be one of " + list_of(a.choices) + ", got '" +
                              v.s + "'" + did_you_mean(v.s, a.choices));
      }
      v.i = it - a.choices.begin();
      break;
    }
    case AttributeType::kInts:
      for (const int64_t x : v.ints) check_range(a, x);
      break;
    case AttributeType::kFloats:
      for (const float x : v.floats) check_range(a, x);
      break;
  }
}

}  // namespace

std::vector<AttributeValue> resolve_attributes(
    const Signature& signature, const std::vector<std::pair<std::string, AttributeValue>>& given) {
  std::vector<std::string> names;
  for (const Attribute& a : signature.attributes) names.push_back(a.name);
  for (size_t i = 0; i < given.size(); ++i) {
    const std::string& name = given[i].first;
    if (signature.find_attribute(name) == nullptr) {
      throw InvalidArgument("attribute '" + name + "' is unknown" + did_you_mean(name, names) +
                            (names.empty() ? " (the operator has no attributes)"
                                           : " (the operator has " + list_of(names, "and") + ")"));
    }
    for (size_t j = 0; j < i; ++j) {
      if (given[j].first == name) throw InvalidArgument("attribute '" + name + "' is given twice");
    }
  }
  std::vector<AttributeValue> values;
  for (const Attribute& a : signature.attributes) {
    const auto it =
        std::find_if(given.begin(), given.end(), [&](const auto& g) { return g.first == a.name; });
    if (it == given.end()) {
      if (a.required) {
        throw InvalidArgument("attribute '" + a.name + "' (" + attribute_type_name(a.type) +
                              ") is required, but missing");
      }
      values.push_back(a.default_value);
      continue;
    }
    AttributeValue v = it->second;
    if (a.type == AttributeType::kBool && v.type == AttributeType::kInt)
      v.type = AttributeType::kBool;  // ONNX has no bool
    // An empty list has no element type in ONNX; hosts may report it as either.
    const bool empty_list = (v.type == AttributeType::kInts && v.ints.empty()) ||
                            (v.type == AttributeType::kFloats && v.floats.empty());
    if (empty_list && (a.type == AttributeType::kInts || a.type == AttributeType::kFloats)) v.type = a.type;
    if (v.type != a.type) {
      throw InvalidArgument("attribute '" + a.name + "' must be of type " + attribute_type_name(a.type) +
                            ", got " + attribute_type_name(v.type));
    }
    check_value(a, v);
    values.push_back(std::move(v));
  }
  return values;
}

// --- node

bool dim_arithmetic(Dim::Kind kind, int64_t x, int64_t y, int64_t* result) {
  switch (kind) {
    case Dim::Kind::kAdd:
      return !__builtin_add_overflow(x, y, result);
    case Dim::Kind::kSub:
      return !__builtin_sub_overflow(x, y, result);
    case Dim::Kind::kMul:
      return !__builtin_mul_overflow(x, y, result);
    case Dim::Kind::kFloorDiv:
      if (y == 0 || (y == -1 && x == INT64_MIN)) return false;
      *result = x / y - ((x % y != 0) && ((x < 0) != (y < 0)));
      return true;
    default:
      return false;
  }
}

// What the inputs have said so far. Fixed size: a call allocates nothing.
struct Node::Bindings {
  int64_t names[32];
  int8_t bound_by[32];  // input that bound the name; -1 not yet, -2 an attribute
  const int64_t* prefix[4];
  int32_t prefix_rank[4];  // -1 not yet
  int8_t prefix_by[4];
  DType types[8];
  int8_t type_by[8];
};

Node::Node(const Operator& op, const Signature& signature, std::string title,
           std::vector<AttributeValue> attributes, std::unique_ptr<const Trace> trace)
    : op_(op),
      signature_(signature),
      title_(std::move(title)),
      attributes_(std::move(attributes)),
      trace_(std::move(trace)),
      required_inputs_(signature.required_inputs()) {
  for (const Argument& a : signature_.inputs) {
    for (const ShapePattern& p : a.shapes) {
      for (const Dim& d : p.dims) later_ = later_ || d.optional_prefix || !d.args.empty();
    }
  }
  ++alive_;
}

Node::~Node() { --alive_; }

std::atomic<int64_t> Node::alive_{0};

void Node::fail(ErrorKind kind, const std::string& what) const { throw Error(kind, title_ + ": " + what); }

bool Node::matches_rank(const ShapePattern& p, int rank) const {
  const int fixed = static_cast<int>(p.dims.size()) - p.has_prefix();
  return p.has_prefix() ? rank >= fixed : rank == fixed;
}

// The first alternative that fits the tensor and all that is bound already; binds its names.
const ShapePattern* Node::choose(const Argument& a, const TensorArg& t, Bindings& b) const {
  const ShapePattern* only = nullptr;
  int candidates = 0;
  for (const ShapePattern& p : a.shapes) {
    if (!matches_rank(p, t.rank)) continue;
    only = &p;
    ++candidates;
  }
  if (candidates < 2) return only != nullptr && bind(a, *only, t, false, b) ? only : nullptr;
  for (const ShapePattern& p : a.shapes) {
    if (!matches_rank(p, t.rank)) continue;
    Bindings trial = b;  // what a pattern that does not fit has bound is forgotten
    if (!bind(a, p, t, false, trial)) continue;
    b = trial;
    return &p;
  }
  return nullptr;
}

// Binds the names that stand alone and compares the ones bound already. Arithmetic is compared later, in
// infer().
bool Node::bind(const Argument& a, const ShapePattern& p, const TensorArg& t, bool optional_pass,
                Bindings& b) const {
  const int8_t self = static_cast<int8_t>(&a - signature_.inputs.data());
  const size_t skip = p.has_prefix() ? 1 : 0, fixed = p.dims.size() - skip;
  const int32_t prefix_rank = t.rank - static_cast<int32_t>(fixed);
  if (skip) {
    const Dim& d = p.dims[0];
    const size_t s = static_cast<size_t>(d.slot);
    if (d.optional_prefix != optional_pass) return true;  // `*B?` waits until every `*B` has spoken
    if (d.optional_prefix && prefix_rank == 0) {
      // none: broadcast
    } else if (b.prefix_rank[s] < 0) {
      if (d.optional_prefix) return false;
      b.prefix[s] = t.shape;
      b.prefix_rank[s] = prefix_rank;
      b.prefix_by[s] = self;
    } else if (b.prefix_rank[s] != prefix_rank || !std::equal(t.shape, t.shape + prefix_rank, b.prefix[s])) {
      return false;
    }
  } else if (optional_pass) {
    return true;
  }
  for (size_t i = 0; i < fixed; ++i) {
    const Dim& d = p.dims[skip + i];
    const int64_t extent = t.shape[static_cast<size_t>(prefix_rank) + i];
    if (d.kind == Dim::Kind::kLiteral) {
      if (d.value != extent) return false;
    } else if (d.kind == Dim::Kind::kName) {
      const size_t s = static_cast<size_t>(d.slot);
      if (b.bound_by[s] == -1) {
        b.names[s] = extent;
        b.bound_by[s] = self;
      } else if (b.names[s] != extent) {
        return false;
      }
    }
  }
  return true;
}

int64_t Node::evaluate(const Dim& d, const Bindings& b) const {
  switch (d.kind) {
    case Dim::Kind::kLiteral:
      return d.value;
    case Dim::Kind::kName:
      return b.names[d.slot];
    case Dim::Kind::kAdd:
    case Dim::Kind::kSub:
    case Dim::Kind::kMul:
    case Dim::Kind::kFloorDiv: {
      const int64_t x = evaluate(d.args[0], b), y = evaluate(d.args[1], b);
      int64_t result;
      if (!dim_arithmetic(d.kind, x, y, &result)) {
        fail(ErrorKind::kInvalidArgument, d.kind == Dim::Kind::kFloorDiv && y == 0
                                              ? "a dimension of its signature divides by zero"
                                              : "a dimension does not fit 64 bits");
      }
      return result;
    }
    case Dim::Kind::kPrefix:
      break;
  }
  return 0;
}

void Node::output_shape(const Argument& a, const Bindings& b, TensorSpec& spec) const {
  const ShapePattern& p = a.shapes[0];
  spec.dtype = a.type_variable >= 0 ? b.types[a.type_variable] : a.concrete;
  int32_t rank = 0;
  for (const Dim& d : p.dims) {
    const int32_t more = d.kind == Dim::Kind::kPrefix ? b.prefix_rank[d.slot] : 1;
    if (rank + more > kMaxRank) {
      fail(ErrorKind::kNotSupported,
           "output '" + a.name + "' would have more than " + std::to_string(kMaxRank) + " dimensions");
    }
    if (d.kind == Dim::Kind::kPrefix) {
      std::copy_n(b.prefix[d.slot], more, spec.shape + rank);
    } else {
      spec.shape[rank] = evaluate(d, b);
      if (spec.shape[rank] < 0) {
        fail(ErrorKind::kInvalidArgument, "output '" + a.name + "' would have shape " +
                                              shape_to_string(signature_, p) + " with a dimension of " +
                                              std::to_string(spec.shape[rank]));
      }
    }
    rank += more;
  }
  spec.rank = rank;
  // No host can allocate more than this; without the check a product of dimensions could wrap around.
  int64_t bytes = static_cast<int64_t>(dtype_size(spec.dtype));
  bool overflow = false;
  for (int i = 0; i < rank; ++i) {
    if (spec.shape[i] == 0) return;
    overflow = overflow || __builtin_mul_overflow(bytes, spec.shape[i], &bytes);
  }
  if (overflow) {
    fail(ErrorKind::kInvalidArgument, "output '" + a.name + "' of shape " +
                                          shape_to_string(spec.shape, rank) + " does not fit into memory");
  }
}

void Node::infer(const TensorArg* inputs, int input_count, TensorSpec* outputs) const {
  const Signature& s = signature_;
  const int declared = static_cast<int>(s.inputs.size());
  if (input_count < required_inputs_ || (input_count > declared && !s.variadic())) {
    const std::string range = s.variadic() ? std::to_string(required_inputs_) + " or more"
                              : required_inputs_ == declared
                                  ? std::to_string(declared)
                                  : std::to_string(required_inputs_) + " to " + std::to_string(declared);
    fail(ErrorKind::kInvalidArgument, "takes " + range + " inputs, got " + std::to_string(input_count));
  }
  if (input_count > kMaxArguments) {
    fail(ErrorKind::kInvalidArgument,
         "takes at most " + std::to_string(kMaxArguments) + " inputs, got " + std::to_string(input_count));
  }
  Bindings b{};
  std::fill_n(b.bound_by, s.names.size(), static_cast<int8_t>(-1));
  std::fill_n(b.prefix_rank, s.prefixes.size(), -1);
  std::fill_n(b.type_by, s.type_variables.size(), static_cast<int8_t>(-1));
  for (size_t i = 0; i < s.attributes.size(); ++i) {
    if (s.attributes[i].name_slot < 0) continue;
    b.names[s.attributes[i].name_slot] = attributes_[i].i;
    b.bound_by[s.attributes[i].name_slot] = -2;
  }

  bool alternatives = false;
  const ShapePattern* chosen[kMaxArguments];
  for (int i = 0; i < input_count; ++i) {
    const Argument& a = s.inputs[static_cast<size_t>(std::min(i, declared - 1))];
    const TensorArg& t = inputs[i];
    chosen[i] = nullptr;
    if (!t.present) {
      if (a.optional) continue;
      fail(ErrorKind::kInvalidArgument, "input '" + a.name + "' is required, but missing");
    }
    if (a.type_variable < 0) {
      if (t.dtype != a.concrete) fail_dtype(i, a, inputs);
    } else if (b.type_by[a.type_variable] >= 0) {
      if (t.dtype != b.types[a.type_variable]) fail_dtype(i, a, inputs);
    } else {
      const auto& allowed = s.type_variables[static_cast<size_t>(a.type_variable)].dtypes;
      if (std::find(allowed.begin(), allowed.end(), t.dtype) == allowed.end()) fail_dtype(i, a, inputs);
      b.types[a.type_variable] = t.dtype;
      b.type_by[a.type_variable] = static_cast<int8_t>(std::min(i, 100));
    }
    if (a.shapes.size() > 1) {
      alternatives = true;
      continue;
    }
    if ((chosen[i] = choose(a, t, b)) == nullptr) fail_shape(a, t, b);
  }
  // Arguments with alternatives choose once the others have said what the names stand for.
  for (int i = 0; alternatives && i < input_count; ++i) {
    const Argument& a = s.inputs[static_cast<size_t>(std::min(i, declared - 1))];
    if (a.shapes.size() == 1 || !inputs[i].present) continue;
    if ((chosen[i] = choose(a, inputs[i], b)) == nullptr) fail_shape(a, inputs[i], b);
  }
  bool optional_prefix = false, arithmetic = false;
  for (int i = 0; later_ && i < input_count; ++i) {
    if (chosen[i] == nullptr) continue;
    for (const Dim& d : chosen[i]->dims) {
      optional_prefix |= d.optional_prefix;
      arithmetic |= !d.args.empty();
    }
  }
  if (optional_prefix) {
    for (int i = 0; i < input_count; ++i) {
      const Argument& a = s.inputs[static_cast<size_t>(std::min(i, declared - 1))];
      if (chosen[i] != nullptr && !bind(a, *chosen[i], inputs[i], true, b)) fail_shape(a, inputs[i], b);
    }
  }
  if (arithmetic) {
    for (int i = 0; i < input_count; ++i) {
      if (chosen[i] == nullptr) continue;
      const size_t offset = static_cast<size_t>(inputs[i].rank) - chosen[i]->dims.size();
      for (size_t k = chosen[i]->has_prefix(); k < chosen[i]->dims.size(); ++k) {
        const Dim& d = chosen[i]->dims[k];
        if (!d.args.empty() && evaluate(d, b) != inputs[i].shape[offset + k]) {
          fail_shape(s.inputs[static_cast<size_t>(std::min(i, declared - 1))], inputs[i], b);
        }
      }
    }
  }
  for (size_t o = 0; o < s.outputs.size(); ++o) output_shape(s.outputs[o], b, outputs[o]);
}

void Node::infer(const TensorArg* inputs, int input_count, TensorSpec* outputs, Device device,
                 const HostServices& host) const {
  try {
    infer(inputs, input_count, outputs);
  } catch (const std::exception& e) {
    if (trace_ != nullptr)
      trace_->refused({title_, signature_, attributes_, inputs, input_count, nullptr, device, host},
                      e.what());
    throw;
  }
}

void Node::fail_dtype(int i, const Argument& a, const TensorArg* inputs) const {
  const std::string got = dtype_name(inputs[i].dtype);
  if (a.type_variable < 0) {
    fail(ErrorKind::kInvalidArgument, "input '" + a.name + "' must be of type " + a.dtype + ", got " + got);
  }
  std::vector<std::string> allowed;
  for (const DType d : signature_.type_variables[static_cast<size_t>(a.type_variable)].dtypes)
    allowed.push_back(dtype_name(d));
  for (int j = 0; j < i; ++j) {
    const Argument& other = signature_.inputs[std::min(static_cast<size_t>(j), signature_.inputs.size() - 1)];
    if (other.type_variable == a.type_variable && inputs[j].present && inputs[j].dtype != inputs[i].dtype) {
      fail(ErrorKind::kInvalidArgument, "input '" + a.name + "' must be of the same type as '" + other.name +
                                            "', which is " + dtype_name(inputs[j].dtype) + ", got " + got);
    }
  }
  fail(ErrorKind::kInvalidArgument,
       "input '" + a.name + "' must be of type " + list_of(allowed) + ", got " + got);
}

void Node::fail_shape(const Argument& a, const TensorArg& t, const Bindings& b) const {
  std::string shapes;
  for (const ShapePattern& p : a.shapes)
    shapes += (shapes.empty() ? "" : " or ") + shape_to_string(signature_, p);
  // What the names stand for, where something else has bound them.
  std::string known;
  const int8_t self = static_cast<int8_t>(&a - signature_.inputs.data());
  const auto add = [&](const std::string& name, const std::string& value, int8_t by) {
    const std::string source =
        by == -2 ? "the attribute" : "'" + signature_.inputs[static_cast<size_t>(by)].name + "'";
    known += (known.empty() ? " with " : ", ") + name + "=" + value + " from " + source;
  };
  std::vector<bool> told(signature_.names.size());
  const std::function<void(const Dim&)> names_of = [&](const Dim& d) {
    if (d.kind == Dim::Kind::kName && !told[static_cast<size_t>(d.slot)]) {
      told[static_cast<size_t>(d.slot)] = true;
      const int8_t by = b.bound_by[d.slot];
      if (by != -1 && by != self)
        add(signature_.names[static_cast<size_t>(d.slot)], std::to_string(b.names[d.slot]), by);
    } else if (d.kind == Dim::Kind::kPrefix && b.prefix_rank[d.slot] >= 0 && b.prefix_by[d.slot] != self) {
      add(signature_.prefixes[static_cast<size_t>(d.slot)],
          shape_to_string(b.prefix[d.slot], b.prefix_rank[d.slot]), b.prefix_by[d.slot]);
    }
    for (const Dim& arg : d.args) names_of(arg);
  };
  for (const ShapePattern& p : a.shapes) {
    for (const Dim& d : p.dims) names_of(d);
  }
  fail(ErrorKind::kInvalidArgument, "input '" + a.name + "' must have shape " + shapes + known + ", got " +
                                        shape_to_string(t.shape, t.rank));
}

Call Node::make_call(const TensorArg* inputs, int input_count, const TensorArg* outputs,
                     Device device) const {
  Call call;
  call.inputs_ = inputs;
  call.outputs_ = outputs;
  call.input_count_ = input_count;
  call.device_ = device;
  call.signature_ = &signature_;
  call.attributes_ = attributes_.data();
  return call;
}

size_t Node::workspace_bytes(const TensorArg* inputs, int input_count, const TensorArg* outputs,
                             Device device) const {
  if (!has_workspace()) return 0;
  try {
    return op_.workspace_function()(make_call(inputs, input_count, outputs, device));
  } catch (...) {
    rethrow_with_title(title_);
  }
}

void Node::compute(const TensorArg* inputs, int input_count, const TensorArg* outputs, Device device,
                   const HostServices& host) const {
  const Kernel kernel = op_.kernel(device);
  if (kernel == nullptr) {
    fail(ErrorKind::kNotSupported, device == Device::kCuda
                                       ? "has no CUDA kernel in this library: it was built without CUDA, or "
                                         "the operator runs on the CPU only"
                                       : "has no CPU kernel");
  }
  Call call = make_call(inputs, input_count, outputs, device);
  call.workspace_ = host.workspace;
  call.workspace_bytes_ = host.workspace_bytes;
  call.stream_ = host.stream;
  call.device_id_ = host.device_id;
  call.parallel_ = host.parallel_for;
  call.parallel_host_ = host.parallel_host;
  try {
    if (trace_ == nullptr)
      kernel(call);
    else
      trace_->run({title_, signature_, attributes_, inputs, input_count, outputs, device, host}, kernel,
                  call);
  } catch (...) {
    rethrow_with_title(title_);
  }
}

void rethrow_with_title(const std::string& title) {
  try {
    throw;
  } catch (const Error& e) {
    throw Error(e.kind(), title + ": " + e.what());
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::kOutOfMemory, title + ": out of memory");
  } catch (const std::exception& e) {
    throw Error(ErrorKind::kInternal, title + ": " + e.what());
  } catch (...) {
    throw Error(ErrorKind::kInternal, title + ": an exception of unknown type was thrown");
  }
}

// --- call

const AttributeValue& Call::attribute(std::string_view name, AttributeType type) const {
  const auto& declared = signature_->attributes;
  for (size_t i = 0; i < declared.size(); ++i) {
    if (declared[i].name != name) continue;
    if (declared[i].type == type) return attributes_[i];
    throw Error(ErrorKind::kInternal, "the kernel reads attribute '" + std::string(name) + "' as " +
                                          attribute_type_name(type) + ", but the signature says " +
                                          attribute_type_name(declared[i].type));
  }
  throw Error(ErrorKind::kInternal,
              "the kernel reads attribute '" + std::string(name) + "', which the signature does not have");
}

void Call::run_chunks(void (*task)(void*, size_t), size_t chunks, void* data) const {
  if (parallel_ == nullptr) {
    for (size_t i = 0; i < chunks; ++i) task(data, i);
    return;
  }
  // An exception on a thread of ONNX Runtime's pool hangs the process, so none may leave a chunk.
  // Kept as kind and text: std::exception_ptr needs the libstdc++ of GCC 11.
  struct Guard {
    void (*task)(void*, size_t);
    void* data;
    std::mutex mutex;
    bool failed = false;
    ErrorKind kind = ErrorKind::kInternal;
    std::string what;

    void note(ErrorKind k, const char* text) noexcept {
      const std::lock_guard<std::mutex> lock(mutex);
      if (failed) return;
      failed = true;
      kind = k;
      try {
        what = text;
      } catch (...) {  // no memory for the words; the kind is enough
      }
    }
  } guard;
  guard.task = task;
  guard.data = data;
  parallel_(
      parallel_host_,
      [](void* g, size_t chunk) {
        Guard& guard = *static_cast<Guard*>(g);
        try {
          guard.task(guard.data, chunk);
        } catch (const Error& e) {
          guard.note(e.kind(), e.what());
        } catch (const std::bad_alloc&) {
          guard.note(ErrorKind::kOutOfMemory, "out of memory");
        } catch (const std::exception& e) {
          guard.note(ErrorKind::kInternal, e.what());
        } catch (...) {
          guard.note(ErrorKind::kInternal, "an exception of unknown type was thrown");
        }
      },
      chunks, &guard);
  if (guard.failed) throw Error(guard.kind, guard.what);
}

}  // namespace opbridge
