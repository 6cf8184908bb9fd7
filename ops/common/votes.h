// Collecting votes, and the attributes that VoteAggregate and PVN3DPoseSolve share.
#pragma once

#include <algorithm>
#include <string>

#include "common/mean_shift.h"
#include "common/points.h"
#include "opbridge/op.h"

namespace pvn3d {

/// The vote of a point.
template <class C, class T>
OPBRIDGE_HD Point<C> vote(const T* points, const T* offsets, int64_t i, C sign) {
  const Point<C> p = load_point(points, i), o = load_point(offsets, i);
  return {p.x + sign * o.x, p.y + sign * o.y, p.z + sign * o.z};
}

/// What one mean shift needs: the votes, and which point each came from.
template <class C>
struct VoteSet {
  VoteSet(Arena& arena, int64_t n) : votes(arena, n), point(arena.take<int32_t>(n)) {}

  /// Takes the votes of the points that point_of(0 .. count) names, leaving out negative ones and votes that
  /// are not finite. Returns how many there are.
  template <class T, class PointOf>
  int64_t collect(const T* points, const T* offsets, C sign, int64_t count, const PointOf& point_of) const {
    int64_t taken = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t who = point_of(i);
      if (who < 0) continue;
      const Point<C> v = vote<C>(points, offsets, who, sign);
      if (!is_finite(v.x, v.y, v.z)) continue;
      votes.x[taken] = v.x;
      votes.y[taken] = v.y;
      votes.z[taken] = v.z;
      point[taken++] = static_cast<int32_t>(who);
    }
    return taken;
  }

  MeanShiftMemory<C> votes;
  int32_t* point;
};

/// Bytes that Layout(arena, sizes...) takes.
template <class Layout, class... Sizes>
size_t bytes_of(Sizes... sizes) {
  Arena arena;
  Layout(arena, sizes...);
  return arena.used();
}

inline MeanShiftOptions mean_shift_options(const opbridge::Call& call) {
  MeanShiftOptions o;
  o.bandwidth = call.attr_float("bandwidth");
  o.max_iter = call.attr_int("max_iter");
  o.tol = call.attr_float("tol");
  o.upstream = call.attr_string("stop") == "upstream";
  o.blurring = call.attr_string("variant") == "ffb6d";
  return o;
}

/// -1 or 1; 0 lies in the attribute's range but is neither.
inline int offset_sign(const opbridge::Call& call) {
  const int64_t sign = call.attr_int("offset_sign");
  if (sign == 0) throw opbridge::InvalidArgument("attribute 'offset_sign' must be -1 or 1, got 0");
  return static_cast<int>(sign);
}

/// Problems that have workspace of their own: so many can run at the same time. Fixed, so that results and
/// memory do not depend on the number of threads.
constexpr int64_t kSlots = 8;

/// Runs body(problem, arena) for every problem in [0, n); each of at most kSlots threads has `slot_bytes` of
/// workspace at call.workspace() + offset.
template <class Body>
void for_each_problem(const opbridge::Call& call, int64_t n, size_t offset, size_t slot_bytes,
                      const Body& body) {
  const int64_t slots = std::min(n, kSlots);
  call.parallel_for(slots, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      for (int64_t problem = slot; problem < n; problem += slots) {
        Arena arena(static_cast<char*>(call.workspace()) + offset + slot_bytes * static_cast<size_t>(slot));
        body(problem, arena);
      }
    }
  });
}

}  // namespace pvn3d
