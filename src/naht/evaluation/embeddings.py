"""What team embeddings know of the team: linear probes on held-out episodes, and a picture in the plane."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from naht.agents.recurrent import RecurrentParams, RecurrentPolicy
from naht.agents.saved import Agent
from naht.envs.base import Array, Environment, PyTree
from naht.errors import require
from naht.evaluation.play import block_keys, chance, in_blocks
from naht.rollout import Arena
from naht.teams.population import Population, Roster
from naht.teams.sampler import team_sampler

HELD_OUT = 0.25
"""Share of episodes that probes are tested on, and not fitted to."""
PLACES = 9
"""Time steps at which is asked, evenly spaced on a logarithmic scale: most is learned early."""
ENOUGH = 0.05
"""Share of the agents of the first step that must live to see a later one, for that to be asked about."""
FITTING_STEPS, RIDGE = 400, 1e-3


class Accuracy(NamedTuple):
    """Of a linear probe on held-out episodes."""

    t: int
    """Steps that the agent has seen, from 1."""
    asked: Literal["strangers", "n"]
    """Which team the strangers are of, or how many agents are controlled."""
    reads: Literal["embedding", "observation"]
    """What the probe sees: the embedding, or the last observation, action and seat, without memory."""
    accuracy: float
    chance: float
    """Of always saying what is most frequent."""


class Point(NamedTuple):
    """An embedding in the plane of their two largest principal components."""

    t: int
    strangers: str
    n: int
    place: tuple[float, float]


class Seen(NamedTuple):
    """Of E episodes at P time steps, all seats."""

    embedding: Any  # [P, E, M, D]
    observation: Any  # [P, E, M, I]
    counts: Any  # [P, E, M] bool: a living controlled agent in an episode that goes on
    stranger: Any  # [E] int32
    n: Any  # [E] int32


@partial(jax.jit, static_argnums=(0, 1, 2))
def _watch(
    arena: Arena,
    policy: RecurrentPolicy,
    places: tuple[int, ...],
    params: RecurrentParams,
    theirs: PyTree,
    key: Array,
) -> Seen:
    k_reset, k_play = jax.random.split(key)
    ours = (jax.tree.map(lambda leaf: leaf[None], params),)
    start = arena.reset(k_reset)
    _, tr = arena.play(ours, theirs, start, k_play, arena.env.spec.horizon)
    steps, envs, m = tr.action.shape
    x = policy.inputs(tr.obs, tr.last_action, jnp.broadcast_to(jnp.arange(m), tr.action.shape))
    h0 = jnp.zeros((envs * m, policy.encoder_size))
    embedding, _ = policy.embed(params, x.reshape(steps, envs * m, -1), h0, jnp.repeat(tr.first, m, axis=1))
    going_on = jnp.cumsum(tr.done, axis=0) - tr.done == 0
    at = jnp.asarray(places) - 1
    team = start.team
    return Seen(
        embedding.reshape(steps, envs, m, -1)[at],
        x[at],
        (team.controlled & tr.alive & going_on[..., None])[at],
        jnp.where(team.controlled, -1, team.member).max(-1),
        team.controlled.sum(-1),
    )


def probe(
    env: Environment, agent: Agent, uncontrolled: Population, *, episodes: int = 1024, seed: int = 0, shown: int = 300
) -> tuple[list[Accuracy], list[Point]]:
    """Let an agent play with strangers, N uniform on 1..M-1, and ask linear probes of its embedding who they are and
    how many agents are controlled. `shown` embeddings at three time steps become points."""
    policy = agent.policy
    fine = isinstance(policy, RecurrentPolicy) and policy.model is not None
    require(fine, f"{agent.name} has no teammate model: there is no embedding to ask")
    assert isinstance(policy, RecurrentPolicy)
    horizon = env.spec.horizon
    places = tuple(int(t) for t in np.unique(np.round(np.geomspace(1, horizon, PLACES))))
    blocks, size = in_blocks(env, episodes)
    ours = Roster((agent.name,), (policy,), (True,))
    arena = Arena(env, team_sampler(env.spec.num_agents, len(uncontrolled)), ours, uncontrolled.roster, size)
    keys = block_keys(chance(seed), blocks)
    parts = [jax.device_get(_watch(arena, policy, places, agent.params, uncontrolled.params, key)) for key in keys]
    axes = (1, 1, 1, 0, 0)
    seen = Seen(*[np.concatenate(leaves, axis) for leaves, axis in zip(zip(*parts, strict=True), axes, strict=True)])
    alive = seen.counts.sum((1, 2))
    lasting = alive >= ENOUGH * alive[0]  # where episodes end early, few are left to ask at the end
    places = tuple(t for t, asked in zip(places, lasting, strict=True) if asked)
    seen = seen._replace(**{name: getattr(seen, name)[lasting] for name in ("embedding", "observation", "counts")})
    fitted = np.arange(seen.n.size) < (1 - HELD_OUT) * seen.n.size  # blocks are independent: any split will do
    accuracies = []
    for asked, label in (("strangers", seen.stranger), ("n", seen.n - 1)):
        for reads in ("embedding", "observation"):
            found = linear_probe(getattr(seen, reads), label, seen.counts, fitted)
            accuracies += [
                Accuracy(t, asked, reads, *map(float, pair))  # type: ignore[arg-type]
                for t, pair in zip(places, found, strict=True)
            ]
    return accuracies, _picture(seen, places, uncontrolled.roster.names, shown)


def linear_probe(x: np.ndarray, label: np.ndarray, counts: np.ndarray, fitted: np.ndarray) -> np.ndarray:
    """(accuracy, chance) at every time step, [P, 2], on episodes that were not fitted.

    x [P, E, M, D], label [E] int, counts [P, E, M] bool, fitted [E] bool. Multinomial logistic regression, standardised
    inputs, a little ridge.
    """
    classes = int(label.max()) + 1
    wanted = np.broadcast_to(label[:, None], counts.shape[1:])
    return np.asarray(_probe(classes, jnp.asarray(x), jnp.asarray(wanted), jnp.asarray(counts), jnp.asarray(fitted)))


@partial(jax.jit, static_argnums=0)
def _probe(classes: int, x: Array, wanted: Array, counts: Array, fitted: Array) -> Array:
    def at_step(now: tuple[Array, Array]) -> Array:
        x, counts = now
        train = (counts & fitted[:, None]).astype(jnp.float32)
        test = (counts & ~fitted[:, None]).astype(jnp.float32)
        total = jnp.maximum(train.sum(), 1.0)
        mean = (x * train[..., None]).sum((0, 1)) / total
        spread = jnp.sqrt((((x - mean) ** 2) * train[..., None]).sum((0, 1)) / total)
        x = (x - mean) / jnp.maximum(spread, 1e-6)
        target = jax.nn.one_hot(wanted, classes)

        def loss(params: tuple[Array, Array]) -> Array:
            weights, bias = params
            log_probs = jax.nn.log_softmax(x @ weights + bias)
            return -((log_probs * target).sum(-1) * train).sum() / total + RIDGE * (weights**2).sum()

        optimiser = optax.adam(0.05)
        start = jnp.zeros((x.shape[-1], classes)), jnp.zeros(classes)

        def step(carry: tuple[PyTree, PyTree], _: None) -> tuple[tuple[PyTree, PyTree], None]:
            params, state = carry
            updates, state = optimiser.update(jax.grad(loss)(params), state)
            return (optax.apply_updates(params, updates), state), None

        ((weights, bias), _), _ = jax.lax.scan(step, (start, optimiser.init(start)), None, FITTING_STEPS)
        tested = jnp.maximum(test.sum(), 1.0)
        right = ((x @ weights + bias).argmax(-1) == wanted) * test
        common = (target * train[..., None]).sum((0, 1)).argmax()
        return jnp.stack([right.sum(), ((wanted == common) * test).sum()]) / tested

    return jax.lax.map(at_step, (x, counts))


def _picture(seen: Seen, places: tuple[int, ...], names: tuple[str, ...], shown: int) -> list[Point]:
    """Three moments: the first step, the middle one asked about, the last. All in one plane."""
    chosen = sorted({0, len(places) // 2, len(places) - 1})
    everything = seen.embedding[chosen][seen.counts[chosen]]
    mean = everything.mean(0)
    _, _, axes = np.linalg.svd(everything - mean, full_matrices=False)
    points = []
    for p in chosen:
        episode, seat = np.nonzero(seen.counts[p])
        for e, s in list(zip(episode, seat, strict=True))[:shown]:
            x, y = (seen.embedding[p, e, s] - mean) @ axes[:2].T
            points.append(Point(places[p], names[seen.stranger[e]], int(seen.n[e]), (float(x), float(y))))
    return points
