// Cuts a workspace into arrays.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pvn3d {

/// The same function lays out the workspace twice: over null, to learn its size, and over the memory itself.
///   struct Layout { explicit Layout(Arena& a, int64_t n) : x(a.take<float>(n)), id(a.take<int32_t>(n)) {} ... };
class Arena {
 public:
  static constexpr size_t kAlignment = 64;

  explicit Arena(void* base = nullptr) : base_(static_cast<char*>(base)) {}

  /// n elements, aligned to a cache line; contents undefined.
  template <class T>
  T* take(int64_t n) {
    char* p = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (static_cast<size_t>(n) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return reinterpret_cast<T*>(p);
  }

  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

}  // namespace pvn3d
