#include "ball_query/ball_query.h"

namespace {

using opbridge::Call;

void ball_query_cpu(const Call& call) {
  const int64_t clouds = call.input_arg(0).shape[0], n = call.input_arg(0).shape[1],
                m = call.input_arg(1).shape[1];
  if (clouds == 0 || m == 0) return;
  if (n == 0) throw opbridge::InvalidArgument("'xyz' has no points");
  const int64_t nsample = call.attr_int("nsample");
  int32_t* idx = call.output<int32_t>(0).data();
  int32_t* count = call.has_output(1) ? call.output<int32_t>(1).data() : nullptr;
  opbridge::dispatch<opbridge::f16, float, double>(call.input_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    using C = pvn3d::Compute<T>;
    const C radius = call.attr_float("radius"), min_radius = call.attr_float("min_radius");
    call.parallel_for(clouds * m, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* xyz = call.input<T>(0).data() + i / m * n * 3;
        const auto q = pvn3d::load_point(call.input<T>(1).data(), i);
        int32_t* row = idx + i * nsample;
        int64_t hits = 0;
        for (int64_t k = 0; k < n && hits < nsample; ++k) {
          const auto p = pvn3d::load_point(xyz, k);
          if (ball_query::inside(pvn3d::squared_distance(p.x, p.y, p.z, q.x, q.y, q.z),
                                 min_radius * min_radius, radius * radius)) {
            row[hits++] = static_cast<int32_t>(k);
          }
        }
        for (int64_t s = hits; s < nsample; ++s) row[s] = hits > 0 ? row[0] : 0;
        if (count != nullptr) count[i] = static_cast<int32_t>(hits);
      }
    });
  });
}

}  // namespace

OPBRIDGE_OPERATORS(ball_query) {
  return {opbridge::Operator(R"(
    "For each centre, the indices of the first points closer than radius."
    BallQuery(xyz: T[B,N,3]     "clouds of points",
              new_xyz: T[B,M,3] "centres, in the same frame";
              radius: float in (0, inf) "a point at exactly this distance is outside",
              nsample: int in [1, 1024] "slots a centre",
              min_radius: float in [0, inf) = 0 "points closer than this do not count, except at distance 0")
        -> (idx: i32[B,M,nsample] "ascending indices; unused slots repeat the first; all 0 where nothing is inside",
            count?: i32[B,M]      "points found, at most nsample")
        where T in {f16, f32, f64}
  )")
              .cpu(ball_query_cpu)};
}
