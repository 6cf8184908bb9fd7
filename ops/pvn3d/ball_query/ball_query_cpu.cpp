#include <cmath>

#include "ball_query/ball_query.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ball_query/ball_query_cpu.cpp"
#include "common/simd.h"
// After it, always.
#include "common/spatial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pvn3d::HWY_NAMESPACE {

/// The points found for one centre, and the k lowest of their indices.
class Hits {
 public:
  Hits(Arena& a, int64_t n, int64_t k)
      : n_(n),
        k_(k),
        room_(room(n, k)),
        ids_(a.take<int32_t>(room_ + 2 * kFan)),
        words_(a.take<uint64_t>(n / 64 + 1)),
        groups_(a.take<uint64_t>(n / 4096 + 1)) {}

  /// Call once over fresh memory.
  void prepare() {
    std::fill_n(words_, n_ / 64 + 1, uint64_t{0});
    std::fill_n(groups_, n_ / 4096 + 1, uint64_t{0});
  }

  void start() { count_ = 0; }
  /// So many that scanning the cloud from its beginning will find k of them sooner.
  bool crowded() const { return count_ > room_; }
  int64_t count() const { return count_; }

  /// Looks at 16 points.
  template <bool kRing, class C>
  HWY_INLINE void look(const SortedPoints<C>& p, int64_t first, Point<C> q, C min_radius2, C radius2) {
    const Tag<C> d;
    const int lanes = static_cast<int>(hn::Lanes(d));
    for (int64_t i = first; i < first + kFan; i += lanes) {
      const auto d2 =
          squared_distances(d, p.x + i, p.y + i, p.z + i, hn::Set(d, q.x), hn::Set(d, q.y), hn::Set(d, q.z));
      auto inside = hn::Lt(d2, hn::Set(d, radius2));  // ball_query::inside
      if (kRing)
        inside = hn::And(inside, hn::Or(hn::Ge(d2, hn::Set(d, min_radius2)), hn::Eq(d2, hn::Zero(d))));
      uint32_t bits = bits_of(d, inside);
      if constexpr (kPacks<C>) {
        const hn::RebindToSigned<decltype(d)> di;
        hn::StoreU(pack(di, hn::Load(di, p.id + i), hn::RebindMask(di, inside), bits), di, ids_ + count_);
        count_ += __builtin_popcount(bits);
      } else {
        for (; bits != 0; bits &= bits - 1) ids_[count_++] = p.id[i + __builtin_ctz(bits)];
      }
    }
  }

  /// Writes the lowest k indices, ascending. Returns how many there are.
  int64_t finish(int32_t* idx) {
    if (count_ <= kFew) {
      rank(idx);
    } else {
      mark(idx);
    }
    return std::min(count_, k_);
  }

 private:
  static constexpr int64_t kFew = 48;

  static int64_t room(int64_t n, int64_t k) {
    return std::min(
        n, static_cast<int64_t>(std::sqrt(4.0 * static_cast<double>(n) * static_cast<double>(k))) + kFew);
  }

  // Sorts a few by counting, for each, those below it.
  HWY_INLINE void rank(int32_t* idx) const {
    const hn::CappedTag<int32_t, kFan> d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    HWY_ALIGN int32_t ranks[kFew + kFan];
    for (int64_t i = 0; i < count_; i += lanes) {
      const auto mine = hn::Load(d, ids_ + i);
      auto below = hn::Zero(d);
      for (int64_t j = 0; j < count_; ++j)
        below = hn::Sub(below, hn::VecFromMask(d, hn::Lt(hn::Set(d, ids_[j]), mine)));
      hn::Store(below, d, ranks + i);
    }
    for (int64_t i = 0; i < count_; ++i) {
      if (ranks[i] < k_) idx[ranks[i]] = ids_[i];
    }
  }

  // Sorts many as a set of bits, and clears it.
  void mark(int32_t* idx) const {
    for (int64_t i = 0; i < count_; ++i) {
      const int32_t id = ids_[i];
      words_[id >> 6] |= uint64_t{1} << (id & 63);
      groups_[id >> 12] |= uint64_t{1} << (id >> 6 & 63);
    }
    int64_t written = 0;
    for (int64_t g = 0; g <= n_ / 4096; ++g) {
      for (uint64_t group = groups_[g]; group != 0; group &= group - 1) {
        const int64_t w = g * 64 + __builtin_ctzll(group);
        for (uint64_t word = words_[w]; word != 0 && written < k_; word &= word - 1) {
          idx[written++] = static_cast<int32_t>(w * 64 + __builtin_ctzll(word));
        }
        words_[w] = 0;
      }
      groups_[g] = 0;
    }
  }

  int64_t n_, k_, room_, count_ = 0;
  int32_t* ids_;
  uint64_t *words_, *groups_;  // a bit for each point, and for each word that has one
};

constexpr int64_t kMostPieces = 32;  // of a cloud's centres; each has its own Hits

inline int64_t piece_size(int64_t m) { return std::max<int64_t>(64, (m + kMostPieces - 1) / kMostPieces); }

template <class C>
struct BallLayout {
  PointTree<C> tree;
  SortedPoints<C> centres;  // neighbours one after the other find the same points in the cache
  typename SortedPoints<C>::Scratch scratch;
  Arena hits;  // of one piece after the other

  BallLayout(void* workspace, int64_t b, int64_t n, int64_t m, int64_t k)
      : BallLayout(Arena(static_cast<char*>(workspace) + b * size(n, m, k)), n, m) {}

  static int64_t size(int64_t n, int64_t m, int64_t k) {
    BallLayout layout(Arena(), n, m);
    for (int64_t piece = 0; piece * piece_size(m) < m; ++piece) const Hits measured(layout.hits, n, k);
    return static_cast<int64_t>(layout.hits.used());
  }

 private:
  BallLayout(Arena a, int64_t n, int64_t m)
      : tree(a, n), centres(a, m), scratch(a, std::max(n, m)), hits(a) {}
};

template <class T, bool kRing>
void query_balls(const opbridge::Call& call) {
  using C = Compute<T>;
  const int64_t clouds = call.input_arg(0).shape[0], n = call.input_arg(0).shape[1],
                m = call.input_arg(1).shape[1];
  const int64_t k = call.attr_int("nsample"), size = piece_size(m), pieces = (m + size - 1) / size;
  const C radius = call.attr_float("radius"), min_radius = call.attr_float("min_radius");
  const C radius2 = radius * radius, min_radius2 = min_radius * min_radius;
  const T *xyz = call.input<T>(0).data(), *centres = call.input<T>(1).data();
  int32_t* idx = call.output<int32_t>(0).data();
  int32_t* counts = call.has_output(1) ? call.output<int32_t>(1).data() : nullptr;
  const auto finite = [](Point<C> p) { return is_finite(p.x, p.y, p.z); };
  const auto finish_row = [&](int64_t i, int64_t count) {
    std::fill(idx + i * k + count, idx + (i + 1) * k, count > 0 ? idx[i * k] : 0);
    if (counts != nullptr) counts[i] = static_cast<int32_t>(count);
  };
  call.parallel_for(clouds, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      BallLayout<C> layout(call.workspace(), b, n, m, k);
      const auto frame = layout.tree.build(xyz + b * n * 3, n, layout.scratch);
      layout.centres.build(centres + b * m * 3, m, layout.scratch, finite, &frame);
      if (layout.centres.count == m) continue;
      for (int64_t i = b * m; i < (b + 1) * m; ++i) {
        if (!finite(load_point(centres, i))) finish_row(i, 0);
      }
    }
  });
  call.parallel_for(clouds * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t b = piece / pieces;
      BallLayout<C> layout(call.workspace(), b, n, m, k);
      layout.tree.reopen();
      layout.centres.reopen();
      const int64_t first = piece % pieces * size, last = std::min(first + size, layout.centres.count);
      for (int64_t before = 0; before < piece % pieces; ++before) const Hits skipped(layout.hits, n, k);
      Hits hits(layout.hits, n, k);
      hits.prepare();
      for (int64_t at = first; at < last; ++at) {
        const Point<C> q = {layout.centres.x[at], layout.centres.y[at], layout.centres.z[at]};
        const int64_t i = b * m + layout.centres.id[at];
        int32_t* row = idx + i * k;
        int64_t count = 0;
        const Tag<C> d;
        hits.start();
        layout.tree.visit(
            q, [&](auto bounds) HWY_ATTR { return hn::Lt(bounds, hn::Set(d, radius2)); },
            [&](int64_t leaf) HWY_ATTR {
              if (!hits.crowded()) hits.look<kRing>(layout.tree.points, leaf, q, min_radius2, radius2);
            });
        if (!hits.crowded()) {
          count = hits.finish(row);
        } else {
          for (int64_t j = 0; j < n && count < k; ++j) {
            const Point<C> p = load_point(xyz, b * n + j);
            if (ball_query::inside(squared_distance(p.x, p.y, p.z, q.x, q.y, q.z), min_radius2, radius2)) {
              row[count++] = static_cast<int32_t>(j);
            }
          }
        }
        finish_row(i, count);
      }
    }
  });
}

void ball_query_kernel(const opbridge::Call& call) {
  if (!ball_query::check(call)) return;
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    if (call.attr_float("min_radius") > 0) {
      query_balls<T, true>(call);
    } else {
      query_balls<T, false>(call);
    }
  });
}

size_t ball_query_workspace(const opbridge::Call& call) {
  if (call.device() == opbridge::Device::kCuda) return 0;
  const int64_t clouds = call.input_arg(0).shape[0], n = call.input_arg(0).shape[1],
                m = call.input_arg(1).shape[1];
  const int64_t k = call.attr_int("nsample");
  const bool f64 = call.input_dtype(0) == opbridge::DType::f64;
  return static_cast<size_t>(clouds *
                             (f64 ? BallLayout<double>::size(n, m, k) : BallLayout<float>::size(n, m, k)));
}

}  // namespace pvn3d::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pvn3d {
OPBRIDGE_DISPATCHED_KERNEL(ball_query_kernel)
OPBRIDGE_DISPATCHED_WORKSPACE(ball_query_workspace)
}  // namespace pvn3d

OPBRIDGE_OPERATORS(ball_query) {
  return {opbridge::Operator(R"(
    "For each centre, the indices of the first points closer than radius."
    BallQuery(xyz: T[B,N,3]     "clouds of points",
              new_xyz: T[B,M,3] "centres, in the same frame";
              radius: float in (0, inf) "a point at exactly this distance is outside",
              nsample: int in [1, 1024] "slots a centre",
              min_radius: float in [0, inf) = 0 "points closer than this do not count, except at distance 0")
        -> (idx: i32[B,M,nsample] "ascending indices; unused slots repeat the first; all 0 where nothing is inside",
            count?: i32[B,M]      "points found, at most nsample")
        where T in {f16, f32, f64}
  )")
              .cpu(pvn3d::best_ball_query_kernel())
              .cuda(OPBRIDGE_CUDA_KERNEL(ball_query_cuda))
              .workspace(pvn3d::any_ball_query_workspace)};
}
#endif
