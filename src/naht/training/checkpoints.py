"""Checkpoints: the whole training state in one file per step, verified when read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from naht.envs.base import PyTree
from naht.errors import NahtError
from naht.storage import named_arrays, read_arrays, tree_like, write_arrays

KEEP = 2
"""Checkpoints kept: the newest, and one to fall back on."""
FORMAT = 1


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


def load_newest(folder: Path, template: PyTree) -> tuple[tuple[PyTree, dict[str, Any]] | None, list[str]]:
    """The newest checkpoint that is whole, as (state, facts), and a sentence about each damaged one passed over."""
    damaged: list[str] = []
    for path in reversed(_files(folder)):
        try:
            arrays, facts = read_arrays(path)
            if facts.get("kind") != "checkpoint" or facts.get("format") != FORMAT:
                raise NahtError(f"{path} is not a checkpoint of format {FORMAT}")
            return (tree_like(template, arrays, str(path)), facts), damaged
        except NahtError as e:
            damaged.append(str(e))
    return None, damaged


def size_of(state: PyTree) -> int:
    """Bytes that a checkpoint of this state takes."""
    return sum(np.asarray(a).nbytes for a in named_arrays(state).values())
