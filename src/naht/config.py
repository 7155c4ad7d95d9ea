"""Settings: frozen dataclasses that check themselves, as JSON and back.

A setting's fields are checked against their declarations whenever one is made, be it from flags, from a file or in
Python: the type, and the range that an annotation such as `Count` states. In JSON each setting is an object that names
its class under "type". Only registered classes can be read back, so loading a file never runs anything that the file
brought along.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable
from functools import cache, wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from naht.errors import NahtError, require, short, unknown
from naht.plugins import load_offered

T = TypeVar("T", bound=type)

_TYPES: dict[str, type] = {}
LARGEST = 2**53
"""Whole numbers beyond this are mistakes, and not exact in JSON everywhere."""


@dataclasses.dataclass(frozen=True)
class Range:
    """Which numbers a field takes, from `low` (or above it) to `high`."""

    low: float
    high: float = math.inf
    above: bool = False
    """`low` itself is too low."""

    def fits(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        if self.high < math.inf:
            return f"it must lie between {self.low:,} and {self.high:,}"
        return "it must be positive" if self.above else f"it must be at least {self.low:g}"


MOST_ENVS, MOST_NUMBERS = 1_000_000, 1_000_000
"""More worlds side by side, or numbers of a layer or observation, are a slip of the hand."""

Count = Annotated[int, Range(1)]
"""How many: 1 or more."""
Amount = Annotated[int, Range(0)]
"""How many, or none."""
Width = Annotated[int, Range(1, MOST_NUMBERS)]
"""Numbers in a layer or an observation."""
Seed = Annotated[int, Range(0, 2**32 - 1)]
Positive = Annotated[float, Range(0, above=True)]
NotNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
"""Between 0 and 1."""


def seconds_of(name: str, text: str) -> float:
    """A setting such as '90s', '45m', '2h' or '1.5h' in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if found is None:
        raise NahtError(f"{name} is '{text}': write a number and s, m or h, for instance 90m or 2h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def setting(cls: T) -> T:
    """Class decorator: this dataclass checks its fields, and may appear in configuration files and agent cards."""
    taken = _TYPES.get(cls.__name__)
    if taken is not None and taken.__module__ != cls.__module__:
        # A file that names one would be read as the other. A script is another module in its worker processes.
        script = {"__main__", "__mp_main__"} >= {taken.__module__, cls.__module__}
        where = f"{taken.__module__} has a setting of that name already"
        require(script, f"the setting {cls.__name__} of {cls.__module__} needs another name: {where}")
    _TYPES[cls.__name__] = cls
    # Before the class's own checks, which may count on the types.
    own = getattr(cls, "__post_init__", None)
    if own is None:
        made: Any = getattr(cls, "__init__")  # noqa: B009 (mypy takes a class for an instance here)

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            made(self, *args, **kwargs)
            check_fields(self)

        setattr(cls, "__init__", wraps(made)(init))  # noqa: B010 (likewise)
    elif not getattr(own, "checks_fields", False):  # an inherited one checks already

        def checked(self: Any) -> None:
            check_fields(self)
            own(self)

        checked.checks_fields = True  # type: ignore[attr-defined]
        setattr(cls, "__post_init__", checked)  # noqa: B010 (likewise)
    return cls


@cache
def _declared(cls: Any) -> dict[str, Any]:
    """The declared type of every field."""
    try:
        hints = get_type_hints(cls, include_extras=True)
    except NameError:  # a class of the user's that refers to something local
        return {}
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def check_fields(value: Any) -> None:
    """Every field of a setting against its declaration: one sentence about the first that does not fit."""
    cls: Any = type(value)
    for name, declared in _declared(cls).items():
        problem = _problem(declared, getattr(value, name))
        require(problem is None, f"{name} is {short(getattr(value, name))}: {problem}")


def is_number(value: Any) -> bool:
    """Truth values are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _problem(declared: Any, value: Any) -> str | None:
    """What is wrong with a value; None if it is what the declaration says, or that says nothing we know."""
    if isinstance(declared, TypeVar):
        declared = declared.__bound__
    origin, args = get_origin(declared), get_args(declared)
    if origin is Annotated:
        problem = _problem(args[0], value)
        ranges = [part for part in args[1:] if isinstance(part, Range)]
        wrong = [str(part) for part in ranges if not problem and not part.fits(value)]
        return wrong[0] if wrong else problem
    if origin in (Union, UnionType):
        problems = [_problem(kind, value) for kind in args]
        if None in problems:
            return None
        # Of several kinds, the one that the value is meant to be says most.
        close = [p for kind, p in zip(args, problems, strict=True) if p and not p.startswith("it must be a ")]
        return close[0] if close else f"it must be {' or '.join(_called(kind) for kind in args)}"
    if origin is Literal:
        fine = any(value == choice and type(value) is type(choice) for choice in args)
        return None if fine else f"choose from {', '.join(map(str, args))}"
    if origin is tuple:
        if not isinstance(value, tuple):
            return "it must be a list"
        kinds = args[:1] * len(value) if args[1:] == (...,) else args
        if len(kinds) != len(value):
            return f"it must be a list of {len(kinds)}"
        return next(
            (problem for kind, item in zip(kinds, value, strict=True) if (problem := _problem(kind, item))), None
        )
    if declared is bool:
        return None if isinstance(value, bool) else "it must be true or false"
    if declared is int:
        if isinstance(value, bool) or not isinstance(value, int):
            return "it must be a whole number"
        return None if abs(value) <= LARGEST else f"it must be at most {LARGEST}"
    if declared is float:
        if not is_number(value):
            return "it must be a number"
        return None if math.isfinite(value) else "it must be a finite number"
    if declared is str:
        return None if isinstance(value, str) else "it must be a text"
    if declared is NoneType:
        return None if value is None else "it must be a null"
    if dataclasses.is_dataclass(declared) or getattr(declared, "_is_runtime_protocol", False):
        return None if isinstance(value, declared) else f"it must be a kind of {declared.__name__}"
    return None


def _called(kind: Any) -> str:
    """A kind of value in words."""
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", NoneType: "None"}
    origin = get_origin(kind)
    if origin is Annotated:
        return _called(get_args(kind)[0])
    if origin is Literal:
        return " or ".join(f"'{choice}'" for choice in get_args(kind))
    if origin is tuple:
        return "a list"
    return names.get(kind, getattr(kind, "__name__", str(kind)))


def encode(value: Any) -> Any:
    """A setting as plain JSON data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if type(value).__name__ not in _TYPES:
            raise NahtError(f"{type(value).__name__} can't be saved: decorate it with @naht.setting")
        fields = {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, (list, tuple)):
        return [encode(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise NahtError(f"{value!r} can't be saved in a configuration: use numbers, text, tuples and @naht.setting classes")


def departures(value: Any) -> Any:
    """Like `encode`, without the fields that are as their class has them by default.

    Two settings depart alike if and only if they are equal; a field that is added to a class later, with a default that
    changes nothing, leaves this as it is. Not to be decoded.
    """
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return [departures(v) for v in value] if isinstance(value, (list, tuple)) else encode(value)
    changed = {}
    for f in dataclasses.fields(value):
        default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        if default is dataclasses.MISSING or getattr(value, f.name) != default:
            changed[f.name] = departures(getattr(value, f.name))
    return {"type": type(value).__name__, **changed}


def decode(data: Any) -> Any:
    """The inverse of `encode`. Lists become tuples."""
    if isinstance(data, list):
        return tuple(decode(v) for v in data)
    if not isinstance(data, dict):
        return data
    load_offered()  # installed packages have settings of their own
    name = data.get("type")
    if not isinstance(name, str) or name not in _TYPES:
        raise unknown("type of setting", name, _TYPES)
    cls = _TYPES[name]
    known = {f.name: f for f in dataclasses.fields(cls)}
    for field in data:
        if field != "type" and field not in known:
            raise unknown(f"setting of {name}", field, known)
    missing = [f.name for f in known.values() if f.name not in data and _needed(f)]
    require(not missing, f"{name} lacks {', '.join(missing)}")
    return cls(**{k: decode(v) for k, v in data.items() if k != "type"})


def _needed(field: dataclasses.Field) -> bool:
    return field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def read_json(path: Path) -> Any:
    """Parse a JSON file, or say in one sentence why that can't be done."""
    try:
        return parse_json(path.read_bytes(), str(path))
    except OSError as e:
        raise NahtError(f"can't read {path}: {e.strerror}") from e


def parse_json(text: str | bytes, what: str) -> Any:
    """JSON as data; any mistake in it is one sentence about `what`."""
    try:
        return json.loads(text)
    except RecursionError as e:
        raise NahtError(f"{what} is not valid JSON of ours: it is nested too deeply") from e
    except ValueError as e:
        raise NahtError(f"{what} is not valid JSON: {e}") from e


def whole_rows(text: bytes) -> Iterable[tuple[int, dict[str, Any]]]:
    """(end in bytes, row) of every whole row of a JSON-lines file; what a full disk or a kill left of a row is none."""
    end = 0
    for line in text.split(b"\n")[:-1]:  # a row ends with a line break
        end += len(line) + 1
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield end, row
