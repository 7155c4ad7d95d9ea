"""Tables of things by name that other packages can add to.

A package that a user has installed offers its algorithms, tasks and teammates as entry points of the groups below. They
are imported when any name is first looked up, all of them and because they are installed: never because a file says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from naht.errors import NahtError, one_line, require, short, unknown

T = TypeVar("T")

GROUPS = ("naht.algorithms", "naht.tasks", "naht.teammates")

_offered: dict[str, dict[str, object]] | None = None


def load_offered() -> dict[str, dict[str, object]]:
    """What installed packages offer, by group and name; or a `NahtError` that says why it can't be used.

    The first call imports them.
    """
    global _offered
    if _offered is None:
        _offered = {group: {} for group in GROUPS}  # first: what is imported now may ask itself
        for group, things in _offered.items():
            for point in sorted(entry_points(group=group), key=lambda point: point.name):
                try:
                    things[point.name] = point.load()
                except (Exception, SystemExit) as e:
                    whose = f"'{point.name}' of the installed package {point.dist.name if point.dist else '?'}"
                    things[point.name] = NahtError(f"{whose} can't be used: {type(e).__name__}: {one_line(e)}")
    return _offered


class Registry(Mapping[str, T], Generic[T]):
    """Things of a kind by name: ours, those registered from Python, then those that installed packages offer."""

    def __init__(self, kind: str, cls: type[T], group: str, ours: Mapping[str, T]):
        self.kind, self.cls, self.group = kind, cls, group
        self._here = dict(ours)

    def register(self, name: str, thing: T) -> None:
        """Add a thing under a name that is not taken."""
        require(name not in self, f"there is {_a(self.kind)} '{name}' already")
        good = bool(name) and name.isprintable() and not {*":/ "} & set(name) and not name.startswith(("-", "."))
        require(good, f"{self.kind} '{name}': a name has no colon, slash or space and does not begin with - or .")
        require(isinstance(thing, self.cls), f"{self.kind} '{name}' is {thing!r}: it must be a {self.cls.__name__}")
        self._here[name] = thing

    @property
    def _usable(self) -> dict[str, T]:
        theirs = {name: thing for name, thing in load_offered()[self.group].items() if isinstance(thing, self.cls)}
        return self._here | {name: thing for name, thing in theirs.items() if name not in self._here}

    @property
    def broken(self) -> dict[str, NahtError]:
        """What installed packages offer and nobody can use, with the reason."""
        wrong = {}
        for name, thing in load_offered()[self.group].items():
            if name in self._here:
                wrong[name] = NahtError(f"{self.kind} '{name}' of an installed package: that name is taken")
            elif isinstance(thing, NahtError):
                wrong[name] = thing
            elif not isinstance(thing, self.cls):
                what = f"{short(thing)}: it must be a {self.cls.__name__}"
                wrong[name] = NahtError(f"{self.kind} '{name}' of an installed package is {what}")
        return wrong

    def __getitem__(self, name: str) -> T:
        usable = self._usable
        if name not in usable:
            raise self.broken.get(name) or unknown(self.kind, name, usable)
        return usable[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The thing, or `default` if there is none to be used."""
        return self._usable.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self._usable

    def __iter__(self) -> Iterator[str]:
        return iter(self._usable)

    def __len__(self) -> int:
        return len(self._usable)


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
