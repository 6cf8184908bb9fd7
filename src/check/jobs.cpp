#include "jobs.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>
#include <string_view>
#include <thread>

#include "core/text.h"
#include "runner/visit.h"

namespace opbridge::checking {

using Json = nlohmann::ordered_json;

std::string Bench::doing(const std::string& what, const Case& c) const {
  std::string text = what + (what.empty() ? "" : ": ") + describe(signature, c);
  mark->say(text);
  mark->empty = c.empty();
  alarm(static_cast<unsigned>(std::max(1.0, std::ceil(timeout))));
  return text;
}

namespace {

constexpr Passing kOrdinary = [] {
  Passing how;
  how.guarded = false;
  return how;
}();

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Case usual_case(const Signature& s, uint64_t seed, Values values = Values::kNormal) {
  Choice choice = usual(s);
  choice.seed = seed;
  choice.values = values;
  Case c;
  if (!make_case(s, choice, &c)) {  // arithmetic that needs equal or even sizes
    for (const int64_t size : {8, 6, 1}) {
      choice.sizes = all_sizes(s, size, {2, 3});
      if (make_case(s, choice, &c)) break;
    }
  }
  return c;
}

// --- one call

// Elements that neither of two calls wrote: they hold each call's own fill.
std::string unwritten(const Signature& s, const Result& a, uint8_t fill_a, const Result& b, uint8_t fill_b) {
  for (size_t i = 0; i < a.outputs.size(); ++i) {
    const Array &x = a.outputs[i], &y = b.outputs[i];
    const size_t size = dtype_size(x.dtype());
    int64_t count = 0, first = -1;
    for (int64_t k = 0; k < x.count(); ++k) {
      bool untouched = true;
      for (size_t j = 0; j < size && untouched; ++j) {
        const size_t at = static_cast<size_t>(k) * size + j;
        untouched =
            static_cast<uint8_t*>(x.data())[at] == fill_a && static_cast<uint8_t*>(y.data())[at] == fill_b;
      }
      if (untouched && count++ == 0) first = k;
    }
    if (count == 0) continue;
    return "output '" + s.outputs[i].name + "' " + x.to_string() + ": " +
           (count == x.count() ? "no element was written"
                               : std::to_string(count) + " of " + std::to_string(x.count()) +
                                     " elements were not written, first " + index_text(x.shape(), first));
  }
  return "";
}

// What every call must keep to. False where there is no result to look at.
bool is_sound(const Bench& bench, const std::string& label, const Result& r) {
  if (!r.disturbed.empty()) bench.found(r.disturbed_code, label + ": " + r.disturbed);
  if (r.float_mode_changed) bench.found("float-mode-changed", label);
  if (r.kind == 0) return true;
  if (r.kind < 0 || r.kind > 5)
    bench.found("error-unclear", label + ": the error's kind is " + std::to_string(r.kind));
  else if (r.message.empty())
    bench.found("error-unclear",
                label + ": error of kind " + std::to_string(r.kind) + " with an empty message");
  else if (r.message.find("an exception of unknown type was thrown") != std::string::npos)
    bench.found("odd-exception", label + ": " + r.message);
  else if (r.kind == OPBRIDGE_INTERNAL)
    bench.found("internal-error", label + ": " + r.message);
  else
    bench.say("refused", label + ": " + r.message);
  return false;
}

void check_call(Bench& bench, const Case& c) {
  const std::string label = bench.doing("", c);
  std::vector<TensorSpec> expected, got;
  if (!bench.callee.expected(c, &expected).empty()) return;  // not a call that the signature allows
  Result refusal;
  const Callee::NodePtr node = bench.callee.create(c.attributes, &refusal);
  if (node == nullptr) return bench.found("right-call-refused", label + ": " + refusal.message);
  std::string message;
  if (bench.callee.infer(node.get(), c, &got, &message) != 0)
    return bench.found("right-call-refused", label + ": " + message);
  for (size_t i = 0; i < expected.size(); ++i) {
    const TensorSpec &e = expected[i], &g = got[i];
    if (e.dtype == g.dtype && e.rank == g.rank && std::equal(e.shape, e.shape + e.rank, g.shape)) continue;
    return bench.found("shape-rule-wrong", label + ": the signature makes output '" +
                                               bench.signature.outputs[i].name + "' " + dtype_name(e.dtype) +
                                               shape_to_string(e.shape, e.rank) + ", infer() says " +
                                               dtype_name(g.dtype) + shape_to_string(g.shape, g.rank));
  }
  const std::vector<Array> inputs = make_inputs(c);
  Passing how;
  const Result a = bench.callee.call(node.get(), c, inputs, how);
  if (!is_sound(bench, label, a)) return;
  bench.say("computed", 1);
  Passing other;
  other.at_end = false;
  other.output_fill = 0x3C;
  other.workspace_fill = 0xC3;
  other.null_empty = true;
  const Result b = bench.callee.call(node.get(), c, inputs, other);
  if (!is_sound(bench, label, b)) {
    bench.found("not-deterministic", label + ": done once, then refused: " + b.message);
    return;
  }
  const std::string hole = unwritten(bench.signature, a, how.output_fill, b, other.output_fill);
  if (!hole.empty()) return bench.found("output-not-written", label + ": " + hole);
  if (same_bits(a, b) || bench.mark->unrepeatable) return;
  // The same memory as in the first call: is it the memory, or chance?
  const Result again = bench.callee.call(node.get(), c, inputs, how);
  if (same_bits(a, again))
    bench.found("reads-stale-memory", label +
                                          ": with other contents of outputs and workspace before the call, " +
                                          difference(bench.signature, a, b));
}

// --- repetition

size_t hash_of(const Result& r) {
  size_t hash = static_cast<size_t>(r.kind);
  for (const Array& a : r.outputs)
    hash = hash * 31 + std::hash<std::string_view>()({static_cast<char*>(a.data()), a.bytes()});
  return hash;
}

void check_repetition(Bench& bench) {
  constexpr int kTimes = 20;
  for (const Values values : {Values::kNormal, Values::kUnit}) {
    const Case c = usual_case(bench.signature, bench.seed, values);
    const std::string label = bench.doing("called " + std::to_string(kTimes) + " times", c);
    const std::vector<Array> inputs = make_inputs(c);
    Result refusal;
    const Callee::NodePtr node = bench.callee.create(c.attributes, &refusal);
    if (node == nullptr) return;
    const Result first = bench.callee.call(node.get(), c, inputs, {});
    if (first.kind != 0) return;
    Json sequence = {hash_of(first)};
    std::string changed;
    for (int i = 1; i < kTimes; ++i) {
      const Result again = bench.callee.call(node.get(), c, inputs, {});
      sequence.push_back(hash_of(again));
      if (changed.empty() && !same_bits(first, again))
        changed = "call " + std::to_string(i + 1) +
                  " against the first: " + difference(bench.signature, first, again);
    }
    bench.say("sequence", {{"label", label}, {"hashes", sequence}, {"changed", changed}});
    if (!changed.empty()) {
      bench.mark->unrepeatable = true;
      return;
    }
    // With something else in between, and in a node that has done nothing yet.
    Case other = c;
    other.seed += 1000;
    other.values = Values::kUnit;
    bench.callee.call(node.get(), other, make_inputs(other), {});
    const Result after = bench.callee.call(node.get(), c, inputs, {});
    const Result fresh = bench.callee.call(c, inputs);
    for (const auto& [what, r] :
         {std::pair{"after a call with other inputs", &after}, {"in another node", &fresh}}) {
      if (same_bits(first, *r)) continue;
      bench.mark->unrepeatable = true;
      bench.found("state-between-calls",
                  describe(bench.signature, c) + ": " + what + ", " + difference(bench.signature, first, *r));
      return;
    }
  }
}

// --- threads

// A case that is worth several threads: it takes milliseconds.
Case large_case(const Bench& bench) {
  Case best = usual_case(bench.signature, bench.seed);
  for (int64_t size = 32; size <= (1 << 20); size *= 2) {
    Choice choice = usual(bench.signature);
    choice.seed = bench.seed;
    choice.sizes = all_sizes(bench.signature, size, {size});
    for (size_t i = 0; i < bench.signature.names.size(); ++i) {
      if (is_batch_name(bench.signature.names[i])) choice.sizes.names[i] = 3;
    }
    Case c;
    if (!make_case(bench.signature, choice, &c)) break;
    std::vector<TensorSpec> specs;
    if (!bench.callee.expected(c, &specs).empty()) break;
    double bytes = 0;
    for (const CaseInput& in : c.inputs) {
      double n = static_cast<double>(dtype_size(in.dtype));
      for (const int64_t d : in.shape) n *= static_cast<double>(d);
      bytes += n;
    }
    for (const TensorSpec& spec : specs) {
      double n = static_cast<double>(dtype_size(spec.dtype));
      for (int d = 0; d < spec.rank; ++d) n *= static_cast<double>(spec.shape[d]);
      bytes += n;
    }
    if (bytes > 16e6) break;
    bench.doing("", c);
    const std::vector<Array> inputs = make_inputs(c);
    Result r;
    const double seconds = seconds_of([&] { r = bench.callee.call(c, inputs, kOrdinary); });
    if (r.kind != 0) break;
    best = c;
    if (seconds > 3e-3) break;
  }
  return best;
}

// A host's parallel-for that runs the chunks backwards, in the caller's thread.
void backwards(void*, void (*task)(void*, size_t), size_t chunks, void* data) {
  for (size_t i = chunks; i-- > 0;) task(data, i);
}

// One that gives every third chunk to each of three threads at once.
void strided(void*, void (*task)(void*, size_t), size_t chunks, void* data) {
  constexpr size_t kThreads = 3;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t)
    threads.emplace_back([=] {
      for (size_t i = t; i < chunks; i += kThreads) task(data, i);
    });
  for (std::thread& t : threads) t.join();
}

void check_threads(Bench& bench) {
  const Case c = large_case(bench);
  const std::vector<Array> inputs = make_inputs(c);
  const Result serial = bench.callee.call(c, inputs, kOrdinary);
  if (serial.kind != 0) return;
  const auto compare = [&](const std::string& what, const Passing& how) {
    const std::string label = bench.doing(what, c);
    const Result r = bench.callee.call(c, inputs, how);
    if (!same_bits(serial, r))
      bench.found("depends-on-threads",
                  label + ": against one thread, " + difference(bench.signature, serial, r));
    return same_bits(serial, r);
  };
  Passing host = kOrdinary;
  host.parallel_for = backwards;
  if (!compare("the host runs the pieces of work backwards", host)) return;
  host.parallel_for = strided;
  for (int i = 0; i < 3; ++i) {
    if (!compare("the host runs the pieces of work in 3 threads", host)) return;
  }
  for (const int threads : {2, 3, 4, 5, 7, 8, 16}) {
    Passing how = kOrdinary;
    how.threads = threads;
    if (!compare(std::to_string(threads) + " threads", how)) return;
  }
  cpu_set_t all, one;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++i) {
    if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
  }
  Passing how = kOrdinary;
  how.threads = 0;
  if (!compare("as many threads as the library likes", how)) return;
  sched_setaffinity(0, sizeof one, &one);
  compare("on one processor", how);
  sched_setaffinity(0, sizeof all, &all);
}

void check_concurrency(Bench& bench) {
  constexpr size_t kThreads = 4;
  constexpr double kSeconds = 0.15;
  const Case c = large_case(bench);
  Result refusal;
  const Callee::NodePtr node = bench.callee.create(c.attributes, &refusal);
  if (node == nullptr) return;
  std::vector<Case> cases(kThreads, c);
  std::vector<std::vector<Array>> inputs;
  std::vector<Result> expected;
  for (size_t t = 0; t < kThreads; ++t) {
    cases[t].seed += t;
    inputs.push_back(make_inputs(cases[t]));
    expected.push_back(bench.callee.call(node.get(), cases[t], inputs[t], kOrdinary));
  }
  const std::string label = bench.doing(std::to_string(kThreads) + " threads call at the same time", c);
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::string wrong;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; !stop; ++i) {
        // One node for all, and now and then one of its own.
        const Result r = i % 4 == 3 ? bench.callee.call(cases[t], inputs[t], kOrdinary)
                                    : bench.callee.call(node.get(), cases[t], inputs[t], kOrdinary);
        if (!same_bits(expected[t], r)) {
          const std::lock_guard<std::mutex> lock(mutex);
          if (wrong.empty()) wrong = difference(bench.signature, expected[t], r);
          stop = true;
        }
        if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() > kSeconds) break;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  if (!wrong.empty()) bench.found("not-thread-safe", label + ": against one call alone, " + wrong);
}

// --- batch

// Which axis, the first, counts independent items: a dimension called B, or a prefix before other dimensions.
struct Batch {
  int name = -1, prefix = -1;
  bool leads(const ShapePattern& p) const {
    if (p.dims.empty()) return false;
    const Dim& d = p.dims[0];
    return name >= 0 ? d.kind == Dim::Kind::kName && d.slot == name
                     : d.kind == Dim::Kind::kPrefix && d.slot == prefix;
  }
};

bool mentions(const Dim& d, const Batch& b) {
  if (d.kind == Dim::Kind::kName && d.slot == b.name) return true;
  return std::any_of(d.args.begin(), d.args.end(), [&](const Dim& x) { return mentions(x, b); });
}

// Every output starts with it, some input does, and it stands nowhere else.
bool is_batch(const Signature& s, const Batch& b) {
  bool some_input = false;
  for (const auto* arguments : {&s.inputs, &s.outputs}) {
    for (const Argument& a : *arguments) {
      for (const ShapePattern& p : a.shapes) {
        const bool leads = b.leads(p);
        if (arguments == &s.outputs && !leads) return false;
        if (arguments == &s.inputs && leads && !p.dims[0].optional_prefix) some_input = true;
        // `*S` alone says nothing of where an item ends.
        if (b.prefix >= 0 && leads && p.dims.size() < 2 && arguments == &s.inputs) return false;
        for (size_t i = leads ? 1 : 0; i < p.dims.size(); ++i) {
          if (mentions(p.dims[i], b)) return false;
        }
      }
    }
  }
  return some_input;
}

void check_batch(Bench& bench) {
  constexpr int64_t kItems = 3;
  const Signature& s = bench.signature;
  Batch batch;
  for (size_t i = 0; i < s.names.size() && batch.name < 0; ++i) {
    const Batch b{static_cast<int>(i), -1};
    if (is_batch_name(s.names[i]) && is_batch(s, b)) batch = b;
  }
  for (size_t i = 0; i < s.prefixes.size() && batch.name < 0 && batch.prefix < 0; ++i) {
    const Batch b{-1, static_cast<int>(i)};
    if (is_batch(s, b)) batch = b;
  }
  if (batch.name < 0 && batch.prefix < 0) return;
  for (const auto& types : all_types(s)) {
    for (const int64_t size : {5, 33}) {
      Choice choice = usual(s);
      choice.types = types;
      choice.seed = bench.seed;
      if (size > 5) choice.sizes = all_sizes(s, size, {});
      const auto with_items = [&](int64_t n) {
        if (batch.name >= 0)
          choice.sizes.names[static_cast<size_t>(batch.name)] = n;
        else
          choice.sizes.prefixes[static_cast<size_t>(batch.prefix)] = {n};
        Case c;
        return std::pair{make_case(s, choice, &c), c};
      };
      const auto [whole_ok, whole] = with_items(kItems);
      const auto [single_ok, single] = with_items(1);
      if (!whole_ok || !single_ok) continue;
      const std::string label = bench.doing("batch of " + std::to_string(kItems), whole);
      const std::vector<Array> inputs = make_inputs(whole);
      const Result together = bench.callee.call(whole, inputs);
      if (together.kind != 0) continue;
      for (int64_t b = 0; b < kItems; ++b) {
        std::vector<Array> part = inputs;
        for (size_t i = 0; i < part.size(); ++i) {
          const Argument& a = argument_of(s, i);
          const ShapePattern& p = a.shapes[std::min(whole.sizes.alternative, a.shapes.size() - 1)];
          if (whole.inputs[i].present && batch.leads(p)) part[i] = slice(part[i], b);
        }
        const Result alone = bench.callee.call(single, part);
        Result of_batch = together;
        for (Array& a : of_batch.outputs) a = slice(a, b);
        if (same_bits(of_batch, alone)) continue;
        bench.found("batch-items-mix", label + ": item " + std::to_string(b) +
                                           " in the batch against alone, " + difference(s, of_batch, alone));
        return;
      }
    }
  }
}

// --- how tensors are handed over

void check_aliasing(Bench& bench) {
  const Signature& s = bench.signature;
  for (const auto& types : all_types(s)) {
    Choice choice = usual(s);
    choice.types = types;
    choice.seed = bench.seed;
    choice.sizes = all_sizes(s, 3, {3});  // all equal: as many inputs as possible have one shape
    Case c;
    if (!make_case(s, choice, &c)) return;
    for (size_t i = 0; i < c.inputs.size(); ++i) {
      for (size_t j = i + 1; j < c.inputs.size(); ++j) {
        if (c.inputs[i].dtype != c.inputs[j].dtype || c.inputs[i].shape != c.inputs[j].shape) continue;
        std::vector<Array> inputs = make_inputs(c);
        inputs[j] = inputs[i];
        const std::string label = bench.doing(
            "one buffer is both '" + argument_of(s, i).name + "' and '" + argument_of(s, j).name + "'", c);
        Passing how;
        const Result apart = bench.callee.call(c, inputs, how);
        how.same_as[0] = static_cast<int>(i);
        how.same_as[1] = static_cast<int>(j);
        const Result shared = bench.callee.call(c, inputs, how);
        if (!same_bits(apart, shared))
          return bench.found("aliasing-unsafe", label + ": against two buffers of the same values, " +
                                                    difference(s, apart, shared));
      }
    }
  }
}

void check_views(Bench& bench) {
  const Case c = usual_case(bench.signature, bench.seed);
  const std::vector<Array> inputs = make_inputs(c);
  Passing how;
  const Result plain = bench.callee.call(c, inputs, how);
  how.strided = true;
  std::string label = bench.doing("with every second element of a larger tensor", c);
  const Result strided = bench.callee.call(c, inputs, how);
  if (strided.kind == 0 && !same_bits(plain, strided))
    bench.found("strides-ignored",
                label + ": neither refused nor right, " + difference(bench.signature, plain, strided));
  how.strided = false;
  how.offset = true;
  label = bench.doing("with a byte_offset of 64", c);
  const Result offset = bench.callee.call(c, inputs, how);
  if (!same_bits(plain, offset))
    bench.found("byte-offset-ignored",
                label + ": against none, " + difference(bench.signature, plain, offset));
}

// --- element types

std::vector<double> numbers_of(const Array& a) {
  std::vector<double> numbers;
  visit(a, [&](auto* p) {
    for (int64_t i = 0; i < a.count(); ++i) numbers.push_back(as_double(p[i]));
  });
  return numbers;
}

bool is_float(DType d) { return d == DType::f16 || d == DType::bf16 || d == DType::f32 || d == DType::f64; }

// Whether `a`, computed in `type`, is what `exact` is, as far as that type can tell.
bool agrees(const Array& a, const Array& exact, DType type) {
  if (a.shape() != exact.shape()) return false;
  const std::vector<double> x = numbers_of(a), y = numbers_of(exact);
  double error = 0, scale = 0;
  size_t different = 0, counted = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (!std::isfinite(x[i]) || !std::isfinite(y[i])) continue;  // another type overflows elsewhere
    ++counted;
    error += (x[i] - y[i]) * (x[i] - y[i]);
    scale += y[i] * y[i];
    different += std::fabs(x[i] - y[i]) > 1;
  }
  if (!is_float(a.dtype())) return different * 3 <= counted;
  const double part = type == DType::bf16 ? 0.1 : type == DType::f16 ? 0.05 : is_float(type) ? 1e-2 : 0.5;
  return std::sqrt(error) <= part * std::sqrt(scale) + 1e-3 * std::sqrt(static_cast<double>(counted));
}

// Element types against each other, on values that all of them hold exactly. Rounding may decide a single case
// differently, so that a type is wrong only where most cases say so.
void check_types(Bench& bench) {
  constexpr int kCases = 9;
  const Signature& s = bench.signature;
  const Choice plain = usual(s);
  for (size_t v = 0; v < s.type_variables.size(); ++v) {
    const std::vector<DType>& types = s.type_variables[v].dtypes;
    const bool floats = std::any_of(types.begin(), types.end(), is_float);
    DType exact = plain.types[v];
    for (const DType d : types) {
      if (d == DType::f64) exact = d;
    }
    for (const DType type : types) {
      // Small integers overflow and bool has no numbers: nothing to compare.
      if (type == exact || type == DType::boolean || (dtype_size(type) < 4 && !is_float(type))) continue;
      int compared = 0, wrong = 0;
      std::string evidence;
      for (int n = 0; n < kCases; ++n) {
        Choice choice = plain;
        choice.seed = bench.seed + static_cast<uint64_t>(n);
        choice.values = n % 3 == 0 ? Values::kOne : Values::kCoarse;
        if (n % 3 != 0 && floats && !is_float(type)) choice.values = Values::kOne;
        Case c;
        if (n % 3 == 2) choice.sizes = all_sizes(s, 4 + n, {2});
        choice.types[v] = type;
        if (!make_case(s, choice, &c)) continue;
        const std::string label = bench.doing("", c);
        const Result r = bench.callee.call(c, make_inputs(c));
        choice.types[v] = exact;
        Case e;
        if (!make_case(s, choice, &e)) continue;
        const Result expected = bench.callee.call(e, make_inputs(e));
        if (r.kind != 0 || expected.kind != 0) continue;
        ++compared;
        for (size_t i = 0; i < r.outputs.size(); ++i) {
          if (agrees(r.outputs[i], expected.outputs[i], type)) continue;
          ++wrong;
          if (evidence.empty()) {
            evidence = label + ": output '" + s.outputs[i].name + "' starts " +
                       element_text(r.outputs[i], 0) + ", with " + dtype_name(exact) + " " +
                       element_text(expected.outputs[i], 0);
          }
          break;
        }
      }
      if (compared > 0 && wrong * 2 > compared)
        bench.found("element-type-differs", s.type_variables[v].name + "=" + dtype_name(type) + " against " +
                                                dtype_name(exact) + ", " + std::to_string(wrong) + " of " +
                                                std::to_string(compared) + " cases: " + evidence);
    }
  }
}

// --- wrong calls

void check_wrong_calls(Bench& bench) {
  const Signature& s = bench.signature;
  const Case right = usual_case(s, bench.seed);
  const std::vector<Array> inputs = make_inputs(right);
  const Result before = bench.callee.call(right, inputs);
  if (before.kind != 0) return;
  int wrong_calls = 0;
  const auto try_case = [&](const std::string& what, const Case& c) {
    const std::string why = bench.callee.expected(c, nullptr);
    if (why.empty()) return;  // allowed after all
    ++wrong_calls;
    const std::string label = bench.doing(what, c);
    Result r;
    const Callee::NodePtr node = bench.callee.create(c.attributes, &r);
    if (node != nullptr) {
      std::vector<TensorSpec> specs;
      r.kind = bench.callee.infer(node.get(), c, &specs, &r.message);
    }
    if (r.kind == 0)
      bench.found("wrong-call-accepted", label + ": it should say: " + why);
    else if (r.kind < 0 || r.kind > 5 || r.message.empty())
      bench.found("error-unclear",
                  label + ": error of kind " + std::to_string(r.kind) + ", message '" + r.message + "'");
    if (bench.mark->unrepeatable) return;
    const Result after = bench.callee.call(right, inputs);
    if (!same_bits(before, after))
      bench.found("wrong-after-error",
                  "after the refused call " + label + ", " + difference(s, before, after));
  };
  for (size_t i = 0; i < right.inputs.size(); ++i) {
    const std::string name = "'" + argument_of(s, i).name + "'";
    Case c = right;
    if (!c.inputs[i].shape.empty()) {
      c.inputs[i].shape.pop_back();
      try_case("one dimension less in " + name, c);
    }
    for (size_t d = 0; d < right.inputs[i].shape.size(); ++d) {
      c = right;
      ++c.inputs[i].shape[d];
      try_case("another size in " + name, c);
    }
    c = right;
    c.inputs[i].shape.insert(c.inputs[i].shape.begin(), 1);
    try_case("one dimension more in " + name, c);
    for (int d = 0; d < kDTypeCount; ++d) {
      c = right;
      c.inputs[i].dtype = static_cast<DType>(d);
      try_case("another element type of " + name, c);
    }
    c = right;
    c.inputs[i].present = false;
    try_case(name + " missing", c);
  }
  Case c = right;
  c.inputs.emplace_back();
  try_case("one input more", c);
  if (!right.inputs.empty()) {
    c = right;
    c.inputs.pop_back();
    try_case("one input less", c);
  }
  const auto try_attribute = [&](const std::string& what, const std::string& name, const AttributeValue& v) {
    c = right;
    c.attributes.erase(std::remove_if(c.attributes.begin(), c.attributes.end(),
                                      [&](const auto& a) { return a.first == name; }),
                       c.attributes.end());
    c.attributes.emplace_back(name, v);
    try_case(what, c);
  };
  try_attribute("an attribute that is not there", "no_such_attribute", {});
  for (const Attribute& a : s.attributes) {
    for (int t = 1; t <= 6; ++t) {
      AttributeValue v;
      v.type = static_cast<AttributeType>(t);
      v.s = "no such choice";
      v.ints = {0};
      v.floats = {0};
      try_attribute("attribute '" + a.name + "' of another type", a.name, v);
    }
    for (const double end : {a.min, a.max}) {
      if (!std::isfinite(end)) continue;
      AttributeValue v;
      v.type = a.type;
      const double outside = end + (end == a.min ? -1 : 1) * std::max(1.0, std::fabs(end));
      v.i = static_cast<int64_t>(outside);
      v.f = static_cast<float>(outside);
      v.ints = {v.i};
      v.floats = {v.f};
      try_attribute("attribute '" + a.name + "' out of its range", a.name, v);
    }
    if (!a.required) continue;
    c = right;
    c.attributes.erase(std::remove_if(c.attributes.begin(), c.attributes.end(),
                                      [&](const auto& x) { return x.first == a.name; }),
                       c.attributes.end());
    try_case("attribute '" + a.name + "' missing", c);
  }
  bench.say("wrong_calls", wrong_calls);
}

// --- leaks

void check_leaks(Bench& bench) {
  constexpr int kCalls = 40, kBlocks = 4;
  const Case c = usual_case(bench.signature, bench.seed);
  const std::vector<Array> inputs = make_inputs(c);
  Result refusal;
  const Callee::NodePtr node = bench.callee.create(c.attributes, &refusal);
  if (node == nullptr) return;
  Case wrong = c;
  wrong.inputs.resize(kMaxArguments + 1);
  std::vector<Array> wrong_inputs = inputs;
  wrong_inputs.resize(wrong.inputs.size(), Array(DType::f32, std::vector<int64_t>{}));
  const std::pair<const char*, std::function<void()>> ways[] = {
      {"a call", [&] { bench.callee.call(node.get(), c, inputs, kOrdinary); }},
      {"a node that is made, called and destroyed", [&] { bench.callee.call(c, inputs, kOrdinary); }},
      {"a call that is refused", [&] { bench.callee.call(node.get(), wrong, wrong_inputs, kOrdinary); }},
  };
  for (const auto& [what, once] : ways) {
    const std::string label = bench.doing(std::string("repeated, ") + what, c);
    for (int i = 0; i < kCalls; ++i) once();
    // What grows in every block by something for each call grows for ever.
    int64_t heap = INT64_MAX, pages = INT64_MAX, files = INT64_MAX;
    for (int block = 0; block < kBlocks; ++block) {
      bench.doing(what, c);
      const Holdings before = Holdings::now();
      for (int i = 0; i < kCalls; ++i) once();
      const Holdings after = Holdings::now();
      heap = std::min(heap, after.heap - before.heap);
      pages = std::min(pages, after.pages - before.pages);
      files = std::min(files, after.files - before.files);
    }
    std::string grown;
    if (heap >= kCalls * 8)
      grown = std::to_string(heap / kCalls) + " bytes of memory";
    else if (pages >= kCalls)
      grown = std::to_string(pages / kCalls) + " pages of memory";
    else if (files >= kCalls)
      grown = std::to_string(files / kCalls) + " open files";
    if (grown.empty()) continue;
    bench.found("leak", label + ": each time, " + grown + " are not given back");
    return;
  }
}

}  // namespace

std::vector<Job> make_jobs(const Signature& signature, uint64_t seed) {
  std::vector<Job> jobs;
  jobs.push_back({"repetition", check_repetition, false, true});
  for (const Case& c : all_cases(signature, seed))
    jobs.push_back({"call", [c](Bench& bench) { check_call(bench, c); }, false});
  jobs.push_back({"threads", check_threads});
  jobs.push_back({"concurrency", check_concurrency});
  jobs.push_back({"batch", check_batch});
  jobs.push_back({"aliasing", check_aliasing});
  jobs.push_back({"views", check_views});
  jobs.push_back({"element types", check_types});
  jobs.push_back({"wrong calls", check_wrong_calls, false});
  jobs.push_back({"leaks", check_leaks, false});
  return jobs;
}

}  // namespace opbridge::checking
