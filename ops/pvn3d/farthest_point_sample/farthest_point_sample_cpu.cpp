#include <string>

#include "common/arena.h"
#include "farthest_point_sample/farthest_point_sample.h"

namespace {

using opbridge::Call;
using opbridge::InvalidArgument;

struct Layout {
  double* best;
  Layout(pvn3d::Arena& a, int64_t clouds, int64_t n) : best(a.take<double>(clouds * n)) {}
};

size_t workspace(const Call& call) {
  pvn3d::Arena arena;
  Layout(arena, call.input_arg(0).shape[0], call.input_arg(0).shape[1]);
  return arena.used();
}

void farthest_point_sample_cpu(const Call& call) {
  const int64_t clouds = call.input_arg(0).shape[0], n = call.input_arg(0).shape[1];
  const int64_t npoint = call.attr_int("npoint"), start = call.attr_int("start");
  if (clouds == 0 || npoint == 0) return;
  if (n == 0) throw InvalidArgument("'xyz' has no point to sample from");
  if (start >= n)
    throw InvalidArgument("attribute 'start' must be less than N=" + std::to_string(n) + ", got " +
                          std::to_string(start));
  pvn3d::Arena arena(call.workspace());
  const Layout layout(arena, clouds, n);
  const farthest_point_sample::TieOrder ties(call.attr_choice("tie_order"), n);
  int32_t* idx = call.output<int32_t>(0).data();
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    using C = pvn3d::Compute<T>;
    const C min_sq_norm = call.attr_float("min_sq_norm");
    call.parallel_for(clouds, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const T* xyz = call.input<T>(0).data() + b * n * 3;
        double* best = layout.best + b * n;
        for (int64_t k = 0; k < n; ++k) {
          best[k] = farthest_point_sample::selectable(pvn3d::load_point(xyz, k), min_sq_norm)
                        ? farthest_point_sample::kFarthest
                        : -1.0;
        }
        int64_t last = start;
        for (int64_t j = 0; j < npoint; ++j) {
          idx[b * npoint + j] = static_cast<int32_t>(last);
          const auto p = pvn3d::load_point(xyz, last);
          int64_t winner = -1;
          for (int64_t k = 0; k < n; ++k) {
            if (best[k] < 0) continue;
            const auto q = pvn3d::load_point(xyz, k);
            const C d = pvn3d::squared_distance(q.x, q.y, q.z, p.x, p.y, p.z);
            if (d < best[k]) best[k] = d;
            if (winner < 0 || best[k] > best[winner] ||
                (best[k] == best[winner] &&
                 ties.rank(static_cast<uint32_t>(k)) < ties.rank(static_cast<uint32_t>(winner)))) {
              winner = k;
            }
          }
          last = winner < 0 ? start : winner;
        }
      }
    });
  });
}

}  // namespace

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
              .cpu(farthest_point_sample_cpu)
              .workspace(workspace)};
}
