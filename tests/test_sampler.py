"""The team sampling procedure draws what it says, and refuses what cannot be."""

from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naht import NahtError, Selection, TeamSampler, make_env, team_sampler
from naht.teams.sampler import check_sampler

DRAWS = 20_000


def draw(sampler, n=DRAWS, seed=0, state=None):
    """n teams as NumPy arrays (controlled [n, M], member [n, M])."""
    keys = jax.random.split(jax.random.key(seed), n)
    team = jax.jit(jax.vmap(lambda k: sampler.sample(k, state)))(keys)
    return np.asarray(team.controlled), np.asarray(team.member)


def assert_frequencies(values, expected):
    """Observed shares lie within 4.5 standard errors of the expected probabilities."""
    expected = np.asarray(expected, float)
    seen = np.bincount(values, minlength=len(expected)) / len(values)
    error = 4.5 * np.sqrt(expected * (1 - expected) / len(values)) + 1e-12
    assert (np.abs(seen - expected) <= error).all(), (seen, expected)


@pytest.mark.parametrize("m", [2, 3, 5])
def test_the_papers_procedure(m):
    """N uniform on 1..M-1, one uncontrolled team per episode, random slots."""
    controlled, member = draw(team_sampler(m, 4))
    n = controlled.sum(1)
    assert_frequencies(n, [0, *[1 / (m - 1)] * (m - 1), 0])
    for slot in range(m):
        assert_frequencies(controlled[:, slot].astype(int), [0.5, 0.5])
    assert (member[controlled] == 0).all()
    team = np.where(controlled, -1, member)
    assert all(len(set(row[row >= 0])) == 1 for row in team)  # one team lends all players
    assert_frequencies(team.max(1), [0.25] * 4)


def test_slots_given_n_are_uniform():
    controlled, _ = draw(team_sampler(4, 1, 2))
    pairs = [np.flatnonzero(row) for row in controlled]
    index = {p: i for i, p in enumerate([(a, b) for a in range(4) for b in range(a + 1, 4)])}
    assert_frequencies(np.array([index[tuple(p)] for p in pairs]), [1 / 6] * 6)


@pytest.mark.parametrize(("setting", "n"), [(1, 1), ("all", 4), (0, 0), (3, 3)])
def test_fixed_n(setting, n):
    """Ad hoc teamwork (1), cooperative MARL (all), the uncontrolled team alone (0)."""
    sampler = team_sampler(4, 2, setting)
    controlled, _ = draw(sampler, 200)
    assert (controlled.sum(1) == n).all()
    assert sampler.controlled_share == n / 4


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 5), st.data())
def test_any_distribution_over_n(m, data):
    weights = np.array(data.draw(st.lists(st.integers(0, 5), min_size=m + 1, max_size=m + 1).filter(any)), float)
    phi = tuple(weights / weights.sum())
    sampler = team_sampler(m, 2, phi)
    controlled, _ = draw(sampler, 4000)
    assert_frequencies(controlled.sum(1), phi)
    assert abs(controlled.mean() - sampler.controlled_share) <= 4.5 * controlled.sum(1).std() / m / 4000**0.5 + 1e-6


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 4), st.integers(1, 5), st.booleans(), st.booleans(), st.integers(0, 2**31 - 1))
def test_every_team_is_well_formed(m, size, mix, replace, seed):
    if not replace and (not mix or size < m - 1):
        return
    controlled, member = draw(team_sampler(m, size, mix=mix, replace=replace), 300, seed)
    assert ((controlled.sum(1) >= 1) & (controlled.sum(1) <= m - 1)).all()
    assert ((member >= 0) & (member < np.where(controlled, 1, size))).all()
    for row, mine in zip(member, controlled, strict=True):
        strangers = row[~mine]
        if not mix:
            assert len(set(strangers)) == 1
        elif not replace:
            assert len(set(strangers)) == len(strangers)


def test_mixing_with_replacement_draws_seats_independently():
    p = (0.6, 0.3, 0.1)
    _, member = draw(team_sampler(3, 3, 1, mix=True, probabilities=p))
    controlled, _ = draw(team_sampler(3, 3, 1, mix=True, probabilities=p))
    pairs = member[~controlled].reshape(-1, 2)
    assert_frequencies(pairs[:, 0] * 3 + pairs[:, 1], np.outer(p, p).ravel())


def test_mixing_without_replacement_is_sequential_drawing_for_random_seats():
    p = np.array([0.5, 0.3, 0.2])
    sampler = team_sampler(3, 3, 1, mix=True, replace=False, probabilities=tuple(p))
    controlled, member = draw(sampler)
    pairs = member[~controlled].reshape(-1, 2)
    orders = list(permutations(range(3), 2))
    drawn = {(a, b): p[a] * p[b] / (1 - p[a]) for a, b in orders}
    expected = [(drawn[a, b] + drawn[b, a]) / 2 for a, b in orders]  # who is drawn first sits anywhere
    assert_frequencies(np.array([orders.index(tuple(row)) for row in pairs]), expected)


@pytest.mark.parametrize("slots", ["random", "first", "last"])
def test_seats_are_random_whatever_the_draw(slots):
    """A member that is nearly always drawn, and then first, sits in every seat of the strangers equally often."""
    sampler = team_sampler(4, 4, 1, mix=True, replace=False, probabilities=(0.91, 0.03, 0.03, 0.03), slots=slots)
    controlled, member = draw(sampler)
    favourite = ~controlled & (member == 0)
    seats = np.nonzero(favourite)[1]
    free = {"random": [0.25] * 4, "first": [0, 1 / 3, 1 / 3, 1 / 3], "last": [1 / 3, 1 / 3, 1 / 3, 0]}[slots]
    assert_frequencies(seats, free)


def test_several_controlled_members():
    sampler = TeamSampler(3, (0, 0, 1, 0), Selection(2, mix=True, replace=False), Selection(1))
    controlled, member = draw(sampler, 500)
    assert all(sorted(row[mine]) == [0, 1] for row, mine in zip(member, controlled, strict=True))


def test_choice_may_depend_on_the_initial_state():
    """Member 0 in states below one half, member 1 in the others."""
    by_state = team_sampler(3, 2, probabilities=lambda s: jnp.where(s < 0.5, jnp.array([1.0, 0]), jnp.array([0, 1.0])))
    keys = jax.random.split(jax.random.key(0), 1000)
    states = jax.random.uniform(jax.random.key(1), (1000,))
    team = jax.vmap(by_state.sample)(keys, states)
    strangers = np.where(team.controlled, -1, team.member).max(1)
    assert (strangers == np.asarray(states >= 0.5)).all()


def test_n_may_depend_on_the_initial_state():
    phi = lambda s: jax.nn.one_hot(s, 4)  # noqa: E731
    sampler = TeamSampler(3, phi, Selection(1), Selection(1))
    team = jax.vmap(sampler.sample)(jax.random.split(jax.random.key(0), 4), jnp.arange(4))
    assert team.controlled.sum(1).tolist() == [0, 1, 2, 3]


def test_fixed_slots():
    first = team_sampler(4, 1, 2, slots="first")
    assert (draw(first, 50)[0] == [True, True, False, False]).all()
    last = team_sampler(4, 1, 1, slots="last")
    assert (draw(last, 50)[0] == [False, False, False, True]).all()


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: team_sampler(3, 1, 4), "N is 4: a team of 3 has between 0 and 3"),
        (lambda: team_sampler(3, 1, -1), "N is -1"),
        (lambda: team_sampler(3, 1, "half"), "N is 'half'"),
        (lambda: team_sampler(3, 1, (0.5, 0.5, 0.5, 0)), "sum to 1.5, not to 1"),
        (lambda: team_sampler(3, 1, (0.5, 0.5)), "needs 4 probabilities, got 2"),
        (lambda: team_sampler(3, 1, (-0.5, 0.5, 0.5, 0.5)), "negative"),
        (lambda: team_sampler(1, 1), "empty for a team of 1"),
        (lambda: team_sampler(3, 0), "the uncontrolled population is empty"),
        (lambda: team_sampler(3, 1, num_controlled_members=0), "the controlled population is empty"),
        (lambda: team_sampler(4, 2, mix=True, replace=False), "3 uncontrolled agents without replacement"),
        (lambda: team_sampler(3, 3, 1, mix=True, replace=False, probabilities=(1.0, 0, 0)), "only 1 exist"),
        (lambda: team_sampler(3, 2, replace=False), "needs mix=True"),
        (lambda: team_sampler(3, 2, probabilities=(0.5, 0.4)), "sum to 0.9"),
    ],
)
def test_the_impossible_is_refused_when_built(build, sentence):
    with pytest.raises(NahtError, match=sentence) as e:
        build()
    assert "\n" not in str(e.value)


def test_no_uncontrolled_population_is_needed_without_strangers():
    assert draw(team_sampler(3, 0, "all"), 10)[0].all()


def test_checks_against_a_real_environment():
    env = make_env("bit-game")
    check_sampler(team_sampler(3, 1), env)
    with pytest.raises(NahtError, match="teams of 4, 'bit-game' needs 3"):
        check_sampler(team_sampler(4, 1), env)
    with pytest.raises(NahtError, match="sum to 2"):
        check_sampler(team_sampler(3, 2, probabilities=lambda _: jnp.ones(2)), env)
