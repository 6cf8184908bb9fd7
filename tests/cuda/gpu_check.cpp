// gpu_check [--cases FILE] [--only TEXT] LIBRARY [PART]...: the CUDA kernels of a library against its CPU kernels on this machine's
// GPU (or, as gpu_check_emulated, on the emulated one). FILE holds the cases that tests/cases.py wrote; only those with
// TEXT in "<operator>, case <name>" are run. Prints a line
// for each check: status, name and detail, separated by tabs. Ends with 0 when none failed, with 3 when there is no
// GPU. Driven by scripts/gpu_check.sh.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "cases.h"
#include "my_clip_cases.h"
#include "runner/proto.h"

namespace {

using cases::Case;
using cases::Operator;
using host::check_cuda;
using host::CudaCall;
using host::Inputs;
using host::Library;
using host::Node;
using host::Stream;
using host::Tensor;

#if defined(OPBRIDGE_CUDA_EMULATION)
constexpr bool kEmulated = true;
#else
constexpr bool kEmulated = false;
#endif

int failures = 0;

void report(const char* status, const std::string& name, const std::string& detail) {
  std::printf("%s\t%s\t%s\n", status, name.c_str(), detail.c_str());
  std::fflush(stdout);
}

// Runs a check, which returns its detail and throws when it fails.
void check(const std::string& name, const std::function<std::string()>& f) {
  try {
    report("passed", name, f());
  } catch (const std::exception& e) {
    ++failures;
    report("failed", name, e.what());
  }
}

std::string counted(size_t n, const std::string& what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

struct Suite {
  std::string path;
  Library library;
  std::vector<Operator> operators;
  std::vector<Case> all;  // in the order of their operators

  // The cases of each operator that has a CUDA kernel; with `reason` the others are reported as skipped.
  std::vector<std::pair<std::string, std::vector<const Case*>>> by_operator(const char* what) const {
    std::vector<std::pair<std::string, std::vector<const Case*>>> result;
    for (const Operator& op : operators) {
      std::vector<const Case*> own;
      for (const Case& c : all) {
        if (c.op == op.name) own.push_back(&c);
      }
      if (!op.cuda) {
        if (what != nullptr) report("skipped", op.name + " " + what, "the library has no CUDA kernel for it");
      } else if (!own.empty()) {
        result.emplace_back(op.name, own);
      }
    }
    return result;
  }
};

// -------------------------------------------------------------------------------------------------------- comparing

struct Tolerance {
  double rtol, atol;
  bool bits() const { return rtol == 0 && atol == 0; }
};

// How far CUDA may be from the CPU: nowhere, but where both take sine and cosine from their own mathematical library.
Tolerance cuda_tolerance(const std::string& op, opbridge::DType dtype) {
  const bool trigonometric = op.rfind("EulerToRotation", 0) == 0 || op.rfind("AxisAngleToRotation", 0) == 0;
  if (kEmulated || !trigonometric) return {0, 0};
  const double digit = dtype == opbridge::DType::f16 ? 1e-3 : dtype == opbridge::DType::f32 ? 2e-7 : 1e-13;
  return {digit, digit};
}

void compare_outputs(const Operator& op, const std::vector<Tensor>& expected, const std::vector<Tensor>& got,
                     const std::string& what) {
  for (size_t i = 0; i < got.size(); ++i) {
    const Tolerance t = cuda_tolerance(op.name, got[i].dtype);
    cases::compare(expected[i], got[i], t.rtol, t.atol, t.bits(), what + ", output '" + op.outputs[i] + "'");
  }
}

// A case on both devices, at two offsets, against each other and the reference. Returns how many calls it made.
size_t run_case(const Suite& suite, const Operator& op, const Case& c, const Stream& stream) {
  const Node node = c.node(suite.library);
  const std::vector<Tensor> cpu = node.run_on_cpu(c.inputs, c.outputs);
  for (const size_t offset : {0, 1}) {
    const std::string what = c.title() + ", offset " + std::to_string(offset);
    const std::vector<Tensor> cuda = CudaCall(node, c.inputs, c.outputs, offset).run(stream);
    compare_outputs(op, cpu, cuda, what);
    for (const auto& [i, e] : c.expected)
      cases::compare(e.value, cuda[i], e.rtol, e.atol, false,
                     what + ", output '" + op.outputs[i] + "', reference");
  }
  return 2;
}

const Operator& find(const Suite& suite, const std::string& name) {
  return *std::find_if(suite.operators.begin(), suite.operators.end(),
                       [&](const Operator& o) { return o.name == name; });
}

// Every case with at most `limit` bytes of input.
void parity(const Suite& suite, size_t limit) {
  const Stream stream;
  for (const auto& [name, own] : suite.by_operator("equals the CPU")) {
    const Operator& op = find(suite, name);
    std::map<opbridge::DType, std::vector<const Case*>> by_dtype;
    for (const Case* c : own) {
      if (c->bytes() <= limit) by_dtype[c->dtype()].push_back(c);
    }
    for (const auto& group : by_dtype) {
      check(name + " equals the CPU, " + opbridge::dtype_name(group.first), [&] {
        size_t calls = 0;
        for (const Case* c : group.second) calls += run_case(suite, op, *c, stream);
        const bool bits = cuda_tolerance(name, group.first).bits();
        return counted(calls, "call") + (bits ? ", bit for bit" : ", within the last digits") +
               ", sentinels whole";
      });
    }
  }
}

// ------------------------------------------------------------------------------------------------ streams and graphs

// The case with the most to do.
const Case& largest(const std::vector<const Case*>& own) {
  return **std::max_element(own.begin(), own.end(),
                            [](const Case* a, const Case* b) { return a->bytes() < b->bytes(); });
}

void repeats(const Suite& suite) {
  const int runs = kEmulated ? 5 : 200;
  for (const auto& [name, own] : suite.by_operator(nullptr)) {
    check(name + " " + std::to_string(runs) + " times on a non-blocking stream", [&] {
      const Stream stream;
      const Case& c = largest(own);
      const Node node = c.node(suite.library);
      CudaCall call(node, c.inputs, c.outputs);
      const std::vector<Tensor> first = call.run(stream);
      compare_outputs(find(suite, name), node.run_on_cpu(c.inputs, c.outputs), first, c.title());
      for (int i = 0; i < runs; ++i) {
        call.enqueue(stream);
        if (i % 10 != 9 && i != runs - 1) continue;
        stream.synchronize();
        const std::vector<Tensor> again = call.read();
        for (size_t o = 0; o < again.size(); ++o) {
          if (again[o].bytes != first[o].bytes)
            throw host::Error(host::ErrorKind::kInternal,
                              c.title() + ": run " + std::to_string(i + 1) + " differs");
        }
      }
      return "bit-identical, case " + c.name;
    });
  }
}

// The elements of each input the other way round: other values of the same kind.
Inputs reversed(Inputs inputs) {
  for (auto& t : inputs) {
    if (!t) continue;
    const size_t size = opbridge::dtype_size(t->dtype), n = t->count();
    for (size_t i = 0; i < n / 2; ++i) {
      std::swap_ranges(t->bytes.begin() + static_cast<long>(i * size),
                       t->bytes.begin() + static_cast<long>((i + 1) * size),
                       t->bytes.begin() + static_cast<long>((n - 1 - i) * size));
    }
  }
  return inputs;
}

// A call captured once and replayed, with new values in the same memory each time.
void graph(const Suite& suite) {
  for (const auto& [name, own] : suite.by_operator(nullptr)) {
    check(name + " captured in a CUDA graph and replayed", [&] {
      const Stream stream;
      const Case& c = largest(own);
      const Node node = c.node(suite.library);
      CudaCall call(node, c.inputs, c.outputs);
      call.run(stream);  // a first launch loads the kernel, which a capture does not allow
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t executable = nullptr;
      check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
      try {
        call.enqueue(stream);
      } catch (...) {
        cudaStreamEndCapture(stream, &graph);
        throw;
      }
      check_cuda(cudaStreamEndCapture(stream, &graph));
      check_cuda(cudaGraphInstantiateWithFlags(&executable, graph, 0));
      for (const Inputs& inputs : {reversed(c.inputs), c.inputs}) {
        for (size_t i = 0; i < inputs.size(); ++i) {
          if (inputs[i]) call.set_input(i, *inputs[i]);
        }
        check_cuda(cudaGraphLaunch(executable, stream));
        stream.synchronize();
        compare_outputs(find(suite, name), node.run_on_cpu(inputs, c.outputs), call.read(),
                        c.title() + ", replayed");
      }
      check_cuda(cudaGraphExecDestroy(executable));
      check_cuda(cudaGraphDestroy(graph));
      return "2 replays with changed inputs, case " + c.name;
    });
  }
}

// ------------------------------------------------------------------------------------------------------------ my_clip

// Its cases are random bits of every length, too many to store.
std::vector<Case> clip_cases(const std::vector<int64_t>& sizes) {
  std::vector<Case> all;
  for (const auto dtype : my_clip_cases::kDTypes) {
    for (const int64_t n : sizes) {
      for (const auto& bounds : my_clip_cases::all_bounds()) {
        const std::string name = std::to_string(n) + " elements, bounds " + bounds.name;
        const unsigned seed = static_cast<unsigned>(n);
        for (const bool grad : {false, true}) {
          Case c;
          c.op = grad ? "my_clip_grad" : "my_clip";
          c.name = name;
          c.inputs = grad ? my_clip_cases::clip_grad(dtype, n, bounds, seed)
                          : my_clip_cases::clip(dtype, n, bounds, seed);
          c.outputs = 1;
          all.push_back(std::move(c));
        }
      }
    }
  }
  return all;
}

// z = my_clip(x, 0) in a session of the C++ runner, from GPU memory to GPU memory, and nowhere else.
void runner(const Suite& suite) {
  if (suite.operators[0].name != "my_clip") return;
  const char* name = "C++ runner on GPU memory";
  std::optional<opbridge::Runtime> runtime;
  try {
    runtime = opbridge::Runtime::find();
  } catch (const opbridge::Error&) {
    return report("skipped", name, "no ONNX Runtime library here");
  }
  const std::vector<std::string> offered = runtime->providers();
  if (!kEmulated && std::find(offered.begin(), offered.end(), "CUDAExecutionProvider") == offered.end())
    return report("skipped", name, "ONNX Runtime " + runtime->version() + " has no CUDA provider");
  check(name, [&] {
    opbridge::pb::ModelProto m;
    m.set_ir_version(8);
    m.add_opset_import()->set_version(13);
    m.add_opset_import()->set_domain("my_namespace");
    m.mutable_opset_import(1)->set_version(1);
    opbridge::pb::GraphProto* g = m.mutable_graph();
    g->set_name("g");
    for (opbridge::pb::ValueInfoProto* v : {g->add_input(), g->add_output()}) {
      v->set_name(v == &g->input(0) ? "x" : "z");
      v->mutable_type()->mutable_tensor_type()->set_elem_type(opbridge::pb::TensorProto::FLOAT);
      v->mutable_type()->mutable_tensor_type()->mutable_shape()->add_dim()->set_dim_param("n");
    }
    auto* low = g->add_initializer();
    low->set_name("low");
    low->set_data_type(opbridge::pb::TensorProto::FLOAT);
    low->add_float_data(0);
    auto* node = g->add_node();
    node->set_name("clip");
    node->set_op_type("my_clip");
    node->set_domain("my_namespace");
    for (const char* input : {"x", "low"}) node->add_input(input);
    node->add_output("z");
    char file[] = "/tmp/opbridge_gpu_check_XXXXXX";
    const int descriptor = mkstemp(file);
    if (descriptor < 0) throw host::Error(host::ErrorKind::kInternal, "no temporary file can be made");
    close(descriptor);
    const std::unique_ptr<char, void (*)(char*)> remove(file, [](char* f) { std::remove(f); });
    std::ofstream(file, std::ios::binary) << m.SerializeAsString();

    constexpr int64_t n = 100003;
    Tensor x(host::DType::f32, {n}), z = x;
    for (int64_t i = 0; i < n; ++i) x.as<float>()[i] = static_cast<float>(i % 7 - 3);
    host::DeviceBuffer from(x.bytes.size(), 0), to(z.bytes.size(), 0);
    from.write(x.bytes.data());
    const auto view = [](const host::DeviceBuffer& b) {
      return opbridge::DeviceArray(host::DType::f32, {n}, std::shared_ptr<void>(b.data(), [](void*) {}),
                                   opbridge::Device::kCuda);
    };
    opbridge::SessionOptions options;
    options.provider = "cuda";
    options.libraries = {suite.path};
    const opbridge::Session session(*runtime, file, options);
    session.run_on_device({{"x", view(from)}}, {{"z", view(to)}});
    to.read(z.bytes.data(), "z");
    for (int64_t i = 0; i < n; ++i) {
      if (z.as<float>()[i] != std::max(x.as<float>()[i], 0.0f))
        throw host::Error(host::ErrorKind::kInternal, "element " + std::to_string(i) + " is wrong");
    }
    const opbridge::Placement placement =
        opbridge::find_placement(*runtime, file, {{"x", opbridge::Array(host::DType::f32, {n})}}, options);
    if (placement.nodes.empty()) throw host::Error(host::ErrorKind::kInternal, "no node ran");
    for (const auto& p : placement.nodes) {
      if (p.provider == "CPUExecutionProvider")
        throw host::Error(host::ErrorKind::kInternal, p.op + " ran on the CPU");
    }
    return "ONNX Runtime " + runtime->version() + ", into given memory; " + placement.nodes[0].op + " on " +
           placement.nodes[0].provider;
  });
}

// More elements than one grid has threads.
void large(const Suite& suite) {
  const char* name = "my_clip equals the CPU, 70 million f32";
  if (suite.operators[0].name != "my_clip") return;
  if (kEmulated) return report("skipped", name, "takes minutes in emulation");
  check(name, [&] {
    Case c;
    c.op = "my_clip";
    c.name = "70000003 elements";
    c.inputs = my_clip_cases::clip(opbridge::DType::f32, 70000003, my_clip_cases::all_bounds()[3], 1);
    c.outputs = 1;
    return counted(run_case(suite, find(suite, c.op), c, Stream()), "call");
  });
}

constexpr size_t kSmall = 48 << 10;  // bytes of input: what compute-sanitizer's tools get through in seconds

}  // namespace

int main(int argc, char** argv) try {
  const std::map<std::string, std::function<void(const Suite&)>> parts = {
      {"parity", [](const Suite& s) { parity(s, SIZE_MAX); }},
      {"small", [](const Suite& s) { parity(s, kSmall); }},  // for compute-sanitizer
      {"large", large},
      {"repeats", repeats},
      {"graph", graph},
      {"runner", runner}};
  std::vector<std::string> arguments(argv + 1, argv + argc), chosen;
  std::string file, only;
  while (arguments.size() >= 2 && (arguments[0] == "--cases" || arguments[0] == "--only")) {
    (arguments[0] == "--cases" ? file : only) = arguments[1];
    arguments.erase(arguments.begin(), arguments.begin() + 2);
  }
  bool usage = arguments.empty();
  for (size_t i = 1; i < arguments.size(); ++i) {
    usage = usage || parts.count(arguments[i]) == 0;
    chosen.push_back(arguments[i]);
  }
  if (usage) {
    std::fprintf(stderr,
                 "usage: gpu_check [--cases FILE] [--only TEXT] LIBRARY [parity] [small] [large] [repeats] "
                 "[graph] [runner]\n");
    return 2;
  }
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess || devices == 0) {
    report("skipped", "CUDA device", error == cudaSuccess ? "none found" : cudaGetErrorString(error));
    return 3;
  }
  if (chosen.empty()) chosen = {"parity", "large", "repeats", "graph", "runner"};
  Suite suite{arguments[0], Library(arguments[0]), {}, {}};
  suite.operators = cases::operators(suite.library);
  if (suite.operators.at(0).name == "my_clip") {
    const bool small = chosen == std::vector<std::string>{"small"};
    suite.all =
        clip_cases(small ? std::vector<int64_t>{1, 33, 257}
                         : std::vector<int64_t>{0, 1, 31, 32, 33, 255, 256, 257, kEmulated ? 1025 : 100003});
  } else {
    suite.all = cases::read(file, suite.operators);
  }
  suite.all.erase(std::remove_if(suite.all.begin(), suite.all.end(),
                                 [&](const Case& c) { return c.title().find(only) == std::string::npos; }),
                  suite.all.end());
  for (const std::string& part : chosen) parts.at(part)(suite);
  return failures == 0 ? 0 : 1;
} catch (const std::exception& e) {
  report("failed", "gpu_check", e.what());
  return 1;
}
