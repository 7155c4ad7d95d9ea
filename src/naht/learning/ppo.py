"""The PPO learner. POAM, IPPO-NAHT, POAM-AHT, IPPO and MAPPO are settings of it.

An update reads like the paper: embed the team, value every step, TD(lambda) targets, then epochs of minibatches for the
teammate model, the actor and the critic. Axes: T steps, B environments, M agents. Minibatches are drawn from R rows: an
agent's part of an episode, or of a sequence of L steps cut from it. With several devices, each has its share of B.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from naht.agents.networks import NetworkConfig, RecurrentNetwork, init_params
from naht.agents.policy import masked_log_probs, pick
from naht.agents.recurrent import RecurrentParams, RecurrentPolicy, Told, told_columns
from naht.agents.teammate_model import ModelConfig, TeammateDecoders
from naht.config import MOST_ENVS, Count, NotNegative, Positive, Range, Share, setting
from naht.devices import SHARED, SPLIT, own_key, total, zeros
from naht.envs.base import Array, EnvSpec, PyTree
from naht.errors import require
from naht.learning.learner import ALONE, Circumstances
from naht.learning.minibatches import Metrics, draw_minibatches, map_rows
from naht.learning.normalisation import RunningStats, masked_mean, masked_standardise, masked_sum
from naht.learning.optimisation import anneal, clipped_adam, fit, start
from naht.learning.returns import td_lambda
from naht.learning.rows import AgentRows, Batch, Histories, LookBack, Modelled, Teammates, Turns, before, concat, unroll
from naht.pieces import CACHE, Pieces
from naht.rollout import Trajectory
from naht.teams.sampler import describe


@setting
@dataclass(frozen=True)
class PPOConfig:
    """Settings of the PPO learner."""

    num_envs: Annotated[int, Range(1, MOST_ENVS)] = 256
    """Environments in a batch; each plays `rollout_steps` per update."""
    rollout_steps: Count | None = None
    """Steps per environment and update; None: one horizon, so that fixed-length tasks give whole episodes."""
    epochs: Count = 5
    """Passes over each batch."""
    minibatches: Count = 1
    """Optimiser steps per pass."""
    sequence_length: Count | None = None
    """Cut the batch into sequences of this many steps, each starting from its stored hidden state; None: uncut."""
    lr: Positive = 5e-4
    """Learning rate of actor and critic."""
    lr_end: NotNegative | None = None
    """Learning rate at the end of the run (linear in between); None: constant."""
    max_grad_norm: Positive = 10.0
    """Gradients of actor and critic are each scaled down to this norm."""
    gamma: Share = 0.99
    """Discount."""
    gae_lambda: Share = 0.95
    """Lambda of the TD(lambda) targets and advantages."""
    clip: Positive = 0.1
    """PPO's clip of the probability ratio, and of the value's change with `clip_value`."""
    clip_value: bool = False
    """Clip the value's change as well."""
    entropy: NotNegative = 0.05
    """Weight of the entropy bonus."""
    entropy_end: NotNegative | None = None
    """Entropy weight at the end of the run (linear in between); None: constant."""
    value_loss: Literal["mse", "huber"] = "mse"
    """Loss of the critic."""
    huber_delta: Positive = 10.0
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
    central_critic: bool = False
    """The critic reads the global state as well (MAPPO)."""
    uncontrolled_data: bool = True
    """Train the critic on the uncontrolled agents' data as well (UCD)."""
    actor_told: Told = "nothing"
    """What the actor is told of its team: which members of U are in it, which seats are controlled, or both. Nobody can
    know that of strangers; it shows what knowing them could be worth."""
    critic_told: Told = "nothing"
    """The same for the critic."""
    imitation: NotNegative = 0.0
    """Weight of learning from what the uncontrolled agents do: the actor's negative log-likelihood of their actions,
    each counted by exp(its standardised advantage). Falls linearly during the run; 0: not at all."""
    imitation_until: Annotated[float, Range(0, 1, above=True)] = 0.6
    """The share of the run after which nothing is imitated any more."""
    imitation_limit: Positive = 5.0
    """An action counts at most this much."""
    modelling: bool = True
    """Teammate model on (POAM) or off (IPPO)."""
    model_epochs: Count = 5
    """Passes of the teammate model over each batch."""
    model_minibatches: Count = 1
    """Optimiser steps of the teammate model per pass."""
    decoded_teammates: Count | Literal["all"] = "all"
    """Teammates that the model of an agent decodes in every step, in turn; all: everybody, as published. The gradient
    is the same on average, at a cost that does not grow with the team."""
    decoded_actions: Literal["all", "controlled"] = "all"
    """Whose actions train the action decoder: those of all teammates, or of controlled ones (as in the authors' code).
    """
    model_lr: Positive = 5e-4
    """Learning rate of the teammate model."""
    model_max_grad_norm: Positive = 5.0
    """Gradients of the teammate model are scaled down to this norm."""
    network: NetworkConfig = NetworkConfig()
    """Actor and critic."""
    model: ModelConfig = ModelConfig()
    """Teammate model."""

    def learner(self, spec: EnvSpec, around: Circumstances = ALONE) -> PPO:
        """See `LearnerSettings`."""
        return PPO(spec, self, around.devices, around.pieces, around.share, around.strangers)


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
    encoder_memory: Array  # [B, M, H of the model], likewise; of use in the seats of uncontrolled agents
    actor_memory: Array  # [B, M, H], likewise; width 0 unless these are imitated


@dataclass(frozen=True)
class PPO:
    """The learner: `init`, then `update` once per batch of experience."""

    spec: EnvSpec
    config: PPOConfig
    devices: int = 1
    pieces: Pieces = CACHE
    share: float = 1.0
    """Of the seats, how many are expected to be controlled: pieces are cut to fit, which changes speed only."""
    strangers: int = 0
    """Members of U, which somebody may be told of."""

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
        c = self.config
        known = 0 if c.actor_told == "nothing" else self.strangers  # otherwise, no part of the policy
        return RecurrentPolicy(self.spec, c.network, c.model if c.modelling else None, c.actor_told, known)

    @property
    def critic(self) -> RecurrentNetwork:
        return RecurrentNetwork(self.config.network, 1, output_scale=1.0)

    @property
    def state_size(self) -> int:
        """Width of the global state as the critic reads it."""
        return self.spec.state_size if self.config.central_critic else 0

    @property
    def critic_columns(self) -> slice:
        """What the critic reads of a description of the team."""
        return told_columns(self.config.critic_told, self.strangers, self.spec.num_agents)

    def actor_reads(self, x: Array, embedding: Array, told: Array) -> Array:
        """[..., I], [..., E], [..., K + M] -> [..., inputs of the actor]."""
        return concat(x, embedding, told[..., self.policy.told_columns])

    def critic_reads(self, x: Array, embedding: Array, global_state: Array, told: Array) -> Array:
        """Likewise, of the critic."""
        return concat(x, embedding, global_state, told[..., self.critic_columns])

    @property
    def decoders(self) -> TeammateDecoders:
        return TeammateDecoders(self.config.model, self.spec)

    @property
    def decoded_teammates(self) -> int:
        """How many teammates of an agent are decoded in every step."""
        wanted, count = self.config.decoded_teammates, self.spec.num_agents - 1
        return count if wanted == "all" else min(wanted, count)

    @property
    def controlled_rows(self) -> float:
        """The share of rows that a controlled agent is expected to have a part in. One episode fills a row if rollouts
        are as long as episodes can be; else two usually meet in it, and either may be ours."""
        whole = self.rollout_steps == self.spec.horizon
        return self.share if whole else 1 - (1 - self.share) ** 2

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Of actor and critic, on their parameters as a vector. The learning rate comes with each update."""
        return clipped_adam(self.config.max_grad_norm)

    @property
    def model_optimiser(self) -> optax.GradientTransformation:
        return clipped_adam(self.config.model_max_grad_norm)

    def init(self, key: Array) -> PPOState:
        k_policy, k_critic, k_decoders = jax.random.split(key, 3)
        policy = self.policy.init(k_policy)
        seats, hidden = (self.num_envs, self.spec.num_agents), self.config.network.hidden
        told = self.critic_columns.stop - self.critic_columns.start
        x = zeros(1, 1, self.policy.input_size + self.policy.embedding_size + self.state_size + told)
        critic = init_params(self.critic, k_critic, x, zeros(1, hidden), zeros(1, 1, dtype=bool))
        embedding, seat = zeros(1, self.policy.embedding_size), zeros(1, 1, dtype=np.int32)
        decoders = init_params(self.decoders, k_decoders, embedding, seat) if self.config.modelling else {}
        return PPOState(
            params=PPOParams(policy, critic, decoders),
            actor_opt=start(self.optimiser, policy.actor),
            critic_opt=start(self.optimiser, critic),
            model_opt=start(self.model_optimiser, (policy.encoder, decoders)) if self.config.modelling else (),
            reward_stats=RunningStats.start(),
            critic_memory=zeros(*seats, hidden),
            encoder_memory=zeros(*seats, self.policy.encoder_size),
            actor_memory=zeros(*seats, hidden if self.config.imitation else 0),
        )

    @property
    def layout(self) -> PyTree:
        """What of the state is the same on every device, and what is cut along the environments."""
        return PPOState(SHARED, SHARED, SHARED, SHARED, SHARED, SPLIT, SPLIT, SPLIT)

    def policy_params(self, state: PPOState) -> RecurrentParams:
        """What the policy needs to act."""
        return state.params.policy

    def decoder_params(self, state: PPOState) -> PyTree:
        """Of the teammate model, which acting does not need."""
        return state.params.decoders

    def init_experience(self) -> tuple[()]:
        """PPO forgets every batch after its update."""
        return ()

    def update(
        self, state: PPOState, experience: tuple[()], trajectory: Trajectory, key: Array, progress: Array
    ) -> tuple[PPOState, tuple[()], Metrics]:
        """Learn from one batch. progress [] in 0..1 is the fraction of the run that has passed."""
        c, devices = self.config, self.devices
        k_actor, k_critic, k_model = jax.random.split(own_key(key, devices), 3)
        state, batch, metrics = self.prepare(state, trajectory)
        lr = anneal(c.lr, c.lr_end, progress)
        entropy = anneal(c.entropy, c.entropy_end, progress)

        controlled = (batch.agents.actor_weight > 0).any(-1)
        learning = (batch.agents.critic_weight > 0).any(-1)
        policy, critic, decoders = state.params
        encoder, model_opt = policy.encoder, state.model_opt

        share, at_once = self.controlled_rows, self.pieces.rows
        # Strangers' rows are computed while they are imitated, and no longer.
        imitation = c.imitation * jnp.maximum(0.0, 1 - progress / c.imitation_until)
        acting = controlled | ((batch.agents.imitation_weight > 0).any(-1) & (imitation > 0))
        deal = draw_minibatches(k_actor, acting, c.epochs, c.minibatches, at_once, 1.0 if c.imitation else share)
        loss = partial(self.actor_loss, entropy, imitation)
        (actor, actor_opt), log = fit(loss, policy.actor, state.actor_opt, self.optimiser, lr, batch, deal, devices)
        metrics |= _named("actor", log)
        valued = 1.0 if c.uncontrolled_data else share
        deal = draw_minibatches(k_critic, learning, c.epochs, c.minibatches, at_once, valued)
        (critic, critic_opt), log = fit(
            self.critic_loss, critic, state.critic_opt, self.optimiser, lr, batch, deal, devices
        )
        metrics |= _named("critic", log)
        if c.modelling:
            deal = draw_minibatches(k_model, controlled, c.model_epochs, c.model_minibatches, at_once, share)
            deal = deal._replace(rows=self.draw_turns(jax.random.fold_in(k_model, 1), deal.rows))
            model, optimiser = (encoder, decoders), self.model_optimiser
            modelled = Modelled(batch, self.decoded_teammates)
            ((encoder, decoders), model_opt), log = fit(
                self.model_loss, model, model_opt, optimiser, c.model_lr, modelled, deal, devices
            )
            metrics |= _named("model", log)
        params = PPOParams(RecurrentParams(actor, encoder), critic, decoders)
        state = state._replace(params=params, actor_opt=actor_opt, critic_opt=critic_opt, model_opt=model_opt)
        return state, experience, metrics

    def prepare(self, state: PPOState, trajectory: Trajectory) -> tuple[PPOState, Batch, Metrics]:
        """Everything that is computed once per batch, with the parameters that collected it."""
        c, tr = self.config, trajectory
        steps, num_envs, num_agents = tr.action.shape
        length = c.sequence_length or steps

        def by_agent(leaf: Array) -> Array:
            """[T, B, M, ...] -> [B * M, T, ...]."""
            return jnp.moveaxis(leaf, 0, 2).reshape(num_envs * num_agents, leaf.shape[0], *leaf.shape[3:])

        def by_team(leaf: Array) -> Array:
            """[T, B, ...] -> [B * M, T, ...], the same for all agents of a team."""
            return jnp.repeat(leaf.swapaxes(0, 1), num_agents, axis=0)

        def start_of(memory: Array) -> Array:
            """[B, M, H] -> [B * M, H]."""
            return memory.reshape(num_envs * num_agents, memory.shape[-1])

        # The arena knows the history of agents that we control, this learner that of the others.
        controlled = tr.team.controlled[0][..., None]
        encoder_start = start_of(jnp.where(controlled, tr.start_memory[0].encoder, state.encoder_memory))
        actor_start = tr.start_memory[0].actor
        if c.imitation:
            actor_start = jnp.where(controlled, actor_start, state.actor_memory)
        global_state, next_global_state = (
            leaf if c.central_critic else leaf[..., :0] for leaf in (tr.global_state, tr.next_global_state)
        )
        nothing = c.actor_told == c.critic_told == "nothing"
        told = jnp.zeros((steps, num_envs, 0)) if nothing else describe(tr.team, self.strangers)
        slot = jnp.broadcast_to(jnp.arange(num_agents), tr.action.shape)
        tail = steps if c.bootstrap_time_limit else 1
        x, first = by_agent(self.policy.inputs(tr.obs, tr.last_action, slot)), by_team(tr.first)
        seen = Histories(
            x=x,
            first=first,
            global_state=by_team(global_state),
            told=by_team(told),
            x_next=by_agent(self.policy.inputs(tr.next_obs[-tail:], tr.action[-tail:], slot[-tail:])),
            global_state_next=by_team(next_global_state[-tail:]),
            actor_start=start_of(actor_start),
            encoder_start=encoder_start,
            critic_start=start_of(state.critic_memory),
        )
        known = map_rows(partial(self.look_back, state.params), seen, self.pieces.look_back)
        values, next_values = known.values, known.next_values

        stats = state.reward_stats.update(tr.reward, self.devices)
        reward = tr.reward
        if c.standardise_rewards != "no":
            reward = stats.standardise(reward, subtract_mean=c.standardise_rewards == "mean-std")
        discount = c.gamma * (1.0 - (tr.terminated if c.bootstrap_time_limit else tr.done))
        cut = tr.done.at[-1].set(True)
        targets = td_lambda(by_team(reward).T, next_values.T, by_team(discount).T, by_team(cut).T, c.gae_lambda).T

        actor_weight = by_agent(tr.team.controlled & tr.alive).astype(jnp.float32)
        # The team's reward goes on after an agent's death, and targets bootstrap from the values of the dead.
        valued = jnp.ones_like(tr.team.controlled) if c.uncontrolled_data else tr.team.controlled
        critic_weight = by_agent(valued).astype(jnp.float32)
        advantages = targets - values
        imitation_weight, actor_count = jnp.zeros_like(actor_weight), actor_weight
        if c.imitation:
            strangers = by_agent(~tr.team.controlled & tr.alive).astype(jnp.float32)
            ours, theirs = total((actor_weight.sum(), strangers.sum()), self.devices)
            merit = jnp.exp(masked_standardise(advantages, strangers, self.devices))
            # Means are over our steps; minibatches may have few of these, so those that one expects among so many
            # living agents are counted instead, and theirs are scaled to as many.
            imitation_weight = strangers * jnp.minimum(merit, c.imitation_limit) * ours / jnp.maximum(theirs, 1.0)
            actor_count = (actor_weight + strangers) * ours / jnp.maximum(ours + theirs, 1.0)
        if c.standardise_advantages:
            advantages = masked_standardise(advantages, actor_weight, self.devices)

        def rows(leaf: Array) -> Array:
            """[K, T, ...] -> [(T / L) * K, L, ...]."""
            pieces = leaf.reshape(leaf.shape[0], steps // length, length, *leaf.shape[2:]).swapaxes(0, 1)
            return pieces.reshape(leaf.shape[0] * (steps // length), *pieces.shape[2:])

        def starts(stored: Array, start: Array, memory: str) -> Array:
            if memory == "stored":
                return rows(stored)
            return start if length == steps else rows(stored)[:, 0]

        agents = AgentRows(
            x=rows(x),
            obs=rows(by_agent(tr.obs)),
            embedding=rows(known.embedding),
            told=rows(seen.told),
            first=rows(first),
            avail=rows(by_agent(tr.avail)),
            action=rows(by_agent(tr.action)),
            log_prob=rows(by_agent(tr.log_prob)),
            advantage=rows(advantages),
            value=rows(values),
            target=rows(targets),
            actor_weight=rows(actor_weight),
            actor_count=rows(actor_count),
            imitation_weight=rows(imitation_weight),
            critic_weight=rows(critic_weight),
            alive=rows(by_agent(tr.alive)),
            controlled=rows(by_agent(tr.team.controlled)),
            num_pairs=rows(actor_weight * (by_team(tr.alive.sum(-1)) - 1.0)),
            actor_h0=starts(known.actor_memory, seen.actor_start, c.actor_memory),
            critic_h0=starts(known.critic_memory, seen.critic_start, c.critic_memory),
            encoder_h0=starts(known.encoder_memory, seen.encoder_start, "bptt"),
        )
        error = masked_mean((targets - values) ** 2, critic_weight, self.devices)
        mean = masked_mean(targets, critic_weight, self.devices)
        spread = masked_mean((targets - mean) ** 2, critic_weight, self.devices)
        metrics = {
            "value/mean": masked_mean(values, critic_weight, self.devices),
            "value/explained_variance": 1.0 - error / jnp.maximum(spread, 1e-8),
        }
        state = state._replace(
            reward_stats=stats,
            critic_memory=known.critic_end.reshape(state.critic_memory.shape),
            encoder_memory=known.encoder_end.reshape(state.encoder_memory.shape),
            actor_memory=known.actor_end.reshape(state.actor_memory.shape),
        )
        return state, Batch(agents, rows(global_state.swapaxes(0, 1))), metrics

    def look_back(self, params: PPOParams, histories: Histories) -> LookBack:
        """What encoder and critic make of a few agents' histories: leaves [C, T, ...] -> leaves [C, T, ...]."""
        c = self.config
        h = jax.tree.map(lambda leaf: leaf.swapaxes(0, 1) if leaf.ndim > 2 else leaf, histories)
        first = histories.first.T
        embed, critic = partial(self.policy.embed, params.policy), partial(self.critic.apply, params.critic)
        embedding, encoder_hidden = unroll(embed, h.x, h.encoder_start, first)
        read = self.critic_reads(h.x, embedding, h.global_state, h.told)
        values, critic_hidden = unroll(critic, read, h.critic_start, first)

        # V of what follows step t is the next step's value, except at the batch's end and where the clock ended an
        # episode: there it is one more step of encoder and critic, on the observation before the restart.
        tail = h.x_next.shape[0]
        same_episode = jnp.zeros((tail, first.shape[1]), bool)
        e_next, _ = unroll(embed, h.x_next, encoder_hidden[-tail:], same_episode)
        x_next = self.critic_reads(h.x_next, e_next, h.global_state_next, h.told[-tail:])
        v_next, _ = unroll(critic, x_next, critic_hidden[-tail:], same_episode)
        next_values = jnp.concatenate([values[1:], v_next[-1:]]) if tail == 1 else v_next

        def stored(needed: bool, hidden: Callable[[], Array], start: Array) -> Array:
            """States before each step, where anybody reads them: [T, C, H] or nothing."""
            return before(hidden(), start) if needed else jnp.zeros((first.shape[0], first.shape[1], 0))

        def actor_hidden() -> Array:
            actor = partial(self.policy.actor.apply, params.policy.actor)
            return unroll(actor, self.actor_reads(h.x, embedding, h.told), h.actor_start, first)[1]

        cut = c.sequence_length is not None
        actor_end = actor_hidden()[-1] if c.imitation else jnp.zeros((first.shape[1], 0))
        actor_memory = stored(cut or c.actor_memory == "stored", actor_hidden, h.actor_start)
        critic_memory = stored(cut or c.critic_memory == "stored", lambda: critic_hidden, h.critic_start)
        encoder_memory = stored(cut, lambda: encoder_hidden, h.encoder_start)
        return LookBack(
            embedding=embedding.swapaxes(0, 1),
            values=values[..., 0].T,
            next_values=next_values[..., 0].T,
            actor_memory=actor_memory.swapaxes(0, 1),
            critic_memory=critic_memory.swapaxes(0, 1),
            encoder_memory=encoder_memory.swapaxes(0, 1),
            encoder_end=encoder_hidden[-1],
            critic_end=critic_hidden[-1],
            actor_end=actor_end,
        )

    def draw_turns(self, key: Array, rows: Array) -> Turns:
        """With whom the agents of these rows [...] begin."""
        return Turns(rows, jax.random.randint(key, rows.shape, 0, max(1, self.spec.num_agents - 1)))

    def actor_loss(
        self,
        entropy_weight: Array | float,
        imitation_weight: Array | float,
        params: PyTree,
        a: AgentRows,
        global_state: Array,
    ) -> tuple[Array, tuple[Array, Metrics]]:
        """PPO's clipped objective with entropy bonus, over living controlled agents; and, with imitation, the weighted
        negative log-likelihood of what living uncontrolled ones did. Leaves of `a` are [L, C, ...]."""
        del global_state
        clip, weight = self.config.clip, a.actor_weight
        x = self.actor_reads(a.x, a.embedding, a.told)
        logits, _ = unroll(partial(self.policy.actor.apply, params), x, a.actor_h0, a.first)
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
        loss = metrics["loss"] - entropy_weight * metrics["entropy"]
        count = weight
        if self.config.imitation:
            metrics["imitation"] = masked_sum(-pick(log_probs, a.action), a.imitation_weight)
            loss += imitation_weight * metrics["imitation"]
            count = jnp.where(imitation_weight > 0, a.actor_count, weight)
        return loss, (count.sum(), metrics)

    def critic_loss(self, params: PyTree, a: AgentRows, global_state: Array) -> tuple[Array, tuple[Array, Metrics]]:
        """Regression of the values on the TD(lambda) targets, over all agents or controlled ones, dead or alive."""
        c = self.config
        x = self.critic_reads(a.x, a.embedding, global_state, a.told)
        values, _ = unroll(partial(self.critic.apply, params), x, a.critic_h0, a.first)
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

    def model_loss(self, params: PyTree, a: AgentRows, mates: Teammates) -> tuple[Array, tuple[Array, Metrics]]:
        """What controlled agents' embeddings say of their teammates: squared error of observations, NLL of actions.

        Errors are averaged over observation entries and over the (modelling agent, living teammate) pairs in play. The
        modelling agent does not know its teammates' action masks, so neither does the decoder.
        """
        encoder, decoders = params
        policy_params = RecurrentParams(actor={}, encoder=encoder)
        embedding, _ = unroll(partial(self.policy.embed, policy_params), a.x, a.encoder_h0, a.first)
        obs, logits = self.decoders.apply(decoders, embedding, mates.seats)  # [L, C, K, ...]
        weight = a.actor_weight[..., None] * mates.alive
        squared = (jnp.where(weight[..., None] > 0, obs - mates.obs, 0.0) ** 2).mean(-1)
        log_prob = pick(jax.nn.log_softmax(logits), mates.action)
        acting = weight * mates.controlled if self.config.decoded_actions == "controlled" else weight
        loss = masked_sum(squared, weight) - masked_sum(log_prob, acting)
        metrics = {
            "loss": loss,
            "obs_mse": masked_sum(squared, weight),
            "action_prob": masked_sum(jnp.exp(log_prob), weight),
        }
        for name, kind in (("controlled", mates.controlled), ("uncontrolled", ~mates.controlled)):
            share = weight * kind
            metrics[f"obs_mse_{name}"] = masked_sum(squared, share)
            metrics[f"action_prob_{name}"] = masked_sum(jnp.exp(log_prob), share)
            metrics[f"share_{name}"] = share.sum()
        # The pairs to expect, rather than those drawn: with these in the denominator, too, the mean would be biased.
        drawn = self.decoded_teammates / max(1, self.spec.num_agents - 1)
        return loss, (drawn * a.num_pairs.sum(), metrics)


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
