"""What a study consists of: who the strangers are, which methods are trained with them, what each figure needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax

from naht.agents.zoo import ZOO, zoo_tasks
from naht.config import Count, Seed, setting
from naht.envs.base import Environment, HostEnvironment
from naht.errors import require, unknown
from naht.evaluation.tables import WON
from naht.study.nodes import Node, Work, in_order
from naht.study.works import NODE, Evaluation, Filming, Meetings, Predicting, Probing, Training
from naht.tasks import TASKS, Preset, make_env
from naht.training.config import RunConfig, run_config


@dataclass(frozen=True)
class Method:
    """A way to train agents for teams with strangers: an algorithm with some settings changed."""

    label: str
    algorithm: str
    changes: dict[str, Any] = field(default_factory=dict)


_STORED = {"actor_memory": "stored", "critic_memory": "stored"}
_IMITATING = {"imitation": 1.0}

METHODS: dict[str, Method] = {
    "poam": Method("POAM", "poam"),
    "ippo-naht": Method("IPPO-NAHT", "ippo-naht"),
    "poam-aht": Method("POAM-AHT", "poam-aht"),
    "poam-no-ucd": Method("POAM without UCD", "poam", {"uncontrolled_data": False}),
    "ippo-naht-no-ucd": Method("IPPO-NAHT without UCD", "ippo-naht", {"uncontrolled_data": False}),
    "poam-stored": Method("POAM, stored states", "poam", _STORED),
    "ippo-naht-stored": Method("IPPO-NAHT, stored states", "ippo-naht", _STORED),
    "poam-controlled-actions": Method("POAM decoding ours only", "poam", {"decoded_actions": "controlled"}),
    "told": Method("told the team", "ippo-naht", {"actor_told": "strangers", "critic_told": "strangers"}),
    "told-seats": Method("told the seats", "ippo-naht", {"actor_told": "seats", "critic_told": "seats"}),
    "told-both": Method("told team and seats", "ippo-naht", {"actor_told": "both", "critic_told": "both"}),
    "actor-told-seats": Method("actor told the seats", "ippo-naht", {"actor_told": "seats"}),
    "critic-told-seats": Method("critic told the seats", "ippo-naht", {"critic_told": "seats"}),
    "poam-imitating": Method("POAM-UCA", "poam", _IMITATING),
    "ippo-naht-imitating": Method("IPPO-NAHT-UCA", "ippo-naht", _IMITATING),
}
"""Everything that studies train, by name."""

NAIVE = ("ippo", "mappo", "iql", "vdn", "qmix")
"""Who the strangers are: teams trained in self-play by these, five seeds each."""
POPULATION_SEEDS = 5
SPLIT = ("mappo", "qmix", "iql")
"""Who one trains with in the other split; the rest of `NAIVE` are the strangers there."""
OTHER_PRESETS: tuple[Preset, ...] = ("paper",)
"""Settings that the part 'time' compares with those of the study."""
SEATS = ("told-both", "told-seats", "actor-told-seats", "critic-told-seats")
"""Methods that are told which seats are controlled."""
_ON_MAPS = ("curves", "strangers", "counts", "crossplay", "imitation", "films", "split")
_ON_5V6 = (*_ON_MAPS, "modelling", "embeddings", "ucd", "told")
USUAL = {"5v6": _ON_5V6, "8v9": _ON_MAPS, "10v11": _ON_MAPS, "3s5z": _ON_MAPS}
"""Parts by task, where these are not all: as in the paper, which looks at the teammate model and at UCD on one map. The
others can be asked for."""
KEPT = 6
"""Agents that POAM runs keep on their way, for how its model learns."""
STEPS = {"bit-game": 100_000, "mpe-pp": 3_000_000, "3s5z": 6_000_000}
"""Environment steps of each run by task; elsewhere a million."""


@setting
@dataclass(frozen=True)
class Request:
    """What a study is asked to be. Another request on the same folder shares whatever nodes it can."""

    task_name: str
    seeds: Count = 5
    steps: Count | None = None
    """Of each run; None: as many as tell the task's story."""
    preset: Preset = "tuned"
    episodes: Count = 128
    """Of every evaluation, for each stranger and N."""
    first_seed: Seed = 0
    prey: str = ""
    """On predator-prey: a file with another prey. Strangers are then trained with it first."""
    parts: tuple[str, ...] = ()
    """Of the study; none: all but the further ones."""

    def __post_init__(self) -> None:
        presets = TASKS[self.task_name].presets
        require(self.preset in presets, f"{self.task_name} has no preset '{self.preset}'")
        require(not self.prey or self.task_name == "mpe-pp", f"there is no prey on {self.task_name}")

    @property
    def env_settings(self) -> dict[str, Any]:
        return {"prey": self.prey} if self.prey else {}

    @cached_property
    def env(self) -> Environment:
        return make_env(self.task_name, **self.env_settings)

    @property
    def run_steps(self) -> int:
        return self.steps or STEPS.get(self.task_name, 1_000_000)

    @property
    def trials(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)


class Plan:
    """The nodes of a study by what they are, and by the part of the study that needs them."""

    def __init__(self, request: Request):
        self.request = request
        self.env = request.env
        self.counts = tuple(range(1, self.env.spec.num_agents))
        self._made: dict[str, Node] = {}

    def _once(self, name: str, work: Callable[[], Work], needs: tuple[Node, ...] = ()) -> Node:
        """The node of this name, made when it is first asked for: settings are checked, and keys are worked out."""
        if name not in self._made:
            self._made[name] = Node(name, work(), needs)
        return self._made[name]

    @cached_property
    def battles(self) -> bool:
        """Can episodes be won?"""
        if isinstance(self.env, HostEnvironment):
            return False
        return WON in jax.eval_shape(self.env.reset, jax.random.key(0))[1].metrics

    # -- who the strangers are

    @cached_property
    def shipped(self) -> bool:
        """Does the package have strangers for this very task?"""
        return self.request.task_name in zoo_tasks() and not self.request.prey

    def stranger(self, algorithm: str, seed: int) -> tuple[str, tuple[Node, ...]]:
        """The name of a team, and the node that trains it if it is not shipped."""
        if self.shipped:
            return f"{ZOO}/{algorithm}-seed{seed}", ()
        node = self.self_play(algorithm, seed)
        return f"{NODE}{node.name}", (node,)

    def strangers(self, algorithms: tuple[str, ...], seeds: range) -> tuple[tuple[str, ...], tuple[Node, ...]]:
        found = [self.stranger(algorithm, seed) for seed in seeds for algorithm in algorithms]
        return tuple(name for name, _ in found), tuple(node for _, nodes in found for node in nodes)

    # -- what is trained

    def _sized(self, config: RunConfig) -> RunConfig:
        """One core per run, so that every machine gives the same results; up to 25 tests on its way. Short runs are
        measured in fewer episodes, or that would take longer than training."""
        steps = self.request.run_steps
        return replace(
            config,
            steps=steps,
            test_every=max(steps // 25, min(steps, 32_000)),
            test_episodes=min(config.test_episodes, max(64, steps // 2000)),
            final_episodes=min(config.final_episodes, max(64, steps // 1000)),
            devices=1,
        )

    def config(self, method: str, seed: int, teammates: tuple[str, ...], preset: Preset | None = None) -> RunConfig:
        if method not in METHODS:
            raise unknown("method", method, METHODS)
        m, r = METHODS[method], self.request
        config = self._sized(run_config(r.task_name, m.algorithm, preset or r.preset, seed=seed, **r.env_settings))
        teams = replace(config.teams, teammates=teammates)
        algorithm = replace(config.algorithm, **m.changes)
        return replace(config, algorithm=algorithm, teams=teams, keep=KEPT if method == "poam" else 0)

    def training(self, method: str, seed: int, *, split: bool = False, preset: Preset | None = None) -> Node:
        """A method trained with one team of each algorithm; with `split`, of some of them."""
        names, needs = self.strangers(SPLIT if split else NAIVE, range(1))
        folder = "-".join([method, *["split"] * split, *([preset] if preset else [])])
        return self._once(
            f"train/{folder}/seed{seed}", lambda: Training(self.config(method, seed, names, preset)), needs
        )

    def self_play(self, algorithm: str, seed: int) -> Node:
        """A team like the strangers', trained here even if they are shipped."""
        r = self.request

        def work() -> Training:
            return Training(self._sized(run_config(r.task_name, algorithm, r.preset, seed=seed, **r.env_settings)))

        return self._once(f"population/{algorithm}-seed{seed}", work)

    def response(self, algorithm: str, seed: int) -> Node:
        """A best response to one team: trained with it alone, and so knowing whom it plays with."""
        name, needs = self.stranger(algorithm, seed)
        return self._once(
            f"train/response-to-{algorithm}/seed{seed}",
            lambda: Training(self.config("ippo-naht", self.request.first_seed, (name,))),
            needs,
        )

    # -- what is measured

    def _evaluation(
        self, name: str, agent: Node | str, who: tuple[str, ...], needs: tuple[Node, ...], counts: tuple[int, ...]
    ) -> Node:
        ours, mine = (f"{NODE}{agent.name}", (agent,)) if isinstance(agent, Node) else (agent, ())
        return self._once(
            f"evaluate/{name}",
            lambda: Evaluation(self.env, ours, who, counts, self.request.episodes),
            (*mine, *needs),
        )

    def evaluation(self, method: str, seed: int, *, split: bool = False, everybody: bool = True) -> Node:
        """With every team there is, or with those of training, for every N. Who was told its team can play with those
        it knows only."""
        everybody = everybody and "told" not in method
        who, needs = self.strangers(NAIVE, range(POPULATION_SEEDS if everybody else 1))
        trained = self.training(method, seed, split=split)
        name = trained.name.removeprefix("train/") if everybody or "told" in method else f"known/{method}/seed{seed}"
        return self._evaluation(name, trained, who, needs, self.counts)

    def alone(self, method: str, seed: int) -> Node:
        """A method with itself, N = M."""
        who, needs = self.strangers(NAIVE[:1], range(1))
        return self._evaluation(
            f"alone/{method}/seed{seed}", self.training(method, seed), who, needs, (self.env.spec.num_agents,)
        )

    def nobody(self) -> Node:
        """The strangers among themselves, N = 0."""
        who, needs = self.strangers(NAIVE, range(POPULATION_SEEDS))
        return self._evaluation("strangers", "", who, needs, (0,))

    def naive(self, algorithm: str, seed: int) -> Node:
        """A team that was trained in self-play, in the place of a method. Seed 0 is among the strangers itself."""
        ours, mine = self.stranger(algorithm, seed)
        who, needs = self.strangers(NAIVE, range(1))
        return self._evaluation(f"naive/{algorithm}/seed{seed}", ours, who, (*mine, *needs), self.counts)

    def answer(self, algorithm: str, seed: int) -> Node:
        """How well a best response does with its team."""
        name, needs = self.stranger(algorithm, seed)
        trained = self.response(algorithm, seed)
        return self._evaluation(trained.name.removeprefix("train/"), trained, (name,), needs, self.counts)

    def meetings(self) -> Node:
        """All teams of the population and POAM-AHT's."""
        who, needs = self.strangers(NAIVE, range(POPULATION_SEEDS))
        groups = [algorithm for _ in range(POPULATION_SEEDS) for algorithm in NAIVE]
        ours = [self.training("poam-aht", seed) for seed in self.request.trials]
        teams = (*who, *[f"{NODE}{node.name}" for node in ours])
        work = Meetings(self.env, teams, (*groups, *["poam-aht"] * len(ours)), self.request.episodes)
        return Node("meetings", work, (*needs, *ours))

    def predicting(self, seed: int) -> Node:
        who, needs = self.strangers(NAIVE, range(1))
        trained = self.training("poam", seed)
        work = Predicting(self.env, trained.name, who, 4 * self.request.episodes)
        return Node(f"predict/poam/seed{seed}", work, (trained, *needs))

    def probing(self, seed: int) -> Node:
        who, needs = self.strangers(NAIVE, range(1))
        trained = self.training("poam", seed)
        work = Probing(self.env, trained.name, who, 8 * self.request.episodes)
        return Node(f"probe/poam/seed{seed}", work, (trained, *needs))

    def filming(self, method: str) -> Node:
        """The first seed with a team of each algorithm that it has never met."""
        who, needs = self.strangers(NAIVE, range(1, 2))
        trained = self.training(method, self.request.first_seed)
        work = Filming(self.env, trained.name, who, 32, method)
        return Node(f"film/{method}", work, (trained, *needs))

    # -- what each part needs

    def of_methods(self, *methods: str, split: bool = False) -> list[Node]:
        return [self.evaluation(m, seed, split=split) for seed in self.request.trials for m in methods]

    @cached_property
    def everything(self) -> dict[str, list[Node]]:
        """By part of the study, in the order in which they are done: what it rests on."""
        seeds, trained = self.request.trials, self.of_methods
        naive = [self.naive(a, s) for s in range(1, POPULATION_SEEDS) for a in NAIVE]
        everybody = [(a, s) for s in range(POPULATION_SEEDS) for a in NAIVE]
        both = ("poam", "ippo-naht")
        return {
            "curves": [*trained(*both, "poam-aht"), *naive],
            "strangers": trained(*both),
            "counts": [
                *trained("poam", "poam-aht"),
                *[self.alone(m, s) for s in seeds for m in ("poam", "poam-aht")],
                self.nobody(),
            ],
            "crossplay": [self.meetings()],
            "modelling": [self.predicting(s) for s in seeds],
            "embeddings": [self.probing(s) for s in seeds],
            "imitation": trained(*both, "poam-imitating", "ippo-naht-imitating"),
            "films": [self.filming(m) for m in (*both, "poam-imitating")],
            "ucd": trained(*both, "poam-no-ucd", "ippo-naht-no-ucd"),
            "told": trained(*both, "told"),
            "seats": trained("ippo-naht", *SEATS),
            "cells": trained(*both, "poam-stored", "ippo-naht-stored", "poam-controlled-actions"),
            "split": trained(*both, split=True),
            "normalised": [*trained(*both), *[self.answer(a, s) for a, s in everybody]],
        }

    @cached_property
    def parts(self) -> dict[str, list[Node]]:
        """Those that are done without being asked for."""
        usual = USUAL.get(self.request.task_name, tuple(self.everything))
        return {name: nodes for name, nodes in self.everything.items() if name in usual}

    @cached_property
    def further(self) -> dict[str, list[Node]]:
        """Parts that are done only if they are asked for."""
        seeds = self.request.trials
        trained = [self.training("poam", s, preset=p) for s in seeds for p in (None, *OTHER_PRESETS)]
        rest = {name: nodes for name, nodes in self.everything.items() if name not in self.parts}
        return rest | {
            "pair": [self.evaluation(m, s, everybody=False) for s in seeds for m in ("poam", "ippo-naht")],
            "time": [*trained, *[self.self_play("ippo", s) for s in seeds]],
        }

    @cached_property
    def asked(self) -> dict[str, list[Node]]:
        """The parts that were asked for (all but the further ones, if none were named), with all nodes they need."""
        every, wanted = self.parts | self.further, self.request.parts
        for name in wanted:
            if name not in every:
                raise unknown("part of the study", name, every)
        return {name: in_order(every[name]) for name in wanted or self.parts}

    @property
    def nodes(self) -> list[Node]:
        """All nodes of these parts, each after what it needs."""
        return in_order(node for part in self.asked.values() for node in part)


class BitGamePlan(Plan):
    """The bit game: three methods with the scripted stranger, by N."""

    def strangers(self, algorithms: tuple[str, ...], seeds: range) -> tuple[tuple[str, ...], tuple[Node, ...]]:
        del algorithms, seeds
        return TASKS[self.request.task_name].teammates, ()

    @property
    def further(self) -> dict[str, list[Node]]:
        return {}

    @cached_property
    def everything(self) -> dict[str, list[Node]]:
        return {"bits": self.of_methods("poam", "ippo-naht", "poam-aht")}


PLANS: dict[str, Callable[[Request], Plan]] = {"bit-game": BitGamePlan}
"""Tasks whose studies are others."""


def plan_of(request: Request) -> Plan:
    return PLANS.get(request.task_name, Plan)(request)
