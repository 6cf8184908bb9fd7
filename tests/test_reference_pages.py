"""docs/operators is what scripts/reference.py writes."""

import subprocess
import sys

from conftest import ROOT, built


def test_the_pages_are_up_to_date(tmp_path):
    built("my_custom_ops"), built("pvn3d_custom_op")
    subprocess.run([sys.executable, ROOT / "scripts" / "reference.py", tmp_path], check=True)
    written = {p.name: p.read_text() for p in tmp_path.iterdir()}
    committed = {p.name: p.read_text() for p in (ROOT / "docs" / "operators").iterdir()}
    assert written.keys() == committed.keys()
    for name, text in written.items():
        # Which devices a library has kernels for depends on how it was built.
        assert without_devices(text) == without_devices(committed[name]), f"{name}: run scripts/reference.py"


def without_devices(text):
    return "\n".join(
        line.partition(", devices ")[0] + line.partition(". Contract:")[2] for line in text.splitlines()
    )
