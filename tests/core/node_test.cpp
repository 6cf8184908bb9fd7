// Attributes of a node, the checks of its inputs, and the shapes of its outputs.
#include "node.h"

#include <gtest/gtest.h>

#include <cmath>
#include <list>

namespace opbridge {
namespace {

// ------------------------------------------------------------------------------------------------------
// attributes

using Given = std::vector<std::pair<std::string, AttributeValue>>;

AttributeValue of_int(int64_t v) {
  AttributeValue a;
  a.type = AttributeType::kInt;
  a.i = v;
  return a;
}
AttributeValue of_float(float v) {
  AttributeValue a;
  a.type = AttributeType::kFloat;
  a.f = v;
  return a;
}
AttributeValue of_string(const char* v) {
  AttributeValue a;
  a.type = AttributeType::kString;
  a.s = v;
  return a;
}
AttributeValue of_ints(std::vector<int64_t> v) {
  AttributeValue a;
  a.type = AttributeType::kInts;
  a.ints = std::move(v);
  return a;
}
AttributeValue of_floats(std::vector<float> v) {
  AttributeValue a;
  a.type = AttributeType::kFloats;
  a.floats = std::move(v);
  return a;
}

const Signature& attributes_signature() {
  static const Signature s =
      parse_signature(R"(f(x: f32[N]; n: int in [0, 9], r: float in (0, 0.3] = 0.1, b: bool = true,
      s: string in {low, middle, high} = middle, k: int[] in [1, inf] = [1, 2], q: float[] in [-inf, 1) = [0.5]) -> y: f32[N])");
  return s;
}

std::string attributes_error(Given given) {
  try {
    resolve_attributes(attributes_signature(), given);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kInvalidArgument);
    return e.what();
  }
  return "none";
}

TEST(Attributes, TakeDefaults) {
  const auto v = resolve_attributes(attributes_signature(), {{"n", of_int(4)}});
  ASSERT_EQ(v.size(), 6u);
  EXPECT_EQ(v[0].i, 4);
  EXPECT_EQ(v[1].f, 0.1f);
  EXPECT_EQ(v[2].i, 1);
  EXPECT_EQ(v[3].i, 1);
  EXPECT_EQ(v[3].s, "middle");
  EXPECT_EQ(v[4].ints, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(v[5].floats, (std::vector<float>{0.5f}));
}

TEST(Attributes, TakeWhatIsGivenInAnyOrder) {
  const auto v = resolve_attributes(attributes_signature(), {{"q", of_floats({-INFINITY, 0.f})},
                                                             {"s", of_string("high")},
                                                             {"b", of_int(0)},
                                                             {"k", of_ints({})},
                                                             {"r", of_float(0.3f)},
                                                             {"n", of_int(9)}});
  EXPECT_EQ(v[0].i, 9);
  EXPECT_EQ(v[1].f, 0.3f);  // the end of the range, as float32
  EXPECT_EQ(v[2].type, AttributeType::kBool);
  EXPECT_EQ(v[2].i, 0);
  EXPECT_EQ(v[3].i, 2);
  EXPECT_TRUE(v[4].ints.empty());
  EXPECT_EQ(v[5].floats.size(), 2u);
}

TEST(Attributes, TakeAnEmptyListOfEitherKind) {
  const auto v = resolve_attributes(attributes_signature(),
                                    {{"n", of_int(0)}, {"k", of_floats({})}, {"q", of_ints({})}});
  EXPECT_EQ(v[4].type, AttributeType::kInts);
  EXPECT_EQ(v[5].type, AttributeType::kFloats);
}

TEST(Attributes, SayWhatIsWrong) {
  const std::pair<std::string, AttributeValue> n{"n", of_int(1)};
  const std::vector<std::pair<Given, const char*>> wrong = {
      {{}, "attribute 'n' (int) is required, but missing"},
      {{n, {"raduis", of_float(1)}}, "attribute 'raduis' is unknown (the operator has n, r, b, s, k and q)"},
      {{n, {"N", of_int(1)}},
       "attribute 'N' is unknown; did you mean 'n'? (the operator has n, r, b, s, k and q)"},
      {{n, n}, "attribute 'n' is given twice"},
      {{{"n", of_float(1)}}, "attribute 'n' must be of type int, got float"},
      {{{"n", of_string("1")}}, "attribute 'n' must be of type int, got string"},
      {{{"n", of_ints({1})}}, "attribute 'n' must be of type int, got int[]"},
      {{{"n", of_ints({})}}, "attribute 'n' must be of type int, got int[]"},
      {{n, {"r", of_int(1)}}, "attribute 'r' must be of type float, got int"},
      {{n, {"k", of_floats({1})}}, "attribute 'k' must be of type int[], got float[]"},
      {{n, {"q", of_ints({1})}}, "attribute 'q' must be of type float[], got int[]"},
      {{{"n", of_int(10)}}, "attribute 'n' must lie in [0, 9], got 10"},
      {{{"n", of_int(-1)}}, "attribute 'n' must lie in [0, 9], got -1"},
      {{{"n", of_int(INT64_MAX)}}, "attribute 'n' must lie in [0, 9], got 9223372036854775807"},
      {{n, {"r", of_float(0)}}, "attribute 'r' must lie in (0, 0.3], got 0"},
      {{n, {"r", of_float(-1e-8f)}}, "attribute 'r' must lie in (0, 0.3], got -1e-08"},
      {{n, {"r", of_float(NAN)}}, "attribute 'r' must lie in (0, 0.3], got nan"},
      {{n, {"r", of_float(INFINITY)}}, "attribute 'r' must lie in (0, 0.3], got inf"},
      {{n, {"b", of_int(2)}}, "attribute 'b' must be 0 or 1, got 2"},
      {{n, {"s", of_string("mddle")}},
       "attribute 's' must be one of low, middle or high, got 'mddle'; did you mean 'middle'?"},
      {{n, {"s", of_string("")}}, "attribute 's' must be one of low, middle or high, got ''"},
      {{n, {"k", of_ints({1, 0})}}, "attribute 'k' must lie in [1, inf], got 0"},
      {{n, {"q", of_floats({0, 1})}}, "attribute 'q' must lie in [-inf, 1), got 1"},
      {{n, {"q", of_floats({NAN})}}, "attribute 'q' must lie in [-inf, 1), got nan"},
  };
  for (const auto& [given, text] : wrong) EXPECT_EQ(attributes_error(given), text);
  try {
    resolve_attributes(parse_signature("f(x: f32[N]) -> y: f32[N]"), {{"a", of_int(1)}});
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "attribute 'a' is unknown (the operator has no attributes)");
  }
}

// -----------------------------------------------------------------------------------------------------------
// infer

struct Tensor_ {
  std::vector<int64_t> shape;
  DType dtype = DType::f32;
  bool present = true;
};
const Tensor_ kAbsent{{}, DType::f32, false};

struct Probe {
  explicit Probe(const char* text, const Given& attributes = {})
      : signature(parse_signature(text)),
        op(text),
        node(op, signature, "dom::" + signature.name + " (node 'n0')",
             resolve_attributes(signature, attributes)) {}

  std::string infer(const std::vector<Tensor_>& tensors) const {
    std::vector<TensorArg> args;
    for (const Tensor_& t : tensors)
      args.push_back({nullptr, t.shape.data(), static_cast<int32_t>(t.shape.size()), t.dtype, t.present});
    TensorSpec specs[kMaxArguments];
    try {
      node.infer(args.data(), static_cast<int>(args.size()), specs);
    } catch (const Error& e) {
      return e.what();
    }
    std::string text;
    for (size_t i = 0; i < signature.outputs.size(); ++i) {
      text += (i ? " " : "") + std::string(dtype_name(specs[i].dtype)) +
              shape_to_string(specs[i].shape, specs[i].rank);
    }
    return text;
  }

  Signature signature;
  Operator op;
  Node node;
};

const char kAt[] = "dom::f (node 'n0'): ";
std::string at(const std::string& text) { return kAt + text; }

TEST(Infer, BindsAndComparesDimensions) {
  const Probe p("f(x: T[B,N,3], y: T[B,M,3], w?: T[B,N]) -> (z: T[B,N,M], k?: i32[M]) where T in {f32, f64}");
  EXPECT_EQ(p.infer({{{2, 5, 3}}, {{2, 7, 3}}}), "f32[2,5,7] i32[7]");
  EXPECT_EQ(p.infer({{{2, 5, 3}, DType::f64}, {{2, 7, 3}, DType::f64}, {{2, 5}, DType::f64}}),
            "f64[2,5,7] i32[7]");
  EXPECT_EQ(p.infer({{{2, 5, 3}}, {{2, 7, 3}}, kAbsent}), "f32[2,5,7] i32[7]");
  EXPECT_EQ(p.infer({{{0, 0, 3}}, {{0, 7, 3}}}), "f32[0,0,7] i32[7]");
  EXPECT_EQ(p.infer({{{2, 5, 3}}, {{3, 7, 3}}}),
            at("input 'y' must have shape [B,M,3] with B=2 from 'x', got [3,7,3]"));
  EXPECT_EQ(p.infer({{{2, 5, 4}}, {{2, 7, 3}}}), at("input 'x' must have shape [B,N,3], got [2,5,4]"));
  EXPECT_EQ(p.infer({{{5, 3}}, {{2, 7, 3}}}), at("input 'x' must have shape [B,N,3], got [5,3]"));
  EXPECT_EQ(p.infer({{{}}, {{2, 7, 3}}}), at("input 'x' must have shape [B,N,3], got []"));
  EXPECT_EQ(p.infer({{{2, 5, 3}}, {{2, 7, 3}}, {{2, 7}}}),
            at("input 'w' must have shape [B,N] with B=2 from 'x', N=5 from 'x', got [2,7]"));
}

TEST(Infer, CountsAndTypes) {
  const Probe p("f(x: T[N], i: I[M], w?: T[]) -> y: T[N] where T in {f16, f32, f64}, I in {i32, i64}");
  EXPECT_EQ(p.infer({{{2}}}), at("takes 2 to 3 inputs, got 1"));
  EXPECT_EQ(p.infer({}), at("takes 2 to 3 inputs, got 0"));
  EXPECT_EQ(p.infer({{{2}}, {{2}, DType::i32}, {{}}, {{}}}), at("takes 2 to 3 inputs, got 4"));
  EXPECT_EQ(p.infer({kAbsent, {{2}, DType::i32}}), at("input 'x' is required, but missing"));
  EXPECT_EQ(p.infer({{{2}}, {{2}, DType::i64}}), "f32[2]");
  EXPECT_EQ(p.infer({{{2}, DType::i32}, {{2}, DType::i32}}),
            at("input 'x' must be of type f16, f32 or f64, got i32"));
  EXPECT_EQ(p.infer({{{2}}, {{2}}}), at("input 'i' must be of type i32 or i64, got f32"));
  EXPECT_EQ(p.infer({{{2}}, {{2}, DType::i32}, {{}, DType::f64}}),
            at("input 'w' must be of the same type as 'x', which is f32, got f64"));
  EXPECT_EQ(Probe("f(x: u8[N]) -> y: bool[N]").infer({{{2}}}), at("input 'x' must be of type u8, got f32"));
  EXPECT_EQ(Probe("f(x: u8[N]) -> y: bool[N]").infer({{{2}, DType::u8}}), "bool[2]");
  EXPECT_EQ(Probe("f(x: f32[N]) -> y: f32[N]").infer({}), at("takes 1 inputs, got 0"));
  EXPECT_EQ(Probe("f() -> y: f32[3]").infer({}), "f32[3]");
  EXPECT_EQ(Probe("f(a?: f32[], b?: f32[]) -> y: f32[3]").infer({kAbsent, {{}}}), "f32[3]");
}

TEST(Infer, LeadingDimensions) {
  const Probe p("f(w: f32[*B?,N], x: f32[*B,N,3], v?: f32[*B?]) -> (y: f32[*B,3,3], z: f32[*B])");
  EXPECT_EQ(p.infer({{{5}}, {{5, 3}}}), "f32[3,3] f32[]");
  EXPECT_EQ(p.infer({{{5}}, {{2, 7, 5, 3}}}), "f32[2,7,3,3] f32[2,7]");
  EXPECT_EQ(p.infer({{{2, 7, 5}}, {{2, 7, 5, 3}}}), "f32[2,7,3,3] f32[2,7]");
  EXPECT_EQ(p.infer({{{2, 7, 5}}, {{2, 7, 5, 3}}, {{}}}), "f32[2,7,3,3] f32[2,7]");
  EXPECT_EQ(p.infer({{{2, 7, 5}}, {{2, 7, 5, 3}}, {{2, 7}}}), "f32[2,7,3,3] f32[2,7]");
  EXPECT_EQ(p.infer({{{7, 5}}, {{2, 7, 5, 3}}}),
            at("input 'w' must have shape [*B?,N] with B=[2,7] from 'x', N=5 from 'x', got [7,5]"));
  EXPECT_EQ(p.infer({{{5}}, {{2, 7, 5, 3}}, {{7}}}),
            at("input 'v' must have shape [*B?] with B=[2,7] from 'x', got [7]"));
  EXPECT_EQ(p.infer({{{5}}, {{2, 6, 3}}}),
            at("input 'w' must have shape [*B?,N] with B=[2] from 'x', N=6 from 'x', got [5]"));
  EXPECT_EQ(p.infer({{{5}}, {{3}}}), at("input 'x' must have shape [*B,N,3], got [3]"));
  const Probe same("f(x: f32[*S], y: f32[*S]) -> z: f32[*S]");
  EXPECT_EQ(same.infer({{{2, 3}}, {{2, 3}}}), "f32[2,3]");
  EXPECT_EQ(same.infer({{{}}, {{}}}), "f32[]");
  EXPECT_EQ(same.infer({{{2, 3}}, {{2, 4}}}),
            at("input 'y' must have shape [*S] with S=[2,3] from 'x', got [2,4]"));
  EXPECT_EQ(same.infer({{{2, 3}}, {{2}}}),
            at("input 'y' must have shape [*S] with S=[2,3] from 'x', got [2]"));
}

TEST(Infer, Alternatives) {
  const Probe scalar("f(x: f32[*S], min?: f32[]|[1]) -> y: f32[*S]");
  EXPECT_EQ(scalar.infer({{{4}}, {{}}}), "f32[4]");
  EXPECT_EQ(scalar.infer({{{4}}, {{1}}}), "f32[4]");
  EXPECT_EQ(scalar.infer({{{4}}, {{2}}}), at("input 'min' must have shape [] or [1], got [2]"));
  EXPECT_EQ(scalar.infer({{{4}}, {{1, 1}}}), at("input 'min' must have shape [] or [1], got [1,1]"));
  // The alternative that agrees with the rest, whatever comes first.
  for (const char* text :
       {"f(x: f32[N,C], w: f32[C]|[1]) -> y: f32[N,C]", "f(x: f32[N,C], w: f32[1]|[C]) -> y: f32[N,C]"}) {
    const Probe p(text);
    EXPECT_EQ(p.infer({{{2, 4}}, {{4}}}), "f32[2,4]");
    EXPECT_EQ(p.infer({{{2, 4}}, {{1}}}), "f32[2,4]");
    EXPECT_EQ(p.infer({{{2, 1}}, {{1}}}), "f32[2,1]");
    EXPECT_NE(p.infer({{{2, 4}}, {{2}}}).find("with C=4 from 'x', got [2]"), std::string::npos);
  }
  const Probe before("f(w: f32[C]|[1], x: f32[N,C]) -> y: f32[N,C]");
  EXPECT_EQ(before.infer({{{1}}, {{2, 4}}}), "f32[2,4]");
  EXPECT_EQ(before.infer({{{4}}, {{2, 4}}}), "f32[2,4]");
  const Probe literals("f(x: f32[N,3]|[N,4]) -> y: f32[N]");
  EXPECT_EQ(literals.infer({{{7, 4}}}), "f32[7]");
  EXPECT_EQ(literals.infer({{{7, 5}}}), at("input 'x' must have shape [N,3] or [N,4], got [7,5]"));
}

TEST(Infer, Arithmetic) {
  const Probe p("f(x: f32[N,M], w?: f32[2*N+1]) -> y: f32[N*M-1,N//2,(N+M)*2]");
  EXPECT_EQ(p.infer({{{5, 3}}}), "f32[14,2,16]");
  EXPECT_EQ(p.infer({{{5, 3}}, {{11}}}), "f32[14,2,16]");
  EXPECT_EQ(p.infer({{{5, 3}}, {{12}}}),
            at("input 'w' must have shape [(2*N)+1] with N=5 from 'x', got [12]"));
  EXPECT_EQ(p.infer({{{0, 3}}}),
            at("output 'y' would have shape [(N*M)-1,N//2,(N+M)*2] with a dimension of -1"));
  const int64_t big = int64_t{1} << 40;
  EXPECT_EQ(p.infer({{{big, big}}}), at("a dimension does not fit 64 bits"));
  EXPECT_EQ(Probe("f(x: f32[N]) -> y: f32[N,N,N]").infer({{{big}}}),
            at("output 'y' of shape [1099511627776,1099511627776,1099511627776] does not fit into memory"));
  EXPECT_EQ(Probe("f(x: f32[N]) -> y: f32[N,N,N,0]").infer({{{big}}}),
            "f32[1099511627776,1099511627776,1099511627776,0]");
  EXPECT_EQ(Probe("f(x: f32[N]) -> y: f64[N]").infer({{{int64_t{1} << 60}}}),
            at("output 'y' of shape [1152921504606846976] does not fit into memory"));
}

TEST(Infer, AttributesAsDimensions) {
  const char* text = "f(x: f32[B,N]; k: int = 2, d: int = 1) -> y: i32[B,k,N//d]";
  EXPECT_EQ(Probe(text).infer({{{3, 7}}}), "i32[3,2,7]");
  EXPECT_EQ(Probe(text, {{"k", of_int(0)}, {"d", of_int(2)}}).infer({{{3, 7}}}), "i32[3,0,3]");
  EXPECT_EQ(Probe(text, {{"k", of_int(-1)}}).infer({{{3, 7}}}),
            at("output 'y' would have shape [B,k,N//d] with a dimension of -1"));
  EXPECT_EQ(Probe(text, {{"d", of_int(0)}}).infer({{{3, 7}}}),
            at("a dimension of its signature divides by zero"));
  EXPECT_EQ(Probe(text, {{"d", of_int(-2)}}).infer({{{3, 7}}}),
            at("output 'y' would have shape [B,k,N//d] with a dimension of -4"));
  // The one quotient that traps.
  EXPECT_EQ(
      Probe("f(x: f32[N]; k: int, d: int) -> y: f32[k//d]", {{"k", of_int(INT64_MIN)}, {"d", of_int(-1)}})
          .infer({{{3}}}),
      at("a dimension does not fit 64 bits"));
  const Probe input("f(x: f32[k,3]; k: int) -> y: f32[k]", {{"k", of_int(4)}});
  EXPECT_EQ(input.infer({{{4, 3}}}), "f32[4]");
  EXPECT_EQ(input.infer({{{5, 3}}}),
            at("input 'x' must have shape [k,3] with k=4 from the attribute, got [5,3]"));
}

TEST(Infer, Variadic) {
  const Probe p("f(s: f32[], xs...: f32[N,M]) -> y: f32[N]");
  EXPECT_EQ(p.infer({{{}}}), at("takes 2 or more inputs, got 1"));
  EXPECT_EQ(p.infer({{{}}, {{4, 5}}}), "f32[4]");
  EXPECT_EQ(p.infer({{{}}, {{4, 5}}, {{4, 5}}, {{4, 5}}}), "f32[4]");
  EXPECT_NE(p.infer({{{}}, {{4, 5}}, {{4, 6}}}).find(at("input 'xs' must have shape [N,M]")),
            std::string::npos);
  EXPECT_EQ(p.infer({{{}}, {{4, 5}}, kAbsent}), at("input 'xs' is required, but missing"));
  EXPECT_NE(p.infer({{{}}, {{4, 5}}, {{4, 5}, DType::f64}}).find("got f64"), std::string::npos);
  EXPECT_EQ(p.infer(std::vector<Tensor_>(65, {{4, 5}})), at("takes at most 64 inputs, got 65"));
}

TEST(Infer, RanksUpTo16) {
  const Probe p("f(x: f32[*S]) -> y: f32[*S,2]");
  EXPECT_EQ(p.infer({{std::vector<int64_t>(15, 1)}}), "f32[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2]");
  EXPECT_EQ(p.infer({{std::vector<int64_t>(16, 1)}}), at("output 'y' would have more than 16 dimensions"));
}

// ---------------------------------------------------------------------------------------------------- calls'
// views

TEST(Call, ReadsAttributesOnlyAsDeclared) {
  // By way of a kernel, which is the only one that sees a Call.
  static std::string seen;
  const Signature s =
      parse_signature("f(x: f32[N]; k: int = 3, q: float[] = [1, 2], s: string in {a, b} = b) -> y: f32[N]");
  Operator op("");
  op.cpu([](const Call& call) {
    EXPECT_EQ(call.attr_int("k"), 3);
    EXPECT_EQ(call.attr_floats("q").size(), 2u);
    EXPECT_EQ(call.attr_string("s"), "b");
    EXPECT_EQ(call.attr_choice("s"), 1);
    EXPECT_FALSE(call.has_input(1));
    EXPECT_FALSE(call.has_input(63));
    call.attr_bool("k");
  });
  const Node node(op, s, "t", resolve_attributes(s, {}));
  const int64_t shape[] = {0};
  const TensorArg x{nullptr, shape, 1, DType::f32, true};
  try {
    node.compute(&x, 1, &x, Device::kCpu, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kInternal);
    EXPECT_STREQ(e.what(), "t: the kernel reads attribute 'k' as bool, but the signature says int");
  }
  EXPECT_THROW(node.compute(&x, 1, &x, Device::kCuda, {}), Error);
}

TEST(Node, CountsThoseThatAreAlive) {
  const int64_t before = Node::alive();
  {
    const Probe p("f(x: f32[N]) -> y: f32[N]");
    EXPECT_EQ(Node::alive(), before + 1);
  }
  EXPECT_EQ(Node::alive(), before);
}

}  // namespace
}  // namespace opbridge
