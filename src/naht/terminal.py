"""Where text for people goes."""

from __future__ import annotations

from rich.console import Console


def terminal(*, stderr: bool = False) -> Console:
    """Names and paths appear as they are: brackets are no markup, here as in files that others wrote."""
    return Console(stderr=stderr, markup=False)
