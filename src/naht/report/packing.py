"""Recorded episodes as a page carries them: arrays as small whole numbers, compressed, which its script unpacks."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

from naht.errors import require
from naht.report.content import Episode
from naht.report.tables import short

PLACES, GHOSTS, RETURNS = 6_000, 16_000, 30_000
"""How finely arrays are stored, in parts of their range: more than a screen shows, and small enough to compress."""


def pack_episode(episode: Episode) -> dict[str, Any]:
    """An episode for the script: words as they are; numbers as small integers, compressed, in base64.

    `arrays` says what lies in `bytes`, one array after the other: [name, type, shape, low, grain]. Every array is
    stored with time as its last axis, as differences from one step to the next (modulo the type's size): things that
    move little take little room. Int16 k >= 0 stands for low + k * grain and -1 for nothing; the square root of
    a chance is a byte, so that small chances keep their digits; so are health and shield. A byte of `shots`
    is 0 for nobody, 1 + 2 * k for an attempt at thing k, one more if it fired.
    """
    steps = len(np.asarray(episode.actions))
    arrays = [("places", *_as_int16(episode.places, PLACES)), ("running", *_as_int16(episode.running_return, RETURNS))]
    ghosts = [(f"ghosts{k}", b.places) for k, b in enumerate(episode.beliefs) if b.places is not None]
    arrays += [(name, *_as_int16(places, GHOSTS)) for name, places in ghosts]
    arrays.append(("actions", np.asarray(episode.actions).astype(np.uint8), []))
    for name, share in (("health", episode.health), ("shield", episode.shield)):
        if share is not None:  # rounded up: nobody dies of it
            arrays.append((name, np.ceil(255 * _share(share)).astype(np.uint8), []))
    if episode.aims is not None:
        aims, fired = np.asarray(episode.aims), np.asarray(episode.fired)
        arrays.append(("shots", np.where(aims < 0, 0, 1 + 2 * aims + fired).astype(np.uint8), []))
    for k, beliefs in enumerate(episode.beliefs):
        arrays.append((f"chances{k}", np.rint(255 * np.sqrt(_share(beliefs.chances))).astype(np.uint8), []))
    for name, array, _ in arrays:
        frames = steps + (name in ("places", "running", "health", "shield"))
        require(len(array) == frames, f"'{name}' of an episode of {steps} steps has {len(array)} frames, not {frames}")
    return {
        "task": episode.task,
        "method": episode.method,
        "strangers": episode.strangers,
        "label": episode.label,
        "return": short(float(episode.episode_return)),
        "steps": steps,
        "seats": episode.seats,
        "controlled": [bool(c) for c in episode.controlled],
        "kinds": episode.kinds,
        "units": episode.units,
        "levels": [int(level) for level in episode.levels],
        "radii": [short(float(r)) for r in episode.radii],
        "bounds": [short(float(b)) for b in episode.bounds],
        "ground": None if episode.ground is None else [short(float(b)) for b in episode.ground],
        "sight": episode.sight,
        "reach": episode.reach,
        "outcome": episode.outcome,
        "actionNames": episode.action_names,
        "events": [[int(step), what] for step, what in episode.events],
        "beliefs": [{"seat": int(b.seat), "teammates": [int(t) for t in b.teammates]} for b in episode.beliefs],
        "arrays": [[name, a.dtype.name, [*a.shape[1:], a.shape[0]], *scale] for name, a, scale in arrays],
        "bytes": base64.b64encode(zlib.compress(b"".join(_over_time(a) for _, a, _ in arrays), 9)).decode(),
    }


def _share(values: Any) -> np.ndarray:
    return np.clip(np.nan_to_num(np.asarray(values, float)), 0, 1)


def _over_time(array: np.ndarray) -> bytes:
    """[T, ...] integers -> [..., T] differences."""
    differences = np.diff(array, axis=0, prepend=np.zeros_like(array[:1]))
    return np.moveaxis(differences, 0, -1).tobytes()


def _as_int16(given: Any, grains: int) -> tuple[np.ndarray, list[float]]:
    """[T, ...] -> little-endian int16, what 0 stands for and what one more is; NaN becomes -1."""
    values = np.asarray(given, float)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    high = high if high > low else low + 1.0
    grain = (high - low) / grains
    scaled = np.rint((np.where(np.isfinite(values), values, low) - low) / grain)
    return np.where(np.isfinite(values), scaled, -1).astype("<i2"), [low, grain]
