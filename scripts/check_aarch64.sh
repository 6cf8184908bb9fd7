#!/usr/bin/env bash
# Cross-compiles the operators for aarch64 and runs every case under an emulator: the same results as here?
#
#   scripts/check_aarch64.sh        needs `make build`; installs g++-aarch64-linux-gnu and qemu-user where they are missing
#
# Every reference case must pass there, and every case, the oracle's included, must give the same bits as on this machine,
# where tests compare them with the oracle. Only sin and cos are the C library's own: cases that need them may differ in
# the last place, and are listed.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/aarch64
python=.venv/bin/python
native=${OPBRIDGE_BUILD:-build/release}

packages=(g++-aarch64-linux-gnu qemu-user)
if ! command -v aarch64-linux-gnu-g++ > /dev/null || ! command -v qemu-aarch64 > /dev/null; then
  echo "aarch64: installing ${packages[*]}"
  as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${packages[@]}" > /dev/null
fi

# Highway's headers know every processor; the folder that they are in belongs to this one.
mkdir -p "$build/include"
hwy=$(echo '#include <hwy/base.h>' | c++ -M -x c++ - | tr ' ' '\n' | grep 'hwy/base\.h$')
ln -sfn "$(dirname "$hwy")" "$build/include/hwy"
cmake -G Ninja -S . -B "$build" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_CXX_FLAGS="-isystem $PWD/$build/include" \
  -DOPBRIDGE_TESTS=OFF -DOPBRIDGE_TOOLS=OFF -DOPBRIDGE_INSTALL=OFF -DOPBRIDGE_CUDA=OFF > /dev/null
cmake --build "$build" --target pvn3d_custom_op my_custom_ops
aarch64-linux-gnu-g++ -std=c++17 -O1 -I include -I ops tests/run_cases.cpp -o "$build/run_cases" -ldl

PYTHONPATH=python $python tests/cases.py --flat "$native/lib/libpvn3d_custom_op.so" "$build/cases"
run() {  # WHERE OUTPUT COMMAND...
  local said
  said=$("${@:3}" "$build/cases" "$2") || { echo "$1: $said" >&2; return 1; }
  echo "$1: $said"
}
run "this machine" "$build/bits.native" "$native/tests/run_cases" "$native/lib/libpvn3d_custom_op.so"
run aarch64 "$build/bits.aarch64" qemu-aarch64 -L /usr/aarch64-linux-gnu "$build/run_cases" "$build/lib/libpvn3d_custom_op.so"
differ=$(diff "$build/bits.native" "$build/bits.aarch64" | sed -n 's/^[<>] \(.*\) .*/\1/p' | sort -u) || true
echo "cases with other bits: ${differ:-none}"
if grep -vE '^((AxisAngle|Euler)ToRotation(Grad)? |$)' <<< "$differ"; then
  echo "aarch64: these need neither sin nor cos" >&2
  exit 1
fi
