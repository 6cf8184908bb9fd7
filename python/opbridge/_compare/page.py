"""A Report as an HTML page that stands alone: its style is inside, it refers to nothing outside, and any browser shows
it, light or dark. cli/page.cpp writes the same pages for the command."""

import html
import math
from importlib import resources

from .report import HEAD, _severity, cells


def write(report, path):
    parts = [_begin(f"opbridge compare: {report.first_title} against {report.second_title}", report)]
    parts.append(
        _facts(
            [
                ("first", report.first_title),
                ("second", f"{report.second_title}, in ONNX Runtime, optimize={report.optimize}"),
                ("compared", f"{len(report.outputs)} outputs, {len(report.rows)} inner tensors"),
                ("without a counterpart", str(report.unmatched)),
            ]
        )
    )
    causes = [f"weight '{n}' is not the module's: {d}" for n, d in report.weights]
    parts.append(_list("What explains it", [*causes, *map(str, report.origins)]))
    rows = report.rows or report.outputs
    parts.append(_chart("Error of each tensor, as a part of what is allowed, in the model's order", rows))
    parts.append(_table("Outputs", [HEAD, *map(cells, report.outputs)], _classes(report.outputs)))
    if report.operators:
        head = ["operator", "node", "against", "output", "difference", ""]
        parts.append(
            _table("Custom operators on the inputs that they received", [head, *(o.cells() for o in report.operators)],
                   _classes(report.operators))
        )  # fmt: skip
    if report.rows:
        head = [*HEAD[:3], "source", "matched by", *HEAD[3:]]
        inner = [[*c[:3], r.source, r.by, *c[3:]] for r, c in ((r, cells(r)) for r in report.rows)]
        parts.append(_table("Inner tensors, in the model's order", [head, *inner], _classes(report.rows)))
    parts.append(_list("Notes", report.notes))
    with open(path, "w", encoding="utf-8") as file:
        file.write("".join(parts) + "</main>\n</body>\n</html>\n")


def _begin(title, report):
    style = resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    kind = "good" if report.equal and report.first_divergence is None else "bad"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{html.escape(title)}</h1>\n<p class="verdict {kind}">{html.escape(report.verdict())}</p>\n'
    )


def _facts(pairs):
    items = "".join(f"<dt>{html.escape(n)}</dt><dd>{html.escape(v)}</dd>\n" for n, v in pairs)
    return f"<dl>\n{items}</dl>\n"


def _classes(rows):
    return ["" if r.difference.equal else "bad" for r in rows]


def _table(heading, rows, classes):
    text = f'<h2>{html.escape(heading)}</h2>\n<div class="wide"><table>\n'
    for kind, tag, row in zip(["", *classes], ["th", *["td"] * len(classes)], rows, strict=True):
        style = f' class="{kind}"' if kind else ""
        text += f"<tr{style}>" + "".join(f"<{tag}>{html.escape(str(c))}</{tag}>" for c in row) + "</tr>\n"
    return text + "</table></div>\n"


def _list(heading, items):
    if not items:
        return ""
    return (
        f"<h2>{html.escape(heading)}</h2>\n<ul>\n"
        + "".join(f"<li>{html.escape(i)}</li>\n" for i in items)
        + "</ul>\n"
    )


# Decades of what is allowed that the chart shows; smaller and larger ones end there.
_LOW, _HIGH = -6, 3


def _chart(heading, rows):
    if not rows:
        return ""
    width, left, top, decade = max(8, min(40, 700 / len(rows))), 46, 10, 20
    bottom, right = top + (_HIGH - _LOW) * decade, left + width * len(rows)
    y_of = lambda power: top + (_HIGH - power) * decade
    parts = [
        f'<h2>{html.escape(heading)}</h2>\n<div class="wide">\n<svg role="img" width="{right + 4:g}" '
        f'height="{bottom + 8:g}" viewBox="0 0 {right + 4:g} {bottom + 8:g}">\n'
    ]
    for power, label in ((-6, "1e-6"), (-3, "1e-3"), (0, "limit"), (3, "1e3")):
        parts.append(
            f'<line class="grid" x1="{left}" x2="{right:g}" y1="{y_of(power)}" y2="{y_of(power)}"/>'
            f'<text x="{left - 4}" y="{y_of(power) + 4}" text-anchor="end">{label}</text>\n'
        )
    for k, row in enumerate(rows):
        ratio = _severity(row)
        power = _LOW + 0.1
        if ratio > 0:
            power = min(max(math.log10(ratio) if math.isfinite(ratio) else _HIGH, power), _HIGH)
        where = f"{row.value} ({row.op or 'input'}{', ' + row.module if row.module else ''})"
        kind = "good" if row.difference.equal else "bad"
        parts.append(
            f'<rect class="{kind}" x="{left + width * k + 1:g}" y="{y_of(power):g}" '
            f'width="{width - 2:g}" height="{bottom - y_of(power):g}"><title>{html.escape(where)}: '
            f"{ratio:.3g} of the limit</title></rect>\n"
        )
    parts.append(
        f'<line class="limit" x1="{left}" x2="{right:g}" y1="{y_of(0)}" y2="{y_of(0)}"/>\n</svg>\n</div>\n'
    )
    return "".join(parts)
