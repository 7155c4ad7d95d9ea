"""Populations of teammates: teams trained in self-play by several algorithms and seeds, each an agent with a card.

A population is a folder of agents, with the runs they come from in a folder of their own. Growing one is resumable:
runs and agents that are there stay as they are, and an agent that was passed on without its run needs none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from naht.agents.policy import Percept
from naht.agents.saved import SUFFIX, Agent, is_saved, load_agent, task_of
from naht.agents.zoo import agents_in
from naht.config import decode
from naht.envs.base import Environment
from naht.errors import NahtError, require, unknown
from naht.evaluation.play import evaluate_sampler
from naht.evaluation.statistics import Interval, mean_interval
from naht.learning.algorithms import self_play_algorithms
from naht.rollout import Arena
from naht.storage import remove_unfinished
from naht.tasks import Preset
from naht.teams.population import Member, Population, Roster
from naht.teams.sampler import team_sampler
from naht.training.config import RunConfig, run_config
from naht.training.crew import Crew
from naht.training.folder import is_run, run_folder
from naht.training.parallel import Job, run_all
from naht.training.progress import Report


@dataclass(frozen=True)
class PopulationRecipe:
    """Which teams to train, and how."""

    task_name: str
    task: Environment
    algorithms: tuple[str, ...] = field(default_factory=self_play_algorithms)
    seeds: int = 5
    first_seed: int = 0
    preset: Preset = "tuned"
    steps: int | None = None
    """Environment steps of every run; None: as the preset says."""
    out: Path = Path("populations")
    episodes: int = 1024
    """Self-play episodes behind the return on each card."""

    def __post_init__(self) -> None:
        for name in ("seeds", "episodes"):
            require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}: it must be at least 1")
        for name in self.algorithms:
            if name not in self_play_algorithms():
                raise unknown("algorithm for a population", name, self_play_algorithms())

    def jobs(self) -> list[Job]:
        """One run per algorithm and seed. Each has one device: many runs at once use the cores better than one run."""
        jobs = []
        for algorithm in self.algorithms:
            for seed in range(self.first_seed, self.first_seed + self.seeds):
                config = run_config(self.task_name, algorithm, self.preset, seed=seed)
                steps = config.steps if self.steps is None else self.steps
                config = replace(config, task=self.task, steps=steps, devices=1)
                config = replace(config, final_episodes=self.episodes)
                jobs.append(Job(config, run_folder(self.out / "runs", config)))
        return jobs


def build(
    recipe: PopulationRecipe,
    *,
    workers: int | None = None,
    crew: Crew | None = None,
    report: Report = lambda _: None,
    checkpoint_every: float = 60,
) -> list[Path]:
    """Train what is missing. Returns the agents' files.

    However often it is killed and called again, the agents are the same, bit for bit.
    """
    jobs = {recipe.out / f"{job.config.algorithm_name}-seed{job.config.seed}{SUFFIX}": job for job in recipe.jobs()}
    missing = {path: job for path, job in jobs.items() if not _is_passed_on(path, job)}
    run_all(
        list(missing.values()),
        workers=workers,
        crew=crew,
        report=report,
        checkpoint_every=checkpoint_every,
        same_command=True,
    )
    remove_unfinished(recipe.out)
    for path, job in missing.items():
        if not is_saved(path):
            load_agent(job.folder).save(path)
    return list(jobs)


def _is_passed_on(path: Path, job: Job) -> bool:
    """Is this the agent that a run without a folder would give? One of other settings is an error."""
    if is_run(job.folder) or not is_saved(path):
        return False
    config = decode(load_agent(path).fact("config"))
    same = isinstance(config, RunConfig) and replace(config, pieces=job.config.pieces) == job.config
    require(same, f"{path} was trained with other settings than {job.folder} would be: move it away")
    return True


def self_play_return(agent: Agent, env: Environment, *, episodes: int, seed: int = 1_000_000) -> Interval:
    """The greedy return of a team of copies, with its 95 % interval over episodes."""
    team = Population([Member(agent.name, agent.policy, agent.params)])
    sampler = team_sampler(env.spec.num_agents, 0, "all")
    rows = evaluate_sampler(env, sampler, team, Population([]), episodes=episodes, seed=seed)
    return mean_interval([row.episode_return for row in rows])


def read_population(folder: Path) -> dict[str, Agent]:
    """All agents of a folder by name."""
    files = agents_in(folder)
    require(bool(files), f"{folder} holds no agents")
    return {name: load_agent(path) for name, path in files.items()}


def chosen_agents(agents: dict[str, Agent], names: Sequence[str]) -> dict[str, Agent]:
    """Those named; all without names."""
    for name in names:
        if name not in agents:
            raise unknown("agent", name, agents)
    return {name: agents[name] for name in names or agents}


class Exported(NamedTuple):
    """A file of an exported agent."""

    path: Path
    float16: bool
    """Rounded to half precision?"""
    changes: float | None
    """The share of greedy actions that rounding changes; None: not measured."""


def export(agents: Iterable[Agent], out: Path, *, float16: bool = False, tolerance: float = 1e-3) -> list[Exported]:
    """Write agents to a folder.

    With `float16`, agents are rounded to half precision unless that changes a larger share of their actions than
    `tolerance`.
    """
    files = []
    for agent in agents:
        path = out / f"{agent.name}.safetensors"
        require(not path.exists(), f"{path} exists already")
        changes = rounding_changes(agent) if float16 else None
        rounded = changes is not None and changes <= tolerance
        card = agent.card | ({"float16": {"actions_changed": changes}} if rounded else {})
        replace(agent, card=card).save(path, float16=rounded)
        files.append(Exported(path, rounded, changes))
    return files


def rounding_changes(agent: Agent, *, num_envs: int = 128, seed: int = 2_000_000) -> float:
    """The share of greedy actions that change when the parameters are rounded to half precision.

    Both see the same histories: those of the agent's own self-play. The rounded one keeps its own memory of them.
    """
    env = task_of([agent])
    roster = Roster((agent.name,), (agent.policy,), (True,))
    arena = Arena(env, team_sampler(env.spec.num_agents, 0, "all"), roster, Roster((), (), ()), num_envs)

    def rounded(leaf: jax.Array) -> jax.Array:
        return leaf.astype(jnp.float16).astype(leaf.dtype) if leaf.dtype == jnp.float32 else leaf

    @jax.jit
    def compare(params: Any, key: jax.Array) -> jax.Array:
        k_reset, k_play = jax.random.split(key)
        ours = (jax.tree.map(lambda leaf: leaf[None], params),)
        _, tr = arena.play(ours, (), arena.reset(k_reset), k_play, env.spec.horizon)
        coarse = jax.tree.map(rounded, params)
        seats = (num_envs, env.spec.num_agents)
        slot = jnp.broadcast_to(jnp.arange(seats[1]), seats)
        fresh = agent.policy.initial_memory(seats)

        def step(memory: Any, now: Any) -> tuple[Any, jax.Array]:
            obs, avail, last_action, first, action = now
            memory = jax.tree.map(
                lambda new, old: jnp.where(first.reshape(-1, *[1] * (old.ndim - 1)), new, old), fresh, memory
            )
            mine, memory, _ = agent.policy.act(coarse, memory, Percept(obs, avail, last_action, slot), key, True)
            return memory, mine != action

        _, differs = jax.lax.scan(step, fresh, (tr.obs, tr.avail, tr.last_action, tr.first, tr.action))
        return (differs & tr.alive).sum() / tr.alive.sum()

    return float(compare(agent.params, jax.random.key(seed)))


def verify(path: Path, *, episodes: int = 256) -> str:
    """Check an agent's file against its card: checksum, sizes, task, and its return in self-play.

    Returns what was found; what is wrong is a `NahtError`.
    """
    agent = load_agent(path)
    env = task_of([agent])
    claim, teams = agent.card.get("measured"), agent.card.get("config", {}).get("teams", {})
    if claim is None or teams.get("num_controlled") != "all":
        raise NahtError(f"{path} has no self-play return on its card")
    # Other episodes than those behind the card: both are samples of the same distribution.
    found = self_play_return(agent, env, episodes=episodes, seed=3_000_000)
    allowed = 2 * float(np.hypot(claim["half_width_95"], found.half_width))
    require(
        abs(found.mean - claim["return"]) <= allowed,
        f"{path} has a self-play return of {found.mean:.2f}, but its card says {claim['return']:.2f} ± {allowed:.2f}",
    )
    return f"checksum, sizes and task fit; self-play {found.mean:.2f}, on the card {claim['return']:.2f}"
