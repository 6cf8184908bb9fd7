#pragma once

#include "common/exp.h"
#include "common/rigid.h"
#include "common/votes.h"
#include "opbridge/op.h"

/// Keypoints that a cloud votes for: each point's vote is point + offset_sign * offset, and mean shift finds the
/// centre of the densest votes.
///   points       (B, N, 3)     T                 [m], camera frame
///   offsets      (B, K, N, 3)  T                 [m]; K keypoints
///   mask         (B, N)        bool, i32 or i64  nonzero: the point votes; absent: all do
///   bandwidth    attr float, 1e-9..1e9, = 0.08   [m] of the Gaussian exp(-d^2 / 2 h^2), and radius of the count
///   max_iter     attr int, 0..100000, = 300      at most max_iter + 1 updates, as upstream counts
///   tol          attr float > 0, = 1e-3          at rest when a step is shorter than tol * bandwidth
///   stop         attr converged | upstream       see Numerics
///   offset_sign  attr int, -1 or 1, = -1         networks of PVN3D and FFB6D predict point - keypoint
///   variant      attr pvn3d | ffb6d              pvn3d: votes stand still; ffb6d: they move too (blurring)
///   kps          (B, K, 3)     T                 [m], camera frame
///   count        (B, K)        i32               votes closer than bandwidth (strictly, itself included) to the winner
///   seed         (B, K)        i32               point whose vote won, the first of equals; -1 when nobody votes
/// T is f16, f32 or f64.
/// Edges: votes that are NaN or infinite do not count; no votes give kps 0, count 0, seed -1; one vote wins by
///   itself.
/// Numerics: f32 for f16 and f32, f64 for f64. Counts decide, so no fused multiply-add there; a centre's sums
///   have one order on every device and with any number of threads. stop = converged moves only the winning
///   vote, until its own step is below min(tol, 1e-4) * bandwidth: within 3e-4 bandwidths of upstream. stop =
///   upstream repeats upstream's global number of updates and costs N times as much. Variant ffb6d always stops
///   as upstream does.
/// Memory: workspace about 40 N bytes (f32) for each of up to 8 keypoints at a time; on CUDA 16 N for each of the B K, and
///   28 N with ffb6d or stop = upstream; the gradient takes none there; no output may alias an input.
/// Cost: O(N log N) where votes agree, O(N^2) where they do not; ffb6d and upstream O(N^2) an update.
/// Gradient: vote_aggregate_grad, of the centre with respect to points and offsets, by implicit differentiation
///   where mean shift is at rest (variant pvn3d, whatever `stop`); bandwidth gets none.
/// Errors: shape, dtype or attribute outside this table; the gradient of variant ffb6d.
/// Source: PVN3D (He et al. 2020), meanshift_pytorch; FFB6D (He et al. 2021); Comaniciu and Meer 2002.
void vote_aggregate_cuda(const opbridge::Call& call);
void vote_aggregate_grad_cuda(const opbridge::Call& call);
size_t vote_aggregate_cuda_workspace(const opbridge::Call& call);

namespace pvn3d {

/// A mask of whatever type, or none.
struct VoteMask {
  VoteMask(const opbridge::Call& call, int input) {
    if (!call.has_input(input)) return;
    data = call.input_arg(input).data;
    bytes = opbridge::dtype_size(call.input_dtype(input));
  }
  OPBRIDGE_HD bool operator()(int64_t i) const {
    if (data == nullptr) return true;
    if (bytes == 1) return static_cast<const uint8_t*>(data)[i] != 0;
    return bytes == 4 ? static_cast<const int32_t*>(data)[i] != 0 : static_cast<const int64_t*>(data)[i] != 0;
  }
  const void* data = nullptr;
  size_t bytes = 0;
};

/// Throws where there is no gradient.
inline void require_gradient(const opbridge::Call& call) {
  if (call.attr_string("variant") == "ffb6d") {
    throw opbridge::Error(opbridge::ErrorKind::kNotSupported,
                          "variant ffb6d has no gradient: its votes move too; train with variant pvn3d");
  }
}

/// The gradient of one problem. At rest sum_j w_j (v_j - c) = 0 with w_j = exp(-|v_j - c|^2 / 2 h^2), so
/// dc = A^-1 sum_j B_j dv_j with B_j = w_j (I - (v_j - c)(v_j - c)^T / h^2) and A = sum_j B_j; everything is symmetric.
/// Symmetric matrices are kept as their upper triangle, row by row.
template <class T>
struct VoteGradient {
  using C = Compute<T>;
  const T *points, *offsets, *kps;  // of this problem
  int64_t first;                    // the mask's element of its first point
  VoteMask mask;
  C sign;
  double h2;

  /// B_j of vote j: 0 where it does not count.
  OPBRIDGE_HD void jacobian(int64_t j, double* b) const {
    for (int q = 0; q < 6; ++q) b[q] = 0;
    const Point<C> v = vote<C>(points, offsets, j, sign);
    if (!mask(first + j) || !is_finite(v.x, v.y, v.z)) return;
    const double d[3] = {static_cast<double>(v.x) - static_cast<double>(kps[0]),
                         static_cast<double>(v.y) - static_cast<double>(kps[1]),
                         static_cast<double>(v.z) - static_cast<double>(kps[2])};
    const double w = exp_nonpositive(-0.5 * squared_norm(d[0], d[1], d[2]) / h2);
    for (int u = 0, at = 0; u < 3; ++u) {
      for (int c = u; c < 3; ++c, ++at) b[at] = w * ((u == c) - d[u] * d[c] / h2);
    }
  }

  /// y = A^-1 g through A's eigenvectors. At a mode A is positive definite; where it is not, nothing pulls.
  OPBRIDGE_HD static void solve(const double* a, const T* g, double* y) {
    double m[3][3] = {{a[0], a[1], a[2]}, {a[1], a[3], a[4]}, {a[2], a[4], a[5]}}, e[3][3];
    jacobi_eigen(m, e);
    double top = m[0][0];
    for (int q = 1; q < 3; ++q) top = m[q][q] > top ? m[q][q] : top;
    y[0] = y[1] = y[2] = 0;
    for (int q = 0; q < 3; ++q) {
      if (!(m[q][q] > 1e-9 * top)) continue;
      double along = 0;
      for (int u = 0; u < 3; ++u) along += e[u][q] * static_cast<double>(g[u]);
      for (int u = 0; u < 3; ++u) y[u] += along / m[q][q] * e[u][q];
    }
  }

  /// The gradient of the offset of a vote whose B_j is b.
  OPBRIDGE_HD static void of_offset(const double* b, const double* y, int offset_sign, T* grad) {
    const double g[3] = {b[0] * y[0] + b[1] * y[1] + b[2] * y[2], b[1] * y[0] + b[3] * y[1] + b[4] * y[2],
                         b[2] * y[0] + b[4] * y[1] + b[5] * y[2]};
    for (int u = 0; u < 3; ++u) grad[u] = static_cast<T>(offset_sign * g[u]);
  }
};

/// A point votes for all k keypoints: the gradient of point i of n from those of its offsets.
template <class T>
OPBRIDGE_HD void point_gradient(const T* grad_offsets, int64_t i, int64_t n, int64_t k, int offset_sign,
                                T* grad) {
  for (int u = 0; u < 3; ++u) {
    double sum = 0;
    for (int64_t q = 0; q < k; ++q)
      sum += static_cast<double>(grad_offsets[3 * ((i / n * k + q) * n + i % n) + u]);
    grad[u] = static_cast<T>(offset_sign * sum);
  }
}

}  // namespace pvn3d
