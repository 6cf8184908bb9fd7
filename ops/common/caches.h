// When to write past the caches.
#pragma once

#include <cstdint>

namespace pvn3d {

/// Whether an output is larger than the caches, so that it is better written past them.
inline bool outgrows_caches(int64_t bytes) { return bytes > (4 << 20); }

}  // namespace pvn3d
