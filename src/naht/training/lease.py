"""Who may write to a folder, among all processes of all machines that share its file system.

A lease is a file `.lease-<number>` in the folder. Whoever has the highest number is the owner; to become that, one
creates the next number, which only one can. The owner touches its file every few seconds and marks it as free when it
leaves. A lease that has not been touched for `seconds()` is stale, and so is one whose process is known to have died:
the next one takes over, deletes the old file, and only then begins to write.

Whoever was stopped for longer than that and comes back finds its file gone before it writes anything (`check`): what is
half-written lies under a temporary name, which the new owner has deleted. Times are compared as the file system gives
them, to the lease and to a file made for this purpose: no machine's own clock matters.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naht.errors import NahtError, require, short
from naht.storage import TEMPORARY, writes_checked
from naht.version import __version__

PREFIX = ".lease-"
SECONDS = 60.0
"""After so long without a sign of life, a lease may be taken over ($NAHT_LEASE_SECONDS: another number, on all
machines). Longer than a shared disk is away for a moment; short enough to wait for."""
BEATS = 6
"""Signs of life in that time."""

_patience = 0.0
_held: set[str] = set()
"""Tokens of leases that this process has."""


class Lost(NahtError):
    """Somebody else has taken over; nothing may be written any more."""


def seconds() -> float:
    """How long a lease lasts without a sign of life."""
    text = os.environ.get("NAHT_LEASE_SECONDS", "")
    if not text:
        return SECONDS
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    require(0.1 <= number <= 86_400, f"NAHT_LEASE_SECONDS is '{text}': it must be from 0.1 to 86400")
    return number


@contextmanager
def patient() -> Iterator[None]:
    """Within this, whoever wants a lease waits until a stale one may be taken over: for work that is begun again on
    another machine, where the first owner is dead or not."""
    global _patience
    before, _patience = _patience, 1.5 * seconds()
    try:
        yield
    finally:
        _patience = before


@contextmanager
def only_process(folder: Path, *, same_version: bool = False) -> Iterator[None]:
    """Two processes in the folder of one run, or of one node of a study, would ruin it.

    Whatever is written by `naht.storage` in this block is written only while the lease is ours. With `same_version`, a
    folder that another version of the package has worked in is refused.
    """
    lease = _acquire(folder, same_version)
    heart = threading.Thread(target=lease.beat_until_left, daemon=True)
    heart.start()
    try:
        with writes_checked(lease.check):
            yield
    finally:
        lease.leave()


def is_locked(folder: Path) -> bool:
    """Is a process at work in this folder, on whatever machine?"""
    found = _newest(folder)
    return found is not None and not found.is_over()


# -- what is in the folder


@dataclass(frozen=True)
class _Found:
    """The newest lease of a folder."""

    path: Path
    number: int
    facts: dict[str, Any]
    """What it says; empty if that can't be read."""

    @property
    def who(self) -> str:
        return f"process {short(self.facts.get('process'))} on {short(self.facts.get('host'))}"

    def is_over(self) -> bool:
        """Was it given back, or is its owner dead or silent?"""
        if self.facts.get("free") is True:
            return True
        process, here = self.facts.get("process"), self.facts.get("machine") == _machine()
        if here and isinstance(process, int) and process > 0:
            left = process == os.getpid() and self.facts.get("token") not in _held  # and could not give it back
            if left or _is_dead(process, self.facts.get("began")):
                return True
        return self.silent_for() > seconds()

    def silent_for(self) -> float:
        """Seconds since its last sign of life, by the clock of the file system."""
        try:
            return _now(self.path.parent) - self.path.stat().st_mtime
        except FileNotFoundError:
            return 0.0  # somebody is just taking over


def _newest(folder: Path) -> _Found | None:
    found = _numbers(folder)
    if not found:
        return None
    path = _path(folder, found[-1])
    try:
        facts = json.loads(path.read_bytes())
    except (OSError, ValueError):
        facts = None  # just being written, or rubbish
    return _Found(path, found[-1], facts if isinstance(facts, dict) else {})


def _path(folder: Path, number: int) -> Path:
    return folder / f"{PREFIX}{number}"


def _numbers(folder: Path) -> list[int]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    ends = [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]
    return sorted(int(end) for end in ends if end.isdecimal() and len(end) < 19)


def _now(folder: Path) -> float:
    """The time as the file system of this folder has it."""
    probe = folder / f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}"
    try:
        handle = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except OSError:  # one may only look here
        return time.time()
    try:
        return os.fstat(handle).st_mtime
    finally:
        os.close(handle)
        probe.unlink(missing_ok=True)


# -- who we are


@functools.cache
def _machine() -> str:
    """Another one wherever process numbers mean something else: on other machines, after a restart, in containers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _began(process: int) -> str | None:
    """When a process of this machine was started, which tells it from a later one with its number; None: it is dead, or
    this is no Linux."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _is_dead(process: int, began: Any) -> bool:
    """Has a process of this machine ended for sure?"""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        return False  # somebody else's
    return isinstance(began, str) and _began(process) != began


# -- being the owner


class _Lease:
    """A folder that is ours, until somebody takes it over."""

    def __init__(self, folder: Path, number: int):
        self.folder, self.path = folder, _path(folder, number)
        self.token, self.seconds = secrets.token_hex(8), seconds()
        self.facts = {
            "token": self.token,
            "host": socket.gethostname(),
            "machine": _machine(),
            "process": os.getpid(),
            "began": _began(os.getpid()),
            "naht": __version__,
        }
        self._left = threading.Event()
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            with open(handle, "w") as f:
                f.write(json.dumps(self.facts))
        except OSError:  # no room for it: an empty lease would keep everybody away until it is stale
            self.path.unlink(missing_ok=True)
            raise
        _held.add(self.token)

    def check(self) -> None:
        """Raise `Lost` unless we are the owner still."""
        try:
            facts = json.loads(self.path.read_bytes())
            ours = isinstance(facts, dict) and facts.get("token") == self.token
        except (FileNotFoundError, ValueError):
            ours = False
        if ours:
            return
        found = _newest(self.folder)
        if found is None:
            raise Lost(f"{self.folder} was moved, emptied or is out of reach; nothing was written there since")
        raise Lost(
            f"{self.folder} was taken over by {found.who}, since this process had been silent for "
            f"{self.seconds:.0f} s; it ends and has written nothing since"
        )

    def beat_until_left(self) -> None:
        while not self._left.wait(self.seconds / BEATS):
            with contextlib.suppress(OSError):  # a disk that is away for a while; if it is lost, `check` will tell
                os.utime(self.path)

    def leave(self) -> None:
        self._left.set()
        _held.discard(self.token)
        try:
            self.check()
            free = self.folder / f"{TEMPORARY}{self.token}"
            free.write_text(json.dumps(self.facts | {"free": True}))
            os.replace(free, self.path)
        except (Lost, OSError):
            return  # it is somebody else's, or goes stale


def _acquire(folder: Path, same_version: bool) -> _Lease:
    until = time.monotonic() + _patience
    while True:
        found = _newest(folder)
        if found is None or found.is_over():
            if found is not None and same_version:
                _check_version(folder, found.facts)
            try:
                lease = _Lease(folder, found.number + 1 if found is not None else 1)
            except FileExistsError:
                continue  # somebody was quicker
            numbers = _numbers(folder)
            if numbers[-1] == int(lease.path.name.removeprefix(PREFIX)):
                for number in numbers[:-1]:
                    _path(folder, number).unlink(missing_ok=True)
                return lease
            lease.leave()
            lease.path.unlink(missing_ok=True)  # the number was free again because somebody has gone beyond it
        elif time.monotonic() >= until:
            raise NahtError(
                f"{folder} is being worked on by another process: {found.who}, "
                f"last heard of {max(0.0, found.silent_for()):.0f} s ago"
            )
        time.sleep(min(0.2, seconds() / 10))


def _check_version(folder: Path, facts: dict[str, Any]) -> None:
    theirs = facts.get("naht")
    require(
        not isinstance(theirs, str) or theirs == __version__,
        f"{folder} was begun with naht {theirs}, this is naht {__version__}, and results might differ: "
        "use that version here, or another folder",
    )
