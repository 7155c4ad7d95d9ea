"""Your own task: write an environment, check it, train a NAHT team on it, evaluate, act.

python examples/own_environment.py
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp

import naht
from naht.envs.base import opening


@naht.setting
@dataclass(frozen=True)
class Majority:
    """Everybody sees the same noisy sign; the team earns 1 when all agents agree on the true one."""

    num_agents: int = 4
    horizon: int = 10

    @property
    def spec(self) -> naht.EnvSpec:
        return naht.EnvSpec("majority", self.num_agents, obs_size=1, state_size=1, num_actions=2, horizon=self.horizon)

    def _show(self, key: jax.Array, sign: jax.Array) -> naht.TimeStep:
        obs = sign + jax.random.normal(key, (self.num_agents, 1))
        return opening(obs, sign[None], jnp.ones((self.num_agents, 2), bool))

    def reset(self, key: jax.Array) -> tuple[tuple[jax.Array, jax.Array], naht.TimeStep]:
        k_sign, k_obs = jax.random.split(key)
        sign = jnp.where(jax.random.bernoulli(k_sign), 1.0, -1.0)
        return (jnp.zeros((), jnp.int32), sign), self._show(k_obs, sign)

    def step(
        self, key: jax.Array, state: tuple[jax.Array, jax.Array], actions: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], naht.TimeStep]:
        time, sign = state[0] + 1, state[1]
        right = (actions == (sign > 0)).all().astype(jnp.float32)
        return (time, sign), self._show(key, sign)._replace(reward=right, truncated=time >= self.horizon)


@naht.setting
@dataclass(frozen=True)
class FollowsItsEyes:
    """A teammate of our own: a policy is `init`, `initial_memory` and `act`."""

    def init(self, key: jax.Array) -> tuple[()]:
        del key
        return ()

    def initial_memory(self, batch: tuple[int, ...]) -> tuple[()]:
        del batch
        return ()

    def act(
        self, params: tuple[()], memory: tuple[()], percept: naht.Percept, key: jax.Array, greedy: bool
    ) -> tuple[jax.Array, tuple[()], jax.Array]:
        del params, key, greedy
        action = (percept.obs[..., 0] > 0).astype(jnp.int32)
        return action, memory, jnp.zeros(action.shape)


def main() -> None:
    env = Majority()
    naht.check_environment(env)
    print("the environment keeps its contract")

    with tempfile.TemporaryDirectory() as folder:
        teammate = FollowsItsEyes()
        path = naht.Agent("eyes", teammate, (), env.spec, {}).save(Path(folder) / "eyes.safetensors")

        config = naht.run_config("bit-game", "poam")  # its settings, with our task and teammate
        config = replace(config, task=env, steps=40_000, teams=replace(config.teams, teammates=(str(path),)))
        run = naht.train(config, Path(folder) / "run")

        agent = naht.load_agent(run)
        ours = naht.Population([naht.Member("ours", agent.policy, agent.params)])
        theirs = naht.Population([naht.Member("eyes", teammate)])
        rows = naht.evaluate_mn(env, ours, theirs, episodes=512, num_controlled=range(env.num_agents + 1))
        for n in range(env.num_agents + 1):
            returns = [row.episode_return for row in rows if row.num_controlled == n]
            print(f"{n} of {env.num_agents} controlled: return {naht.mean_interval(returns)}")

        action, memory = agent.act(jnp.array([0.3]), slot=1)
        action, memory = agent.act(jnp.array([-2.0]), slot=1, memory=memory)
        print(f"agent 1 sees 0.3, then -2.0, and plays {int(action)}")


if __name__ == "__main__":
    main()
