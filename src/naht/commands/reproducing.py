"""naht demo, naht reproduce, naht status, naht report."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeGuard

import tyro
from rich.live import Live
from rich.text import Text

from naht.clusters.choice import Elsewhere, hired, script_of
from naht.commands.parsing import leading_names, parse
from naht.config import Count, seconds_of
from naht.errors import NahtError, require, unknown
from naht.report.content import MARKS, TaskFindings
from naht.report.markdown import fill_in, write_document
from naht.report.page import write_page
from naht.runtime import usable_cores
from naht.study.demo import Demo, demo
from naht.study.engine import Outcome, carry_out
from naht.study.keeping import adoptable, keep
from naht.study.nodes import Node, is_done
from naht.study.overview import clock, show, survey
from naht.study.plan import Plan, Request, plan_of
from naht.study.story import content_of, plan_in, studies_in, write_findings, write_request
from naht.study.works import Training
from naht.tasks import Preset
from naht.terminal import terminal
from naht.training.crew import Crew, Ended, Here, News, Processes
from naht.training.folder import is_finished, is_run, read_config
from naht.training.progress import Event

PAGE = "report.html"
STUDIED = ("bit-game", "mpe-pp", "5v6", "8v9", "10v11", "3s5z")
"""The paper's tasks."""


@dataclass(frozen=True)
class Reproduce:
    """Train, measure and draw everything that the paper shows of a task, and more. What is done is never done again;
    a stopped or killed study goes on with the same command."""

    seeds: Count = 5
    """Runs of every method."""
    steps: Count | None = None
    """Environment steps of every run; default: as many as tell the task's story."""
    only: tuple[str, ...] = ()
    """Parts of the study; default: all."""
    preset: Preset = "tuned"
    """Learner settings: tuned, paper (the published ones) or released (as the authors' code trained)."""
    episodes: Count = 128
    """Of every evaluation, for each stranger and N."""
    prey: str = ""
    """On predator-prey: a file with another prey; strangers are then trained with it first."""
    dry_run: bool = False
    """Only say what there is to do, and how long it takes."""
    budget: str = ""
    """Stop after so long, as '90m' or '2h'; everything is saved."""
    with_: Annotated[tuple[Path, ...], tyro.conf.arg(name="with")] = ()
    """Folders of finished runs or other studies: what fits is used."""
    workers: Count | None = None
    """Nodes at a time; default: one per core."""
    out: Path = Path("runs/study")
    """Folder; every task has its own in it."""
    name: str = ""
    """Of the folder in it; default: the task."""
    elsewhere: Annotated[Elsewhere, tyro.conf.arg(name="")] = Elsewhere()
    """Other machines."""


def reproduce(args: Sequence[str]) -> None:
    choices = (*STUDIED, "all")
    usage = f"usage: naht reproduce {'|'.join(choices)} [OPTIONS]\n\nRun the paper's study of a task."
    (name,), rest = leading_names(args, (f"TASK ({', '.join(choices)})",), usage)
    if name not in choices:
        raise unknown("study", name, choices)
    wanted = parse(Reproduce, f"reproduce {name}", rest)
    until = time.monotonic() + seconds_of("budget", wanted.budget) if wanted.budget else None
    parts = tuple(part for text in wanted.only for part in text.split(",") if part)
    require(not wanted.name or name != "all", f"one name, '{wanted.name}', can't be that of all studies")
    plans = {}
    for task_name in STUDIED if name == "all" else (name,):
        prey = wanted.prey if task_name == "mpe-pp" else ""
        sizes = wanted.seeds, wanted.steps, wanted.preset, wanted.episodes
        plan = plan_of(Request(task_name, *sizes, prey=prey, parts=parts))
        plan.asked  # noqa: B018 (a part that does not exist fails here)
        plans[wanted.name or task_name] = plan
    complete = all(_carry_out(wanted.out / folder, plan, wanted, until) for folder, plan in plans.items())
    if wanted.dry_run:
        return
    content = content_of(wanted.out)
    for task in content.tasks:
        if task.task in plans:
            write_findings(task, wanted.out / task.task)
            if complete:
                _print_findings(task)
    page = write_page(content, wanted.out / PAGE)
    terminal().print(f"Figures and tables: {wanted.out}; everything on one page: {page}", soft_wrap=True)


def _print_findings(task: TaskFindings) -> None:
    """What was found, in a few lines: every question, its answer, and what became of the paper's claims."""
    console = terminal()
    for finding in task.findings:
        console.print(Text(f"\n{finding.question}", style="bold"))
        console.print(finding.answer, soft_wrap=True)
        for verdict in finding.verdicts:
            d = verdict.difference
            number = f" ({d.mean:+.2f} ± {d.half_width:.2f})" if d is not None else ""
            console.print(f"  {MARKS[verdict.answer]} {verdict.claim}{number}", soft_wrap=True)
    for line in task.missing:
        console.print(f"Not run: {line}", soft_wrap=True)


def _carry_out(root: Path, plan: Plan, wanted: Reproduce, until: float | None) -> bool:
    """One task's study; False if there was no time for all of it."""
    console, parts, nodes = terminal(), plan.asked, plan.nodes
    workers = wanted.workers or usable_cores()
    title = _title(plan)
    for folder in wanted.with_:
        require(folder.is_dir(), f"there is no folder {folder}")
    if wanted.dry_run:
        found = adoptable(root, nodes, wanted.with_) | _same_runs(root, nodes, wanted.with_)
        console.print(show(title, parts, survey(root, nodes, found), workers))
        if found:
            console.print(f"{len(found)} of them are taken over from {' and '.join(map(str, wanted.with_))}")
        if script := script_of(wanted.elsewhere, root):
            console.print(Text(f"\nEvery node is a job of this script:\n\n{script}"), soft_wrap=True)
        return True
    _adopt(root, nodes, wanted.with_)
    write_request(root, plan.request)
    left = [node for node in nodes if not is_done(root, node)]
    if left:
        workers = min(workers, len(left))
        with hired(wanted.elsewhere, root, workers=wanted.workers) as hands:
            crew: Crew = hands or (Here() if workers == 1 else Processes(workers))
            outcome = _watched(root, parts, nodes, crew, until, title)
        if outcome.failed:
            name, error = next(iter(outcome.failed.items()))
            others = f" (and {len(outcome.failed) - 1} more)" if len(outcome.failed) > 1 else ""
            raise NahtError(f"{name} failed{others}: {error}")
        if outcome.left:
            seconds = survey(root, nodes).left(workers)
            console.print(f"Time is up: {len(outcome.left)} nodes are left, about {clock(seconds)}.")
            console.print("Go on with the same command.")
            return False
    console.print(f"{title}: all {len(nodes)} nodes are done, in {root}", soft_wrap=True)
    return True


def _watched(
    root: Path,
    parts: dict[str, list[Node]],
    nodes: Sequence[Node],
    crew: Crew,
    until: float | None,
    title: str,
) -> Outcome:
    """Carry out with a live display of the whole study, or plain lines where there is no terminal."""
    console = terminal(stderr=True)
    names = {node.name for node in nodes}

    def about_machines(item: News | None) -> TypeGuard[Event]:
        """Rather than about a node: a machine that died, say."""
        return isinstance(item, Event) and item.message is not None and item.run not in names

    if not console.is_terminal:

        def say(item: News | None) -> None:
            if isinstance(item, Ended):
                done = sum(is_done(root, node) for node in nodes)
                console.print(Text(f"[{done}/{len(nodes)}] {item.name}: {item.error or 'done'}"), soft_wrap=True)
            elif about_machines(item):
                console.print(Text(f"{item.run}: {item.message}"), soft_wrap=True)

        return carry_out(root, nodes, crew, until=until, watch=say)
    shown = 0.0
    with Live(console=console, refresh_per_second=2, transient=True) as live:

        def redraw(item: News | None) -> None:
            nonlocal shown
            if about_machines(item):
                live.console.print(Text(f"{item.run}: {item.message}"), soft_wrap=True)
            if time.monotonic() - shown >= 1:
                shown = time.monotonic()
                live.update(show(title, parts, survey(root, nodes), crew.size))

        return carry_out(root, nodes, crew, until=until, watch=redraw)


def _adopt(root: Path, nodes: Sequence[Node], folders: Sequence[Path]) -> None:
    """Take over what other folders have: nodes of other studies, and finished runs of the very same settings."""
    found = adoptable(root, nodes, folders)
    for node in nodes:
        if node.name in found:
            shutil.copytree(found[node.name], node.place(root), dirs_exist_ok=True)
    runs = _same_runs(root, nodes, folders)
    for node in nodes:
        if node.name in runs:
            shutil.copytree(runs[node.name], node.place(root) / "run", dirs_exist_ok=True)


def _same_runs(root: Path, nodes: Sequence[Node], folders: Sequence[Path]) -> dict[str, Path]:
    """By name of a training that is not done, a finished run of the very same settings."""
    files = (path for folder in folders for path in folder.rglob("config.json"))
    runs = [path.parent for path in files if is_run(path.parent) and is_finished(path.parent)]
    by_settings = {json.dumps(Training(read_config(run)).identity(), sort_keys=True): run for run in runs}
    found = {}
    for node in nodes:
        if isinstance(node.work, Training) and not is_done(root, node):
            same = by_settings.get(json.dumps(node.work.identity(), sort_keys=True))
            if same is not None:
                found[node.name] = same
    return found


def demo_(args: Sequence[str]) -> None:
    page, finding = demo(parse(Demo, "demo", args))
    terminal().print(finding.answer, soft_wrap=True)
    terminal().print(f"Scores, and episodes with what the agents believed: open {page} in a browser", soft_wrap=True)


@dataclass(frozen=True)
class Status:
    """Show how far a study is, from another terminal or later."""

    workers: Count | None = None
    """Nodes at a time that the time left is estimated for; default: one per core."""


def status(args: Sequence[str]) -> None:
    usage = "usage: naht status FOLDER\n\nHow far a study is."
    (name,), rest = leading_names(args, ("FOLDER",), usage)
    wanted = parse(Status, "status FOLDER", rest)
    for root in studies_in(Path(name)):
        plan = plan_in(root)
        terminal().print(show(_title(plan), plan.asked, survey(root, plan.nodes), wanted.workers or usable_cores()))


def _title(plan: Plan) -> str:
    r = plan.request
    return f"{r.task_name}: {r.seeds} seeds, {r.run_steps:,} steps per run"


@dataclass(frozen=True)
class Report:
    """Make the page of a study, finished or not: one HTML file that needs nothing else."""

    out: Path | None = None
    """The file; default: report.html in the folder."""
    document: Path | None = None
    """Also write it as a Markdown file, with its figures in a folder beside it."""
    fill_in: Path | None = None
    """Also put its first table into this document, between <!-- results --> and <!-- /results -->."""
    keep: Path | None = None
    """Also copy rows, curves and a few agents to this folder, without the runs: what is worth sharing."""


def report(args: Sequence[str]) -> None:
    usage = "usage: naht report FOLDER [--out FILE]\n\nThe page of the studies in a folder."
    (name,), rest = leading_names(args, ("FOLDER",), usage)
    wanted, folder = parse(Report, "report FOLDER", rest), Path(name)
    content = content_of(folder)
    path = write_page(content, wanted.out or folder / PAGE)
    terminal().print(f"Open in a browser: {path}", soft_wrap=True)
    if wanted.document is not None:
        files = write_document(content, wanted.document)
        terminal().print(f"{wanted.document} and {len(files) - 1} figures beside it", soft_wrap=True)
    if wanted.fill_in is not None:
        fill_in(content, wanted.fill_in)
    if wanted.keep is not None:
        for root in studies_in(folder):
            copied = keep(root, plan_in(root), wanted.keep / root.name)
            terminal().print(f"{len(copied)} nodes copied to {wanted.keep / root.name}", soft_wrap=True)
