"""Finding agents by what a user writes: files, folders, and the zoo that comes with the package."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from naht.agents.saved import SUFFIX
from naht.errors import unknown

ZOO = "zoo"


def zoo_folder() -> Path:
    """The shipped agents: a folder per task."""
    return Path(str(resources.files("naht") / "assets" / ZOO))


def zoo_tasks() -> list[str]:
    """The tasks that agents are shipped for."""
    return sorted(path.name for path in zoo_folder().glob("*") if agents_in(path))


def agents_in(folder: Path) -> dict[str, Path]:
    """The agents of a population's folder by name, in the order of their names and seeds."""
    files = folder.glob(f"*{SUFFIX}")
    return {path.stem: path for path in sorted(files, key=lambda p: _natural(p.stem))}


def _natural(name: str) -> list[tuple[str, int]]:
    """seed10 after seed9."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D+)(\d*)", name)]


def find_agents(text: str, task: str | None = None) -> list[Path] | None:
    """The files that a user means; None if it is neither a path nor of the zoo.

    A file, a run's folder (its best agent), a folder of runs (theirs), a population's folder (all its agents); of the
    zoo 'zoo/mpe-pp' (everybody shipped for that task), 'zoo/mpe-pp/vdn' (those of one algorithm), 'zoo/mpe-pp/seed3'
    (one team of every algorithm) or 'zoo/mpe-pp/vdn-seed3'. Where the task is known it may be left out: 'zoo',
    'zoo/vdn', 'zoo/vdn-seed3'.
    A folder of the user's that is called zoo is './zoo'.
    """
    first, *rest = text.split("/")
    if first != ZOO:  # names of the zoo come first: a folder that happens to be called zoo must not change a run
        path = Path(text)
        if path.is_file():
            return [path]
        best = path / f"best{SUFFIX}"
        if best.is_file():
            return [best]
        runs = sorted(path.glob(f"*/best{SUFFIX}"), key=lambda p: _natural(p.parent.name))
        return list(agents_in(path).values()) or runs or None
    if rest and (rest[0] in zoo_tasks() or task is None):
        task, *rest = rest
    there = agents_in(zoo_folder() / task) if task else {}
    if not there:
        raise unknown("task of the zoo", task or "", zoo_tasks())
    name = "/".join(rest)
    found = [path for known, path in there.items() if not name or f"-{name}-" in f"-{known}-"]
    if not found:
        parts = sorted({part for known in there for part in known.split("-")})
        raise unknown(f"agent of the zoo for {task}", name, [*parts, *there])
    return found
