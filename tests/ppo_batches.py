"""Batches of experience for tests of the PPO learner."""

import jax
import jax.numpy as jnp
import numpy as np

from naht import Arena, Member, Population, team_sampler
from naht.agents.networks import NetworkConfig
from naht.agents.scripted import Bernoulli
from naht.agents.teammate_model import ModelConfig
from naht.learning.ppo import PPO, PPOConfig
from naht.learning.rows import Turns
from naht.teams.population import Roster
from probes import Rough, play, prepare, reset

CONFIG = PPOConfig(
    num_envs=8, rollout_steps=20, epochs=2, minibatches=2, network=NetworkConfig(hidden=8), model=ModelConfig(8, 4)
)


def collect(config=CONFIG, env=None, batches=2, controlled="uniform", strangers=1):
    """A learner, its state, and a trajectory that begins in the middle of episodes (after `batches - 1` batches)."""
    env = env or Rough()
    learner = PPO(env.spec, config, strangers=strangers)
    theirs = Population([Member(f"bot{i}", Bernoulli(0.5)) for i in range(strangers)])
    ours = Roster(("ours",), (learner.policy,), (False,))
    sampler = team_sampler(env.spec.num_agents, strangers, controlled)
    arena = Arena(env, sampler, ours, theirs.roster, config.num_envs)
    state = learner.init(jax.random.key(1))
    params = (jax.tree.map(lambda x: x[None], learner.policy_params(state)),)
    running = reset(arena, jax.random.key(2))
    for i in range(batches):
        running, trajectory = play(arena, params, theirs.params, running, jax.random.key(3 + i), learner.rollout_steps)
        if i < batches - 1:  # keep the critic's memory in step with the episodes
            state = prepare(learner, state, trajectory)[0]
    return learner, state, trajectory


def rows_of(batch, count=None):
    """All rows of a batch, as the losses get them."""
    return batch.take(jnp.arange(count or batch.agents.first.shape[0]))


def turns_of(batch, first=0):
    """All rows of a batch, each beginning with the same teammate."""
    rows = jnp.arange(batch.agents.first.shape[0])
    return Turns(rows, jnp.full_like(rows, first))


def equal(a, b):
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.allclose(x, y, atol=1e-6, equal_nan=False) for x, y in leaves)
