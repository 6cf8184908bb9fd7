// An operator's declaration, parsed. Everything that any host needs to know follows from it.
//
//   "Limits every element of `x` to [min, max]."
//   my_clip(x: T[*S] "values", min?: T[]|[1] "lower bound", max?: T[]|[1]; k: int in [1, 9] = 3) -> y: T[*S]
//     where T in {f16, bf16, f32, f64, i32, i64}
//     grad: my_clip_grad
//
// docs/signature.md is the language's reference.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "opbridge/tensor.h"

namespace opbridge {

/// One dimension: a literal, a name (bound by inputs, or an int attribute), or arithmetic of two others.
struct Dim {
  enum class Kind : uint8_t { kLiteral, kName, kPrefix, kAdd, kSub, kMul, kFloorDiv };
  Kind kind = Kind::kLiteral;
  bool optional_prefix = false;  // `*B?`: the same leading dimensions as elsewhere, or none
  int64_t value = 0;             // kLiteral
  int slot = -1;                 // kName, kPrefix: index into Signature::names / ::prefixes
  std::vector<Dim> args;         // kAdd..kFloorDiv
};

/// One alternative of an argument's shape; a prefix (`*S`) can only be its first entry.
struct ShapePattern {
  std::vector<Dim> dims;
  bool has_prefix() const { return !dims.empty() && dims[0].kind == Dim::Kind::kPrefix; }
};

struct Argument {
  std::string name;
  std::string doc;
  bool optional = false;
  bool variadic = false;             // the last input: one or more tensors of one type
  bool host = false;                 // a CUDA kernel reads it on the host
  std::string dtype;                 // as written: "T" or "f32"
  int type_variable = -1;            // index into Signature::type_variables, or -1
  DType concrete = DType::f32;       // when type_variable < 0
  std::vector<ShapePattern> shapes;  // at least one; outputs have exactly one
};

enum class AttributeType : int32_t { kInt = 1, kFloat = 2, kBool = 3, kString = 4, kInts = 5, kFloats = 6 };
const char* attribute_type_name(AttributeType type);

/// The value of an attribute; `type` says which members count.
struct AttributeValue {
  AttributeType type = AttributeType::kInt;
  int64_t i = 0;  // kInt, kBool, and for kString the index into Attribute::choices
  float f = 0;    // floats are float32 in every host
  std::string s;
  std::vector<int64_t> ints;
  std::vector<float> floats;
};

struct Attribute {
  std::string name;
  std::string doc;
  AttributeType type = AttributeType::kInt;
  bool required = true;
  AttributeValue default_value;
  // Range of numbers (of each element of a list), from `in [a, b]`; an open end is excluded.
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_open = false, max_open = false;
  std::vector<std::string> choices;  // kString
  int name_slot = -1;                // kInt used as a dimension: index into Signature::names
};

struct TypeVariable {
  std::string name;
  std::vector<DType> dtypes;
};

struct Signature {
  std::string name;  // ONNX name
  std::string doc;
  std::vector<Argument> inputs;
  std::vector<Attribute> attributes;
  std::vector<Argument> outputs;
  std::vector<TypeVariable> type_variables;
  std::vector<std::string> names;     // dimension names
  std::vector<std::string> prefixes;  // names of `*S`
  std::string grad;                   // operator that computes the gradient, or empty

  int required_inputs() const;
  bool variadic() const { return !inputs.empty() && inputs.back().variadic; }
  const Attribute* find_attribute(std::string_view name) const;

  /// The declaration in one canonical line, without prose: what hosts show and fingerprints hash.
  std::string to_string() const;
  /// 64-bit FNV-1a of to_string(), 16 hex digits; goes into exported models.
  std::string fingerprint() const;
};

/// Throws Error (kInvalidArgument) whose message shows the text and points at the column.
Signature parse_signature(std::string_view text);

/// "[B,N,3]" as the signature spells it.
std::string shape_to_string(const Signature& signature, const ShapePattern& shape);
/// "[2,512,4]"
std::string shape_to_string(const int64_t* shape, int rank);

/// PVN3DPoseSolve -> pvn3d_pose_solve; also the name in torch and the folder's.
std::string snake_case(std::string_view name);

}  // namespace opbridge
