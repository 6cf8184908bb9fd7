// Runs the operators' cases on a library where there is no Python, e.g. under an emulator of another processor.
//
//   run_cases LIBRARY.so CASES [BITS]
//
// CASES is what `python tests/cases.py --flat LIBRARY.so CASES` wrote. Each case is computed three times: with 1 thread,
// with 2, and over other contents of outputs and workspace; the bits must be the same, and the values what the
// reference says. BITS gets a line "operator case hash" for each case, to compare processors and instruction sets by;
// all NaNs are one there. Exit code 0: every case passed.
#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>

#include "common/op_call.h"

namespace {

using pvn3d::test::Array;

struct Expected {
  Array value;
  double rtol, atol;
};

struct Case {
  std::string op, name;
  std::vector<std::string> texts;  // that the attributes point to
  std::vector<OpbridgeAttribute> attributes;
  std::vector<Array> inputs;
  std::vector<Expected> expected;  // empty: only the same bits every time
};

class Reader {
 public:
  explicit Reader(const char* path) : in_(path, std::ios::binary) {
    in_.exceptions(std::ios::failbit | std::ios::badbit | std::ios::eofbit);
  }
  template <class T>
  T number() {
    T v;
    in_.read(reinterpret_cast<char*>(&v), sizeof v);
    return v;
  }
  std::string text() {
    std::string s(number<uint32_t>(), 0);
    in_.read(s.data(), static_cast<std::streamsize>(s.size()));
    return s;
  }
  Array array() {
    if (number<uint8_t>() == 0) return Array::none();
    Array a{number<uint8_t>(), 0, {}, {}};
    a.bits = number<uint8_t>();
    a.shape.resize(number<uint8_t>());
    for (int64_t& s : a.shape) s = number<int64_t>();
    a.data.resize(a.bytes());
    in_.read(a.data.data(), static_cast<std::streamsize>(a.data.size()));
    return a;
  }
  std::unique_ptr<Case> next_case() {
    auto c = std::make_unique<Case>();
    c->op = text();
    c->name = text();
    const auto attributes = number<uint32_t>();
    c->texts.reserve(2 * attributes);
    for (uint32_t i = 0; i < attributes; ++i) {
      OpbridgeAttribute a{};
      a.name = c->texts.emplace_back(text()).c_str();
      a.type = number<uint8_t>();
      a.f = number<double>();
      a.i = static_cast<int64_t>(a.f);
      a.s = c->texts.emplace_back(text()).c_str();
      c->attributes.push_back(a);
    }
    for (auto n = number<uint32_t>(); n > 0; --n) c->inputs.push_back(array());
    for (auto n = number<uint32_t>(); n > 0; --n) {
      Array value = array();
      const double rtol = number<double>(), atol = number<double>();
      c->expected.push_back({std::move(value), rtol, atol});
    }
    return c;
  }

 private:
  std::ifstream in_;
};

std::vector<double> values(const Array& a) {
  std::vector<double> v;
  const auto append = [&](auto zero) {
    for (const auto x : a.as<decltype(zero)>()) v.push_back(static_cast<double>(x));
  };
  if (a.code == 2 && a.bits == 16) append(opbridge::f16{});
  if (a.code == 2 && a.bits == 32) append(float{});
  if (a.code == 2 && a.bits == 64) append(double{});
  if (a.code == 0 && a.bits == 32) append(int32_t{});
  if (a.code == 0 && a.bits == 64) append(int64_t{});
  return v;
}

/// Empty, or how `got` differs.
std::string difference(const Array& got, const Expected& expected) {
  if (got.code != expected.value.code || got.bits != expected.value.bits ||
      got.shape != expected.value.shape) {
    return "another shape or element type";
  }
  if (got.code == 0) return got.data == expected.value.data ? "" : "other integers";
  const auto g = values(got), e = values(expected.value);
  for (size_t i = 0; i < g.size(); ++i) {
    const bool same = g[i] == e[i] || (std::isnan(g[i]) && std::isnan(e[i])) ||
                      std::abs(g[i] - e[i]) <= expected.atol + expected.rtol * std::abs(e[i]);
    if (!same) {
      return "element " + std::to_string(i) + " is " + std::to_string(g[i]) + ", expected " +
             std::to_string(e[i]);
    }
  }
  return "";
}

/// FNV-1a, of the bits but for NaNs.
uint64_t hash(const std::vector<Array>& outputs) {
  uint64_t h = 14695981039346656037u;
  for (const Array& a : outputs) {
    const auto v = a.code == 2 ? values(a) : std::vector<double>{};
    const size_t size = a.bits / 8;
    for (size_t i = 0; i < a.data.size(); ++i) {
      const bool nan = a.code == 2 && std::isnan(v[i / size]);
      h = (h ^ static_cast<uint8_t>(nan ? 0xff : a.data[i])) * 1099511628211u;
    }
  }
  return h;
}

bool same_bits(const std::vector<Array>& a, const std::vector<Array>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].data != b[i].data) return false;
  }
  return a.size() == b.size();
}

/// Empty, or what is wrong.
std::string run(const OpbridgeLibrary& library, const Case& c, std::ostream* bits) {
  const auto once = [&](int threads, char poison) {
    return pvn3d::test::call(library, c.op.c_str(), c.inputs, c.attributes, threads, poison);
  };
  const auto first = once(1, static_cast<char>(0xab));
  if (!first.error.empty()) return first.error;
  for (size_t i = 0; i < c.expected.size(); ++i) {
    const std::string how = difference(first.outputs.at(i), c.expected[i]);
    if (!how.empty()) return "output " + std::to_string(i) + ": " + how;
  }
  if (!same_bits(first.outputs, once(2, static_cast<char>(0xab)).outputs)) return "other bits with 2 threads";
  if (!same_bits(first.outputs, once(1, 0x7f).outputs)) return "the bits depend on what was in memory";
  if (bits != nullptr)
    *bits << c.op << ' ' << c.name << ' ' << std::hex << hash(first.outputs) << std::dec << '\n';
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s LIBRARY.so CASES [BITS]\n", argv[0]);
    return 2;
  }
  void* handle = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  const auto get =
      handle == nullptr
          ? nullptr
          : reinterpret_cast<decltype(&opbridge_get_library)>(dlsym(handle, "opbridge_get_library"));
  const OpbridgeLibrary* library = get == nullptr ? nullptr : get(OPBRIDGE_ABI_VERSION, nullptr);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", handle == nullptr ? dlerror() : "no operator library");
    return 2;
  }
  std::ofstream bits;
  if (argc > 3) bits.open(argv[3]);
  Reader reader(argv[2]);
  const auto count = reader.number<uint32_t>();
  int failed = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const auto c = reader.next_case();
    const std::string wrong = run(*library, *c, bits.is_open() ? &bits : nullptr);
    if (wrong.empty()) continue;
    ++failed;
    std::printf("%s, case %s: %s\n", c->op.c_str(), c->name.c_str(), wrong.c_str());
  }
  std::printf("%u cases, %d failed\n", count, failed);
  return failed == 0 ? 0 : 1;
}
