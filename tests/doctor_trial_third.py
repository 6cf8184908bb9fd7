"""A third set for the trial of `opbridge doctor` (doctor_trial.py), chosen and written without a look at doctor's
source, its documentation or the first two sets, and run once before it became tests."""

import dataclasses
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from doctor_trial import (
    BOOL,
    CLIP,
    DOUBLE,
    FLOAT,
    HEADERS,
    INT32,
    INT64,
    MY_CLIP,
    ORT,
    POINTS,
    PVN3D,
    Absent,
    Project,
    activated,
    build,
    build_failed,
    case,
    constant,
    healthy,
    installed,
    log_of,
    node,
    save,
    shipped,
    tensor,
    virtual_environment,
)
from onnx import TensorProto, helper

PLAIN_CLIP = [node("Relu", "x", "r"), node("my_clip", "r lo hi", "y", CLIP, "clip")]
BOUNDS = [constant("lo", -1), constant("hi", 1)]
X, Y = tensor("x", ["b", 4]), tensor("y", ["b", 4])


def clip(path, nodes=PLAIN_CLIP, more=(), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    return save(path, nodes, [X], [Y], [*BOUNDS, *more], [CLIP], **{"ir": 8} | options)


def clip_with_weights(path, location):
    """x @ w, then my_clip; the constants are in a file of their own."""
    nodes = [node("MatMul", "x w", "m"), node("my_clip", "m lo hi", "y", CLIP)]
    clip(path, nodes, [constant("w", np.full((4, 4), 0.25))])
    (path.parent / location).parent.mkdir(exist_ok=True)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location=location, size_threshold=0)
    return path


# ---- a library as others write it: with ONNX Runtime's C++ classes

SCALE = r"""
#include <onnxruntime_cxx_api.h>
#ifndef INIT
#define INIT Ort::InitApi(base->GetApi(ORT_API_VERSION));
#endif
DECLARE
struct Kernel {
  float scale = 1;
  explicit Kernel(const OrtKernelInfo* i) {
    Ort::ConstKernelInfo info(i);
    try {
      scale = info.GetAttribute<float>("scale");
    } catch (const Ort::Exception&) {
    }
  }
  void Compute(OrtKernelContext* c) {
    Ort::KernelContext context(c);
    auto x = context.GetInput(0);
    auto shape = x.GetTensorTypeAndShapeInfo().GetShape();
    auto y = context.GetOutput(0, shape.data(), shape.size());
    const float* a = x.GetTensorData<float>();
    float* b = y.GetTensorMutableData<float>();
    const size_t n = x.GetTensorTypeAndShapeInfo().GetElementCount();
    BODY
  }
};
struct ScaleOp : Ort::CustomOpBase<ScaleOp, Kernel> {
  void* CreateKernel(const OrtApi&, const OrtKernelInfo* info) const { return new Kernel(info); }
  const char* GetName() const { return "Scale"; }
  size_t GetInputTypeCount() const { return 1; }
  size_t GetOutputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetInputType(size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
  ONNXTensorElementDataType GetOutputType(size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
};
extern "C" OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* o, const OrtApiBase* base) {
  (void)base;
  INIT
  REGISTER
  return nullptr;
}
"""
STATIC = """
  static ScaleOp op;
  static Ort::CustomOpDomain domain = [] {
    Ort::CustomOpDomain d("acme.vision");
    d.Add(&op);
    return d;
  }();
  Ort::UnownedSessionOptions(o).Add(domain);
"""
LOCAL = """
  ScaleOp op;
  Ort::CustomOpDomain domain("acme.vision");
  domain.Add(&op);
  Ort::UnownedSessionOptions(o).Add(domain);
"""
SCALES = "for (size_t i = 0; i < n; ++i) b[i] = a[i] * scale;"


def scale_source(declare="", body=SCALES, register=STATIC):
    return SCALE.replace("DECLARE", declare).replace("BODY", body).replace("REGISTER", register)


def scale_library(path, *options, manual=True, **source):
    flags = ["-std=c++17", "-DORT_API_MANUAL_INIT" if manual else "-DINIT="]
    return build(path, scale_source(**source), *flags, *options, language="c++")


def scale_model(path):
    return save(
        path, [node("Scale", "x", "y", "acme.vision", "scale0", scale=2.0)], [X], [Y], domains=["acme.vision"]
    )


def scale_project(tmp, *libraries, **options):
    return Project(scale_model(tmp / "m.onnx"), list(libraries), load=True, **options)


# ---- exports


def not_clipped(project, ask):
    return max(ask(dataclasses.replace(project, feeds={"x": [[5, -5, 0, 0]]}))["values"][0]) > 1


@case(
    "The hand-written symbolic passed min and max as attributes (min_f=, max_f=); they are inputs 1 and 2, so nothing "
    "is clipped.",
    not_clipped,
    [r"'min'", r"(?i)\binputs?\b"],
    code="operator-attribute-unknown",
)
def attributes_for_inputs(tmp):
    return Project(clip(tmp / "net.onnx", [node("my_clip", "x", "y", CLIP, min=-1.0, max=1.0)]), [MY_CLIP])


@case(
    "The model was exported with ATen fallback; no library has org.pytorch.aten::ATen.",
    r"org\.pytorch\.aten:ATen\(-1\) is not a registered function/op",
    [r"(?i)aten", r"(?i)grid_sampler|fallback", r"(?i)opset|export"],
)
def aten_fallback(tmp):
    aten = node("ATen", "x grid m m c", "y", "org.pytorch.aten", operator="grid_sampler", overload_name="")
    inputs = [tensor("x", [1, 3, 8, 8]), tensor("grid", [1, 8, 8, 2])]
    constants = [constant("m", 0, np.int64), constant("c", False, bool)]
    outputs = [tensor("y", [1, 3, 8, 8])]
    return Project(
        save(tmp / "m.onnx", [aten], inputs, outputs, constants, ["org.pytorch.aten"], ir=8, opset=13)
    )


@case(
    "The file declares BallQuery's indices as int64, as PyTorch has them; the operator makes int32.",
    r"Type \(tensor\(int64\)\) of output arg \(idx\)",
    [r"\bidx\b", r"int32", r"(?i)cast"],
    code="output-type-mismatch",
)
def indices_declared_int64(tmp):
    nodes = [node("BallQuery", "xyz new_xyz", "idx", POINTS, radius=0.2, nsample=16)]
    inputs = [tensor("xyz", ["b", "n", 3]), tensor("new_xyz", ["b", "m", 3])]
    return Project(
        save(tmp / "m.onnx", nodes, inputs, [tensor("idx", ["b", "m", 16], INT64)], domains=[POINTS]), [PVN3D]
    )


@case(
    "The model calls the operator by a former name.",
    r"FurthestPointSampling\(-1\) is not a registered function/op",
    [r"/sa1/fps", r"did you mean 'FarthestPointSample'"],
    code="operator-wrong-name",
)
def former_name(tmp):
    nodes = [node("FurthestPointSampling", "xyz", "idx", POINTS, "/sa1/fps", npoint=16)]
    outputs = [tensor("idx", ["b", 16], INT32)]
    return Project(
        save(tmp / "m.onnx", nodes, [tensor("xyz", ["b", 64, 3])], outputs, domains=[POINTS]), [PVN3D]
    )


@case(
    "The node's domain is a torch namespace, which may not have a dot: pvn3d_custom_ops for pvn3d.custom_ops.",
    r"pvn3d_custom_ops:KNN\(-1\) is not a registered function/op",
    [r"node_KNN_0", r"export the node as pvn3d\.custom_ops::KNN"],
    code="operator-wrong-domain",
)
def underscore_in_the_domain(tmp):
    nodes = [node("KNN", "xyz q", "idx dist", "pvn3d_custom_ops", "node_KNN_0", k=3)]
    inputs = [tensor("xyz", ["b", 64, 3]), tensor("q", ["b", 8, 3])]
    outputs = [tensor("idx", ["b", 8, 3], INT32), tensor("dist", ["b", 8, 3])]
    return Project(
        save(tmp / "m.onnx", nodes, inputs, outputs, domains=["pvn3d_custom_ops"], opset=18), [PVN3D]
    )


@case(
    "Graph surgery lost the node's domain.",
    r"No Op registered for my_clip with domain_version of 17",
    [r"'clip'", r"my_namespace::my_clip", r"node\.domain = 'my_namespace'"],
    code="operator-no-domain",
)
def domain_lost(tmp):
    nodes = [node("Relu", "x", "r"), node("my_clip", "r lo hi", "y", "", "clip")]
    return Project(clip(tmp / "net.onnx", nodes), [MY_CLIP])


@case(
    "Attribute order is 'XYZ', scipy's spelling; the operator has lower case only.",
    r"attribute 'order' must be one of",
    [r"'rot'", r"'XYZ'", r"did you mean 'xyz'"],
    code="operator-attribute-invalid",
)
def order_in_upper_case(tmp):
    nodes = [node("EulerToRotation", "a", "r", POINTS, "rot", order="XYZ")]
    return Project(
        save(tmp / "m.onnx", nodes, [tensor("a", ["b", 3])], [tensor("r", ["b", 3, 3])], domains=[POINTS]),
        [PVN3D],
    )


@case(
    "The node that made 'conf' was cut out; KabschSolver still reads it.",
    r"Node input 'conf' is not a graph input",
    [r"'pose'", r"'conf'", r"nothing makes"],
    code="model-name-missing",
)
def weights_cut_out(tmp):
    nodes = [node("KabschSolver", "t p conf", "R tr", POINTS, "pose")]
    inputs = [tensor("t", ["k", 3]), tensor("p", ["b", "k", 3]), tensor("c", ["b", "k"])]
    outputs = [tensor("R", ["b", 3, 3]), tensor("tr", ["b", 3])]
    return Project(save(tmp / "m.onnx", nodes, inputs, outputs, domains=[POINTS]), [PVN3D])


@case(
    "Two graphs were merged without prefixes: two nodes make 'h'.",
    r"Duplicate definition of name \(h\)",
    [r"head/relu", r"bb/relu", r"'h'", r"(?i)prefix"],
    code="model-name-twice",
)
def merged_without_prefixes(tmp):
    nodes = [
        node("Relu", "x", "h", name="bb/relu"),
        node("Neg", "h", "f", name="bb/neg"),
        node("Relu", "f", "h", name="head/relu"),
        node("my_clip", "h lo hi", "y", CLIP, "head/clip"),
    ]
    return Project(clip(tmp / "net.onnx", nodes), [MY_CLIP])


@case(
    "The point clouds come as [B,3,N], ThreeNN wants [B,N,3].",
    r"input 'unknown' must have shape \[B,N,3\], got \[1,3,128\]",
    [r"fp/three_nn", r"\[1,3,128\]", r"(?i)transpose"],
    code="operator-input-shape",
)
def clouds_channels_first(tmp):
    nodes = [node("ThreeNN", "u k", "dist idx", POINTS, "fp/three_nn")]
    inputs = [tensor("u", [1, 3, 128]), tensor("k", [1, 3, 32])]
    outputs = [tensor("dist", None), tensor("idx", None, INT32)]
    return Project(save(tmp / "m.onnx", nodes, inputs, outputs, domains=[POINTS]), [PVN3D])


# ---- files that were copied, renamed, downloaded


@case(
    "Model and weights were renamed together; the model still asks for the old name.",
    r"model\.onnx\.data",
    [r"model\.onnx\.data", r"v2\.onnx\.data"],
    code="model-weights-missing",
)
def renamed_with_its_weights(tmp):
    clip_with_weights(tmp / "model.onnx", "model.onnx.data").rename(tmp / "v2.onnx")
    (tmp / "model.onnx.data").rename(tmp / "v2.onnx.data")
    return Project(tmp / "v2.onnx", [MY_CLIP])


@case(
    "The repository was cloned without git-lfs.",
    r"Protobuf parsing failed",
    [r"LFS", r"git lfs pull"],
    code="model-not-onnx",
)
def cloned_without_lfs(tmp):
    path = tmp / "net.onnx"
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d7a' * 16}\nsize 18344522\n")
    return Project(path, [MY_CLIP])


@case(
    "The library is the web page about it.",
    r"invalid ELF header",
    [r"(?i)web page|html", r"(?i)download|fetch"],
    code="library-not-elf",
)
def page_for_the_library(tmp):
    path = tmp / "libmy_custom_ops.so"
    path.write_text(
        "\n\n\n<!DOCTYPE html>\n<html\n  lang='en'>\n<body>" + "<div></div>\n" * 400 + "</body></html>\n"
    )
    return Project(clip(tmp / "net.onnx"), [path])


@case(
    "The library was built on a newer distribution.",
    r"version `GLIBC_2\.97' not found",
    [r"GLIBC_2\.97", r"(?i)newer system", r"(?i)oldest system"],
    code="library-needs-newer-system",
)
def built_on_a_newer_distribution(tmp):
    def elf_hash(name):
        value = 0
        for c in name:
            value = (value << 4) + c
            value = (value ^ (value & 0xF0000000) >> 24) & 0x0FFFFFFF
        return struct.pack("<I", value)

    data, old, new = MY_CLIP.read_bytes(), b"GLIBC_2.34", b"GLIBC_2.97"
    if old not in data:
        raise Absent("libmy_custom_ops.so does not need GLIBC_2.34")
    path = tmp / "libmy_custom_ops.so"
    path.write_bytes(data.replace(old + b"\0", new + b"\0").replace(elf_hash(old), elf_hash(new)))
    return Project(clip(tmp / "net.onnx"), [path])


@case(
    "The library was copied from an aarch64 board.",
    r"cannot open shared object file",
    [r"aarch64", r"x86_64"],
    code="library-platform",
)
def copied_from_a_board(tmp):
    compiler = "aarch64-linux-gnu-g++"
    if shutil.which(compiler) is None or os.uname().machine != "x86_64":
        raise Absent(f"no {compiler}, or no x86-64")
    (tmp / "op.cc").write_text("#define ORT_API_MANUAL_INIT\n" + scale_source())
    command = [compiler, "-std=c++17", "-w", "-fPIC", "-shared", "-I", HEADERS, "op.cc", "-o", "libacme.so"]
    subprocess.run(command, cwd=tmp, check=True)
    return scale_project(tmp, tmp / "libacme.so")


# ---- libraries


@case(
    "The library is a static archive: add_library without SHARED.",
    r"invalid ELF header",
    [r"static archive", r"SHARED"],
    code="library-not-shared",
)
def archive_for_the_library(tmp):
    (tmp / "op.c").write_text("int RegisterCustomOps(void) { return 0; }\n")
    subprocess.run("cc -fPIC -c op.c && ar rcs libacme.a op.o", shell=True, cwd=tmp, check=True)
    return scale_project(tmp, tmp / "libacme.a")


@case(
    "The C++ header is used without ORT_API_MANUAL_INIT, so the library needs OrtGetApiBase, which nothing offers.",
    r"undefined symbol: OrtGetApiBase",
    [r"OrtGetApiBase", r"ORT_API_MANUAL_INIT"],
    code="library-undefined-symbol",
)
def no_manual_init(tmp):
    return scale_project(tmp, scale_library(tmp / "libacme.so", manual=False))


@case(
    "A library of the developer's own stayed on the machine that built this one.",
    r"libacme_geometry\.so: cannot open shared object file",
    [r"libacme_geometry\.so", r"(?i)not found", r"run path|ORIGIN|LD_LIBRARY_PATH"],
    code="library-dependency-missing",
)
def helper_left_behind(tmp):
    helper_library = build(
        tmp / "dev/libacme_geometry.so", "void acme(const float* a, float* b) { *b = *a; }"
    )
    options = ["-L", tmp / "dev", "-lacme_geometry", "-Wl,-rpath,/home/dev/acme/build/lib"]
    source = {"declare": 'extern "C" void acme(const float*, float*);', "body": "acme(a, b);"}
    library = scale_library(tmp / "libacme.so", *options, **source)
    helper_library.unlink()
    return scale_project(tmp, library)


@case(
    "The library has the headers of API 21 and does not look at what GetApi returns; ONNX Runtime 1.20.1 has API 20.",
    r"the process ends: signal 11",
    [r"API 21", r"1\.20\.1", r"1\.21 or newer"],
    code="library-api-newer",
)
def headers_newer_than_the_runtime(tmp):
    return scale_project(tmp, scale_library(tmp / "libacme.so"), runtime="1.20.1")


@case(
    "The library is mmdeploy's for TensorRT; the one for ONNX Runtime is another.",
    r"libnvinfer\.so\.8: cannot open shared object file",
    [r"TensorRT plugin", r"built for ONNX Runtime"],
    code="library-tensorrt-plugin",
)
def library_for_tensorrt(tmp):
    library = shipped("mmdeploy/lib/libmmdeploy_tensorrt_ops.so")
    options = dict.fromkeys(["interpolation_mode", "padding_mode", "align_corners"], 0)
    nodes = [node("grid_sampler", "x grid", "y", "mmdeploy", **options)]
    inputs = [tensor("x", [1, 3, 8, 8]), tensor("grid", [1, 8, 8, 2])]
    model = save(
        tmp / "m.onnx", nodes, inputs, [tensor("y", [1, 3, 8, 8])], domains=["mmdeploy"], ir=8, opset=11
    )
    return Project(model, [library], load=True)


@case(
    "An older copy of the library is registered as well.",
    r"Domain already set in registry",
    [r"old/libacme\.so|libacme\.so", r"acme\.vision", r"give only the one"],
    code="domain-shared",
)
def older_copy_too(tmp):
    library = scale_library(tmp / "libacme.so")
    return scale_project(tmp, library, scale_library(tmp / "old/libacme.so", "-O1"))


@case(
    "The operator is a local variable of RegisterCustomOps.",
    r"the process ends: signal|bad_alloc|error",
    [r"acme\.vision::Scale", r"(?i)static"],
    code="library-operators-ended",
)
def operator_on_the_stack(tmp):
    return scale_project(tmp, scale_library(tmp / "libacme.so", "-O1", register=LOCAL))


@case(
    "The source that defines acme::launch_scale was left out of the build.",
    r"undefined symbol: _ZN4acme12launch_scale",
    [r"acme::launch_scale", r"(?i)defines"],
    code="library-undefined-symbol",
)
def source_left_out(tmp):
    source = {
        "declare": "namespace acme { void launch_scale(const float*, float*, size_t, float); }",
        "body": "acme::launch_scale(a, b, n, scale);",
    }
    return scale_project(tmp, scale_library(tmp / "libacme.so", **source))


# ---- versions and the Python environment


def other_python(version):
    if not (ORT / version / "bin/python").exists():
        raise Absent(f"no ONNX Runtime {version}: make matrix fetches it")
    return activated(ORT / version)


def asks(version, pattern):
    return lambda project, ask: pattern in ask(dataclasses.replace(project, runtime=version))["error"]


@case(
    "A new onnx package wrote IR version 12; the deployed ONNX Runtime 1.16.3 takes 9.",
    asks("1.16.3", "Unsupported model IR version: 12"),
    [r"IR version 12", r"1\.16\.3", r"ir_version = 9"],
    code="model-ir-too-new",
)
def ir_version_of_a_new_package(tmp):
    return Project(clip(tmp / "net.onnx", ir=12), [MY_CLIP], environment=other_python("1.16.3"))


RUN_CLIP = """
import sys, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(sys.argv[3])
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
session.run(None, {"x": numpy.zeros((1, 4), "f4")})
"""


def python_fails(text, source):
    """The project's Python fails with `text`, this one does not."""

    def fails(project, ask):
        runs = [
            subprocess.run(
                [p, "-c", source, *project.arguments()],
                cwd=project.folder,
                capture_output=True,
                text=True,
                check=False,
            )
            for p in (f"{project.environment['VIRTUAL_ENV']}/bin/python", sys.executable)
        ]
        return runs[0].returncode != 0 and text in runs[0].stderr and runs[1].returncode == 0

    return fails


@case(
    "NumPy 2 is beside onnxruntime 1.16.3, which was compiled for NumPy 1.",
    python_fails("compiled using NumPy 1.x", RUN_CLIP),
    [r"1\.16\.3", r"numpy 2\.", r"numpy<2"],
    code="python-numpy-2",
)
def numpy_2_with_an_old_runtime(tmp):
    other_python("1.16.3")
    site = virtual_environment(tmp / "venv")
    for entry in installed("1.16.3").iterdir():
        if not entry.name.startswith(("numpy", "pip", "setuptools")) and entry.suffix != ".pth":
            (site / entry.name).symlink_to(entry)
    for entry in Path(np.__file__).parents[1].glob("numpy*"):
        (site / entry.name).symlink_to(entry)
    return Project(clip(tmp / "net.onnx"), [MY_CLIP], environment=activated(tmp / "venv"))


@case(
    "onnxscript is not installed; torch.onnx.export needs it.",
    python_fails(
        "No module named 'onnxscript'",
        "import torch; torch.onnx.export(torch.nn.Linear(4, 3), (torch.zeros(2, 4),), 'lin.onnx')",
    ),
    [r"onnxscript", r"pip install"],
    exit=0,
)
def no_onnxscript(tmp):
    site = virtual_environment(tmp / "venv")
    for entry in Path(np.__file__).parents[1].iterdir():
        if not entry.name.startswith(("onnxscript", "opbridge", "_")) and entry.suffix != ".pth":
            (site / entry.name).symlink_to(entry)
    return Project(environment=activated(tmp / "venv"), folder=tmp)


# ---- build logs


@case(
    "The archive was compiled without -fPIC.",
    build_failed,
    [r"libgeom\.a", r"-fPIC"],
    code="build-not-pic",
)
def archive_without_pic(tmp):
    command = "g++ -fno-pic -c g.cc && ar rcs libgeom.a g.o && g++ -fPIC -shared op.cc -L. -lgeom"
    table = "int table[4] = {1, 2, 3, 4};\nint pick(int i) { return table[i]; }\n"
    return log_of(tmp, command, g__cc=table, op__cc="int pick(int);\nint run(int i) { return pick(i); }\n")


@case(
    "CUDA 13 no longer knows Pascal.",
    build_failed,
    [r"compute_60", r"no longer supported", r"CMAKE_CUDA_ARCHITECTURES"],
    code="build-gpu-architecture",
)
def pascal_with_cuda_13(tmp):
    command = "nvcc -gencode arch=compute_60,code=sm_60 -c k.cu"
    return log_of(tmp, command, k__cu="__global__ void k(float* x) { x[threadIdx.x] *= 2; }\n")


@case(
    "The code was written for ONNX Runtime 1.15, which had Ort::CustomOpApi.",
    build_failed,
    [r"CustomOpApi", r"1\.16", r"Ort::KernelContext"],
    code="build-removed-class",
)
def code_for_an_old_runtime(tmp):
    source = """#include <onnxruntime_cxx_api.h>
struct Kernel {
  Kernel(Ort::CustomOpApi ort, const OrtKernelInfo* info) : ort_(ort) {
    alpha_ = ort_.KernelInfoGetAttribute<float>(info, "alpha");
  }
  Ort::CustomOpApi ort_;
  float alpha_;
};
"""
    return log_of(tmp, f"g++ -std=c++17 -fPIC -I{HEADERS} -c roi.cc", roi__cc=source)


@case(
    "The archive has the old ABI of std::string, the operators the new one.",
    build_failed,
    [r"load_config", r"_GLIBCXX_USE_CXX11_ABI"],
)
def other_string_abi(tmp):
    declared = "#include <string>\nint load_config(const std::string& p)"
    command = (
        "g++ -fPIC -D_GLIBCXX_USE_CXX11_ABI=0 -c c.cc && ar rcs libacme.a c.o && "
        "g++ -fPIC -shared -Wl,--no-undefined op.cc -L. -lacme"
    )
    files = {
        "c__cc": f"{declared} {{ return p.size(); }}\n",
        "op__cc": f"{declared};\nint run() {{ return load_config({{}}); }}\n",
    }
    return log_of(tmp, command, **files)


# ---- the healthy projects


@healthy
def operator_in_both_branches(tmp):
    def branch(name, low):
        clipped = node("my_clip", "x", name, CLIP, name)
        clipped.input.extend([low, "hi"])
        return helper.make_graph([clipped], name, [], [tensor(name, ["b", 4])])

    nodes = [
        node("ReduceSum", "x", "s", keepdims=0),
        node("Greater", "s zero", "c"),
        helper.make_node("If", ["c"], ["y"], then_branch=branch("t", "lo"), else_branch=branch("e", "")),
    ]
    return Project(clip(tmp / "net.onnx", nodes, [constant("zero", 0)]), [MY_CLIP])


@healthy
def middle_output_left_out(tmp):
    vote = helper.make_node(
        "VoteAggregate", ["p", "o"], ["kps", "", "seed"], domain=POINTS, bandwidth=0.04, variant="ffb6d"
    )
    inputs = [tensor("p", ["b", "n", 3]), tensor("o", ["b", 2, "n", 3])]
    outputs = [tensor("kps", ["b", 2, 3]), tensor("seed", ["b", 2], INT32)]
    return Project(save(tmp / "m.onnx", [vote], inputs, outputs, domains=[POINTS]), [PVN3D])


@healthy
def attribute_of_a_function(tmp):
    sample = node("FarthestPointSample", "pts", "i", POINTS)
    sample.attribute.append(
        onnx.AttributeProto(name="npoint", ref_attr_name="m", type=onnx.AttributeProto.INT)
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(POINTS, 1)]
    function = helper.make_function(
        "acme.blocks", "Sample", ["pts"], ["i"], [sample], opsets, attributes=["m"]
    )
    nodes = [node("Sample", "x", "y", "acme.blocks", m=4)]
    outputs = [tensor("y", ["b", 4], INT32)]
    path = save(
        tmp / "m.onnx", nodes, [tensor("x", ["b", 32, 3])], outputs, domains=[POINTS, "acme.blocks"], ir=8
    )
    model = onnx.load(path)
    model.functions.append(function)
    onnx.save(model, path)
    return Project(path, [PVN3D])


@healthy
def blanks_and_umlauts(tmp):
    folder = tmp / "Modelle für Gerät 1"
    folder.mkdir()
    (folder / "ops.so").symlink_to(MY_CLIP)
    return Project(clip_with_weights(folder / "net.onnx", "weights/all.bin"), [folder / "ops.so"])


@healthy
def foreign_operator_in_a_loop(tmp):
    nodes = [node("Scale", "v", "w", "acme.vision"), node("Identity", "c", "co")]
    inputs = [tensor("i", [], INT64), tensor("c", [], BOOL), tensor("v", [2, 4])]
    body = helper.make_graph(nodes, "body", inputs, [tensor("co", [], BOOL), tensor("w", [2, 4])])
    constants = [constant("n", 3, np.int64), constant("t", True, bool)]
    loop = helper.make_node("Loop", ["n", "t", "x"], ["y"], body=body)
    x, y = (tensor(n, [2, 4]) for n in "xy")
    model = save(tmp / "m.onnx", [loop], [x], [y], constants, ["acme.vision"])
    return Project(model, [scale_library(tmp / "libacme.so")], load=True)


@healthy
def operators_of_the_runtime(tmp):
    nodes = [
        node("FusedMatMul", "x x", "a", "com.microsoft", transB=1, alpha=0.5),
        node("Gelu", "a", "g", "com.microsoft"),
        node("Normalizer", "g", "y", "ai.onnx.ml", norm="L2"),
    ]
    x, y = (tensor(n, [4, 4]) for n in "xy")
    return Project(save(tmp / "m.onnx", nodes, [x], [y], domains=["com.microsoft", "ai.onnx.ml"], ir=8))


@healthy
def strings_and_a_python_module(tmp):
    library = shipped("onnxruntime_extensions/_extensions_pydll*.so")
    x, y = (tensor(n, ["n"], TensorProto.STRING) for n in "xy")
    nodes = [node("StringUpper", "x", "y", "ai.onnx.contrib")]
    return Project(save(tmp / "m.onnx", nodes, [x], [y], domains=["ai.onnx.contrib"]), [library], load=True)


@healthy
def stripped_renamed_old_runtime(tmp):
    library = tmp / "libmy_custom_ops.so.1.0.0"
    shutil.copy(MY_CLIP, library)
    subprocess.run(["strip", "--strip-unneeded", library], check=True)
    clipped = helper.make_node("my_clip", ["x", "", "hi"], ["y"], domain=CLIP)
    x, y = (tensor(n, ["b", 4], DOUBLE) for n in "xy")
    model = save(tmp / "m.onnx", [clipped], [x], [y], [constant("hi", 1, np.float64)], [CLIP], ir=8)
    return Project(model, [library], environment=other_python("1.17.3"))


@healthy
def two_libraries_and_nothing(tmp):
    nodes = [
        node("Concat", "x none", "xx", axis=0),
        node("Scale", "xx", "s", "acme.vision", scale=3.0),
        node("my_clip", "s lo hi", "y", CLIP),
    ]
    constants = [constant("none", np.zeros((0, 4))), *BOUNDS]
    outputs = [tensor("y", ["c", 4], FLOAT)]
    model = save(tmp / "m.onnx", nodes, [X], outputs, constants, [CLIP, "acme.vision"])
    return Project(model, [MY_CLIP, scale_library(tmp / "libacme.so")], load=True)


@healthy
def log_of_a_build_that_succeeds(tmp):
    source = """[[deprecated("fatal error: use report()")]] int undefined_reference(int);
int undefined_reference(int x) { return x; }
int report() { return undefined_reference(1); }
"""
    return log_of(
        tmp, "g++ -Werror=return-type -c error_handling.cc -o undefined.o", error_handling__cc=source
    )
