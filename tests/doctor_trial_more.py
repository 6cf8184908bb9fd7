"""A second set for the trial of `opbridge doctor` (doctor_trial.py), chosen and written without a look at doctor's
source or at the first set: half-finished migrations, conversion tools, packaging, other people's habits."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from doctor_trial import (
    BOOL,
    CLIP,
    FLOAT,
    FOREIGN,
    HALF,
    HEADERS,
    INT32,
    INT64,
    MY_CLIP,
    ORT,
    POINTS,
    PVN3D,
    Absent,
    Project,
    build,
    build_failed,
    case,
    constant,
    foreign,
    foreign_model,
    healthy,
    log_of,
    node,
    plain_model,
    points_model,
    save,
    shipped,
    tensor,
)
from onnx import TensorProto, helper


def rewritten(path, change):
    model = onnx.load(path)
    change(model)
    onnx.save(model, path)
    return path


def the(model, name):
    return next(n for n in model.graph.node if n.name == name)


# ---- the model's file


@case(
    "The repository was cloned without git-lfs: the model is the three lines of a pointer.",
    r"Protobuf parsing failed",
    [r"m\.onnx", r"LFS", r"git lfs pull"],
    code="model-not-onnx",
)
def model_is_a_pointer(tmp):
    path = tmp / "m.onnx"
    path.write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:" + "4d7a" * 16 + "\nsize 482133\n"
    )
    return Project(path, [PVN3D])


def in_ort_format(model, libraries, path):
    options = onnxruntime.SessionOptions()
    for library in libraries:
        options.register_custom_ops_library(str(library))
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return path


@case(
    "A model in ONNX Runtime's own format was renamed from .ort to .onnx.",
    r"Protobuf parsing failed",
    [r"ONNX Runtime's own format", r"mv .*m\.ort"],
    code="model-ort-renamed",
)
def ort_format_renamed(tmp):
    model = points_model(tmp / "points.onnx")
    return Project(in_ort_format(model, [PVN3D], tmp / "m.onnx"), [PVN3D])


@case(
    "The file with the weights is of an earlier, smaller export.",
    r"out of bounds|can not be read in full",
    [r"weights\.bin", r"another export"],
    code="model-weights-short",
)
def weights_of_an_older_export(tmp):
    def export(path, width):
        path.mkdir()
        nodes = [
            node("MatMul", "x w1", "h", name="a"),
            node("my_clip", "h", "c", CLIP),
            node("MatMul", "c w2", "y", name="b"),
        ]
        weights = [constant("w1", np.ones((64, width))), constant("w2", np.ones((width, 64)))]
        model = save(
            path / "m.onnx", nodes, [tensor("x", ["n", 64])], [tensor("y", ["n", 64])], weights, [CLIP]
        )
        onnx.save(
            onnx.load(model), model, save_as_external_data=True, location="weights.bin", size_threshold=0
        )
        return model

    export(tmp / "older", 128)
    model = export(tmp / "new", 256)
    shutil.copy(tmp / "older/weights.bin", tmp / "new")
    return Project(model, [MY_CLIP])


@case(
    "A script rebuilt the model from its graph and left out the functions that the exporter had written into it.",
    r"pkg\.torch:Normalise\(-1\) is not a registered function/op",
    [r"pkg\.torch::Normalise", r"function", r"functions=old\.functions"],
    code="model-functions-lost",
)
def functions_lost(tmp):
    nodes = [node("Normalise", "x", "c", "pkg.torch"), node("my_clip", "c", "y", CLIP)]
    x, y = (tensor(n, ["n", 4]) for n in "xy")
    return Project(save(tmp / "m.onnx", nodes, [x], [y], domains=[CLIP, "pkg.torch"]), [MY_CLIP])


@case(
    "The number in opset_import was raised from 17 to 18 without converting the nodes.",
    r"Unrecognized attribute: axes for operator ReduceMax",
    [r"ReduceMax", r"another opset than the model imports", r"convert_version"],
    code="model-opset-mismatch",
)
def opset_raised_by_hand(tmp):
    def change(model):
        model.opset_import[0].version = 18

    return Project(rewritten(points_model(tmp / "m.onnx"), change), [PVN3D])


@case(
    "A script removed a Cast and did not connect what read its output.",
    r"Node input 'idx' is not a graph input",
    [r"/sa1/group", r"'idx'", r"nothing makes"],
    code="model-name-missing",
)
def cast_removed(tmp):
    def change(model):
        model.graph.node.remove(the(model, "/sa1/query"))
        del model.graph.value_info[:]

    return Project(rewritten(points_model(tmp / "m.onnx"), change), [PVN3D])


@case(
    "The autograd.Function has no symbolic, so the TorchScript exporter wrote prim::PythonOp.",
    r"prim:PythonOp\(-1\) is not a registered function/op",
    [r"PythonOp", r"MyClipFunction", r"my_namespace::my_clip"],
    code="operator-not-exported",
)
def python_op(tmp):
    nodes = [node("PythonOp", "x", "y", "prim", pyname="MyClipFunction", inplace=0, module="net")]
    x, y = (tensor(n, ["n", 4]) for n in "xy")
    return Project(save(tmp / "m.onnx", nodes, [x], [y], domains=["prim"]), [MY_CLIP])


@case(
    "The node in the else branch has the operator's old name.",
    r"pvn3d\.custom_ops:ball_query\(-1\) is not a registered function/op",
    [r"e_query", r"ball_query", r"it has 'pvn3d\.custom_ops::BallQuery'"],
    code="operator-wrong-name",
)
def old_name_in_a_branch(tmp):
    def branch(name, op):
        query = node(op, "xyz new_xyz", name, POINTS, f"{name}_query", radius=0.4, nsample=16)
        return helper.make_graph([query], name, [], [tensor(name, None, INT32)])

    choose = helper.make_node(
        "If",
        ["near"],
        ["idx"],
        "/if",
        then_branch=branch("t", "BallQuery"),
        else_branch=branch("e", "ball_query"),
    )
    inputs = [tensor("near", [], BOOL), tensor("xyz", ["b", "n", 3]), tensor("new_xyz", ["b", "m", 3])]
    return Project(
        save(tmp / "m.onnx", [choose], inputs, [tensor("idx", None, INT32)], domains=[POINTS]), [PVN3D]
    )


@case(
    "com.microsoft::GatherBlockQuantized is not in ONNX Runtime 1.16.3.",
    lambda project, ask: (
        "GatherBlockQuantized(-1) is not a registered"
        in ask(dataclasses.replace(project, runtime="1.16.3"))["error"]
    ),
    [r"GatherBlockQuantized", r"1\.16\.3", r"newer ONNX Runtime"],
    code="operator-not-in-runtime",
)
def quantised_for_a_newer_runtime(tmp):
    nodes = [
        node(
            "GatherBlockQuantized",
            "q i s",
            "h",
            "com.microsoft",
            bits=8,
            block_size=16,
            gather_axis=0,
            quantize_axis=1,
        ),
        node("my_clip", "h", "y", CLIP),
    ]
    weights = [constant("q", np.ones((8, 16)), np.uint8), constant("s", np.ones((8, 1)))]
    model = save(
        tmp / "m.onnx",
        nodes,
        [tensor("i", ["n"], INT64)],
        [tensor("y", ["n", 16])],
        weights,
        [CLIP, "com.microsoft"],
        ir=8,
        value_info=[tensor("h", ["n", 16])],
    )
    return Project(model, [MY_CLIP], ort=ORT / "1.16.3")


# ---- types, values and attributes


@case(
    "The whole model was converted to float16; the library's operator takes float32 only.",
    r"Type 'tensor\(float16\)' of input parameter",
    [r"acme\.ops::Double", r"f16", r"takes f32", r"Cast"],
    code="operator-input-type",
)
def converted_to_half(tmp):
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = foreign_model(tmp / "m.onnx")
    onnx.save(convert_float_to_float16(onnx.load(model), disable_shape_infer=True), model)
    return Project(model, [foreign(tmp / "libacme.so")], load=True)


@case(
    "Only the weights were halved: one type variable is float32 and float16 at once.",
    r"no kernel def matches",
    [r"'features' is f32 but 'weight' is f16"],
    code="operator-input-type",
)
def half_weights(tmp):
    constants = [
        constant("idx", np.zeros((1, 20, 3)), np.int32),
        constant("weight", np.full((1, 20, 3), 1 / 3), np.float16),
    ]
    nodes = [node("ThreeInterpolate", "features idx weight", "y", POINTS)]
    return Project(
        save(
            tmp / "m.onnx",
            nodes,
            [tensor("features", [1, 8, "n"])],
            [tensor("y", [1, 8, 20])],
            constants,
            [POINTS],
        ),
        [PVN3D],
    )


def not_finite(project, ask):
    answer = ask(project)
    return "error" not in answer and not answer["finite"]


@case(
    "The 1e-8 that guards the division became 0 when the model was converted to float16.",
    not_finite,
    [r"divide", r"epsilon too small for its type", r"1e-4|float32"],
    code="model-epsilon-lost",
)
def epsilon_of_zero(tmp):
    nodes = [
        node("my_clip", "x", "c", CLIP),
        node("ReduceL2", "c", "length", axes=[-1], keepdims=1),
        node("Add", "length eps", "safe", name="guard"),
        node("Div", "c safe", "y", name="divide"),
    ]
    x, y = (tensor(n, [2, 4], HALF) for n in "xy")
    model = save(tmp / "m.onnx", nodes, [x], [y], [constant("eps", 1e-8, np.float16)], [CLIP])
    return Project(model, [MY_CLIP], feeds={"x": [[0.0] * 4, [1.0] * 4]})


@case(
    "The attributes came from a JSON file: nsample is a float where the operator wants an int.",
    r"attribute 'nsample' must be of type int, got float",
    [r"nsample", r"must be of type int, got float"],
    code="operator-attribute-invalid",
)
def attribute_from_json(tmp):
    return Project(points_model(tmp / "m.onnx", **json.loads('{"radius": 0.4, "nsample": 16.0}')), [PVN3D])


@case(
    "Tracing wrote batch 1 and 128 points into the Reshape's sizes, although the input is dynamic.",
    r"cannot be reshaped to the requested shape",
    [r"view", r"\[1,3,128\]", r"dynamic shapes"],
    code="model-static-shape",
)
def sizes_in_a_reshape(tmp):
    nodes = [
        node("Transpose", "xyz", "t", perm=[0, 2, 1]),
        node("Reshape", "t shape", "c", name="view"),
        node("FarthestPointSample", "xyz", "i", POINTS, npoint=16),
        node("GatherPoints", "c i", "y", POINTS),
    ]
    model = save(
        tmp / "m.onnx",
        nodes,
        [tensor("xyz", ["batch", "points", 3])],
        [tensor("y", ["batch", 3, 16])],
        [constant("shape", [1, 3, 128], np.int64)],
        [POINTS],
        value_info=[tensor("i", ["batch", 16], INT32)],
    )
    return Project(model, [PVN3D], feeds={"xyz": np.random.default_rng(0).random((2, 128, 3)).tolist()})


@case(
    "BallQuery has its inputs in the order of the old C++ function, the centres first.",
    lambda project, ask: ask(project)["shapes"][0][1] == 128,
    [r"'xyz' and 'new_xyz' swapped", r"\[b, 16, \?\]"],
    code="operator-inputs-maybe-swapped",
)
def centres_first(tmp):
    nodes = [
        node("FarthestPointSample", "xyz", "i", POINTS, npoint=16),
        node("Transpose", "xyz", "t", name="a", perm=[0, 2, 1]),
        node("GatherPoints", "t i", "s", POINTS),
        node("Transpose", "s", "new_xyz", name="b", perm=[0, 2, 1]),
        node("BallQuery", "new_xyz xyz", "idx", POINTS, radius=0.4, nsample=8),
    ]
    shapes = {"i": ["b", 16], "t": ["b", 3, "n"], "s": ["b", 3, 16], "new_xyz": ["b", 16, 3]}
    model = save(
        tmp / "m.onnx",
        nodes,
        [tensor("xyz", ["b", "n", 3])],
        [tensor("idx", ["b", 16, 8], INT32)],
        domains=[POINTS],
        value_info=[tensor(k, v, INT32 if k == "i" else FLOAT) for k, v in shapes.items()],
    )
    return Project(model, [PVN3D], feeds={"xyz": np.random.default_rng(0).random((1, 128, 3)).tolist()})


@case(
    "The indices are declared int64, as the PyTorch code casts them; the operator gives int32.",
    r"Type \(tensor\(int64\)\) of output arg \(idx\)",
    [r"idx", r"int64", r"int32", r"cast"],
    code="output-type-mismatch",
)
def indices_declared_int64(tmp):
    nodes = [node("ThreeNN", "u k", "dist idx", POINTS)]
    outputs = [tensor("dist", ["b", "n", 3]), tensor("idx", ["b", "n", 3], INT64)]
    inputs = [tensor("u", ["b", "n", 3]), tensor("k", ["b", "m", 3])]
    return Project(save(tmp / "m.onnx", nodes, inputs, outputs, domains=[POINTS]), [PVN3D])


# ---- libraries


def acme(tmp, library, **options):
    return Project(foreign_model(tmp / "m.onnx"), [library], load=True, **options)


@case(
    "The library was cross-compiled for the board.",
    r"cannot open shared object file|wrong ELF class|invalid ELF header",
    [r"aarch64", r"x86_64", r"toolchain|here"],
    code="library-platform",
)
def built_for_the_board(tmp):
    compiler = shutil.which("aarch64-linux-gnu-gcc")
    if compiler is None:
        raise Absent("no aarch64-linux-gnu-gcc")
    path = tmp / "libacme.so"
    command = [compiler, "-shared", "-fPIC", "-nostdlib", "-x", "c", "-", "-o", path]
    subprocess.run(command, input="int RegisterCustomOps(void) { return 0; }", text=True, check=True)
    return acme(tmp, path)


@case(
    "The library was compiled with -fvisibility=hidden: RegisterCustomOps is in it, but local.",
    r"undefined symbol: RegisterCustomOps",
    [r"it has RegisterCustomOps, but hidden", r"visibility\(\"default\"\)"],
    code="library-no-entry",
)
def entry_hidden(tmp):
    return acme(tmp, foreign(tmp / "libacme.so", "-fvisibility=hidden"))


SCALED = "#include <string>\nnamespace acme { float scaled(float x, const std::string& mode); }\n"
USES_SCALED = (
    "#include <onnxruntime_c_api.h>\n"
    + SCALED
    + """extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions*, const OrtApiBase*) {
  return acme::scaled(1, "linear") > 0 ? nullptr : nullptr;
}
"""
)


@case(
    "The source with acme::scaled was left out of the build.",
    r"undefined symbol: _ZN4acme6scaled",
    [r"nothing has acme::scaled\(float", r"Link"],
    code="library-undefined-symbol",
)
def source_forgotten(tmp):
    return acme(tmp, build(tmp / "libacme.so", USES_SCALED, language="c++"))


@case(
    "One of its sources was compiled with _GLIBCXX_USE_CXX11_ABI=0.",
    r"undefined symbol: _ZN4acme6scaled.*__cxx11",
    [r"the library itself has acme::scaled\(float, std::string const&\)", r"_GLIBCXX_USE_CXX11_ABI"],
    code="library-undefined-symbol",
)
def two_strings(tmp):
    math = SCALED + "float acme::scaled(float x, const std::string& m) { return m.empty() ? 0 : x; }\n"
    command = ["c++", "-fPIC", "-D_GLIBCXX_USE_CXX11_ABI=0", "-c", "-x", "c++", "-", "-o", tmp / "math.o"]
    subprocess.run(command, input=math, text=True, check=True)
    return acme(tmp, build(tmp / "libacme.so", USES_SCALED, tmp / "math.o", language="c++"))


@case(
    "The library was built on a newer system: it wants a version of libm that this one does not have.",
    r"version `GLIBC_2\.99' not found",
    [r"GLIBC_2\.99", r"newer system", r"oldest system"],
    code="library-needs-newer-system",
)
def newer_system(tmp):
    stub = tmp / "elsewhere/libm.so.6"
    stub.parent.mkdir()
    (tmp / "v.map").write_text("GLIBC_2.99 { global: f32_fancy; local: *; };\n")
    build(
        stub, "float f32_fancy(float x) { return x; }", "-Wl,-soname,libm.so.6",
        f"-Wl,--version-script={tmp / 'v.map'}",
    )  # fmt: skip
    source = FOREIGN + "float f32_fancy(float);\nfloat use(float x) { return f32_fancy(x); }\n"
    library = build(tmp / "libacme.so", source, stub)
    shutil.rmtree(stub.parent)
    return acme(tmp, library)


@case(
    "It is an AddressSanitizer build, whose run-time library has to be in the program first.",
    r"the process ends: signal 0, exit code 1",
    [r"libasan", r"-fsanitize", r"LD_PRELOAD"],
    code="library-sanitizer",
)
def sanitizer_build(tmp):
    return acme(tmp, foreign(tmp / "libacme.so", "-fsanitize=address"))


@case(
    "RegisterCustomOps uses the table of functions before it asks for it: a null pointer.",
    r"the process ends: signal 11",
    [r"signal 11", r"RegisterCustomOps", r"OrtApi pointer that is null"],
    code="library-crashes",
)
def api_not_asked_for(tmp):
    source = FOREIGN.replace("ort = base->GetApi(API);", "")
    return acme(tmp, build(tmp / "libacme.so", source))


@case(
    "The registration calls exit() when it finds no device, and takes the process with it.",
    r"the process ends: signal 0, exit code 255",
    [r"calls exit\(\)", r"acme: no device", r"CreateStatus"],
    code="library-ends-process",
)
def exits(tmp):
    first = 'fputs("acme: no device\\n", stderr); exit(255);'
    return acme(tmp, foreign(tmp / "libacme.so", FIRST=first))


@case(
    "The OrtCustomOp objects are local variables of RegisterCustomOps.",
    r"the process ends: signal|error",
    [r"acme\.ops::Double \(on the stack\)", r"static"],
    code="library-operators-ended",
)
def local_operators(tmp):
    entry = "OrtStatus* ORT_API_CALL RegisterCustomOps("
    source = FOREIGN.replace("static OrtCustomOp op;\n", "").replace(entry, "static OrtStatus* reg(")
    source = source.replace("ort = base->GetApi(API);", "OrtCustomOp op; ort = base->GetApi(API);")
    source += (
        entry + "OrtSessionOptions* o, const OrtApiBase* b) { OrtStatus* s = reg(o, b); char used[4096];"
    )
    source += 'memset(used, 1, sizeof used); __asm__("" : : "r"(used) : "memory"); return s; }\n'
    return acme(tmp, build(tmp / "libacme.so", source))


# ---- Python


def python_fails(project, ask):
    """Whether this Python, started so, cannot run any model."""
    python = Path(project.environment.get("VIRTUAL_ENV", sys.prefix)) / "bin/python3"
    script = (
        "import sys, numpy as np, onnxruntime as ort\n"
        "session = ort.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])\n"
        "session.run(None, {'x': np.zeros((1, 3), np.float32)})"
    )
    command = [python, "-c", script, plain_model(project.model.parent / "plain.onnx")]
    environment = os.environ | project.environment
    return subprocess.run(
        command, env=environment, cwd=project.folder, capture_output=True, check=False
    ).returncode


@case(
    "NumPy 2 comes before the NumPy 1 that this onnxruntime was built for.",
    python_fails,
    [r"onnxruntime 1\.16\.3 with numpy 2", r"numpy<2"],
    code="python-numpy-2",
)
def numpy_2_on_the_path(tmp):
    if not (ORT / "1.16.3").exists():
        raise Absent("no ONNX Runtime 1.16.3: make matrix fetches it")
    for part in Path(np.__file__).parents[1].glob("numpy*"):
        (tmp / part.name).symlink_to(part)
    environment = {"VIRTUAL_ENV": str(ORT / "1.16.3"), "PYTHONPATH": str(tmp)}
    return Project(points_model(tmp / "m.onnx"), [PVN3D], environment=environment)


@case(
    "A folder named onnxruntime in the working directory hides the package.",
    python_fails,
    [r"onnxruntime: ?|/onnxruntime\b", r"instead of the package", r"Rename"],
    code="python-shadowed",
)
def package_hidden(tmp):
    (tmp / "onnxruntime").mkdir()
    (tmp / "onnxruntime/__init__.py").write_text("")
    return Project(points_model(tmp / "m.onnx"), [PVN3D], folder=tmp)


# ---- build logs


@case(
    "The source uses Ort::CustomOpApi, which was removed from the headers in 1.16.",
    build_failed,
    [r"CustomOpApi", r"1\.16", r"Ort::KernelContext"],
    code="build-removed-class",
)
def removed_class(tmp):
    source = "#include <onnxruntime_cxx_api.h>\nstruct K { Ort::CustomOpApi ort; };\n"
    return log_of(tmp, f"g++ -std=c++17 -fsyntax-only -I {HEADERS} op.cc", op__cc=source)


@case(
    "This nvcc does not know the architecture asked for any more.",
    build_failed,
    [r"compute_35", r"no longer supported", r"--list-gpu-arch"],
    code="build-gpu-architecture",
)
def old_gpu(tmp):
    source = "__global__ void k(float* x) { x[threadIdx.x] = 0; }\n"
    return log_of(tmp, "nvcc -gencode arch=compute_35,code=sm_35 -c k.cu", k__cu=source)


@case(
    "A part of the shared library was compiled without -fPIC.",
    build_failed,
    [r"recompile with -fPIC|-fPIC", r"POSITION_INDEPENDENT_CODE"],
    code="build-not-pic",
)
def not_position_independent(tmp):
    source = "int table[64]; int& at(int i) { return table[i]; }\n"
    command = "g++ -c -fno-pic core.cpp && g++ -shared core.o -o libop.so"
    return log_of(tmp, command, core__cpp=source)


# ---- healthy projects


@healthy
def voice_detector(tmp):
    """If, LSTM and STFT, through the spox exporter."""
    feeds = {"input": np.zeros((1, 576)).tolist(), "state": np.zeros((2, 1, 128)).tolist(), "sr": 16000}
    return Project(shipped("silero_vad/data/silero_vad.onnx"), feeds=feeds)


@healthy
def quantised_tables(tmp):
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(shipped("magika/models/standard_v3_3/model.onnx"), tmp / "m.onnx")
    return Project(tmp / "m.onnx", feeds={"bytes": np.zeros((1, 2048)).tolist()})


@healthy
def from_tensorflow(tmp):
    return Project(shipped("basic_pitch/saved_models/icassp_2022/nmp.onnx"))


@healthy
def text_operators(tmp):
    """Microsoft's extensions: a Python module that is a library of custom operators, too."""
    nodes = [
        node("StringUpper", "x", "u", "ai.onnx.contrib"),
        node("StringLength", "u", "y", "ai.onnx.contrib"),
    ]
    x, y = tensor("x", ["n"], TensorProto.STRING), tensor("y", ["n"], INT64)
    module = shipped("onnxruntime_extensions/_extensions_pydll.cpython-311-x86_64-linux-gnu.so")
    return Project(save(tmp / "m.onnx", nodes, [x], [y], domains=["ai.onnx.contrib"]), [module], load=True)


@healthy
def loop_of_two_libraries(tmp):
    body = helper.make_graph(
        [
            node("Add", "v_in step", "s"),
            node("Identity", "c_in", "c_out"),
            helper.make_node("my_clip", ["s", "", "top"], ["v_out"], "clip", domain=CLIP),
            node("KNN", "xyz v_out", "i", POINTS, k=2),
            node("ReduceSum", "i", "n_out", keepdims=0),
        ],
        "body",
        [tensor("it", [], INT64), tensor("c_in", [], BOOL), tensor("v_in", ["b", "n", 3])],
        [tensor("c_out", [], BOOL), tensor("v_out", ["b", "n", 3]), tensor("n_out", [], INT32)],
        [constant("step", 0.25), constant("top", 1)],
    )
    model = save(
        tmp / "m.onnx",
        [helper.make_node("Loop", ["count", "go", "xyz"], ["v", "sums"], "/loop", body=body)],
        [tensor("xyz", ["b", "n", 3])],
        [tensor("v", ["b", "n", 3]), tensor("sums", [None], INT32)],
        [constant("count", 3, np.int64), constant("go", True, np.bool_)],
        [CLIP, POINTS],
    )
    return Project(
        model, [MY_CLIP, PVN3D], feeds={"xyz": np.random.default_rng(0).random((1, 9, 3)).tolist()}
    )


@healthy
def function_with_attributes(tmp):
    """A local function that hands its attributes on to a custom operator."""
    query = node("BallQuery", "p q", "i", POINTS)
    for name, kind in (("radius", onnx.AttributeProto.FLOAT), ("nsample", onnx.AttributeProto.INT)):
        query.attribute.add(name=name, ref_attr_name=name, type=kind)
    group = node("GroupPoints", "f i", "g", POINTS)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(POINTS, 1)]
    function = helper.make_function(
        "my.blocks", "Group", ["f", "p", "q"], ["g"], [query, group], opsets, ["radius", "nsample"]
    )
    inputs = [tensor("f", ["b", 8, "n"]), tensor("p", ["b", "n", 3]), tensor("q", ["b", "m", 3])]
    model = save(
        tmp / "m.onnx",
        [node("Group", "f p q", "y", "my.blocks", radius=0.5, nsample=4)],
        inputs,
        [tensor("y", ["b", 8, "m", 4])],
        domains=[POINTS, "my.blocks"],
    )
    feeds = {
        "f": np.ones((1, 8, 16)).tolist(),
        "p": np.ones((1, 16, 3)).tolist(),
        "q": np.ones((1, 4, 3)).tolist(),
    }
    return Project(rewritten(model, lambda m: m.functions.append(function)), [PVN3D], feeds=feeds)


@healthy
def half_precision(tmp):
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = points_model(tmp / "m.onnx")
    half = convert_float_to_float16(onnx.load(model), keep_io_types=True, disable_shape_infer=True)
    onnx.save(half, model)
    feeds = {"xyz": np.ones((1, 16, 3)).tolist(), "new_xyz": np.ones((1, 4, 3)).tolist()}
    return Project(model, [PVN3D], feeds=feeds | {"features": np.ones((1, 8, 16)).tolist()})


@healthy
def namesake_of_onnx(tmp):
    """A stripped library with a Relu of its own beside ONNX's; IR 3, weights in a folder."""
    nodes = [
        node("MatMul", "x w", "h"),
        node("Relu", "h", "r", "acme.ops", "theirs"),
        node("Relu", "r", "y", name="onnx's"),
    ]
    inputs = [tensor("x", ["n", 4]), tensor("w", [4, 4])]
    model = save(
        tmp / "m.onnx",
        nodes,
        inputs,
        [tensor("y", ["n", 4])],
        [constant("w", np.eye(4))],
        ["acme.ops"],
        ir=3,
        opset=9,
    )
    (tmp / "data").mkdir()
    onnx.save(onnx.load(model), model, save_as_external_data=True, location="data/w.bin", size_threshold=0)
    return Project(model, [foreign(tmp / "libacme.so", "-s", OP='"Relu"')], load=True)


@healthy
def ort_format(tmp):
    model = points_model(tmp / "m.onnx")
    feeds = {"xyz": np.ones((1, 16, 3)).tolist(), "new_xyz": np.ones((1, 4, 3)).tolist()}
    return Project(
        in_ort_format(model, [PVN3D], tmp / "m.ort"),
        [PVN3D],
        feeds=feeds | {"features": np.ones((1, 8, 16)).tolist()},
    )


@healthy
def python_older_than_the_c_library(tmp):
    """ONNX Runtime 1.16.3 is a Python module and nothing else."""
    return Project(points_model(tmp / "m.onnx"), [PVN3D], ort=ORT / "1.16.3")
