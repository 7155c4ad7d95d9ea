"""Train a prey for predator-prey: generations of prey and predators learn against each other.

The first prey flees from scripted predators. Then, in every generation, predators learn by IPPO to catch the newest
prey, and a new prey learns to flee from the scripted ones and from all predators so far. Each step is an ordinary run
in a folder of its own, so that a stopped recipe goes on with the same command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from naht.agents.networks import NetworkConfig
from naht.agents.saved import load_agent
from naht.envs.predator_prey import Flight, PredatorPrey
from naht.envs.prey import Prey
from naht.errors import require
from naht.learning.ppo import PPOConfig
from naht.terminal import terminal
from naht.training.config import RunConfig, TeamsConfig, run_config
from naht.training.folder import run_folder
from naht.training.parallel import Job, run_all
from naht.training.progress import Display

SCRIPTED = ("chaser", "interceptor", "pincer", "ambush")
"""Who a prey meets first, besides decoys."""

DEVICES = 1
"""Pinned: the same command gives the same prey on any number of cores."""

FLEEING = PPOConfig(
    num_envs=128,
    epochs=4,
    minibatches=8,
    lr=1e-3,
    lr_end=2e-4,
    gamma=0.95,
    clip=0.2,
    entropy=0.02,
    entropy_end=0.002,
    modelling=False,
    uncontrolled_data=False,
    bootstrap_time_limit=True,
    network=NetworkConfig(hidden=128, layer_norm=False, input_norm=False, history=False),
)


@dataclass(frozen=True)
class PreyRecipe:
    """Train a prey: generations of prey and predators learn against each other, from scripted predators on.

    A stopped or killed recipe goes on with the same command; finished generations are kept.
    """

    generations: int = 2
    """Generations of learned predators. More are not always better: preys also forget."""
    prey_steps: int = 2_000_000
    """Environment steps of each prey."""
    predator_steps: int = 2_000_000
    """Environment steps of each generation of predators."""
    num_predators: int = 3
    """Predators that the prey will meet; its network fits this number only."""
    num_obstacles: int = 2
    """Obstacles; likewise."""
    seed: int = 0
    """Seed of everything random."""
    out: Path = Path("runs/prey")
    """Folder of all runs; the prey of generation G will be prey<G>.safetensors there."""


def train_prey(recipe: PreyRecipe, console: Console | None = None) -> Path:
    """Train what is missing. Returns the file of the last generation's prey."""
    require(recipe.generations >= 0, f"generations is {recipe.generations}: it can't be negative")
    console = console or terminal()
    predators: list[str] = []
    prey = _prey(recipe, 0, predators)
    for generation in range(1, recipe.generations + 1):
        hunters = _predators(recipe, generation, prey)
        caught = load_agent(hunters).fact("measured")["return"]
        console.print(f"Against {prey}, predators learned to earn {caught:.1f}", soft_wrap=True)
        predators.append(str(hunters))
        prey = _prey(recipe, generation, predators)
    console.print(f"The prey of generation {recipe.generations}: {prey}", soft_wrap=True)
    console.print(f"Chase it: naht train mpe-pp ippo --prey {prey}", soft_wrap=True)
    return prey


def _finish(config: RunConfig, recipe: PreyRecipe, name: str) -> Path:
    """Train one run to its end. Returns its last agent's file."""
    folder = run_folder(recipe.out, config, name)
    with Display() as display:
        run_all([Job(config, folder)], report=display.show, same_command=True)
    return folder / "last.safetensors"


def _predators(recipe: PreyRecipe, generation: int, prey: Path) -> Path:
    config = run_config("mpe-pp", "ippo", seed=recipe.seed + generation)
    # Pinned, so that better settings found later do not change who the prey grew up with.
    config = replace(config, algorithm=replace(config.algorithm, lr=1e-3, bootstrap_time_limit=False))
    world = PredatorPrey(recipe.num_predators, recipe.num_obstacles, prey=str(prey))
    config = replace(config, task=world, steps=recipe.predator_steps, devices=DEVICES)
    return _finish(config, recipe, f"generation{generation}")


def _prey(recipe: PreyRecipe, generation: int, predators: Sequence[str]) -> Path:
    path = recipe.out / f"prey{generation}.safetensors"
    # Without decoys, a prey never sees a predator far off, and learned ones soon find out what that does to it.
    decoys = [f"decoy:{seat}" for seat in range(recipe.num_predators)]
    config = RunConfig(
        task=Flight(recipe.num_predators, recipe.num_obstacles),
        algorithm_name="prey",
        algorithm=FLEEING,
        teams=TeamsConfig(1, (*SCRIPTED, *decoys, *predators), slots="last"),
        seed=recipe.seed + generation,
        steps=recipe.prey_steps,
        test_every=recipe.prey_steps // 10,
        test_episodes=512,
        devices=DEVICES,
    )
    agent = load_agent(_finish(config, recipe, f"generation{generation}"))
    network = agent.params.actor["params"]
    layers = [[np.asarray(network[f"Dense_{i}"][part]) for part in ("kernel", "bias")] for i in range(3)]
    layers[0][0] = layers[0][0][:-2]  # the two zeros that fill up a predator's observation
    facts = {"generation": generation, "seed": recipe.seed, "steps": agent.fact("steps")}
    sizes = {"num_predators": recipe.num_predators, "num_obstacles": recipe.num_obstacles}
    Prey(tuple((kernel, bias) for kernel, bias in layers), facts | sizes).save(path)
    return path
