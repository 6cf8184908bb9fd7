#include "threads.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace opbridge {

OwnThreads::OwnThreads(int requested) : count(requested) {
  if (requested > 0) return;
  static const unsigned machine = std::max(1u, std::thread::hardware_concurrency());  // reads files: 30 us
  count = static_cast<int>(machine);
}

// Threads are started for each call (about 20 us each): a pool would have to survive fork() and dlclose().
void own_parallel_for(void* host, void (*task)(void*, size_t), size_t chunks, void* data) {
  const size_t threads = std::min(static_cast<size_t>(static_cast<OwnThreads*>(host)->count), chunks);
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < chunks; i = next++) task(data, i);
  };
  std::vector<std::thread> others;
  try {
    others.reserve(threads);
    for (size_t i = 1; i < threads; ++i) others.emplace_back(work);
  } catch (...) {
    // The system has no thread left to give: those that are there do the work.
  }
  work();
  for (std::thread& t : others) t.join();
}

}  // namespace opbridge
