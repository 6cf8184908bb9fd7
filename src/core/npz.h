// Writes .npz files: what a trace dumps. (The runner, which reads them, has its own zip.)
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "opbridge/tensor.h"

namespace opbridge {

/// NumPy's code of an element type, without the byte order: "f4". numpy writes bfloat16 as "V2".
const char* npy_code(DType dtype);

/// The header of a .npy file as numpy writes it: version 1, padded so that the data starts at a multiple of 64.
std::string npy_header(DType dtype, const int64_t* shape, int rank);

/// A new .npz whose arrays are stored as they are. After every save() the file is complete, and more arrays
/// may be added. Throws Error; at most 4 GiB.
class NpzWriter {
 public:
  /// Fails where there is such a file.
  explicit NpzWriter(std::string path);
  ~NpzWriter();
  NpzWriter(const NpzWriter&) = delete;
  NpzWriter& operator=(const NpzWriter&) = delete;

  const std::string& path() const { return path_; }
  void add(const std::string& name, DType dtype, const int64_t* shape, int rank, const void* data);
  /// Text as an array of bytes.
  void add(const std::string& name, const std::string& text);
  void save();
  /// Closes the file and takes it away.
  void remove();

 private:
  void write(const void* data, size_t bytes);

  std::string path_;
  std::FILE* file_;
  uint64_t end_ = 0;       // of the arrays: the directory, which comes next, is written over by more of them
  std::string directory_;  // its entries so far
  uint16_t entries_ = 0;
};

}  // namespace opbridge
