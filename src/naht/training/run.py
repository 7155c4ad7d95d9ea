"""One training run: the loop around rollout and update, with metrics, tests, checkpoints and exact resume."""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from naht.agents.saved import Agent, is_saved, load_agent
from naht.config import decode, encode, read_json, whole_rows
from naht.devices import SHARED, SPLIT, check_devices, own_key, place, spread, total
from naht.envs.base import Array, Environment, PyTree, task_hash, world_of
from naht.errors import Interrupted, NahtError, require
from naht.evaluation.play import Episodes, check_ended, never_ends, plain_errors, play_episodes
from naht.evaluation.statistics import mean_interval
from naht.learning.learner import Learner, make_learner
from naht.rollout import Arena, ArenaState
from naht.storage import check_output, remove_unfinished, write_file
from naht.teams.population import Population, Roster, load_members
from naht.teams.sampler import Sampler, check_sampler, team_sampler
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
from naht.training.progress import Event, Report


class TrainState(NamedTuple):
    """All that changes during a run. A checkpoint is this pytree."""

    update: Array  # [] int32, updates done
    key: Array  # [] random key
    learner: PyTree
    experience: PyTree  # what the learner keeps of past batches
    arena: ArenaState
    best_return: Array  # [] of the tests so far


@dataclass(frozen=True)
class Trainer:
    """The static side of a run. Equal trainers share compiled code, whatever their seed."""

    env: Environment
    learner: Learner
    sampler: Sampler
    uncontrolled: Roster
    num_updates: int = field(compare=False)
    """Not part of what is compiled: runs of another length share the code."""
    test_episodes: int
    devices: int = 1

    def arena(self, *, test: bool) -> Arena:
        """Where one device plays. Tests are greedy, training samples; the teams are the same."""
        ours = Roster(("controlled",), (self.learner.policy,), (test,))
        size = (self.test_episodes if test else self.learner.num_envs) // self.devices
        return Arena(self.env, self.sampler, ours, self.uncontrolled, size)

    @property
    def layout(self) -> PyTree:
        """What of a `TrainState` is the same on every device, and what is cut along the environments."""
        return TrainState(SHARED, SHARED, self.learner.layout, SPLIT, SPLIT, SHARED)

    def place(self, state: TrainState) -> TrainState:
        """The state where `step` wants it; after anything outside has touched it."""
        return place(state, self.devices, self.layout)

    def acting_params(self, learner_state: PyTree) -> PyTree:
        """The learner's parameters as those of a population of one."""
        return _alone(self.learner.policy_params(learner_state))

    @partial(jax.jit, static_argnums=0)
    def _reset(self, key: Array) -> ArenaState:
        def reset(key: Array) -> ArenaState:
            return self.arena(test=False).reset(own_key(key, self.devices))

        return spread(reset, self.devices, inputs=SHARED, outputs=SPLIT)(key)

    def init(self, key: Array) -> TrainState:
        """The state at the start of a run."""
        k_learner, k_arena, key = jax.random.split(key, 3)
        update, best = jnp.zeros((), jnp.int32), jnp.full((), -jnp.inf, jnp.float32)
        learner, experience = self.learner.init(k_learner), self.learner.init_experience()
        return self.place(TrainState(update, key, learner, experience, self._reset(k_arena), best))

    def step(self, state: TrainState, uncontrolled_params: PyTree) -> tuple[TrainState, dict[str, Array]]:
        """Collect one batch and learn from it.

        The experience is written in place: the given state's is gone afterwards, all else of it remains.
        """
        rest, experience = state._replace(experience=()), state.experience
        return self._step(rest, experience, uncontrolled_params, np.float32(self.num_updates))

    @partial(jax.jit, static_argnums=0, donate_argnums=2)
    def _step(
        self, state: TrainState, experience: PyTree, uncontrolled_params: PyTree, num_updates: Array
    ) -> tuple[TrainState, dict[str, Array]]:
        inputs, outputs = (self.layout, SPLIT, SHARED, SHARED), (self.layout, SHARED)
        step = spread(self._step_on_device, self.devices, inputs, outputs)
        return step(state, experience, uncontrolled_params, num_updates)

    def _step_on_device(
        self, state: TrainState, experience: PyTree, uncontrolled_params: PyTree, num_updates: Array
    ) -> tuple[TrainState, dict[str, Array]]:
        k_play, k_update, key = jax.random.split(state.key, 3)
        ours = self.acting_params(state.learner)
        k_play = own_key(k_play, self.devices)
        arena, tr = self.arena(test=False).play(
            ours, uncontrolled_params, state.arena, k_play, self.learner.rollout_steps
        )
        learner, experience, metrics = self.learner.update(
            state.learner, experience, tr, k_update, state.update / num_updates
        )
        sums = {
            "return": (tr.episode_return * tr.done).sum(),
            "length": (tr.episode_length * tr.done).sum(),
            **{name: (values * tr.done).sum() for name, values in tr.metrics.items()},
        }
        sums, ended = total((sums, tr.done.sum()), self.devices)
        metrics |= {"train/episodes": ended, **{f"train/{name}": value / ended for name, value in sums.items()}}
        state = TrainState(state.update + 1, key, learner, experience, arena, state.best_return)
        return state, metrics

    def play(self, policy_params: PyTree, uncontrolled_params: PyTree, key: Array) -> Episodes:
        """A test: episodes of the greedy policy in teams as in training."""
        keys = key[None] if self.devices == 1 else jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(self.devices))
        return play_episodes(self.arena(test=True), _alone(policy_params), uncontrolled_params, keys, self.devices)

    def test(self, state: TrainState, uncontrolled_params: PyTree) -> dict[str, float]:
        """Mean returns over all episodes of a test, and by the number of controlled agents; means of its metrics."""
        key = jax.random.fold_in(state.key, 0x7E57)
        done = self.play(self.learner.policy_params(state.learner), uncontrolled_params, key)
        check_ended(self.env, [done])
        returns, n = np.asarray(done.episode_return, np.float64), np.asarray(done.team.controlled.sum(-1))
        result = {"test/return": float(returns.mean())}
        result |= {f"test/return_n{k}": float(returns[n == k].mean()) for k in np.unique(n)}
        return result | {f"test/{name}": float(np.mean(values)) for name, values in done.metrics.items()}


def _alone(policy_params: PyTree) -> PyTree:
    """A policy's parameters as those of a population of one."""
    return (jax.tree.map(lambda leaf: leaf[None], policy_params),)


def make_trainer(config: RunConfig, *, found_in: str | None = None) -> tuple[Trainer, Population]:
    """The trainer of a run and its uncontrolled population. Impossible settings fail here, before any work.

    Settings that were `found_in` a file, rather than made by the user, run no teammates in Python.
    """
    env, teams = config.task, config.teams
    world_of(env)  # a missing file fails here
    spec = getattr(env, "teammate_spec", env.spec)
    uncontrolled = Population(load_members(teams.teammates, spec, found_in=found_in))
    sampler = team_sampler(
        env.spec.num_agents,
        len(uncontrolled),
        teams.num_controlled,
        mix=teams.mix,
        replace=teams.replace,
        slots=teams.slots,
    )
    check_sampler(sampler, env, (1, len(uncontrolled)))
    config = settled(config)
    assert config.devices is not None
    check_devices(config.devices, num_envs=config.algorithm.num_envs, test_episodes=config.test_episodes)
    learner = make_learner(env.spec, config.algorithm, config.devices)
    per_update = learner.num_envs * learner.rollout_steps
    num_updates = max(1, round(config.steps / per_update))
    roster = uncontrolled.roster
    trainer = Trainer(env, learner, sampler, roster, num_updates, config.test_episodes, config.devices)
    return trainer, uncontrolled


def settled(config: RunConfig) -> RunConfig:
    """With the number of devices decided: as many as there are and can share the work evenly."""
    if config.devices is not None:
        return config
    common = math.gcd(config.algorithm.num_envs, config.test_episodes)
    return replace(config, devices=max(d for d in range(1, jax.device_count() + 1) if common % d == 0))


def run_folder(root: Path | str, config: RunConfig, name: str | None = None) -> Path:
    """Where a run lives: root/task/algorithm/name."""
    return Path(root) / config.task.spec.name / config.algorithm_name / (name or f"seed{config.seed}")


def is_run(folder: Path) -> bool:
    """Does this folder hold a run, begun or finished?"""
    try:
        return (folder / "config.json").is_file()
    except OSError as e:  # a name that is too long, say
        raise NahtError(f"can't use {folder}: {e.strerror}") from e


def is_finished(folder: Path) -> bool:
    """Has this run reached its last step, and are its agents whole?"""
    return all(is_saved(folder / f"{kind}.safetensors") for kind in ("last", "best"))


def read_config(folder: Path) -> RunConfig:
    """The settings of an existing run."""
    require(is_run(folder), f"{folder} is not a run: it has no config.json")
    config = decode(read_json(folder / "config.json"))
    require(isinstance(config, RunConfig), f"{folder}/config.json does not hold the settings of a run")
    return config


def read_metrics(folder: Path | str) -> list[dict[str, float]]:
    """The rows of metrics.jsonl, each joined with the row of timing.jsonl at the same step."""
    folder = Path(folder)
    metrics, timing = (_rows(folder / f"{name}.jsonl") for name in ("metrics", "timing"))
    by_step = {row["step"]: row for row in timing}
    return [row | by_step.get(row["step"], {}) for row in metrics]


def _rows(path: Path) -> list[dict[str, Any]]:
    """The whole rows of a file, which need not be there. A row has a step and numbers."""
    found = [row for _, row in whole_rows(path.read_bytes())] if path.is_file() else []
    return [row for row in found if isinstance(row.get("step"), int) and all(map(_is_number, row.values()))]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@contextmanager
def _only_process(folder: Path) -> Iterator[None]:
    """Two processes in one run folder would ruin it."""
    with open(folder / ".lock", "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            raise NahtError(f"{folder} is being trained by another process") from e
        yield


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


class _Log:
    """metrics.jsonl holds what a resumed run repeats bit for bit, timing.jsonl what it cannot: the clock."""

    def __init__(self, folder: Path, offset: int):
        path = folder / "metrics.jsonl"
        size = path.stat().st_size if path.exists() else 0
        require(size >= offset, f"{path} lost rows: it has {size} bytes, the checkpoint counts on {offset}")
        self._metrics = open(path, "ab")  # noqa: SIM115 (closed with the run)
        self._metrics.truncate(offset)
        self._metrics.seek(offset)
        timing = folder / "timing.jsonl"
        if timing.is_file():  # a full disk may have left half a row
            whole = max((end for end, _ in whole_rows(timing.read_bytes())), default=0)
            os.truncate(timing, whole)
        self._timing = open(timing, "a")  # noqa: SIM115

    def write(self, row: dict[str, float], timing: dict[str, float]) -> None:
        self._metrics.write((json.dumps(row) + "\n").encode())
        self._metrics.flush()
        self._timing.write(json.dumps(timing) + "\n")
        self._timing.flush()

    def secure(self) -> int:
        """Push everything to the disk; returns the length so far."""
        os.fsync(self._metrics.fileno())
        return self._metrics.tell()

    def close(self) -> None:
        self._metrics.close()
        self._timing.close()


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


def _check_memory(trainer: Trainer) -> None:
    """Refuse what can't fit into the machine: worlds, a batch of what is seen in them, and kept experience."""
    learner, spec = trainer.learner, trainer.env.spec
    arena, experience = jax.eval_shape(lambda key: (trainer._reset(key), learner.init_experience()), jax.random.key(0))
    seen = spec.num_agents * (2 * spec.obs_size + spec.num_actions) + 2 * spec.state_size
    batch = 4 * learner.num_envs * learner.rollout_steps * seen
    need = batch + sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((arena, experience)))
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    require(
        need <= there,
        f"this run needs at least {need / 2**30:.1f} GiB of memory, the machine has {there / 2**30:.1f}: ask for fewer "
        "num_envs or rollout_steps, or a smaller capacity",
    )


def create(config: RunConfig, folder: Path | str) -> Path:
    """Make the folder of a new run, ready for `resume`. Impossible settings and places fail here, before any work."""
    folder, config = Path(folder), settled(config)
    require(not is_run(folder), f"{folder} holds a run already; go on with: naht resume {folder}")
    check_output(folder, folder=True)
    trainer, _ = make_trainer(config)
    _check_memory(trainer)
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
) -> Path:
    """Train a new run in a folder of its own. Returns the folder; load its agent with `naht.load_agent(folder)`.

    `checkpoint_every` is in seconds and does not influence the result.
    """
    return resume(create(config, folder), report=report, checkpoint_every=checkpoint_every, trust=True)


def resume(
    folder: Path | str,
    *,
    report: Report = lambda _: None,
    checkpoint_every: float = 60.0,
    trust: bool = False,
    start_over: bool = False,
) -> Path:
    """Go on with a run from its newest good checkpoint, or from its start. A finished run is left as it is.

    `trust`: teammates in Python that the run's settings name may run. `start_over`: begin again at step 0 where all
    checkpoints are damaged.
    """
    folder = Path(folder)
    config = read_config(folder)
    try:
        with _only_process(folder), stop_signals() as signals, plain_errors():
            _Run(folder, config, report, checkpoint_every, trust, start_over).go(signals)
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
    ):
        self.folder, self.config, self.start_over = folder, config, start_over
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
            with open(self.folder / "progress.log", "a") as f:
                f.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} step {step}: {event.message}\n")
        self._report(event)

    def go(self, signals: list[int]) -> None:
        remove_unfinished(self.folder)
        checkpoints = self.folder / "checkpoints"
        at_end = newest_step(checkpoints) == self.total
        if at_end and is_finished(self.folder):
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
            self.report(step, message="its agents' files were missing or damaged, and are written again")
            return
        if update:
            self.report(step, message=f"resumed at step {step:,}")
        if kept := size_of(state.experience):
            self.report(update * self.steps_per_update, message=f"keeps {kept / 2**20:.0f} MiB of experience in memory")
        self.log = _Log(self.folder, offset)
        try:
            self._loop(state, update, elapsed, signals)
        finally:
            self.log.close()

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
            f"the world of {self.folder} is not the one it began with: a file named in its settings has changed",
        )

    def _finish(self, state: TrainState, test_return: float) -> None:
        """Measure and save the best and the last agent."""
        last = self._measured(self._agent(state, self.total, test_return=test_return))
        try:
            best = self._measured(load_agent(self.folder))
        except NahtError as e:
            self.report(self.total, message=f"{e}; the last agent takes the place of the best one")
            best = last
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
            state, raw = self.trainer.step(state, self.uncontrolled_params)
            metrics = _rounded(raw)
            update += 1
            step = update * self.steps_per_update
            episodes += metrics["train/episodes"]
            played = (update - first_update) * self.trainer.learner.rollout_steps
            require(episodes > 0 or played < env.spec.horizon, never_ends(env, played))
            try:
                _check_finite(metrics, self.folder, step)
            except NahtError:
                # Doing this update again writes the same experience to the same place.
                self._save(before._replace(experience=state.experience), elapsed + time.monotonic() - start)
                raise
            row: dict[str, float] = {"step": step, "update": update} | metrics
            if update % self.updates_per_test == 0 or update == self.trainer.num_updates:
                parts.append("test")
                tested = self.trainer.test(state, self.uncontrolled_params)
                row |= tested
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
            timing = {"step": step, "seconds": elapsed + now - start}
            self.log.write(row, timing | ({"steps_per_second": speed} if speed else {}))
            self.report(
                step,
                speed=speed,
                train_return=row.get("train/return"),
                test_return=test_return,
                action_prob=row.get("model/action_prob"),
            )
            finished = update == self.trainer.num_updates
            if finished:
                self._finish(state, row["test/return"])
                # Nobody goes on from here, and a replay is large.
                self._save(state._replace(experience=()), elapsed + now - start, keep=1)
            elif signals or now - last_save >= self.checkpoint_every:
                self._save(state, elapsed + now - start)
                last_save = time.monotonic()
            if signals and not finished:
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
