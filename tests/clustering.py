"""A Ray cluster of several nodes on this machine, on the loopback address alone, and work for it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from naht.clusters.call import home
from naht.errors import NahtError
from naht.study.nodes import Node, in_order
from naht.training.progress import Event


@dataclass(frozen=True)
class Counting:
    """Adds a number to what the needed nodes have, in its own time; notes who does so."""

    number: int
    log: Path
    seconds: float = 0.0
    how: str = ""
    """'fails', or 'dies': its process, every time."""
    kind = "sum"
    size = 1

    def identity(self):
        return {"number": self.number, "how": self.how}

    def finish(self, place, needs, report):
        with open(self.log, "a") as f:
            f.write(f"{self.number} {os.getpid()}\n")
        for i in range(round(self.seconds / 0.05)):
            report(Event("", i, 100))
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
        """(number, process) of everything that was begun, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [tuple(map(int, line.split())) for line in lines]

    @property
    def result(self):
        return int((self.nodes[-1].place(self.root) / "sum").read_text())

    @property
    def home(self):
        return home(self.root)


class Machines:
    """Nodes of one Ray cluster. The first has no cores: it is the head, and where commands are called."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="naht-ray-", dir="/tmp"))  # Ray's sockets want short names
        (self.folder / "token").write_text(secrets.token_hex(32))
        variables = {
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on Linux, too, this means: the loopback address alone
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": str(self.folder),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.folder / "token"),
        }
        self._before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.address = self._cluster.address
        assert self.address.startswith("127.0.0.1:")

    def join(self, accelerators=0):
        """A machine more, with a core."""
        return self._cluster.add_node(num_cpus=1, num_gpus=accelerators)

    def kill(self, node):
        """A machine loses its power."""
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self):
        self._cluster.shutdown()
        for name, value in self._before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        shutil.rmtree(self.folder, ignore_errors=True)
