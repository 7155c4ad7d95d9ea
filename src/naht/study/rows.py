"""Rows on disk: small tables as compressed CSV, the same bytes for the same rows."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from naht.errors import Damaged
from naht.storage import write_file

Row = dict[str, Any]


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table with these columns; numbers are kept to seven digits."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows([f"{cell:.7g}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    write_file(path, gzip.compress(text.getvalue().encode(), mtime=0))


def read_rows(path: Path) -> list[Row]:
    """The rows of a table by column; what looks like a number is one, and an empty cell is None."""
    try:
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    except (OSError, EOFError, UnicodeDecodeError) as e:
        raise Damaged(f"can't read {path}: {e}") from e
    columns, *rows = csv.reader(lines)
    return [{name: _value(cell) for name, cell in zip(columns, row, strict=True)} for row in rows]


@lru_cache(maxsize=2**17)  # names and small numbers come again and again
def _value(cell: str) -> Any:
    try:
        return float(cell) if "." in cell or "e" in cell or "n" in cell else int(cell)
    except ValueError:
        return cell or None
