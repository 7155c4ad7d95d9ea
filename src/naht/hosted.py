"""The loop around worlds that are not JAX: what `Arena.play` does in one compiled program, in three for every step."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from naht.envs.base import Array, PyTree, TimeStep, is_hosted
from naht.envs.host import Use, open_worlds, seeds_of
from naht.rollout import Acted, Arena, ArenaState, Trajectory, settled
from naht.teams.sampler import Team

_seeds = jax.jit(seeds_of)


@partial(jax.jit, static_argnums=0)
def _begin(arena: Arena, seeds: Array, shown: TimeStep, keys: Array, team: Team | None) -> ArenaState:
    return arena.begin(seeds, shown, keys, team)


@partial(jax.jit, static_argnums=0)
def _act(arena: Arena, ours: PyTree, theirs: PyTree, state: ArenaState, keys: Array) -> Acted:
    return arena.act(ours, theirs, state, keys[0], keys[1])


@partial(jax.jit, static_argnums=0)
def _note(arena: Arena, state: ArenaState, acted: Acted, after: TimeStep) -> tuple[ArenaState, Trajectory]:
    now, record = arena.note(state, acted, state.env_state, after)
    return settled(now), record


@partial(jax.jit, static_argnums=0)
def _restart(arena: Arena, now: ArenaState, seeds: Array, shown: TimeStep, keys: Array) -> ArenaState:
    return settled(arena.restart(now, arena.begin(seeds, shown, keys)))


class HostedArena:
    """An arena whose environment runs outside of JAX, with its worlds. The state of a world is its episode's seed."""

    def __init__(self, arena: Arena, use: Use = "playing"):
        assert is_hosted(arena.env)
        self.arena = arena
        self.worlds = open_worlds(arena.env, arena.num_envs, use)

    def reset(self, key: Array, team: Team | None = None) -> ArenaState:
        """See `Arena.reset`."""
        for_env, for_team = self.arena.reset_keys(key)
        seeds = _seeds(for_env)
        shown = self.worlds.reset(np.ones(self.arena.num_envs, bool), np.asarray(seeds))
        return _begin(self.arena, seeds, shown, for_team, team)

    def in_play(self, state: ArenaState) -> bool:
        """Are the worlds where this state is? They are not when a run has been resumed."""
        seeds, steps = np.asarray(state.env_state), np.asarray(state.episode_length)
        return bool(((self.worlds.seeds == seeds) & (self.worlds.steps == steps)).all())

    def rewind(self, state: ArenaState) -> ArenaState:
        """The episodes of a state from their beginning, with the same teams: worlds can't go to their middle."""
        seeds = np.asarray(state.env_state)
        shown = self.worlds.reset(np.ones(self.arena.num_envs, bool), seeds)
        keys = jax.random.split(jax.random.key(0), self.arena.num_envs)  # nothing is drawn
        return _begin(self.arena, state.env_state, shown, keys, state.team)

    def step(self, ours: PyTree, theirs: PyTree, state: ArenaState, keys: Array) -> tuple[ArenaState, Trajectory]:
        """One step in every world; see `Arena.step`. Nothing restarts: `first` says where an episode has ended."""
        acted = _act(self.arena, ours, theirs, state, keys)
        return _note(self.arena, state, acted, self.worlds.step(np.asarray(acted.action)))

    def restart(self, now: ArenaState, key: Array) -> ArenaState:
        """Where an episode has ended another begins; `key` is the last one of the step's."""
        over = np.asarray(now.first)
        if not over.any():
            return now
        for_env, for_team = self.arena.reset_keys(key)
        seeds = _seeds(for_env)
        return _restart(self.arena, now, seeds, self.worlds.reset(over, np.asarray(seeds)), for_team)

    def play(
        self, ours: PyTree, theirs: PyTree, state: ArenaState, key: Array, num_steps: int
    ) -> tuple[ArenaState, Trajectory]:
        """See `Arena.play`."""
        start_memory, records = state.controlled_memory, []
        for keys in self.arena.keys(key, num_steps):
            now, record = self.step(ours, theirs, state, keys)
            state = self.restart(now, keys[3])
            records.append(record)
        trajectory = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *jax.device_get(records))
        return state, trajectory._replace(start_memory=start_memory)
