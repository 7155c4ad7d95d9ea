"""Environments keep their contract, and the check notices those that don't."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from naht import NahtError, check_environment, make_env
from naht.envs.bit_game import BitGame
from naht.tasks import TASKS
from probes import Recall, Rough

LARGE = ("8v9", "10v11")
IN_OTHER_SIZES = ("5v6", "8m", *LARGE)
"""Maps whose plain Python is that of 3m and 3s5z, with other numbers of units."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.runs_much] * (name in LARGE)) for name in TASKS]
)
def test_every_task_conforms(name):
    check_environment(make_env(name), plain=name not in IN_OTHER_SIZES)


@pytest.mark.parametrize("env", [BitGame(2), BitGame(5, horizon=3), Rough(), Recall()], ids=str)
def test_other_sizes_and_probes_conform(env):
    check_environment(env)


@dataclass(frozen=True)
class Divided(BitGame):
    """Compiles its own step, which is another one in plain Python."""

    @partial(jax.jit, static_argnums=0)
    def step(self, key, state, actions):
        state, ts = super().step(key, state, actions)
        return state, ts._replace(reward=ts.reward + isinstance(ts.reward, jax.core.Tracer))


def test_what_is_compiled_is_as_written():
    with pytest.raises(NahtError, match="step differs under jit"):
        check_environment(Divided())


@dataclass(frozen=True)
class Broken(BitGame):
    """The bit game with one promise broken."""

    how: str = ""

    def step(self, key, state, actions):
        state, ts = super().step(key, state, actions)
        broken = {
            "shape": ts._replace(obs=ts.obs[:, :-1]),
            "dtype": ts._replace(reward=ts.reward.astype(jnp.float16)),
            "finite": ts._replace(obs=ts.obs / 0.0),
            "mask": ts._replace(avail=ts.avail.at[1].set(False)),
            "endless": ts._replace(truncated=jnp.zeros((), bool)),
            "metric": ts._replace(metrics={"won": jnp.zeros(())}),
            # In one of about 30 episodes, so that the four that are looked at closely seldom show it.
            "rarely finite": ts._replace(reward=jnp.where(self.rare(key), jnp.nan, ts.reward)),
            "rarely masked": ts._replace(avail=ts.avail & ~self.rare(key)),
        }
        return state, broken.get(self.how, ts)

    def rare(self, key):
        return jax.random.uniform(key) < 1 / 30 / self.horizon

    def reset(self, key):
        state, ts = super().reset(key)
        return state, ts._replace(obs=ts.obs / 0.0) if self.how == "first" else ts


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("shape", "obs after step 0 has shape"),
        ("dtype", "reward after step 0 is float16"),
        ("finite", "not finite"),
        ("mask", "no allowed action"),
        ("endless", "no episode end within the horizon"),
        ("metric", "metrics differ between reset and step 0: won"),
        ("rarely finite", r"a number is not finite at step \d+ of episode \d+ \(\d.\d% of 256 episodes\)"),
        ("rarely masked", r"some agent has no allowed action at step \d+ of episode \d+ \(\d.\d% of 256 episodes\)"),
        ("first", "obs has numbers that are not finite after a reset"),
    ],
)
def test_the_check_names_what_is_broken(how, message):
    with pytest.raises(NahtError, match=message):
        check_environment(Broken(how=how))


def test_the_check_notices_hidden_state():
    calls = []

    @dataclass(frozen=True)
    class Moody(BitGame):
        def reset(self, key):
            calls.append(1)
            state, ts = super().reset(key)
            return state, ts._replace(obs=ts.obs + len(calls))  # differs between tracings

    with pytest.raises(NahtError, match="reset differs"):
        check_environment(Moody())


def test_bit_game_by_hand():
    env = BitGame()
    state, ts = env.reset(jax.random.key(0))
    assert ts.obs.tolist() == [[1, 0, 0, -1, -1, -1], [0, 1, 0, -1, -1, -1], [0, 0, 1, -1, -1, -1]]
    for actions, reward in [([0, 0, 0], 0), ([0, 1, 0], 3), ([1, 1, 0], 0), ([1, 1, 1], 0), ([0, 0, 1], 3)]:
        state, ts = env.step(jax.random.key(0), state, jnp.array(actions))
        assert float(ts.reward) == reward
        assert ts.obs[2].tolist() == [0, 0, 1, *actions]
        assert not ts.truncated
    for _ in range(20):
        state, ts = env.step(jax.random.key(0), state, jnp.zeros(3, int))
    assert ts.truncated
    assert not ts.terminated


@pytest.mark.parametrize("settings", [{"num_agents": 1}, {"horizon": 0}, {"sides": 2}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(NahtError):
        make_env("bit-game", **settings)


def test_unknown_task_suggests_the_nearest():
    with pytest.raises(NahtError, match="did you mean bit-game"):
        make_env("bitgame")


@pytest.mark.parametrize("m", [2, 3, 5, 8])
def test_closed_forms_come_out_of_the_game(m):
    """Win chances of M Bernoulli(1/M) agents and of one agent that never (always) says 1, by plain simulation."""
    env, n = BitGame(m), 100_000
    state, _ = env.reset(jax.random.key(0))
    bits = jax.random.bernoulli(jax.random.key(m), 1 / m, (n, m)).astype(jnp.int32)
    play = jax.jit(jax.vmap(lambda a: env.step(jax.random.key(0), state, a)[1].reward))
    sure = (1 - 1 / m) ** (m - 1)
    cases = {
        "all Bernoulli": (bits, sure),
        "one always says 1": (bits.at[:, 0].set(1), sure),
        "one never says 1": (bits.at[:, 0].set(0), sure),
        "two coordinated": (bits.at[:, 0].set(1).at[:, 1].set(0), (1 - 1 / m) ** (m - 2)),
    }
    for name, (actions, chance) in cases.items():
        wins = np.asarray(play(actions)) / m
        error = 4 * np.sqrt(chance * (1 - chance) / n) + 1e-9
        assert abs(wins.mean() - chance) < error, name
    if m == 3:
        assert sure == pytest.approx(4 / 9)
        assert cases["two coordinated"][1] == pytest.approx(2 / 3)
