"""A Ray cluster of several nodes on this machine, on the loopback address alone."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Any


class Machines:
    """Nodes of one Ray cluster. The first has no cores: it is the head, and where commands are called."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="naht-ray-", dir="/tmp"))  # Ray's sockets want short names
        (self.folder / "token").write_text(secrets.token_hex(32))
        variables = {
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on Linux, too, this means: the loopback address alone
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # Ray's 15 would starve them beside whatever else this machine does
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

    def join(self, accelerators: int = 0) -> Any:
        """A machine more, with a core."""
        return self._cluster.add_node(num_cpus=1, num_gpus=accelerators)

    def kill(self, node: Any) -> None:
        """A machine loses its power."""
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()
        for name, value in self._before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        shutil.rmtree(self.folder, ignore_errors=True)
