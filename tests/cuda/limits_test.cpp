// CUDA kernels at the limits: what they launch for 5 million points, 65,537 channels, 100,000 batches, and where they read and
// write beyond 2^32 elements. Nothing here needs the memory that this would take.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "host.h"

namespace {

using host::boolean;
using host::DType;
using host::integer;
using host::Library;
using host::Node;
using host::real;
using host::text;
using opbridge::emulation::LaunchRecord;
using opbridge::emulation::settings;
using opbridge::emulation::take_launches;

using Attributes = std::vector<OpbridgeAttribute>;
using Arguments = std::vector<std::pair<DType, std::vector<int64_t>>>;

constexpr DType f16 = DType::f16, f32 = DType::f32, f64 = DType::f64, i32 = DType::i32, i64 = DType::i64;

std::string described(const char* op, const Arguments& inputs) {
  std::string text = op;
  for (const auto& [dtype, shape] : inputs) {
    text += std::string(" ") + opbridge::dtype_name(dtype) + "[";
    for (const int64_t n : shape) text += std::to_string(n) + ",";
    text.back() = ']';
  }
  return text;
}

class Limits : public testing::Test {
 protected:
  ~Limits() override { settings() = saved_; }

  opbridge::emulation::Settings saved_ = settings();
  Library points_{OPBRIDGE_TEST_POINTS}, clip_{OPBRIDGE_TEST_CLIP};
};

// -------------------------------------------------------------------------------------------------------------- launches

class Launches : public Limits {
 protected:
  Launches() { settings().dry_run = true; }

  // Expects a call on tensors of these types and shapes to launch so many kernels. Nothing is read: the address is nobody's.
  void expect_launches(size_t launches, const Library& library, const char* op, const Attributes& attributes,
                       Arguments inputs, Arguments outputs) {
    const std::string what = described(op, inputs);
    void* const address = reinterpret_cast<void*>(uintptr_t{1} << 40);
    std::vector<OpbridgeTensor> tensors;
    tensors.reserve(inputs.size() + outputs.size());
    std::vector<const OpbridgeTensor*> in, out;
    for (auto& [dtype, shape] : inputs)
      in.push_back(&tensors.emplace_back(host::view(address, 2, 0, dtype, shape)));
    for (auto& [dtype, shape] : outputs)
      out.push_back(&tensors.emplace_back(host::view(address, 2, 0, dtype, shape)));
    const Node node(library, op, attributes);
    OpbridgeHost h{};
    h.size = sizeof h;
    h.workspace = address;
    h.workspace_bytes = node.workspace_bytes(in, 2);
    EXPECT_LT(h.workspace_bytes, size_t{1} << 50) << what;
    take_launches();
    node.compute(in, out, h);  // the emulation refuses a configuration that no GPU takes
    EXPECT_EQ(take_launches().size(), launches) << what;
    ran_.insert(op);
  }

  std::set<std::string> ran_;
};

TEST_F(Launches, FitAnySize) {
  for (const int64_t n : {int64_t{1}, int64_t{5000000}, int64_t{1} << 33}) {
    for (const DType t : {f16, DType::bf16, f32, f64, i32, i64}) {
      expect_launches(1, clip_, "my_clip", {}, {{t, {n}}}, {{t, {n}}});
      expect_launches(1, clip_, "my_clip_grad", {}, {{t, {n}}, {t, {n}}}, {{t, {n}}});
    }
  }
  struct Size {
    int64_t batches, channels, points, others;
  };
  for (const DType t : {f16, f32, f64}) {
    for (const DType index : {i32, i64}) {
      for (const Size& s : {Size{1, 65537, 5000000, 3}, Size{100000, 3, 70, 7}, Size{1, 3, 7, 5000000},
                            Size{1, 1, 1, 1}, Size{65536, 65537, 1, 1}, Size{3, 64, 5000000, 1000000}}) {
        const auto [b, c, n, m] = s;
        const auto expect = [&](size_t launches, const char* op, const Attributes& attributes,
                                const Arguments& inputs, const Arguments& outputs) {
          expect_launches(launches, points_, op, attributes, inputs, outputs);
        };
        const Arguments xyz = {{t, {b, n, 3}}}, both = {{t, {b, n, 3}}, {t, {b, m, 3}}};
        const int64_t npoint = std::min<int64_t>(m, 1 << 20);
        expect(1, "FarthestPointSample", {integer("npoint", npoint)}, xyz, {{i32, {b, npoint}}});
        expect(1, "BallQuery", {integer("nsample", 4), real("radius", 1)}, both,
               {{i32, {b, m, 4}}, {i32, {b, m}}});
        for (const int64_t k : {4, 64, 256})
          expect(1, "KNN", {integer("k", k)}, both, {{i32, {b, m, k}}, {t, {b, m, k}}});
        expect(1, "ThreeNN", {}, both, {{t, {b, n, 3}}, {i32, {b, n, 3}}});
        expect(1, "GatherPoints", {}, {{t, {b, c, n}}, {index, {b, m}}}, {{t, {b, c, m}}});
        expect(1, "GroupPoints", {}, {{t, {b, c, n}}, {index, {b, m, 4}}}, {{t, {b, c, m, 4}}});
        expect(1, "ThreeInterpolate", {}, {{t, {b, c, m}}, {index, {b, n, 3}}, {t, {b, n, 3}}},
               {{t, {b, c, n}}});
        const size_t sort = (n < 256 ? 1 : n < 65536 ? 2 : 3) * 2 + 1;  // two launches a pass, and the starts
        expect(sort + 1, "GatherPointsGrad", {}, {{t, {b, c, m}}, {t, {b, c, n}}, {index, {b, m}}},
               {{t, {b, c, n}}});
        expect(sort + 1, "GroupPointsGrad", {}, {{t, {b, c, m, 4}}, {t, {b, c, n}}, {index, {b, m, 4}}},
               {{t, {b, c, n}}});
        expect(sort + 2, "ThreeInterpolateGrad", {},
               {{t, {b, c, m}}, {t, {b, c, n}}, {index, {b, m, 3}}, {t, {b, m, 3}}},
               {{t, {b, c, n}}, {t, {b, m, 3}}});
        for (const int64_t axis : {0, 1, 2}) {
          expect(1, "L2Normalize", {integer("axis", axis)}, {{t, {b, c, n}}}, {{t, {b, c, n}}});
          expect(1, "L2NormalizeGrad", {integer("axis", axis)}, {{t, {b, c, n}}, {t, {b, c, n}}},
                 {{t, {b, c, n}}});
        }

        const Arguments angles = {{t, {b, c, 3}}}, quaternions = {{t, {b, c, 4}}},
                        rotations = {{t, {b, c, 3, 3}}};
        const auto with = [](Arguments a, const Arguments& more) {
          a.insert(a.end(), more.begin(), more.end());
          return a;
        };
        for (const char* op : {"EulerToRotation", "AxisAngleToRotation", "QuaternionToRotation"}) {
          const Arguments& rows = *op == 'Q' ? quaternions : angles;
          expect(1, op, {}, rows, rotations);
          expect(1, (std::string(op) + "Grad").c_str(), {}, with(rotations, rows), rows);
        }
        const Arguments pose = {{t, {b, 3, 3}}, {t, {b, 3}}},
                        pairs = {{t, {n, 3}}, {t, {b, n, 3}}, {t, {b, n}}};
        expect(1, "KabschSolver", {}, pairs, with(pose, {{i32, {b}}}));
        expect(1, "KabschSolverGrad", {}, with(pose, pairs), {{t, {b, n, 3}}, {t, {b, n, 3}}, {t, {b, n}}});

        // Keypoints, votes in the place of the channels.
        const Arguments votes = {{t, {b, n, 3}}, {t, {b, c, n, 3}}}, kps = {{t, {b, c, 3}}};
        const Attributes three = {integer("max_iter", 2)},
                         upstream = {integer("max_iter", 2), text("stop", "upstream")},
                         blurring = {integer("max_iter", 2), text("variant", "ffb6d")};
        for (const DType mask : {DType::boolean, i32, i64}) {
          const Arguments masked = with(votes, {{mask, {b, n}}}),
                          found = with(kps, {{i32, {b, c}}, {i32, {b, c}}});
          expect(4, "VoteAggregate", three, masked, found);
          expect(7, "VoteAggregate", upstream, masked, found);
          expect(7, "VoteAggregate", blurring, masked, found);
          expect(2, "VoteAggregateGrad", {}, with(kps, with(votes, with(kps, {{mask, {b, n}}}))), votes);
        }
        const Arguments frame = {{t, {b, n, 3}},    {index, {b, n}}, {t, {b, m, n, 3}},
                                 {t, {b, 1, n, 3}}, {t, {c, m, 3}},  {t, {c, 3}}},
                        refined = with(frame, {{t, {c}}}),
                        poses = {{t, {b, c, 3, 3}},
                                 {t, {b, c, 3}},
                                 {i32, {b, c}},
                                 {t, {b, c, m + 1, 3}},
                                 {i32, {b, c}}};
        expect(7, "PVN3DPoseSolve", three, frame, poses);
        expect(11, "PVN3DPoseSolve", three, refined, poses);
        expect(7 + 6, "PVN3DPoseSolve", upstream, frame, poses);
        expect(11 + 9, "PVN3DPoseSolve", blurring, refined, poses);
      }
    }
  }
  // So that a new operator comes here, too.
  for (const Library& library : {points_, clip_}) {
    const std::string manifest = library->manifest, key = "\", \"snake_name\"";
    for (size_t at = manifest.find(key); at != std::string::npos; at = manifest.find(key, at + 1)) {
      const size_t begin = manifest.rfind('"', at - 1) + 1;
      EXPECT_EQ(ran_.count(manifest.substr(begin, at - begin)), 1u) << manifest.substr(begin, at - begin);
    }
  }
}

// Nothing to do: nothing is launched with an empty grid, which CUDA refuses.
TEST_F(Launches, OfEmptyTensors) {
  expect_launches(0, clip_, "my_clip", {}, {{f32, {0}}}, {{f32, {0}}});
  expect_launches(0, points_, "EulerToRotation", {}, {{f32, {0, 3}}}, {{f32, {0, 3, 3}}});
  expect_launches(0, points_, "KabschSolver", {}, {{f32, {0, 4, 3}}, {f32, {0, 4, 3}}},
                  {{f32, {0, 3, 3}}, {f32, {0, 3}}, {i32, {0}}});
  expect_launches(0, points_, "VoteAggregate", {}, {{f32, {0, 5, 3}}, {f32, {0, 2, 5, 3}}},
                  {{f32, {0, 2, 3}}, {i32, {0, 2}}, {i32, {0, 2}}});
  expect_launches(3, points_, "VoteAggregate", {}, {{f32, {1, 0, 3}}, {f32, {1, 2, 0, 3}}},
                  {{f32, {1, 2, 3}}, {i32, {1, 2}}, {i32, {1, 2}}});
  expect_launches(0, points_, "VoteAggregateGrad", {},
                  {{f32, {1, 2, 3}}, {f32, {1, 0, 3}}, {f32, {1, 2, 0, 3}}, {f32, {1, 2, 3}}},
                  {{f32, {1, 0, 3}}, {f32, {1, 2, 0, 3}}});
  expect_launches(0, points_, "PVN3DPoseSolve", {},
                  {{f32, {0, 5, 3}},
                   {i32, {0, 5}},
                   {f32, {0, 2, 5, 3}},
                   {f32, {0, 1, 5, 3}},
                   {f32, {3, 2, 3}},
                   {f32, {3, 3}}},
                  {{f32, {0, 3, 3, 3}}, {f32, {0, 3, 3}}, {i32, {0, 3}}, {f32, {0, 3, 3, 3}}, {i32, {0, 3}}});
  expect_launches(0, points_, "PVN3DPoseSolve", {},
                  {{f32, {1, 5, 3}},
                   {i32, {1, 5}},
                   {f32, {1, 2, 5, 3}},
                   {f32, {1, 1, 5, 3}},
                   {f32, {0, 2, 3}},
                   {f32, {0, 3}}},
                  {{f32, {1, 0, 3, 3}}, {f32, {1, 0, 3}}, {i32, {1, 0}}, {f32, {1, 0, 3, 3}}, {i32, {1, 0}}});
}

// What vote_aggregate.h and pvn3d_pose_solve.h say of their workspace on CUDA.
TEST_F(Launches, TakeTheWorkspaceThatTheContractStates) {
  constexpr int64_t b = 2, n = 12800, k = 9, m = 21;
  const auto expect_bytes = [&](const char* op, const Attributes& attributes, Arguments inputs,
                                int64_t bytes) {
    std::vector<OpbridgeTensor> tensors;
    std::vector<const OpbridgeTensor*> in;
    tensors.reserve(inputs.size());
    for (auto& [dtype, shape] : inputs)
      in.push_back(&tensors.emplace_back(host::view(nullptr, 2, 0, dtype, shape)));
    const double got = static_cast<double>(Node(points_, op, attributes).workspace_bytes(in, 2));
    EXPECT_NEAR(got / static_cast<double>(bytes), 1, 0.01) << described(op, inputs);
  };
  const Attributes still = {}, moving = {text("stop", "upstream")};
  const Arguments votes = {{f32, {b, n, 3}}, {f32, {b, k, n, 3}}};
  expect_bytes("VoteAggregate", still, votes, 16 * n * k * b);
  expect_bytes("VoteAggregate", moving, votes, 28 * n * k * b);
  const Arguments frame = {{f32, {b, n, 3}},    {i32, {b, n}},    {f32, {b, k, n, 3}},
                           {f32, {b, 1, n, 3}}, {f32, {m, k, 3}}, {f32, {m, 3}}};
  expect_bytes("PVN3DPoseSolve", still, frame, (20 + 12 * k) * n * b);
  expect_bytes("PVN3DPoseSolve", moving, frame, (32 + 24 * k) * n * b);
}

// --------------------------------------------------------------------------------------------------------------- offsets

// Zeros that take no memory until they are written, between so much that may not be touched that an offset that has run
// over in 32 bits ends there.
class SparseBuffer {
 public:
  explicit SparseBuffer(size_t bytes) : size_((bytes + kPage - 1) / kPage * kPage) {
    all_ = mmap(nullptr, size_ + 2 * kGuard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all_ == MAP_FAILED || (size_ > 0 && mprotect(begin(), size_, PROT_READ | PROT_WRITE) != 0))
      throw host::Error(host::ErrorKind::kInternal,
                        "no address space for " + std::to_string(bytes) + " bytes");
    data_ = begin() + (size_ - bytes) / 256 * 256;  // ends where the guard begins
  }
  SparseBuffer(const SparseBuffer&) = delete;
  SparseBuffer& operator=(const SparseBuffer&) = delete;
  ~SparseBuffer() { munmap(all_, size_ + 2 * kGuard); }

  void* data() const { return data_; }
  /// Whether one of the last `bytes` has been written.
  bool end_written(size_t bytes) const {
    bytes = std::min(size_, bytes / kPage * kPage);
    std::vector<unsigned char> resident(bytes / kPage);
    if (mincore(begin() + (size_ - bytes), bytes, resident.data()) != 0) return false;
    return std::any_of(resident.begin(), resident.end(), [](unsigned char page) { return (page & 1) != 0; });
  }

 private:
  static constexpr size_t kPage = 4096, kGuard = size_t{40} << 30;
  char* begin() const { return static_cast<char*>(all_) + kGuard; }

  size_t size_;
  void* all_;
  char* data_ = nullptr;
};

class Offsets : public Limits {
 protected:
  Offsets() { settings().order = "last"; }

  // Runs the last block of each kernel on zeros; expects it to write the ends of the outputs in `written`. Of a grid that goes
  // round several times the last block writes within the last round, which `round` bytes hold.
  void run(const Library& library, const char* op, const Attributes& attributes, Arguments inputs,
           Arguments outputs, const std::set<size_t>& written, size_t round = size_t{1} << 32) {
    SCOPED_TRACE(described(op, inputs));
    std::vector<std::unique_ptr<SparseBuffer>> buffers;
    std::vector<OpbridgeTensor> tensors;
    tensors.reserve(inputs.size() + outputs.size());
    const auto place = [&](Arguments& arguments) {
      std::vector<const OpbridgeTensor*> placed;
      for (auto& [dtype, shape] : arguments) {
        size_t bytes = opbridge::dtype_size(dtype);
        for (const int64_t n : shape) bytes *= static_cast<size_t>(n);
        buffers.push_back(std::make_unique<SparseBuffer>(bytes));
        placed.push_back(&tensors.emplace_back(host::view(buffers.back()->data(), 2, 0, dtype, shape)));
      }
      return placed;
    };
    const auto in = place(inputs), out = place(outputs);
    const Node node(library, op, attributes);
    OpbridgeHost h{};
    h.size = sizeof h;
    h.workspace_bytes = node.workspace_bytes(in, 2);
    const SparseBuffer workspace(h.workspace_bytes);
    h.workspace = workspace.data();
    node.compute(in, out, h);
    for (const size_t o : written)
      EXPECT_TRUE(buffers[inputs.size() + o]->end_written(round)) << "output " << o;
  }
};

TEST_F(Offsets, BeyondFourBillionElements) {
  constexpr int64_t n = 5000000, c = 65537, many = int64_t{1} << 33;
  constexpr int64_t fewer = 1000;  // channels: each block has more to do for each of them
  run(clip_, "my_clip", {}, {{f16, {many}}}, {{f16, {many}}}, {0});
  run(clip_, "my_clip_grad", {}, {{f16, {many}}, {f16, {many}}}, {{f16, {many}}}, {0});
  run(points_, "GatherPoints", {}, {{f32, {1, c, n}}, {i32, {1, 70000}}}, {{f32, {1, c, 70000}}}, {0});
  run(points_, "GatherPointsGrad", {}, {{f32, {1, fewer, 70000}}, {f32, {1, fewer, n}}, {i64, {1, 70000}}},
      {{f32, {1, fewer, n}}}, {0});
  run(points_, "GroupPoints", {}, {{f16, {1, c, n}}, {i64, {1, 10000, 16}}}, {{f16, {1, c, 10000, 16}}}, {0});
  run(points_, "GroupPointsGrad", {},
      {{f16, {1, fewer, 10000, 16}}, {f16, {1, fewer, n}}, {i32, {1, 10000, 16}}}, {{f16, {1, fewer, n}}},
      {0});
  run(points_, "ThreeInterpolate", {}, {{f32, {1, c, n}}, {i32, {1, 70000, 3}}, {f32, {1, 70000, 3}}},
      {{f32, {1, c, 70000}}}, {0});
  run(points_, "ThreeInterpolateGrad", {},
      {{f32, {300, 7, n}}, {f32, {300, 7, 3}}, {i32, {300, n, 3}}, {f32, {300, n, 3}}},
      {{f32, {300, 7, 3}}, {f32, {300, n, 3}}}, {1});
  run(points_, "BallQuery", {integer("nsample", 1024), real("radius", 1)},
      {{f32, {1, 7, 3}}, {f32, {1, n, 3}}}, {{i32, {1, n, 1024}}, {i32, {1, n}}}, {0});
  run(points_, "KNN", {integer("k", 1024)}, {{f32, {1, 7, 3}}, {f32, {1, n, 3}}},
      {{i32, {1, n, 1024}}, {f32, {1, n, 1024}}}, {0, 1});
  run(points_, "ThreeNN", {}, {{f32, {300, n, 3}}, {f32, {300, 3, 3}}},
      {{f32, {300, n, 3}}, {i32, {300, n, 3}}}, {0, 1});
  run(points_, "FarthestPointSample", {integer("npoint", 1 << 20)}, {{f32, {5000, 9, 3}}},
      {{i32, {5000, 1 << 20}}}, {0});
  run(points_, "L2Normalize", {integer("axis", 1)}, {{f16, {n, 1000}}}, {{f16, {n, 1000}}}, {0});
  run(points_, "L2NormalizeGrad", {integer("axis", 1)}, {{f16, {n, 1000}}, {f16, {n, 1000}}},
      {{f16, {n, 1000}}}, {0});
  constexpr int64_t rows = 500000000;
  run(points_, "EulerToRotation", {}, {{f32, {rows, 3}}}, {{f32, {rows, 3, 3}}}, {0});
  run(points_, "EulerToRotationGrad", {}, {{f32, {rows, 3, 3}}, {f32, {rows, 3}}}, {{f32, {rows, 3}}}, {0});
  run(points_, "AxisAngleToRotation", {}, {{f32, {rows, 3}}}, {{f32, {rows, 3, 3}}}, {0});
  run(points_, "AxisAngleToRotationGrad", {}, {{f32, {rows, 3, 3}}, {f32, {rows, 3}}}, {{f32, {rows, 3}}},
      {0});
  run(points_, "QuaternionToRotation", {}, {{f32, {rows, 4}}}, {{f32, {rows, 3, 3}}}, {0});
  run(points_, "QuaternionToRotationGrad", {}, {{f32, {rows, 3, 3}}, {f32, {rows, 4}}}, {{f32, {rows, 4}}},
      {0});
  const Arguments pairs = {{f32, {rows, 3, 3}}, {f32, {rows, 3, 3}}, {f32, {rows, 3}}};
  run(points_, "KabschSolver", {}, pairs, {{f32, {rows, 3, 3}}, {f32, {rows, 3}}, {i32, {rows}}}, {0, 1});
  Arguments grads = {{f32, {rows, 3, 3}}, {f32, {rows, 3}}};
  grads.insert(grads.end(), pairs.begin(), pairs.end());
  run(points_, "KabschSolverGrad", {}, grads, pairs, {0, 1, 2});

  constexpr int64_t points = 50000, keypoints = 30000, objects = 5000, frames = 100000;
  const Arguments votes = {{f32, {1, points, 3}}, {f32, {1, keypoints, points, 3}}},
                  kps = {{f32, {1, keypoints, 3}}};
  run(points_, "VoteAggregate", {}, {votes[0], votes[1], {DType::boolean, {1, points}}},
      {kps[0], {i32, {1, keypoints}}, {i32, {1, keypoints}}}, {0});
  run(points_, "VoteAggregateGrad", {}, {kps[0], votes[0], votes[1], kps[0], {DType::boolean, {1, points}}},
      votes, {1});
  run(points_, "PVN3DPoseSolve", {},
      {{f32, {frames, 7, 3}},
       {i32, {frames, 7}},
       {f32, {frames, 2, 7, 3}},
       {f32, {frames, 1, 7, 3}},
       {f32, {objects, 2, 3}},
       {f32, {objects, 3}},
       {f32, {objects}}},
      {{f32, {frames, objects, 3, 3}},
       {f32, {frames, objects, 3}},
       {i32, {frames, objects}},
       {f32, {frames, objects, 3, 3}},
       {i32, {frames, objects}}},
      {0, 3});
}

// More positions than an int32 numbers: refused, not sorted wrongly.
TEST_F(Launches, RefuseMorePositionsThanTheyNumber) {
  constexpr int64_t m = 5000000, s = 1000;
  for (const int device : {1, 2}) {
    const Node node(points_, "GroupPointsGrad");
    Arguments inputs = {{f16, {1, 1, m, s}}, {f16, {1, 1, 9}}, {i32, {1, m, s}}};
    std::vector<OpbridgeTensor> tensors;
    std::vector<const OpbridgeTensor*> in;
    tensors.reserve(inputs.size());
    for (auto& [dtype, shape] : inputs)
      in.push_back(&tensors.emplace_back(host::view(nullptr, device, 0, dtype, shape)));
    try {
      node.workspace_bytes(in, device);
      FAIL() << "device " << device;
    } catch (const host::Error& e) {
      EXPECT_NE(std::string(e.what()).find("at most 2147483647"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
