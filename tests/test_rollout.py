"""Any team plays any environment: restarts, fresh teams, mixed populations, honest records."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from naht import Arena, Member, NahtError, Population, Selection, TeamSampler, load_members, make_env, team_sampler
from naht.agents.networks import NetworkConfig
from naht.agents.policy import NO_ACTION, Percept
from naht.agents.recurrent import RecurrentPolicy
from naht.agents.scripted import Bernoulli, Static, Turns
from naht.agents.teammate_model import ModelConfig
from probes import Rough, play, reset

SMALL = NetworkConfig(hidden=8)


@dataclass(frozen=True)
class Counter:
    """A teammate that plays its own step count modulo 3 where allowed: its actions reveal its memory."""

    def init(self, key):
        return ()

    def initial_memory(self, batch):
        return jnp.zeros(batch, jnp.int32)

    def act(self, params, memory, percept, key, greedy):
        return jnp.where(percept.avail.argmax(-1) < 3, memory % 3, 0), memory + 1, jnp.zeros(memory.shape)


def arena_for(env, members, num_envs=16, sampler=None, policy=None, greedy=False):
    """An arena with a recurrent learner and the given uncontrolled members; returns it with both parameter sets."""
    policy = policy or RecurrentPolicy(env.spec, SMALL, ModelConfig(8, 4))
    ours = Population([Member("ours", policy, policy.init(jax.random.key(7)), greedy=greedy)])
    theirs = Population(members)
    sampler = sampler or team_sampler(env.spec.num_agents, len(theirs))
    return Arena(env, sampler, ours.roster, theirs.roster, num_envs), ours.params, theirs.params


def run(arena, ours, theirs, steps, seed=0):
    state = reset(arena, jax.random.key(seed))
    return play(arena, ours, theirs, state, jax.random.key(seed + 1), steps)


@pytest.fixture(scope="module")
def rough():
    arena, ours, theirs = arena_for(Rough(), [Member("counter", Counter())])
    return arena, ours, theirs, jax.device_get(run(arena, ours, theirs, 40))


def test_episodes_restart_inside_the_batch(rough):
    _, _, _, (state, tr) = rough
    done = tr.terminated | tr.truncated
    assert done[:-1].sum() > 40  # random lengths: many ends, at different times
    assert not (tr.terminated & tr.truncated).any()
    assert tr.terminated.any()
    assert tr.truncated.any()
    assert tr.first[0].all()
    np.testing.assert_array_equal(tr.first[1:], done[:-1])
    np.testing.assert_array_equal(state.first, done[-1])


def test_memories_and_last_actions_are_cleared_at_restarts(rough):
    _, _, _, (_, tr) = rough
    assert (tr.last_action[tr.first] == NO_ACTION).all()
    inside = ~tr.first[1:]
    np.testing.assert_array_equal(tr.last_action[1:][inside], tr.action[:-1][inside])
    time = np.zeros(16, int)
    for t in range(40):
        time = np.where(tr.first[t], 0, time)
        counters = ~tr.team.controlled[t]
        expected = np.broadcast_to((time % 3)[:, None], counters.shape)
        np.testing.assert_array_equal(tr.action[t][counters], expected[counters])
        time += 1


def test_every_environment_draws_its_own_team_for_every_episode(rough):
    _, _, _, (_, tr) = rough
    for b in range(16):
        changes = (tr.team.controlled[1:, b] != tr.team.controlled[:-1, b]).any(-1)
        assert not changes[~tr.first[1:, b]].any()  # never within an episode
    at_start = tr.team.controlled[tr.first]
    assert len({tuple(row) for row in at_start}) == 6  # all teams with 1 or 2 of 3 controlled
    assert len({tuple(row) for row in tr.team.controlled[0]}) > 1  # different teams side by side


def test_returns_and_lengths_are_those_of_the_episode(rough):
    _, _, _, (_, tr) = rough
    total, length = np.zeros(16), np.zeros(16, int)
    for t in range(40):
        total, length = np.where(tr.first[t], 0, total), np.where(tr.first[t], 0, length)
        total, length = total + tr.reward[t], length + 1
        np.testing.assert_allclose(tr.episode_return[t], total, rtol=1e-6)
        np.testing.assert_array_equal(tr.episode_length[t], length)
    assert tr.metrics["deaths"].max() >= 1


def test_controlled_agents_respect_masks(rough):
    _, _, _, (_, tr) = rough
    allowed = np.take_along_axis(tr.avail, tr.action[..., None], -1)[..., 0]
    assert allowed[tr.team.controlled].all()


def test_next_obs_is_what_follows_before_any_restart(rough):
    _, _, _, (_, tr) = rough
    inside = ~tr.first[1:]
    np.testing.assert_array_equal(tr.next_obs[:-1][inside], tr.obs[1:][inside])
    assert (tr.next_obs[:-1][~inside] != tr.obs[1:][~inside]).any()


def test_two_rollouts_in_a_row_go_on_with_the_episodes(rough):
    arena, ours, theirs, _ = rough
    state = reset(arena, jax.random.key(0))
    state, a = play(arena, ours, theirs, state, jax.random.key(1), 5)
    _, b = play(arena, ours, theirs, state, jax.random.key(2), 5)
    inside = ~b.first[0]
    assert inside.any()
    np.testing.assert_array_equal(b.last_action[0][inside], a.action[-1][inside])
    np.testing.assert_array_equal(b.obs[0][inside], a.next_obs[-1][inside])


def test_many_architectures_and_bots_in_one_population():
    """Every seat acts by its own member: two networks of one shape, one of another, and two bots."""
    env = make_env("bit-game", num_agents=4)
    small, wide = RecurrentPolicy(env.spec, SMALL), RecurrentPolicy(env.spec, replace(SMALL, hidden=12))
    members = [
        Member("a", small, small.init(jax.random.key(1))),
        Member("static", Static()),
        Member("b", small, small.init(jax.random.key(2))),
        Member("wide", wide, wide.init(jax.random.key(3))),
        Member("turns", Turns(4)),
    ]
    sampler = TeamSampler(4, (1, 0, 0, 0, 0), Selection(1), Selection(5, mix=True))
    arena, ours, theirs = arena_for(env, members, 64, sampler)
    _, tr = jax.device_get(run(arena, ours, theirs, 25))
    assert sorted(np.unique(tr.team.member)) == [0, 1, 2, 3, 4]
    slot = np.broadcast_to(np.arange(4), tr.action.shape)
    time = np.broadcast_to(np.arange(25)[:, None, None], tr.action.shape)
    np.testing.assert_array_equal(tr.action[tr.team.member == 1], (slot == 0)[tr.team.member == 1])
    np.testing.assert_array_equal(tr.action[tr.team.member == 4], (slot == time % 4)[tr.team.member == 4])
    for index in (0, 2, 3):  # replay every network alone on what its seats saw
        m = members[index]
        memory, act = m.policy.initial_memory((64, 4)), jax.jit(m.policy.act, static_argnums=4)
        for t in range(25):
            percept = Percept(tr.obs[t], tr.avail[t], tr.last_action[t], jnp.asarray(slot[t]))
            action, memory, _ = act(m.params, memory, percept, jax.random.key(0), True)
            mine = tr.team.member[t] == index
            np.testing.assert_array_equal(np.asarray(action)[mine], tr.action[t][mine])


def test_a_team_of_bernoulli_bots_wins_four_ninths():
    env = make_env("bit-game")
    sampler = team_sampler(3, 1, 0)
    arena, ours, theirs = arena_for(env, [Member("b", Bernoulli(1 / 3))], 2000, sampler)
    _, tr = run(arena, ours, theirs, 25)
    wins = np.asarray(tr.reward) / 3
    assert wins.mean() == pytest.approx(4 / 9, abs=4 * np.sqrt(4 / 9 * 5 / 9 / wins.size))


def test_members_load_by_name_and_refuse_other_tasks(tmp_path):
    env = make_env("bit-game")
    assert [m.name for m in load_members(["bernoulli", "turns"], env.spec)] == ["bernoulli", "turns"]
    with pytest.raises(NahtError, match="did you mean bernoulli"):
        load_members(["bernouli"], env.spec)
    with pytest.raises(NahtError, match="distinct names"):
        Population(load_members(["turns", "turns"], env.spec))


def test_a_populations_parameters_may_first_be_asked_for_inside_a_trace():
    policy = RecurrentPolicy(Rough().spec, SMALL)
    crowd = Population([Member(name, policy, policy.init(jax.random.key(i))) for i, name in enumerate("ab")])
    jax.jit(lambda: jax.tree.map(jnp.sum, crowd.params))()
    assert all(isinstance(np.asarray(leaf), np.ndarray) for leaf in jax.tree.leaves(crowd.params))
