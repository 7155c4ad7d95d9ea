"""Errors meant for people: one line that names the value and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class NahtError(Exception):
    """A mistake the user can mend. The command line prints it as one line and leaves with code 2."""

    def __init__(self, message: str):
        # Messages quote what files hold: line ends and the terminal's control codes would do more than be read.
        super().__init__("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message))


class Damaged(NahtError):
    """A file is not what was once written: cut off, or changed."""


class Interrupted(Exception):
    """A run was asked to stop by a signal, and is saved."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.signal_number = signal_number


def unknown(kind: str, value: object, choices: Iterable[str]) -> NahtError:
    """The error for a name that does not exist, with the nearest names that do."""
    known = list(choices)
    near = difflib.get_close_matches(str(value), known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(known)}"
    return NahtError(f"unknown {kind} '{value}': {hint}")


def require(condition: bool, message: str) -> None:
    """Raise `NahtError(message)` unless the condition holds."""
    if not condition:
        raise NahtError(message)


def short(value: object) -> str:
    """A value as a message quotes it."""
    text = f"'{value}'" if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def one_line(e: BaseException) -> str:
    """What another library says of an error."""
    return " ".join(str(e).split()) or type(e).__name__
