"""Runs every bench_*.py of this folder, one after the other, and writes what came out into RESULTS.md and results.svg.

  python bench/run.py [FILE.py ...] [--runs 15] [--out bench]

Rivals that are not installed are left out, and named; scripts/bench_rivals.sh installs them. What each script measured
stays in build/bench/<name>.json; those that are not named keep what they measured before.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MEASURED = HERE.parent / "build" / "bench"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scripts", nargs="*", type=Path)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args()
    MEASURED.mkdir(parents=True, exist_ok=True)
    failed = []
    for script in [s.resolve() for s in args.scripts] or sorted(HERE.glob("bench_*.py")):
        print(f"== {script.name}", flush=True)
        command = [sys.executable, str(script), "--json", str(MEASURED / f"{script.stem}.json")]
        if script.stem != "bench_dispatch":
            command += ["--runs", str(args.runs)]
        if subprocess.run(command).returncode != 0:
            failed.append(script.name)
    reports = {p.stem: json.loads(p.read_text()) for p in sorted(MEASURED.glob("*.json"))}
    contests = [r for r in reports.values() if "cases" in r]
    (args.out / "RESULTS.md").write_text("\n".join(page(contests, reports.get("bench_dispatch"))) + "\n")
    (args.out / "results.svg").write_text(plot({k: c for r in contests for k, c in r["cases"].items()}))
    print(f"written: {args.out / 'RESULTS.md'}, {args.out / 'results.svg'}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def processor():
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith(("model name", "flags"))
    ]
    flags = names[1].split() if len(names) > 1 else []
    simd = next((f for f in ("avx512bw", "avx2", "sse4_2") if f in flags), platform.machine())
    return f"{names[0] if names else platform.processor()} ({simd}), {os.cpu_count()} cores"


def ms(v):
    return f"{v:.3g}" if v < 1000 else f"{v:.0f}"


def page(contests, dispatch):
    versions = {k: v for r in contests for k, v in r["versions"].items()}
    yield "# Benchmark results"
    yield ""
    load = f"{os.getloadavg()[0]:.0f}"
    yield f"Written by `make bench` on {time.strftime('%Y-%m-%d')}. Machine: {processor()}, load {load}."
    yield "Versions: " + ", ".join(f"{k} {v}" for k, v in versions.items()) + "."
    yield ""
    yield "Every result was checked before it was timed. All contestants of a case ran in turn in one process; times"
    yield "are medians of process CPU time with one thread. Times move with the machine, so the ratio to the best exact"
    yield "rival is what counts; goals are those of one thread."
    yield ""
    yield "![How many times faster than the best rival](results.svg)"
    yield ""
    yield "| case | opbridge, ms | best rival, ms | times faster | goal | others, ms |"
    yield "|---|---|---|---|---|---|"
    for report in contests:
        for name, c in report["cases"].items():
            ours, rivals = c["ms"]["opbridge"], dict(c["ms"])
            rivals.pop("opbridge")
            best = rivals.pop(c["best_rival"]) if rivals else float("nan")
            others = ", ".join(f"{k} {ms(v)}" for k, v in sorted(rivals.items(), key=lambda item: item[1]))
            missed = "" if c["ratio"] >= c["goal"] else ", missed"
            yield (
                f"| {name} | {ms(ours)} | {c['best_rival']} {ms(best)} | {c['ratio']:.2f}{missed} | {c['goal']:g} "
                f"| {others} |"
            )
    scaling = {k: v for r in contests for k, v in r.get("one_and_two_threads", {}).items()}
    if scaling:
        yield ""
        yield "## Two threads"
        yield ""
        yield "Calls that take over a millisecond, with one thread and with two in turn: wall time, quietest decile."
        yield "Two can help only as far as the machine has a second processor to give."
        yield ""
        yield "| case | one, ms | two, ms | times faster |"
        yield "|---|---|---|---|"
        for name, (one, two) in scaling.items():
            yield f"| {name} | {ms(one)} | {ms(two)} | {one / two:.2f} |"
    if dispatch:
        yield ""
        yield "## What a call costs"
        yield ""
        yield "One node of my_clip on one element, with every check; the goal is 1.2 times a built-in node from ONNX"
        yield "Runtime 1.24 on and 1.8 times below."
        yield ""
        yield "| ONNX Runtime | my_clip, us | Clip, us | Identity, us | my_clip / Clip |"
        yield "|---|---|---|---|---|"
        for version, ns in dispatch["per_node_ns"].items():
            us = {k: v / 1e3 for k, v in ns.items()}
            ratio = us["my_clip"] / us["Clip"]
            yield f"| {version} | {us['my_clip']:.2f} | {us['Clip']:.2f} | {us['Identity']:.2f} | {ratio:.2f} |"
        yield ""
        yield "From Python, on 8 floats; the goals are 15 us for NumPy and 25 us through torch.ops."
        yield ""
        yield "| call | us |"
        yield "|---|---|"
        for name, ns in dispatch["per_call_ns"].items():
            yield f"| {name} | {ns / 1e3:.1f} |"


def plot(cases):
    """A bar for each case, as long as the logarithm of its ratio; a line where its goal is."""
    row, left, width, most = 22, 250, 420, 2000.0

    def x(ratio):
        from math import log

        return left + width * max(0.0, min(1.0, log(max(ratio, 1e-9) / 0.5) / log(most / 0.5)))

    height = row * len(cases) + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 70}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for tick in (1, 2, 5, 10, 100, 1000):
        lines.append(
            f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="20" y2="{height - 16}" stroke="#ddd"/>'
        )
        lines.append(f'<text x="{x(tick):.1f}" y="14" text-anchor="middle" fill="#666">{tick}x</text>')
    for i, (name, c) in enumerate(cases.items()):
        top = 24 + row * i
        colour = "#3a7d44" if c["ratio"] >= c["goal"] else "#c0702a"
        lines.append(
            f'<text x="{left - 8}" y="{top + 13}" text-anchor="end">{name.replace(">", "&gt;")}</text>'
        )
        bar = max(1.0, x(c["ratio"]) - left)
        lines.append(f'<rect x="{left}" y="{top + 2}" width="{bar:.1f}" height="{row - 8}" fill="{colour}"/>')
        goal = x(c["goal"])
        lines.append(
            f'<line x1="{goal:.1f}" x2="{goal:.1f}" y1="{top}" y2="{top + row - 4}" stroke="black" stroke-width="2"/>'
        )
        lines.append(f'<text x="{left + bar + 4:.1f}" y="{top + 13}">{c["ratio"]:.2f}</text>')
    lines.append(
        f'<text x="{left}" y="{height - 4}" fill="#666">times faster than the best exact rival; black: the goal</text>'
    )
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    main()
