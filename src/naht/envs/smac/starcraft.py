"""The SMAC maps in StarCraft II itself, for those who own the game: what `Smac` simulates, played by `StarCraft2Env`.

Needs the package `smac` of github.com/oxwhirl/smac, which is imported when a game starts; see docs/starcraft.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np

from naht.config import setting
from naht.envs.base import Environment, EnvSpec, TimeStep
from naht.envs.smac.maps import MAPS
from naht.envs.smac.rules import KILL_VALUE, LARGEST_RETURN, MOVE_AMOUNT, TICKS_PER_STEP, WIN_VALUE
from naht.envs.smac.task import NO_OP, STOP, Smac
from naht.errors import NahtError, require

INSTALL = "pip install git+https://github.com/oxwhirl/smac.git (docs/starcraft.md)"
METRICS = ("battle_won", "dead_allies", "dead_enemies")


@setting
@dataclass(frozen=True)
class StarCraft:
    """A SMAC map in StarCraft II. Sizes are those of `Smac`, so its agents play here as they are.

    Its worlds are games outside of JAX (`naht.envs.host`): one for evaluation, as many as a run has environments for
    training. A game's randomness is its own: it is seeded when it starts, not by episodes.
    """

    map: str = "5v6"
    """Name of the map, as for `Smac`."""
    state_last_action: bool = False
    """Put everybody's last action into the global state, as for `Smac`."""
    difficulty: str = "7"
    """Of the game's own player: '1' to '9' and 'A'."""
    seed: int | None = None
    """Of the game, when it starts; None: that of its first episode, another one in every game."""

    most_side_by_side = 1

    def __post_init__(self) -> None:
        self.simulated  # noqa: B018 (it checks the settings)

    @cached_property
    def simulated(self) -> Smac:
        return Smac(self.map, state_last_action=self.state_last_action)

    @property
    def spec(self) -> EnvSpec:
        return self.simulated.spec

    def open(self) -> Game:
        """A game, which starts with its first episode. What is missing is said here."""
        _starcraft2env()
        return Game(self)


def in_starcraft(task: Environment, seed: int | None = None) -> StarCraft:
    """A task of the simulator, in the game."""
    if not isinstance(task, Smac):
        raise NahtError(
            f"'{task.spec.name}' can't be played in StarCraft II: only the SMAC maps can, {', '.join(MAPS)}"
        )
    return StarCraft(task.map, task.state_last_action, seed=seed)


class Game:
    """A game and where it stands: a `HostWorld`."""

    def __init__(self, chosen: StarCraft):
        self.chosen = chosen
        self.env: Any = None
        self.now: TimeStep
        """What the game shows."""
        self.played_through = False
        """Has any episode come to its end?"""
        self.fresh = False
        """Has nobody acted yet in the running episode?"""

    def reset(self, seed: int) -> TimeStep:
        """Begin an episode; start the game first if it does not run."""
        if self.fresh:
            return self.now
        # Reset before its first episode has ended, SMAC starts another game and counts the largest return twice.
        if self.env is not None and not self.played_through:
            self.close()
        if self.env is None:
            self.env = self._make(seed)
        try:
            obs, state = self.env.reset()
        except Exception as e:
            self.close()
            hint = "the game belongs in $SC2PATH or ~/StarCraftII, SMAC's maps in its folder Maps (docs/starcraft.md)"
            raise NahtError(f"StarCraft II does not start: {_first_line(e)}; {hint}") from e
        self.fresh = True
        self.now = self._view(obs, state)
        return self.now

    def _make(self, seed: int) -> Any:
        """SMAC's environment as in the paper's runs; this does not start the game yet."""
        env = _starcraft2env()(
            map_name=MAPS[self.chosen.map].smac_name,
            step_mul=TICKS_PER_STEP,
            move_amount=MOVE_AMOUNT,
            difficulty=self.chosen.difficulty,
            seed=seed if self.chosen.seed is None else self.chosen.seed,
            continuing_episode=True,  # makes it say whether the time has run out
            obs_all_health=True,
            obs_own_health=True,
            obs_last_action=False,
            obs_pathing_grid=False,
            obs_terrain_height=False,
            obs_instead_of_state=False,
            state_last_action=self.chosen.state_last_action,
            reward_sparse=False,
            reward_only_positive=True,
            reward_death_value=KILL_VALUE,
            reward_win=WIN_VALUE,
            reward_defeat=0,
            reward_scale=True,
            reward_scale_rate=LARGEST_RETURN,
        )
        info, spec = env.get_env_info(), self.chosen.spec
        ours = {
            "n_agents": spec.num_agents,
            "obs_shape": spec.obs_size,
            "state_shape": spec.state_size,
            "n_actions": spec.num_actions,
            "episode_limit": spec.horizon,
        }
        differences = [f"{name} is {info[name]}, not {size}" for name, size in ours.items() if info[name] != size]
        require(not differences, f"this SMAC has another {env.map_name} than ours: {', '.join(differences)}")
        return env

    def _view(
        self,
        obs: list[np.ndarray],
        state: np.ndarray,
        reward: float = 0.0,
        terminated: bool = False,
        truncated: bool = False,
        info: dict[str, Any] | None = None,
    ) -> TimeStep:
        """What agents see now, in NumPy's arrays."""
        avail = np.array(self.env.get_avail_actions(), bool)
        shown: dict[str, Any] = {
            "obs": np.array(obs, np.float32),
            "global_state": np.array(state, np.float32),
            "avail": avail,
            "alive": ~avail[:, NO_OP],
            "reward": np.float32(reward),
            "terminated": np.bool_(terminated),
            "truncated": np.bool_(truncated),
            "metrics": {name: np.float32(info[name] if info else 0.0) for name in METRICS},
        }
        return TimeStep(**shown)

    def step(self, actions: np.ndarray) -> TimeStep:
        """Every agent acts; actions [M]. One that is not available counts as stop, and as no-op for the dead."""
        avail = np.asarray(self.now.avail)
        chosen = [
            int(a) if 0 <= a < len(can) and can[a] else NO_OP if can[NO_OP] else STOP
            for a, can in zip(actions, avail, strict=True)
        ]
        reward, over, info = self.env.step(chosen)
        if not info:  # SMAC's way to say so
            self.close()
            raise NahtError("StarCraft II lost its connection in the middle of an episode, which has no result")
        truncated = bool(info.get("episode_limit", False))
        self.fresh, self.played_through = False, self.played_through or over
        self.now = self._view(self.env.get_obs(), self.env.get_state(), reward, over and not truncated, truncated, info)
        return self.now

    def close(self) -> None:
        """End the game. The next episode starts another."""
        if self.env is not None:
            self.env.close()
        self.env, self.played_through, self.fresh = None, False, False


def _starcraft2env() -> Callable[..., Any]:
    """SMAC's class."""
    try:
        package = import_module("smac.env")
    except ModuleNotFoundError as e:
        if e.name == "smac":
            raise NahtError(f"StarCraft II is played through SMAC, which is not installed: {INSTALL}") from e
        if e.name == "smac.env":
            wrong = "the installed package 'smac' is not SMAC but the optimiser that has this name on PyPI"
            raise NahtError(f"{wrong}: pip uninstall smac, then {INSTALL}") from e
        raise NahtError(f"SMAC can't be imported: {_first_line(e)}; {INSTALL}") from e
    except Exception as e:  # of what it needs, whatever that raises
        raise NahtError(f"SMAC can't be imported: {_first_line(e)}") from e
    return package.StarCraft2Env


def _first_line(e: Exception) -> str:
    return next(iter(str(e).splitlines()), type(e).__name__)
