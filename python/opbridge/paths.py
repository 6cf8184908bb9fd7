"""Where the libraries and the CMake package that come with opbridge lie."""

import os
import sysconfig
from pathlib import Path

from .errors import LoadError

_PACKAGE = Path(__file__).resolve().parent
_SOURCE_TREE = _PACKAGE.parents[1]


def library_path(name):
    """The file lib<name>.so. Looked for in the folders of $OPBRIDGE_LIBRARY_PATH, in the installed package,
    and, where opbridge is used from its source tree, in $OPBRIDGE_BUILD/lib (build/release/lib). Raises
    LoadError."""
    folders = [Path(f) for f in os.environ.get("OPBRIDGE_LIBRARY_PATH", "").split(os.pathsep) if f]
    folders.append(_PACKAGE / "lib")
    if (_SOURCE_TREE / "include" / "opbridge" / "abi.h").exists():
        folders.append(_SOURCE_TREE / os.environ.get("OPBRIDGE_BUILD", "build/release") / "lib")
    for folder in folders:
        path = folder / f"lib{name}.so"
        if path.exists():
            return str(path)
    raise LoadError(
        f"no lib{name}.so in {', '.join(map(str, folders))}: build it, or name its folder in "
        "OPBRIDGE_LIBRARY_PATH"
    )


def command_path():
    """The `opbridge` command of this installation: beside this Python, or, where opbridge is used from its source tree,
    in $OPBRIDGE_BUILD/bin (build/release/bin). Raises LoadError."""
    candidates = [Path(sysconfig.get_path("scripts")) / "opbridge"]
    if (_SOURCE_TREE / "include" / "opbridge" / "abi.h").exists():
        candidates.insert(
            0, _SOURCE_TREE / os.environ.get("OPBRIDGE_BUILD", "build/release") / "bin" / "opbridge"
        )
    for path in candidates:
        if path.exists():
            return str(path)
    raise LoadError(f"no command `opbridge` at {' or '.join(map(str, candidates))}: build it (make build)")


def cmake_dir():
    """The folder of opbridgeConfig.cmake, for CMAKE_PREFIX_PATH; `python -m opbridge --cmake-dir` prints it. Raises
    LoadError where this package came without (the source tree: install with cmake or pip)."""
    folder = _PACKAGE / "lib" / "cmake" / "opbridge"
    if not (folder / "opbridgeConfig.cmake").exists():
        raise LoadError(
            f"no CMake package in '{_PACKAGE}': install opbridge with pip, or with cmake --install"
        )
    return str(folder)
