"""What the paper published, as data: exact numbers of its tables, and numbers read off its plots, marked as such."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

from naht.report.content import Published


@cache
def _numbers() -> dict[tuple[str, str, str, str], Published]:
    data = json.loads((resources.files("naht") / "assets" / "paper.json").read_text())
    found = {}
    for task, part, method, at, mean, half_width, read_off, where in data["numbers"]:
        found[task, part, method, at] = Published(mean, half_width, read_off, where)
    return found


def published(task: str, part: str, method: str, at: str) -> Published | None:
    """A number of the paper by task, part of the study, method and what it is of; None if it has none."""
    return _numbers().get((task, part, method, at))
