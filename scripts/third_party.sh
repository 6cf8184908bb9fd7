#!/usr/bin/env bash
# Fetches models and custom-operator libraries that others publish as Python packages into build/third_party, for the
# tests that try the command on them.
set -euo pipefail
cd "$(dirname "$0")/.."

wanted=requirements/third_party.txt
place=build/third_party
cmp -s "$wanted" "$place/requirements.txt" && exit
echo "third party: fetching what requirements/third_party.txt names"
rm -rf "$place" "$place.new"
.venv/bin/pip install -qq --disable-pip-version-check --no-compile --no-deps --only-binary :all: \
  --target "$place.new" -r "$wanted"
cp "$wanted" "$place.new/requirements.txt"
mv "$place.new" "$place"
