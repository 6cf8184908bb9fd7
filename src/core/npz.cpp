#include "npz.h"

#include <cerrno>
#include <cstring>

#include "opbridge/error.h"

namespace opbridge {

const char* npy_code(DType dtype) {
  constexpr const char* kCodes[kDTypeCount] = {"f2", "V2", "f4", "f8", "i1", "i2", "i4",
                                               "i8", "u1", "u2", "u4", "u8", "b1"};
  return kCodes[static_cast<int>(dtype)];
}

std::string npy_header(DType dtype, const int64_t* shape, int rank) {
  std::string text = std::string("{'descr': '") + (dtype_size(dtype) == 1 ? "|" : "<") + npy_code(dtype) +
                     "', 'fortran_order': False, 'shape': (";
  for (int i = 0; i < rank; ++i) text += std::to_string(shape[i]) + (rank == 1 ? "," : ", ");
  if (rank > 1) text.resize(text.size() - 2);
  text += "), }";
  text.append(63 - (10 + text.size()) % 64, ' ');
  text += '\n';
  std::string head("\x93NUMPY\x01\x00", 8);
  head += static_cast<char>(text.size() & 0xff);
  head += static_cast<char>(text.size() >> 8);
  return head + text;
}

namespace {

uint32_t crc32(uint32_t crc, const void* data, size_t bytes) {
  struct Table {
    uint32_t of[256];
    constexpr Table() : of() {
      for (uint32_t i = 0; i < 256; ++i) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1) != 0 ? 0xedb88320u : 0);
        of[i] = c;
      }
    }
  };
  static constexpr Table table;
  crc = ~crc;
  for (const auto* p = static_cast<const unsigned char*>(data); bytes > 0; ++p, --bytes)
    crc = table.of[(crc ^ *p) & 0xff] ^ (crc >> 8);
  return ~crc;
}

// A little-endian number of `bytes` bytes.
std::string number(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw InvalidArgument("cannot write '" + path + "': " + what);
}

}  // namespace

NpzWriter::NpzWriter(std::string path) : path_(std::move(path)), file_(std::fopen(path_.c_str(), "wxbe")) {
  if (file_ == nullptr) fail(path_, std::strerror(errno));
}

NpzWriter::~NpzWriter() {
  if (file_ != nullptr) std::fclose(file_);
}

void NpzWriter::write(const void* data, size_t bytes) {
  if (bytes > 0 && std::fwrite(data, 1, bytes, file_) != bytes) fail(path_, std::strerror(errno));
}

void NpzWriter::add(const std::string& name, DType dtype, const int64_t* shape, int rank, const void* data) {
  const std::string head = npy_header(dtype, shape, rank), entry = name + ".npy";
  uint64_t bytes = dtype_size(dtype);
  for (int i = 0; i < rank; ++i) bytes *= static_cast<uint64_t>(shape[i]);
  const uint64_t size = head.size() + bytes;
  if (end_ + size + (1 << 20) > 0xffffffffu) fail(path_, "its arrays are larger than 4 GiB");
  const uint32_t crc = crc32(crc32(0, head.data(), head.size()), data, bytes);
  // Version 2.0, UTF-8 names, stored; at midnight of 1 January 1980.
  const std::string common = number(20, 2) + number(0x800, 2) + number(0, 2) + number(0, 2) +
                             number(0x21, 2) + number(crc, 4) + number(size, 4) + number(size, 4) +
                             number(entry.size(), 2) + number(0, 2);
  directory_ += "PK\x01\x02" + number(20, 2) + common + number(0, 2) + number(0, 2) + number(0, 2) +
                number(0, 4) + number(end_, 4) + entry;
  ++entries_;
  const std::string local = "PK\x03\x04" + common + entry;
  if (std::fseek(file_, static_cast<long>(end_), SEEK_SET) != 0) fail(path_, std::strerror(errno));
  write(local.data(), local.size());
  write(head.data(), head.size());
  write(data, bytes);
  end_ += local.size() + size;
}

void NpzWriter::add(const std::string& name, const std::string& text) {
  const auto length = static_cast<int64_t>(text.size());
  add(name, DType::u8, &length, 1, text.data());
}

void NpzWriter::save() {
  const std::string end = directory_ + "PK\x05\x06" + number(0, 4) + number(entries_, 2) +
                          number(entries_, 2) + number(directory_.size(), 4) + number(end_, 4) + number(0, 2);
  if (std::fseek(file_, static_cast<long>(end_), SEEK_SET) != 0) fail(path_, std::strerror(errno));
  write(end.data(), end.size());
  if (std::fflush(file_) != 0) fail(path_, std::strerror(errno));
}

void NpzWriter::remove() {
  std::fclose(file_);
  file_ = nullptr;
  std::remove(path_.c_str());
}

}  // namespace opbridge
