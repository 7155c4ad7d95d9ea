"""A crew of Slurm jobs, by submitit: every call is a job, and what Slurm stops goes on in another turn of the same job.

Slurm announces the end of a job's time, and most preemptions, by a signal. The job then saves what it does, and
submitit queues it again. Progress comes through a file beside the job's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from naht.clusters.call import Call, Home, perform, variables
from naht.clusters.choice import OnSlurm, minutes_of
from naht.clusters.queueing import Queueing
from naht.errors import Interrupted, NahtError, one_line
from naht.training.progress import Event

try:
    import submitit
    from submitit.slurm.slurm import _make_sbatch_string
except ImportError as e:
    raise NahtError("--on slurm needs submitit: pip install 'naht[slurm]'") from e

JOBS = ".slurm"
"""The folder, in that of the work, with scripts, logs and results of jobs."""
WARNING = 120
"""Seconds before its end that a job is told of it: time to save."""
SAVING = 30
"""Seconds of these for work that does not listen: it may be done by then."""
AT_A_TIME = 100
"""Jobs in the queue, unless --workers says otherwise."""
ASK = 30.0
"""Seconds between questions to Slurm; that a job has ended well is seen at once, from its folder."""
FOR_EVER = 1_000_000
"""Turns that a job may take: as many as it needs."""


@dataclass(frozen=True)
class Turn:
    """What a job does, each time that it is its turn."""

    call: Call
    news: Path
    """Where it leaves what it has to say."""

    def __call__(self) -> str:
        announced = getattr(signal, f"SIG{submitit.JobEnvironment.USR_SIG}")
        queue_again: Any = signal.getsignal(announced)  # submitit's: notes that the job goes on, and ends this turn
        over: list[int] = []

        def time_is_up(number: int, frame: FrameType | None) -> None:
            del frame
            over.append(number)
            if signal.getsignal(signal.SIGTERM) is _leave:  # nobody listens, or somebody has heard it and saves
                signal.alarm(SAVING)
            else:
                signal.raise_signal(signal.SIGTERM)

        signal.signal(signal.SIGTERM, _leave)  # unless somebody has something to save and listens himself
        signal.signal(signal.SIGALRM, _leave)
        signal.signal(announced, time_is_up)
        try:
            error = perform(self.call, self._report)
        except Interrupted:
            signal.alarm(0)
            if over:
                queue_again(over[0], None)
            sys.exit(128 + signal.SIGTERM)  # cancelled, or preempted without a word: Slurm knows which
        return "" if error is None else str(error)

    def checkpoint(self) -> Any:
        """Asked by submitit: what is to be done in the next turn. Runs find their own checkpoints."""
        return submitit.helpers.DelayedSubmission(self)

    def _report(self, event: Event) -> None:
        with open(self.news, "a") as f:
            f.write(json.dumps(vars(event)) + "\n")


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    raise Interrupted("stopped", number)


class Slurm(Queueing):
    """Jobs of a Slurm cluster; `local`: processes of this machine that behave like them."""

    kind = "slurm"

    def __init__(
        self, home: Home, settings: OnSlurm, *, devices: int = 1, most: int | None = None, local: bool = False
    ):
        super().__init__(home, retries=settings.retries, most=most or AT_A_TIME)
        self._folder, self._local, self._asked = home.place / JOBS, local, time.monotonic()
        self._variables = variables(devices)
        self._read: dict[Path, int] = {}
        try:
            if local:
                self._executor = submitit.AutoExecutor(self._folder, "local", local_max_num_timeout=FOR_EVER)
                self._executor.update_parameters(timeout_min=minutes_of(settings.time), stderr_to_stdout=True)
            else:
                self._executor = submitit.SlurmExecutor(self._folder, max_num_timeout=FOR_EVER)
                self._executor.update_parameters(**_parameters(settings, devices))
        except (RuntimeError, ValueError, OSError) as e:
            raise NahtError(f"can't work with Slurm: {one_line(e)}") from e

    @property
    def size(self) -> int:
        return int(self._most)

    def _send(self, call: Call) -> Any:
        turn = Turn(call, self._folder / f"{uuid.uuid4().hex}.news")
        with _environment(self._variables):
            try:
                return self._executor.submit(turn)
            except Exception as e:  # sbatch refuses
                raise NahtError(f"Slurm does not take a job: {one_line(e)}") from e
            finally:
                self._read[turn.news] = 0

    def _look(self, seconds: float) -> None:
        self._read_news()
        ask = time.monotonic() - self._asked >= ASK
        if ask:
            self._asked = time.monotonic()
        for job in list(self._out):
            if job.done(force_check=ask):
                ask = False  # one answer is about all jobs
                self._read_news()
                self._take(job)
        if not self._news:
            time.sleep(min(seconds, 0.5))

    def _take(self, job: Any) -> None:
        """A job has ended, well or not."""
        if not job.paths.result_pickle.exists():
            state = str(job.state).split()[0].upper()
            if state == "CANCELLED":
                self._came_back(job, NahtError(f"job {job.job_id} was cancelled"))
            else:
                self._died(job, f"job {job.job_id} ended without a result ({state}; see {job.paths.stdout})")
            return
        failure = job.exception()
        if failure is not None:
            last = (str(failure).strip().splitlines() or ["?"])[-1]
            self._came_back(job, NahtError(f"job {job.job_id} failed: {last}; see {job.paths.stdout}"))
        else:
            said = job.result()
            self._came_back(job, NahtError(said) if said else None)

    def _read_news(self) -> None:
        """Whole lines that jobs have written since the last time."""
        for path, offset in self._read.items():
            try:
                with open(path, "rb") as f:
                    f.seek(offset)
                    new = f.read()
            except FileNotFoundError:
                continue
            whole = new[: new.rfind(b"\n") + 1]
            self._read[path] = offset + len(whole)
            self._news.extend(Event(**json.loads(line)) for line in whole.splitlines())

    def _recall(self) -> None:
        for job in self._out:
            if self._local:  # submitit would leave it a second to save
                job._process.send_signal(signal.SIGTERM)
            else:
                job.cancel(check=False)
        self._asked = -ASK

    def _leave(self) -> None:
        self._read_news()
        for path in self._read:
            path.unlink(missing_ok=True)


def _parameters(settings: OnSlurm, devices: int) -> dict[str, Any]:
    """What sbatch is told, by submitit's names."""
    further = {}
    for text in settings.more:
        name, _, value = text.removeprefix("--").partition("=")
        further[name] = value if value else True
    chosen = {
        "job_name": "naht",
        "partition": settings.partition,
        "time": minutes_of(settings.time),
        "cpus_per_task": settings.cores or devices,
        "mem": settings.memory,
        "gpus_per_node": settings.accelerators,
        "account": settings.account,
        "additional_parameters": further,
        "signal_delay_s": WARNING,
        "stderr_to_stdout": True,
        "setup": [f"export {name}={shlex.quote(value)}" for name, value in sorted(variables(devices).items())],
    }
    return {name: value for name, value in chosen.items() if value}


def script(settings: OnSlurm, place: Path, devices: int) -> str:
    """What sbatch would be given for each job."""
    folder = place / JOBS
    command = f"{shlex.quote(sys.executable)} -u -m submitit.core._submit {shlex.quote(str(folder))}"
    return str(_make_sbatch_string(command=command, folder=folder, **_parameters(settings, devices)))


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Jobs inherit the environment in which they are sent."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
