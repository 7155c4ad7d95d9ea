"""The building blocks of learning against independent references: GRU, returns, standardisation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naht.agents.networks import NetworkConfig, RecurrentNetwork, gru, init_params
from naht.learning.normalisation import RunningStats, masked_mean, masked_standardise
from naht.learning.optimisation import as_vector, clipped_adam, start
from naht.learning.returns import td_lambda


def plain_gru(x, h0, first, w, b):
    """The textbook cell in a scan, differentiated by JAX."""
    size = h0.shape[-1]

    def step(h, inputs):
        x_t, first_t = inputs
        h = jnp.where(first_t[:, None], 0.0, h)
        xr, xz, xn = jnp.split(x_t, 3, -1)
        wr, wz, wn = w[:, :size], w[:, size : 2 * size], w[:, 2 * size :]
        r, z = jax.nn.sigmoid(xr + h @ wr), jax.nn.sigmoid(xz + h @ wz)
        n = jnp.tanh(xn + r * (h @ wn + b))
        h = (1 - z) * n + z * h
        return h, h

    return jax.lax.scan(step, h0, (x, first))[1]


@pytest.mark.parametrize(("steps", "rows", "size"), [(1, 3, 4), (7, 5, 8), (25, 2, 16)])
def test_gru_agrees_with_plain_autodiff(steps, rows, size):
    keys = jax.random.split(jax.random.key(steps), 6)
    x, h0 = jax.random.normal(keys[0], (steps, rows, 3 * size)), jax.random.normal(keys[1], (rows, size))
    first = jax.random.bernoulli(keys[2], 0.25, (steps, rows))
    w, b = jax.random.normal(keys[3], (size, 3 * size)) * 0.4, jax.random.normal(keys[4], (size,))
    probe = jax.random.normal(keys[5], (steps, rows, size))

    ours, theirs = (jax.jit(f)(x, h0, first, w, b) for f in (gru, plain_gru))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    with jax.enable_x64(True):
        double = [jnp.asarray(a, jnp.float64) for a in (x, h0, w, b)]

        def loss(f):
            return lambda x, h0, w, b: (f(x, h0, first, w, b) ** 2 * probe).sum()

        ours, theirs = (jax.jit(jax.grad(loss(f), argnums=(0, 1, 2, 3)))(*double) for f in (gru, plain_gru))
    for a, b_ in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b_, atol=1e-5, rtol=1e-5)


def test_gru_forgets_at_the_start_of_an_episode():
    x, w, b = jax.random.normal(jax.random.key(0), (4, 1, 12)), jnp.ones((4, 12)), jnp.zeros(4)
    first = jnp.array([[False], [False], [True], [False]])
    whole = gru(x, jnp.ones((1, 4)), first, w, b)
    fresh = gru(x[2:], jnp.zeros((1, 4)), jnp.zeros((2, 1), bool), w, b)
    np.testing.assert_array_equal(whole[2:], fresh)


def brute_force(reward, next_value, terminated, cut, gamma, lam):
    """The definition: a weighted sum of n-step returns, for one sequence."""
    steps = len(reward)
    targets = np.zeros(steps)
    for t in range(steps):
        end = t
        while not cut[end] and not terminated[end]:
            end += 1
        total, weight_left = 0.0, 1.0
        for k in range(t, end + 1):
            n_step = sum(gamma ** (i - t) * reward[i] for i in range(t, k + 1))
            n_step += gamma ** (k + 1 - t) * next_value[k] * (not terminated[k])
            weight = weight_left if k == end else weight_left * (1 - lam)
            total += weight * n_step
            weight_left *= lam
        targets[t] = total
    return targets


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**31 - 1))
def test_td_lambda_is_the_weighted_sum_of_n_step_returns(steps, gamma, lam, seed):
    rng = np.random.default_rng(seed)
    reward, next_value = rng.normal(size=steps), rng.normal(size=steps)
    terminated, truncated = rng.random(steps) < 0.2, rng.random(steps) < 0.2
    cut = terminated | truncated
    cut[-1] = True
    discount = gamma * ~terminated
    got = jax.jit(td_lambda)(*(x.astype(np.float32) for x in (reward, next_value, discount)), cut, lam)
    np.testing.assert_allclose(got, brute_force(reward, next_value, terminated, cut, gamma, lam), atol=1e-4)


def test_td_lambda_by_hand():
    """Two steps, gamma 1/2, lambda 1/2, then the batch ends: G1 = 4 + 8/2 = 8, G0 = 2 + (6 + 8) / 2 / 2 = 5.5."""
    got = td_lambda(jnp.array([2.0, 4.0]), jnp.array([6.0, 8.0]), jnp.array([0.5, 0.5]), jnp.array([False, True]), 0.5)
    assert got.tolist() == [5.5, 8.0]


def test_running_stats_equal_numpy_on_everything_seen():
    batches = [np.random.default_rng(i).normal(3, 2, size=(4, i + 1)) for i in range(5)]
    stats = RunningStats.start()
    for batch in batches:
        stats = stats.update(jnp.array(batch))
    everything = np.concatenate([b.ravel() for b in batches])
    np.testing.assert_allclose([stats.mean, stats.variance], [everything.mean(), everything.var()], rtol=1e-5)
    np.testing.assert_allclose(
        stats.standardise(jnp.array(everything)), (everything - everything.mean()) / everything.std(), atol=1e-5
    )
    np.testing.assert_allclose(
        stats.standardise(jnp.array(everything), subtract_mean=False), everything / everything.std(), atol=1e-5
    )


def test_masked_statistics_ignore_what_has_no_weight():
    x = jnp.array([1.0, jnp.nan, 3.0, jnp.inf])
    weight = jnp.array([1.0, 0.0, 1.0, 0.0])
    assert float(masked_mean(x, weight)) == 2.0
    np.testing.assert_allclose(masked_standardise(x, weight)[jnp.array([0, 2])], [-1, 1], atol=1e-5)
    assert float(masked_mean(x, jnp.zeros(4))) == 0.0


def test_weights_are_orthogonal_and_decided_by_the_key():
    network, first = RecurrentNetwork(NetworkConfig(hidden=8), 3, output_scale=0.5), jnp.zeros((1, 1), bool)

    def draw(seed):
        return init_params(network, jax.random.key(seed), jnp.zeros((1, 1, 5)), jnp.zeros((1, 8)), first)["params"]

    params, again, other = draw(0), draw(0), draw(1)
    wide, square, gates = params["Dense_0"]["kernel"], params["Dense_1"]["kernel"], params["GRU_0"]["kernel"]
    np.testing.assert_allclose(wide @ wide.T, 2 * np.eye(5), atol=1e-5)
    np.testing.assert_allclose(square.T @ square, 2 * np.eye(8), atol=1e-5)
    for gate in np.split(np.asarray(gates), 3, axis=1):
        np.testing.assert_allclose(gate.T @ gate, np.eye(8), atol=1e-5)
    out = params["Dense_2"]["kernel"]
    np.testing.assert_allclose(out.T @ out, 0.25 * np.eye(3), atol=1e-5)
    assert all(not leaf.any() for path, leaf in jax.tree.leaves_with_path(params) if "bias" in str(path))
    assert jax.tree.all(jax.tree.map(np.array_equal, params, again))
    assert not np.array_equal(square, other["Dense_1"]["kernel"])
    assert not np.array_equal(square, gates[:, :8])
    signs = np.array([np.sign(draw(seed)["Dense_1"]["kernel"][0, 0]) for seed in range(40)])
    assert 8 <= (signs > 0).sum() <= 32  # QR alone would favour one sign


def test_an_optimisers_state_at_the_start():
    params = {"a": jnp.ones((2, 3)), "b": jnp.ones(4)}
    ours, optax_s = start(clipped_adam(1.0), params), clipped_adam(1.0).init(as_vector(params))
    assert jax.tree.structure(ours) == jax.tree.structure(optax_s)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(optax_s), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
