"""Runs every bench_*.py of this folder, one after the other, and keeps what each measured in build/bench/<name>.json.

python bench/run.py [FILE.py ...]

Rivals that are not installed are left out, and named: pip install -r requirements/bench.txt, apt install
libnanoflann-dev.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "build" / "bench"


def main():
    RESULTS.mkdir(parents=True, exist_ok=True)
    scripts = [Path(name).resolve() for name in sys.argv[1:]] or sorted(HERE.glob("bench_*.py"))
    failed = []
    for script in scripts:
        print(f"== {script.name}", flush=True)
        command = [sys.executable, str(script), "--json", str(RESULTS / f"{script.stem}.json")]
        if subprocess.run(command).returncode != 0:
            failed.append(script.name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    print(f"results: {RESULTS}")


main()
