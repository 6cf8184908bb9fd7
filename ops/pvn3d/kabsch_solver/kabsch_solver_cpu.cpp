#include "kabsch_solver/kabsch_solver.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kabsch_solver/kabsch_solver_cpu.cpp"
#include "common/simd.h"
// After it, always.

HWY_BEFORE_NAMESPACE();
namespace pvn3d::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<double, 8>;

/// What a comparison of Lanes gives.
struct Mask {
  hn::Mask<D> m;
  friend HWY_INLINE Mask operator&(Mask a, Mask b) { return {hn::And(a.m, b.m)}; }
  friend HWY_INLINE Mask operator!(Mask a) { return {hn::Not(a.m)}; }
  friend HWY_INLINE bool any(Mask a) { return !hn::AllFalse(D(), a.m); }
};

/// A number of each of several problems side by side. Every operation rounds as it does for one: the same bits.
struct Lanes {
  hn::Vec<D> v;
  HWY_INLINE Lanes() = default;
  HWY_INLINE Lanes(hn::Vec<D> v_) : v(v_) {}
  HWY_INLINE Lanes(double x) : v(hn::Set(D(), x)) {}
  friend HWY_INLINE Lanes operator+(Lanes a, Lanes b) { return hn::Add(a.v, b.v); }
  friend HWY_INLINE Lanes operator-(Lanes a, Lanes b) { return hn::Sub(a.v, b.v); }
  friend HWY_INLINE Lanes operator-(Lanes a) { return hn::Neg(a.v); }
  friend HWY_INLINE Lanes operator*(Lanes a, Lanes b) { return hn::Mul(a.v, b.v); }
  friend HWY_INLINE Lanes operator/(Lanes a, Lanes b) { return hn::Div(a.v, b.v); }
  friend HWY_INLINE Lanes sqrt(Lanes a) { return hn::Sqrt(a.v); }
  friend HWY_INLINE Lanes fabs(Lanes a) { return hn::Abs(a.v); }
  friend HWY_INLINE Mask operator>(Lanes a, Lanes b) { return {hn::Gt(a.v, b.v)}; }
  friend HWY_INLINE Mask operator==(Lanes a, Lanes b) { return {hn::Eq(a.v, b.v)}; }
  friend HWY_INLINE Lanes select(Mask which, Lanes yes, Lanes no) {
    return hn::IfThenElse(which.m, yes.v, no.v);
  }
};

#include "common/horn-inl.h"

constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
constexpr int64_t kMostPoints = 64;  // of problems that are solved side by side; above, one is work enough

/// As many problems as there are lanes, coordinate by coordinate.
template <class T>
class Together {
 public:
  Together(const KabschProblems<T>& problems, int64_t first) : weighted_(problems.w != nullptr) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto p = problems[first + lane];
      for (int64_t i = 0; i < 3 * p.n; ++i) {
        a_[i][lane] = static_cast<double>(p.a[i]);
        b_[i][lane] = static_cast<double>(p.b[i]);
      }
      for (int64_t i = 0; weighted_ && i < p.n; ++i) w_[i][lane] = static_cast<double>(p.w[i]);
    }
  }
  HWY_INLINE Point<Lanes> point_a(int64_t i) const { return point(a_ + 3 * i); }
  HWY_INLINE Point<Lanes> point_b(int64_t i) const { return point(b_ + 3 * i); }
  HWY_INLINE Lanes weight(int64_t i) const { return weighted_ ? hn::Load(D(), w_[i]) : hn::Set(D(), 1.0); }

 private:
  static HWY_INLINE Point<Lanes> point(const double (*p)[kLanes]) {
    return {hn::Load(D(), p[0]), hn::Load(D(), p[1]), hn::Load(D(), p[2])};
  }

  bool weighted_;
  HWY_ALIGN double a_[3 * kMostPoints][kLanes], b_[3 * kMostPoints][kLanes], w_[kMostPoints][kLanes];
};

template <class T>
struct Outputs {
  T *rotation, *translation;
  int32_t* valid;  // may be null

  void write(int64_t i, const double* r, const double* t, PoseValid worth) const {
    for (int k = 0; k < 9; ++k) rotation[9 * i + k] = static_cast<T>(r[k]);
    for (int k = 0; k < 3; ++k) translation[3 * i + k] = static_cast<T>(t[k]);
    if (valid != nullptr) valid[i] = worth;
  }
};

template <class T>
void solve_one(const KabschProblems<T>& problems, int64_t i, const Outputs<T>& out) {
  const auto p = problems[i];
  double r[9], t[3];
  const PoseValid worth = pvn3d::align(pvn3d::Covariance(p, p.n), r, t);
  out.write(i, r, t, worth);
}

/// Those from `first` on, one a lane; what is not clear is left to align().
template <class T>
void solve_together(const KabschProblems<T>& problems, int64_t first, const Outputs<T>& out) {
  const Covariance<Lanes> c(Together<T>(problems, first), problems.n);
  Lanes r[9], t[3];
  const Mask clear = c.valid() & clear_rotation(c.h, r);
  translation_of(c, r, t);
  HWY_ALIGN double rows[12][kLanes], pose[12];
  for (int k = 0; k < 9; ++k) hn::Store(r[k].v, D(), rows[k]);
  for (int k = 0; k < 3; ++k) hn::Store(t[k].v, D(), rows[9 + k]);
  uint8_t bits[8] = {};
  hn::StoreMaskBits(D(), clear.m, bits);
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((bits[0] >> lane & 1) == 0) {
      solve_one(problems, first + lane, out);
      continue;
    }
    for (int k = 0; k < 12; ++k) pose[k] = rows[k][lane];
    out.write(first + lane, pose, pose + 9, kPose);
  }
}

void kabsch_solver_cpu(const opbridge::Call& call) {
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const KabschProblems<T> problems(call.input<T>(0), call.input<T>(1), call.input<T>(2));
    const Outputs<T> out{call.output<T>(0).data(), call.output<T>(1).data(), call.output<int32_t>(2).data()};
    call.parallel_for(problems.count, kKabschGrain, [&](int64_t begin, int64_t end) {
      int64_t i = begin;
      if (problems.n <= kMostPoints) {
        for (; i + kLanes <= end; i += kLanes) solve_together(problems, i, out);
      }
      for (; i < end; ++i) solve_one(problems, i, out);
    });
  });
}

}  // namespace pvn3d::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pvn3d {
OPBRIDGE_DISPATCHED_KERNEL(kabsch_solver_cpu)
}  // namespace pvn3d

namespace {

using opbridge::Call;
using opbridge::dispatch;
using opbridge::f16;
using pvn3d::KabschProblems;

void solve_grad(const Call& call) {
  dispatch<f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const auto grad_r = call.input<T>(0), grad_t = call.input<T>(1);
    const KabschProblems<T> problems(call.input<T>(2), call.input<T>(3), call.input<T>(4));
    const auto grad_a = call.output<T>(0), grad_b = call.output<T>(1), grad_w = call.output<T>(2);
    const int64_t n = problems.n;
    call.parallel_for(problems.count, pvn3d::kKabschGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double gr[9], gt[3];
        for (int k = 0; k < 9; ++k) gr[k] = static_cast<double>(grad_r[9 * i + k]);
        for (int k = 0; k < 3; ++k) gt[k] = static_cast<double>(grad_t[3 * i + k]);
        pvn3d::kabsch_gradient<T>(problems[i], gr, gt, grad_a.data() + 3 * n * i, grad_b.data() + 3 * n * i,
                                  grad_w.data() + n * i);
      }
    });
  });
}

}  // namespace

OPBRIDGE_OPERATORS(kabsch_solver) {
  return {
      opbridge::Operator(R"sig(
        "Rotation and translation that bring template_kps onto pred_kps with the least squared error (Kabsch)."
        KabschSolver(template_kps: T[*B?,N,3] "points in the object's frame [m]; without leading dimensions they serve every problem",
                     pred_kps: T[*B,N,3]      "the same points in the camera's frame [m]",
                     weights?: T[*B?,N]       "how much each point counts, >= 0; absent: all alike")
            -> (rotation: T[*B,3,3]   "R, det +1: pred = R template + t for column vectors",
                translation: T[*B,3]  "t [m]",
                valid?: i32[*B]       "0 no pose (R = I, t = 0), 1 the pose, 2 a best pose but not the only one")
            where T in {f16, f32, f64}
            grad: KabschSolverGrad
      )sig")
          .cpu(pvn3d::best_kabsch_solver_cpu())
          .cuda(OPBRIDGE_CUDA_KERNEL(kabsch_solver_cuda)),
      opbridge::Operator(R"sig(
        "Gradient of KabschSolver; gradients of an input without leading dimensions are to be summed over them."
        KabschSolverGrad(grad_rotation: T[*B,3,3]  "gradient of rotation",
                         grad_translation: T[*B,3] "gradient of translation",
                         template_kps: T[*B?,N,3]  "as given to KabschSolver",
                         pred_kps: T[*B,N,3]       "as given to KabschSolver",
                         weights?: T[*B?,N]        "as given to KabschSolver")
            -> (grad_template_kps: T[*B,N,3] "gradient for each problem",
                grad_pred_kps: T[*B,N,3]     "gradient of pred_kps",
                grad_weights: T[*B,N]        "gradient for each problem")
            where T in {f16, f32, f64}
      )sig")
          .cpu(solve_grad)
          .cuda(OPBRIDGE_CUDA_KERNEL(kabsch_solver_grad_cuda)),
  };
}
#endif
