"""Small worlds with known answers, small runs, and the parts of training, compiled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from naht import Arena, run_config, setting
from naht.agents.networks import NetworkConfig
from naht.agents.teammate_model import ModelConfig
from naht.envs.base import Array, EnvSpec, TimeStep, opening
from naht.learning.ppo import PPO, PPOConfig
from naht.storage import read_arrays
from naht.training.config import RunConfig

# Equal arenas and learners share compiled code this way; a bound method would be compiled in every test.
reset = jax.jit(Arena.reset, static_argnums=0)
play = jax.jit(Arena.play, static_argnums=(0, 5))
prepare = jax.jit(PPO.prepare, static_argnums=0)
update = jax.jit(PPO.update, static_argnums=0)


def small(algorithm="poam", steps=400, **changes) -> RunConfig:
    """A run of 20 quick updates with 4 tests, on two devices."""
    config = run_config("bit-game", algorithm, **changes)
    learner = replace(
        config.algorithm,
        num_envs=4,
        rollout_steps=5,
        epochs=1,
        network=NetworkConfig(hidden=8),
        model=ModelConfig(8, 4),
    )
    return replace(config, algorithm=learner, steps=steps, test_every=100, test_episodes=16, devices=2)


def shrunk(config: RunConfig) -> RunConfig:
    """The settings of a run with small networks, batches and tests: three quick updates, a test after each."""
    sizes: dict[str, Any] = {"num_envs": 4, "network": replace(config.algorithm.network, hidden=8)}
    if isinstance(config.algorithm, PPOConfig):
        sizes["model"] = ModelConfig(8, 4)
    else:
        sizes |= {"capacity": 16, "batch": 4, "learning_starts": 4, "mixing_width": 4, "mixing_hidden": 8}
    algorithm = replace(config.algorithm, **sizes)
    per_update = algorithm.num_envs * (algorithm.rollout_steps or config.task.spec.horizon)
    few = {"test_episodes": 16, "final_episodes": 16, "devices": 2}
    return replace(config, algorithm=algorithm, steps=3 * per_update, test_every=per_update, **few)


FILES = ("metrics.jsonl", "best.safetensors", "last.safetensors", "best.card.json", "last.card.json", "config.json")


def fingerprint(folder: Path) -> dict[str, bytes]:
    """Everything that must be the same, bit for bit: results, and the arrays of the last checkpoint."""
    contents = {name: (folder / name).read_bytes() for name in FILES}
    newest = sorted((folder / "checkpoints").glob("[0-9]*"))[-1]
    arrays, _ = read_arrays(newest / "state.safetensors")
    return contents | {name: array.tobytes() for name, array in arrays.items()}


class Stop(Exception):
    pass


def stop_at(step):
    def report(event):
        if event.step >= step and event.message is None:
            raise Stop

    return report


def snapshot(folder: Path) -> dict[str, bytes]:
    """All files but leases."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".lease-")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class RoughState(NamedTuple):
    time: Array  # []
    ends: Array  # [] when this episode terminates
    key: Array
    dead: Array  # [M]


@setting
@dataclass(frozen=True)
class Rough:
    """Everything a hard task does: random lengths, early ends and time-outs, changing masks, dying agents.

    Noise observations; the reward is the sum of actions over living agents, so it is easy to learn, too.
    """

    num_agents: int = 3
    horizon: int = 9

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("rough", self.num_agents, obs_size=4, state_size=2, num_actions=3, horizon=self.horizon)

    def _view(self, s: RoughState) -> TimeStep:
        m = self.num_agents
        k_obs, k_mask = jax.random.split(jax.random.fold_in(s.key, s.time))
        avail = jax.random.bernoulli(k_mask, 0.6, (m, 3)).at[:, 1].set(True)
        avail = jnp.where(s.dead[:, None], jnp.array([True, False, False]), avail)
        obs = jax.random.normal(k_obs, (m, 4)) * ~s.dead[:, None]
        state = jnp.stack([s.time / self.horizon, s.dead.mean()]).astype(jnp.float32)
        return opening(obs, state, avail, {"deaths": s.dead.sum().astype(jnp.float32)})._replace(alive=~s.dead)

    def reset(self, key: Array) -> tuple[RoughState, TimeStep]:
        k_end, key = jax.random.split(key)
        ends = jax.random.randint(k_end, (), 2, 2 * self.horizon)
        state = RoughState(jnp.zeros((), jnp.int32), ends, key, jnp.zeros(self.num_agents, bool))
        return state, self._view(state)

    def step(self, key: Array, s: RoughState, actions: Array) -> tuple[RoughState, TimeStep]:
        reward = (actions * ~s.dead).sum().astype(jnp.float32)
        dead = s.dead | jax.random.bernoulli(key, 0.1, s.dead.shape).at[0].set(False)
        s = RoughState(s.time + 1, s.ends, s.key, dead)
        terminated = s.time >= s.ends
        ts = self._view(s)._replace(reward=reward, terminated=terminated)
        return s, ts._replace(truncated=(s.time >= self.horizon) & ~terminated)


@setting
@dataclass(frozen=True)
class Mortal:
    """Agent i dies after step 2 (i + 1), the last one never; the team earns 1 in every step, whatever anybody does.

    With t steps to go, the value of every agent, dead or alive, is (1 - gamma^t) / (1 - gamma). The dead see zeros, as
    in SMAC: only their memory tells them what time it is.
    """

    num_agents: int = 3
    horizon: int = 6

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("mortal", self.num_agents, obs_size=2, state_size=1, num_actions=2, horizon=self.horizon)

    def _view(self, time: Array) -> TimeStep:
        alive = (time < 2 * (jnp.arange(self.num_agents) + 1)).at[-1].set(True)
        clock = (time / self.horizon).astype(jnp.float32)
        obs = jnp.stack([jnp.ones(self.num_agents), jnp.full(self.num_agents, clock)], axis=1) * alive[:, None]
        avail = jnp.stack([jnp.ones_like(alive), alive], axis=1)
        return opening(obs, clock[None], avail)._replace(alive=alive)

    def reset(self, key: Array) -> tuple[Array, TimeStep]:
        del key
        return jnp.zeros((), jnp.int32), self._view(jnp.zeros((), jnp.int32))

    def step(self, key: Array, time: Array, actions: Array) -> tuple[Array, TimeStep]:
        del key, actions
        time = time + 1
        return time, self._view(time)._replace(reward=jnp.ones(()), terminated=time >= self.horizon)


@setting
@dataclass(frozen=True)
class Recall:
    """A memory test: a bit is shown at the first step only; every agent earns 1/M for naming it at the last.

    A policy without memory earns 0.5 on average, one with memory 1.
    """

    num_agents: int = 2
    horizon: int = 4

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("recall", self.num_agents, obs_size=2, state_size=1, num_actions=2, horizon=self.horizon)

    def _view(self, time: Array, bit: Array) -> TimeStep:
        shown = jnp.where(time == 0, 2.0 * bit - 1.0, 0.0)
        obs = jnp.broadcast_to(jnp.stack([shown, time / self.horizon]), (self.num_agents, 2)).astype(jnp.float32)
        return opening(obs, shown[None].astype(jnp.float32), jnp.ones((self.num_agents, 2), bool))

    def reset(self, key: Array) -> tuple[tuple[Array, Array], TimeStep]:
        state = jnp.zeros((), jnp.int32), jax.random.bernoulli(key).astype(jnp.int32)
        return state, self._view(*state)

    def step(self, key: Array, state: tuple[Array, Array], actions: Array) -> tuple[tuple[Array, Array], TimeStep]:
        del key
        time, bit = state[0] + 1, state[1]
        last = time >= self.horizon
        reward = jnp.where(last, (actions == bit).mean(), 0.0).astype(jnp.float32)
        return (time, bit), self._view(time, bit)._replace(reward=reward, truncated=last)


@setting
@dataclass(frozen=True)
class TwoStep:
    """The two-step game of the QMIX paper: agent 0 chooses one of two matrix games, both then play it.

    The first game always pays 7; the second pays 0, 1, 1 or 8, which no sum of the agents' values can express: a team
    that adds them up settles for 7, a team that mixes them monotonically finds 8.
    """

    num_agents: int = 2

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("two-step", 2, obs_size=3, state_size=3, num_actions=2, horizon=2)

    def _view(self, place: Array) -> TimeStep:
        where = jax.nn.one_hot(place, 3)
        return opening(jnp.broadcast_to(where, (2, 3)), where, jnp.ones((2, 2), bool))

    def reset(self, key: Array) -> tuple[Array, TimeStep]:
        del key
        return jnp.zeros((), jnp.int32), self._view(jnp.zeros((), jnp.int32))

    def step(self, key: Array, place: Array, actions: Array) -> tuple[Array, TimeStep]:
        del key
        second = jnp.array([[0.0, 1.0], [1.0, 8.0]])[actions[0], actions[1]]
        reward = jnp.where(place == 0, 0.0, jnp.where(place == 1, 7.0, second))
        new = jnp.where(place == 0, 1 + actions[0], place)
        return new, self._view(new)._replace(reward=reward, terminated=place > 0)
