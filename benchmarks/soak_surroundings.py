"""What a soak goes on in: its processes, and its disk. Needs /proc."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

TOKEN = "NAHT_SOAK_TOKEN"
"""Environment variable by which a sitting knows its processes again, whoever their parents are now."""


def processes(token: str) -> list[int]:
    """All living processes of a sitting, orphans and frozen ones, too."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if f"{TOKEN}={token}".encode() in Path(entry.path, "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def send(number: int, *pids: int) -> int:
    """How many of these a signal reached."""
    reached = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            reached += 1
    return reached


@dataclass(frozen=True)
class Usage:
    """What a process holds."""

    megabytes: float
    files: int
    threads: int


def usage(pid: int) -> Usage | None:
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        files = len(os.listdir(f"/proc/{pid}/fd"))
        return Usage(int(status["VmRSS"].split()[0]) / 1024, files, int(status["Threads"]))
    except (OSError, KeyError):
        return None


def growth(samples: Sequence[Usage]) -> dict[str, dict[str, float]]:
    """Of each quantity, its median in the second and in the last quarter: the first is for warming up."""
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    return {
        name: {k: round(median(getattr(s, name) for s in part), 1) for k, part in (("early", early), ("late", late))}
        for name in ("megabytes", "files", "threads")
        if quarter
    }


def not_flat(grown: dict[str, dict[str, float]]) -> list[str]:
    """Which quantities have grown by more than a tenth and a little."""
    spare = {"megabytes": 30.0, "files": 3.0, "threads": 3.0}
    return [
        f"the endless process grows: {name} {found['early']} -> {found['late']}"
        for name, found in grown.items()
        if found["late"] > 1.1 * found["early"] + spare[name]
    ]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return b""


class Disk:
    """Where a round takes place: a small file system of its own where this is allowed, else a folder."""

    def __init__(self, place: Path, megabytes: int):
        self.place = place
        place.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)]
        self.own = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
        self._filler = place / "filler"

    def fill(self) -> None:
        """Until not a page more fits."""
        for size in (2**20, 2**12):
            with contextlib.suppress(OSError), open(self._filler, "ab", buffering=0) as f:
                while f.write(bytes(size)):
                    pass

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)

    def writable(self, is_so: bool) -> None:
        """All folders of the round."""
        for path in [*self.place.iterdir(), *self.place.rglob("*/")]:
            with contextlib.suppress(OSError):
                if path.is_dir():
                    path.chmod(0o755 if is_so else 0o555)

    def clear(self) -> None:
        self.free()
        self.writable(True)
        for path in self.place.iterdir():
            shutil.rmtree(path)

    def close(self) -> None:
        if self.own:
            subprocess.run(["umount", "-l", str(self.place)], check=False)
