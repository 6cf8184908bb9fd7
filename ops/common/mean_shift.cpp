// The two inner loops of mean shift are compiled for several SIMD targets and chosen at run time; what they
// compute does not depend on the target.
#include <limits>

#include "opbridge/op.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/mean_shift.cpp"
#include "common/exp.h"
#include "common/mean_shift.h"
#include "common/points.h"
#include "common/simd.h"

#ifndef OPBRIDGE_MEAN_SHIFT_BUCKETS
#define OPBRIDGE_MEAN_SHIFT_BUCKETS
namespace pvn3d {

constexpr int64_t kBucket = 32;

/// The bounding boxes of consecutive runs of kBucket votes; arrays are padded, with boxes that nothing is
/// near to.
template <class C>
struct Buckets {
  Buckets(Arena& arena, int64_t n) : count((n + kBucket - 1) / kBucket) {
    const int64_t padded = (count + 15) / 16 * 16;
    for (int k = 0; k < 3; ++k) low[k] = arena.take<C>(padded);
    for (int k = 0; k < 3; ++k) high[k] = arena.take<C>(padded);
    size = arena.take<C>(padded);
    code = arena.take<C>(padded);
    sure = arena.take<C>(padded);
    unsure = arena.take<C>(padded);
    for (int64_t b = count; b < padded; ++b) {
      for (int k = 0; k < 3; ++k) low[k][b] = std::numeric_limits<C>::infinity();
      for (int k = 0; k < 3; ++k) high[k][b] = -std::numeric_limits<C>::infinity();
      size[b] = 0;
    }
  }

  int64_t count;
  C *low[3], *high[3];
  C* size;           // votes in each
  C* code;           // of the bucket that was looked at last: see classify()
  C *sure, *unsure;  // for each bucket, votes that are closer than the bandwidth for certain, and perhaps
};

}  // namespace pvn3d
#endif

HWY_BEFORE_NAMESPACE();
namespace pvn3d {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class C>
using Tag = hn::CappedTag<C, 16>;

template <class D, class V>
V exp_nonpositive_v(D d, V x) {
  using C = hn::TFromD<D>;
  using K = ExpConstants<C>;
  const hn::RebindToUnsigned<D> du;
  const V magic = hn::Set(d, K::kMagic);
  const V shifted = hn::Add(hn::Mul(x, hn::Set(d, C(1.44269504088896340736))), magic);
  const V n = hn::Sub(shifted, magic);
  const V r = hn::Sub(hn::Sub(x, hn::Mul(n, hn::Set(d, K::kLn2High))), hn::Mul(n, hn::Set(d, K::kLn2Low)));
  V p = hn::Set(d, K::kPolynomial[0]);
  for (int i = 1; i < K::kTerms; ++i) p = hn::Add(hn::Mul(p, r), hn::Set(d, K::kPolynomial[i]));
  const V e = hn::Add(hn::Add(hn::Mul(p, hn::Mul(r, r)), r), hn::Set(d, C(1)));
  const auto bits = hn::ShiftLeft<K::kMantissaBits>(hn::BitCast(du, shifted));
  const V scale = hn::BitCast(d, hn::Add(bits, hn::BitCast(du, hn::Set(d, C(1)))));
  return hn::IfThenElseZero(hn::Gt(x, hn::Set(d, K::kLowest)), hn::Mul(e, scale));
}

// out = { sum w, sum w dx, sum w dy, sum w dz } over the votes around (cx, cy, cz), w = exp(scale * d^2).
template <class C>
void weighted_sums(const C* HWY_RESTRICT x, const C* HWY_RESTRICT y, const C* HWY_RESTRICT z, int64_t n, C cx,
                   C cy, C cz, C scale, C* out) {
  const Tag<C> d;
  const int64_t width = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN C lanes[4][kLanes] = {};
  const auto vx = hn::Set(d, cx), vy = hn::Set(d, cy), vz = hn::Set(d, cz), vs = hn::Set(d, scale);
  for (int64_t block = 0; block < n; block += kLanes) {
    const int64_t count = n - block < kLanes ? n - block : kLanes;
    for (int64_t i = 0; i < count; i += width) {
      const int64_t j = block + i;
      const auto dx = hn::Sub(hn::LoadU(d, x + j), vx), dy = hn::Sub(hn::LoadU(d, y + j), vy),
                 dz = hn::Sub(hn::LoadU(d, z + j), vz);
      const auto d2 = hn::Add(hn::Add(hn::Mul(dx, dx), hn::Mul(dy, dy)), hn::Mul(dz, dz));
      auto w = exp_nonpositive_v(d, hn::Mul(d2, vs));
      if (i + width > count)
        w = hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(count - i)), w);  // past the end
      // Where the weight is 0 the product is made 0 too: what is read past the end may be anything.
      const auto used = hn::Gt(w, hn::Zero(d));
      hn::Store(hn::Add(hn::Load(d, lanes[0] + i), w), d, lanes[0] + i);
      hn::Store(hn::Add(hn::Load(d, lanes[1] + i), hn::IfThenElseZero(used, hn::Mul(w, dx))), d,
                lanes[1] + i);
      hn::Store(hn::Add(hn::Load(d, lanes[2] + i), hn::IfThenElseZero(used, hn::Mul(w, dy))), d,
                lanes[2] + i);
      hn::Store(hn::Add(hn::Load(d, lanes[3] + i), hn::IfThenElseZero(used, hn::Mul(w, dz))), d,
                lanes[3] + i);
    }
  }
  for (int q = 0; q < 4; ++q) {
    for (int64_t half = kLanes / 2; half > 0; half /= 2) {
      if (half >= width) {
        for (int64_t i = 0; i < half; i += width)
          hn::Store(hn::Add(hn::Load(d, lanes[q] + i), hn::Load(d, lanes[q] + half + i)), d, lanes[q] + i);
      } else {
        for (int64_t i = 0; i < half; ++i) lanes[q][i] += lanes[q][half + i];
      }
    }
    out[q] = lanes[q][0];
  }
}

// counts[i] += votes of [begin, end) closer than sqrt(h2) to vote i, for i of [first, last).
template <class C>
void count_closer(const C* HWY_RESTRICT x, const C* HWY_RESTRICT y, const C* HWY_RESTRICT z, int64_t first,
                  int64_t last, int64_t begin, int64_t end, C h2, int32_t* HWY_RESTRICT counts) {
  const Tag<C> d;
  const int64_t width = static_cast<int64_t>(hn::Lanes(d));
  const auto limit = hn::Set(d, h2), one = hn::Set(d, C(1));
  for (int64_t i = first; i < last; ++i) {
    const auto px = hn::Set(d, x[i]), py = hn::Set(d, y[i]), pz = hn::Set(d, z[i]);
    auto sum = hn::Zero(d);  // whole numbers, exact far beyond any bucket's size
    int64_t j = begin;
    for (; j + width <= end; j += width) {
      const auto dx = hn::Sub(hn::LoadU(d, x + j), px), dy = hn::Sub(hn::LoadU(d, y + j), py),
                 dz = hn::Sub(hn::LoadU(d, z + j), pz);
      const auto d2 = hn::Add(hn::Add(hn::Mul(dx, dx), hn::Mul(dy, dy)), hn::Mul(dz, dz));
      sum = hn::Add(sum, hn::IfThenElseZero(hn::Lt(d2, limit), one));
    }
    int32_t count = static_cast<int32_t>(hn::GetLane(hn::SumOfLanes(d, sum)));
    for (; j < end; ++j) count += squared_distance(x[j], y[j], z[j], x[i], y[i], z[i]) < h2;
    counts[i] += count;
  }
}

// How the buckets of votes lie to one of them, `self`: codes[b] = 0 all pairs farther apart than sqrt(h2), 1
// some, 2 none. Adds up the sizes of those with code 2 and 1. The bounds are computed as distances are, and
// rounding is monotonic, so that all three are certain.
template <class C>
void classify(const Buckets<C>& buckets, int64_t self, C h2, C* HWY_RESTRICT sure, C* HWY_RESTRICT unsure) {
  const Tag<C> d;
  const int64_t width = static_cast<int64_t>(hn::Lanes(d));
  const auto zero = hn::Zero(d), limit = hn::Set(d, h2);
  auto sure_sum = zero, unsure_sum = zero;
  for (int64_t b = 0; b < buckets.count; b += width) {
    auto nearest = zero, farthest = zero;
    for (int k = 0; k < 3; ++k) {
      const auto low = hn::Load(d, buckets.low[k] + b), high = hn::Load(d, buckets.high[k] + b);
      const auto self_low = hn::Set(d, buckets.low[k][self]), self_high = hn::Set(d, buckets.high[k][self]);
      const auto gap = hn::Max(hn::Max(hn::Sub(low, self_high), hn::Sub(self_low, high)), zero);
      const auto span = hn::Max(hn::Sub(high, self_low), hn::Sub(self_high, low));
      nearest = hn::Add(nearest, hn::Mul(gap, gap));
      farthest = hn::Add(farthest, hn::Mul(span, span));
    }
    const auto size = hn::Load(d, buckets.size + b);
    const auto near = hn::Lt(nearest, limit), whole = hn::Lt(farthest, limit);
    sure_sum = hn::Add(sure_sum, hn::IfThenElseZero(whole, size));
    unsure_sum = hn::Add(unsure_sum, hn::IfThenElseZero(hn::AndNot(whole, near), size));
    const auto code = hn::IfThenElse(whole, hn::Set(d, C(2)), hn::IfThenElseZero(near, hn::Set(d, C(1))));
    hn::Store(code, d, buckets.code + b);
  }
  *sure = hn::GetLane(hn::SumOfLanes(d, sure_sum));
  *unsure = hn::GetLane(hn::SumOfLanes(d, unsure_sum));
}

void classify_f32(const Buckets<float>& buckets, int64_t self, float h2, float* sure, float* unsure) {
  classify(buckets, self, h2, sure, unsure);
}
void classify_f64(const Buckets<double>& buckets, int64_t self, double h2, double* sure, double* unsure) {
  classify(buckets, self, h2, sure, unsure);
}
void weighted_sums_f32(const float* x, const float* y, const float* z, int64_t n, float cx, float cy,
                       float cz, float scale, float* out) {
  weighted_sums(x, y, z, n, cx, cy, cz, scale, out);
}
void weighted_sums_f64(const double* x, const double* y, const double* z, int64_t n, double cx, double cy,
                       double cz, double scale, double* out) {
  weighted_sums(x, y, z, n, cx, cy, cz, scale, out);
}
void count_closer_f32(const float* x, const float* y, const float* z, int64_t first, int64_t last,
                      int64_t begin, int64_t end, float h2, int32_t* counts) {
  count_closer(x, y, z, first, last, begin, end, h2, counts);
}
void count_closer_f64(const double* x, const double* y, const double* z, int64_t first, int64_t last,
                      int64_t begin, int64_t end, double h2, int32_t* counts) {
  count_closer(x, y, z, first, last, begin, end, h2, counts);
}

}  // namespace HWY_NAMESPACE
}  // namespace pvn3d
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <cmath>

namespace pvn3d {

namespace {

void weighted_sums(const float* x, const float* y, const float* z, int64_t n, const float* c, float scale,
                   float* out) {
  static const auto best = OPBRIDGE_BEST_TARGET(weighted_sums_f32);
  best(x, y, z, n, c[0], c[1], c[2], scale, out);
}
void weighted_sums(const double* x, const double* y, const double* z, int64_t n, const double* c,
                   double scale, double* out) {
  static const auto best = OPBRIDGE_BEST_TARGET(weighted_sums_f64);
  best(x, y, z, n, c[0], c[1], c[2], scale, out);
}
void count_closer(const float* x, const float* y, const float* z, int64_t first, int64_t last, int64_t begin,
                  int64_t end, float h2, int32_t* counts) {
  static const auto best = OPBRIDGE_BEST_TARGET(count_closer_f32);
  best(x, y, z, first, last, begin, end, h2, counts);
}
void count_closer(const double* x, const double* y, const double* z, int64_t first, int64_t last,
                  int64_t begin, int64_t end, double h2, int32_t* counts) {
  static const auto best = OPBRIDGE_BEST_TARGET(count_closer_f64);
  best(x, y, z, first, last, begin, end, h2, counts);
}

void classify(const Buckets<float>& buckets, int64_t self, float h2) {
  static const auto best = OPBRIDGE_BEST_TARGET(classify_f32);
  best(buckets, self, h2, buckets.sure + self, buckets.unsure + self);
}
void classify(const Buckets<double>& buckets, int64_t self, double h2) {
  static const auto best = OPBRIDGE_BEST_TARGET(classify_f64);
  best(buckets, self, h2, buckets.sure + self, buckets.unsure + self);
}

template <class C>
C squared_bandwidth(const MeanShiftOptions& o) {
  return static_cast<C>(o.bandwidth) * static_cast<C>(o.bandwidth);
}

// One update of the seed c: the weighted mean of the votes around it. Returns how far it moved.
template <class C>
C update(const C* x, const C* y, const C* z, int64_t n, C h2, C* c) {
  C sums[4];
  weighted_sums(x, y, z, n, c, C(-0.5) / h2, sums);
  if (!(sums[0] > 0)) return C(0);  // every vote is out of reach: nothing pulls
  const C dx = sums[1] / sums[0], dy = sums[2] / sums[0], dz = sums[3] / sums[0];
  c[0] += dx;
  c[1] += dy;
  c[2] += dz;
  return std::sqrt(squared_norm(dx, dy, dz));
}

// --- counting neighbours

// The bits of a cell number of 4 bits, three apart.
uint32_t spread(uint32_t v) { return (v & 1) | (v & 2) << 2 | (v & 4) << 4 | (v & 8) << 6; }

// Orders the votes along a Z-curve through cells of a quarter bandwidth around their middle, so that buckets
// of neighbours come out. Any order gives the same counts; this one gives them fast.
template <class C>
void sort_votes(const MeanShiftMemory<C>& m, int64_t n, C h) {
  constexpr int kBits = 4, kCells = 1 << (3 * kBits);
  const C* axes[3] = {m.x, m.y, m.z};
  C origin[3];
  for (int a = 0; a < 3; ++a) {  // a median of a few: outliers must not move it far
    C few[63];
    for (int i = 0; i < 63; ++i) few[i] = axes[a][i * n / 63];
    std::nth_element(few, few + 31, few + 63);
    origin[a] = few[31] - C(1 << (kBits - 1)) * (h / 4);
  }
  const auto cell_of = [&](int64_t i) {
    uint32_t key = 0;
    for (int a = 0; a < 3; ++a) {
      const C at = (axes[a][i] - origin[a]) / (h / 4);
      key |= spread(static_cast<uint32_t>(at > 0 ? std::min(at, C((1 << kBits) - 1)) : C(0))) << a;
    }
    return key;
  };
  int32_t start[kCells + 1] = {};
  int32_t* key = m.counts;  // free until the counting
  for (int64_t i = 0; i < n; ++i) {
    key[i] = static_cast<int32_t>(cell_of(i));
    ++start[key[i] + 1];
  }
  for (int c = 0; c < kCells; ++c) start[c + 1] += start[c];
  for (int64_t i = 0; i < n; ++i) m.order[start[key[i]]++] = static_cast<int32_t>(i);
}

// m.counts = for each vote the number of votes closer than the bandwidth; for votes that others beat for
// certain, a number that is too small.
template <class C>
void count_neighbors(const MeanShiftMemory<C>& m, int64_t n, C h, C h2) {
  if (n <= 4 * kBucket) {
    std::fill_n(m.counts, n, 0);
    count_closer(m.x, m.y, m.z, 0, n, 0, n, h2, m.counts);
    return;
  }
  sort_votes(m, n, h);
  C* axes[3] = {m.sorted, m.sorted + n, m.sorted + 2 * n};
  for (int64_t i = 0; i < n; ++i) {
    axes[0][i] = m.x[m.order[i]];
    axes[1][i] = m.y[m.order[i]];
    axes[2][i] = m.z[m.order[i]];
  }
  Arena arena(m.moved);  // ten values for every 32 votes: less than there is room for
  const Buckets<C> buckets(arena, n);
  const auto end_of = [n](int64_t b) { return std::min(n, (b + 1) * kBucket); };
  for (int64_t b = 0; b < buckets.count; ++b) {
    const int64_t begin = b * kBucket, end = end_of(b);
    for (int k = 0; k < 3; ++k) {
      const auto [low, high] = std::minmax_element(axes[k] + begin, axes[k] + end);
      buckets.low[k][b] = *low;
      buckets.high[k][b] = *high;
    }
    buckets.size[b] = static_cast<C>(end - begin);
  }
  C best = 0;
  for (int64_t a = 0; a < buckets.count; ++a) {
    classify(buckets, a, h2);
    best = std::max(best, buckets.sure[a]);
  }
  for (int64_t a = 0; a < buckets.count; ++a) {
    const int64_t begin = a * kBucket, end = end_of(a);
    std::fill(m.counts + begin, m.counts + end, static_cast<int32_t>(buckets.sure[a]));
    if (buckets.unsure[a] == 0 || buckets.sure[a] + buckets.unsure[a] < best) continue;
    classify(buckets, a, h2);
    for (int64_t b = 0; b < buckets.count; ++b) {
      if (buckets.code[b] != 1) continue;
      count_closer(axes[0], axes[1], axes[2], begin, end, b * kBucket, end_of(b), h2, m.counts);
    }
    best = std::max(best, static_cast<C>(*std::max_element(m.counts + begin, m.counts + end)));
  }
  // From the sorted order back to the votes' own.
  auto* by_vote = reinterpret_cast<int32_t*>(m.sorted);
  for (int64_t i = 0; i < n; ++i) by_vote[m.order[i]] = m.counts[i];
  std::copy_n(by_vote, n, m.counts);
}

}  // namespace

template <class C>
MeanShiftResult<C> mean_shift(const MeanShiftMemory<C>& m, int64_t n, const MeanShiftOptions& o) {
  if (n == 0) return {{0, 0, 0}, -1, 0};
  const C h = static_cast<C>(o.bandwidth), h2 = squared_bandwidth<C>(o), rest = static_cast<C>(o.tol) * h;
  if (o.blurring) {
    // All votes move at once, so each round reads one copy and writes the other.
    C *x = m.moved, *y = x + n, *z = y + n;
    for (int64_t round = 0; round <= o.max_iter; ++round) {
      C farthest = 0;
      for (int64_t i = 0; i < n; ++i) {
        C c[3] = {m.x[i], m.y[i], m.z[i]};
        farthest = std::max(farthest, update(m.x, m.y, m.z, n, h2, c));
        x[i] = c[0];
        y[i] = c[1];
        z[i] = c[2];
      }
      std::copy_n(x, n, m.x);
      std::copy_n(y, n, m.y);
      std::copy_n(z, n, m.z);
      if (farthest < rest) break;
    }
  }
  count_neighbors(m, n, h, h2);
  const int64_t seed = std::max_element(m.counts, m.counts + n) - m.counts;  // the first of equals
  MeanShiftResult<C> result{{m.x[seed], m.y[seed], m.z[seed]}, seed, m.counts[seed]};
  if (o.blurring) return result;

  if (!o.upstream) {
    // Trajectories do not interact and the winner is known, so only the winner moves.
    const C own_rest = std::min(static_cast<C>(o.tol), C(1e-4)) * h;
    for (int64_t round = 0; round <= o.max_iter; ++round) {
      if (update(m.x, m.y, m.z, n, h2, result.centre) < own_rest) break;
    }
    return result;
  }
  C *x = m.moved, *y = x + n, *z = y + n;
  std::copy_n(m.x, n, x);
  std::copy_n(m.y, n, y);
  std::copy_n(m.z, n, z);
  for (int64_t round = 0; round <= o.max_iter; ++round) {
    C farthest = 0;
    for (int64_t i = 0; i < n; ++i) {
      C c[3] = {x[i], y[i], z[i]};
      farthest = std::max(farthest, update(m.x, m.y, m.z, n, h2, c));
      x[i] = c[0];
      y[i] = c[1];
      z[i] = c[2];
    }
    if (farthest < rest) break;
  }
  result.centre[0] = x[seed];
  result.centre[1] = y[seed];
  result.centre[2] = z[seed];
  return result;
}

template MeanShiftResult<float> mean_shift(const MeanShiftMemory<float>&, int64_t, const MeanShiftOptions&);
template MeanShiftResult<double> mean_shift(const MeanShiftMemory<double>&, int64_t, const MeanShiftOptions&);

}  // namespace pvn3d

#endif  // HWY_ONCE
