"""What is worth keeping of a study: rows, curves and a few agents, small enough to be shared.

The copy is a study's folder like any other, with everything in it done: pages can be made from it, and going on with it
trains nothing again.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from naht.agents.saved import load_agent
from naht.study.nodes import DONE, Node, in_order, is_done
from naht.study.plan import Plan
from naht.study.story import write_request
from naht.study.works import AGENT

ROWS = ("*.csv.gz", "*.json.gz", DONE)
WORTH = ("poam", "ippo-naht", "poam-imitating", "ippo-naht-imitating")
"""Methods of which the first run's agent is kept, in half precision."""


def keep(root: Path, plan: Plan, out: Path) -> list[Node]:
    """Copy what is done of a study, without its runs. Returns the nodes that were copied now."""
    agents = {plan.training(method, plan.request.first_seed).name for method in WORTH}
    every = plan.parts | plan.further
    copied = []
    for node in in_order(n for part in every.values() for n in part):
        place, target = node.place(root), node.place(out)
        if not is_done(root, node) or is_done(out, node):
            continue
        target.mkdir(parents=True, exist_ok=True)
        if node.name in agents and (place / AGENT).is_file():
            agent = load_agent(place / AGENT)
            trained_with = agent.card.get("config", {}).get("teams", {}).get("teammates", [])
            if not any(Path(name).is_absolute() for name in trained_with):  # strangers that nobody else has
                agent.save(target / AGENT, float16=True)
        files = [path for pattern in ROWS for path in place.glob(pattern)]
        for path in sorted(files, key=lambda path: path.name == DONE):  # the mark that all is there comes last
            shutil.copyfile(path, target / path.name)
        copied.append(node)
    request = plan.request
    if not set(request.parts) & set(plan.further):  # what was asked for last is part of a whole
        request = replace(request, parts=())
    write_request(out, request)
    return copied
