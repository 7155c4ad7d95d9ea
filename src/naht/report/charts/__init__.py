"""Figures of a results page as SVG, drawn from `content.Figure`.

Text stays text, every mark can be asked for its numbers, and equal data gives equal bytes. Colours are classes, which a
page or the file's own style sheet fills in for light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from html import escape

from naht.errors import require
from naht.report.charts.categories import draw_dots, draw_matrix
from naht.report.charts.looks import Look, methods_in, palette_of, style
from naht.report.charts.numbers import MINUS, NOTHING, decimals, estimate, large, number, published
from naht.report.charts.plane import draw_plane
from naht.report.charts.sheet import NARROW, WIDE, Sheet
from naht.report.charts.svg import glyph, tag
from naht.report.content import Figure

__all__ = [
    "MINUS",
    "NARROW",
    "NOTHING",
    "WIDE",
    "decimals",
    "draw",
    "estimate",
    "glyph",
    "large",
    "methods_in",
    "number",
    "palette_of",
    "published",
    "style",
    "tag",
]

KINDS: dict[str, Callable[[Sheet], tuple[str, float]]] = {
    "lines": draw_plane,
    "scatter": draw_plane,
    "dots": draw_dots,
    "matrix": draw_matrix,
}
"""What draws the body of a figure and says how high it is."""


def draw(
    figure: Figure,
    name: str,
    *,
    standalone: bool = False,
    width: int = WIDE,
    palette: Mapping[str, Look] | None = None,
    title: str = "",
) -> str:
    """A figure as SVG: a part of a page, or standalone a file that brings its colours for light and dark along.

    `name` makes its inner links unique. `palette` (from `palette_of`) gives methods the same colours in all figures of
    a page; without it, this figure decides alone. `title` is what the figure shows, for those who can't see it.
    """
    require(figure.kind in KINDS, f"can't draw a figure of kind '{figure.kind}': choose from {', '.join(KINDS)}")
    require(len(figure.panels) > 0, f"figure {name} has no panels")
    sheet = Sheet(figure, name, width, palette or palette_of(methods_in([figure])))
    body, exact = KINDS[figure.kind](sheet)
    height = math.ceil(exact)
    label = title or figure.caption or f"{figure.y_label} by {figure.x_label}"
    return tag(
        "svg",
        tag("title", escape(label)) + tag("style", style(standalone=True)) if standalone else "",
        body,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        class_="chart",
        role="img" if standalone else "group",
        aria_label=label,
        width=width if standalone else None,
        height=height if standalone else None,
    )
