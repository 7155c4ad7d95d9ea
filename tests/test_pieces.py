"""How much is computed at once changes nothing but speed, and an accelerator is given everything."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from accelerator import sequential_iterations, trace_step
from naht import Member, Population
from naht.agents.networks import NetworkConfig
from naht.agents.policy import Percept
from naht.agents.recurrent import RecurrentPolicy
from naht.agents.scripted import Bernoulli
from naht.pieces import CACHE, WHOLE, Pieces, decided, explained
from naht.teams.population import BLOCK
from naht.training.config import run_config
from naht.training.trainer import make_trainer, settled
from probes import Rough, small


def test_the_hardware_decides_what_nobody_else_has():
    assert decided(Pieces(), "cpu") == CACHE
    assert decided(Pieces(), "cuda") == decided(Pieces(), "tpu") == WHOLE
    assert decided(Pieces(rows=7, members="in-turn"), "cuda") == replace(WHOLE, rows=7, members="in-turn")
    assert settled(small()).pieces == CACHE
    assert "16 rows" in explained("cpu")
    assert "cache" in explained("cpu")
    assert "gradients of all rows" in explained("cuda")


def strangers():
    """Two architectures; members that sample, with memories."""
    policy = RecurrentPolicy(Rough().spec, NetworkConfig(hidden=8, layers=0), None)
    members = [Member(f"net{i}", policy, policy.init(jax.random.key(i)), greedy=False) for i in range(3)]
    return Population([*members, Member("bot", Bernoulli(0.3))])


@pytest.mark.parametrize("crowd", ["mixed", "one", "edges", "nobody"])
def test_members_act_the_same_in_turn_and_at_once(crowd):
    """Whoever sits wherever: actions, memories and log-probabilities are equal, also where blocks are just full."""
    population, envs = strangers(), 40
    key = jax.random.key(5)
    member = {
        "mixed": jax.random.randint(key, (envs, 3), 0, 4),
        "one": jnp.full((envs, 3), 1),
        "edges": (jnp.arange(envs * 3) // BLOCK).reshape(envs, 3),  # every member fills its blocks
        "nobody": jnp.zeros((envs, 3), int),
    }[crowd]
    occupied = jax.random.bernoulli(key, 0.7, (envs, 3)) if crowd == "mixed" else jnp.full((envs, 3), crowd != "nobody")
    roster = population.roster
    percept = Percept(
        jax.random.normal(key, (envs, 3, 4)),
        jnp.ones((envs, 3, 3), bool),
        jnp.zeros((envs, 3), int),
        jnp.broadcast_to(jnp.arange(3), (envs, 3)),
    )
    memory = jax.tree.map(lambda leaf: leaf + 0.1, roster.initial_memory((envs, 3)))
    act = jax.jit(roster.act, static_argnames="at_once")
    seating = roster.seat(occupied, member)
    in_turn, at_once = (act(population.params, memory, seating, percept, key, at_once=b) for b in (False, True))
    for a, b in zip(jax.tree.leaves(in_turn), jax.tree.leaves(at_once), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert (in_turn[0] > 0).any() == (crowd != "nobody")


@pytest.mark.parametrize("algorithm", ["poam", "vdn"])
def test_a_step_learns_the_same_in_pieces_and_at_once(algorithm):
    config = small()
    if algorithm == "vdn":
        config = run_config("bit-game", "vdn")
        value = replace(config.algorithm, num_envs=4, rollout_steps=5, capacity=16, batch=8, learning_starts=4)
        config = replace(config, algorithm=replace(value, network=NetworkConfig(hidden=8)), test_episodes=16)
    config, after = replace(config, devices=1), []
    for pieces in (Pieces(rows=3, look_back=5, sequences=3, members="in-turn"), WHOLE):
        trainer, uncontrolled = make_trainer(replace(config, pieces=pieces))
        state = trainer.init(jax.random.key(0))
        for _ in range(2):
            state, metrics = trainer.step(state, uncontrolled.params)
        after.append((state._replace(key=()), metrics))
    for a, b in zip(jax.tree.leaves(after[0]), jax.tree.leaves(after[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_an_accelerator_is_not_kept_waiting():
    """Lowered for CUDA, a step of the paper's size loops over time only, and members are not served one by one."""
    config = run_config("mpe-pp", "poam", "paper")
    trainer, traced = trace_step(replace(config, pieces=decided(Pieces(), "cuda")))
    iterations = sequential_iterations(traced.lower(lowering_platforms=("cuda",)).as_text())
    ppo, steps = config.algorithm, trainer.learner.rollout_steps
    updates = 2 * ppo.epochs * ppo.minibatches + ppo.model_epochs * ppo.model_minibatches
    assert iterations <= 3 * (steps * updates + steps)
    _, traced = trace_step(replace(config, pieces=CACHE))
    assert sequential_iterations(traced.lower(lowering_platforms=("cuda",)).as_text()) > 10 * iterations
