// The signature language: what it accepts, what it says of the rest, canonical text, fingerprints, names.
#include "opbridge/signature.h"

#include <gtest/gtest.h>

#include <cmath>

#include "opbridge/error.h"
#include "text.h"

namespace opbridge {
namespace {

std::string canonical(const std::string& text) { return parse_signature(text).to_string(); }

std::string error_of(const std::string& text) {
  try {
    parse_signature(text);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kInvalidArgument);
    return e.what();
  }
  return "";
}

// -------------------------------------------------------------------------------------------------------
// accepted

struct Accepted {
  const char* text;
  const char* canonical;  // null: the text itself
};

class SignatureAccepted : public testing::TestWithParam<Accepted> {};

TEST_P(SignatureAccepted, HasACanonicalTextThatParsesToItself) {
  const std::string text = canonical(GetParam().text);
  EXPECT_EQ(text, GetParam().canonical ? GetParam().canonical : GetParam().text);
  EXPECT_EQ(canonical(text), text);
  EXPECT_EQ(parse_signature(text).fingerprint(), parse_signature(GetParam().text).fingerprint());
}

INSTANTIATE_TEST_SUITE_P(
    Constructs, SignatureAccepted,
    testing::Values(
        Accepted{"f(x: f32[N]) -> y: f32[N]", nullptr}, Accepted{"f(x: f32[]) -> y: f32[]", nullptr},
        Accepted{"  f ( x : f32 [ N , 3 ] )->y:f32[N,3]  ", "f(x: f32[N,3]) -> y: f32[N,3]"},
        Accepted{"f() -> y: f32[3]", nullptr}, Accepted{"f(; n: int = 3) -> y: f32[n]", nullptr},
        Accepted{"f(x: f32[N];) -> y: f32[N]", "f(x: f32[N]) -> y: f32[N]"},
        Accepted{"f(x: f32[N]) -> (y: f32[N])", "f(x: f32[N]) -> y: f32[N]"},
        Accepted{"f(x: f32[N]) -> (y: f32[N], z: i32[])", nullptr},
        Accepted{"f(x: f32[N]) -> (y: f32[N], z?: i32[1])", nullptr},
        Accepted{"f(x: T[*S], min?: T[]|[1]) -> y: T[*S] where T in {f16, bf16, f32, f64, i32, i64}",
                 nullptr},
        Accepted{"f(a: T[N], b: I[M]) -> y: T[N,M] where T in {f32, f64}, I in {i32, i64}", nullptr},
        Accepted{"f(a: T[*B?,N,3], b: T[*B,N,3]) -> y: T[*B,3,3] where T in {f32}", nullptr},
        Accepted{"f(a: f32[N,3]|[N,4]|[N]) -> y: f32[N]", nullptr},
        Accepted{"f(x: f32[N], s: i64[3] @host) -> y: f32[N]", nullptr},
        Accepted{"f(x: f32[N], xs...: f32[N]) -> y: f32[N]", nullptr},
        Accepted{"f(xs...: f32[*S]) -> y: f32[*S]", nullptr},
        Accepted{"f(x: f32[N]) -> y: f32[N+1]", nullptr}, Accepted{"f(x: f32[N]) -> y: f32[N-1]", nullptr},
        Accepted{"f(x: f32[N]) -> y: f32[2*N]", nullptr}, Accepted{"f(x: f32[N]) -> y: f32[N//2]", nullptr},
        Accepted{"f(x: f32[N,M]) -> y: f32[N-M-1,N-(M-1)]", "f(x: f32[N,M]) -> y: f32[(N-M)-1,N-(M-1)]"},
        Accepted{"f(x: f32[N,M]) -> y: f32[N+M*2]", "f(x: f32[N,M]) -> y: f32[N+(M*2)]"},
        Accepted{"f(x: f32[N,M]) -> y: f32[(N+M)*2]", nullptr},
        Accepted{"f(x: f32[N,M]) -> y: f32[(N//2)//M]", nullptr},
        Accepted{"f(x: f32[N], w: f32[N*N-1]) -> y: f32[N]", "f(x: f32[N], w: f32[(N*N)-1]) -> y: f32[N]"},
        Accepted{"f(x: f32[N], w?: f32[K,2*K]) -> y: f32[N]", nullptr},
        Accepted{"f(x: f32[B,N,3]; npoint: int in [0, 1048576], start: int = 0) -> idx: i32[B,npoint]",
                 nullptr},
        Accepted{"f(x: f32[N]; a: int) -> y: f32[N]", nullptr},
        Accepted{"f(x: f32[N]; a: int = -7) -> y: f32[N]", nullptr},
        Accepted{"f(x: f32[N]; a: int = 9223372036854775807) -> y: f32[N]", nullptr},
        Accepted{"f(x: f32[N]; a: int = -9223372036854775808) -> y: f32[N]", nullptr},
        Accepted{"f(x: f32[N]; a: int in [0, 4294967295]) -> y: f32[N]", nullptr},
        Accepted{"f(x: f32[N]; a: int in [1, inf]) -> y: f32[N]", nullptr},
        Accepted{"f(x: f32[N]; r: float in (0, inf)) -> y: f32[N]", nullptr},
        Accepted{"f(x: f32[N]; r: float in [0, 1) = 0.1) -> y: f32[N]", nullptr},
        Accepted{"f(x: f32[N]; r: float in [-inf, 0.3] = 0.3) -> y: f32[N]", nullptr},
        Accepted{"f(x: f32[N]; r: float = 1e-08) -> y: f32[N]", nullptr},
        Accepted{"f(x: f32[N]; r: float = 1E3) -> y: f32[N]", "f(x: f32[N]; r: float = 1000) -> y: f32[N]"},
        Accepted{"f(x: f32[N]; r: float = -inf) -> y: f32[N]", nullptr},
        Accepted{"f(x: f32[N]; r: float = 16777216) -> y: f32[N]", nullptr},
        Accepted{"f(x: f32[N]; r: float = 3.4028235e+38) -> y: f32[N]", nullptr},
        Accepted{"f(x: f32[N]; b: bool = true, c: bool = false, d: bool) -> y: f32[N]", nullptr},
        Accepted{"f(x: f32[N]; s: string in {one, two_2} = two_2) -> y: f32[N]", nullptr},
        Accepted{"f(x: f32[N]; s: string in {one}) -> y: f32[N]", nullptr},
        Accepted{"f(x: f32[N]; k: int[] in [1, 9] = [1, 2, 3], r: float[] = [], q: float[] in (0, 1] = "
                 "[0.5]) -> y: f32[N]",
                 nullptr},
        Accepted{"f(x: f32[N]) -> y: f32[N] grad: f_grad", nullptr},
        Accepted{"f(x: T[N]) -> y: T[N] where T in {f32} grad: f_grad", nullptr},
        Accepted{
            "f(x: bool[N], a: u8[N], b: u16[N], c: u32[N], d: u64[N], e: i8[N], g: i16[N]) -> y: bool[N]",
            nullptr},
        Accepted{"f(x: f32[a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p]) -> y: f32[a]", nullptr},
        Accepted{"\"What it does.\" f(x: f32[N] \"points\"; a: int = 1 \"a number\") -> y: f32[N] \"result\"",
                 "f(x: f32[N]; a: int = 1) -> y: f32[N]"}));

TEST(Signature, KeepsProse) {
  const Signature s = parse_signature(R"(
      "First line
          and second." "Third."
      f(x: T[N] "points; [m]", w?: T[N] @host "weights"; a: int = 1 "how many")
        -> (y: T[N] "sum", z?: i32[] "count")
        where T in {f32}
        grad: g)");
  EXPECT_EQ(s.doc, "First line and second. Third.");
  EXPECT_EQ(s.inputs[0].doc, "points; [m]");
  EXPECT_EQ(s.inputs[1].doc, "weights");
  EXPECT_EQ(s.attributes[0].doc, "how many");
  EXPECT_EQ(s.outputs[1].doc, "count");
  EXPECT_EQ(s.grad, "g");
  EXPECT_EQ(s.required_inputs(), 1);
  EXPECT_TRUE(s.inputs[1].host);
  EXPECT_FALSE(s.inputs[0].host);
}

TEST(Signature, RoundsFloatBoundsAndDefaultsToFloat32) {
  const Signature s = parse_signature(
      "f(x: f32[N]; r: float in [0.1, 0.3] = 0.3, q: float[] in [0.1, 0.3] = [0.1, 0.3]) -> y: f32[N]");
  EXPECT_EQ(s.attributes[0].min, static_cast<double>(0.1f));
  EXPECT_EQ(s.attributes[0].max, static_cast<double>(0.3f));
  EXPECT_EQ(s.attributes[0].default_value.f, 0.3f);
}

// --------------------------------------------------------------------------------------------------------
// refused

struct Refused {
  const char* text;
  size_t column;  // of the caret, from 1
  const char* what;
};

class SignatureRefused : public testing::TestWithParam<Refused> {};

TEST_P(SignatureRefused, PointsAtTheColumn) {
  const std::string text = GetParam().text, message = error_of(text);
  ASSERT_FALSE(message.empty()) << "accepted: " << text;
  EXPECT_NE(message.find("line 1, column " + std::to_string(GetParam().column) + ": "), std::string::npos)
      << message;
  EXPECT_NE(message.find(GetParam().what), std::string::npos) << message;
  const std::string picture = "\n  " + text + "\n  " + std::string(GetParam().column - 1, ' ') + "^";
  EXPECT_EQ(message.substr(message.size() - std::min(message.size(), picture.size())), picture);
}

INSTANTIATE_TEST_SUITE_P(
    Errors, SignatureRefused,
    testing::Values(
        Refused{"", 1, "expected the operator's name"},
        Refused{"3f(x: f32[N]) -> y: f32[N]", 1, "starts with a letter"},
        Refused{"_f(x: f32[N]) -> y: f32[N]", 1, "starts with a letter"}, Refused{"f", 2, "expected '('"},
        Refused{"f(x: f32[N])", 13, "expected '->'"},
        Refused{"f(x: f32[N]) ->", 16, "expected an output's name"},
        Refused{"f(x: f32[N]) -> ()", 18, "expected an output's name"},
        Refused{"f(x: f32[N]) -> y: f32[N] extra", 27, "nothing more is expected"},
        Refused{"f(x: f32[N]) -> y: f32[N], z: f32[N]", 26, "nothing more is expected"},
        Refused{"f(x f32[N]) -> y: f32[N]", 5, "expected ':'"},
        Refused{"f(x: f32) -> y: f32[N]", 9, "expected '['"},
        Refused{"f(x: f32[N) -> y: f32[N]", 11, "expected ']'"},
        Refused{"f(x: f32[N], ) -> y: f32[N]", 14, "expected an input's name"},
        Refused{"f(2x: f32[N]) -> y: f32[N]", 3, "cannot start with a digit"},
        Refused{"f(x: f32[N], x: f32[N]) -> y: f32[N]", 14, "'x' is taken already"},
        Refused{"f(x: f32[N]) -> x: f32[N]", 17, "'x' is taken already"},
        Refused{"f(x: f32[N]; x: int) -> y: f32[N]", 14, "'x' is taken already"},
        Refused{"f(x: f32[N]; a: int, a: int) -> y: f32[N]", 22, "'a' is taken already"},
        Refused{"f(x: f32[N]; y: int) -> y: f32[N]", 25, "'y' is taken already"},
        Refused{"f(x?: f32[N], z: f32[M]) -> y: f32[M]", 15, "optional inputs come last"},
        Refused{"f(x: f32[N]) -> (y?: f32[N], z: f32[N])", 30, "optional outputs come last"},
        Refused{"f(xs...: f32[N], x: f32[N]) -> y: f32[N]", 18, "a variadic input is the last one"},
        Refused{"f(xs?...: f32[N]) -> y: f32[3]", 6, "cannot be optional"},
        Refused{"f(x?: f32[M], xs...: f32[N]) -> y: f32[N]", 15, "optional inputs come last"},
        Refused{"f(x: f32[N]) -> ys...: f32[N]", 19, "an output cannot be variadic"},
        Refused{"f(x: f32[N] @device) -> y: f32[N]", 13, "only as '@host'"},
        Refused{"f(x: f32[N]) -> y: f32[N] @host", 27, "only inputs"},
        Refused{"f(x: float[N]) -> y: f32[N]", 6, "'float' is neither an element type nor declared"},
        Refused{"f(x: T[N]) -> y: f32[N]", 6, "where T in {...}"},
        Refused{"f(x: f32[N]) -> y: T[N]", 20, "'T' is neither"},
        Refused{"f(x: f32[N]) -> y: f32[?]", 24, "reserved"},
        Refused{"f(x: f32[N,*S]) -> y: f32[N]", 12, "can only come first"},
        Refused{"f(x: f32[*]) -> y: f32[3]", 11, "the name of the leading dimensions"},
        Refused{"f(x: f32[*B]) -> y: f32[*B?]", 25, "cannot be optional"},
        Refused{"f(x: f32[*B?,3]) -> y: f32[3]", 6, "leading dimensions '*B'"},
        Refused{"f(x: f32[N]) -> y: f32[*B]", 20, "leading dimensions '*B'"},
        Refused{"f(x: f32[N]) -> y: f32[M]", 20, "dimension 'M'"},
        Refused{"f(x: f32[2*N]) -> y: f32[3]", 6, "dimension 'N'"},
        Refused{"f(x: f32[N], w?: f32[M]) -> y: f32[M]", 32, "only required inputs"},
        Refused{"f(x: f32[2*K], w?: f32[K]) -> y: f32[3]", 6, "dimension 'K'"},
        Refused{"f(x: f32[N]|[M]) -> y: f32[N]", 24, "dimension 'N'"},
        Refused{"f(x: f32[N], w?: f32[*B,3], v?: f32[*B?,3]) -> y: f32[N]", 33, "leading dimensions '*B'"},
        Refused{"f(x: f32[N+]) -> y: f32[3]", 12, "a dimension: a name, an integer or arithmetic"},
        Refused{"f(x: f32[(N]) -> y: f32[3]", 12, "expected ')'"},
        Refused{"f(x: f32[N/2]) -> y: f32[3]", 11, "expected ']'"},
        Refused{"f(x: f32[-1]) -> y: f32[3]", 10, "a dimension"},
        Refused{"f(x: f32[1.5]) -> y: f32[3]", 10, "expected an integer"},
        Refused{"f(x: f32[99999999999999999999]) -> y: f32[3]", 10, "does not fit 64 bits"},
        Refused{"f(x: f32[a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q]) -> y: f32[a]", 44, "at most 16 dimensions"},
        Refused{"f(x: f32[N]; a: double) -> y: f32[N]", 17, "an attribute is of type"},
        Refused{"f(x: f32[N]; a: bool[]) -> y: f32[N]", 17, "an attribute is of type"},
        Refused{"f(x: f32[N]; a: string) -> y: f32[N]", 23, "needs its set of values"},
        Refused{"f(x: f32[N]; a: string in {}) -> y: f32[N]", 28, "expected a value"},
        Refused{"f(x: f32[N]; a: string in {p, p}) -> y: f32[N]", 31, "'p' is listed already"},
        Refused{"f(x: f32[N]; a: string in {p} = q) -> y: f32[N]", 31, "'q' is not in the set"},
        Refused{"f(x: f32[N]; a: int in {p}) -> y: f32[N]", 21, "only a string attribute"},
        Refused{"f(x: f32[N]; a: bool in [0, 1]) -> y: f32[N]", 22, "only numbers have a range"},
        Refused{"f(x: f32[N]; a: int in [3, 1]) -> y: f32[N]", 21, "this range is empty"},
        Refused{"f(x: f32[N]; a: float in [1, 1)) -> y: f32[N]", 23, "this range is empty"},
        Refused{"f(x: f32[N]; a: int in [0, 1] = 2) -> y: f32[N]", 31, "outside the range"},
        Refused{"f(x: f32[N]; a: float in (0, 1) = 0) -> y: f32[N]", 33, "outside the range"},
        Refused{"f(x: f32[N]; a: int[] in [0, 1] = [0, 2]) -> y: f32[N]", 33, "outside the range"},
        Refused{"f(x: f32[N]; a: int = 1.5) -> y: f32[N]", 23, "expected an integer"},
        Refused{"f(x: f32[N]; a: int = 1e3) -> y: f32[N]", 23, "expected an integer"},
        Refused{"f(x: f32[N]; a: float = x) -> y: f32[N]", 25, "expected a number"},
        Refused{"f(x: f32[N]; a: float = 1e99) -> y: f32[N]", 25, "does not fit float32"},
        Refused{"f(x: f32[N]; a: bool = 1) -> y: f32[N]", 24, "expected true or false"},
        Refused{"f(x: f32[N]; a: int in [0 1]) -> y: f32[N]", 27, "expected ','"},
        Refused{"f(x: f32[N]; N: float = 1) -> y: f32[N]", 14, "must be an int"},
        Refused{"f(x: T[N]) -> y: T[N] where T in {}", 35, "expected an element type"},
        Refused{"f(x: T[N]) -> y: T[N] where T in {f33}", 35, "'f33' is not an element type"},
        Refused{"f(x: T[N]) -> y: T[N] where T in {f32, f32}", 40, "listed already"},
        Refused{"f(x: T[N]) -> y: T[N] where T in {f32}, T in {f64}", 41, "declared already"},
        Refused{"f(x: f32[N]) -> y: f32[N] where f32 in {f32}", 33, "is an element type, not a variable"},
        Refused{"f(x: f32[N]) -> y: f32[N] where T in {f32}", 33, "used by no input"},
        Refused{"f(x: T[N]) -> y: T[N] where T of {f32}", 31, "expected 'in'"},
        Refused{"f(x: f32[N], w?: T[N]) -> y: T[N] where T in {f32}", 30, "no required input has"},
        Refused{"f(x: f32[N]) -> y: f32[N] grad f_grad", 32, "expected ':'"},
        Refused{"f(x: f32[N]) -> y: f32[N] grad:", 32, "the name of the operator"},
        Refused{"f(x: f32[N] \"never closed) -> y: f32[N]", 13, "never closed"}));

TEST(Signature, PointsAtTheLine) {
  const std::string message = error_of("f(x: f32[N],\n  y: f32[?])\n  -> z: f32[N]");
  EXPECT_NE(message.find("signature of 'f', line 2, column 10: "), std::string::npos) << message;
  EXPECT_NE(message.find("\n    y: f32[?])\n           ^"), std::string::npos) << message;
}

TEST(Signature, LimitsWhatCallsKeepOnTheStack) {
  std::string inputs, names;
  for (int i = 0; i < 65; ++i) inputs += (i ? ", i" : "i") + std::to_string(i) + ": f32[N]";
  EXPECT_NE(error_of("f(" + inputs + ") -> y: f32[N]").find("at most 64 inputs"), std::string::npos);
  for (int i = 0; i < 3; ++i) {
    names += (i ? ", i" : "i") + std::to_string(i) + ": f32[";
    for (int d = 0; d < 11; ++d) names += (d ? ",d" : "d") + std::to_string(i * 11 + d);
    names += "]";
  }
  EXPECT_NE(error_of("f(" + names + ") -> y: f32[1]").find("at most 32 dimension names"), std::string::npos);
  std::string all = "{bool, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64}";
  EXPECT_NE(
      error_of("f(a: A[], b: B[], c: C[]) -> y: A[] where A in " + all + ", B in " + all + ", C in " + all)
          .find("512 combinations"),
      std::string::npos);
}

TEST(Signature, SurvivesEveryTruncationAndEveryChangedByte) {
  const std::string text =
      "\"doc\" f(x: T[*B,N,2*N+1]|[3] @host \"d\", w?: T[*B?,N]; k: int in [0, 9) = 3, s: string in {a, b} = "
      "a, l: float[] = [1, 2e3]) -> "
      "(y: T[*B,k//2], z?: i32[]) where T in {f16, f32} grad: g";
  for (size_t n = 0; n < text.size(); ++n) error_of(text.substr(0, n));
  const char odd[] = "([{}])?*|:;,=\"@\x01\xff 9-";
  for (size_t n = 0; n < text.size(); ++n) {
    for (const char c : odd) {
      std::string changed = text;
      changed[n] = c;
      error_of(changed);
    }
  }
}

// ---------------------------------------------------------------------------------------------------
// fingerprints

TEST(Fingerprint, ChangesWithTheDeclarationAlone) {
  const auto fingerprint = [](const char* text) { return parse_signature(text).fingerprint(); };
  const std::string base = fingerprint("f(x: T[N]; k: int in [0, 9] = 3) -> y: T[N] where T in {f32, f64}");
  EXPECT_EQ(base.size(), 16u);
  EXPECT_EQ(base.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(
      base,
      fingerprint(
          "\"prose\" f(x: T[N] \"p\"; k: int in [0, 9] = 3 \"q\") -> y: T[N] \"r\" where T in {f32, f64}"));
  EXPECT_EQ(base, fingerprint("f( x:T[N];k:int in[0,9]=3 )->y:T[N] where T in{f32,f64} grad: other"));
  for (const char* other : {"g(x: T[N]; k: int in [0, 9] = 3) -> y: T[N] where T in {f32, f64}",
                            "f(z: T[N]; k: int in [0, 9] = 3) -> y: T[N] where T in {f32, f64}",
                            "f(x: T[N]; k: int in [0, 9] = 4) -> y: T[N] where T in {f32, f64}",
                            "f(x: T[N]; k: int in [0, 8] = 3) -> y: T[N] where T in {f32, f64}",
                            "f(x: T[N]; k: int in [0, 9]) -> y: T[N] where T in {f32, f64}",
                            "f(x: T[N]; k: int in [0, 9) = 3) -> y: T[N] where T in {f32, f64}",
                            "f(x: T[N]; j: int in [0, 9] = 3) -> y: T[N] where T in {f32, f64}",
                            "f(x: T[N]; k: int in [0, 9] = 3) -> y: T[N,1] where T in {f32, f64}",
                            "f(x: T[N]; k: int in [0, 9] = 3) -> y: T[N] where T in {f64, f32}",
                            "f(x: T[N]; k: int in [0, 9] = 3) -> y: T[N] where T in {f32}",
                            "f(x: T[N] @host; k: int in [0, 9] = 3) -> y: T[N] where T in {f32, f64}",
                            "f(x: T[N]; k: float in [0, 9] = 3) -> y: T[N] where T in {f32, f64}"}) {
    EXPECT_NE(base, fingerprint(other)) << other;
  }
  // Known values: models that were exported carry them.
  EXPECT_EQ(fingerprint("f(x: f32[N]) -> y: f32[N]"), fingerprint("f(x: f32[N]) -> y: f32[N] grad: f_grad"));
}

TEST(Fingerprint, TellsNumbersApartThatShortFormsDoNot) {
  const auto fingerprint = [](const std::string& range) {
    return parse_signature("f(x: f32[N]; k: int in [0, " + range + "]) -> y: f32[N]").fingerprint();
  };
  EXPECT_NE(fingerprint("4294967295"), fingerprint("4294967296"));
  EXPECT_NE(fingerprint("123456789012"), fingerprint("123456789013"));
}

// ----------------------------------------------------------------------------------------------------------
// words

TEST(SnakeCase, FollowsTheRule) {
  for (const auto& [name, snake] :
       std::vector<std::pair<const char*, const char*>>{{"my_clip", "my_clip"},
                                                        {"MyClip", "my_clip"},
                                                        {"KNN", "knn"},
                                                        {"PVN3DPoseSolve", "pvn3d_pose_solve"},
                                                        {"BallQuery", "ball_query"},
                                                        {"FarthestPointSample", "farthest_point_sample"},
                                                        {"ThreeNN", "three_nn"},
                                                        {"KabschSolver", "kabsch_solver"},
                                                        {"A", "a"},
                                                        {"ABC", "abc"},
                                                        {"ABc", "a_bc"},
                                                        {"aB", "a_b"},
                                                        {"Conv2D", "conv2d"},
                                                        {"Conv2d", "conv2d"},
                                                        {"X3Y", "x3y"},
                                                        {"X3Yz", "x3_yz"},
                                                        {"Already_Snake", "already_snake"},
                                                        {"", ""}}) {
    EXPECT_EQ(snake_case(name), snake);
  }
}

TEST(Words, NumbersReadBack) {
  EXPECT_EQ(to_text(0.1f), "0.1");
  EXPECT_EQ(to_text(0.1), "0.1");
  EXPECT_EQ(to_text(1e-8f), "1e-08");
  EXPECT_EQ(to_text(1.0), "1");
  EXPECT_EQ(to_text(-0.5), "-0.5");
  EXPECT_EQ(to_text(4294967295.0), "4294967295");
  EXPECT_EQ(to_text(16777216.0f), "16777216");
  EXPECT_EQ(to_text(std::nanf("")), "nan");
  EXPECT_EQ(to_text(-INFINITY), "-inf");
  for (const float v : {1.f / 3, 3.4028235e38f, 1.17549435e-38f, 1e-45f, 0.3f, 123456.79f})
    EXPECT_EQ(std::strtof(to_text(v).c_str(), nullptr), v);
}

TEST(Words, Lists) {
  EXPECT_EQ(list_of({}), "");
  EXPECT_EQ(list_of({"a"}), "a");
  EXPECT_EQ(list_of({"a", "b"}), "a or b");
  EXPECT_EQ(list_of({"a", "b", "c"}, "and"), "a, b and c");
  EXPECT_EQ(did_you_mean("raduis", {"radius", "nsample"}), "; did you mean 'radius'?");
  EXPECT_EQ(did_you_mean("MyClip", {"my_clip"}), "; did you mean 'my_clip'?");
  EXPECT_EQ(did_you_mean("Qeury", {"Query"}), "; did you mean 'Query'?");
  EXPECT_EQ(did_you_mean("zzz", {"radius", "nsample"}), "");
  EXPECT_EQ(did_you_mean("x", {}), "");
}

// ------------------------------------------------------------------------------------------------- 16-bit
// floats

TEST(HalfFloats, RoundTripAndRoundToNearestEven) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    f16 h;
    h.bits = static_cast<uint16_t>(bits);
    bf16 b;
    b.bits = static_cast<uint16_t>(bits);
    const float hf = h, bf = b;
    if (std::isnan(hf))
      EXPECT_TRUE(std::isnan(static_cast<float>(f16(hf))));
    else
      EXPECT_EQ(f16(hf).bits, bits);
    if (std::isnan(bf))
      EXPECT_TRUE(std::isnan(static_cast<float>(bf16(bf))));
    else
      EXPECT_EQ(bf16(bf).bits, bits);
  }
  // Halfway between two neighbours goes to the even one, a little more or less to the nearer one.
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    f16 low, high;
    low.bits = static_cast<uint16_t>(bits);
    high.bits = static_cast<uint16_t>(bits + 1);
    const float middle = (static_cast<float>(low) + static_cast<float>(high)) / 2;
    EXPECT_EQ(f16(middle).bits, bits % 2 ? bits + 1 : bits);
    EXPECT_EQ(f16(std::nextafterf(middle, 0)).bits, bits);
    EXPECT_EQ(f16(std::nextafterf(middle, INFINITY)).bits, bits + 1);
    EXPECT_EQ(f16(-middle).bits, 0x8000u | (bits % 2 ? bits + 1 : bits));
  }
  EXPECT_EQ(f16(65519.f).bits, 0x7bff);
  EXPECT_EQ(f16(65520.f).bits, 0x7c00);
  EXPECT_EQ(f16(INFINITY).bits, 0x7c00);
  EXPECT_EQ(bf16(3.4028235e38f).bits, 0x7f80);
  EXPECT_EQ(bf16(-0.f).bits, 0x8000);
}

}  // namespace
}  // namespace opbridge
