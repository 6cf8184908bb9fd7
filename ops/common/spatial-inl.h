// Clouds in an order that keeps neighbours together, and boxes around runs of it: what makes
// FarthestPointSample, BallQuery, KNN and ThreeNN fast. Compiled once a SIMD target (see simd.h).
//
// Nothing here decides a result. The bound of a box is computed as a distance is; since rounding is monotonic
// it is never above the computed distance of a point inside, so skipping by it is exact, without any margin.
#ifndef OPBRIDGE_SPATIAL_TABLES
#define OPBRIDGE_SPATIAL_TABLES
#include <cstdint>

namespace pvn3d {

/// For each set of 8 lanes their numbers, ascending.
struct PackLanes {
  alignas(64) uint8_t of[256][8] = {};
  constexpr PackLanes() {
    for (int bits = 0; bits < 256; ++bits) {
      int count = 0;
      for (int lane = 0; lane < 8; ++lane) {
        if (bits >> lane & 1) of[bits][count++] = static_cast<uint8_t>(lane);
      }
    }
  }
};
inline constexpr PackLanes kPackLanes;

}  // namespace pvn3d
#endif
#if defined(OPBRIDGE_SPATIAL_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef OPBRIDGE_SPATIAL_INL_H
#undef OPBRIDGE_SPATIAL_INL_H
#else
#define OPBRIDGE_SPATIAL_INL_H
#endif

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/arena.h"
#include "common/points.h"

HWY_BEFORE_NAMESPACE();
namespace pvn3d::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int kFan =
    16;  // points in a leaf, and boxes in a box of the next level; arrays are padded to multiples

inline int64_t padded(int64_t n) { return (n + kFan - 1) / kFan * kFan; }

/// Vectors of C no longer than a leaf.
template <class C>
using Tag = hn::CappedTag<C, kFan>;

template <class D, class M>
HWY_INLINE uint32_t bits_of(D d, M mask) {
  uint8_t bytes[8] = {};
  hn::StoreMaskBits(d, mask, bytes);
  uint32_t bits;
  std::memcpy(&bits, bytes, 4);
  return bits;
}

#if HWY_TARGET <= HWY_AVX3
template <class C>
constexpr bool kPacks = sizeof(C) == 4;

/// Moves the lanes of `mask`, whose bits are `bits`, to the front; the others hold anything.
template <class D, class V, class M>
HWY_INLINE V pack(D, V v, M mask, uint32_t) {
  return hn::Compress(v, mask);
}
#elif HWY_TARGET == HWY_AVX2
template <class C>
constexpr bool kPacks = sizeof(C) == 4;

template <class D, class V, class M>
HWY_INLINE V pack(D d, V v, M, uint32_t bits) {  // Highway 1.0's Compress copies its whole table on each call
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint8_t, D> bytes;
  return hn::TableLookupLanes(v,
                              hn::IndicesFromVec(d, hn::PromoteTo(di, hn::Load(bytes, kPackLanes.of[bits]))));
}
#else
template <class C>
constexpr bool kPacks = false;
#endif

template <class D, class V = hn::Vec<D>>
HWY_INLINE V squared_distances(D d, const hn::TFromD<D>* x, const hn::TFromD<D>* y, const hn::TFromD<D>* z,
                               V qx, V qy, V qz) {
  const V dx = hn::Sub(hn::Load(d, x), qx), dy = hn::Sub(hn::Load(d, y), qy),
          dz = hn::Sub(hn::Load(d, z), qz);
  return hn::Add(hn::Add(hn::Mul(dx, dx), hn::Mul(dy, dy)), hn::Mul(dz, dz));
}

/// Axis-aligned boxes as six arrays, padded with boxes that nothing is near to.
template <class C>
struct Boxes {
  C *lo[3], *hi[3];

  Boxes() = default;
  Boxes(Arena& a, int64_t count) {
    for (int i = 0; i < 3; ++i) lo[i] = a.take<C>(padded(count));
    for (int i = 0; i < 3; ++i) hi[i] = a.take<C>(padded(count));
  }

  void set_empty(int64_t b) const {
    for (int i = 0; i < 3; ++i) {
      lo[i][b] = std::numeric_limits<C>::infinity();
      hi[i][b] = -std::numeric_limits<C>::infinity();
    }
  }
  void add(int64_t b, int axis, C low, C high) const {
    lo[axis][b] = std::min(lo[axis][b], low);
    hi[axis][b] = std::max(hi[axis][b], high);
  }

  /// Squared distances of q to the boxes from b on; of a padding box infinity.
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V bounds(D d, int64_t b, V qx, V qy, V qz) const {
    const V zero = hn::Zero(d);
    const V dx =
        hn::Max(hn::Max(hn::Sub(hn::Load(d, lo[0] + b), qx), hn::Sub(qx, hn::Load(d, hi[0] + b))), zero);
    const V dy =
        hn::Max(hn::Max(hn::Sub(hn::Load(d, lo[1] + b), qy), hn::Sub(qy, hn::Load(d, hi[1] + b))), zero);
    const V dz =
        hn::Max(hn::Max(hn::Sub(hn::Load(d, lo[2] + b), qz), hn::Sub(qz, hn::Load(d, hi[2] + b))), zero);
    return hn::Add(hn::Add(hn::Mul(dx, dx), hn::Mul(dy, dy)), hn::Mul(dz, dz));
  }
};

/// A cube of space cut into 2^bits cells along each axis, and each point's place on the Hilbert curve through
/// the cells. Taken from a sample of the points, without its outermost 2 %, so that one stray point does not
/// swallow all cells; what lies outside counts to the nearest cell.
template <class C>
struct HilbertFrame {
  C origin[3] = {}, scale = 0;
  int bits = 8;

  HilbertFrame(const C* x, const C* y, const C* z, int64_t n) {
    bits = n <= 16384 ? 7 : n <= 65536 ? 8 : 10;  // some cells for each point of a surface
    constexpr int64_t kSample = 256;
    const int64_t count = std::min(n, kSample);
    if (count == 0) return;
    C extent = 0;
    const C* axes[3] = {x, y, z};
    for (int trim = 1; trim >= 0 && !(extent > 0); --trim) {
      for (int i = 0; i < 3; ++i) {
        C sample[kSample];
        for (int64_t k = 0; k < count; ++k) sample[k] = axes[i][k * n / count];
        const int64_t cut = trim * (count / 50);
        std::nth_element(sample, sample + cut, sample + count);
        const C low = sample[cut];
        std::nth_element(sample, sample + (count - 1 - cut), sample + count);
        const C high = sample[count - 1 - cut], margin = (high - low) / 4;
        origin[i] = low - margin;
        extent = std::max(extent, high - low + 2 * margin);
      }
    }
    if (extent > 0 && is_finite(extent)) scale = static_cast<C>(1 << bits) / extent;
    if (!is_finite(scale)) scale = 0;
  }

  int32_t cell(C v, int axis) const {
    const C at = (v - origin[axis]) * scale, most = static_cast<C>((1 << bits) - 1);
    return static_cast<int32_t>(at > 0 ? (at < most ? at : most) : C(0));
  }

  /// Skilling's transposed Hilbert index (2004), its bits interleaved.
  void keys(const C* x, const C* y, const C* z, int64_t n, uint32_t* out) const {
    constexpr int64_t kBlock = 64;
    const hn::CappedTag<uint32_t, 16> d;
    const int64_t step = static_cast<int64_t>(hn::Lanes(d));
    HWY_ALIGN uint32_t cx[kBlock] = {}, cy[kBlock] = {}, cz[kBlock] = {}, key[kBlock];
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t count = std::min(kBlock, n - begin);
      for (int64_t i = 0; i < count; ++i) {
        cx[i] = static_cast<uint32_t>(cell(x[begin + i], 0));
        cy[i] = static_cast<uint32_t>(cell(y[begin + i], 1));
        cz[i] = static_cast<uint32_t>(cell(z[begin + i], 2));
      }
      for (int64_t i = 0; i < count; i += step) {
        auto a = hn::Load(d, cx + i), b = hn::Load(d, cy + i), c = hn::Load(d, cz + i);
        for (int q = bits - 1; q > 0; --q) {
          const auto bit = hn::Set(d, 1u << q), below = hn::Set(d, (1u << q) - 1);
          const auto turn = [&](auto& other) {
            const auto set = hn::VecFromMask(d, hn::TestBit(other, bit));
            const auto swap = hn::AndNot(set, hn::And(hn::Xor(a, other), below));
            other = hn::Xor(other, swap);
            a = hn::Xor(a, hn::Or(swap, hn::And(set, below)));
          };
          a = hn::Xor(a, hn::And(hn::VecFromMask(d, hn::TestBit(a, bit)), below));
          turn(b);
          turn(c);
        }
        b = hn::Xor(b, a);
        c = hn::Xor(c, b);
        auto flip = hn::Zero(d);
        for (int q = bits - 1; q > 0; --q) {
          const auto set = hn::VecFromMask(d, hn::TestBit(c, hn::Set(d, 1u << q)));
          flip = hn::Xor(flip, hn::And(set, hn::Set(d, (1u << q) - 1)));
        }
        const auto spread = [&](auto v) {  // bit i to bit 3 i
          v = hn::And(hn::Or(v, hn::ShiftLeft<16>(v)), hn::Set(d, 0x030000ffu));
          v = hn::And(hn::Or(v, hn::ShiftLeft<8>(v)), hn::Set(d, 0x0300f00fu));
          v = hn::And(hn::Or(v, hn::ShiftLeft<4>(v)), hn::Set(d, 0x030c30c3u));
          return hn::And(hn::Or(v, hn::ShiftLeft<2>(v)), hn::Set(d, 0x09249249u));
        };
        const auto high = hn::ShiftLeft<2>(spread(hn::Xor(a, flip)));
        const auto middle = hn::ShiftLeft<1>(spread(hn::Xor(b, flip)));
        hn::Store(hn::Or(hn::Or(high, middle), spread(hn::Xor(c, flip))), d, key + i);
      }
      std::copy(key, key + count, out + begin);
    }
  }
};

/// A cloud's finite points along a Hilbert curve.
template <class C>
struct SortedPoints {
  C *x, *y, *z;   // padded with infinity
  int32_t* id;    // where in the cloud; padded with INT32_MAX
  uint32_t* key;  // ascending
  int64_t* size;  // what reopen() reads
  int64_t count = 0;

  SortedPoints(Arena& a, int64_t n)
      : x(a.take<C>(padded(n))),
        y(a.take<C>(padded(n))),
        z(a.take<C>(padded(n))),
        id(a.take<int32_t>(padded(n))),
        key(a.take<uint32_t>(padded(n))),
        size(a.take<int64_t>(1)) {}

  /// After build() in another object over the same memory.
  void reopen() { count = *size; }

  /// Arrays needed only while sorting.
  struct Scratch {
    C *x, *y, *z;
    int32_t* id;
    uint64_t *pairs, *more_pairs;
    uint32_t* keys;
    Scratch(Arena& a, int64_t n)
        : x(a.take<C>(n)),
          y(a.take<C>(n)),
          z(a.take<C>(n)),
          id(a.take<int32_t>(n)),
          pairs(a.take<uint64_t>(n)),
          more_pairs(a.take<uint64_t>(n)),
          keys(a.take<uint32_t>(n)) {}
  };

  /// Loads n points that `keep(point)` accepts (it must refuse those that are not finite) and sorts them
  /// within `frame`, or in one of their own, which is returned. Equal keys keep the cloud's order.
  template <class T, class Keep>
  HilbertFrame<C> build(const T* xyz, int64_t n, const Scratch& s, const Keep& keep,
                        const HilbertFrame<C>* frame = nullptr) {
    count = 0;
    for (int64_t i = 0; i < n; ++i) {
      const Point<C> p = load_point(xyz, i);
      s.x[count] = p.x;
      s.y[count] = p.y;
      s.z[count] = p.z;
      s.id[count] = static_cast<int32_t>(i);
      count += keep(p);
    }
    const HilbertFrame<C> used = frame != nullptr ? *frame : HilbertFrame<C>(s.x, s.y, s.z, count);
    used.keys(s.x, s.y, s.z, count, s.keys);
    for (int64_t i = 0; i < count; ++i)
      s.pairs[i] = static_cast<uint64_t>(s.keys[i]) << 32 | static_cast<uint32_t>(i);
    const uint64_t* sorted = radix_sort(s.pairs, s.more_pairs, count, used.bits);
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t from = static_cast<uint32_t>(sorted[i]);
      x[i] = s.x[from];
      y[i] = s.y[from];
      z[i] = s.z[from];
      id[i] = s.id[from];
      key[i] = static_cast<uint32_t>(sorted[i] >> 32);
    }
    for (int64_t i = count; i < padded(count); ++i) {
      x[i] = y[i] = z[i] = std::numeric_limits<C>::infinity();
      id[i] = std::numeric_limits<int32_t>::max();
    }
    *size = count;
    return used;
  }

 private:
  // By the upper halves, 3 * bits of them, in two digits or, where those would be too many, three; the array that holds
  // the result.
  static uint64_t* radix_sort(uint64_t* from, uint64_t* to, int64_t n, int bits) {
    constexpr int kMostBits = 12, kMostDigits = 3;
    const int digits = 3 * bits <= 2 * kMostBits ? 2 : kMostDigits, width = (3 * bits + digits - 1) / digits;
    uint32_t next[kMostDigits][1 << kMostBits] = {};
    const uint32_t mask = (1u << width) - 1;
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t key = static_cast<uint32_t>(from[i] >> 32);
      for (int digit = 0; digit < digits; ++digit) ++next[digit][key >> digit * width & mask];
    }
    for (int digit = 0; digit < digits; ++digit) {
      uint32_t sum = 0;
      for (uint32_t i = 0; i <= mask; ++i) {
        const uint32_t here = next[digit][i];
        next[digit][i] = sum;
        sum += here;
      }
      const int shift = 32 + digit * width;
      for (int64_t i = 0; i < n; ++i) to[next[digit][from[i] >> shift & mask]++] = from[i];
      std::swap(from, to);
    }
    return from;
  }
};

/// Sorted points with boxes around every 16 of them, around every 16 of those boxes, and so on.
template <class C>
struct PointTree {
  static constexpr int kMaxLevels = 8;  // 16^8 points are more than an int32 counts
  SortedPoints<C> points;
  Boxes<C> boxes[kMaxLevels];
  int levels = 0;  // of boxes; the top one has at most 16

  PointTree(Arena& a, int64_t n) : points(a, n) {
    for (int64_t count = padded(n) / kFan;; count = padded(count) / kFan) {
      boxes[levels++] = Boxes<C>(a, count);
      if (count <= kFan) break;
    }
  }

  template <class T>
  HilbertFrame<C> build(const T* xyz, int64_t n, const typename SortedPoints<C>::Scratch& scratch) {
    const auto frame = points.build(xyz, n, scratch, [](Point<C> p) { return is_finite(p.x, p.y, p.z); });
    int64_t count = padded(points.count) / kFan;
    for (int64_t b = 0; b < padded(count); ++b) boxes[0].set_empty(b);
    const C* axes[3] = {points.x, points.y, points.z};
    const int64_t whole = points.count / kFan;
    const Tag<C> d;
    for (int axis = 0; axis < 3; ++axis) {
      for (int64_t b = 0; b < whole; ++b) {
        auto low = hn::Load(d, axes[axis] + b * kFan), high = low;
        for (int i = static_cast<int>(hn::Lanes(d)); i < kFan; i += static_cast<int>(hn::Lanes(d))) {
          const auto v = hn::Load(d, axes[axis] + b * kFan + i);
          low = hn::Min(low, v);
          high = hn::Max(high, v);
        }
        boxes[0].lo[axis][b] = hn::GetLane(hn::MinOfLanes(d, low));
        boxes[0].hi[axis][b] = hn::GetLane(hn::MaxOfLanes(d, high));
      }
      for (int64_t i = whole * kFan; i < points.count; ++i) {  // what follows is padding
        boxes[0].add(whole, axis, axes[axis][i], axes[axis][i]);
      }
    }
    for (levels = 1; count > kFan; ++levels) {
      const int64_t children = count;
      count = padded(count) / kFan;
      const Boxes<C>&below = boxes[levels - 1], &here = boxes[levels];
      for (int64_t b = 0; b < padded(count); ++b) here.set_empty(b);
      for (int axis = 0; axis < 3; ++axis) {
        for (int64_t b = 0; b < children; ++b) here.add(b / kFan, axis, below.lo[axis][b], below.hi[axis][b]);
      }
    }
    return frame;
  }

  /// After build() in another object over the same memory.
  void reopen() {
    points.reopen();
    levels = 1;
    for (int64_t count = padded(points.count) / kFan; count > kFan; count = padded(count) / kFan) ++levels;
  }

  /// Calls leaf(first point) for every 16 points whose box passes near(bounds), a mask of squared distances
  /// of q.
  template <class Near, class Leaf>
  HWY_INLINE void visit(Point<C> q, const Near& near, const Leaf& leaf) const {
    if (points.count == 0) return;
    const Tag<C> d;
    descend(levels - 1, 0, hn::Set(d, q.x), hn::Set(d, q.y), hn::Set(d, q.z), near, leaf);
  }

 private:
  template <class V, class Near>
  HWY_INLINE uint32_t near_boxes(int level, int64_t first, V qx, V qy, V qz, const Near& near) const {
    const Tag<C> d;
    const int lanes = static_cast<int>(hn::Lanes(d));
    uint32_t found = 0;
    for (int i = 0; i < kFan; i += lanes) {
      found |= bits_of(d, near(boxes[level].bounds(d, first + i, qx, qy, qz))) << i;
    }
    return found;
  }

  template <class V, class Near, class Leaf>
  void descend(int level, int64_t first, V qx, V qy, V qz, const Near& near, const Leaf& leaf) const {
    uint32_t found = near_boxes(level, first, qx, qy, qz, near);
    if (level > 1) {
      for (; found != 0; found &= found - 1) {
        descend(level - 1, (first + __builtin_ctz(found)) * kFan, qx, qy, qz, near, leaf);
      }
      return;
    }
    // The last two levels without recursion: first all leaves, then their points.
    int32_t leaves[kFan * kFan];
    int count = 0;
    const auto list = [&](int64_t base, uint32_t bits) {
      for (; bits != 0; bits &= bits - 1) leaves[count++] = static_cast<int32_t>(base) + __builtin_ctz(bits);
    };
    if (level == 0) {
      list(first, found);
    } else {
      for (; found != 0; found &= found - 1) {
        const int64_t base = (first + __builtin_ctz(found)) * kFan;
        list(base, near_boxes(0, base, qx, qy, qz, near));
      }
    }
    for (int i = 0; i < count; ++i) leaf(static_cast<int64_t>(leaves[i]) * kFan);
  }
};

}  // namespace pvn3d::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
