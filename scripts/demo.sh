#!/usr/bin/env bash
# The guided example; `make demo` builds first.
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/python examples/custom_op_ort/demo.py "$@"
