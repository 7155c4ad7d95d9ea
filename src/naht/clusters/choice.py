"""Who does the work: flags that all commands with much to do share, and the crew that they mean."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from naht.clusters.call import home
from naht.config import Amount, Count, NotNegative, seconds_of
from naht.errors import NahtError, require
from naht.training.crew import Crew
from naht.training.parallel import Job
from naht.training.trainer import settled


@dataclass(frozen=True)
class OnRay:
    """With --on ray."""

    cores: Count | None = None
    """Cores that every run or node reserves; default: as many as it has devices."""
    accelerators: NotNegative = 0.0
    """Accelerators likewise; with 0.25, four share one."""
    retries: Amount = 3
    """How often work is tried again whose process or machine died."""


@dataclass(frozen=True)
class OnSlurm:
    """With --on slurm: every run or node is a job."""

    partition: str = ""
    """Where jobs are sent; default: Slurm's own."""
    time: str = "4h"
    """The time limit of a job, as '90m' or '4h'. What it stops is saved, queues again and goes on."""
    cores: Count | None = None
    """Cores of a job; default: as many as a run has devices."""
    memory: str = ""
    """Memory of a job, as '4GB'; default: Slurm's own."""
    accelerators: Amount = 0
    """Accelerators of a job."""
    account: str = ""
    """Who pays."""
    more: tuple[str, ...] = ()
    """Further options of sbatch, as constraint=fast or nice=100."""
    retries: Amount = 3
    """How often a job is sent again that died, besides time limits and preemptions that Slurm announces."""


@dataclass(frozen=True)
class Elsewhere:
    """Other machines, which share this one's file system."""

    on: str = ""
    """Who does the work: 'ray' (a cluster that is running, else this machine), HOST:PORT or ray://HOST:PORT (that Ray
    cluster), 'slurm'; default: this machine, without either."""
    ray: OnRay = OnRay()
    """With --on ray."""
    slurm: OnSlurm = OnSlurm()
    """With --on slurm."""

    @property
    def engine(self) -> str:
        """'ray', 'slurm', or '' for this machine."""
        if not self.on:
            return ""
        if self.on in ("slurm", LOCAL_JOBS):
            return "slurm"
        known = self.on == "ray" or re.fullmatch(r"(ray://)?[^\s/:]+:\d+", self.on)
        require(bool(known), f"on is '{self.on}': it must be ray, HOST:PORT, ray://HOST:PORT or slurm")
        return "ray"


LOCAL_JOBS = "slurm-local"
"""Jobs as processes of this machine, by submitit's local executor: to try things out without Slurm."""


def devices_of(jobs: Sequence[Job]) -> int:
    """How many devices the largest of these runs has."""
    return max((settled(job.config).devices or 1 for job in jobs), default=1)


@contextmanager
def hired(wanted: Elsewhere, place: Path, *, devices: int = 1, workers: int | None = None) -> Iterator[Crew | None]:
    """The crew that does what is to be done in `place`, at most `workers` at a time; None: nobody elsewhere."""
    require(workers is None or workers >= 1, f"workers is {workers}: it must be at least 1")
    engine = wanted.engine
    if not engine:
        yield None
        return
    crew: Crew
    if engine == "ray":
        from naht.clusters.rays import Ray

        address = "" if wanted.on == "ray" else wanted.on
        crew = Ray(home(place), wanted.ray, address=address, devices=devices, most=workers)
    else:
        from naht.clusters.slurm import Slurm

        crew = Slurm(home(place), wanted.slurm, devices=devices, most=workers, local=wanted.on == LOCAL_JOBS)
    try:
        yield crew
    finally:
        crew.stop()


def script_of(wanted: Elsewhere, place: Path, *, devices: int = 1) -> str:
    """What --dry-run shows of jobs: the script that sbatch would be given; "" where there are none."""
    if wanted.engine != "slurm":
        return ""
    from naht.clusters.slurm import script

    return script(wanted.slurm, place.absolute(), devices)


def minutes_of(text: str) -> int:
    """A time limit in whole minutes, as Slurm counts."""
    seconds = seconds_of("slurm.time", text)
    if seconds < 60:
        raise NahtError(f"slurm.time is '{text}': Slurm's shortest limit is 1m")
    return round(seconds / 60)
