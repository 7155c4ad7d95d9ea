"""Value-based learning: exact targets, a replay that forgets nothing too early, teams that find what they should."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from naht import Arena, Member, NahtError, Population, team_sampler
from naht.agents.networks import NetworkConfig
from naht.agents.scripted import Bernoulli
from naht.agents.value import ValuePolicy, epsilon_greedy
from naht.learning.value_based import Mixer, ValueBased, ValueConfig
from naht.teams.population import Roster
from probes import Recall, Rough, TwoStep, play, reset

PLAIN = NetworkConfig(8, 1, layer_norm=False, input_norm=False)
CONFIG = ValueConfig(
    num_envs=8,
    rollout_steps=20,
    capacity=24,
    batch=4,
    network=PLAIN,
    mixing_width=4,
    mixing_hidden=8,
)


def batches(learner, count):
    """Batches of experience with strangers; all but the first begin mid-episode. Played by an untrained team."""
    env = Rough()
    theirs = Population([Member("bot", Bernoulli(0.5))])
    ours = Roster(("ours",), (learner.policy,), (False,))
    arena = Arena(env, team_sampler(3, 1), ours, theirs.roster, learner.num_envs)
    params = (jax.tree.map(lambda x: x[None], learner.policy_params(learner.init(jax.random.key(1)))),)
    running = reset(arena, jax.random.key(2))
    for i in range(count):
        running, tr = play(arena, params, theirs.params, running, jax.random.key(3 + i), 20)
        yield tr


def collect(config=CONFIG, count=2):
    """A learner, its state after some updates, its replay, the last batch, and the last metrics."""
    learner = ValueBased(Rough().spec, config)
    state, experience = learner.init(jax.random.key(1)), learner.init_experience()
    update = jax.jit(learner.update)
    for i, tr in enumerate(batches(learner, count)):
        state, experience, metrics = update(state, experience, tr, jax.random.key(9 + i), jnp.zeros(()))
    return learner, state, experience, tr, metrics


def test_epsilon_greedy_is_the_distribution_it_says():
    values = jnp.array([1.0, 3.0, 2.0, 9.0])
    avail = jnp.array([True, True, True, False])
    expected = [0.1, 0.8, 0.1, 0.0]
    np.testing.assert_allclose(jnp.exp(epsilon_greedy(values, avail, 0.3)), expected, atol=1e-6)
    np.testing.assert_allclose(jnp.exp(epsilon_greedy(values, avail, 0.0)), [0, 1, 0, 0], atol=1e-6)
    assert bool(jnp.isfinite(epsilon_greedy(values, avail, 0.0)).all())


def test_exploration_follows_its_schedule():
    learner = ValueBased(Rough().spec, replace(CONFIG, epsilon_steps=1000, epsilon_start=0.9, epsilon_end=0.1))
    state = learner.init(jax.random.key(0))
    seen = [float(learner.policy_params(state._replace(collected=jnp.asarray(n))).epsilon) for n in (0, 25, 50, 999)]
    assert seen == pytest.approx([0.9, 0.5, 0.1, 0.1])


@pytest.mark.parametrize(("bootstrap", "double_q", "lam"), [(False, True, 0.0), (True, False, 0.0), (True, True, 0.7)])
@pytest.mark.parametrize("mixing", ["none", "sum", "monotonic"])
def test_the_loss_is_the_textbooks(mixing, bootstrap, double_q, lam):
    """Step by step in NumPy, with restarts, deaths, masks, strangers and time-outs in the middle of sequences."""
    config = replace(
        CONFIG,
        mixing=mixing,
        double_q=double_q,
        bootstrap_time_limit=bootstrap,
        td_lambda=lam,
        standardise_rewards="no",
    )
    learner = ValueBased(Rough().spec, config)
    state = learner.init(jax.random.key(1))
    *_, tr = batches(learner, 2)
    assert tr.first[1:].any()
    other = jax.tree.map(lambda leaf: leaf * 0.7 + 0.01, state.params)
    sequences = learner.sequences(tr)
    loss = jax.jit(learner.loss)
    got, (weight, metrics) = loss(other, state.reward_stats, state.params, *sequences.take(jnp.arange(8)))

    slots, nothing = np.arange(3), np.zeros((1, 3), bool)

    @jax.jit
    def network(params, obs, last_action, h):
        x = learner.policy.inputs(obs, last_action, slots)[None]
        return learner.policy.critic.apply(params, x, h, nothing)

    def values(params, obs, last_action, h):
        q, h = jax.device_get(network(params, obs, last_action, h))
        return q[0], h[0]

    mixed = jax.jit(learner.mixer.apply)

    def mix(params, q, who, s):
        q = np.where(who, q, 0.0)
        return q.sum() if mixing == "sum" else float(mixed(params, q, s))

    tr = jax.device_get(tr)
    total, count = 0.0, 0.0
    for b in range(8):
        h = dict.fromkeys(("online", "target"), tr.start_memory[0][b])
        steps = []
        for t in range(20):
            q, after = {}, {}
            for name, params in (("online", state.params), ("target", other)):
                before = np.zeros_like(h[name]) if tr.first[t, b] else h[name]
                q[name], h[name] = values(params.network, tr.obs[t, b], tr.last_action[t, b], before)
                after[name], _ = values(params.network, tr.next_obs[t, b], tr.action[t, b], h[name])
            learns = tr.team.controlled[t, b]  # dead or alive
            chosen = q["online"][slots, tr.action[t, b]]
            chooser = after["online" if double_q else "target"]
            following = after["target"][slots, np.where(tr.next_avail[t, b], chooser, -np.inf).argmax(-1)]
            if mixing != "none":
                chosen = mix(state.params.mixer, chosen, learns, tr.global_state[t, b])
                following = mix(other.mixer, following, learns, tr.next_global_state[t, b])
                learns = learns.any()
            steps.append((chosen, following, learns))
        goal = None  # of the step after, while it belongs to the same episode and is known
        for t, (chosen, following, learns) in reversed(list(enumerate(steps))):
            ends = tr.terminated[t, b] or (tr.truncated[t, b] and not bootstrap)
            if tr.done[t, b]:
                goal = None
            ahead = following if goal is None else (1 - lam) * following + lam * goal
            goal = tr.reward[t, b] + 0.99 * (not ends) * ahead
            if bootstrap and tr.truncated[t, b] and t < 19:
                goal = None  # what followed is not kept
                continue
            errors = np.atleast_1d(chosen - goal)[np.atleast_1d(learns)]
            total, count = total + (errors**2).sum(), count + len(errors)
    assert float(weight) == count
    np.testing.assert_allclose(got, total, rtol=2e-3)
    np.testing.assert_allclose(metrics["loss"], total, rtol=2e-3)


def test_targets_are_not_differentiated():
    learner = ValueBased(Rough().spec, CONFIG)
    state = learner.init(jax.random.key(1))
    *_, tr = batches(learner, 2)
    sequences = learner.sequences(tr).take(jnp.arange(4))

    @jax.jit
    def loss(params, target):
        return learner.loss(target, state.reward_stats, params, *sequences)[0]

    by_target = jax.jit(jax.grad(loss, argnums=1))(state.params, state.params)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(by_target))
    elsewhere = jax.tree.map(lambda leaf: leaf + 0.1, state.params)
    assert loss(state.params, elsewhere) != loss(state.params, state.params)
    gradient = jax.jit(jax.grad(loss))(state.params, state.params)
    step = jax.tree.map(lambda leaf: 1e-3 * jnp.sign(leaf), gradient)

    def at(sign):
        moved = jax.tree.map(lambda p, s: p + sign * s, state.params, step)
        return float(loss(moved, state.params))

    slope = sum(float(jnp.vdot(g, s)) for g, s in zip(*map(jax.tree.leaves, (gradient, step)), strict=True))
    # The target moves a little with the online network's choices; the slope is that of the rest.
    assert (at(1.0) - at(-1.0)) / 2 == pytest.approx(slope, rel=0.1)


def test_the_replay_keeps_the_newest_sequences():
    learner, state, experience, tr, _ = collect(count=4)  # 32 sequences into room for 24
    assert int(state.collected) == 32
    newest = learner.sequences(tr)
    for kept, new in zip(experience, newest, strict=True):
        np.testing.assert_array_equal(kept[:8], new)  # the fourth batch lies where the first was
    assert bool(experience.controlled.any((1, 2)).all())


def test_draws_are_of_what_is_there_each_once():
    learner = ValueBased(Rough().spec, replace(CONFIG, num_envs=24, updates_per_sequence=2, batch=6))
    rows = np.asarray(learner.draw(jax.random.key(0), jnp.asarray(10), 24))
    assert rows.shape == (48, 6)
    assert rows.max() < 10
    assert all(len(set(row)) == 6 for row in rows)
    assert set(rows.ravel()) == set(range(10))
    few = np.asarray(learner.draw(jax.random.key(0), jnp.asarray(4), 24))
    assert all(sorted(row)[:4] == [0, 1, 2, 3] and set(sorted(row)[4:]) == {24} for row in few.tolist())


def test_learning_waits_for_experience():
    late = replace(CONFIG, learning_starts=16)
    _, state, _, _, metrics = collect(late, count=1)
    assert int(state.updates) == 0
    assert float(metrics["value/loss"]) == 0.0
    _, state, _, _, metrics = collect(late, count=2)
    assert int(state.updates) == 8
    assert float(metrics["value/loss"]) > 0


@pytest.mark.parametrize(("every", "rate"), [(8, 1.0), (1, 0.25), (100, 1.0)])
def test_the_target_follows(every, rate):
    """Hard every few steps, soft every step, or not yet."""
    _, state, _, _, _ = collect(replace(CONFIG, learning_starts=1, target_every=every, target_rate=rate), count=1)
    same = [np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (state.params, state.target)), strict=True)]
    assert all(same) == (every == 8)
    start = ValueBased(Rough().spec, CONFIG).init(jax.random.key(1)).params
    unmoved = [np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (start, state.target)), strict=True)]
    assert all(unmoved) == (every == 100)


def test_the_mixer_is_monotonic_and_reads_the_state():
    mixer = Mixer(4, 8)
    values, states = jax.random.normal(jax.random.key(0), (2, 50, 3))
    params = ValueBased(Rough().spec, replace(CONFIG, mixing="monotonic")).init(jax.random.key(0)).params.mixer
    apply = partial(mixer.apply, params)
    slopes = jax.vmap(jax.grad(apply))(values, states[:, :2])
    assert bool((slopes >= 0).all())
    assert bool((slopes > 0).any())
    assert not np.allclose(apply(values, states[:, :2]), apply(values, states[::-1, :2]))


def train(env, config, batches, seed=0):
    """Self-play. Returns greedy returns of a team afterwards."""
    learner = ValueBased(env.spec, config)
    sampler, nobody = team_sampler(env.spec.num_agents, 0, "all"), Roster((), (), ())

    def arena(greedy):
        return Arena(env, sampler, Roster(("us",), (learner.policy,), (greedy,)), nobody, config.num_envs)

    def params(state):
        return (jax.tree.map(lambda x: x[None], learner.policy_params(state)),)

    def step(carry, key):
        state, experience, running = carry
        k_play, k_update = jax.random.split(key)
        running, tr = arena(False).play(params(state), (), running, k_play, learner.rollout_steps)
        return (*learner.update(state, experience, tr, k_update, jnp.zeros(()))[:2], running), None

    start = learner.init(jax.random.key(seed)), learner.init_experience(), reset(arena(False), jax.random.key(seed))
    keys = jax.random.split(jax.random.key(seed + 1), batches)
    state = jax.jit(lambda carry: jax.lax.scan(step, carry, keys)[0][0])(start)
    test = arena(True)
    _, tr = play(test, params(state), (), reset(test, jax.random.key(7)), jax.random.key(8), env.spec.horizon)
    return tr.reward.sum(0)


LEARN = ValueConfig(
    num_envs=16, capacity=256, batch=32, network=replace(PLAIN, hidden=16), mixing_width=8, mixing_hidden=16,
    lr=3e-3, updates_per_sequence=0.5, target_every=20, epsilon_end=0.1, standardise_rewards="no",
)  # fmt: skip


@pytest.mark.parametrize("mixing", ["none", "sum", "monotonic"])
def test_a_team_learns_to_remember(mixing):
    """1.0 with memory, 0.5 without."""
    returns = train(Recall(), replace(LEARN, mixing=mixing, epsilon_steps=4000), 150)
    assert float(returns.mean()) > 0.95


@pytest.mark.parametrize(("mixing", "value"), [("sum", 7.0), ("monotonic", 8.0)])
def test_only_mixing_finds_the_best_of_the_two_step_game(mixing, value):
    """With a full exploration of both games, as in the paper that introduced it."""
    config = replace(LEARN, mixing=mixing, epsilon_end=1.0, gamma=0.99)
    returns = train(TwoStep(), config, 300)
    assert (np.asarray(returns) == value).all()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_envs": 7}, "capacity is 24: it must be a multiple of num_envs, 7"),
        ({"batch": 40}, "batch is 40: the replay holds 24"),
        ({"lr": 0.0}, "lr is 0.0: it must be positive"),
        ({"epsilon_end": 1.5}, "epsilon_end is 1.5: it must lie between 0 and 1"),
        ({"target_every": 0}, "target_every is 0: it must be at least 1"),
    ],
)
def test_impossible_settings_are_refused(changes, sentence):
    with pytest.raises(NahtError, match=sentence):
        replace(CONFIG, **changes)


def test_a_policy_acts_by_its_values():
    policy = ValuePolicy(Rough().spec, PLAIN)
    params = policy.init(jax.random.key(0))
    assert params.epsilon == 0.0
    assert policy.initial_memory((4, 3)).shape == (4, 3, 8)
