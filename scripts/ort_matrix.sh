#!/usr/bin/env bash
# Fetches the ONNX Runtimes that the version tests run on: build/ort/<version>/bin/python has that
# onnxruntime and numpy and nothing else, build/ort/lib/<version>/libonnxruntime.so is for the C++ runner.
# With arguments, only those Python versions; without, all of them and every library.
set -euo pipefail
cd "$(dirname "$0")/.."

# 1.15.1 is there to be refused politely; the rest must work.
versions=(1.15.1 1.16.3 1.17.3 1.18.1 1.20.1 1.23.2 1.24.1 1.27.0 1.28.0 1.32.0)
# Wheels before 1.19 have no shared library; these projects shipped it with theirs.
foreign_libraries=("1.14.1 piper_phonemize==1.1.0" "1.17.1 sherpa_onnx==1.9.30")
root=build/ort
jobs=$(nproc)
# The wheels' other dependencies serve their tools, not their run time.
export PIP_NO_DEPS=1 PIP_ONLY_BINARY=:all: PIP_NO_COMPILE=1 PIP_QUIET=2 PIP_DISABLE_PIP_VERSION_CHECK=1

(( $# )) && { versions=("$@"); foreign_libraries=(); }

# The only Python for which every version above has a wheel.
find_python() {
  local python
  for python in "${OPBRIDGE_MATRIX_PYTHON:-}" .venv/bin/python python3.11 /usr/bin/python3.11; do
    [[ $("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) == 3.11 ]] || continue
    echo "$python"
    return
  done
  echo "error: the version matrix needs Python 3.11: ONNX Runtime 1.15 and 1.16 have no wheel for a newer one" >&2
  return 1
}

# Each environment is built aside and renamed when it works, so one that is there is whole. Python finds
# its packages from the path it is started by, so the move is harmless.
make_environment() {
  local version=$1 numpy=numpy==2.4.6
  local place=$root/$version
  [[ -d $place ]] && return
  # Built against numpy 1: importing with numpy 2 ends the process.
  [[ $version < 1.19 ]] && numpy=numpy==1.26.4
  echo "ort matrix: fetching onnxruntime $version"
  rm -rf "$place.new"
  "$python" -m venv --without-pip "$place.new"
  .venv/bin/pip --python "$place.new/bin/python" install "onnxruntime==$version" "$numpy"
  "$place.new/bin/python" -c "import onnxruntime as o; assert o.__version__ == '$version', o.__version__"
  mv "$place.new" "$place"
}

# Loads a library as the C++ runner does and compares what it says it is.
check_library() {
  "$python" - "$1" "$2" <<'EOF'
import ctypes, sys
path, version = sys.argv[1:]
get_base = ctypes.CDLL(path).OrtGetApiBase
get_base.restype = ctypes.POINTER(ctypes.CFUNCTYPE(ctypes.c_char_p) * 2)  # GetApi, GetVersionString
found = get_base().contents[1]().decode()
assert found == version, f"{path} is {found}, not {version}"
EOF
}

link_library() {
  local version=$1 library
  library=$(find "$root/$version" -name 'libonnxruntime.so.*' -print -quit)
  [[ -n $library && ! -e $root/lib/$version ]] || return 0
  check_library "$library" "$version"
  mkdir "$root/lib/$version"
  ln -sr "$library" "$root/lib/$version/libonnxruntime.so"
}

fetch_foreign_library() {
  local version=$1 wheel=$2
  local place=$root/lib/$version
  [[ -d $place ]] && return
  echo "ort matrix: fetching libonnxruntime $version from $wheel"
  rm -rf "$place.new"
  .venv/bin/pip download --python-version 3.11 -d "$place.new/wheel" "$wheel"
  "$python" -m zipfile -e "$place.new"/wheel/*.whl "$place.new/unpacked"
  cp "$(find "$place.new/unpacked" -name 'libonnxruntime*.so*' -print -quit)" "$place.new/libonnxruntime.so"
  check_library "$place.new/libonnxruntime.so" "$version"
  rm -r "$place.new"/{wheel,unpacked}
  mv "$place.new" "$place"
}

mkdir -p "$root/lib"
# Several may start at once: the second waits and finds the work done.
exec 9> "$root/.lock"
flock 9

python=$(find_python)
export root python
export -f make_environment
printf '%s\n' "${versions[@]}" | xargs -P "$jobs" -I{} bash -euo pipefail -c 'make_environment {}'
for version in "${versions[@]}"; do
  link_library "$version"
done
for entry in "${foreign_libraries[@]}"; do
  fetch_foreign_library $entry
done

echo
printf '%-10s %-8s %s\n' version python library
for version in $(ls "$root" "$root/lib" | grep -E '^[0-9.]+$' | sort -uV); do
  printf '%-10s %-8s %s\n' "$version" "$([[ -d $root/$version ]] && echo yes || echo -)" \
    "$([[ -e $root/lib/$version/libonnxruntime.so ]] && echo yes || echo -)"
done
