// Libraries in ONNX Runtimes through the C interface: several runtimes in one process, lifetimes, and all
// that under sanitizers (the runtimes are not sanitised, the libraries are).
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <onnxruntime_c_api.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

// ------------------------------------------------------------------------------- a model, as bytes of an
// ONNX protobuf

std::string varint(uint64_t v) {
  std::string s;
  for (; v >= 128; v >>= 7) s += static_cast<char>(v | 128);
  return s + static_cast<char>(v);
}
std::string number(int field, int64_t v) {
  return varint(static_cast<uint64_t>(field) << 3) + varint(static_cast<uint64_t>(v));
}
std::string bytes(int field, const std::string& v) {
  return varint(static_cast<uint64_t>(field) << 3 | 2) + varint(v.size()) + v;
}

// x: f32[n] -> `op` -> y, of unknown shape.
std::string model(const std::string& op, const std::string& attributes = "") {
  const auto value = [](const char* name, bool shape) {
    const std::string dims = shape ? bytes(2, bytes(1, bytes(2, "n"))) : "";
    return bytes(1, name) + bytes(2, bytes(1, number(1, 1) + dims));
  };
  const std::string node = bytes(1, "x") + bytes(2, "y") + bytes(3, "node7") + bytes(4, op) + attributes +
                           bytes(7, "opbridge.test");
  const std::string graph =
      bytes(1, node) + bytes(2, "g") + bytes(11, value("x", true)) + bytes(12, value("y", false));
  return number(1, 8) + bytes(7, graph) + bytes(8, bytes(1, "") + number(2, 17)) +
         bytes(8, bytes(1, "opbridge.test") + number(2, 1));
}
std::string int_attribute(const std::string& name, int64_t v) {
  return bytes(5, bytes(1, name) + number(3, v) + number(20, 2));
}
std::string string_attribute(const std::string& name, const std::string& v) {
  return bytes(5, bytes(1, name) + bytes(4, v) + number(20, 3));
}

// --------------------------------------------------------------------------------------------------------- a
// runtime

class Runtime {
 public:
  explicit Runtime(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
      ADD_FAILURE() << dlerror();
      return;
    }
    base = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(handle_, "OrtGetApiBase"))();
    version = base->GetVersionString();
    minor = std::stoi(version.substr(2));
    api = base->GetApi(static_cast<uint32_t>(std::min(minor, ORT_API_VERSION)));
    EXPECT_EQ(take(api->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "t", &env)), "");
  }
  ~Runtime() { api->ReleaseEnv(env); }
  Runtime(const Runtime&) = delete;

  std::string take(OrtStatus* status) const {
    if (status == nullptr) return "";
    std::string text = api->GetErrorMessage(status);
    api->ReleaseStatus(status);
    return text.empty() ? "?" : text;
  }

  const OrtApiBase* base = nullptr;
  const OrtApi* api = nullptr;
  OrtEnv* env = nullptr;
  std::string version;
  int minor = 0;

 private:
  void* handle_;  // runtimes stay loaded
};

struct Options {
  explicit Options(const Runtime& r) : runtime(r) { EXPECT_EQ(r.take(r.api->CreateSessionOptions(&o)), ""); }
  ~Options() { runtime.api->ReleaseSessionOptions(o); }
  std::string add(const char* library) {
    return runtime.take(runtime.api->RegisterCustomOpsLibrary_V2(o, library));
  }
  const Runtime& runtime;
  OrtSessionOptions* o = nullptr;
};

struct Session {
  Session(const Runtime& r, const std::string& m, const OrtSessionOptions* o) : runtime(r) {
    error = r.take(r.api->CreateSessionFromArray(r.env, m.data(), m.size(), o, &session));
  }
  ~Session() {
    if (session != nullptr) runtime.api->ReleaseSession(session);
  }
  // "" and y, or an error.
  std::string run(std::vector<float> x, std::vector<float>* y) const {
    const OrtApi* api = runtime.api;
    OrtMemoryInfo* memory = nullptr;
    OrtValue *in = nullptr, *out = nullptr;
    const int64_t shape[] = {static_cast<int64_t>(x.size())};
    EXPECT_EQ(runtime.take(api->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory)), "");
    EXPECT_EQ(runtime.take(api->CreateTensorWithDataAsOrtValue(memory, x.data(), x.size() * 4, shape, 1,
                                                               ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &in)),
              "");
    const char *in_names[] = {"x"}, *out_names[] = {"y"};
    const OrtValue* inputs[] = {in};
    const std::string text =
        runtime.take(api->Run(session, nullptr, in_names, inputs, 1, out_names, 1, &out));
    if (text.empty()) {
      OrtTensorTypeAndShapeInfo* info = nullptr;
      size_t count = 0;
      float* data = nullptr;
      EXPECT_EQ(runtime.take(api->GetTensorTypeAndShape(out, &info)), "");
      EXPECT_EQ(runtime.take(api->GetTensorShapeElementCount(info, &count)), "");
      EXPECT_EQ(runtime.take(api->GetTensorMutableData(out, reinterpret_cast<void**>(&data))), "");
      y->assign(data, data + count);
      api->ReleaseTensorTypeAndShapeInfo(info);
    } else {
      EXPECT_EQ(out, nullptr) << "an output in spite of an error";
    }
    if (out != nullptr) api->ReleaseValue(out);
    api->ReleaseValue(in);
    api->ReleaseMemoryInfo(memory);
    return text;
  }
  const Runtime& runtime;
  OrtSession* session = nullptr;
  std::string error;
};

// Every runtime at hand, 1.16 and newer, oldest first.
const std::vector<std::unique_ptr<Runtime>>& runtimes() {
  static const auto* const all = [] {
    auto* list = new std::vector<std::unique_ptr<Runtime>>();
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(OPBRIDGE_ORT_LIBRARIES, none)) {
      const std::string name = entry.path().filename();
      if (name.rfind("1.", 0) == 0 && std::stoi(name.substr(2)) >= 16)
        list->push_back(std::make_unique<Runtime>(entry.path() / "libonnxruntime.so"));
    }
    std::sort(list->begin(), list->end(), [](const auto& a, const auto& b) { return a->minor < b->minor; });
    return list;
  }();
  return *all;
}

class OrtTest : public testing::Test {
 protected:
  void SetUp() override {
    if (runtimes().empty())
      GTEST_SKIP() << "no ONNX Runtime in " << OPBRIDGE_ORT_LIBRARIES << ": make matrix fetches them";
  }
};

const std::vector<float> kX = {3, 1, 2};
const std::vector<float> kReversed = {2, 1, 3};

// ------------------------------------------------------------------------------------------------------------
// tests

TEST_F(OrtTest, AllRuntimesInOneProcess) {
  std::vector<std::unique_ptr<Session>> sessions;
  for (const auto& r : runtimes()) {
    Options o(*r);
    ASSERT_EQ(o.add(OPBRIDGE_TEST_OPS), "") << r->version;
    sessions.push_back(std::make_unique<Session>(*r, model("Services", int_attribute("extra", 100)), o.o));
    ASSERT_EQ(sessions.back()->error, "") << r->version;
  }  // the options are gone
  for (int i = 0; i < 3; ++i) {
    for (const auto& s : sessions) {
      std::vector<float> y;
      ASSERT_EQ(s->run(kX, &y), "") << s->runtime.version;
      EXPECT_EQ(y, kReversed) << s->runtime.version;
    }
  }
}

TEST_F(OrtTest, ErrorsAreStatuses) {
  for (const auto& r : runtimes()) {
    Options o(*r);
    ASSERT_EQ(o.add(OPBRIDGE_TEST_OPS), "");
    EXPECT_EQ(o.add(OPBRIDGE_TEST_OPS), "") << "twice";
    EXPECT_NE(
        o.add(OPBRIDGE_SAME_DOMAIN)
            .find("domain 'opbridge.test' has been registered already, by library 'opbridge_test_ops 3'"),
        std::string::npos);
    EXPECT_NE(o.add(OPBRIDGE_WRONG_OPS).find("'f33' is neither an element type"), std::string::npos)
        << "a wrong declaration";
    EXPECT_NE(o.add("/nowhere/libgone.so").find("libgone.so"), std::string::npos);
    for (const char* what : {"error", "std", "memory", "int", "device"}) {
      const Session s(*r, model("Throw", string_attribute("what", what)), o.o);
      ASSERT_EQ(s.error, "");
      std::vector<float> y;
      EXPECT_NE(s.run(kX, &y).find("opbridge.test::Throw (node 'node7'): "), std::string::npos) << r->version;
    }
    const Session wrong(*r, model("Services", int_attribute("extra", -1)), o.o);
    EXPECT_NE(wrong.error.find("opbridge.test::Services (node 'node7'): attribute 'extra' must lie in"),
              std::string::npos)
        << wrong.error;
    const Session kind(*r, model("Services", string_attribute("extra", "1")), o.o);
    EXPECT_NE(kind.error.find("'extra' must be of type int, got string"), std::string::npos) << kind.error;
    const Session fine(*r, model("Services"), o.o);
    std::vector<float> y;
    EXPECT_EQ(fine.run(kX, &y), "");
    EXPECT_EQ(y, kReversed);
  }
}

TEST_F(OrtTest, ThreadsShareASession) {
  for (const auto& r : {runtimes().front().get(), runtimes().back().get()}) {
    Options o(*r);
    ASSERT_EQ(r->take(r->api->SetIntraOpNumThreads(o.o, 3)), "");
    ASSERT_EQ(o.add(OPBRIDGE_TEST_OPS), "");
    const Session sum(*r, model("ParallelSum", int_attribute("grain", 100)), o.o);
    const Session bad(*r,
                      model("ParallelSum", int_attribute("grain", 100) + int_attribute("throw_at", 150) +
                                               string_attribute("what", "int")),
                      o.o);
    ASSERT_EQ(sum.error + bad.error, "");
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 20; ++i) {
          std::vector<float> y;
          EXPECT_EQ(sum.run(std::vector<float>(1000, static_cast<float>(t)), &y), "");
          EXPECT_EQ(y, std::vector<float>{static_cast<float>(1000 * t)});
          EXPECT_NE(bad.run(std::vector<float>(1000, 1.f), &y).find("unknown type"), std::string::npos);
        }
      });
    }
    for (std::thread& t : threads) t.join();
  }
}

TEST_F(OrtTest, UnloadsWithTheLastSessionAndComesBack) {
  for (const auto& r : {runtimes().front().get(), runtimes().back().get()}) {
    for (int i = 0; i < 3; ++i) {
      {
        Options o(*r);
        ASSERT_EQ(o.add(OPBRIDGE_TEST_OPS), "");
        const Session s(*r, model("Services"), o.o);
        std::vector<float> y;
        EXPECT_EQ(s.run(kX, &y), "");
      }
      EXPECT_EQ(dlopen(OPBRIDGE_TEST_OPS, RTLD_NOW | RTLD_NOLOAD), nullptr)
          << "still loaded after its last session";
    }
  }
}

TEST_F(OrtTest, SessionsOfAllRuntimesOnManyThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (size_t i = 0; i < runtimes().size(); ++i) {
        const Runtime& r = *runtimes()[(i + static_cast<size_t>(t)) % runtimes().size()];
        Options o(r);
        EXPECT_EQ(o.add(OPBRIDGE_TEST_OPS), "");
        const Session s(r, model("Services"), o.o);
        std::vector<float> y;
        EXPECT_EQ(s.run(kX, &y), "");
        EXPECT_EQ(y, kReversed);
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

// At the end of the process: a session that nobody releases must not keep it from ending well.
TEST_F(OrtTest, ASessionMayBeLeftToTheEnd) {
  const Runtime& r = *runtimes().back();
  static Options* const o = new Options(r);
  ASSERT_EQ(o->add(OPBRIDGE_TEST_OPS), "");
  static const Session* const left = new Session(r, model("Services"), o->o);
  static const std::unique_ptr<Session> destroyed_late(new Session(r, model("Services"), o->o));
  std::vector<float> y;
  EXPECT_EQ(left->run(kX, &y), "");
}

}  // namespace
