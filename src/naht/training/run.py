"""One training run: the loop around rollout and update, with metrics, tests, checkpoints and exact resume."""

from __future__ import annotations

import json
import math
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import ceil
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from naht.agents.saved import Agent, load_agent
from naht.config import encode
from naht.devices import SHARED, place
from naht.envs.base import Array, HostEnvironment, PyTree, is_hosted, task_hash, world_of
from naht.envs.host import WorldLost
from naht.errors import Interrupted, NahtError, require
from naht.evaluation.play import never_ends, plain_errors
from naht.evaluation.statistics import mean_interval
from naht.storage import check_output, check_writes, remove_unfinished, write_file
from naht.training.checkpoints import (
    KEEP,
    any_set_aside,
    check_newest,
    load_newest,
    newest_step,
    save_checkpoint,
    size_of,
)
from naht.training.config import RunConfig
from naht.training.folder import Log, is_finished, is_run, read_config, read_metrics
from naht.training.lease import only_process
from naht.training.loggers import LoggerName, Loggers, OnRow, check_loggers
from naht.training.progress import Event, Report
from naht.training.trainer import TrainState, check_memory, make_trainer, settled


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM append to the yielded list; a second one acts as usual."""
    seen: list[int] = []
    previous: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        seen.append(number)
        signal.signal(number, previous[number])

    try:
        for number in map(int, (signal.SIGINT, signal.SIGTERM)):
            previous[number] = signal.signal(number, note)
    except ValueError:  # not in the main thread: whoever owns it handles signals
        previous.clear()
    try:
        yield seen
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _rounded(metrics: dict[str, Array]) -> dict[str, float]:
    """As Python numbers. What does not exist in a batch (the uncontrolled share when N = M) is NaN and left out."""
    values = {name: float(value) for name, value in jax.device_get(metrics).items()}
    return {name: float(f"{v:.7g}") for name, v in values.items() if not math.isnan(v) or name.endswith(VITAL)}


VITAL = ("/loss", "/gradient_norm")
"""Metrics that must be finite for a run to go on."""


def _check_finite(metrics: dict[str, float], folder: Path, step: int) -> None:
    bad = [name for name, value in metrics.items() if name.endswith(VITAL) and not math.isfinite(value)]
    if bad:
        raise NahtError(
            f"{', '.join(bad)} stopped being finite at step {step:,}; the last good state is kept in {folder}. "
            "Look at gradient_norm and approx_kl in metrics.jsonl before that step, and try a smaller learning rate"
        )


def _check_disk(folder: Path, state: PyTree) -> None:
    need, free = 4 * size_of(state) + 2**20, shutil.disk_usage(folder).free
    require(free >= need, f"{folder} has {free / 2**20:.0f} MiB free; a run of this size needs {need / 2**20:.0f} MiB")


def create(config: RunConfig, folder: Path | str) -> Path:
    """Make the folder of a new run, ready for `resume`. Impossible settings and places fail here, before any work."""
    folder, config = Path(folder), settled(config)
    require(not is_run(folder), f"{folder} holds a run already; go on with: naht resume {folder}")
    check_output(folder, folder=True)
    trainer, _ = make_trainer(config)
    check_memory(trainer)
    if isinstance(config.task, HostEnvironment):
        config.task.open().close()  # what it needs and is not there is said here
    try:
        write_file(folder / "config.json", (json.dumps(encode(config), indent=2) + "\n").encode())
    except OSError as e:
        raise NahtError(f"can't write to {folder}: {e.strerror}") from e
    return folder


def train(
    config: RunConfig,
    folder: Path | str,
    *,
    report: Report = lambda _: None,
    checkpoint_every: float = 60.0,
    loggers: Sequence[LoggerName] = (),
    on_row: OnRow = lambda *_: None,
) -> Path:
    """Train a new run in a folder of its own. Returns the folder; load its agent with `naht.load_agent(folder)`.

    `checkpoint_every` is in seconds. Like `loggers` ("tensorboard", "wandb") and `on_row(step, row)`, which is told
    every row of metrics, it does not influence the result.
    """
    check_loggers(loggers)
    folder = create(config, folder)
    return resume(folder, report=report, checkpoint_every=checkpoint_every, trust=True, loggers=loggers, on_row=on_row)


def resume(
    folder: Path | str,
    *,
    report: Report = lambda _: None,
    checkpoint_every: float = 60.0,
    trust: bool = False,
    start_over: bool = False,
    loggers: Sequence[LoggerName] = (),
    on_row: OnRow = lambda *_: None,
) -> Path:
    """Go on with a run from its newest good checkpoint, or from its start. A finished run is left as it is.

    `trust`: teammates in Python that the run's settings name may run. `start_over`: begin again at step 0 where all
    checkpoints are damaged. `loggers` get every step once, whoever logged those before.
    """
    check_loggers(loggers)
    folder = Path(folder)
    config = read_config(folder)
    try:
        with only_process(folder, same_version=not is_finished(folder)), stop_signals() as signals, plain_errors():
            _Run(folder, config, report, checkpoint_every, trust, start_over, loggers, on_row).go(signals)
    except WorldLost as e:
        raise NahtError(f"{e}; the run is saved, go on with: naht resume {folder}") from e
    except OSError as e:
        raise NahtError(
            f"writing to {folder} failed ({e.strerror}); the last checkpoint is whole: "
            f"mend that and go on with: naht resume {folder}"
        ) from e
    return folder


class _Run:
    """A run in progress, on its folder."""

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        report: Report,
        checkpoint_every: float,
        trust: bool = False,
        start_over: bool = False,
        loggers: Sequence[LoggerName] = (),
        on_row: OnRow = lambda *_: None,
    ):
        self.folder, self.config, self.start_over = folder, config, start_over
        self.logger_names, self.on_row = loggers, on_row
        self.trainer, uncontrolled = make_trainer(config, found_in=None if trust else str(folder / "config.json"))
        self.uncontrolled_params = place(uncontrolled.params, self.trainer.devices, SHARED)
        self.teammates = uncontrolled.fingerprints
        self.world = world_of(config.task)
        self.checkpoint_every = checkpoint_every
        self.name = "/".join(folder.parts[-2:])
        self._report = report
        learner = self.trainer.learner
        self.steps_per_update = learner.num_envs * learner.rollout_steps
        self.total = self.trainer.num_updates * self.steps_per_update
        self.updates_per_test = max(1, round(config.test_every / self.steps_per_update))
        self.kept_updates = {ceil((i + 1) * self.trainer.num_updates / config.keep) for i in range(config.keep)}

    def report(self, step: int, **facts: Any) -> None:
        event = Event(self.name, step, self.total, **facts)
        if event.message is not None:
            check_writes()
            with open(self.folder / "progress.log", "a") as f:
                f.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} step {step}: {event.message}\n")
        self._report(event)

    def _loggers(self, step: int) -> Loggers:
        return Loggers(self.logger_names, self.folder, self.config, lambda said: self.report(step, message=said))

    def go(self, signals: list[int]) -> None:
        remove_unfinished(self.folder)
        checkpoints = self.folder / "checkpoints"
        at_end = newest_step(checkpoints) == self.total
        if at_end and is_finished(self.folder):
            self._loggers(self.total).close()  # a kill at the very end may have kept rows from them
            self.report(self.total, message=f"finished at step {self.total:,}")
            return
        check_newest(checkpoints, self._check)
        state = self.trainer.init(jax.random.key(self.config.seed))
        _check_disk(self.folder, state)
        template = state._replace(experience=()) if at_end else state  # nobody goes on from the end
        found, damaged = load_newest(checkpoints, template, self._check)
        offset, elapsed = 0, 0.0
        if found:
            state, facts = self.trainer.place(found[0]), found[1]
            offset, elapsed = facts["metrics_bytes"], facts["seconds"]
        update = int(state.update)
        step = update * self.steps_per_update
        for sentence in damaged:
            self.report(step, message=sentence)
        if not found and any_set_aside(checkpoints):
            require(
                self.start_over,
                f"no checkpoint of {self.folder} is whole; to begin again at step 0, losing what it has learned: "
                f"naht resume {self.folder} --start-over",
            )
            self.report(step, message="starts over from nothing at step 0")
        if at_end and found:
            tests = [row["test/return"] for row in read_metrics(self.folder) if "test/return" in row]
            self._finish(state, tests[-1] if tests else math.nan)
            self._loggers(self.total).close()
            self.report(step, message="its agents' files were missing or damaged, and are written again")
            return
        self.log = Log(self.folder, offset)
        if update:
            again = "; the episodes in flight begin again" if is_hosted(self.config.task) else ""
            self.report(step, message=f"resumed at step {step:,}{again}")
        if kept := size_of(state.experience):
            self.report(update * self.steps_per_update, message=f"keeps {kept / 2**20:.0f} MiB of experience in memory")
        self.loggers = self._loggers(step)
        try:
            self._loop(state, update, elapsed, signals)
        finally:
            self.log.close()
            self.loggers.close()

    def _check(self, facts: dict[str, Any]) -> None:
        """A checkpoint belongs to its settings, teammates and world."""
        different = _differences(facts["config"], encode(self.config))
        require(
            not different,
            f"{self.folder}/config.json is not what its checkpoint was made with: "
            + "; ".join(f"{name} is {new}, was {old}" for name, old, new in different),
        )
        began = facts["teammates"]
        other = [name for name in self.teammates | began if self.teammates.get(name) != began.get(name)]
        require(not other, f"teammates of {self.folder} are not those it began with: {', '.join(other)}")
        require(
            facts["world"] == self.world,
            f"the world of {self.folder} is not the one it began with: a file or environment it names has changed",
        )

    def _finish(self, state: TrainState, test_return: float) -> None:
        """Measure and save the best and the last agent."""
        last = self._measured(self._agent(state, self.total, test_return=test_return))
        try:
            found = load_agent(self.folder)
        except NahtError as e:
            self.report(self.total, message=f"{e}; the last agent takes the place of the best one")
            best = last
        else:
            best = self._measured(found)
        self.report(self.total, message=f"in fresh episodes: best agent {_said(best)}, last agent {_said(last)}")
        best.save(self.folder / "best.safetensors")
        last.save(self.folder / "last.safetensors")

    def _loop(self, state: TrainState, update: int, elapsed: float, signals: list[int]) -> None:
        start = last_save = time.monotonic()
        warm_seconds, warm_steps, test_return = 0.0, 0, None
        first_update, episodes, env = update, 0.0, self.config.task
        compiled = {"step": False, "test": False}
        while update < self.trainer.num_updates:
            before, began = state, time.monotonic()
            parts = ["step"]
            step = (update + 1) * self.steps_per_update
            last = update + 1 == self.trainer.num_updates
            tested: dict[str, float] = {}
            try:
                state, raw = self.trainer.step(state, self.uncontrolled_params)
                metrics = _rounded(raw)
                episodes += metrics["train/episodes"]
                played = (update + 1 - first_update) * self.trainer.learner.rollout_steps
                require(episodes > 0 or played < env.spec.horizon, never_ends(env, played))
                _check_finite(metrics, self.folder, step)
                if (update + 1) % self.updates_per_test == 0 or last:
                    parts.append("test")
                    tested = self.trainer.test(state, self.uncontrolled_params)
            except NahtError:
                # Doing this update again writes the same experience to the same place.
                self._save(before._replace(experience=state.experience), elapsed + time.monotonic() - start)
                raise
            update += 1
            row: dict[str, float] = {"step": step, "update": update} | metrics | tested
            if tested:
                test_return = tested["test/return"]
                if test_return > float(state.best_return):
                    state = self.trainer.place(state._replace(best_return=jnp.asarray(test_return, jnp.float32)))
                    self._agent(state, step, test_return=test_return).save(self.folder / "best.safetensors")
            if update in self.kept_updates:
                agent = self._agent(state, step)
                replace(agent, name=f"{agent.name}-step{step}").save(self.folder / "kept" / f"step{step}.safetensors")
            now = time.monotonic()
            # Speed leaves out the first step and the first test, which include compilation.
            if all(compiled[part] for part in parts):
                warm_seconds, warm_steps = warm_seconds + now - began, warm_steps + self.steps_per_update
            compiled |= dict.fromkeys(parts, True)
            speed = warm_steps / warm_seconds if warm_steps else None
            timing: dict[str, float] = {"step": step, "seconds": elapsed + now - start}
            timing |= {"steps_per_second": speed} if speed else {}
            self.log.write(row, timing)
            self.loggers.write(row | timing)
            self.on_row(step, row | timing)
            self.report(
                step,
                speed=speed,
                train_return=row.get("train/return"),
                test_return=test_return,
                action_prob=row.get("model/action_prob"),
            )
            if last:
                try:
                    self._finish(state, row["test/return"])
                finally:
                    # Nobody goes on from here, and a replay is large.
                    self._save(state._replace(experience=()), elapsed + now - start, keep=1)
            elif signals or now - last_save >= self.checkpoint_every:
                self._save(state, elapsed + now - start)
                last_save = time.monotonic()
            if signals and not last:
                self.report(step, message="stopped and saved")
                raise Interrupted(f"stopped and saved; go on with: naht resume {self.folder}", signals[0])

    def _save(self, state: TrainState, seconds: float, keep: int = KEEP) -> None:
        facts = {
            "metrics_bytes": self.log.secure(),
            "seconds": seconds,
            "config": encode(self.config),
            "teammates": self.teammates,
            "world": self.world,
        }
        save_checkpoint(self.folder / "checkpoints", int(state.update) * self.steps_per_update, state, facts, keep)

    def _measured(self, agent: Agent) -> Agent:
        """With its returns in fresh episodes on its card: those that no test has seen, of teams as in training."""
        rounds = ceil(self.config.final_episodes / self.config.test_episodes)
        keys = jax.random.split(jax.random.fold_in(jax.random.key(self.config.seed), 0xF4E5), rounds)
        params = place(agent.params, self.trainer.devices, SHARED)
        played = [self.trainer.play(params, self.uncontrolled_params, key) for key in keys]
        returns = mean_interval(np.concatenate([done.episode_return for done in played]).tolist())
        measured = {"return": returns.mean, "half_width_95": returns.half_width, "episodes": returns.count}
        metrics = {name: float(np.mean([done.metrics[name] for done in played])) for name in played[0].metrics}
        return replace(agent, card=agent.card | {"measured": measured | metrics})

    def _agent(self, state: TrainState, step: int, **tested: float) -> Agent:
        spec = self.config.task.spec
        card = {
            "task": encode(self.config.task),
            "task_hash": task_hash(self.config.task),
            "algorithm": self.config.algorithm_name,
            "seed": self.config.seed,
            "steps": step,
            **tested,
            "config": encode(self.config),
        }
        name = f"{self.config.algorithm_name}-seed{self.config.seed}"
        learner = self.trainer.learner
        params, decoders = learner.policy_params(state.learner), learner.decoder_params(state.learner)
        return Agent(name, learner.policy, params, spec, card, decoders)


def _differences(old: Any, new: Any, name: str = "") -> list[tuple[str, Any, Any]]:
    """(name, old, new) of all settings that differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = dict.fromkeys([*old, *new])
        parts = [_differences(old.get(k), new.get(k), f"{name}.{k}" if name else k) for k in names]
        return [difference for part in parts for difference in part]
    return [] if old == new else [(name, old, new)]


def _said(agent: Agent) -> str:
    measured = agent.card["measured"]
    return f"{measured['return']:.2f} ± {measured['half_width_95']:.2f}"
