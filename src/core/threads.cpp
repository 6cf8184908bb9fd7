#include "threads.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace opbridge {

OwnThreads::OwnThreads(int requested)
    : count(requested > 0 ? requested : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))) {}

// Threads are started for each call (about 20 us each): a pool would have to survive fork() and dlclose().
void own_parallel_for(void* host, void (*task)(void*, size_t), size_t chunks, void* data) {
  const size_t threads = std::min(static_cast<size_t>(static_cast<OwnThreads*>(host)->count), chunks);
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < chunks; i = next++) task(data, i);
  };
  std::vector<std::thread> others;
  try {
    for (size_t i = 1; i < threads; ++i) others.emplace_back(work);
  } catch (const std::system_error&) {
    // The system has no thread left to give: those that are there do the work.
  }
  work();
  for (std::thread& t : others) t.join();
}

}  // namespace opbridge
