"""Recorded episodes as pages, frame by frame, saved as a film (.gif, .mp4) or a strip (.png)."""

from __future__ import annotations

import contextlib
import io
import math
import shutil
import subprocess
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from PIL import Image

from naht.envs.base import Environment
from naht.errors import NahtError, require
from naht.report.canvas import FIELD, INK, LINE, PAPER, QUIET, Canvas, Point, side_colour
from naht.report.drawings import find_drawing
from naht.report.recording import Replay as Replay
from naht.report.recording import record as record
from naht.storage import check_output, write_file

PANEL = 240
"""Width of the column beside a drawn world."""


def _shorten(text: str, length: int = 20) -> str:
    """The end of a path says most: 'runs/mpe-pp/poam/seed0' -> '…/poam/seed0'."""
    while len(text) > length and "/" in text.removeprefix("…/"):
        text = "…/" + text.removeprefix("…/").partition("/")[2]
    return text if len(text) <= length else f"…{text[1 - length :]}"


def _panel(replay: Replay, step: int) -> Image.Image:
    """What there is to know besides the world itself: time, return, the task's numbers, who is who."""
    canvas = Canvas(PANEL, FIELD)
    left, right = 20.0, PANEL - 20.0
    canvas.text((left, 28), replay.env.spec.name, 17, bold=True)
    canvas.text((right, 28), f"episode {replay.episode + 1}", 12, QUIET, anchor="rm")
    drawing = find_drawing(replay.env)
    facts = {"step": f"{step} / {replay.length}", "return": f"{replay.running_return[step]:.2f}"}
    facts |= drawing.facts(replay, step)
    y = 60.0
    for name, value in facts.items():
        canvas.text((left, y), name, 13, QUIET)
        canvas.text((right, y), value, 14, bold=True, anchor="rm")
        y += 22
    y = _return_curve(canvas, replay, step, (left, y + 2), (right - left, 42)) + 28
    columns = 1 if any(len(mark.meaning) > 10 for mark in drawing.key) else 2
    rows = math.ceil(len(drawing.key) / columns)
    key_top = FIELD - 24.0 - 22 * (rows - 1)
    pitch = min(24.0, (key_top - 70 - y) / len(replay.seats))
    for controlled, title in ((True, "controlled"), (False, "strangers")):
        seats = [k for k, c in enumerate(replay.controlled) if c == controlled]
        if seats:
            canvas.text((left, y), title, 12, QUIET)
            y += 22
        for k in seats:
            canvas.badge((left + 9, y), min(9.5, 0.48 * pitch), k, side_colour(controlled))
            canvas.text((left + 27, y), _shorten(replay.seats[k]), min(12.5, 0.75 * pitch))
            y += pitch
        y += 8
    for i, mark in enumerate(drawing.key):
        x, y = left + (i % columns) * (right - left) / columns, key_top + 22 * (i // columns)
        mark.draw(canvas, (x + 9, y))
        canvas.text((x + 27, y), mark.meaning, 12, QUIET)
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


def check_replay(env: Environment, path: Path, *, fps: int = 10, frames: int | None = None) -> None:
    """Everything that `save_replay` could complain about, to be asked before any work."""
    find_drawing(env)
    endings = ".gif, .mp4 (films) or .png (a strip of frames)"
    require(path.suffix in (".gif", ".mp4", ".png"), f"can't save a replay as '{path.name}': it must end in {endings}")
    require(1 <= fps <= 50, f"fps is {fps}: choose between 1 and 50 frames per second")
    require(frames is None or frames >= 2, f"frames is {frames}: the first and the last frame are at least 2")
    check_output(path)
    if path.suffix == ".mp4" and shutil.which("ffmpeg") is None:
        raise NahtError(f"{path.name} needs the program ffmpeg, which is not installed: choose a .gif instead")


def save_replay(replays: Sequence[Replay], path: str | Path, *, fps: int = 10, frames: int | None = None) -> Path:
    """Save episodes one after the other: as a film (.gif, .mp4) or, one below the other, as a strip of frames (.png).

    `frames` is the number of evenly spaced frames per episode; None: all in a film, 8 in a strip.
    """
    path = Path(path)
    require(len(replays) > 0, "there is no replay to save")
    check_replay(replays[0].env, path, fps=fps, frames=frames)
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
