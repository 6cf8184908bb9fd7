// Every kind of finding: the one place for its symptom, cause and fix.
#include "core/text.h"
#include "doctor.h"
#include "opbridge/error.h"

namespace opbridge::doctor {

namespace {

constexpr Severity E = Severity::kError, W = Severity::kWarning, N = Severity::kNote;

const std::vector<Entry> kCatalogue = {
    // ------------------------------------------------------------------------------------ the library's file
    {"library-missing", E,
     "Failed to load library ...: cannot open shared object file: No such file or directory",
     "There is no file at the path given.", "Give the path of the built library: build/lib/lib<name>.so."},
    {"library-not-elf", E, "invalid ELF header; file too short",
     "The file is not a shared library of this system: empty, cut off, text, or another format.",
     "Build it again, or fetch it again in binary mode (git lfs pull where the repository uses LFS)."},
    {"library-not-shared", E, "only ET_DYN and ET_EXEC can be loaded; cannot dynamically load executable",
     "The file is an object file, a static archive or a program, not a shared library.",
     "Link it as one: g++ -shared -fPIC, or add_library(<name> SHARED ...); opbridge_add_library() does."},
    {"library-platform", E, "invalid ELF header; wrong ELF class; cannot open shared object file",
     "The library was built for another processor or system.",
     "Build the library on this machine, or with a toolchain for it."},
    {"library-dependency-missing", E,
     "lib<x>.so.N: cannot open shared object file: No such file or directory",
     "A library that it is linked to is not found by the dynamic loader.",
     "Install what brings the file, or name its folder in LD_LIBRARY_PATH or the library's run path."},
    {"library-needs-newer-system", E, "version `GLIBC_2.38' not found; version `GLIBCXX_3.4.32' not found",
     "It was built on a newer system than this one: its C or C++ library has functions that this one lacks.",
     "Build it on the oldest system that it has to run on (a container of it does)."},
    {"library-undefined-symbol", E, "undefined symbol: ...",
     "The library uses a function that neither it nor anything it is linked to has.",
     "Link the library that defines it; -Wl,-z,defs finds this when the library is built."},
    {"library-executable-stack", W, "cannot enable executable stack as shared object requires",
     "The library asks for an executable stack, which newer systems refuse.",
     "Link with -Wl,-z,noexecstack."},
    {"library-is-onnxruntime", E, "undefined symbol: RegisterCustomOps",
     "The file is ONNX Runtime itself, not a library of custom operators.",
     "Give the library with the operators as --library, and ONNX Runtime as --ort."},
    {"library-sanitizer", E, "ASan runtime does not come first in initial library list; the process ends",
     "The library was built with -fsanitize, whose run-time library has to be in the program first.",
     "Give the library built without -fsanitize, or start the program with LD_PRELOAD=$(g++ "
     "-print-file-name=libasan.so)."},
    {"library-links-onnxruntime", W,
     "libonnxruntime.so.1.x: cannot open shared object file; two runtimes in a process",
     "It is linked to libonnxruntime, which Python wheels do not offer under that name, and which ties it to "
     "one version.",
     "Do not link it: take the OrtApi that RegisterCustomOps is given (ORT_API_MANUAL_INIT, Ort::InitApi)."},
    {"library-links-torch", W, "libtorch.so: cannot open shared object file",
     "It is linked to PyTorch's libraries, so every program that loads it needs that very PyTorch.",
     "Keep the kernels free of torch headers; write the operator with opbridge, or split the library in "
     "two."},
    {"library-torch-extension", E, "undefined symbol: RegisterCustomOps",
     "The file is a PyTorch extension: it registers operators with torch, not with ONNX Runtime.",
     "Give the library built for ONNX Runtime; one made by opbridge_add_library() serves both."},
    {"library-tensorrt-plugin", E, "undefined symbol: RegisterCustomOps",
     "The file is a TensorRT plugin: it registers layers with TensorRT, not operators with ONNX Runtime.",
     "Give the library built for ONNX Runtime; TensorRT loads this one (trtexec --staticPlugins=<file>)."},
    {"library-needs-python", N, "undefined symbol: PyExc_TypeError",
     "It is a Python module, too: it serves programs that run Python, but no C++ program.",
     "Nothing, if only Python uses it."},
    {"library-python-module", E, "undefined symbol: RegisterCustomOps",
     "The file is a Python extension module.", "Give the library of custom operators, lib<name>.so."},
    {"library-no-entry", E, "Failed to get symbol RegisterCustomOps: undefined symbol: RegisterCustomOps",
     "The library does not export RegisterCustomOps.",
     "Export it: extern \"C\" OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions*, const "
     "OrtApiBase*), "
     "default visibility, not dropped by a version script or --gc-sections."},
    {"library-entry-mangled", E, "undefined symbol: RegisterCustomOps",
     "RegisterCustomOps was compiled as a C++ function, so its name is mangled.", "Declare it extern \"C\"."},
    {"library-entry-old", E, "undefined symbol: RegisterCustomOps",
     "It exports only OrtGetCustomOpDomain, an entry that no ONNX Runtime calls.",
     "Add RegisterCustomOps, which adds the domain to the session options."},
    {"library-static-cxx", W, "the process aborts: terminate called after throwing an instance of ...",
     "The C++ runtime is linked statically, so exceptions cannot cross to ONNX Runtime's.",
     "Link without -static-libstdc++ and -static-libgcc."},
    {"library-other-abi", E, "this library's C interface is newer",
     "It was built with an opbridge of another generation.",
     "Build it again with this opbridge, or install the opbridge it was built with."},
    {"library-broken-declaration", E, "the library refuses to be loaded",
     "The library says itself that one of its declarations is wrong.",
     "Mend the declaration; the message points at the column."},
    {"library-crashes", E, "the process ends while the library is loaded or registered",
     "Code of the library crashed, hung or ended the process while it was loaded or registered.",
     "Run it under gdb: gdb -ex run --args opbridge run ...; the usual cause is an OrtApi pointer that is "
     "null."},
    {"library-operators-ended", E, "segmentation fault in session creation; a random number as tensor type",
     "ONNX Runtime keeps pointers to the operators, and their objects ended with RegisterCustomOps: local "
     "variables, or elements of a vector that grew.",
     "Make them static, and add their addresses only when all are built."},
    {"library-api-newer", E,
     "The requested API version [N] is not available, only API versions [1, M] are supported; "
     "Unsupported version 'N' in custom op; segmentation fault",
     "The library asks for a newer API than this ONNX Runtime has, and uses the null that it gets.",
     "Build it with the headers of this ONNX Runtime or older ones, or take a newer ONNX Runtime; one built "
     "with "
     "opbridge takes what the runtime has."},
    {"library-ends-process", E, "the process ends without a message",
     "Code of the library calls exit() while it is loaded or registered.",
     "Return a status from RegisterCustomOps instead: api->CreateStatus(ORT_FAIL, \"why\")."},
    {"library-registration-fails", E, "RegisterCustomOps returns an error",
     "The library's registration reports an error.", "Do what the message says."},
    {"library-breaks-sessions", E,
     "custom_ops.cc: IsCompatible input count does not match; There must be one (and only one) "
     "dynamic typed input to the custom op; every model fails",
     "With this library registered no session can be made, whatever the model: its operators' declarations "
     "contradict "
     "ONNX Runtime's rules.",
     "Give every operator of one name the same number of inputs and outputs, and at most one input of "
     "undefined type."},
    {"library-operator-twice", W, "the first one is used, silently",
     "The library registers two operators of one name, provider and types.", "Remove one."},
    {"library-unnamed-domain", W, "Error No Op registered for ...",
     "The library registers operators in ONNX's own domain, where they clash with ONNX's.",
     "Give them a domain of your own."},
    {"domain-shared", E, "Domain already set in registry",
     "Two of the libraries bring operators of one domain, and ONNX Runtime takes one library of a domain.",
     "Give one of them, or build the operators into one library."},
    {"library-given-twice", E, "Domain already set in registry",
     "One library is given twice (the same file, or a copy).", "Give it once."},
    {"library-unread", N, "",
     "The library is not opbridge's: what operators it has can only be learnt by running its registration.",
     "Add --load, which does that in a child process."},
    // ------------------------------------------------------------------------------------ the model's file
    {"model-missing", E, "Load model from ... failed: File doesn't exist",
     "There is no file at the path given.", "Give the path of the .onnx file."},
    {"model-not-onnx", E, "Load model from ... failed: Protobuf parsing failed",
     "The file is not an ONNX model: another format, empty, or cut off.",
     "Export the model with opbridge.export or torch.onnx.export."},
    {"model-ort-renamed", E, "Load model from ... failed: Protobuf parsing failed",
     "The file is in ONNX Runtime's own format, which it expects under a name that ends in .ort.",
     "Name it *.ort, or set the session option session.load_model_format=ORT; opbridge needs the .onnx it "
     "was "
     "made from."},
    {"model-ort-format", N, "",
     "The model is in ONNX Runtime's own format: only whether it loads is tried, its nodes are not looked "
     "at.",
     "Give the .onnx that it was made from to have them looked at."},
    {"model-ir-too-new", E, "Unsupported model IR version: N, max supported IR version: M",
     "The model's IR version is newer than this ONNX Runtime knows.",
     "Take a newer ONNX Runtime, or lower it: m = onnx.load(f); m.ir_version = M; onnx.save(m, f)."},
    {"model-opset-too-new", E,
     "ONNX Runtime only *guarantees* support for models stamped with official released onnx opset versions",
     "The model's opset is newer than this ONNX Runtime knows.",
     "Take a newer ONNX Runtime, or export with a lower opset_version, or "
     "onnx.version_converter.convert_version."},
    {"model-opset-mismatch", E,
     "Unrecognized attribute: axes for operator ReduceMax; Node has input size 2 not in range [min=1, "
     "max=1]; "
     "No Op registered for Upsample with domain_version of 17",
     "A node of ONNX is written for another opset than the model imports, as when the number in opset_import "
     "is "
     "changed and the nodes are not.",
     "Put the number back that the model was exported with, then onnx.version_converter.convert_version(m, "
     "N), "
     "or export with opset_version=N."},
    {"model-opset-missing", W, "No opset import for domain ''",
     "The model imports no version of ONNX's own operators but uses them.",
     "Add it: m.opset_import.append(onnx.helper.make_opsetid('', N))."},
    {"model-domain-version", W, "Current official support for domain ... is till opset 1000; loads and runs",
     "The model imports a version of the custom domain that the library does not have.",
     "Import the library's version: opbridge.export writes it."},
    {"model-domain-not-imported", W, "No opset import for domain '...'",
     "The model uses a custom domain that it does not import; with the library registered it still loads.",
     "Add it: m.opset_import.append(onnx.helper.make_opsetid('<domain>', 1))."},
    {"model-weights-missing", E, "external data file not found; Failed to load external data",
     "The weights are in a file beside the model, which is not there.", "Copy that file next to the model."},
    {"model-weights-short", E, "External data is out of bounds; bad allocation",
     "The file with the weights is shorter than the model says.",
     "Copy that file again; it is from another export or cut off."},
    {"model-changed-declaration", E, "wrong results, or an error deep inside a run",
     "The operator's declaration in the library is not the one that the model was exported with.",
     "Export the model again with this library, or give the library it was exported with."},
    {"model-name-twice", E,
     "Duplicate definition of name; Graph must be in single static assignment (SSA) form",
     "Two nodes make a value of one name, as happens when models are merged.",
     "Give one of them a prefix: onnx.compose.merge_models(a, b, io_map, prefix1='a_')."},
    {"model-name-missing", E,
     "Invalid model. Node input '...' is not a graph input, initializer, or output of a previous node",
     "A node reads a value that nothing makes, as happens when a model is cut.",
     "Extract the part with onnx.utils.extract_model, or connect the input."},
    {"model-functions-lost", E, "pkg.torch:Normalise(-1) is not a registered function/op",
     "The node calls a function that was in the model (model.functions), and a script left it out when it "
     "rebuilt the model.",
     "helper.make_model(graph, functions=old.functions, opset_imports=old.opset_import), or inline them "
     "before: onnx.inliner.inline_local_functions(m)."},
    {"model-static-shape", W, "Got invalid dimensions for input; index: 1 Got: 100 Expected: 4096",
     "A size was written into the model as a constant although an input of the node is dynamic there.",
     "Export with dynamic shapes for that dimension, and with an example batch and count that are neither 0 "
     "nor 1."},
    {"model-fixed-inputs", N, "Got invalid dimensions for input", "All inputs of the model have fixed sizes.",
     "Nothing, if that is meant; else export with dynamic_shapes (or dynamic_axes)."},
    {"model-epsilon-lost", W, "NaN or Inf in outputs that PyTorch computes well",
     "A division by what can be 0, with nothing that keeps it away from 0: exporters delete x + 1e-8, since "
     "they match 0 "
     "with a tolerance of 1e-8.",
     "Export with opbridge.export (or optimize=False), or use clamp(x, min=eps), or an eps above 1e-8."},
    {"model-untyped-output", E, "Node (n0) output arg (a) type inference failed",
     "ONNX Runtime 1.15 to 1.17 cannot infer the type of a custom node's output where an optional input is "
     "left out.",
     "Export with opbridge.export, which writes the types, or take ONNX Runtime 1.18 or newer."},
    // ------------------------------------------------------------------------------------ its custom nodes
    {"operator-no-library", E, "... is not a registered function/op; No opset import for domain",
     "The model has a custom operator, and no library was given.",
     "Pass the library: --library lib<name>.so."},
    {"operator-wrong-domain", E, "... is not a registered function/op",
     "The library has this operator under another domain.", "Export the model with the library's domain."},
    {"operator-wrong-name", E, "... is not a registered function/op",
     "The library of this domain has no operator of this name.",
     "Export with the library's name (case counts), or add the operator."},
    {"operator-unserved", E, "... is not a registered function/op",
     "None of the given libraries has operators of this domain.",
     "Pass the library that has them: --library lib<name>.so."},
    {"operator-no-domain", E, "No Op registered for X with domain_version of N",
     "The node has no domain, so ONNX Runtime looks for one of ONNX's own operators.",
     "Export it with its domain: torch.onnx symbolic 'my_namespace::my_clip', or node.domain = "
     "'my_namespace'."},
    {"operator-not-exported", E, "aten::... is not a registered function/op; PythonOp",
     "The exporter did not know the operator and wrote a placeholder in its place.",
     "Export with an opset that has the operator, without ATen fallback; or register a translation: "
     "opbridge.export "
     "does for operators of an opbridge library, opbridge.export(map=...) for any function."},
    {"operator-inputs-missing", E,
     "Node has input size 1 not in range [min=2, max=3]; invalid indice; segmentation fault",
     "The node lacks an input that the operator requires.", "Connect it; the order is the signature's."},
    {"operator-inputs-too-many", E, "Node has input size 4 not in range [min=1, max=3]",
     "The node has more inputs than the operator.",
     "Remove what is too much: often a constant that should be an attribute."},
    {"operator-outputs-too-many", E, "Node has output size 3 not in range [min=1, max=2]",
     "The node has more outputs than the operator.",
     "Remove what is too much, or take the library that has them."},
    {"operator-input-type", E,
     "Type 'tensor(double)' of input parameter (x) of operator (...) is invalid; "
     "Could not find an implementation for ...",
     "An input has an element type that the operator does not take there.",
     "Convert it before the node (x.float()), or in the model with Cast."},
    {"operator-input-shape", E, "an error of the operator when it runs, or a read past the end",
     "An input's shape contradicts the operator's signature.",
     "Reshape or transpose the input before the node."},
    {"operator-inputs-swapped", E, "a wrong result, or an error of the operator when it runs",
     "Two inputs of one type are in each other's place: shapes fit the signature only when they are swapped.",
     "Swap them where the operator is called."},
    {"operator-inputs-maybe-swapped", W, "a wrong result",
     "Two inputs of one type are probably in each other's place: their sizes are unusual this way round.",
     "Compare with the signature's order; ball_query takes (radius, nsample, xyz, new_xyz) in Python, (xyz, "
     "new_xyz) in ONNX."},
    {"operator-attribute-unknown", E, "the attribute is ignored, and its default is used silently",
     "The node has an attribute that the operator does not have.", "Correct its name, or remove it."},
    {"operator-attribute-invalid", E,
     "Attribute name and type don't match; No attribute with name; the default is used silently",
     "An attribute is missing, of the wrong kind, or outside its range.",
     "Export with a value that the signature allows."},
    {"operator-constant-input", W, "copies between CPU and GPU; a CUDA kernel that reads host memory",
     "A parameter of the operator is an attribute, but the node carries it as a constant input.",
     "Export it as an attribute."},
    {"operator-no-cuda-kernel", W, "the model runs, slower: nodes are on the CPU, with copies around them",
     "The operator has no CUDA kernel in this library.",
     "Build the library with CUDA, or allow the CPU: --allow-fallback."},
    // ------------------------------------------------------------------------------------ the runtime
    {"runtime-missing", E, "no usable ONNX Runtime", "No ONNX Runtime library was found.",
     "pip install onnxruntime, or name one: --ort PATH, OPBRIDGE_ORT=PATH."},
    {"runtime-python-only", N, "no usable ONNX Runtime",
     "This onnxruntime is a Python module only (wheels carry the C library from 1.19 on): sessions are tried "
     "in that Python; opbridge's runner cannot use it.",
     "Nothing, if only Python uses it; for the runner pip install 'onnxruntime>=1.19'."},
    {"runtime-too-old", E, "The given version [N] is not supported",
     "ONNX Runtime older than 1.16 lacks what custom operators need.", "pip install -U onnxruntime."},
    {"runtime-crashes", E, "the process ends inside ONNX Runtime",
     "The process ended while ONNX Runtime loaded the model.",
     "Try an older or newer ONNX Runtime with --ort; before 1.24 a shape function crashes when an optional "
     "input is left out."},
    {"session-fails", E, "ONNX Runtime refuses the model",
     "ONNX Runtime refuses the model for a reason of its own.", "Do what its message says."},
    {"operator-not-in-runtime", E, "com.microsoft:MatMulNBits(-1) is not a registered function/op",
     "The operator is ONNX Runtime's own (or of a newer ONNX), and this version or build does not have it.",
     "Take a newer ONNX Runtime, or export or quantise again with the tools of this one."},
    {"node-no-kernel", E, "Could not find an implementation for X(1) node",
     "No kernel fits the node: its input types, or its provider.",
     "See which types and providers the operator has: opbridge inspect lib.so."},
    {"output-type-mismatch", E,
     "Type (tensor(int32)) of output arg (y) of node does not match expected type (tensor(int64))",
     "The model declares another element type for a node's output than the operator makes.",
     "Export again; indices of opbridge operators are int32: cast after the node where int64 is needed."},
    {"provider-missing", E, "Specified provider 'CUDAExecutionProvider' is not in available provider names",
     "This ONNX Runtime was built without CUDA.", "pip uninstall onnxruntime; pip install onnxruntime-gpu."},
    {"provider-library-missing", E, "Failed to create CUDAExecutionProvider. Require cuDNN 9.* and CUDA 13.*",
     "The CUDA provider needs a library that is not found, or that is there in another version.",
     "pip install 'onnxruntime-gpu[cuda,cudnn]', or install CUDA and cuDNN."},
    {"driver-missing", E,
     "CUDA driver version is insufficient for CUDA runtime version; no CUDA-capable device is detected",
     "There is no NVIDIA driver on this machine.",
     "Install the driver; in a container start it with --gpus all."},
    {"driver-too-old", E, "CUDA driver version is insufficient for CUDA runtime version",
     "The NVIDIA driver is older than the library's CUDA toolkit needs.",
     "Update the driver, or build with an older toolkit."},
    {"gpu-architecture", E, "no kernel image is available for execution on the device",
     "The library holds no code for this GPU.",
     "Build with -DCMAKE_CUDA_ARCHITECTURES=native, or add the GPU's number."},
    {"operator-cpu-only-library", W, "the model runs on the CPU", "The library was built without CUDA.",
     "Build it where nvcc is: -DOPBRIDGE_CUDA=ON."},
    // ------------------------------------------------------------------------------------ Python
    {"python-two-runtimes", W, "CUDAExecutionProvider is not available although onnxruntime-gpu is installed",
     "Several packages of ONNX Runtime are installed; they overwrite each other's files.",
     "pip uninstall -y onnxruntime onnxruntime-gpu, then install one."},
    {"python-two-runtimes-cuda", E,
     "CUDAExecutionProvider is not available although onnxruntime-gpu is installed; Failed to load library "
     "libonnxruntime_providers_cuda.so",
     "Several packages of ONNX Runtime are installed, and it is to run on CUDA: whichever was installed last "
     "has "
     "overwritten the others' files.",
     "pip uninstall -y onnxruntime onnxruntime-gpu, then pip install onnxruntime-gpu."},
    {"python-other-runtime", W, "works in Python and not in C++, or the other way round",
     "Python's onnxruntime is another version than the ONNX Runtime looked at here.",
     "Use one of both: --ort <site-packages>/onnxruntime, or pip install onnxruntime==<version>."},
    {"python-shadowed", W,
     "module 'onnxruntime' has no attribute 'InferenceSession'; No module named 'torch._C'",
     "A file or folder with the name of a package comes before the package in Python's path.",
     "Rename it, or start Python in another folder."},
    {"python-numpy-2", E, "A module that was compiled using NumPy 1.x cannot be run in NumPy 2",
     "This onnxruntime was built for NumPy 1, NumPy 2 is installed.",
     "pip install 'numpy<2', or onnxruntime 1.19 or newer."},
    {"python-no-onnxscript", N, "ModuleNotFoundError: No module named 'onnxscript'",
     "PyTorch's exporter (dynamo) needs the package onnxscript, which is not installed.",
     "pip install onnxscript, or export with dynamo=False."},
    {"python-other-opbridge", W, "unknown fields, or declarations that differ",
     "The Python package opbridge is another version than this command.",
     "pip install opbridge==<this version>."},
    // ------------------------------------------------------------------------------------ build logs
    {"build-missing-header", E, "fatal error: onnxruntime_cxx_api.h: No such file or directory",
     "ONNX Runtime's headers are not where the compiler looks; wheels carry none.",
     "scripts/fetch_ort_headers.sh fetches them; an operator written with opbridge needs none."},
    {"build-undefined-ort", E, "undefined reference to `OrtGetApiBase'",
     "The code uses ONNX Runtime's API as if it were linked.",
     "Define ORT_API_MANUAL_INIT and call Ort::InitApi(base->GetApi(ORT_API_VERSION)) in RegisterCustomOps, "
     "or link libonnxruntime."},
    {"build-undefined-torch", E, "undefined reference to `c10::...' or `at::...'; std::__cxx11 in the name",
     "PyTorch's libraries are not linked, or were built with another C++ ABI.",
     "Link ${TORCH_LIBRARIES} and take its flags: ${TORCH_CXX_FLAGS} (-D_GLIBCXX_USE_CXX11_ABI=0 or 1)."},
    {"build-undefined-reference", E, "undefined reference to ...",
     "A function is used that no linked file defines.",
     "Add the source or library that defines it; mind the order of libraries."},
    {"build-duplicate-symbol", E, "multiple definition of ...",
     "One function is defined in two of the linked files.",
     "Make it inline or static, or compile the source once."},
    {"build-header-mismatch", E,
     "'struct OrtApi' has no member named ...; 'class Ort::...' has no member named ...",
     "The code was written for another version of ONNX Runtime's headers than the ones found.",
     "Take the headers of one version only; remove older ones from the include path."},
    {"build-removed-class", E, "'CustomOpApi' is not a member of 'Ort'",
     "Ort::CustomOpApi was removed from the headers in 1.16.", "Use Ort::KernelContext and Ort::KernelInfo."},
    {"build-host-compiler", E, "unsupported GNU version! gcc versions later than N are not supported!",
     "The C++ compiler is newer than this nvcc takes.",
     "Give nvcc an older one: -DCMAKE_CUDA_HOST_COMPILER=g++-N (or -ccbin g++-N), or take a newer CUDA "
     "toolkit."},
    {"build-gpu-architecture", E, "nvcc fatal: Unsupported gpu architecture 'compute_XX'",
     "This nvcc does not know the GPU architecture asked for: too new, or no longer supported.",
     "-DCMAKE_CUDA_ARCHITECTURES=<what nvcc --list-gpu-arch shows>."},
    {"build-no-nvcc", E, "No CMAKE_CUDA_COMPILER could be found; nvcc: command not found",
     "There is no CUDA compiler on PATH.",
     "Install the CUDA toolkit, or -DCMAKE_CUDA_COMPILER=/usr/local/cuda/bin/nvcc, or build without: "
     "-DOPBRIDGE_CUDA=OFF."},
    {"build-not-pic", E,
     "relocation R_X86_64_32 against ... can not be used when making a shared object; recompile with -fPIC",
     "A static library or object without position-independent code goes into a shared library.",
     "Compile it with -fPIC (POSITION_INDEPENDENT_CODE ON)."},
    {"build-language-standard", E,
     "'optional' is not a member of 'std'; #error C++17 or later compatible compiler is required",
     "The code is compiled as an older C++ than it is written in.",
     "set(CMAKE_CXX_STANDARD 17), or 20 for new PyTorch headers."},
    {"build-missing-library", E, "/usr/bin/ld: cannot find -lonnxruntime",
     "The linker does not find a library.", "Install it or add its folder: target_link_directories(), -L."},
    {"build-out-of-memory", E, "Killed signal terminated program cc1plus",
     "The machine ran out of memory while compiling.", "Build with fewer jobs: -j1."},
    {"build-log-unknown", N, "", "The log has an error that is none of the usual ones.",
     "Read its first error; later ones often follow from it."},
    {"build-log-clean", N, "", "The log has no error.", ""},
};

}  // namespace

const char* severity_name(Severity severity) {
  return severity == E ? "error" : severity == W ? "warning" : "note";
}

const std::vector<Entry>& catalogue() { return kCatalogue; }

const Entry& find_entry(const std::string& code) {
  for (const Entry& e : kCatalogue) {
    if (code == e.code) return e;
  }
  throw Error(ErrorKind::kInternal, "doctor's catalogue has no '" + code + "'");
}

std::string table_heading(const std::string& title) {
  return "\n## " + title + "\n\n| code | | symptom | cause | fix |\n|---|---|---|---|---|\n";
}

std::string table_row(const Entry& e) {
  const auto cell = [](std::string text) {
    for (size_t at = 0; (at = text.find_first_of("|<", at)) != std::string::npos; at += 2)
      text.insert(at, "\\");
    return text;
  };
  return "| `" + std::string(e.code) + "` | " + severity_name(e.severity) + " | " + cell(e.symptom) + " | " +
         cell(e.cause) + " | " + cell(e.fix) + " |\n";
}

std::string catalogue_markdown() {
  std::string page =
      "# What `opbridge doctor` finds\n\n"
      "Made by `opbridge doctor --catalogue`; the command prints these causes and fixes with the evidence of "
      "your case. "
      "An *error* will not work, a *warning* works, but, a *note* is for your information.\n";
  const std::pair<const char*, const char*> groups[] = {
      {"library-missing", "Libraries"},        {"model-missing", "Models"},
      {"operator-no-library", "Custom nodes"}, {"runtime-missing", "ONNX Runtime and CUDA"},
      {"python-two-runtimes", "Python"},       {"build-missing-header", "Build logs"}};
  for (const Entry& e : kCatalogue) {
    for (const auto& [first, title] : groups) {
      if (std::string(first) == e.code) page += table_heading(title);
    }
    page += table_row(e);
  }
  return page;
}

}  // namespace opbridge::doctor
