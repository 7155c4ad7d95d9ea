"""naht compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from naht.agents.saved import Agent, load_agent, task_of
from naht.commands.parsing import agent_files, parse, teammates_for
from naht.errors import require
from naht.evaluation.comparison import Difference, compare
from naht.evaluation.statistics import Interval
from naht.evaluation.tables import write_rows, write_table
from naht.report.figures import forest
from naht.storage import check_output, saved
from naht.terminal import terminal


@dataclass(frozen=True)
class Compare:
    """Is one method better than another? Both play in the same worlds, with the same teammates in the same seats.

    Two methods, all seeds of each, with strangers: naht compare runs/mpe-pp/poam --with runs/mpe-pp/ippo-naht
    --teammates zoo/seed1

    With two or more agents of each, intervals are over agents: they say what other training seeds would give. With a
    single one they are over episodes, paired: they are about these two agents only.
    """

    agents: tyro.conf.Positional[tuple[str, ...]]
    """The one method: agent files, run folders (their best agent), folders of runs, agents of the zoo."""
    with_: Annotated[tuple[str, ...], tyro.conf.arg(name="with")] = ()
    """The other method, likewise."""
    teammates: tuple[str, ...] = ()
    """Scripted bots or saved agents; default: those the first agent was trained with."""
    trust: bool = False
    """Run teammates in Python that the agent's card names: for agents of your own."""
    num_controlled: tuple[int, ...] = ()
    """Values of N; default: 1 to M - 1, or M without teammates."""
    episodes: int = 128
    """Episodes per agent and N."""
    seed: int = 0
    """Seed of the common worlds, teams and seats."""
    out: Path = Path("comparison")
    """Folder for the table and the episodes (.csv) and the figure (.png)."""


def compare_(args: Sequence[str]) -> None:
    chosen = parse(Compare, "compare", args)
    require(bool(chosen.agents) and bool(chosen.with_), "AGENT missing: usage: naht compare A [A ...] --with B [B ...]")
    check_output(chosen.out, folder=True)
    ours, theirs = agent_files(chosen.agents), agent_files(chosen.with_)
    agents = [load_agent(path) for path in [*ours, *theirs]]
    env = task_of(agents)
    strangers, teammates = teammates_for(agents[0], env.spec, chosen.teammates, chosen.trust)
    differences, rows = compare(
        env,
        agents[: len(ours)],
        agents[len(ours) :],
        strangers,
        episodes=chosen.episodes,
        seed=chosen.seed,
        num_controlled=chosen.num_controlled or (None if teammates else (env.spec.num_agents,)),
        names=[str(path) for path in [*ours, *theirs]],
    )
    unit = differences[0].unit
    names = _names(agents[: len(ours)], agents[len(ours) :])
    columns = ("measure", "N", *names, "difference", "effect", f"P({names[0]} better)")
    table = Table(*columns, box=None, header_style="bold", padding=(0, 2, 0, 0))
    for d in differences:
        low, high = d.improvement.low, d.improvement.high
        chance = f"{d.improvement.mean:.2f}" + ("" if low != low else f" ({low:.2f} to {high:.2f})")
        numbers = [f"{x:.3f}" for x in (d.ours, d.theirs)]
        table.add_row(d.measure, d.num_controlled, *numbers, f"{d.difference:.3f}", f"{d.effect:.2f}", chance)
    panels: dict[str, list[tuple[str, Interval]]] = {
        measure: [
            ("all N" if d.num_controlled == "all" else f"N = {d.num_controlled}", d.difference)
            for d in differences
            if d.measure == measure
        ]
        for measure in dict.fromkeys(d.measure for d in differences)
    }

    def write(folder: Path) -> None:
        write_table(folder / "comparison.csv", CSV, map(_line, differences))
        write_rows(folder / "episodes.csv", rows)
        forest(folder / "comparison.png", panels, x_label=f"{names[0]} minus {names[1]} on {env.spec.name}")

    out = saved(write, chosen.out)
    console = terminal()
    console.print(table)
    over = f"{len(ours)} and {len(theirs)} agents" if unit == "trials" else "paired episodes of these very agents"
    met = ", ".join(teammates) or "none"
    console.print(f"± and brackets: 95 % intervals over {over}; teammates: {met}", soft_wrap=True)
    console.print(f"Table, episodes and figure: {out}/comparison.csv, episodes.csv, comparison.png", soft_wrap=True)


def _names(ours: Sequence[Agent], theirs: Sequence[Agent]) -> tuple[str, str]:
    """What to call the two methods: by their algorithms, if that tells them apart."""
    first, second = ({agent.card.get("algorithm") for agent in side} for side in (ours, theirs))
    if len(first) == len(second) == 1 and first != second:
        return str(*first), str(*second)
    return "ours", "theirs"


CSV = ("measure", "num_controlled", "ours", "theirs", "difference", "low", "high", "effect", "improvement",
       "improvement_low", "improvement_high", "unit")  # fmt: skip


def _line(d: Difference) -> tuple[object, ...]:
    better = d.improvement
    apart = (d.difference.mean, d.difference.low, d.difference.high)
    return (
        d.measure,
        d.num_controlled,
        d.ours,
        d.theirs,
        *apart,
        d.effect,
        better.mean,
        better.low,
        better.high,
        d.unit,
    )
