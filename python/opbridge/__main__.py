"""`python -m opbridge --cmake-dir` prints where find_package(opbridge) finds it; `python -m opbridge verify` is what
`opbridge verify` runs; the other commands are `opbridge`'s own."""

import argparse
import sys

from .errors import LoadError
from .paths import cmake_dir

if sys.argv[1:2] == ["verify"]:
    from .verify import main

    sys.exit(main(sys.argv[2:]))
parser = argparse.ArgumentParser("python -m opbridge", description=__doc__)
parser.add_argument(
    "--cmake-dir", action="store_true", required=True, help="print the folder for CMAKE_PREFIX_PATH"
)
parser.parse_args()
try:
    print(cmake_dir())
except LoadError as e:
    sys.exit(f"error: {e}")
