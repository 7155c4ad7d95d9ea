"""Many runs over all cores: each worker process takes the next run until none is left.

One process per core is the fastest way to train several small networks on CPUs, and equal settings share compiled code
within a worker. Every run stays an ordinary run folder: killed work goes on with the same command.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naht.errors import Interrupted, NahtError
from naht.training.config import RunConfig
from naht.training.progress import Event, Report
from naht.training.run import is_finished, read_config, resume, stop_signals, train


@dataclass(frozen=True)
class Job:
    """A run to be finished."""

    config: RunConfig
    folder: Path


def _check(job: Job) -> None:
    """A folder with other settings must not be mistaken for this run."""
    if (job.folder / "config.json").exists() and read_config(job.folder) != job.config:
        raise NahtError(f"{job.folder} holds a run with other settings; choose another --name or --out")


def finish(job: Job, report: Report, checkpoint_every: float) -> None:
    """Start or continue a run and bring it to its end; nothing happens if it is there already."""
    if is_finished(job.folder):
        return
    go: Callable[..., Any] = resume if (job.folder / "config.json").exists() else _start(job)
    go(job.folder, report=report, checkpoint_every=checkpoint_every)


def _start(job: Job) -> Callable[..., Any]:
    return lambda folder, **options: train(job.config, folder, **options)


def _work(jobs: Any, news: Any, checkpoint_every: float) -> None:
    """The life of a worker process."""
    # Between runs, a stop signal simply ends the worker.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while (job := jobs.get()) is not None:
        try:
            finish(job, news.put, checkpoint_every)
        except Interrupted:
            break
        except NahtError as e:
            news.put(e)
            break


def run_all(
    jobs: Sequence[Job],
    *,
    workers: int | None = None,
    report: Report = lambda _: None,
    checkpoint_every: float = 60.0,
) -> None:
    """Finish every job, several at a time. Raises `Interrupted` after a stop signal, with all runs saved."""
    for job in jobs:
        _check(job)
    waiting = [job for job in jobs if not is_finished(job.folder)]
    workers = min(workers or os.cpu_count() or 1, len(waiting))
    if workers <= 1:
        for job in waiting:
            finish(job, report, checkpoint_every)
        return
    context = multiprocessing.get_context("spawn")
    todo, news = context.Queue(), context.Queue()
    for item in [*waiting, *[None] * workers]:
        todo.put(item)
    crew = [context.Process(target=_work, args=(todo, news, checkpoint_every), daemon=True) for _ in range(workers)]
    with stop_signals() as signals:
        for worker in crew:
            worker.start()
        failure: NahtError | None = None
        while any(worker.is_alive() for worker in crew):
            with suppress(queue.Empty):
                item = news.get(timeout=0.2)
                if isinstance(item, Event):
                    report(item)
                else:
                    failure = item
            if signals or failure or any(worker.exitcode for worker in crew):
                _stop(crew)
        if signals:
            begun = [str(job.folder) for job in waiting if (job.folder / "config.json").exists()]
            raise Interrupted(f"stopped and saved; go on with: naht resume {' '.join(begun)}", signals[0])
        if failure:
            raise failure
        left = [job.folder for job in waiting if not is_finished(job.folder)]
        if left:
            raise NahtError(f"a worker process died; {len(left)} runs are unfinished: run the same command again")


def _stop(crew: Sequence[Any]) -> None:
    """Ask every worker to save and leave, once."""
    for worker in crew:
        if worker.is_alive() and not getattr(worker, "asked", False):
            worker.asked = True
            worker.terminate()
