#include "memory.h"

#include <malloc.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "opbridge/error.h"

namespace opbridge::checking {

namespace {

constexpr size_t kGuardBytes = 256 << 10;  // on each side: a stride of a large row is still seen
constexpr uint8_t kPattern = 0xE7;

// What the fault handler looks through: it may not allocate.
struct Region {
  const char *base, *data, *data_end, *end;
  Guarded::Kind kind;
  char name[96];
};
constexpr int kMaxRegions = 256;
Region regions[kMaxRegions];
Mark* mark = nullptr;

// On x86-64 the processor says whether a fault was a write.
bool was_write(const void* context, [[maybe_unused]] bool otherwise) {
#if defined(__x86_64__)
  return (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
  (void)context;
  return otherwise;
#endif
}

void on_fault(int signal, siginfo_t* info, void* context) {
  const char* at = static_cast<const char*>(info->si_addr);
  for (const Region& r : regions) {
    if (r.base == nullptr || at < r.base || at >= r.end) continue;
    const bool inside = at >= r.data && at < r.data_end;
    const bool write = was_write(context, r.kind != Guarded::Kind::kInput || inside);
    const char* code = r.kind == Guarded::Kind::kWorkspace ? "workspace-too-small"
                       : inside                            ? "input-written"
                       : write                             ? "write-out-of-bounds"
                                                           : "read-out-of-bounds";
    std::snprintf(mark->fault_code, sizeof mark->fault_code, "%s", code);
    if (inside)
      std::snprintf(mark->fault, sizeof mark->fault, "it wrote to %s, at byte %td", r.name, at - r.data);
    else if (at >= r.data_end)
      std::snprintf(mark->fault, sizeof mark->fault, "it %s %td bytes past the end of %s",
                    write ? "wrote" : "read", at - r.data_end, r.name);
    else
      std::snprintf(mark->fault, sizeof mark->fault, "it %s %td bytes before the start of %s",
                    write ? "wrote" : "read", r.data - at, r.name);
    break;
  }
  std::signal(signal, SIG_DFL);  // the instruction is run again, and now it ends the process
}

}  // namespace

Mark* Mark::make() {
  void* memory = mmap(nullptr, sizeof(Mark), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error(ErrorKind::kOutOfMemory, std::strerror(errno));
  return static_cast<Mark*>(memory);
}

void Mark::say(const std::string& what) {
  const size_t length = std::min(what.size(), sizeof doing - 1);
  std::memcpy(doing, what.data(), length);
  doing[length] = '\0';
}

void note_faults(Mark* where) {
  mark = where;
  static char stack[64 << 10];  // a stack that has overflowed cannot hold the handler's frame
  stack_t alternative{};
  alternative.ss_sp = stack;
  alternative.ss_size = sizeof stack;
  sigaltstack(&alternative, nullptr);
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (const int s : {SIGSEGV, SIGBUS}) sigaction(s, &action, nullptr);
}

Guarded::Guarded(Kind kind, const std::string& name, size_t bytes, size_t alignment, bool at_end,
                 uint8_t fill)
    : bytes_(bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  page_bytes_ = (bytes + page - 1) / page * page;
  total_ = page_bytes_ + 2 * kGuardBytes;
  void* memory = mmap(nullptr, total_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw Error(ErrorKind::kOutOfMemory, std::strerror(errno));
  base_ = static_cast<char*>(memory);
  pages_ = base_ + kGuardBytes;
  if (page_bytes_ > 0 && mprotect(pages_, page_bytes_, PROT_READ | PROT_WRITE) != 0) {
    munmap(base_, total_);
    throw Error(ErrorKind::kOutOfMemory, std::strerror(errno));
  }
  const size_t start = at_end ? (page_bytes_ - bytes) / alignment * alignment : 0;
  data_ = pages_ + start;
  std::memset(pages_, kPattern, page_bytes_);
  std::memset(data_, fill, bytes);
  for (int i = 0; i < kMaxRegions && region_ < 0; ++i) {
    if (regions[i].base == nullptr) region_ = i;
  }
  if (region_ < 0) return;
  Region& r = regions[region_];
  r = {base_, data_, data_ + bytes, base_ + total_, kind, {}};
  std::snprintf(r.name, sizeof r.name, "%s", name.c_str());
}

Guarded::~Guarded() {
  if (region_ >= 0) regions[region_].base = nullptr;
  munmap(base_, total_);
}

void Guarded::protect() const {
  if (page_bytes_ > 0) mprotect(pages_, page_bytes_, PROT_READ);
}

std::string Guarded::disturbed() const {
  const auto is = [](char c) { return static_cast<uint8_t>(c) == kPattern; };
  const char* end = pages_ + page_bytes_;
  const char* behind = std::find_if_not(data_ + bytes_, const_cast<char*>(end), is);
  if (behind != end) return std::to_string(behind - (data_ + bytes_)) + " bytes past its end";
  for (const char* c = data_; c > pages_; --c) {
    if (!is(c[-1])) return std::to_string(data_ - c + 1) + " bytes before its start";
  }
  return "";
}

MemoryFile::MemoryFile(const std::string& bytes) : fd_(memfd_create("model", MFD_CLOEXEC)) {
  for (size_t done = 0; fd_ >= 0 && done < bytes.size();) {
    const ssize_t n = write(fd_, bytes.data() + done, bytes.size() - done);
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
}

MemoryFile::~MemoryFile() { close(fd_); }

Holdings Holdings::now() {
  Holdings h;
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
  const auto info = mallinfo2();
#else
  const auto info = mallinfo();
#endif
  h.heap = static_cast<int64_t>(info.uordblks) + static_cast<int64_t>(info.hblkhd);
  std::ifstream("/proc/self/statm") >> h.pages;
  std::error_code ec;
  for (std::filesystem::directory_iterator it("/proc/self/fd", ec), end; !ec && it != end; it.increment(ec))
    ++h.files;
  return h;
}

}  // namespace opbridge::checking
