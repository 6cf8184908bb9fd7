"""What compare() found: as text, data, a page and a plot."""

import json
import os
from dataclasses import asdict, dataclass, field

import numpy as np

from ..errors import NotSupportedError
from .metrics import Difference


@dataclass
class Row:
    """A tensor that both sides have. `value`: its name in the ONNX model, made by `node`, an `op`, the `index`-th
    there; `module` and `source`: the torch module and line it comes from, or the other ONNX model's node; `by`: how
    it was matched (see match.py); `inherited`: whether a tensor that it is computed from differs already, None if
    none of them is compared."""

    value: str
    node: str
    op: str
    index: int
    module: str
    source: str
    dtype: str
    shape: tuple
    by: str
    difference: Difference
    note: str = ""
    inherited: bool | None = None

    def to_json(self):
        return asdict(self) | {"shape": list(self.shape), "difference": self.difference.to_json()}

    @property
    def where(self):
        """ "node 'Conv_3' (Conv), module 'layer1.0.conv', network.py:12"""
        parts = [f"node '{self.node}' ({self.op})" if self.op else f"'{self.value}'"]
        parts += [f"module '{self.module}'"] if self.module else []
        parts += [_short(self.source)] if self.source else []
        return ", ".join(parts)


@dataclass
class NonFinite:
    """The first operation that makes a `kind` ("NaN", "infinite") value from inputs without one. `side`: "onnx",
    "first" (the torch model, or the first ONNX model), or "input": the input `name` has one already. `inputs`: what
    the operation read."""

    kind: str
    side: str
    name: str
    op: str
    module: str
    source: str
    inputs: dict

    def __str__(self):
        if self.side == "input":
            return f"{self.kind} values are in the input '{self.name}' already"
        what = "the ONNX model" if self.side == "onnx" else "the first model"
        where = [
            f"node '{self.name}'" if self.side == "onnx" else None,
            f"module '{self.module}'" if self.module else None,
        ]
        where = ", ".join([w for w in where if w] + ([_short(self.source)] if self.source else []))
        read = "; ".join(f"{name}: {what}" for name, what in self.inputs.items())
        return f"{self.kind} values in {what} begin at {self.op} ({where})" + (
            f", which read {read}" if read else ""
        )


def _short(source):
    return (
        os.path.relpath(source)
        if os.path.isabs(source) and not os.path.relpath(source).startswith("..")
        else source
    )


@dataclass
class Report:
    """`rows`: inner tensors in the ONNX model's order; `outputs`: the graph's outputs; `origins`: where NaN and
    infinite values begin; `weights`: (name, Difference) of the weights that are not the module's; `operators`: custom
    operators on their own (compare_operators); `unmatched`: tensors of the ONNX model that nothing was found for."""

    first_title: str
    second_title: str
    optimize: str = "all"
    tolerance: float | None = None
    rows: list = field(default_factory=list)
    outputs: list = field(default_factory=list)
    origins: list = field(default_factory=list)
    weights: list = field(default_factory=list)
    operators: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    unmatched: int = 0
    nodes: int = 0

    @property
    def equal(self):
        """Whether all outputs and operators agree within their tolerances."""
        return all(r.difference.equal for r in (*self.outputs, *self.operators))

    @property
    def first_divergence(self):
        """The first Row that differs and is computed from nothing that does, or None."""
        differing = [r for r in self.rows if not r.difference.equal]
        return next((r for r in differing if not r.inherited), differing[0] if differing else None)

    @property
    def largest(self):
        """The Row whose error is largest in terms of its limit, or None."""
        rows = [*self.rows, *self.outputs]
        return max(rows, key=_severity, default=None)

    def finish(self):
        if self.first_divergence is None and not self.equal and self.rows:
            self.notes.append(
                "no inner tensor differs that could be matched: the difference arises after the last of them, or in "
                "what ONNX Runtime fuses"
            )
        if self.equal and self.first_divergence is not None:
            self.notes.append("an inner tensor differs, but no output does")

    def verdict(self):
        """One or two sentences."""
        first = self.first_divergence
        if first is None:
            if self.equal:
                return f"equal: all {len(self.outputs)} outputs and {len(self.rows)} inner tensors agree"
            names = ", ".join(
                f"'{r.value}'" for r in (*self.outputs, *self.operators) if not r.difference.equal
            )
            return f"different: {names}"
        text = f"{'equal outputs' if self.equal else 'different'}: first at {first.where}: {first.difference}"
        if first.inherited is False:
            text += ". All that it reads agrees: it is this operation, or its weights"
        return text

    def __str__(self):
        lines = [
            f"{self.first_title} against {self.second_title} (ONNX Runtime, optimize={self.optimize})",
            self.verdict(),
        ]
        lines += [f"  weight '{name}' is not the module's: {d}" for name, d in self.weights]
        lines += [f"  {o}" for o in self.origins]
        lines += [f"  note: {n}" for n in self.notes]
        lines += ["", *_table(HEAD, [cells(r) for r in self.outputs])]
        if self.rows:
            lines += ["", *_table(HEAD, [cells(r) for r in self.rows])]
            ways = {}
            for row in self.rows:
                ways[row.by] = ways.get(row.by, 0) + 1
            lines += [
                f"  {len(self.rows)} tensors compared, matched by "
                + ", ".join(f"{w} ({n})" for w, n in ways.items())
                + f"; {self.unmatched} have no counterpart"
            ]
        if self.operators:
            lines += [
                "",
                *_table(
                    ["operator", "node", "against", "output", "difference", ""],
                    [o.cells() for o in self.operators],
                ),
            ]
        return "\n".join(lines)

    def to_json(self):
        """Everything as lists and dicts."""
        return _plain(
            {
                "first": self.first_title,
                "second": self.second_title,
                "equal": self.equal,
                "verdict": self.verdict(),
                "optimize": self.optimize,
                "tolerance": self.tolerance,
                "first_divergence": self.first_divergence.to_json() if self.first_divergence else None,
                "outputs": [r.to_json() for r in self.outputs],
                "rows": [r.to_json() for r in self.rows],
                "operators": [o.to_json() for o in self.operators],
                "origins": [asdict(o) for o in self.origins],
                "weights": [{"name": n, "difference": d.to_json()} for n, d in self.weights],
                "unmatched": self.unmatched,
                "notes": self.notes,
            }
        )

    def json(self, path):
        """Writes to_json() to a file."""
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.to_json(), file, indent=2)

    def html(self, path):
        """Writes a page that needs nothing else, for a browser."""
        from .page import write

        write(self, path)

    def plot(self, path):
        """Draws the error of each tensor, in terms of its limit, into a .png, .svg or .pdf; needs matplotlib."""
        try:
            from matplotlib.figure import Figure
        except ImportError as e:
            raise NotSupportedError(f"the plot needs matplotlib: pip install matplotlib ({e})") from None
        rows = self.rows or self.outputs
        figure = Figure(figsize=(max(6, min(24, 0.18 * len(rows))), 4.5), layout="constrained")
        axes = figure.subplots()
        heights = np.array([_severity(r) for r in rows])
        heights = np.where(
            np.isfinite(heights), heights, np.nanmax(heights[np.isfinite(heights)], initial=1) * 10
        )
        colours = ["#c0392b" if not r.difference.equal else "#2e7d6b" for r in rows]
        axes.bar(range(len(rows)), np.maximum(heights, 1e-6), color=colours, bottom=0)
        axes.axhline(1, color="grey", linestyle="--", linewidth=1)
        axes.set_yscale("log")
        axes.set_ylabel("error / limit")
        axes.set_title(f"{self.first_title} against {self.second_title}")
        axes.set_xticks(range(len(rows)), [r.value for r in rows], rotation=90, fontsize=6)
        figure.savefig(path)


HEAD = ["tensor", "op", "module", "shape", "max", "mean", "relative", "cosine", "limit", ""]


def _severity(row):
    """The error in terms of its limit; infinite where nothing is allowed."""
    d = row.difference
    if d.error == 0:
        return 0.0
    return d.error / d.limit if d.limit else float("inf")


def cells(row):
    d = row.difference
    verdict = "" if d.equal else "DIFFERS"
    special = str(d) if d.kind != "value" or d.problem else ""
    text = " ".join(filter(None, [verdict, special, f"({row.note})" if row.note else ""]))
    shown = (
        ["-"] * 4
        if d.problem or d.kind == "index"
        else [f"{v:.3g}" for v in (d.max, d.mean, d.relative)] + [f"{d.cosine:.6g}"]
    )
    limit = f"{d.limit:.3g}" if d.limit else "0"
    return [row.value, row.op, row.module, f"{row.dtype}{list(row.shape)}", *shown, limit, text]


def _table(head, rows):
    widths = [max(len(str(r[k])) for r in (head, *rows)) for k in range(len(head))]
    return [
        ("  " + "  ".join(str(c).ljust(w) for c, w in zip(r, widths, strict=True))).rstrip()
        for r in (head, *rows)
    ]


def _plain(value):
    """As JSON has it: numbers that are not finite become text."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else str(float(value))
    return int(value) if isinstance(value, np.integer) else value
