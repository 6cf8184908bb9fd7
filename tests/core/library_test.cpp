// Whole libraries: what make_library() refuses, and the manifest.
#include "library.h"

#include <gtest/gtest.h>

namespace opbridge {

// A library would get these from CMake and from the adapter.
const int kBuiltOrtApi = 21;
LibraryDefinition library_definition() { return {"none", "none", 1, "0", "", "", {}}; }

namespace {

void nothing(const Call&) {}

LibraryDefinition definition(std::vector<LibraryDefinition::Folder> folders) {
  return {"some_ops", "some.ops", 2, "0.1.0", "", "", std::move(folders)};
}

std::string error_of(LibraryDefinition d) {
  try {
    make_library(std::move(d));
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

Operator cpu(const char* text) { return Operator(text).cpu(nothing); }

TEST(Library, RefusesWhatIsWrong) {
  EXPECT_EQ(error_of(definition({{"f", {cpu("f(x: f32[N]) -> y: f32[N]")}}})), "none");
  EXPECT_NE(error_of(definition({{"f", {cpu("f(x: f33[N]) -> y: f32[N]")}}})).find("\n       ^"),
            std::string::npos);
  EXPECT_EQ(error_of(definition({{"g", {cpu("f(x: f32[N]) -> y: f32[N]")}}})),
            "library 'some_ops': folder 'g' declares no operator of that name");
  EXPECT_EQ(
      error_of(definition({{"f", {cpu("f(x: f32[N]) -> y: f32[N]"), cpu("F(x: f32[N]) -> y: f32[N]")}}})),
      "library 'some_ops': operator 'F' is declared twice");
  EXPECT_EQ(error_of(definition({{"f", {Operator("f(x: f32[N]) -> y: f32[N]")}}})),
            "some.ops::f: has neither a CPU nor a CUDA kernel");
}

TEST(Library, ChecksGradients) {
  const char* forward = "f(x: f32[N], w?: f32[N]; k: int = 1) -> y: f32[N] grad: f_grad";
  const auto with = [&](const char* grad) {
    return error_of(definition({{"f", {cpu(forward), cpu(grad)}}}));
  };
  EXPECT_EQ(with("f_grad(grad_y: f32[N], x: f32[N], y: f32[N], w?: f32[N]; k: int = 1) -> (grad_x: f32[N], "
                 "grad_w?: f32[N])"),
            "none");
  EXPECT_EQ(error_of(definition({{"f", {cpu(forward)}}})),
            "some.ops::f: its gradient 'f_grad' is not an operator of this library");
  const std::string its = "some.ops::f: its gradient 'f_grad' ";
  EXPECT_EQ(
      with("f_grad(grad_z: f32[N]) -> grad_x: f32[N]"),
      its + "has an input 'grad_z', which is neither grad_<output> nor an input or output of the operator");
  EXPECT_EQ(with("f_grad(grad_y: f32[N]) -> dx: f32[N]"),
            its + "has an output 'dx', which is not grad_<input>");
  EXPECT_EQ(with("f_grad(grad_y: f32[N]; j: int = 1) -> grad_x: f32[N]"),
            its + "has an attribute 'j', which the operator does not have");
  EXPECT_EQ(with("f_grad(grad_y: f32[N]; k: float = 1) -> grad_x: f32[N]"),
            its + "has an attribute 'k', which the operator does not have");
}

TEST(Library, WritesTheManifest) {
  LibraryDefinition d =
      definition({{"f",
                   {cpu("\"Says \\\\ it.\" f(x: T[*B?,2*N], z: T[*B,N]; r: float in (0, inf] = inf, n: int = "
                        "4, s: string in {a, b} = b, q: float[] = [0.1]) -> "
                        "y: T[*B,n//2] where T in {f32, bf16}")}}});
  d.cuda_toolkit = "13.0";
  d.cuda_architectures = "75-real;80";
  const std::string m = make_library(std::move(d)).manifest;
  for (
      const char* part :
      {R"("library": "some_ops", "domain": "some.ops", "version": 2)",
       R"("onnxruntime": {"min": "1.16", "built_api": 21})",
       R"("cuda": {"toolkit": "13.0", "architectures": ["75-real", "80"]})",
       R"("dtypes": {"T": ["f32", "bf16"]})",
       R"([[{"prefix": "B", "optional": true}, {"op": "*", "args": [2, "N"]}]])",
       R"([[{"prefix": "B", "optional": false}, {"op": "//", "args": ["n", 2]}]])",
       R"("type": "float", "required": false, "default": "inf", "min": 0, "max": null, "min_open": true, "max_open": false)",
       R"("default": "b", "choices": ["a", "b"])",
       R"("type": "floats", "required": false, "default": [0.10000000149011612])",
       R"("devices": ["cpu"], "grad": null)"}) {
    EXPECT_NE(m.find(part), std::string::npos) << part << "\n" << m;
  }
}

}  // namespace
}  // namespace opbridge
