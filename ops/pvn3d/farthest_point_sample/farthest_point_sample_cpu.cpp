#include "farthest_point_sample/farthest_point_sample.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "farthest_point_sample/farthest_point_sample_cpu.cpp"
#include "common/simd.h"
// After it, always.
#include "common/spatial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pvn3d::HWY_NAMESPACE {

using farthest_point_sample::TieOrder;

/// The selectable points of one cloud in buckets of neighbours. A bucket knows its box and the member
/// farthest from all samples, so that a new sample leaves alone every bucket whose box is farther away than
/// that member's distance. Of the others, those whose farthest member keeps its distance only note the sample
/// down, for when they are next looked at.
template <class C>
class Buckets {
 public:
  Buckets(Arena& a, int64_t n)
      : points_(a, n),
        scratch_(a, n),
        best_(a.take<C>(padded(n))),
        boxes_(a, buckets(n)),
        most_(a.take<C>(padded(buckets(n)))),
        winner_(a.take<uint32_t>(buckets(n))),
        noted_(a.take<int32_t>(buckets(n))),
        notes_(a.take<C>(buckets(n) * kNotes * 3)) {
    for (C*& far : far_) far = a.take<C>(padded(buckets(n)));
  }

  static int64_t size(int64_t n) {
    Arena a;
    const Buckets measured(a, n);
    return static_cast<int64_t>(a.used());
  }

  template <class T>
  void build(const T* xyz, int64_t n, C min_sq_norm, const TieOrder& ties) {
    points_.build(xyz, n, scratch_,
                  [&](Point<C> p) { return farthest_point_sample::selectable(p, min_sq_norm); });
    count_ = buckets(points_.count);
    for (int64_t i = 0; i < padded(points_.count); ++i) {
      const bool real = i < points_.count;
      best_[i] = real ? C(farthest_point_sample::kFarthest) : C(-1);
      points_.id[i] =
          real ? static_cast<int32_t>(ties.rank(static_cast<uint32_t>(points_.id[i]))) : points_.id[i];
    }
    for (int64_t b = 0; b < padded(count_); ++b) {
      boxes_.set_empty(b);
      most_[b] = C(-1);
      far_[0][b] = far_[1][b] = far_[2][b] = 0;
    }
    for (int64_t b = 0; b < count_; ++b) {
      noted_[b] = 0;
      for (int64_t i = b * kBucket; i < std::min((b + 1) * kBucket, points_.count); ++i) {
        boxes_.add(b, 0, points_.x[i], points_.x[i]);
        boxes_.add(b, 1, points_.y[i], points_.y[i]);
        boxes_.add(b, 2, points_.z[i], points_.z[i]);
      }
      look(b);
    }
  }

  bool empty() const { return count_ == 0; }

  /// Takes q as the next sample.
  void add(Point<C> q) {
    const Tag<C> d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    const auto qx = hn::Set(d, q.x), qy = hn::Set(d, q.y), qz = hn::Set(d, q.z);
    for (int64_t g = 0; g < count_; g += lanes) {
      const auto most = hn::Load(d, most_ + g);
      uint32_t touched = bits_of(d, hn::Lt(boxes_.bounds(d, g, qx, qy, qz), most));
      if (touched == 0) continue;
      const auto far = squared_distances(d, far_[0] + g, far_[1] + g, far_[2] + g, qx, qy, qz);
      const uint32_t changed = bits_of(d, hn::Lt(far, most));
      for (; touched != 0; touched &= touched - 1) {
        const int lane = __builtin_ctz(touched);
        const int64_t b = g + lane;
        C* note = notes_ + (b * kNotes + noted_[b]++) * 3;
        note[0] = q.x;
        note[1] = q.y;
        note[2] = q.z;
        if ((changed >> lane & 1) != 0 || noted_[b] == kNotes) look(b);
      }
    }
  }

  /// The farthest point from all samples, the one of lowest rank among equals.
  uint32_t farthest(Point<C>& p) const {
    const Tag<C> d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    auto most = hn::Load(d, most_);
    for (int64_t g = lanes; g < count_; g += lanes) most = hn::Max(most, hn::Load(d, most_ + g));
    most = hn::MaxOfLanes(d, most);
    int64_t best = -1;
    for (int64_t g = 0; g < count_; g += lanes) {
      for (uint32_t equal = bits_of(d, hn::Eq(most, hn::Load(d, most_ + g))); equal != 0;
           equal &= equal - 1) {
        const int64_t b = g + __builtin_ctz(equal);
        if (best < 0 || winner_[b] < winner_[best]) best = b;
      }
    }
    p = {far_[0][best], far_[1][best], far_[2][best]};
    return winner_[best];
  }

 private:
  static constexpr int64_t kBucket = 64;
  static constexpr int kNotes = 8;

  static int64_t buckets(int64_t n) { return (n + kBucket - 1) / kBucket; }

  // Brings the distances of bucket b up to date and finds its farthest member.
  void look(int64_t b) {
    const Tag<C> d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    const int64_t begin = b * kBucket, end = std::min(begin + kBucket, padded(points_.count));
    const C* notes = notes_ + b * kNotes * 3;
    auto most = hn::Set(d, C(-1));
    for (int64_t i = begin; i < end; i += lanes) {
      auto best = hn::Load(d, best_ + i);
      for (int k = 0; k < noted_[b]; ++k) {
        best = hn::Min(
            best, squared_distances(d, points_.x + i, points_.y + i, points_.z + i, hn::Set(d, notes[3 * k]),
                                    hn::Set(d, notes[3 * k + 1]), hn::Set(d, notes[3 * k + 2])));
      }
      hn::Store(best, d, best_ + i);
      most = hn::Max(most, best);
    }
    noted_[b] = 0;
    most = hn::MaxOfLanes(d, most);
    int64_t far = -1;
    for (int64_t i = begin; i < end; i += lanes) {
      for (uint32_t equal = bits_of(d, hn::Eq(most, hn::Load(d, best_ + i))); equal != 0;
           equal &= equal - 1) {
        const int64_t at = i + __builtin_ctz(equal);
        if (far < 0 || points_.id[at] < points_.id[far]) far = at;
      }
    }
    most_[b] = best_[far];
    winner_[b] = static_cast<uint32_t>(points_.id[far]);
    far_[0][b] = points_.x[far];
    far_[1][b] = points_.y[far];
    far_[2][b] = points_.z[far];
  }

  SortedPoints<C> points_;  // after build(), id is the rank among ties
  typename SortedPoints<C>::Scratch scratch_;
  C* best_;  // of each point, the squared distance to the nearest sample
  Boxes<C> boxes_;
  C* most_;  // of each bucket, its farthest member's distance, index and place
  uint32_t* winner_;
  int32_t* noted_;
  C* notes_;
  C* far_[3];
  int64_t count_ = 0;
};

template <class T>
void sample(Arena arena, const T* xyz, int64_t n, int64_t npoint, int64_t start, float min_sq_norm,
            const TieOrder& ties, int32_t* idx) {
  using C = Compute<T>;
  Buckets<C> buckets(arena, n);
  buckets.build(xyz, n, static_cast<C>(min_sq_norm), ties);
  idx[0] = static_cast<int32_t>(start);
  Point<C> last = load_point(xyz, start);
  for (int64_t j = 1; j < npoint; ++j) {
    if (buckets.empty()) {
      idx[j] = static_cast<int32_t>(start);
      continue;
    }
    if (is_finite(last.x, last.y, last.z)) buckets.add(last);
    idx[j] = static_cast<int32_t>(ties.index(buckets.farthest(last)));
  }
}

int64_t cloud_bytes(const opbridge::Call& call) {
  const int64_t n = call.input_arg(0).shape[1];
  return call.input_dtype(0) == opbridge::DType::f64 ? Buckets<double>::size(n) : Buckets<float>::size(n);
}

size_t farthest_point_sample_workspace(const opbridge::Call& call) {
  if (call.device() == opbridge::Device::kCuda) return farthest_point_sample::cuda_workspace(call);
  return static_cast<size_t>(call.input_arg(0).shape[0] * cloud_bytes(call));
}

void farthest_point_sample_kernel(const opbridge::Call& call) {
  const int64_t clouds = call.input_arg(0).shape[0], n = call.input_arg(0).shape[1];
  const int64_t npoint = call.attr_int("npoint"), start = call.attr_int("start");
  if (!farthest_point_sample::check(call)) return;
  const TieOrder ties(call.attr_choice("tie_order"), n);
  const int64_t bytes = cloud_bytes(call);
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    call.parallel_for(clouds, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        sample(Arena(static_cast<char*>(call.workspace()) + b * bytes), call.input<T>(0).data() + b * n * 3,
               n, npoint, start, call.attr_float("min_sq_norm"), ties,
               call.output<int32_t>(0).data() + b * npoint);
      }
    });
  });
}

}  // namespace pvn3d::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pvn3d {
OPBRIDGE_DISPATCHED_KERNEL(farthest_point_sample_kernel)
OPBRIDGE_DISPATCHED_WORKSPACE(farthest_point_sample_workspace)
}  // namespace pvn3d

OPBRIDGE_OPERATORS(farthest_point_sample) {
  return {opbridge::Operator(R"(
    "Samples each cloud by taking, again and again, the point farthest from those taken before."
    FarthestPointSample(xyz: T[B,N,3] "clouds of points";
                        npoint: int in [0, 1048576] "points to take",
                        start: int in [0, 2147483647] = 0 "index of the first one",
                        min_sq_norm: float = -1 "points whose squared norm is at most this are never selected; PointNet++ code for CUDA uses 1e-3",
                        tie_order: string in {lowest_index, pointnet2} = lowest_index "who wins among equally far points; pointnet2 is the order of the PointNet++ CUDA kernel")
        -> idx: i32[B,npoint] "indices, in the order taken"
        where T in {f16, f32, f64}
  )")
              .cpu(pvn3d::best_farthest_point_sample_kernel())
              .cuda(OPBRIDGE_CUDA_KERNEL(farthest_point_sample_cuda))
              .workspace(pvn3d::any_farthest_point_sample_workspace)};
}
#endif
