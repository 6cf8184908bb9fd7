#!/usr/bin/env bash
# Makes a fresh Debian or Ubuntu machine able to build and test: system packages, .venv, ONNX Runtime
# headers. Every step looks first and does only what is missing, so a second run takes a second.
set -euo pipefail
cd "$(dirname "$0")/.."

apt_packages=(
  g++ make cmake ninja-build pkg-config git binutils ccache patchelf python3-venv
  libgtest-dev libgmock-dev libbenchmark-dev libhwy-dev libcli11-dev nlohmann-json3-dev
  protobuf-compiler libprotobuf-dev zlib1g-dev libminizip-dev libpng-dev
)

step() { echo "setup: $*"; }

install_system_packages() {
  local missing=() package
  for package in "${apt_packages[@]}"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
  done
  (( ${#missing[@]} )) || { step "system packages: all there"; return; }
  step "system packages: installing ${missing[*]}"
  local as_root=()
  if (( EUID )); then
    command -v sudo >/dev/null || { echo "error: run as root, or install sudo" >&2; exit 1; }
    as_root=(sudo)
  fi
  # Another apt may be running: wait for its lock rather than fail.
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600)
  "${apt[@]}" update
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" > build/apt.log 2>&1 ||
    { cat build/apt.log >&2; exit 1; }
}

find_python() {
  local python
  for python in python3 python3.11 python3.12 python3.13; do
    if "$python" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null
    then
      command -v "$python"
      return
    fi
  done
  echo "error: needs Python 3.11, 3.12 or 3.13 with venv; 'python3' is $(python3 --version 2>&1)" >&2
  return 1
}

make_venv() {
  local wanted stamp=.venv/requirements.sha256
  wanted=$(sha256sum requirements/{run,demo,test,dev}.txt)
  if [[ -f $stamp && $(< $stamp) == "$wanted" ]]; then
    step ".venv: up to date"
    return
  fi
  if [[ ! -x .venv/bin/pip ]]; then
    local python
    python=$(find_python)
    step ".venv: creating with $("$python" --version)"
    rm -rf .venv
    "$python" -m venv .venv
  fi
  step ".venv: installing requirements/dev.txt"
  .venv/bin/pip install -qq --disable-pip-version-check -r requirements/dev.txt
  # The package is used from the source tree, whatever folder a script starts in.
  echo "$PWD/python" > "$(.venv/bin/python -c 'import site; print(site.getsitepackages()[0])')/opbridge.pth"
  echo "$wanted" > "$stamp"
}

mkdir -p build
# Several setups may start at once in one checkout: the second waits and finds the work done.
exec 9> build/.setup.lock
flock 9

if command -v dpkg-query >/dev/null; then
  install_system_packages
else
  step "no dpkg here: install the equivalents of ${apt_packages[*]} yourself"
fi
make_venv
scripts/fetch_ort_headers.sh build/deps/onnxruntime
step "done"
