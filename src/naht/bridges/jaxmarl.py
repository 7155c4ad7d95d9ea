"""JaxMARL's environments as tasks: pure JAX on both sides, so that whole trainings stay one compiled program."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from naht.bridges.named import NamedTask, behind
from naht.config import setting
from naht.envs.base import Array, EnvSpec, PyTree, TimeStep, opening
from naht.errors import NahtError, one_line, require, unknown


class Made(NamedTuple):
    """An environment of JaxMARL, and what was found out about it."""

    env: Any
    spec: EnvSpec
    limit: int | None
    """The step with which it ends every episode itself, if it does."""
    counts: tuple[int, ...]
    """Actions of each agent."""
    masks: Callable[[PyTree], Mapping[str, Array]] | None
    """From its state to the allowed actions by agent, if it says."""
    fingerprint: str


_MADE: dict[str, Made] = {}
"""The environments of `from_jaxmarl`, by name. Never in a file: a file can't name code to run."""


class JaxMarlState(NamedTuple):
    """A world of JaxMARL in the middle of an episode."""

    world: PyTree  # JaxMARL's own state
    time: Array  # [] int32, steps since the reset
    alive: Array  # [M] bool


@setting
@dataclass(frozen=True)
class JaxMarlTask(NamedTask):
    """An environment of JaxMARL as a task; see `from_jaxmarl`."""

    @property
    def fingerprint(self) -> str:
        """Of the environment behind the name: a run is not resumed in another one."""
        return self._made.fingerprint

    @property
    def _made(self) -> Made:
        made = behind(self.name, _MADE, "JaxMARL")
        _check(self, made)
        return made

    def reset(self, key: Array) -> tuple[JaxMarlState, TimeStep]:
        """Start an episode."""
        made = self._made
        seen, world = made.env.reset(key)
        state = JaxMarlState(world, jnp.zeros((), jnp.int32), jnp.ones(self.num_agents, bool))
        return state, self._show(made, seen, state)

    def step(self, key: Array, state: JaxMarlState, actions: Array) -> tuple[JaxMarlState, TimeStep]:
        """Every agent acts at once; actions [M] int32, in the order of the environment's `agents`."""
        made = self._made
        env, agents = made.env, made.env.agents
        chosen = {agent: actions[i] for i, agent in enumerate(agents)}
        # Not its `step`, which begins the next episode at once and hides how this one ended.
        seen, world, rewards, dones, _ = env.step_env(key, state.world, chosen)
        done = jnp.stack([dones[agent] for agent in agents])
        # If everybody is done, the episode is: that is nobody's death, and what they could do is still asked for.
        alive = jnp.where(done.all(), state.alive, ~done)
        state = JaxMarlState(world, state.time + 1, alive)
        late = state.time >= self.horizon
        over = jnp.where(late, _over_anyway(env, world), dones["__all__"])
        shown = self._show(made, seen, state)._replace(terminated=over, truncated=late & ~over)
        return state, shown._replace(reward=self._earned(rewards, agents))

    def _earned(self, rewards: Mapping[str, Array], agents: Sequence[str]) -> Array:
        """What the team earns, [] float32."""
        if self.team_reward in agents:
            return jnp.asarray(rewards[self.team_reward], jnp.float32)
        paid = jnp.stack([jnp.asarray(rewards[agent], jnp.float32) for agent in agents])
        return paid.sum() if self.team_reward == "sum" else paid.mean()

    def _show(self, made: Made, seen: Mapping[str, Array], state: JaxMarlState) -> TimeStep:
        obs = _rows([jnp.ravel(seen[agent]).astype(jnp.float32) for agent in made.env.agents], self.obs_size)
        # SMAX puts what everything looks like among the observations.
        whole = jnp.ravel(seen["world_state"]).astype(jnp.float32) if "world_state" in seen else obs.ravel()
        masks = made.masks(state.world) if made.masks else {}
        allowed = [
            jnp.asarray(masks[agent], bool) if agent in masks else jnp.ones(count, bool)
            for agent, count in zip(made.env.agents, made.counts, strict=True)
        ]
        avail = _rows(allowed, self.num_actions)
        # The dead have one action: the first that they are allowed, in SMAX to stand still. So has who is allowed none.
        one = jnp.arange(self.num_actions) == avail.argmax(-1)[:, None]
        avail = jnp.where((state.alive & avail.any(-1))[:, None], avail, one)
        return opening(obs, whole, avail)._replace(alive=state.alive)


def _rows(parts: Sequence[Array], size: int) -> Array:
    """Arrays of at most `size`, filled up with zeros, as [M, size]."""
    return jnp.stack([jnp.pad(part, (0, size - part.size)) for part in parts])


def _over_anyway(env: Any, world: PyTree) -> Array:
    """At the time limit: is the episode over for another reason, such as a win? JaxMARL has one flag for both, so its
    own test is asked again with the clock turned back. An environment without such a test has run out of time."""
    if not hasattr(env, "is_terminal"):
        return jnp.zeros((), bool)

    def turned_back(path: tuple[Any, ...], leaf: Array) -> Array:
        return jnp.zeros_like(leaf) if getattr(path[-1], "name", "") in ("step", "done") else leaf

    return jnp.asarray(env.is_terminal(jax.tree_util.tree_map_with_path(turned_back, world)), bool)


def _check(task: JaxMarlTask, made: Made) -> None:
    """Does a task, which may come from a file, go with the environment of its name?"""
    agents, sizes = made.env.agents, replace(made.spec, horizon=task.horizon)
    if task.team_reward not in ("sum", "mean", *agents):
        raise unknown("team_reward", task.team_reward, ("sum", "mean", *map(str, agents)))
    own = "the environment ends its episodes there, make it with a larger max_steps"
    limit = task.horizon if made.limit is None else made.limit
    require(task.horizon <= limit, f"the horizon of '{task.name}' is {task.horizon}: it can be {limit} at most, {own}")
    require(task.spec == sizes, f"'{task.name}' was made here with other sizes: {sizes}, not {task.spec}")


def from_jaxmarl(
    env: Any, *, name: str | None = None, team_reward: str = "sum", horizon: int | None = None
) -> JaxMarlTask:
    """An environment of JaxMARL as a task: train, evaluate and check it like one of ours, at about JaxMARL's speed.

    `env` is a `MultiAgentEnv` with discrete actions, for instance `jaxmarl.make("MPE_simple_spread_v3")`. `name`: what
    the task is called, here and in files; by default as the environment calls itself. `team_reward`: what the team
    earns when agents are paid apart, their 'sum', their 'mean', or what one agent is paid, by its name. `horizon`: the
    longest episode, by default the environment's `max_steps`; what goes on then is cut there.

    Observations [M, O] are flattened and filled up with zeros to the largest, in the order of `env.agents`; actions
    likewise, masked. The global state [S] is `world_state` where the environment shows one, else everybody's
    observations.
    """
    try:
        from jaxmarl.environments.multi_agent_env import MultiAgentEnv
        from jaxmarl.environments.spaces import Discrete
    except ImportError as e:
        raise NahtError(f"jaxmarl can't be used ({one_line(e)}): pip install 'naht[jaxmarl]'") from e
    kind = type(env).__name__
    require(isinstance(env, MultiAgentEnv), f"env is a {kind}: it must be a MultiAgentEnv of JaxMARL, without wrappers")
    called = name or env.name
    for agent in env.agents:
        space = env.action_space(agent)
        allowed = "only discrete actions can be taken"
        require(isinstance(space, Discrete), f"'{called}' lets {agent} act by a {type(space).__name__}: {allowed}")
    limit = getattr(env, "max_steps", None)
    longest = limit if horizon is None else horizon
    require(longest is not None, f"'{called}' does not say how long its episodes are: give a horizon")
    assert longest is not None

    counts = tuple(int(env.action_space(agent).n) for agent in env.agents)
    seen, world = jax.eval_shape(env.reset, jax.random.key(0))
    for agent in env.agents:
        fine = isinstance(seen, dict) and hasattr(seen.get(agent), "size")
        require(fine, f"'{called}' shows {agent} no array: observations must be arrays by agent")
    masks = _masks_of(env, MultiAgentEnv)
    for agent, mask in (jax.eval_shape(masks, world) if masks else {}).items():
        count = counts[env.agents.index(agent)]
        require(mask.size == count, f"'{called}' masks {mask.size} actions of {agent}, who has {count}")
    obs_size = max(seen[agent].size for agent in env.agents)
    state_size = seen["world_state"].size if "world_state" in seen else len(env.agents) * obs_size

    task = JaxMarlTask(called, len(env.agents), obs_size, state_size, max(counts), longest, team_reward)
    looks = hashlib.sha256(_described(env).encode()).hexdigest()[:16]
    made = Made(env, task.spec, limit, counts, masks, looks)
    _check(task, made)
    # Compiled code is shared by tasks that are equal, and tasks know their environment by its name alone.
    same = _MADE.setdefault(called, made).fingerprint == looks
    require(same, f"'{called}' already names another environment of JaxMARL here: give this one another name")
    return task


def _masks_of(env: Any, base: type) -> Callable[[PyTree], Mapping[str, Array]] | None:
    """How an environment says which actions are allowed. The base class only raises; Hanabi has a word of its own."""
    if any("get_avail_actions" in vars(cls) for cls in type(env).__mro__ if cls is not base):
        return env.get_avail_actions
    return getattr(env, "get_legal_moves", None)


def _described(thing: Any, inside: tuple[int, ...] = ()) -> str:
    """What an environment consists of, the same in every process: its class, settings, arrays, and what its functions
    have taken along; not their code."""
    if id(thing) in inside:
        return "..."
    inner = partial(_described, inside=(*inside, id(thing)))
    kind = f"{type(thing).__module__}.{type(thing).__qualname__}"
    if isinstance(thing, (jax.Array, np.ndarray)):
        array = np.asarray(thing)
        return f"{array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
    if isinstance(thing, (str, bytes, int, float, np.generic)) or thing is None:
        return repr(thing)
    if isinstance(thing, Mapping):
        return f"{{{', '.join(f'{key!r}: {inner(value)}' for key, value in thing.items())}}}"
    if isinstance(thing, (list, tuple)):
        return f"[{', '.join(map(inner, thing))}]"
    if callable(thing):
        cells = getattr(thing, "__closure__", None) or ()
        return f"{getattr(thing, '__qualname__', kind)}[{', '.join(inner(cell.cell_contents) for cell in cells)}]"
    return f"{kind}{inner(getattr(thing, '__dict__', {}))}"
