// What can be called: the cases that a signature allows, and values for them.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "opbridge/runner.h"
#include "opbridge/signature.h"

namespace opbridge::checking {

/// Kinds of values. Integers may be indices, labels or counts: usually they lie in [0, smallest dimension).
enum class Values : uint8_t { kNormal, kUnit, kCoarse, kZero, kOne, kSorted, kNan, kInfinite, kHuge, kTiny };
constexpr int kValuesCount = 10;
const char* values_name(Values values);

/// What the names in shapes stand for.
struct Sizes {
  std::vector<int64_t> names;                  // by Signature::names; attributes' are set by make_case()
  std::vector<std::vector<int64_t>> prefixes;  // by Signature::prefixes
  bool optional_prefix = true;                 // whether `*B?` is there
  size_t alternative = 0;                      // which of an argument's shapes, at most the last
  int variadic = 2;                            // how many tensors the last input has, where it is variadic
};

using GivenAttributes = std::vector<std::pair<std::string, AttributeValue>>;

struct CaseInput {
  bool present = true;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
};

/// One call, all but the values themselves.
struct Case {
  std::vector<DType> types;  // by Signature::type_variables
  Sizes sizes;
  GivenAttributes attributes;
  std::vector<CaseInput> inputs;  // more than declared when the last one is variadic
  std::vector<bool> wanted;       // outputs
  Values values = Values::kNormal;
  uint64_t seed = 0;

  bool empty() const;  // some input has no element
};

/// What describes a case before its shapes are worked out.
struct Choice {
  std::vector<DType> types;
  Sizes sizes;
  GivenAttributes attributes;
  std::vector<bool> absent_inputs, absent_outputs;  // optional ones; empty: none
  Values values = Values::kNormal;
  uint64_t seed = 0;
};

/// The usual choice: f32 where allowed, small sizes that are all different, required attributes near 3 or 0.5.
Choice usual(const Signature& signature);
/// All names of dimensions `size`, all prefixes `prefix`.
Sizes all_sizes(const Signature& signature, int64_t size, const std::vector<int64_t>& prefix);
/// Whether the name of a dimension says that it counts independent items: B, batch, batch_size.
bool is_batch_name(const std::string& name);

/// False where the choice has no shape: arithmetic that does not come out.
bool make_case(const Signature& signature, const Choice& choice, Case* result);

/// Every combination of the type variables' element types, at most 48.
std::vector<std::vector<DType>> all_types(const Signature& signature);

/// The cases of the battery: types, sizes, values, attributes and optional arguments, one by one and mixed.
std::vector<Case> all_cases(const Signature& signature, uint64_t seed);

/// Values for the inputs that are present; absent ones are empty arrays.
std::vector<Array> make_inputs(const Case& c);

/// Item `b` of an array's first dimension, which becomes 1.
Array slice(const Array& array, int64_t b);

/// The argument that input number `i` belongs to; one called "surplus" where there is none.
const Argument& argument_of(const Signature& signature, size_t i);

/// "x f32[2,5], k i64[2]; k=3; values: normal"
std::string describe(const Signature& signature, const Case& c);
std::string describe(const GivenAttributes& attributes);

}  // namespace opbridge::checking
