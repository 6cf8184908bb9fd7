// Calls of a library's C interface, in the process that has loaded it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cases.h"
#include "core/node.h"
#include "opbridge/abi.h"

namespace opbridge::checking {

/// How one call is made.
struct Passing {
  bool guarded = true;  // between pages that cannot be touched, inputs read-only; false: ordinary memory
  bool at_end = true;   // tensors end where their pages do, else start there
  uint8_t output_fill = 0xA5, workspace_fill = 0x5A;
  int threads = 1;                     // the library's own
  ParallelFor parallel_for = nullptr;  // the host's; null: the library's own
  void* parallel_host = nullptr;
  bool null_empty = false;    // tensors without elements have a null pointer
  bool offset = false;        // data is 64 bytes before the elements, and byte_offset says so
  bool strided = false;       // every second element counts, and strides say so
  int same_as[2] = {-1, -1};  // these two inputs are one buffer
};

struct Result {
  int32_t kind = 0;     // 0 done, else an OPBRIDGE_* error kind
  std::string message;  // of an error
  std::vector<Array> outputs;
  std::string disturbed;  // memory around a tensor was written to: which, where
  const char* disturbed_code = "";
  bool float_mode_changed = false;
};

/// One operator of a loaded library, with the signature that its manifest shows.
class Callee {
 public:
  Callee(const OpbridgeLibrary* table, const Signature& signature, std::string full_name)
      : table_(table), signature_(signature), full_name_(std::move(full_name)), operator_("") {}

  using NodePtr = std::shared_ptr<OpbridgeNode>;
  /// Null, and the error filled, when it is refused.
  NodePtr create(const GivenAttributes& attributes, Result* refusal) const;
  Result call(const OpbridgeNode* node, const Case& c, const std::vector<Array>& inputs,
              const Passing& how) const;
  /// create() and call().
  Result call(const Case& c, const std::vector<Array>& inputs, const Passing& how = {}) const;

  /// What the signature says about the call: empty and the outputs' specs, or why it is wrong.
  std::string expected(const Case& c, std::vector<TensorSpec>* specs) const;
  /// What the library says.
  int32_t infer(const OpbridgeNode* node, const Case& c, std::vector<TensorSpec>* specs,
                std::string* message) const;

  const OpbridgeLibrary* table() const { return table_; }
  const Signature& signature() const { return signature_; }
  const std::string& full_name() const { return full_name_; }

 private:
  const OpbridgeLibrary* table_;
  const Signature& signature_;
  std::string full_name_;
  Operator operator_;  // has no kernel: for the shape rules alone
};

/// DLPack's (code, bits).
OpbridgeTensor describe_tensor(DType dtype, std::vector<int64_t>& shape, void* data);

bool same_bits(const Result& a, const Result& b);
/// "output 'y' f32[2,3]: 2 of 6 elements differ, first [0,1]: 0.5 and 0.25"
std::string difference(const Signature& signature, const Result& a, const Result& b);
/// The element as text.
std::string element_text(const Array& array, int64_t i);

}  // namespace opbridge::checking
