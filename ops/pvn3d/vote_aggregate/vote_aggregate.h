#pragma once

#include "common/mean_shift.h"
#include "common/points.h"
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
/// Memory: workspace about 40 N bytes (f32) for each of up to 8 keypoints at a time; no output may alias an input.
/// Cost: O(N log N) where votes agree, O(N^2) where they do not; ffb6d and upstream O(N^2) an update.
/// Gradient: vote_aggregate_grad, of the centre with respect to points and offsets, by implicit differentiation
///   where mean shift is at rest (variant pvn3d, whatever `stop`); bandwidth gets none.
/// Errors: shape, dtype or attribute outside this table; the gradient of variant ffb6d.
/// Source: PVN3D (He et al. 2020), meanshift_pytorch; FFB6D (He et al. 2021); Comaniciu and Meer 2002.
void vote_aggregate_cuda(const opbridge::Call& call);
void vote_aggregate_grad_cuda(const opbridge::Call& call);
