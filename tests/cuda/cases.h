// The operators' cases (tests/cases.py wrote them to an .npz) as calls of a library, and how results compare.
#pragma once

#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "host.h"
#include "opbridge/runner.h"
#include "runner/visit.h"

namespace cases {

using host::DType;
using host::Inputs;
using host::Library;
using host::Node;
using host::Tensor;

/// An operator as the library's manifest describes it.
struct Operator {
  std::string name;
  std::vector<std::string> inputs, outputs;
  std::map<std::string, std::string> attributes;  // name -> type
  bool cuda;
};

inline std::vector<Operator> operators(const Library& library) {
  std::vector<Operator> all;
  const nlohmann::json manifest = nlohmann::json::parse(library->manifest);
  for (const auto& op : manifest.at("operators")) {
    Operator o{op.at("name"), {}, {}, {}, false};
    for (const auto& i : op.at("inputs")) o.inputs.push_back(i.at("name"));
    for (const auto& i : op.at("outputs")) o.outputs.push_back(i.at("name"));
    for (const auto& a : op.at("attributes")) o.attributes[a.at("name")] = a.at("type");
    for (const auto& d : op.at("devices")) o.cuda = o.cuda || d == "cuda";
    all.push_back(o);
  }
  return all;
}

/// What an output must be, and how near.
struct Expected {
  Tensor value;
  double rtol, atol;
};

struct Case {
  std::string op, name;
  Inputs inputs;                               // as the operator declares them
  std::map<std::string, std::string> strings;  // attributes
  std::map<std::string, double> numbers;       //
  std::map<size_t, Expected> expected;         // by number of the output; empty: only the CPU's answer
  std::vector<std::pair<std::string, std::string>> kinds;  // type of each attribute that is given
  size_t outputs = 0;

  std::string title() const { return op + ", case " + name; }
  /// The element type that the case is about: that of the first input.
  DType dtype() const { return inputs.empty() || !inputs[0] ? DType::f32 : inputs[0]->dtype; }
  size_t bytes() const {
    size_t sum = 0;
    for (const auto& t : inputs) sum += t ? t->bytes.size() : 0;
    return sum;
  }
  Node node(const Library& library) const {
    std::vector<OpbridgeAttribute> attributes;
    for (const auto& [attribute, type] : kinds) {
      static const std::map<std::string, int32_t> codes = {
          {"int", 1}, {"float", 2}, {"bool", 3}, {"string", 4}};
      OpbridgeAttribute a{};
      a.name = attribute.c_str();
      a.type = codes.at(type);
      if (a.type == 4) {
        a.s = strings.at(attribute).c_str();
      } else {
        a.i = static_cast<int64_t>(numbers.at(attribute));
        a.f = numbers.at(attribute);
      }
      attributes.push_back(a);
    }
    return {library, op.c_str(), attributes};
  }
};

inline Tensor to_tensor(const opbridge::Array& a) {
  Tensor t(a.dtype(), a.shape());
  if (a.bytes() > 0) std::memcpy(t.bytes.data(), a.data(), a.bytes());
  return t;
}

/// The cases of the library's operators, in the file's order: by operator, then by name.
inline std::vector<Case> read(const std::string& path, const std::vector<Operator>& operators) {
  std::map<std::pair<std::string, std::string>, Case> all;
  const auto index = [](const std::vector<std::string>& names, const std::string& name) {
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end())
      throw host::Error(host::ErrorKind::kInternal, "no argument is called '" + name + "'");
    return static_cast<size_t>(at - names.begin());
  };
  const opbridge::Arrays arrays = opbridge::read_arrays(path);
  for (const auto& [key, array] : arrays) {
    const size_t a = key.find('/'), b = key.find('/', a + 1), c = key.find('/', b + 1);
    const std::string op = key.substr(0, a), name = key.substr(a + 1, b - a - 1),
                      group = key.substr(b + 1, c - b - 1),
                      what = c == std::string::npos ? "" : key.substr(c + 1);
    const auto declared =
        std::find_if(operators.begin(), operators.end(), [&](const Operator& o) { return o.name == op; });
    if (declared == operators.end())
      throw host::Error(host::ErrorKind::kInternal, "no operator is called " + op);
    Case& entry = all[{op, name}];
    entry.op = op;
    entry.name = name;
    entry.outputs = declared->outputs.size();
    entry.inputs.resize(declared->inputs.size());
    if (group == "in") {
      entry.inputs[index(declared->inputs, what)] = to_tensor(array);
    } else if (group == "out") {
      const auto* tolerance = arrays.at(op + "/" + name + "/tolerance/" + what).as<double>();
      entry.expected.emplace(index(declared->outputs, what),
                             Expected{to_tensor(array), tolerance[0], tolerance[1]});
    } else if (group == "attr") {
      const std::string type = declared->attributes.at(what);
      entry.kinds.emplace_back(what, type);
      if (type == "string") {
        entry.strings[what] = std::string(static_cast<const char*>(array.data()), array.bytes());
      } else {
        entry.numbers[what] = *array.as<double>();
      }
    }
  }
  std::vector<Case> result;
  for (auto& entry : all) result.push_back(std::move(entry.second));
  return result;
}

/// The elements as doubles; integers of 64 bits do not meet this limit here.
inline std::vector<double> values(const Tensor& t) {
  const opbridge::Array a(t.dtype, t.shape,
                          std::shared_ptr<void>(const_cast<unsigned char*>(t.bytes.data()), [](void*) {}));
  std::vector<double> result(t.count());
  opbridge::visit(a, [&](const auto* v) {
    for (size_t i = 0; i < result.size(); ++i) result[i] = opbridge::as_double(v[i]);
  });
  return result;
}

/// Throws unless both are the same, bit for bit. A NaN equals any other: its bits are the processor's own.
/// With a tolerance every element must be within atol + rtol |expected|, and zeros have no sign.
inline void compare(const Tensor& expected, const Tensor& got, double rtol, double atol, bool bits,
                    const std::string& what) {
  if (expected.bytes == got.bytes && expected.shape == got.shape && expected.dtype == got.dtype) return;
  const auto fail = [&](const std::string& how) {
    throw host::Error(host::ErrorKind::kInternal, what + ": " + how);
  };
  if (expected.shape != got.shape || expected.dtype != got.dtype) fail("another shape or element type");
  const std::vector<double> e = values(expected), g = values(got);
  for (size_t i = 0; i < e.size(); ++i) {
    if (std::isnan(e[i]) && std::isnan(g[i])) continue;
    if (e[i] == g[i] && (!bits || std::signbit(e[i]) == std::signbit(g[i]))) continue;
    if (!bits && std::abs(e[i] - g[i]) <= atol + rtol * std::abs(e[i])) continue;
    char numbers[100];
    std::snprintf(numbers, sizeof numbers, "%.17g, expected %.17g", g[i], e[i]);
    fail("element " + std::to_string(i) + " of " + std::to_string(e.size()) + " is " + numbers);
  }
}

}  // namespace cases
