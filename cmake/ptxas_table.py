#!/usr/bin/env python3
"""Runs a compiler command and shows what ptxas says of each kernel (-Xptxas=-v) as one table."""

import re
import shutil
import subprocess
import sys

ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
NOISE = re.compile(
    r"ptxas info\s*: (\d+ bytes gmem|Compile time|Function properties|\(C\d+\))|^\s*Function properties"
)


def parse(text):
    """The kernels' rows, and the lines that say something else."""
    rows, rest = [], []
    for line in text.splitlines():
        if m := ENTRY.search(line):
            rows.append({"kernel": m[1], "arch": m[2], "registers": 0, "stack": 0, "spills": 0, "shared": 0})
        elif rows and (m := STACK.search(line)):
            rows[-1].update(stack=int(m[1]), spills=int(m[2]) + int(m[3]))
        elif rows and (m := USED.search(line)):
            shared = SHARED.search(line)
            rows[-1].update(registers=int(m[1]), shared=int(shared[1]) if shared else 0)
        elif not NOISE.search(line):
            rest.append(line)
    return rows, rest


def readable(names):
    """clip_kernel<float, 4> for _ZN32_GLOBAL__N__b51ce050_4_a_cu_main11clip_kernelIfLi4EEEvPKT_PS1_l"""
    if names and shutil.which("c++filt"):
        filtered = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True)
        names = filtered.stdout.splitlines()
    names = [re.sub(r"_GLOBAL__N__\w+::|\(anonymous namespace\)::|opbridge::|^void ", "", n) for n in names]
    return [re.sub(r"\(int\)(\d+)", r"\1", n.replace("(bool)", "")).split("(")[0] for n in names]


def table(rows):
    names = readable([r["kernel"] for r in rows])
    rows = [dict(row, kernel=names[i]) for i, row in enumerate(rows)]
    rows.sort(key=lambda r: (r["kernel"], int(re.sub(r"\D", "", r["arch"]))))
    width = max(len(r["kernel"]) for r in rows)
    columns = ["arch", "registers", "stack", "spills", "shared"]
    yield f"{'kernel':{width}}  " + "  ".join(columns)
    for r in rows:
        yield f"{r['kernel']:{width}}  " + "  ".join(f"{r[c]:>{len(c)}}" for c in columns)


def main(command):
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    rows, rest = parse(done.stderr)
    for line in rest:
        print(line, file=sys.stderr)
    if rows:
        print("\n".join(table(rows)))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
