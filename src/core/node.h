// An operator bound to its attributes: what a host creates once for each node of its graph and calls many
// times.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "opbridge/context.h"
#include "opbridge/op.h"
#include "opbridge/signature.h"
#include "trace.h"

namespace opbridge {

constexpr int kMaxArguments = 64;  // inputs or outputs of one call
constexpr size_t kWorkspaceAlignment = 256;

/// The attributes of a call in the signature's order: given ones checked, the others at their defaults.
/// Throws when one is missing, unknown, of the wrong type or out of range.
std::vector<AttributeValue> resolve_attributes(
    const Signature& signature, const std::vector<std::pair<std::string, AttributeValue>>& given);

/// x `kind` y for the four arithmetic kinds; false where that does not fit 64 bits or divides by zero.
bool dim_arithmetic(Dim::Kind kind, int64_t x, int64_t y, int64_t* result);

/// Element type and shape of one output.
struct TensorSpec {
  DType dtype;
  int32_t rank;
  int64_t shape[kMaxRank];
};

/// What the host lends to one call.
struct HostServices {
  ParallelFor parallel_for = nullptr;  // null: run the chunks in the calling thread
  void* parallel_host = nullptr;
  void* stream = nullptr;
  int device_id = -1;  // on CUDA; -1: the current one
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  // Where a line of a trace goes; null: stderr.
  void (*log)(void* log_host, const char* line) = nullptr;
  void* log_host = nullptr;
};

class Node {
 public:
  /// `title` names operator and node in messages: "pvn3d.custom_ops::BallQuery (node '/sa1/query')".
  Node(const Operator& op, const Signature& signature, std::string title,
       std::vector<AttributeValue> attributes, std::unique_ptr<const Trace> trace = nullptr);

  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  /// How many there are in this library.
  static int64_t alive() { return alive_; }

  const Signature& signature() const { return signature_; }
  const std::string& title() const { return title_; }
  const Operator& op() const { return op_; }

  /// Checks the inputs (count, presence, element types, ranks, dimensions that must agree) and says what the
  /// outputs will be: one spec for each declared output. Data is not looked at.
  void infer(const TensorArg* inputs, int input_count, TensorSpec* outputs) const;

  /// The same for a call that is to run: one that is refused is traced.
  void infer(const TensorArg* inputs, int input_count, TensorSpec* outputs, Device device,
             const HostServices& host) const;

  bool has_workspace() const { return op_.workspace_function() != nullptr; }
  size_t workspace_bytes(const TensorArg* inputs, int input_count, const TensorArg* outputs,
                         Device device) const;

  /// Runs the kernel. infer() must have accepted the inputs; outputs are as it said.
  void compute(const TensorArg* inputs, int input_count, const TensorArg* outputs, Device device,
               const HostServices& host) const;

 private:
  struct Bindings;
  Call make_call(const TensorArg* inputs, int input_count, const TensorArg* outputs, Device device) const;
  bool matches_rank(const ShapePattern& p, int rank) const;
  const ShapePattern* choose(const Argument& a, const TensorArg& t, Bindings& b) const;
  bool bind(const Argument& a, const ShapePattern& p, const TensorArg& t, bool optional_pass,
            Bindings& b) const;
  int64_t evaluate(const Dim& d, const Bindings& b) const;
  void output_shape(const Argument& a, const Bindings& b, TensorSpec& spec) const;
  // Cold paths that find the words for what a check has found.
  [[noreturn]] void fail(ErrorKind kind, const std::string& what) const;
  [[noreturn]] void fail_shape(const Argument& a, const TensorArg& t, const Bindings& b) const;
  [[noreturn]] void fail_dtype(int i, const Argument& a, const TensorArg* inputs) const;

  const Operator& op_;
  const Signature& signature_;
  std::string title_;
  std::vector<AttributeValue> attributes_;
  const std::unique_ptr<const Trace> trace_;  // null, unless asked for
  int required_inputs_;
  bool later_ = false;  // some input has `*B?` or arithmetic, which wait for the others
  static std::atomic<int64_t> alive_;
};

/// `f()`, with operator and node put in front of an Error's message and every other exception turned into an
/// Error.
[[noreturn]] void rethrow_with_title(const std::string& title);

}  // namespace opbridge
