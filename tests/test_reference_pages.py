"""docs/operators is what scripts/reference.py writes."""

import re
import subprocess
import sys

import opbridge
import pytest
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


SECTIONS = ("Edges", "Numerics", "Memory", "Errors", "Source")


@pytest.mark.parametrize("name", ["my_custom_ops", "pvn3d_custom_op"])
def test_contracts_are_tables(name):
    """One argument a line and one section a line: what a formatter that flows comments would undo."""
    library = opbridge.load(built(name), torch=False)
    gradients = {o.grad for o in library.operators.values()}
    for operator in library.operators.values():
        if operator.name in gradients:
            continue
        (header,) = (ROOT / "ops").glob(f"**/{operator.folder}/{operator.folder}.h")
        contract = re.search(r"((?:^///.*\n)+)", header.read_text(), re.MULTILINE)[1]
        # A row begins with what it describes: one name, or several ("bandwidth, max_iter").
        rows = [
            re.findall(r"\w+", row) for row in re.findall(r"^///   ((?:\w+, )*\w+)", contract, re.MULTILINE)
        ]
        described = {word for row in rows for word in row}
        for argument in (*operator.inputs, *operator.attributes, *operator.outputs):
            assert argument.name in described, f"{header}: no row of its own for '{argument.name}'"
        for section in SECTIONS:
            assert re.search(rf"^/// {section}: ", contract, re.MULTILINE), f"{header}: no line '{section}:'"
