#!/usr/bin/env bash
# Installs what the benchmarks time the operators against, beyond torch, NumPy and ONNX Runtime. `make bench RIVALS=1` runs it.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=(libnanoflann-dev libeigen3-dev)
if ! dpkg -s "${packages[@]}" > /dev/null 2>&1; then
  as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${packages[@]}" > /dev/null
fi
.venv/bin/pip install -qq --disable-pip-version-check -r requirements/bench.txt
