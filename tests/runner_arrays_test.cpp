// Reading and writing .npy, .npz and TensorProto files: what goes in comes out, and no file crashes the
// reader.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "opbridge/runner.h"
#include "runner/proto.h"
#include "runner_test.h"

namespace opbridge {
namespace {

namespace fs = std::filesystem;

class ArrayFiles : public FolderTest {
 protected:
  /// Reads the file; Error is the only exception that may come.
  static void read_survives(const std::string& file) {
    try {
      (void)read_arrays(file);
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(fs::path(file).filename()), std::string::npos) << e.what();
    }
  }
};

// An array with a different bit pattern in every element; bools stay 0 and 1.
Array numbered(DType dtype, const std::vector<int64_t>& shape) {
  const Array a(dtype, shape);
  auto* bytes = static_cast<uint8_t*>(a.data());
  for (size_t i = 0; i < a.bytes(); ++i)
    bytes[i] = static_cast<uint8_t>(dtype == DType::boolean ? i % 2 : i * 37 + 1);
  return a;
}

void expect_same(const Array& a, const Array& b) {
  ASSERT_EQ(a.to_string(), b.to_string());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.bytes()), 0) << a.to_string();
}

// A .npy file made by hand.
std::string npy(const std::string& descr, const std::string& order, const std::string& shape,
                const std::string& data, int version = 1) {
  std::string text = "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
  std::string head = std::string("\x93NUMPY") + static_cast<char>(version) + '\0';
  head += static_cast<char>(text.size());
  head += '\0';
  if (version > 1) head += std::string(2, '\0');
  return head + text + data;
}

template <class T>
std::string bytes_of(const std::vector<T>& values, bool swapped = false) {
  std::string bytes;
  for (const T v : values) {
    std::string one(sizeof(T), '\0');
    std::memcpy(one.data(), &v, sizeof(T));
    bytes += swapped ? std::string(one.rbegin(), one.rend()) : one;
  }
  return bytes;
}

const std::vector<std::vector<int64_t>> kShapes = {{}, {0}, {1}, {7}, {2, 3, 4}, {2, 0, 3}};

TEST_F(ArrayFiles, EveryTypeAndShapeComesBack) {
  for (int t = 0; t < kDTypeCount; ++t) {
    for (const auto& shape : kShapes) {
      const Array a = numbered(static_cast<DType>(t), shape);
      write_npy(path("a.npy"), a);
      expect_same(read_arrays(path("a.npy")).at("a"), a);
      write_pb(path("a.pb"), "called", a);
      expect_same(read_arrays(path("a.pb")).at("called"), a);
      write_npz(path("a.npz"), {{"first/x", a}, {"second", numbered(DType::f64, {3})}});
      const Arrays both = read_arrays(path("a.npz"));
      ASSERT_EQ(both.size(), 2u);
      expect_same(both.at("first/x"), a);
      expect_same(both.at("second"), numbered(DType::f64, {3}));
    }
  }
}

TEST_F(ArrayFiles, NpyIsWhatNumpyWrites) {
  write_npy(path("a.npy"), Array::of<float>({2, 1}, {1, 2}));
  const std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }";
  const std::string padding(128 - 10 - text.size() - 1, ' ');
  const std::string head("\x93NUMPY\x01\x00\x76\x00", 10);
  EXPECT_EQ(read_file(path("a.npy")), head + text + padding + "\n" + bytes_of<float>({1, 2}));
  write_npy(path("b.npy"), Array::of<int8_t>({3}, {1, 2, 3}));
  EXPECT_NE(read_file(path("b.npy")).find("'descr': '|i1', 'fortran_order': False, 'shape': (3,), }"),
            std::string::npos);
}

TEST_F(ArrayFiles, NpzHasNoClockInIt) {
  write_npz(path("a.npz"), {{"x", numbered(DType::f32, {5})}});
  // Time and date of a local file header: 1980-01-01 00:00.
  EXPECT_EQ(read_file(path("a.npz")).substr(10, 4), std::string("\x00\x00\x21\x00", 4));
}

TEST_F(ArrayFiles, NpyVariantsOfNumpy) {
  const Array wanted = Array::of<int32_t>({2, 3}, {1, 2, 3, 4, 5, 6});
  const std::vector<int32_t> by_column = {1, 4, 2, 5, 3, 6}, by_row = {1, 2, 3, 4, 5, 6};
  for (const int version : {1, 2, 3}) {
    write("a.npy", npy("'<i4'", "False", "(2, 3)", bytes_of(by_row), version));
    expect_same(read_arrays(path("a.npy")).at("a"), wanted);
  }
  write("a.npy", npy("'>i4'", "False", "(2, 3)", bytes_of(by_row, true)));
  expect_same(read_arrays(path("a.npy")).at("a"), wanted);
  write("a.npy", npy("'<i4'", "True", "(2, 3)", bytes_of(by_column)));
  expect_same(read_arrays(path("a.npy")).at("a"), wanted);
  write("a.npy", npy("'>i4'", "True", "(2L, 3L)", bytes_of(by_column, true)));
  expect_same(read_arrays(path("a.npy")).at("a"), wanted);
  // 3 axes: element [i,j,k] lies at i + 2j + 6k in Fortran's order.
  std::vector<int16_t> fortran(24), c(24);
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 4; ++k)
        fortran[i + 2 * j + 6 * k] = c[12 * i + 4 * j + k] = static_cast<int16_t>(100 * i + 10 * j + k);
    }
  }
  write("a.npy", npy("'<i2'", "True", "(2, 3, 4)", bytes_of(fortran)));
  expect_same(read_arrays(path("a.npy")).at("a"), Array::of<int16_t>({2, 3, 4}, c));
  write("a.npy", npy("'|b1'", "False", "(3,)", std::string("\x00\x02\xff", 3)));
  expect_same(read_arrays(path("a.npy")).at("a"), Array::of<bool>({3}, {false, true, true}));
}

TEST_F(ArrayFiles, BadNpySaysWhy) {
  const std::string four(16, 'x');
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "is not a .npy file"},
      {"hello, I am text", "is not a .npy file"},
      {npy("'<f4'", "False", "(4,)", four, 9), "format version 9"},
      {npy("'<f4'", "False", "(5,)", four),
       "is cut off: its header promises 5 elements of f32, 16 bytes are there"},
      {npy("'<f4'", "False", "(4611686018427387904, 16)", four), "too large"},
      {npy("'<f4'", "False", "(99999999999999999999,)", four), "too large"},
      {npy("'<f4'", "False", "(-1,)", four), "a number expected"},
      {npy("'<f4'", "Maybe", "(4,)", four), "True or False expected"},
      {npy("'<f4'", "False", "4", four), "'(' expected"},
      {npy("'<U4'", "False", "(1,)", four), "holds text ('<U4')"},
      {npy("'|O'", "False", "(1,)", four), "holds Python objects"},
      {npy("'<c8'", "False", "(1,)", four), "holds complex numbers"},
      {npy("[('a', '<f4')]", "False", "(1,)", four), "structured"},
      {npy("'<f4'", "False", "(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1)", four), "at most 16 dimensions"},
  };
  for (const auto& [bytes, wanted] : cases) {
    write("bad.npy", bytes);
    const std::string message = error_of([&] { (void)read_arrays(path("bad.npy")); });
    EXPECT_NE(message.find(wanted), std::string::npos) << message << "\nwanted: " << wanted;
    EXPECT_NE(message.find("bad.npy"), std::string::npos) << message;
  }
}

TEST_F(ArrayFiles, NoCutFileCrashesAndAllAreErrors) {
  const Array a = numbered(DType::f32, {2, 3});
  write_npy(path("a.npy"), a);
  write_npz(path("a.npz"), {{"x", a}});
  write_pb(path("a.pb"), "x", a);
  for (const char* name : {"a.npy", "a.npz", "a.pb"}) {
    const std::string whole = read_file(path(name));
    for (size_t size = 0; size < whole.size(); ++size) {
      const std::string cut = write(std::string("cut_") + name, whole.substr(0, size));
      // The last bytes of a zip are the length of its comment: the arrays are whole without them.
      if (name == std::string("a.npz") && size + 4 >= whole.size())
        expect_same(read_arrays(cut).at("x"), a);
      else
        EXPECT_THROW((void)read_arrays(cut), Error) << name << " cut at " << size;
    }
  }
}

TEST_F(ArrayFiles, NoDamagedFileCrashes) {
  const Array a = numbered(DType::f32, {2, 3});
  write_npy(path("a.npy"), a);
  write_npz(path("a.npz"), {{"x", a}});
  write_pb(path("a.pb"), "x", a);
  for (const char* name : {"a.npy", "a.npz", "a.pb"}) {
    const std::string whole = read_file(path(name));
    for (size_t at = 0; at < whole.size(); ++at) {
      for (const int flip : {0x01, 0xff}) {
        std::string damaged = whole;
        damaged[at] = static_cast<char>(damaged[at] ^ flip);
        read_survives(write(std::string("damaged_") + name, damaged));
      }
    }
  }
}

TEST_F(ArrayFiles, NpzWithADamagedElementIsAnError) {
  write_npz(path("a.npz"), {{"x", numbered(DType::f32, {64})}});
  std::string bytes = read_file(path("a.npz"));
  bytes[220] = static_cast<char>(bytes[220] ^ 1);  // inside the data: the check sum must notice
  const std::string message = error_of([&] { (void)read_arrays(write("b.npz", bytes)); });
  EXPECT_NE(message.find("b.npz:x.npy' is damaged"), std::string::npos) << message;
}

TEST_F(ArrayFiles, TensorProtoFields) {
  const auto read = [&](const pb::TensorProto& t) {
    return read_arrays(write("t.pb", t.SerializeAsString())).at("t");
  };
  pb::TensorProto t;
  t.add_dims(2);
  t.set_data_type(pb::TensorProto::FLOAT);
  t.add_float_data(1.5f);
  t.add_float_data(-2);
  expect_same(read(t), Array::of<float>({2}, {1.5f, -2}));

  t.clear_float_data();
  t.set_data_type(pb::TensorProto::FLOAT16);  // the bits, one to an int32
  t.add_int32_data(0x3c00);
  t.add_int32_data(0xc000);
  const Array half = read(t);
  ASSERT_EQ(half.to_string(), "f16[2]");
  EXPECT_EQ(static_cast<float>(half.as<f16>()[0]), 1.0f);
  EXPECT_EQ(static_cast<float>(half.as<f16>()[1]), -2.0f);

  t.set_data_type(pb::TensorProto::BOOL);
  expect_same(read(t), Array::of<bool>({2}, {true, true}));

  t.clear_int32_data();
  t.set_data_type(pb::TensorProto::UINT32);
  t.add_uint64_data(4294967295u);
  t.add_uint64_data(7);
  expect_same(read(t), Array::of<uint32_t>({2}, {4294967295u, 7}));

  t.set_data_type(pb::TensorProto::INT64);
  std::string message = error_of([&] { read(t); });
  EXPECT_NE(message.find("needs 2 elements, 0 are there"), std::string::npos) << message;

  t.set_data_type(pb::TensorProto::STRING);
  message = error_of([&] { read(t); });
  EXPECT_NE(message.find("elements of type string"), std::string::npos) << message;

  t.set_data_type(pb::TensorProto::FLOAT);
  t.set_raw_data("1234567");
  message = error_of([&] { read(t); });
  EXPECT_NE(message.find("is damaged"), std::string::npos) << message;

  t.clear_raw_data();
  t.set_data_location(pb::TensorProto::EXTERNAL);
  message = error_of([&] { read(t); });
  EXPECT_NE(message.find("another file"), std::string::npos) << message;
}

TEST_F(ArrayFiles, Folders) {
  const Array a = numbered(DType::f32, {2}), b = numbered(DType::i64, {3});
  std::string message = error_of([&] { (void)read_arrays(folder_.string()); });
  EXPECT_NE(message.find("without .npy or .pb"), std::string::npos) << message;
  write_pb(path("input_0.pb"), "x", a);
  write_pb(path("input_1.pb"), "", b);
  write_npy(path("z.npy"), b);
  write("notes.txt", "ignored");
  const Arrays arrays = read_arrays(folder_.string());
  ASSERT_EQ(arrays.size(), 3u);
  expect_same(arrays.at("x"), a);
  expect_same(arrays.at("input_1"), b);
  expect_same(arrays.at("z"), b);

  const auto ordered = read_test_data(folder_.string(), "input");
  ASSERT_EQ(ordered.size(), 2u);
  EXPECT_EQ(ordered[0].first, "x");
  EXPECT_EQ(ordered[1].first, "");
  expect_same(ordered[1].second, b);
  EXPECT_TRUE(read_test_data(folder_.string(), "output").empty());

  write_npy(path("x.npy"), a);
  message = error_of([&] { (void)read_arrays(folder_.string()); });
  EXPECT_NE(message.find("two arrays called 'x'"), std::string::npos) << message;
}

TEST_F(ArrayFiles, FilesThatAreNotThere) {
  for (const char* name : {"no.npy", "no.npz", "no.pb", "no.txt"}) {
    const std::string message = error_of([&] { (void)read_arrays(path(name)); });
    EXPECT_NE(message.find(name), std::string::npos) << message;
  }
  EXPECT_NE(error_of([&] { (void)read_arrays(write("a.txt", "1 2 3")); }).find(".npy, .npz, .pb"),
            std::string::npos);
  const Array a;
  EXPECT_THROW(write_npy(path("no/a.npy"), a), Error);
  EXPECT_THROW(write_npz(path("no/a.npz"), {{"a", a}}), Error);
  EXPECT_THROW(write_pb(path("no/a.pb"), "a", a), Error);
}

TEST(Array, ChecksItself) {
  EXPECT_EQ(Array().to_string(), "f32[0]");
  EXPECT_THROW(Array(DType::f32, {-1}), Error);
  EXPECT_THROW(Array(DType::f32, {int64_t{1} << 40, int64_t{1} << 40}), Error);
  EXPECT_EQ(Array(DType::f32, {int64_t{1} << 40, int64_t{1} << 40, 0}).count(), 0);
  EXPECT_THROW((void)Array(DType::f32, {1}).as<double>(), Error);
  EXPECT_THROW((void)Array::of<float>({2}, {1, 2, 3}), Error);
  const Array a = Array::of<double>({}, {2.5});
  const Array shared = a;
  shared.as<double>()[0] = 3;
  EXPECT_EQ(a.as<double>()[0], 3);
}

}  // namespace
}  // namespace opbridge
