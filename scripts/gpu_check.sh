#!/usr/bin/env bash
# Checks the CUDA kernels on a machine with a GPU, offline, in minutes; says what it skipped and why.
#   scripts/gpu_check.sh [--build DIR] [--report PREFIX] [--emulated]
# DIR (build/cuda) holds lib/libmy_custom_ops.so, lib/libpvn3d_custom_op.so, tests/cuda/gpu_check and
# tests/cuda/pvn3d_cases.npz; where they are missing and there is an nvcc, they are built. These, scripts/, tests/cuda/ and
# python/ are all that an offline machine needs. Writes PREFIX.txt and PREFIX.json (DIR/gpu_check.*). --emulated rehearses
# it all without a GPU.
set -uo pipefail
cd "$(dirname "$0")/.."

build=build/cuda report='' emulated=''
while (( $# )); do
  case $1 in
    --build) build=$2; shift 2 ;;
    --report) report=$2; shift 2 ;;
    --emulated) emulated=_emulated; shift ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
report=${report:-$build/gpu_check}
library=$build/lib/libmy_custom_ops$emulated.so
pvn3d=$build/lib/libpvn3d_custom_op.so
[[ -n $emulated ]] && pvn3d=$build/lib/libpvn3d_emulated.so
program=$build/tests/cuda/gpu_check$emulated
cases=$build/tests/cuda/pvn3d_cases.npz
complete() { [[ -x $program && -f $library && -f $pvn3d && -f $cases ]]; }
mkdir -p "$(dirname "$report")"
results=$report.tsv
: > "$results"

result() { printf '%s\t%s\t%s\n' "$1" "$2" "$3" >> "$results"; }

# run NAME COMMAND...: a command that prints result lines; one that dies is a failure of its own.
run() {
  local name=$1 rc lines
  shift
  lines=$("$@" 2> "$report.stderr"); rc=$?
  [[ -n $lines ]] && printf '%s\n' "$lines" >> "$results"
  if (( rc != 0 && rc != 3 )) && ! grep -q '^failed' <<< "$lines"; then
    result failed "$name" "ended with $rc: $(tail -n 3 "$report.stderr" | tr '\t\n' '  ')"
  fi
  return "$rc"
}

# ------------------------------------------------------------------------------------------------------------ machine
if [[ -n $emulated ]]; then
  result passed machine "no GPU: the emulator stands in"
elif command -v nvidia-smi > /dev/null && gpu=$(nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader 2>&1); then
  result passed machine "$(tr '\n' ';' <<< "$gpu")"
else
  result skipped machine "no nvidia-smi that sees a GPU"
fi
if ! complete; then
  if [[ -z $emulated ]] && command -v nvcc > /dev/null && command -v cmake > /dev/null; then
    { cmake --preset cuda -B "$build" && cmake --build "$build" --target my_custom_ops pvn3d_custom_op gpu_check pvn3d_cases; } > "$report.build.txt" 2>&1 &&
      result passed build "$build" || result failed build "see $report.build.txt"
  else
    result failed build "$program, $library, $pvn3d and $cases are needed: build them first (not done here: emulation, or no nvcc or cmake)"
  fi
fi

# ------------------------------------------------------------------------------------------------------------- checks
[[ -d .venv ]] && export VIRTUAL_ENV=$PWD/.venv  # where the C++ runner looks for ONNX Runtime
if complete; then
  run gpu_check "$program" "$library"
  has_gpu=$(( $? != 3 ))
  parts=(parity repeats graph)
  [[ -n $emulated ]] && parts=(small repeats graph)  # all cases are tests of their own there
  (( has_gpu )) && run "gpu_check pvn3d" "$program" --cases "$cases" "$pvn3d" "${parts[@]}"

  if [[ -n $emulated ]]; then
    result skipped compute-sanitizer "nothing to look at in emulation"
  elif (( ! has_gpu )); then
    result skipped compute-sanitizer "no GPU"
  elif ! command -v compute-sanitizer > /dev/null; then
    result skipped compute-sanitizer "not installed (it comes with the CUDA toolkit)"
  else
    for tool in memcheck racecheck initcheck synccheck; do
      if compute-sanitizer --tool "$tool" --error-exitcode 9 "$program" "$library" small > "$report.$tool.txt" 2>&1 &&
         compute-sanitizer --tool "$tool" --error-exitcode 9 "$program" --cases "$cases" "$pvn3d" small >> "$report.$tool.txt" 2>&1; then
        result passed "compute-sanitizer $tool" "small cases"
      else
        result failed "compute-sanitizer $tool" "see $report.$tool.txt"
      fi
    done
  fi
else
  result skipped gpu_check "nothing to run"
fi

# torch and ONNX Runtime, whichever Python here has them. The rehearsal takes their CPU side, which tries the scripts.
python=$( [[ -x .venv/bin/python ]] && echo .venv/bin/python || command -v python3 )
device=() stand_in=()
[[ -n $emulated ]] && device=(--device cpu) stand_in=(--stand-in AzureExecutionProvider)
if [[ -z $python ]]; then
  result skipped "torch and ONNX Runtime" "no Python here"
elif ! complete; then
  result skipped "torch and ONNX Runtime" "nothing to run"
else
  export PYTHONPATH=python${PYTHONPATH:+:$PYTHONPATH}
  run torch "$python" tests/cuda/gpu_check_torch.py "$library" "$pvn3d" "$cases" "${device[@]}"
  run "ONNX Runtime" "$python" tests/cuda/gpu_check_ort.py "$library" "$pvn3d" "$cases" "${stand_in[@]}"
fi

# ------------------------------------------------------------------------------------------------------------- report
awk -F '\t' '{ printf "%-8s %s: %s\n", $1, $2, $3; n[$1]++ }
             END { printf "%d passed, %d failed, %d skipped\n", n["passed"], n["failed"], n["skipped"] }' \
  "$results" | tee "$report.txt"
awk -F '\t' -v emulated="$([[ -n $emulated ]] && echo true || echo false)" 'function quoted(s) { gsub(/\\/, "\\\\", s); gsub(/"/, "\\\"", s); return "\"" s "\"" }
             BEGIN { printf "{\"emulated\": %s, \"checks\": [", emulated }
             { printf "%s\n  {\"status\": %s, \"name\": %s, \"detail\": %s}", (NR > 1 ? "," : ""), quoted($1), quoted($2), quoted($3) }
             END { print "\n]}" }' "$results" > "$report.json"
rm -f "$results" "$report.stderr"
! grep -q '^failed' "$report.txt" && grep -q 'equals the CPU' "$report.txt"
