"""A call on its way to another process, perhaps on another machine: what is sent, and what is done with it there.

What is done is judged by folders, so a call carries no results: it comes back with nothing, or with a sentence. All
machines see the same folders, and run the same code; both are checked before anything is touched.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import sys
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from naht.errors import Interrupted, NahtError, one_line, require
from naht.runtime import OURS, configure
from naht.training.lease import patient
from naht.training.progress import Event, Report
from naht.version import __version__

MARK = ".shared"
"""A file by which machines know that they see the same folder."""


@dataclass(frozen=True)
class Home:
    """What a worker must have in common with the command that sends it work."""

    versions: dict[str, str]
    """What results depend on, bit for bit."""
    folder: Path
    """Where the command was called: relative paths start there."""
    place: Path
    """Where results go."""
    mark: str
    """What stands in `MARK` there."""
    path: tuple[str, ...]
    """Where Python looks for modules: those that a script brings along, too."""

    def enter(self) -> None:
        """Make this process one that works there, or say why it can't be."""
        host = socket.gethostname()
        for name, theirs in self.versions.items():
            ours = versions()[name]
            require(
                ours == theirs,
                f"{host} has {name} {ours}, and the command {theirs}: install the same on both, or results differ",
            )
        with contextlib.suppress(OSError):
            if (self.place / MARK).read_text() == self.mark:
                os.chdir(self.folder)
                sys.path += [entry for entry in self.path if entry not in sys.path]
                return
        raise NahtError(
            f"{host} does not see {self.place} as the command does: machines that work together must share its folder"
        )


def versions() -> dict[str, str]:
    return {"naht": __version__, "jax": version("jax")}


def home(place: Path) -> Home:
    """That of a command which is about to work in this folder."""
    place = place.absolute()
    try:
        place.mkdir(parents=True, exist_ok=True)
        if not (place / MARK).exists():
            mine = place / f"{MARK}-{uuid.uuid4().hex}"
            mine.write_text(uuid.uuid4().hex)
            with contextlib.suppress(FileExistsError):  # another command was quicker
                os.link(mine, place / MARK)
            mine.unlink()
        mark = (place / MARK).read_text()
    except OSError as e:
        raise NahtError(f"can't write to {place}: {e.strerror}") from e
    return Home(versions(), Path.cwd(), place, mark, tuple(entry for entry in sys.path if entry))


@dataclass(frozen=True)
class Call:
    """`function(*args, report=...)`, to be done elsewhere."""

    name: str
    home: Home
    work: bytes
    """The function and its arguments: not unpacked before versions and folders are known to fit."""

    @classmethod
    def of(cls, name: str, home: Home, function: Callable[..., Any], args: tuple[Any, ...]) -> Call:
        return cls(name, home, pickle.dumps((function, args)))


def perform(call: Call, report: Report) -> NahtError | None:
    """The one thing that a worker does. Returns why it can't be done; `Interrupted` is raised, with all of it saved."""
    try:
        call.home.enter()
        configure()
        function, args = pickle.loads(call.work)
        with patient():  # it may have been begun on a machine that died, or seems to have
            function(*args, report=sparing(report))
    except Interrupted:
        raise
    except NahtError as e:
        return NahtError(str(e))
    except Exception as e:
        frame = traceback.extract_tb(e.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        return NahtError(f"{type(e).__name__} in {where} on {socket.gethostname()}: {one_line(e)}")
    return None


def sparing(report: Report, seconds: float = 1.0) -> Report:
    """One event per so long, besides messages and the last one: a network is no place for hundreds a second."""
    told = -seconds

    def tell(event: Event) -> None:
        nonlocal told
        if event.message is not None or event.step >= event.total or time.monotonic() - told >= seconds:
            told = time.monotonic()
            report(event)

    return tell


def variables(devices: int) -> dict[str, str]:
    """The environment of a worker: JAX sees so many devices, and all that the user has told JAX and naht.

    The command's own number of devices is that of its machine, and the folder of compiled code that it chose itself
    need not exist elsewhere.
    """
    chosen = {name: value for name, value in os.environ.items() if name.startswith(("JAX_", "XLA_", "NAHT_"))}
    if OURS.get("JAX_COMPILATION_CACHE_DIR") == chosen.get("JAX_COMPILATION_CACHE_DIR"):
        chosen.pop("JAX_COMPILATION_CACHE_DIR", None)
    source = Path(__file__).parents[2]
    if "site-packages" not in source.parts:  # from a source tree, which is not installed everywhere
        before = os.environ.get("PYTHONPATH")
        chosen["PYTHONPATH"] = f"{source}{os.pathsep}{before}" if before else str(source)
    return chosen | {"NAHT_DEVICES": str(devices), "JAX_NUM_CPU_DEVICES": str(devices)}
