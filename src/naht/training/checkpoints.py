"""Checkpoints: the whole training state in one file per step, verified when read."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from naht.envs.base import PyTree
from naht.errors import Damaged, require
from naht.storage import check_weights, named_arrays, read_arrays, read_header, tree_like, write_arrays

KEEP = 2
"""Checkpoints kept: the newest, and one to fall back on."""
FORMAT = 2
OURS = ("learner/", "arena/controlled_memory", "arena/time_step")
"""Arrays whose numbers are finite in any run. What environments and teammates remember is their own business."""
DAMAGED = "damaged-"
"""A checkpoint's folder gets this prefix when it can't be used."""


def _files(folder: Path) -> list[Path]:
    """Oldest first."""
    return sorted(folder.glob("[0-9]*/state.safetensors"))


def newest_step(folder: Path) -> int | None:
    """The step of the newest checkpoint."""
    files = _files(folder)
    return int(files[-1].parent.name) if files else None


def save_checkpoint(folder: Path, step: int, state: PyTree, facts: dict[str, Any], keep: int = KEEP) -> None:
    """Write `folder/<step>/state.safetensors` in one move, then delete all but the newest `keep` checkpoints."""
    path = folder / f"{step:012d}" / "state.safetensors"
    write_arrays(path, named_arrays(state), {"kind": "checkpoint", "format": FORMAT, "step": step, **facts})
    for old in _files(folder)[:-keep]:
        old.unlink()
        old.parent.rmdir()


Check = Callable[[dict[str, Any]], None]
"""Raises `NahtError` where a checkpoint's facts are not those of this run."""


def load_newest(
    folder: Path, template: PyTree, check: Check = lambda _: None
) -> tuple[tuple[PyTree, dict[str, Any]] | None, list[str]]:
    """The newest checkpoint that is whole, as (state, facts), and a sentence about each damaged one.

    Damaged ones are set aside under another name, never deleted. What can't be read, or belongs to other settings, is
    an error and stays as it is.
    """
    damaged: list[str] = []
    for path in reversed(_files(folder)):
        try:
            arrays, facts = read_arrays(path)
        except Damaged as e:
            aside = path.parent.with_name(f"{DAMAGED}{path.parent.name}")
            damaged.append(f"{e}; set aside as {aside}")
            path.parent.rename(aside)
            continue
        _check_kind(facts, path)
        check(facts)
        state = tree_like(template, arrays, str(path))
        check_weights(
            {name: a for name, a in arrays.items() if name.startswith(OURS) and a.dtype.kind == "f"}, str(path)
        )
        return (state, facts), damaged
    return None, damaged


def _check_kind(facts: dict[str, Any], path: Path) -> None:
    fine = facts.get("kind") == "checkpoint" and facts.get("format") == FORMAT
    fine = fine and all(isinstance(facts.get(name), kind) for name, kind in FACTS.items())
    fine = fine and all(0 <= facts[name] < math.inf for name in ("step", "metrics_bytes", "seconds"))
    require(fine, f"{path} is not a checkpoint of format {FORMAT}")


FACTS: dict[str, type | tuple[type, ...]] = {
    "step": int,
    "metrics_bytes": int,
    "seconds": (int, float),
    "config": dict,
    "teammates": dict,
    "world": str,
}
"""What a checkpoint says besides its state."""


def check_newest(folder: Path, check: Check) -> None:
    """What `load_newest` would find wrong with the newest checkpoint's facts, before any work."""
    for path in _files(folder)[-1:]:
        try:
            facts = read_header(path)
        except Damaged:
            return
        _check_kind(facts, path)
        check(facts)


def any_set_aside(folder: Path) -> bool:
    """Were there checkpoints that turned out to be damaged?"""
    return any(folder.glob(f"{DAMAGED}*"))


def size_of(state: PyTree) -> int:
    """Bytes that a checkpoint of this state takes."""
    return sum(np.asarray(a).nbytes for a in named_arrays(state).values())
