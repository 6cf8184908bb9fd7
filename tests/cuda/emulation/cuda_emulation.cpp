// The machine behind cuda_emulation.h: a CUDA thread is a fibre that runs until it must wait for others.
#undef _FORTIFY_SOURCE  // its longjmp refuses to leave one stack for another
#include "cuda_emulation.h"

#include <ucontext.h>

#include <atomic>
#include <csetjmp>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

struct CUstream_st {
  bool capturing = false;
  std::vector<std::function<cudaError_t()>> captured;
};
struct CUgraph_st {
  std::vector<std::function<cudaError_t()>> launches;
};
struct CUgraphExec_st {
  std::vector<std::function<cudaError_t()>> launches;
};

namespace opbridge::emulation {

__thread const Indices* indices = nullptr;

namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr uint64_t kCanary = 0x5afe57ac5afe57acu;
constexpr size_t kMaxSharedBytes = 227 << 10;
constexpr unsigned kWarp = 32;

// -------------------------------------------------------------------------------------------------------------
// words

// A fault of the kernel that runs, found by one of its threads.
struct Fault {
  std::string what;
};

std::string extent(const uint3& i) {
  return "(" + std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z) + ")";
}

std::string place(const Site& s) {
  const std::string file = s.file;
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(s.line);
}

bool same(const Site& a, const Site& b) { return a.line == b.line && std::strcmp(a.file, b.file) == 0; }

// ------------------------------------------------------------------------------------------------- threads
// of a block

enum class State : uint8_t { kRunnable, kAtBlockBarrier, kAtWarpBarrier, kReturned };

class Worker;

struct Fibre : Indices {
  Worker* worker = nullptr;
  unsigned number = 0;  // in the block
  State state = State::kReturned;
  Site site{};
  // at a warp's barrier
  unsigned mask = 0;
  uint64_t value = 0;
  int source = -1;
  WarpResult result{};
  // switching
  char* stack = nullptr;
  bool started = false;
  ucontext_t start;
  jmp_buf context;
  void* fake_stack = nullptr;
};

Fibre& current() { return const_cast<Fibre&>(static_cast<const Fibre&>(*indices)); }

// The stacks of a CPU thread's fibres, kept from launch to launch.
struct Stacks {
  char* reserve(size_t count) {
    if (count > count_) memory_.reset(new char[count * kStackBytes]), count_ = count;
    return memory_.get();
  }
  void drop() { memory_.reset(), count_ = 0; }

 private:
  std::unique_ptr<char[]> memory_;
  size_t count_ = 0;
};
thread_local Stacks stacks;

// Runs blocks of one launch, one after another.
class Worker {
 public:
  Worker(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread,
         const std::string& order)
      : grid_(grid),
        thread_(thread),
        reverse_(order == "reverse"),
        by_warps_(order == "warps"),
        shared_bytes_(shared_bytes) {
    const unsigned n = block.x * block.y * block.z;
    if (order.rfind("shuffled", 0) == 0) {
      shuffled_ = true;
      random_.seed(order.size() > 9 ? static_cast<unsigned>(std::strtoul(order.c_str() + 9, nullptr, 10))
                                    : 1);
    }
    fibres_.resize(n);
    turn_.resize(n);
    lanes_.resize((n + kWarp - 1) / kWarp);
    char* const stack = stacks.reserve(n);
    shared_.reset(new char[shared_bytes + kSharedTail]);
    for (unsigned i = 0; i < n; ++i) {
      Fibre& f = fibres_[i];
      f.thread = {i % block.x, i / block.x % block.y, i / block.x / block.y};
      f.block_dim = block;
      f.grid_dim = grid;
      f.worker = this;
      f.number = i;
      f.stack = stack + i * kStackBytes;
      std::memcpy(f.stack, &kCanary, sizeof kCanary);
      turn_[i] = reverse_ ? n - 1 - i : i;
    }
  }

  // Throws Fault; the worker cannot be used again then.
  void run(uint3 block) {
    block_ = block;
    alive_ = static_cast<unsigned>(fibres_.size());
    waiting_ = 0;
    std::memset(shared_.get(), 0xcd, shared_bytes_ + kSharedTail);
    for (Fibre& f : fibres_) {
      f.block = block;
      f.state = State::kRunnable;
    }
    for (size_t w = 0; w < lanes_.size(); ++w) lanes_[w] = {lanes_of_warp(fibres_[w * kWarp]), 0};
    if (shuffled_) std::shuffle(turn_.begin(), turn_.end(), random_);
    while (alive_ > 0) {
      bool moved = false;
      bool again = false;  // the warp can go on
      for (size_t t = 0; t < turn_.size(); ++t) {
        Fibre& f = fibres_[turn_[t]];
        if (f.state == State::kRunnable) {
          moved = again = true;
          resume(f);
          if (!fault_.empty()) throw Fault{fault_};
        }
        if (by_warps_ && (t % kWarp == kWarp - 1 || t + 1 == turn_.size())) {
          if (again) t = t / kWarp * kWarp - 1;
          again = false;
        }
      }
      if (!moved) throw Fault{stuck()};
    }
    for (size_t i = 0; i < kSharedTail; ++i) {
      if (shared_[shared_bytes_ + i] != static_cast<char>(0xcd)) {
        throw Fault{"block " + extent(block_) + " wrote past its " + std::to_string(shared_bytes_) +
                    " bytes of dynamic shared memory"};
      }
    }
    indices = nullptr;
  }

  void* shared() { return shared_.get(); }

  BarrierResult block_barrier(Fibre& f, int predicate, Site site) {
    if (waiting_ > 0 && !same(site, barrier_site_)) {
      fail(f, "reached the barrier at " + place(site) + " while others wait at " + place(barrier_site_) +
                  " (divergent barrier)");
    }
    if (waiting_ == 0) {
      barrier_site_ = site;
      arriving_ = {0, 1, 0};
    }
    arriving_.count += predicate != 0;
    arriving_.all &= predicate != 0;
    arriving_.any |= predicate != 0;
    if (++waiting_ == fibres_.size()) {
      waiting_ = 0;
      barrier_result_ = arriving_;
      for (Fibre& other : fibres_) other.state = State::kRunnable;
    } else {
      f.state = State::kAtBlockBarrier;
      f.site = site;
      suspend(f);
    }
    return barrier_result_;
  }

  WarpResult warp_barrier(Fibre& f, unsigned mask, uint64_t value, int source, Site site) {
    if ((mask >> (f.number % kWarp) & 1) == 0) {
      fail(f, "calls a warp function at " + place(site) + " with a mask that its lane " +
                  std::to_string(f.number % kWarp) + " is not in");
    }
    f.state = State::kAtWarpBarrier;
    lanes_[f.number / kWarp].waiting |= 1u << f.number % kWarp;
    f.site = site;
    f.mask = mask & lanes_of_warp(f);
    f.value = value;
    f.source = source;
    complete_warp(f);
    if (f.state == State::kAtWarpBarrier) suspend(f);
    return f.result;
  }

  unsigned lanes_of_warp(const Fibre& f) const {
    const size_t n = fibres_.size() - f.number / kWarp * kWarp;
    return n >= kWarp ? 0xffffffffu : (1u << n) - 1;
  }

 private:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr size_t kSharedTail = 0;  // the sanitizer sees every access past the end
#else
  static constexpr size_t kSharedTail = 64;
#endif

  [[noreturn]] static void fail(const Fibre& f, const std::string& what) {
    throw Fault{"thread " + extent(f.thread) + " of block " + extent(f.block) + " " + what};
  }

  // Lets the lanes that wait together with `f` go on once all of them are there; lanes that returned are not
  // waited for.
  void complete_warp(const Fibre& f) {
    const Lanes& lanes = lanes_[f.number / kWarp];
    if ((f.mask & lanes.alive & ~lanes.waiting) != 0) return;
    Fibre* const warp = &fibres_[f.number / kWarp * kWarp];
    unsigned there = 0, ballot = 0;
    for (unsigned l = 0; l < kWarp; ++l) {
      if ((f.mask >> l & 1) == 0 || warp[l].state == State::kReturned) continue;
      if (warp[l].state != State::kAtWarpBarrier || warp[l].mask != f.mask) return;
      if (!same(warp[l].site, f.site)) {
        fail(f, "is at the warp function at " + place(f.site) + " while another lane of its mask is at " +
                    place(warp[l].site));
      }
      there |= 1u << l;
      if (warp[l].value != 0) ballot |= 1u << l;
    }
    for (unsigned l = 0; l < kWarp; ++l) {
      if ((there >> l & 1) == 0) continue;
      const int source = warp[l].source;
      if (source >= 0 && (source >= 32 || (there >> source & 1) == 0)) {
        fail(warp[l], "reads lane " + std::to_string(source) + " at " + place(f.site) + ", which " +
                          (source < 32 && (f.mask >> source & 1) ? "has returned" : "is not in the mask"));
      }
      warp[l].result = {source >= 0 ? warp[source].value : 0, ballot};
    }
    for (unsigned l = 0; l < kWarp; ++l) {
      if (there >> l & 1) warp[l].state = State::kRunnable;
    }
    lanes_[f.number / kWarp].waiting &= ~there;
  }

  // What holds up a block none of whose threads can go on.
  std::string stuck() const {
    unsigned at_block = 0, at_warp = 0;
    Site warp_site{};
    for (const Fibre& f : fibres_) {
      if (f.state == State::kAtBlockBarrier) ++at_block;
      if (f.state == State::kAtWarpBarrier) ++at_warp, warp_site = f.site;
    }
    const auto threads = [](size_t n) {
      return std::to_string(n) + (n == 1 ? " thread waits" : " threads wait");
    };
    std::string text =
        "deadlock in block " + extent(block_) + " of " + std::to_string(fibres_.size()) + " threads: ";
    if (at_block > 0) text += threads(at_block) + " at the barrier at " + place(barrier_site_) + ", ";
    if (at_warp > 0) text += threads(at_warp) + " at the warp function at " + place(warp_site) + ", ";
    return text + std::to_string(fibres_.size() - alive_) + " returned";
  }

  // ---- switching between the scheduler's stack and a fibre's

  static void begin_switch(void** fake_stack, const void* bottom, size_t size) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(fake_stack, bottom, size);
#else
    (void)fake_stack, (void)bottom, (void)size;
#endif
  }
  static void end_switch(void* fake_stack, const void** bottom, size_t* size) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, bottom, size);
#else
    (void)fake_stack, (void)bottom, (void)size;
#endif
  }

  void resume(Fibre& f) {
    indices = &f;
    begin_switch(&fake_stack_, f.stack, kStackBytes);
    if (_setjmp(context_) == 0) {
      if (f.started) _longjmp(f.context, 1);
      f.started = true;
      getcontext(&f.start);
      f.start.uc_stack.ss_sp = f.stack;
      f.start.uc_stack.ss_size = kStackBytes;
      f.start.uc_link = nullptr;
      makecontext(&f.start, &Worker::fibre_main, 0);
      setcontext(&f.start);
    }
    end_switch(fake_stack_, nullptr, nullptr);
  }

  void suspend(Fibre& f) {
    begin_switch(&f.fake_stack, own_stack_, own_stack_size_);
    if (_setjmp(f.context) == 0) _longjmp(context_, 1);
    end_switch(f.fake_stack, &own_stack_, &own_stack_size_);
  }

  static void fibre_main() {
    Fibre& f = current();
    Worker& w = *f.worker;
    end_switch(nullptr, &w.own_stack_, &w.own_stack_size_);
    while (true) {  // a round for each block
      w.run_thread(f);
      w.suspend(f);
    }
  }

  void run_thread(Fibre& f) noexcept {
    try {
      thread_();
      f.state = State::kReturned;
      lanes_[f.number / kWarp].alive &= ~(1u << f.number % kWarp);
      --alive_;
      if (std::memcmp(f.stack, &kCanary, sizeof kCanary) != 0) fail(f, "used more than 128 KiB of stack");
      const unsigned first = f.number / kWarp * kWarp;
      for (unsigned i = first; i < first + kWarp && i < fibres_.size(); ++i) {
        if (fibres_[i].state == State::kAtWarpBarrier) complete_warp(fibres_[i]);
      }
    } catch (const Fault& fault) {
      fault_ = fault.what;
    } catch (const std::exception& e) {
      fault_ = std::string("an exception left the kernel: ") + e.what();
    }
  }

  dim3 grid_;
  const std::function<void()>& thread_;
  bool reverse_, by_warps_, shuffled_ = false;
  std::mt19937 random_;
  size_t shared_bytes_;
  std::vector<Fibre> fibres_;
  std::vector<unsigned> turn_;
  struct Lanes {
    unsigned alive, waiting;  // for their warp
  };
  std::vector<Lanes> lanes_;  // of each warp
  std::unique_ptr<char[]> shared_;
  uint3 block_{};
  unsigned alive_ = 0, waiting_ = 0;
  Site barrier_site_{};
  BarrierResult arriving_{}, barrier_result_{};
  std::string fault_;
  jmp_buf context_;
  void* fake_stack_ = nullptr;
  const void* own_stack_ = nullptr;
  size_t own_stack_size_ = 0;
};

// ------------------------------------------------------------------------------------------------------------
// machine

std::mutex mutex;  // for what follows
std::vector<LaunchRecord> log;
std::set<cudaStream_t> streams;

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local std::string last_fault;

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread) {
  const Settings s = settings();
  const size_t blocks = static_cast<size_t>(grid.x) * grid.y * grid.z;
  const size_t cpus = s.cpu_threads > 0 ? s.cpu_threads : std::max(1u, std::thread::hardware_concurrency());
  std::atomic<size_t> next{s.order == "last" ? blocks - 1 : 0};
  std::mutex fault_mutex;
  std::string fault;
  const auto work = [&] {
    try {
      Worker worker(grid, block, shared_bytes, thread, s.order);
      for (size_t turn = next++; turn < blocks; turn = next++) {
        const size_t b = s.order == "reverse" ? blocks - 1 - turn : turn;
        worker.run({static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                    static_cast<unsigned>(b / grid.x / grid.y)});
      }
    } catch (const Fault& f) {
      next = blocks;
      indices = nullptr;
      stacks.drop();  // the threads that were left in their middle still have marks of the address sanitizer
                      // there
      const std::lock_guard<std::mutex> lock(fault_mutex);
      if (fault.empty()) fault = f.what;
    }
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < std::min(cpus, blocks); ++i) others.emplace_back(work);
  work();
  for (std::thread& t : others) t.join();
  if (fault.empty()) return cudaSuccess;
  last_fault = fault;
  return remember(cudaErrorLaunchFailure);
}

}  // namespace

Settings& settings() {
  static Settings s = [] {
    Settings first;
    const char* order = std::getenv("OPBRIDGE_EMULATION_ORDER");
    first.order = order == nullptr ? "forward" : order;
    return first;
  }();
  return s;
}

std::vector<LaunchRecord> take_launches() {
  const std::lock_guard<std::mutex> lock(mutex);
  return std::exchange(log, {});
}

cudaError_t launch(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                   std::function<void()> thread) {
  const Settings& s = settings();
  if (s.launch_fails_with != cudaSuccess) return remember(s.launch_fails_with);
  const bool grid_fits =
      grid.x > 0 && grid.x <= 0x7fffffffu && grid.y > 0 && grid.y <= 65535 && grid.z > 0 && grid.z <= 65535;
  const bool block_fits = block.x > 0 && block.x <= 1024 && block.y > 0 && block.y <= 1024 && block.z > 0 &&
                          block.z <= 64 && block.x * block.y * block.z <= 1024;
  if (!grid_fits || !block_fits) return remember(cudaErrorInvalidConfiguration);
  if (shared_bytes > kMaxSharedBytes) return remember(cudaErrorInvalidValue);
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (stream != nullptr && streams.count(stream) == 0) return remember(cudaErrorInvalidResourceHandle);
    log.push_back({kernel, grid, block, shared_bytes, stream, current_device});
  }
  if (s.dry_run) return cudaSuccess;
  const auto run = [=] { return run_grid(grid, block, shared_bytes, thread); };
  if (stream == nullptr || !stream->capturing) return run();
  stream->captured.push_back(run);
  return cudaSuccess;
}

void* dynamic_shared() { return current().worker->shared(); }

BarrierResult block_barrier(int predicate, Site site) {
  Fibre& f = current();
  return f.worker->block_barrier(f, predicate, site);
}

WarpResult warp_barrier(unsigned mask, uint64_t value, int source, Site site) {
  Fibre& f = current();
  return f.worker->warp_barrier(f, mask, value, source, site);
}

unsigned lane() { return current().number % kWarp; }
unsigned lanes_of_warp() { return current().worker->lanes_of_warp(current()); }

}  // namespace opbridge::emulation

// --------------------------------------------------------------------------------------------------- the
// runtime's API

using namespace opbridge::emulation;

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define OPBRIDGE_NAME(e) \
  case e:                \
    return #e
    OPBRIDGE_NAME(cudaSuccess);
    OPBRIDGE_NAME(cudaErrorInvalidValue);
    OPBRIDGE_NAME(cudaErrorMemoryAllocation);
    OPBRIDGE_NAME(cudaErrorInvalidConfiguration);
    OPBRIDGE_NAME(cudaErrorInsufficientDriver);
    OPBRIDGE_NAME(cudaErrorInvalidDeviceFunction);
    OPBRIDGE_NAME(cudaErrorNoDevice);
    OPBRIDGE_NAME(cudaErrorInvalidDevice);
    OPBRIDGE_NAME(cudaErrorNoKernelImageForDevice);
    OPBRIDGE_NAME(cudaErrorUnsupportedPtxVersion);
    OPBRIDGE_NAME(cudaErrorInvalidResourceHandle);
    OPBRIDGE_NAME(cudaErrorLaunchFailure);
    OPBRIDGE_NAME(cudaErrorSystemDriverMismatch);
#undef OPBRIDGE_NAME
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? last_fault.c_str() : cudaGetErrorName(error);
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaRuntimeGetVersion(int* version) { return *version = settings().toolkit_version, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = settings().driver_version, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  return *count = settings().devices, remember(settings().fail_with);
}
cudaError_t cudaGetDevice(int* device) { return *device = current_device, remember(settings().fail_with); }

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= settings().devices) return remember(cudaErrorInvalidDevice);
  current_device = device;
  return remember(settings().fail_with);
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const int architecture = settings().architecture;
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? architecture / 10 : architecture % 10;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  if (posix_memalign(pointer, 256, bytes) != 0) return remember(cudaErrorMemoryAllocation);  // as CUDA aligns
  std::memset(*pointer, 0xcd, bytes);
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) { return std::free(pointer), cudaSuccess; }

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (bytes > 0) std::memcpy(to, from, bytes);  // the address of nothing may be null
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  const std::lock_guard<std::mutex> lock(mutex);
  streams.insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (streams.erase(stream) == 0) return remember(cudaErrorInvalidResourceHandle);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) { return remember(settings().waiting_fails_with); }

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  return stream->capturing = true, cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const bool capturing = stream != nullptr && stream->capturing;
  return *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone, cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  stream->capturing = false;
  *graph = new CUgraph_st{std::exchange(stream->captured, {})};
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long) {
  return *executable = new CUgraphExec_st{graph->launches}, cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t) {
  for (const auto& launch : executable->launches) {
    if (const cudaError_t error = launch(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { return delete executable, cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
