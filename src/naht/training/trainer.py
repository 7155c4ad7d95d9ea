"""Everything of a run that is compiled: its state, a step (rollout and update), a test."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, gcd
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from naht.devices import SHARED, SPLIT, check_devices, own_key, place, spread, total, zeros
from naht.envs.base import Array, Environment, PyTree, is_hosted, side_by_side, world_of
from naht.errors import require
from naht.evaluation.play import Episodes, check_ended, play_episodes
from naht.hosted import HostedArena
from naht.learning.learner import Circumstances, Learner
from naht.pieces import Together, decided
from naht.rollout import Arena, ArenaState, Trajectory
from naht.teams.population import Population, Roster, load_members
from naht.teams.sampler import Sampler, check_sampler, team_sampler
from naht.training.config import RunConfig


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
    members: Together = "in-turn"

    def arena(self, *, test: bool) -> Arena:
        """Where one device plays. Tests are greedy, training samples; the teams are the same."""
        ours = Roster(("controlled",), (self.learner.policy,), (test,))
        size = side_by_side(self.env, self.test_episodes) if test else self.learner.num_envs
        size //= self.devices
        return Arena(self.env, self.sampler, ours, self.uncontrolled, size, self.members)

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

    def _reset(self, key: Array) -> ArenaState:
        if is_hosted(self.env):
            return HostedArena(self.arena(test=False), "training").reset(key)
        return self._reset_compiled(key)

    @partial(jax.jit, static_argnums=0)
    def _reset_compiled(self, key: Array) -> ArenaState:
        def reset(key: Array) -> ArenaState:
            return self.arena(test=False).reset(own_key(key, self.devices))

        return spread(reset, self.devices, inputs=SHARED, outputs=SPLIT)(key)

    def init(self, key: Array) -> TrainState:
        """The state at the start of a run."""
        k_learner, k_arena, key = jax.random.split(key, 3)
        update, best = zeros(dtype=np.int32), jnp.asarray(np.float32(-np.inf))
        learner, experience = self.learner.init(k_learner), self.learner.init_experience()
        return self.place(TrainState(update, key, learner, experience, self._reset(k_arena), best))

    def step(self, state: TrainState, uncontrolled_params: PyTree) -> tuple[TrainState, dict[str, Array]]:
        """Collect one batch and learn from it.

        The experience is written in place: the given state's is gone afterwards, all else of it remains.
        """
        rest, experience = state._replace(experience=()), state.experience
        num_updates = np.float32(self.num_updates)
        if not is_hosted(self.env):
            return self._step(rest, experience, uncontrolled_params, num_updates)
        k_play, k_update, key = jax.random.split(state.key, 3)
        arena = HostedArena(self.arena(test=False), "training")
        begun = state.arena if arena.in_play(state.arena) else arena.rewind(state.arena)
        ours = self.acting_params(state.learner)
        after, tr = arena.play(ours, uncontrolled_params, begun, k_play, self.learner.rollout_steps)
        return self._learn_compiled(rest._replace(arena=after, key=key), experience, tr, k_update, num_updates)

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
        return self._learn(state._replace(arena=arena, key=key), experience, tr, k_update, num_updates)

    def _learn(
        self, state: TrainState, experience: PyTree, tr: Trajectory, key: Array, num_updates: Array
    ) -> tuple[TrainState, dict[str, Array]]:
        """Learn from a batch that was played to the given state."""
        learner, experience, metrics = self.learner.update(
            state.learner, experience, tr, key, state.update / num_updates
        )
        sums = {
            "return": (tr.episode_return * tr.done).sum(),
            "length": (tr.episode_length * tr.done).sum(),
            **{name: (values * tr.done).sum() for name, values in tr.metrics.items()},
        }
        sums, ended = total((sums, tr.done.sum()), self.devices)
        metrics |= {"train/episodes": ended, **{f"train/{name}": value / ended for name, value in sums.items()}}
        state = TrainState(state.update + 1, state.key, learner, experience, state.arena, state.best_return)
        return state, metrics

    _learn_compiled = partial(jax.jit, static_argnums=0, donate_argnums=2)(_learn)

    def play(self, policy_params: PyTree, uncontrolled_params: PyTree, key: Array) -> Episodes:
        """A test: episodes of the greedy policy in teams as in training."""
        arena, ours = self.arena(test=True), _alone(policy_params)
        keys = key[None] if self.devices == 1 else jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(self.devices))
        if (rounds := ceil(self.test_episodes / (arena.num_envs * self.devices))) == 1:
            return play_episodes(arena, ours, uncontrolled_params, keys, self.devices)
        # There are fewer worlds than episodes.
        done = [play_episodes(arena, ours, uncontrolled_params, k[None]) for k in jax.random.split(key, rounds)]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: self.test_episodes], *done)

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
    require(
        config.devices == 1 or not is_hosted(env),
        f"devices is {config.devices}: worlds of '{env.spec.name}' run outside of JAX, and one device learns from them",
    )
    check_devices(config.devices, num_envs=config.algorithm.num_envs, test_episodes=config.test_episodes)
    around = Circumstances(config.devices, config.pieces, sampler.controlled_share, len(uncontrolled))
    learner = config.algorithm.learner(env.spec, around)
    per_update = learner.num_envs * learner.rollout_steps
    num_updates = max(1, round(config.steps / per_update))
    roster = uncontrolled.roster
    together = config.pieces.members
    trainer = Trainer(env, learner, sampler, roster, num_updates, config.test_episodes, config.devices, together)
    return trainer, uncontrolled


def settled(config: RunConfig) -> RunConfig:
    """With the hardware's part decided: as many devices as there are and can share the work evenly, in such pieces."""
    config = replace(config, pieces=decided(config.pieces))
    if config.devices is not None:
        return config
    if is_hosted(config.task):
        return replace(config, devices=1)
    common = gcd(config.algorithm.num_envs, config.test_episodes)
    return replace(config, devices=max(d for d in range(1, jax.device_count() + 1) if common % d == 0))


def check_memory(trainer: Trainer) -> None:
    """Refuse what can't fit into the machine: worlds, a batch of what is seen in them, and kept experience."""
    learner, spec = trainer.learner, trainer.env.spec
    experience = jax.eval_shape(learner.init_experience)
    arena = () if is_hosted(trainer.env) else jax.eval_shape(trainer._reset, jax.random.key(0))
    seen = spec.num_agents * (2 * spec.obs_size + spec.num_actions) + 2 * spec.state_size
    batch = 4 * learner.num_envs * learner.rollout_steps * seen
    need = batch + sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((arena, experience)))
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    require(
        need <= there,
        f"this run needs at least {need / 2**30:.1f} GiB of memory, the machine has {there / 2**30:.1f}: ask for fewer "
        "num_envs or rollout_steps, or a smaller capacity",
    )
