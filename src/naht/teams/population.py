"""Populations: who could play. U and C are both populations; an empty one is fine."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from naht.agents.policy import Percept, Policy
from naht.agents.python import names_file
from naht.agents.saved import Agent, load_agent
from naht.agents.scripted import make_bot
from naht.agents.zoo import find_agents
from naht.envs.base import Array, EnvSpec, PyTree
from naht.errors import require
from naht.storage import digest, named_arrays


@dataclass(frozen=True)
class Member:
    """One team that may lend players: a policy that can sit in any slot, with its parameters."""

    name: str
    policy: Policy
    params: PyTree = ()
    greedy: bool = True
    """Take the best action instead of sampling. Scripted bots keep their own randomness."""


class Seating(NamedTuple):
    """Who sits where, as one group of a roster needs it: its members' seats one after the other. S seats, K members."""

    order: Array  # [S] int32: seats sorted by member; seats of nobody in the group come last
    place: Array  # [S] int32: where each seat stands in that order
    start: Array  # [K + 1] int32: the seats of member k are order[start[k]:start[k + 1]]


BLOCK = 32
"""Seats that act at once."""


@dataclass(frozen=True)
class Roster:
    """The static part of a population: which policy each member uses. Hashable, so compiled code can depend on it."""

    names: tuple[str, ...] = field(compare=False)
    """Not part of what is compiled: others of the same architectures share the code."""
    policies: tuple[Policy, ...]
    greedy: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def groups(self) -> tuple[tuple[Policy, bool, tuple[int, ...]], ...]:
        """Members of equal architecture, whose parameters are stacked: (policy, greedy, member indices)."""
        members: dict[tuple[Policy, bool], list[int]] = {}
        for i, kind in enumerate(zip(self.policies, self.greedy, strict=True)):
            members.setdefault(kind, []).append(i)
        return tuple((policy, greedy, tuple(indices)) for (policy, greedy), indices in members.items())

    def initial_memory(self, batch: tuple[int, ...]) -> tuple[PyTree, ...]:
        """One memory per group. A seat has one occupant, so members of a group share the space."""
        return tuple(policy.initial_memory(batch) for policy, _, _ in self.groups)

    def seat(self, occupied: Array, member: Array) -> tuple[Seating, ...]:
        """Per group, who sits where. occupied [...] bool: seats of this roster; member [...] int32: by whom."""
        seating = []
        for _, _, indices in self.groups:
            size = len(indices)
            local = np.full(len(self), size, np.int32)
            local[list(indices)] = np.arange(size)
            who = jnp.where(occupied, jnp.asarray(local)[member], size).reshape(-1)
            order = jnp.argsort(who, stable=True).astype(jnp.int32)
            start = (who[:, None] < jnp.arange(size + 1)).sum(0, dtype=jnp.int32)
            seating.append(Seating(order, jnp.argsort(order).astype(jnp.int32), start))
        return tuple(seating)

    def act(
        self,
        params: tuple[PyTree, ...],
        memory: tuple[PyTree, ...],
        seating: tuple[Seating, ...],
        percept: Percept,
        key: Array,
        at_once: bool = False,
    ) -> tuple[Array, tuple[PyTree, ...], Array]:
        """Everybody acts in their own seats. Returns (actions [...], memory, log-probabilities [...]).

        `params` holds, for each group, the members' parameters stacked on a leading axis. In seats of others, actions
        and log-probabilities are 0 and memories stay as they are: no time is spent on them.
        """
        batch = percept.slot.shape
        actions, log_probs = jnp.zeros(batch, jnp.int32), jnp.zeros(batch)
        new_memory = []
        keys = jax.random.split(key, len(self.groups)) if len(self.groups) > 1 else key[None]
        for (policy, greedy, _), p, m, where, k in zip(self.groups, params, memory, seating, keys, strict=False):
            serve = _all_blocks if at_once and not getattr(policy, "on_host", False) else _block_after_block
            action, m, log_prob = _act_in_blocks(partial(policy.act, greedy=greedy), p, m, where, percept, k, serve)
            actions, log_probs = actions + action, log_probs + log_prob
            new_memory.append(m)
        return actions, tuple(new_memory), log_probs


class Line(NamedTuple):
    """Seats in seating order, [S + block, ...]; the padding lets the last block be a full one."""

    percept: Percept
    memory: PyTree


Answers = tuple[Array, PyTree, Array]
"""Actions, memory, log-probabilities: leaves [S + block, ...]."""


def _act_in_blocks(
    act: Callable[..., Any],
    params: PyTree,
    memory: PyTree,
    where: Seating,
    percept: Percept,
    key: Array,
    serve: Callable[..., Answers],
) -> tuple[Array, PyTree, Array]:
    """Members act in blocks of their seats. Each block has its own random key, so it does not matter when."""
    batch, seats = percept.slot.shape, percept.slot.size
    block = min(BLOCK, seats)

    def line_up(leaf: Array) -> Array:
        rows = leaf.reshape(seats, *leaf.shape[len(batch) :])[where.order]
        return jnp.pad(rows, [(0, block)] + [(0, 0)] * (rows.ndim - 1))

    def back(rows: Array) -> Array:
        return rows[where.place].reshape(*batch, *rows.shape[1:])

    line = Line(*jax.tree.map(line_up, (percept, memory)))

    def act_at(member: PyTree, rows: Line, at: Array, end: Array) -> tuple[Answers, Array]:
        """One block: `rows` of the line, from place `at`. Returns its answers and which of them count."""
        mine = at + jnp.arange(block) < end
        # To a row that only fills up the block nothing is allowed: teammates in Python are not called for it.
        view = rows.percept._replace(avail=rows.percept.avail & mine[:, None])
        return act(member, rows.memory, view, jax.random.fold_in(key, at)), mine

    nothing = (jnp.zeros(seats + block, jnp.int32), line.memory, jnp.zeros(seats + block))
    action, memory, log_prob = jax.tree.map(back, serve(act_at, params, line, nothing, where.start, block))
    return action, memory, log_prob


def _kept(mine: Array, new: Array, old: Array) -> Array:
    return jnp.where(mine.reshape(*mine.shape, *[1] * (new.ndim - mine.ndim)), new.astype(old.dtype), old)


def _block_after_block(
    act_at: Callable[..., Any], params: PyTree, line: Line, answers: Answers, start: Array, block: int
) -> Answers:
    """Member after member, block after block.

    Loops run only as often as there are seats: populations may be large, and teams drawn in any way, at no cost.
    """
    size = start.shape[0] - 1

    def serve(k: int | Array, answers: Answers) -> Answers:
        member = jax.tree.map(lambda leaf: leaf[k], params)

        def serve_block(j: Array, answers: Answers) -> Answers:
            at = start[k] + j * block
            rows, old = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, at, block), (line, answers))
            new, mine = act_at(member, rows, at, start[k + 1])

            def write(leaf: Array, new: Array, old: Array) -> Array:
                return jax.lax.dynamic_update_slice_in_dim(leaf, _kept(mine, new, old), at, 0)

            return jax.tree.map(write, answers, new, old)

        return jax.lax.fori_loop(0, (start[k + 1] - start[k] + block - 1) // block, serve_block, answers)

    # One member needs no loop, and its parameters no copy.
    return serve(0, answers) if size == 1 else jax.lax.fori_loop(0, size, serve, answers)


def _all_blocks(
    act_at: Callable[..., Any], params: PyTree, line: Line, answers: Answers, start: Array, block: int
) -> Answers:
    """The same blocks, all at once: as many as there could be, however seats are shared out among members."""
    size, seats = start.shape[0] - 1, line.percept.slot.shape[0] - block
    blocks = -(-seats // block) + size - 1
    counts = (start[1:] - start[:-1] + block - 1) // block  # [K] blocks of each member
    ends = jnp.cumsum(counts)
    who = jnp.minimum((jnp.arange(blocks)[:, None] >= ends).sum(-1), size - 1)  # [blocks], whose each block is
    at = start[who] + (jnp.arange(blocks) - (ends - counts)[who]) * block
    at = jnp.where(jnp.arange(blocks) < ends[-1], at, seats)  # blocks that nobody needs lie beyond the line
    places = at[:, None] + jnp.arange(block)
    rows = jax.tree.map(lambda leaf: leaf.at[places].get(mode="fill", fill_value=0), line)
    members = jax.tree.map(lambda leaf: leaf[0] if size == 1 else leaf[who], params)
    end = jnp.where(at < seats, start[who + 1], 0)
    new, _ = jax.vmap(act_at, in_axes=(None if size == 1 else 0, 0, 0, 0))(members, rows, at, end)

    # Where each place of the line finds its answer.
    place = jnp.arange(seats + block)
    owner = jnp.minimum((place[:, None] >= start[1:]).sum(-1), size - 1)
    inside = place - start[owner]
    found = ((ends - counts)[owner] + inside // block) * block + inside % block
    taken = place < start[-1]

    def collect(new: Array, old: Array) -> Array:
        flat = new.reshape(blocks * block, *new.shape[2:])
        return _kept(taken, flat[jnp.where(taken, found, 0)], old)

    return jax.tree.map(collect, new, answers)


def load_members(wanted: Sequence[str | Path], spec: EnvSpec, *, found_in: str | None = None) -> list[Member]:
    """Members from what a user writes: names of bots, or saved agents by file, folder or name in the zoo.

    Names that do not come from the user but were `found_in` a file never run Python files.

    A saved agent keeps its own name, unless another has the same: then both are called by their paths.
    """
    names = [str(name) for name in wanted]
    python = [name for name in names if names_file(name)]
    require(
        found_in is None or not python,
        f"{found_in} names teammates in Python, {', '.join(python)}: playing with them runs these files. Name them "
        "yourself with --teammates, or add --trust",
    )
    members: list[Member] = []
    written: list[str] = []
    for name in names:
        files = find_agents(name, spec.name)
        if files is None:
            members.append(Member(name, make_bot(name, spec)))
            written.append(name)
        else:
            paths = [name] if len(files) == 1 else [str(path) for path in files]
            members += [saved_member(load_agent(file), path, spec) for file, path in zip(files, paths, strict=True)]
            written += paths
    return told_apart(members, written)


def saved_member(agent: Agent, path: str, spec: EnvSpec) -> Member:
    """An agent, loaded from a path, as a member on a task of these sizes."""
    require(
        agent.spec == spec,
        f"{path} was trained on {agent.spec}, which is not {spec}: teammates must share the task's sizes",
    )
    return Member(agent.name, agent.policy, agent.params)


def told_apart(members: Sequence[Member], names: Sequence[str]) -> list[Member]:
    """Members of the same name take those that the user wrote."""
    called = [member.name for member in members]
    return [
        member if called.count(member.name) == 1 else replace(member, name=name)
        for name, member in zip(names, members, strict=True)
    ]


def _fingerprint(member: Member) -> str:
    """The same on every machine. What a policy's settings don't show, such as code, is in its own `fingerprint`."""
    own = getattr(member.policy, "fingerprint", None) or re.sub(r" at 0x[0-9a-f]+", "", repr(member.policy))
    text = f"{own} {member.greedy} {digest(named_arrays(member.params))}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Population:
    """Named members with their parameters."""

    def __init__(self, members: Sequence[Member] = ()):
        names = tuple(m.name for m in members)
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        require(not twice, f"population members need distinct names: {', '.join(twice)} is given more than once")
        self.members = tuple(members)
        self.roster = Roster(names, tuple(m.policy for m in members), tuple(m.greedy for m in members))

    def __len__(self) -> int:
        return len(self.members)

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """By name, what tells members apart that may have the same name: a hash of policy and parameters."""
        return {member.name: _fingerprint(member) for member in self.members}

    @property
    def fingerprint(self) -> str:
        """A hash of all members, whatever they are called."""
        return hashlib.sha256("".join(self.fingerprints.values()).encode()).hexdigest()

    @cached_property
    def params(self) -> tuple[PyTree, ...]:
        """Per group of the roster, the members' parameters stacked on a leading axis."""
        groups = [[self.members[i].params for i in indices] for _, _, indices in self.roster.groups]
        with jax.ensure_compile_time_eval():  # kept for later, so nothing of a trace that asks first may be in it
            return tuple(jax.tree.map(_stack, *group) for group in groups)


def _stack(*leaves: Array) -> Array:
    """By NumPy where that can be: JAX would compile a program for each shape."""
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves):
        return jnp.stack(leaves)
    return jnp.asarray(np.stack(leaves))
