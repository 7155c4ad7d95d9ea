"""A study on a Ray cluster of two machines, one of which loses its power: it must end as on one machine, bit for bit.

    python benchmarks/lost_machine.py --task mpe-pp --seeds 1 --steps 32000 --episodes 8 --summary lost.json

Both are nodes of a real Ray cluster on this machine, with a core each. When a third of the study is done, all processes
of one are killed; the other does the rest. The same study is then carried out without Ray, and all that must be equal
is compared (`same_results.py`). Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from naht.study.nodes import Node, is_done
from naht.study.plan import Request, plan_of
from ray_machines import Machines
from same_results import QUICK, differences, fingerprints

NAHT = [sys.executable, "-m", "naht.cli"]


def done(root: Path, nodes: Sequence[Node]) -> int:
    return sum(is_done(root, node) for node in nodes)


def on_machines(command: list[str], root: Path, nodes: Sequence[Node]) -> dict[str, Any]:
    """Carry out a study on two machines, one of which dies. Returns what happened."""
    machines = Machines()
    try:
        doomed, _ = machines.join(), machines.join()
        began, facts = time.monotonic(), {}
        with subprocess.Popen([*command, "--on", machines.address], stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            said = []
            for line in process.stderr:  # as long as anybody says how far it is
                said.append(line)
                if not facts and done(root, nodes) >= len(nodes) // 3:
                    machines.kill(doomed)
                    facts = {"killed_after_nodes": done(root, nodes), "seconds": round(time.monotonic() - began)}
        if process.returncode:
            sys.exit(f"the study ended with {process.returncode}: {''.join(said[-5:])}")
        retries = [line.strip() for line in said if "tried again" in line]
        return {"machine_lost": facts, "tried_again": retries, "seconds": round(time.monotonic() - began)}
    finally:
        machines.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="mpe-pp")
    for name, default in (("seeds", 1), ("steps", 32_000), ("episodes", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--summary", type=Path, help="where to write what happened")
    chosen = parser.parse_args()
    sizes = {"seeds": chosen.seeds, "steps": chosen.steps, "episodes": chosen.episodes}
    os.environ["XLA_FLAGS"] = QUICK
    root = Path(tempfile.mkdtemp(prefix="naht-lost-"))
    words = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    command = [*NAHT, "reproduce", chosen.task, *words, "--out"]
    far, near = root / "far", root / "near"
    nodes = plan_of(Request(chosen.task, **sizes)).nodes
    facts = on_machines([*command, str(far)], far / chosen.task, nodes)
    began = time.monotonic()
    subprocess.run([*command, str(near), "--workers", "2"], check=True, stderr=subprocess.DEVNULL)
    facts["seconds_without_ray"] = round(time.monotonic() - began)
    whole = fingerprints(near)
    wrong = differences(whole, fingerprints(far))
    facts |= {"nodes": len(nodes), "files_compared": len(whole), "wrong": wrong}
    text = json.dumps({"task": chosen.task, **sizes, **facts}, indent=1)
    print(text)
    if chosen.summary:
        chosen.summary.write_text(text + "\n")
    if wrong:
        print(f"kept for inspection: {root}")
    else:
        shutil.rmtree(root)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
