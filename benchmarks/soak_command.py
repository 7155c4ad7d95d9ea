"""The naht command as users call it, for `soak.py`: with its checkpoints further apart or closer, and as a user whom
permissions hold. It takes what naht takes.

A small study is over before its first minute is, so with the usual interval no checkpoint would ever be written.
Worker processes import this file as well, so all of this holds in them, too. `endless FOLDER` is no command of naht:
it carries out one tiny study after the other in one process, which must not grow.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import shutil
import signal
import sys
import time
from pathlib import Path

STACKS = "NAHT_SOAK_STACKS"
"""Environment variable: a file to which a process writes what it is doing when it gets SIGUSR1."""
INTERVAL = "NAHT_SOAK_CHECKPOINT_SECONDS"
"""Environment variable: seconds between the checkpoints of all runs."""


def give_up_privileges() -> None:
    """Root writes wherever it likes. Without two capabilities it is a user like any other, whom a read-only folder
    stops. Where that is not possible (another system), nothing happens."""
    try:
        libc = ctypes.CDLL(None)
        header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        if libc.capget(header, data) == 0:
            data[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            libc.capset(header, data)
    except (OSError, AttributeError):
        return


def answer() -> None:
    """Tell what one is doing if asked, even if Python itself is stuck somewhere."""
    if STACKS in os.environ:
        faulthandler.register(signal.SIGUSR1, open(os.environ[STACKS], "a"))  # noqa: SIM115 (open to the end)


def hurry() -> None:
    """Checkpoints as often as the soak wants them; results do not depend on it."""
    from naht.training import run

    if INTERVAL in os.environ:
        assert run.resume.__kwdefaults__ is not None
        run.resume.__kwdefaults__["checkpoint_every"] = float(os.environ[INTERVAL])


def endless(folder: Path, pause: float = 5.0) -> None:
    """Tiny studies, one after the other, each in a fresh folder. Seeds take turns, so that code is compiled once."""
    from naht.study.engine import carry_out
    from naht.study.plan import Request, plan_of
    from naht.training.crew import Here

    for number in range(10**9):
        plan = plan_of(Request("bit-game", seeds=1, steps=1000, episodes=2, first_seed=number % 100))
        root = folder / f"{number}"
        assert carry_out(root, plan.nodes, Here()).left == []
        shutil.rmtree(root)
        (folder / "studies").write_text(str(number + 1))
        time.sleep(pause)


def main() -> int:
    from naht.cli import main as naht

    if sys.argv[1:2] == ["endless"]:
        endless(Path(sys.argv[2]))
    return naht()


if __name__ in ("__main__", "__mp_main__"):
    from naht.runtime import configure

    give_up_privileges()
    answer()
    configure()  # before JAX starts
    hurry()
if __name__ == "__main__":
    sys.exit(main())
