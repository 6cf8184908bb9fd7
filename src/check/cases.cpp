#include "cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/node.h"
#include "core/text.h"
#include "runner/visit.h"

namespace opbridge::checking {

namespace {

constexpr const char* kValuesNames[kValuesCount] = {
    "normal", "in [0, 1)", "eighths", "zero", "one", "ascending", "NaN among them", "infinities among them",
    "huge",   "tiny"};

// --- shapes

bool evaluate(const Dim& d, const Sizes& sizes, int64_t* result) {
  switch (d.kind) {
    case Dim::Kind::kLiteral:
      *result = d.value;
      return true;
    case Dim::Kind::kName:
      *result = sizes.names[static_cast<size_t>(d.slot)];
      return true;
    case Dim::Kind::kPrefix:
      return false;
    default: {
      int64_t x = 0, y = 0;
      return evaluate(d.args[0], sizes, &x) && evaluate(d.args[1], sizes, &y) &&
             dim_arithmetic(d.kind, x, y, result);
    }
  }
}

bool shape_of(const Argument& a, const Sizes& sizes, std::vector<int64_t>* shape) {
  const ShapePattern& p = a.shapes[std::min(sizes.alternative, a.shapes.size() - 1)];
  shape->clear();
  for (const Dim& d : p.dims) {
    if (d.kind == Dim::Kind::kPrefix) {
      const auto& prefix = sizes.prefixes[static_cast<size_t>(d.slot)];
      if (!d.optional_prefix || sizes.optional_prefix)
        shape->insert(shape->end(), prefix.begin(), prefix.end());
      continue;
    }
    int64_t size = 0;
    if (!evaluate(d, sizes, &size) || size < 0 || size > (1 << 24)) return false;
    shape->push_back(size);
  }
  return shape->size() <= static_cast<size_t>(kMaxRank);
}

constexpr int64_t kMostElements = 100'000;  // of a case: all of them together are to take seconds

int64_t elements(const Case& c) {
  int64_t sum = 0;
  for (const CaseInput& in : c.inputs) {
    int64_t n = 1;
    for (const int64_t size : in.shape) n *= size;
    sum += n;
  }
  return sum;
}

// --- attributes

bool allowed(const Attribute& a, double v) {
  return (a.min_open ? v > a.min : v >= a.min) && (a.max_open ? v < a.max : v <= a.max);
}

// The number nearest to `v` that the range has, or one well inside it.
double into_range(const Attribute& a, double v, double step) {
  v = std::min(std::max(v, a.min), a.max);
  if (!allowed(a, v)) v = a.min_open && v <= a.min ? a.min + step : a.max - step;
  if (!allowed(a, v)) v = (a.min + a.max) / 2;
  return v;
}

AttributeValue value_of(const Attribute& a, double v) {
  AttributeValue value;
  value.type = a.type;
  const double integer = into_range(a, std::round(v), 1), real = into_range(a, v, 0.5);
  value.i = static_cast<int64_t>(integer);
  value.f = static_cast<float>(real);
  if (a.type == AttributeType::kString) {
    value.i = 0;
    value.s = a.choices[0];
  }
  if (a.type == AttributeType::kBool) value.i = 1;
  if (a.type == AttributeType::kInts) value.ints.assign(2, static_cast<int64_t>(integer));
  if (a.type == AttributeType::kFloats) value.floats.assign(2, static_cast<float>(real));
  return value;
}

// Other values that are worth a call. What a list must be as long as, no signature says.
std::vector<AttributeValue> values_of(const Attribute& a) {
  std::vector<AttributeValue> values;
  if (a.type == AttributeType::kString) {
    for (size_t i = 0; i < a.choices.size(); ++i) {
      AttributeValue v = value_of(a, 0);
      v.i = static_cast<int64_t>(i);
      v.s = a.choices[i];
      values.push_back(v);
    }
  } else if (a.type == AttributeType::kBool) {
    for (int i = 0; i < 2; ++i) {
      AttributeValue v = value_of(a, 0);
      v.i = i;
      values.push_back(v);
    }
  } else {
    // Ends of the range that are no giant: an output may be as large as an attribute says.
    std::vector<double> numbers = {0, 1, 2, -1, 5};
    for (const double end : {a.min, a.max}) {
      if (std::fabs(end) <= 1024) numbers.push_back(end);
    }
    for (const double n : numbers) {
      if (allowed(a, n)) values.push_back(value_of(a, n));
    }
    if (a.type == AttributeType::kInts || a.type == AttributeType::kFloats) {
      AttributeValue v = value_of(a, 1);
      v.ints.clear();
      v.floats.clear();
      values.push_back(v);
    }
  }
  return values;
}

void set(GivenAttributes* given, const std::string& name, const AttributeValue& value) {
  for (auto& [n, v] : *given) {
    if (n == name) {
      v = value;
      return;
    }
  }
  given->emplace_back(name, value);
}

// --- values

template <class T>
T real(Values values, std::mt19937_64& random, double fraction) {
  const auto limit = [](double v) {
    if constexpr (std::is_same_v<T, f16>) return v < 0 ? -65504.0 : 65504.0;
    if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, float>) return v < 0 ? -3e38 : 3e38;
    return v < 0 ? -1e308 : 1e308;
  };
  const double normal = std::normal_distribution<double>()(random);
  const bool special = random() % 4 == 0;
  double v = normal;
  switch (values) {
    case Values::kNormal:
      break;
    case Values::kUnit:
      v = static_cast<double>(random() % 4096) / 4096;
      break;
    case Values::kCoarse:  // exact in every float type
      v = static_cast<double>(static_cast<int>(random() % 65) - 32) / 8;
      break;
    case Values::kZero:
      v = 0;
      break;
    case Values::kOne:
      v = 1;
      break;
    case Values::kSorted:
      v = fraction;
      break;
    case Values::kNan:
      if (special) v = std::numeric_limits<double>::quiet_NaN();
      break;
    case Values::kInfinite:
      if (special) v = std::copysign(std::numeric_limits<double>::infinity(), normal);
      break;
    case Values::kHuge:
      v = limit(normal);
      break;
    case Values::kTiny:
      v = normal * (std::is_same_v<T, double> ? 1e-310 : std::is_same_v<T, f16> ? 1e-6 : 1e-39);
      break;
  }
  if constexpr (std::is_same_v<T, double>)
    return v;
  else
    return T(static_cast<float>(v));
}

template <class T>
T integer(Values values, std::mt19937_64& random, double fraction, int64_t limit) {
  const auto below = static_cast<T>(random() % static_cast<uint64_t>(limit));
  const bool special = random() % 4 == 0;
  switch (values) {
    case Values::kZero:
      return 0;
    case Values::kOne:
      return 1;
    case Values::kSorted:
      return static_cast<T>(fraction * static_cast<double>(limit));
    case Values::kNan:  // just outside
      return special ? static_cast<T>(random() % 2 == 0 ? -1 : limit) : below;
    case Values::kInfinite:
    case Values::kHuge:
      return special ? (random() % 2 == 0 ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max())
                     : below;
    default:
      return below;
  }
}

}  // namespace

const char* values_name(Values values) { return kValuesNames[static_cast<int>(values)]; }

bool Case::empty() const {
  return std::any_of(inputs.begin(), inputs.end(), [](const CaseInput& in) {
    return in.present && std::find(in.shape.begin(), in.shape.end(), 0) != in.shape.end();
  });
}

const Argument& argument_of(const Signature& signature, size_t i) {
  static const Argument surplus = [] {
    Argument a;
    a.name = "surplus";
    return a;
  }();
  const bool known = i < signature.inputs.size() || signature.variadic();
  return known ? signature.inputs[std::min(i, signature.inputs.size() - 1)] : surplus;
}

bool is_batch_name(const std::string& name) {
  std::string lower = name;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower == "b" || lower.rfind("batch", 0) == 0;
}

Sizes all_sizes(const Signature& s, int64_t size, const std::vector<int64_t>& prefix) {
  Sizes sizes;
  sizes.names.assign(s.names.size(), size);
  sizes.prefixes.assign(s.prefixes.size(), prefix);
  return sizes;
}

Choice usual(const Signature& s) {
  Choice choice;
  for (const TypeVariable& t : s.type_variables) {
    DType type = t.dtypes[0];
    for (const DType wanted : {DType::f64, DType::i64, DType::f32}) {
      if (std::find(t.dtypes.begin(), t.dtypes.end(), wanted) != t.dtypes.end()) type = wanted;
    }
    choice.types.push_back(type);
  }
  choice.sizes = all_sizes(s, 0, {2, 3});
  constexpr int64_t kSizes[] = {5, 7, 4, 6, 9, 8};
  size_t next = 0;
  for (size_t i = 0; i < s.names.size(); ++i)
    choice.sizes.names[i] = is_batch_name(s.names[i]) ? 2 : kSizes[next++ % 6];
  for (const Attribute& a : s.attributes) {
    if (a.required)
      choice.attributes.emplace_back(a.name, value_of(a, a.type == AttributeType::kFloat ? 0.5 : 3));
  }
  return choice;
}

bool make_case(const Signature& s, const Choice& choice, Case* c) {
  *c = {choice.types, choice.sizes, choice.attributes, {}, {}, choice.values, choice.seed};
  for (const Attribute& a : s.attributes) {
    if (a.name_slot < 0) continue;
    int64_t value = a.default_value.i;
    for (const auto& [name, given] : choice.attributes) {
      if (name == a.name) value = given.i;
    }
    c->sizes.names[static_cast<size_t>(a.name_slot)] = value;
  }
  const size_t count = s.inputs.size() + static_cast<size_t>(s.variadic() ? choice.sizes.variadic - 1 : 0);
  for (size_t i = 0; i < count; ++i) {
    const Argument& a = argument_of(s, i);
    CaseInput in;
    in.dtype = a.type_variable < 0 ? a.concrete : choice.types[static_cast<size_t>(a.type_variable)];
    in.present = !(a.optional && i < choice.absent_inputs.size() && choice.absent_inputs[i]);
    if (!shape_of(a, c->sizes, &in.shape)) return false;
    c->inputs.push_back(in);
  }
  for (size_t i = 0; i < s.outputs.size(); ++i) {
    c->wanted.push_back(
        !(s.outputs[i].optional && i < choice.absent_outputs.size() && choice.absent_outputs[i]));
  }
  return true;
}

std::vector<std::vector<DType>> all_types(const Signature& s) {
  std::vector<std::vector<DType>> all = {{}};
  for (const TypeVariable& t : s.type_variables) {
    std::vector<std::vector<DType>> longer;
    for (const auto& some : all) {
      for (const DType d : t.dtypes) {
        longer.push_back(some);
        longer.back().push_back(d);
      }
    }
    all = std::move(longer);
    if (all.size() > 48) all.resize(48);
  }
  return all;
}

std::vector<Case> all_cases(const Signature& s, uint64_t seed) {
  std::vector<Case> cases;
  const auto add = [&](Choice choice) {
    Case c;
    choice.seed = seed + cases.size();
    if (make_case(s, choice, &c) && elements(c) <= kMostElements) cases.push_back(c);
  };
  const Choice plain = usual(s);
  const auto types = all_types(s);
  const std::vector<bool> all_in(s.inputs.size(), true), all_out(s.outputs.size(), true);

  std::vector<Sizes> empties;
  for (size_t i = 0; i < s.names.size(); ++i) {
    Sizes sizes = plain.sizes;
    sizes.names[i] = 0;
    empties.push_back(sizes);
  }
  empties.push_back(all_sizes(s, 0, {0}));
  Sizes no_prefix = plain.sizes;
  for (auto& p : no_prefix.prefixes) p = {0};
  if (!s.prefixes.empty()) empties.push_back(no_prefix);

  std::vector<Sizes> others = {all_sizes(s, 1, {1}), all_sizes(s, 1, {})};
  for (const int64_t size : {2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 65}) {
    Sizes sizes = all_sizes(s, size, {size});
    for (size_t i = 0; i < s.names.size(); ++i) {
      if (is_batch_name(s.names[i])) sizes.names[i] = 1 + size % 3;
    }
    others.push_back(sizes);
  }
  Sizes changed = plain.sizes;
  for (auto& p : changed.prefixes) p.clear();
  others.push_back(changed);
  changed = plain.sizes;
  changed.optional_prefix = false;
  others.push_back(changed);
  for (size_t k = 1; k < 4; ++k) {
    changed = plain.sizes;
    changed.alternative = k;
    others.push_back(changed);
  }
  if (s.variadic()) {
    for (const int count : {1, 3, 5}) {
      changed = plain.sizes;
      changed.variadic = count;
      others.push_back(changed);
    }
  }

  for (const auto& t : types) {
    for (int v = 0; v < kValuesCount; ++v) {
      Choice choice = plain;
      choice.types = t;
      choice.values = static_cast<Values>(v);
      add(choice);
    }
    for (const Sizes& sizes : empties) {
      Choice choice = plain;
      choice.types = t;
      choice.sizes = sizes;
      add(choice);
    }
  }
  for (const Sizes& sizes : others) {
    Choice choice = plain;
    choice.sizes = sizes;
    add(choice);
  }
  for (size_t i = 0; i < s.inputs.size(); ++i) {
    if (!s.inputs[i].optional) continue;
    Choice choice = plain;
    choice.absent_inputs.assign(s.inputs.size(), false);
    choice.absent_inputs[i] = true;
    add(choice);
    choice.absent_inputs = all_in;
    choice.absent_inputs[i] = false;
    add(choice);
    choice.absent_inputs = all_in;
    add(choice);
  }
  for (size_t i = 0; i < s.outputs.size(); ++i) {
    if (!s.outputs[i].optional) continue;
    Choice choice = plain;
    choice.absent_outputs.assign(s.outputs.size(), false);
    choice.absent_outputs[i] = true;
    add(choice);
    choice.absent_outputs = all_out;
    add(choice);
  }
  for (const Attribute& a : s.attributes) {
    for (const AttributeValue& v : values_of(a)) {
      Choice choice = plain;
      set(&choice.attributes, a.name, v);
      add(choice);
    }
  }

  // Everything at once.
  std::mt19937_64 random(seed);
  const auto any = [&](size_t n) { return static_cast<size_t>(random() % n); };
  constexpr int64_t kAny[] = {0, 1, 2, 3, 5, 8, 13, 32, 50};
  for (int n = 0; n < 60; ++n) {
    Choice choice = plain;
    choice.types = types[any(types.size())];
    for (int64_t& size : choice.sizes.names) size = kAny[any(9)];
    for (auto& p : choice.sizes.prefixes) {
      p.resize(any(3));
      for (int64_t& size : p) size = kAny[any(5)];
    }
    choice.sizes.optional_prefix = any(2) == 0;
    choice.sizes.alternative = any(3);
    choice.sizes.variadic = 1 + static_cast<int>(any(4));
    choice.values = static_cast<Values>(any(kValuesCount));
    for (size_t i = 0; i < s.inputs.size(); ++i) choice.absent_inputs.push_back(any(3) == 0);
    for (size_t i = 0; i < s.outputs.size(); ++i) choice.absent_outputs.push_back(any(3) == 0);
    for (const Attribute& a : s.attributes) {
      const auto values = values_of(a);
      if (!values.empty() && any(2) == 0) set(&choice.attributes, a.name, values[any(values.size())]);
    }
    add(choice);
  }
  return cases;
}

std::vector<Array> make_inputs(const Case& c) {
  int64_t limit = std::numeric_limits<int8_t>::max();
  for (const CaseInput& in : c.inputs) {
    for (const int64_t size : in.shape) {
      if (in.present && size > 0) limit = std::min(limit, size);
    }
  }
  std::mt19937_64 random(c.seed);
  std::vector<Array> arrays;
  for (const CaseInput& in : c.inputs) {
    if (!in.present) {
      arrays.emplace_back(in.dtype, std::vector<int64_t>{0});
      continue;
    }
    Array a(in.dtype, in.shape);
    const int64_t count = a.count(), row = in.shape.empty() || in.shape.back() == 0 ? 1 : in.shape.back();
    visit(a, [&](auto* p) {
      using T = std::remove_pointer_t<decltype(p)>;
      for (int64_t i = 0; i < count; ++i) {
        const double fraction = static_cast<double>(i % row) / static_cast<double>(row);
        if constexpr (std::is_same_v<T, bool>)
          p[i] = c.values == Values::kZero ? false : c.values == Values::kOne ? true : random() % 2 == 0;
        else if constexpr (kIsFloat<T>)
          p[i] = real<T>(c.values, random, fraction);
        else
          p[i] = integer<T>(c.values, random, fraction, limit);
      }
    });
    arrays.push_back(a);
  }
  return arrays;
}

Array slice(const Array& a, int64_t b) {
  std::vector<int64_t> shape = a.shape();
  const size_t bytes = shape[0] == 0 ? 0 : a.bytes() / static_cast<size_t>(shape[0]);
  shape[0] = 1;
  Array part(a.dtype(), shape);
  if (bytes > 0)
    std::memcpy(part.data(), static_cast<char*>(a.data()) + static_cast<size_t>(b) * bytes, bytes);
  return part;
}

std::string describe(const GivenAttributes& attributes) {
  std::string text;
  for (const auto& [name, v] : attributes) {
    const auto list = [](const auto& items) {
      std::string t;
      for (const auto& x : items) {
        if constexpr (std::is_floating_point_v<std::decay_t<decltype(x)>>)
          t += (t.empty() ? "" : ", ") + to_text(x);
        else
          t += (t.empty() ? "" : ", ") + std::to_string(x);
      }
      return "[" + t + "]";
    };
    std::string value;
    switch (v.type) {
      case AttributeType::kInt:
        value = std::to_string(v.i);
        break;
      case AttributeType::kFloat:
        value = to_text(v.f);
        break;
      case AttributeType::kBool:
        value = v.i != 0 ? "true" : "false";
        break;
      case AttributeType::kString:
        value = "'" + v.s + "'";
        break;
      case AttributeType::kInts:
        value = list(v.ints);
        break;
      case AttributeType::kFloats:
        value = list(v.floats);
        break;
    }
    text += (text.empty() ? "" : ", ") + name + "=" + value;
  }
  return text;
}

std::string describe(const Signature& s, const Case& c) {
  std::string text;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const CaseInput& in = c.inputs[i];
    text += (text.empty() ? "" : ", ") + argument_of(s, i).name + " ";
    text += in.present
                ? dtype_name(in.dtype) + shape_to_string(in.shape.data(), static_cast<int>(in.shape.size()))
                : "absent";
  }
  for (size_t i = 0; i < c.wanted.size(); ++i) {
    if (!c.wanted[i]) text += ", without " + s.outputs[i].name;
  }
  if (!c.attributes.empty()) text += "; " + describe(c.attributes);
  return text + "; values: " + values_name(c.values);
}

}  // namespace opbridge::checking
