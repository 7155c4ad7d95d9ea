"""Settings as JSON and back.

Settings are frozen dataclasses. In JSON each is an object that names its class under "type". Only registered classes
can be read back, so loading a file never runs anything that the file brought along.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, TypeVar

from naht.errors import NahtError, unknown

T = TypeVar("T", bound=type)

_TYPES: dict[str, type] = {}


def setting(cls: T) -> T:
    """Class decorator: this dataclass may appear in configuration files and agent cards."""
    _TYPES[cls.__name__] = cls
    return cls


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


def decode(data: Any) -> Any:
    """The inverse of `encode`. Lists become tuples."""
    if isinstance(data, list):
        return tuple(decode(v) for v in data)
    if not isinstance(data, dict):
        return data
    name = data.get("type")
    if name not in _TYPES:
        raise unknown("type of setting", name, _TYPES)
    cls = _TYPES[name]
    known = [f.name for f in dataclasses.fields(cls)]
    for field in data:
        if field != "type" and field not in known:
            raise unknown(f"setting of {name}", field, known)
    return cls(**{k: decode(v) for k, v in data.items() if k != "type"})


def read_json(path: Path) -> Any:
    """Parse a JSON file, or say in one sentence why that can't be done."""
    try:
        return json.loads(path.read_text())
    except OSError as e:
        raise NahtError(f"can't read {path}: {e.strerror}") from e
    except ValueError as e:
        raise NahtError(f"{path} is not valid JSON: {e}") from e
