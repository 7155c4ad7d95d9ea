"""What an agent predicts of its teammates, measured: against a plain loop over what it believes, step by step."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from naht import Arena, Member, NahtError, Population, team_sampler
from naht.agents.networks import NetworkConfig
from naht.agents.recurrent import RecurrentPolicy
from naht.agents.saved import Agent
from naht.agents.scripted import Bernoulli
from naht.agents.teammate_model import ModelConfig
from naht.evaluation.modelling import assess, predict_teammates
from naht.learning.ppo import PPO, PPOConfig
from naht.teams.population import Roster
from probes import Rough, play, reset

ENV = Rough()
STRANGERS = Population([Member("bot", Bernoulli(0.5))])


def untrained() -> Agent:
    learner = PPO(ENV.spec, PPOConfig(network=NetworkConfig(hidden=8), model=ModelConfig(8, 4)))
    state = learner.init(jax.random.key(0))
    return Agent("untrained", learner.policy, state.params.policy, ENV.spec, {}, state.params.decoders)


def test_predictions_are_what_the_agent_believes():
    agent, envs = untrained(), 6
    assert isinstance(agent.policy, RecurrentPolicy)
    arena = Arena(ENV, team_sampler(3, 1), Roster(("us",), (agent.policy,), (True,)), STRANGERS.roster, envs)
    ours = (jax.tree.map(lambda leaf: leaf[None], agent.params),)
    start = reset(arena, jax.random.key(1))
    _, tr = jax.device_get(play(arena, ours, STRANGERS.params, start, jax.random.key(2), ENV.spec.horizon))
    assert tr.first[1:].any()  # episodes end early, and others begin in their place
    assert not tr.alive.all()
    found = assess(agent.policy, agent.params, agent.decoders, tr)

    wanted = np.zeros((3, envs, ENV.spec.horizon, 2))
    for b in range(envs):
        memory = [None] * 3
        for t in range(ENV.spec.horizon):
            for i in range(3):
                obs, chances = agent.believe(tr.obs[t, b, i], memory=memory[i], slot=i)
                _, (inner, _) = agent.act(tr.obs[t, b, i], memory=memory[i], slot=i)
                memory[i] = (inner, tr.action[t, b, i])  # strangers act in their own way
                for k, j in enumerate(j for j in range(3) if j != i):
                    if tr.team.controlled[t, b, i] and tr.alive[t, b, i] and tr.alive[t, b, j]:
                        kind = 0 if tr.team.controlled[t, b, j] else 1
                        error = float(((obs[k] - tr.obs[t, b, j]) ** 2).mean())
                        wanted[:, b, t, kind] += (1, error, float(chances[k, tr.action[t, b, j]]))
            if tr.done[t, b]:
                break
    for got, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-4)


def test_fresh_episodes_in_blocks():
    agent = untrained()
    found = predict_teammates(ENV, agent, STRANGERS, episodes=5, seed=3)
    assert found.pairs.shape == (5, ENV.spec.horizon, 2)
    again = predict_teammates(ENV, agent, STRANGERS, episodes=5, seed=3)
    np.testing.assert_array_equal(found.squared_error, again.squared_error)
    other = predict_teammates(ENV, agent, STRANGERS, episodes=5, seed=4)
    assert not np.array_equal(found.squared_error, other.squared_error)
    error, probability = found.means()
    assert error == pytest.approx(found.squared_error.sum() / found.pairs.sum())
    assert 0.2 < probability < 0.5  # of three actions, untrained
    assert found.means((0,))[0].shape == (ENV.spec.horizon, 2)
    alone = predict_teammates(ENV, agent, STRANGERS, num_controlled=1, episodes=5)
    assert alone.pairs[..., 0].sum() == 0  # its teammates are all strangers
    with pytest.raises(NahtError, match="untrained has no teammate model"):
        predict_teammates(ENV, replace(agent, decoders={}), STRANGERS)
