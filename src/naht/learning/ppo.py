"""The PPO learner. POAM, IPPO-NAHT and POAM-AHT are settings of it.

An update reads like the paper: embed the team, value every step, TD(lambda) targets, then epochs of minibatches for the
teammate model, the actor and the critic. Axes: T steps, B environments, M agents. Minibatches are drawn from R rows: an
agent's part of an episode, or of a sequence of L steps cut from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
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
    chunk: int = 16
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


class AgentRows(NamedTuple):
    """What the losses of actor and critic read: one row per agent and sequence, [R, L, ...]."""

    x: Array  # [R, L, I] observation, last action, seat
    embedding: Array  # [R, L, E] of the team, as at collection: a constant for PPO
    first: Array  # [R, L] bool
    avail: Array  # [R, L, A] bool
    action: Array  # [R, L] int32
    log_prob: Array  # [R, L] at collection
    advantage: Array  # [R, L]
    value: Array  # [R, L] at collection
    target: Array  # [R, L]
    actor_weight: Array  # [R, L] float: data that train the actor, and the model of others
    critic_weight: Array  # [R, L] float: data that train the critic
    actor_h0: Array  # [R, H] before the first step, or [R, L, H] stored for every step
    critic_h0: Array  # likewise
    encoder_h0: Array  # [R, H of the model]


class TeamRows(NamedTuple):
    """What the teammate model predicts: one row per team and sequence, [R / M, L, M, ...]."""

    obs: Array  # [R / M, L, M, O]
    action: Array  # [R / M, L, M] int32
    alive: Array  # [R / M, L, M] bool
    controlled: Array  # [R / M, L, M] bool


class Batch(NamedTuple):
    """A batch of experience cut into rows. Row r is the agent in slot r % M of team r // M."""

    agents: AgentRows
    teams: TeamRows

    def take(self, rows: Array) -> tuple[AgentRows, TeamRows, Array]:
        """Rows by index [C], time first: agents [L, C, ...], their teams [L, C, M, ...], their slots [C].

        Indices beyond the end give rows of zeros, which have no weight.
        """
        m = self.teams.obs.shape[2]

        def pick_rows(indices: Array, leaf: Array) -> Array:
            return jnp.take(leaf, indices, axis=0, mode="fill", fill_value=0)

        agents = jax.tree.map(lambda leaf: pick_rows(rows, leaf), self.agents)
        starts = ("actor_h0", "critic_h0", "encoder_h0")
        timed = {k: v.swapaxes(0, 1) for k, v in agents._asdict().items() if k not in starts or v.ndim == 3}
        teams = jax.tree.map(lambda leaf: pick_rows(rows // m, leaf).swapaxes(0, 1), self.teams)
        return agents._replace(**timed), teams, rows % m


Metrics = dict[str, Array]
Loss = Callable[[PyTree, AgentRows, TeamRows, Array], tuple[Array, tuple[Array, Metrics]]]
"""(params, agents, teams, slots) -> (sum of losses, (sum of weights, metrics as sums under the same weights))."""

Network = Callable[[Array, Array, Array], tuple[Array, Array]]


def unroll(network: Network, x: Array, h0: Array, first: Array) -> tuple[Array, Array]:
    """Run a recurrent network over x [L, R, I] with first [L, R]. Returns outputs and hidden states [L, R, ...].

    h0 [R, H] is the hidden state before the first step: the network runs through time. h0 [L, R, H] has one state for
    every step: each step stands alone and no gradient flows through time.
    """
    if h0.ndim == 2:
        return network(x, h0, first)
    steps, rows = first.shape
    y, hidden = network(x.reshape(1, steps * rows, -1), h0.reshape(steps * rows, -1), first.reshape(1, -1))
    return y.reshape(steps, rows, -1), hidden.reshape(steps, rows, -1)


def before(hidden: Array, start: Array) -> Array:
    """States after each step [T, ...] and before the first [...] -> states before each step [T, ...]."""
    return jnp.concatenate([start[None], hidden[:-1]])


class Minibatches(NamedTuple):
    """Which rows every optimiser step learns from."""

    rows: Array  # [steps, chunks, chunk] int32, the active rows of a step first
    chunks: Array  # [steps] int32, how many chunks have active rows: the others are never computed


def draw_minibatches(key: Array, active: Array, epochs: int, minibatches: int, chunk: int) -> Minibatches:
    """Every epoch shuffles the active rows (active [R] bool) and deals them out evenly."""
    num_rows = active.shape[0]
    per_minibatch = ceil(num_rows / minibatches)
    chunk = min(chunk, per_minibatch)
    chunks = ceil(per_minibatch / chunk)

    def shuffle(key: Array) -> Array:
        order = jnp.argsort(jnp.where(active, jax.random.uniform(key, (num_rows,)), 2.0))
        # Dealing like cards keeps every minibatch's active rows at its front.
        order = jnp.pad(order, (0, minibatches * per_minibatch - num_rows), constant_values=num_rows)
        dealt = order.reshape(per_minibatch, minibatches).T
        dealt = jnp.pad(dealt, ((0, 0), (0, chunks * chunk - per_minibatch)), constant_values=num_rows)
        return dealt.reshape(minibatches, chunks, chunk)

    rows = jax.vmap(shuffle)(jax.random.split(key, epochs)).reshape(epochs * minibatches, chunks, chunk)
    share = (active.sum() - jnp.arange(minibatches) + minibatches - 1) // minibatches
    return Minibatches(rows, jnp.tile((share + chunk - 1) // chunk, epochs))


def chunked_gradient(loss: Loss, params: PyTree, batch: Batch, minibatch: Minibatches) -> tuple[PyTree, Metrics]:
    """Gradient of the weighted mean loss over one minibatch, and its metrics as means.

    Gradients are added up chunk by chunk, so that the temporaries of one chunk stay in the processor's cache (and
    memory does not grow with the batch). Chunks without active rows are skipped: only rows that count cost time.
    """
    grad = jax.grad(loss, has_aux=True)

    def add(i: Array, total: PyTree) -> PyTree:
        return jax.tree.map(jnp.add, total, grad(params, *batch.take(minibatch.rows[i])))

    shapes = jax.eval_shape(lambda: grad(params, *batch.take(minibatch.rows[0])))
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    gradient, (weight, metrics) = jax.lax.fori_loop(0, minibatch.chunks, add, zeros)
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
        """Of actor and critic; it gives directions, the learning rate comes with each update."""
        return clipped_adam(self.config.max_grad_norm)

    @property
    def model_optimiser(self) -> optax.GradientTransformation:
        return clipped_adam(self.config.model_max_grad_norm)

    def init(self, key: Array) -> PPOState:
        k_policy, k_critic, k_decoders = jax.random.split(key, 3)
        policy = self.policy.init(k_policy)
        memory = jnp.zeros((self.num_envs, self.spec.num_agents, self.config.network.hidden))
        no_action = jnp.zeros((1, 1), jnp.int32)
        x = self.policy.inputs(jnp.zeros((1, 1, self.spec.obs_size)), no_action, no_action)
        x = jnp.concatenate([x, jnp.zeros((1, 1, self.policy.embedding_size))], axis=-1)
        critic = self.critic.init(k_critic, x, memory[0, :1], jnp.zeros((1, 1), bool))
        embedding = jnp.zeros((1, self.policy.embedding_size))
        decoders = self.decoders.init(k_decoders, embedding, no_action[0]) if self.config.modelling else {}
        return PPOState(
            params=PPOParams(policy, critic, decoders),
            actor_opt=self.optimiser.init(policy.actor),
            critic_opt=self.optimiser.init(critic),
            model_opt=self.model_optimiser.init((policy.encoder, decoders)) if self.config.modelling else (),
            reward_stats=RunningStats.start(),
            critic_memory=memory,
        )

    def policy_params(self, state: PPOState) -> RecurrentParams:
        """What the policy needs to act."""
        return state.params.policy

    def update(self, state: PPOState, trajectory: Trajectory, key: Array, progress: Array) -> tuple[PPOState, Metrics]:
        """Learn from one batch. progress [] in 0..1 is the fraction of the run that has passed."""
        c = self.config
        k_actor, k_critic, k_model = jax.random.split(key, 3)
        state, batch, metrics = self.prepare(state, trajectory)
        lr = anneal(c.lr, c.lr_end, progress)
        entropy = anneal(c.entropy, c.entropy_end, progress)

        def fit(
            loss: Loss,
            params: PyTree,
            opt: PyTree,
            optimiser: optax.GradientTransformation,
            rate: Array | float,
            minibatches: Minibatches,
        ) -> tuple[tuple[PyTree, PyTree], Metrics]:
            def step(carry: tuple[PyTree, PyTree], minibatch: Minibatches) -> tuple[tuple[PyTree, PyTree], Metrics]:
                params, opt = carry
                gradient, log = chunked_gradient(loss, params, batch, minibatch)
                updates, opt = optimiser.update(gradient, opt, params)
                params = jax.tree.map(lambda p, u: p - rate * u, params, updates)
                return (params, opt), log | {"gradient_norm": optax.tree.norm(gradient)}

            return jax.lax.scan(step, (params, opt), minibatches)

        controlled = (batch.agents.actor_weight > 0).any(-1)
        learning = (batch.agents.critic_weight > 0).any(-1)
        policy, critic, decoders = state.params
        encoder, model_opt = policy.encoder, state.model_opt

        deal = draw_minibatches(k_actor, controlled, c.epochs, c.minibatches, c.chunk)
        (actor, actor_opt), log = fit(
            partial(self.actor_loss, entropy), policy.actor, state.actor_opt, self.optimiser, lr, deal
        )
        metrics |= _named("actor", log)
        deal = draw_minibatches(k_critic, learning, c.epochs, c.minibatches, c.chunk)
        (critic, critic_opt), log = fit(self.critic_loss, critic, state.critic_opt, self.optimiser, lr, deal)
        metrics |= _named("critic", log)
        if c.modelling:
            deal = draw_minibatches(k_model, controlled, c.model_epochs, c.model_minibatches, c.chunk)
            ((encoder, decoders), model_opt), log = fit(
                self.model_loss, (encoder, decoders), model_opt, self.model_optimiser, c.model_lr, deal
            )
            metrics |= _named("model", log)
        params = PPOParams(RecurrentParams(actor, encoder), critic, decoders)
        return state._replace(params=params, actor_opt=actor_opt, critic_opt=critic_opt, model_opt=model_opt), metrics

    def prepare(self, state: PPOState, trajectory: Trajectory) -> tuple[PPOState, Batch, Metrics]:
        """Everything that is computed once per batch, with the parameters that collected it."""
        c, tr, params = self.config, trajectory, state.params
        steps, num_agents = self.rollout_steps, self.spec.num_agents
        num_rows = self.num_envs * num_agents

        def flat(leaf: Array) -> Array:
            """[T, B, M, ...] -> [T, B * M, ...]."""
            return leaf.reshape(leaf.shape[0], num_rows, *leaf.shape[3:])

        def per_agent(leaf: Array) -> Array:
            """[T, B] -> [T, B * M]."""
            return jnp.repeat(leaf, num_agents, axis=1)

        def embed(x: Array, h0: Array, first: Array) -> tuple[Array, Array]:
            return unroll(partial(self.policy.embed, params.policy), x, h0, first)

        def value(x: Array, embedding: Array, h0: Array, first: Array) -> tuple[Array, Array]:
            v, hidden = unroll(partial(self.critic.apply, params.critic), concat(x, embedding), h0, first)
            return v[..., 0], hidden

        memory = jax.tree.map(lambda h: h.reshape(num_rows, h.shape[-1]), tr.start_memory[0])
        critic_start = state.critic_memory.reshape(num_rows, -1)
        slot = jnp.broadcast_to(jnp.arange(num_agents), tr.action.shape)
        x, first = flat(self.policy.inputs(tr.obs, tr.last_action, slot)), per_agent(tr.first)
        embedding, encoder_hidden = embed(x, memory.encoder, first)
        values, critic_hidden = value(x, embedding, critic_start, first)
        actor = partial(self.policy.actor.apply, params.policy.actor)
        _, actor_hidden = unroll(actor, concat(x, embedding), memory.actor, first)

        # V of what follows step t is the next row's value, except at the batch's end and where the clock ended an
        # episode: there it is one more step of encoder and critic, on the observation before the restart.
        tail = steps if c.bootstrap_time_limit else 1
        x_next = flat(self.policy.inputs(tr.next_obs[-tail:], tr.action[-tail:], slot[-tail:]))
        same_episode = jnp.zeros_like(first[-tail:])
        e_next, _ = embed(x_next, encoder_hidden[-tail:], same_episode)
        v_next, _ = value(x_next, e_next, critic_hidden[-tail:], same_episode)
        next_values = jnp.concatenate([values[1 : 1 + steps - tail], v_next])

        stats = state.reward_stats.update(tr.reward)
        reward = tr.reward
        if c.standardise_rewards != "no":
            reward = stats.standardise(reward, subtract_mean=c.standardise_rewards == "mean-std")
        discount = c.gamma * (1.0 - (tr.terminated if c.bootstrap_time_limit else tr.done))
        cut = tr.done.at[-1].set(True)
        targets = td_lambda(per_agent(reward), next_values, per_agent(discount), per_agent(cut), c.gae_lambda)

        actor_weight = flat(tr.team.controlled & tr.alive).astype(jnp.float32)
        critic_weight = flat(tr.alive).astype(jnp.float32) if c.uncontrolled_data else actor_weight
        advantages = targets - values
        if c.standardise_advantages:
            advantages = masked_standardise(advantages, actor_weight)

        length = c.sequence_length or steps
        pieces = steps // length

        def rows(leaf: Array) -> Array:
            """[T, K, ...] -> [(T / L) * K, L, ...]."""
            cut_up = leaf.reshape(pieces, length, *leaf.shape[1:]).swapaxes(1, 2)
            return cut_up.reshape(pieces * leaf.shape[1], length, *leaf.shape[2:])

        def starts(hidden: Array, start: Array, memory: str) -> Array:
            if memory == "bptt" and pieces == 1:
                return start  # no need for the states in between: where nobody reads them, they are not computed
            stored = rows(before(hidden, start))
            return stored if memory == "stored" else stored[:, 0]

        agents = AgentRows(
            x=rows(x),
            embedding=rows(embedding),
            first=rows(first),
            avail=rows(flat(tr.avail)),
            action=rows(flat(tr.action)),
            log_prob=rows(flat(tr.log_prob)),
            advantage=rows(advantages),
            value=rows(values),
            target=rows(targets),
            actor_weight=rows(actor_weight),
            critic_weight=rows(critic_weight),
            actor_h0=starts(actor_hidden, memory.actor, c.actor_memory),
            critic_h0=starts(critic_hidden, critic_start, c.critic_memory),
            encoder_h0=starts(encoder_hidden, memory.encoder, "bptt"),
        )
        teams = TeamRows(rows(tr.obs), rows(tr.action), rows(tr.alive), rows(tr.team.controlled))
        error = masked_mean((targets - values) ** 2, critic_weight)
        spread = masked_mean((targets - masked_mean(targets, critic_weight)) ** 2, critic_weight)
        metrics = {
            "value/mean": masked_mean(values, critic_weight),
            "value/explained_variance": 1.0 - error / jnp.maximum(spread, 1e-8),
        }
        end = critic_hidden[-1].reshape(state.critic_memory.shape)
        return state._replace(reward_stats=stats, critic_memory=end), Batch(agents, teams), metrics

    def actor_loss(
        self, entropy_weight: Array | float, params: PyTree, a: AgentRows, teams: TeamRows, slot: Array
    ) -> tuple[Array, tuple[Array, Metrics]]:
        """PPO's clipped objective with entropy bonus, over controlled agents. Leaves of `a` are [L, C, ...]."""
        del teams, slot
        clip, weight = self.config.clip, a.actor_weight
        logits, _ = unroll(partial(self.policy.actor.apply, params), concat(a.x, a.embedding), a.actor_h0, a.first)
        log_probs = masked_log_probs(logits, a.avail)
        # Rows without weight may hold anything; an overflow of exp there must not reach the gradient.
        log_ratio = jnp.where(weight > 0, pick(log_probs, a.action) - a.log_prob, 0.0)
        ratio = jnp.exp(log_ratio)
        surrogate = jnp.minimum(ratio * a.advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * a.advantage)
        entropy = -(jnp.exp(log_probs) * log_probs).sum(-1)
        metrics = {
            "loss": masked_sum(-surrogate, weight),
            "entropy": masked_sum(entropy, weight),
            "approx_kl": masked_sum(ratio - 1 - log_ratio, weight),
            "clip_fraction": masked_sum((jnp.abs(ratio - 1) > clip).astype(jnp.float32), weight),
        }
        return metrics["loss"] - entropy_weight * metrics["entropy"], (weight.sum(), metrics)

    def critic_loss(
        self, params: PyTree, a: AgentRows, teams: TeamRows, slot: Array
    ) -> tuple[Array, tuple[Array, Metrics]]:
        """Regression of the values on the TD(lambda) targets, over all agents or controlled ones only."""
        del teams, slot
        c = self.config
        values, _ = unroll(partial(self.critic.apply, params), concat(a.x, a.embedding), a.critic_h0, a.first)
        # As in the actor: what stands in rows without weight must not reach the gradient, NaN included.
        values = jnp.where(a.critic_weight > 0, values[..., 0], 0.0)

        def loss_of(v: Array) -> Array:
            if c.value_loss == "huber":
                return optax.huber_loss(v, a.target, delta=c.huber_delta)
            return 0.5 * (v - a.target) ** 2

        losses = loss_of(values)
        if c.clip_value:
            losses = jnp.maximum(losses, loss_of(a.value + jnp.clip(values - a.value, -c.clip, c.clip)))
        loss = masked_sum(losses, a.critic_weight)
        return loss, (a.critic_weight.sum(), {"loss": loss})

    def model_loss(
        self, params: PyTree, a: AgentRows, teams: TeamRows, slot: Array
    ) -> tuple[Array, tuple[Array, Metrics]]:
        """What controlled agents' embeddings say of everybody else: squared error of observations, NLL of actions.

        Errors are averaged over observation entries and over the (modelling agent, living teammate) pairs in play. The
        modelling agent does not know its teammates' action masks, so neither does the decoder.
        """
        encoder, decoders = params
        policy_params = RecurrentParams(actor={}, encoder=encoder)
        embedding, _ = unroll(partial(self.policy.embed, policy_params), a.x, a.encoder_h0, a.first)
        obs, logits = self.decoders.apply(decoders, embedding, slot)  # [L, C, M-1, ...]
        weight = a.actor_weight[..., None] * others(teams.alive, slot)
        squared = (jnp.where(weight[..., None] > 0, obs - others(teams.obs, slot), 0.0) ** 2).mean(-1)
        log_prob = pick(jax.nn.log_softmax(logits), others(teams.action, slot))
        loss = masked_sum(squared - log_prob, weight)
        metrics = {
            "loss": loss,
            "obs_mse": masked_sum(squared, weight),
            "action_prob": masked_sum(jnp.exp(log_prob), weight),
        }
        controlled = others(teams.controlled, slot)
        for name, kind in (("controlled", controlled), ("uncontrolled", ~controlled)):
            share = weight * kind
            metrics[f"obs_mse_{name}"] = masked_sum(squared, share)
            metrics[f"action_prob_{name}"] = masked_sum(jnp.exp(log_prob), share)
            metrics[f"share_{name}"] = share.sum()
        return loss, (weight.sum(), metrics)


def clipped_adam(max_norm: float) -> optax.GradientTransformation:
    """Adam on gradients of bounded norm, all parameters as one vector: few long operations, not many tiny ones."""
    return optax.flatten(optax.chain(optax.clip_by_global_norm(max_norm), optax.scale_by_adam(eps=1e-5)))


def concat(x: Array, embedding: Array) -> Array:
    """What actor and critic read: [..., I] and [..., E] -> [..., I + E]."""
    return jnp.concatenate([x, embedding], axis=-1)


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
