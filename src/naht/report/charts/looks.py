"""How methods look: their colours, dashes and markers, and the style sheet that fills colours in."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from naht.report.content import Figure, Level, Panel, Series

TONES = (
    ("#0072b2", "#4ba9e6"),
    ("#d55e00", "#ff8f4a"),
    ("#009e73", "#35c79d"),
    ("#cc79a7", "#e6a0c6"),
    ("#e69f00", "#f0b840"),
    ("#56b4e9", "#93d2f7"),
    ("#33363d", "#e4e6ea"),
    ("#8d9199", "#9a9fa8"),
    ("#7b5bb5", "#b59be6"),
    ("#8c6d1f", "#cbb26a"),
)
"""(on light, on dark) paper: Okabe and Ito's colours for any colour vision, ink, grey, and two more."""
INK, QUIET, GRID, PAPER = (
    ("#1d2026", "#e7e9ed"),
    ("#646a75", "#9aa1ad"),
    ("#e8eaee", "#2a2e36"),
    ("#ffffff", "#15171c"),
)
HEAT = ("#0b4f79", "#7cc4f5")
HEAT_STEPS = 10
FONT = "-apple-system, 'Segoe UI', Inter, Roboto, 'Helvetica Neue', Arial, system-ui, sans-serif"

DASHES = ("", "7 3", "2 3", "8 3 2 3", "12 4")
SHAPES = ("circle", "square", "triangle", "diamond", "down", "plus")


@dataclass(frozen=True)
class Look:
    """How a method looks: colour, and what tells it apart without colour."""

    tone: int
    dash: str = ""
    shape: str = "circle"

    def variant(self, k: int) -> Look:
        """The k-th of several series of one method: they share its colour and differ in dash and marker."""
        if k == 0:
            return self
        dash = (DASHES.index(self.dash) if self.dash in DASHES else 0) + k
        shape = SHAPES.index(self.shape) + k
        return Look(self.tone, DASHES[dash % len(DASHES)], SHAPES[shape % len(SHAPES)])


KNOWN = {
    "poam": Look(0),
    "ippo-naht": Look(1, "7 3", "square"),
    "poam-aht": Look(2, "2 3", "triangle"),
    "best-naive": Look(3, "8 3 2 3", "diamond"),
    "upper": Look(6, "12 4", "plus"),
    "ippo": Look(4, "7 3", "down"),
    "mappo": Look(5, "4 2", "square"),
    "vdn": Look(8, "", "diamond"),
    "qmix": Look(9, "8 3 2 3", "triangle"),
    "iql": Look(7, "2 3", "plus"),
    "poam-imitating": Look(8, "12 4", "circle"),
    "ippo-naht-imitating": Look(4, "12 4", "square"),
    "poam-no-ucd": Look(5, "2 3", "circle"),
    "ippo-naht-no-ucd": Look(9, "2 3", "square"),
    "told": Look(6, "12 4", "triangle"),
    "controlled": Look(0, "", "square"),
    "uncontrolled": Look(4, "7 3", "circle"),
    "matched": Look(0, "", "triangle"),
    "mismatched": Look(7, "7 3", "diamond"),
    "observation": Look(7, "8 3 2 3", "square"),
}
"""The methods that every study has."""
SYNONYMS = {"naive": "best-naive", "upper-reference": "upper", "naht": "poam"}
OTHER_TONES = (5, 4, 8, 2, 9, 3, 1, 7, 0)
"""In which order methods that no study knows get colours."""


def method_name(name: str) -> str:
    """'Best naive' and 'best_naive' are one method."""
    plain = re.sub(r"[\s_]+", "-", name.strip().lower())
    return SYNONYMS.get(plain, plain)


def method_of(item: Series | Level) -> str:
    return method_name(item.method or item.name)


def items_of(panel: Panel) -> list[Series | Level]:
    """What has a look in a panel: series, then levels."""
    return [*panel.series, *panel.levels]


def methods_in(figures: Iterable[Figure]) -> Iterator[str]:
    """Every method drawn, in the order of its first appearance."""
    panels = (panel for figure in figures for panel in figure.panels)
    yield from dict.fromkeys(method_of(item) for panel in panels for item in items_of(panel))


def palette_of(methods: Iterable[str]) -> dict[str, Look]:
    """How each method looks: as everywhere, or if no study knows it, with the next other colour."""
    palette = dict(KNOWN)
    for method in methods:
        if method not in palette:
            k = len(palette) - len(KNOWN)
            tone = OTHER_TONES[k % len(OTHER_TONES)]
            palette[method] = Look(tone, DASHES[k % len(DASHES)], SHAPES[k % len(SHAPES)])
    return palette


def _channels(colour: str) -> list[int]:
    """Red, green and blue from 0 to 255."""
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def _mix(paper: str, colour: str, share: float) -> str:
    pairs = zip(_channels(paper), _channels(colour), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def brightness(colour: str) -> float:
    """Relative luminance, as contrast is measured by."""
    red, green, blue = ((channel / 255) ** 2.2 for channel in _channels(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _readable(background: str, choices: Sequence[str]) -> str:
    """The choice with the highest contrast."""
    behind = brightness(background) + 0.05
    return max(choices, key=lambda c: abs(math.log((brightness(c) + 0.05) / behind)))


def colour_rules() -> dict[str, tuple[str, str]]:
    """Selector -> its colour on light and on dark paper."""
    rules = {".chart": INK, ".quiet": QUIET, ".grid": GRID, ".bare": PAPER}
    rules |= {f".t{i}": tone for i, tone in enumerate(TONES)}
    for step in range(HEAT_STEPS):
        share = 0.06 + 0.9 * step / (HEAT_STEPS - 1)
        fill = [_mix(paper, heat, share) for paper, heat in zip(PAPER, HEAT, strict=True)]
        text = [_readable(fill[i], (INK[i], PAPER[i], "#000000", "#ffffff")) for i in range(2)]
        rules[f".h{step}"] = (fill[0], fill[1])
        rules[f".h{step} text"] = (text[0], text[1])
    return rules


def style(standalone: bool = False) -> str:
    """Style sheet of all charts: of a page, which says by `color-scheme` what it is, or of a file of its own."""
    shared = ".chart text{font-size:12px;fill:currentColor}.chart .title{font-weight:600;font-size:13px}"
    shared += ".chart .small{font-size:11px}.chart .strong{font-weight:600}"
    shared += ".chart .number{font-variant-numeric:tabular-nums}"
    shared += "path.grid,path.quiet{stroke:currentColor;fill:none}"
    rules = {name if name == ".chart" else f".chart {name}": pair for name, pair in colour_rules().items()}
    if not standalone:
        return shared + "".join(f"{name}{{color:light-dark({a},{b})}}" for name, (a, b) in rules.items())
    light = "".join(f"{name}{{color:{a}}}" for name, (a, _) in rules.items())
    dark = "".join(f"{name}{{color:{b}}}" for name, (_, b) in rules.items())
    return f"{shared}.chart{{font-family:{FONT}}}{light}@media (prefers-color-scheme:dark){{{dark}}}"
