"""The drawings of docs/concepts.md and docs/ppo.md: python docs/drawings/draw.py writes them beside this file.

Colours are variables, light and dark by the reader's preference; the site's own stylesheet sets them by its scheme.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

HERE = Path(__file__).parent

LIGHT = "--ink:#1d2733;--soft:#5c6875;--line:#9aa5b1;--panel:#eef1f4;--ours:#1f6fb2;--theirs:#b8860b;--good:#2c7a4b"
DARK = "--ink:#e4e7eb;--soft:#a3adb8;--line:#66707c;--panel:#2b313a;--ours:#6bb0ea;--theirs:#e2b93b;--good:#6fcf97"
STYLE = (
    f"svg.naht{{{LIGHT};font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}}"
    f"@media (prefers-color-scheme:dark){{svg.naht{{{DARK}}}}}"
)


def text(
    x: float, y: float, words: str, *, size: int = 15, fill: str = "ink", anchor: str = "middle", bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"{weight} '
        f'style="fill:var(--{fill})">{escape(words)}</text>'
    )


def agent(x: float, y: float, kind: str, r: float = 15) -> str:
    """Ours are filled; strangers are rings, broken, so that colours are not needed to tell them apart."""
    if kind == "ours":
        return f'<circle cx="{x:g}" cy="{y:g}" r="{r:g}" style="fill:var(--ours)"/>'
    if kind == "none":
        return f'<circle cx="{x:g}" cy="{y:g}" r="{r:g}" style="fill:none;stroke:var(--line);stroke-width:1.5"/>'
    return (
        f'<circle cx="{x:g}" cy="{y:g}" r="{r - 1.5:g}" stroke-dasharray="5 3" '
        'style="fill:none;stroke:var(--theirs);stroke-width:3"/>'
    )


def panel(x: float, y: float, width: float, height: float, *, line: str = "line", fill: str = "panel") -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" '
        f'style="fill:var(--{fill});stroke:var(--{line});stroke-width:1.2"/>'
    )


def arrow(x: float, y: float, to_x: float, to_y: float, *, broken: bool = False, colour: str = "soft") -> str:
    """Straight, with a head; mostly level or upright."""
    length = ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5
    ux, uy = (to_x - x) / length, (to_y - y) / length
    bx, by = to_x - 9 * ux, to_y - 9 * uy
    dash = ' stroke-dasharray="6 4"' if broken else ""
    return (
        f'<line x1="{x:g}" y1="{y:g}" x2="{bx:.1f}" y2="{by:.1f}"{dash} style="stroke:var(--{colour});stroke-width:2"/>'
        f'<polygon points="{to_x:g},{to_y:g} {bx - 5 * uy:.1f},{by + 5 * ux:.1f} {bx + 5 * uy:.1f},{by - 5 * ux:.1f}" '
        f'style="fill:var(--{colour})"/>'
    )


def key(x: float, y: float) -> str:
    return (
        agent(x, y, "ours", 9)
        + text(x + 16, y + 5, "controlled: ours, one set of weights", anchor="start", size=14, fill="soft")
        + agent(x + 292, y, "theirs", 9)
        + text(x + 308, y + 5, "uncontrolled: strangers, frozen", anchor="start", size=14, fill="soft")
    )


def save(name: str, width: int, height: int, title: str, *parts: str) -> None:
    body = "\n".join(parts)
    (HERE / name).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" class="naht" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}"><title>{escape(title)}</title><style>{STYLE}</style>\n{body}\n</svg>\n'
    )


def problem() -> None:
    kinds = [
        ("Cooperative MARL", "N = M: all are ours", ["ours"] * 5),
        (
            "N-agent ad hoc teamwork",
            "N = 1 to M-1, drawn for an episode",
            ["ours", "theirs", "ours", "theirs", "theirs"],
        ),
        ("Ad hoc teamwork", "N = 1: one is ours", ["theirs", "theirs", "theirs", "ours", "theirs"]),
    ]
    parts = []
    for i, (name, what, team) in enumerate(kinds):
        x = 6 + 264 * i
        parts += [
            panel(x, 10, 250, 130, line="good" if i == 1 else "line"),
            text(x + 125, 40, name, bold=True, size=16),
        ]
        parts += [agent(x + 39 + 43 * j, 80, kind) for j, kind in enumerate(team)]
        parts.append(text(x + 125, 124, what, size=13, fill="soft"))
    save("problem.svg", 790, 185, "Three problems by who is controlled", *parts, key(120, 166))


def sampling() -> None:
    parts = [panel(10, 20, 150, 86), text(85, 44, "C: ours", bold=True)]
    parts += [agent(85, 76, "ours", 16)]
    parts += [panel(10, 124, 150, 116), text(85, 148, "U: strangers", bold=True)]
    parts += [agent(42 + 42 * (i % 3), 176 + 38 * (i // 3), "theirs", 14) for i in range(6)]
    parts += [arrow(160, 64, 236, 105), arrow(160, 182, 236, 145)]
    parts += [panel(238, 62, 210, 126, line="good"), text(343, 88, "X(U, C)", bold=True, size=17)]
    steps = ("1. how many are ours: N", "2. who: N of C, M - N of U", "3. who sits where")
    parts += [text(252, 116 + 25 * i, words, anchor="start", size=14) for i, words in enumerate(steps)]
    parts += [arrow(448, 125, 512, 125)]
    rows = [("N = 2", "TOOTT"), ("N = 4", "OOTOO"), ("N = 1", "TTTTO")]
    for j, (n, seats) in enumerate(rows):
        y = 40 + 74 * j
        parts += [panel(514, y, 266, 56), text(542, y + 33, n, size=14, fill="soft")]
        parts += [agent(588 + 40 * i, y + 28, "ours" if s == "O" else "theirs", 14) for i, s in enumerate(seats)]
    parts.append(text(647, 26, "a team for each episode (M = 5)", size=14, fill="soft"))
    save("sampling.svg", 790, 300, "The team sampling procedure", *parts, key(120, 278))


def score() -> None:
    rows = [("N = 1", ["TTO", "OTT", "TOT"]), ("N = 2", ["OTO", "OOT", "TOO"])]
    parts = []
    for j, (n, teams) in enumerate(rows):
        y = 30 + 78 * j
        parts.append(text(42, y + 33, n, bold=True))
        for k, seats in enumerate(teams):
            x = 84 + 132 * k
            parts.append(panel(x, y, 120, 56))
            parts += [agent(x + 26 + 34 * i, y + 28, "ours" if s == "O" else "theirs", 13) for i, s in enumerate(seats)]
        parts += [
            text(500, y + 34, "...", size=20, fill="soft"),
            text(574, y + 33, "128 episodes", size=14, fill="soft"),
        ]
        parts.append(arrow(632, y + 28, 672, 97 if j == 0 else 112))
    parts += [
        panel(674, 62, 108, 86, line="good"),
        text(728, 98, "mean", bold=True),
        text(728, 122, "M-N score", size=14),
    ]
    save("score.svg", 790, 225, "The M-N score of a team of three", *parts, key(120, 204))


def strangers() -> None:
    names = ("IPPO", "MAPPO", "IQL", "VDN", "QMIX")
    parts = [text(240 + 84 * s, 28, f"seed {s}", size=14, fill="soft") for s in range(5)]
    parts += [panel(204, 40, 72, 216, line="good"), panel(288, 40, 324, 216)]
    for a, name in enumerate(names):
        y = 64 + 42 * a
        parts.append(text(186, y + 5, name, anchor="end"))
        for s in range(5):
            parts += [agent(240 + 84 * s + 22 * (i - 1), y, "theirs", 9) for i in range(3)]
    parts += [
        text(240, 280, "trained with", bold=True, size=14),
        text(450, 280, "never met in training", bold=True, size=14),
    ]
    save("strangers.svg", 790, 296, "Strangers of training and strangers never met", *parts)


def model() -> None:
    def box(x: float, y: float, width: float, words: str, small: str = "", line: str = "line") -> str:
        lower = text(x + width / 2, y + 44, small, size=13, fill="soft") if small else ""
        return (
            panel(x, y, width, 58, line=line) + text(x + width / 2, y + (25 if small else 35), words, bold=True) + lower
        )

    parts = [
        box(4, 96, 160, "history", "own obs, own actions"),
        arrow(164, 125, 204, 125),
        box(206, 96, 120, "encoder", "GRU", line="good"),
        arrow(326, 125, 374, 125),
        box(376, 96, 130, "embedding e", "who are they?", line="good"),
        arrow(506, 110, 582, 52),
        arrow(506, 140, 582, 202, broken=True),
        box(584, 16, 196, "decoders", "their obs, their actions", line="good"),
        box(584, 166, 196, "policy, critic", "e is a constant here"),
        '<polyline points="83,154 83,216 572,216" style="fill:none;stroke:var(--soft);stroke-width:2"/>',
        arrow(560, 216, 582, 216),
        text(330, 208, "the same history", size=13, fill="soft"),
        text(498, 62, "learns", size=13, fill="good"),
        text(464, 182, "no gradient", size=13, fill="soft"),
    ]
    save("model.svg", 790, 240, "The teammate model of POAM", *parts)


def icon() -> None:
    parts = [agent(20, 22, "ours", 11), agent(44, 22, "ours", 11), agent(32, 44, "theirs", 12)]
    save("icon.svg", 64, 64, "naht", *parts)


if __name__ == "__main__":
    for draw in (problem, sampling, score, strangers, model, icon):
        draw()
