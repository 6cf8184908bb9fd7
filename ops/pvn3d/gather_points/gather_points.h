#pragma once

#include "common/points.h"
#include "opbridge/op.h"

/// Takes points out of channel-first features.
///   features  (B, C, N) T
///   idx       (B, M) i32 or i64
///   out       (B, C, M) T         features at idx, the same for all channels
/// T is f16, f32 or f64.
/// Edges: an index outside 0..N-1 (all of them when N is 0) reads as 0.0 and touches no memory; M 0 gives an
///   empty output.
/// Numerics: a copy, exact on every device.
/// Memory: workspace 16 N bytes for each of up to 16 groups of channels a batch (f32 on the CPU, else none);
///   GatherPointsGrad 4 (N + M) bytes a batch, on CUDA up to 4 N + 16 M; an output may not alias an input.
/// Cost: O(B C M), bound by memory traffic.
/// Gradient: GatherPointsGrad, the sum over the positions that took a point, in ascending order and in f64, so
///   the same bits whatever the threads; none for idx; a bad index gives nothing.
/// Errors: shape or dtype outside this table.
/// Source: PointNet++'s gather_points.
void gather_points_cuda(const opbridge::Call& call);
void gather_points_grad_cuda(const opbridge::Call& call);
