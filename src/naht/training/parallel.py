"""Many runs over all cores: each worker process takes the next run until none is left.

Runs that use several devices each are trained by fewer workers, so that no core has more than one thing to do. Equal
settings share compiled code within a worker. Every run stays an ordinary run folder: killed work goes on with the same
command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from naht.errors import Interrupted, NahtError, require
from naht.runtime import usable_cores
from naht.training.config import RunConfig
from naht.training.crew import Crew, News, Processes
from naht.training.folder import is_finished, is_run, read_config
from naht.training.loggers import LoggerName, check_loggers
from naht.training.progress import Event, Report
from naht.training.run import create, resume, stop_signals
from naht.training.trainer import settled


@dataclass(frozen=True)
class Job:
    """A run to be finished."""

    config: RunConfig
    folder: Path


def run_all(
    jobs: Sequence[Job],
    *,
    workers: int | None = None,
    crew: Crew | None = None,
    report: Report = lambda _: None,
    checkpoint_every: float = 60.0,
    same_command: bool = False,
    trust: bool = True,
    start_over: bool = False,
    loggers: Sequence[LoggerName] = (),
) -> None:
    """Start or continue every job and finish it, several at a time, by as many workers or by this crew.

    Raises `Interrupted` after a stop signal, with all runs saved and all folders ready to go on. `same_command`: these
    are the runs of a study that goes on when it is called again, and the user is told so. `trust` and `start_over` are
    those of `resume`; settings that the caller has made are trusted. `loggers` also get what
    they lack of runs that are finished.
    """
    check_loggers(loggers)
    require(workers is None or workers >= 1, f"workers is {workers}: it must be at least 1")
    how_to_go_on: dict[str, Any] = {
        "checkpoint_every": checkpoint_every,
        "trust": trust,
        "start_over": start_over,
        "loggers": loggers,
    }
    jobs = [Job(settled(job.config), job.folder) for job in jobs]
    for job in jobs:
        # A folder with other settings must not be mistaken for this run.
        if is_run(job.folder) and read_config(job.folder) != job.config:
            raise NahtError(f"{job.folder} holds a run with other settings; choose another --name or --out")
    for job in jobs:
        if not is_run(job.folder):
            create(job.config, job.folder)
    waiting = [job.folder for job in jobs if loggers or not is_finished(job.folder)]
    shared = max((job.config.devices or 1 for job in jobs), default=1)
    workers = min(workers or max(1, usable_cores() // shared), len(waiting))
    if crew is None and workers > 1:
        crew = Processes(workers)
    try:
        if crew is not None:
            _share(waiting, crew, report, how_to_go_on)
        else:
            for folder in waiting:
                resume(folder, report=report, **how_to_go_on)
    except Interrupted as e:
        left = " ".join(str(folder) for folder in waiting if not is_finished(folder))
        how = "the same command" if same_command else f"naht resume {left}"
        raise Interrupted(f"stopped and saved; go on with: {how}", e.signal_number) from None


def _share(folders: Sequence[Path], crew: Crew, report: Report, how_to_go_on: dict[str, Any]) -> None:
    """Let a crew take one run after the other."""
    failure: NahtError | None = None

    def pass_on(item: News | None) -> None:
        nonlocal failure
        if isinstance(item, Event):
            report(item)
        elif item is not None and item.error is not None:
            failure = failure or item.error

    with stop_signals() as signals:
        try:
            for folder in folders:
                crew.start(str(folder), partial(resume, **how_to_go_on), folder)
            while crew.running and not (signals or failure or crew.broken):
                pass_on(crew.news(0.2))
        finally:
            last = crew.stop()
        for item in last:
            pass_on(item)
    if signals:
        raise Interrupted("stopped and saved", signals[0])
    if failure is not None:
        raise failure
    if left := [folder for folder in folders if not is_finished(folder)]:
        raise NahtError(f"a worker process died; {len(left)} runs are unfinished: naht resume {left[0]} ...")
