"""One reusable check that any environment, ours or a user's, can be put through."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from naht.envs.base import Array, Environment, EnvSpec, HostEnvironment, JaxEnvironment, PyTree, TimeStep
from naht.envs.host import open_worlds, stacked
from naht.errors import NahtError


def _expect(spec: EnvSpec, condition: bool, message: str) -> None:
    if not condition:
        raise NahtError(f"environment '{spec.name}' does not conform: {message}")


def _check_layout(spec: EnvSpec, ts: TimeStep, where: str) -> None:
    expected = {
        "obs": ((spec.num_agents, spec.obs_size), np.float32),
        "global_state": ((spec.state_size,), np.float32),
        "avail": ((spec.num_agents, spec.num_actions), np.bool_),
        "alive": ((spec.num_agents,), np.bool_),
        "reward": ((), np.float32),
        "terminated": ((), np.bool_),
        "truncated": ((), np.bool_),
    }
    for name, (shape, dtype) in expected.items():
        leaf = getattr(ts, name)
        _expect(spec, leaf.shape == shape, f"{name} after {where} has shape {leaf.shape}, the spec says {shape}")
        _expect(spec, leaf.dtype == dtype, f"{name} after {where} is {leaf.dtype}, expected {np.dtype(dtype)}")
    for name, leaf in ts.metrics.items():
        good = leaf.shape == () and leaf.dtype == np.float32
        _expect(spec, good, f"metric '{name}' after {where} is {leaf.dtype}{leaf.shape}, expected a float32 scalar")


def _same(a: PyTree, b: PyTree, tolerance: float = 0.0) -> bool:
    """Equal structure and values. Typed PRNG keys inside a state are compared by their data."""

    def raw(x: Array) -> np.ndarray:
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(x) if is_key else x)

    (left, left_structure), (right, right_structure) = jax.tree.flatten(a), jax.tree.flatten(b)
    if str(left_structure) != str(right_structure):
        return False
    pairs = zip(left, right, strict=True)
    return all(x.dtype == y.dtype and np.allclose(raw(x), raw(y), rtol=tolerance, atol=tolerance) for x, y in pairs)


def _as_written(env: JaxEnvironment, name: str) -> Callable[..., Any]:
    """A method as plain Python, also of an environment that compiles it itself."""
    compiled: Any = getattr(type(env), name, None)
    return partial(compiled.__wrapped__, env) if hasattr(compiled, "lower") else getattr(env, name)


def random_actions(key: Array, avail: Array) -> Array:
    """Uniform over the allowed actions. avail [..., A] bool -> actions [...] int32."""
    return jax.random.categorical(key, jnp.where(avail, 0.0, -jnp.inf)).astype(jnp.int32)


def _finite(ts: TimeStep) -> dict[str, bool]:
    """By name: are all numbers of a time step finite?"""
    numbers = {"obs": ts.obs, "global_state": ts.global_state, "reward": ts.reward}
    numbers |= {f"metric '{name}'": value for name, value in ts.metrics.items()}
    return {name: bool(np.isfinite(x).all()) for name, x in numbers.items()}


STRESS_STEPS = 2000
"""Steps that many worlds are played for, at most."""


def _stress(env: JaxEnvironment, seed: int, worlds: int) -> None:
    """Many episodes at once, with random actions and stubborn ones: what goes wrong rarely is found here."""
    spec = env.spec

    def play(key: Array) -> Array:
        k_reset, k_play = jax.random.split(key)
        state, ts = env.reset(k_reset)
        habit = jax.random.randint(key, (), 0, 3)  # random actions, always the first allowed one, always the last

        def step(carry: tuple[PyTree, TimeStep, Array], key: Array) -> tuple[PyTree, Array]:
            state, ts, over = carry
            k_act, k_step = jax.random.split(key)
            last = spec.num_actions - 1 - ts.avail[:, ::-1].argmax(-1)
            choices = jnp.stack([random_actions(k_act, ts.avail), ts.avail.argmax(-1), last])
            new_state, new = env.step(k_step, state, choices[habit].astype(jnp.int32))
            finite = jnp.stack([jnp.isfinite(x).all() for x in (new.obs, new.global_state, new.reward)]).all()
            # What comes after the end of an episode is nobody's business.
            bad = jnp.stack([~finite, ~new.avail.any(-1).all()]) & ~over
            return (new_state, new, over | new.terminated | new.truncated), bad

        keys = jax.random.split(k_play, min(spec.horizon, STRESS_STEPS))
        return jax.lax.scan(step, (state, ts, jnp.zeros((), bool)), keys)[1]

    bad = np.asarray(jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(seed), worlds)))  # [worlds, T, 2]
    for kind, what in enumerate(("a number is not finite", "some agent has no allowed action")):
        if bad[..., kind].any():
            world, t = np.argwhere(bad[..., kind])[0]
            share = bad[..., kind].any(1).mean()
            _expect(spec, False, f"{what} at step {t} of episode {world} ({share:.1%} of {worlds} episodes)")


def check_environment(
    env: Environment, seed: int = 0, episodes: int = 4, worlds: int = 256, plain: bool = True
) -> None:
    """Play random episodes and raise `NahtError` at the first broken promise.

    Checked: shapes and dtypes against the spec, states of constant layout, metrics of constant names, finite numbers,
    masks that leave every agent an action, an end by the horizon, determinism for a key, and that plain, jitted and
    vmapped calls agree. Then `worlds` more episodes are played for numbers and masks that go wrong rarely. Without
    `plain`, nothing is called in plain Python: there, JAX compiles a program for every operation of every size.

    Of an environment whose worlds are outside of JAX, the same as far as it applies: `episodes` in one world, each
    twice from the same seed.
    """
    spec = env.spec
    _expect(spec, spec.num_agents >= 1 and spec.num_actions >= 1 and spec.horizon >= 1, f"impossible sizes in {spec}")
    _expect(spec, hash(env) == hash(env) and env == env, "the environment must be hashable (a frozen dataclass)")
    if isinstance(env, HostEnvironment):
        _check_hosted(env, seed, episodes)
    else:
        _check_jax(env, seed, episodes, worlds, plain)


def _over(shown: TimeStep) -> bool:
    return bool(np.any(shown.terminated | shown.truncated))


def _check_hosted(env: HostEnvironment, seed: int, episodes: int) -> None:
    spec, worlds = env.spec, open_worlds(env, 1)
    for episode in range(episodes):
        played = []
        for _ in range(2):
            rng = np.random.default_rng([seed, episode])
            shown = [worlds.reset(np.ones(1, bool), np.array([seed + episode], np.uint32))]
            _expect(spec, float(shown[0].reward[0]) == 0.0, f"the reward after a reset is {shown[0].reward[0]}, not 0")
            _expect(spec, not _over(shown[-1]), "an episode is over right after its reset")
            while not _over(shown[-1]) and len(shown) <= spec.horizon:
                chances = np.where(shown[-1].avail, rng.random(shown[-1].avail.shape), -1.0)
                shown.append(worlds.step(chances.argmax(-1).astype(np.int32)))
                other = {*shown[0].metrics} ^ {*shown[-1].metrics}
                _expect(spec, not other, f"metrics differ between reset and a step: {', '.join(sorted(other))}")
            _expect(spec, _over(shown[-1]), f"no episode end within the horizon of {spec.horizon} steps")
            played.append(stacked(shown))
        one, other_one = played
        same = len(one.reward) == len(other_one.reward) and _same(one, other_one)
        _expect(spec, same, "the same seed and the same actions give another episode")


def _check_jax(env: JaxEnvironment, seed: int, episodes: int, worlds: int, plain: bool) -> None:
    spec = env.spec
    reset, step, act = jax.jit(env.reset), jax.jit(env.step), jax.jit(random_actions)
    plain_reset, plain_step = (_as_written(env, name) for name in ("reset", "step"))
    keys = jax.random.split(jax.random.key(seed), episodes)
    batch_state, batch_ts = jax.jit(jax.vmap(env.reset))(keys)
    batch_step = jax.jit(jax.vmap(env.step))

    for episode, key in enumerate(keys):
        state, ts = reset(key)
        _check_layout(spec, ts, "reset")
        wrong = [name for name, fine in _finite(ts).items() if not fine]
        _expect(spec, not wrong, f"{', '.join(wrong)} has numbers that are not finite after a reset")
        names = set(ts.metrics)
        _expect(spec, _same((state, ts), reset(key)), "reset with the same key gives another state")
        if plain:
            _expect(spec, _same((state, ts), plain_reset(key), 1e-5), "reset differs between jit and plain Python")
        mine = jax.tree.map(lambda x, i=episode: x[i], (batch_state, batch_ts))
        _expect(spec, _same((state, ts), mine, 1e-5), "reset differs between jit and vmap")
        _expect(spec, float(ts.reward) == 0.0, f"the reward after a reset is {float(ts.reward)}, expected 0")
        _expect(spec, not (ts.terminated or ts.truncated), "an episode is over right after its reset")

        for t in range(spec.horizon):
            _expect(spec, bool(np.asarray(ts.avail).any(-1).all()), f"at step {t} some agent has no allowed action")
            key, act_key, step_key = jax.random.split(key, 3)
            actions = act(act_key, ts.avail)
            before, (state, ts) = state, step(step_key, state, actions)
            where = f"step {t}"
            _check_layout(spec, ts, where)
            layouts = [[(x.shape, x.dtype) for x in jax.tree.leaves(s)] for s in (before, state)]
            _expect(spec, layouts[0] == layouts[1], f"the state changes its layout at {where}")
            other = names.symmetric_difference(ts.metrics)
            _expect(spec, not other, f"metrics differ between reset and {where}: {', '.join(sorted(other))}")
            wrong = [name for name, fine in _finite(ts).items() if not fine]
            _expect(spec, not wrong, f"{', '.join(wrong)} has numbers that are not finite at {where}")
            if t == 0:
                _expect(spec, _same((state, ts), step(step_key, before, actions)), "step is not determined by its key")
                if plain:
                    written = plain_step(step_key, before, actions)
                    _expect(spec, _same((state, ts), written, 1e-5), "step differs under jit")
                repeated = jax.tree.map(lambda x: jnp.stack([x, x]), (step_key, before, actions))
                twin = jax.tree.map(lambda x: x[1], batch_step(*repeated))
                _expect(spec, _same((state, ts), twin, 1e-5), "step differs under vmap")
            if ts.terminated or ts.truncated:
                break
        _expect(spec, bool(ts.terminated | ts.truncated), f"no episode end within the horizon of {spec.horizon} steps")
    _stress(env, seed, worlds)
