#pragma once

#include "common/points.h"
#include "opbridge/op.h"

/// Takes groups of points out of channel-first features.
///   features  (B, C, N) T
///   idx       (B, M, S) i32 or i64
///   out       (B, C, M, S) T      features at idx, the same for all channels
/// T is f16, f32 or f64.
/// Edges: an index outside 0..N-1 (all of them when N is 0) reads as 0.0 and touches no memory; M or S 0 gives
///   an empty output.
/// Numerics: a copy, exact on every device.
/// Memory: workspace 16 N bytes for each of up to 16 groups of channels a batch (f32 on the CPU, else none);
///   GroupPointsGrad 4 (N + M S) bytes a batch, on CUDA up to 4 N + 16 M S. The output is a fresh tensor: callers
///   subtract the centre from it in place.
/// Cost: O(B C M S), bound by memory traffic.
/// Gradient: GroupPointsGrad, the sum over the positions that took a point, in ascending order and in f64, so
///   the same bits whatever the threads; none for idx; a bad index gives nothing.
/// Errors: shape or dtype outside this table.
/// Source: PointNet++'s group_points.
void group_points_cuda(const opbridge::Call& call);
void group_points_grad_cuda(const opbridge::Call& call);
