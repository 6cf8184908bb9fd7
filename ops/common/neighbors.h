// The k nearest points: what KNN and ThreeNN do.
#pragma once

#include <cmath>
#include <limits>

#include "common/points.h"
#include "opbridge/op.h"

namespace pvn3d {

/// For each of m queries the k nearest of n points, by (squared distance, index); slots without one get 0 and
/// +inf. `dist` may be null; it gets the root unless `squared`.
template <class T>
void nearest_neighbors(const opbridge::Call& call, const T* xyz, int64_t n, const T* query, int64_t m,
                       int64_t clouds, int64_t k, bool squared, int32_t* idx, T* dist) {
  using C = Compute<T>;
  constexpr C inf = std::numeric_limits<C>::infinity();
  call.parallel_for(clouds * m, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* points = xyz + i / m * n * 3;
      const auto q = load_point(query, i);
      C d[1024];
      int32_t id[1024];
      int64_t found = 0;
      for (int64_t j = 0; j < n; ++j) {
        const auto p = load_point(points, j);
        const C d2 = squared_distance(p.x, p.y, p.z, q.x, q.y, q.z);
        if (!(d2 < (found < k ? inf : d[k - 1]))) continue;
        int64_t slot = found < k ? found++ : k - 1;
        for (; slot > 0 && d[slot - 1] > d2; --slot) {
          d[slot] = d[slot - 1];
          id[slot] = id[slot - 1];
        }
        d[slot] = d2;
        id[slot] = static_cast<int32_t>(j);
      }
      for (int64_t s = 0; s < k; ++s) {
        idx[i * k + s] = s < found ? id[s] : 0;
        if (dist != nullptr)
          dist[i * k + s] = static_cast<T>(s >= found ? inf : squared ? d[s] : std::sqrt(d[s]));
      }
    }
  });
}

}  // namespace pvn3d
