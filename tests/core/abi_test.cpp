// The C interface of a built library, through dlopen, as a host sees it.
#include "opbridge/abi.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Library {
  explicit Library(const std::string& path) : handle(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle == nullptr) {
      ADD_FAILURE() << dlerror();
      return;
    }
    get = reinterpret_cast<decltype(&opbridge_get_library)>(dlsym(handle, "opbridge_get_library"));
    error.size = sizeof error;
    table = get(OPBRIDGE_ABI_VERSION, &error);
  }
  void* handle;
  decltype(&opbridge_get_library) get = nullptr;
  const OpbridgeLibrary* table = nullptr;
  OpbridgeError error{};
};

const OpbridgeLibrary& ops() {
  static const Library library(OPBRIDGE_TEST_OPS);
  EXPECT_NE(library.table, nullptr) << library.error.message;
  return *library.table;
}

// A float32 tensor (or another of 32 bits) with its memory.
struct Array {
  Array(std::vector<int64_t> s, std::vector<float> v, uint8_t code = 2, uint8_t bits = 32)
      : shape(std::move(s)), values(std::move(v)) {
    t = {values.data(), 1, 0, static_cast<int32_t>(shape.size()), code, bits, 1, shape.data(), nullptr, 0};
  }
  Array(const Array&) = delete;
  std::vector<int64_t> shape;
  std::vector<float> values;
  OpbridgeTensor t;
};

struct Node {
  Node(const char* op, const std::vector<OpbridgeAttribute>& attributes = {}, const char* name = "n0") {
    error.size = sizeof error;
    kind = ops().create_node(op, name, attributes.data(), attributes.size(), &node, &error);
  }
  ~Node() { ops().destroy_node(node); }
  Node(const Node&) = delete;

  std::string compute(const std::vector<const OpbridgeTensor*>& in,
                      const std::vector<const OpbridgeTensor*>& out, const OpbridgeHost* host) {
    error.message[0] = '\0';
    const OpbridgeHost plain{sizeof(OpbridgeHost), 0, nullptr, nullptr, 0, nullptr, nullptr};
    kind = ops().compute(node, in.data(), in.size(), out.data(), out.size(), host == nullptr ? &plain : host,
                         &error);
    EXPECT_EQ(kind == 0, error.message[0] == '\0');
    return kind == 0 ? "ok" : error.message;
  }
  std::string compute(const std::vector<const OpbridgeTensor*>& in,
                      const std::vector<const OpbridgeTensor*>& out) {
    return compute(in, out, nullptr);
  }

  OpbridgeNode* node = nullptr;
  OpbridgeError error{};
  int32_t kind = 0;
};

OpbridgeAttribute int_attribute(const char* name, int64_t v) {
  return {name, 1, 0, v, 0, nullptr, nullptr, nullptr, 0};
}
OpbridgeAttribute string_attribute(const char* name, const char* v) {
  return {name, 4, 0, 0, 0, v, nullptr, nullptr, 0};
}

// ------------------------------------------------------------------------------------------------------- the
// entry

TEST(Entry, LayoutIsFrozen) {
  EXPECT_EQ(sizeof(OpbridgeTensor), 48u);
  EXPECT_EQ(sizeof(OpbridgeTensorSpec), 136u);
  EXPECT_EQ(sizeof(OpbridgeAttribute), 64u);
  EXPECT_EQ(sizeof(OpbridgeHost), 48u);
  EXPECT_EQ(sizeof(OpbridgeError), 2048u);
  EXPECT_EQ(offsetof(OpbridgeHost, workspace), 16u);
  EXPECT_EQ(offsetof(OpbridgeLibrary, manifest), 8u);
  EXPECT_EQ(ops().size, sizeof(OpbridgeLibrary));
  EXPECT_EQ(ops().abi_version, 1u);
}

TEST(Entry, RefusesVersionsItDoesNotKnow) {
  Library library(OPBRIDGE_TEST_OPS);
  for (const uint32_t version : {0u, 2u, 99u}) {
    library.error.message[0] = '\0';
    EXPECT_EQ(library.get(version, &library.error), nullptr);
    const std::string text = library.error.message;
    EXPECT_EQ(library.error.kind, OPBRIDGE_NOT_SUPPORTED);
    EXPECT_NE(text.find("asks for version " + std::to_string(version)), std::string::npos) << text;
    EXPECT_NE(text.find("versions 1 to 1"), std::string::npos) << text;
    EXPECT_EQ(library.get(version, nullptr), nullptr);
  }
  EXPECT_EQ(library.get(1, nullptr), library.table);
}

TEST(Entry, ErrorsAreCutToTheHostsRoom) {
  Library library(OPBRIDGE_TEST_OPS);
  struct {
    OpbridgeError error;
  } room{};
  std::memset(&room, 0x55, sizeof room);
  room.error.size = 8 + 10;
  EXPECT_EQ(library.get(99, &room.error), nullptr);
  EXPECT_STREQ(room.error.message, "the host ");
  EXPECT_EQ(room.error.message[10], 0x55);
  room.error.size = 8;  // no room for words
  EXPECT_EQ(library.get(99, &room.error), nullptr);
  room.error.size = 0;
  EXPECT_EQ(library.get(99, &room.error), nullptr);
}

TEST(Entry, CutsBetweenCharacters) {
  std::string name;
  while (name.size() < 3000) name += "\xc3\xa4";  // a with two dots
  for (const char* pad : {"", "x"}) {
    OpbridgeError error{};
    error.size = sizeof error;
    OpbridgeNode* node = nullptr;
    EXPECT_EQ(ops().create_node((pad + name).c_str(), nullptr, nullptr, 0, &node, &error),
              OPBRIDGE_INVALID_ARGUMENT);
    const std::string text = error.message;
    EXPECT_GE(text.size(), sizeof error.message - 3);
    EXPECT_NE(static_cast<unsigned char>(text.back()), 0xc3) << "ends inside a character";
  }
}

TEST(Entry, ManifestNamesTheLibrary) {
  const std::string m = ops().manifest;
  EXPECT_NE(m.find(R"("library": "opbridge_test_ops", "domain": "opbridge.test", "version": 3)"),
            std::string::npos);
  EXPECT_NE(m.find(R"("devices": ["cuda"])"), std::string::npos);  // CudaOnly
}

// ----------------------------------------------------------------------------------------------------------
// loading

TEST(Loading, TwiceIsTheSame) {
  const Library a(OPBRIDGE_TEST_OPS), b(OPBRIDGE_TEST_OPS);
  EXPECT_EQ(a.handle, b.handle);
  EXPECT_EQ(a.table, b.table);
  dlclose(a.handle);
  dlclose(b.handle);
}

TEST(Loading, CopiesAreIndependentAndUnloadingIsReal) {
  std::vector<std::string> paths;
  for (int i = 0; i < 2; ++i) {
    paths.push_back(testing::TempDir() + "opbridge_copy_" + std::to_string(i) + ".so");
    std::ifstream from(OPBRIDGE_TEST_OPS, std::ios::binary);
    std::ofstream(paths.back(), std::ios::binary) << from.rdbuf();
  }
  for (int round = 0; round < 3; ++round) {
    const Library a(paths[0]), b(paths[1]);
    ASSERT_NE(a.table, nullptr);
    ASSERT_NE(b.table, nullptr);
    EXPECT_NE(a.table, b.table);
    EXPECT_STREQ(a.table->manifest, b.table->manifest);
    OpbridgeNode* node = nullptr;
    OpbridgeError error{};
    error.size = sizeof error;
    EXPECT_EQ(a.table->create_node("Same", nullptr, nullptr, 0, &node, &error), 0);
    a.table->destroy_node(node);
    for (const Library* l : {&a, &b}) EXPECT_EQ(dlclose(l->handle), 0);
    for (const std::string& p : paths)
      EXPECT_EQ(dlopen(p.c_str(), RTLD_NOW | RTLD_NOLOAD), nullptr) << p << " is still loaded";
  }
  for (const std::string& p : paths) std::remove(p.c_str());
}

TEST(Loading, AWrongDeclarationIsAnErrorEveryTime) {
  Library library(OPBRIDGE_WRONG_OPS);
  EXPECT_EQ(library.table, nullptr);
  for (int i = 0; i < 2; ++i) {
    library.error.message[0] = '\0';
    EXPECT_EQ(library.get(1, &library.error), nullptr);
    EXPECT_EQ(library.error.kind, OPBRIDGE_INVALID_ARGUMENT);
    EXPECT_STREQ(library.error.message,
                 "signature of 'Wrong', line 1, column 10: 'f33' is neither an element type nor declared by "
                 "'where f33 in {...}'\n"
                 "  Wrong(x: f33[N]) -> y: f32[N]\n           ^");
  }
}

// -------------------------------------------------------------------------------------------------------------
// nodes

TEST(CreateNode, SaysWhatIsWrong) {
  const auto error = [](const char* op, const std::vector<OpbridgeAttribute>& attributes,
                        const char* name = "n0") {
    const Node n(op, attributes, name);
    EXPECT_EQ(n.kind, OPBRIDGE_INVALID_ARGUMENT);
    EXPECT_EQ(n.kind, n.error.kind);
    return std::string(n.error.message);
  };
  EXPECT_EQ(error("gather_rows", {}).substr(0, 88),
            "library 'opbridge_test_ops' has no operator 'gather_rows'; did you mean 'GatherRows'? (i");
  EXPECT_EQ(error("Zzzzzzzzzz", {}).substr(0, 62),
            "library 'opbridge_test_ops' has no operator 'Zzzzzzzzzz' (it h");
  EXPECT_EQ(error("Required", {int_attribute("k", 1)}),
            "opbridge.test::Required (node 'n0'): attribute 'r' (float) is required, but missing");
  EXPECT_EQ(error("Attributes", {int_attribute("ii", 1)}).substr(0, 88),
            "opbridge.test::Attributes (node 'n0'): attribute 'ii' is unknown (the operator has i, f,");
  EXPECT_EQ(error("Attributes", {int_attribute("i", 11)}, nullptr),
            "opbridge.test::Attributes: attribute 'i' must lie in [0, 10], got 11");
  EXPECT_EQ(error("Attributes", {int_attribute("i", 1), int_attribute("i", 2)}),
            "opbridge.test::Attributes (node 'n0'): attribute 'i' is given twice");
  OpbridgeAttribute odd = int_attribute("i", 1);
  odd.type = 7;
  EXPECT_NE(error("Attributes", {odd}).find("'i' has no type"), std::string::npos);
  odd.name = nullptr;
  EXPECT_NE(error("Attributes", {odd}).find("has no name"), std::string::npos);
  EXPECT_NE(error(nullptr, {}).find("null"), std::string::npos);
}

TEST(CreateNode, ReadsEveryKind) {
  const int64_t ints[] = {4, 5};
  const float floats[] = {0.5f, 1.5f};
  const Node n("Attributes", {int_attribute("i", 7),
                              {"f", 2, 0, 0, 0.2, nullptr, nullptr, nullptr, 0},
                              {"b", 3, 0, 0, 0, nullptr, nullptr, nullptr, 0},
                              string_attribute("s", "high"),
                              {"ints", 5, 0, 0, 0, nullptr, ints, nullptr, 2},
                              {"floats", 6, 0, 0, 0, nullptr, nullptr, floats, 2}});
  ASSERT_EQ(n.kind, 0) << n.error.message;
  Array x({2}, {0, 0});
  std::vector<double> y(9, -1);
  int64_t shape[] = {9};
  const OpbridgeTensor out{y.data(), 1, 0, 1, 2, 64, 1, shape, nullptr, 0};
  const OpbridgeTensor *in_list[] = {&x.t}, *out_list[] = {&out};
  const OpbridgeHost host{sizeof(OpbridgeHost), 0, nullptr, nullptr, 0, nullptr, nullptr};
  OpbridgeError error{};
  error.size = sizeof error;
  ASSERT_EQ(ops().compute(n.node, in_list, 1, out_list, 1, &host, &error), 0) << error.message;
  EXPECT_EQ(y, (std::vector<double>{7, static_cast<double>(0.2f), 0, 2, 2, 9, 2, 2, 4}));
}

// ----------------------------------------------------------------------------------------------------------
// tensors

TEST(Compute, ComputesAndChecksTensors) {
  Node n("GatherRows");
  Array x({3, 2}, {0, 1, 2, 3, 4, 5}), y({2, 2}, std::vector<float>(4, -1)), idx({2}, {0, 0}, 0);
  const int32_t rows[] = {2, 7};
  idx.t.data = const_cast<int32_t*>(rows);
  EXPECT_EQ(n.compute({&x.t, &idx.t}, {&y.t}), "ok");
  EXPECT_EQ(y.values, (std::vector<float>{4, 5, 0, 0}));

  const std::string title = "opbridge.test::GatherRows (node 'n0'): ";
  const auto with = [&](const OpbridgeTensor& t) { return n.compute({&t, &idx.t}, {&y.t}); };
  OpbridgeTensor t = x.t;
  t.dtype_code = 5;
  EXPECT_EQ(with(t),
            title + "element type with DLPack code 5, 32 bits and 1 lanes is not one that operators know");
  t = x.t, t.dtype_lanes = 4;
  EXPECT_NE(with(t).find("4 lanes"), std::string::npos);
  t = x.t, t.dtype_bits = 16;
  EXPECT_EQ(with(t), title + "input 'x' must be of type f32 or f64, got f16");
  t = x.t, t.ndim = 17;
  EXPECT_EQ(with(t), title + "a tensor has 17 dimensions; 0 to 16 are allowed");
  t = x.t, t.ndim = -1;
  EXPECT_EQ(with(t), title + "a tensor has -1 dimensions; 0 to 16 are allowed");
  t = x.t, t.shape = nullptr;
  EXPECT_EQ(with(t), title + "a tensor's shape is a null pointer");
  t = x.t, t.data = nullptr;
  EXPECT_EQ(with(t), title + "input 'x' has no memory");
  int64_t negative[] = {-3, -2}, huge[] = {int64_t{1} << 40, int64_t{1} << 40}, transposed[] = {1, 3},
          right[] = {2, 1}, padded[] = {4, 1};
  t = x.t, t.shape = negative;
  EXPECT_EQ(with(t), title + "a tensor has shape [-3,-2]");
  t = x.t, t.shape = huge;
  EXPECT_NE(with(t).find("fits no memory"), std::string::npos);
  t = x.t, t.strides = transposed;
  EXPECT_EQ(
      with(t),
      title + "a tensor of shape [3,2] has strides [1,3]; operators take contiguous, row-major tensors");
  t = x.t, t.strides = padded;
  EXPECT_NE(with(t).find("strides [4,1]"), std::string::npos);
  t = x.t, t.strides = right;
  EXPECT_EQ(with(t), "ok");
  t = x.t, t.byte_offset = 8;
  int64_t two_rows[] = {2, 2};
  t.shape = two_rows;
  EXPECT_EQ(with(t), "ok");
  t = x.t, t.device_type = 2;
  EXPECT_NE(with(t).find("CUDA"), std::string::npos) << with(t);
  t = x.t, t.device_type = 99;
  EXPECT_NE(with(t), "ok");

  EXPECT_EQ(n.compute({nullptr, &idx.t}, {&y.t}), title + "input 'x' is required, but missing");
  EXPECT_EQ(n.compute({&x.t}, {&y.t}), title + "takes 2 inputs, got 1");
  EXPECT_EQ(n.compute({&x.t, &idx.t}, {}), title + "has 1 outputs, got memory for 0");
  EXPECT_EQ(n.compute({&x.t, &idx.t}, {nullptr}), title + "output 'y' is not optional");
  std::vector<const OpbridgeTensor*> many(65, &x.t);
  EXPECT_EQ(n.compute(many, {&y.t}), title + "at most 64 tensors can be passed, got 65");
  t = y.t, t.data = nullptr;
  EXPECT_EQ(n.compute({&x.t, &idx.t}, {&t}), title + "output 'y' has no memory");
  Array wrong({2, 3}, std::vector<float>(6));
  EXPECT_EQ(n.compute({&x.t, &idx.t}, {&wrong.t}),
            title + "output 'y' will be f32[2,2], got memory for f32[2,3]");
  t = y.t, t.dtype_code = 0;
  EXPECT_EQ(n.compute({&x.t, &idx.t}, {&t}), title + "output 'y' will be f32[2,2], got memory for i32[2,2]");
  EXPECT_EQ(n.compute({&x.t, &idx.t}, {&y.t}), "ok");  // nothing above has broken the node
}

TEST(Compute, TakesEmptyTensorsWithoutMemory) {
  Node n("Same");
  Array x({0, 4}, {}), y({0, 4}, {});
  x.t.data = y.t.data = nullptr;
  int64_t nonsense[] = {-7, 9};
  x.t.strides = nonsense;
  EXPECT_EQ(n.compute({&x.t}, {&y.t}), "ok");
  int64_t wraps[] = {int64_t{1} << 40, int64_t{1} << 40, 0};
  x.t.strides = nullptr;
  x.t.shape = y.t.shape = wraps;
  x.t.ndim = y.t.ndim = 3;
  EXPECT_EQ(n.compute({&x.t}, {&y.t}), "ok");
}

TEST(Compute, OptionalOutputs) {
  Node n("Outputs");
  Array x({2}, {1, 2}), y({2}, {0, 0}), twice({2}, {0, 0}), count({1}, {0}, 0);
  EXPECT_EQ(n.compute({&x.t}, {&y.t, nullptr, nullptr}), "ok");
  EXPECT_EQ(y.values, (std::vector<float>{1, 2}));
  EXPECT_EQ(n.compute({&x.t}, {&y.t, &twice.t, &count.t}), "ok");
  EXPECT_EQ(y.values, (std::vector<float>{111, 112}));
  EXPECT_EQ(twice.values, (std::vector<float>{2, 4}));
}

TEST(Compute, HostInputs) {
  Node n("ScaleByHost");
  Array x({2}, {1, 2}), s({}, {3}), y({2}, {0, 0});
  EXPECT_EQ(n.compute({&x.t, &s.t}, {&y.t}), "ok");
  EXPECT_EQ(y.values, (std::vector<float>{3, 6}));
  s.t.device_type = 2;
  EXPECT_NE(n.compute({&x.t, &s.t}, {&y.t}).find("input 's"), std::string::npos);
}

TEST(Compute, MissingKernels) {
  Array x({2}, {1, 2}), y({2}, {0, 0});
  Node cuda_only("CudaOnly");
  EXPECT_EQ(cuda_only.compute({&x.t}, {&y.t}), "opbridge.test::CudaOnly (node 'n0'): has no CPU kernel");
  EXPECT_EQ(cuda_only.kind, OPBRIDGE_NOT_SUPPORTED);
  Node cpu_only("Same");
  x.t.device_type = y.t.device_type = 2;
  EXPECT_NE(cpu_only.compute({&x.t}, {&y.t}).find("has no CUDA kernel"), std::string::npos);
  EXPECT_EQ(cpu_only.kind, OPBRIDGE_NOT_SUPPORTED);
}

TEST(Infer, FillsTheSpecs) {
  const Node n("Shapes", {int_attribute("times", 3), int_attribute("cut", 1)});
  Array x({2, 5}, std::vector<float>(10));
  x.t.data = nullptr;  // not looked at
  const OpbridgeTensor* in[] = {&x.t};
  OpbridgeTensorSpec specs[2];
  OpbridgeError error{};
  error.size = sizeof error;
  ASSERT_EQ(ops().infer(n.node, in, 1, specs, 2, &error), 0) << error.message;
  EXPECT_EQ(specs[0].ndim, 2);
  EXPECT_EQ(specs[0].shape[1], 14);
  EXPECT_EQ(specs[0].dtype_code, 2);
  EXPECT_EQ(specs[0].dtype_bits, 32);
  EXPECT_EQ(specs[1].shape[1], 3);
  EXPECT_EQ(specs[1].dtype_code, 0);
  EXPECT_EQ(ops().infer(n.node, in, 1, specs, 1, &error), OPBRIDGE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("has 2 outputs, got room for 1"), std::string::npos)
      << error.message;
  EXPECT_EQ(ops().infer(n.node, nullptr, 1, specs, 2, &error), OPBRIDGE_INVALID_ARGUMENT);
}

// ------------------------------------------------------------------------------------------------- what
// hosts lend

TEST(Workspace, IsAskedForAndChecked) {
  const Node made("Services", {int_attribute("extra", 100)});
  Node n("Services", {int_attribute("extra", 100)});
  Array x({3}, {1, 2, 3}), y({3}, {0, 0, 0});
  const OpbridgeTensor* in[] = {&x.t};
  size_t bytes = 0;
  ASSERT_EQ(ops().workspace_bytes(n.node, in, 1, 1, &bytes, &n.error), 0) << n.error.message;
  EXPECT_EQ(bytes, 112u);
  const std::string title = "opbridge.test::Services (node 'n0'): ";
  EXPECT_EQ(n.compute({&x.t}, {&y.t}), title + "needs 112 bytes of workspace, got 0");
  alignas(256) unsigned char memory[512];
  OpbridgeHost host{sizeof(OpbridgeHost), 0, nullptr, memory, 111, nullptr, nullptr};
  EXPECT_EQ(n.compute({&x.t}, {&y.t}, &host), title + "needs 112 bytes of workspace, got 111");
  host.workspace = memory + 64;
  host.workspace_bytes = 200;
  EXPECT_EQ(n.compute({&x.t}, {&y.t}, &host), title + "its workspace must be aligned to 256 bytes");
  host.workspace = memory;
  host.workspace_bytes = 112;
  memory[112] = 0x77;
  EXPECT_EQ(n.compute({&x.t}, {&y.t}, &host), "ok");
  EXPECT_EQ(y.values, (std::vector<float>{3, 2, 1}));
  EXPECT_EQ(memory[112], 0x77);
  Node throws("ThrowInWorkspace");
  EXPECT_EQ(ops().workspace_bytes(throws.node, in, 1, 1, &bytes, &throws.error), OPBRIDGE_INTERNAL);
  EXPECT_STREQ(throws.error.message,
               "opbridge.test::ThrowInWorkspace (node 'n0'): an exception of unknown type was thrown");
}

TEST(Host, MayBeShorterOrLonger) {
  Node n("Same");
  Array x({2}, {1, 2}), y({2}, {0, 0});
  OpbridgeHost host;
  std::memset(&host, 0xff, sizeof host);  // what lies beyond its size must not be read
  host.size = 8;
  host.threads = 1;
  EXPECT_EQ(n.compute({&x.t}, {&y.t}, &host), "ok");
  struct Longer {
    OpbridgeHost host;
    char more[64];
  } longer{};
  longer.host.size = sizeof longer;
  EXPECT_EQ(n.compute({&x.t}, {&y.t}, &longer.host), "ok");
  host.size = 0;
  EXPECT_NE(n.compute({&x.t}, {&y.t}, &host).find("OpbridgeHost::size is not set"), std::string::npos);
  const OpbridgeTensor *in[] = {&x.t}, *out[] = {&y.t};
  EXPECT_EQ(ops().compute(n.node, in, 1, out, 1, nullptr, &n.error), 0);  // nothing is lent
  Node parallel("ParallelSum");
  Array many({5000}, std::vector<float>(5000, 1)), sum({1}, {0});
  alignas(256) unsigned char memory[64];
  OpbridgeHost old{40, 3, nullptr, memory, sizeof memory, nullptr, nullptr};  // from before parallel_host
  EXPECT_EQ(parallel.compute({&many.t}, {&sum.t}, &old), "ok");
  EXPECT_EQ(sum.values[0], 5000);
}

struct Pool {
  int threads;
  int calls = 0;
};

void pool_parallel_for(void* host, void (*task)(void*, size_t), size_t chunks, void* data) {
  Pool& pool = *static_cast<Pool*>(host);
  ++pool.calls;
  std::vector<std::thread> threads;
  for (int t = 0; t < pool.threads; ++t) {
    threads.emplace_back([=] {
      for (size_t c = static_cast<size_t>(t); c < chunks; c += static_cast<size_t>(pool.threads))
        task(data, chunks - 1 - c);
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(ParallelFor, GivesTheSameBitsOnAnyThreads) {
  Node n("ParallelSum", {int_attribute("grain", 700)});
  std::vector<float> values(100'003);
  uint32_t state = 1;
  for (float& v : values)
    v = static_cast<float>(static_cast<int32_t>(state = state * 1664525u + 1013904223u)) / 1e9f;
  Array x({100'003}, values), y({1}, {0});
  std::vector<unsigned char> raw(4096 + 256);
  void* memory = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(raw.data()) + 255) / 256 * 256);
  float first = 0;
  for (const int threads : {1, 2, 3, 8}) {
    OpbridgeHost own{sizeof(OpbridgeHost), threads, nullptr, memory, 4096, nullptr, nullptr};
    ASSERT_EQ(n.compute({&x.t}, {&y.t}, &own), "ok");
    if (threads == 1) first = y.values[0];
    EXPECT_EQ(y.values[0], first);
    Pool pool{threads};
    OpbridgeHost lent{sizeof(OpbridgeHost), 0, nullptr, memory, 4096, pool_parallel_for, &pool};
    ASSERT_EQ(n.compute({&x.t}, {&y.t}, &lent), "ok");
    EXPECT_EQ(y.values[0], first);
    EXPECT_EQ(pool.calls, 1);
  }
}

TEST(ParallelFor, ErrorsOfPiecesComeBack) {
  Array x({5000}, std::vector<float>(5000, 1)), y({1}, {0});
  alignas(256) unsigned char memory[64];
  for (const int threads : {1, 4}) {
    for (const auto& [what, kind, text] : std::vector<std::tuple<const char*, int, std::string>>{
             {"error", OPBRIDGE_INVALID_ARGUMENT, "thrown in the piece from 3000"},
             {"std", OPBRIDGE_INTERNAL, "thrown by the standard library"},
             {"memory", OPBRIDGE_OUT_OF_MEMORY, "out of memory"},
             {"int", OPBRIDGE_INTERNAL, "an exception of unknown type was thrown"}}) {
      Node n("ParallelSum", {int_attribute("throw_at", 3500), string_attribute("what", what)});
      OpbridgeHost own{sizeof(OpbridgeHost), threads, nullptr, memory, sizeof memory, nullptr, nullptr};
      EXPECT_EQ(n.compute({&x.t}, {&y.t}, &own), "opbridge.test::ParallelSum (node 'n0'): " + text);
      EXPECT_EQ(n.kind, kind);
      Pool pool{threads};
      OpbridgeHost lent{sizeof(OpbridgeHost), 0, nullptr, memory, sizeof memory, pool_parallel_for, &pool};
      EXPECT_EQ(n.compute({&x.t}, {&y.t}, &lent), "opbridge.test::ParallelSum (node 'n0'): " + text);
    }
  }
}

TEST(Kernels, MayThrowAnything) {
  Array x({2}, {1, 2}), y({2}, {0, 0});
  for (const auto& [what, kind, text] : std::vector<std::tuple<const char*, int, std::string>>{
           {"error", OPBRIDGE_INVALID_ARGUMENT, "thrown on purpose"},
           {"std", OPBRIDGE_INTERNAL, "thrown by the standard library"},
           {"memory", OPBRIDGE_OUT_OF_MEMORY, "out of memory"},
           {"int", OPBRIDGE_INTERNAL, "an exception of unknown type was thrown"},
           {"device", OPBRIDGE_DEVICE, "the device is gone"}}) {
    Node n("Throw", {string_attribute("what", what)});
    EXPECT_EQ(n.compute({&x.t}, {&y.t}), "opbridge.test::Throw (node 'n0'): " + text);
    EXPECT_EQ(n.kind, kind);
  }
  Node fine("Throw", {string_attribute("what", "nothing")});
  EXPECT_EQ(fine.compute({&x.t}, {&y.t}), "ok");
}

TEST(Threads, ShareALibraryAndANode) {
  Node shared("ParallelSum", {int_attribute("grain", 100)}), wrong("GatherRows");
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&shared, &wrong, t] {
      Array x({1000}, std::vector<float>(1000, static_cast<float>(t))), y({1}, {0});
      alignas(256) unsigned char memory[64];
      const OpbridgeTensor *in[] = {&x.t}, *out[] = {&y.t};
      OpbridgeHost host{sizeof(OpbridgeHost), 2, nullptr, memory, sizeof memory, nullptr, nullptr};
      for (int i = 0; i < 30; ++i) {
        OpbridgeError error{};
        error.size = sizeof error;
        EXPECT_EQ(ops().compute(shared.node, in, 1, out, 1, &host, &error), 0) << error.message;
        EXPECT_EQ(y.values[0], static_cast<float>(1000 * t));
        EXPECT_EQ(ops().compute(wrong.node, in, 1, out, 1, &host, &error), OPBRIDGE_INVALID_ARGUMENT);
        OpbridgeNode* own = nullptr;
        EXPECT_EQ(ops().create_node("Same", "own", nullptr, 0, &own, &error), 0);
        ops().destroy_node(own);
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(Threads, MayAllAskFirst) {
  const std::string path = testing::TempDir() + "opbridge_first.so";
  {
    std::ifstream from(OPBRIDGE_TEST_OPS, std::ios::binary);
    std::ofstream(path, std::ios::binary) << from.rdbuf();
  }
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(handle, nullptr) << dlerror();
  const auto get = reinterpret_cast<decltype(&opbridge_get_library)>(dlsym(handle, "opbridge_get_library"));
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) threads.emplace_back([get] { EXPECT_NE(get(1, nullptr), nullptr); });
  for (std::thread& t : threads) t.join();
  dlclose(handle);
  std::remove(path.c_str());
}

}  // namespace
