"""A picture to draw on, and the colours and sizes that all pictures share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

from naht.report.figures import COLOURS

FIELD = 520
"""Width and height of a drawn world in pixels."""
SMOOTHNESS = 3
"""Pictures are drawn this many times too large and shrunk, which smooths all edges."""

OURS, STRANGER = COLOURS[0], COLOURS[4]
INK, QUIET, LINE, OBSTACLE, OUTSIDE, PAPER = "#222222", "#6b6b6b", "#d9d9d9", "#b4b4b4", "#f3f3f1", "#ffffff"


def side_colour(controlled: bool) -> str:
    return OURS if controlled else STRANGER


def faded(colour: str, opacity: float) -> str:
    """A colour that lets what is below shine through."""
    return f"{colour}{round(255 * opacity):02x}"


@lru_cache
def _font(size: int, bold: bool) -> ImageFont.FreeTypeFont:
    """The font that comes with matplotlib, so that pictures look alike everywhere."""
    from matplotlib import get_data_path

    return ImageFont.truetype(f"{get_data_path()}/fonts/ttf/DejaVuSans{'-Bold' if bold else ''}.ttf", size)


Point = tuple[float, float]


class Canvas:
    """A picture to draw on, in pixels of the finished size."""

    def __init__(self, width: int, height: int, background: str = PAPER):
        self._image = Image.new("RGB", (width * SMOOTHNESS, height * SMOOTHNESS), background)
        self._opaque, self._glass = ImageDraw.Draw(self._image), ImageDraw.Draw(self._image, "RGBA")

    def _draw(self, *colours: str | None) -> ImageDraw.ImageDraw:
        """Mixing faded colours with what is below costs time; plain ones don't need it."""
        return self._glass if any(c is not None and len(c) > len(PAPER) for c in colours) else self._opaque

    def finish(self) -> Image.Image:
        return self._image.reduce(SMOOTHNESS)

    def disc(self, centre: Point, radius: float, fill: str | None, rim: str | None = None, width: float = 0) -> None:
        (x, y), r = centre, radius
        box = [SMOOTHNESS * v for v in (x - r, y - r, x + r, y + r)]
        self._draw(fill, rim).ellipse(box, fill, rim, round(SMOOTHNESS * width))

    def dashed_ring(self, centre: Point, radius: float, colour: str, width: float) -> None:
        (x, y), r = centre, radius
        box = [SMOOTHNESS * v for v in (x - r, y - r, x + r, y + r)]
        dashes = max(6, round(r / 2))
        for k in range(dashes):
            start = 360 * k / dashes
            self._draw(colour).arc(box, start, start + 180 / dashes, colour, round(SMOOTHNESS * width))

    def box(
        self,
        corner: Point,
        size: Point,
        fill: str | None,
        rim: str | None = None,
        width: float = 0,
        *,
        rounding: float = 3,
    ) -> None:
        (x, y), (w, h) = corner, size
        box = [SMOOTHNESS * v for v in (x, y, x + w, y + h)]
        self._draw(fill, rim).rounded_rectangle(box, rounding * SMOOTHNESS, fill, rim, round(SMOOTHNESS * width))

    def line(self, points: Sequence[Point], colour: str, width: float) -> None:
        scaled = [(SMOOTHNESS * x, SMOOTHNESS * y) for x, y in points]
        self._draw(colour).line(scaled, colour, round(SMOOTHNESS * width), joint="curve")

    def text(
        self, at: Point, text: str, size: float, colour: str = INK, *, bold: bool = False, anchor: str = "lm"
    ) -> None:
        """`anchor` as in Pillow; 'lm': `at` is the left end, half-way up."""
        font = _font(round(SMOOTHNESS * size), bold)
        self._draw(colour).text((SMOOTHNESS * at[0], SMOOTHNESS * at[1]), text, colour, font, anchor)

    def cross(self, centre: Point, radius: float, colour: str, width: float) -> None:
        (x, y), r = centre, radius
        self.line([(x - r, y - r), (x + r, y + r)], colour, width)
        self.line([(x - r, y + r), (x + r, y - r)], colour, width)

    def bars(self, centre: Point, width: float, shares: Sequence[tuple[float, str]]) -> None:
        """How much is left of things, one below the other: of each, a share in [0, 1] in a colour on dark ground."""
        thick, rim = (3.0, 0.8) if len(shares) == 1 else (2.2, 0.6)
        height = len(shares) * (thick + rim) + rim
        left, top = centre[0] - width / 2, centre[1] - height / 2
        self.box((left, top), (width, height), INK, rounding=0)
        for row, (share, colour) in enumerate(shares):
            if share > 0:
                corner = (left + rim, top + rim + row * (thick + rim))
                self.box(corner, (share * (width - 2 * rim), thick), colour, rounding=0)

    def badge(self, centre: Point, radius: float, number: int, colour: str) -> None:
        """Somebody who takes part: a number on a disc in its side's colour."""
        self.disc(centre, radius, colour, PAPER, 1.2)
        if radius >= 5:
            size = radius * (1.1 if number < 10 else 0.9)
            self.text(centre, str(number), size, INK if colour == STRANGER else PAPER, bold=True, anchor="mm")
