// Tensors between pages that cannot be touched, and what a process leaves behind when it dies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace opbridge::checking {

/// What a child writes as it goes; its parent reads it afterwards, also when a signal ended the child.
struct Mark {
  int job;              // index of the job that runs, -1 before the first
  bool empty;           // what is being called has an input without elements
  bool unrepeatable;    // the operator's results change: comparing them says nothing
  char doing[1024];     // what is being called, in words
  char fault[256];      // where a fault happened, when that was in or around a tensor
  char fault_code[32];  // and the finding that this is

  /// Memory that a process and its children share; never freed.
  static Mark* make();
  void say(const std::string& what);
};

/// Makes SIGSEGV and SIGBUS note in `mark` which guarded memory was touched before they end the process.
void note_faults(Mark* mark);

/// Memory whose ends are watched: pages on both sides that cannot be touched, and a pattern in the rest of
/// its own pages.
class Guarded {
 public:
  enum class Kind : uint8_t { kInput, kOutput, kWorkspace };
  /// The bytes end right before the page behind (`at_end`), else start right after the page in front;
  /// `alignment` is kept. `name` is for messages: "input 'x' f32[2,3]".
  Guarded(Kind kind, const std::string& name, size_t bytes, size_t alignment, bool at_end, uint8_t fill);
  ~Guarded();
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  void* data() const { return data_; }
  /// No more writing until the end.
  void protect() const;
  /// Where the pattern around the bytes has changed: "8 bytes past its end", or empty.
  std::string disturbed() const;

 private:
  char* base_ = nullptr;
  char* pages_ = nullptr;
  char* data_ = nullptr;
  size_t total_ = 0, page_bytes_ = 0, bytes_ = 0;
  int region_ = -1;
};

/// A file that lives only in memory.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& bytes);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

/// What a process holds: a leak makes one of these grow.
struct Holdings {
  int64_t heap = 0, pages = 0, files = 0;
  static Holdings now();
};

}  // namespace opbridge::checking
