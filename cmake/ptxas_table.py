#!/usr/bin/env python3
"""Runs a compiler command and shows what ptxas says of each kernel (-Xptxas=-v) as one table.

  ptxas_table.py [--budget FILE TOOLKIT] COMMAND...

FILE keeps kernels from growing unseen. Its first line names the toolkit and architecture that it was measured with;
where TOOLKIT is another one, nothing is checked. Each other line is a source, a kernel (whatever its template
arguments), and the most registers, bytes of stack, of spills and of static shared memory it may use. A kernel above
that fails the build; one that is not in FILE is shown with the line to add.
"""

import os
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
    columns = ["arch", *COLUMNS]
    yield f"{'kernel':{width}}  " + "  ".join(columns)
    for r in rows:
        yield f"{r['kernel']:{width}}  " + "  ".join(f"{r[c]:>{len(c)}}" for c in columns)


COLUMNS = ["registers", "stack", "spills", "shared"]


def compare(rows, source, file, toolkit):
    """(lines of kernels above their budget, lines of kernels without one)."""
    with open(file) as f:
        head, *lines = [line.split() for line in f if line.strip() and not line.startswith("#")]
    above, unknown, used = [], [], {}
    if head[0] != toolkit:
        return above, unknown
    budget = {(line[0], line[1]): [int(n) for n in line[2:]] for line in lines}
    for name, row in zip(readable([r["kernel"] for r in rows]), rows, strict=True):
        if row["arch"] == head[1]:
            kernel = name.split("<")[0].split("::")[-1]
            most = used.get(kernel, [0] * len(COLUMNS))
            used[kernel] = [max(a, row[c]) for a, c in zip(most, COLUMNS, strict=True)]
    for kernel, numbers in used.items():
        allowed = budget.get((source, kernel))
        line = f"{source} {kernel} {' '.join(map(str, numbers))}"
        if allowed is None:
            unknown.append(line)
        elif any(n > a for n, a in zip(numbers, allowed, strict=True)):
            above.append(f"{line}  instead of {' '.join(map(str, allowed))}")
    return above, unknown


def main(arguments):
    budget = None
    if arguments[0] == "--budget":
        budget, arguments = arguments[1:3], arguments[3:]
    done = subprocess.run(arguments, stderr=subprocess.PIPE, text=True)
    rows, rest = parse(done.stderr)
    for line in rest:
        print(line, file=sys.stderr)
    if rows:
        print("\n".join(table(rows)))
    if budget and done.returncode == 0:
        source = next((os.path.basename(a) for a in arguments if a.endswith(".cu")), "")
        above, unknown = compare(rows, source, *budget)
        if unknown:
            print(f"not yet in {budget[0]} (source, kernel, {', '.join(COLUMNS)}):", *unknown, sep="\n")
        if above:
            print(
                f"above {budget[0]} (source, kernel, {', '.join(COLUMNS)}):",
                *above,
                sep="\n",
                file=sys.stderr,
            )
            return 1
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
