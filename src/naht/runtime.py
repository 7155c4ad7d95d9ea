"""How the process runs JAX. Call `configure` before JAX starts; the command line does."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where compiled code is kept between starts: $NAHT_CACHE, or naht/ in the user's cache folder."""
    if chosen := os.environ.get("NAHT_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "naht"


def configure() -> None:
    """Set what pays off for small recurrent networks, unless the user has set it; child processes inherit it.

    - Compiled code is cached on disk, so that the second start of anything is quick.
    - One thread per operation: our matrices are far too small to be split, and both cores are used by whole runs.
    """
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_folder() / "jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
