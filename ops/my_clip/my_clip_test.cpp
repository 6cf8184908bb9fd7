// Edges of my_clip on the CPU, through the built library; what it computes is compared with my_clip_ref.py
// elsewhere.
#include "my_clip.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "opbridge/abi.h"

namespace {

const OpbridgeLibrary& library() {
  static const OpbridgeLibrary* const table = [] {
    void* handle = dlopen(OPBRIDGE_MY_OPS, RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(handle, nullptr) << dlerror();
    return reinterpret_cast<decltype(&opbridge_get_library)>(dlsym(handle, "opbridge_get_library"))(1,
                                                                                                    nullptr);
  }();
  return *table;
}

// x limited by bounds (null: absent), with sentinels around the output, on `threads` threads.
template <class T>
std::vector<T> clip(std::vector<T> x, const T* min, const T* max, uint8_t code, int threads = 1) {
  OpbridgeError error{};
  error.size = sizeof error;
  OpbridgeNode* node = nullptr;
  EXPECT_EQ(library().create_node("my_clip", "n0", nullptr, 0, &node, &error), 0) << error.message;
  int64_t shape[] = {static_cast<int64_t>(x.size())};
  constexpr size_t kGuard = 64;
  std::vector<T> y(x.size() + 2 * kGuard);
  std::memset(static_cast<void*>(y.data()), 0x5a, y.size() * sizeof(T));
  const std::vector<T> untouched = y;
  const auto tensor = [&](const void* data, int32_t rank) {
    return OpbridgeTensor{const_cast<void*>(data), 1, 0, rank, code, sizeof(T) * 8, 1, shape, nullptr, 0};
  };
  const OpbridgeTensor tx = tensor(x.data(), 1), lo = tensor(min, 0), hi = tensor(max, 0),
                       ty = tensor(y.data() + kGuard, 1);
  const OpbridgeTensor* in[] = {&tx, min ? &lo : nullptr, max ? &hi : nullptr};
  const OpbridgeTensor* out[] = {&ty};
  const OpbridgeHost host{sizeof(OpbridgeHost), threads, nullptr, nullptr, 0, nullptr, nullptr};
  EXPECT_EQ(library().compute(node, in, 3, out, 1, &host, &error), 0) << error.message;
  library().destroy_node(node);
  EXPECT_EQ(std::memcmp(y.data(), untouched.data(), kGuard * sizeof(T)), 0) << "wrote before the output";
  EXPECT_EQ(std::memcmp(y.data() + kGuard + x.size(), untouched.data(), kGuard * sizeof(T)), 0)
      << "wrote behind the output";
  return {y.begin() + kGuard, y.end() - kGuard};
}

TEST(MyClip, KeepsNanAndSigns) {
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity(), low = -1, high = 1, zero = 0;
  const auto y = clip<float>({nan, -inf, inf, -0.f, 0.5f}, &low, &high, 2);
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[1], -1);
  EXPECT_EQ(y[2], 1);
  EXPECT_TRUE(std::signbit(y[3]));
  EXPECT_TRUE(std::signbit(clip<float>({-0.f}, &zero, nullptr, 2)[0]))
      << "a bound that equals x does not bite";
  for (const float v : clip<float>({1, 2, nan}, &nan, nullptr, 2)) EXPECT_TRUE(std::isnan(v));
  for (const float v : clip<float>({1, 2, -9}, &high, &low, 2)) EXPECT_EQ(v, -1) << "min > max gives max";
}

TEST(MyClip, IsExactInInt64) {
  const int64_t big = (int64_t{1} << 53) + 1, low = INT64_MIN + 1, high = INT64_MAX - 1;
  EXPECT_EQ(clip<int64_t>({INT64_MIN, INT64_MAX, big}, &low, &high, 0),
            (std::vector<int64_t>{low, high, big}));
}

TEST(MyClip, IsTheSameOnAnyThreadsAndEnds) {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{65535}, size_t{65536}, size_t{65537}, size_t{200001}}) {
    std::vector<float> x(n);
    for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(i % 977) - 488;
    const float low = -100, high = 99;
    const auto one = clip<float>(x, &low, &high, 2), four = clip<float>(x, &low, &high, 2, 4);
    EXPECT_EQ(one, four);
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(one[i], std::fmin(std::fmax(x[i], low), high));
  }
}

TEST(MyClip, GradientIsAMask) {
  using my_clip::gradient;
  EXPECT_EQ(gradient(2.f, 1.f, true, 1.f, true, 1.f), 2.f);
  EXPECT_EQ(gradient(2.f, 0.5f, true, 1.f, false, 0.f), 0.f);
  EXPECT_EQ(gradient(2.f, 1.5f, false, 0.f, true, 1.f), 0.f);
  EXPECT_EQ(gradient(2.f, std::nanf(""), false, 0.f, false, 0.f), 0.f);
  EXPECT_EQ(gradient(2.f, 1.f, true, std::nanf(""), false, 0.f), 0.f);
}

}  // namespace
