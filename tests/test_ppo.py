"""The PPO learner: its masks by poison, its memory by comparison, its minibatches."""

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
from naht.learning.minibatches import chunked_gradient, draw_minibatches, filled, map_rows
from naht.learning.optimisation import as_vector
from naht.learning.ppo import PPO, PPOConfig
from naht.learning.rows import Modelled, concat, unroll
from naht.teams.population import Roster
from naht.teams.sampler import Team, describe
from ppo_batches import CONFIG, collect, equal, rows_of
from probes import Recall, Rough, prepare, reset, update


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


@pytest.mark.parametrize(("memory", "central"), [("bptt", False), ("bptt", True), ("stored", False)])
def test_a_recurrent_team_learns_to_remember(memory, central):
    """Recall needs memory: 1.0 with it, 0.5 without. Only training through time can teach it."""
    env = Recall()
    config = PPOConfig(
        num_envs=64, epochs=4, minibatches=2, lr=3e-3, entropy=0.01, modelling=False, network=NetworkConfig(hidden=16),
        actor_memory=memory, central_critic=central,
    )  # fmt: skip
    learner = config.learner(env.spec)
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
