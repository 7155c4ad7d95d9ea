"""Agents on disk: parameters and a card in one safetensors file, and a copy of the card for human eyes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

# Files name the classes that these register.
import naht.agents.epymarl
import naht.agents.value
import naht.envs.bit_game
import naht.envs.predator_prey
import naht.envs.smac.task  # noqa: F401
from naht.agents.policy import NO_ACTION, Percept, Policy
from naht.agents.recurrent import RecurrentPolicy
from naht.config import decode, encode, is_number
from naht.envs.base import Array, Environment, EnvSpec, PyTree, task_hash
from naht.errors import Damaged, NahtError, require, short
from naht.storage import check_weights, named_arrays, read_arrays, tree_like, write_arrays, write_file
from naht.version import __version__

SUFFIX = ".safetensors"
CARD_SUFFIX = ".card.json"
LARGEST_FILE = 2**28
"""Bytes of an agent's file, at most."""
DECODERS = "decoders"
"""The arrays of a file that belong to the teammate model's decoders begin with this."""


@dataclass(frozen=True)
class Agent:
    """A policy, its parameters, and where it comes from. One agent can fill any number of seats."""

    name: str
    policy: Policy
    params: PyTree
    spec: EnvSpec
    """The task's sizes, as trained."""
    card: dict[str, Any]
    """Facts about the training: algorithm, seed, steps, returns."""
    decoders: PyTree = field(default_factory=dict)
    """Parameters of the teammate model's decoders, which `believe` needs and `act` doesn't; empty without a model."""

    def act(
        self,
        obs: Array,
        *,
        memory: PyTree = None,
        slot: int | Array = 0,
        avail: Array | None = None,
        key: Array | None = None,
    ) -> tuple[Array, PyTree]:
        """Act for one seat or a batch of seats: obs [..., O] -> (actions [...] int32, memory for the next step).

        Pass the returned memory back at the next step, and None when an episode starts. `slot` [...] is the seat in the
        team, `avail` [..., A] the allowed actions (default: all). Without a `key` the agent takes its best action.
        """
        allowed = None if avail is None else jnp.asarray(avail)
        return _act(self.policy, self.spec.num_actions, self.params, memory, self._seen(obs), slot, allowed, key)

    def believe(self, obs: Array, *, memory: PyTree = None, slot: int | Array = 0) -> tuple[Array, Array]:
        """What the agent thinks of its teammates, from what `act` gets in the same situation (same obs and memory):
        their observations [..., M-1, O] and the probabilities of their actions [..., M-1, A], in the order of seats."""
        require(bool(self.decoders), f"{self.name} has no teammate model, or its file does not keep its decoders")
        assert isinstance(self.policy, RecurrentPolicy)
        return _believe(self.policy, self.spec.num_actions, self.params, self.decoders, memory, self._seen(obs), slot)

    def _seen(self, obs: Array) -> Array:
        obs = jnp.asarray(obs, jnp.float32)
        sees, got = f"{self.name} sees {self.spec.obs_size} numbers on '{self.spec.name}'", obs.shape[-1:]
        require(got == (self.spec.obs_size,), f"{sees}, got {got[0] if got else 'one'}")
        return obs

    def fact(self, name: str) -> Any:
        """What the card says. It is an error if it does not."""
        require(name in self.card, f"{self.name} has no {name} on its card")
        return self.card[name]

    def save(self, path: str | Path, *, float16: bool = False) -> Path:
        """Write `path` (ending in .safetensors) and, beside it, the card as readable JSON.

        With `float16` the parameters take half the space, and lose what that rounds off.
        """
        path = Path(path)
        require(path.suffix == SUFFIX, f"an agent's file ends in {SUFFIX}, got '{path.name}'")
        header = {
            "kind": "agent",
            "name": self.name,
            "policy": encode(self.policy),
            "spec": encode(self.spec),
            "card": self.card | {"naht": __version__},
        }
        arrays = named_arrays(self.params) | named_arrays({DECODERS: self.decoders})
        if float16:
            arrays = {name: a.astype(np.float16) if a.dtype == np.float32 else a for name, a in arrays.items()}
        header = write_arrays(path, arrays, header)
        write_file(path.with_suffix(CARD_SUFFIX), _card(header))
        return path


def _card(header: dict[str, Any]) -> bytes:
    """What an agent's file says of it, for people to read."""
    return (json.dumps(header, indent=2) + "\n").encode()


def is_saved(path: Path) -> bool:
    """Are an agent's file and its card there, undamaged? What may not be read is an error."""
    card = path.with_suffix(CARD_SUFFIX)
    try:
        return path.is_file() and card.is_file() and card.read_bytes() == _card(read_arrays(path)[1])
    except Damaged:
        return False


def load_agent(path: str | Path) -> Agent:
    """Load an agent from its file, or the best one of a run folder. Never executes anything from the file."""
    path = Path(path)
    if path.is_dir():
        path = path / f"best{SUFFIX}"
    arrays, header = read_arrays(path, most=LARGEST_FILE)
    if header.get("kind") != "agent":
        raise NahtError(f"{path} holds a {str(header.get('kind'))[:60]}, not an agent")
    check_weights(arrays, str(path))
    _check_header(header, path)
    try:
        policy, spec = decode(header["policy"]), decode(header["spec"])
    except NahtError as e:
        raise NahtError(f"{path}: {e}") from e
    require(hasattr(policy, "act"), f"{path}: its policy is a {type(policy).__name__}, which can't act")
    require(isinstance(spec, EnvSpec), f"{path}: its spec is a {type(spec).__name__}")
    require(getattr(policy, "spec", spec) == spec, f"{path}: its policy is for another task than its spec")
    template = _template(policy)
    stored = {tuple(name.split("/")[1:]): arrays.pop(name) for name in list(arrays) if name.startswith(f"{DECODERS}/")}
    params = tree_like(template, arrays, str(path))
    # As they were stored: a network for them is built only when somebody asks what the agent believes.
    decoders = unflatten_dict({name: np.asarray(a, np.float32) for name, a in stored.items()})
    return Agent(header["name"], policy, params, spec, header["card"], decoders)


@lru_cache(maxsize=256)
def _template(policy: Policy) -> PyTree:
    """The shapes of a policy's parameters. A population has many of one architecture."""
    return jax.eval_shape(policy.init, jax.random.key(0))


def _perceive(
    policy: Policy, num_actions: int, memory: PyTree, obs: Array, slot: int | Array, avail: Array | None
) -> tuple[PyTree, Percept]:
    """The policy's own memory and what it sees."""
    batch = obs.shape[:-1]
    inner, last_action = memory or (policy.initial_memory(batch), jnp.full(batch, NO_ACTION, jnp.int32))
    allowed = jnp.ones((*batch, num_actions), bool) if avail is None else avail
    seat = jnp.broadcast_to(jnp.asarray(slot, jnp.int32), batch)
    return inner, Percept(obs, allowed, last_action, seat)


# Compiled: operation by operation, the first call would take seconds and all others a hundred times as long.
@partial(jax.jit, static_argnums=(0, 1))
def _act(
    policy: Policy,
    num_actions: int,
    params: PyTree,
    memory: PyTree,
    obs: Array,
    slot: int | Array,
    avail: Array | None,
    key: Array | None,
) -> tuple[Array, PyTree]:
    inner, percept = _perceive(policy, num_actions, memory, obs, slot, avail)
    chance = jax.random.key(0) if key is None else key
    action, inner, _ = policy.act(params, inner, percept, chance, key is None)
    return action, (inner, action)


@partial(jax.jit, static_argnums=(0, 1))
def _believe(
    policy: RecurrentPolicy,
    num_actions: int,
    params: PyTree,
    decoders: PyTree,
    memory: PyTree,
    obs: Array,
    slot: int | Array,
) -> tuple[Array, Array]:
    return policy.believe(params, decoders, *_perceive(policy, num_actions, memory, obs, slot, None))


CARD: dict[str, type | tuple[type, ...]] = {
    "task": dict,
    "task_hash": str,
    "algorithm": str,
    "seed": int,
    "steps": int,
    "test_return": (int, float),
    "measured": dict,
    "config": dict,
    "naht": str,
    "float16": dict,
    "source": dict,
}
"""What a card may say that anybody reads, and as what."""


def _check_header(header: dict[str, Any], path: Path) -> None:
    """Everything that is read from a header or card later is there, and of its type."""
    for name, kind in (("name", str), ("policy", dict), ("spec", dict), ("card", dict)):
        require(isinstance(header.get(name), kind), f"{path}: '{name}' is {short(header.get(name))}")
    require(is_label(header["name"]), f"{path}: 'name' is {short(header['name'])}")
    card = header["card"]
    for name, kinds in CARD.items():
        fine = name not in card or (isinstance(card[name], kinds) and not isinstance(card[name], bool))
        fine = fine and (kinds is not str or is_label(card.get(name, "-")))
        require(fine, f"{path}: '{name}' on its card is {short(card.get(name))}")
    for name, value in card.get("measured", {}).items():
        require(is_number(value), f"{path}: 'measured' on its card has {name} {short(value)}")
    measured = card.get("measured", {"return": 0, "half_width_95": 0, "episodes": 0})
    missing = [name for name in ("return", "half_width_95", "episodes") if name not in measured]
    require(not missing, f"{path}: 'measured' on its card lacks {', '.join(missing)}")
    teams = card.get("config", {}).get("teams", {})
    teammates = teams.get("teammates", []) if isinstance(teams, dict) else None
    fine = isinstance(teammates, list) and all(isinstance(name, str) for name in teammates)
    require(fine, f"{path}: the teammates on its card are {short(teammates)}")


def is_label(text: str) -> bool:
    """Can this be shown in a table?"""
    return 0 < len(text) <= 200 and text.isprintable()


def task_of(agents: Sequence[Agent]) -> Environment:
    """The task that these agents were trained on. An error if they differ in it, or if the world has changed since."""
    tasks: list[Environment] = []
    for agent in agents:
        settings = agent.fact("task")
        env = decode(settings)
        sizes = getattr(env, "spec", None)
        require(sizes == agent.spec, f"{agent.name}: its card's task has {sizes}, the agent {agent.spec}")
        require(
            agent.card.get("task_hash") in (None, task_hash(env, settings)),
            f"{agent.name} was trained in another world: settings are the same, but a file that the task reads has "
            "changed",
        )
        tasks.append(env)
    different = len({task_hash(env) for env in tasks})
    require(different == 1, f"these agents were trained on {different} different tasks, they can't meet")
    return tasks[0]
