"""How the tasks look: one function for each.

A drawing knows one task; everything around it (who is who, the clock, the return) is the same for all. A new task is
one function and an entry in `DRAWINGS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np
from PIL import Image

from naht.envs.base import Environment
from naht.envs.lbf import LOAD, Lbf
from naht.envs.predator_prey import OBSTACLE_RADIUS, PREDATOR_RADIUS, PREY_RADIUS, TOUCH_DISTANCE
from naht.envs.smac.battle import NOBODY
from naht.envs.smac.maps import MAPS, SIZE, Map
from naht.envs.smac.rules import RULES, SIGHT, TICKS_PER_STEP
from naht.envs.smac.task import FIRST_ATTACK, Smac
from naht.report.canvas import (
    FIELD,
    INK,
    LINE,
    OBSTACLE,
    OUTSIDE,
    PAPER,
    QUIET,
    Canvas,
    Point,
    faded,
    side_colour,
)
from naht.report.figures import COLOURS
from naht.report.recording import Replay

PREY, WON, CATCH = COLOURS[2], COLOURS[2], "#d81e3a"
ENEMY, HEALTH, SHIELD, FOOD = "#a3173a", "#3fbf6f", COLOURS[5], COLOURS[2]
BLOCKED, GRID = "#d3d3cd", "#f2f2f0"
MARGIN = 1.4
"""Around what is seen of a battle, in units of the map."""


@dataclass(frozen=True)
class View:
    """A square part of a flat world, from above."""

    middle: np.ndarray
    """[2]"""
    side: float

    @property
    def scale(self) -> float:
        """Pixels per unit of length."""
        return FIELD / self.side

    def place(self, x: float, y: float) -> Point:
        return FIELD / 2 + self.scale * float(x - self.middle[0]), FIELD / 2 - self.scale * float(y - self.middle[1])


def draw_path(canvas: Canvas, points: Sequence[Point], colours: Sequence[str]) -> None:
    """Where somebody went, the older the paler. One colour per stretch between points."""
    for i, (stretch, colour) in enumerate(zip(pairwise(points), colours, strict=True)):
        freshness = (i + 1) / len(colours)
        canvas.line(stretch, faded(colour, 0.1 + 0.6 * freshness), 1.5 + 2 * freshness)


def touching(position: np.ndarray, num_predators: int) -> np.ndarray:
    """Which predators touch the prey: position [..., 2, E] -> [..., M] bool. The world's own rule."""
    apart = position[..., :num_predators] - position[..., num_predators, None]
    return np.sqrt(apart[..., 0, :] ** 2 + apart[..., 1, :] ** 2) < TOUCH_DISTANCE


def draw_predator_prey(replay: Replay, step: int, since: int) -> Image.Image:
    """The world from above. The circle around the prey is the reach within which a predator's centre touches it."""
    path, m = replay.states.position, replay.env.spec.num_agents  # [T + 1, 2, E]
    # The usual square and wherever anybody goes in this episode, so that the view never moves.
    reached = path[:, :, : m + 1]
    low = np.minimum(reached.min((0, 2)) - PREDATOR_RADIUS, -1.0)
    high = np.maximum(reached.max((0, 2)) + PREDATOR_RADIUS, 1.0)
    view = View((low + high) / 2, 1.06 * float((high - low).max()))
    scale = view.scale

    def at(t: int, entity: int) -> Point:
        return view.place(*path[t, :, entity])

    canvas = Canvas(FIELD, FIELD, OUTSIDE)
    canvas.box(view.place(-1, 1), (2 * scale, 2 * scale), PAPER, LINE, 1)
    for k in range(m + 1, path.shape[2]):
        canvas.disc(at(step, k), scale * OBSTACLE_RADIUS, OBSTACLE)
    touches = touching(path, m)  # [T + 1, M]
    caught = touches.sum(1) >= 2
    caught[0] = False  # the world does not count where an episode begins
    colours = [*[side_colour(c) for c in replay.controlled], PREY]
    for k in range(m + 1):
        stretches = [CATCH if k == m and caught[t + 1] else colours[k] for t in range(since, step)]
        draw_path(canvas, [at(t, k) for t in range(since, step + 1)], stretches)
    prey, reach = at(step, m), scale * TOUCH_DISTANCE
    radius = max(scale * PREDATOR_RADIUS, 8.0)  # still readable when somebody has run far away
    if caught[step]:
        canvas.disc(prey, reach, faded(CATCH, 0.2), CATCH, 3.5)
    else:
        canvas.disc(prey, reach, None, faded(PREY, 0.5), 1.3)
    canvas.disc(prey, max(scale * PREY_RADIUS, 5.0), CATCH if caught[step] else PREY, PAPER, 1)
    for k in range(m):
        if touches[step, k]:
            canvas.disc(at(step, k), radius + 3, INK)
        canvas.badge(at(step, k), radius, k, colours[k])
    return canvas.finish()


def draw_bit_game(replay: Replay, step: int, since: int) -> Image.Image:
    """A column per agent and a row per step: a full cell is a 1, a pale one a 0."""
    del since

    def cell(canvas: Canvas, at: Point, size: Point, t: int, k: int) -> None:
        colour = side_colour(replay.controlled[k])
        canvas.box(at, size, colour if replay.actions[t, k] == 1 else faded(colour, 0.16))

    def outcome(canvas: Canvas, at: Point, height: float, t: int) -> None:
        if replay.rewards[t] > 0:
            canvas.disc(at, min(7.0, 0.36 * height), WON)

    return _table_of_steps(replay, step, cell, outcome)


def draw_anything(replay: Replay, step: int, since: int) -> Image.Image:
    """A task without a drawing of its own: the picture that its world gives, else what everybody does in every step and
    what the team earns."""
    del since
    if isinstance(replay.states, np.ndarray) and replay.states.dtype == np.uint8:
        shown = Image.fromarray(replay.states[step])
        shown.thumbnail((FIELD, FIELD))
        picture = Image.new("RGB", (FIELD, FIELD), PAPER)
        picture.paste(shown, ((FIELD - shown.width) // 2, (FIELD - shown.height) // 2))
        return picture

    def cell(canvas: Canvas, at: Point, size: Point, t: int, k: int) -> None:
        canvas.box(at, size, faded(side_colour(replay.controlled[k]), 0.16))
        middle = at[0] + size[0] / 2, at[1] + size[1] / 2
        canvas.text(middle, str(replay.actions[t, k]), min(12.0, 0.7 * size[1]), INK, anchor="mm")

    def outcome(canvas: Canvas, at: Point, height: float, t: int) -> None:
        canvas.text(at, f"{replay.rewards[t]:+.2f}", min(11.0, 0.7 * height), QUIET, anchor="mm")

    return _table_of_steps(replay, step, cell, outcome)


def _table_of_steps(
    replay: Replay,
    step: int,
    cell: Callable[[Canvas, Point, Point, int, int], None],
    outcome: Callable[[Canvas, Point, float, int], None],
) -> Image.Image:
    """A column per agent and a row per step: `cell`(canvas, corner, size, step, seat) draws what an agent did,
    `outcome`(canvas, place, height, step) what came of it."""
    m, rows = replay.env.spec.num_agents, min(replay.env.spec.horizon, 25)
    first = max(0, step - rows)  # a long episode scrolls
    top, bottom = 62.0, 16.0
    height, width = (FIELD - top - bottom) / rows, min(92.0, (FIELD - 120) / (m + 1))
    left, gap = (FIELD - width * (m + 1)) / 2, min(3.0, 0.15 * height)
    marks = left + width * (m + 0.5)
    canvas = Canvas(FIELD, FIELD)
    for k in range(m):
        canvas.badge(
            (left + width * (k + 0.5), top / 2 + 4), min(15.0, 0.45 * width), k, side_colour(replay.controlled[k])
        )
    for row in range(rows):
        t, y = first + row, top + row * height
        played = t < step
        label = QUIET if played else LINE
        canvas.text((left - 8, y + height / 2), str(t + 1), min(10.0, 0.7 * height), label, anchor="rm")
        for k in range(m):
            at, size = (left + k * width + gap, y + gap / 2), (width - 2 * gap, height - gap)
            if played:
                cell(canvas, at, size, t, k)
            else:
                canvas.box(at, size, OUTSIDE)
        if played:
            outcome(canvas, (marks, y + height / 2), height, t)
        if t == step - 1:
            canvas.box((left - 1, y - 1), (width * (m + 1) + 2, height + 2), None, INK, 1.2)
    return canvas.finish()


class Attack(NamedTuple):
    """Units by their number among all, allies first."""

    shooter: int
    victim: int
    fired: bool
    """Or only tried to: the weapon was not ready, or out of reach."""


def attacks(replay: Replay, step: int) -> list[Attack]:
    """Who shot at whom, or tried to, in the step that led to a frame of a battle."""
    if step == 0:
        return []
    units, a = replay.states.units, replay.env.spec.num_agents
    # Every weapon takes longer than a step, so its cooldown goes up exactly if it has fired.
    fired = units.cooldown[step] > np.maximum(units.cooldown[step - 1] - TICKS_PER_STEP, 0) + 1e-3
    order = replay.states.last_action[step]  # [A], as carried out: what is not allowed counts as stop
    ours = np.where(order >= FIRST_ATTACK, order - FIRST_ATTACK + a, NOBODY)
    theirs = _shot_at(replay, step, fired[a:])
    victim = np.concatenate([ours, theirs])
    alive = units.health[step] > 0
    chosen = (victim != NOBODY) & (fired | (alive & alive[victim]))
    return [Attack(int(k), int(victim[k]), bool(fired[k])) for k in np.flatnonzero(chosen)]


def _shot_at(replay: Replay, step: int, fired: np.ndarray) -> np.ndarray:
    """Whom each enemy shot at, or is after: fired [E] bool -> [E]. It may have turned to somebody else in that step,
    before its shot or after: then whoever lost more than the other shots explain was hit."""
    battle, units = cast(Smac, replay.env).battle, replay.states.units
    before, now = units.target[step - 1], units.target[step]
    whole = units.health + units.shield
    lost = (whole[step - 1] - whole[step])[: battle.map.allies]
    hits = np.ceil(lost / (battle.enemy.hits * battle.enemy.damage_to(battle.ally)))  # [A], still to be explained
    turned = fired & ((before != now) | (now == NOBODY))
    np.subtract.at(hits, now[fired & ~turned], 1)
    victim = now.copy()
    for k in np.flatnonzero(turned):
        unexplained = [v for v in (before[k], now[k], hits.argmax()) if v != NOBODY and hits[v] > 0]
        if unexplained:
            victim[k] = unexplained[0]
            hits[victim[k]] -= 1
    return victim


def reached(replay: Replay) -> tuple[np.ndarray, np.ndarray]:
    """Wherever anybody goes in a battle, and some room around: the lower left and the upper right corner, [2] each."""
    path = np.stack([replay.states.units.x, replay.states.units.y])  # [2, T + 1, N]
    return path.min((1, 2)) - MARGIN, path.max((1, 2)) + MARGIN


def battle_view(replay: Replay) -> View:
    """All of it, so that the view never moves."""
    smallest = 14.0
    low, high = reached(replay)
    side = max(float((high - low).max()), smallest)
    # Where there is room to spare, show the map and not what lies beyond.
    middle = np.clip((low + high) / 2, side / 2 - MARGIN, SIZE + MARGIN - side / 2)
    return View(np.clip(middle, high - side / 2, low + side / 2), side)


def draw_ground(canvas: Canvas, view: View, walkable: tuple[float, float, float, float]) -> None:
    """Where units can walk (left, bottom, right, top), with a line every four units of length."""
    left, bottom, right, top = walkable
    canvas.box(view.place(left, top), (view.scale * (right - left), view.scale * (top - bottom)), PAPER, rounding=0)
    for x in np.arange(left, right, 4):
        canvas.line([view.place(x, bottom), view.place(x, top)], GRID, 1)
    for y in np.arange(bottom, top, 4):
        canvas.line([view.place(left, y), view.place(right, y)], GRID, 1)


def draw_fallen(canvas: Canvas, at: Point, radius: float, colour: str) -> None:
    """Where a unit died."""
    canvas.cross(at, radius, faded(colour, 0.4), 2.5)


def attack_line(start: Point, end: Point, start_radius: float, end_radius: float) -> tuple[Point, Point]:
    """From edge to edge of two discs, a little to the right: those who shoot at each other have a line each."""
    (x, y), (dx, dy) = start, np.subtract(end, start)
    length = max(float(np.hypot(dx, dy)), 1e-9)
    dx, dy = float(dx) / length, float(dy) / length
    x, y = x - 2.0 * dy, y + 2.0 * dx
    head = length - end_radius
    tail = min(start_radius + 2, head)  # discs may touch
    return (x + tail * dx, y + tail * dy), (x + head * dx, y + head * dy)


def draw_attack(canvas: Canvas, line: tuple[Point, Point], colour: str, fired: bool) -> None:
    canvas.line(line, colour if fired else faded(colour, 0.35), 2.2 if fired else 1.2)


def draw_hit(canvas: Canvas, at: Point, colour: str) -> None:
    canvas.disc(at, 3.6, colour, PAPER, 0.8)


def draw_battle(replay: Replay, step: int, since: int) -> Image.Image:
    """The battlefield from above, and how far the selected agent sees and shoots."""
    battle, units = cast(Smac, replay.env).battle, replay.states.units  # [T + 1, N]
    view, own = battle_view(replay), replay.selected
    scale = view.scale
    health, shield, body = (battle.each(name)[:, 0] for name in ("health", "shield", "separation"))  # [N]
    radius = np.maximum(scale * body, 7.0)  # readable on any map
    numbers = [*range(battle.map.allies), *range(battle.map.enemies)]
    colours = [*[side_colour(c) for c in replay.controlled], *[ENEMY] * battle.map.enemies]
    everybody, alive = range(len(numbers)), units.health[step] > 0
    at = [view.place(x, y) for x, y in zip(units.x[step], units.y[step], strict=True)]

    canvas = Canvas(FIELD, FIELD, BLOCKED)
    draw_ground(canvas, view, battle.map.walkable(battle.rules))
    for k in everybody:
        path = [view.place(units.x[t, k], units.y[t, k]) for t in range(since, step + 1)]
        draw_path(canvas, path, [colours[k]] * (step - since))
    if alive[own]:
        canvas.disc(at[own], scale * SIGHT, faded(colours[own], 0.05))
        canvas.dashed_ring(at[own], scale * SIGHT, faded(QUIET, 0.7), 1.2)
        canvas.disc(at[own], scale * battle.reach, None, faded(QUIET, 0.7), 1.2)
    for k in everybody:
        if not alive[k]:
            draw_fallen(canvas, at[k], 0.7 * radius[k], colours[k])
    shots = attacks(replay, step)
    lines = [attack_line(at[s.shooter], at[s.victim], radius[s.shooter], radius[s.victim]) for s in shots]
    for shot, line in zip(shots, lines, strict=True):
        draw_attack(canvas, line, colours[shot.shooter], shot.fired)
    living = [k for k in everybody if alive[k]]
    for k in living:
        if k == own:
            canvas.disc(at[k], radius[k] + 2.5, INK)
        canvas.badge(at[k], radius[k], numbers[k], colours[k])
    for shot, line in zip(shots, lines, strict=True):  # over the discs: of units that touch, it is all one sees
        if shot.fired:
            draw_hit(canvas, line[1], colours[shot.shooter])
    for k in living:
        shares = [(units.health[step, k] / health[k], HEALTH)]
        if shield[k] > 0:
            shares.insert(0, (units.shield[step, k] / shield[k], SHIELD))
        # On the upper edge of the disc: in a crowd, anything above it would cover a neighbour.
        x, y = at[k]
        canvas.bars((x, y - radius[k] - 0.5 * len(shares)), max(1.8 * radius[k], 15.0), shares)
    canvas.box((0, 0), (FIELD - 1, FIELD - 1), None, LINE, 1, rounding=0)
    return canvas.finish()


def battle_facts(replay: Replay, step: int) -> dict[str, str]:
    """Who is left, and who has won."""
    alive, a = replay.states.units.health[step] > 0, replay.env.spec.num_agents
    won = replay.metrics["battle_won"][step] > 0
    return {
        "allies alive": f"{alive[:a].sum()} / {a}",
        "enemies alive": f"{alive[a:].sum()} / {len(alive) - a}",
        "battle": ("won" if won else "lost") if step == replay.length else "going on",
    }


class Load(NamedTuple):
    """A player beside a food that it loads, alone or with others."""

    player: int
    food: int
    taken: bool


def loads(replay: Replay, step: int) -> list[Load]:
    """Who loaded what in the step that led to a frame of level-based foraging."""
    if step == 0:
        return []
    player, food, level = (getattr(replay.states, name) for name in ("player", "food", "food_level"))
    apart = abs(player[step, :, :, None] - food[step, :, None]).sum(0)  # [M, F]
    chosen = (apart == 1) & (level[step - 1] > 0) & (replay.actions[step - 1] == LOAD)[:, None]
    return [Load(int(i), int(k), bool(level[step, k] == 0)) for i, k in np.argwhere(chosen)]


def field_view(env: Lbf) -> View:
    """All of it. A cell is 1 wide; x is the column, and y the row, which counts downwards."""
    return View(np.array([env.width - 1, 1 - env.rows]) / 2, 1.04 * max(env.rows, env.width))


def draw_level(canvas: Canvas, at: Point, radius: float, level: int) -> None:
    """How strong a player is, on the lower right edge of its disc."""
    spot = at[0] + 0.75 * radius, at[1] + 0.75 * radius
    canvas.disc(spot, 0.5 * radius, PAPER, INK, 0.8)
    canvas.text(spot, str(level), 0.65 * radius, bold=True, anchor="mm")


def draw_food(canvas: Canvas, at: Point, radius: float, level: int) -> None:
    canvas.box((at[0] - radius, at[1] - radius), (2 * radius, 2 * radius), FOOD)
    canvas.text(at, str(level), 1.1 * radius, PAPER, bold=True, anchor="mm")


def draw_foraging(replay: Replay, step: int, since: int) -> Image.Image:
    """The field from above, and what the selected player sees of it if that is not all."""
    env, states, own = cast(Lbf, replay.env), replay.states, replay.selected
    view = field_view(env)
    scale, half = view.scale, view.scale / 2
    radius = 0.32 * scale

    def at(t: int, k: int) -> Point:
        """Those who share a cell stand side by side."""
        row, col = states.player[t, :, k]
        here = np.flatnonzero((states.player[t] == states.player[t, :, [k]].T).all(0)).tolist()
        return view.place(col + 0.3 * (here.index(k) - (len(here) - 1) / 2), -row)

    canvas = Canvas(FIELD, FIELD, OUTSIDE)
    left, top = view.place(-0.5, 0.5)
    canvas.box((left, top), (scale * env.width, scale * env.rows), PAPER, LINE, 1, rounding=0)
    for col in range(1, env.width):
        canvas.line([(left + col * scale, top), (left + col * scale, top + env.rows * scale)], GRID, 1)
    for row in range(1, env.rows):
        canvas.line([(left, top + row * scale), (left + env.width * scale, top + row * scale)], GRID, 1)
    colours = [side_colour(c) for c in replay.controlled]
    if env.sight is not None:
        row, col = states.player[step, :, own]
        low, high = np.maximum([row - env.sight, col - env.sight], 0), [row + env.sight, col + env.sight]
        height, width = np.minimum(high, [env.rows - 1, env.width - 1]) - low + 1
        x, y = view.place(low[1], -low[0])
        canvas.box((x - half, y - half), (scale * width, scale * height), faded(colours[own], 0.07), QUIET, 1)
    for k, colour in enumerate(colours):
        draw_path(canvas, [at(t, k) for t in range(since, step + 1)], [colour] * (step - since))
    places = [view.place(col, -row) for row, col in states.food[step].T]
    for place, level, before in zip(places, states.food_level[step], states.food_level[0], strict=True):
        if level > 0:
            draw_food(canvas, place, radius, level)
        elif before > 0:
            draw_fallen(canvas, place, 0.5 * radius, FOOD)
    for load in loads(replay, step):
        canvas.line([at(step, load.player), places[load.food]], CATCH if load.taken else QUIET, 0.1 * scale)
    for k, colour in enumerate(colours):
        if k == own:
            canvas.disc(at(step, k), radius + 2.5, INK)
        canvas.badge(at(step, k), radius, k, colour)
        draw_level(canvas, at(step, k), radius, states.player_level[step, k])
    return canvas.finish()


def foraging_facts(replay: Replay, step: int) -> dict[str, str]:
    """What is left."""
    level = replay.states.food_level
    return {
        "food left": f"{(level[step] > 0).sum()} / {(level[0] > 0).sum()}",
        "collected": f"{replay.metrics['collected'][step]:.0%}",
    }


def shown_metrics(replay: Replay, step: int) -> dict[str, str]:
    """The task's numbers as they are."""
    numbers = {name: float(values[step]) for name, values in replay.metrics.items()}
    return {name: f"{n:.0f}" if n.is_integer() else f"{n:.2f}" for name, n in numbers.items()}


class Mark(NamedTuple):
    """A line of a picture's key: something drawn, about 16 pixels wide, and what it means."""

    draw: Callable[[Canvas, Point], None]
    meaning: str


def _disc(colour: str, meaning: str) -> Mark:
    return Mark(lambda canvas, at: canvas.disc(at, 6, colour), meaning)


def _ring(colour: str, meaning: str) -> Mark:
    return Mark(lambda canvas, at: canvas.disc(at, 6, None, colour, 2), meaning)


class Drawing(NamedTuple):
    """How a task looks."""

    draw: Callable[[Replay, int, int], Image.Image]
    """(replay, step, since) -> FIELD x FIELD pixels: frame `step`, with paths from frame `since` on."""
    key: tuple[Mark, ...]
    facts: Callable[[Replay, int], dict[str, str]] = shown_metrics
    """(replay, step) -> what the panel says about the frame, by name."""


def _battle(layout: Map) -> Drawing:
    """Marks for shields only where there are any."""
    units = RULES["sc2"].units

    def attack(canvas: Canvas, at: Point, fired: bool) -> None:
        line = (at[0] - 9, at[1]), (at[0] + 7, at[1])
        draw_attack(canvas, line, ENEMY, fired)
        if fired:
            draw_hit(canvas, line[1], ENEMY)

    key = [
        _disc(ENEMY, "enemy"),
        Mark(lambda canvas, at: draw_fallen(canvas, at, 6, ENEMY), "fallen"),
        Mark(partial(attack, fired=True), "shoots"),
        Mark(partial(attack, fired=False), "aims"),
        Mark(lambda canvas, at: canvas.dashed_ring(at, 6, QUIET, 1.2), "sight"),
        Mark(lambda canvas, at: canvas.disc(at, 6, None, QUIET, 1.2), "reach"),
        Mark(lambda canvas, at: canvas.bars(at, 18, [(0.7, HEALTH)]), "health"),
    ]
    if units[layout.ally].shield or units[layout.enemy].shield:
        key.append(Mark(lambda canvas, at: canvas.bars(at, 18, [(0.7, SHIELD)]), "shield"))
    return Drawing(draw_battle, tuple(key), battle_facts)


DRAWINGS: dict[str, Drawing] = {
    "mpe-pp": Drawing(
        draw_predator_prey,
        (
            _disc(PREY, "prey, circle: touch range"),
            _ring(INK, "touches the prey"),
            _ring(CATCH, "catch: two or more touch"),
        ),
    ),
    "bit-game": Drawing(draw_bit_game, (_disc(WON, "won: exactly one 1"),)),
    **{name: _battle(layout) for name, layout in MAPS.items()},
    "lbf": Drawing(
        draw_foraging,
        (
            Mark(lambda canvas, at: draw_food(canvas, at, 7, 3), "food and its level"),
            Mark(lambda canvas, at: draw_fallen(canvas, at, 5, FOOD), "food that was taken"),
            Mark(lambda canvas, at: draw_level(canvas, (at[0] - 6, at[1] - 6), 9, 2), "level of a player"),
            Mark(lambda canvas, at: canvas.line([(at[0] - 9, at[1]), (at[0] + 7, at[1])], CATCH, 4), "takes food"),
            Mark(lambda canvas, at: canvas.line([(at[0] - 9, at[1]), (at[0] + 7, at[1])], QUIET, 4), "loads in vain"),
        ),
        foraging_facts,
    ),
}
"""Drawings by the task's name. A new task is an entry here, if there is more to see than who does what."""


def find_drawing(env: Environment) -> Drawing:
    """The task's own, else one that fits any."""
    return DRAWINGS.get(env.spec.name) or Drawing(draw_anything, ())
