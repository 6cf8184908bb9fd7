// Sessions on CUDA without a GPU: another provider stands in (stand_in_provider.cpp), with the emulated kernels.
#include "opbridge/runner.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <set>
#include <vector>

#include "runner/ort.h"
#include "runner/placement.h"
#include "runner/proto.h"
#include "runner_test.h"

namespace opbridge {
namespace {

using testing::HasSubstr;

constexpr const char* kCuda = "AzureExecutionProvider";  // in its place
constexpr const char* kCpu = "CPUExecutionProvider";

class CudaSession : public FolderTest {
 protected:
  // z = my_clip(x, 0), or my_clip(x + x, 0); x: f32[n]
  std::string model(bool with_add) const {
    pb::ModelProto m;
    m.set_ir_version(8);
    m.add_opset_import()->set_version(13);
    auto* own = m.add_opset_import();
    own->set_domain("my_namespace");
    own->set_version(1);
    pb::GraphProto* g = m.mutable_graph();
    g->set_name("g");
    for (const char* name : {"x", "z"}) {
      auto* v = name[0] == 'x' ? g->add_input() : g->add_output();
      v->set_name(name);
      auto* tensor = v->mutable_type()->mutable_tensor_type();
      tensor->set_elem_type(pb::TensorProto::FLOAT);
      tensor->mutable_shape()->add_dim()->set_dim_param("n");
    }
    auto* low = g->add_initializer();
    low->set_name("low");
    low->set_data_type(pb::TensorProto::FLOAT);
    low->add_float_data(0);
    if (with_add) {
      auto* add = g->add_node();
      add->set_name("add");
      add->set_op_type("Add");
      for (int i = 0; i < 2; ++i) add->add_input("x");
      add->add_output("twice");
    }
    auto* clip = g->add_node();
    clip->set_name("clip");
    clip->set_op_type("my_clip");
    clip->set_domain("my_namespace");
    clip->add_input(with_add ? "twice" : "x");
    clip->add_input("low");
    clip->add_output("z");
    const std::string file = path("m.onnx");
    std::ofstream(file, std::ios::binary) << m.SerializeAsString();
    return file;
  }

  static SessionOptions cuda(const char* library, bool allow_fallback) {
    SessionOptions options;
    options.libraries = {library};
    options.provider = "cuda";
    options.allow_fallback = allow_fallback;
    return options;
  }

  const Runtime runtime_ = Runtime::find();
  const Array x_ = Array::of<float>({4}, {-2, -1, 1, 2});
};

TEST_F(CudaSession, RunsOnTheProvider) {
  const SessionOptions options = cuda(TEST_EMULATED_LIBRARY, false);
  const Session session(runtime_, model(false), options);
  EXPECT_EQ(session.provider(), "cuda");
  EXPECT_EQ(session.run({{"x", x_}}).at("z").as<float>()[3], 2);
  const Placement placement = find_placement(runtime_, model(false), {{"x", x_}}, options);
  ASSERT_EQ(placement.nodes.size(), 1u);
  EXPECT_EQ(placement.nodes[0].provider, kCuda);
}

TEST_F(CudaSession, RefusesSilentFallback) {
  const std::string message =
      error_of([&] { Session(runtime_, model(true), cuda(TEST_EMULATED_LIBRARY, false)); });
  EXPECT_THAT(message, HasSubstr("fallback to CPU EP has been explicitly disabled"));
  EXPECT_THAT(message, HasSubstr("--allow-fallback"));
}

TEST_F(CudaSession, NamesNodesThatHaveNoCudaKernel) {
  pb::ModelProto m = parse_model(model(false));
  m.mutable_opset_import(1)->set_domain("test.ops");
  m.mutable_opset_import(1)->set_version(3);
  pb::NodeProto* node = m.mutable_graph()->mutable_node(0);
  node->set_domain("test.ops");
  node->set_op_type("Stack");
  const std::string file = write("stack.onnx", m.SerializeAsString());
  const std::string message = error_of([&] { Session(runtime_, file, cuda(TEST_CPU_LIBRARY, false)); });
  EXPECT_EQ(
      message,
      "provider 'cuda': the library has no CUDA kernel for test.ops::Stack (node 'clip'): use a library "
      "built with CUDA, or allow fallback (--allow-fallback) to run these nodes on the CPU");
}

TEST_F(CudaSession, SaysWhatFellBack) {
  const Placement placement =
      find_placement(runtime_, model(true), {{"x", x_}}, cuda(TEST_EMULATED_LIBRARY, true));
  ASSERT_EQ(placement.nodes.size(), 2u);
  EXPECT_EQ(placement.nodes[0].name, "add");
  EXPECT_EQ(placement.nodes[0].op, "Add");
  EXPECT_EQ(placement.nodes[0].provider, kCpu);
  EXPECT_EQ(placement.nodes[1].name, "clip");
  EXPECT_EQ(placement.nodes[1].provider, kCuda);
  EXPECT_EQ(placement.copies, 0);  // the stand-in's memory is the CPU's
}

TEST_F(CudaSession, ReadsCopiesFromAProfile) {
  const Placement placement = read_profile(R"([
    {"cat": "Session", "name": "model_run", "args": {}},
    {"cat": "Node", "name": "Memcpy_token_0_kernel_time", "args": {"op_name": "MemcpyToHost", "provider": "CUDAExecutionProvider"}},
    {"cat": "Node", "name": "a_fence_before", "args": {"op_name": "Add"}},
    {"cat": "Node", "name": "a_kernel_time", "args": {"op_name": "Add", "provider": "CPUExecutionProvider"}},
    {"cat": "Node", "name": "a_kernel_time", "args": {"op_name": "Add", "provider": "CPUExecutionProvider"}},
    {"cat": "Node", "name": "Memcpy_1_kernel_time", "args": {"op_name": "MemcpyFromHost", "provider": "CUDAExecutionProvider"}}])");
  EXPECT_EQ(placement.copies, 2);
  ASSERT_EQ(placement.nodes.size(), 1u);
  EXPECT_EQ(placement.nodes[0].name, "a");
  EXPECT_THAT(error_of([] { read_profile("[{"); }), HasSubstr("profile"));
  // The body of a loop, three times in each of two runs.
  std::string body;
  for (const int us : {90, 10, 20, 10, 20, 20})
    body += std::string(body.empty() ? "[" : ",") + R"({"name": "b_kernel_time", "dur": )" +
            std::to_string(us) + R"(, "args": {"op_name": "Add", "provider": "CPUExecutionProvider"}})";
  EXPECT_DOUBLE_EQ(read_profile(body + "]", 2).nodes.at(0).milliseconds, 0.06);
}

// What a library registers with a runtime of this version: the providers of its operators, "" for the CPU's.
std::set<std::string> registered_providers(const Runtime& runtime, const char* library, const char* version) {
  // Stands between the library and the runtime. Static, since the library keeps pointers into it.
  struct Spy {
    OrtApi api;
    const char* version;
    std::set<std::string> providers;
  };
  static std::vector<std::unique_ptr<Spy>> spies;
  static Spy* spy = nullptr;
  spies.push_back(std::make_unique<Spy>());
  spy = spies.back().get();
  spy->version = version;
  void* const handle = dlopen(runtime.path().c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto get_base = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(handle, "OrtGetApiBase"));
  const OrtApi* const api = get_base()->GetApi(ORT_API_VERSION);
  spy->api = *api;
  spy->api.CustomOpDomain_Add = [](OrtCustomOpDomain*, const OrtCustomOp* op) noexcept -> OrtStatus* {
    const char* provider = op->GetExecutionProviderType(op);
    spy->providers.insert(provider == nullptr ? "" : provider);
    return nullptr;
  };
  static const OrtApiBase base = {[](uint32_t) noexcept -> const OrtApi* { return &spy->api; },
                                  []() noexcept -> const char* { return spy->version; }};
  const auto register_ops = reinterpret_cast<OrtStatus* (*)(OrtSessionOptions*, const OrtApiBase*)>(
      dlsym(dlopen(library, RTLD_NOW | RTLD_LOCAL), "RegisterCustomOps"));
  OrtPtr<OrtSessionOptions> options(api->ReleaseSessionOptions);
  check(api, api->CreateSessionOptions(options.out()));
  check(api, register_ops(options.get(), &base));
  return spy->providers;
}

TEST_F(CudaSession, RegistersForBothOfOnnxRuntimesCudaProviders) {
  using Providers = std::set<std::string>;
  const char *plugin = "CudaPluginExecutionProvider", *library = TEST_EMULATED_LIBRARY;
  EXPECT_EQ(registered_providers(runtime_, library, "1.23.2"), (Providers{"", kCuda}));
  EXPECT_EQ(registered_providers(runtime_, library, "1.24.0"), (Providers{"", kCuda, plugin}));
#if defined(TEST_CUDA_LIBRARY)
  EXPECT_EQ(registered_providers(runtime_, TEST_CUDA_LIBRARY, "1.23.2"),
            (Providers{"", "CUDAExecutionProvider"}));
  EXPECT_EQ(registered_providers(runtime_, TEST_CUDA_LIBRARY, "1.32.0"),
            (Providers{"", "CUDAExecutionProvider", plugin}));
#endif
}

// The memory counts as the device's here: what a GPU's pointers go through, on the CPU.
TEST_F(CudaSession, ComputesWhereTheTensorsAre) {
  const Session session(runtime_, model(false), cuda(TEST_EMULATED_LIBRARY, false));
  const Array memory(DType::f32, {4});
  const DeviceArray x(DType::f32, {4}, x_.memory(), Device::kCuda),
      z(DType::f32, {4}, memory.memory(), Device::kCuda);
  const DeviceArray given = session.run_on_device({{"x", x}}, {{"z", z}}).at("z");
  EXPECT_EQ(given.memory.get(), memory.data());
  EXPECT_EQ(given.device, Device::kCuda);
  EXPECT_EQ(memory.as<float>()[3], 2);
  EXPECT_EQ(memory.as<float>()[0], 0);

  const DeviceArray allocated = session.run_on_device({{"x", x}}).at("z");
  EXPECT_EQ(allocated.to_string(), "f32[4] on CUDA device 0");
  EXPECT_EQ(static_cast<float*>(allocated.memory.get())[2], 1);
  EXPECT_THAT(error_of([&] { allocated.on_cpu(); }), HasSubstr("copy it to the host first"));
  EXPECT_EQ(session.run_on_device({{"x", x_}}).at("z").device, Device::kCuda);  // an input on the host

  const DeviceArray elsewhere(DType::f32, {4}, x_.memory(), Device::kCuda, 1);
  EXPECT_EQ(error_of([&] { session.run_on_device({{"x", elsewhere}}); }),
            "input 'x' is f32[4] on CUDA device 1, but the session runs on CUDA device 0");
}

}  // namespace
}  // namespace opbridge
