"""The PPO learner: its losses by hand, its masks by poison, its memory by comparison."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from naht import Arena, Member, NahtError, Population, evaluate_mn, team_sampler
from naht.agents.networks import NetworkConfig
from naht.agents.policy import masked_log_probs, pick
from naht.agents.recurrent import told_columns
from naht.agents.scripted import Bernoulli
from naht.agents.teammate_model import ModelConfig, teammates_of
from naht.envs.base import EnvSpec
from naht.learning.learner import make_learner
from naht.learning.minibatches import chunked_gradient, draw_minibatches, filled, map_rows
from naht.learning.optimisation import as_vector
from naht.learning.ppo import PPO, PPOConfig
from naht.learning.rows import AgentRows, Modelled, Turns, concat, unroll
from naht.teams.population import Roster
from naht.teams.sampler import Team, describe
from probes import Recall, Rough, play, prepare, reset, update

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


@pytest.fixture(scope="module")
def collected():
    return collect()


def rows_of(batch, count=None):
    """All rows of a batch, as the losses get them."""
    return batch.take(jnp.arange(count or batch.agents.first.shape[0]))


def turns_of(batch, first=0):
    """All rows of a batch, each beginning with the same teammate."""
    rows = jnp.arange(batch.agents.first.shape[0])
    return Turns(rows, jnp.full_like(rows, first))


@pytest.mark.parametrize("modelling", [True, False])
@pytest.mark.parametrize("cut", [None, 5])
@pytest.mark.parametrize("memory", ["bptt", "stored"])
def test_ratio_is_1_before_the_first_update(modelling, cut, memory):
    """Log-probabilities recomputed by the learner are the rollout's, with restarts in the middle of a batch."""
    config = replace(CONFIG, modelling=modelling, sequence_length=cut, actor_memory=memory)
    learner, state, tr = collect(config)
    assert tr.first[1:].any()
    assert not tr.first[0].all()
    _, batch, _ = prepare(learner, state, tr)
    a, _ = rows_of(batch)
    actor = partial(learner.policy.actor.apply, state.params.policy.actor)
    logits, _ = unroll(actor, concat(a.x, a.embedding), a.actor_h0, a.first)
    log_probs = pick(masked_log_probs(logits, a.avail), a.action)
    mine = a.actor_weight > 0
    np.testing.assert_allclose(np.exp(log_probs - a.log_prob)[mine], 1.0, atol=1e-4)


def test_a_team_as_it_can_be_told():
    team = Team(jnp.array([[True, False, False], [True, True, True]]), jnp.array([[0, 2, 1], [0, 0, 0]]))
    wanted = [[0, 1, 1, 0, 1, 0, 0], [0, 0, 0, 0, 1, 1, 1]]
    np.testing.assert_array_equal(describe(team, 4), wanted)
    columns = {told: told_columns(told, 4, 3) for told in ("nothing", "strangers", "seats", "both")}
    assert {told: len(range(7)[where]) for told, where in columns.items()} == {
        "nothing": 0, "strangers": 4, "seats": 3, "both": 7
    }  # fmt: skip
    np.testing.assert_array_equal(describe(team, 4)[:, columns["seats"]], team.controlled)


@pytest.mark.parametrize(("actor", "critic"), [("strangers", "both"), ("both", "nothing"), ("seats", "strangers")])
def test_actor_and_critic_read_what_they_are_told_and_nothing_else(actor, critic):
    """Log-probabilities are the rollout's; a value or a probability changes with what its network is told only."""
    config = replace(CONFIG, modelling=False, actor_told=actor, critic_told=critic, bootstrap_time_limit=True)
    learner, state, tr = collect(config, strangers=2)
    _, batch, _ = prepare(learner, state, tr)
    a, global_state = rows_of(batch)
    _, (weight, metrics) = learner.actor_loss(0.0, 0.0, state.params.policy.actor, a, global_state)
    assert float(metrics["approx_kl"] / weight) < 1e-6
    assert set(np.unique(a.told[..., :2].sum(-1))) == {1.0}  # one team of strangers in every episode

    def outputs(told):
        read = learner.actor_reads(a.x, a.embedding, told), learner.critic_reads(a.x, a.embedding, global_state, told)
        logits, _ = learner.policy.actor.apply(state.params.policy.actor, read[0], a.actor_h0, a.first)
        values, _ = learner.critic.apply(state.params.critic, read[1], a.critic_h0, a.first)
        return logits, values

    before = outputs(a.told)
    np.testing.assert_allclose(before[1][..., 0], a.value, atol=1e-5)
    for columns, names in ((slice(0, 2), ("strangers", "both")), (slice(2, 5), ("seats", "both"))):
        after = outputs(a.told.at[..., columns].set(1 - a.told[..., columns]))
        changed = [bool(np.any(np.abs(x - y) > 1e-6)) for x, y in zip(before, after, strict=True)]
        assert changed == [actor in names, critic in names]


def test_who_is_told_its_team_plays_with_that_population_only():
    learner = PPO(Rough().spec, replace(CONFIG, modelling=False, actor_told="strangers"), strangers=2)
    ours = Population([Member("told", learner.policy, learner.policy_params(learner.init(jax.random.key(0))))])
    bots = [Member(f"bot{i}", Bernoulli(0.5)) for i in range(3)]
    assert len(evaluate_mn(Rough(), ours, Population(bots[:2]), episodes=4)) == 8
    with pytest.raises(NahtError, match="is told its team knows 2 possible ones: it plays with that population only"):
        evaluate_mn(Rough(), ours, Population(bots), episodes=4)


def test_values_are_the_same_through_time_and_from_stored_states():
    """The critic's stored states reproduce its own unrolled values: nothing is misaligned around restarts."""
    learner, state, tr = collect(replace(CONFIG, critic_memory="stored", sequence_length=4))
    _, batch, _ = prepare(learner, state, tr)
    a, _ = rows_of(batch)
    values, _ = unroll(
        partial(learner.critic.apply, state.params.critic), concat(a.x, a.embedding), a.critic_h0, a.first
    )
    np.testing.assert_allclose(values[..., 0], a.value, atol=1e-5)


def poison(leaf, where):
    """NaN (or a wild number) wherever a mask of the leading axes says so."""
    mask = where.reshape(where.shape + (1,) * (leaf.ndim - where.ndim))
    return jnp.where(mask, jnp.nan if jnp.issubdtype(leaf.dtype, jnp.floating) else 0, leaf)


@partial(jax.jit, static_argnums=0)
def gradients(learner, state, batch):
    deal = draw_minibatches(jax.random.key(0), jnp.ones(batch.agents.first.shape[0], bool), 1, 1, 5)
    one = jax.tree.map(lambda x: x[0], deal)
    p = state.params
    return {
        "actor": chunked_gradient(partial(learner.actor_loss, 0.01, 0.0), p.policy.actor, batch, one)[0],
        "critic": chunked_gradient(learner.critic_loss, p.critic, batch, one)[0],
        "model": chunked_gradient(
            learner.model_loss,
            (p.policy.encoder, p.decoders),
            Modelled(batch, learner.decoded_teammates),
            one._replace(rows=learner.draw_turns(jax.random.key(1), one.rows)),
        )[0],
    }


def equal(a, b):
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.allclose(x, y, atol=1e-6, equal_nan=False) for x, y in leaves)


def poisoned(batch, where, *names):
    return batch._replace(agents=batch.agents._replace(**{n: poison(getattr(batch.agents, n), where) for n in names}))


def test_actor_ignores_uncontrolled_and_dead_agents(collected):
    learner, state, tr = collected
    _, batch, _ = prepare(learner, state, tr)
    clean = gradients(learner, state, batch)
    foreign = batch.agents.actor_weight == 0
    assert foreign.any()
    dirty = gradients(learner, state, poisoned(batch, foreign, "advantage", "log_prob"))
    assert equal(clean["actor"], dirty["actor"])
    wrong = gradients(learner, state, poisoned(batch, ~foreign, "advantage"))
    assert not equal(clean["actor"], wrong["actor"])  # the poison is real


@pytest.mark.parametrize("ucd", [True, False])
def test_uncontrolled_data_train_the_critic_only_if_asked(ucd):
    learner, state, tr = collect(replace(CONFIG, uncontrolled_data=ucd))
    _, batch, _ = prepare(learner, state, tr)
    clean = gradients(learner, state, batch)["critic"]
    controlled, alive = (
        jnp.moveaxis(leaf, 0, 2).reshape(batch.agents.first.shape) for leaf in (tr.team.controlled, tr.alive)
    )
    np.testing.assert_array_equal(batch.agents.critic_weight > 0, controlled | ucd)
    dirty = gradients(learner, state, poisoned(batch, ~controlled, "target", "value"))["critic"]
    assert equal(clean, dirty) == (not ucd)
    # The team's reward goes on after a death: the dead train the critic, but not the actor.
    dead = controlled & ~alive
    assert dead.any()
    assert (batch.agents.actor_weight[dead] == 0).all()
    assert not equal(clean, gradients(learner, state, poisoned(batch, dead, "target"))["critic"])


def test_poisoned_strangers_change_nothing_in_a_controlled_only_update():
    """Through the whole update: wild numbers in all that uncontrolled agents saw and did leave actor and critic alone.

    A seat's row spans restarts, where it may change hands, so foreign steps stand right beside our own.
    """
    config = replace(CONFIG, uncontrolled_data=False, modelling=False)
    learner, state, tr = collect(config)
    clean, _, _ = update(learner, state, (), tr, jax.random.key(0), 0.0)
    strangers = ~tr.team.controlled
    wild = jax.random.normal(jax.random.key(9), tr.obs.shape) * 1e3
    dirty_tr = tr._replace(
        obs=jnp.where(strangers[..., None], wild, tr.obs),
        next_obs=jnp.where(strangers[..., None], wild, tr.next_obs),
        log_prob=jnp.where(strangers, jnp.nan, tr.log_prob),
        action=jnp.where(strangers, 1, tr.action),
    )
    dirty, _, _ = update(learner, state, (), dirty_tr, jax.random.key(0), 0.0)
    assert equal(clean.params.policy.actor, dirty.params.policy.actor)
    assert equal(clean.params.critic, dirty.params.critic)


def test_the_model_learns_from_controlled_agents_about_everybody_alive(collected):
    learner, state, tr = collected
    _, batch, _ = prepare(learner, state, tr)
    clean = gradients(learner, state, batch)["model"]
    assert equal(clean, gradients(learner, state, poisoned(batch, ~batch.agents.alive, "obs"))["model"])
    for kind in (batch.agents.controlled, ~batch.agents.controlled):  # both kinds of teammates are modelled
        seen = batch._replace(agents=batch.agents._replace(obs=batch.agents.obs + kind[..., None] * 1.0))
        assert not equal(clean, gradients(learner, state, seen)["model"])


def test_ppo_does_not_train_the_encoder(collected):
    """With the model's own learning rate at (almost) nothing, an update leaves encoder and decoders alone."""
    learner, state, tr = collected
    learner = PPO(learner.spec, replace(learner.config, model_lr=1e-30))
    new, _, _ = update(learner, state, (), tr, jax.random.key(0), 0.0)
    assert equal(state.params.policy.encoder, new.params.policy.encoder)
    assert not equal(state.params.policy.actor, new.params.policy.actor)
    assert not equal(state.params.critic, new.params.critic)


@pytest.mark.parametrize("chunk", [1, 3, 7, 24])
def test_chunks_change_nothing_but_speed(collected, chunk):
    learner, state, tr = collected
    _, batch, _ = prepare(learner, state, tr)
    loss = partial(learner.actor_loss, 0.01, 0.0)

    @jax.jit
    def in_chunks(params, batch):
        active = (batch.agents.actor_weight > 0).any(-1)
        deal = jax.tree.map(lambda x: x[0], draw_minibatches(jax.random.key(0), active, 1, 1, chunk))
        return chunked_gradient(loss, params, batch, deal)

    @jax.jit
    def at_once(params, batch):
        grad, (weight, sums) = jax.grad(loss, has_aux=True)(params, *rows_of(batch))
        return as_vector(grad) / weight, sums["entropy"] / weight

    got, metrics = in_chunks(state.params.policy.actor, batch)
    expected, entropy = at_once(state.params.policy.actor, batch)
    assert equal(got, expected)
    np.testing.assert_allclose(metrics["entropy"], entropy, rtol=1e-4)


@pytest.mark.parametrize("num_rows", [5, 8, 13])
@pytest.mark.parametrize("minibatches", [1, 3, 4])
@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_minibatches_deal_every_active_row_once_per_epoch(num_rows, minibatches, chunk):
    active = np.arange(num_rows) % 3 != 1
    deal = jax.device_get(
        jax.jit(draw_minibatches, static_argnums=(2, 3, 4))(jax.random.key(0), active, 2, minibatches, chunk)
    )
    assert deal.rows.shape[0] == 2 * minibatches
    wanted = np.flatnonzero(active).tolist()
    orders = []
    for epoch in range(2):
        seen = []
        for step in range(epoch * minibatches, (epoch + 1) * minibatches):
            computed = np.asarray(deal.rows[step, : deal.chunks[step]]).ravel()
            mine = [r for r in computed.tolist() if r in wanted]
            assert abs(len(mine) - len(wanted) / minibatches) < 1  # even shares
            seen += mine
        assert sorted(seen) == wanted
        orders.append(seen)
    assert orders[0] != orders[1] or len(wanted) < 4


@pytest.mark.parametrize(
    ("rows", "at_once", "share", "chunk"),
    [
        (20, 12, 1.0, 10),  # two full chunks rather than one and a half
        (24, 12, 1.0, 12),
        (12, 12, 0.5, 7),  # six are expected; seven, should chance have it, are no second chunk
        (40, 12, 0.5, 11),
        (20, 12, 0.0, 1),
        (3, 12, 1.0, 3),
        (20, "all", 0.5, 20),
    ],
)
def test_chunks_are_filled(rows, at_once, share, chunk):
    assert filled(rows, at_once, share) == chunk
    active = np.arange(rows) < share * rows
    deal = draw_minibatches(jax.random.key(0), active, 1, 1, at_once, share)
    assert deal.rows.shape[-1] == chunk
    assert deal.rows.size - rows < chunk


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


def test_only_a_central_critic_reads_the_global_state():
    for central in (True, False):
        learner, state, tr = collect(replace(CONFIG, central_critic=central))
        other = tr._replace(global_state=tr.global_state + 1.0)
        a, b = (prepare(learner, state, t)[1] for t in (tr, other))
        assert np.allclose(a.agents.value, b.agents.value) != central
        gradient = [gradients(learner, state, batch)["critic"] for batch in (a, b)]
        assert equal(*gradient) != central
        # What the critic saw when it was asked for values is what it is trained on.
        rows, global_state = rows_of(a)
        x = concat(rows.x, rows.embedding, global_state)
        values, _ = unroll(partial(learner.critic.apply, state.params.critic), x, rows.critic_h0, rows.first)
        np.testing.assert_allclose(values[..., 0], rows.value, atol=1e-5)


def test_the_history_of_uncontrolled_agents_is_followed_over_batches():
    """The arena leaves their seats alone, so the learner keeps what encoder and critic remember of them."""
    learner, state, tr = collect(batches=3)
    going_on = ~tr.first[0][:, None] & ~tr.team.controlled[0]
    assert going_on.any()
    assert (np.abs(state.encoder_memory)[np.asarray(going_on)] > 0).any(-1).all()
    stale = np.asarray(jax.tree.leaves(tr.start_memory[0].encoder)[0])[np.asarray(going_on)]
    assert (stale == 0).all()
    a = rows_of(prepare(learner, state, tr)[1])[0]
    forgotten = state._replace(encoder_memory=jnp.zeros_like(state.encoder_memory))
    b = rows_of(prepare(learner, forgotten, tr)[1])[0]
    rows = np.asarray(going_on).reshape(-1)
    assert (np.abs(a.embedding[0] - b.embedding[0])[rows] > 0).any(-1).all()
    np.testing.assert_array_equal(a.embedding[0][~rows], b.embedding[0][~rows])


def test_a_reflex_agent_reads_its_observation_only():
    learner, state, tr = collect(replace(CONFIG, modelling=False, network=NetworkConfig(hidden=8, history=False)))
    a = rows_of(prepare(learner, state, tr)[1])[0]
    assert a.x.shape[-1] == learner.spec.obs_size
    assert [p.shape[0] for p in jax.tree.leaves(state.params.policy.actor) if p.ndim == 2] == [
        learner.spec.obs_size,
        8,
        8,
    ]
    actor = partial(learner.policy.actor.apply, state.params.policy.actor)
    logits, _ = unroll(actor, a.x, a.actor_h0 + 7.0, a.first)
    mine = a.actor_weight > 0
    log_probs = pick(masked_log_probs(logits, a.avail), a.action)
    np.testing.assert_allclose(np.exp(log_probs - a.log_prob)[mine], 1.0, atol=1e-4)


def test_rows_are_mapped_in_chunks():
    x = {"a": jnp.arange(14.0).reshape(7, 2), "b": jnp.arange(7)}
    for chunk in (1, 3, 7, 100):
        y = map_rows(lambda r: {"sum": r["a"].sum(-1) + r["b"]}, x, chunk)
        np.testing.assert_allclose(y["sum"], x["a"].sum(-1) + x["b"])


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


@pytest.mark.parametrize(("memory", "central"), [("bptt", False), ("bptt", True), ("stored", False)])
def test_a_recurrent_team_learns_to_remember(memory, central):
    """Recall needs memory: 1.0 with it, 0.5 without. Only training through time can teach it."""
    env = Recall()
    config = PPOConfig(
        num_envs=64, epochs=4, minibatches=2, lr=3e-3, entropy=0.01, modelling=False, network=NetworkConfig(hidden=16),
        actor_memory=memory, central_critic=central,
    )  # fmt: skip
    learner = make_learner(env.spec, config)
    arena = Arena(env, team_sampler(2, 0, "all"), Roster(("us",), (learner.policy,), (False,)), Roster((), (), ()), 64)

    @jax.jit
    def step(carry, key):
        state, running = carry
        k_play, k_update = jax.random.split(key)
        params = (jax.tree.map(lambda x: x[None], learner.policy_params(state)),)
        running, tr = arena.play(params, (), running, k_play, learner.rollout_steps)
        state, _, _ = learner.update(state, (), tr, k_update, jnp.zeros(()))
        return (state, running), tr.reward.sum(0).mean()

    carry = learner.init(jax.random.key(0)), reset(arena, jax.random.key(1))
    _, returns = jax.lax.scan(step, carry, jax.random.split(jax.random.key(2), 120))
    assert returns[:5].mean() == pytest.approx(0.5, abs=0.1)
    if memory == "bptt":
        assert returns[-10:].mean() > 0.95


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_envs", 0),
        ("epochs", 0),
        ("lr", 0.0),
        ("clip", -1.0),
        ("gamma", 1.5),
        ("sequence_length", 0),
        ("decoded_teammates", 0),
    ],
)
def test_impossible_settings_are_refused(field, value):
    with pytest.raises(NahtError, match=field):
        replace(CONFIG, **{field: value})


def test_sequences_must_divide_the_rollout():
    with pytest.raises(NahtError, match="sequence_length is 7: it must divide the 20 steps"):
        PPO(Rough().spec, replace(CONFIG, sequence_length=7))
