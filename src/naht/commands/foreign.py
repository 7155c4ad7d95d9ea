"""naht import-agent, naht export-agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, cast

import tyro

from naht.agents.exported import check_export, write_export
from naht.agents.foreign import Choices, find_checkpoint, import_agent
from naht.agents.saved import SUFFIX, load_agent
from naht.agents.scripted import BOTS
from naht.commands.parsing import agent_files, leading_names, parse, take_flag
from naht.errors import NahtError, require
from naht.experiments.exports import write_episodes
from naht.storage import check_output
from naht.tasks import TASKS, make_env
from naht.terminal import terminal
from naht.training.config import TaskT

IMPORT_HELP = """usage: naht import-agent FILE --task TASK [OPTIONS]

Make one of our agents of one that ePyMARL, or the code of the NAHT paper's authors, has trained. PyTorch is not needed.

  naht import-agent agent.th --task mpe-pp                    weights; encoder.th of POAM is looked for beside them
  naht import-agent models/qmix_seed=1 --task 5v6             a run: its best checkpoint, its settings
  naht import-agent models/qmix_seed=1 --task 5v6 --checkpoint last --out qmix.safetensors

FILE is a file of weights, the folder of a checkpoint, or that of a run. Nothing in it is run. All flags, for instance:
naht import-agent agent.th --task mpe-pp --help"""


@dataclass(frozen=True)
class ImportAgent(Generic[TaskT]):
    """Make one of our agents of one that ePyMARL, or the code of the NAHT paper's authors, has trained."""

    task: TaskT
    """The environment and its settings; --task NAME chooses it."""
    choices: Annotated[Choices, tyro.conf.arg(name="")] = Choices()
    checkpoint: str | None = None
    """Of a run: best, last, or a number of steps; None: best."""
    config: Path | None = None
    """The run's config.json, where it does not lie in the place that the authors' code has for it."""
    name: str | None = None
    """What it is called; None: algorithm and seed."""
    out: Path | None = None
    """The file to write; None: NAME.safetensors."""


def import_agent_(args: Sequence[str]) -> None:
    (file,), rest = leading_names(args, ("FILE",), IMPORT_HELP)
    task_name, rest = take_flag(rest, "--task", "")
    require(task_name != "", f"--task missing: which task is the agent for? Choose from {', '.join(TASKS)}")
    env = make_env(task_name)
    kind = cast(Any, ImportAgent)[type(env)]  # the flags of this very task
    chosen: ImportAgent = parse(kind, f"import-agent {file} --task {task_name}", rest, default=kind(task=env))
    found = find_checkpoint(Path(file), chosen.checkpoint)
    if chosen.config:
        found = found._replace(config=chosen.config)
    agent = import_agent(found, chosen.task, chosen.choices, chosen.name)
    out = chosen.out or Path(f"{agent.name}{SUFFIX}")
    check_output(out)
    require(not out.exists(), f"{out} exists already: choose another --out")
    agent.save(out)
    console, made = terminal(), f"{agent.card['source']['architecture']} of {agent.card['algorithm']}"
    console.print(f"{agent.name} ({made}) saved as {out}", soft_wrap=True)
    console.print(f"Next: naht evaluate {out}, or as a stranger: --teammates {out}", soft_wrap=True)


@dataclass(frozen=True)
class ExportAgent:
    """Write an agent for use without naht: a file for PyTorch, or for anything that runs ONNX.

    For PyTorch, which need not be there: naht export-agent zoo/mpe-pp/vdn-seed3 --format torch

    As ONNX, which needs the package onnx: naht export-agent runs/mpe-pp/poam/seed0 --format onnx --out poam.onnx

    examples/run_exported.py runs both, step by step, and compares them with the episodes that are recorded beside.
    """

    agent: tyro.conf.Positional[str]
    """A file, a run's folder (its best agent), or an agent of the zoo."""
    format: Literal["torch", "onnx"] = "torch"
    """What to write."""
    out: Path | None = None
    """The file to write; None: NAME.pt or NAME.onnx."""
    episodes: int = 2
    """Worlds of a team of copies to record beside it, for an episode's length; 0: none."""


def export_agent(args: Sequence[str]) -> None:
    chosen = parse(ExportAgent, "export-agent", args)
    bots = {name for names in BOTS.values() for name in names}
    scripted = chosen.agent.partition(":")[0] in bots and not Path(chosen.agent).exists()
    require(not scripted, f"{chosen.agent} is a scripted bot: only agents with a network can be exported")
    files = agent_files([chosen.agent])
    if len(files) != 1:
        raise NahtError(f"{chosen.agent} names {len(files)} agents: export one at a time")
    require(chosen.episodes >= 0, f"episodes is {chosen.episodes}: it must be at least 0")
    agent = load_agent(files[0])
    check_export(agent, chosen.format)
    out = chosen.out or Path(f"{agent.name}.{'pt' if chosen.format == 'torch' else 'onnx'}")
    check_output(out)
    require(not out.exists(), f"{out} exists already: choose another --out")
    write_export(agent, out, chosen.format)
    console = terminal()
    console.print(f"{agent.name} saved as {out}", soft_wrap=True)
    if chosen.episodes:
        beside = write_episodes(agent, out, chosen.episodes)
        console.print(f"Episodes to compare with: {beside}", soft_wrap=True)
    console.print(f"Next: python examples/run_exported.py {out}", soft_wrap=True)
