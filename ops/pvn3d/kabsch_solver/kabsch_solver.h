#pragma once

#include "common/rigid.h"
#include "opbridge/op.h"

/// Rotation R and translation t that bring one point set onto another: minimises sum w |R template + t - pred|^2.
///   template_kps  (N, 3) or (*B, N, 3)  T    [m], object frame
///   pred_kps      (*B, N, 3)            T    [m], camera frame
///   weights       (N) or (*B, N)        T    >= 0; absent: all 1. Only their ratios matter
///   rotation      (*B, 3, 3)            T    R, row-major, det +1: pred = R template + t for column vectors
///   translation   (*B, 3)               T    [m], camera frame
///   valid         (*B)                  i32  0 no pose, 1 the pose, 2 a best pose, but not the only one
/// T is f16, f32 or f64. B is any number of dimensions, none in the published recipe.
/// Edges: points in a plane have one pose, mirrored ones too. On a line, coincident, or mirrored with two equal
///   singular values: one of the best, valid 2 (coincident: R = I). No points, weights that add up to 0 or less,
///   NaN or infinity anywhere: R = I, t = 0, valid 0.
/// Numerics: everything in f64, whatever T; covariance scaled by its largest entry, so that any unit of length
///   works.
/// Memory: no workspace; an output may not alias an input.   Cost: O(B N); 0.1 us a problem of 9 points with AVX2.
/// Gradient: kabsch_solver_grad, for rotation and translation with respect to both point sets and the weights.
///   Where the pose is not unique the undetermined direction gets 0.
/// Errors: shape or dtype outside this table.
/// Source: Kabsch 1976, Umeyama 1991 (determinant), Horn 1987 (quaternion). Differs from pytorch3d, which
///   returns R^T.
void kabsch_solver_cuda(const opbridge::Call& call);
void kabsch_solver_grad_cuda(const opbridge::Call& call);

namespace pvn3d {

constexpr int64_t kKabschGrain = 64;  // problems a CPU thread takes at a time

/// One problem: n points of each set.
template <class T>
struct KabschProblem {
  const T *a, *b, *w;  // w may be null
  int64_t n;

  OPBRIDGE_HD Point<double> point_a(int64_t i) const { return widen(a, i); }
  OPBRIDGE_HD Point<double> point_b(int64_t i) const { return widen(b, i); }
  OPBRIDGE_HD double weight(int64_t i) const { return w == nullptr ? 1.0 : static_cast<double>(w[i]); }

  OPBRIDGE_HD static Point<double> widen(const T* p, int64_t i) {
    return {static_cast<double>(p[3 * i]), static_cast<double>(p[3 * i + 1]),
            static_cast<double>(p[3 * i + 2])};
  }
};

/// The problems of a call; a set without the leading dimensions of pred_kps serves every problem.
template <class T>
struct KabschProblems {
  KabschProblems(const opbridge::Tensor<const T>& a_, const opbridge::Tensor<const T>& b_,
                 const opbridge::Tensor<const T>& w_)
      : a(a_.data()),
        b(b_.data()),
        w(w_.data()),
        n(b_.size(-2)),
        a_step(a_.rank() == b_.rank() ? 3 * n : 0),
        w_step(w_ && w_.rank() == b_.rank() - 1 ? n : 0),
        count(1) {
    for (int d = 0; d < b_.rank() - 2; ++d) count *= b_.size(d);
  }
  OPBRIDGE_HD KabschProblem<T> operator[](int64_t i) const {
    return {a + a_step * i, b + 3 * n * i, w == nullptr ? nullptr : w + w_step * i, n};
  }

  const T *a, *b, *w;  // w is null where all points weigh the same
  int64_t n, a_step, w_step, count;
};

/// Gradient of a pose with respect to its points and weights. With M = R H (symmetric at the optimum), a turn
/// w of R follows from a change of H by (tr(M) I - M) w = -axial(R dH); the rest is the chain rule. Outputs
/// may be null.
template <class T>
OPBRIDGE_HD void kabsch_gradient(const KabschProblem<T>& p, const double* grad_r, const double* grad_t,
                                 T* grad_a, T* grad_b, T* grad_w) {
  const Covariance c(p, p.n);
  double r[9], t[3];
  const bool valid = align(c, r, t) != kNoPose;
  // t = mean_b - R mean_a adds to what reaches R.
  double g[9];
  for (int u = 0; u < 3; ++u) {
    for (int v = 0; v < 3; ++v) g[3 * u + v] = grad_r[3 * u + v] - (valid ? grad_t[u] * c.mean_a[v] : 0);
  }
  const auto dot3 = [](const double* x, int sx, const double* y, int sy) {
    return x[0] * y[0] + x[sx] * y[sy] + x[2 * sx] * y[2 * sy];
  };
  double m[3][3], gr[9];
  for (int u = 0; u < 3; ++u) {
    for (int v = 0; v < 3; ++v) {
      m[u][v] = dot3(r + 3 * u, 1, c.h + v, 3);
      gr[3 * u + v] = dot3(g + 3 * u, 1, r + 3 * v, 1);  // g R^T
    }
  }
  const double turn[3] = {gr[7] - gr[5], gr[2] - gr[6], gr[3] - gr[1]};
  // y = (tr(M) I - M)^-1 turn through the eigenvectors; directions that the points do not determine get 0.
  const double trace = m[0][0] + m[1][1] + m[2][2];
  double k[3][3], e[3][3];
  for (int u = 0; u < 3; ++u) {
    for (int v = 0; v < 3; ++v) k[u][v] = (u == v ? trace : 0) - 0.5 * (m[u][v] + m[v][u]);
  }
  jacobi_eigen(k, e);
  double top = 0;
  for (int u = 0; u < 3; ++u) top = k[u][u] > top ? k[u][u] : top;
  double y[3] = {0, 0, 0};
  for (int u = 0; u < 3; ++u) {
    if (!(k[u][u] > 1e-9 * top)) continue;
    const double along = (e[0][u] * turn[0] + e[1][u] * turn[1] + e[2][u] * turn[2]) / k[u][u];
    for (int v = 0; v < 3; ++v) y[v] += along * e[v][u];
  }
  // grad H = -R^T [y]x
  const double cross[9] = {0, -y[2], y[1], y[2], 0, -y[0], -y[1], y[0], 0};
  double gh[9];
  for (int u = 0; u < 3; ++u) {
    for (int v = 0; v < 3; ++v) gh[3 * u + v] = -dot3(r + u, 3, cross + v, 3);
  }
  double back_t[3];  // R^T grad_t
  for (int u = 0; u < 3; ++u) back_t[u] = dot3(r + u, 3, grad_t, 1);
  for (int64_t i = 0; i < p.n; ++i) {
    double da[3] = {0, 0, 0}, db[3] = {0, 0, 0}, ga[3] = {0, 0, 0}, gb[3] = {0, 0, 0}, gw = 0;
    if (valid) {
      const double w = p.weight(i);
      const Point<double> a = p.point_a(i), b = p.point_b(i);
      da[0] = a.x - c.mean_a[0], da[1] = a.y - c.mean_a[1], da[2] = a.z - c.mean_a[2];
      db[0] = b.x - c.mean_b[0], db[1] = b.y - c.mean_b[1], db[2] = b.z - c.mean_b[2];
      for (int u = 0; u < 3; ++u) {
        const double hb = dot3(gh + 3 * u, 1, db, 1), ha = dot3(gh + u, 3, da, 1);
        ga[u] = w * (hb - back_t[u] / c.total);
        gb[u] = w * (ha + grad_t[u] / c.total);
        gw += da[u] * hb + (grad_t[u] * db[u] - back_t[u] * da[u]) / c.total;
      }
    }
    for (int u = 0; u < 3; ++u) {
      if (grad_a != nullptr) grad_a[3 * i + u] = static_cast<T>(ga[u]);
      if (grad_b != nullptr) grad_b[3 * i + u] = static_cast<T>(gb[u]);
    }
    if (grad_w != nullptr) grad_w[i] = static_cast<T>(gw);
  }
}

}  // namespace pvn3d
