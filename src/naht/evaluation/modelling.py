"""How well agents predict their teammates, measured on fresh episodes."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from naht.agents.policy import NO_ACTION, pick
from naht.agents.recurrent import RecurrentParams, RecurrentPolicy
from naht.agents.saved import Agent
from naht.agents.teammate_model import TeammateDecoders, teammates_of
from naht.envs.base import Array, Environment, PyTree
from naht.errors import require
from naht.evaluation.play import block_keys, chance, in_blocks
from naht.rollout import Arena, Trajectory
from naht.teams.population import Population, Roster
from naht.teams.sampler import NumControlled, team_sampler

KINDS = ("controlled", "uncontrolled")
"""Kinds of teammates, in the order of the last axis of `Predictions`."""


class Predictions(NamedTuple):
    """Sums over the pairs of a modelling agent and a living teammate: by episode, time step and kind of teammate."""

    pairs: np.ndarray  # [E, T, 2]
    squared_error: np.ndarray  # [E, T, 2] of the teammate's observation, mean over its entries
    probability: np.ndarray  # [E, T, 2] that the model gave to what the teammate did

    def means(self, axes: tuple[int, ...] = (0, 1, 2)) -> tuple[np.ndarray, np.ndarray]:
        """(mean squared error, mean probability) of the pairs over some axes: over all of them by default."""
        pairs, squared, probability = (leaf.sum(axes) for leaf in self)
        with np.errstate(invalid="ignore"):  # nobody there: not a number
            return squared / pairs, probability / pairs


def predict_teammates(
    env: Environment,
    agent: Agent,
    uncontrolled: Population,
    *,
    num_controlled: NumControlled = "uniform",
    episodes: int = 256,
    seed: int = 0,
) -> Predictions:
    """Let an agent play with strangers and ask its model about all of its teammates in every step."""
    require(bool(agent.decoders), f"{agent.name} has no teammate model, or its file does not keep its decoders")
    assert isinstance(agent.policy, RecurrentPolicy)
    sampler = team_sampler(env.spec.num_agents, len(uncontrolled), num_controlled)
    blocks, size = in_blocks(env, episodes)
    ours = Roster((agent.name,), (agent.policy,), (True,))
    arena = Arena(env, sampler, ours, uncontrolled.roster, size)
    keys = block_keys(chance(seed), blocks)
    done = [
        jax.device_get(_predict(arena, agent.policy, agent.params, agent.decoders, uncontrolled.params, key))
        for key in keys
    ]
    return Predictions(*[np.concatenate(leaves)[:episodes] for leaves in zip(*done, strict=True)])


@partial(jax.jit, static_argnums=(0, 1))
def _predict(
    arena: Arena, policy: RecurrentPolicy, params: RecurrentParams, decoders: PyTree, theirs: PyTree, key: Array
) -> Predictions:
    k_reset, k_play = jax.random.split(key)
    ours = (jax.tree.map(lambda leaf: leaf[None], params),)
    _, trajectory = arena.play(ours, theirs, arena.reset(k_reset), k_play, arena.env.spec.horizon)
    return assess(policy, params, decoders, trajectory)


def beliefs(agent: Agent, obs: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What a team of this agent would think of one another, step by step of one episode: obs [T, M, O] and action
    [T, M] -> observations [T, M, M-1, O] and probabilities of the next actions [T, M, M-1, A] of everybody's teammates,
    in the order of seats. Only where the agent sat itself is it what somebody thought."""
    require(bool(agent.decoders), f"{agent.name} has no teammate model, or its file does not keep its decoders")
    assert isinstance(agent.policy, RecurrentPolicy)
    steps = len(action)
    # A model reads forwards only, so empty steps after the end change nothing, and one program serves all lengths.
    rest = max(agent.spec.horizon - steps, 0)
    before = np.concatenate([np.full_like(action[:1], NO_ACTION), action[:-1]])
    obs, before = (np.pad(a, [(0, rest), *[(0, 0)] * (a.ndim - 1)]) for a in (obs, before))
    seen, chances = _believe(agent.policy, agent.params, agent.decoders, jnp.asarray(obs), jnp.asarray(before))
    return np.asarray(seen)[:steps], np.asarray(chances)[:steps]


@partial(jax.jit, static_argnums=0)
def _believe(
    policy: RecurrentPolicy, params: RecurrentParams, decoders: PyTree, obs: Array, last_action: Array
) -> tuple[Array, Array]:
    assert policy.model is not None
    m = last_action.shape[1]
    x = policy.inputs(obs, last_action, jnp.broadcast_to(jnp.arange(m), last_action.shape))
    first = jnp.zeros(last_action.shape, bool)
    embedding, _ = policy.embed(params, x, jnp.zeros((m, policy.encoder_size)), first)
    seats = teammates_of(jnp.arange(m), m)
    seen, logits = TeammateDecoders(policy.model, policy.spec).apply(decoders, embedding, seats)
    return seen, jax.nn.softmax(logits)


def assess(policy: RecurrentPolicy, params: RecurrentParams, decoders: PyTree, tr: Trajectory) -> Predictions:
    """What a teammate model makes of episodes [T, B] from their first step on, until each ends for the first time."""
    assert policy.model is not None
    spec, (steps, envs, m) = policy.spec, tr.action.shape
    slot = jnp.broadcast_to(jnp.arange(m), tr.action.shape)
    x = policy.inputs(tr.obs, tr.last_action, slot).reshape(steps, envs * m, -1)
    start = jnp.zeros((envs * m, policy.encoder_size))
    embedding, _ = policy.embed(params, x, start, jnp.repeat(tr.first, m, axis=1))
    going_on = jnp.cumsum(tr.done, axis=0) - tr.done == 0
    seats = teammates_of(jnp.arange(m), m)  # [M, M-1]

    def at_step(now: tuple[Array, ...]) -> tuple[Array, ...]:
        embedding, obs, action, alive, controlled, going_on = now
        seen, logits = TeammateDecoders(policy.model, spec).apply(decoders, embedding.reshape(envs, m, -1), seats)
        squared = ((seen - obs[:, seats]) ** 2).mean(-1)
        probability = pick(jax.nn.softmax(logits), action[:, seats])
        asked = (controlled & alive & going_on[:, None])[..., None] & alive[:, seats]
        kinds = jnp.stack([controlled[:, seats], ~controlled[:, seats]], axis=-1) & asked[..., None]
        return tuple((leaf[..., None] * kinds).sum((1, 2)) for leaf in (jnp.ones_like(squared), squared, probability))

    by_step = jax.lax.map(at_step, (embedding, tr.obs, tr.action, tr.alive, tr.team.controlled, going_on))
    return Predictions(*[leaf.swapaxes(0, 1) for leaf in by_step])
