#!/usr/bin/env python3
"""Runs a compiler command and shows what ptxas says of each kernel (-Xptxas=-v) as one table.

  ptxas_table.py [--budget FILE TOOLKIT] COMMAND...

FILE keeps kernels from growing unseen. Its first line names the toolkit and architecture that it was measured with;
where TOOLKIT is another one, nothing is checked. Each other line is a source, a kernel (whatever its template
arguments), and the most registers, bytes of stack, of spills and of static shared memory it may use. A kernel above
that fails the build, and so does one that is not in FILE. With OPBRIDGE_UPDATE_PTXAS_BUDGET=1 in the environment of the
build, the lines of every source that it compiles are written anew instead.
"""

import fcntl
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


def read_budget(file):
    """(toolkit, architecture, {(source, kernel): numbers})"""
    with open(file) as f:
        head, *lines = [line.split() for line in f if line.strip() and not line.startswith("#")]
    return head[0], head[1], {(line[0], line[1]): [int(n) for n in line[2:]] for line in lines}


def measure(rows, arch):
    """The most that each kernel uses, whatever its template arguments: {kernel: numbers}"""
    used = {}
    for name, row in zip(readable([r["kernel"] for r in rows]), rows, strict=True):
        if row["arch"] == arch:
            kernel = name.split("<")[0].split("::")[-1]
            most = used.get(kernel, [0] * len(COLUMNS))
            used[kernel] = [max(a, row[c]) for a, c in zip(most, COLUMNS, strict=True)]
    return used


def line_of(source, kernel, numbers):
    return f"{source} {kernel} {' '.join(map(str, numbers))}"


def compare(used, source, budget):
    """A line for each kernel that is above its budget or has none."""
    for kernel, numbers in used.items():
        allowed = budget.get((source, kernel))
        if allowed is None:
            yield f"{line_of(source, kernel, numbers)}  has no budget yet"
        elif any(n > a for n, a in zip(numbers, allowed, strict=True)):
            yield f"{line_of(source, kernel, numbers)}  instead of {' '.join(map(str, allowed))}"


def update(used, source, file):
    """Puts the lines of `source` in the place of those that are there."""
    with open(file, "r+") as f:
        fcntl.flock(f, fcntl.LOCK_EX)  # sources are compiled at the same time
        lines = f.read().splitlines()
        own = [i for i, line in enumerate(lines) if line.split()[:1] == [source]]
        at = own[0] if own else len(lines)
        kept = [line for line in lines[at:] if line.split()[:1] != [source]]
        new = [line_of(source, kernel, numbers) for kernel, numbers in sorted(used.items())]
        f.seek(0)
        f.truncate()
        f.write("\n".join([*lines[:at], *new, *kept]) + "\n")


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
        file, toolkit = budget
        source = next((os.path.basename(a) for a in arguments if a.endswith(".cu")), "")
        measured_with, arch, allowed = read_budget(file)
        used = measure(rows, arch) if measured_with == toolkit else {}
        if used and os.environ.get("OPBRIDGE_UPDATE_PTXAS_BUDGET") == "1":
            update(used, source, file)
        elif failed := list(compare(used, source, allowed)):
            print(
                f"{file} allows less (source, kernel, {', '.join(COLUMNS)}):",
                *failed,
                "If that is meant: OPBRIDGE_UPDATE_PTXAS_BUDGET=1 cmake --build <this build folder>",
                sep="\n",
                file=sys.stderr,
            )
            return 1
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
