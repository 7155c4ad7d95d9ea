"""A stand-in for SMAC's `smac.env.StarCraft2Env`, which needs StarCraft II: its interface, shapes, types and traps.

The battle is our simulator's, in a thread of its own as the game is in a process of its own. Stricter than the real
one: it refuses whatever is of the wrong type, and steps after the end of an episode.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any, ClassVar

import jax
import numpy as np

from naht.envs.smac.maps import MAPS
from naht.envs.smac.task import Smac

_reset, _step = jax.jit(Smac.reset, static_argnums=0), jax.jit(Smac.step, static_argnums=0)
OUR_NAME = {layout.smac_name: name for name, layout in MAPS.items()}


def game_key(seed: int | None, step: int) -> jax.Array:
    """All chance in the stand-in's n-th step since it was made."""
    return jax.random.fold_in(jax.random.key(seed or 0), step)


class StarCraft2Env:
    """One world. `made` lists all instances; each counts its launches, resets and steps."""

    made: ClassVar[list[StarCraft2Env]] = []

    def __init__(
        self,
        map_name: str = "8m",
        step_mul: int = 8,
        move_amount: float = 2,
        difficulty: str = "7",
        game_version: str | None = None,
        seed: int | None = None,
        continuing_episode: bool = False,
        obs_all_health: bool = True,
        obs_own_health: bool = True,
        obs_last_action: bool = False,
        obs_pathing_grid: bool = False,
        obs_terrain_height: bool = False,
        obs_instead_of_state: bool = False,
        obs_timestep_number: bool = False,
        state_last_action: bool = True,
        state_timestep_number: bool = False,
        reward_sparse: bool = False,
        reward_only_positive: bool = True,
        reward_death_value: float = 10,
        reward_win: float = 200,
        reward_defeat: float = 0,
        reward_negative_scale: float = 0.5,
        reward_scale: bool = True,
        reward_scale_rate: float = 20,
        replay_dir: str = "",
        replay_prefix: str = "",
        window_size_x: int = 1920,
        window_size_y: int = 1200,
        heuristic_ai: bool = False,
        heuristic_rest: bool = False,
        debug: bool = False,
    ):
        assert (step_mul, move_amount, difficulty) == (8, 2, "7"), "the simulator knows no other"
        assert (reward_death_value, reward_win, reward_defeat, reward_scale_rate) == (10, 200, 0, 20)
        assert obs_all_health
        assert reward_only_positive
        assert reward_scale
        others = (obs_last_action, obs_pathing_grid, obs_terrain_height, obs_instead_of_state, obs_timestep_number)
        assert not any((*others, state_timestep_number, reward_sparse, heuristic_ai))
        self.map_name = map_name
        self.simulator = Smac(OUR_NAME[map_name], state_last_action=state_last_action)
        self.layout = self.simulator.layout
        self.n_agents, self.n_enemies = self.layout.allies, self.layout.enemies
        self.n_actions = 6 + self.n_enemies
        self.episode_limit = self.layout.limit
        self.max_reward = self.n_enemies * reward_death_value + reward_win
        self.continuing_episode = continuing_episode
        self._seed = seed
        self._episode_count = self._total_steps = 0
        self.launches = self.resets = self.closes = 0
        self.over = True
        self.thread = ThreadPoolExecutor(1)
        self.made.append(self)

    @property
    def steps(self) -> int:
        return self._total_steps

    def _launch(self) -> None:
        self.launches += 1

    def reset(self) -> tuple[list[np.ndarray], np.ndarray]:
        if self._episode_count == 0:
            self._launch()
            enemy = self.simulator.battle.enemy
            self.max_reward += self.n_enemies * (enemy.health + enemy.shield)  # SMAC's trap: again in a second launch
        self.resets += 1
        self.over = False
        self._run(lambda: _reset(self.simulator, jax.random.key(0)))
        return self.get_obs(), self.get_state()

    def _run(self, simulate: Callable[[], Any]) -> None:
        self.state, self.seen = self.thread.submit(lambda: jax.device_get(simulate())).result()

    def step(self, actions: list[int]) -> tuple[float, bool, dict[str, Any]]:
        if self.over:
            raise RuntimeError("there is no running episode")
        if type(actions) is not list or any(type(a) is not int for a in actions):
            raise TypeError(f"actions are a list of ints, got {actions!r}")
        if len(actions) != self.n_agents:
            raise ValueError(f"{self.n_agents} agents need as many actions, got {len(actions)}")
        for agent, (action, avail) in enumerate(zip(actions, self.get_avail_actions(), strict=True)):
            assert avail[action] == 1, f"Agent {agent} cannot perform action {action}"
        key = self._seed, self._total_steps
        self._run(lambda: _step(self.simulator, game_key(*key), self.state, np.array(actions, np.int32)))
        self._total_steps += 1
        seen = self.seen
        won = bool(seen.metrics["battle_won"])
        info: dict[str, Any] = {"battle_won": won}
        info |= {name: int(seen.metrics[name]) for name in ("dead_allies", "dead_enemies")}
        self.over = bool(seen.terminated | seen.truncated)
        decided = won or not seen.alive.any()
        if self.over and not decided and self.continuing_episode:
            info["episode_limit"] = True
        self._episode_count += self.over
        raw = float(seen.reward) * self.simulator.reward_scale
        return raw / (self.max_reward / 20), self.over, info

    def get_obs(self) -> list[np.ndarray]:
        return [self.get_obs_agent(i) for i in range(self.n_agents)]

    def get_obs_agent(self, agent_id: int) -> np.ndarray:
        return np.array(self.seen.obs[agent_id])

    def get_obs_size(self) -> int:
        return self.simulator.spec.obs_size

    def get_state(self) -> np.ndarray:
        return np.array(self.seen.global_state)

    def get_state_size(self) -> int:
        return self.simulator.spec.state_size

    def get_avail_actions(self) -> list[list[int]]:
        return [self.get_avail_agent_actions(i) for i in range(self.n_agents)]

    def get_avail_agent_actions(self, agent_id: int) -> list[int]:
        return [int(can) for can in self.seen.avail[agent_id]]

    def get_total_actions(self) -> int:
        return self.n_actions

    def get_env_info(self) -> dict[str, Any]:
        return {
            "state_shape": self.get_state_size(),
            "obs_shape": self.get_obs_size(),
            "n_actions": self.get_total_actions(),
            "n_agents": self.n_agents,
            "episode_limit": self.episode_limit,
        }

    def seed(self) -> int | None:
        return self._seed

    def close(self) -> None:
        self.closes += 1
        self.over = True


def install(monkeypatch: Any, env: type = StarCraft2Env) -> type[StarCraft2Env]:
    """As if the package `smac` were there."""
    # Unlike the real game it computes in JAX while a compiled program waits for it: with one thread, both would wait.
    assert jax.device_count() > 1, "see conftest.py"
    smac, smac_env = ModuleType("smac"), ModuleType("smac.env")
    smac.__path__ = []
    smac.env, smac_env.StarCraft2Env = smac_env, env
    monkeypatch.setitem(sys.modules, "smac", smac)
    monkeypatch.setitem(sys.modules, "smac.env", smac_env)
    env.made.clear()
    return env
