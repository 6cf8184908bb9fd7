// The k nearest points: what KNN and ThreeNN do. Compiled once a SIMD target (see simd.h).
#if defined(OPBRIDGE_NEIGHBORS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef OPBRIDGE_NEIGHBORS_INL_H
#undef OPBRIDGE_NEIGHBORS_INL_H
#else
#define OPBRIDGE_NEIGHBORS_INL_H
#endif

#include <cmath>

#include "common/spatial-inl.h"
#include "opbridge/op.h"

HWY_BEFORE_NAMESPACE();
namespace pvn3d::HWY_NAMESPACE {

/// The candidates of one query: points at a squared distance of at most `limit`.
template <class C>
class Nearest {
 public:
  using Id = hwy::MakeSigned<C>;  // as wide as C, so that one mask serves both

  explicit Nearest(int64_t k) : k_(k) {}

  void start(Point<C> q, C limit) {
    q_ = q;
    limit_ = limit;
    found_ = 0;
  }
  C limit() const { return limit_; }

  /// Looks at 16 points.
  HWY_INLINE void look(const SortedPoints<C>& p, int64_t first) {
    const Tag<C> d;
    const int lanes = static_cast<int>(hn::Lanes(d));
    const auto qx = hn::Set(d, q_.x), qy = hn::Set(d, q_.y), qz = hn::Set(d, q_.z),
               limit = hn::Set(d, limit_);
    for (int64_t i = first; i < first + kFan; i += lanes) {
      const auto d2 = squared_distances(d, p.x + i, p.y + i, p.z + i, qx, qy, qz);
      const auto near = hn::Le(d2, limit);
      uint32_t bits = bits_of(d, near);
      if constexpr (kPacks<C>) {  // also where nothing is near: a branch would be mispredicted
        const hn::RebindToSigned<decltype(d)> di;
        hn::StoreU(pack(d, d2, near, bits), d, d2_ + found_);
        hn::StoreU(pack(di, hn::Load(di, p.id + i), hn::RebindMask(di, near), bits), di, id_ + found_);
        found_ += __builtin_popcount(bits);
      } else {
        HWY_ALIGN C lane[kFan];
        hn::Store(d2, d, lane);
        for (; bits != 0; bits &= bits - 1) {
          const int at = __builtin_ctz(bits);
          d2_[found_] = lane[at];
          id_[found_++] = p.id[i + at];
        }
      }
    }
    if (found_ > k_ + kSlack && !tighten()) shrink();
  }

  /// Writes the k nearest, ascending; padded with 0 and infinity. Returns how many there are.
  template <class T>
  int64_t finish(bool squared, int32_t* idx, T* dist) {
    const Tag<C> d;
    if (found_ > kSlack && !tighten()) shrink();
    const int64_t count = std::min(found_, k_);
    if (found_ <= kSlack) {
      rank(idx);
    } else {
      std::sort(pairs_, pairs_ + count);
      for (int64_t s = 0; s < count; ++s) {
        sorted_[s] = pairs_[s].d2;
        idx[s] = static_cast<int32_t>(pairs_[s].id);
      }
    }
    for (int64_t s = count; s < k_; ++s) {
      idx[s] = 0;
      sorted_[s] = std::numeric_limits<C>::infinity();
    }
    last_ = sorted_[k_ - 1];
    if (dist == nullptr) return count;
    if (!squared) {
      for (int64_t s = 0; s < k_; s += static_cast<int64_t>(hn::Lanes(d))) {
        hn::Store(hn::Sqrt(hn::Load(d, sorted_ + s)), d, sorted_ + s);
      }
    }
    for (int64_t s = 0; s < k_; ++s) dist[s] = static_cast<T>(sorted_[s]);
    return count;
  }

  /// A squared distance that holds k points for query q: as far as the farthest of those that finish() found for the
  /// query before, which are `idx` in the cloud `xyz`.
  template <class T>
  C limit_from_last(Point<C> q, const T* xyz, const int32_t* idx) const {
    if (last_ == std::numeric_limits<C>::infinity()) return kFinite;
    C farthest = 0;
    for (int64_t s = 0; s < k_; ++s) {
      const Point<C> p = load_point(xyz, idx[s]);
      farthest = std::max(farthest, squared_distance(p.x, p.y, p.z, q.x, q.y, q.z));
    }
    return std::min(farthest, kFinite);
  }

  /// The same for a first query: from the points around its place on the curve.
  C limit_from_curve(const SortedPoints<C>& p, Point<C> q, uint32_t key) {
    if (p.count < k_) return kFinite;
    const int64_t at = std::lower_bound(p.key, p.key + p.count, key) - p.key;
    const int64_t window = std::min(p.count, k_ + kSlack),
                  first = std::clamp<int64_t>(at - window / 2, 0, p.count - window);
    for (int64_t i = 0; i < window; ++i) {
      sorted_[i] = squared_distance(p.x[first + i], p.y[first + i], p.z[first + i], q.x, q.y, q.z);
    }
    std::nth_element(sorted_, sorted_ + k_ - 1, sorted_ + window);
    return std::min(sorted_[k_ - 1], kFinite);
  }

 private:
  static constexpr C kFinite = std::numeric_limits<C>::max();
  static constexpr int64_t kSlack = 64, kRoom = 1024 + kSlack + 2 * kFan;

  struct Pair {
    C d2;
    Id id;
    bool operator<(const Pair& o) const { return d2 < o.d2 || (d2 == o.d2 && id < o.id); }
  };

  // Drops most of those that are not among the k nearest: finds, by halving, a distance that holds k but not many more.
  // False where that does not come out, or would not be quick.
  HWY_INLINE bool tighten() {
    if constexpr (!kPacks<C>) {
      return false;
    } else {
      if (k_ > kSlack / 2) return false;
      const Tag<C> d;
      const hn::RebindToSigned<decltype(d)> di;
      const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
      const auto infinite = hn::Set(d, std::numeric_limits<C>::infinity());
      hn::StoreU(infinite, d, d2_ + found_);
      auto most = hn::Zero(d);
      for (int64_t i = 0; i < found_; i += lanes) {
        const auto v = hn::Load(d, d2_ + i);
        most = hn::Max(most, hn::IfThenElse(hn::Lt(v, infinite), v, hn::Zero(d)));
      }
      C low = 0, high = hn::GetLane(hn::MaxOfLanes(d, most));
      int64_t holds = found_;
      for (int step = 0; holds > kSlack / 2 + k_ / 2; ++step) {
        if (step == 12) return false;
        const C middle = low + (high - low) / 2;
        int64_t count = 0;
        for (int64_t i = 0; i < found_; i += lanes) {
          count += __builtin_popcount(bits_of(d, hn::Le(hn::Load(d, d2_ + i), hn::Set(d, middle))));
        }
        if (count < k_) {
          low = middle;
        } else {
          high = middle;
          holds = count;
        }
      }
      int64_t kept = 0;
      for (int64_t i = 0; i < found_; i += lanes) {
        const auto v = hn::Load(d, d2_ + i);
        const auto id = hn::Load(di, id_ + i);
        const auto near = hn::Le(v, hn::Set(d, high));
        const uint32_t bits = bits_of(d, near);
        hn::StoreU(pack(d, v, near, bits), d, d2_ + kept);
        hn::StoreU(pack(di, id, hn::RebindMask(di, near), bits), di, id_ + kept);
        kept += __builtin_popcount(bits);
      }
      found_ = kept;
      limit_ = high;
      return true;
    }
  }

  // Drops all but the k nearest.
  void shrink() {
    for (int64_t i = 0; i < found_; ++i) pairs_[i] = {d2_[i], id_[i]};
    if (found_ <= k_) return;
    std::nth_element(pairs_, pairs_ + k_ - 1, pairs_ + found_);
    found_ = k_;
    limit_ = pairs_[k_ - 1].d2;
    for (int64_t i = 0; i < k_; ++i) {
      d2_[i] = pairs_[i].d2;
      id_[i] = pairs_[i].id;
    }
  }

  // Sorts a few candidates by counting, for each, those that come before it.
  HWY_INLINE void rank(int32_t* idx) {
    const Tag<C> d;
    const hn::RebindToSigned<decltype(d)> di;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    int64_t sum = 0;
    for (int64_t i = 0; i < found_; i += lanes) {
      const auto mine = hn::Load(d, d2_ + i);
      auto before = hn::Zero(di);
      for (int64_t j = 0; j < found_; ++j) {
        before = hn::Sub(before, hn::VecFromMask(di, hn::RebindMask(di, hn::Lt(hn::Set(d, d2_[j]), mine))));
      }
      hn::Store(before, di, rank_ + i);
    }
    for (int64_t i = 0; i < found_; ++i) sum += rank_[i];
    if (sum != found_ * (found_ - 1) / 2) {  // equal distances: the lower index comes first
      for (int64_t i = 0; i < found_; i += lanes) {
        const auto mine = hn::Load(d, d2_ + i);
        const auto id = hn::Load(di, id_ + i);
        auto before = hn::Load(di, rank_ + i);
        for (int64_t j = 0; j < found_; ++j) {
          const auto tie = hn::RebindMask(di, hn::Eq(hn::Set(d, d2_[j]), mine));
          before = hn::Sub(before, hn::VecFromMask(di, hn::And(tie, hn::Lt(hn::Set(di, id_[j]), id))));
        }
        hn::Store(before, di, rank_ + i);
      }
    }
    for (int64_t i = 0; i < found_; ++i) {  // also those beyond k: a branch would be mispredicted
      sorted_[rank_[i]] = d2_[i];
      order_[rank_[i]] = static_cast<int32_t>(id_[i]);
    }
    std::copy_n(order_, std::min(found_, k_), idx);
  }

  int64_t k_, found_ = 0;
  Point<C> q_ = {};
  C limit_ = 0, last_ = 0;
  HWY_ALIGN C d2_[kRoom];
  HWY_ALIGN Id id_[kRoom];
  HWY_ALIGN C sorted_[kRoom];
  HWY_ALIGN Id rank_[kSlack + kFan];
  int32_t order_[kSlack + kFan];
  Pair pairs_[kRoom];
};

template <class C>
struct NeighborsLayout {
  PointTree<C> tree;
  SortedPoints<C> queries;
  typename SortedPoints<C>::Scratch scratch;
  size_t bytes;

  /// Of cloud b.
  NeighborsLayout(void* workspace, int64_t b, int64_t n, int64_t m)
      : NeighborsLayout(
            Arena(workspace == nullptr ? nullptr : static_cast<char*>(workspace) + b * size(n, m)), n, m) {}

  static int64_t size(int64_t n, int64_t m) {
    return static_cast<int64_t>(NeighborsLayout(Arena(), n, m).bytes);
  }

 private:
  NeighborsLayout(Arena a, int64_t n, int64_t m)
      : tree(a, n), queries(a, m), scratch(a, std::max(n, m)), bytes(a.used()) {}
};

/// For each of m queries the k nearest of n points, by (squared distance, index); slots without one get 0 and
/// infinity. `dist` may be null; it gets the root unless `squared`. The workspace holds
/// NeighborsLayout<Compute<T>>::size() bytes a cloud.
template <class T>
void nearest_neighbors(const opbridge::Call& call, const T* xyz, int64_t n, const T* query, int64_t m,
                       int64_t clouds, int64_t k, bool squared, int32_t* idx, T* dist) {
  using C = Compute<T>;
  const bool among_themselves = xyz == query && n == m;
  const auto row = [&](T* out, int64_t b, int64_t q) {
    return out == nullptr ? nullptr : out + (b * m + q) * k;
  };
  call.parallel_for(clouds, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      NeighborsLayout<C> layout(call.workspace(), b, n, m);
      const auto frame = layout.tree.build(xyz + b * n * 3, n, layout.scratch);
      if (!among_themselves) {
        layout.queries.build(
            query + b * m * 3, m, layout.scratch, [](Point<C> p) { return is_finite(p.x, p.y, p.z); },
            &frame);
      }
      if ((among_themselves ? layout.tree.points : layout.queries).count == m) continue;
      for (int64_t q = 0; q < m; ++q) {  // queries that are not finite have no neighbours
        const Point<C> p = load_point(query + b * m * 3, q);
        if (is_finite(p.x, p.y, p.z)) continue;
        std::fill_n(idx + (b * m + q) * k, k, 0);
        if (dist != nullptr)
          std::fill_n(row(dist, b, q), k, static_cast<T>(std::numeric_limits<C>::infinity()));
      }
    }
  });
  constexpr int64_t kPiece = 128;
  const int64_t pieces = (m + kPiece - 1) / kPiece;
  call.parallel_for(clouds * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t b = piece / pieces;
      NeighborsLayout<C> layout(call.workspace(), b, n, m);
      layout.tree.reopen();
      const SortedPoints<C>& points = layout.tree.points;
      SortedPoints<C>& queries = among_themselves ? layout.tree.points : layout.queries;
      queries.reopen();
      const int64_t first = piece % pieces * kPiece, last = std::min(first + kPiece, queries.count);
      Nearest<C> nearest(k);
      const int32_t* found = nullptr;  // for the query before
      for (int64_t i = first; i < last; ++i) {
        const Point<C> q = {queries.x[i], queries.y[i], queries.z[i]};
        int32_t* here = idx + (b * m + queries.id[i]) * k;
        nearest.start(q, found == nullptr ? nearest.limit_from_curve(points, q, queries.key[i])
                                          : nearest.limit_from_last(q, xyz + b * n * 3, found));
        const Tag<C> d;
        layout.tree.visit(
            q, [&](auto bounds) HWY_ATTR { return hn::Le(bounds, hn::Set(d, nearest.limit())); },
            [&](int64_t leaf) HWY_ATTR { nearest.look(points, leaf); });
        nearest.finish(squared, here, row(dist, b, queries.id[i]));
        found = here;
      }
    }
  });
}

}  // namespace pvn3d::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
