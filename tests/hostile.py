"""Hostile files: everything that naht reads, wrong in every way, through the commands that read it.

    python tests/hostile.py --cases 10000 --seed 1

plays that many cases and prints a summary; `test_hostile.py` plays a few hundred. A case takes a workshop of good
files, spoils one of them and calls a command on it. Whatever the file holds: the command ends with code 0 (the change
was harmless) or with code 2 and one line, nothing that the files name is run, and nothing of them is changed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import math
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from naht.runtime import configure

os.environ.setdefault("NAHT_DEVICES", "2")
configure()  # before JAX starts

import jax  # noqa: E402

from epymarl_reference import KINDS, weights_of, write  # noqa: E402
from naht import load_agent, train  # noqa: E402
from naht.cli import main  # noqa: E402
from naht.envs.prey import _read, load_prey  # noqa: E402
from naht.errors import NahtError  # noqa: E402
from naht.storage import read_arrays, write_arrays  # noqa: E402
from probes import Stop, small, snapshot, stop_at  # noqa: E402

BOTS = """
from pathlib import Path
Path(__file__).with_name("EXECUTED").touch()

def go(s):
    return 0
"""


def build_workshop(folder: Path) -> None:
    """Good files of every kind: runs finished and not, agents, preys, and a Python file that tells when it is run."""
    config = replace(small(), final_episodes=16)
    train(config, folder / "done")

    with contextlib.suppress(Stop):
        train(config, folder / "half", checkpoint_every=0, report=stop_at(220))  # one update after a checkpoint
    agent = load_agent(folder / "done")
    for i in range(2):
        params = jax.tree.map(lambda x, i=i: x + 0.01 * i, agent.params)
        replace(agent, name=f"poam-seed{i}", params=params).save(folder / f"population/poam-seed{i}.safetensors")
    (folder / "bots.py").write_text(BOTS)
    prey = load_prey("naht", 14)
    prey.save(folder / "prey.safetensors")
    rng = np.random.default_rng(0)
    sizes = {"fc1": (128, 14), "fc2": (128, 128), "fc3": (5, 128)}
    arrays = {f"{name}_weight": rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    arrays |= {f"{name}_bias": rng.normal(size=size[0]).astype(np.float32) for name, size in sizes.items()}
    arrays |= {f"in_fn_{part}": np.ones(14, np.float32) for part in ("weight", "bias", "running_mean", "running_var")}
    np.savez(folder / "prey.npz", **arrays)
    run = folder / "foreign/models/iql_seed=0"
    write(run / "best/agent.th", weights_of(KINDS["rnn"]))
    write(run / "legacy.th", weights_of(KINDS["rnn_poam"]), "legacy")
    (run / "best/best_info.json").write_text('{"best_test_return": 1.5, "best_ts": "600000"}')
    (folder / "foreign/sacred/iql_seed=0/1").mkdir(parents=True)
    settings = {"name": "iql", "seed": 0, "agent": "rnn", "agent_output_type": "q", "hidden_dim": 7, "use_rnn": True}
    settings |= {"obs_last_action": True, "obs_agent_id": True, "env_args": {"key": "x"}}
    (folder / "foreign/sacred/iql_seed=0/1/config.json").write_text(json.dumps(settings))


AGENT = "population/poam-seed0.safetensors"
LIKE_IT = ("done/best.safetensors", "done/last.safetensors")
"""Agents too, whose fields need not be tried again."""
IMPORT = ("import-agent", "foreign/models/iql_seed=0", "--task", "bit-game", "--out", "OUT.safetensors")
READERS: dict[str, tuple[tuple[str, ...], ...]] = {
    AGENT: (
        ("population", "show", AGENT),
        ("population", "list", "population"),
        ("list", "agents", "--out", "population"),
        ("population", "export", "population", "--out", "OUT"),
        ("export-agent", AGENT, "--episodes", "0", "--out", "OUT.pt"),
        ("population", "verify", AGENT, "--episodes", "2"),
        ("evaluate", AGENT, "--episodes", "1"),
        ("evaluate", "done", "--teammates", AGENT, "--episodes", "1"),
        ("evaluate", "selfplay", "population", "--episodes", "1", "--out", "OUT"),
        ("evaluate", "crossplay", "population", "--episodes", "1", "--out", "OUT"),
        ("compare", AGENT, "--with", "population/poam-seed1.safetensors", "--episodes", "1", "--out", "OUT"),
        ("watch", AGENT, "--out", "OUT.png", "--frames", "2"),
        (
            "train",
            "bit-game",
            "ippo-naht",
            "--teams.teammates",
            AGENT,
            "--out",
            "OUT",
            "--steps",
            "20",
            "--devices",
            "2",
            "--test-episodes",
            "16",
            "--final-episodes",
            "16",
            "--algorithm.num-envs",
            "4",
            "--algorithm.rollout-steps",
            "5",
        ),
    ),
    "done/best.safetensors": (("list", "agents", "--out", "done"), ("evaluate", "done", "--episodes", "1")),
    "done/last.safetensors": (("resume", "done"),),
    "done/config.json": (("resume", "done"), ("curves", "done", "--out", "OUT")),
    "half/config.json": (("resume", "half"),),
    "half/checkpoints/000000000200/state.safetensors": (("resume", "half"),),
    "half/metrics.jsonl": (("resume", "half"), ("curves", "half", "--out", "OUT")),
    "half/timing.jsonl": (("resume", "half"), ("curves", "half", "--out", "OUT")),
    "prey.safetensors": (("prey", "prey.safetensors"),),
    "prey.npz": (("prey", "prey.npz"),),
    "foreign/models/iql_seed=0/best/agent.th": (IMPORT,),
    "foreign/models/iql_seed=0/best/best_info.json": (IMPORT,),
    "foreign/sacred/iql_seed=0/1/config.json": (IMPORT,),
    "foreign/models/iql_seed=0/legacy.th": (("import-agent", "foreign/models/iql_seed=0/legacy.th", *IMPORT[2:]),),
}
"""By file, the commands that read it. `prey` loads one, as training does before its folder is made."""

SLOW = {"evaluate", "compare", "watch", "curves", "train"}

WRONG: tuple[Any, ...] = (
    None, "many", "", -1, 0, 10**30, 0.5, True, [], {}, [[[]]], math.nan, math.inf, "x" * 5000, "bots.py:go",
    ["bots.py:go"], {"type": "os.system"}, {"type": "Bernoulli", "p": "bots.py:go"}, "../../etc/passwd",
    "[/red]\x1b[2J\r\nnaht: all is well",
)  # fmt: skip
"""What a field may be instead of what it should be. Most are refused, some are harmless somewhere."""


@dataclass(frozen=True)
class Case:
    """One file spoilt in one way, and the command that reads it."""

    file: str
    how: str
    command: tuple[str, ...]
    spoil: Callable[[Path], None]

    def __str__(self) -> str:
        return f"{self.file}: {self.how}; naht {' '.join(self.command)}"


def places(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything in JSON data."""
    if at:
        yield at
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from places(value, (*at, key))


GONE = object()


def changed(data: Any, at: tuple[Any, ...], value: Any) -> Any:
    """A copy of JSON data with one value replaced, or taken out."""
    data = json.loads(json.dumps(data))
    inner = data
    for key in at[:-1]:
        inner = inner[key]
    if value is GONE:
        del inner[at[-1]]
    else:
        inner[at[-1]] = value
    return data


def cases(workshop: Path, rng: random.Random) -> Iterator[Case]:
    """First every way to spoil every file, in random order; then, without end, random edits of random files.

    A file's commands take turns. Those that take long if the file is good after all come less often.
    """
    everything = [spoilt for file in READERS for spoilt in _every_way(file, workshop / file)]
    rng.shuffle(everything)
    turns = {
        file: itertools.cycle([c for c in commands for _ in range(1 if c[0] in SLOW else 3)])
        for file, commands in READERS.items()
    }
    for file, how, spoil in itertools.chain(everything, _edits(rng)):
        yield Case(file, how, next(turns[file]), spoil)


Spoilt = tuple[str, str, Callable[[Path], None]]
"""(file, how, the function that does it)"""


def _every_way(file: str, path: Path) -> Iterator[Spoilt]:
    """Every field missing or something else, every array something else, the file cut at every sixteenth."""
    arrays, data = read_arrays(path) if path.suffix == ".safetensors" else ({}, {})
    if path.suffix == ".json":
        data = json.loads(path.read_text())
        yield file, "nested", partial(_write, content=b"[" * 200_000 + b"]" * 200_000)
    for at in () if file in LIKE_IT else places(data):
        for value in (GONE, *WRONG):
            how = f"{'.'.join(map(str, at))} = {'gone' if value is GONE else repr(value)[:40]}"
            other = changed(data, at, value)
            if arrays:  # with checksums that fit: whoever means harm writes them too
                yield file, how, partial(write_arrays, arrays=arrays, header=other)
            else:
                yield file, how, partial(_write, content=json.dumps(other).encode())
    for name, array in arrays.items():
        others = {k: v for k, v in arrays.items() if k != name}
        ways = {
            "nan": others | {name: np.full(array.shape, np.nan, np.float32)},
            "inf": others | {name: np.full(array.shape, np.inf, np.float32)},
            "int": others | {name: np.zeros(array.shape, np.int64)},
            "bool": others | {name: np.zeros(array.shape, bool)},
            "shape": others | {name: np.zeros((3, 5, 7), np.float32)},
            "gone": others,
            "twice": arrays | {name + "2": array},
        }
        for kind, spoilt in ways.items():
            yield file, f"{name}: {kind}", partial(write_arrays, arrays=spoilt, header=data)
    for sixteenth in range(16):
        yield file, f"cut at {sixteenth}/16", partial(_cut, sixteenth=sixteenth)
    yield file, "rows of rubbish", _add_rubbish


def _edits(rng: random.Random) -> Iterator[Spoilt]:
    while True:
        file, seed = rng.choice(list(READERS)), rng.randrange(2**30)
        kind = rng.choice([_flip, _noise, _repeat])
        yield file, f"{kind.__name__[1:]} {seed}", partial(kind, seed=seed)


def _cut(path: Path, sixteenth: int) -> None:
    content = path.read_bytes()
    _write(path, content[: len(content) * sixteenth // 16])


def _add_rubbish(path: Path) -> None:
    _write(path, path.read_bytes() + b'\n{"step": 1e999}\n[]\nnull\n{"step": "x", "test/return": {}}\n{"st')


def _flip(path: Path, seed: int) -> None:
    """One to four bits, half of the time in the first thousand bytes, where headers are."""
    rng, content = random.Random(seed), bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 4)):
        content[rng.randrange(min(1000, len(content)) if seed % 2 else len(content))] ^= 1 << rng.randrange(8)
    _write(path, bytes(content))


def _noise(path: Path, seed: int) -> None:
    _write(path, random.Random(seed).randbytes(min(path.stat().st_size, 4096)))


def _repeat(path: Path, seed: int) -> None:
    """A piece of the file again somewhere else."""
    rng, content = random.Random(seed), path.read_bytes()
    start, to = rng.randrange(len(content)), rng.randrange(len(content))
    _write(path, content[:to] + content[start : start + rng.randrange(1, 500)] + content[to:])


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def contents(folder: Path) -> dict[str, bytes]:
    """Everything in a folder but locks and logs of what was tried."""
    return {name: content for name, content in snapshot(folder).items() if Path(name).name != "progress.log"}


def call(command: tuple[str, ...]) -> tuple[int, str]:
    """(exit code, what was said to stderr) of a command in this process."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        if command[0] == "prey":
            _read.cache_clear()
            try:
                load_prey(command[1], 14)
                return 0, ""
            except NahtError as e:
                return 2, f"naht: {e}\n"
        return main(list(command)), errors.getvalue()


def play(case: Case, workshop: Path, place: Path) -> str:
    """Play a case in a copy of the workshop. Returns what happened: 'refused', 'harmless', or what was wrong."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(workshop, place)
    case.spoil(place / case.file)
    before, here = contents(place), Path.cwd()
    os.chdir(place)
    try:
        code, said = call(case.command)
    except BaseException:
        return f"raised: {traceback.format_exc()}"
    finally:
        os.chdir(here)
    after = contents(place)
    if "EXECUTED" in after:
        return "ran code that a file named"
    if code not in (0, 2):
        return f"ended with code {code}: {said}"
    if code == 2 and said.count("\n") != 1:
        return f"said more than a line: {said}"
    new = {name for name in after if name not in before and not name.startswith("OUT")}
    mended = code == 0 and case.command[0] == "resume"  # which is what resuming is for
    aside = {name for name in new if "/damaged-" in name}
    moved = {name.replace("damaged-", "") for name in aside}
    gone = {name for name in before if name not in after} - moved
    other = {name for name in before if name in after and before[name] != after[name]}
    if not mended and (new - aside or gone or other):
        return f"changed files: new {new - aside}, gone {gone}, other {other}"
    return "refused" if code == 2 else "harmless"


def play_all(count: int, seed: int, workshop: Path, part: int = 0, parts: int = 1) -> Counter:
    """How often which outcome for which file, of every `parts`-th case. What goes wrong is told at once."""
    rng, outcomes = random.Random(seed), Counter()
    for i, case in zip(range(count), cases(workshop, rng), strict=False):
        if i and i % 1000 == 0 and part == 0:
            print(f"{i:,} cases", file=sys.stderr, flush=True)
        if i % parts != part:
            continue
        outcome = play(case, workshop, workshop.with_name(f"place{part}"))
        if outcome not in ("refused", "harmless"):
            print(f"{case}\n  {outcome}", file=sys.stderr, flush=True)
            outcome = "WRONG"
        outcomes[Path(case.file).name, outcome] += 1
    return outcomes


def summary(outcomes: Counter, seed: int, seconds: float) -> str:
    files = sorted({file for file, _ in outcomes})
    lines = [f"{sum(outcomes.values()):,} cases, seed {seed}, {seconds / 60:.0f} minutes", ""]
    lines += ["| file | refused in one line | harmless | wrong |", "|---|---:|---:|---:|"]
    lines += [f"| {f} | {outcomes[f, 'refused']} | {outcomes[f, 'harmless']} | {outcomes[f, 'WRONG']} |" for f in files]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        begun, workshop, parts = time.monotonic(), Path(temporary) / "workshop", chosen.workers
        build_workshop(workshop)
        with ProcessPoolExecutor(parts, multiprocessing.get_context("spawn")) as pool:
            futures = [pool.submit(play_all, chosen.cases, chosen.seed, workshop, i, parts) for i in range(parts)]
            results = sum((future.result() for future in futures), Counter())
        print(summary(results, chosen.seed, time.monotonic() - begun))
        sys.exit(any(outcome == "WRONG" for _, outcome in results))
