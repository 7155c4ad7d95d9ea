"""The SMAC maps in StarCraft II itself, for those who own the game: what `Smac` simulates, played by `StarCraft2Env`.

The game is one world on the host, outside of JAX: every reset and step is a call to it, in order. Needs the package
`smac` of github.com/oxwhirl/smac, which is imported when the game is first used; see docs/starcraft.md.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from naht.config import setting
from naht.envs.base import Array, Environment, EnvSpec, TimeStep
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

    There is one world, so no batches, and it can't go back: an older state can't be stepped again. Its randomness is
    the game's own, the keys of `reset` and `step` change nothing.
    """

    map: str = "5v6"
    """Name of the map, as for `Smac`."""
    state_last_action: bool = False
    """Put everybody's last action into the global state, as for `Smac`."""
    difficulty: str = "7"
    """Of the game's own player: '1' to '9' and 'A'."""
    seed: int | None = None
    """Of the game, when it starts; None: it chooses."""

    most_side_by_side = 1

    def __post_init__(self) -> None:
        self.simulated  # noqa: B018 (it checks the settings)

    @cached_property
    def simulated(self) -> Smac:
        return Smac(self.map, state_last_action=self.state_last_action)

    @property
    def spec(self) -> EnvSpec:
        return self.simulated.spec

    @cached_property
    def _shapes(self) -> tuple[Array, TimeStep]:
        """Of what the host returns."""
        return jax.eval_shape(lambda key: (jnp.int32(0), self.simulated.reset(key)[1]), jax.random.key(0))

    def reset(self, key: Array) -> tuple[Array, TimeStep]:
        running_game(self)  # what is missing is said here, as plain Python
        return self._call(_reset, jax.random.key_data(key))

    def step(self, key: Array, state: Array, actions: Array) -> tuple[Array, TimeStep]:
        """The state [] int32 only counts what the game has been told; the world is in the game."""
        del key
        return self._call(_step, state, actions)

    def _call(self, function: Callable[..., Any], *args: Array) -> tuple[Array, TimeStep]:
        """Call the host with this setting and arrays, in order and exactly once."""

        @jax.custom_batching.custom_vmap
        def call(*args: Array) -> tuple[Array, TimeStep]:
            return io_callback(partial(function, self), self._shapes, *args, ordered=True)

        @call.def_vmap
        def call_batch(size: int, batched: list[bool], *args: Array) -> Any:
            # JAX has no batches of calls in order. A batch of one is all we need.
            require(size == 1, f"StarCraft II plays one world at a time, not {size} side by side")
            answer = call(*[arg[0] if b else arg for arg, b in zip(args, batched, strict=True)])
            return jax.tree.map(lambda leaf: leaf[None], answer), jax.tree.map(lambda _: True, answer)

        return call(*args)


def in_starcraft(task: Environment, seed: int | None = None) -> StarCraft:
    """A task of the simulator, in the game."""
    if not isinstance(task, Smac):
        raise NahtError(
            f"'{task.spec.name}' can't be played in StarCraft II: only the SMAC maps can, {', '.join(MAPS)}"
        )
    return StarCraft(task.map, task.state_last_action, seed=seed)


class Game:
    """A running game and where it stands."""

    def __init__(self, chosen: StarCraft):
        self.chosen = chosen
        self.env: Any = None
        self.turn = 0
        """Counts episodes begun and steps taken."""
        self.played_through = False
        """Has any episode come to its end?"""
        self.begin()
        atexit.register(self.close)

    def begin(self) -> None:
        """Begin an episode; start the game first if it does not run."""
        # Reset before its first episode has ended, SMAC starts another game and counts the largest return twice.
        if self.env is not None and not self.played_through:
            self.close()
        if self.env is None:
            self.env = self._make()
        try:
            obs, state = self.env.reset()
        except Exception as e:
            self.close()
            hint = "the game belongs in $SC2PATH or ~/StarCraftII, SMAC's maps in its folder Maps (docs/starcraft.md)"
            raise NahtError(f"StarCraft II does not start: {_first_line(e)}; {hint}") from e
        self.turn += 1
        self.fresh = True
        self.now = self._view(obs, state)

    def _make(self) -> Any:
        """SMAC's environment as in the paper's runs; this does not start the game yet."""
        env = _starcraft2env()(
            map_name=MAPS[self.chosen.map].smac_name,
            step_mul=TICKS_PER_STEP,
            move_amount=MOVE_AMOUNT,
            difficulty=self.chosen.difficulty,
            seed=self.chosen.seed,
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

    def step(self, turn: int, actions: np.ndarray) -> None:
        """Every agent acts; actions [M]. One that is not available counts as stop, and as no-op for the dead."""
        require(turn == self.turn, "StarCraft II can't go back: this is not the situation in which the game is")
        self.turn += 1
        if self.now.terminated or self.now.truncated:
            return  # nothing follows, and there may be nobody left to command
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

    def close(self) -> None:
        """End the game. The next episode starts another."""
        if self.env is not None:
            self.env.close()
        self.env, self.played_through, self.fresh = None, False, False


@cache
def running_game(chosen: StarCraft) -> Game:
    """The process's game of a setting: started at first use, closed at exit."""
    return Game(chosen)


def _reset(chosen: StarCraft, key: Array) -> tuple[np.int32, TimeStep]:
    """Called from compiled code."""
    del key
    game = running_game(chosen)
    if not game.fresh:
        game.begin()
    return np.int32(game.turn), game.now


def _step(chosen: StarCraft, turn: Array, actions: Array) -> tuple[np.int32, TimeStep]:
    """Called from compiled code."""
    game = running_game(chosen)
    game.step(int(turn), np.asarray(actions))
    return np.int32(game.turn), game.now


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
