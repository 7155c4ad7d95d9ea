"""The folder of compiled code: entries appear whole or not at all, damaged ones heal, and its size is bounded.

JAX's own cache writes an entry in place and never replaces one that exists. A process killed while it writes, or a full
disk, leaves half an entry; every later start then warns about it and compiles again, for ever. JAX's limit of the
folder's size is no help: it needs another package, locks every access, keeps a second file per entry, and one of those
missing (again a kill) ends all writing.

`install` puts a small cache with JAX's own file names and contents in its place. Where JAX's internals are not the ones
known here, it leaves them alone. Nothing in this module needs JAX before `install` is called.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENTRY = "-cache"
"""How JAX's names of entries end."""

TEMPORARY = ".tmp-"
"""Names with this prefix are unfinished."""

ABANDONED_SECONDS = 3600.0
"""An unfinished file of this age has no writer any more: writing takes milliseconds."""

MAX_BYTES = 2**30
"""Least recently used entries make room beyond this size, unless JAX_COMPILATION_CACHE_MAX_SIZE says otherwise."""

ZSTANDARD = b"\x28\xb5\x2f\xfd"
"""Start of an entry that was compressed with zstandard, which JAX takes where it is installed."""


class CompiledCode:
    """What JAX asks of a cache: bytes by key. Trouble with the disk never reaches JAX, which would warn every time.

    Several processes may use one folder without locks: an entry is moved into place in one step, and one that another
    process has just deleted is compiled again.
    """

    def __init__(self, path: str | os.PathLike[str], max_bytes: int = MAX_BYTES):
        self._path = Path(path)  # JAX reads this name
        self.max_bytes = max_bytes
        self._complained = False
        self._spare = 0
        """Bytes that may be added before the folder is measured again: measuring takes as long as it has entries."""

    def _entry(self, key: str) -> Path:
        return self._path / f"{key}{ENTRY}"

    def get(self, key: str) -> bytes | None:
        """The entry, or None if there is none that can be read."""
        try:
            value = self._entry(key).read_bytes()
        except OSError:
            return None
        with contextlib.suppress(OSError):
            os.utime(self._entry(key))  # the time of last use, for `_make_room`
        return value

    def put(self, key: str, value: bytes) -> None:
        """Add or replace an entry."""
        if len(value) > self.max_bytes:
            return
        temporary = self._path / f"{TEMPORARY}{os.urandom(8).hex()}"
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            self._make_room(len(value))
            try:
                temporary.write_bytes(value)
                os.replace(temporary, self._entry(key))
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as e:
            self._complain(e)

    def remove(self, key: str) -> None:
        """Forget an entry that cannot be used."""
        with contextlib.suppress(OSError):
            self._entry(key).unlink()

    def _make_room(self, num_bytes: int) -> None:
        """Delete abandoned files, and the least recently used entries until `num_bytes` fit."""
        self._spare -= num_bytes
        if self._spare >= 0:
            return
        entries, total = [], num_bytes
        for path, stat in _files(self._path):
            if path.name.endswith(ENTRY):
                entries.append((stat.st_mtime_ns, path, stat.st_size))
                total += stat.st_size
            elif path.name.startswith(TEMPORARY) and time.time() - stat.st_mtime > ABANDONED_SECONDS:
                path.unlink(missing_ok=True)
        for _, path, size in sorted(entries):
            if total <= self.max_bytes:
                break
            path.unlink(missing_ok=True)
            total -= size
        self._spare = max(0, self.max_bytes - total) // 8  # other processes fill the folder, too

    def _complain(self, error: OSError) -> None:
        """Say it once, and not once more per worker process."""
        import logging  # here, because every start of the command line imports this module
        import multiprocessing

        if not self._complained and multiprocessing.parent_process() is None:
            reason = error.strerror or type(error).__name__
            message = "naht: compiled code cannot be kept in %s (%s), so every start compiles anew"
            logging.getLogger("naht").warning(message, self._path, reason)
        self._complained = True


def _files(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """Files of a folder; those that vanish meanwhile are left out."""
    found = []
    with os.scandir(folder) as items:
        for item in items:
            with contextlib.suppress(OSError):
                found.append((Path(item.path), item.stat()))
    return found


def install() -> bool:
    """Make JAX keep compiled code in a `CompiledCode`; True if it does now.

    Two functions of JAX are replaced: the one that makes the cache, and the one that reads an executable from it,
    because only there it shows that an entry is damaged. JAX stays as it is if they are not as expected.
    """
    try:
        import jax
        from jax._src import compilation_cache as internals
        from jax._src.compilation_cache_interface import CacheInterface

        make_cache: Any = internals.get_file_cache
        read: Any = internals.get_executable_and_time
        as_known = (
            list(inspect.signature(make_cache).parameters) == ["path"]
            and next(iter(inspect.signature(read).parameters)) == "cache_key"
            and CacheInterface.__abstractmethods__ == {"get", "put"}
        )
    except Exception:  # whatever changed in there: a cache that heals is not worth a run that does not start
        return False
    if getattr(make_cache, "by_naht", False):
        return True
    if not as_known:
        return False

    def make_healing_cache(path: str) -> Any:
        if "://" in path or getattr(jax.config, "jax_compilation_cache_check_contents", False):
            return make_cache(path)  # a bucket somewhere, or a search for bugs in XLA
        limit = getattr(jax.config, "jax_compilation_cache_max_size", -1)
        return CompiledCode(path, limit if limit >= 0 else MAX_BYTES), path

    def read_or_heal(cache_key: str, *args: Any, **options: Any) -> Any:
        try:
            return read(cache_key, *args, **options)
        except Exception:
            cache = getattr(internals, "_cache", None)
            if not isinstance(cache, CompiledCode):
                raise
            cache.remove(cache_key)
            return None, None  # not there: JAX compiles and puts a whole one in its place

    make_healing_cache.by_naht = True  # type: ignore[attr-defined]
    internals.get_file_cache = make_healing_cache
    internals.get_executable_and_time = read_or_heal
    return True


@dataclass(frozen=True)
class CacheSurvey:
    """The state of a folder of compiled code."""

    folder: Path
    entries: int
    num_bytes: int
    checked: int
    """Entries that were unpacked to see whether they are whole."""
    damaged: int
    """Those of them that were not."""
    writable: bool
    """Also where the folder does not exist yet but can be made."""


def survey(folder: Path, seconds: float = 2.0) -> CacheSurvey:
    """Look at a folder without changing any entry. Those used last are checked first, until the time is up."""
    end = time.perf_counter() + seconds
    files = _files(folder) if folder.is_dir() else []
    entries = sorted(((stat.st_mtime_ns, path) for path, stat in files if path.name.endswith(ENTRY)), reverse=True)
    num_bytes = sum(stat.st_size for path, stat in files if path.name.endswith(ENTRY))
    checked, damaged = 0, 0
    for _, path in entries:
        if time.perf_counter() > end:
            break
        checked, damaged = checked + 1, damaged + _is_damaged(path)
    return CacheSurvey(folder, len(entries), num_bytes, checked, damaged, _is_writable(folder))


def _is_damaged(path: Path) -> bool:
    try:
        content = path.read_bytes()
        # JAX's name for an entry depends on the compression, so both kinds can be in a folder; zlib checks its sums.
        if not content.startswith(ZSTANDARD):
            zlib.decompress(content)
    except FileNotFoundError:  # deleted by another process just now
        return False
    except (OSError, zlib.error):
        return True
    return False


def _is_writable(folder: Path) -> bool:
    """Try it: permissions say nothing about full disks, quotas and read-only mounts."""
    probe = folder / f"{TEMPORARY}{os.urandom(8).hex()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(bytes(4096))
        finally:
            probe.unlink(missing_ok=True)
    except OSError:
        return False
    return True
