#include "opbridge/signature.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "node.h"
#include "opbridge/error.h"
#include "text.h"

namespace opbridge {

namespace {

constexpr const char* kDTypeNames[kDTypeCount] = {"f16", "bf16", "f32", "f64", "i8",  "i16", "i32",
                                                  "i64", "u8",   "u16", "u32", "u64", "bool"};
constexpr size_t kDTypeSizes[kDTypeCount] = {2, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1};

bool find_dtype(std::string_view name, DType* dtype) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (name == kDTypeNames[i]) return *dtype = static_cast<DType>(i), true;
  }
  return false;
}

bool is_word_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Recursive descent over the grammar of docs/signature.md, one method for each of its rules.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Signature parse() {
    s_.doc = doc();
    const size_t name_at = start();
    s_.name = word("the operator's name");
    if (!std::isalpha(static_cast<unsigned char>(s_.name[0])))
      fail(name_at, "an operator's name starts with a letter");
    expect("(");
    if (!at(")") && !at(";")) {
      do s_.inputs.push_back(argument(/*is_input=*/true));
      while (take(","));
    }
    if (take(";") && !at(")")) {
      do s_.attributes.push_back(attribute());
      while (take(","));
    }
    expect(")");
    expect("->");
    if (take("(")) {
      do s_.outputs.push_back(argument(/*is_input=*/false));
      while (take(","));
      expect(")");
    } else {
      s_.outputs.push_back(argument(/*is_input=*/false));
    }
    if (take_word("where")) {
      do type_variable();
      while (take(","));
    }
    if (take_word("grad")) {
      expect(":");
      s_.grad = word("the name of the operator that computes the gradient");
    }
    if (start() != text_.size()) fail(start(), "nothing more is expected here");
    resolve();
    return std::move(s_);
  }

 private:
  // --- characters and tokens
  size_t start() {  // position of the next token
    while (pos_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[pos_]))) ++pos_;
    return pos_;
  }
  bool at(std::string_view token) { return text_.substr(start(), token.size()) == token; }
  bool take(std::string_view token) {
    if (!at(token)) return false;
    pos_ += token.size();
    return true;
  }
  void expect(std::string_view token) {
    if (!take(token)) fail(start(), "expected '" + std::string(token) + "'");
  }
  bool at_word() { return start() < text_.size() && is_word_char(text_[pos_]); }
  bool take_word(std::string_view w) {
    const size_t end = start() + w.size();
    if (!at(w) || (end < text_.size() && is_word_char(text_[end]))) return false;
    pos_ = end;
    return true;
  }
  std::string word(const std::string& what) {
    if (!at_word()) fail(start(), "expected " + what);
    const size_t begin = pos_;
    while (pos_ < text_.size() && is_word_char(text_[pos_])) ++pos_;
    return std::string(text_.substr(begin, pos_ - begin));
  }
  std::string identifier(const std::string& what) {
    const size_t begin = start();
    std::string w = word(what);
    if (std::isdigit(static_cast<unsigned char>(w[0])))
      fail(begin, "expected " + what + ", which cannot start with a digit");
    return w;
  }
  std::string doc() {
    std::string text;
    while (take("\"")) {  // adjacent strings are one, as in C
      const size_t end = text_.find('"', pos_);
      if (end == std::string_view::npos) fail(pos_ - 1, "this string is never closed");
      if (!text.empty()) text += ' ';
      for (; pos_ < end; ++pos_) {  // line breaks and indentation become one space
        const bool space = std::isspace(static_cast<unsigned char>(text_[pos_])) != 0;
        if (!space)
          text += text_[pos_];
        else if (!text.empty() && text.back() != ' ')
          text += ' ';
      }
      ++pos_;
    }
    return text;
  }
  double number() {
    const size_t begin = start();
    const double sign = take("-") ? -1.0 : 1.0;
    if (take_word("inf")) return sign * std::numeric_limits<double>::infinity();
    size_t end = start();
    while (end < text_.size() &&
           (std::isdigit(static_cast<unsigned char>(text_[end])) || text_[end] == '.' ||
            ((text_[end] == 'e' || text_[end] == 'E') && end > pos_) ||
            ((text_[end] == '-' || text_[end] == '+') && (text_[end - 1] == 'e' || text_[end - 1] == 'E')))) {
      ++end;
    }
    const std::string digits(text_.substr(pos_, end - pos_));
    char* stop = nullptr;
    const double value = std::strtod(digits.c_str(), &stop);
    if (digits.empty() || *stop != '\0') fail(begin, "expected a number");
    pos_ = end;
    return sign * value;
  }
  float float32() {
    const size_t begin = start();
    const double v = number();
    const float f = static_cast<float>(v);
    if (std::isinf(f) && !std::isinf(v)) fail(begin, "this number does not fit float32");
    return f;
  }
  int64_t integer() {
    const size_t begin = start();
    const bool negative = take("-");
    const size_t first = start();
    const uint64_t limit = static_cast<uint64_t>(INT64_MAX) + negative;
    uint64_t value = 0;
    while (pos_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[pos_]))) {
      const uint64_t digit = static_cast<uint64_t>(text_[pos_] - '0');
      if (value > (limit - digit) / 10) fail(begin, "this integer does not fit 64 bits");
      value = value * 10 + digit;
      ++pos_;
    }
    if (pos_ == first || (pos_ < text_.size() && (is_word_char(text_[pos_]) || text_[pos_] == '.'))) {
      fail(begin, "expected an integer");
    }
    return negative ? static_cast<int64_t>(-value) : static_cast<int64_t>(value);
  }
  [[noreturn]] void fail(size_t at, const std::string& what) const {
    // Shows the line and a caret below the place.
    size_t line_begin = text_.substr(0, at).rfind('\n');
    line_begin = line_begin == std::string_view::npos ? 0 : line_begin + 1;
    const size_t line_end = std::min(text_.find('\n', at), text_.size());
    const size_t line =
        1 + static_cast<size_t>(std::count(text_.begin(), text_.begin() + static_cast<long>(at), '\n'));
    const size_t column = at - line_begin;
    throw InvalidArgument("signature" + (s_.name.empty() ? "" : " of '" + s_.name + "'") + ", line " +
                          std::to_string(line) + ", column " + std::to_string(column + 1) + ": " + what +
                          "\n  " + std::string(text_.substr(line_begin, line_end - line_begin)) + "\n  " +
                          std::string(column, ' ') + "^");
  }

  // --- rules
  Argument argument(bool is_input) {
    Argument a;
    const size_t name_at = start();
    const auto& list = is_input ? s_.inputs : s_.outputs;
    a.name = identifier(is_input ? "an input's name" : "an output's name");
    for (const auto* arguments : {&s_.inputs, &s_.outputs}) {
      for (const Argument& other : *arguments) {
        if (other.name == a.name) fail(name_at, "the name '" + a.name + "' is taken already");
      }
    }
    if (s_.find_attribute(a.name) != nullptr) fail(name_at, "the name '" + a.name + "' is taken already");
    if (list.size() == static_cast<size_t>(kMaxArguments)) {
      fail(name_at, "at most " + std::to_string(kMaxArguments) + (is_input ? " inputs" : " outputs"));
    }
    a.optional = take("?");
    const size_t dots_at = start();
    if (take("...")) {
      if (!is_input) fail(dots_at, "an output cannot be variadic");
      if (a.optional) fail(dots_at, "a variadic input cannot be optional");
      a.variadic = true;
    }
    if (!list.empty() && list.back().variadic) fail(name_at, "a variadic input is the last one");
    if (!list.empty() && list.back().optional && !a.optional) {
      fail(name_at, std::string("optional ") + (is_input ? "inputs" : "outputs") + " come last");
    }
    if (a.variadic && !list.empty() && list.back().optional)
      fail(name_at, "a variadic input cannot follow an optional one");
    expect(":");
    dtype_at_.push_back(start());
    a.dtype = identifier("an element type, or a variable such as T");
    do a.shapes.push_back(shape(is_input));
    while (is_input && take("|"));
    const size_t at_at = start();
    if (take("@")) {
      if (!is_input || !take_word("host")) fail(at_at, "only inputs can be marked, and only as '@host'");
      a.host = true;
    }
    a.doc = doc();
    return a;
  }
  ShapePattern shape(bool is_input) {
    ShapePattern p;
    expect("[");
    if (!at("]")) {
      do {
        const size_t begin = start();
        if (at("?")) fail(begin, "a dimension that only the data decides ('?') is reserved");
        if (take("*")) {
          if (!p.dims.empty()) fail(begin, "leading dimensions ('*') can only come first");
          Dim d;
          d.kind = Dim::Kind::kPrefix;
          d.slot = slot(s_.prefixes, identifier("the name of the leading dimensions"));
          d.optional_prefix = take("?");
          if (d.optional_prefix && !is_input)
            fail(begin, "an output's leading dimensions cannot be optional");
          p.dims.push_back(d);
        } else {
          p.dims.push_back(sum());
        }
      } while (take(","));
    }
    expect("]");
    if (p.dims.size() > static_cast<size_t>(kMaxRank)) fail(start(), "a tensor has at most 16 dimensions");
    return p;
  }
  static int slot(std::vector<std::string>& names, const std::string& name) {
    const auto it = std::find(names.begin(), names.end(), name);
    if (it != names.end()) return static_cast<int>(it - names.begin());
    names.push_back(name);
    return static_cast<int>(names.size()) - 1;
  }
  static Dim binary(Dim::Kind kind, Dim a, Dim b) {
    Dim d;
    d.kind = kind;
    d.args = {std::move(a), std::move(b)};
    return d;
  }
  Dim sum() {
    Dim d = term();
    while (true) {
      if (take("+"))
        d = binary(Dim::Kind::kAdd, std::move(d), term());
      else if (!at("->") && take("-"))
        d = binary(Dim::Kind::kSub, std::move(d), term());
      else
        return d;
    }
  }
  Dim term() {
    Dim d = factor();
    while (true) {
      if (take("*"))
        d = binary(Dim::Kind::kMul, std::move(d), factor());
      else if (take("//"))
        d = binary(Dim::Kind::kFloorDiv, std::move(d), factor());
      else
        return d;
    }
  }
  Dim factor() {
    if (take("(")) {
      Dim d = sum();
      expect(")");
      return d;
    }
    Dim d;
    if (start() < text_.size() && std::isdigit(static_cast<unsigned char>(text_[pos_]))) {
      d.value = integer();
    } else {
      d.kind = Dim::Kind::kName;
      d.slot = slot(s_.names, identifier("a dimension: a name, an integer or arithmetic of these"));
    }
    return d;
  }

  Attribute attribute() {
    Attribute a;
    const size_t name_at = start();
    attribute_at_.push_back(name_at);
    a.name = identifier("an attribute's name");
    for (const Argument& input : s_.inputs) {
      if (input.name == a.name) fail(name_at, "the name '" + a.name + "' is taken already");
    }
    for (const Attribute& other : s_.attributes) {
      if (other.name == a.name) fail(name_at, "the name '" + a.name + "' is taken already");
    }
    expect(":");
    const size_t type_at = start();
    const std::string type = identifier("an attribute's type");
    const bool list = take("[");
    if (list) expect("]");
    if (type == "int")
      a.type = list ? AttributeType::kInts : AttributeType::kInt;
    else if (type == "float")
      a.type = list ? AttributeType::kFloats : AttributeType::kFloat;
    else if (type == "bool" && !list)
      a.type = AttributeType::kBool;
    else if (type == "string" && !list)
      a.type = AttributeType::kString;
    else
      fail(type_at, "an attribute is of type int, float, bool, string, int[] or float[]");

    const size_t range_at = start();
    if (take_word("in")) range(a, range_at);
    if (a.type == AttributeType::kString && a.choices.empty()) {
      fail(range_at, "a string attribute needs its set of values: in {first, second}");
    }
    a.default_value.type = a.type;
    const size_t value_at = start();
    if (take("=")) {
      a.required = false;
      default_value(a, value_at);
    }
    a.doc = doc();
    return a;
  }
  void range(Attribute& a, size_t range_at) {
    if (take("{")) {
      if (a.type != AttributeType::kString) fail(range_at, "only a string attribute has a set of values");
      do {
        const size_t at = start();
        const std::string value = word("a value");
        if (std::find(a.choices.begin(), a.choices.end(), value) != a.choices.end())
          fail(at, "'" + value + "' is listed already");
        a.choices.push_back(value);
      } while (take(","));
      expect("}");
      return;
    }
    if (a.type == AttributeType::kString || a.type == AttributeType::kBool) {
      fail(range_at, "only numbers have a range");
    }
    a.min_open = take("(");
    if (!a.min_open) expect("[");
    // Values are float32, so the bounds are too: 0.3 as a float32 lies above 0.3 as a float64.
    const bool is_float = a.type == AttributeType::kFloat || a.type == AttributeType::kFloats;
    const auto bound = [&] { return is_float ? static_cast<double>(float32()) : number(); };
    a.min = bound();
    expect(",");
    a.max = bound();
    a.max_open = take(")");
    if (!a.max_open) expect("]");
    if (!(a.min <= a.max) || (a.min == a.max && (a.min_open || a.max_open)))
      fail(range_at, "this range is empty");
  }
  void default_value(Attribute& a, size_t at) {
    AttributeValue& v = a.default_value;
    switch (a.type) {
      case AttributeType::kInt:
        v.i = integer();
        break;
      case AttributeType::kFloat:
        v.f = float32();
        break;
      case AttributeType::kBool:
        if (take_word("true"))
          v.i = 1;
        else if (!take_word("false"))
          fail(start(), "expected true or false");
        break;
      case AttributeType::kString: {
        v.s = word("a value");
        const auto it = std::find(a.choices.begin(), a.choices.end(), v.s);
        if (it == a.choices.end()) fail(at, "the default '" + v.s + "' is not in the set");
        v.i = it - a.choices.begin();
        break;
      }
      case AttributeType::kInts:
      case AttributeType::kFloats:
        expect("[");
        if (!this->at("]")) {
          do {
            if (a.type == AttributeType::kInts)
              v.ints.push_back(integer());
            else
              v.floats.push_back(float32());
          } while (take(","));
        }
        expect("]");
        break;
    }
    const auto in_range = [&](double x) {
      return (a.min_open ? x > a.min : x >= a.min) && (a.max_open ? x < a.max : x <= a.max);
    };
    bool ok = true;
    if (a.type == AttributeType::kInt) ok = in_range(static_cast<double>(v.i));
    if (a.type == AttributeType::kFloat) ok = in_range(v.f);
    for (int64_t x : v.ints) ok = ok && in_range(static_cast<double>(x));
    for (float x : v.floats) ok = ok && in_range(x);
    if (!ok) fail(at, "the default lies outside the range");
  }

  void type_variable() {
    const size_t name_at = start();
    TypeVariable t;
    variable_at_.push_back(name_at);
    t.name = identifier("a type variable");
    DType dtype;
    if (find_dtype(t.name, &dtype)) fail(name_at, "'" + t.name + "' is an element type, not a variable");
    for (const TypeVariable& other : s_.type_variables) {
      if (other.name == t.name) fail(name_at, "'" + t.name + "' is declared already");
    }
    if (!take_word("in")) fail(start(), "expected 'in'");
    expect("{");
    do {
      const size_t at = start();
      const std::string name = identifier("an element type");
      if (!find_dtype(name, &dtype)) fail(at, "'" + name + "' is not an element type");
      if (std::find(t.dtypes.begin(), t.dtypes.end(), dtype) != t.dtypes.end())
        fail(at, "'" + name + "' is listed already");
      t.dtypes.push_back(dtype);
    } while (take(","));
    expect("}");
    s_.type_variables.push_back(std::move(t));
  }

  // Facts that are known only once everything has been read.
  void resolve() {
    size_t i = 0;
    for (auto* list : {&s_.inputs, &s_.outputs}) {
      for (Argument& a : *list) {
        const size_t at = dtype_at_[i++];
        if (find_dtype(a.dtype, &a.concrete)) continue;
        for (size_t t = 0; t < s_.type_variables.size(); ++t) {
          if (s_.type_variables[t].name == a.dtype) a.type_variable = static_cast<int>(t);
        }
        if (a.type_variable < 0) {
          fail(at, "'" + a.dtype + "' is neither an element type nor declared by 'where " + a.dtype +
                       " in {...}'");
        }
      }
    }
    for (size_t k = 0; k < s_.attributes.size(); ++k) {
      Attribute& a = s_.attributes[k];
      const auto it = std::find(s_.names.begin(), s_.names.end(), a.name);
      if (it == s_.names.end()) continue;
      if (a.type != AttributeType::kInt) {
        fail(attribute_at_[k], "attribute '" + a.name + "' is used as a dimension, so it must be an int");
      }
      a.name_slot = static_cast<int>(it - s_.names.begin());
    }
    if (s_.names.size() > 32 || s_.prefixes.size() > 4 || s_.type_variables.size() > 8) {
      fail(0, "at most 32 dimension names, 4 kinds of leading dimensions and 8 type variables");
    }
    // ONNX Runtime is given one overload for each combination of element types.
    size_t overloads = 1;
    for (size_t k = 0; k < s_.type_variables.size(); ++k) {
      overloads *= s_.type_variables[k].dtypes.size();
      if (overloads > 512) fail(variable_at_[k], "the type variables have more than 512 combinations");
    }

    // What the required inputs (and the attributes) bind is known in every call.
    std::vector<bool> names(s_.names.size()), prefixes(s_.prefixes.size()), types(s_.type_variables.size());
    std::vector<bool> any_names(s_.names.size()), any_prefixes(s_.prefixes.size()),
        any_types(s_.type_variables.size());
    for (const Attribute& a : s_.attributes) {
      if (a.name_slot >= 0)
        names[static_cast<size_t>(a.name_slot)] = any_names[static_cast<size_t>(a.name_slot)] = true;
    }
    for (const Argument& a : s_.inputs) {
      if (a.type_variable >= 0) {
        any_types[static_cast<size_t>(a.type_variable)] = true;
        if (!a.optional) types[static_cast<size_t>(a.type_variable)] = true;
      }
      // Of several alternatives any may come, so only what all of them bind is certain.
      std::vector<size_t> name_count(names.size()), prefix_count(prefixes.size());
      for (const ShapePattern& p : a.shapes) {
        std::vector<bool> seen(names.size());
        for (const Dim& d : p.dims) {
          const size_t n = static_cast<size_t>(d.slot);
          if (d.kind == Dim::Kind::kName) {
            any_names[n] = true;
            if (!seen[n]) ++name_count[n];
            seen[n] = true;
          } else if (d.kind == Dim::Kind::kPrefix && !d.optional_prefix) {
            any_prefixes[n] = true;
            ++prefix_count[n];
          }
        }
      }
      if (a.optional) continue;
      for (size_t n = 0; n < names.size(); ++n) names[n] = names[n] || name_count[n] == a.shapes.size();
      for (size_t n = 0; n < prefixes.size(); ++n)
        prefixes[n] = prefixes[n] || prefix_count[n] == a.shapes.size();
    }
    for (size_t t = 0; t < any_types.size(); ++t) {
      if (!any_types[t])
        fail(variable_at_[t], "type variable '" + s_.type_variables[t].name + "' is used by no input");
    }
    for (const Argument& a : s_.inputs) {
      for (const ShapePattern& p : a.shapes) {
        check_bound(a, p, any_names, any_prefixes, "binds it: no input has it as a dimension of its own");
        // Arithmetic and `*B?` are evaluated in every call that has this input, whatever else is absent then.
        std::vector<bool> own_names = names, own_prefixes = prefixes;
        for (const Dim& d : p.dims) {
          if (d.kind == Dim::Kind::kName) own_names[static_cast<size_t>(d.slot)] = true;
          if (d.kind == Dim::Kind::kPrefix && !d.optional_prefix)
            own_prefixes[static_cast<size_t>(d.slot)] = true;
        }
        check_bound(
            a, p, own_names, own_prefixes,
            "is sure to bind it: only required inputs, int attributes and '" + a.name + "' itself do");
      }
    }
    for (const Argument& a : s_.outputs) {
      if (a.type_variable >= 0 && !types[static_cast<size_t>(a.type_variable)]) {
        fail(place_of(a), "output '" + a.name + "' has type " + a.dtype + ", which no required input has");
      }
      check_bound(a, a.shapes[0], names, prefixes,
                  "is sure to bind it: only required inputs and int attributes do");
    }
  }
  // Where an argument's type and shape stand.
  size_t place_of(const Argument& a) const {
    size_t i = 0;
    for (const auto* list : {&s_.inputs, &s_.outputs}) {
      for (const Argument& other : *list) {
        if (&other == &a) return dtype_at_[i];
        ++i;
      }
    }
    return 0;
  }
  void check_bound(const Argument& a, const ShapePattern& p, const std::vector<bool>& names,
                   const std::vector<bool>& prefixes, const std::string& why) const {
    for (const Dim& d : p.dims) check_bound(a, d, names, prefixes, why);
  }
  void check_bound(const Argument& a, const Dim& d, const std::vector<bool>& names,
                   const std::vector<bool>& prefixes, const std::string& why) const {
    if (d.kind == Dim::Kind::kName && !names[static_cast<size_t>(d.slot)]) {
      fail(place_of(a), "'" + a.name + "' uses dimension '" + s_.names[static_cast<size_t>(d.slot)] +
                            "', but nothing " + why);
    }
    if (d.kind == Dim::Kind::kPrefix && !prefixes[static_cast<size_t>(d.slot)]) {
      fail(place_of(a), "'" + a.name + "' uses leading dimensions '*" +
                            s_.prefixes[static_cast<size_t>(d.slot)] + "', but nothing " + why);
    }
    for (const Dim& arg : d.args) check_bound(a, arg, names, prefixes, why);
  }

  std::string_view text_;
  size_t pos_ = 0;
  Signature s_;
  // Where things stand in the text.
  std::vector<size_t> dtype_at_;  // each argument's element type, inputs then outputs
  std::vector<size_t> attribute_at_;
  std::vector<size_t> variable_at_;
};

std::string dim_to_string(const Signature& s, const Dim& d, bool nested = false) {
  const auto binary = [&](const char* op) {
    const std::string text = dim_to_string(s, d.args[0], true) + op + dim_to_string(s, d.args[1], true);
    return nested ? "(" + text + ")" : text;
  };
  switch (d.kind) {
    case Dim::Kind::kLiteral:
      return std::to_string(d.value);
    case Dim::Kind::kName:
      return s.names[static_cast<size_t>(d.slot)];
    case Dim::Kind::kPrefix:
      return "*" + s.prefixes[static_cast<size_t>(d.slot)] + (d.optional_prefix ? "?" : "");
    case Dim::Kind::kAdd:
      return binary("+");
    case Dim::Kind::kSub:
      return binary("-");
    case Dim::Kind::kMul:
      return binary("*");
    case Dim::Kind::kFloorDiv:
      return binary("//");
  }
  return {};
}

std::string argument_to_string(const Signature& s, const Argument& a) {
  std::string text = a.name + (a.optional ? "?" : "") + (a.variadic ? "..." : "") + ": " + a.dtype;
  for (size_t i = 0; i < a.shapes.size(); ++i) text += (i ? "|" : "") + shape_to_string(s, a.shapes[i]);
  return text + (a.host ? " @host" : "");
}

std::string attribute_to_string(const Attribute& a) {
  std::string text = a.name + ": " + attribute_type_name(a.type);
  if (!a.choices.empty()) {
    text += " in {";
    for (size_t i = 0; i < a.choices.size(); ++i) text += (i ? ", " : "") + a.choices[i];
    text += "}";
  } else if (!std::isinf(a.min) || !std::isinf(a.max)) {
    text += " in " + range_to_text(a);
  }
  if (a.required) return text;
  return text + " = " + to_text(a.default_value);
}

template <class List, class F>
std::string join(const List& list, F to_text) {
  std::string text;
  for (const auto& item : list) text += (text.empty() ? "" : ", ") + to_text(item);
  return text;
}

}  // namespace

const char* dtype_name(DType dtype) { return kDTypeNames[static_cast<int>(dtype)]; }
size_t dtype_size(DType dtype) { return kDTypeSizes[static_cast<int>(dtype)]; }

const char* attribute_type_name(AttributeType type) {
  switch (type) {
    case AttributeType::kInt:
      return "int";
    case AttributeType::kFloat:
      return "float";
    case AttributeType::kBool:
      return "bool";
    case AttributeType::kString:
      return "string";
    case AttributeType::kInts:
      return "int[]";
    case AttributeType::kFloats:
      return "float[]";
  }
  return "?";
}

Signature parse_signature(std::string_view text) { return Parser(text).parse(); }

int Signature::required_inputs() const {
  int n = 0;
  for (const Argument& a : inputs) n += !a.optional;
  return n;
}

const Attribute* Signature::find_attribute(std::string_view attribute) const {
  for (const Attribute& a : attributes) {
    if (a.name == attribute) return &a;
  }
  return nullptr;
}

std::string Signature::to_string() const {
  const auto argument = [this](const Argument& a) { return argument_to_string(*this, a); };
  std::string text = name + "(" + join(inputs, argument);
  if (!attributes.empty()) text += "; " + join(attributes, attribute_to_string);
  const std::string results = join(outputs, argument);
  text += ") -> " + (outputs.size() == 1 ? results : "(" + results + ")");
  if (!type_variables.empty()) {
    text +=
        " where " + join(type_variables, [](const TypeVariable& t) {
          return t.name + " in {" + join(t.dtypes, [](DType d) { return std::string(dtype_name(d)); }) + "}";
        });
  }
  return grad.empty() ? text : text + " grad: " + grad;
}

std::string Signature::fingerprint() const {
  uint64_t hash = 0xcbf29ce484222325u;
  Signature exported = *this;
  exported.grad.clear();  // a model that was exported knows no gradient
  for (const char c : exported.to_string()) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  char buffer[17];
  std::snprintf(buffer, sizeof buffer, "%016llx", static_cast<unsigned long long>(hash));
  return buffer;
}

std::string shape_to_string(const Signature& signature, const ShapePattern& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.dims.size(); ++i)
    text += (i ? "," : "") + dim_to_string(signature, shape.dims[i]);
  return text + "]";
}

std::string shape_to_string(const int64_t* shape, int rank) {
  std::string text = "[";
  for (int i = 0; i < rank; ++i) text += (i ? "," : "") + std::to_string(shape[i]);
  return text + "]";
}

std::string snake_case(std::string_view name) {
  // Splits at (?<=[a-z])(?=[A-Z]) and (?<=[A-Z0-9])(?=[A-Z][a-z]).
  const auto upper = [](char c) { return c >= 'A' && c <= 'Z'; };
  const auto lower = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  std::string text;
  for (size_t i = 0; i < name.size(); ++i) {
    if (i > 0 && upper(name[i])) {
      const char before = name[i - 1];
      const bool lower_follows = i + 1 < name.size() && lower(name[i + 1]);
      if (lower(before) || ((upper(before) || digit(before)) && lower_follows)) text += '_';
    }
    text += static_cast<char>(std::tolower(static_cast<unsigned char>(name[i])));
  }
  return text;
}

}  // namespace opbridge
