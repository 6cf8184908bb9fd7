// Arrays, and the files they come from and go to: .npy, .npz, ONNX TensorProto.
#include <minizip/unzip.h>
#include <minizip/zip.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "core/npz.h"
#include "onnx.pb.h"
#include "onnx_types.h"
#include "opbridge/runner.h"
#include "opbridge/signature.h"
#include "proto.h"

namespace opbridge {

namespace fs = std::filesystem;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "raw_data and '<' in .npy are little-endian");

// --- Array

namespace {

// The number of elements, or an Error for a shape that no memory can hold.
int64_t checked_count(DType dtype, const std::vector<int64_t>& shape) {
  if (shape.size() > kMaxRank) {
    throw InvalidArgument("an array has at most " + std::to_string(kMaxRank) + " dimensions, not " +
                          std::to_string(shape.size()));
  }
  const int64_t limit = std::numeric_limits<int64_t>::max() / static_cast<int64_t>(dtype_size(dtype));
  int64_t count = 1;
  bool too_large = false;
  for (const int64_t d : shape) {
    if (d < 0)
      throw InvalidArgument("negative extent in shape " + shape_to_string(shape.data(), shape.size()));
    if (d == 0) return 0;
    if (count > limit / d)
      too_large = true;  // a later 0 would still make it empty
    else
      count *= d;
  }
  if (too_large)
    throw InvalidArgument("shape " + shape_to_string(shape.data(), shape.size()) + " is too large");
  return count;
}

}  // namespace

Array::Array(DType dtype, std::vector<int64_t> shape)
    : dtype_(dtype), shape_(std::move(shape)), count_(checked_count(dtype_, shape_)) {
  // One spare byte: an empty array has an address too. The language aligns this for every element type.
  data_ = std::shared_ptr<void>(::operator new(bytes() + 1), [](void* p) { ::operator delete(p); });
  std::memset(data_.get(), 0, bytes());
}

Array::Array(DType dtype, std::vector<int64_t> shape, std::shared_ptr<void> data)
    : dtype_(dtype),
      shape_(std::move(shape)),
      count_(checked_count(dtype_, shape_)),
      data_(std::move(data)) {}

std::string Array::to_string() const {
  return dtype_name(dtype_) + shape_to_string(shape_.data(), static_cast<int>(shape_.size()));
}

void Array::expect(DType dtype) const {
  if (dtype != dtype_) {
    throw InvalidArgument(std::string("the array holds ") + dtype_name(dtype_) + ", not " +
                          dtype_name(dtype));
  }
}

size_t DeviceArray::bytes() const {
  return static_cast<size_t>(checked_count(dtype, shape)) * dtype_size(dtype);
}

std::string DeviceArray::to_string() const {
  return dtype_name(dtype) + shape_to_string(shape.data(), static_cast<int>(shape.size())) +
         (device == Device::kCpu ? "" : " on CUDA device " + std::to_string(device_id));
}

Array DeviceArray::on_cpu() const {
  if (device != Device::kCpu) throw InvalidArgument(to_string() + ": copy it to the host first (cudaMemcpy)");
  return {dtype, shape, memory};
}

// --- element types

namespace {

struct OnnxType {
  DType dtype;
  int32_t onnx;
};
constexpr OnnxType kOnnxTypes[] = {{DType::f32, 1},  {DType::u8, 2},   {DType::i8, 3},   {DType::u16, 4},
                                   {DType::i16, 5},  {DType::i32, 6},  {DType::i64, 7},  {DType::boolean, 9},
                                   {DType::f16, 10}, {DType::f64, 11}, {DType::u32, 12}, {DType::u64, 13},
                                   {DType::bf16, 16}};
static_assert(std::size(kOnnxTypes) == kDTypeCount);

}  // namespace

int32_t to_onnx_type(DType dtype) {
  for (const OnnxType& t : kOnnxTypes) {
    if (t.dtype == dtype) return t.onnx;
  }
  throw Error(ErrorKind::kInternal, "element type without an ONNX number");
}

std::optional<DType> from_onnx_type(int32_t type) {
  for (const OnnxType& t : kOnnxTypes) {
    if (t.onnx == type) return t.dtype;
  }
  return std::nullopt;
}

std::string onnx_type_name(int32_t type) {
  if (const auto dtype = from_onnx_type(type)) return dtype_name(*dtype);
  if (!pb::TensorProto::DataType_IsValid(type)) return "type" + std::to_string(type);
  std::string name = pb::TensorProto::DataType_Name(static_cast<pb::TensorProto::DataType>(type));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

// --- files

namespace {

Error file_error(const std::string& path, const std::string& what) {
  return InvalidArgument("'" + path + "' " + what);
}

}  // namespace

std::string read_file(const std::string& path) {
  std::error_code ec;
  if (fs::is_directory(path, ec)) throw file_error(path, "is a folder, a file is needed");
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) throw file_error(path, std::string("cannot be opened: ") + std::strerror(errno));
  std::string bytes;
  in.seekg(0, std::ios::end);
  const auto size = in.tellg();
  if (size > 0) {
    bytes.resize(static_cast<size_t>(size));
    in.seekg(0);
    in.read(bytes.data(), size);
  }
  if (!in) throw file_error(path, "cannot be read");
  return bytes;
}

namespace {

void write_file(const std::string& path, const std::string& head, const void* data, size_t size) {
  errno = 0;
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(head.data(), static_cast<std::streamsize>(head.size()));
  out.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
  out.close();
  if (!out) throw file_error(path, std::string("cannot be written: ") + std::strerror(errno));
}

// A bool that is neither 0 nor 1 is undefined behaviour later on.
void normalise_bools(const Array& a) {
  if (a.dtype() != DType::boolean) return;
  auto* bytes = static_cast<uint8_t*>(a.data());
  for (int64_t i = 0; i < a.count(); ++i) bytes[i] = bytes[i] != 0;
}

// --- .npy

struct NpyHeader {
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

// Reads the Python literal {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }.
class NpyHeaderParser {
 public:
  NpyHeaderParser(const std::string& text, const std::string& what) : text_(text), what_(what) {}

  NpyHeader parse() {
    NpyHeader header;
    bool descr = false, order = false, shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr") {
        if (peek() != '\'' && peek() != '"') fail("has a structured element type; save plain arrays");
        header.descr = string();
        descr = true;
      } else if (key == "fortran_order") {
        header.fortran_order = boolean();
        order = true;
      } else if (key == "shape") {
        expect('(');
        while (!accept(')')) {
          header.shape.push_back(integer());
          if (peek() != ')') expect(',');
        }
        shape = true;
      } else {
        fail("has the unknown header entry '" + key + "'");
      }
      if (peek() != '}') expect(',');
    }
    if (!descr || !order || !shape) fail("lacks descr, fortran_order or shape in its header");
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const { throw file_error(what_, why); }
  char peek() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c))
      fail(std::string("has a malformed .npy header: '") + c + "' expected at byte " + std::to_string(at_));
  }
  std::string string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"')
      fail("has a malformed .npy header: text expected at byte " + std::to_string(at_));
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string::npos) fail("has a malformed .npy header: unfinished text");
    std::string s = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return s;
  }
  bool boolean() {
    peek();
    for (const bool value : {false, true}) {
      const std::string word = value ? "True" : "False";
      if (text_.compare(at_, word.size(), word) == 0) {
        at_ += word.size();
        return value;
      }
    }
    fail("has a malformed .npy header: True or False expected at byte " + std::to_string(at_));
  }
  int64_t integer() {
    peek();
    const size_t begin = at_;
    int64_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      if (value > (std::numeric_limits<int64_t>::max() - 9) / 10)
        fail("has a dimension too large for memory");
      value = value * 10 + (text_[at_] - '0');
    }
    if (at_ == begin) fail("has a malformed .npy header: a number expected at byte " + std::to_string(at_));
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // Python 2
    return value;
  }

  const std::string& text_;
  const std::string& what_;
  size_t at_ = 0;
};

DType npy_dtype(const std::string& descr, const std::string& what, bool& big_endian) {
  big_endian = !descr.empty() && descr[0] == '>';
  const std::string code =
      !descr.empty() && std::strchr("<>|=", descr[0]) != nullptr ? descr.substr(1) : descr;
  for (int i = 0; i < kDTypeCount; ++i) {
    if (code == npy_code(static_cast<DType>(i))) return static_cast<DType>(i);
  }
  const char kind = code.empty() ? '?' : code[0];
  const char* name = kind == 'U' || kind == 'S' ? "text"
                     : kind == 'O'              ? "Python objects"
                     : kind == 'c'              ? "complex numbers"
                                                : "an unknown type";
  throw file_error(what, std::string("holds ") + name + " ('" + descr +
                             "'); the runner reads numbers and bools (f16, bf16, f32, f64, integers)");
}

Array parse_npy(const std::string& bytes, const std::string& what) {
  constexpr size_t kMagic = 6;
  if (bytes.size() < 10 || bytes.compare(0, kMagic, "\x93NUMPY") != 0) {
    throw file_error(what, "is not a .npy file: it does not start with the NumPy magic");
  }
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(bytes[i])); };
  const size_t version = byte(6);
  if (version < 1 || version > 3) {
    throw file_error(what,
                     "has .npy format version " + std::to_string(version) + "; versions 1 to 3 are known");
  }
  size_t length = byte(8) | byte(9) << 8, begin = 10;
  if (version > 1) {
    if (bytes.size() < 12) throw file_error(what, "is cut off in its header");
    length |= byte(10) << 16 | byte(11) << 24;
    begin = 12;
  }
  if (bytes.size() - begin < length) throw file_error(what, "is cut off in its header");
  const std::string text = bytes.substr(begin, length);
  const NpyHeader header = NpyHeaderParser(text, what).parse();
  bool big_endian = false;
  const DType dtype = npy_dtype(header.descr, what, big_endian);
  const size_t size = dtype_size(dtype);
  const size_t available = bytes.size() - begin - length;

  int64_t count = 0;
  try {
    count = checked_count(dtype, header.shape);
  } catch (const Error& e) {
    throw file_error(what, std::string("is malformed: ") + e.what());
  }
  if (available / size < static_cast<size_t>(count)) {
    throw file_error(what, "is cut off: its header promises " + std::to_string(count) + " elements of " +
                               dtype_name(dtype) + ", " + std::to_string(available) + " bytes are there");
  }
  const Array array(dtype, header.shape);
  const char* from = bytes.data() + begin + length;
  char* to = static_cast<char*>(array.data());
  if (!header.fortran_order) {
    std::memcpy(to, from, array.bytes());
  } else if (count > 0) {
    // Walks the file in its order (first axis fastest) and keeps the row-major offset beside it.
    const size_t rank = header.shape.size();
    std::vector<int64_t> stride(rank, 1), index(rank, 0);
    for (size_t k = rank; k-- > 1;) stride[k - 1] = stride[k] * header.shape[k];
    int64_t offset = 0;
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(to + static_cast<size_t>(offset) * size, from + static_cast<size_t>(i) * size, size);
      for (size_t k = 0; k < rank; ++k) {
        offset += stride[k];
        if (++index[k] < header.shape[k]) break;
        offset -= stride[k] * header.shape[k];
        index[k] = 0;
      }
    }
  }
  if (big_endian) {
    for (int64_t i = 0; i < count; ++i) std::reverse(to + i * size, to + (i + 1) * size);
  }
  normalise_bools(array);
  return array;
}

std::string npy_header(const Array& a) {
  return opbridge::npy_header(a.dtype(), a.shape().data(), static_cast<int>(a.shape().size()));
}

// --- .npz

struct Unzip {
  explicit Unzip(const std::string& path) : file(unzOpen64(path.c_str())) {}
  Unzip(const Unzip&) = delete;
  Unzip& operator=(const Unzip&) = delete;
  ~Unzip() {
    if (file != nullptr) unzClose(file);
  }
  unzFile file;
};

std::string strip_suffix(const std::string& name, const std::string& suffix) {
  const bool ends =
      name.size() > suffix.size() && name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;
  return ends ? name.substr(0, name.size() - suffix.size()) : name;
}

Arrays read_npz(const std::string& path) {
  const Unzip zip(path);
  if (zip.file == nullptr) throw file_error(path, "is not a readable .npz (zip) file");
  Arrays arrays;
  for (int rc = unzGoToFirstFile(zip.file); rc != UNZ_END_OF_LIST_OF_FILE; rc = unzGoToNextFile(zip.file)) {
    unz_file_info64 info;
    char name[1024] = "";
    if (rc != UNZ_OK ||
        unzGetCurrentFileInfo64(zip.file, &info, name, sizeof(name) - 1, nullptr, 0, nullptr, 0) != UNZ_OK) {
      throw file_error(path, "has a damaged zip directory");
    }
    const std::string what = path + ":" + name;
    if ((info.flag & 1) != 0) throw file_error(what, "is encrypted");
    if (unzOpenCurrentFile(zip.file) != UNZ_OK) {
      throw file_error(what, "cannot be unpacked: method " + std::to_string(info.compression_method) +
                                 " (stored and deflated are known), or a damaged file");
    }
    // In pieces: a damaged directory may promise any size.
    std::string bytes;
    std::vector<char> piece(1 << 20);
    int got = 0;
    while ((got = unzReadCurrentFile(zip.file, piece.data(), static_cast<unsigned>(piece.size()))) > 0) {
      bytes.append(piece.data(), static_cast<size_t>(got));
    }
    const bool crc_ok = unzCloseCurrentFile(zip.file) == UNZ_OK;
    if (got < 0 || !crc_ok || bytes.size() != info.uncompressed_size) {
      throw file_error(what, "is damaged: its data does not unpack to what the zip directory says");
    }
    arrays[strip_suffix(name, ".npy")] = parse_npy(bytes, what);
  }
  return arrays;
}

// --- TensorProto

Array parse_tensor_file(const std::string& path, std::string& name) {
  const std::string bytes = read_file(path);
  pb::TensorProto t;
  if (!t.ParseFromString(bytes)) {
    throw file_error(path,
                     "is not an ONNX TensorProto (sequences, optionals and models are not read as arrays)");
  }
  if (t.data_type() == 0) throw file_error(path, "is not an ONNX TensorProto: it has no element type");
  name = t.name();
  return to_array(t, path);
}

}  // namespace

Array to_array(const pb::TensorProto& t, const std::string& what) {
  const auto dtype = from_onnx_type(t.data_type());
  if (!dtype) {
    throw file_error(what, "holds elements of type " + onnx_type_name(t.data_type()) +
                               "; the runner handles f16, bf16, f32, f64, integers and bool");
  }
  if (t.data_location() == pb::TensorProto::EXTERNAL)
    throw file_error(what, "keeps its data in another file");
  const std::vector<int64_t> shape(t.dims().begin(), t.dims().end());
  int64_t count = 0;
  try {
    count = checked_count(*dtype, shape);
  } catch (const Error& e) {
    throw file_error(what, std::string("is malformed: ") + e.what());
  }
  const size_t size = dtype_size(*dtype);
  const auto expect = [&](size_t available) {
    if (available != static_cast<size_t>(count)) {
      throw file_error(what, "is damaged: shape " +
                                 shape_to_string(shape.data(), static_cast<int>(shape.size())) + " needs " +
                                 std::to_string(count) + " elements, " + std::to_string(available) +
                                 " are there");
    }
  };
  // Sizes are compared before memory is taken.
  const auto fill = [&](const auto& field, auto zero) {
    using T = decltype(zero);
    expect(static_cast<size_t>(field.size()));
    const Array a(*dtype, shape);
    auto* to = static_cast<T*>(a.data());
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(field[static_cast<int>(i)]);
    return a;
  };
  if (t.has_raw_data()) {
    if (t.raw_data().size() % size != 0) expect(t.raw_data().size() / size + 1);
    expect(t.raw_data().size() / size);
    const Array a(*dtype, shape);
    std::memcpy(a.data(), t.raw_data().data(), a.bytes());
    normalise_bools(a);
    return a;
  }
  switch (*dtype) {
    case DType::f32:
      return fill(t.float_data(), float());
    case DType::f64:
      return fill(t.double_data(), double());
    case DType::i64:
      return fill(t.int64_data(), int64_t());
    case DType::u32:
      return fill(t.uint64_data(), uint32_t());
    case DType::u64:
      return fill(t.uint64_data(), uint64_t());
    case DType::i32:
      return fill(t.int32_data(), int32_t());
    case DType::i16:
      return fill(t.int32_data(), int16_t());
    case DType::i8:
      return fill(t.int32_data(), int8_t());
    case DType::u8:
      return fill(t.int32_data(), uint8_t());
    case DType::boolean:
      return fill(t.int32_data(), bool());
    default:
      return fill(t.int32_data(), uint16_t());  // u16, and the bits of f16 and bf16
  }
}

Arrays read_arrays(const std::string& path) {
  std::error_code ec;
  Arrays arrays;
  const std::string stem = fs::path(path).stem().string();
  const std::string extension = fs::path(path).extension().string();
  if (fs::is_directory(path, ec)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(path, ec)) {
      const std::string ext = entry.path().extension().string();
      if (ext != ".npy" && ext != ".pb") continue;
      for (auto& [name, array] : read_arrays(entry.path().string())) {
        if (!arrays.emplace(name, array).second) {
          throw file_error(path, "has two arrays called '" + name + "'");
        }
      }
    }
    if (ec) throw file_error(path, "cannot be listed: " + ec.message());
    if (arrays.empty()) throw file_error(path, "is a folder without .npy or .pb files");
  } else if (extension == ".npy") {
    arrays[stem] = parse_npy(read_file(path), path);
  } else if (extension == ".npz") {
    if (!fs::exists(path, ec)) throw file_error(path, "cannot be opened: No such file or directory");
    arrays = read_npz(path);
  } else if (extension == ".pb") {
    std::string name;
    const Array array = parse_tensor_file(path, name);
    arrays[name.empty() ? stem : name] = array;
  } else if (!fs::exists(path, ec)) {
    throw file_error(path, "does not exist");
  } else {
    throw file_error(
        path, "is of no known kind: .npy, .npz, .pb (ONNX TensorProto) or a folder of these is needed");
  }
  return arrays;
}

std::vector<std::pair<std::string, Array>> read_test_data(const std::string& folder,
                                                          const std::string& stem) {
  std::vector<std::pair<std::string, Array>> arrays;
  std::error_code ec;
  for (int i = 0;; ++i) {
    const fs::path path = fs::path(folder) / (stem + "_" + std::to_string(i) + ".pb");
    if (!fs::exists(path, ec)) return arrays;
    std::string name;
    const Array array = parse_tensor_file(path.string(), name);
    arrays.emplace_back(name, array);
  }
}

void write_npy(const std::string& path, const Array& array) {
  write_file(path, npy_header(array), array.data(), array.bytes());
}

void write_npz(const std::string& path, const Arrays& arrays) {
  zipFile zip = zipOpen64(path.c_str(), APPEND_STATUS_CREATE);
  if (zip == nullptr) throw file_error(path, std::string("cannot be written: ") + std::strerror(errno));
  bool ok = true;
  for (const auto& [name, array] : arrays) {
    const std::string head = npy_header(array), entry = name + ".npy";
    zip_fileinfo info{};
    info.tmz_date.tm_year = 1980;  // no clock in the file: same arrays, same bytes
    info.tmz_date.tm_mday = 1;
    ok = ok && zipOpenNewFileInZip64(zip, entry.c_str(), &info, nullptr, 0, nullptr, 0, nullptr, 0, 0,
                                     array.bytes() + head.size() > 0xfffffff0u) == ZIP_OK;
    ok = ok && zipWriteInFileInZip(zip, head.data(), static_cast<unsigned>(head.size())) == ZIP_OK;
    const char* data = static_cast<const char*>(array.data());
    for (size_t left = array.bytes(); ok && left > 0;) {
      const auto piece = static_cast<unsigned>(std::min<size_t>(left, 1 << 30));
      ok = zipWriteInFileInZip(zip, data, piece) == ZIP_OK;
      data += piece;
      left -= piece;
    }
    ok = ok && zipCloseFileInZip(zip) == ZIP_OK;
  }
  if (zipClose(zip, nullptr) != ZIP_OK || !ok) throw file_error(path, "cannot be written (disk full?)");
}

void write_pb(const std::string& path, const std::string& name, const Array& array) {
  pb::TensorProto t;
  t.set_name(name);
  t.set_data_type(to_onnx_type(array.dtype()));
  for (const int64_t d : array.shape()) t.add_dims(d);
  t.set_raw_data(array.data(), array.bytes());
  std::string bytes;
  if (array.bytes() > 0x7fff0000u || !t.SerializeToString(&bytes)) {
    throw file_error(path,
                     "cannot be written: " + array.to_string() + " does not fit into a TensorProto of 2 GB");
  }
  write_file(path, bytes, nullptr, 0);
}

}  // namespace opbridge
