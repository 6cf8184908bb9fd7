"""`opbridge doctor`: every entry of its catalogue is provoked, and healthy projects stay without a finding."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import opbridge
import pytest
from conftest import BUILD, ROOT, built, model_of
from onnx import TensorProto, helper, numpy_helper

COMMAND = BUILD / "bin/opbridge"
OLDEST, NEWEST = (ROOT / "build/ort/lib" / v for v in ("1.17.1", "1.32.0"))
MINE = "my_custom_ops"
POINTS = "pvn3d_custom_op"


def doctor(*arguments, env=None):
    command = [COMMAND, "doctor", *map(str, arguments), "--json"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"VIRTUAL_ENV": sys.prefix} | (env or {}),
    )
    assert done.stdout, f"exit {done.returncode}: {done.stderr}"
    report = json.loads(done.stdout)
    assert done.returncode == (1 if report["errors"] else 2 if report["warnings"] else 0)
    return report


def codes(report, *severities):
    return [f["code"] for f in report["findings"] if not severities or f["severity"] in severities]


def save(model, tmp, name="m.onnx"):
    path = tmp / name
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return path


def compile_library(tmp, source, name="libforeign.so", *flags, language="c"):
    path = tmp / name
    headers = ROOT / "build/deps/onnxruntime/include"
    compiler = "cc" if language == "c" else "c++"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-I", headers, "-o", path, "-x", language, "-", "-x", "none", *flags],
        input=source, text=True, check=True,
    )  # fmt: skip
    return path


def foreign(body="return 0;", before="", asks=14):
    """A custom-operator library in plain C with one operator lab.ops::Twice."""
    return f"""
#include <onnxruntime_c_api.h>
#include <stdlib.h>
#include <string.h>
static OrtCustomOp op;
static const char* name(const OrtCustomOp* o) {{ return "Twice"; }}
static const char* provider(const OrtCustomOp* o) {{ return "CPUExecutionProvider"; }}
static ONNXTensorElementDataType in_type(const OrtCustomOp* o, size_t i) {{
  return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
}}
static size_t one(const OrtCustomOp* o) {{ return 1; }}
static size_t two(const OrtCustomOp* o) {{ return 2; }}
static OrtCustomOpInputOutputCharacteristic required(const OrtCustomOp* o, size_t i) {{ return INPUT_OUTPUT_REQUIRED; }}
static OrtMemType memory(const OrtCustomOp* o, size_t i) {{ return OrtMemTypeDefault; }}
static int arity(const OrtCustomOp* o) {{ return 1; }}
static void* create(const OrtCustomOp* o, const OrtApi* a, const OrtKernelInfo* i) {{ return malloc(1); }}
static void destroy(void* k) {{ free(k); }}
static void compute(void* k, OrtKernelContext* c) {{}}
static void fill(OrtCustomOp* p) {{
  memset(p, 0, sizeof *p);
  p->version = {asks};
  p->GetName = name; p->GetExecutionProviderType = provider;
  p->GetInputType = in_type; p->GetOutputType = in_type;
  p->GetInputTypeCount = one; p->GetOutputTypeCount = one;
  p->GetInputCharacteristic = required; p->GetOutputCharacteristic = required;
  p->GetInputMemoryType = memory;
  p->GetVariadicInputMinArity = arity; p->GetVariadicInputHomogeneity = arity;
  p->GetVariadicOutputMinArity = arity; p->GetVariadicOutputHomogeneity = arity;
  p->CreateKernel = create; p->KernelDestroy = destroy; p->KernelCompute = compute;
}}
{before}
OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {{
  const OrtApi* api = base->GetApi({asks});
  OrtCustomOpDomain* domain = 0;
  fill(&op);
  api->CreateCustomOpDomain("lab.ops", &domain);
  api->CustomOpDomain_Add(domain, &op);
  {body}
}}
"""


ADD = "return api->AddCustomOpDomain(options, domain);"


def twice(op="Twice", domain="lab.ops", **more):
    return model_of(op, domain, inputs=("x",), **more)


def points_model(
    op="BallQuery", *, shapes, dtypes="float32", attributes=None, inputs=None, outputs=("idx",), **more
):
    inputs = inputs or tuple(k for k in shapes if k not in outputs)
    attributes = {"radius": 0.1, "nsample": 4} if attributes is None else attributes
    dtypes = {**dict.fromkeys(inputs, "float32"), **dict.fromkeys(outputs, "int32")} | (
        dtypes if isinstance(dtypes, dict) else {}
    )
    return model_of(
        op,
        "pvn3d.custom_ops",
        inputs=inputs,
        outputs=outputs,
        dtypes=dtypes,
        shapes=shapes,
        attributes=attributes,
        **more,
    )


BALL = {"xyz": ["B", "N", 3], "new_xyz": ["B", "M", 3], "idx": ["B", "M", 4]}

# code -> function of a temporary folder that gives the arguments, or (arguments, environment)
PROVOKE = {}


def provoke(code):
    def register(f):
        assert code not in PROVOKE
        PROVOKE[code] = f
        return f

    return register


def with_library(tmp, model, *more, library=MINE):
    return [save(model, tmp), "--library", built(library), *more]


# ------------------------------------------------------------------------------------------------- library files


@provoke("library-missing")
def _(tmp):
    return ["--library", tmp / "libmy_custom_ops.so"]


@provoke("library-not-elf")
def _(tmp):
    return [
        "--library",
        save(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", tmp, "liba.so"),
    ]


@provoke("library-not-shared")
def _(tmp):
    source = tmp / "a.c"
    source.write_text("int f(void) { return 0; }")
    subprocess.run(["cc", "-c", source, "-o", tmp / "a.o"], check=True)
    subprocess.run(["ar", "rc", tmp / "liba.a", tmp / "a.o"], check=True)
    return ["--library", tmp / "a.o", "--library", tmp / "liba.a"]


@provoke("library-platform")
def _(tmp):
    data = bytearray(Path(built(MINE)).read_bytes())
    data[18] = 183 if data[18] == 62 else 62  # e_machine: aarch64, or x86-64
    return ["--library", save(bytes(data), tmp, "liba.so")]


@provoke("library-dependency-missing")
def _(tmp):
    needed = compile_library(tmp, "int gone(void) { return 0; }", "libgone.so")
    library = compile_library(
        tmp, "int gone(void); int RegisterCustomOps(void) { return gone(); }", "liba.so", needed
    )
    needed.unlink()
    return ["--library", library]


@provoke("library-needs-newer-system")
def _(tmp):
    # The name of a version in the string table is made one that no system has yet; the length stays.
    library = compile_library(
        tmp, "#include <stdlib.h>\nvoid* RegisterCustomOps(void) { return malloc(1); }", "liba.so"
    )
    data = library.read_bytes()
    version = next(v for v in (b"GLIBC_2.2.5", b"GLIBC_2.17") if v in data)
    return [
        "--library",
        save(data.replace(version, b"GLIBC_9.9" + b"9" * (len(version) - 9)), tmp, "libb.so"),
    ]


@provoke("library-undefined-symbol")
def _(tmp):
    return [
        "--library",
        compile_library(tmp, "int gone(void); int RegisterCustomOps(void) { return gone(); }"),
    ]


@provoke("library-sanitizer")
def _(tmp):
    library = compile_library(
        tmp, "int RegisterCustomOps(void) { return 0; }", "liba.so", "-fsanitize=thread", "-Wl,--no-as-needed"
    )
    return ["--library", library, "--load"]


@provoke("library-executable-stack")
def _(tmp):
    return [
        "--library",
        compile_library(tmp, "int RegisterCustomOps(void) { return 0; }", "liba.so", "-Wl,-z,execstack"),
    ]


@provoke("library-is-onnxruntime")
def _(tmp):
    return ["--library", next(NEWEST.glob("libonnxruntime.so*"))]


@provoke("library-links-onnxruntime")
def _(tmp):
    runtime = compile_library(tmp, "void* OrtGetApiBase(void) { return 0; }", "libonnxruntime.so.1.20.1",
                              "-Wl,-soname,libonnxruntime.so.1.20.1")  # fmt: skip
    source = "void* OrtGetApiBase(void); void* RegisterCustomOps(void) { return OrtGetApiBase(); }"
    return ["--library", compile_library(tmp, source, "liba.so", runtime, f"-Wl,-rpath,{tmp}")]


@provoke("library-links-torch")
def _(tmp):
    torch = compile_library(tmp, "int at(void) { return 0; }", "libc10.so", "-Wl,-soname,libc10.so")
    source = "int at(void); int RegisterCustomOps(void) { return at(); }"
    return ["--library", compile_library(tmp, source, "liba.so", torch, f"-Wl,-rpath,{tmp}")]


@provoke("library-torch-extension")
def _(tmp):
    torch = compile_library(
        tmp, "int at(void) { return 0; }", "libtorch_cpu.so", "-Wl,-soname,libtorch_cpu.so"
    )
    source = "int at(void); int PyInit_my_ext(void) { return at(); }"
    return ["--library", compile_library(tmp, source, "my_ext.so", torch, f"-Wl,-rpath,{tmp}")]


@provoke("library-python-module")
def _(tmp):
    return ["--library", compile_library(tmp, "int PyInit_fast(void) { return 0; }")]


@provoke("library-needs-python")
def _(tmp):
    source = "int PyArg_Parse(void); int RegisterCustomOps(void) { return PyArg_Parse(); }"
    return ["--library", compile_library(tmp, source)]


@provoke("library-no-entry")
def _(tmp):
    return ["--library", compile_library(tmp, "int RegisterCustomOp(void) { return 0; }")]


@provoke("library-tensorrt-plugin")
def _(tmp):
    name = "libnvinfer.so.8"
    tensorrt = compile_library(tmp, "int getInferLibVersion(void) { return 8; }", name, f"-Wl,-soname,{name}")
    plugin = "int getInferLibVersion(void); int initPlugins(void) { return getInferLibVersion(); }"
    return ["--library", compile_library(tmp, plugin, "libplugins.so", tensorrt)]


@provoke("library-entry-mangled")
def _(tmp):
    source = "struct A; struct B; void* RegisterCustomOps(A*, const B*) { return nullptr; }"
    return ["--library", compile_library(tmp, source, "liba.so", language="c++")]


@provoke("library-entry-old")
def _(tmp):
    return ["--library", compile_library(tmp, "int OrtGetCustomOpDomain(void) { return 0; }")]


@provoke("library-static-cxx")
def _(tmp):
    source = """
#include <stdexcept>
extern "C" int RegisterCustomOps(int i) { if (i) throw std::runtime_error("x"); return 0; }
"""
    return [
        "--library",
        compile_library(tmp, source, "liba.so", "-static-libstdc++", "-static-libgcc", language="c++"),
    ]


ABI = '#include "{root}/include/opbridge/abi.h"\n#include <string.h>\n'.replace("{root}", str(ROOT))


@provoke("library-other-abi")
def _(tmp):
    source = ABI + (
        "const OpbridgeLibrary* opbridge_get_library(uint32_t v, OpbridgeError* e) {"
        ' strcpy(e->message, "this library\'s C interface is version 9, older than 1"); return 0; }\n'
        "int RegisterCustomOps(void) { return 0; }"
    )
    return ["--library", compile_library(tmp, source)]


@provoke("library-broken-declaration")
def _(tmp):
    source = ABI + (
        "const OpbridgeLibrary* opbridge_get_library(uint32_t v, OpbridgeError* e) {"
        ' strcpy(e->message, "operator f: expected a name at column 3"); return 0; }\n'
        "int RegisterCustomOps(void) { return 0; }"
    )
    return ["--library", compile_library(tmp, source)]


@provoke("library-crashes")
def _(tmp):
    return ["--library", compile_library(tmp, foreign("*(volatile int*)8 = 1; return 0;")), "--load"]


@provoke("library-api-newer")
def _(tmp):
    return ["--library", compile_library(tmp, foreign(ADD, asks=99)), "--load"]


@provoke("library-ends-process")
def _(tmp):
    return ["--library", compile_library(tmp, foreign("exit(3); return 0;")), "--load"]


@provoke("library-registration-fails")
def _(tmp):
    return [
        "--library",
        compile_library(tmp, foreign('return api->CreateStatus(ORT_FAIL, "no licence");')),
        "--load",
    ]


@provoke("library-breaks-sessions")
def _(tmp):
    body = "static OrtCustomOp other; fill(&other); other.GetInputTypeCount = two;"
    body += "api->CustomOpDomain_Add(domain, &other);"
    return ["--library", compile_library(tmp, foreign(body + ADD)), "--load"]


LOCAL = "OrtCustomOp gone; fill(&gone); api->CustomOpDomain_Add(domain, &gone);"
FREED = (
    "OrtCustomOp* gone = malloc(sizeof *gone); fill(gone); api->CustomOpDomain_Add(domain, gone); free(gone);"
)


@provoke("library-operators-ended")
def _(tmp):
    return ["--library", compile_library(tmp, foreign(LOCAL + ADD)), "--load"]


@provoke("library-operator-twice")
def _(tmp):
    body = "static OrtCustomOp other; fill(&other); api->CustomOpDomain_Add(domain, &other);"
    return ["--library", compile_library(tmp, foreign(body + ADD)), "--load"]


@provoke("library-unnamed-domain")
def _(tmp):
    source = foreign(ADD).replace('"lab.ops"', '""')
    return ["--library", compile_library(tmp, source), "--load"]


@provoke("domain-shared")
def _(tmp):
    a = compile_library(tmp, foreign(ADD), "liba.so")
    b = compile_library(tmp, foreign("(void)0; " + ADD).replace('"Twice"', '"Thrice"'), "libb.so")
    return ["--library", a, "--library", b, "--load"]


@provoke("library-given-twice")
def _(tmp):
    shutil.copy(built(MINE), tmp / "liba.so")
    return ["--library", built(MINE), "--library", tmp / "liba.so"]


@provoke("library-unread")
def _(tmp):
    return ["--library", compile_library(tmp, foreign(ADD))]


# ------------------------------------------------------------------------------------------------------- models


@provoke("model-missing")
def _(tmp):
    return [tmp / "m.onnx"]


@provoke("model-not-onnx")
def _(tmp):
    return [save(b"PK\x03\x04" + bytes(100), tmp)]


def ort_format(tmp, name="m.ort"):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp / name)
    options.add_session_config_entry("session.save_model_format", "ORT")
    options.register_custom_ops_library(str(built(MINE)))
    model = model_of().SerializeToString()
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return tmp / name


@provoke("model-ort-renamed")
def _(tmp):
    return [ort_format(tmp, "m.onnx"), "--library", built(MINE)]


@provoke("model-ort-format")
def _(tmp):
    return [ort_format(tmp), "--library", built(MINE), "--ort", Path(onnxruntime.__file__).parent / "capi"]


@provoke("model-ir-too-new")
def _(tmp):
    model = model_of()
    model.ir_version = 12
    return with_library(tmp, model, "--ort", OLDEST)


@provoke("model-opset-too-new")
def _(tmp):
    model = model_of()
    model.opset_import[0].version = 24
    return with_library(tmp, model, "--ort", OLDEST)


@provoke("model-opset-missing")
def _(tmp):
    node = helper.make_node("Relu", ["x"], ["y"], name="n0")
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in "xy"]
    model = helper.make_model(helper.make_graph([node], "g", values[:1], values[1:]), ir_version=8)
    del model.opset_import[:]
    return [save(model, tmp)]


@provoke("model-domain-version")
def _(tmp):
    model = model_of()
    model.opset_import[1].version = 7
    return with_library(tmp, model)


@provoke("model-domain-not-imported")
def _(tmp):
    return with_library(tmp, model_of(imports=False))


def external(tmp, size):
    weights = np.arange(4, dtype=np.float32)
    tensor = numpy_helper.from_array(weights, "w")
    node = helper.make_node("Add", ["x", "w"], ["y"])
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    with open(tmp / "w.bin", "r+b") as f:
        f.truncate(size)
    return tmp / "m.onnx"


@provoke("model-weights-missing")
def _(tmp):
    path = external(tmp, 16)
    (tmp / "w.bin").unlink()
    return [path]


@provoke("model-weights-short")
def _(tmp):
    return [external(tmp, 7)]


@provoke("model-changed-declaration")
def _(tmp):
    return with_library(
        tmp, model_of(metadata={"opbridge.fingerprint.my_namespace::my_clip": "0123456789abcdef"})
    )


def chain(tmp, *nodes):
    """A model of ONNX's own nodes from x to y."""
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in "xy"]
    graph = helper.make_graph(
        [helper.make_node(*n[:3], name=n[3]) for n in nodes], "g", values[:1], values[1:]
    )
    return [save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp)]


@provoke("model-name-twice")
def _(tmp):
    return chain(tmp, ("Relu", ["x"], ["y"], "first"), ("Neg", ["x"], ["y"], "second"))


@provoke("model-name-missing")
def _(tmp):
    return chain(tmp, ("Relu", ["x"], ["hidden"], "first"), ("Neg", ["hidden_"], ["y"], "second"))


@provoke("model-static-shape")
def _(tmp):
    return with_library(tmp, points_model(shapes=BALL | {"idx": ["B", 1024, 4]}), library=POINTS)


def onnx_node(op, inputs, opset, constants=None, **attributes):
    """A model of one node of ONNX's own."""
    node = helper.make_node(op, inputs, ["y"], "n", **attributes)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xy")
    initializers = [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
    graph = helper.make_graph([node], "g", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@provoke("model-opset-mismatch")
def _(tmp):
    return [save(onnx_node("ReduceMax", ["x"], 18, axes=[1]), tmp)]


@provoke("model-functions-lost")
def _(tmp):
    return with_library(tmp, model_of("Normalise", "pkg.net.blocks"))


@provoke("model-fixed-inputs")
def _(tmp):
    return with_library(tmp, model_of(shapes={"x": [4], "y": [4]}))


def divides(tmp, *between):
    """three_nn, then a division by its distances."""
    model = points_model(
        "ThreeNN",
        shapes={k: ["B", "m" if k == "known" else "n", 3] for k in ("unknown", "known", "dist", "idx")},
        dtypes={"dist": "float32"}, attributes={}, outputs=("dist", "idx"),
    )  # fmt: skip
    last = "dist"
    model.graph.initializer.append(numpy_helper.from_array(np.array(1e-8, np.float32), "eps"))
    for node in between:
        model.graph.node.append(node)
        last = node.output[0]
    model.graph.node.append(helper.make_node("Reciprocal", [last], ["weight"], name="recip"))
    model.graph.output.append(helper.make_tensor_value_info("weight", TensorProto.FLOAT, ["B", "n", 3]))
    return with_library(tmp, model, library=POINTS)


@provoke("model-epsilon-lost")
def _(tmp):
    return divides(tmp)


@provoke("model-untyped-output")
def _(tmp):
    model = model_of(inputs=("x", "", "max"), outputs=("a",))
    model.graph.node.append(helper.make_node("Neg", ["a"], ["y"]))
    model.graph.output[0].name = "y"
    return with_library(tmp, model, "--ort", OLDEST)


# -------------------------------------------------------------------------------------------------------- nodes


@provoke("operator-no-library")
def _(tmp):
    return [save(model_of(), tmp)]


@provoke("operator-wrong-domain")
def _(tmp):
    return with_library(tmp, model_of(domain="mynamespace"))


@provoke("operator-wrong-name")
def _(tmp):
    return with_library(tmp, model_of("MyClip"))


@provoke("operator-unserved")
def _(tmp):
    return with_library(tmp, twice())


@provoke("operator-no-domain")
def _(tmp):
    return with_library(tmp, model_of(domain="", imports=False))


@provoke("operator-not-exported")
def _(tmp):
    return with_library(tmp, model_of("my_clip", "aten", imports=False))


@provoke("operator-inputs-missing")
def _(tmp):
    return with_library(tmp, points_model(shapes=BALL, inputs=("xyz",)), library=POINTS)


@provoke("operator-inputs-too-many")
def _(tmp):
    return with_library(tmp, model_of(inputs=("x", "min", "max", "more"), shapes={"more": []}))


@provoke("operator-outputs-too-many")
def _(tmp):
    return with_library(tmp, model_of(outputs=("y", "z")))


@provoke("operator-input-type")
def _(tmp):
    return with_library(
        tmp, model_of(dtypes={"x": "float32", "min": "float64", "max": "float32", "y": "float32"})
    )


@provoke("operator-input-shape")
def _(tmp):
    return with_library(
        tmp, points_model(shapes=BALL | {"xyz": [1, 3, 512], "new_xyz": [1, 3, 128]}), library=POINTS
    )


@provoke("operator-inputs-swapped")
def _(tmp):
    # weight[B,n,3] stands where features[B,C,m] belong, and the other way round.
    shapes = {"f": ["B", 100, 3], "idx": ["B", 100, 3], "w": ["B", 16, 50], "y": ["B", 16, 100]}
    model = points_model("ThreeInterpolate", shapes=shapes, inputs=("f", "idx", "w"), outputs=("y",),
                         dtypes={"idx": "int32", "y": "float32"}, attributes={})  # fmt: skip
    return with_library(tmp, model, library=POINTS)


@provoke("operator-inputs-maybe-swapped")
def _(tmp):
    shapes = {"xyz": [1, 512, 3], "new_xyz": [1, 4096, 3], "idx": [1, 4096, 4]}
    return with_library(tmp, points_model(shapes=shapes), library=POINTS)


@provoke("operator-attribute-unknown")
def _(tmp):
    return with_library(
        tmp,
        points_model(shapes=BALL, attributes={"radius": 0.1, "nsample": 4, "min_radiu": 0.0}),
        library=POINTS,
    )


@provoke("operator-attribute-invalid")
def _(tmp):
    return with_library(
        tmp, points_model(shapes=BALL, attributes={"radius": 1, "nsample": 4}), library=POINTS
    )


@provoke("operator-constant-input")
def _(tmp):
    model = points_model(
        "FarthestPointSample", shapes={"xyz": ["B", "N", 3], "idx": ["B", 8]}, inputs=("xyz",), attributes={}
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(8, np.int64), "npoint"))
    model.graph.node[0].input.append("npoint")
    return with_library(tmp, model, library=POINTS)


def manifest_library(tmp, cuda, devices=("cpu", "cuda")):
    """A library that has nothing but my_custom_ops' manifest, changed."""
    manifest = json.loads(json.dumps(opbridge.load(built(MINE)).manifest)) | {"cuda": cuda}
    for operator in manifest["operators"]:
        operator["devices"] = list(devices)
    text = json.dumps(json.dumps(manifest))
    source = ABI + (
        f"static const char manifest[] = {text};\n"
        "static OpbridgeLibrary library;\n"
        "const OpbridgeLibrary* opbridge_get_library(uint32_t v, OpbridgeError* e) {"
        " library.size = sizeof library; library.abi_version = 1; library.manifest = manifest; return &library; }\n"
        "void* RegisterCustomOps(void) { return 0; }"
    )
    return compile_library(tmp, source, "libchanged.so")


@provoke("operator-no-cuda-kernel")
def _(tmp):
    library = manifest_library(tmp, cuda={"toolkit": "13.0", "architectures": ["90"]}, devices=["cpu"])
    return [save(model_of(), tmp), "--provider", "cuda", "--library", library]


# ------------------------------------------------------------------------------------------------- the machine


def fake_runtime(tmp, version, body=""):
    """An ONNX Runtime that says it is `version`."""
    source = f"""
#include <onnxruntime_c_api.h>
static const OrtApi* api(uint32_t v) {{ {body} return 0; }}
static const char* version(void) {{ return "{version}"; }}
static const OrtApiBase base = {{api, version}};
const OrtApiBase* OrtGetApiBase(void) {{ return &base; }}
"""
    return compile_library(tmp, source, "libonnxruntime.so.1")


@provoke("runtime-missing")
def _(tmp):
    return ["--ort", tmp]


@provoke("runtime-python-only")
def _(tmp):
    python = ROOT / "build/ort/1.16.3"
    if not python.exists():
        pytest.skip("no ONNX Runtime 1.16.3: make matrix fetches it")
    return with_library(tmp, model_of(), "--ort", python)


@provoke("operator-not-in-runtime")
def _(tmp):
    node = helper.make_node("NotYet", ["x"], ["y"], domain="com.microsoft")
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in "xy"]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    return [save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp)]


@provoke("runtime-too-old")
def _(tmp):
    return ["--ort", fake_runtime(tmp, "1.14.1")]


@provoke("runtime-crashes")
def _(tmp):
    return ["--ort", fake_runtime(tmp, "1.20.0", "*(volatile int*)8 = 1;")]


@provoke("session-fails")
def _(tmp):
    node = helper.make_node("Concat", ["x", "w"], ["y"], axis=0)
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in "xy"]
    weights = numpy_helper.from_array(np.zeros((2, 3), np.float32), "w")
    graph = helper.make_graph([node], "g", values[:1], values[1:], [weights])
    return [save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp)]


@provoke("node-no-kernel")
def _(tmp):
    node = helper.make_node("Acosh", ["x"], ["y"])
    values = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, ["n"]) for n in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    return [save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp)]


@provoke("output-type-mismatch")
def _(tmp):
    return with_library(tmp, points_model(shapes=BALL, dtypes={"idx": "int64"}), library=POINTS)


@provoke("provider-missing")
def _(tmp):
    return ["--provider", "cuda"]


def fake_cuda_runtime(folder):
    """ONNX Runtime that says it has CUDA."""
    source = next(NEWEST.glob("libonnxruntime.so*"))
    fake = f"""
#include <onnxruntime_c_api.h>
#include <dlfcn.h>
#include <string.h>
static OrtApi mine;
static char* names[] = {{"CUDAExecutionProvider"}};
static OrtStatusPtr providers(char*** out, int* n) {{ *out = names; *n = 1; return 0; }}
static OrtStatusPtr release(char** p, int n) {{ return 0; }}
static const OrtApiBase* real(void) {{
  return ((const OrtApiBase* (*)(void))dlsym(dlopen("{source}", RTLD_NOW), "OrtGetApiBase"))();
}}
static const OrtApi* api(uint32_t v) {{
  memcpy(&mine, real()->GetApi(v), sizeof mine);
  mine.GetAvailableProviders = providers; mine.ReleaseAvailableProviders = release;
  return &mine;
}}
static const char* version(void) {{ return real()->GetVersionString(); }}
static const OrtApiBase base = {{api, version}};
const OrtApiBase* OrtGetApiBase(void) {{ return &base; }}
"""
    folder.mkdir()
    return compile_library(folder, fake, "libonnxruntime.so.1", "-ldl")


@provoke("provider-library-missing")
def _(tmp):
    return ["--provider", "cuda", "--ort", fake_cuda_runtime(tmp / "fake")]


def test_another_cudnn_is_named(tmp_path):
    """The CUDA provider is there, but not the cuDNN that it was built with."""
    runtime = fake_cuda_runtime(tmp_path / "fake")
    cudnn = compile_library(
        tmp_path, "int cudnnGetVersion(void) { return 0; }", "libcudnn.so.9", "-Wl,-soname,libcudnn.so.9"
    )
    uses = "int cudnnGetVersion(void); int provider(void) { return cudnnGetVersion(); }"
    compile_library(runtime.parent, uses, "libonnxruntime_providers_cuda.so", cudnn)
    cudnn.rename(tmp_path / "libcudnn.so.8")
    report = doctor("--provider", "cuda", "--ort", runtime, env={"LD_LIBRARY_PATH": str(tmp_path)})
    evidence = [f["evidence"] for f in report["findings"] if f["code"] == "provider-library-missing"]
    assert evidence == ["libcudnn.so.9 (but libcudnn.so.8) is not found"]


def fake_driver(tmp, cuda, capability):
    source = f"""
int cuInit(unsigned f) {{ return {0 if capability else 100}; }}
int cuDriverGetVersion(int* v) {{ *v = {cuda}; return 0; }}
int cuDeviceGetCount(int* n) {{ *n = 1; return 0; }}
int cuDeviceGet(int* d, int i) {{ *d = i; return 0; }}
int cuDeviceGetAttribute(int* v, int a, int d) {{ *v = a == 75 ? {capability // 10} : {capability % 10}; return 0; }}
"""
    compile_library(tmp, source, "libcuda.so.1")
    return {"LD_LIBRARY_PATH": str(tmp)}


@provoke("driver-missing")
def _(tmp):
    return ["--provider", "cuda"], fake_driver(tmp, 13000, 0)


@provoke("driver-too-old")
def _(tmp):
    library = manifest_library(tmp, {"toolkit": "13.0", "architectures": ["90"]})
    return ["--provider", "cuda", "--library", library], fake_driver(tmp, 12040, 90)


@provoke("gpu-architecture")
def _(tmp):
    library = manifest_library(tmp, {"toolkit": "13.0", "architectures": ["90"]})
    return ["--provider", "cuda", "--library", library], fake_driver(tmp, 13000, 86)


@provoke("operator-cpu-only-library")
def _(tmp):
    return ["--provider", "cuda", "--library", manifest_library(tmp, None)]


def fake_python(tmp, **packages):
    site = tmp / "env/lib/python3.11/site-packages"
    for name, version in packages.items():
        (site / f"{name}-{version}.dist-info").mkdir(parents=True)
    return {"VIRTUAL_ENV": str(tmp / "env")}


@provoke("python-two-runtimes")
def _(tmp):
    return ["--ort", NEWEST], fake_python(tmp, onnxruntime="1.32.0", onnxruntime_gpu="1.30.0")


@provoke("python-two-runtimes-cuda")
def _(tmp):
    environment = fake_python(tmp, onnxruntime="1.32.0", onnxruntime_training="1.19.0")
    return ["--ort", NEWEST, "--provider", "cuda"], environment


@provoke("python-other-runtime")
def _(tmp):
    # The environment in use has no runtime in C, so that one of the python3 on PATH is found.
    capi = tmp / "other/lib/python3.11/site-packages/onnxruntime/capi"
    capi.mkdir(parents=True)
    library = next(NEWEST.glob("libonnxruntime.so*"))
    (capi / library.name).symlink_to(library)
    (tmp / "other/bin").mkdir()
    (tmp / "other/bin/python3").touch()
    path = f"{tmp / 'other/bin'}:{os.environ['PATH']}"
    return [], fake_python(tmp, onnxruntime="1.18.1") | {"PATH": path, "HOME": str(tmp), "OPBRIDGE_ORT": ""}


@provoke("python-numpy-2")
def _(tmp):
    return ["--ort", OLDEST], fake_python(tmp, onnxruntime="1.17.1", numpy="2.1.0")


@provoke("python-shadowed")
def _(tmp):
    (tmp / "torch").mkdir()  # as in a clone of PyTorch's sources
    (tmp / "torch/__init__.py").write_text("")
    return ["--ort", NEWEST], fake_python(tmp, onnxruntime="1.32.0") | {"PYTHONPATH": str(tmp)}


@provoke("python-other-opbridge")
def _(tmp):
    return ["--ort", NEWEST], fake_python(tmp, onnxruntime="1.32.0", opbridge="0.0.9")


@provoke("python-no-onnxscript")
def _(tmp):
    return ["--ort", NEWEST], fake_python(tmp, onnxruntime="1.32.0", torch="2.13.0+cpu")


# --------------------------------------------------------------------------------------------------- build logs

LOGS = {
    "build-missing-header": "src/op.cc:1:10: fatal error: onnxruntime_cxx_api.h: No such file or directory",
    "build-undefined-ort": "/usr/bin/ld: op.cc:(.text+0x12): undefined reference to `OrtGetApiBase'",
    "build-undefined-torch": "ld: op.cc:(.text+0x12): undefined reference to `c10::Error::Error(std::__cxx11::string)'",
    "build-undefined-reference": "/usr/bin/ld: main.cc:(.text+0x5): undefined reference to `launch_clip(float*)'",
    "build-duplicate-symbol": "ld: b.o: in function `clip': multiple definition of `clip'; a.o: first defined here",
    "build-header-mismatch": "op.cc:12:8: error: 'const struct OrtApi' has no member named 'ReadOpAttr'",
    "build-removed-class": "op.cc:9:3: error: 'CustomOpApi' is not a member of 'Ort'",
    "build-host-compiler": "host_config.h:143: error: #error -- unsupported GNU version! gcc later than 13",
    "build-gpu-architecture": "nvcc fatal   : Unsupported gpu architecture 'compute_35'",
    "build-no-nvcc": "CMake Error at CMakeLists.txt:3 (enable_language): No CMAKE_CUDA_COMPILER could be found.",
    "build-not-pic": "ld: libx.a(a.o): relocation R_X86_64_32 against `.rodata' can not be used; recompile with -fPIC",
    "build-language-standard": "op.h:7: error: 'optional' is not a member of 'std'",
    "build-missing-library": "/usr/bin/ld: cannot find -lonnxruntime: No such file or directory",
    "build-out-of-memory": "c++: fatal error: Killed signal terminated program cc1plus",
    "build-log-unknown": "op.cc:3:1: error: expected ';' before '}' token",
    "build-log-clean": "[1/2] Building CXX object op.o\n[2/2] Linking CXX shared library libop.so",
}


def log_with(line):
    lines = (
        [line] if "Linking" in line else ["[1/9] Building CXX object a.o", line, "make: *** [op.o] Error 1"]
    )
    return lambda tmp: ["--build-log", save("\n".join(lines).encode(), tmp, "build.log")]


PROVOKE |= {code: log_with(line) for code, line in LOGS.items()}


def catalogue():
    page = subprocess.run(
        [COMMAND, "doctor", "--catalogue"], capture_output=True, text=True, check=True
    ).stdout
    return page, [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]


def test_every_entry_is_provoked():
    _, known = catalogue()
    assert sorted(PROVOKE) == sorted(known)


@pytest.mark.parametrize("code", list(PROVOKE))
def test_provoke(code, tmp_path):
    arguments = PROVOKE[code](tmp_path)
    arguments, environment = arguments if isinstance(arguments, tuple) else (arguments, None)
    report = doctor(*arguments, env=environment)
    assert code in codes(report), json.dumps(report["findings"], indent=1)
    finding = next(f for f in report["findings"] if f["code"] == code)
    assert finding["cause"]
    assert finding["evidence"]
    assert finding["subject"]


def test_page_is_current():
    page, _ = catalogue()
    assert (ROOT / "docs/doctor.md").read_text() == page, (
        "run: build/release/bin/opbridge doctor --catalogue > docs/doctor.md"
    )


# --------------------------------------------------------------------------------------------------- healthy ones

HEALTHY = {
    "my_clip": lambda tmp: with_library(tmp, model_of()),
    "bounds left out": lambda tmp: with_library(tmp, model_of(inputs=("x",))),
    "ball query": lambda tmp: with_library(tmp, points_model(shapes=BALL), library=POINTS),
    "both libraries": lambda tmp: [*with_library(tmp, model_of()), "--library", built(POINTS)],
    "an epsilon": lambda tmp: divides(tmp, helper.make_node("Clip", ["dist", "eps"], ["safe"])),
    "only a library": lambda tmp: ["--library", built(POINTS)],
    "a foreign library, loaded": lambda tmp: [
        save(twice(), tmp),
        "--library",
        compile_library(tmp, foreign(ADD)),
        "--load",
    ],
    "nothing": lambda tmp: [],
}


@pytest.mark.parametrize("name", list(HEALTHY))
@pytest.mark.parametrize("runtime", [OLDEST, NEWEST], ids=lambda p: p.name)
def test_healthy(name, runtime, tmp_path):
    # The Python environment is part of what is looked at, and is the same for both runtimes.
    report = doctor(*HEALTHY[name](tmp_path), "--ort", runtime, env={"VIRTUAL_ENV": str(tmp_path)})
    assert codes(report, "error", "warning") == [], json.dumps(report["findings"], indent=1)


def test_a_foreign_library_is_not_run(tmp_path):
    trace = tmp_path / "executed"
    source = foreign(ADD, before=f"""
#include <stdio.h>
__attribute__((constructor)) static void run(void) {{ fclose(fopen("{trace}", "w")); }}""")  # fmt: skip
    library = compile_library(tmp_path, source)
    assert "library-unread" in codes(doctor(save(twice(), tmp_path), "--library", library))
    assert not trace.exists()
    doctor("--library", library, "--load")
    assert trace.exists()


def test_each_library_is_judged_by_itself(tmp_path):
    """What is wrong with the first does not hide what is wrong with the second."""
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    first = PROVOKE["library-torch-extension"](tmp_path / "a")
    second = PROVOKE["library-dependency-missing"](tmp_path / "b")
    found = {(f["code"], f["subject"]) for f in doctor(*first, *second)["findings"]}
    assert {
        ("library-torch-extension", str(first[1])),
        ("library-dependency-missing", str(second[1])),
    } <= found


def test_foreign_operators_are_known_after_load(tmp_path):
    library = compile_library(tmp_path, foreign(ADD))
    report = doctor(save(twice("twice"), tmp_path), "--library", library, "--load")
    finding = next(f for f in report["findings"] if f["code"] == "operator-wrong-name")
    assert "'lab.ops::Twice'" in finding["evidence"]


def test_evidence_and_fix_of_a_name(tmp_path):
    finding = doctor(*with_library(tmp_path, model_of("MyClip")))["findings"][0]
    assert finding["code"] == "operator-wrong-name"
    assert "it has 'my_namespace::my_clip'" in finding["evidence"]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (lambda: onnx_node("ReduceMax", ["x", "axes"], 17, {"axes": [1]}), "has input size 2"),
        (lambda: onnx_node("Unsqueeze", ["x"], 17, axes=[0]), "Unsqueeze"),
        (lambda: onnx_node("Upsample", ["x", "s"], 17, {"s": np.ones(1, "f")}), "is there from 1 to 9"),
        (
            lambda: onnx_node("Mish", ["x"], 17),
            "is there from 18 to",
        ),
    ],
    ids=["lowered", "raised", "taken out", "not yet in"],
)
def test_nodes_of_another_opset(model, says, tmp_path):
    finding = doctor(save(model(), tmp_path), "--ort", NEWEST)["findings"][0]
    assert finding["code"] == "model-opset-mismatch", finding
    assert re.search(says, finding["subject"] + finding["evidence"]), finding


def test_operators_on_the_heap_that_are_gone(tmp_path):
    report = doctor("--library", compile_library(tmp_path, foreign(FREED + ADD)), "--load")
    assert "library-operators-ended" in codes(report)


def test_an_operator_named_as_one_of_onnx(tmp_path):
    """ONNX's own Relu is meant where a library has a Relu, too."""
    library = compile_library(tmp_path, foreign(ADD).replace('"Twice"', '"Relu"'))
    report = doctor(
        save(onnx_node("Relu", ["x"], 17), tmp_path), "--library", library, "--load", "--ort", NEWEST
    )
    assert codes(report, "error", "warning") == []


def test_a_function_with_other_types(tmp_path):
    source = """
namespace acme { int f(long) { return 1; } int f(int); }
extern "C" int RegisterCustomOps() { return acme::f(1); }"""
    report = doctor("--library", compile_library(tmp_path, source, language="c++"))
    finding = next(f for f in report["findings"] if f["code"] == "library-undefined-symbol")
    assert "nothing has acme::f(int); the library itself has acme::f(long)" in finding["evidence"]


def test_an_entry_that_is_hidden(tmp_path):
    library = compile_library(tmp_path, foreign(ADD), "liba.so", "-fvisibility=hidden")
    finding = next(f for f in doctor("--library", library)["findings"] if f["code"] == "library-no-entry")
    assert "it has RegisterCustomOps, but hidden" in finding["evidence"]
    assert "-fvisibility=hidden" in finding["fix"]


def test_sessions_in_a_python_without_the_c_library(tmp_path):
    python = ROOT / "build/ort/1.16.3"
    if not python.exists():
        pytest.skip("no ONNX Runtime 1.16.3: make matrix fetches it")
    report = doctor(*with_library(tmp_path, model_of(), "--ort", python))
    assert codes(report, "error", "warning") == []
    new = onnx_node("Relu", ["x"], 22)
    assert "model-opset-too-new" in codes(doctor(save(new, tmp_path), "--ort", python))
    wrong = PROVOKE["operator-not-in-runtime"](tmp_path)
    assert "operator-not-in-runtime" in codes(doctor(*wrong, "--ort", python))


def test_many_alike_are_one_paragraph(tmp_path):
    nodes = [
        helper.make_node("my_clip", [f"x{i}"], [f"x{i + 1}"], f"clip{i}", domain="my_namespace", lo=1)
        for i in range(9)
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in ("x0", "x9"))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my_namespace", 1)]
    graph = helper.make_graph(nodes, "g", [x], [y])
    model = save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path)
    command = [COMMAND, "doctor", model, "--library", built(MINE), "--ort", NEWEST]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert text.count("error operator-attribute-unknown") == 1
    assert "and 8 more alike: my_namespace::my_clip (node 'clip1'), " in text
    assert "and 5 more" in text
    assert "will not work: 9 errors" in text


def test_text(tmp_path):
    done = subprocess.run(
        [COMMAND, "doctor", save(model_of("MyClip"), tmp_path), "--library", built(MINE), "--ort", NEWEST],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    for part in ("error operator-wrong-name", "cause:", "found:", "fix:", "will not work: 1 error"):
        assert part in done.stdout
    assert "\x1b" not in done.stdout


def test_from_python(tmp_path):
    report = opbridge.doctor(save(model_of("MyClip"), tmp_path), built(MINE))
    assert not report.ok
    assert report.findings[0].code == "operator-wrong-name"
    assert "will not work" in str(report)
    assert opbridge.doctor(library=built(MINE)).facts["libraries"][0]["opbridge"]
    with pytest.raises(opbridge.InvalidArgumentError, match="provider"):
        opbridge.doctor(provider="gpu")
