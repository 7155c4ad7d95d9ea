"""The team's reward goes on after a death: every algorithm values the dead as it should, and so those about to die."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from naht import Arena, Member, Population, team_sampler
from naht.agents.networks import NetworkConfig
from naht.agents.policy import pick
from naht.agents.scripted import Bernoulli
from naht.agents.teammate_model import ModelConfig
from naht.learning.algorithms import ALGORITHMS
from naht.learning.ppo import PPOConfig
from naht.learning.value_based import ValueConfig
from naht.teams.population import Roster
from probes import Mortal, prepare

ENV, GAMMA = Mortal(), 0.9
SMALL = {
    PPOConfig: PPOConfig(
        num_envs=16, epochs=4, lr=3e-3, gamma=GAMMA, standardise_rewards="no",
        network=NetworkConfig(hidden=16), model=ModelConfig(8, 4), model_epochs=1,
    ),
    ValueConfig: ValueConfig(
        num_envs=16, capacity=64, batch=32, lr=3e-3, gamma=GAMMA, standardise_rewards="no",
        target_every=20, epsilon_steps=2000, network=NetworkConfig(hidden=16, layers=1, input_norm=False),
        mixing_width=8, mixing_hidden=16,
    ),
}  # fmt: skip


def q_values(learner, state, tr):
    """The team's value at every step, [T, B], or every agent's own, [T, B, M]."""
    (s,) = learner.sequences(tr).take(jnp.arange(learner.num_envs))
    steps, rows, m = s.last_action.shape
    x = learner.policy.inputs(s.obs, s.last_action, jnp.broadcast_to(jnp.arange(m), s.last_action.shape))
    first, h0 = jnp.repeat(s.first, m, axis=1), s.memory.reshape(rows * m, -1)
    values, _ = learner.policy.critic.apply(state.params.network, x.reshape(steps, rows * m, -1), h0, first)
    chosen = pick(values.reshape(steps, rows, m, -1)[:-1], s.action)
    if learner.config.mixing == "none":
        return chosen
    return learner.mix(state.params.mixer, jnp.where(s.controlled[:-1], chosen, 0.0), s.global_state[:-1])


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.runs_much] * (a.settings is ValueConfig)) for name, a in ALGORITHMS.items()],
)
def test_values_before_and_after_a_death_are_the_known_ones(name):
    algorithm = ALGORITHMS[name]
    learner = replace(SMALL[algorithm.settings], **algorithm.identity).learner(ENV.spec)
    alone = algorithm.num_controlled == "all"
    theirs = Population([] if alone else [Member("bot", Bernoulli(0.5))])
    ours = Roster(("ours",), (learner.policy,), (False,))
    arena = Arena(ENV, team_sampler(3, len(theirs), algorithm.num_controlled), ours, theirs.roster, learner.num_envs)

    def step(carry, key):
        state, experience, running = carry
        params = (jax.tree.map(lambda x: x[None], learner.policy_params(state)),)
        running, tr = arena.play(params, theirs.params, running, key, ENV.horizon)
        return (*learner.update(state, experience, tr, key, jnp.zeros(()))[:2], running), tr

    @jax.jit
    def trained(carry):
        carry, played = jax.lax.scan(step, carry, jax.random.split(jax.random.key(1), 250))
        return carry[0], jax.tree.map(lambda leaf: leaf[-1], played)

    start = learner.init(jax.random.key(0)), learner.init_experience(), jax.jit(arena.reset)(jax.random.key(0))
    state, tr = trained(start)
    assert (~tr.alive).any()
    known = ((1 - GAMMA ** (ENV.horizon - np.arange(ENV.horizon))) / (1 - GAMMA))[:, None]
    if algorithm.settings is ValueConfig:
        values = np.asarray(q_values(learner, state, tr))
        wanted = np.broadcast_to(known.reshape(-1, *[1] * (values.ndim - 1)), values.shape)
    else:
        rows = prepare(learner, state, tr)[1].agents
        values, wanted = np.asarray(rows.value), np.broadcast_to(known.T, rows.value.shape)
        assert (rows.critic_weight > 0).all()  # of strangers as well
    np.testing.assert_allclose(values, wanted, atol=0.3)
