"""The value-based learner. IQL, VDN and QMIX are settings of it: they differ in how agents' values become the team's.

Experience is replayed in sequences: what one team of agents saw in one rollout, from the memory it had at its start. On
tasks of fixed length these are whole episodes. Axes: T steps, B environments, M agents, C sequences of a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.flatten_util import ravel_pytree

from naht.agents.networks import NetworkConfig, dense, init_params
from naht.agents.policy import pick
from naht.agents.value import ValueParams, ValuePolicy, best_action
from naht.config import MOST_ENVS, Count, NotNegative, Positive, Range, Share, Width, setting
from naht.devices import SHARED, check_devices, own_key, zeros
from naht.envs.base import Array, EnvSpec, PyTree
from naht.errors import require
from naht.learning.learner import ALONE, Circumstances
from naht.learning.minibatches import Metrics, Minibatches, chunked_gradient
from naht.learning.normalisation import RunningStats, masked_sum
from naht.learning.optimisation import anneal, as_vector, clipped_adam, start
from naht.learning.returns import td_lambda
from naht.pieces import CACHE, Pieces, at_most
from naht.rollout import Trajectory

Mixing = Literal["none", "sum", "monotonic"]


@setting
@dataclass(frozen=True)
class ValueConfig:
    """Settings of the value-based learner."""

    num_envs: Annotated[int, Range(1, MOST_ENVS)] = 32
    """Environments in a batch; each plays `rollout_steps` per update."""
    rollout_steps: Count | None = None
    """Steps per environment and batch; None: one horizon, so that fixed-length tasks give whole episodes."""
    mixing: Mixing = "none"
    """How agents' values become the team's: not at all (IQL), as their sum (VDN), by a monotonic network (QMIX)."""
    capacity: Count = 5000
    """Sequences that the replay holds."""
    batch: Count = 32
    """Sequences per optimiser step."""
    updates_per_sequence: Positive = 1.0
    """Optimiser steps per collected sequence."""
    learning_starts: Count = 32
    """Sequences to collect before the first optimiser step."""
    lr: Positive = 5e-4
    """Learning rate."""
    lr_end: NotNegative | None = None
    """Learning rate at the end of the run (linear in between); None: constant."""
    max_grad_norm: Positive = 10.0
    """Gradients are scaled down to this norm."""
    gamma: Share = 0.99
    """Discount."""
    td_lambda: Share = 0.0
    """Lambda of the targets: 0 is one step, more looks further ahead along what was done (Peng's Q(lambda))."""
    double_q: bool = True
    """The online network chooses the next action, the target network values it."""
    target_every: Count = 200
    """Optimiser steps between updates of the target network."""
    target_rate: Share = 1.0
    """How far the target network then moves: 1 copies, less is a soft update."""
    epsilon_start: Share = 1.0
    """Probability of a random action at the start."""
    epsilon_end: Share = 0.05
    """The same at the end of the schedule."""
    epsilon_steps: Count = 50_000
    """Environment steps of the schedule, linear."""
    standardise_rewards: Literal["mean-std", "std", "no"] = "mean-std"
    """Standardise rewards by running statistics: mean and std, std only, or not at all."""
    bootstrap_time_limit: bool = False
    """Bootstrap from the value of the last observation when the clock ends an episode."""
    network: NetworkConfig = NetworkConfig(layers=1, layer_norm=False, input_norm=False)
    """The agents' network of action values."""
    mixing_width: Width = 32
    """Width of the monotonic mixing network."""
    mixing_hidden: Width = 64
    """Width of the networks that give its weights."""

    def __post_init__(self) -> None:
        require(
            self.capacity % self.num_envs == 0,
            f"capacity is {self.capacity}: it must be a multiple of num_envs, {self.num_envs}",
        )
        require(self.batch <= self.capacity, f"batch is {self.batch}: the replay holds {self.capacity} sequences")

    def learner(self, spec: EnvSpec, around: Circumstances = ALONE) -> ValueBased:
        """See `LearnerSettings`."""
        return ValueBased(spec, self, around.devices, around.pieces)


class Mixer(nn.Module):
    """QMIX: a two-layer network of the agents' values whose weights are positive functions of the global state."""

    width: int
    hidden: int

    @nn.compact
    def __call__(self, values: Array, state: Array) -> Array:
        """values [..., M], state [..., S] -> [...]."""
        m, width, hidden = values.shape[-1], self.width, self.hidden

        def layer(outputs: int, x: Array) -> Array:
            # Small weights at first: large ones multiply each other, and errors with them.
            return dense(outputs, 3**-0.5)(x)

        # All that is read off the state, in one product.
        read = layer(2 * hidden + 2 * width, state)
        for_first, for_last, for_offset, bias = jnp.split(read, [hidden, 2 * hidden, 2 * hidden + width], axis=-1)
        first = jnp.abs(layer(m * width, nn.relu(for_first))).reshape(*state.shape[:-1], m, width)
        last = jnp.abs(layer(width, nn.relu(for_last)))
        offset = layer(1, nn.relu(for_offset))[..., 0]
        return (nn.elu((values[..., None] * first).sum(-2) + bias) * last).sum(-1) + offset


class Sequences(NamedTuple):
    """What the replay keeps: leaves [K, T + 1, ...], the last step being what followed, before any restart."""

    obs: Array  # [K, T + 1, M, O]
    avail: Array  # [K, T + 1, M, A] bool
    last_action: Array  # [K, T + 1, M] int8
    first: Array  # [K, T + 1] bool
    controlled: Array  # [K, T + 1, M] bool: agents whose values make up the team's, dead or alive
    global_state: Array  # [K, T + 1, S]; width 0 unless values are mixed by it
    action: Array  # [K, T, M] int8
    reward: Array  # [K, T] as the environment gave it
    ends: Array  # [K, T] bool: nothing of value follows
    known: Array  # [K, T] bool: what follows is in the sequence, or nothing does
    memory: Array  # [K, M, H] of the agents' network, before the first step

    def take(self, rows: Array) -> tuple[Sequences]:
        """Sequences by index [C], time first: leaves [T, C, ...] but for the memory. Beyond the end they are empty."""
        taken = jax.tree.map(lambda leaf: jnp.take(leaf, rows, axis=0, mode="fill", fill_value=0), self)
        return (jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), taken)._replace(memory=taken.memory),)


class TeamParams(NamedTuple):
    network: PyTree
    mixer: PyTree  # empty unless values are mixed by a network


class ValueState(NamedTuple):
    params: TeamParams
    target: TeamParams
    opt: PyTree
    reward_stats: RunningStats
    collected: Array  # [] int32, sequences so far, on all devices
    updates: Array  # [] int32, optimiser steps so far


@dataclass(frozen=True)
class ValueBased:
    """The learner: `init`, then `update` once per batch of experience."""

    spec: EnvSpec
    config: ValueConfig
    devices: int = 1
    pieces: Pieces = CACHE

    def __post_init__(self) -> None:
        check_devices(self.devices, capacity=self.config.capacity, batch=self.config.batch)
        require(self.spec.num_actions < 128, f"the replay stores at most 127 actions, the task has more: {self.spec}")

    @property
    def policy(self) -> ValuePolicy:
        return ValuePolicy(self.spec, self.config.network)

    @property
    def num_envs(self) -> int:
        return self.config.num_envs

    @property
    def rollout_steps(self) -> int:
        return self.config.rollout_steps or self.spec.horizon

    @property
    def updates(self) -> int:
        """Optimiser steps per batch of experience."""
        return max(1, round(self.config.updates_per_sequence * self.num_envs))

    @property
    def mixer(self) -> Mixer:
        return Mixer(self.config.mixing_width, self.config.mixing_hidden)

    @property
    def state_size(self) -> int:
        """Width of the global state as the mixer reads it."""
        return self.spec.state_size if self.config.mixing == "monotonic" else 0

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """On all parameters as a vector; the learning rate comes with each update."""
        return clipped_adam(self.config.max_grad_norm)

    def init(self, key: Array) -> ValueState:
        k_network, k_mixer = jax.random.split(key)
        m, c = self.spec.num_agents, self.config
        mixer = {}
        if c.mixing == "monotonic":
            mixer = init_params(self.mixer, k_mixer, zeros(1, m), zeros(1, self.state_size))
        params = TeamParams(self.policy.init(k_network).network, mixer)
        nothing, opt = zeros(dtype=np.int32), start(self.optimiser, params)
        return ValueState(params, params, opt, RunningStats.start(), collected=nothing, updates=nothing)

    def init_experience(self) -> Sequences:
        """An empty replay."""
        spec, k, t = self.spec, self.config.capacity, self.rollout_steps
        m = spec.num_agents
        return Sequences(
            obs=zeros(k, t + 1, m, spec.obs_size),
            avail=zeros(k, t + 1, m, spec.num_actions, dtype=bool),
            last_action=zeros(k, t + 1, m, dtype=np.int8),
            first=zeros(k, t + 1, dtype=bool),
            controlled=zeros(k, t + 1, m, dtype=bool),
            global_state=zeros(k, t + 1, self.state_size),
            action=zeros(k, t, m, dtype=np.int8),
            reward=zeros(k, t),
            ends=zeros(k, t, dtype=bool),
            known=zeros(k, t, dtype=bool),
            memory=self.policy.initial_memory((k, m)),
        )

    @property
    def layout(self) -> PyTree:
        """All devices share the state."""
        return SHARED

    def policy_params(self, state: ValueState) -> ValueParams:
        """What the policy needs to act, exploration included."""
        c = self.config
        passed = state.collected * self.rollout_steps / c.epsilon_steps
        epsilon = c.epsilon_start + (c.epsilon_end - c.epsilon_start) * jnp.minimum(passed, 1.0)
        return ValueParams(state.params.network, epsilon)

    def decoder_params(self, state: ValueState) -> PyTree:
        """There is no teammate model."""
        del state
        return {}

    def sequences(self, tr: Trajectory) -> Sequences:
        """A batch of experience as the replay keeps it: leaves [T, B, ...] -> leaves [B, T or T + 1, ...]."""
        cut = tr.done.at[-1].set(False) if self.config.bootstrap_time_limit else jnp.zeros_like(tr.done)
        nobody = jnp.zeros_like(tr.first[:1])

        def joined(steps: Array, end: Array) -> Array:
            return jnp.concatenate([steps, end]).swapaxes(0, 1)

        return Sequences(
            obs=joined(tr.obs, tr.next_obs[-1:]),
            avail=joined(tr.avail, tr.next_avail[-1:]),
            last_action=joined(tr.last_action, tr.action[-1:]).astype(jnp.int8),
            first=joined(tr.first, nobody),
            controlled=joined(tr.team.controlled, tr.team.controlled[-1:]),
            global_state=joined(tr.global_state, tr.next_global_state[-1:])[..., : self.state_size],
            action=tr.action.swapaxes(0, 1).astype(jnp.int8),
            reward=tr.reward.swapaxes(0, 1),
            ends=(tr.terminated if self.config.bootstrap_time_limit else tr.done).swapaxes(0, 1),
            known=~(cut & ~tr.terminated).swapaxes(0, 1),
            memory=tr.start_memory[0],
        )

    def update(
        self, state: ValueState, experience: Sequences, trajectory: Trajectory, key: Array, progress: Array
    ) -> tuple[ValueState, Sequences, Metrics]:
        """Remember one batch and learn from the replay. progress [] in 0..1 is the fraction of the run so far."""
        c = self.config
        new = self.sequences(trajectory)
        room, arrived = experience.reward.shape[0], new.reward.shape[0]
        # Batches fit into the replay without remainder, so that one is never cut in two.
        position = state.collected // self.devices % room
        experience = jax.tree.map(
            lambda old, leaf: jax.lax.dynamic_update_slice_in_dim(old, leaf, position, 0), experience, new
        )
        collected = state.collected + arrived * self.devices
        state = state._replace(collected=collected, reward_stats=state.reward_stats.update(new.reward, self.devices))
        rows = self.draw(own_key(key, self.devices), jnp.minimum(collected // self.devices, room), room)

        def learn() -> tuple[ValueState, Metrics]:
            return self.learn(state, experience, rows, anneal(c.lr, c.lr_end, progress))

        def wait() -> tuple[ValueState, Metrics]:
            return state, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(learn)[1])

        state, metrics = jax.lax.cond(collected >= c.learning_starts, learn, wait)
        return state, experience, metrics | {"value/epsilon": self.policy_params(state).epsilon}

    def draw(self, key: Array, size: Array, room: int) -> Array:
        """Sequences for every optimiser step [U, batch], each at most once a step, among the `size` that are there."""
        wanted = min(self.config.batch // self.devices, room)
        chance = jax.random.uniform(key, (self.updates, room))
        best, rows = jax.lax.top_k(jnp.where(jnp.arange(room) < size, chance, -1.0), wanted)
        return jnp.where(best < 0, room, rows)

    def learn(
        self, state: ValueState, experience: Sequences, rows: Array, rate: Array | float
    ) -> tuple[ValueState, Metrics]:
        """One optimiser step per row of `rows` [U, batch]."""
        c = self.config
        chunk = at_most(self.pieces.sequences, rows.shape[1])
        chunks = ceil(rows.shape[1] / chunk)
        rows = jnp.pad(rows, ((0, 0), (0, chunks * chunk - rows.shape[1])), constant_values=c.capacity)
        deal = Minibatches(rows.reshape(-1, chunks, chunk), jnp.full(rows.shape[0], chunks))
        vector, as_tree = ravel_pytree(state.params)

        def step(carry: tuple[Array, Array, PyTree, Array], minibatch: Minibatches) -> tuple[PyTree, Metrics]:
            vector, target, opt, updates = carry
            loss = partial(self.loss, as_tree(target), state.reward_stats)
            gradient, log = chunked_gradient(loss, as_tree(vector), experience, minibatch, self.devices)
            change, opt = self.optimiser.update(gradient, opt)
            vector, updates = vector - rate * change, updates + 1
            target = jnp.where(
                updates % c.target_every == 0, (1.0 - c.target_rate) * target + c.target_rate * vector, target
            )
            return (vector, target, opt, updates), log | {"gradient_norm": optax.tree.norm(gradient)}

        start = (vector, as_vector(state.target), state.opt, state.updates)
        (vector, target, opt, updates), log = jax.lax.scan(step, start, deal)
        state = state._replace(params=as_tree(vector), target=as_tree(target), opt=opt, updates=updates)
        return state, {f"value/{name}": values.mean() for name, values in log.items()}

    def loss(
        self, target: TeamParams, stats: RunningStats, params: TeamParams, s: Sequences
    ) -> tuple[Array, tuple[Array, Metrics]]:
        """Squared temporal-difference errors of the team's value, or of every agent's own."""
        c = self.config
        steps, rows, m = s.last_action.shape
        seats = jnp.broadcast_to(jnp.arange(m), s.last_action.shape)
        x = self.policy.inputs(s.obs, s.last_action, seats).reshape(steps, rows * m, -1)
        h0, first = s.memory.reshape(rows * m, -1), jnp.repeat(s.first, m, axis=1)

        def values_of(network: PyTree) -> Array:
            return self.policy.critic.apply(network, x, h0, first)[0].reshape(steps, rows, m, -1)

        online, frozen = values_of(params.network), values_of(target.network)
        chosen = pick(online[:-1], s.action)
        best = best_action((online if c.double_q else frozen)[1:], s.avail[1:])
        following = pick(frozen[1:], best)
        # The team's reward goes on after an agent's death, so the dead have values too (of their only action).
        now, then = s.controlled[:-1], s.controlled[1:]
        reward, follows = s.reward, ~s.ends
        if c.standardise_rewards != "no":
            reward = stats.standardise(reward, subtract_mean=c.standardise_rewards == "mean-std")
        if c.mixing == "none":
            value, next_value = chosen, following
            reward, follows = reward[..., None], follows[..., None]
            weight = now & s.known[..., None]
        else:
            value = self.mix(params.mixer, jnp.where(now, chosen, 0.0), s.global_state[:-1])
            next_value = self.mix(target.mixer, jnp.where(then, following, 0.0), s.global_state[1:])
            weight = now.any(-1) & s.known
        # Looking ahead stops before a restart, and before a step whose own future is not known.
        cut = jnp.append(s.first[1:-1] | ~s.known[1:], jnp.ones((1, rows), bool), axis=0)
        cut = cut.reshape(cut.shape + (1,) * (value.ndim - 2))
        goal = jax.lax.stop_gradient(td_lambda(reward, next_value, c.gamma * follows, cut, c.td_lambda))
        weight = weight.astype(jnp.float32)
        error = value - goal
        metrics = {
            "loss": masked_sum(error**2, weight),
            "error": masked_sum(jnp.abs(error), weight),
            "chosen": masked_sum(value, weight),
            "target": masked_sum(goal, weight),
        }
        return metrics["loss"], (weight.sum(), metrics)

    def mix(self, mixer: PyTree, values: Array, state: Array) -> Array:
        """The team's value: values [..., M] of its agents, 0 for uncontrolled ones, state [..., S] -> [...]."""
        return values.sum(-1) if self.config.mixing == "sum" else self.mixer.apply(mixer, values, state)
