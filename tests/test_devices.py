"""Several devices share a batch: same mathematics, clear errors."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from naht import Arena, Member, NahtError, Population, run_config, team_sampler
from naht.agents.networks import NetworkConfig
from naht.agents.scripted import Bernoulli
from naht.agents.teammate_model import ModelConfig
from naht.devices import SHARED, SPLIT, check_devices, own_key, place, spread, total
from naht.learning.normalisation import RunningStats, masked_standardise
from naht.learning.ppo import PPO, PPOConfig
from naht.rollout import Trajectory
from naht.teams.population import Roster
from naht.training.trainer import make_trainer, settled
from probes import Rough, play, reset, update

CONFIG = PPOConfig(
    num_envs=8,
    rollout_steps=12,
    epochs=2,
    minibatches=1,
    model_epochs=2,
    standardise_rewards="mean-std",
    network=NetworkConfig(hidden=8),
    model=ModelConfig(8, 4),
)


def test_two_devices_learn_what_one_does():
    """With one minibatch per epoch the order of rows does not matter: an update is the same however it is shared."""
    env = Rough()
    one, two = PPO(env.spec, CONFIG), PPO(env.spec, CONFIG, devices=2)
    theirs = Population([Member("coin", Bernoulli(0.5))])
    ours = Roster(("ours",), (one.policy,), (False,))
    arena = Arena(env, team_sampler(3, 1), ours, theirs.roster, 8)
    state = one.init(jax.random.key(0))
    params = (jax.tree.map(lambda leaf: leaf[None], one.policy_params(state)),)
    _, tr = play(arena, params, theirs.params, reset(arena, jax.random.key(1)), jax.random.key(2), 12)
    by_time: Trajectory = jax.tree.map(lambda _: jax.sharding.PartitionSpec(None, *SPLIT), tr)
    layout = by_time._replace(start_memory=jax.tree.map(lambda _: SPLIT, tr.start_memory))
    shared_update = spread(two.update, 2, (two.layout, SPLIT, layout, SHARED, SHARED), (two.layout, SPLIT, SHARED))
    key, progress = jax.random.key(3), jnp.zeros(())
    expected, _, log = update(one, state, (), tr, key, progress)
    got, _, shared_log = jax.jit(shared_update)(place(state, 2, two.layout), (), tr, key, progress)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)
    for name in log:
        np.testing.assert_allclose(log[name], shared_log[name], rtol=2e-3, atol=1e-5, err_msg=name)


def test_statistics_are_those_of_all_devices():
    x, weight = np.random.default_rng(0).normal(3, 2, (2, 8, 5)).astype(np.float32)
    weight = (weight > 3).astype(np.float32)

    def both(x, weight):
        return RunningStats.start().update(x, 2), masked_standardise(x, weight, 2)

    stats, scaled = jax.jit(spread(both, 2, SPLIT, (SHARED, SPLIT)))(x, weight)
    assert float(stats.mean) == pytest.approx(x.mean(), rel=1e-5)
    assert float(stats.variance) == pytest.approx(x.var(), rel=1e-5)
    np.testing.assert_allclose(scaled, masked_standardise(x, weight), atol=1e-5)


def test_devices_draw_different_random_numbers():
    draw = spread(lambda key: jax.random.uniform(own_key(key, 2), (1,)), 2, SHARED, SPLIT)
    a, b = draw(jax.random.key(0))
    assert a != b
    assert float(total(jnp.ones(()), 1)) == 1.0
    assert float(spread(partial(total, devices=2), 2, SHARED, SHARED)(jnp.ones(()))) == 2.0


def test_impossible_numbers_of_devices():
    with pytest.raises(NahtError, match=r"devices is 64, but JAX sees \d+; on a CPU, set .*NAHT_DEVICES=64"):
        check_devices(64)
    with pytest.raises(NahtError, match="devices is 0: it must be at least 1"):
        check_devices(0)
    config = run_config("bit-game", "poam")
    odd = replace(config, algorithm=replace(config.algorithm, num_envs=5), devices=2)
    with pytest.raises(NahtError, match="num_envs is 5: 2 devices can't share it evenly"):
        make_trainer(odd)
    # Left open, the number of devices is one that fits.
    assert settled(replace(odd, devices=None)).devices == 1
    assert settled(replace(config, devices=None)).devices == 2
