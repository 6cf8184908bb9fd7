// nanoflann as a user would call it, behind a C interface for ctypes: what BallQuery, KNN and ThreeNN are
// measured against.
#include <algorithm>
#include <cstdint>
#include <nanoflann.hpp>
#include <vector>

namespace {

struct Cloud {
  const float* xyz;
  size_t n;
  size_t kdtree_get_point_count() const { return n; }
  float kdtree_get_pt(size_t i, size_t axis) const { return xyz[3 * i + axis]; }
  template <class Box>
  bool kdtree_get_bbox(Box&) const {
    return false;
  }
};
using Tree =
    nanoflann::KDTreeSingleIndexAdaptor<nanoflann::L2_Simple_Adaptor<float, Cloud>, Cloud, 3, uint32_t>;

}  // namespace

extern "C" int nanoflann_version() { return NANOFLANN_VERSION; }

extern "C" void nanoflann_knn(const float* xyz, int64_t n, const float* query, int64_t m, int64_t k,
                              uint32_t* idx, float* d2) {
  const Cloud cloud{xyz, static_cast<size_t>(n)};
  const Tree tree(3, cloud, nanoflann::KDTreeSingleIndexAdaptorParams(16));
  for (int64_t i = 0; i < m; ++i)
    tree.knnSearch(query + 3 * i, static_cast<size_t>(k), idx + i * k, d2 + i * k);
}

extern "C" void nanoflann_ball(const float* xyz, int64_t n, const float* centres, int64_t m, float radius,
                               int64_t k, int32_t* idx) {
  const Cloud cloud{xyz, static_cast<size_t>(n)};
  const Tree tree(3, cloud, nanoflann::KDTreeSingleIndexAdaptorParams(16));
  std::vector<std::pair<uint32_t, float>> hits;
  nanoflann::SearchParams unsorted;
  unsorted.sorted = false;
  for (int64_t i = 0; i < m; ++i, idx += k) {
    hits.clear();
    tree.radiusSearch(centres + 3 * i, radius * radius, hits, unsorted);
    const auto kept = std::min(hits.size(), static_cast<size_t>(k));
    std::nth_element(hits.begin(), hits.begin() + static_cast<int64_t>(kept), hits.end());
    std::sort(hits.begin(), hits.begin() + static_cast<int64_t>(kept));
    for (size_t s = 0; s < static_cast<size_t>(k); ++s) {
      idx[s] = hits.empty() ? 0 : static_cast<int32_t>(hits[s < kept ? s : 0].first);
    }
  }
}
