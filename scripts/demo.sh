#!/usr/bin/env bash
# The guided examples; `make demo` builds first. First the whole road: RGB-D frames to poses in every host; then an
# operator of one's own in a small network.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python examples/pvn3d/demo.py
.venv/bin/python examples/custom_op_ort/demo.py
