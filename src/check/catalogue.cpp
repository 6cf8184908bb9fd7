// Every kind of finding: the one place for its symptom, cause and fix.
#include "check.h"
#include "opbridge/error.h"

namespace opbridge::checking {

using doctor::Entry;
using doctor::Severity;

namespace {

constexpr Severity E = Severity::kError, W = Severity::kWarning;

const std::vector<Entry> kCatalogue = {
    // ------------------------------------------------------------------------------------ libraries
    {"not-opbridge", E, "",
     "The library is not opbridge's: it has no signatures that calls could be made from.",
     "`opbridge doctor --library` looks at any library; `opbridge check m.onnx` at a model that uses it."},
    {"manifest-wrong", E, "", "A signature in the library's manifest cannot be read.",
     "Build the library with opbridge_add_library(), which checks it."},
    {"shape-rule-wrong", E, "Shape mismatch, buffer overrun, wrong downstream shapes",
     "What the library, or ONNX Runtime on its behalf, says of an output's shape or type is not what the "
     "signature "
     "says, or not what comes out.",
     "Let opbridge_add_library() make the library's entry points: they follow the signature."},
    {"output-not-written", E, "Results that are right once and rubbish the next time",
     "The kernel returns without an error and has not written all elements of an output.",
     "Write every element, also for no hit, for an early return and in the last, shorter piece of work; what "
     "cannot be computed is an Error."},
    {"write-out-of-bounds", E, "Crashes elsewhere, later; other tensors change",
     "The kernel writes outside an output.",
     "Check the loop's bounds against the output's shape as the signature gives it."},
    {"read-out-of-bounds", E, "Rare crashes, results that depend on neighbouring memory",
     "The kernel reads outside an input.",
     "Check indices against the input's shape, and vector loads against its end."},
    {"input-written", E, "Other nodes that use the same tensor compute rubbish",
     "The kernel writes to an input.", "Write to outputs and workspace only: inputs belong to others."},
    {"workspace-too-small", E, "Crashes that depend on the host's allocator",
     "The kernel uses more workspace than the operator's workspace function asked for.",
     "Compute the size where the kernel computes its offsets, in one place."},
    {"reads-stale-memory", E, "Results that change with what ran before",
     "The result depends on what was in outputs or workspace before the call.",
     "Initialise what is accumulated into; the contents of outputs and workspace are undefined."},
    {"crash", E, "Segmentation fault, Floating point exception, Aborted", "The kernel ends the process.",
     "Run the case under a debugger: `gdb --args opbridge check LIBRARY --op NAME`, set follow-fork-mode "
     "child."},
    {"crash-on-empty", E, "Floating point exception on frames without detections",
     "The kernel ends the process where an input has no element.",
     "Treat a dimension of 0 as any other: divide by a count, or read element 0, only where there is one."},
    {"hang", E, "The program stands still", "A call does not end.",
     "Bound every loop; NaN makes comparisons false, so a loop `while (a < b)` and one `while (!(a >= b))` "
     "differ."},
    {"odd-exception", E, "an exception of unknown type was thrown",
     "The kernel throws something that is not a std::exception, so that nobody learns what happened.",
     "Throw opbridge::Error with a kind and a message."},
    {"internal-error", E, "an error of kind internal",
     "The kernel fails with an error that is not an opbridge::Error, or says itself that it is a fault of "
     "the "
     "library's.",
     "Refuse what cannot be computed with InvalidArgument() or another kind of opbridge::Error that names "
     "the "
     "argument; mend what can."},
    {"error-unclear", E, "An error without a text", "A refused call has no message or no kind of error.",
     "Throw opbridge::Error with a kind and a message; let opbridge's entry points pass it on."},
    {"right-call-refused", E, "Refused although it is as documented",
     "The library refuses inputs or attributes that the signature allows.",
     "Let opbridge_add_library() make the entry points; narrow the signature where the operator is "
     "narrower."},
    {"wrong-call-accepted", E, "Crash or rubbish where an error was to be expected",
     "The library accepts inputs or attributes that the signature forbids.",
     "Let opbridge_add_library() make the entry points: they check every call."},
    {"wrong-after-error", E, "After one bad frame all results are wrong",
     "After a refused call a right one gives another result.",
     "Keep nothing between calls; undo with destructors what a call has begun."},
    {"never-ran", W, "", "Every call was refused, so that nothing could be checked.",
     "Read the refusal; say in the signature what the operator needs: ranges, choices, shapes that agree."},
    {"not-deterministic", E, "Results that differ from run to run",
     "The same inputs give different bits: random numbers, the time, addresses, or threads that race.",
     "Seed from an attribute; give each thread its own part of the output; sum in a fixed order."},
    {"state-between-calls", E, "The first frame differs from the others; tests depend on their order",
     "Something is kept between calls: the same sequence of calls gives the same bits in another process, "
     "but "
     "the same call does not.",
     "No static or global variables in kernels; what must be kept is an input or an output."},
    {"depends-on-threads", E, "Results differ between machines or thread counts",
     "The result depends on the number of threads or on the order in which pieces of work are run.",
     "Let pieces depend on sizes alone (Call::parallel_for does), combine their results in a fixed order, "
     "and do "
     "not ask how many processors there are."},
    {"not-thread-safe", E, "Rubbish or crashes once two sessions run",
     "Calls at the same time disturb each other.",
     "No shared scratch memory: use the workspace, which each call gets for itself."},
    {"batch-items-mix", W, "A frame's result depends on the frames beside it",
     "An item in a batch gives another result than alone, although the shapes say that items are "
     "independent.",
     "Index each item's own part. Where mixing is meant, call the dimension something else than B or batch."},
    {"aliasing-unsafe", E, "Wrong results where one tensor is passed twice",
     "One buffer for two inputs gives another result than two buffers of the same values.",
     "Do not compare pointers of inputs and do not write to them."},
    {"byte-offset-ignored", E, "Views of tensors give their base's result",
     "The library does not add byte_offset to a tensor's data.",
     "Let opbridge_add_library() make the entry points."},
    {"element-type-differs", W, "Right in f32, wrong in f16 or f64",
     "One element type gives other numbers than the others, in most of the cases.",
     "Look at what is written for that type alone: dispatch, conversions, sums in too short a type, a float "
     "literal in a double's formula."},
    {"float-mode-changed", E, "Other code's results change after a call",
     "A call leaves another rounding mode, or denormals off.",
     "Restore what is set; do not link with -ffast-math, which sets it for the whole process."},
    {"prints", W, "", "A call prints, which hosts may need for themselves.",
     "Report by throwing opbridge::Error."},
    {"leak", E, "Memory grows with every frame", "Each call keeps memory or files.",
     "Own what is allocated (std::vector, std::unique_ptr), also on the way out of an error; better, ask for "
     "workspace."},
    {"onnxruntime-differs", E, "Python and C++ disagree",
     "The operator gives other bits inside ONNX Runtime than through the library's own interface.",
     "Let opbridge_add_library() make both entry points of one kernel."},
    {"session-fails", E, "", "ONNX Runtime does not load or run a model of the operator alone.",
     "`opbridge doctor` says more with --library."},
};

}  // namespace

const std::vector<Entry>& catalogue() { return kCatalogue; }

const Entry& find_entry(const std::string& code) {
  for (const Entry& e : kCatalogue) {
    if (code == e.code) return e;
  }
  throw Error(ErrorKind::kInternal, "check's catalogue has no '" + code + "'");
}

std::string page() {
  std::string text = R"(# `opbridge check`

Made by `opbridge check --catalogue`. Exit codes: 0 passes, 1 fails (an *error* was found), 2 passes, but (a *warning*).
`--json` prints the same as data, and so does `opbridge.check()` in Python.

## A library

`opbridge check lib<name>.so` needs nothing but the library: its signatures say what may be called. Each operator runs in
child processes, so that a crash or a hang is a finding, with the case that was called.

| what | how |
|---|---|
| cases | every combination of element types with ten kinds of values (normal, in [0, 1), eighths, zero, one, ascending, NaN, infinities, huge, tiny; integers inside and outside of [0, smallest dimension)) and with every dimension 0; sizes from 1 to 65; prefixes of no, one and two dimensions; every alternative shape; every optional input and output absent; values of every attribute; and 60 mixtures |
| memory | each tensor lies at the end of its pages, then at their start, with 256 KiB on either side that cannot be touched; inputs are read-only; outputs and workspace are filled, with another pattern the second time |
| shapes | `infer()` against the signature, and the outputs that ONNX Runtime is told of against those that come |
| repetition | 20 times, with another call in between, in another node, in another process: bit for bit |
| threads | 2 to 16 of the library's own; a host that runs the pieces of work backwards, and in 3 threads; one processor: bit for bit |
| at the same time | 4 threads on one node and on nodes of their own |
| batch | where one dimension called `B` or `batch..`, or a prefix before other dimensions, leads all outputs and stands nowhere else: three items together and one by one, bit for bit |
| aliasing | one buffer for any two inputs of one type and shape |
| element types | against the most exact one, on values that all types hold exactly; a type is wrong where most cases differ by more than its precision |
| wrong calls | ranks, sizes, types, missing and surplus inputs, unknown, missing, mistyped and out-of-range attributes: an error with a text, and then the right result again |
| leaks | memory and files that grow with every one of 160 calls, with every node, and with every refused call |
| ONNX Runtime | models of one node with static, symbolic and unknown shapes: the bits of the library's own interface; a refused run, then a right one; sessions at the same time; with `--ort` twice, two runtimes in one process |

An operator may refuse what its signature allows (values out of range, sizes that it cannot do) with an error that has a
kind and a text; the table that is printed counts these. `--seed` gives other values. An operator gets `--budget` seconds;
what does not fit, and what needs a CUDA kernel, is listed as not checked.
)";
  text += doctor::table_heading("Findings about a library");
  for (const Entry& e : kCatalogue) text += doctor::table_row(e);
  return text;
}

}  // namespace opbridge::checking
