"""PettingZoo, both ways: our tasks as `ParallelEnv`s, with or without strangers inside; its environments as tasks."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from naht.bridges.named import NamedTask, behind
from naht.bridges.played import Played
from naht.config import Count, setting
from naht.envs.base import Environment, TimeStep
from naht.errors import NahtError, one_line, require, unknown
from naht.teams.sampler import NumControlled

try:
    from gymnasium import spaces
    from pettingzoo import ParallelEnv
except ModuleNotFoundError as e:
    raise NahtError(f"{e.name} is not installed: pip install 'naht[pettingzoo]'") from e


class Spaces:
    """What an agent of ours sees and does, as spaces; the same objects every time."""

    def __init__(self, played: Played, masks: bool | None):
        spec = played.spec
        self.masks = not getattr(played.env, "all_allowed", False) if masks is None else masks
        seen: spaces.Space = spaces.Box(-np.inf, np.inf, (spec.obs_size,), np.float32)
        if self.masks:
            seen = spaces.Dict({"observation": seen, "action_mask": spaces.Box(0, 1, (spec.num_actions,), np.int8)})
        self.seen, self.done = seen, spaces.Discrete(spec.num_actions)

    def show(self, shown: TimeStep, seat: int) -> Any:
        """What the agent in a seat sees."""
        obs = np.asarray(shown.obs[seat])
        return {"observation": obs, "action_mask": self.mask(shown, seat)} if self.masks else obs

    @staticmethod
    def mask(shown: TimeStep, seat: int) -> np.ndarray:
        return np.asarray(shown.avail[seat]).astype(np.int8)

    @classmethod
    def info(cls, played: Played, seat: int) -> dict[str, Any]:
        """What else is known in a seat: who plays, and the task's own numbers."""
        shown = played.shown
        known = {"action_mask": cls.mask(shown, seat), "seat": seat, "alive": bool(shown.alive[seat])}
        return known | {"team": played.names} | {name: float(value) for name, value in shown.metrics.items()}


class NahtParallelEnv(ParallelEnv):
    """See `to_pettingzoo`."""

    def __init__(self, played: Played, masks: bool | None, remove_dead: bool):
        self.played, self.remove_dead = played, remove_dead
        self.metadata = {"name": f"naht_{played.spec.name}", "render_modes": [], "is_parallelizable": True}
        self.render_mode = None
        self.possible_agents = [f"agent_{i}" for i in range(played.most)]
        self.agents: list[str] = []
        every = {agent: Spaces(played, masks) for agent in self.possible_agents}
        self.observation_spaces = {agent: space.seen for agent, space in every.items()}
        self.action_spaces = {agent: space.done for agent, space in every.items()}
        self._spaces = every
        self.state_space = spaces.Box(-np.inf, np.inf, (played.spec.state_size,), np.float32)

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        del options
        shown = self.played.reset(seed)
        self.agents = self.possible_agents[: len(self.played.seats)]
        self._seat = dict(zip(self.agents, self.played.seats.tolist(), strict=True))
        return self._seen(shown, self.agents), self._infos(self.agents)

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        acting = self.agents
        missing = [agent for agent in acting if agent not in actions]
        require(not missing, f"no action for {', '.join(missing)}: every agent of env.agents acts in every step")
        # Whoever has been removed does what the dead can do.
        before = self.played.shown
        chosen = [
            int(actions[agent]) if agent in acting else int(np.argmax(before.avail[seat]))
            for agent, seat in self._seat.items()
        ]
        shown = self.played.step(np.array(chosen))
        over, late = bool(shown.terminated), bool(shown.truncated)
        gone = {agent: self.remove_dead and not bool(shown.alive[self._seat[agent]]) for agent in acting}
        terminated = {agent: over or gone[agent] for agent in acting}
        truncated = {agent: late and not terminated[agent] for agent in acting}
        rewards = {agent: float(shown.reward) for agent in acting}
        self.agents = [agent for agent in acting if not (terminated[agent] or truncated[agent])]
        return self._seen(shown, acting), rewards, terminated, truncated, self._infos(acting)

    def _seen(self, shown: TimeStep, agents: Sequence[str]) -> dict[str, Any]:
        return {agent: self._spaces[agent].show(shown, self._seat[agent]) for agent in agents}

    def _infos(self, agents: Sequence[str]) -> dict[str, dict]:
        return {agent: Spaces.info(self.played, self._seat[agent]) for agent in agents}

    def state(self) -> np.ndarray:
        """The global state, [S]."""
        return np.asarray(self.played.shown.global_state)

    def render(self) -> None:
        """There is no window: `naht watch` draws episodes."""

    def close(self) -> None:
        pass


def to_pettingzoo(
    task: str | Environment,
    *,
    teammates: tuple[str, ...] = (),
    num_controlled: NumControlled | None = None,
    masks: bool | None = None,
    remove_dead: bool = False,
) -> NahtParallelEnv:
    """A task of ours as a PettingZoo `ParallelEnv`.

    With `teammates` (names, files or folders as for `naht train`) strangers are inside: you act in `num_controlled`
    seats of each episode (by default a number drawn from 1 to M-1), they in the others, new ones every episode. Your
    agents are called agent_0, agent_1, ... in the order of their seats, which `infos` name. Everybody is paid the
    team's reward. Where a task forbids actions, observations are dicts with an action mask (`masks` says otherwise).
    The dead stay, with one action that does nothing, or leave with `remove_dead`.
    """
    return NahtParallelEnv(Played(task, teammates, num_controlled), masks, remove_dead)


_MAKERS: dict[str, Callable[[], Any]] = {}
"""How to make the environments of `from_pettingzoo`, by name. Never in a file: a file can't name code to run."""


@setting
@dataclass(frozen=True)
class PettingZooTask(NamedTask):
    """An environment of PettingZoo as a task, whose worlds are outside of JAX; see `from_pettingzoo`."""

    most_side_by_side: Count = 64

    def open(self) -> PettingZooWorld:
        return PettingZooWorld(behind(self.name, _MAKERS, "PettingZoo")(), self)

    def __reduce__(self) -> tuple[Any, ...]:
        """To a process that runs its worlds, it goes with what makes them."""
        return _received, (tuple(getattr(self, f.name) for f in fields(self)), _MAKERS.get(self.name))


def _received(values: tuple[Any, ...], maker: Callable[[], Any] | None) -> PettingZooTask:
    task = PettingZooTask(*values)
    if maker is not None:
        _MAKERS[task.name] = maker
    return task


class PettingZooWorld:
    """One world. Observations are flattened and filled up with zeros to the largest; actions likewise, masked."""

    def __init__(self, env: Any, task: PettingZooTask):
        self.env, self.task = env, task
        self.names = list(env.possible_agents)

    def reset(self, seed: int) -> TimeStep:
        self.time = 0
        seen, infos = self.env.reset(seed=seed)
        return self._show(seen, infos, 0.0, False, False)

    def step(self, actions: np.ndarray) -> TimeStep:
        self.time += 1
        acting = list(self.env.agents)
        chosen = {name: int(a) for name, a in zip(self.names, actions, strict=True) if name in acting}
        seen, rewards, terminated, truncated, infos = self.env.step(chosen)
        left = [name for name in self.env.agents if not (terminated.get(name) or truncated.get(name))]
        late = not left and any(truncated.get(name, False) for name in acting)
        late = late or (bool(left) and self.time >= self.task.horizon)
        return self._show(seen, infos, self._team_reward(rewards), not left and not late, late)

    def _team_reward(self, rewards: dict[str, float]) -> float:
        how = self.task.team_reward
        if how in ("sum", "mean"):
            paid = [float(r) for r in rewards.values()]
            return sum(paid) if how == "sum" else sum(paid) / max(len(paid), 1)
        return float(rewards.get(how, 0.0))

    def _show(
        self, seen: dict[str, Any], infos: dict[str, Any], reward: float, terminated: bool, truncated: bool
    ) -> TimeStep:
        m, task = len(self.names), self.task
        obs, avail = np.zeros((m, task.obs_size), np.float32), np.zeros((m, task.num_actions), bool)
        here = set(self.env.agents) if not (terminated or truncated) else set(seen)
        for i, name in enumerate(self.names):
            count = self.env.action_space(name).n
            mask = np.ones(count, bool)
            if name in seen:
                own, found = _parts(seen[name])
                found = infos.get(name, {}).get("action_mask") if found is None else found
                require(
                    own.size <= task.obs_size, f"'{task.name}' shows {name} {own.size} numbers, not {task.obs_size}"
                )
                obs[i, : own.size] = own
                if found is not None:
                    mask = np.asarray(found, bool).reshape(-1)
                    require(mask.size == count, f"'{task.name}' masks {mask.size} actions of {name}, who has {count}")
            avail[i, : mask.size] = mask if name in here else np.arange(count) == 0
        # Nothing is allowed in the last step of some: what the dead can do is nothing.
        avail[~avail.any(-1), 0] = True
        alive = np.array([name in here for name in self.names])
        shown: Any = (obs, self._state(obs), avail, alive, np.float32(reward), terminated, truncated, {})
        return TimeStep(*shown)

    def picture(self) -> np.ndarray | None:
        """[H, W, 3] uint8, of environments that are made with render_mode='rgb_array'."""
        return self.env.render() if getattr(self.env, "render_mode", None) == "rgb_array" else None

    def _state(self, obs: np.ndarray) -> np.ndarray:
        """The environment's own global state, else what everybody sees."""
        try:
            return np.asarray(self.env.state(), np.float32).reshape(-1)
        except NotImplementedError:  # PettingZoo's way to say that there is none
            return obs.reshape(-1)

    def close(self) -> None:
        self.env.close()


def _parts(seen: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """An observation as numbers, and its action mask if it has one."""
    if isinstance(seen, dict):
        return np.asarray(seen["observation"], np.float32).reshape(-1), seen.get("action_mask")
    return np.asarray(seen, np.float32).reshape(-1), None


def _size(name: str, agent: str, space: Any) -> int:
    """Of an observation, in numbers."""
    inner = space["observation"] if isinstance(space, spaces.Dict) and "observation" in space.spaces else space
    plain = isinstance(inner, (spaces.Box, spaces.MultiBinary, spaces.MultiDiscrete, spaces.Discrete))
    require(plain, f"'{name}' shows {agent} a {type(inner).__name__}: only boxes and discrete numbers can be read")
    return int(np.prod(inner.shape)) if inner.shape else 1


def from_pettingzoo(
    make: str | Callable[..., Any],
    *,
    name: str | None = None,
    team_reward: str = "sum",
    horizon: int | None = None,
    **settings: Any,
) -> PettingZooTask:
    """An environment of PettingZoo (parallel API) as a task: train, evaluate and check it like one of ours.

    `make` says what makes an environment, as 'module:function', for instance "mpe2.simple_spread_v3:parallel_env", or
    as a function at the top level of a module (it is sent to the processes that run its worlds); the `settings` are
    passed to it. `team_reward`: what the team earns when agents are paid apart, their 'sum', their 'mean', or what one
    agent is paid, by its name. `horizon`: the longest episode, if the environment does not say (`max_cycles`); one that
    goes on is cut there. Agents that leave are dead, and the end of all is the end of the episode: terminated, unless
    any was truncated.
    """
    made: Callable[[], Any] = (
        partial(_make_named, make, settings) if isinstance(make, str) else partial(make, **settings)
    )
    try:
        pickle.dumps(made)
    except Exception as e:
        how = "name it as 'module:function', or define it at the top level of a module"
        raise NahtError(f"make can't be sent to another process: {one_line(e)}; {how}") from e
    env = made()
    require(hasattr(env, "possible_agents"), f"make made a {type(env).__name__}: it must make a ParallelEnv")
    called = name or env.metadata.get("name") or type(env.unwrapped).__name__
    agents = list(env.possible_agents)
    for agent in agents:
        space = env.action_space(agent)
        require(
            isinstance(space, spaces.Discrete) and space.start == 0,
            f"'{called}' lets {agent} act by {space}: only discrete actions from 0 can be taken",
        )
    if team_reward not in ("sum", "mean", *agents):
        raise unknown("team_reward", team_reward, ("sum", "mean", *agents))
    limit = horizon or _limit(env)
    require(limit is not None, f"'{called}' does not say how long its episodes are: give a horizon")
    assert limit is not None
    obs_size = max(_size(called, agent, env.observation_space(agent)) for agent in agents)
    actions = max(int(env.action_space(agent).n) for agent in agents)
    draft = PettingZooTask(called, len(agents), obs_size, 1, actions, limit, team_reward)
    state_size = PettingZooWorld(env, draft).reset(0).global_state.size
    env.close()
    _MAKERS[called] = made
    return replace(draft, state_size=state_size)


def _make_named(text: str, settings: dict[str, Any]) -> Any:
    """Call what a user has named as 'module:function'."""
    module, _, function = text.partition(":")
    try:
        make = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as e:
        raise NahtError(f"'{text}' names no function, as 'module:function' does: {one_line(e)}") from e
    return make(**settings)


def _limit(env: Any) -> int | None:
    """The longest episode, if an environment says so."""
    for place in (env, getattr(env, "unwrapped", None), getattr(getattr(env, "aec_env", None), "unwrapped", None)):
        for attribute in ("max_cycles", "max_steps", "max_episode_steps"):
            if isinstance(getattr(place, attribute, None), int):
                return int(getattr(place, attribute))
    return None
