"""What is worth keeping of a study: rows, curves and a few agents, small enough to be shared.

The copy is a study's folder like any other: pages can be made from it, and going on with it trains nothing again. Of a
study that is not finished it also has the agents that the rest of it needs.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from naht.agents.saved import CARD_SUFFIX, load_agent
from naht.storage import write_file
from naht.study.nodes import DONE, Node, in_order, is_done
from naht.study.plan import Plan
from naht.study.story import write_request
from naht.study.works import AGENT, KEPT, Training

ROWS = ("*.csv.gz", "*.json.gz", DONE)
WORTH = ("poam", "ippo-naht", "poam-imitating", "ippo-naht-imitating")
"""Methods of which the first run's agent is kept, in half precision."""


def keep(root: Path, plan: Plan, out: Path) -> list[Node]:
    """Copy what is done of a study, without its runs. Returns the nodes that were copied now."""
    worth = {plan.training(method, plan.request.first_seed).name for method in WORTH}
    needed = still_needed(root, in_order(n for part in plan.parts.values() for n in part))
    every = plan.parts | plan.further
    copied = []
    for node in in_order(n for part in every.values() for n in part):
        place, target = node.place(root), node.place(out)
        if not is_done(root, node):
            continue
        target.mkdir(parents=True, exist_ok=True)
        if isinstance(node.work, Training):
            _keep_agents(place, target, whole=node.name in needed, worth=node.name in worth)
        if is_done(out, node):
            continue
        files = [path for pattern in ROWS for path in place.glob(pattern)]
        for path in sorted(files, key=lambda path: path.name == DONE):  # the mark that all is there comes last
            shutil.copyfile(path, target / path.name)
        copied.append(node)
    request = plan.request
    if not set(request.parts) & set(plan.further):  # what was asked for last is part of a whole
        request = replace(request, parts=())
    write_request(out, request)
    return copied


def still_needed(root: Path, nodes: Iterable[Node]) -> set[str]:
    """Names of what nodes need that are not done."""
    return {need.name for node in nodes if not is_done(root, node) for need in node.needs}


def _keep_agents(place: Path, target: Path, *, whole: bool, worth: bool) -> None:
    """Of a training: all agents as they are, or the last one in half precision, or none."""
    if whole:
        for path in (place / AGENT, *(place / KEPT).glob("*")):
            write_file(target / path.relative_to(place), path.read_bytes())
        return
    shutil.rmtree(target / KEPT.parts[0], ignore_errors=True)
    if not worth:
        for path in (target / AGENT, (target / AGENT).with_suffix(CARD_SUFFIX)):
            path.unlink(missing_ok=True)
    elif (place / AGENT).is_file():
        agent = load_agent(place / AGENT)
        trained_with = agent.card.get("config", {}).get("teams", {}).get("teammates", [])
        if not any(Path(name).is_absolute() for name in trained_with):  # strangers that nobody else has
            agent.save(target / AGENT, float16=True)


def adoptable(root: Path, nodes: Sequence[Node], folders: Sequence[Path]) -> dict[str, Path]:
    """By name of a node that is not done, where other studies have it. A training whose agents were not passed on, or
    not as they were, is of no use to what needs them and is not done either. `nodes` stand after what they need."""
    found: dict[str, Path] = {}
    needed: set[str] = set()
    for node in reversed(nodes):
        if is_done(root, node):
            continue
        for path in (p.parent for folder in folders for p in folder.glob(f"**/nodes/{node.name}/{node.key}/{DONE}")):
            if node.name not in needed or not isinstance(node.work, Training) or node.work.is_whole(path):
                found[node.name] = path
                break
        else:
            needed |= {need.name for need in node.needs}
    return found
