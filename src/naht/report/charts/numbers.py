"""Numbers in words: as many digits as their intervals allow."""

from __future__ import annotations

import math

from naht.report.content import Mark, Published

MINUS, NOTHING = "\u2212", "\u2013"


def decimals(value: float, half_width: float | None = None) -> int:
    """Digits after the point: two significant ones of the interval, or three of a number that has none."""
    scale, significant = (half_width, 2) if half_width else (abs(value), 3)
    if not scale or not math.isfinite(scale):
        return 0
    rounded = float(f"{scale:.{significant - 1}e}")  # 0.999 is 1.0
    return min(max(significant - 1 - math.floor(math.log10(rounded)), 0), 6)


def number(value: float | None, places: int | None = None) -> str:
    """With a real minus sign and never a minus zero."""
    if value is None or not math.isfinite(value):
        return NOTHING
    text = f"{value:.{decimals(value) if places is None else places}f}"
    return text.replace("-", MINUS) if float(text) else text.removeprefix("-")


def estimate(mean: float, low: float | None, high: float | None, *, sign: bool = False, most: int = 6) -> str:
    """'28.3 ± 1.8', or '0.93 [0.81, 1.00]' where the interval is lopsided; at most so many digits after the point."""
    plus = "+" if sign and mean > 0 else ""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return plus + number(mean)
    half = (high - low) / 2
    places = min(decimals(mean, half), most)
    text = plus + number(mean, places)
    if half == 0:
        return text
    if abs((high + low) / 2 - mean) > 0.02 * half:
        return f"{text} [{number(low, places)}, {number(high, places)}]"
    return f"{text} ± {number(half, places)}"


def published(paper: Published) -> str:
    """'about 14.2 ± 1.1 (read off Figure 3)'."""
    half = paper.half_width
    low, high = (None, None) if half is None else (paper.mean - half, paper.mean + half)
    text = estimate(paper.mean, low, high)
    if paper.read_off:
        return f"about {text} (read off {paper.where or 'a plot'})"
    return f"{text} ({paper.where})" if paper.where else text


def describe(mark: Mark) -> str:
    """Everything a mark says, exactly."""
    parts = [estimate(mark.value, mark.low, mark.high)]
    if mark.trials:
        places = decimals(mark.value, max(mark.trials) - min(mark.trials))
        parts.append(f"seeds {', '.join(number(t, places) for t in mark.trials)}")
    if mark.paper is not None:
        parts.append(f"the paper: {published(mark.paper)}")
    if mark.note:
        parts.append(mark.note)
    return "; ".join(parts)


def unit(largest: float) -> tuple[float, str]:
    """What numbers up to this one are counted in, and its letter: ones, thousands or millions."""
    return (1e6, "M") if largest >= 1e6 else (1e3, "k") if largest >= 1e4 else (1.0, "")


def large(value: float) -> str:
    """Steps in thousands and millions: 2,500,000 -> 2.5M."""
    size, letter = unit(abs(value))
    return number(value / size, 1).removesuffix(".0") + letter
