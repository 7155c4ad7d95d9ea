"""What the PPO learner minimises, by hand: losses, their targets, imitation, and whom the model decodes."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from naht.agents.teammate_model import teammates_of
from naht.envs.base import EnvSpec
from naht.learning.optimisation import as_vector
from naht.learning.ppo import PPO
from naht.learning.rows import AgentRows, Modelled
from ppo_batches import CONFIG, collect, equal, rows_of, turns_of
from probes import Rough, prepare, update


def hand_rows(**values):
    """One row of one step; everything not named is zero."""
    shape = {"x": (1, 1, 1), "embedding": (1, 1, 0), "avail": (1, 1, 2)}
    zeros = {f: jnp.zeros(shape.get(f, (1, 1))) for f in AgentRows._fields}
    zeros["action"] = jnp.zeros((1, 1), jnp.int32)
    return AgentRows(**zeros | {k: jnp.asarray(v) for k, v in values.items()})


def with_answers(monkeypatch, output):
    """Let every network answer with these numbers."""
    answer = jnp.asarray(output, jnp.float32).reshape(1, 1, -1)
    monkeypatch.setattr("naht.learning.ppo.unroll", lambda *_: (answer, None))


NO_STATE = jnp.zeros((1, 1, 0))


def test_actor_loss_by_hand(monkeypatch):
    """Probabilities 0.8 and 0.2; action 0 had 0.5 at collection: ratio 1.6, clipped to 1.1 with advantage 2."""
    learner = PPO(EnvSpec("hand", 2, 1, 1, 2, 1), replace(CONFIG, modelling=False, clip=0.1))
    with_answers(monkeypatch, np.log([0.8, 0.2]))
    rows = hand_rows(avail=np.ones((1, 1, 2), bool), log_prob=[[np.log(0.5)]], advantage=[[2.0]], actor_weight=[[1.0]])
    loss, (weight, m) = learner.actor_loss(0.5, 0.0, {}, rows, NO_STATE)
    entropy = -(0.8 * np.log(0.8) + 0.2 * np.log(0.2))
    assert float(loss) == pytest.approx(-1.1 * 2 - 0.5 * entropy, rel=1e-5)
    assert float(m["clip_fraction"]) == 1.0
    assert float(weight) == 1.0
    # A negative advantage is not protected by the clip: 1.6 * -2 is the smaller of the two.
    loss, _ = learner.actor_loss(0.0, 0.0, {}, rows._replace(advantage=jnp.array([[-2.0]])), NO_STATE)
    assert float(loss) == pytest.approx(3.2, rel=1e-5)


def test_imitation_by_hand(monkeypatch):
    """A stranger took action 1, to which the actor gives 0.2; it counts 2.5 times, at a weight of 0.3."""
    learner = PPO(EnvSpec("hand", 2, 1, 1, 2, 1), replace(CONFIG, modelling=False, imitation=1.0))
    with_answers(monkeypatch, np.log([0.8, 0.2]))
    rows = hand_rows(avail=np.ones((1, 1, 2), bool), imitation_weight=[[2.5]], actor_count=[[0.7]])
    rows = rows._replace(action=jnp.ones((1, 1), jnp.int32))
    loss, (count, m) = learner.actor_loss(0.5, 0.3, {}, rows, NO_STATE)
    assert float(loss) == pytest.approx(-0.3 * 2.5 * np.log(0.2), rel=1e-5)
    assert float(m["imitation"]) == pytest.approx(-2.5 * np.log(0.2), rel=1e-5)
    assert float(count) == pytest.approx(0.7)


def test_strangers_are_imitated_where_they_did_well():
    """Weights against NumPy: exp of advantages standardised over living strangers, bounded, as many as our steps."""
    learner, state, tr = collect(replace(CONFIG, imitation=0.3, imitation_limit=2.0))
    new, batch, _ = prepare(learner, state, tr)
    a = jax.device_get(batch.agents)
    theirs = ~a.controlled & a.alive
    advantage = (a.target - a.value)[theirs]
    merit = np.minimum(np.exp((advantage - advantage.mean()) / advantage.std()), 2.0)
    ours = a.actor_weight.sum()
    np.testing.assert_allclose(a.imitation_weight[theirs], merit * ours / theirs.sum(), rtol=1e-4)
    assert (a.imitation_weight[~theirs] == 0).all()
    assert merit.max() == 2.0
    np.testing.assert_allclose(a.actor_count.sum(), ours, rtol=1e-5)
    assert (a.actor_count[~(theirs | (a.actor_weight > 0))] == 0).all()
    # What the actor remembers of strangers goes on from batch to batch, as if it sat in their seats.
    going_on = ~np.asarray(tr.first[0])[:, None] & ~np.asarray(tr.team.controlled[0])
    assert going_on.any()
    assert (np.abs(state.actor_memory)[going_on] > 0).any(-1).all()
    h0 = batch.agents.actor_h0.reshape(state.actor_memory.shape)
    np.testing.assert_array_equal(h0[going_on], state.actor_memory[going_on])
    assert new.actor_memory.shape == state.actor_memory.shape


def test_imitation_ends():
    """Half a run later, an update is that of PPO without it, and costs no more."""
    learner, state, tr = collect(replace(CONFIG, imitation=0.3, imitation_until=0.5))
    plain = PPO(learner.spec, CONFIG)
    without = state._replace(actor_memory=jnp.zeros((*state.actor_memory.shape[:2], 0)))
    early, late = (update(learner, state, (), tr, jax.random.key(0), p)[0] for p in (0.1, 0.6))
    expected = update(plain, without, (), tr, jax.random.key(0), 0.6)[0]
    assert equal(late.params, expected.params)
    assert not equal(early.params.policy.actor, expected.params.policy.actor)
    assert equal(early.params.critic, expected.params.critic)


def test_the_action_decoder_may_learn_from_controlled_teammates_alone(collected):
    learner, state, tr = collected
    _, batch, _ = prepare(learner, state, tr)
    some = PPO(learner.spec, replace(learner.config, decoded_actions="controlled"))
    agents, mates = Modelled(batch, learner.decoded_teammates).take(turns_of(batch))
    params = (state.params.policy.encoder, state.params.decoders)
    other = mates._replace(action=jnp.where(mates.controlled, mates.action, (mates.action + 1) % 3))
    for each, same in ((learner, False), (some, True)):
        loss = jax.jit(each.model_loss)
        assert np.allclose(loss(params, agents, mates)[0], loss(params, agents, other)[0]) == same


@pytest.mark.parametrize(
    ("settings", "value", "old", "expected"),
    [
        ({"value_loss": "mse"}, 3.0, 0.0, 0.5 * 4),  # target 1
        ({"value_loss": "huber", "huber_delta": 1.0}, 3.0, 0.0, 1.5),  # 1 * (2 - 1/2)
        ({"value_loss": "huber", "huber_delta": 1.0}, -1.0, 0.0, 1.5),  # two-sided
        ({"value_loss": "mse", "clip_value": True}, 0.9, 0.5, 0.5 * 0.4**2),  # moved 0.4, allowed 0.1: 0.6 counts
        ({"value_loss": "mse", "clip_value": True}, 3.0, 0.9, 0.5 * 4),  # the worse of the two counts
    ],
)
def test_critic_loss_by_hand(monkeypatch, settings, value, old, expected):
    learner = PPO(EnvSpec("hand", 2, 1, 1, 2, 1), replace(CONFIG, modelling=False, clip=0.1, **settings))
    with_answers(monkeypatch, [value])
    rows = hand_rows(target=[[1.0]], value=[[old]], critic_weight=[[1.0]])
    loss, _ = learner.critic_loss({}, rows, NO_STATE)
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_model_loss_by_hand(collected):
    """Against NumPy, from the decoders' own outputs."""
    learner, state, tr = collected
    _, batch, _ = prepare(learner, state, tr)
    agents, mates = Modelled(batch, learner.decoded_teammates).take(turns_of(batch))
    p = state.params
    loss, (weight, m) = learner.model_loss((p.policy.encoder, p.decoders), agents, mates)
    embed = partial(learner.policy.embed, p.policy)
    obs, logits = learner.decoders.apply(p.decoders, embed(agents.x, agents.encoder_h0, agents.first)[0], mates.seats)
    probs = np.asarray(jax.nn.softmax(logits))
    total, pairs, right = 0.0, 0, {True: [], False: []}
    steps, rows = agents.first.shape
    for t in range(steps):
        for r in range(rows):
            if agents.actor_weight[t, r] == 0:
                continue
            env, seat = divmod(r, 3)
            for k, j in enumerate(j for j in range(3) if j != seat):
                if not tr.alive[t, env, j]:
                    continue
                chance = probs[t, r, k, int(tr.action[t, env, j])]
                total += float(((obs[t, r, k] - tr.obs[t, env, j]) ** 2).mean()) - np.log(chance)
                pairs += 1
                right[bool(tr.team.controlled[t, env, j])].append(chance)
    assert float(weight) == pairs
    assert float(loss) == pytest.approx(total, rel=1e-4)
    assert float(m["action_prob_controlled"] / m["share_controlled"]) == pytest.approx(np.mean(right[True]), rel=1e-4)
    assert float(m["action_prob_uncontrolled"] / m["share_uncontrolled"]) == pytest.approx(
        np.mean(right[False]), rel=1e-4
    )


def test_nobody_is_a_teammate_of_their_own():
    assert teammates_of(jnp.arange(3), 3).tolist() == [[1, 2], [0, 2], [0, 1]]


@pytest.mark.parametrize("decoded", [1, 2])
def test_decoding_a_few_teammates_learns_the_same_on_average(decoded):
    """The mean over all draws of the sampled gradient is the full one, with the dead in it, and draws are even."""
    env = Rough(num_agents=4)
    learner, state, tr = collect(replace(CONFIG, decoded_teammates=decoded), env)
    everybody = PPO(env.spec, CONFIG)
    assert not tr.alive.all()
    _, batch, _ = prepare(learner, state, tr)
    params = (state.params.policy.encoder, state.params.decoders)

    @partial(jax.jit, static_argnums=0)
    def gradient(learner, turns):
        rows = Modelled(batch, learner.decoded_teammates).take(turns)
        grad, (weight, metrics) = jax.grad(learner.model_loss, has_aux=True)(params, *rows)
        return as_vector(grad) / weight, metrics["loss"] / weight

    full = gradient(everybody, turns_of(batch))
    # Rows add up, so it is enough that every beginning is drawn equally often in each of them.
    some = [gradient(learner, turns_of(batch, first)) for first in range(3)]
    assert not np.allclose(some[0][0], full[0], atol=1e-3)
    for part in range(2):
        np.testing.assert_allclose(np.mean([s[part] for s in some], axis=0), full[part], atol=1e-5)
    drawn = learner.draw_turns(jax.random.key(0), jnp.zeros(9000, int)).first
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 9000, 1 / 3, atol=0.03)


@pytest.mark.parametrize(("decoded", "steps"), [(1, 3), (2, 2), (3, 1)])
def test_teammates_take_turns(decoded, steps):
    """Within a few steps everybody is decoded, by everybody, and what is to be predicted is theirs."""
    env = Rough(num_agents=4)
    learner, state, tr = collect(replace(CONFIG, decoded_teammates=decoded), env)
    _, batch, _ = prepare(learner, state, tr)
    turns = learner.draw_turns(jax.random.key(0), jnp.arange(batch.agents.first.shape[0]))
    agents, mates = jax.device_get(Modelled(batch, decoded).take(turns))
    seats = np.broadcast_to(mates.seats, mates.action.shape)
    for row in range(seats.shape[1]):
        assert set(seats[:steps, row].ravel()) == set(range(4)) - {row % 4}
    team = np.arange(seats.shape[1])[:, None] // 4 * 4
    step = np.arange(seats.shape[0])[:, None, None]
    for name in ("obs", "action", "alive", "controlled"):
        np.testing.assert_array_equal(getattr(mates, name), getattr(agents, name)[step, team + seats])


@pytest.mark.parametrize("bootstrap", [True, False])
def test_time_limits(bootstrap):
    """At a time-out the target bootstraps from the last observation if asked, else it stops, as at a real end."""
    config = replace(CONFIG, bootstrap_time_limit=bootstrap, standardise_rewards="no")
    learner, state, tr = collect(config)
    _, batch, _ = prepare(learner, state, tr)
    a, _ = rows_of(batch)
    target = np.asarray(a.target).reshape(20, 8, 3)
    reward = np.asarray(tr.reward)[..., None]
    np.testing.assert_allclose(target[tr.terminated], np.broadcast_to(reward, target.shape)[tr.terminated], rtol=1e-5)
    assert tr.truncated.any()
    stops = np.isclose(target, reward, rtol=1e-5)[np.asarray(tr.truncated)]
    assert stops.all() != bootstrap


def test_bootstrap_value_is_the_critics_next_step():
    """V after the batch's last step is what the critic says when it really gets to see that step."""
    learner, state, tr = collect(replace(CONFIG, standardise_rewards="no", gae_lambda=0.0, gamma=1.0))
    short = jax.tree.map(lambda x: x[:-1], tr._replace(start_memory=()))._replace(start_memory=tr.start_memory)
    less = PPO(learner.spec, replace(learner.config, rollout_steps=19))
    a = rows_of(prepare(learner, state, tr)[1])[0]
    b = rows_of(prepare(less, state, short)[1])[0]
    np.testing.assert_allclose(a.target[:19], b.target, atol=1e-4)


def test_rewards_are_standardised_with_the_running_mean(collected):
    learner, state, tr = collected
    new, _, _ = prepare(learner, state, tr)
    assert float(new.reward_stats.seen) == 2 * tr.reward.size  # the batch before counted, too


def test_advantages_are_standardised_over_controlled_agents(collected):
    learner, state, tr = collected
    _, batch, _ = prepare(learner, state, tr)
    mine = np.asarray(batch.agents.advantage)[np.asarray(batch.agents.actor_weight) > 0]
    assert mine.mean() == pytest.approx(0, abs=1e-4)
    assert mine.std() == pytest.approx(1, abs=1e-3)
