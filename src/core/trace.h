// What a user sees of the calls inside a running process: OPBRIDGE_TRACE, OPBRIDGE_DUMP, OPBRIDGE_SYNC and
// NVTX ranges, as docs/tracing.md describes them. A node has no Trace unless one of them is asked for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "opbridge/context.h"
#include "opbridge/library.h"
#include "opbridge/op.h"
#include "opbridge/signature.h"

namespace opbridge {

struct HostServices;

/// What a trace says of one call. `outputs` is null where the call failed before it had any.
struct TracedCall {
  const std::string& title;  // operator and node
  const Signature& signature;
  const std::vector<AttributeValue>& attributes;  // in the signature's order
  const TensorArg* inputs;
  int input_count;
  const TensorArg* outputs;
  Device device;
  const HostServices& host;
};

class Trace {
 public:
  /// Runs the kernel and traces it. Throws what the kernel throws and, with OPBRIDGE_SYNC, what its work on
  /// the device meets; what keeps the trace from being written is warned of once and never thrown.
  void run(const TracedCall& traced, Kernel kernel, const Call& call) const;
  /// Traces a call that its checks refused, `what` being why.
  void refused(const TracedCall& traced, const std::string& what) const noexcept;

 private:
  friend std::unique_ptr<const Trace> make_trace(const LibraryDefinition&, const Signature&,
                                                 const std::string&);
  friend class Record;

  bool log_ = false;          // OPBRIDGE_TRACE
  std::string dump_;          // OPBRIDGE_DUMP: a folder, or empty
  bool only_failed_ = false;  // OPBRIDGE_DUMP_ON=error
  bool sync_ = false;         // OPBRIDGE_SYNC
  bool ranges_ = false;       // NVTX
  const CudaServices* cuda_ = nullptr;
  std::string description_;  // the start of a dump's JSON: operator, node, library
};

/// What the environment asks for now, or null.
std::unique_ptr<const Trace> make_trace(const LibraryDefinition& library, const Signature& signature,
                                        const std::string& node_name);

}  // namespace opbridge
