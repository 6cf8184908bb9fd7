#!/usr/bin/env bash
# Puts ONNX Runtime's C and C++ headers into DEST/include. Looked for, in this order:
#   1. $ONNXRUNTIME_ROOT, an unpacked release or an install prefix
#   2. an installed package
#   3. the Debian package libonnxruntime-dev, unpacked into DEST; the system is not touched
#   4. the upstream release archive
# Only the headers matter: the library is found at run time (include/opbridge/runner.h).
set -euo pipefail

[[ $# == 1 ]] || { echo "usage: $0 DEST" >&2; exit 2; }
dest=$(realpath -m "$1")
min_api=18  # the first whose OrtCustomOp has every field we fill
suite=trixie  # the first Debian release with the package
upstream=https://github.com/microsoft/onnxruntime/releases/download/v1.21.0/onnxruntime-linux-x64-1.21.0.tgz

log() { echo "ort headers: $*"; }

# Copies the header set found under a prefix; fails if there is none or it is too old.
take() {
  local header api
  while read -r header; do
    api=$(sed -nE 's/^#define ORT_API_VERSION ([0-9]+).*/\1/p' "$header")
    if (( ${api:-0} < min_api )); then
      log "$header has API ${api:-?}, need $min_api or newer"
      continue
    fi
    rm -rf "$dest/include"
    mkdir -p "$dest/include"
    # The whole family: from 1.22 on, onnxruntime_c_api.h includes siblings.
    cp "$(dirname "$header")"/onnxruntime_*.h "$dest/include/"
    echo "$2" > "$dest/source"
    log "API $api from $2"
    return 0
  done < <(find -L "$1" -name onnxruntime_c_api.h 2>/dev/null)
  return 1
}

from_debian() {
  command -v apt-get >/dev/null && [[ -r /etc/os-release ]] || return 1
  local work codename
  codename=$(. /etc/os-release && [[ ${ID:-} == debian ]] && echo "${VERSION_CODENAME:-}") || return 1
  work=$(mktemp -d "$dest/apt.XXXXXX")
  mkdir -p "$work"/{sources,lists/partial,cache/archives/partial,root}
  # The machine's own sources, mirror and keys included, with the release's name replaced.
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
    [[ -f $file ]] && sed "s/\b${codename:-$suite}/$suite/g" "$file" > "$work/sources/$(basename "$file")"
  done
  [[ ! -f $work/sources/sources.list ]] || mv "$work/sources/sources.list" "$work/sources/main.list"
  local options=(-qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/sources"
    -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null -o APT::Default-Release=
    -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o Acquire::Languages=none
    -o APT::Sandbox::User=)
  # A third-party source may not know this release: whether the download works is what counts.
  apt-get "${options[@]}" update > "$work/log" 2>&1 || true
  local ok=1
  if (cd "$work" && apt-get "${options[@]}" download libonnxruntime-dev >> log 2>&1); then
    dpkg-deb -x "$work"/libonnxruntime-dev_*.deb "$work/root" &&
      take "$work/root" "Debian $suite's libonnxruntime-dev" && ok=0
  else
    tail -n 3 "$work/log"
  fi
  rm -rf "$work"
  return $ok
}

from_upstream() {
  command -v curl >/dev/null || return 1
  local work ok=1
  work=$(mktemp -d "$dest/upstream.XXXXXX")
  curl -fsSL --retry 2 --connect-timeout 20 "$upstream" | tar -xz -C "$work" 2>/dev/null &&
    take "$work" "$upstream" && ok=0
  rm -rf "$work"
  return $ok
}

mkdir -p "$dest"
# Two builds may start at once: the second waits and finds the work done.
exec 9> "$dest/.lock"
flock 9

if [[ -n ${ONNXRUNTIME_ROOT:-} ]]; then
  take "$ONNXRUNTIME_ROOT" "ONNXRUNTIME_ROOT=$ONNXRUNTIME_ROOT" && exit
  echo "error: ONNXRUNTIME_ROOT=$ONNXRUNTIME_ROOT holds no onnxruntime_c_api.h of API $min_api or newer" >&2
  exit 1
fi
if [[ -f $dest/include/onnxruntime_c_api.h ]]; then
  log "already there, from $(cat "$dest/source")"
  exit
fi
for prefix in /usr/local/include /usr/include; do
  take "$prefix/onnxruntime" "$prefix/onnxruntime" && exit
done
log "not installed, trying Debian $suite's package"
from_debian && exit
log "no such package to be had, trying the upstream archive"
from_upstream && exit

cat >&2 <<EOF
error: no ONNX Runtime headers (API $min_api or newer). Any one of these cures it:
  - set ONNXRUNTIME_ROOT to an unpacked ONNX Runtime release
  - install a package with onnxruntime_c_api.h (Debian $suite, Ubuntu 25.04 or newer: libonnxruntime-dev)
  - on Debian, let apt reach a mirror with $suite
  - let curl reach $upstream
EOF
exit 1
