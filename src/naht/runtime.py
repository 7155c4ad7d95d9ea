"""How the process runs JAX. Call `configure` before JAX starts; the command line does."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from naht.cache import install
from naht.errors import require

OURS: dict[str, str] = {}
"""Environment variables as `configure` sets them where the user has not: `naht doctor` tells the two apart by this."""


def cache_folder() -> Path:
    """Where compiled code is kept between starts: $NAHT_CACHE, or naht/ in the user's cache folder."""
    if chosen := os.environ.get("NAHT_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "naht"


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def configure() -> None:
    """Set what pays off for small recurrent networks, unless the user has set it; child processes inherit it.

    - Compiled code is cached on disk, so that the second start of anything is quick. The cache is made safe against
      kills and full disks (`naht.cache`) in this process only: worker processes call `configure` themselves.
    - Every core is a device of its own ($NAHT_DEVICES: another number), and runs share their batches among devices.
    - One thread per operation: our matrices are far too small to be split.
    """
    with contextlib.suppress(RuntimeError):  # an account without a home folder has no cache
        _default("JAX_COMPILATION_CACHE_DIR", str(cache_folder() / "jax"))
    _default("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
    _default("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    devices = os.environ.get("NAHT_DEVICES") or str(usable_cores())
    require(
        devices.isdecimal() and 1 <= int(devices) <= 1024, f"NAHT_DEVICES is '{devices}': it must be from 1 to 1024"
    )
    _default("JAX_NUM_CPU_DEVICES", devices)
    install()  # imports JAX, which reads the variables above: last


MOST_MAPPINGS = 40_000
"""Of memory, which compiled code takes: Linux grants a process 65,530, and a training step needs about 1,800."""


def forget_if_full() -> None:
    """Let go of compiled code before there is too much of it in this process; until then, equal programs share it."""
    import jax

    maps = Path("/proc/self/maps")
    if not maps.exists() or maps.read_bytes().count(b"\n") > MOST_MAPPINGS:
        jax.clear_caches()  # type: ignore[no-untyped-call]


def _default(name: str, value: str) -> None:
    OURS[name] = value
    os.environ.setdefault(name, value)
