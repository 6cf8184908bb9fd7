// The CUDA kernels of the point-set operators, emulated: equal to the library's own CPU kernels bit for bit, within
// their buffers, launched as they should be.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "common/block.cuh"
#include "host.h"

namespace {

using host::CudaCall;
using host::DType;
using host::Inputs;
using host::Library;
using host::Node;
using host::Stream;
using host::Tensor;
using opbridge::emulation::settings;

using host::boolean;
using host::integer;
using host::real;
using host::text;

using Attributes = std::vector<OpbridgeAttribute>;

constexpr DType kReals[] = {DType::f32, DType::f16, DType::f64};
constexpr DType kIndices[] = {DType::i32, DType::i64};

bool is_nan(const unsigned char* bytes, DType dtype) {
  const auto read = [&](auto v) { return std::memcpy(&v, bytes, sizeof v), v; };
  switch (dtype) {
    case DType::f16:
      return std::isnan(static_cast<float>(read(opbridge::f16())));
    case DType::f32:
      return std::isnan(read(float()));
    case DType::f64:
      return std::isnan(read(double()));
    default:
      return false;
  }
}

// The first element whose bits differ, but for what a NaN says beyond being one; or the count.
size_t first_difference(const Tensor& a, const Tensor& b) {
  const size_t size = opbridge::dtype_size(a.dtype);
  for (size_t i = 0; i < a.count(); ++i) {
    const unsigned char *x = a.bytes.data() + i * size, *y = b.bytes.data() + i * size;
    if (std::memcmp(x, y, size) != 0 && !(is_nan(x, a.dtype) && is_nan(y, b.dtype))) return i;
  }
  return a.count();
}

// Clouds that are hard on an implementation.
enum class Kind { kRandom, kGrid, kDuplicates, kOnePlace, kNotFinite, kHuge, kOrigin };
constexpr Kind kKinds[] = {Kind::kRandom,    Kind::kGrid, Kind::kDuplicates, Kind::kOnePlace,
                           Kind::kNotFinite, Kind::kHuge, Kind::kOrigin};

Tensor cloud(DType dtype, int64_t batches, int64_t n, Kind kind, unsigned seed) {
  Tensor t(dtype, {batches, n, 3});
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 0.25);
  const double bad[] = {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                        -std::numeric_limits<double>::infinity()};
  for (size_t i = 0; i < t.count(); ++i) {
    double v = normal(random);
    if (kind == Kind::kGrid) v = static_cast<double>(random() % 5) / 8;  // exact: many equal distances
    if (kind == Kind::kOnePlace) v = 0.5;
    if (kind == Kind::kNotFinite && random() % 6 == 0) v = bad[random() % 3];
    if (kind == Kind::kHuge) v *= dtype == DType::f16 ? 5e4 : dtype == DType::f32 ? 1e20 : 1e160;
    if (kind == Kind::kOrigin && i / 3 % 2 == 0) v = 0;
    store(t, i, v);
  }
  const size_t size = opbridge::dtype_size(dtype) * 3;
  if (kind == Kind::kDuplicates) {  // each point from its cloud's first few
    for (int64_t i = 0; i < batches * n; ++i) {
      const int64_t from = i / n * n + i % n % (n / 3 + 1);
      std::memmove(&t.bytes[static_cast<size_t>(i) * size], &t.bytes[static_cast<size_t>(from) * size], size);
    }
  }
  return t;
}

// Numbers whose sum depends on its order; with an odd seed some that are not finite.
Tensor values(DType dtype, std::vector<int64_t> shape, unsigned seed) {
  Tensor t(dtype, std::move(shape));
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 1);
  for (size_t i = 0; i < t.count(); ++i) {
    const double scale =
        std::ldexp(1, static_cast<int>(random() % 24) - 12);  // so that the order of a sum shows
    const unsigned special = random() % 97;
    store(t, i,
          seed % 2 == 0 || special > 2 ? normal(random) * scale
          : special == 0               ? std::numeric_limits<double>::infinity()
          : special == 1               ? std::numeric_limits<double>::quiet_NaN()
                                       : -0.0);
  }
  return t;
}

// Indices into [0, n), one in nine of them bad; `crowded`: most of them the same.
Tensor indices(DType dtype, std::vector<int64_t> shape, int64_t n, unsigned seed, bool crowded = false) {
  Tensor t(dtype, std::move(shape));
  std::mt19937 random(seed);
  const double bad[] = {-1, static_cast<double>(n), -2147483648.0, 2147483647.0};
  for (size_t i = 0; i < t.count(); ++i) {
    const bool good = n > 0 && random() % 9 != 0;
    const int64_t at = n > 0 ? static_cast<int64_t>(random()) % n : 0;
    store(t, i,
          !good                          ? bad[random() % 4]
          : crowded && random() % 8 != 0 ? static_cast<double>(n / 2)
                                         : static_cast<double>(at));
    if (dtype == DType::i64 && !good && random() % 2 == 0) t.as<int64_t>()[i] = (int64_t{1} << 32) + n / 2;
  }
  return t;
}

class PointsCuda : public testing::Test {
 protected:
  ~PointsCuda() override { settings() = saved_; }

  // The CPU kernel of the library that users get against the emulated CUDA kernel, the threads in this or that order.
  // `what` is for a failure's message.
  void expect_equal(const char* op, const Attributes& attributes, const Inputs& inputs, size_t outputs,
                    const std::string& what, size_t offset = 0) {
    static constexpr const char* kOrders[] = {"forward", "warps", "reverse", "shuffled:3"};
    settings().order = kOrders[++calls_ % 4];
    const Node cpu_node(library_, op, attributes), cuda_node(emulated_, op, attributes);
    const std::vector<Tensor> cpu = cpu_node.run_on_cpu(inputs, outputs),
                              cuda = CudaCall(cuda_node, inputs, outputs, offset).run(stream_);
    for (size_t o = 0; o < outputs; ++o) {
      const size_t at = first_difference(cpu[o], cuda[o]);
      ASSERT_EQ(at, cpu[o].count()) << op << ", " << opbridge::dtype_name(inputs[0]->dtype) << ", " << what
                                    << ", order " << settings().order << ": output " << o
                                    << " differs in this element";
    }
  }

  opbridge::emulation::Settings saved_ = settings();
  Library library_{OPBRIDGE_TEST_LIBRARY}, emulated_{OPBRIDGE_TEST_EMULATED_LIBRARY};
  Stream stream_;
  unsigned calls_ = 0, seed_ = 0;
};

std::string sized(std::initializer_list<int64_t> sizes) {
  std::string s;
  for (const int64_t n : sizes) s += (s.empty() ? "" : " x ") + std::to_string(n);
  return s;
}

std::string named(Kind kind) { return "cloud " + std::to_string(static_cast<int>(kind)) + ", "; }

// ----------------------------------------------------------------------------------------------- FarthestPointSample

class FarthestPointSampleCuda : public PointsCuda {
 protected:
  void check(DType dtype, Kind kind, int64_t batches, int64_t n, int64_t npoint, const char* tie_order,
             double min_sq_norm = -1, int64_t start = 0) {
    expect_equal("FarthestPointSample",
                 {integer("npoint", npoint), integer("start", start), real("min_sq_norm", min_sq_norm),
                  text("tie_order", tie_order)},
                 {cloud(dtype, batches, n, kind, ++seed_)}, 1,
                 named(kind) + sized({batches, n, npoint}) + ", " + tie_order);
  }
};

constexpr const char* kTieOrders[] = {"lowest_index", "pointnet2"};

TEST_F(FarthestPointSampleCuda, EqualsTheCpu) {
  for (const DType dtype : kReals) {
    for (const Kind kind : kKinds) {
      for (const int64_t n : {1, 2, 33, 300}) {
        check(dtype, kind, n == 2 ? 2 : 1, n, 7, kTieOrders[seed_ % 2], n == 33 ? 0.1 : -1, n / 2);
        if (HasFatalFailure()) return;
      }
      ++seed_;  // the other orders next time
    }
  }
}

TEST_F(FarthestPointSampleCuda, EveryBlockSizeAndBeyond) {
  for (const int64_t n : {1023, 1024, 1025, 4096, 4097, 5632, 5633}) {
    check(DType::f32, n % 2 == 0 ? Kind::kRandom : Kind::kGrid, 1, n, 6, kTieOrders[n % 2]);
    check(DType::f64, n % 2 == 0 ? Kind::kGrid : Kind::kRandom, 1, n, 6, kTieOrders[(n + 1) % 2]);
    if (HasFatalFailure()) return;
  }
  check(DType::f32, Kind::kDuplicates, 2, 13312, 8, "pointnet2");
  check(DType::f16, Kind::kGrid, 1, 13313, 8, "pointnet2");
  check(DType::f16, Kind::kGrid, 1, 13313, 8, "lowest_index");
  check(DType::f32, Kind::kNotFinite, 2, 13400, 8, "lowest_index", 1e-3);
  check(DType::f64, Kind::kOnePlace, 1, 7000, 8, "pointnet2");
}

TEST_F(FarthestPointSampleCuda, TakesAllAndGoesOn) {
  check(DType::f32, Kind::kRandom, 1, 200, 230, "lowest_index");
  check(DType::f32, Kind::kGrid, 1, 150, 170, "pointnet2");
  check(DType::f32, Kind::kRandom, 1, 40, 0, "lowest_index");
  check(DType::f32, Kind::kRandom, 0, 40, 9, "lowest_index");
  check(DType::f32, Kind::kRandom, 40, 70, 6, "lowest_index");
}

// --------------------------------------------------------------------------------------------------------- neighbours

TEST_F(PointsCuda, BallQuery) {
  const auto check = [&](DType dtype, Kind kind, int64_t batches, int64_t n, int64_t m, int64_t nsample,
                         double radius, double min_radius = 0) {
    const Tensor xyz = cloud(dtype, batches, n, kind, ++seed_);
    Tensor centres = cloud(dtype, batches, m, kind, ++seed_);
    for (size_t i = 0; i < centres.bytes.size() && n > 0; ++i) {  // every other centre is a point
      const size_t size = opbridge::dtype_size(dtype) * 3;
      if (i / size % 2 == 0) centres.bytes[i] = xyz.bytes[i % xyz.bytes.size()];
    }
    expect_equal("BallQuery",
                 {integer("nsample", nsample), real("radius", radius), real("min_radius", min_radius)},
                 {xyz, centres}, 2, named(kind) + sized({batches, n, m, nsample}));
  };
  for (const DType dtype : kReals) {
    for (const Kind kind : kKinds) {
      for (const int64_t n : {1, 31, 32, 33, 127, 129, 300}) {
        check(dtype, kind, 2, n, 9, 5, 0.25);
        check(dtype, kind, 1, n, 3, n + 7, 0.5, 0.2);
        if (HasFatalFailure()) return;
      }
    }
  }
  for (const int64_t n : {1023, 1024, 1025, 2300}) {
    check(DType::f32, Kind::kRandom, 1, n, 17, 16, 0.1);
    check(DType::f32, Kind::kGrid, 1, n, 8, 1024, 0.25);
    check(DType::f32, Kind::kRandom, 1, n, 5, 1, 1e-4);
  }
  check(DType::f32, Kind::kHuge, 1, 40, 5, 8, 1e30);
  check(DType::f32, Kind::kRandom, 2, 40, 0, 8, 1);
  check(DType::f32, Kind::kRandom, 0, 40, 3, 8, 1);
  check(DType::f32, Kind::kRandom, 70, 5, 1, 3, 0.3);
}

TEST_F(PointsCuda, ThreeNN) {
  const auto check = [&](DType dtype, Kind kind, int64_t batches, int64_t n, int64_t m) {
    for (const bool squared : {false, true}) {
      expect_equal("ThreeNN", {boolean("squared", squared)},
                   {cloud(dtype, batches, n, kind, ++seed_),
                    cloud(dtype, batches, m, kind, squared ? seed_ : ++seed_)},
                   2, named(kind) + sized({batches, n, m}));
    }
  };
  for (const DType dtype : kReals) {
    for (const Kind kind : kKinds) {
      for (const int64_t m : {1, 2, 3, 7, 8, 9, 31, 33, 129, 300}) {
        check(dtype, kind, 2, 11, m);
        if (HasFatalFailure()) return;
      }
    }
  }
  for (const int64_t m : {1023, 1024, 1025, 2300}) check(DType::f32, Kind::kGrid, 1, 35, m);
  check(DType::f32, Kind::kRandom, 1, 0, 5);
  check(DType::f32, Kind::kRandom, 0, 4, 5);
  check(DType::f32, Kind::kRandom, 70, 1, 5);
}

TEST_F(PointsCuda, KNN) {
  const auto check = [&](DType dtype, Kind kind, int64_t batches, int64_t n, int64_t m, int64_t k) {
    const Tensor xyz = cloud(dtype, batches, n, kind, ++seed_);
    expect_equal("KNN", {integer("k", k)}, {xyz, n == m ? xyz : cloud(dtype, batches, m, kind, ++seed_)}, 2,
                 named(kind) + sized({batches, n, m, k}));
  };
  for (const DType dtype : kReals) {
    for (const Kind kind : kKinds) {
      for (const int64_t n : {1, 31, 33, 129, 300}) {
        for (int i = 0; i < 2; ++i) {
          static constexpr int64_t ks[] = {1, 129, 16, 33, 32, 128, 130};
          check(dtype, kind, 1, n, 3, ks[calls_ % 7]);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  for (const int64_t n : {1023, 1024, 1025, 2300}) {
    check(DType::f32, Kind::kRandom, 1, n, 19, 8);
    check(DType::f32, Kind::kGrid, 2, n, 3, 100);
    check(DType::f32, Kind::kGrid, 1, n, 2, 300);
    check(DType::f64, Kind::kDuplicates, 1, n, 2, 1024);
  }
  check(DType::f32, Kind::kRandom, 2, 60, 60, 4);
  check(DType::f32, Kind::kRandom, 1, 9, 0, 4);
  check(DType::f32, Kind::kRandom, 0, 9, 3, 4);
  check(DType::f32, Kind::kRandom, 70, 9, 1, 4);
  check(DType::f32, Kind::kRandom, 3, 9, 2, 200);
}

TEST_F(PointsCuda, OutputsThatNobodyWants) {
  Tensor xyz = cloud(DType::f32, 1, 50, Kind::kRandom, 1);
  const OpbridgeTensor in = host::view(xyz.bytes.data(), 2, 0, DType::f32, xyz.shape);
  OpbridgeHost h{};
  h.size = sizeof h;
  h.stream = stream_;
  for (const int64_t k : {4, 200}) {
    Tensor idx(DType::i32, {1, 50, k});
    const OpbridgeTensor out = host::view(idx.bytes.data(), 2, 0, DType::i32, idx.shape);
    const Attributes attributes = {integer("k", k)};
    Node(emulated_, "KNN", attributes).compute({&in, &in}, {&out, nullptr}, h);
    EXPECT_EQ(idx.bytes, Node(library_, "KNN", attributes).run_on_cpu({xyz, xyz}, 2)[0].bytes);
  }
  Tensor idx(DType::i32, {1, 50, 6});
  const OpbridgeTensor out = host::view(idx.bytes.data(), 2, 0, DType::i32, idx.shape);
  const Attributes attributes = {integer("nsample", 6), real("radius", 0.3)};
  Node(emulated_, "BallQuery", attributes).compute({&in, &in}, {&out, nullptr}, h);
  EXPECT_EQ(idx.bytes, Node(library_, "BallQuery", attributes).run_on_cpu({xyz, xyz}, 2)[0].bytes);
}

// ----------------------------------------------------------------------------------------------- gathers and gradients

constexpr size_t kOffset = 1;  // elements: no wide loads

TEST_F(PointsCuda, GatherAndItsGradient) {
  const auto check = [&](DType dtype, DType index, int64_t b, int64_t c, int64_t n, int64_t m,
                         bool crowded = false) {
    const Tensor features = values(dtype, {b, c, n}, ++seed_),
                 idx = indices(index, {b, m}, n, ++seed_, crowded), grad = values(dtype, {b, c, m}, ++seed_);
    const std::string what = std::string(opbridge::dtype_name(index)) + ", " + sized({b, c, n, m});
    for (const size_t offset : {size_t{0}, kOffset}) {
      expect_equal("GatherPoints", {}, {features, idx}, 1, what, offset);
      expect_equal("GatherPointsGrad", {}, {grad, features, idx}, 1, what, offset);
    }
  };
  for (const DType dtype : kReals) {
    for (const DType index : kIndices) {
      for (const int64_t m : {1, 7, 8, 31, 32, 64, 257}) {
        check(dtype, index, 2, 5, 40, m);
        check(dtype, index, 1, 9, 300, m, true);  // two passes of the sort
        if (HasFatalFailure()) return;
      }
      check(dtype, index, 2, 3, 0, 8);
      check(dtype, index, 2, 3, 8, 0);
      check(dtype, index, 2, 0, 8, 8);
      check(dtype, index, 0, 3, 8, 8);
      check(dtype, index, 1, 1, 70000, 100);  // three passes
      check(dtype, index, 1, 2, 255, 5000);   // three tiles, one pass
      check(dtype, index, 2, 1, 256, 4200, true);
    }
  }
  check(DType::f32, DType::i32, 1, 33, 1025, 2048);
  check(DType::f32, DType::i32, 1, 300, 3, 64);
  check(DType::f32, DType::i32, 90, 1, 3, 4);
  check(DType::f32, DType::i32, 1, 1, 300, 140000);  // tiles larger than the smallest
}

TEST_F(PointsCuda, GroupAndItsGradient) {
  const auto check = [&](DType dtype, DType index, int64_t b, int64_t c, int64_t n, int64_t m, int64_t s) {
    const Tensor features = values(dtype, {b, c, n}, ++seed_),
                 idx = indices(index, {b, m, s}, n, ++seed_, s % 2 == 0),
                 grad = values(dtype, {b, c, m, s}, ++seed_);
    const std::string what = std::string(opbridge::dtype_name(index)) + ", " + sized({b, c, n, m, s});
    expect_equal("GroupPoints", {}, {features, idx}, 1, what);
    expect_equal("GroupPointsGrad", {}, {grad, features, idx}, 1, what);
  };
  for (const DType dtype : kReals) {
    for (const DType index : kIndices) {
      check(dtype, index, 2, 7, 50, 9, 5);
      check(dtype, index, 1, 16, 500, 20, 16);
      check(dtype, index, 2, 3, 8, 0, 4);
      check(dtype, index, 2, 3, 8, 4, 0);
      check(dtype, index, 2, 3, 0, 4, 4);
    }
  }
  check(DType::f32, DType::i32, 2, 12, 400, 100, 32);
}

TEST_F(PointsCuda, InterpolateAndItsGradient) {
  const auto check = [&](DType dtype, DType index, int64_t b, int64_t c, int64_t m, int64_t n,
                         bool crowded = false) {
    const Tensor features = values(dtype, {b, c, m}, ++seed_),
                 idx = indices(index, {b, n, 3}, m, ++seed_, crowded),
                 weight = values(dtype, {b, n, 3}, ++seed_), grad = values(dtype, {b, c, n}, ++seed_);
    const std::string what = std::string(opbridge::dtype_name(index)) + ", " + sized({b, c, m, n});
    for (const size_t offset : {size_t{0}, kOffset}) {
      expect_equal("ThreeInterpolate", {}, {features, idx, weight}, 1, what, offset);
      expect_equal("ThreeInterpolateGrad", {}, {grad, features, idx, weight}, 2, what, offset);
    }
  };
  for (const DType dtype : kReals) {
    for (const DType index : kIndices) {
      for (const int64_t n : {1, 4, 31, 32, 33, 130}) {
        check(dtype, index, 2, 5, 20, n);
        check(dtype, index, 1, 9, 300, n, true);
        if (HasFatalFailure()) return;
      }
      check(dtype, index, 2, 3, 0, 8);
      check(dtype, index, 2, 3, 8, 0);
      check(dtype, index, 2, 0, 8, 8);
      check(dtype, index, 0, 3, 8, 8);
    }
  }
  check(DType::f32, DType::i32, 1, 40, 257, 1024);
  check(DType::f32, DType::i32, 1, 300, 3, 32);
}

// ---------------------------------------------------------------------------------------------------------- L2Normalize

TEST_F(PointsCuda, L2NormalizeAndItsGradient) {
  const auto check = [&](DType dtype, std::vector<int64_t> shape, int64_t axis, double eps,
                         bool zeros = false) {
    Tensor x = values(dtype, shape, ++seed_);
    if (zeros) std::fill(x.bytes.begin(), x.bytes.end(), 0);
    const Tensor grad = values(dtype, shape, ++seed_);
    std::string what = "axis " + std::to_string(axis);
    for (const int64_t n : shape) what += ", " + std::to_string(n);
    const Attributes attributes = {integer("axis", axis), real("eps", eps)};
    expect_equal("L2Normalize", attributes, {x}, 1, what);
    expect_equal("L2NormalizeGrad", attributes, {grad, x}, 1, what);
  };
  for (const DType dtype : kReals) {
    for (const int64_t length : {1, 2, 3, 7, 8, 9, 16, 31, 33, 300}) {
      check(dtype, {37, length}, -1, 1e-12);
      check(dtype, {2, length, 19}, 1, 3);
      check(dtype, {length}, 0, 0, true);
      if (HasFatalFailure()) return;
    }
    check(dtype, {0, 4}, 1, 1e-12);
    check(dtype, {4, 0}, 1, 1e-12);
    check(dtype, {4, 0}, 0, 1e-12);
    check(dtype, {700, 3}, 1, 1e-12);
    check(dtype, {300, 12}, 1, 1e-12);
  }
}

// -------------------------------------------------------------------------------------------------------------- launches

__global__ void visit_kernel(int* visits, int64_t clouds, int64_t items, int64_t each) {
  pvn3d::for_each_task(clouds, items, each, [&](int64_t b, int64_t first) {
    for (int64_t i = first; i < std::min(first + each, items); ++i) atomicAdd(&visits[b * items + i], 1);
  });
}

// Where a grid does not reach, its blocks go on.
TEST_F(PointsCuda, EveryTaskIsDoneOnce) {
  const opbridge::Grid most = pvn3d::blocks_for(int64_t{1} << 40, int64_t{1} << 40, 32);
  EXPECT_EQ(most.blocks.x, 65535u);
  EXPECT_EQ(most.blocks.y, 65535u);
  EXPECT_EQ(pvn3d::blocks_for(3, 0, 32).blocks.y, 0u);
  for (const auto& [x, y] : {std::pair(1, 1), std::pair(3, 2), std::pair(7, 7), std::pair(9, 8)}) {
    const int64_t clouds = 7, items = 26, each = 4;
    std::vector<int> visits(static_cast<size_t>(clouds * items));
    opbridge::launch<visit_kernel>(opbridge::Call(), {dim3(x, y), dim3(1), 0}, visits.data(), clouds, items,
                                   each);
    EXPECT_EQ(visits, std::vector<int>(visits.size(), 1)) << x << " x " << y;
  }
}

}  // namespace
