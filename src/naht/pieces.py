"""How much is computed at once, decided in one place: pieces that fit a processor's cache, or everything.

A processor is fastest on pieces whose temporaries stay in its cache, one piece after the other. An accelerator wants as
much as there is in one operation: the same pieces would be thousands of tiny kernels that wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

import jax

from naht.config import Count, setting

AtOnce = Count | Literal["auto", "all"]
Together = Literal["auto", "in-turn", "at-once"]


@setting
@dataclass(frozen=True)
class Pieces:
    """How much is computed at once; auto: as suits the hardware. Changes speed and memory, results by rounding only."""

    rows: AtOnce = "auto"
    """Agents' sequences whose gradient is computed at once (PPO)."""
    look_back: AtOnce = "auto"
    """Agents' histories that are embedded and valued at once (PPO)."""
    sequences: AtOnce = "auto"
    """Teams' sequences whose gradient is computed at once (IQL, VDN, QMIX)."""
    members: Together = "auto"
    """Members of a population act in turn, each in its own seats, block by block; or all blocks at once."""


CACHE = Pieces(rows=16, look_back=32, sequences=8, members="in-turn")
"""For processors."""
WHOLE = Pieces(rows="all", look_back="all", sequences="all", members="at-once")
"""For accelerators."""


def decided(pieces: Pieces, platform: str | None = None) -> Pieces:
    """With nothing left to decide, for a platform as JAX calls it; None: the one that JAX uses."""
    automatic = CACHE if (platform or jax.default_backend()) == "cpu" else WHOLE
    names = [field.name for field in fields(Pieces)]
    return replace(pieces, **{name: getattr(automatic, name) for name in names if getattr(pieces, name) == "auto"})


def at_most(size: AtOnce, everything: int) -> int:
    """A decided size as a number, of so many that there are."""
    return everything if isinstance(size, str) else min(size, everything)


def explained(platform: str) -> str:
    """What is decided for a platform, and why."""
    p = decided(Pieces(), platform)
    sizes = f"gradients of {p.rows} rows (or {p.sequences} sequences), {p.look_back} histories, members {p.members}"
    why = "pieces that fit a processor's cache" if p == CACHE else "an accelerator wants large operations"
    return f"{sizes}: {why}"
