// The two inner loops of mean shift are compiled for several SIMD targets and chosen at run time; what they
// compute does not depend on the target.
#include "opbridge/op.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/mean_shift.cpp"
#include "common/exp.h"
#include "common/mean_shift.h"
#include "common/points.h"
#include "common/simd.h"

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

#define BEST_TARGET(f)                                                                       \
  best_target<decltype(&HWY_STATIC_DISPATCH(f))>(HWY_CHOOSE_FALLBACK(f), HWY_CHOOSE_SSE4(f), \
                                                 HWY_CHOOSE_AVX2(f), HWY_CHOOSE_AVX3(f))

void weighted_sums(const float* x, const float* y, const float* z, int64_t n, const float* c, float scale,
                   float* out) {
  static const auto best = BEST_TARGET(weighted_sums_f32);
  best(x, y, z, n, c[0], c[1], c[2], scale, out);
}
void weighted_sums(const double* x, const double* y, const double* z, int64_t n, const double* c,
                   double scale, double* out) {
  static const auto best = BEST_TARGET(weighted_sums_f64);
  best(x, y, z, n, c[0], c[1], c[2], scale, out);
}
void count_closer(const float* x, const float* y, const float* z, int64_t first, int64_t last, int64_t begin,
                  int64_t end, float h2, int32_t* counts) {
  static const auto best = BEST_TARGET(count_closer_f32);
  best(x, y, z, first, last, begin, end, h2, counts);
}
void count_closer(const double* x, const double* y, const double* z, int64_t first, int64_t last,
                  int64_t begin, int64_t end, double h2, int32_t* counts) {
  static const auto best = BEST_TARGET(count_closer_f64);
  best(x, y, z, first, last, begin, end, h2, counts);
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

// ------------------------------------------------------------------------------------------- counting
// neighbours

constexpr int64_t kBucket = 32;

template <class C>
struct Box {
  C low[3], high[3];
};

template <class C>
Box<C> bounds(const C* x, const C* y, const C* z, int64_t begin, int64_t end) {
  Box<C> box;
  const C* axes[3] = {x, y, z};
  for (int a = 0; a < 3; ++a) {
    const auto [low, high] = std::minmax_element(axes[a] + begin, axes[a] + end);
    box.low[a] = *low;
    box.high[a] = *high;
  }
  return box;
}

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

// m.counts = for each vote the number of votes closer than the bandwidth. Pairs of buckets are decided as a
// whole where their boxes allow it. That is exact without a margin: the bounds are computed as distances are,
// and rounding is monotonic.
template <class C>
void count_neighbors(const MeanShiftMemory<C>& m, int64_t n, C h, C h2) {
  if (n <= 4 * kBucket) {
    std::fill_n(m.counts, n, 0);
    count_closer(m.x, m.y, m.z, 0, n, 0, n, h2, m.counts);
    return;
  }
  sort_votes(m, n, h);
  C *x = m.sorted, *y = x + n, *z = y + n;
  for (int64_t i = 0; i < n; ++i) {
    x[i] = m.x[m.order[i]];
    y[i] = m.y[m.order[i]];
    z[i] = m.z[m.order[i]];
  }
  // The boxes of the buckets fit into what `moved` holds: 6 values for every 32 votes.
  auto* boxes = reinterpret_cast<Box<C>*>(m.moved);
  const int64_t buckets = (n + kBucket - 1) / kBucket;
  const auto end_of = [n](int64_t b) { return std::min(n, (b + 1) * kBucket); };
  for (int64_t b = 0; b < buckets; ++b) boxes[b] = bounds(x, y, z, b * kBucket, end_of(b));
  // `counts` follows the sorted order first; the permutation is undone through m.sorted's room at the end.
  std::fill_n(m.counts, n, 0);
  for (int64_t a = 0; a < buckets; ++a) {
    int32_t whole = 0;
    for (int64_t b = 0; b < buckets; ++b) {
      C nearest = 0, farthest = 0;
      for (int k = 0; k < 3; ++k) {
        const C gap =
            std::max({boxes[b].low[k] - boxes[a].high[k], boxes[a].low[k] - boxes[b].high[k], C(0)});
        const C span = std::max(boxes[b].high[k] - boxes[a].low[k], boxes[a].high[k] - boxes[b].low[k]);
        nearest += gap * gap;
        farthest += span * span;
      }
      if (nearest >= h2) continue;
      if (farthest < h2)
        whole += static_cast<int32_t>(end_of(b) - b * kBucket);
      else
        count_closer(x, y, z, a * kBucket, end_of(a), b * kBucket, end_of(b), h2, m.counts);
    }
    for (int64_t i = a * kBucket; i < end_of(a); ++i) m.counts[i] += whole;
  }
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
