// Finding ONNX Runtimes, loading several, and running models in them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "opbridge/runner.h"
#include "runner/proto.h"
#include "runner_test.h"

namespace opbridge {
namespace {

namespace fs = std::filesystem;

#define EXPECT_HAS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << (text) << "\nwanted: " << (part)

// An environment variable set for one scope.
class WithEnvironment {
 public:
  WithEnvironment(const char* name, const std::string& value) : name_(name) {
    const char* old = std::getenv(name);
    had_ = old != nullptr;
    if (had_) old_ = old;
    setenv(name, value.c_str(), 1);
  }
  ~WithEnvironment() {
    if (had_)
      setenv(name_, old_.c_str(), 1);
    else
      unsetenv(name_);
  }

 private:
  const char* name_;
  std::string old_;
  bool had_;
};

class Runner : public FolderTest {
 protected:
  // y = x + w for x: f32[batch,3]; w is an input that defaults to 10.
  std::string add_model(const std::string& op = "Add", int opset = 13, const std::string& domain = "") const {
    pb::ModelProto m;
    m.set_ir_version(8);
    m.add_opset_import()->set_version(opset);
    pb::GraphProto* g = m.mutable_graph();
    g->set_name("g");
    for (const char* name : {"x", "w", "y"}) {
      auto* v = name[0] == 'y' ? g->add_output() : g->add_input();
      v->set_name(name);
      auto* tensor = v->mutable_type()->mutable_tensor_type();
      tensor->set_elem_type(pb::TensorProto::FLOAT);
      if (name[0] == 'w') {
        tensor->mutable_shape()->add_dim()->set_dim_value(1);
        continue;
      }
      tensor->mutable_shape()->add_dim()->set_dim_param("batch");
      tensor->mutable_shape()->add_dim()->set_dim_value(3);
    }
    auto* w = g->add_initializer();
    w->set_name("w");
    w->set_data_type(pb::TensorProto::FLOAT);
    w->add_dims(1);
    w->add_float_data(10);
    auto* n = g->add_node();
    n->set_name("n");
    n->set_op_type(op);
    n->set_domain(domain);
    n->add_input("x");
    n->add_input("w");
    n->add_output("y");
    std::ofstream(path("m.onnx"), std::ios::binary) << m.SerializeAsString();
    return path("m.onnx");
  }
};

TEST_F(Runner, FindsThePythonEnvironmentsRuntime) {
  const WithEnvironment none("OPBRIDGE_ORT", "");
  const Runtime runtime = Runtime::find();
  EXPECT_EQ(runtime.source(), "Python environment VIRTUAL_ENV");
  EXPECT_HAS(runtime.path(), "onnxruntime/capi/libonnxruntime.so.");
  EXPECT_HAS(runtime.path(), runtime.version());
  EXPECT_GE(runtime.api_version(), 16);
  EXPECT_EQ(runtime.version(), "1." + std::to_string(runtime.api_version()) +
                                   runtime.version().substr(runtime.version().rfind('.')));
  const auto providers = runtime.providers();
  EXPECT_NE(std::find(providers.begin(), providers.end(), "CPUExecutionProvider"), providers.end());
}

TEST_F(Runner, SearchOrder) {
  const std::string wheel = Runtime::find().path();
  const std::string capi = fs::path(wheel).parent_path().string();
  {
    const WithEnvironment named("OPBRIDGE_ORT", wheel);
    EXPECT_EQ(Runtime::find().source(), "OPBRIDGE_ORT");
    EXPECT_EQ(Runtime::find(capi).source(), "the given path");  // before the environment variable
    EXPECT_EQ(Runtime::find(capi).path(), wheel);
  }
  // The variable may name a folder, also an SDK's with lib/ in it; the newest file in it is taken.
  fs::create_directories(folder_ / "lib");
  fs::create_symlink(wheel, folder_ / "lib" / "libonnxruntime.so.1.9.0");
  fs::copy_file(wheel, folder_ / "lib" / "libonnxruntime.so.1.10.0");
  const WithEnvironment sdk("OPBRIDGE_ORT", folder_.string());
  EXPECT_EQ(fs::path(Runtime::find().path()).filename(), "libonnxruntime.so.1.10.0");
}

TEST_F(Runner, SaysWhatItTried) {
  const WithEnvironment none("OPBRIDGE_ORT", ""), venv("VIRTUAL_ENV", path("venv")),
      conda("CONDA_PREFIX", path("conda")), programs("PATH", path("bin")), home("HOME", path("home"));
  // A wheel of before 1.19 has no library of its own, only the Python module.
  fs::create_directories(folder_ / "venv/lib/python3.9/site-packages/onnxruntime/capi");
  // In a fresh process: a runtime that another test has loaded would be found again by its name.
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto find = [this] {
    std::fputs(error_of([] { Runtime::find(); }).c_str(), stderr);
    fs::remove_all(folder_);
    std::exit(0);
  };
  for (const char* wanted :
       {"Tried:", "/venv/lib/python3.9/site-packages/onnxruntime/capi has no libonnxruntime.so",
        "CONDA_PREFIX: no onnxruntime package in ", "no python3 on PATH", "the system: libonnxruntime.so",
        "pip install onnxruntime"}) {
    EXPECT_EXIT(find(), testing::ExitedWithCode(0), testing::HasSubstr(wanted));
  }
}

// python3 on PATH may be a script that starts another one, as pyenv's is.
TEST_F(Runner, AsksAPythonThatIsAShim) {
  const std::string wheel = Runtime::find().path();
  const fs::path real = folder_ / "it's real", capi = real / "lib/python3.11/site-packages/onnxruntime/capi";
  fs::create_directories(capi);
  fs::create_symlink(wheel, capi / "libonnxruntime.so.1.99.0");
  fs::create_directories(folder_ / "shims");
  std::ofstream(folder_ / "shims/python3") << "#!/bin/sh\necho \"" << real.string() << "\"\n";
  fs::permissions(folder_ / "shims/python3", fs::perms::owner_all);
  const WithEnvironment none("OPBRIDGE_ORT", ""), venv("VIRTUAL_ENV", ""), conda("CONDA_PREFIX", ""),
      programs("PATH", path("shims")), home("HOME", path("home"));
  EXPECT_EQ(Runtime::find().path(), (capi / "libonnxruntime.so.1.99.0").string());
}

TEST_F(Runner, RefusesWhatIsNoUsableRuntime) {
  EXPECT_HAS(error_of([&] { Runtime::find(path("no.so")); }), "No such file");
  EXPECT_HAS(error_of([&] { Runtime::find(folder_.string()); }), "has no libonnxruntime.so*");
  EXPECT_HAS(error_of([] { Runtime::find(TEST_SMALL_LIBRARY); }), "has no OrtGetApiBase");
  const std::string old = error_of([] { Runtime::find(TEST_OLD_RUNTIME); });
  EXPECT_HAS(old, "is ONNX Runtime 1.15.1, but opbridge needs 1.16 or newer");
  // A variable that is set wrongly is an error, not a reason to look elsewhere.
  const WithEnvironment named("OPBRIDGE_ORT", path("no.so"));
  EXPECT_HAS(error_of([] { Runtime::find(); }), "OPBRIDGE_ORT: " + path("no.so"));
}

TEST_F(Runner, RunsAModel) {
  const Session session(Runtime::find(), add_model());
  ASSERT_EQ(session.inputs().size(), 2u);
  EXPECT_EQ(session.inputs()[0].to_string(), "f32[batch,3]");
  EXPECT_FALSE(session.inputs()[0].optional);
  EXPECT_EQ(session.inputs()[1].name, "w");
  EXPECT_TRUE(session.inputs()[1].optional);
  ASSERT_EQ(session.outputs().size(), 1u);

  const Array x = Array::of<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  const Array y = session.run({{"x", x}}).at("y");
  ASSERT_EQ(y.to_string(), "f32[2,3]");
  EXPECT_EQ(y.as<float>()[5], 16);
  EXPECT_EQ(session.run({{"x", x}, {"w", Array::of<float>({1}, {0.5f})}}).at("y").as<float>()[0], 1.5f);
  EXPECT_EQ(session.run({{"x", Array(DType::f32, {0, 3})}}).at("y").to_string(), "f32[0,3]");
}

TEST_F(Runner, ComputesIntoGivenMemory) {
  const Session session(Runtime::find(), add_model());
  const Array x = Array::of<float>({1, 3}, {1, 2, 3}), memory(DType::f32, {1, 3});
  const DeviceArray y = session.run_on_device({{"x", x}}, {{"y", memory}}).at("y");
  EXPECT_EQ(y.memory.get(), memory.data());
  EXPECT_EQ(memory.as<float>()[2], 13);

  DeviceArray allocated;
  {
    const Session gone(Runtime::find(), add_model());
    allocated = gone.run_on_device({{"x", x}}).at("y");
  }
  EXPECT_EQ(allocated.to_string(), "f32[1,3]");
  EXPECT_EQ(allocated.on_cpu().as<float>()[0], 11);

  const auto run_into = [&](const char* name, const DeviceArray& output) {
    return error_of([&] { session.run_on_device({{"x", x}}, {{name, output}}); });
  };
  EXPECT_HAS(run_into("z", memory), "the model has no output 'z'; it has y");
  EXPECT_HAS(run_into("y", Array(DType::f64, {1, 3})), "output 'y' must be f32[batch,3], got f64[1,3]");
  EXPECT_HAS(run_into("y", Array(DType::f32, {2, 3})),
             "shape");  // ONNX Runtime's words: only it knows the batch
  EXPECT_HAS(error_of([&] { session.run_on_device({}); }), "input 'x' (f32[batch,3]) is missing");
  const DeviceArray on_gpu(DType::f32, {1, 3}, x.memory(), Device::kCuda);
  EXPECT_HAS(error_of([&] { session.run_on_device({{"x", on_gpu}}); }),
             "input 'x' is f32[1,3] on CUDA device 0, but the session runs on the CPU");
}

TEST_F(Runner, WritesAProfile) {
  SessionOptions options;
  options.profile = path("profile");
  Session session(Runtime::find(), add_model(), options);
  session.run({{"x", Array(DType::f32, {1, 3})}});
  const std::string file = session.end_profiling();
  EXPECT_EQ(file.rfind(options.profile, 0), 0u) << file;
  EXPECT_GT(fs::file_size(file), 0u);
}

TEST_F(Runner, OutputsOutliveTheSession) {
  Array y;
  {
    const Session session(Runtime::find(), add_model());
    y = session.run({{"x", Array::of<float>({1, 3}, {1, 2, 3})}}).at("y");
  }
  EXPECT_EQ(y.as<float>()[2], 13);
}

TEST_F(Runner, ChecksInputs) {
  const Session session(Runtime::find(), add_model());
  const Array x(DType::f32, {2, 3});
  EXPECT_HAS(error_of([&] { session.run({}); }), "input 'x' (f32[batch,3]) is missing");
  EXPECT_HAS(error_of([&] { session.run({{"X", x}}); }), "no input 'X'; did you mean 'x'?");
  EXPECT_HAS(error_of([&] { session.run({{"image", x}}); }), "no input 'image'; it has x or w");
  EXPECT_HAS(error_of([&] { session.run({{"x", Array(DType::f64, {2, 3})}}); }),
             "input 'x' must be f32[batch,3], got f64[2,3]; convert it");
  EXPECT_HAS(error_of([&] { session.run({{"x", Array(DType::f32, {3})}}); }),
             "must be f32[batch,3], got f32[3]");
  EXPECT_HAS(error_of([&] { session.run({{"x", Array(DType::f32, {2, 4})}}); }),
             "must be f32[batch,3], got f32[2,4]");
}

TEST_F(Runner, RefusalsSayWhatToDo) {
  const Runtime runtime = Runtime::find();
  EXPECT_HAS(error_of([&] { Session(runtime, path("no.onnx")); }), "No such file");
  EXPECT_HAS(error_of([&] { Session(runtime, add_model("Adddd")); }), "No Op registered for Adddd");
  EXPECT_HAS(error_of([&] { Session(runtime, add_model("Add", 999)); }), "newer than this runtime");
  EXPECT_HAS(error_of([&] { Session(runtime, add_model("Query", 13, "lab")); }),
             "lab::Query (node 'n'): a custom operator");
  SessionOptions options;
  options.libraries = {path("no.so")};
  EXPECT_HAS(error_of([&] { Session(runtime, add_model(), options); }),
             "no.so' cannot be opened: No such file");
  options.libraries = {TEST_SMALL_LIBRARY};
  EXPECT_HAS(error_of([&] { Session(runtime, add_model(), options); }), "exports no RegisterCustomOps");
  options = {};
  options.provider = "gpu";
  EXPECT_HAS(error_of([&] { Session(runtime, add_model(), options); }),
             "unknown provider 'gpu': cpu or cuda");
  options = {};
  options.threads = -1;
  EXPECT_HAS(error_of([&] { Session(runtime, add_model(), options); }), "negative number of threads");
}

TEST_F(Runner, CudaWithoutCuda) {
  const Runtime runtime = Runtime::find();
  const auto providers = runtime.providers();
  if (std::find(providers.begin(), providers.end(), "CUDAExecutionProvider") != providers.end()) {
    GTEST_SKIP() << "this runtime has CUDA";
  }
  SessionOptions options;
  options.provider = "cuda";
  const std::string message = error_of([&] { Session(runtime, add_model(), options); });
  EXPECT_HAS(message, "has no CUDA provider");
  EXPECT_HAS(message, "onnxruntime-gpu");
  options.allow_fallback = true;
  const Session session(runtime, add_model(), options);
  EXPECT_EQ(session.provider(), "cpu");
  EXPECT_THAT(session.warnings(),
              testing::Contains(testing::HasSubstr("Running on the CPU, as fallback is allowed")));
}

TEST_F(Runner, TwoRuntimesInOneProcess) {
  const Runtime first = Runtime::find();
  fs::copy_file(first.path(), path("libonnxruntime.so.copy"));
  const Runtime second = Runtime::find(path("libonnxruntime.so.copy"));
  ASSERT_NE(first.path(), second.path());
  const Session a(first, add_model()), b(second, add_model());
  const Array x = Array::of<float>({1, 3}, {1, 2, 3});
  EXPECT_EQ(a.run({{"x", x}}).at("y").as<float>()[0], 11);
  EXPECT_EQ(b.run({{"x", x}}).at("y").as<float>()[0], 11);
}

TEST_F(Runner, OneSessionFromManyThreads) {
  const Session session(Runtime::find(), add_model());
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const auto v = static_cast<float>(100 * t + i);
        wrong[t] +=
            session.run({{"x", Array::of<float>({1, 3}, {v, v, v})}}).at("y").as<float>()[2] != v + 10;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace opbridge
