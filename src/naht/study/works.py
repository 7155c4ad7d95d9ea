"""What nodes of a study do: train, play with strangers, meet in pairs, predict, be probed, be filmed.

Every one leaves small tables of rows (`naht.study.rows`) in its place; figures and verdicts are made from these alone.
Teammates and agents are named as on the command line, or 'node:NAME' for the agent of a needed training.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from naht.agents.saved import SUFFIX, load_agent
from naht.agents.zoo import agents_in, find_agents
from naht.config import departures
from naht.envs.base import Environment, world_of
from naht.errors import NahtError, require
from naht.evaluation.crossplay import Arrays, members_of, paired, play_meetings
from naht.evaluation.embeddings import probe
from naht.evaluation.modelling import KINDS, predict_teammates
from naht.evaluation.play import evaluate_mn
from naht.evaluation.tables import RETURN, WON
from naht.pieces import Pieces
from naht.report.episodes import worth_watching, write_episodes
from naht.storage import read_arrays, write_arrays
from naht.study.rows import write_rows
from naht.teams.population import Population, load_members
from naht.training.config import RunConfig
from naht.training.folder import is_run, read_metrics
from naht.training.progress import Event, Report
from naht.training.run import create, resume

NODE = "node:"
"""Begins the name of an agent that a needed node has trained."""
AGENT = f"agent{SUFFIX}"
"""The agent that a training leaves: its last one. The best of its tests would be the luckiest, too."""
KEPT = Path("run", "kept")
"""Agents of its way, if it is one that keeps them."""


def resolved(names: Sequence[str], needs: Mapping[str, Path]) -> tuple[str, ...]:
    """Names as `load_members` knows them: those of needed nodes become their agents' files."""
    return tuple(str(needs[n.removeprefix(NODE)] / AGENT) if n.startswith(NODE) else n for n in names)


def files_behind(names: Sequence[str], task: str) -> dict[str, str]:
    """By name, what tells apart agents that may have the same name: a hash of their files. Others are code of ours."""
    hashes = {}
    for name in names:
        for path in (find_agents(name, task) or ()) if name and not name.startswith(NODE) else ():
            hashes[f"{name}: {path.stem}"] = _hash(path, path.stat().st_mtime_ns)
    return hashes


@lru_cache(maxsize=1024)
def _hash(path: Path, changed: int) -> str:
    del changed  # part of what is remembered
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _asked(work: Any, names: Sequence[str]) -> Any:
    """The identity of a measurement: its settings, its world, and the files behind the names in it."""
    settings = {f.name: departures(getattr(work, f.name)) for f in fields(work)}
    files = files_behind(names, work.task.spec.name)
    return {"kind": work.kind, **settings, "task": _task(work.task), "world": world_of(work.task), "files": files}


def _task(env: Environment) -> Any:
    """A task's settings; of a file that it reads, the name alone: `world_of` says what is in it, wherever it lies."""
    settings = departures(env)
    return settings | ({"prey": Path(settings["prey"]).name} if "prey" in settings else {})


def population(names: Sequence[str], needs: Mapping[str, Path], env: Environment) -> Population:
    return Population(load_members(resolved(names, needs), env.spec))


@dataclass(frozen=True)
class Training:
    """Train a run to its end."""

    config: RunConfig
    kind = "training"

    @property
    def size(self) -> int:
        return self.config.steps

    def identity(self) -> Any:
        # Not how much is computed at once: that changes rounding only, and is another on other machines.
        config, teammates = replace(self.config, pieces=Pieces()), self.config.teams.teammates
        files = files_behind(teammates, config.task.spec.name)
        run = departures(config) | {"task": _task(config.task)}
        return {"run": run, "world": world_of(config.task), "teammates": files}

    def finish(self, place: Path, needs: Mapping[str, Path], report: Report) -> None:
        folder, teams = place / "run", self.config.teams
        if not is_run(folder):
            create(replace(self.config, teams=replace(teams, teammates=resolved(teams.teammates, needs))), folder)
        resume(folder, report=report, trust=True)
        rows = [row for row in read_metrics(folder) if "test/return" in row]
        columns = ["step", *sorted({name for row in rows for name in row if "/" in name})]
        write_rows(place / "tests.csv.gz", columns, [[row.get(name, "") for name in columns] for row in rows])
        clock = [[row["step"], row["seconds"]] for row in rows if "seconds" in row]
        write_rows(place / "clock.csv.gz", ["step", "seconds"], clock)  # apart from what every repetition gives again
        shutil.copyfile(folder / f"last{SUFFIX}", place / AGENT)

    def is_whole(self, place: Path) -> bool:
        """Has what is done in a place all agents, and as they were? What is passed on may be in half precision."""
        if not (place / AGENT).is_file() or (self.config.keep and not agents_in(place / KEPT)):
            return False
        try:
            arrays, _ = read_arrays(place / AGENT)
        except NahtError:  # damaged on its way
            return False
        return all(array.dtype != np.float16 for array in arrays.values())


@dataclass(frozen=True)
class Evaluation:
    """An agent plays with strangers, in the same worlds and seats as every other agent that does so."""

    task: Environment
    agent: str
    """Who plays with them; empty: the strangers play among themselves."""
    strangers: tuple[str, ...]
    counts: tuple[int, ...]
    """N."""
    episodes: int
    """With every stranger and N."""
    seed: int = 1_000_000
    kind = "evaluation"

    @property
    def size(self) -> int:
        return self.task.spec.horizon * self.episodes * len(self.counts) * len(self.strangers)

    def identity(self) -> Any:
        return _asked(self, (self.agent, *self.strangers))

    def finish(self, place: Path, needs: Mapping[str, Path], report: Report) -> None:
        del report
        strangers = population(self.strangers, needs, self.task)
        ours = population([self.agent], needs, self.task) if self.agent else strangers
        played = evaluate_mn(
            self.task,
            ours,
            strangers,
            episodes=self.episodes * len(strangers),
            num_controlled=self.counts,
            seed=self.seed,
            common=True,
        )
        extra = [WON] if played and WON in played[0].metrics else []
        rows = []
        for row in played:
            met = [s for s in row.seats if not s.startswith("*")] or [""]
            won = [int(row.metrics[m]) for m in extra]
            rows.append([met[0], row.num_controlled, row.episode, row.episode_return, row.length, *won])
        write_rows(place / "rows.csv.gz", ["strangers", "n", "episode", "return", "length", *extra], rows)


@dataclass(frozen=True)
class Meetings:
    """Every team of some groups meets every other, and itself: matched, mismatched and cross-play."""

    task: Environment
    teams: tuple[str, ...]
    groups: tuple[str, ...]
    """Of each team, for instance its algorithm."""
    episodes: int
    seed: int = 2_000_000
    kind = "meetings"

    @property
    def size(self) -> int:
        return self.task.spec.horizon * self.episodes * (self.task.spec.num_agents - 1) * len(self.pairs)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """All meetings within a group; those of two groups, seed by seed, so that everybody takes part."""
        members = members_of(self.groups)
        found = []
        for ours, a in members.items():
            for theirs, b in members.items():
                found += [(i, j) for i in a for j in a] if ours == theirs else paired(a, b)
        return found

    def identity(self) -> Any:
        return _asked(self, self.teams)

    def finish(self, place: Path, needs: Mapping[str, Path], report: Report) -> None:
        everybody = population(self.teams, needs, self.task)
        require(len(everybody) == len(self.teams), f"{self.teams} name {len(everybody)} agents")
        parts = place / "parts"

        def keep(part: int, count: int, play: Callable[[], Arrays]) -> Arrays:
            """Hundreds of meetings of large teams take an hour: what was played stays played, whatever happens."""
            path = parts / f"{part}.safetensors"
            try:
                played, _ = read_arrays(path)
            except NahtError:
                played = play()
                write_arrays(path, played, {})
            report(Event("", part + 1, count))
            return played

        played = play_meetings(self.task, everybody, self.pairs, episodes=self.episodes, seed=self.seed, keep=keep)
        returns, extra = played[RETURN], [WON] if WON in played else []
        rows = []
        for k, (i, j) in enumerate(self.pairs):
            for n in range(returns.shape[1]):
                here = returns[k, n]
                won = [float(played[name][k, n].mean()) for name in extra]
                rows.append([self.groups[i], i, self.groups[j], j, n + 1, float(here.mean()), float(here.std()), *won])
        columns = ["ours", "our_team", "theirs", "their_team", "n", RETURN, "spread", *extra]
        write_rows(place / "rows.csv.gz", columns, rows)
        shutil.rmtree(parts)


@dataclass(frozen=True)
class Asking:
    """Something that is asked of the agent of a training, or of those that it kept, in episodes with strangers."""

    task: Environment
    training: str
    strangers: tuple[str, ...]
    episodes: int

    @property
    def size(self) -> int:
        return self.task.spec.horizon * self.episodes

    def identity(self) -> Any:
        return _asked(self, self.strangers)


@dataclass(frozen=True)
class Predicting(Asking):
    """How well the agents that a training kept on its way predict their teammates, step by step of an episode."""

    seed: int = 3_000_000
    kind = "prediction"

    def finish(self, place: Path, needs: Mapping[str, Path], report: Report) -> None:
        strangers = population(self.strangers, needs, self.task)
        kept = list(agents_in(needs[self.training] / KEPT).values())
        require(bool(kept), f"{needs[self.training]} kept no agents on its way")
        rows = []
        for i, path in enumerate(kept):
            agent = load_agent(path)
            found = predict_teammates(self.task, agent, strangers, episodes=self.episodes, seed=self.seed)
            for k, kind in enumerate(KINDS):
                pairs, squared, probability = (leaf[..., k].sum(0) for leaf in found)  # [T]
                rows += [
                    [agent.fact("steps"), t, kind, int(pairs[t]), float(squared[t]), float(probability[t])]
                    for t in range(len(pairs))
                ]
            report(Event("", i + 1, len(kept)))
        write_rows(place / "rows.csv.gz", ["step", "t", "kind", "pairs", "squared_error", "probability"], rows)


@dataclass(frozen=True)
class Probing(Asking):
    """What an agent's team embedding knows: which strangers, how many of us; by time step, on held-out episodes."""

    seed: int = 4_000_000
    kind = "probe"

    def finish(self, place: Path, needs: Mapping[str, Path], report: Report) -> None:
        del report
        strangers = population(self.strangers, needs, self.task)
        agent = load_agent(needs[self.training] / AGENT)
        accuracies, picture = probe(self.task, agent, strangers, episodes=self.episodes, seed=self.seed)
        columns = ["t", "asked", "reads", "accuracy", "chance"]
        write_rows(place / "rows.csv.gz", columns, [[a.t, a.asked, a.reads, a.accuracy, a.chance] for a in accuracies])
        points = [[p.t, p.strangers, p.n, *p.place] for p in picture]
        write_rows(place / "picture.csv.gz", ["t", "strangers", "n", "x", "y"], points)


@dataclass(frozen=True)
class Filming(Asking):
    """Episodes with each of some strangers that are worth watching, of as many as were asked for, and what the agent
    believed in them."""

    method: str = ""
    seed: int = 5_000_000
    kind = "film"

    def finish(self, place: Path, needs: Mapping[str, Path], report: Report) -> None:
        del report
        agent = load_agent(needs[self.training] / AGENT)
        theirs = population(self.strangers, needs, self.task)
        shown = worth_watching(self.task, agent, theirs, method=self.method, episodes=self.episodes, seed=self.seed)
        write_episodes(place / "episodes.json.gz", shown)
