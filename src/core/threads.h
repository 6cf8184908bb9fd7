// The library's own parallel-for, for hosts that lend no pool.
#pragma once

#include <cstddef>

namespace opbridge {

/// Threads for own_parallel_for: `requested`, or as many as the machine has when that is 0.
struct OwnThreads {
  explicit OwnThreads(int requested);
  int count;
};

/// A ParallelFor whose host is an OwnThreads.
void own_parallel_for(void* host, void (*task)(void* data, size_t chunk), size_t chunks, void* data);

}  // namespace opbridge
