"""Metrics of runs elsewhere: TensorBoard, Weights & Biases, marl-eval.

The truth is a run's metrics.jsonl. A logger that is opened brings its own side in line with that file, once it was cut
back to the checkpoint, and is then told each new row. So every step is there once, whenever the run was killed, and no
note of how far anybody got has to be kept.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

from naht.agents.saved import load_agent
from naht.config import encode
from naht.errors import NahtError, one_line, require, unknown
from naht.storage import write_file
from naht.training.config import RunConfig
from naht.training.event_file import EventFile
from naht.training.folder import is_finished, read_config, read_metrics
from naht.training.lease import only_process

Row = dict[str, float]
"""Numbers of an update by name: a row of metrics.jsonl and of timing.jsonl."""
Write = Callable[[Row], None]
OnRow = Callable[[int, Row], None]
"""Is told the step and the row of every update that this process makes. What it raises ends the run."""

LoggerName = Literal["tensorboard", "wandb"]


@contextmanager
def _tensorboard(home: Path, config: RunConfig) -> Iterator[Write]:
    """Event files can't be cut back while somebody reads them, so a new one takes the place of all before."""
    del config
    for old in home.glob("events.out.tfevents.*"):
        old.unlink()
    began = (home.parent / "config.json").stat().st_mtime
    with open(home / f"events.out.tfevents.{time.time_ns()}.naht", "xb") as f:
        events = EventFile(f, began)

        def write(row: Row) -> None:
            numbers = {name: value for name, value in row.items() if name != "step"}
            events.write(began + row.get("seconds", 0.0), int(row["step"]), numbers)

        yield write


@contextmanager
def _wandb(home: Path, config: RunConfig) -> Iterator[Write]:
    """The server knows the last step it has. Offline there is none, and what earlier processes left is replaced."""
    wandb = import_module("wandb")
    if not (home / "id").is_file():
        write_file(home / "id", uuid.uuid4().hex[:16].encode())
    for old in home.glob("offline-run-*"):
        shutil.rmtree(old)
    # Numbers and settings go there, nothing about the machine, its terminal or the code.
    off = ("disable_git", "x_disable_stats", "x_disable_meta", "x_disable_machine_info")
    wishes = {
        "console": "off",
        "silent": True,
        "save_code": False,
        "x_save_requirements": False,
        "finish_timeout": 60.0,
    }
    wishes |= dict.fromkeys(off, True)
    known = wandb.Settings.model_fields
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "naht"),
        id=(home / "id").read_text(),
        resume="allow",
        dir=home.parent,
        name=f"{config.algorithm_name}-seed{config.seed}",
        group=f"{config.task.spec.name}/{config.algorithm_name}",
        config=encode(config),
        settings=wandb.Settings(**{name: wish for name, wish in wishes.items() if name in known}),
    )

    def write(row: Row) -> None:
        if row["step"] >= run.starting_step:
            run.log({name: value for name, value in row.items() if name != "step"}, step=int(row["step"]), commit=True)

    try:
        yield write
    finally:
        run.finish()


LOGGERS: dict[LoggerName, Callable[[Path, RunConfig], AbstractContextManager[Write]]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
}
"""Each gets a folder of its own in the run's, and its settings."""


def check_loggers(names: Sequence[str]) -> None:
    """Can these be used here? To be asked before any work."""
    for name in names:
        if name not in get_args(LoggerName):
            raise unknown("logger", name, get_args(LoggerName))
    if "wandb" in names:
        try:
            there = hasattr(import_module("wandb"), "init")  # a folder of that name can be imported, too
        except ImportError:
            there = False
        require(there, "logger 'wandb' needs a package that is not installed: pip install 'naht[wandb]'")


@contextmanager
def following(name: LoggerName, folder: Path, config: RunConfig) -> Iterator[Write]:
    """A logger that has all rows of a run, to be told those to come."""
    home = folder / name
    home.mkdir(exist_ok=True)
    with only_process(home), LOGGERS[name](home, config) as write:
        for row in read_metrics(folder):
            write(row)
        yield write


def forward(name: LoggerName, folder: Path) -> None:
    """Bring a logger in line with a run, whether that was trained with it or not."""
    config = read_config(folder)
    try:
        with following(name, folder, config):
            pass
    except NahtError:
        raise
    except (Exception, SystemExit) as e:
        raise NahtError(f"{name} can't take the metrics of {folder}: {type(e).__name__}: {one_line(e)}") from e


class Loggers:
    """The loggers of a run in progress. One that fails is left out from then on, and the user is told."""

    def __init__(
        self, names: Sequence[LoggerName], folder: Path, config: RunConfig, warn: Callable[[str], None]
    ) -> None:
        self._folder, self._warn = folder, warn
        self._stacks = {name: ExitStack() for name in names}
        self._writes: dict[LoggerName, Write] = {}
        for name in list(self._stacks):
            with self._forgiving(name):
                self._writes[name] = self._stacks[name].enter_context(following(name, folder, config))

    def write(self, row: Row) -> None:
        for name, write in list(self._writes.items()):
            with self._forgiving(name):
                write(row)

    def close(self) -> None:
        self._writes.clear()
        for name in list(self._stacks):
            with self._forgiving(name):
                self._stacks.pop(name).close()

    @contextmanager
    def _forgiving(self, name: LoggerName) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as e:
            self._warn(
                f"{name} failed and is left out from here ({type(e).__name__}: {one_line(e)}); metrics.jsonl has "
                f"everything, bring it there with: naht log {self._folder} --to {name}"
            )
            self._writes.pop(name, None)
            if stack := self._stacks.pop(name, None):
                with self._forgiving(name):
                    stack.close()


def marl_eval(folders: Sequence[Path]) -> dict[str, Any]:
    """Finished runs as marl-eval reads them: environment, task, algorithm, seed, then tests and absolute metrics.

    Absolute metrics are those of the best agent in fresh episodes. Lists hold one number, the mean over episodes.
    """
    result: dict[str, Any] = {}
    for folder in folders:
        config = read_config(folder)
        require(is_finished(folder), f"{folder} is not finished: marl-eval compares what runs are worth at their end")
        measured = load_agent(folder).card.get("measured", {})
        tests = [row for row in read_metrics(folder) if "test/return" in row]
        require(bool(tests and measured), f"{folder} has no tests, or no measured agents, for marl-eval to compare")
        names = [name for name in measured if all(f"test/{name}" in row for row in tests)]
        run: dict[str, Any] = {
            f"step_{i}": {"step_count": row["step"]} | {name: [row[f"test/{name}"]] for name in names}
            for i, row in enumerate(tests)
        }
        run["absolute_metrics"] = {name: [measured[name]] for name in names}  # marl-eval wants them last
        # It looks for environments in lower case only.
        place = result.setdefault(type(config.task).__name__.lower(), {}).setdefault(config.task.spec.name, {})
        runs = place.setdefault(config.algorithm_name, {})
        seed = f"seed_{config.seed}"
        require(seed not in runs, f"{folder} is a second run of {config.algorithm_name} with seed {config.seed}")
        runs[seed] = run
    return result


def write_marl_eval(path: Path, folders: Sequence[Path]) -> None:
    write_file(path, (json.dumps(marl_eval(folders), indent=1) + "\n").encode())
