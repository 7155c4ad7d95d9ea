"""Populations: who could play. U and C are both populations; an empty one is fine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from naht.agents.policy import Percept, Policy
from naht.agents.saved import load_agent
from naht.agents.scripted import make_bot
from naht.envs.base import Array, EnvSpec, PyTree
from naht.errors import require


@dataclass(frozen=True)
class Member:
    """One team that may lend players: a policy that can sit in any slot, with its parameters."""

    name: str
    policy: Policy
    params: PyTree = ()
    greedy: bool = True
    """Take the best action instead of sampling. Scripted bots keep their own randomness."""


@dataclass(frozen=True)
class Roster:
    """The static part of a population: which policy each member uses. Hashable, so compiled code can depend on it."""

    names: tuple[str, ...]
    policies: tuple[Policy, ...]
    greedy: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def groups(self) -> tuple[tuple[Policy, bool, tuple[int, ...]], ...]:
        """Members of equal architecture, which act together: (policy, greedy, member indices)."""
        members: dict[tuple[Policy, bool], list[int]] = {}
        for i, kind in enumerate(zip(self.policies, self.greedy, strict=True)):
            members.setdefault(kind, []).append(i)
        return tuple((policy, greedy, tuple(indices)) for (policy, greedy), indices in members.items())

    def initial_memory(self, batch: tuple[int, ...]) -> tuple[PyTree, ...]:
        """One memory per group. A seat has one occupant, so members of a group share the space."""
        return tuple(policy.initial_memory(batch) for policy, _, _ in self.groups)

    def act(
        self, params: tuple[PyTree, ...], memory: tuple[PyTree, ...], member: Array, percept: Percept, key: Array
    ) -> tuple[Array, tuple[PyTree, ...], Array]:
        """Every seat acts by its own member. member [...] int32 -> (actions [...], memory, log-probabilities [...]).

        `params` holds, for each group, the members' parameters stacked on a leading axis. Each group acts in every seat
        and the seat keeps its occupant's answer: no Python branch depends on who plays.
        """
        actions, log_probs = jnp.zeros(member.shape, jnp.int32), jnp.zeros(member.shape)
        new_memory = []
        for (policy, greedy, indices), p, m, k in zip(
            self.groups, params, memory, jax.random.split(key, max(len(self.groups), 1)), strict=False
        ):
            local = np.zeros(len(self), np.int32)
            local[list(indices)] = np.arange(len(indices))
            act = partial(policy.act, memory=m, percept=percept, key=k, greedy=greedy)
            answers = jax.vmap(act, axis_size=len(indices))(p)
            action, m, log_prob = _select(answers, jnp.asarray(local)[member])
            seated = jnp.isin(member, jnp.asarray(indices))
            actions, log_probs = jnp.where(seated, action, actions), jnp.where(seated, log_prob, log_probs)
            new_memory.append(m)
        return actions, tuple(new_memory), log_probs


def _select(answers: PyTree, index: Array) -> Any:
    """Leaves [K, *seats, ...] -> [*seats, ...], taking entry index [*seats] of the leading axis."""

    def take(leaf: Array) -> Array:
        if leaf.shape[0] == 1:
            return leaf[0]
        wide = index.reshape((1, *index.shape) + (1,) * (leaf.ndim - 1 - index.ndim))
        return jnp.take_along_axis(leaf, jnp.broadcast_to(wide, (1, *leaf.shape[1:])), axis=0)[0]

    return jax.tree.map(take, answers)


def load_members(names: Sequence[str], spec: EnvSpec) -> list[Member]:
    """Members from what a user writes: names of scripted bots, or paths of saved agents and run folders."""
    return [_load_member(name, spec) for name in names]


def _load_member(name: str, spec: EnvSpec) -> Member:
    if not Path(name).exists():
        return Member(name, make_bot(name, spec))
    agent = load_agent(name)
    require(
        agent.spec == spec,
        f"{name} was trained on {agent.spec}, which is not {spec}: teammates must share the task's sizes",
    )
    return Member(name, agent.policy, agent.params)


class Population:
    """Named members with their parameters."""

    def __init__(self, members: Sequence[Member] = ()):
        names = tuple(m.name for m in members)
        require(len(set(names)) == len(names), f"population members need distinct names, got {', '.join(names)}")
        self.members = tuple(members)
        self.roster = Roster(names, tuple(m.policy for m in members), tuple(m.greedy for m in members))

    def __len__(self) -> int:
        return len(self.members)

    @cached_property
    def params(self) -> tuple[PyTree, ...]:
        """Per group of the roster, the members' parameters stacked on a leading axis."""
        groups = [[self.members[i].params for i in indices] for _, _, indices in self.roster.groups]
        return tuple(jax.tree.map(lambda *leaves: jnp.stack(leaves), *group) for group in groups)
