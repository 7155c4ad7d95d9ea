"""The main job at a small size: POAM learns with the zoo, meets teams it has never seen, and shows what it believes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import jax

from naht.agents.saved import Agent, load_agent
from naht.agents.zoo import ZOO
from naht.config import Count
from naht.evaluation.play import EpisodeRow, evaluate_mn
from naht.evaluation.statistics import Interval
from naht.evaluation.tables import strangers, summarise
from naht.report.content import Cell, Content, Figure, Finding, Mark, Panel, Series, Table, TaskFindings, Verdict
from naht.report.episodes import worth_watching
from naht.report.page import write_page
from naht.study.book import algorithm_of
from naht.teams.population import Member, Population, load_members
from naht.training.config import RunConfig, run_config
from naht.training.folder import is_finished, is_run, run_folder
from naht.training.progress import Display
from naht.training.run import resume, train
from naht.training.trainer import make_trainer

TASK = "mpe-pp"
STRANGERS = f"{ZOO}/seed1"
"""Teams that nobody in the demo was trained with."""


@dataclass(frozen=True)
class Demo:
    """Train POAM with the zoo, score it with teams it has never met beside others, and make a page with episodes."""

    steps: Count = 1_000_000
    """Environment steps of the training."""
    episodes: Count = 64
    """Of the evaluation, with every stranger and N."""
    out: Path = Path("runs/demo")
    """Folder."""


def shipped(method: str) -> Agent:
    """An agent that comes with the package: as many steps as the demo's own, with the same teams."""
    return load_agent(Path(str(resources.files("naht") / "assets" / "agents" / TASK / f"{method}.safetensors")))


def untrained(config: RunConfig, trained: Agent) -> Agent:
    """The same agent before it learned anything."""
    trainer, _ = make_trainer(config)
    state = trainer.learner.init(jax.random.key(config.seed))
    return replace(trained, name="untrained", params=trainer.learner.policy_params(state), decoders={})


def demo(settings: Demo) -> tuple[Path, Finding]:
    """Returns the page's file and what was found. What is there already is not trained again."""
    config = replace(run_config(TASK, "poam"), steps=settings.steps)
    folder = run_folder(settings.out, config)
    with Display() as display:
        if not is_run(folder):
            train(config, folder, report=display.show)
        elif not is_finished(folder):
            resume(folder, report=display.show)
    env, agent = config.task, load_agent(folder / "last.safetensors")
    theirs = Population(load_members([STRANGERS], env.spec))
    teams = {"POAM": agent, "IPPO-NAHT": shipped("ippo-naht"), "untrained": untrained(config, agent)}
    rows = {
        name: evaluate_mn(
            env,
            Population([Member("ours", one.policy, one.params)]),  # one name: equal policies share a program
            theirs,
            episodes=settings.episodes * len(theirs),
            common=True,
        )
        for name, one in teams.items()
    }
    shown = worth_watching(env, agent, theirs, method="POAM", episodes=16, seed=1)
    finding = scores(rows, settings, teams["IPPO-NAHT"].fact("steps"))
    content = Content(
        "A team for strangers",
        (TaskFindings(TASK, "Predator-prey", (finding,), episodes=tuple(shown)),),
        headline=(Verdict(finding.answer, "undecided", detail="One run decides nothing: the study has five."),),
    )
    return write_page(content, settings.out / "report.html"), finding


def scores(rows: dict[str, list[EpisodeRow]], settings: Demo, shipped_steps: int) -> Finding:
    """What each team earned with strangers that none of them had met."""
    methods = {"POAM": "poam", "IPPO-NAHT": "ippo-naht", "untrained": "untrained"}
    series, table = [], []
    means: dict[str, Interval] = {}
    for name, played in rows.items():
        summary = {n: interval for n, interval, _ in summarise(played)}
        means[name] = summary["all"]
        by_team: dict[str, list[EpisodeRow]] = {}
        for row in played:
            by_team.setdefault(algorithm_of(strangers(row)[0]).upper(), []).append(row)
        marks = [_mark(team, summarise(met)[-1][1]) for team, met in sorted(by_team.items())]
        series.append(Series(name, (*marks, _mark("all", summary["all"])), methods[name]))
        cells: list[Cell] = [summary[n] for n in summary]
        table.append((name, *cells))
    columns = ["team", *[f"N = {n}" for n in summary if n != "all"], "all"]
    better = means["POAM"].mean - means["untrained"].mean
    answer = (
        f"With teams it has never met, POAM earns {means['POAM'].mean:.1f} after {settings.steps:,} steps, "
        f"{better:.1f} more than an untrained team; IPPO-NAHT after {shipped_steps:,} earns "
        f"{means['IPPO-NAHT'].mean:.1f}."
    )
    return Finding(
        "strangers",
        "How does it do with strangers?",
        answer,
        (Figure("dots", (Panel("", tuple(series)),), "algorithm of the strangers", "return"),),
        (Table("Return with teams never met", tuple(columns), tuple(table), "high"),),
        made=f"naht demo --steps {settings.steps} --episodes {settings.episodes}. Intervals: over episodes of one run.",
    )


def _mark(team: str, found: Interval) -> Mark:
    return Mark(team, found.mean, found.low, found.high)
