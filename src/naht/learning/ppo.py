"""The PPO learner. POAM, IPPO-NAHT and POAM-AHT are settings of it.

An update reads like the paper: embed the team, value every step, TD(lambda) targets, then epochs of minibatches for the
teammate model, the actor and the critic. Axes: T steps, B environments, M agents; R rows are what minibatches are drawn
from (whole episodes, or sequences cut from them), each [L, M, ...] with L steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from naht.agents.networks import NetworkConfig, RecurrentNetwork
from naht.agents.policy import masked_log_probs, pick
from naht.agents.recurrent import RecurrentParams, RecurrentPolicy
from naht.agents.teammate_model import ModelConfig, TeammateDecoders, others
from naht.config import setting
from naht.envs.base import Array, EnvSpec, PyTree
from naht.errors import require
from naht.learning.normalisation import RunningStats, masked_mean, masked_standardise, masked_sum
from naht.learning.returns import td_lambda
from naht.rollout import Trajectory


@setting
@dataclass(frozen=True)
class PPOConfig:
    """Settings of the PPO learner."""

    num_envs: int = 256
    """Environments in a batch; each plays `rollout_steps` per update."""
    rollout_steps: int | None = None
    """Steps per environment and update; None: one horizon, so that fixed-length tasks give whole episodes."""
    epochs: int = 5
    """Passes over each batch."""
    minibatches: int = 1
    """Optimiser steps per pass."""
    sequence_length: int | None = None
    """Cut the batch into sequences of this many steps, each starting from its stored hidden state; None: uncut."""
    lr: float = 5e-4
    """Learning rate of actor and critic."""
    lr_end: float | None = None
    """Learning rate at the end of the run (linear in between); None: constant."""
    max_grad_norm: float = 10.0
    """Gradients of actor and critic are each scaled down to this norm."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 0.95
    """Lambda of the TD(lambda) targets and advantages."""
    clip: float = 0.1
    """PPO's clip of the probability ratio, and of the value's change with `clip_value`."""
    clip_value: bool = False
    """Clip the value's change as well."""
    entropy: float = 0.05
    """Weight of the entropy bonus."""
    entropy_end: float | None = None
    """Entropy weight at the end of the run (linear in between); None: constant."""
    value_loss: Literal["mse", "huber"] = "mse"
    """Loss of the critic."""
    huber_delta: float = 10.0
    """Where the Huber loss turns linear."""
    standardise_rewards: Literal["mean-std", "std", "no"] = "mean-std"
    """Standardise rewards by running statistics: mean and std, std only, or not at all."""
    standardise_advantages: bool = True
    """Standardise advantages over the batch's controlled agents."""
    bootstrap_time_limit: bool = False
    """Bootstrap from the value of the last observation when the clock ends an episode (the paper's code does not)."""
    actor_memory: Literal["bptt", "stored"] = "bptt"
    """Train the actor through time, or each step from the hidden state stored at collection."""
    critic_memory: Literal["bptt", "stored"] = "bptt"
    """The same for the critic."""
    uncontrolled_data: bool = True
    """Train the critic on the uncontrolled agents' data as well (UCD)."""
    modelling: bool = True
    """Teammate model on (POAM) or off (IPPO)."""
    model_epochs: int = 5
    """Passes of the teammate model over each batch."""
    model_minibatches: int = 1
    """Optimiser steps of the teammate model per pass."""
    model_lr: float = 5e-4
    """Learning rate of the teammate model."""
    model_max_grad_norm: float = 5.0
    """Gradients of the teammate model are scaled down to this norm."""
    chunk: int = 4
    """Rows whose gradient is computed at once: small enough for the processor's cache. Changes speed only."""
    network: NetworkConfig = NetworkConfig()
    """Actor and critic."""
    model: ModelConfig = ModelConfig()
    """Teammate model."""

    def __post_init__(self) -> None:
        counts = ("num_envs", "epochs", "minibatches", "model_epochs", "model_minibatches", "chunk")
        positive = ("lr", "max_grad_norm", "clip", "huber_delta", "model_lr", "model_max_grad_norm")
        for name in counts:
            require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}: it must be at least 1")
        for name in positive:
            require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}: it must be positive")
        for name in ("gamma", "gae_lambda"):
            require(0 <= getattr(self, name) <= 1, f"{name} is {getattr(self, name)}: it must lie between 0 and 1")
        for name in ("rollout_steps", "sequence_length"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name} is {value}: it must be at least 1")


class PPOParams(NamedTuple):
    policy: RecurrentParams
    critic: PyTree
    decoders: PyTree  # empty without modelling


class PPOState(NamedTuple):
    params: PPOParams
    actor_opt: PyTree
    critic_opt: PyTree
    model_opt: PyTree
    reward_stats: RunningStats
    critic_memory: Array  # [B, M, H], where the critic's history stands at the batch's end


class Batch(NamedTuple):
    """What the losses read. Rows first: [R, L, M, ...]; hidden states [R, M, H], or [R, L, M, H] for stored ones."""

    x: Array  # [R, L, M, I] observation, last action, seat
    embedding: Array  # [R, L, M, E] of the team, as at collection: a constant for PPO
    first: Array  # [R, L] bool
    obs: Array  # [R, L, M, O]
    avail: Array  # [R, L, M, A]
    action: Array  # [R, L, M]
    log_prob: Array  # [R, L, M] at collection
    advantage: Array  # [R, L, M]
    value: Array  # [R, L, M] at collection
    target: Array  # [R, L, M]
    alive: Array  # [R, L, M] bool
    controlled: Array  # [R, L, M] bool
    actor_weight: Array  # [R, L, M] float: whose data train the actor (and model others)
    critic_weight: Array  # [R, L, M] float: whose data train the critic
    actor_h0: Array
    critic_h0: Array
    encoder_h0: Array


Metrics = dict[str, Array]
Loss = Callable[[PyTree, Batch], tuple[Array, tuple[Array, Metrics]]]
"""(params, rows) -> (sum of losses, (sum of weights, metrics as sums under the same weights))."""

Network = Callable[[Array, Array, Array], tuple[Array, Array]]


def unroll(network: Network, x: Array, h0: Array, first: Array) -> tuple[Array, Array]:
    """Run a recurrent network over x [L, *seats, I]; first [L, C] with seats = (C, M). Returns [L, *seats, ...] twice.

    h0 [*seats, H] is the hidden state before the first step: the network runs through time. h0 [L, *seats, H] has one
    state for every step: each step stands alone and no gradient flows through time.
    """
    steps, seats = x.shape[0], x.shape[1:-1]
    rows = int(np.prod(seats))
    flat = (1, steps * rows) if h0.ndim == x.ndim else (steps, rows)
    first = jnp.broadcast_to(first[..., None], (steps, *seats))
    y, hidden = network(x.reshape(*flat, x.shape[-1]), h0.reshape(flat[1], h0.shape[-1]), first.reshape(flat))
    return y.reshape(steps, *seats, y.shape[-1]), hidden.reshape(steps, *seats, hidden.shape[-1])


def before(hidden: Array, start: Array) -> Array:
    """States after each step [T, ...] and before the first [...] -> states before each step [T, ...]."""
    return jnp.concatenate([start[None], hidden[:-1]])


def time_major(leaf: Array) -> Array:
    return leaf.swapaxes(0, 1)


def draw_rows(key: Array, num_rows: int, epochs: int, minibatches: int, chunk: int) -> Array:
    """Row indices for every optimiser step: [epochs * minibatches, chunks, chunk].

    Each epoch is a permutation. Where the numbers do not divide, places are filled with the index `num_rows`, which
    reads as a row without weight.
    """
    per_minibatch = ceil(num_rows / minibatches)
    chunk = min(chunk, per_minibatch)
    chunks = ceil(per_minibatch / chunk)
    orders = jax.vmap(lambda k: jax.random.permutation(k, num_rows))(jax.random.split(key, epochs))

    def pad(a: Array, width: int) -> Array:
        return jnp.pad(a, ((0, 0), (0, width - a.shape[1])), constant_values=num_rows)

    orders = pad(orders, minibatches * per_minibatch).reshape(epochs * minibatches, per_minibatch)
    return pad(orders, chunks * chunk).reshape(epochs * minibatches, chunks, chunk)


def chunked_gradient(loss: Loss, params: PyTree, batch: Batch, rows: Array) -> tuple[PyTree, Metrics]:
    """Gradient of the weighted mean loss over a minibatch, and its metrics as means.

    rows [chunks, chunk] are the minibatch's row indices. Gradients are added up chunk by chunk, so that the temporaries
    of one chunk stay in the processor's cache (and memory does not grow with the batch).
    """
    grad = jax.grad(loss, has_aux=True)

    def add(total: PyTree, indices: Array) -> tuple[PyTree, None]:
        piece = jax.tree.map(lambda a: jnp.take(a, indices, axis=0, mode="fill", fill_value=0), batch)
        return jax.tree.map(jnp.add, total, grad(params, piece)), None

    shapes = jax.eval_shape(grad, params, jax.tree.map(lambda a: a[: rows.shape[1]], batch))
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    (gradient, (weight, metrics)), _ = jax.lax.scan(add, zeros, rows)
    weight = jnp.maximum(weight, 1e-8)
    return jax.tree.map(lambda g: g / weight, gradient), jax.tree.map(lambda s: s / weight, metrics)


@dataclass(frozen=True)
class PPO:
    """The learner: `init`, then `update` once per batch of experience."""

    spec: EnvSpec
    config: PPOConfig

    def __post_init__(self) -> None:
        cut = self.config.sequence_length
        require(
            cut is None or self.rollout_steps % cut == 0,
            f"sequence_length is {cut}: it must divide the {self.rollout_steps} steps of a rollout",
        )

    @property
    def rollout_steps(self) -> int:
        return self.config.rollout_steps or self.spec.horizon

    @property
    def num_envs(self) -> int:
        return self.config.num_envs

    @property
    def policy(self) -> RecurrentPolicy:
        return RecurrentPolicy(self.spec, self.config.network, self.config.model if self.config.modelling else None)

    @property
    def critic(self) -> RecurrentNetwork:
        return RecurrentNetwork(self.config.network, 1, output_scale=1.0)

    @property
    def decoders(self) -> TeammateDecoders:
        return TeammateDecoders(self.config.model, self.spec)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.config.max_grad_norm), optax.scale_by_adam(eps=1e-5))

    @property
    def model_optimiser(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.config.model_max_grad_norm), optax.scale_by_adam(eps=1e-5))

    def init(self, key: Array) -> PPOState:
        k_policy, k_critic, k_decoders = jax.random.split(key, 3)
        policy = self.policy.init(k_policy)
        memory = jnp.zeros((self.num_envs, self.spec.num_agents, self.config.network.hidden))
        no_action = jnp.zeros((1, 1), jnp.int32)
        x = self.policy.inputs(jnp.zeros((1, 1, self.spec.obs_size)), no_action, no_action)
        x = jnp.concatenate([x, jnp.zeros((1, 1, self.policy.embedding_size))], axis=-1)
        critic = self.critic.init(k_critic, x, memory[0, :1], jnp.zeros((1, 1), bool))
        embedding = jnp.zeros((self.spec.num_agents, self.policy.embedding_size))
        decoders = self.decoders.init(k_decoders, embedding) if self.config.modelling else {}
        return PPOState(
            params=PPOParams(policy, critic, decoders),
            actor_opt=self.optimiser.init(policy.actor),
            critic_opt=self.optimiser.init(critic),
            model_opt=self.model_optimiser.init((policy.encoder, decoders)),
            reward_stats=RunningStats.start(),
            critic_memory=memory,
        )

    def policy_params(self, state: PPOState) -> RecurrentParams:
        """What the policy needs to act."""
        return state.params.policy

    def update(self, state: PPOState, trajectory: Trajectory, key: Array, progress: Array) -> tuple[PPOState, Metrics]:
        """Learn from one batch. progress [] in 0..1 is the fraction of the run that has passed."""
        c = self.config
        k_model, k_ppo = jax.random.split(key)
        state, batch, metrics = self.prepare(state, trajectory)
        num_rows = batch.first.shape[0]
        lr = anneal(c.lr, c.lr_end, progress)
        entropy = anneal(c.entropy, c.entropy_end, progress)

        def fit(loss: Loss, optimiser: optax.GradientTransformation, rate: Array | float) -> Callable:
            def step(carry: tuple[PyTree, PyTree], rows: Array) -> tuple[tuple[PyTree, PyTree], Metrics]:
                params, opt = carry
                gradient, metrics = chunked_gradient(loss, params, batch, rows)
                norm = optax.global_norm(gradient)
                updates, opt = optimiser.update(gradient, opt, params)
                params = jax.tree.map(lambda p, u: p - rate * u, params, updates)
                return (params, opt), metrics | {"gradient_norm": norm}

            return step

        params = state.params
        rows = draw_rows(k_ppo, num_rows, c.epochs, c.minibatches, c.chunk)
        fit_actor = fit(lambda p, b: self.actor_loss(p, b, entropy), self.optimiser, lr)
        (actor, actor_opt), log = jax.lax.scan(fit_actor, (params.policy.actor, state.actor_opt), rows)
        metrics |= _named("actor", log)
        fit_critic = fit(self.critic_loss, self.optimiser, lr)
        (critic, critic_opt), log = jax.lax.scan(fit_critic, (params.critic, state.critic_opt), rows)
        metrics |= _named("critic", log)
        encoder, decoders, model_opt = params.policy.encoder, params.decoders, state.model_opt
        if c.modelling:
            rows = draw_rows(k_model, num_rows, c.model_epochs, c.model_minibatches, c.chunk)
            fit_model = fit(self.model_loss, self.model_optimiser, c.model_lr)
            ((encoder, decoders), model_opt), log = jax.lax.scan(fit_model, ((encoder, decoders), model_opt), rows)
            metrics |= _named("model", log)
        params = PPOParams(RecurrentParams(actor, encoder), critic, decoders)
        return state._replace(params=params, actor_opt=actor_opt, critic_opt=critic_opt, model_opt=model_opt), metrics

    def prepare(self, state: PPOState, trajectory: Trajectory) -> tuple[PPOState, Batch, Metrics]:
        """Everything that is computed once per batch, with the parameters that collected it."""
        c, tr, params = self.config, trajectory, state.params
        memory = tr.start_memory[0]
        slot = jnp.broadcast_to(jnp.arange(self.spec.num_agents), tr.action.shape)

        def embed(x: Array, h0: Array, first: Array) -> tuple[Array, Array]:
            return unroll(lambda *a: self.policy.embed(params.policy, *a), x, h0, first)

        def value(x: Array, embedding: Array, h0: Array, first: Array) -> tuple[Array, Array]:
            v, hidden = unroll(self._critic(params.critic), jnp.concatenate([x, embedding], -1), h0, first)
            return v[..., 0], hidden

        x = self.policy.inputs(tr.obs, tr.last_action, slot)
        embedding, encoder_hidden = embed(x, memory.encoder, tr.first)
        values, critic_hidden = value(x, embedding, state.critic_memory, tr.first)
        _, actor_hidden = unroll(
            lambda *a: self.policy.actor.apply(params.policy.actor, *a),
            jnp.concatenate([x, embedding], -1),
            memory.actor,
            tr.first,
        )

        # V of what follows step t is the next row's value, except at the batch's end and where the clock ended an
        # episode: there it is one more step of encoder and critic, on the observation before the restart.
        tail = self.rollout_steps if c.bootstrap_time_limit else 1
        x_next = self.policy.inputs(tr.next_obs[-tail:], tr.action[-tail:], slot[-tail:])
        same_episode = jnp.zeros_like(tr.first[-tail:])
        e_next, _ = embed(x_next, encoder_hidden[-tail:], same_episode)
        v_next, _ = value(x_next, e_next, critic_hidden[-tail:], same_episode)
        next_values = jnp.concatenate([values[1 : 1 + len(values) - tail], v_next])

        stats = state.reward_stats.update(tr.reward)
        reward = tr.reward
        if c.standardise_rewards != "no":
            reward = stats.standardise(reward, subtract_mean=c.standardise_rewards == "mean-std")
        over = tr.terminated if c.bootstrap_time_limit else tr.done
        discount = c.gamma * (1.0 - over)
        cut = tr.done.at[-1].set(True)
        targets = td_lambda(reward[..., None], next_values, discount[..., None], cut[..., None], c.gae_lambda)

        actor_weight = (tr.team.controlled & tr.alive).astype(jnp.float32)
        critic_weight = tr.alive.astype(jnp.float32) if c.uncontrolled_data else actor_weight
        advantages = targets - values
        if c.standardise_advantages:
            advantages = masked_standardise(advantages, actor_weight)

        length = c.sequence_length or self.rollout_steps
        num_pieces = self.rollout_steps // length

        def rows(leaf: Array) -> Array:
            """[T, B, ...] -> [R, L, ...] with R = (T / L) * B."""
            pieces = leaf.reshape(num_pieces, length, *leaf.shape[1:]).swapaxes(1, 2)
            return pieces.reshape(num_pieces * self.num_envs, length, *leaf.shape[2:])

        def starts(hidden: Array, start: Array, memory: str) -> Array:
            stored = rows(before(hidden, start))
            return stored if memory == "stored" else stored[:, 0]

        batch = Batch(
            x=rows(x),
            embedding=rows(embedding),
            first=rows(tr.first),
            obs=rows(tr.obs),
            avail=rows(tr.avail),
            action=rows(tr.action),
            log_prob=rows(tr.log_prob),
            advantage=rows(advantages),
            value=rows(values),
            target=rows(targets),
            alive=rows(tr.alive),
            controlled=rows(tr.team.controlled),
            actor_weight=rows(actor_weight),
            critic_weight=rows(critic_weight),
            actor_h0=starts(actor_hidden, memory.actor, c.actor_memory),
            critic_h0=starts(critic_hidden, state.critic_memory, c.critic_memory),
            encoder_h0=starts(encoder_hidden, memory.encoder, "bptt"),
        )
        error = masked_mean((targets - values) ** 2, critic_weight)
        spread = masked_mean((targets - masked_mean(targets, critic_weight)) ** 2, critic_weight)
        metrics = {
            "value/mean": masked_mean(values, critic_weight),
            "value/explained_variance": 1.0 - error / jnp.maximum(spread, 1e-8),
        }
        return state._replace(reward_stats=stats, critic_memory=critic_hidden[-1]), batch, metrics

    def _critic(self, params: PyTree) -> Network:
        return lambda *args: self.critic.apply(params, *args)

    def actor_loss(
        self, params: PyTree, b: Batch, entropy_weight: Array | float
    ) -> tuple[Array, tuple[Array, Metrics]]:
        """PPO's clipped objective with entropy bonus, over controlled agents."""
        clip, weight = self.config.clip, time_major(b.actor_weight)
        x = time_major(jnp.concatenate([b.x, b.embedding], -1))
        h0 = time_major(b.actor_h0) if b.actor_h0.ndim == b.x.ndim else b.actor_h0
        logits, _ = unroll(lambda *a: self.policy.actor.apply(params, *a), x, h0, time_major(b.first))
        log_probs = masked_log_probs(logits, time_major(b.avail))
        log_ratio = pick(log_probs, time_major(b.action)) - time_major(b.log_prob)
        # A forbidden or foreign action may have any log-ratio; exp of it must not overflow into the gradient.
        log_ratio = jnp.where(weight > 0, log_ratio, 0.0)
        ratio, advantage = jnp.exp(log_ratio), time_major(b.advantage)
        surrogate = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)
        entropy = -(jnp.exp(log_probs) * log_probs).sum(-1)
        metrics = {
            "loss": masked_sum(-surrogate, weight),
            "entropy": masked_sum(entropy, weight),
            "approx_kl": masked_sum(ratio - 1 - log_ratio, weight),
            "clip_fraction": masked_sum((jnp.abs(ratio - 1) > clip).astype(jnp.float32), weight),
        }
        loss = metrics["loss"] - entropy_weight * metrics["entropy"]
        return loss, (weight.sum(), metrics)

    def critic_loss(self, params: PyTree, b: Batch) -> tuple[Array, tuple[Array, Metrics]]:
        """Regression of the values on the TD(lambda) targets, over all agents or controlled ones only."""
        c, weight = self.config, time_major(b.critic_weight)
        x = time_major(jnp.concatenate([b.x, b.embedding], -1))
        h0 = time_major(b.critic_h0) if b.critic_h0.ndim == b.x.ndim else b.critic_h0
        values, _ = unroll(self._critic(params), x, h0, time_major(b.first))
        target, old = time_major(b.target), time_major(b.value)

        def loss_of(v: Array) -> Array:
            return (
                optax.huber_loss(v, target, delta=c.huber_delta) if c.value_loss == "huber" else 0.5 * (v - target) ** 2
            )

        values = values[..., 0]
        losses = loss_of(values)
        if c.clip_value:
            losses = jnp.maximum(losses, loss_of(old + jnp.clip(values - old, -c.clip, c.clip)))
        loss = masked_sum(losses, weight)
        return loss, (weight.sum(), {"loss": loss})

    def model_loss(self, params: PyTree, b: Batch) -> tuple[Array, tuple[Array, Metrics]]:
        """What controlled agents' embeddings say of everybody else: squared error of observations, NLL of actions.

        Errors are averaged over observation entries and over the (modelling agent, teammate) pairs in play.
        """
        encoder, decoders = params
        policy_params = RecurrentParams(actor={}, encoder=encoder)
        embedding, _ = unroll(
            lambda *a: self.policy.embed(policy_params, *a), time_major(b.x), b.encoder_h0, time_major(b.first)
        )
        obs, logits = self.decoders.apply(decoders, embedding)  # [L, C, M, M-1, ...]
        # A teammate's forbidden actions need no probability, but the modelling agent cannot see its mask.
        squared = ((obs - others(time_major(b.obs))) ** 2).mean(-1)
        log_prob = pick(jax.nn.log_softmax(logits), others(time_major(b.action)[..., None])[..., 0])
        seen = others(time_major(b.alive)[..., None])[..., 0]
        weight = time_major(b.actor_weight)[..., None] * seen
        loss = masked_sum(squared - log_prob, weight)
        controlled = others(time_major(b.controlled)[..., None])[..., 0]
        metrics = {"loss": loss, "obs_mse": masked_sum(squared, weight)}
        metrics["action_prob"] = masked_sum(jnp.exp(log_prob), weight)
        for name, kind in (("controlled", controlled), ("uncontrolled", ~controlled)):
            share = weight * kind
            metrics[f"obs_mse_{name}"] = masked_sum(squared, share)
            metrics[f"action_prob_{name}"] = masked_sum(jnp.exp(log_prob), share)
            metrics[f"share_{name}"] = share.sum()
        return loss, (weight.sum(), metrics)


def anneal(start: float, end: float | None, progress: Array) -> Array | float:
    """Linear from start to end as progress goes from 0 to 1; constant without an end."""
    return start if end is None else start + (end - start) * progress


def _named(part: str, log: Metrics) -> Metrics:
    """Means over the optimiser steps. What holds for a share of the data is divided by it: NaN where it is 0."""
    means = {name: values.mean() for name, values in log.items()}
    shares = {name.removeprefix("share_"): share for name, share in means.items() if name.startswith("share_")}
    result = {}
    for name, mean in means.items():
        kind = name.rsplit("_", 1)[-1]
        if not name.startswith("share_"):
            result[f"{part}/{name}"] = mean / shares[kind] if kind in shares else mean
    return result
