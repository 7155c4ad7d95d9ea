"""A small study, disturbed at random for hours: whatever happens, it must end as if nothing had.

    python benchmarks/soak.py --hours 4 --seed 1 --summary soak.json

A round is a study of the bit game, a part of one of predator-prey, a population and a training of two seeds, all by the
real command line in processes of their own. While they run, they are killed, stopped, frozen, given company, and their
disk is filled or made read-only; whoever has ended is called again, until everything is done. Then all that must be
equal is compared, bit for bit, with an undisturbed copy. How processes lock folders does not matter here.

Beside it, one process carries out tiny studies all the time (`soak_command.py endless`); its memory, open files and
threads must stay flat. A sitting is added to those in the summary file; anything wrong is printed, makes the exit code
1, and leaves the folder for inspection. Needs Linux; a disk can be filled as root only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from naht.storage import TEMPORARY
from same_results import QUICK, differences, fingerprints
from soak_surroundings import TOKEN, Disk, Usage, command_line, growth, not_flat, processes, send, usage

COMMAND = [sys.executable, str(Path(__file__).with_name("soak_command.py"))]
LEASE_SECONDS = 8
"""After so long, somebody who is frozen may be given up; the usual minute would make every round a long one."""
MOST_APART = 40.0
"""Seconds between disturbances."""

Next = Callable[[Path], list[str]]


@dataclass(frozen=True)
class Job:
    """Something that one does by calling a command, again and again until it says that it is done."""

    name: str
    next_call: Next
    """What to call, by what is in the folder so far."""


def _reproduce(*words: str) -> Next:
    return lambda folder: [*COMMAND, "reproduce", *words, "--workers", "2", "--out", str(folder / "study")]


def _population(folder: Path) -> list[str]:
    sizes = ["--algorithms", "ippo", "vdn", "--seeds", "1", "--steps", "4000", "--episodes", "16", "--workers", "2"]
    where = ["--checkpoint-every", "0.3", "--out", str(folder / "population")]
    return [*COMMAND, "population", "build", "bit-game", *sizes, *where]


def _training(folder: Path) -> list[str]:
    """A training that was begun is gone on with; a kill may have come before all of its folders were made."""
    runs = [folder / f"runs/bit-game/poam/seed{seed}" for seed in range(2)]
    begun = [run for run in runs if (run / "config.json").exists()]
    often = ["--checkpoint-every", "0.2", "--workers", "2"]
    if len(begun) == len(runs):
        return [*COMMAND, "resume", *map(str, runs), *often]
    seeds = ["--seeds", "2"] if not begun else ["--seed", "1" if runs[0] in begun else "0"]
    small = ["--steps", "6000", "--algorithm.network.hidden", "8", "--out", str(folder / "runs")]
    return [*COMMAND, "train", "bit-game", "poam", *seeds, *small, *often]


PARTS = ("--only", "pair,embeddings")
JOBS = (
    Job("bit game", _reproduce("bit-game", "--seeds", "2", "--steps", "4000", "--episodes", "4")),
    Job("predator-prey", _reproduce("mpe-pp", "--seeds", "1", "--steps", "32000", "--episodes", "2", *PARTS)),
    Job("population", _population),
    Job("training", _training),
)

# -- a sitting


@dataclass
class Sitting:
    """What happened, as it goes to the summary."""

    date: str
    seed: int
    naht: str
    hours: float = 0.0
    rounds: int = 0
    calls: int = 0
    """Of the command, the first ones and all that went on."""
    survived: Counter[str] = field(default_factory=Counter)
    """Disturbances that reached somebody, by kind."""
    ended: Counter[str] = field(default_factory=Counter)
    """How calls ended, by exit code; negative: by that signal."""
    files_compared: int = 0
    bytes_lost: int = 0
    """Of files that are missing or not as in the undisturbed copy."""
    wrong: list[str] = field(default_factory=list)
    """Differences, strays, calls that never ended, growth."""
    slowest_leaving: float = 0.0
    """Seconds until the last worker was gone after a job was done."""
    tracebacks: Counter[str] = field(default_factory=Counter)
    """Last lines of tracebacks where one sentence was promised."""
    left_over: Counter[str] = field(default_factory=Counter)
    """Temporary files that were still there when a round was done, by name without numbers."""
    endless: dict[str, Any] = field(default_factory=dict)
    """Growth of the process that goes on all the time, and how many studies it carried out."""
    rounds_seen: list[dict[str, float]] = field(default_factory=list)
    """By round: seconds, bytes of the folder and of compiled code, peaks of memory, files and threads."""

    def as_json(self) -> dict[str, Any]:
        return {name: dict(v) if isinstance(v, Counter) else v for name, v in vars(self).items()}


class Soak:
    """One sitting: makes the undisturbed copy, then disturbs one round after the other."""

    def __init__(self, root: Path, jobs: Sequence[Job], seed: int, *, megabytes: int = 192, patience: float = 300.0):
        self.root, self.jobs, self.patience = root, jobs, patience
        self.random = random.Random(seed)
        self.token = f"{os.getpid()}-{time.time_ns()}"
        self.disk = Disk(root / "disk", megabytes)
        self.folder = self.disk.place / "round"
        self.cache = Path(os.environ.get("NAHT_CACHE") or root / "cache")
        self.whole: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        """By job, how long it takes undisturbed."""
        self.drivers: dict[int, tuple[subprocess.Popen[bytes], Path]] = {}
        self.later: list[tuple[float, Callable[[], Any]]] = []
        """What ends a disturbance, and when."""
        self.samples: list[Usage] = []
        self.peak: dict[str, float] = {}
        self.struck: Counter[str] = Counter()
        """Disturbances of this round: survived once everything has been compared."""
        self.last_said = ""
        """By the call that ended last."""
        self._sampled = 0.0
        self._forever: subprocess.Popen[bytes] | None = None
        self.sitting = Sitting(time.strftime("%Y-%m-%d %H:%M", time.gmtime()), seed, _version())
        for name in ("temporary", "said", "endless"):
            (root / name).mkdir()

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            TOKEN: self.token,
            "NAHT_CACHE": str(self.cache),
            "NAHT_SOAK_CHECKPOINT_SECONDS": "0.3",
            "NAHT_SOAK_STACKS": str(self.root / "stacks"),
            "NAHT_LEASE_SECONDS": str(LEASE_SECONDS),
            "XLA_FLAGS": QUICK,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "TMPDIR": str(self.root / "temporary"),
        }

    # -- calling

    def call(self, job: Job) -> None:
        """Start the job's command, in a group of its own, as a shell would."""
        self.sitting.calls += 1
        said = self.root / "said" / f"{self.sitting.calls}"
        with open(said, "wb") as out:
            process = subprocess.Popen(
                job.next_call(self.folder),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.environment,
                start_new_session=True,
            )
        self.drivers[process.pid] = process, said
        self.note(f"{job.name}: called, process {process.pid}")

    def collect(self) -> list[int]:
        """Exit codes of calls that have ended."""
        codes = []
        for pid, (process, said) in list(self.drivers.items()):
            if (code := process.poll()) is not None:
                del self.drivers[pid]
                codes.append(code)
                self.sitting.ended[str(code)] += 1
                self.note(f"process {pid} ended with {code}")
                self._note_tracebacks(said)
        return codes

    def _note_tracebacks(self, said: Path) -> None:
        text = said.read_text(errors="replace")
        self.last_said = text.strip()[-300:]
        if "Traceback (most recent call last)" in text:
            last = [line for line in text.splitlines() if line.strip()][-1]
            self.sitting.tracebacks[_without_numbers(last.replace(sys.prefix, "python"))[:160]] += 1
            shutil.copy(said, self.root / f"traceback-{said.name}")
        said.unlink()

    def workers(self) -> list[int]:
        forever = {self._forever.pid} if self._forever else set()
        return [pid for pid in processes(self.token) if pid not in self.drivers and pid not in forever]

    # -- disturbing

    def disturbances(self) -> dict[str, Callable[[Job], int]]:
        """By kind; each returns how many it reached."""
        drivers = lambda: list(self.drivers)  # noqa: E731
        one = lambda pids: self.random.sample(pids, min(1, len(pids)))  # noqa: E731
        kinds: dict[str, Callable[[Job], int]] = {
            "SIGKILL of a worker": lambda _: send(signal.SIGKILL, *one(self.workers())),
            "SIGKILL of the driver": lambda _: send(signal.SIGKILL, *one(drivers())),
            "SIGKILL of all": lambda _: send(signal.SIGKILL, *drivers(), *self.workers()),
            "SIGTERM": lambda _: send(signal.SIGTERM, *one(drivers())),
            "SIGINT": lambda _: send(signal.SIGINT, *one(drivers())),
            "Ctrl-C": lambda _: send(signal.SIGINT, *drivers(), *self.workers()),
            "SIGSTOP of all": lambda _: self._freeze([*drivers(), *self.workers()]),
            "SIGSTOP of a worker": lambda _: self._freeze(one(self.workers())),
            "company": self._company,
            "frozen, and company": lambda job: self._freeze([*drivers(), *self.workers()]) and self._company(job),
            "read-only folder": lambda _: self._read_only(),
        }
        return kinds | ({"full disk": lambda _: self._full()} if self.disk.own else {})

    def _after(self, seconds: float, what: Callable[[], Any]) -> None:
        self.later.append((time.monotonic() + seconds, what))

    def _freeze(self, pids: list[int]) -> int:
        """For less or more than a lease lasts."""
        reached = send(signal.SIGSTOP, *pids)
        self._after(self.random.uniform(0.5, 2.5 * LEASE_SECONDS), lambda: send(signal.SIGCONT, *pids))
        return reached

    def _company(self, job: Job) -> int:
        """Another call of the same command, on the same folder."""
        if len(self.drivers) < 3:
            self.call(job)
            return 1
        return 0

    def _read_only(self) -> int:
        self.disk.writable(False)
        self._after(self.random.uniform(0.5, 8), lambda: self.disk.writable(True))
        return len(self.drivers)

    def _full(self) -> int:
        self.disk.fill()
        self._after(self.random.uniform(0.5, 8), self.disk.free)
        return len(self.drivers)

    def undo(self, everything: bool = False) -> None:
        """End the disturbances whose time has come."""
        due = [what for when, what in self.later if everything or time.monotonic() >= when]
        self.later = [(when, what) for when, what in self.later if not everything and time.monotonic() < when]
        for what in due:
            what()

    # -- one job, one round

    def carry_out(self, job: Job, disturbed: int, until: float) -> bool:
        """Call until it is done, with so many disturbances on the way; then once more, which must do nothing. False if
        either did not work."""
        usual = self.seconds.get(job.name, 60.0)  # with compiling, the first time
        apart = min(usual, MOST_APART)
        began = time.monotonic()
        strike, left, last = began + self.random.uniform(0, apart), disturbed, not disturbed
        self.call(job)
        while True:
            time.sleep(0.1)
            self.sample()
            self.undo()
            now, codes = time.monotonic(), self.collect()
            if now - began > self.patience + 10 * usual:
                self.wrong(f"{job.name}: not done after {now - began:.0f} s: {self._last_words()}")
                return False
            if not self.drivers:
                done = 0 in codes
                if last:
                    if not done:
                        self.wrong(f"{job.name}: left alone, it ended with {codes}: {self.last_said}")
                    return done
                last = done and not self.later
                left = 0 if last else left
                self.call(job)
            elif left and strike <= now < until:
                kind, what = self.random.choice(list(self.disturbances().items()))
                reached = what(job)
                self.struck[kind] += bool(reached)
                self.note(f"{job.name}: {kind}, reached {reached}")
                left -= 1
                strike = now + self.random.uniform(0, apart)

    def _last_words(self) -> str:
        texts = [said.read_text(errors="replace").strip()[-300:] for said in (self.root / "said").iterdir()]
        who = f"{len(self.drivers)} calls and {len(self.workers())} workers are there"
        return f"{who}; they said {texts}, the call before {self.last_said!r}"

    def round(self, until: float, disturbed: bool = True) -> bool:
        """All jobs in a fresh folder, in any order. False if one was given up: then there is nothing to compare."""
        self.disk.clear()
        self.folder.mkdir()
        began, self.peak = time.monotonic(), {}
        for job in self.random.sample(list(self.jobs), len(self.jobs)) if disturbed else self.jobs:
            at = time.monotonic()
            fine = self.carry_out(job, self.random.randint(2, 8) if disturbed else 0, until)
            self.undo(everything=True)
            self.no_strays(job.name)
            if not fine:
                return False
            self.seconds.setdefault(job.name, time.monotonic() - at)
        seen = {"seconds": time.monotonic() - began, "folder_bytes": _size(self.folder)}
        seen |= {"code_bytes": _size(self.cache), "temporary": len(list((self.root / "temporary").iterdir()))}
        self.sitting.rounds_seen.append({name: round(value, 1) for name, value in (seen | self.peak).items()})
        return True

    def no_strays(self, after: str) -> None:
        """Whoever is still there must leave soon; who compiles hears nothing for a while. Others say what they do."""
        began = time.monotonic()
        while (left := self.workers()) and time.monotonic() - began < 120 + self.seconds.get(after, 0.0):
            time.sleep(0.2)
        self.sitting.slowest_leaving = max(self.sitting.slowest_leaving, round(time.monotonic() - began, 1))
        for pid in left:
            self.wrong(f"{after}: process {pid} outlived its command: {command_line(pid).decode()[:120]}")
        send(signal.SIGUSR1, *[pid for pid in left if b"spawn_main" in command_line(pid)])
        time.sleep(1.0 if left else 0.0)
        send(signal.SIGKILL, *left)

    def compare(self) -> None:
        found = fingerprints(self.folder)
        lines = differences(self.whole, found)
        self.sitting.files_compared += len(found)
        self.sitting.survived += self.struck
        self.struck.clear()
        for line in lines:
            self.wrong(f"round {self.sitting.rounds + 1}: {line}")
            path = self.folder / line.split(" ")[0]
            self.sitting.bytes_lost += path.stat().st_size if path.exists() else 0
        for path in self.disk.place.rglob(f"{TEMPORARY}*"):
            self.sitting.left_over[_without_numbers(path.name)] += 1

    def note(self, line: str) -> None:
        """For whoever looks into it later."""
        with open(self.root / "diary", "a") as f:
            f.write(f"{time.strftime('%H:%M:%S')} {line}\n")

    def wrong(self, line: str) -> None:
        line = line.replace(str(self.root), "SOAK").replace(sys.executable, "python")
        self.sitting.wrong.append(line)
        print(f"WRONG: {line}", flush=True)

    # -- what is watched

    def sample(self) -> None:
        """Once in a while: what all processes hold."""
        if time.monotonic() - self._sampled < 1:
            return
        self._sampled = time.monotonic()
        if self._forever is not None and (mine := usage(self._forever.pid)) is not None:
            self.samples.append(mine)
        for found in filter(None, map(usage, [*self.drivers, *self.workers()])):
            for name, value in vars(found).items():
                self.peak[name] = max(self.peak.get(name, 0), value)
        own = usage(os.getpid())
        if own is not None:
            self.peak |= {f"soak_{name}": value for name, value in vars(own).items()}

    @contextlib.contextmanager
    def something_endless(self) -> Iterator[None]:
        """A process that goes on all the time."""
        command = [*COMMAND, "endless", str(self.root / "endless")]
        with open(self.root / "endless.log", "wb") as out:
            self._forever = subprocess.Popen(command, stdout=out, stderr=out, env=self.environment)
        try:
            yield
            if (code := self._forever.poll()) is not None:
                self.wrong(f"the endless process ended with {code}: {(self.root / 'endless.log').read_text()[-300:]}")
        finally:
            self._forever.kill()
            self._forever.wait()
            self._forever = None
            studies = self.root / "endless" / "studies"
            grown = growth(self.samples)
            self.sitting.endless = {"studies": int(studies.read_text()) if studies.exists() else 0, **grown}
            for line in not_flat(grown) if len(self.samples) > 1200 else ():  # it warms up for some minutes
                self.wrong(line)

    def sit(self, seconds: float) -> Sitting:
        """Disturb for so long; the round that is being disturbed then is brought to its end."""
        began = time.monotonic()
        self.round(began, disturbed=False)
        self.whole = fingerprints(self.folder)
        print(f"undisturbed: {len(self.whole)} files, {sum(self.seconds.values()):.0f} s", flush=True)
        while not self.sitting.wrong and (time.monotonic() - began < seconds or not self.sitting.rounds):
            if self.round(began + seconds):
                self.compare()
                self.sitting.rounds += 1
            self.sitting.hours = round((time.monotonic() - began) / 3600, 2)
            print(f"round {self.sitting.rounds}: {dict(self.sitting.survived)}", flush=True)
        return self.sitting

    def close(self) -> None:
        """Nobody is left."""
        self.undo(everything=True)
        send(signal.SIGKILL, *processes(self.token))
        for process, _ in self.drivers.values():
            process.wait()
        if self.sitting.wrong and self.disk.own and self.folder.exists():
            shutil.copytree(self.folder, self.root / "as-found", dirs_exist_ok=True)
        self.disk.close()


def _version() -> str:
    from naht.version import __version__

    return __version__


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _without_numbers(text: str) -> str:
    return "".join("N" if c.isdigit() else c for c in text).replace("NN", "N").replace("NN", "N").replace("NN", "N")


def add_to(summary: Path, sitting: Sitting) -> None:
    """Sittings before this one stay."""
    known = json.loads(summary.read_text())["sittings"] if summary.exists() else []
    text = json.dumps({"sittings": [*known, sitting.as_json()]}, indent=1) + "\n"
    temporary = summary.with_name(f"{TEMPORARY}{summary.name}")
    temporary.write_text(text)
    temporary.replace(summary)


def table(summary: Path) -> str:
    """All sittings for a document: what was survived, and what was wrong."""
    sittings = json.loads(summary.read_text())["sittings"]
    total = sum((Counter(s["survived"]) for s in sittings), Counter())
    lines = ["| disturbance | survived |", "|---|---:|"]
    lines += [f"| {kind} | {count} |" for kind, count in sorted(total.items(), key=lambda pair: -pair[1])]
    lines.append(f"| **all** | **{total.total()}** |")
    sums = {name: sum(s[name] for s in sittings) for name in ("hours", "rounds", "calls", "files_compared")}
    wrong = sum(len(s["wrong"]) for s in sittings)
    said = "{hours:.1f} hours, {rounds} rounds, {calls} calls, {files_compared:,} files compared"
    return "\n".join([*lines, "", f"{said.format(**sums)}; wrong: {wrong}."])


def nicely() -> None:
    """Whatever else runs here comes first."""
    os.setpriority(os.PRIO_PROCESS, 0, max(10, os.getpriority(os.PRIO_PROCESS, 0)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--hours", type=float, default=4.0, help="of disturbing; the last round is brought to its end")
    length.add_argument("--minutes", type=float, help="the same, for a short look")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--summary", type=Path, default=Path("soak.json"), help="sittings are added to this file")
    parser.add_argument("--table", action="store_true", help="only print what the summary says, as a table")
    chosen = parser.parse_args()
    if chosen.table:
        print(table(chosen.summary))
        return 0
    nicely()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    root = Path(tempfile.mkdtemp(prefix="naht-soak-"))
    soak = Soak(root, JOBS, chosen.seed)
    if not soak.disk.own:
        print("no file system of its own can be mounted here: the disk is never full", flush=True)
    try:
        with soak.something_endless():
            soak.sit(60 * chosen.minutes if chosen.minutes else 3600 * chosen.hours)
    except (KeyboardInterrupt, SystemExit):
        print("stopped; the round that was at it does not count", flush=True)
    finally:
        soak.close()
    add_to(chosen.summary, soak.sitting)
    print(json.dumps(soak.sitting.as_json() | {"rounds_seen": soak.sitting.rounds_seen[-1:]}, indent=1))
    if soak.sitting.wrong or soak.sitting.tracebacks:
        print(f"kept for inspection: {root}")
    else:
        shutil.rmtree(root)
    return 1 if soak.sitting.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
