"""Scripted teammates do what their names say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from naht import NahtError, make_env
from naht.agents.policy import Percept
from naht.agents.scripted import BOTS, Bernoulli, Explore, Static, Turns, make_bot

SPEC = make_env("bit-game").spec


def play(policy, steps=25, batch=4000, m=3):
    """Actions [steps, batch, m] and log-probabilities of a team of one policy."""
    slot = jnp.broadcast_to(jnp.arange(m), (batch, m))
    percept = Percept(jnp.zeros((batch, m, 2 * m)), jnp.ones((batch, m, 2), bool), jnp.zeros((batch, m), int), slot)
    memory, actions, log_probs = policy.initial_memory((batch, m)), [], []
    for t in range(steps):
        action, memory, log_prob = policy.act((), memory, percept, jax.random.key(t), greedy=True)
        actions.append(action)
        log_probs.append(log_prob)
    return np.array(actions), np.array(log_probs)


def test_bernoulli_says_1_as_often_as_told_even_when_greedy():
    actions, log_probs = play(Bernoulli(0.3))
    assert actions.mean() == pytest.approx(0.3, abs=0.01)
    np.testing.assert_allclose(np.exp(log_probs), np.where(actions == 1, 0.3, 0.7), rtol=1e-5)


def test_static_first_seat_says_1():
    assert (play(Static(), steps=3, batch=2)[0] == np.array([1, 0, 0])).all()


def test_turns_rotate():
    actions, _ = play(Turns(3), steps=7, batch=2)
    assert (actions[:, 0] == np.eye(3, dtype=int)[np.arange(7) % 3]).all()


def test_explore_anneals_over_the_episode():
    rates = play(Explore(0.8, 0.2, horizon=25))[0].mean((1, 2))
    np.testing.assert_allclose(rates, np.linspace(0.8, 0.2, 25), atol=0.025)


def test_default_bernoulli_follows_the_team_size():
    assert make_bot("bernoulli", make_env("bit-game", num_agents=5).spec) == Bernoulli(0.2)
    assert make_bot("bernoulli:0.5", SPEC) == Bernoulli(0.5)
    assert make_bot("explore:0.7,0.3", SPEC) == Explore(0.7, 0.3, 25)


@pytest.mark.parametrize("name", ["bernouli", "bernoulli:x", "bernoulli:1,2,3", "bernoulli:7", "static:1", "truns"])
def test_wrong_bots_are_one_clear_sentence(name):
    with pytest.raises(NahtError) as e:
        make_bot(name, SPEC)
    assert "\n" not in str(e.value)


def test_every_listed_bot_can_be_made():
    assert set(BOTS["bit-game"]) == {"bernoulli", "static", "explore", "turns"}
    for name in BOTS["bit-game"]:
        play(make_bot(name, SPEC), steps=1, batch=1)
