"""The one loop in which any team plays any environment."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from naht.agents.policy import NO_ACTION, Percept
from naht.envs.base import Array, PyTree, TimeStep
from naht.pieces import Pieces, Together, decided
from naht.teams.population import Roster, Seating
from naht.teams.sampler import Sampler, Team, describe


class ArenaState(NamedTuple):
    """Everything that goes on from one rollout to the next, for a batch of B environments."""

    env_state: PyTree  # [B, ...]
    time_step: TimeStep  # [B, ...], what the agents see now
    team: Team  # [B, M], who plays the running episode
    seating: tuple[tuple[Seating, ...], ...]  # the same, as C and U need it to act
    controlled_memory: PyTree  # [B, M, ...] per group of C; means something in the seats of C
    uncontrolled_memory: PyTree  # [B, M, ...] per group of U; likewise
    last_action: Array  # [B, M] int32
    first: Array  # [B] bool, the next step is the first of its episode
    episode_return: Array  # [B], so far
    episode_length: Array  # [B] int32, so far


class Trajectory(NamedTuple):
    """T steps of B environments. Episodes end and begin anywhere; `first` and `terminated | truncated` say where."""

    obs: Array  # [T, B, M, O], before the step
    global_state: Array  # [T, B, S]
    avail: Array  # [T, B, M, A] bool
    alive: Array  # [T, B, M] bool
    last_action: Array  # [T, B, M] int32
    first: Array  # [T, B] bool: an episode begins here, memories were cleared
    team: Team  # [T, B, M]
    action: Array  # [T, B, M] int32
    log_prob: Array  # [T, B, M], of the controlled agents' actions; other entries mean nothing
    reward: Array  # [T, B]
    terminated: Array  # [T, B] bool
    truncated: Array  # [T, B] bool
    next_obs: Array  # [T, B, M, O], after the step and before any restart
    next_avail: Array  # [T, B, M, A] bool, likewise
    next_global_state: Array  # [T, B, S]
    episode_return: Array  # [T, B], up to and with this step: the episode's return where it ends
    episode_length: Array  # [T, B] int32
    metrics: dict[str, Array]  # [T, B]
    start_memory: PyTree  # [B, M, ...], C's memory before the first step, in the seats of C

    @property
    def done(self) -> Array:
        """[T, B] bool: an episode ends with this step."""
        return self.terminated | self.truncated


def where(mask: Array, new: PyTree, old: PyTree) -> PyTree:
    """Leaves [B, ...] of `new` where mask [B], else of `old`."""
    return jax.tree.map(lambda a, b: jnp.where(mask.reshape(mask.shape + (1,) * (b.ndim - 1)), a, b), new, old)


def settled(tree: PyTree) -> PyTree:
    """Without JAX's weak types, which an environment may produce and which make the same program compile twice."""
    return jax.tree.map(lambda x: x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x.astype(x.dtype), tree)


class Acted(NamedTuple):
    """What a team does in a step, and what its members remember of it."""

    action: Array  # [B, M] int32
    log_prob: Array  # [B, M], of the controlled agents' actions
    controlled_memory: PyTree
    uncontrolled_memory: PyTree


@dataclass(frozen=True)
class Arena:
    """A batch of environments and the rosters that meet in it. Static and hashable; parameters come with each call.

    A step is three things: the team acts (`act`), the world moves, and what happened is noted (`note`); where an
    episode has ended, another begins (`restart`). Worlds in JAX do all of it in one compiled program (`play`); for
    worlds that are not, a loop in Python calls these parts around them (`naht.hosted`).
    """

    env: Any
    """An `Environment`; or a `HostEnvironment`, and then only `begin`, `act`, `note` and `restart` are of use."""
    sampler: Sampler
    controlled: Roster
    uncontrolled: Roster
    num_envs: int
    members: Together = "auto"
    """Whether members of a roster act in turn or at once."""

    @property
    def _seats(self) -> tuple[int, int]:
        return self.num_envs, self.env.spec.num_agents

    def _seat(self, team: Team) -> tuple[tuple[Seating, ...], ...]:
        ours = self.controlled.seat(team.controlled, team.member)
        return ours, self.uncontrolled.seat(~team.controlled, team.member)

    def reset(self, key: Array, team: Team | None = None) -> ArenaState:
        """Every environment begins an episode, with a freshly sampled team or the given one (arrays [B, M])."""
        for_env, for_team = self.reset_keys(key)
        env_state, time_step = jax.vmap(self.env.reset)(for_env)
        return self.begin(env_state, time_step, for_team, team)

    def reset_keys(self, key: Array) -> Array:
        """Random keys for the beginning of an episode everywhere, [2, B]: for worlds, for teams."""
        return jax.random.split(key, (2, self.num_envs))

    def begin(self, env_state: PyTree, time_step: TimeStep, keys: Array, team: Team | None = None) -> ArenaState:
        """Episodes begin in worlds that have just been reset. keys [B] draw the teams, unless they are given [B, M]."""
        if team is None:
            team = jax.vmap(self.sampler.sample)(keys, env_state)
        state = ArenaState(
            env_state=env_state,
            time_step=time_step,
            team=team,
            seating=self._seat(team),
            controlled_memory=self.controlled.initial_memory(self._seats),
            uncontrolled_memory=self.uncontrolled.initial_memory(self._seats),
            last_action=jnp.full(self._seats, NO_ACTION, jnp.int32),
            first=jnp.ones(self.num_envs, bool),
            episode_return=jnp.zeros(self.num_envs),
            episode_length=jnp.zeros(self.num_envs, jnp.int32),
        )
        return settled(state)

    def play(
        self, controlled_params: PyTree, uncontrolled_params: PyTree, state: ArenaState, key: Array, num_steps: int
    ) -> tuple[ArenaState, Trajectory]:
        """Play `num_steps` in every environment. Returns the state to go on from and the trajectory [T, B, ...].

        Where an episode ends the environment restarts at once, with a new team and cleared memories: no step is wasted.
        """
        step = partial(self.step, controlled_params, uncontrolled_params)
        start_memory = state.controlled_memory
        state, trajectory = jax.lax.scan(step, state, self.keys(key, num_steps))
        return settled(state), trajectory._replace(start_memory=start_memory)

    @staticmethod
    def keys(key: Array, num_steps: int) -> Array:
        """Random keys for a number of steps, [T, 4]."""
        return jax.random.split(key, (num_steps, 4))

    def step(
        self, controlled_params: PyTree, uncontrolled_params: PyTree, s: ArenaState, keys: Array
    ) -> tuple[ArenaState, Trajectory]:
        """One step in every environment; keys [4]. Returns the state to go on from and the step's record [B, ...],
        without the memory at the start."""
        k_ours, k_theirs, k_step, k_restart = keys
        acted = self.act(controlled_params, uncontrolled_params, s, k_ours, k_theirs)
        for_env = jax.random.split(k_step, self.num_envs)
        now, record = self.note(s, acted, *jax.vmap(self.env.step)(for_env, s.env_state, acted.action))
        # Restarting means resetting every environment and choosing; skip it while nobody is done.
        return jax.lax.cond(now.first.any(), lambda: self.restart(now, self.reset(k_restart)), lambda: now), record

    def act(
        self, controlled_params: PyTree, uncontrolled_params: PyTree, s: ArenaState, k_ours: Array, k_theirs: Array
    ) -> Acted:
        """Everybody acts on what they see."""
        ts, team = s.time_step, s.team
        slot = jnp.broadcast_to(jnp.arange(self._seats[1], dtype=jnp.int32), self._seats)
        percept = Percept(ts.obs, ts.avail, s.last_action, slot)
        if any(getattr(policy, "told", "nothing") != "nothing" for policy in self.controlled.policies):
            told = describe(team, len(self.uncontrolled))[:, None]
            percept = percept._replace(told=jnp.broadcast_to(told, (*self._seats, told.shape[-1])))
        together = decided(Pieces(members=self.members)).members == "at-once"
        ours, ours_memory, log_prob = self.controlled.act(
            controlled_params, s.controlled_memory, s.seating[0], percept, k_ours, together
        )
        theirs, theirs_memory, _ = self.uncontrolled.act(
            uncontrolled_params, s.uncontrolled_memory, s.seating[1], percept, k_theirs, together
        )
        return Acted(jnp.where(team.controlled, ours, theirs), log_prob, ours_memory, theirs_memory)

    def note(self, s: ArenaState, acted: Acted, env_state: PyTree, after: TimeStep) -> tuple[ArenaState, Trajectory]:
        """What follows from a step of the worlds: the state, in which nothing has restarted and `first` says where an
        episode has ended, and the step's record [B, ...]."""
        ts = s.time_step
        now = ArenaState(
            env_state=env_state,
            time_step=after,
            team=s.team,
            seating=s.seating,
            controlled_memory=acted.controlled_memory,
            uncontrolled_memory=acted.uncontrolled_memory,
            last_action=acted.action,
            first=after.terminated | after.truncated,
            episode_return=s.episode_return + after.reward,
            episode_length=s.episode_length + 1,
        )
        record = Trajectory(
            obs=ts.obs,
            global_state=ts.global_state,
            avail=ts.avail,
            alive=ts.alive,
            last_action=s.last_action,
            first=s.first,
            team=s.team,
            action=acted.action,
            log_prob=acted.log_prob,
            reward=after.reward,
            terminated=after.terminated,
            truncated=after.truncated,
            next_obs=after.obs,
            next_avail=after.avail,
            next_global_state=after.global_state,
            episode_return=now.episode_return,
            episode_length=now.episode_length,
            metrics=after.metrics,
            start_memory=(),
        )
        return now, record

    def restart(self, now: ArenaState, fresh: ArenaState) -> ArenaState:
        """Episodes that have ended give way to `fresh` ones, the others go on."""
        mixed = where(now.first, fresh._replace(seating=()), now._replace(seating=()))
        return mixed._replace(seating=self._seat(mixed.team))
