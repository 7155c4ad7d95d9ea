"""Episodes to compare an exported agent with: what it saw, what it did."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from naht.agents.exported import described
from naht.agents.policy import Percept
from naht.agents.saved import Agent, task_of
from naht.envs.base import Array, PyTree
from naht.rollout import Arena, Trajectory, where
from naht.storage import write_file
from naht.teams.population import Member, Population, Roster
from naht.teams.sampler import team_sampler

SUFFIX = ".episodes.npz"


@partial(jax.jit, static_argnums=0)
def _play(arena: Arena, params: PyTree, key: Array) -> Trajectory:
    k_reset, k_play = jax.random.split(key)
    return arena.play(params, (), arena.reset(k_reset), k_play, arena.env.spec.horizon)[1]


def record_episodes(agent: Agent, worlds: int, seed: int = 0) -> dict[str, np.ndarray]:
    """A team of copies of an agent takes its best actions for an episode's length in B worlds, which restart.

    obs [T, B, M, O], avail [T, B, M, A], last_action [T, B, M] and first [T, B] (an episode begins: memory is zeros)
    are what it saw; action [T, B, M] is what it did, and scores [T, B, M, A] are why.
    """
    env = task_of([agent])
    team = Population([Member(agent.name, agent.policy, agent.params)])
    arena = Arena(env, team_sampler(env.spec.num_agents, 0, "all"), team.roster, Roster((), (), ()), worlds)
    tr = _play(arena, team.params, jax.random.key(seed))
    network, weights = described(agent)
    seats = (worlds, env.spec.num_agents)
    fresh, slot = network.initial_memory(seats), jnp.broadcast_to(jnp.arange(seats[1]), seats)

    @jax.jit
    def judge(weights: Any, tr: Trajectory) -> Array:
        def step(memory: Any, now: Any) -> tuple[Any, Array]:
            first, obs, avail, last_action = now
            percept = Percept(obs, avail, last_action, slot)
            scores, memory = network.run(weights, where(first, fresh, memory), percept)
            return memory, scores

        return jax.lax.scan(step, fresh, (tr.first, tr.obs, tr.avail, tr.last_action))[1]

    seen = {name: np.asarray(getattr(tr, name)) for name in ("obs", "avail", "last_action", "first", "action")}
    return seen | {"scores": np.asarray(judge(weights, tr))}


def write_episodes(agent: Agent, beside: Path, worlds: int) -> Path:
    """Write such a recording beside an exported agent. Returns its file."""
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **record_episodes(agent, worlds))
    path = beside.with_name(beside.stem + SUFFIX)
    write_file(path, file.getvalue())
    return path
