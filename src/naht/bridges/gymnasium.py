"""Ad hoc teamwork as a single-agent problem: one seat of a task is yours, the world and its strangers are the rest."""

from __future__ import annotations

from typing import Any

import numpy as np

from naht.bridges.played import Played
from naht.envs.base import Environment
from naht.errors import NahtError, require

try:
    import gymnasium

    from naht.bridges.pettingzoo import Spaces
except ModuleNotFoundError as e:
    raise NahtError(f"{e.name} is not installed: pip install 'naht[pettingzoo]'") from e


class NahtEnv(gymnasium.Env):
    """See `to_gymnasium`."""

    def __init__(self, played: Played, masks: bool | None):
        self.played = played
        self.metadata: dict[str, Any] = {"render_modes": []}
        self.render_mode = None
        self._spaces = Spaces(played, masks)
        self.observation_space, self.action_space = self._spaces.seen, self._spaces.done

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        del options
        self.played.reset(seed)
        return self._show()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        shown = self.played.step(np.array([int(action)]))
        seen, info = self._show()
        return seen, float(shown.reward), bool(shown.terminated), bool(shown.truncated), info

    def _show(self) -> tuple[Any, dict[str, Any]]:
        shown, seat = self.played.shown, int(self.played.seats[0])
        return self._spaces.show(shown, seat), self._spaces.info(self.played, seat)


def to_gymnasium(task: str | Environment, *, teammates: tuple[str, ...], masks: bool | None = None) -> NahtEnv:
    """A task of ours as a Gymnasium environment for one agent among strangers: ad hoc teamwork, N = 1.

    `teammates` are names, files or folders as for `naht train`; other ones are drawn for every episode, and another
    seat is yours. Where a task forbids actions, observations are dicts with an action mask (`masks` says otherwise);
    `info["action_mask"]` always has it. When you die, you watch until the episode ends.
    """
    require(bool(teammates), "one agent needs teammates: name those that play the other seats")
    return NahtEnv(Played(task, teammates, 1), masks)
