// The emulation of CUDA itself: what it computes is right, and what it must find it finds.
#include <gtest/gtest.h>

#include <numeric>

#include "host.h"
#include "kernels.cuh"

namespace {

using opbridge::Call;
using opbridge::Grid;
using opbridge::launch;
using opbridge::emulation::settings;
using opbridge::emulation::take_launches;

class Emulation : public testing::TestWithParam<const char*> {
 protected:
  Emulation() { settings().order = GetParam(); }
  ~Emulation() override { settings() = saved_; }

  opbridge::emulation::Settings saved_ = settings();
  Call call_;
};

INSTANTIATE_TEST_SUITE_P(Orders, Emulation,
                         testing::Values("forward", "reverse", "warps", "shuffled:1", "shuffled:2"),
                         [](const auto& i) {
                           std::string name = i.param;
                           for (char& c : name) c = c == ':' ? '_' : c;
                           return name;
                         });

// The message of the Error that f throws.
template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const opbridge::Error& e) {
    EXPECT_EQ(e.kind(), opbridge::ErrorKind::kDevice);
    return e.what();
  }
  return "no error";
}

TEST_P(Emulation, Sum) {
  std::vector<int> x(100000);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<int>(i * 37 % 101);
  const int expected = std::accumulate(x.begin(), x.end(), 0);
  for (const Grid& grid : {Grid{1, 32}, Grid{64, 256}, Grid{3, 96}, Grid{7, 160}, Grid{16, 1024}}) {
    int sum = 0;
    launch<kernels::sum_kernel<int>>(call_, grid, x.data(), &sum, int64_t{100000});
    EXPECT_EQ(sum, expected);
  }
}

TEST_P(Emulation, Softmax) {
  const int rows = 50, columns = 333;
  std::vector<float> x(rows * columns), y(x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 37 % 101) * 0.1f;
  launch<kernels::softmax_kernel>(call_, {rows, 128, columns * sizeof(float)}, x.data(), y.data(), columns);
  for (int r = 0; r < rows; ++r) {
    double sum = 0;
    for (int c = 0; c < columns; ++c) sum += std::exp(static_cast<double>(x[r * columns + c]));
    for (int c = 0; c < columns; ++c) {
      ASSERT_NEAR(y[r * columns + c], std::exp(static_cast<double>(x[r * columns + c])) / sum, 1e-6);
    }
  }
}

TEST_P(Emulation, Indices) {
  std::vector<int> out(3 * 4 * 2 * 5 * 2 * 3);
  launch<kernels::indices_kernel>(call_, {dim3(3, 4, 2), dim3(5, 2, 3)}, out.data());
  for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], 1 + static_cast<int>(i % 30));
}

TEST_P(Emulation, WarpFunctions) {
  std::vector<int> out(64 * 12, -1);
  launch<kernels::warp_kernel>(call_, {1, 64}, out.data());
  for (int t = 0; t < 64; ++t) {
    const int lane = t % 32;
    const int bits = lane == 0 ? 0 : lane & -lane;
    int ffs = 0, clz = 32, popc = 0;
    for (int b = 0; b < 5; ++b) {
      if (bits == 1 << b) ffs = b + 1;
      if (lane >> b & 1) clz = 31 - b, ++popc;
    }
    const int expected[12] = {5,
                              lane / 8 * 8 + 1,
                              lane < 3 ? lane : lane - 3,
                              lane % 16 < 13 ? lane + 3 : lane,
                              lane ^ 9,
                              0x49249249,
                              1,
                              1,
                              -1,
                              lane < 8 ? 49 : -1,
                              6,
                              popc + 100 * ffs + 10000 * clz};
    for (int k = 0; k < 12; ++k) EXPECT_EQ(out[t * 12 + k], expected[k]) << "lane " << lane << ", word " << k;
  }
}

TEST_P(Emulation, Atomics) {
  int i[8] = {0, 0, 0, 0, -1, 0, 0, 7};
  unsigned long long u = 0;
  float f = 0;
  launch<kernels::atomics_kernel>(call_, {8, 128}, i, &u, &f);
  EXPECT_EQ(i[0], 1024);
  EXPECT_EQ(i[1], -1023);
  EXPECT_EQ(i[2], 1023);
  EXPECT_EQ(i[3], 0x7fffffff);
  EXPECT_EQ(i[4], static_cast<int>(0x80000000u));
  EXPECT_GE(i[5], 1);
  EXPECT_EQ(i[6], 7);
  EXPECT_EQ(i[7], 3);
  EXPECT_EQ(u, 1024ull << 40);
  EXPECT_EQ(f, 512.f);
}

TEST_P(Emulation, CountingBarriers) {
  std::vector<int> out(100);
  launch<kernels::counting_kernel>(call_, {1, 100}, out.data());
  for (const int v : out) EXPECT_EQ(v, 50 * 4 + 2);
}

TEST(EmulationOrder, ShowsAMissingBarrier) {
  const auto saved = settings();
  std::vector<int> x(512), right(512);
  std::iota(x.begin(), x.end(), 1);
  launch<kernels::reverse_kernel<true>>(Call(), {2, 256}, x.data(), right.data());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(right[i], x[i / 256 * 256 + 255 - i % 256]);
  std::vector<std::vector<int>> results;
  for (const char* order : {"forward", "reverse", "shuffled:1"}) {
    settings().order = order;
    std::vector<int> y(512), again(512);
    launch<kernels::reverse_kernel<true>>(Call(), {2, 256}, x.data(), again.data());
    EXPECT_EQ(again, right) << order;
    launch<kernels::reverse_kernel<false>>(Call(), {2, 256}, x.data(), y.data());
    EXPECT_NE(y, right) << order;
    results.push_back(y);
  }
  EXPECT_NE(results[0], results[1]);
  settings() = saved;
}

TEST(EmulationOrder, OfWarpsShowsAMissingBarrierBehindAWarpFunction) {
  const auto saved = settings();
  settings().order = "warps";
  std::vector<int> right(64), wrong(64);
  launch<kernels::exchange_kernel<true>>(Call(), {1, 64}, right.data());
  EXPECT_EQ(right, std::vector<int>(64, 16 * 2 + 4));
  launch<kernels::exchange_kernel<false>>(Call(), {1, 64}, wrong.data());
  EXPECT_NE(wrong, right);
  settings() = saved;
}

TEST_P(Emulation, ReportsEarlyExit) {
  std::vector<int> x(32);
  const std::string e = error_of([&] { launch<kernels::early_exit_kernel>(call_, {2, 32}, x.data()); });
  EXPECT_NE(e.find("deadlock in block ("), std::string::npos) << e;
  EXPECT_NE(e.find("31 threads wait at the barrier at kernels.cuh:"), std::string::npos) << e;
  EXPECT_NE(e.find("1 returned"), std::string::npos) << e;
}

TEST_P(Emulation, ReportsDivergentBarrier) {
  std::vector<int> x(32);
  const std::string e =
      error_of([&] { launch<kernels::divergent_barrier_kernel>(call_, {1, 32}, x.data()); });
  EXPECT_NE(e.find("divergent barrier"), std::string::npos) << e;
}

TEST_P(Emulation, ReportsDeadlock) {
  std::vector<int> x(32);
  const std::string e = error_of([&] { launch<kernels::deadlock_kernel>(call_, {1, 32}, x.data()); });
  EXPECT_NE(e.find("deadlock_kernel with grid 1x1x1, block 32x1x1 and 0 bytes of shared memory: deadlock in "
                   "block (0,0,0)"),
            std::string::npos)
      << e;
  EXPECT_NE(e.find("16 threads wait at the barrier at kernels.cuh:"), std::string::npos) << e;
  EXPECT_NE(e.find("16 threads wait at the warp function at kernels.cuh:"), std::string::npos) << e;
}

TEST_P(Emulation, ReportsLanesOutsideTheMask) {
  std::vector<int> x(32);
  std::string e = error_of([&] { launch<kernels::lane_outside_mask_kernel>(call_, {1, 32}, x.data()); });
  EXPECT_NE(e.find("with a mask that its lane"), std::string::npos) << e;
  e = error_of([&] { launch<kernels::reads_outside_mask_kernel>(call_, {1, 32}, x.data()); });
  EXPECT_NE(e.find("reads lane 20"), std::string::npos) << e;
  EXPECT_NE(e.find("not in the mask"), std::string::npos) << e;
  e = error_of([&] { launch<kernels::reads_returned_lane_kernel>(call_, {1, 32}, x.data()); });
  EXPECT_NE(e.find("reads lane 16"), std::string::npos) << e;
  EXPECT_NE(e.find("has returned"), std::string::npos) << e;
}

#if !defined(__SANITIZE_ADDRESS__)  // which stops at the write itself
TEST_P(Emulation, ReportsSharedMemoryOverrun) {
  std::vector<int> x(32);
  const std::string e =
      error_of([&] { launch<kernels::shared_overrun_kernel>(call_, {1, 32, 31 * sizeof(int)}, x.data()); });
  EXPECT_NE(e.find("wrote past its 124 bytes of dynamic shared memory"), std::string::npos) << e;
  launch<kernels::shared_overrun_kernel>(call_, {1, 32, 32 * sizeof(int)}, x.data());
}
#endif

TEST_P(Emulation, AFaultLeavesNothingBehind) {
  std::vector<int> x(32);
  error_of([&] { launch<kernels::deadlock_kernel>(call_, {1, 32}, x.data()); });
  int sum = 0;
  launch<kernels::sum_kernel<int>>(call_, {1, 32}, x.data(), &sum, int64_t{32});
  EXPECT_EQ(sum, 0);
}

TEST_P(Emulation, SentinelsFindAWritePastTheEnd) {
  host::DeviceBuffer buffer(8 * sizeof(int), 0);
  std::vector<int> x(8);
  launch<kernels::writes_past_end_kernel>(call_, {1, 1}, static_cast<int*>(buffer.data()), 7);
  buffer.read(x.data(), "x");
  for (const int where : {8, -1}) {
    host::DeviceBuffer other(8 * sizeof(int), 0);
    const auto write = [&] {
      launch<kernels::writes_past_end_kernel>(call_, {1, 1}, static_cast<int*>(other.data()), where);
    };
#if defined(__SANITIZE_ADDRESS__)
    EXPECT_DEATH(write(), "use-after-poison") << where;  // found when it happens
    continue;
#endif
    write();
    EXPECT_THROW(other.read(x.data(), "x"), opbridge::Error) << where;
  }
}

TEST(EmulationLaunch, RefusesWhatNoGpuTakes) {
  int x = 0;
  const auto refused = [&](const Grid& grid, const char* why) {
    const std::string e = error_of([&] { launch<kernels::writes_past_end_kernel>(Call(), grid, &x, 0); });
    EXPECT_NE(e.find(why), std::string::npos) << e;
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // nothing is left standing
  };
  refused({1, 1025},
          "writes_past_end_kernel with grid 1x1x1, block 1025x1x1 and 0 bytes of shared memory: "
          "cudaErrorInvalidConfiguration");
  refused({1, dim3(1, 1, 65)}, "cudaErrorInvalidConfiguration");
  refused({1, dim3(32, 33)}, "cudaErrorInvalidConfiguration");
  refused({dim3(1, 65536), 1}, "cudaErrorInvalidConfiguration");
  refused({dim3(1, 1, 65536), 1}, "cudaErrorInvalidConfiguration");
  refused({dim3(0x80000000u), 1}, "cudaErrorInvalidConfiguration");
  refused({1, 1, 227 * 1024 + 1}, "cudaErrorInvalidValue");
  take_launches();
  launch<kernels::writes_past_end_kernel>(Call(), {1, 1, 227 * 1024}, &x, 0);
  EXPECT_EQ(take_launches().size(), 1u);
}

TEST(EmulationLaunch, NeverLaunchesAnEmptyGrid) {
  int x = 5;
  take_launches();
  for (const Grid& grid : {Grid{0, 32}, Grid{dim3(1, 0), 32}, Grid{dim3(1, 1, 0), 32}, Grid{1, 0},
                           opbridge::grid_for(0), opbridge::grid_for(-1)}) {
    launch<kernels::writes_past_end_kernel>(Call(), grid, &x, 0);
  }
  EXPECT_EQ(take_launches().size(), 0u);
  EXPECT_EQ(x, 5);
}

TEST(EmulationLaunch, GridsForAnyNumber) {
  EXPECT_EQ(opbridge::grid_for(1).blocks.x, 1u);
  EXPECT_EQ(opbridge::grid_for(256).blocks.x, 1u);
  EXPECT_EQ(opbridge::grid_for(257).blocks.x, 2u);
  EXPECT_EQ(opbridge::grid_for(257, 128).blocks.x, 3u);
  EXPECT_EQ(opbridge::grid_for(int64_t{1} << 62).blocks.x, 65536u);
}

}  // namespace
