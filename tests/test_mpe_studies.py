"""The recipe around predator-prey, at toy sizes: a prey is bred."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from naht import check_environment, load_agent
from naht.agents.networks import NetworkConfig
from naht.cli import main
from naht.envs.predator_prey import Flight, PredatorPrey, PredatorPreyState
from naht.envs.prey import load_prey
from naht.experiments import prey as recipe
from naht.learning.ppo import PPOConfig
from naht.training.config import run_config

TINY = PPOConfig(num_envs=4, rollout_steps=10, epochs=1, modelling=False, network=NetworkConfig(hidden=8))


def tiny_runs(monkeypatch):
    """Runs of two small updates."""

    def tiny_config(*args, **options):
        config = run_config(*args, **options)
        modelling = config.algorithm.modelling
        few = {"test_episodes": 4, "final_episodes": 8, "devices": 1}
        return replace(config, algorithm=replace(TINY, modelling=modelling), **few)

    monkeypatch.setattr(recipe, "run_config", tiny_config)


def test_flight_conforms_and_pays_the_prey():
    env = Flight()
    check_environment(env, episodes=2)
    # Two predators on the prey, the third far away; then the prey outside the square, alone.
    position = np.array([[0.1, 0.0], [-0.1, 0.0], [0.9, 0.9], [0.0, 0.0], [0.9, -0.9], [-0.9, 0.9]]).T
    state = PredatorPreyState(jnp.asarray(position, jnp.float32), jnp.zeros((2, 4)), jnp.asarray(0), jnp.zeros(()))
    _, ts = env.step(None, state, jnp.zeros(4, jnp.int32))
    assert float(ts.reward) == -2.0
    position[:, 3] = [1.1, 0.0]
    position[:, :2] = -0.5
    _, ts = env.step(None, state._replace(position=jnp.asarray(position, jnp.float32)), jnp.zeros(4, jnp.int32))
    assert float(ts.reward) == pytest.approx(-0.05, abs=1e-5)  # a quarter of how far it is beyond the wall at 0.9
    np.testing.assert_array_equal(ts.obs[3, -2:], 0.0)


def test_a_prey_is_bred_over_generations_and_a_killed_recipe_goes_on(monkeypatch, tmp_path, capsys):
    tiny_runs(monkeypatch)
    small = replace(recipe.FLEEING, num_envs=4, rollout_steps=10, network=replace(recipe.FLEEING.network, hidden=8))
    monkeypatch.setattr(recipe, "FLEEING", small)
    flags = ["--prey-steps", "80", "--predator-steps", "80", "--out", str(tmp_path)]
    assert main(["train-prey", "--generations", "0", *flags]) == 0
    before = (tmp_path / "prey0.safetensors").read_bytes()
    assert main(["train-prey", "--generations", "1", *flags]) == 0
    assert (tmp_path / "prey0.safetensors").read_bytes() == before
    said = capsys.readouterr().out
    assert "prey0.safetensors, predators learned to earn" in said
    assert "naht train mpe-pp ippo --prey" in said
    prey = load_prey(str(tmp_path / "prey1.safetensors"), 14)
    assert prey.card["generation"] == 1
    # The exported network is the trained agent's.
    agent = load_agent(tmp_path / "mpe-prey/prey/generation1/last.safetensors")
    env = PredatorPrey(prey=str(tmp_path / "prey1.safetensors"))
    obs = np.random.default_rng(0).normal(size=(64, 14)).astype(np.float32)
    expected, _ = agent.act(np.pad(obs, ((0, 0), (0, 2))), slot=3)
    np.testing.assert_array_equal(env.mover.act(obs), expected)
    config = agent.card["config"]["teams"]
    assert config["slots"] == "last"
    assert config["teammates"][-1].endswith("mpe-pp/ippo/generation1/last.safetensors")
    assert {"decoy:0", "decoy:1", "decoy:2"} < set(config["teammates"])
