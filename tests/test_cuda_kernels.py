"""Every operator has a CUDA kernel: the libraries' manifests say so. And what the kernels and the build use of CUDA."""

import json
import re
import subprocess

import pytest
from conftest import BUILD, ROOT, built

# Operators that have none, each with its reason.
CPU_ONLY = {}


def manifest(library):
    command = [BUILD / "bin/opbridge", "inspect", "--json", built(library)]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["manifest"]


def without_kernel(described):
    return {op["name"] for op in described["operators"] if "cuda" not in op["devices"]}


LIBRARIES = {"my_custom_ops": "my_custom_ops_emulated", "pvn3d_custom_op": "pvn3d_emulated"}


def test_every_operator_has_a_cuda_kernel():
    emulated = [manifest(library) for library in LIBRARIES.values()]
    assert set().union(*map(without_kernel, emulated)) == CPU_ONLY.keys()


@pytest.mark.parametrize("library", LIBRARIES)
def test_nvcc_builds_what_is_tested(library):
    described, emulated = manifest(library), manifest(LIBRARIES[library])
    names = {op["name"] for op in emulated["operators"]}
    assert {op["name"] for op in described["operators"]} == names
    # Where there was no nvcc, it is a library for the CPU.
    assert without_kernel(described) == (names if described["cuda"] is None else without_kernel(emulated))


# --- nothing newer than CUDA 11.8, but where it is asked for: scripts/check_old_cuda.sh compiles with that toolkit

# What is used of the runtime: all of it is in 11.8's headers. A name that comes here must be looked up there.
RUNTIME = """
cudaDevAttrComputeCapabilityMajor cudaDevAttrComputeCapabilityMinor cudaDeviceGetAttribute cudaDriverGetVersion
cudaErrorInsufficientDriver cudaErrorInvalidConfiguration cudaErrorInvalidDevice cudaErrorInvalidDeviceFunction
cudaErrorInvalidValue cudaErrorLaunchFailure cudaErrorNoDevice cudaErrorNoKernelImageForDevice
cudaErrorSystemDriverMismatch cudaErrorUnsupportedPtxVersion cudaError_t cudaFree
cudaFuncAttributeMaxDynamicSharedMemorySize cudaFuncSetAttribute cudaGetDevice cudaGetDeviceCount cudaGetErrorName
cudaGetErrorString cudaGetLastError cudaGraphDestroy cudaGraphExecDestroy cudaGraphExec_t
cudaGraphInstantiateWithFlags cudaGraphLaunch cudaGraph_t cudaLaunchKernel cudaMalloc cudaMemcpy
cudaMemcpyDeviceToHost cudaMemcpyHostToDevice cudaRuntimeGetVersion cudaSetDevice cudaStreamBeginCapture
cudaStreamCaptureModeGlobal cudaStreamCaptureStatus cudaStreamCaptureStatusNone cudaStreamCreateWithFlags
cudaStreamDestroy cudaStreamEndCapture cudaStreamIsCapturing cudaStreamNonBlocking cudaStreamSynchronize cudaStream_t
cudaSuccess
"""

# What else a toolkit of today would take.
NEWER = {
    r"__nv_fp8|cuda_fp8|__nv_fp4|cuda_fp4|cuda_fp6": "small floats",
    r"__CUDA_ARCH_FEAT_|__CUDA_ARCH_SPECIFIC|sm_\d+a|compute_\d+[af]\b": "architecture-specific code: 12.0",
    r"__grid_constant__|__cluster_dims__|__block_size__|this_cluster": "clusters",
    r"\bcuda::\w+": "libcu++ changes between toolkits",
    r"<(cub|thrust|cooperative_groups|mma|cuda/)": "more than the runtime, and it changes between toolkits",
    r"--(threads|split-compile|Ofast-compile|device-time-trace)|-arch=native|all-major": "options of newer nvccs",
    r"c\+\+20|CUDA_STANDARD 20|cuda_std_20": "11.8 has C++17",
    r"double4_\d+a|longlong4_\d+a": "13.0",
}
CUDA_SOURCES = [
    *ROOT.glob("ops/**/*.cu"),
    *ROOT.glob("ops/**/*.cuh"),
    *ROOT.glob("tests/cuda/*.*"),
    ROOT / "include/opbridge/cuda.h",
    ROOT / "cmake/cuda_support.cpp",
    ROOT / "cmake/OpbridgeCuda.cmake",
    ROOT / "cmake/OpbridgeAddLibrary.cmake",
]


def found(pattern):
    assert len(CUDA_SOURCES) > 30
    for path in CUDA_SOURCES:
        text = re.sub(r"(//|#(?! *(if|elif|include))).*", "", path.read_text())  # without comments
        for match in re.finditer(pattern, text):
            yield path.relative_to(ROOT).as_posix(), match[0]


def test_the_runtime_of_cuda_11_8_will_do():
    assert {name for _, name in found(r"\bcuda[A-Z][A-Za-z0-9_]*")} == set(RUNTIME.split())


@pytest.mark.parametrize("pattern", NEWER)
def test_the_language_of_cuda_11_8_will_do(pattern):
    assert list(found(pattern)) == [], NEWER[pattern]


# --- what a kernel's source may not do


def in_operators(pattern):
    return [(path, match) for path, match in found(pattern) if path.startswith("ops/")]


def test_operators_only_launch():
    """No allocation, copy, stream, synchronisation or second look at the device: opbridge::launch() alone is CUDA's."""
    assert in_operators(r"\bcuda[A-Z]\w*|<<<|\bcu[A-Z]\w+\(") == []
    assert in_operators(r"\b(printf|assert|malloc|new|__trap|clock|clock64|__nanosleep)\b(?= *[(\[])") == []


def test_atomics_are_integers():
    """Sums of floats in whatever order would differ from run to run."""
    integers = {"bins", "cell_end", "count", "counts", "next", "best", "farthest", "m.best"}
    used = {match.split("&")[1] for _, match in in_operators(r"\batomic\w+\(&[\w.]+")}
    assert used == integers
    assert len(in_operators(r"\batomic\w+\(")) == len(in_operators(r"\batomic\w+\(&"))
