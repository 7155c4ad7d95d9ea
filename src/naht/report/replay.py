"""Episodes to look at: recorded step by step, drawn frame by frame, saved as a film (.gif, .mp4) or a strip (.png).

A drawing knows one task; everything around it (who is who, the clock, the return) is the same for all. A new task is
one function and an entry in `DRAWINGS`.
"""

from __future__ import annotations

import contextlib
import io
import math
import shutil
import subprocess
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import product
from pathlib import Path
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from naht.agents.policy import NO_ACTION
from naht.envs.base import Array, Environment, EnvSpec, PyTree, TimeStep
from naht.envs.predator_prey import OBSTACLE_RADIUS, PREDATOR_RADIUS, PREY_RADIUS, TOUCH_DISTANCE
from naht.errors import NahtError, require
from naht.report.figures import COLOURS
from naht.rollout import Arena
from naht.storage import write_file
from naht.teams.population import Population
from naht.teams.sampler import NumControlled, Selection, Team, TeamSampler, check_sampler, team_sampler

# Recording.


class Frame(NamedTuple):
    """What a camera sees of a world, after a reset or a step."""

    state: PyTree
    time_step: TimeStep
    action: Array  # [M] int32, the step that led here; NO_ACTION after a reset


@dataclass(frozen=True)
class Filmed:
    """An environment with a camera: its state is a `Frame`, and episodes end one step later than they really do.

    An arena restarts a world with the very step that ends an episode, and the last state would never be seen. What
    happens in the added step is thrown away with the restart.
    """

    env: Environment

    @property
    def spec(self) -> EnvSpec:
        return replace(self.env.spec, horizon=self.env.spec.horizon + 1)

    def reset(self, key: Array) -> tuple[Frame, TimeStep]:
        state, time_step = self.env.reset(key)
        return Frame(state, time_step, jnp.full(self.spec.num_agents, NO_ACTION, jnp.int32)), time_step

    def step(self, key: Array, frame: Frame, actions: Array) -> tuple[Frame, TimeStep]:
        over = frame.time_step.terminated | frame.time_step.truncated
        state, after = self.env.step(key, frame.state, actions)
        shown = after._replace(terminated=over, truncated=jnp.zeros_like(over))
        return Frame(state, after, actions.astype(jnp.int32)), shown


@dataclass(frozen=True, eq=False)
class Replay:
    """One recorded episode of T steps, as NumPy arrays. Frame t is the world after t steps, so there are T + 1."""

    env: Environment
    episode: int
    """Counted from 0 among those recorded together."""
    seats: tuple[str, ...]
    """Who sat where, M names."""
    controlled: np.ndarray
    """[M] bool."""
    states: PyTree
    """The environment's states, [T + 1, ...]."""
    actions: np.ndarray
    """[T, M] int32."""
    rewards: np.ndarray
    """[T], of the step from frame t to frame t + 1."""
    metrics: dict[str, np.ndarray]
    """The task's own numbers, [T + 1] each."""

    @property
    def length(self) -> int:
        """Steps T."""
        return len(self.rewards)

    @cached_property
    def running_return(self) -> np.ndarray:
        """[T + 1]: the sum of rewards up to each frame."""
        return np.concatenate([[0.0], np.cumsum(self.rewards, dtype=np.float64)])

    @property
    def episode_return(self) -> float:
        return float(self.running_return[-1])


@partial(jax.jit, static_argnums=0)
def _film(arena: Arena, controlled_params: PyTree, uncontrolled_params: PyTree, key: Array) -> tuple[Team, Frame]:
    """Teams [E, M] and frames [T + 1, E, ...] of the first episode in each of the arena's filmed environments."""
    k_reset, k_play = jax.random.split(key)
    start = arena.reset(k_reset)

    def step(state: PyTree, key: Array) -> tuple[PyTree, Frame]:
        following, _ = arena.play(controlled_params, uncontrolled_params, state, key, 1)
        return following, state.env_state

    _, frames = jax.lax.scan(step, start, jax.random.split(k_play, arena.env.spec.horizon))
    return start.team, frames


def _sampler(
    env: Environment, controlled: Population, uncontrolled: Population, num_controlled: NumControlled, mix: bool
) -> TeamSampler:
    """As in evaluation, but every controlled seat has its own member, and nobody sits twice if there are enough."""
    sampler = team_sampler(
        env.spec.num_agents, len(uncontrolled), num_controlled, num_controlled_members=len(controlled), mix=mix
    )
    most = max(n for n, p in enumerate(sampler.phi) if p > 0) if isinstance(sampler.phi, tuple) else env.spec.num_agents
    return replace(sampler, controlled=Selection(len(controlled), mix=True, replace=len(controlled) < most))


def record(
    env: Environment,
    controlled: Population,
    uncontrolled: Population,
    *,
    num_controlled: NumControlled = "uniform",
    mix: bool = False,
    episodes: int = 1,
    seed: int = 0,
) -> list[Replay]:
    """Play whole episodes and keep every step of them.

    `num_controlled` is N as for `team_sampler`. Controlled seats are filled with different members of `controlled` if
    there are enough; strangers come from one member per episode, or with `mix` from any for each seat.
    """
    require(episodes >= 1, f"episodes is {episodes}: it must be at least 1")
    require(0 <= seed < 2**32, f"seed is {seed}: it must lie between 0 and 2**32 - 1")
    sampler = _sampler(env, controlled, uncontrolled, num_controlled, mix)
    check_sampler(sampler, env)
    arena = Arena(Filmed(env), sampler, controlled.roster, uncontrolled.roster, episodes)
    team, frames = _film(arena, controlled.params, uncontrolled.params, jax.random.key(seed))
    ours, member = np.asarray(team.controlled), np.asarray(team.member)  # [E, M]
    # To NumPy before anything is cut: JAX would compile a program for every length.
    frames = jax.tree.map(_as_numpy, frames)
    over = frames.time_step.terminated | frames.time_step.truncated  # [T + 1, E]

    def replay(i: int) -> Replay:
        shown = int(over[:, i].argmax()) + 1
        state, time_step, action = jax.tree.map(lambda leaf: leaf[:shown, i], tuple(frames))
        names = [(controlled if c else uncontrolled).roster.names[m] for c, m in zip(ours[i], member[i], strict=True)]
        return Replay(
            env=env,
            episode=i,
            seats=tuple(names),
            controlled=ours[i],
            states=state,
            actions=action[1:],
            rewards=time_step.reward[1:],
            metrics=time_step.metrics,
        )

    return [replay(i) for i in range(episodes)]


def _as_numpy(leaf: Array) -> np.ndarray:
    """Random keys, which a state may hold, become their data."""
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


# Drawing.

FIELD = 520
"""Width and height of a drawn world in pixels."""
PANEL = 240
"""Width of the column beside it."""
SMOOTHNESS = 3
"""Pictures are drawn this many times too large and shrunk, which smooths all edges."""

OURS, STRANGER, PREY, WON = COLOURS[0], COLOURS[4], COLOURS[2], COLOURS[2]
CATCH = "#d81e3a"
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

    def box(self, corner: Point, size: Point, fill: str | None, rim: str | None = None, width: float = 0) -> None:
        (x, y), (w, h) = corner, size
        box = [SMOOTHNESS * v for v in (x, y, x + w, y + h)]
        self._draw(fill, rim).rounded_rectangle(box, 3 * SMOOTHNESS, fill, rim, round(SMOOTHNESS * width))

    def line(self, points: Sequence[Point], colour: str, width: float) -> None:
        scaled = [(SMOOTHNESS * x, SMOOTHNESS * y) for x, y in points]
        self._draw(colour).line(scaled, colour, round(SMOOTHNESS * width), joint="curve")

    def text(
        self, at: Point, text: str, size: float, colour: str = INK, *, bold: bool = False, anchor: str = "lm"
    ) -> None:
        """`anchor` as in Pillow; 'lm': `at` is the left end, half-way up."""
        font = _font(round(SMOOTHNESS * size), bold)
        self._draw(colour).text((SMOOTHNESS * at[0], SMOOTHNESS * at[1]), text, colour, font, anchor)

    def badge(self, centre: Point, radius: float, seat: int, controlled: bool) -> None:
        """An agent: its seat's number on a disc in its side's colour."""
        self.disc(centre, radius, side_colour(controlled), PAPER, 1.2)
        if radius >= 5:
            size = radius * (1.1 if seat < 10 else 0.9)
            self.text(centre, str(seat), size, PAPER if controlled else INK, bold=True, anchor="mm")


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
    scale = FIELD / (1.06 * float((high - low).max()))
    middle = (low + high) / 2

    def place(x: float, y: float) -> Point:
        return FIELD / 2 + scale * float(x - middle[0]), FIELD / 2 - scale * float(y - middle[1])

    def at(t: int, entity: int) -> Point:
        return place(*path[t, :, entity])

    canvas = Canvas(FIELD, FIELD, OUTSIDE)
    canvas.box(place(-1, 1), (2 * scale, 2 * scale), PAPER, LINE, 1)
    for k in range(m + 1, path.shape[2]):
        canvas.disc(at(step, k), scale * OBSTACLE_RADIUS, OBSTACLE)
    touches = touching(path, m)  # [T + 1, M]
    caught = touches.sum(1) >= 2
    caught[0] = False  # the world does not count where an episode begins
    colours = [*[side_colour(c) for c in replay.controlled], PREY]
    for k, t in product(range(m + 1), range(since, step)):
        freshness = (t - since + 1) / (step - since)
        colour = CATCH if k == m and caught[t + 1] else colours[k]
        canvas.line([at(t, k), at(t + 1, k)], faded(colour, 0.1 + 0.6 * freshness), 1.5 + 2 * freshness)
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
        canvas.badge(at(step, k), radius, k, bool(replay.controlled[k]))
    return canvas.finish()


def draw_bit_game(replay: Replay, step: int, since: int) -> Image.Image:
    """A column per agent and a row per step: a full cell is a 1, a pale one a 0."""
    del since
    m, rows = replay.env.spec.num_agents, min(replay.env.spec.horizon, 25)
    first = max(0, step - rows)  # a long episode scrolls
    top, bottom = 62.0, 16.0
    height, width = (FIELD - top - bottom) / rows, min(92.0, (FIELD - 120) / (m + 1))
    left, gap = (FIELD - width * (m + 1)) / 2, min(3.0, 0.15 * height)
    marks = left + width * (m + 0.5)
    canvas = Canvas(FIELD, FIELD)
    for k in range(m):
        canvas.badge((left + width * (k + 0.5), top / 2 + 4), min(15.0, 0.45 * width), k, bool(replay.controlled[k]))
    for row in range(rows):
        t, y = first + row, top + row * height
        played = t < step
        label = QUIET if played else LINE
        canvas.text((left - 8, y + height / 2), str(t + 1), min(10.0, 0.7 * height), label, anchor="rm")
        for k in range(m):
            colour = side_colour(replay.controlled[k])
            fill = (colour if replay.actions[t, k] == 1 else faded(colour, 0.16)) if played else OUTSIDE
            canvas.box((left + k * width + gap, y + gap / 2), (width - 2 * gap, height - gap), fill)
        if played and replay.rewards[t] > 0:
            canvas.disc((marks, y + height / 2), min(7.0, 0.36 * height), WON)
        if t == step - 1:
            canvas.box((left - 1, y - 1), (width * (m + 1) + 2, height + 2), None, INK, 1.2)
    return canvas.finish()


class Mark(NamedTuple):
    """A line of a picture's key: a filled disc or a ring, and what it means."""

    colour: str
    filled: bool
    meaning: str


class Drawing(NamedTuple):
    """How a task looks."""

    draw: Callable[[Replay, int, int], Image.Image]
    """(replay, step, since) -> FIELD x FIELD pixels: frame `step`, with paths from frame `since` on."""
    key: tuple[Mark, ...]


DRAWINGS: dict[str, Drawing] = {
    "mpe-pp": Drawing(
        draw_predator_prey,
        (
            Mark(PREY, True, "prey, circle: touch range"),
            Mark(INK, False, "touches the prey"),
            Mark(CATCH, False, "catch: two or more touch"),
        ),
    ),
    "bit-game": Drawing(draw_bit_game, (Mark(WON, True, "won: exactly one 1"),)),
}
"""Drawings by the task's name. A new task is an entry here."""


def find_drawing(env: Environment) -> Drawing:
    """The task's entry."""
    name = env.spec.name
    if name not in DRAWINGS:
        raise NahtError(f"task '{name}' has no drawing: it can't be watched, unlike {' and '.join(DRAWINGS)}")
    return DRAWINGS[name]


def _shorten(text: str, length: int = 20) -> str:
    """The end of a path says most: 'runs/mpe-pp/poam/seed0' -> '…/poam/seed0'."""
    while len(text) > length and "/" in text.removeprefix("…/"):
        text = "…/" + text.removeprefix("…/").partition("/")[2]
    return text if len(text) <= length else f"…{text[1 - length :]}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() else f"{value:.2f}"


def _panel(replay: Replay, step: int) -> Image.Image:
    """What there is to know besides the world itself: time, return, the task's numbers, who is who."""
    canvas = Canvas(PANEL, FIELD)
    left, right = 20.0, PANEL - 20.0
    canvas.text((left, 28), replay.env.spec.name, 17, bold=True)
    canvas.text((right, 28), f"episode {replay.episode + 1}", 12, QUIET, anchor="rm")
    facts = {"step": f"{step} / {replay.length}", "return": f"{replay.running_return[step]:.2f}"}
    facts |= {name: _number(float(values[step])) for name, values in replay.metrics.items()}
    y = 60.0
    for name, value in facts.items():
        canvas.text((left, y), name, 13, QUIET)
        canvas.text((right, y), value, 14, bold=True, anchor="rm")
        y += 24
    y = _return_curve(canvas, replay, step, (left, y), (right - left, 56)) + 30
    key = find_drawing(replay.env).key
    key_top = FIELD - 24.0 - 22 * (len(key) - 1)
    pitch = min(24.0, (key_top - 80 - y) / len(replay.seats))
    for controlled, title in ((True, "controlled"), (False, "strangers")):
        seats = [k for k, c in enumerate(replay.controlled) if c == controlled]
        if seats:
            canvas.text((left, y), title, 12, QUIET)
            y += 22
        for k in seats:
            canvas.badge((left + 9, y), min(9.5, 0.45 * pitch), k, controlled)
            canvas.text((left + 27, y), _shorten(replay.seats[k]), min(12.5, 0.7 * pitch))
            y += pitch
        y += 8
    for i, mark in enumerate(key):
        y = key_top + 22 * i
        canvas.disc((left + 9, y), 6, mark.colour if mark.filled else None, mark.colour, 2)
        canvas.text((left + 27, y), mark.meaning, 12, QUIET)
    return canvas.finish()


def _return_curve(canvas: Canvas, replay: Replay, step: int, corner: Point, size: Point) -> float:
    """The return so far, on the scale of the whole episode. Gives where it ends below."""
    low, high = min(0.0, replay.running_return.min()), max(0.0, replay.running_return.max())

    def at(t: int, value: float) -> Point:
        up = (value - low) / max(high - low, 1e-9)
        return corner[0] + size[0] * t / max(replay.length, 1), corner[1] + size[1] * (1 - up)

    points = [at(t, replay.running_return[t]) for t in range(step + 1)]
    canvas.line([at(0, 0.0), at(replay.length, 0.0)], LINE, 1)
    canvas.line(points, INK, 1.6)
    canvas.disc(points[-1], 3, INK)
    return corner[1] + size[1]


TRAIL = 12
"""Steps of the past that a film shows."""


def draw_frame(replay: Replay, step: int) -> Image.Image:
    """The world after `step` steps, and beside it what explains it."""
    require(0 <= step <= replay.length, f"step is {step}: this episode has frames 0 to {replay.length}")
    picture = Image.new("RGB", (FIELD + PANEL, FIELD), PAPER)
    picture.paste(find_drawing(replay.env).draw(replay, step, max(0, step - TRAIL)), (0, 0))
    picture.paste(_panel(replay, step), (FIELD, 0))
    return picture


def draw_strip(replays: Sequence[Replay], frames: int) -> Image.Image:
    """Evenly spaced frames of each episode in rows, each with the paths since the one before; numbers are the end's."""
    rows = math.ceil(frames / 5)
    columns = math.ceil(frames / rows)
    gap, caption = 12, 34
    block = rows * (FIELD + caption) + gap
    picture = Image.new("RGB", (columns * (FIELD + gap) + gap + PANEL, block * len(replays)), PAPER)
    for i, replay in enumerate(replays):
        since = 0
        for k, step in enumerate(spaced(replay, frames)):
            x, y = gap + (k % columns) * (FIELD + gap), i * block + (k // columns) * (FIELD + caption)
            title = Canvas(FIELD, caption)
            title.text((2, caption / 2 + 1), f"step {step}", 14, bold=True)
            picture.paste(title.finish(), (x, y))
            picture.paste(find_drawing(replay.env).draw(replay, step, since), (x, y + caption))
            since = step
        picture.paste(_panel(replay, replay.length), (columns * (FIELD + gap) + gap, i * block + caption - 14))
    return picture


def spaced(replay: Replay, frames: int | None) -> list[int]:
    """Evenly spaced steps of an episode, first and last among them; None: all."""
    count = replay.length + 1 if frames is None else min(frames, replay.length + 1)
    return [round(t) for t in np.linspace(0, replay.length, count).tolist()]


# Saving.

STRIP_FRAMES = 8
HOLD = 1.0
"""Seconds for which a film stays on the last frame of an episode."""


def check_output(env: Environment, path: Path, *, fps: int = 10, frames: int | None = None) -> None:
    """Everything that `save_replay` could complain about, to be asked before any work."""
    find_drawing(env)
    endings = ".gif, .mp4 (films) or .png (a strip of frames)"
    require(path.suffix in (".gif", ".mp4", ".png"), f"can't save a replay as '{path.name}': it must end in {endings}")
    require(1 <= fps <= 50, f"fps is {fps}: choose between 1 and 50 frames per second")
    require(frames is None or frames >= 2, f"frames is {frames}: the first and the last frame are at least 2")
    if path.suffix == ".mp4" and shutil.which("ffmpeg") is None:
        raise NahtError(f"{path.name} needs the program ffmpeg, which is not installed: choose a .gif instead")


def save_replay(replays: Sequence[Replay], path: str | Path, *, fps: int = 10, frames: int | None = None) -> Path:
    """Save episodes one after the other: as a film (.gif, .mp4) or, one below the other, as a strip of frames (.png).

    `frames` is the number of evenly spaced frames per episode; None: all in a film, 8 in a strip.
    """
    path = Path(path)
    require(len(replays) > 0, "there is no replay to save")
    check_output(replays[0].env, path, fps=fps, frames=frames)
    if path.suffix == ".png":
        content = io.BytesIO()
        draw_strip(replays, frames or STRIP_FRAMES).save(content, "PNG", optimize=True)
        write_file(path, content.getvalue())
        return path
    write_file(path, (_gif if path.suffix == ".gif" else _mp4)(_film_frames(replays, frames), fps))
    return path


def _film_frames(replays: Sequence[Replay], frames: int | None) -> Iterator[tuple[Image.Image, bool]]:
    """Pictures, and whether each is the last of its episode."""
    for replay in replays:
        for step in spaced(replay, frames):
            yield draw_frame(replay, step), step == replay.length


def _gif(pictures: Iterator[tuple[Image.Image, bool]], fps: int) -> bytes:
    """One palette for the whole film: with one per frame, still things would flicker."""
    packed, durations, used = [], [], Counter[bytes]()
    for picture, last in pictures:
        packed.append(zlib.compress(picture.tobytes(), 1))  # a hundredth of the memory
        durations.append(round(1000 * (HOLD if last else 1 / fps)))
        for count, colour in picture.getcolors(2**16) or []:
            used[bytes(cast(tuple[int, ...], colour))] += count
    palette, nearest = _palette(used)
    images = []
    for pack in packed:
        rgb = np.frombuffer(zlib.decompress(pack), np.uint8).reshape(FIELD, FIELD + PANEL, 3)
        image = Image.fromarray(nearest[_colour_number(rgb)])
        image.putpalette(palette.tobytes())
        images.append(image)
    content = io.BytesIO()
    images[0].save(content, "GIF", save_all=True, append_images=images[1:], duration=durations, loop=0)
    return content.getvalue()


def _colour_number(rgb: np.ndarray) -> np.ndarray:
    """[..., 3] uint8 -> [...] int32, 0xrrggbb."""
    return rgb.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1], np.int32)


def _palette(used: Counter[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """At most 256 colours [K, 3] uint8, and for each colour number in use the index of the nearest, [2**24] uint8.

    The 128 commonest colours stay as they are; 128 do for all others, however rare: a catch is red. (Pillow's own
    search for the nearest colour is quicker but not exact: it turns white paper grey.)
    """
    exact = [colour for colour, _ in used.most_common(128)]
    entries, others = b"".join(exact), b"".join(sorted(set(used) - set(exact)))
    if others:
        image = Image.frombytes("RGB", (len(others) // 3, 1), others)
        entries += bytes((image.quantize(128, Image.Quantize.MEDIANCUT).getpalette() or [])[: 3 * 128])
    palette = np.frombuffer(entries, np.uint8).reshape(-1, 3)
    colours = np.frombuffer(b"".join(used), np.uint8).reshape(-1, 3)
    nearest = np.zeros(2**24, np.uint8)
    for some in np.array_split(colours, 1 + len(colours) // 1024):
        apart = some[:, None].astype(np.int32) - palette.astype(np.int32)
        nearest[_colour_number(some)] = (apart**2).sum(-1).argmin(-1)
    return palette, nearest


def _mp4(pictures: Iterator[tuple[Image.Image, bool]], fps: int) -> bytes:
    """Films are played by ffmpeg's default codec for .mp4, with the pixel format that every player knows."""
    with tempfile.TemporaryDirectory() as folder:
        film, log = Path(folder) / "film.mp4", Path(folder) / "log.txt"
        source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{FIELD + PANEL}x{FIELD}", "-r", str(fps), "-i", "-"]
        command = ["ffmpeg", "-loglevel", "error", *source, "-pix_fmt", "yuv420p", "-movflags", "+faststart", str(film)]
        with (
            open(log, "wb") as said,
            contextlib.suppress(BrokenPipeError),  # ffmpeg gave up; its exit code says so
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said) as process,
        ):
            assert process.stdin is not None
            for picture, last in pictures:
                process.stdin.write(picture.tobytes() * (round(HOLD * fps) if last else 1))
        if process.returncode != 0 or not film.exists():
            reason = (log.read_text(errors="replace").strip().splitlines() or ["no reason given"])[-1]
            raise NahtError(f"ffmpeg could not make the film: {reason}")
        return film.read_bytes()
