"""Work for a cluster: sums, in one's own time, by those who fail or die."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from naht.clusters.call import home
from naht.errors import NahtError
from naht.study.nodes import Node, in_order
from naht.training.progress import Event


def begun(log):
    """(number, process) of everything that was begun, in order."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [tuple(map(int, line.split())) for line in lines]


@dataclass(frozen=True)
class Counting:
    """Adds a number to what the needed nodes have, in its own time; notes who does so."""

    number: int
    log: Path
    seconds: float = 0.0
    how: str = ""
    """'fails', 'dies': its process, every time, or 'waits' to be killed when it is first begun."""
    kind = "sum"
    size = 1

    def identity(self):
        return {"number": self.number, "how": self.how}

    def finish(self, place, needs, report):
        with open(self.log, "a") as f:
            f.write(f"{self.number} {os.getpid()}\n")
        waits = self.how == "waits" and [number for number, _ in begun(self.log)].count(self.number) == 1
        for i in range(600 * 20 if waits else round(self.seconds / 0.05)):
            report(Event("", i, 100_000))
            time.sleep(0.05)
        if self.how == "fails":
            raise NahtError(f"{self.number} can't be added")
        if self.how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        (place / "sum").write_text(str(self.number + sum(int((p / "sum").read_text()) for p in needs.values())))


@dataclass
class Sum:
    """1 and 2, each in its own time, and 1 + 2 + 4 = 7."""

    root: Path
    seconds: float = 0.0
    how: str = ""
    """What becomes of 2."""

    @property
    def log(self):
        return self.root / "log"

    @property
    def nodes(self):
        one = Node("one", Counting(1, self.log, self.seconds))
        two = Node("two", Counting(2, self.log, self.seconds, self.how))
        return in_order([Node("all", Counting(4, self.log), (one, two))])

    @property
    def begun(self):
        return begun(self.log)

    @property
    def result(self):
        return int((self.nodes[-1].place(self.root) / "sum").read_text())

    @property
    def home(self):
        return home(self.root)
