"""Many runs over all cores: each worker process takes the next run until none is left.

Runs that use several devices each are trained by fewer workers, so that no core has more than one thing to do. Equal
settings share compiled code within a worker. Every run stays an ordinary run folder: killed work goes on with the same
command.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from naht.errors import Interrupted, NahtError, require
from naht.runtime import configure, usable_cores
from naht.training.config import RunConfig
from naht.training.folder import is_finished, is_run, read_config
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
    report: Report = lambda _: None,
    checkpoint_every: float = 60.0,
    same_command: bool = False,
    trust: bool = True,
    start_over: bool = False,
) -> None:
    """Start or continue every job and finish it, several at a time.

    Raises `Interrupted` after a stop signal, with all runs saved and all folders ready to go on. `same_command`: these
    are the runs of a study that goes on when it is called again, and the user is told so. `trust` and `start_over` are
    those of `resume`; settings that the caller has made are trusted.
    """
    require(workers is None or workers >= 1, f"workers is {workers}: it must be at least 1")
    how_to_go_on: dict[str, Any] = {"checkpoint_every": checkpoint_every, "trust": trust, "start_over": start_over}
    jobs = [Job(settled(job.config), job.folder) for job in jobs]
    for job in jobs:
        # A folder with other settings must not be mistaken for this run.
        if is_run(job.folder) and read_config(job.folder) != job.config:
            raise NahtError(f"{job.folder} holds a run with other settings; choose another --name or --out")
    for job in jobs:
        if not is_run(job.folder):
            create(job.config, job.folder)
    waiting = [job.folder for job in jobs if not is_finished(job.folder)]
    shared = max((job.config.devices or 1 for job in jobs), default=1)
    workers = min(workers or max(1, usable_cores() // shared), len(waiting))
    try:
        if workers > 1:
            _share(waiting, workers, report, how_to_go_on)
        else:
            for folder in waiting:
                resume(folder, report=report, **how_to_go_on)
    except Interrupted as e:
        left = " ".join(str(folder) for folder in waiting if not is_finished(folder))
        how = "the same command" if same_command else f"naht resume {left}"
        raise Interrupted(f"stopped and saved; go on with: {how}", e.signal_number) from None


def _end_with_parent() -> None:
    """However the parent ends, this process stops as if asked to: what it trains is saved."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


def _work(folders: Any, news: Any, how_to_go_on: dict[str, Any]) -> None:
    """The life of a worker process."""
    configure()
    # Between runs, a stop signal simply ends the worker.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while (folder := folders.get()) is not None:
        try:
            resume(folder, report=news.put, **how_to_go_on)
        except Interrupted:
            break
        except NahtError as e:
            news.put(e)
            break


def _share(folders: Sequence[Path], workers: int, report: Report, how_to_go_on: dict[str, Any]) -> None:
    """Let worker processes take one run after the other."""
    context = multiprocessing.get_context("spawn")
    todo, news = context.Queue(), context.Queue()
    for item in [*folders, *[None] * workers]:
        todo.put(item)
    crew = [context.Process(target=_work, args=(todo, news, how_to_go_on), daemon=True) for _ in range(workers)]
    failures: list[NahtError] = []

    def listen(seconds: float) -> bool:
        """Pass one piece of news on; False if there was none."""
        try:
            item = news.get(timeout=seconds)
        except queue.Empty:
            return False
        if isinstance(item, Event):
            report(item)
        else:
            failures.append(item)
        return True

    with stop_signals() as signals:
        for worker in crew:
            worker.start()
        asked = False
        while any(worker.is_alive() for worker in crew):
            listen(0.2)
            if not asked and (signals or failures or any(worker.exitcode for worker in crew)):
                asked = True
                for worker in crew:
                    worker.terminate()  # each saves its run and leaves
        while listen(0.1):
            pass
    if signals:
        raise Interrupted("stopped and saved", signals[0])
    if failures:
        raise failures[0]
    if left := [folder for folder in folders if not is_finished(folder)]:
        raise NahtError(f"a worker process died; {len(left)} runs are unfinished: naht resume {left[0]} ...")
