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
    {"strides-ignored", E, "Wrong results for transposed tensors",
     "The library takes a tensor that is not contiguous for one that is.",
     "Let opbridge_add_library() make the entry points: they refuse it, and hosts make a copy."},
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
    // ------------------------------------------------------------------------------------ models
    {"model-does-not-load", E, "", "ONNX Runtime does not make a session of the model.",
     "`opbridge doctor m.onnx --library ..` names the cause."},
    {"model-never-ran", E, "", "It did not run with any of the sizes that were tried.",
     "Say what it needs: --dim NAME=N, --input NAME=FILE."},
    {"model-run-fails", E, "", "A run failed that had worked before with the same inputs.",
     "Look for what is kept between runs: `opbridge check` of the library."},
    {"model-crashes", E, "Segmentation fault", "A run ends the process.",
     "`opbridge check` of the library finds which operator and which case."},
    {"model-hangs", E, "The program stands still", "A run does not end.",
     "--timeout SECONDS where it only is slow; else `opbridge check` of the library."},
    {"dimension-fixed", E, "Works with the size it was exported with, fails with every other",
     "A dimension is declared dynamic, but the model runs with one size only: the export has baked it in.",
     "Export with dynamic_shapes, and take sizes from tensors (x.shape[0], -1) instead of Python numbers "
     "where the "
     "fixed tensor is made."},
    {"batch-lost", W, "One result for a whole batch", "An output keeps its shape whatever the batch is.",
     "Keep the batch as the first dimension where it is lost; where one result is meant, nothing."},
    {"batch-items-differ", W, "Right for one frame, wrong for several at once",
     "An item in a batch gets another result than alone.",
     "Look for sums, means or indices over the batch, and for a reshape that mixes it with another "
     "dimension; where "
     "mixing is meant, nothing."},
    {"output-shape-wrong", E, "The caller's buffers are too small or too large",
     "An output has another shape than the model declares.",
     "Declare the dimension dynamic in the export (dynamic_axes, dynamic_shapes), or correct the "
     "declaration."},
    {"shape-frozen", E, "Shape mismatch: a buffer of another size; wrong results with other sizes",
     "Shape inference, or the file's value_info, gives an inner tensor a fixed size that it does not keep "
     "to; ONNX "
     "Runtime may plan its memory by that.",
     "Remove value_info from the model and infer again; export without example sizes."},
    {"model-not-deterministic", E, "Poses that flicker", "The same inputs give different bits.",
     "Look at the operator that makes the first tensor that differs; `opbridge check` of its library."},
    {"rotation-wrong", E, "Poses that are plausible, but mirrored or sheared",
     "A rotation is none: det(R) is not 1, or its columns are not orthonormal.",
     "Project onto rotations (SVD with the sign of the determinant, as KabschSolver does) before the output; "
     "do not "
     "average or regress matrices."},
    {"translation-not-finite", E, "", "A translation has NaN or infinite elements.",
     "Guard the division that makes it: by depth, by a count, by a weight."},
    {"not-finite", W, "NaN in the results", "An output has NaN or infinite elements for finite inputs.",
     "Look at the operator where they start: a logarithm or root of a negative number, a division by 0, an "
     "overflow."},
    {"memory-grows", E, "The process is killed after hours", "Each run keeps memory.",
     "`opbridge check` of the libraries finds the operator; without custom operators, try another ONNX "
     "Runtime."},
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
  static constexpr const char* kFirstOfModels = "model-does-not-load";
  static const std::string kModelText = R"(
## A model

`opbridge check m.onnx --library lib<name>.so` runs a model in a child process, with random inputs or those given with
`--input`:

| what | how |
|---|---|
| sizes | the first of 16, 32, 64, 128, 224, 256, 512, 1024, 8, 4, 3, 1 that it runs with, batch 1; then each dynamic dimension alone with up to four (a batch: 2, 3, 4) other sizes until one runs, and those that none runs with all together. `--dim NAME=N` fixes one |
| shapes | outputs against the declaration; inner tensors, added as outputs in memory, against what shape inference says of them; outputs that do not grow with the batch, and the first tensor of fixed shape |
| batch | where it leads every input: each item in the batch and alone, within 1e-2 of the root mean square |
| repetition | 20 runs (`--repeat`), bit for bit; where they differ, the first tensor that does |
| rotations | outputs that an operator declares as `rotation`, or that are called R, rot, rotation..: det(R) and R^T R within 1e-4 (f16, bf16: 1e-2) of 1 and I |
| NaN, infinity | in outputs, translations above all; the tensor where they start |
| memory | 1000 runs (`--runs`), at most 10 s (`--memory-seconds`), in five blocks: what grows by 16 bytes and more for each run in all but the first |

Models with more than 1.8 GB of weights run, but their inner tensors are not shown.
)";
  std::string text = R"(# `opbridge check`

Made by `opbridge check --catalogue`. Exit codes: 0 passes, 1 fails (an *error* was found), 2 passes, but (a *warning*).
`--json` prints the same as data, and so does `opbridge.check()` in Python.

## A library

`opbridge check lib<name>.so` needs nothing but the library: its signatures say what may be called. Each operator runs in
child processes, so that a crash or a hang is a finding, with the case that was called.

| what | how |
|---|---|
| cases | every combination of element types (at most 48) with ten kinds of values (normal, in [0, 1), eighths, zero, one, ascending, NaN, infinities, huge, tiny; integers inside and outside of [0, smallest dimension)) and with every dimension 0; sizes from 1 to 65; prefixes of no, one and two dimensions; every alternative shape; every optional input and output absent; values of every attribute; and 60 mixtures |
| memory | each tensor lies at the end of its pages, then at their start, with 256 KiB on either side that cannot be touched; inputs are read-only; outputs and workspace are filled, with another pattern the second time |
| shapes | `infer()` against the signature, and the outputs that ONNX Runtime is told of against those that come |
| repetition | 20 times, with another call in between, in another node, in another process: bit for bit |
| threads | 2 to 16 of the library's own; a host that runs the pieces of work backwards, and in 3 threads; one processor: bit for bit |
| at the same time | 4 threads on one node and on nodes of their own |
| batch | where one dimension called `B` or `batch..`, or a prefix before other dimensions, leads all outputs and stands nowhere else: three items together and one by one, bit for bit |
| aliasing | one buffer for any two inputs of one type and shape |
| views | a byte_offset; strides, which are to be refused or followed |
| element types | against the most exact one, on values that all types hold exactly; a type is wrong where most cases differ by more than its precision |
| wrong calls | ranks, sizes, types, missing and surplus inputs, unknown, missing, mistyped and out-of-range attributes: an error with a text, and then the right result again |
| leaks | memory and files that grow with every one of 160 calls, with every node, and with every refused call |
| ONNX Runtime | models of one node with static, symbolic and unknown shapes: the bits of the library's own interface; a refused run, then a right one; sessions at the same time; with `--ort` twice, two runtimes in one process |

An operator may refuse what its signature allows (values out of range, sizes that it cannot do) with an error that has a
kind and a text; the table that is printed counts these. `--seed` gives other values. An operator gets `--budget` seconds;
what does not fit, and what needs a CUDA kernel, is listed as not checked.
)";
  text += doctor::table_heading("Findings about a library");
  for (const Entry& e : kCatalogue) {
    if (std::string(e.code) == kFirstOfModels)
      text += kModelText + doctor::table_heading("Findings about a model");
    text += doctor::table_row(e);
  }
  return text;
}

}  // namespace opbridge::checking
