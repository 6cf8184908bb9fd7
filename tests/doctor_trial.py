"""Broken and healthy projects for the trial of `opbridge doctor`: what people who deploy models with custom operators
bring along. Chosen and written without a look at doctor's source. Used by test_doctor_trial.py."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / os.environ.get("OPBRIDGE_BUILD", "build/release")
ORT = ROOT / "build/ort"  # other versions of ONNX Runtime: lib/VERSION/ for C++, VERSION/ for Python
HEADERS = ROOT / "build/deps/onnxruntime/include"
MY_CLIP = BUILD / "lib/libmy_custom_ops.so"
PVN3D = BUILD / "lib/libpvn3d_custom_op.so"
POINTS, CLIP = "pvn3d.custom_ops", "my_namespace"

FLOAT, DOUBLE, HALF, INT32, INT64, BOOL = (
    getattr(TensorProto, t) for t in ("FLOAT", "DOUBLE", "FLOAT16", "INT32", "INT64", "BOOL")
)


@dataclass
class Project:
    """What a user hands to doctor. `runtime` is a version in build/ort, or None for the installed one."""

    model: Path | None = None
    libraries: list = field(default_factory=list)
    runtime: str | None = None
    ort: Path | None = None
    provider: str | None = None
    load: bool = False
    build_log: Path | None = None
    environment: dict = field(default_factory=dict)
    feeds: dict = field(default_factory=dict)
    folder: Path | None = None  # where doctor is started

    def arguments(self):
        ort = self.ort or (
            ORT / "lib" / self.runtime if self.runtime else Path(onnxruntime.__file__).parent / "capi"
        )
        arguments = [self.model] if self.model else []
        for library in self.libraries:
            arguments += ["--library", library]
        if "VIRTUAL_ENV" not in self.environment or self.ort or self.runtime:
            arguments += ["--ort", ort]
        arguments += ["--provider", self.provider] if self.provider else []
        arguments += ["--load"] if self.load else []
        arguments += ["--build-log", self.build_log] if self.build_log else []
        return [str(a) for a in arguments]


# ---- models


def tensor(name, shape, dtype=FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def constant(name, value, dtype=np.float32):
    return numpy_helper.from_array(np.asarray(value, dtype), name)


def node(op, inputs, outputs, domain="", name=None, **attributes):
    return helper.make_node(
        op, inputs.split(), outputs.split(), name=name or f"/{op}", domain=domain, **attributes
    )


def save(path, nodes, inputs, outputs, initializers=(), domains=(), *, ir=9, opset=17, value_info=()):
    graph = helper.make_graph(
        nodes, "main_graph", inputs, outputs, list(initializers), value_info=list(value_info)
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=ir, producer_name="pytorch")
    onnx.save(model, path)
    return path


def clip_model(path, op="my_clip", domain=CLIP, domains=None, **options):
    """y = Relu(my_clip(x + 1, -0.5, 0.5))."""
    nodes = [
        node("Add", "x one", "shifted"),
        node(op, "shifted low high", "clipped", domain),
        node("Relu", "clipped", "y"),
    ]
    x, y = (tensor(n, ["batch", 3]) for n in "xy")
    constants = [constant("one", 1), constant("low", -0.5), constant("high", 0.5)]
    info = options.pop("value_info", [tensor("clipped", ["batch", 3])])
    return save(
        path,
        nodes,
        [x],
        [y],
        constants,
        [domain] if domains is None else domains,
        value_info=info,
        **options,
    )


def points_model(path, query="xyz new_xyz", query_op="BallQuery", domain=POINTS, **attributes):
    """The grouping stage of PointNet++: ball query, then the features of each group, then their maximum."""
    attributes = attributes or {"radius": 0.4, "nsample": 16}
    nodes = [
        node(query_op, query, "idx", domain, "/sa1/query", **attributes),
        node("GroupPoints", "features idx", "grouped", POINTS, "/sa1/group"),
        node("ReduceMax", "grouped", "y", axes=[3], keepdims=0, name="/sa1/max"),
    ]
    inputs = [
        tensor("xyz", ["batch", "points", 3]),
        tensor("new_xyz", ["batch", "centres", 3]),
        tensor("features", ["batch", 8, "points"]),
    ]
    info = [
        tensor("idx", ["batch", "centres", 16], INT32),
        tensor("grouped", ["batch", 8, "centres", 16]),
    ]
    domains = dict.fromkeys([domain, POINTS])
    return save(path, nodes, inputs, [tensor("y", ["batch", 8, "centres"])], domains=domains, value_info=info)


CLOUDS = {
    "xyz": np.random.default_rng(1).uniform(size=(1, 64, 3)).tolist(),
    "new_xyz": np.random.default_rng(2).uniform(size=(1, 8, 3)).tolist(),
    "features": np.random.default_rng(3).uniform(size=(1, 8, 64)).tolist(),
}


def vote_model(path, **attributes):
    nodes = [node("VoteAggregate", "points offsets", "kps", POINTS, **attributes)]
    inputs = [tensor("points", ["batch", "n", 3]), tensor("offsets", ["batch", 8, "n", 3])]
    return save(path, nodes, inputs, [tensor("kps", ["batch", 8, 3])], domains=[POINTS])


def plain_model(path, **options):
    """A small network of standard operators."""
    weight = constant("weight", np.full((3, 4), 0.25))
    nodes = [node("MatMul", "x weight", "h"), node("Sigmoid", "h", "y")]
    return save(path, nodes, [tensor("x", ["batch", 3])], [tensor("y", ["batch", 4])], [weight], **options)


def foreign_model(path, op="Double", domain="acme.ops"):
    nodes = [node(op, "x", "y", domain)]
    return save(path, nodes, [tensor("x", ["n"])], [tensor("y", ["n"])], domains=[domain])


# ---- foreign libraries, as others write them: against ONNX Runtime's C header

FOREIGN = r"""
#include <onnxruntime_c_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifndef OP
#define OP "Double"
#endif
#ifndef DOMAIN
#define DOMAIN "acme.ops"
#endif
#ifndef API
#define API 16
#endif
#ifndef TYPE
#define TYPE ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT
#define INPUTS 1
#endif
static const OrtApi* ort;
static void* create(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info) {
  (void)op, (void)api, (void)info;
  return (void*)&ort;
}
static const char* name(const OrtCustomOp* op) { return (void)op, OP; }
static const char* provider(const OrtCustomOp* op) { return (void)op, NULL; }
static ONNXTensorElementDataType type(const OrtCustomOp* op, size_t i) { return (void)op, (void)i, TYPE; }
static size_t inputs(const OrtCustomOp* op) { return (void)op, INPUTS; }
static size_t outputs(const OrtCustomOp* op) { return (void)op, 1; }
static OrtCustomOpInputOutputCharacteristic required(const OrtCustomOp* op, size_t i) {
  return (void)op, (void)i, INPUT_OUTPUT_REQUIRED;
}
static OrtMemType memory(const OrtCustomOp* op, size_t i) { return (void)op, (void)i, OrtMemTypeDefault; }
static int zero(const OrtCustomOp* op) { return (void)op, 0; }
static int one(const OrtCustomOp* op) { return (void)op, 1; }
static void destroy(void* kernel) { (void)kernel; }
static void compute(void* kernel, OrtKernelContext* context) {
  (void)kernel;
  const OrtValue* x;
  OrtValue* y;
  OrtTensorTypeAndShapeInfo* info;
  size_t rank, count;
  int64_t shape[8];
  const float* from;
  float* to;
  ort->KernelContext_GetInput(context, 0, &x);
  ort->GetTensorTypeAndShape(x, &info);
  ort->GetDimensionsCount(info, &rank);
  ort->GetDimensions(info, shape, rank);
  ort->GetTensorShapeElementCount(info, &count);
  ort->ReleaseTensorTypeAndShapeInfo(info);
  ort->KernelContext_GetOutput(context, 0, shape, rank, &y);
  ort->GetTensorMutableData((OrtValue*)x, (void**)&from);
  ort->GetTensorMutableData(y, (void**)&to);
  for (size_t i = 0; i < count; ++i) to[i] = 2 * from[i];
}
static OrtCustomOp op;
OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
#ifdef FIRST
  FIRST
#endif
  ort = base->GetApi(API);
  memset(&op, 0, sizeof op);
  op.version = API;
  op.CreateKernel = create;
  op.GetName = name;
  op.GetExecutionProviderType = provider;
  op.GetInputType = op.GetOutputType = type;
  op.GetInputTypeCount = inputs;
  op.GetOutputTypeCount = outputs;
  op.KernelCompute = compute;
  op.KernelDestroy = destroy;
  op.GetInputCharacteristic = op.GetOutputCharacteristic = required;
  op.GetInputMemoryType = memory;
  op.GetVariadicInputMinArity = op.GetVariadicOutputMinArity = one;
  op.GetVariadicInputHomogeneity = op.GetVariadicOutputHomogeneity = zero;
  OrtCustomOpDomain* domain;
  OrtStatus* status = ort->CreateCustomOpDomain(DOMAIN, &domain);
  if (status == NULL) status = ort->CustomOpDomain_Add(domain, &op);
  if (status == NULL) status = ort->AddCustomOpDomain(options, domain);
  return status;
}
"""


def build(path, source, *options, language="c"):
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [
        "c++" if language == "c++" else "cc",
        "-shared",
        "-fPIC",
        "-w",
        "-I",
        HEADERS,
        "-x",
        language,
        "-",
        "-x",
        "none",
        "-o",
        path,
        *options,
    ]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def foreign(path, *options, **macros):
    return build(path, FOREIGN, *options, *(f"-D{k}={v}" for k, v in macros.items()))


def quoted(text):
    return f'"{text}"'


def linked_to(path, *sonames, source=FOREIGN, language="c"):
    """A library that needs others, which are on the machine that built it and not on this one."""
    stubs = []
    for soname in sonames:
        stub = path.parent / "elsewhere" / soname
        build(stub, f"int stub_{len(stubs)};", f"-Wl,-soname,{soname}")
        stubs.append(stub)
    build(path, source, "-Wl,--no-as-needed", *stubs, language=language)
    for stub in stubs:
        stub.unlink()
    return path


# ---- Python environments


def package(site, name, version, *requires):
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {r}" for r in requires), ""]))
    (info / "INSTALLER").write_text("pip\n")
    (info / "RECORD").write_text("")


def virtual_environment(path):
    """A folder like a virtual environment's; returns its site-packages."""
    site = path / "lib/python3.11/site-packages"
    site.mkdir(parents=True)
    (path / "bin").mkdir()
    (path / "bin/python3").symlink_to(os.path.realpath(sys.executable))
    (path / "bin/python").symlink_to("python3")
    home = os.path.dirname(os.path.realpath(sys.executable))
    (path / "pyvenv.cfg").write_text(
        f"home = {home}\ninclude-system-site-packages = false\nversion = 3.11.2\n"
    )
    return site


def installed(version):
    """The folder of Python packages of another ONNX Runtime."""
    return ORT / version / "lib/python3.11/site-packages"


def activated(path):
    return {"VIRTUAL_ENV": str(path), "PATH": f"{path}/bin:{os.environ['PATH']}"}


# ---- the broken projects


@dataclass
class Case:
    """A broken project. `plain` is what shows that it is broken: a pattern in what plain ONNX Runtime says, or a
    function of (project, ask) that returns whether it is. `code` is doctor's for the true cause, `says` patterns
    that the finding's subject, cause, evidence and fix together must match."""

    name: str
    make: object
    cause: str
    plain: object
    says: tuple
    exit: int = 1  # 0: the cause is a note
    code: str = ""  # alternatives with |; empty: any but session-fails
    also: tuple = ()  # codes of other findings that are true as well


def log_of(tmp, command, **files):
    """What a build command says of `files` (a name has __ for its dot), in English, and its exit code."""
    if shutil.which(command.split()[0]) is None:
        raise Absent(f"no {command.split()[0]}")
    for name, text in files.items():
        (tmp / name.replace("__", ".")).write_text(text)
    environment = os.environ | {"LC_ALL": "C"}
    done = subprocess.run(
        command, shell=True, cwd=tmp, capture_output=True, text=True, check=False, env=environment
    )
    log = tmp / "build.log"
    log.write_text(f"{done.stdout}{done.stderr}exit code {done.returncode}\n")
    return Project(build_log=log, folder=tmp)


def build_failed(project, ask):
    return "exit code 0" not in project.build_log.read_text()


CASES = []


def case(cause, plain, says, **options):
    def add(make):
        CASES.append(Case(make.__name__, make, cause, plain, tuple(says), **options))
        return make

    return add


# -- the library's file


@case(
    "The PyTorch extension was given, not the library of ONNX Runtime operators: it is a Python module that needs "
    "libtorch.",
    r"libc10\.so: cannot open shared object file",
    [r"_ext\.cpython-311", r"(?i)torch|python", r"PyInit__ext|libtorch|libc10|PyTorch's libraries"],
    code="library-torch-extension",
)
def torch_extension(tmp):
    source = """
        extern "C" void* PyInit__ext() { return nullptr; }
        int ball_query_kernel_wrapper(int b, int n, int m) { return b * n * m; }
    """
    path = tmp / "pointnet2_ops/_ext.cpython-311-x86_64-linux-gnu.so"
    libraries = ("libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so")
    linked_to(path, *libraries, source=source, language="c++")
    return Project(points_model(tmp / "m.onnx"), [path])


@case(
    "The library was cut short while it was copied.",
    r"file too short|the process ends",
    [r"libpvn3d_custom_op\.so", r"(?i)truncated|cut|short|incomplete|ends"],
    code="library-not-elf",
)
def library_cut_short(tmp):
    data = PVN3D.read_bytes()
    path = tmp / "libpvn3d_custom_op.so"
    path.write_bytes(data[: len(data) * 6 // 10])
    return Project(points_model(tmp / "m.onnx"), [path])


@case(
    'RegisterCustomOps was written in C++ without extern "C", so its exported name is mangled.',
    r"undefined symbol: RegisterCustomOps",
    [r"libacme\.so", r'(?i)mangl|extern "C"', r"_Z17RegisterCustomOps"],
    code="library-entry-mangled",
)
def mangled_entry(tmp):
    source = """
        #include <onnxruntime_c_api.h>
        __attribute__((visibility("default")))
        OrtStatus* RegisterCustomOps(OrtSessionOptions*, const OrtApiBase*) { return nullptr; }
    """
    return Project(foreign_model(tmp / "m.onnx"), [build(tmp / "libacme.so", source, language="c++")])


@case(
    "The object with the CUDA kernels was not linked into the library: a function of the project is undefined.",
    r"undefined symbol: _Z16clip_cuda_launchPfi",
    [r"libacme\.so", r"clip_cuda_launch", r"(?i)undefined|not defined|unresolved|nothing has"],
    code="library-undefined-symbol",
)
def kernels_not_linked(tmp):
    source = """
        #include <onnxruntime_c_api.h>
        void clip_cuda_launch(float* x, int n);
        extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions*, const OrtApiBase*) {
          clip_cuda_launch(nullptr, 0);
          return nullptr;
        }
    """
    return Project(foreign_model(tmp / "m.onnx"), [build(tmp / "libacme.so", source, language="c++")])


# -- dependencies


@case(
    "The library was linked to libonnxruntime.so.1.12.1, which is not here: Python wheels do not offer it.",
    r"libonnxruntime\.so\.1\.12\.1: cannot open shared object file",
    [r"libmmdeploy", r"libonnxruntime\.so\.1\.12\.1", r"(?i)link|need|depend"],
    code="library-dependency-missing",
)
def linked_to_onnxruntime(tmp):
    path = linked_to(tmp / "libmmdeploy_onnxruntime_ops.so", "libonnxruntime.so.1.12.1")
    return Project(foreign_model(tmp / "m.onnx"), [path])


@case(
    "The library was built with CUDA 11 and needs libcudart.so.11.0, which this machine does not have.",
    r"libcudart\.so\.11\.0: cannot open shared object file",
    [r"libacme\.so", r"libcudart\.so\.11\.0", r"(?i)cuda"],
    code="library-dependency-missing",
)
def built_with_an_old_cuda(tmp):
    return Project(foreign_model(tmp / "m.onnx"), [linked_to(tmp / "libacme.so", "libcudart.so.11.0")])


@case(
    "The library was built on a newer system: it needs a version of the C library that this machine does not have.",
    r"version `GLIBC_2\.99' not found",
    [r"libacme\.so", r"GLIBC_2\.99", r"(?i)newer|older|glibc"],
    code="library-needs-newer-system",
)
def newer_c_library(tmp):
    script = tmp / "versions"
    script.write_text("GLIBC_2.99 { global: fmod; local: *; };\n")
    stub = build(
        tmp / "elsewhere/libm.so.6",
        "double fmod(double x, double y) { return x - y; }",
        "-fno-builtin",
        "-Wl,-soname,libm.so.6",
        f"-Wl,--version-script={script}",
    )
    source = FOREIGN + "double fmod(double, double);\ndouble (*remainder_of)(double, double) = fmod;\n"
    path = build(tmp / "libacme.so", source, "-fno-builtin", stub)
    stub.unlink()
    return Project(foreign_model(tmp / "m.onnx"), [path])


# -- foreign libraries whose code has to run


@case(
    "The library asks for API 21, which ONNX Runtime 1.17 does not have, and uses the null pointer that it gets.",
    r"the process ends: signal 11",
    [r"libacme\.so", r"21", r"1\.17"],
    code="library-api-newer",
)
def newer_api(tmp):
    path = foreign(tmp / "libacme.so", API="ORT_API_VERSION")
    return Project(foreign_model(tmp / "m.onnx"), [path], runtime="1.17.1", load=True)


@case(
    "Two libraries bring the same domain, acme.ops.",
    r"Domain already set in registry",
    [r"acme\.ops", r"libacme_points\.so", r"libacme_votes\.so"],
    code="domain-shared",
)
def one_domain_in_two_libraries(tmp):
    libraries = [
        foreign(tmp / "libacme_points.so"),
        foreign(tmp / "libacme_votes.so", OP=quoted("Halve")),
    ]
    return Project(foreign_model(tmp / "m.onnx"), libraries, load=True)


@case(
    "An operator of the library has two inputs of undefined type and an output of undefined type: ONNX Runtime "
    "cannot tell the output's type, and refuses every session that registers the library.",
    r"type of a dynamically typed output can be inferred from",
    [r"libacme\.so", r"(?i)undefined|dynamic", r"Merge"],
    code="library-breaks-sessions",
)
def undefined_types(tmp):
    path = foreign(
        tmp / "libacme.so", OP=quoted("Merge"), TYPE="ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED", INPUTS=2
    )
    return Project(plain_model(tmp / "m.onnx"), [path], load=True)


@case(
    "The library ends the process while it registers, as the PointNet++ sources do on a machine without a GPU.",
    r"the process ends: signal 0, exit code 255",
    [r"libacme\.so", r"(?i)exit|ends? the process|ended", r"255|no CUDA-capable device"],
    code="library-ends-process",
)
def library_exits(tmp):
    first = 'fprintf(stderr, "CUDA kernel failed : no CUDA-capable device is detected\\n"); exit(-1);'
    path = foreign(tmp / "libacme.so", FIRST=first)
    return Project(foreign_model(tmp / "m.onnx"), [path], load=True)


# -- the model's file


@case(
    "The model is a Git LFS pointer: the repository was cloned without LFS.",
    r"INVALID_PROTOBUF|Protobuf parsing failed",
    [r"pvn3d\.onnx", r"(?i)lfs"],
    code="model-not-onnx",
)
def model_is_a_pointer(tmp):
    path = tmp / "pvn3d.onnx"
    path.write_text(
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 157286400\n"
    )
    return Project(path, [PVN3D])


def large_model(folder):
    """A model with its weights in a file beside it, as the exporter writes it."""
    folder.mkdir()
    path = plain_model(folder / "model.onnx")
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    return path


@case(
    "The model was copied without the file beside it that has its weights.",
    r"model\.onnx\.data",
    [r"model\.onnx\.data", r"(?i)external|weights"],
    code="model-weights-missing",
)
def weights_left_behind(tmp):
    path = large_model(tmp / "exported")
    (tmp / "exported/model.onnx.data").unlink()
    return Project(path)


@case(
    "The model has IR version 12, and ONNX Runtime 1.20 reads up to 10.",
    r"Unsupported model IR version: 12, max supported IR version: 10",
    [r"IR", r"12", r"10", r"1\.20"],
    code="model-ir-too-new",
)
def model_newer_than_the_runtime(tmp):
    return Project(clip_model(tmp / "m.onnx", ir=12), [MY_CLIP], runtime="1.20.1")


# -- the node


@case(
    "The exporter wrote the domain 'pvn3d.custom_op'; the library's is 'pvn3d.custom_ops'.",
    r"pvn3d\.custom_op:BallQuery\(-1\) is not a registered function/op",
    [r"/sa1/query", r"pvn3d\.custom_op\b", r"pvn3d\.custom_ops"],
    code="operator-wrong-domain",
)
def another_domain(tmp):
    return Project(points_model(tmp / "m.onnx", domain="pvn3d.custom_op"), [PVN3D])


@case(
    "The symbolic function forgot the domain: the node asks for a standard operator 'my_clip'.",
    r"No Op registered for my_clip",
    [r"my_clip", r"my_namespace", r"(?i)domain"],
    code="operator-no-domain",
)
def no_domain(tmp):
    return Project(clip_model(tmp / "m.onnx", domain="", domains=[]), [MY_CLIP])


def centres_come_out_as_points(project, ask):
    """64 points and 8 centres: the second dimension of y must be 8 features by 8 centres."""
    return ask(project).get("shapes") != [[1, 8, 8]]


@case(
    "xyz and new_xyz of BallQuery are swapped, as between the Python and the C++ function of PointNet++.",
    centres_come_out_as_points,
    [r"/sa1/query", r"(?i)swap|order|exchang", r"new_xyz"],
    code="operator-inputs-maybe-swapped|operator-inputs-swapped",
)
def swapped_inputs(tmp):
    return Project(points_model(tmp / "m.onnx", query="new_xyz xyz"), [PVN3D], feeds=CLOUDS)


def same_as_the_default(project, ask):
    """The misspelt attribute changes nothing, the right one does."""
    right = Project(vote_model(project.model.with_name("right.onnx"), bandwidth=0.3), project.libraries)
    default = Project(vote_model(project.model.with_name("default.onnx")), project.libraries)
    wrong, right, default = (ask(p)["values"] for p in (project, right, default))
    return wrong == default != right


@case(
    "The attribute is misspelt, 'band_width': ONNX Runtime ignores it, and the default is used.",
    same_as_the_default,
    [r"VoteAggregate", r"band_width", r"bandwidth"],
    code="operator-attribute-unknown",
)
def misspelt_attribute(tmp):
    return Project(vote_model(tmp / "m.onnx", band_width=0.3), [PVN3D])


@case(
    "The points lie in the other order, [batch, 3, points], which Conv1d wants and FarthestPointSample does not.",
    r"xyz",
    [r"FarthestPointSample", r"xyz", r"\[?batch, ?3, ?1024|1024", r"B, ?N, ?3"],
    code="operator-input-shape",
)
def channels_first(tmp):
    nodes = [node("FarthestPointSample", "xyz", "idx", POINTS, npoint=64)]
    model = save(
        tmp / "m.onnx",
        nodes,
        [tensor("xyz", ["batch", 3, 1024])],
        [tensor("idx", ["batch", 64], INT32)],
        domains=[POINTS],
    )
    return Project(model, [PVN3D])


# -- exporters' damage


@case(
    "The autograd.Function has no symbolic, and the exporter let it fall through as prim::PythonOp.",
    r"PythonOp",
    [r"PythonOp", r"(?i)export|symbolic"],
    code="operator-not-exported",
)
def fell_through(tmp):
    nodes = [
        node("PythonOp", "x", "h", "prim", inplace=0, module="models.pvn3d"),
        node("Relu", "h", "y"),
    ]
    path = save(tmp / "m.onnx", nodes, [tensor("x", ["n", 3])], [tensor("y", ["n", 3])], domains=["prim"])
    return Project(path, [PVN3D])


def not_finite(project, ask):
    return ask(project).get("finite") is False


@case(
    "Converted to float16 the 1e-8 that keeps a reciprocal finite became 0.",
    not_finite,
    [r"(?i)epsilon|1e-8|zero|\b0\b", r"/inv|/eps", r"(?i)recip|divi|infin"],
    exit=2,
    code="model-epsilon-lost",
)
def epsilon_gone(tmp):
    nodes = [
        node("Mul", "dist scale", "scaled", name="/scale"),
        node("Add", "scaled eps", "safe", name="/eps"),
        node("Reciprocal", "safe", "y", name="/inv"),
    ]
    x, y = tensor("dist", ["b", "n", 3], HALF), tensor("y", ["b", "n", 3], HALF)
    constants = [constant("scale", 1, np.float16), constant("eps", 1e-8, np.float16)]
    path = save(tmp / "m.onnx", nodes, [x], [y], constants)
    return Project(path, feeds={"dist": [[[0, 0.5, 1]]]})


@case(
    "A Reshape has the point count of the example input, 1024, baked in; the input says any number of points.",
    r"(?i)reshape",
    [r"(?i)reshape", r"1024", r"points|dynamic"],
    code="model-static-shape",
)
def baked_shape(tmp):
    nodes = [
        node("Transpose", "cloud", "rows", perm=[0, 2, 1]),
        node("Reshape", "rows shape", "xyz", name="/backbone/Reshape"),
        node("FarthestPointSample", "xyz", "idx", POINTS, npoint=64),
    ]
    model = save(
        tmp / "m.onnx",
        nodes,
        [tensor("cloud", ["batch", 3, "points"])],
        [tensor("idx", ["batch", 64], INT32)],
        [constant("shape", [1, 1024, 3], np.int64)],
        [POINTS],
    )
    return Project(model, [PVN3D], feeds={"*": 512})


@case(
    "An optional input is left out and the node's output has no type in the model, which ONNX Runtime 1.15 to 1.17 "
    "need.",
    r"type inference failed",
    [r"my_clip", r"(?i)value.?info|type", r"1\.17"],
    code="model-untyped-output",
)
def value_types_missing(tmp):
    nodes = [
        helper.make_node("my_clip", ["x", "", "high"], ["h"], "/clip", domain=CLIP),
        node("Relu", "h", "y"),
    ]
    x, y = (tensor(n, ["n"]) for n in "xy")
    model = save(tmp / "m.onnx", nodes, [x], [y], [constant("high", 0.5)], [CLIP], ir=8)
    return Project(model, [MY_CLIP], runtime="1.17.1")


# -- versions of the runtime


@case(
    "The library works from ONNX Runtime 1.16 on, and this is 1.15.",
    r"needs ONNX Runtime 1\.16 or newer",
    [r"libmy_custom_ops\.so|ONNX Runtime", r"1\.16", r"1\.1[45]"],
    code="runtime-too-old",
)
def runtime_too_old(tmp):
    return Project(clip_model(tmp / "m.onnx", ir=8), [MY_CLIP], runtime="1.14.1")


def no_shared_library(project, ask):
    return not list(project.ort.rglob("libonnxruntime.so*"))


@case(
    "The C++ program is to use the Python package 1.16.3, which has no libonnxruntime.so: wheels carry it from 1.19 "
    "on.",
    no_shared_library,
    [r"libonnxruntime", r"1\.19", r"onnxruntime"],
    code="runtime-missing",
)
def package_without_the_c_library(tmp):
    return Project(clip_model(tmp / "m.onnx"), [MY_CLIP], ort=installed("1.16.3") / "onnxruntime")


# -- Python environments


def offers_no_cuda(project, ask):
    code = "import onnxruntime; print(onnxruntime.get_available_providers())"
    path = Path(project.environment.get("VIRTUAL_ENV", sys.prefix)) / "lib/python3.11/site-packages"
    environment = {**os.environ, "PYTHONPATH": f"{path}:{installed('1.20.1')}"}
    out = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    return "CPUExecutionProvider" in out and "CUDA" not in out


@case(
    "onnxruntime and onnxruntime-gpu are both installed; they share a folder, and the CPU package's files lie there.",
    offers_no_cuda,
    [r"onnxruntime-gpu|onnxruntime_gpu", r"\bonnxruntime\b", r"(?i)both|overwr|conflict|together|same"],
    code="python-two-runtimes-cuda",
    also=("driver-missing", "provider-missing"),
)
def both_packages(tmp):
    site = virtual_environment(tmp / "venv")
    (site / "onnxruntime").symlink_to(installed("1.20.1") / "onnxruntime")
    package(site, "onnxruntime-gpu", "1.20.1")
    package(site, "onnxruntime", "1.20.1")
    package(site, "numpy", "2.1.3")
    return Project(plain_model(tmp / "m.onnx"), provider="cuda", environment=activated(tmp / "venv"))


def does_not_import(project, ask):
    site = Path(project.environment["VIRTUAL_ENV"]) / "lib/python3.11/site-packages"
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", "import onnxruntime"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode != 0 or "compiled using NumPy 1.x" in done.stderr


@case(
    "NumPy 2 is installed, and onnxruntime 1.17.3 was compiled for NumPy 1.",
    does_not_import,
    [r"(?i)numpy", r"2\.\d", r"1\.17\.3", r"numpy ?<|1\.19|upgrade|newer"],
    exit=2,
    code="python-numpy-2",
)
def numpy_2(tmp):
    site = virtual_environment(tmp / "venv")
    (site / "onnxruntime").symlink_to(installed("1.17.3") / "onnxruntime")
    numpy = Path(np.__file__).parent
    for folder in (numpy, numpy.parent / "numpy.libs"):
        (site / folder.name).symlink_to(folder)
    package(site, "onnxruntime", "1.17.3", "numpy>=1.21.6")
    package(site, "numpy", np.__version__)
    model = clip_model(tmp / "m.onnx", ir=8)
    return Project(model, [MY_CLIP], runtime="1.17.1", environment=activated(tmp / "venv"))


# -- CUDA


@case(
    "The installed ONNX Runtime is the CPU package: it has no CUDA provider.",
    offers_no_cuda,
    [r"(?i)cuda", r"onnxruntime-gpu", r"(?i)provider"],
    code="provider-missing",
    also=("driver-missing",),
)
def cuda_with_the_cpu_package(tmp):
    return Project(plain_model(tmp / "m.onnx"), provider="cuda")


# -- compiler logs


def log_says(text):
    return lambda project, ask: text in project.build_log.read_text()


@case(
    "The host compiler is newer than this nvcc takes.",
    log_says("unsupported GNU version"),
    [r"(?i)gcc|host compiler", r"12", r"(?i)nvcc|CUDA", r"ccbin|CMAKE_CUDA_HOST_COMPILER|CUDAHOSTCXX"],
    code="build-host-compiler",
)
def host_compiler_too_new(tmp):
    path = tmp / "build.log"
    path.write_text(HOST_COMPILER_LOG)
    return Project(build_log=path)


@case(
    "The library calls OrtGetApiBase itself and is linked with -z defs, but not to ONNX Runtime: an operator library "
    "is to use the OrtApiBase that RegisterCustomOps gets.",
    log_says("undefined reference to `OrtGetApiBase'"),
    [r"OrtGetApiBase", r"(?i)undefined", r"RegisterCustomOps|ORT_API_MANUAL_INIT|InitApi|link"],
    code="build-undefined-ort",
)
def undefined_reference(tmp):
    source = tmp / "ops.cc"
    source.write_text("""
        #include <onnxruntime_c_api.h>
        static const OrtApi* api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
        extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions*, const OrtApiBase*) {
          return api->CreateStatus(ORT_FAIL, "x");
        }
    """)
    command = ["c++", "-shared", "-fPIC", "-Wl,-z,defs", "-I", HEADERS, source, "-o", tmp / "libacme.so"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    path = tmp / "build.log"
    path.write_text(
        "[1/2] Building CXX object CMakeFiles/acme.dir/ops.cc.o\n[2/2] Linking CXX shared library libacme.so\n"
        f"FAILED: libacme.so\n{done.stderr}ninja: build stopped: subcommand failed.\n"
    )
    return Project(build_log=path)


HOST_COMPILER_LOG = """\
-- The CXX compiler identification is GNU 13.2.0
-- The CUDA compiler identification is NVIDIA 12.2.140
-- Configuring done (2.1s)
-- Build files have been written to: /home/me/pvn3d_ops/build
[ 12%] Building CXX object CMakeFiles/pvn3d_ops.dir/src/register.cc.o
[ 25%] Building CUDA object CMakeFiles/pvn3d_ops.dir/src/ball_query_gpu.cu.o
In file included from /usr/local/cuda-12.2/bin/../targets/x86_64-linux/include/cuda_runtime.h:83,
                 from <command-line>:
/usr/local/cuda-12.2/bin/../targets/x86_64-linux/include/crt/host_config.h:143:2: error: #error -- unsupported \
GNU version! gcc versions later than 12 are not supported! The nvcc flag '-allow-unsupported-compiler' can be used \
to override this version check; however, using an unsupported host compiler may cause compilation failure or \
incorrect run time execution. Use at your own risk.
  143 | #error -- unsupported GNU version! gcc versions later than 12 are not supported!
      |  ^~~~~
gmake[2]: *** [CMakeFiles/pvn3d_ops.dir/build.make:91: CMakeFiles/pvn3d_ops.dir/src/ball_query_gpu.cu.o] Error 1
gmake[1]: *** [CMakeFiles/Makefile2:87: CMakeFiles/pvn3d_ops.dir/all] Error 2
gmake: *** [Makefile:91: all] Error 2
"""


# -- a second round, by a hostile user


@case(
    "The library is for a Raspberry Pi or Jetson (AArch64), this machine is x86-64.",
    r"cannot open shared object file|wrong ELF class|ELF",
    [r"libacme\.so", r"(?i)aarch64|arm64", r"(?i)x86[-_]64"],
    code="library-platform",
)
def other_architecture(tmp):
    path = foreign(tmp / "libacme.so")
    data = bytearray(path.read_bytes())
    data[18:20] = (183).to_bytes(2, "little")  # e_machine
    path.write_bytes(data)
    return Project(foreign_model(tmp / "m.onnx"), [path])


@case(
    "The library was built on Windows.",
    r"invalid ELF header",
    [r"acme_ops\.dll", r"(?i)windows|\bPE\b|dll"],
    code="library-platform",
)
def windows_library(tmp):
    header = b"MZ" + bytes(58) + (128).to_bytes(4, "little")
    path = tmp / "acme_ops.dll"
    path.write_bytes(header + bytes(64) + b"PE\0\0\x64\x86" + bytes(4000))
    return Project(foreign_model(tmp / "m.onnx"), [path])


@case(
    "The model has opset 23, and ONNX Runtime 1.20 knows up to 21.",
    r"is till opset 21",
    [r"(?i)opset", r"23", r"21", r"1\.20"],
    code="model-opset-too-new",
)
def opset_newer_than_the_runtime(tmp):
    return Project(plain_model(tmp / "m.onnx", opset=23), runtime="1.20.1")


@case(
    "The required input pred_kps has an empty name.",
    r"(?i)empty string|pred_kps",
    [r"/pose/solve", r"pred_kps", r"(?i)required|absent|missing|empty|left out"],
    code="operator-inputs-missing",
)
def required_input_left_out(tmp):
    nodes = [
        helper.make_node(
            "KabschSolver",
            ["model_kps", "", "weights"],
            ["rotation", "translation"],
            "/pose/solve",
            domain=POINTS,
        )
    ]
    model = save(
        tmp / "m.onnx",
        nodes,
        [tensor("model_kps", [9, 3]), tensor("weights", [9])],
        [tensor("rotation", [3, 3]), tensor("translation", [3])],
        domains=[POINTS],
    )
    return Project(model, [PVN3D])


@case(
    "The centres are float64 (from NumPy), the points float32: one operator, one type.",
    r"BallQuery",
    [r"/sa1/query", r"(?i)double|float64|f64", r"(?i)float32|f32|float\b", r"new_xyz|xyz"],
    code="operator-input-type",
)
def mixed_types(tmp):
    path = points_model(tmp / "m.onnx")
    model = onnx.load(path)
    model.graph.input[1].type.tensor_type.elem_type = DOUBLE
    onnx.save(model, path)
    return Project(path, [PVN3D])


@case(
    "k was passed as a tensor: the symbolic function gave it as an input, not as the attribute k_i.",
    r"input size 3 not in range",
    [r"/knn", r"\bk\b", r"(?i)attribute", r"(?i)input"],
    code="operator-inputs-too-many",
    also=("operator-constant-input",),
)
def attribute_as_input(tmp):
    nodes = [node("KNN", "xyz query k", "idx", POINTS, "/knn")]
    model = save(
        tmp / "m.onnx",
        nodes,
        [tensor("xyz", ["b", "n", 3]), tensor("query", ["b", "m", 3])],
        [tensor("idx", ["b", "m", 8], INT32)],
        [constant("k", 8, np.int64)],
        [POINTS],
    )
    return Project(model, [PVN3D])


@case(
    "The library's source uses Ort::CustomOpApi, which ONNX Runtime's headers have not had since 1.16.",
    log_says("CustomOpApi"),
    [r"CustomOpApi", r"1\.1[0-9]", r"(?i)header|version|removed|KernelContext"],
    code="build-removed-class",
)
def removed_class(tmp):
    path = tmp / "build.log"
    path.write_text("""\
[ 50%] Building CXX object csrc/CMakeFiles/mmdeploy_ort_ops.dir/grid_sample.cpp.o
In file included from /src/csrc/onnxruntime/grid_sample/grid_sample.cpp:2:
/src/csrc/onnxruntime/grid_sample/grid_sample.h:9:28: error: 'CustomOpApi' in namespace 'Ort' does not name a type; \
did you mean 'CustomOpBase'?
    9 |   GridSampleKernel(Ort::CustomOpApi ort, const OrtKernelInfo *info);
      |                            ^~~~~~~~~~~
      |                            CustomOpBase
make[2]: *** [csrc/CMakeFiles/mmdeploy_ort_ops.dir/build.make:76: csrc/CMakeFiles/mmdeploy_ort_ops.dir/\
grid_sample.cpp.o] Error 1
""")
    return Project(build_log=path)


@case(
    "Two models were merged without a prefix: two nodes write the tensor 'h'.",
    r"(?i)duplicate definition|SSA",
    [r"\bh\b", r"(?i)twice|two nodes|duplicate|both|more than one"],
    code="model-name-twice",
)
def merged_without_prefix(tmp):
    nodes = [
        node("Relu", "x", "h", name="a/relu"),
        node("Sigmoid", "x", "h", name="b/sigmoid"),
        node("Neg", "h", "y"),
    ]
    return Project(save(tmp / "m.onnx", nodes, [tensor("x", ["n"])], [tensor("y", ["n"])]))


@case(
    "The graph was cut: nothing writes 'backbone_out', which the first node reads.",
    r"backbone_out",
    [
        r"backbone_out",
        r"(?i)no(thing| node| one)|not (a|the|an|produced|written|defined)|nobody|never|unknown|missing",
    ],
    code="model-name-missing",
)
def cut_graph(tmp):
    nodes = [node("Relu", "backbone_out", "h"), node("Add", "h x", "y")]
    return Project(save(tmp / "m.onnx", nodes, [tensor("x", ["n"])], [tensor("y", ["n"])]))


@case(
    "The compiler does not find ONNX Runtime's headers: the Python package has none.",
    log_says("onnxruntime_cxx_api.h: No such file"),
    [r"onnxruntime_cxx_api\.h", r"(?i)header|include", r"(?i)-I|include|download|wheel|package"],
    code="build-missing-header",
)
def no_headers(tmp):
    path = tmp / "build.log"
    path.write_text("""\
[1/2] Building CXX object CMakeFiles/custom_op.dir/custom_op.cc.o
FAILED: CMakeFiles/custom_op.dir/custom_op.cc.o
/usr/bin/c++ -Dcustom_op_EXPORTS -O3 -fPIC -std=gnu++17 -o CMakeFiles/custom_op.dir/custom_op.cc.o -c ../custom_op.cc
../custom_op.cc:1:10: fatal error: onnxruntime_cxx_api.h: No such file or directory
    1 | #include <onnxruntime_cxx_api.h>
      |          ^~~~~~~~~~~~~~~~~~~~~~~
compilation terminated.
ninja: build stopped: subcommand failed.
""")
    return Project(build_log=path)


@case(
    "A static library that was compiled without -fPIC goes into the operator library.",
    log_says("recompile with -fPIC"),
    [r"fPIC|POSITION_INDEPENDENT_CODE", r"kernels"],
    code="build-not-pic",
)
def not_position_independent(tmp):
    path = tmp / "build.log"
    path.write_text("""\
[100%] Linking CXX shared library libpvn3d_ops.so
/usr/bin/ld: libkernels.a(ball_query.cpp.o): relocation R_X86_64_PC32 against symbol `stderr@@GLIBC_2.2.5' can not \
be used when making a shared object; recompile with -fPIC
/usr/bin/ld: final link failed: bad value
collect2: error: ld returned 1 exit status
gmake[2]: *** [CMakeFiles/pvn3d_ops.dir/build.make:113: libpvn3d_ops.so] Error 1
""")
    return Project(build_log=path)


@case(
    "RegisterCustomOps is defined in two source files of one library.",
    log_says("multiple definition of"),
    [r"RegisterCustomOps", r"(?i)multiple|twice|two|duplicate"],
    code="build-duplicate-symbol",
)
def defined_twice(tmp):
    for n in (1, 2):
        (tmp / f"op{n}.c").write_text("int RegisterCustomOps(void) { return 0; }\n")
    command = ["cc", "-shared", "-fPIC", tmp / "op1.c", tmp / "op2.c", "-o", tmp / "libacme.so"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    path = tmp / "build.log"
    path.write_text(done.stderr)
    return Project(build_log=path)


@case(
    "The build asks for compute_60, which CUDA 13's nvcc no longer compiles for.",
    log_says("Unsupported gpu architecture"),
    [r"compute_60|sm_60", r"(?i)architecture", r"CMAKE_CUDA_ARCHITECTURES|-arch|75"],
    code="build-gpu-architecture",
)
def old_architecture(tmp):
    path = tmp / "build.log"
    path.write_text("""\
[2/5] Building CUDA object CMakeFiles/ops.dir/knn.cu.o
FAILED: CMakeFiles/ops.dir/knn.cu.o
/usr/local/cuda/bin/nvcc -forward-unknown-to-host-compiler --generate-code=arch=compute_60,code=[sm_60] -c ../knn.cu
nvcc fatal   : Unsupported gpu architecture 'compute_60'
ninja: build stopped: subcommand failed.
""")
    return Project(build_log=path)


@case(
    "bandwidth is 0, which VoteAggregate does not allow.",
    r"bandwidth",
    [r"VoteAggregate", r"bandwidth", r"\b0\b"],
    code="operator-attribute-invalid",
)
def attribute_out_of_range(tmp):
    return Project(vote_model(tmp / "m.onnx", bandwidth=0.0), [PVN3D])


@case(
    "radius was written as the integer 1; the operator reads a float.",
    r"radius",
    [r"/sa1/query", r"radius", r"(?i)int", r"(?i)float"],
    code="operator-attribute-invalid",
)
def attribute_of_another_kind(tmp):
    return Project(points_model(tmp / "m.onnx", radius=1, nsample=16), [PVN3D])


@case(
    "The download was the login page of a proxy.",
    r"INVALID_PROTOBUF|Protobuf parsing failed",
    [r"(?i)html|web page"],
    code="model-not-onnx",
)
def model_is_a_web_page(tmp):
    path = tmp / "pvn3d.onnx"
    path.write_text(
        "<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>" + "x" * 5000 + "</body></html>"
    )
    return Project(path)


@case(
    "The file of weights was cut short while it was copied.",
    r"model\.onnx\.data|(?i:external|out of bounds)",
    [r"model\.onnx\.data", r"(?i)short|truncated|cut|bytes"],
    code="model-weights-short",
)
def weights_cut_short(tmp):
    path = large_model(tmp / "exported")
    data = tmp / "exported/model.onnx.data"
    data.write_bytes(data.read_bytes()[:20])
    return Project(path)


@case(
    "The custom node is in a branch of an If, and no library was given.",
    r"acme\.ops:Double\(-1\) is not a registered function/op",
    [r"acme\.ops", r"Double", r"(?i)library"],
    code="operator-no-library",
)
def no_library_for_a_branch(tmp):
    def branch(name, op, domain):
        return helper.make_graph([node(op, "x", name, domain)], name, [], [tensor(name, ["n"])])

    nodes = [
        helper.make_node(
            "If",
            ["flag"],
            ["y"],
            "/if",
            then_branch=branch("then", "Double", "acme.ops"),
            else_branch=branch("else", "Neg", ""),
        )
    ]
    inputs = [tensor("x", ["n"]), tensor("flag", [], TensorProto.BOOL)]
    return Project(save(tmp / "m.onnx", nodes, inputs, [tensor("y", ["n"])], domains=["acme.ops"]))


@case(
    "Half of the library was compiled with the old ABI of std::string, so a function is not found.",
    r"undefined symbol: _ZN4acme8describe.*E?Ss",
    [r"libacme\.so", r"acme::describe|_ZN4acme8describe", r"(?i)abi|undefined|not defined"],
    code="library-undefined-symbol",
)
def old_string_abi(tmp):
    source = """
        #define _GLIBCXX_USE_CXX11_ABI 0
        #include <onnxruntime_c_api.h>
        #include <string>
        namespace acme { int describe(std::string); }
        extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions*, const OrtApiBase*) {
          acme::describe("x");
          return nullptr;
        }
    """
    return Project(foreign_model(tmp / "m.onnx"), [build(tmp / "libacme.so", source, language="c++")])


# ---- the healthy projects


@dataclass
class Healthy:
    name: str
    make: object


HEALTHY = []


def healthy(make):
    HEALTHY.append(Healthy(make.__name__, make))
    return make


class Absent(Exception):
    """What a project needs is not on this machine; the text says what, and how to get it."""


def shipped(pattern):
    """A file of a package that the project itself does not need (scripts/third_party.sh)."""
    found = sorted((ROOT / "build/third_party").glob(pattern))
    if not found:
        raise Absent(f"no {pattern}: make matrix fetches it")
    return found[0]


def exported(tmp, exporter):
    import opbridge
    import torch

    opbridge.load(str(MY_CLIP), torch=True)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 4)

        def forward(self, x):
            return self.linear(torch.ops.my_namespace.my_clip(x, torch.tensor(-0.5), torch.tensor(0.5)))

    path = tmp / f"{exporter}.onnx"
    opbridge.export(
        Net().eval(), (torch.zeros(5, 3),), path, exporter=exporter, dynamic_shapes=({0: "batch"},)
    )
    return Project(path, [MY_CLIP])


@healthy
def dynamo_export(tmp):
    return exported(tmp, "dynamo")


@healthy
def torchscript_export(tmp):
    return exported(tmp, "torchscript")


@healthy
def point_network(tmp):
    return Project(points_model(tmp / "m.onnx"), [PVN3D, MY_CLIP], feeds=CLOUDS)


@healthy
def foreign_library(tmp):
    return Project(foreign_model(tmp / "m.onnx"), [foreign(tmp / "libacme.so")], load=True)


@healthy
def onnxruntime_extensions(tmp):
    library = shipped("onnxruntime_extensions/_extensions_pydll*.so")
    nodes = [node("Inverse", "x", "y", "ai.onnx.contrib")]
    x, y = (tensor(n, [3, 3]) for n in "xy")
    model = save(tmp / "m.onnx", nodes, [x], [y], domains=["ai.onnx.contrib"])
    return Project(model, [library], load=True)


@healthy
def voice_detector(tmp):
    return Project(shipped("silero_vad/data/silero_vad.onnx"), feeds={"*": 512, "sr": 16000})


@healthy
def old_model(tmp):
    """IR version 3 and opset 7, as ONNX Runtime's wheel ships it."""
    return Project(Path(onnxruntime.__file__).parent / "datasets/sigmoid.onnx")


@healthy
def text_model(tmp):
    """Text in, text out, as in the models of tokenizers."""
    nodes = [node("Reshape", "x shape", "y")]
    x, y = (tensor(n, ["n"], TensorProto.STRING) for n in "xy")
    return Project(save(tmp / "m.onnx", nodes, [x], [y], [constant("shape", [-1], np.int64)]))


@healthy
def external_weights(tmp):
    return Project(large_model(tmp / "exported"))


@healthy
def fixed_shapes(tmp):
    """A camera with one resolution, a cloud of one size: fixed on purpose."""
    nodes = [
        node("FarthestPointSample", "xyz", "idx", POINTS, npoint=64),
        node("Unsqueeze", "idx axis", "index"),
        node("Cast", "index", "index64", to=INT64),
        node("Expand", "index64 three", "wide"),
        node("GatherElements", "xyz wide", "new_xyz", axis=1),
    ]
    model = save(
        tmp / "m.onnx",
        nodes,
        [tensor("xyz", [1, 1024, 3])],
        [tensor("new_xyz", [1, 64, 3])],
        [constant("axis", [2], np.int64), constant("three", [1, 64, 3], np.int64)],
        [POINTS],
    )
    return Project(model, [PVN3D])


@healthy
def oldest_c_runtime(tmp):
    return Project(clip_model(tmp / "m.onnx", ir=8), [MY_CLIP], runtime="1.17.1")
