"""Writes docs/operators/: a page for each operator, from its declaration (the library's manifest) and its contract (the
comment of its header). A test says when they are out of date.

  .venv/bin/python scripts/reference.py [FOLDER]
"""

import re
import sys
from pathlib import Path

import opbridge

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ("my_custom_ops", "pvn3d_custom_op")


def contract(folder):
    """The `///` comment of an operator's header, without the markers."""
    (header,) = (ROOT / "ops").glob(f"**/{folder}/{folder}.h")
    lines = re.search(r"((?:^///.*\n)+)", header.read_text(), re.MULTILINE)[1].splitlines()
    return header.relative_to(ROOT), "\n".join(line[3:].removeprefix(" ") for line in lines)


def cell(text):
    return text.replace("|", "\\|")


def argument_rows(operator, arguments):
    for a in arguments:
        dtypes = operator.dtypes.get(a.dtype, [a.dtype])
        kind = " ".join(k for k in ("optional", "variadic") if getattr(a, k))
        host = " (host memory)" if a.host else ""
        shapes = cell(declared_shapes(operator.signature, a.name))
        yield f"| `{a.name}` | {shapes} | {', '.join(dtypes)}{host} | {kind} | {cell(a.doc)} |"


def declared_shapes(signature, name):
    """The shapes of an argument as the signature spells them."""
    match = re.search(rf"\b{name}\??(?:\.\.\.)?: \w+((?:\[[^\]]*\]\|?)+)", signature)
    return " or ".join(f"`{s}`" for s in re.findall(r"\[[^\]]*\]", match[1]))


def attribute_row(a):
    if a.choices:
        allowed = ", ".join(f"`{c}`" for c in a.choices)
    elif a.min is None and a.max is None:
        allowed = ""
    else:
        low = "(-inf" if a.min is None else f"{'(' if a.min_open else '['}{a.min:g}"
        high = "inf)" if a.max is None else f"{a.max:g}{')' if a.max_open else ']'}"
        allowed = f"{low}, {high}"
    default = "required" if a.required else f"`{a.default:.9g}`" if a.type == "float" else f"`{a.default}`"
    return f"| `{a.name}` | {a.type} | {allowed} | {default} | {cell(a.doc)} |"


def page(library, operator, gradient):
    header, text = contract(operator.folder)
    lines = [
        f"# {operator.name}",
        "",
        operator.doc,
        "",
        f"Library `{library.name}`, ONNX `{operator.qualified_name}` version {library.version}, "
        f"torch `{operator.torch_namespace}::{operator.snake_name}`, devices {', '.join(operator.devices)}. "
        f"Contract: [`{header}`](../../{header}).",
        "",
        "```",
        text,
        "```",
        "",
        "| input | shape | element type | | |",
        "|---|---|---|---|---|",
        *argument_rows(operator, operator.inputs),
        "",
        "| output | shape | element type | | |",
        "|---|---|---|---|---|",
        *argument_rows(operator, operator.outputs),
    ]
    if operator.attributes:
        lines += ["", "| attribute | type | range | default | |", "|---|---|---|---|---|"]
        lines += [attribute_row(a) for a in operator.attributes]
    if gradient:
        lines += [
            "",
            f"The gradient is an operator of its own, `{gradient.name}`:",
            "",
            "```",
            gradient.signature,
            "```",
        ]
    return "\n".join(lines) + "\n"


def write(folder):
    folder.mkdir(parents=True, exist_ok=True)
    index = [
        "# Operators",
        "",
        "Written by `scripts/reference.py` from the operators' declarations and headers.",
    ]
    for name in LIBRARIES:
        library = opbridge.load(opbridge.library_path(name), torch=False)
        index += ["", f"## {library.name}: domain `{library.domain}`, version {library.version}", ""]
        gradients = {o.grad for o in library.operators.values()}
        for operator in library.operators.values():
            if operator.name in gradients:
                continue
            (folder / f"{operator.snake_name}.md").write_text(
                page(library, operator, library.operators.get(operator.grad))
            )
            index.append(f"* [{operator.name}]({operator.snake_name}.md): {operator.doc}")
    (folder / "README.md").write_text("\n".join(index) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "operators")
