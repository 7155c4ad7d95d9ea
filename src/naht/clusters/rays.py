"""A crew on a Ray cluster: every call is a task, in a process of its own, on whatever machine has room.

Ray is asked for little: to start processes, and to say when they die. What is done is judged by folders, as everywhere.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

from naht.clusters.call import Call, Home, variables
from naht.clusters.choice import OnRay
from naht.clusters.queueing import Queueing
from naht.errors import NahtError, one_line
from naht.runtime import usable_cores

try:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as e:
    raise NahtError("--on ray needs Ray: pip install 'naht[ray]'") from e

STORE = 100 * 2**20
"""Bytes of memory for Ray's objects in a cluster of this machine: nothing large is ever sent."""
KNOWN = 1.0
"""Seconds for which what is known of the cluster's machines holds."""


def _task() -> Any:
    """What runs on a worker. Made inside of a function, so that Ray sends it as it is, and a worker with another naht
    can say so."""

    def call(sent: bytes, version: str, box: Any) -> tuple[str, str]:
        import pickle
        import socket

        import ray

        host = socket.gethostname()
        try:
            from naht.clusters.call import perform
            from naht.errors import Interrupted
            from naht.version import __version__ as ours
        except ImportError:
            return "failed", f"{host} has no naht {version}, which the command has: install the same on both"
        if ours != version:  # before anything is unpacked that may look otherwise here
            return "failed", f"{host} has naht {ours}, and the command {version}: install the same on both"
        told: list[Any] = []

        def report(event: Any) -> None:
            told[:] = [box.put.remote(pickle.dumps(event))]

        try:
            error = perform(pickle.loads(sent), report)
        except Interrupted:
            return "stopped", f"it was told to stop on {host}"
        finally:
            if told:  # what was said last arrives before the end does
                ray.wait(told, timeout=5)
        return ("done", "") if error is None else ("failed", str(error))

    return call


def _mailbox() -> Any:
    """Where workers leave their news. It does not look into them, so that it needs nothing and starts quickly."""

    class Mailbox:
        def __init__(self) -> None:
            self._items: list[bytes] = []

        def put(self, item: bytes) -> None:
            self._items.append(item)

        def take(self) -> list[bytes]:
            taken, self._items = self._items, []
            return taken

    return Mailbox


class Ray(Queueing):
    """Tasks of a Ray cluster, or of one that is made of this machine's cores.

    `address` is HOST:PORT or ray://HOST:PORT; "": the cluster that RAY_ADDRESS or a running `ray start` names, if any.
    Every call gets `devices` devices and reserves as many cores, or what `settings` say.
    """

    kind = "ray"

    def __init__(self, home: Home, settings: OnRay, *, address: str = "", devices: int = 1, most: int | None = None):
        super().__init__(home, retries=settings.retries, most=most)
        self._settings, self._devices = settings, devices
        self._known: tuple[float, list[dict[str, float]]] = (-KNOWN, [])
        self._warned = False
        self._ours = not ray.is_initialized()
        if self._ours:
            _connect(address)
        try:
            strategy: Any = None
            with contextlib.suppress(Exception):  # a client is on no node
                strategy = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
            self._box = ray.remote(num_cpus=0, scheduling_strategy=strategy)(_mailbox()).remote()
            self._function = ray.remote(max_calls=1, max_retries=0)(_task())
        except BaseException:
            self._leave()
            raise

    @property
    def size(self) -> int:
        """Of the machines that are there now; they may join and leave."""
        cores, accelerators = self._need()
        room = 0
        for there in self._machines():
            fits = there.get("CPU", 0.0) // cores
            if accelerators:
                fits = min(fits, there.get("GPU", 0.0) // accelerators)
            room += int(fits)
        if not room and not self._warned:
            self._warned = True
            wanted = f"{cores:g} cores" + (f" and {accelerators:g} accelerators" if accelerators else "")
            self._say(f"no machine of the cluster has {wanted}: waiting for one that joins")
        return int(min(room, self._most))

    def _machines(self) -> list[dict[str, float]]:
        """The resources of every machine that is alive."""
        when, found = self._known
        if time.monotonic() - when >= KNOWN:
            with contextlib.suppress(Exception):  # the head may be busy: what was known holds a little longer
                found = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            self._known = time.monotonic(), found
        return found

    def _need(self) -> tuple[float, float]:
        """Cores and accelerators of a call. JAX can have more devices than a machine has cores, if it must."""
        largest = max((there.get("CPU", 0.0) for there in self._machines()), default=0.0)
        wanted = float(self._settings.cores or self._devices)
        return (min(wanted, largest) if largest >= 1 else wanted), self._settings.accelerators

    def _send(self, call: Call) -> Any:
        cores, accelerators = self._need()
        environment = variables(self._devices)
        if 0 < accelerators < 1:  # JAX would take most of its memory
            environment.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 * accelerators:.3f}")
        task = self._function.options(
            name=call.name,
            num_cpus=cores,
            num_gpus=accelerators or None,
            runtime_env={"env_vars": environment},
        )
        return task.remote(pickle.dumps(call), call.home.versions["naht"], self._box)

    def _look(self, seconds: float) -> None:
        pause = min(seconds, 0.5)
        if self._out:
            ended, _ = ray.wait(list(self._out), num_returns=1, timeout=pause)
        else:
            ended = []
            time.sleep(pause)
        self._read_mail()
        for handle in ended:
            try:
                how, said = ray.get(handle)
            except ray.exceptions.RayTaskError as e:
                self._came_back(handle, NahtError(f"Ray could not do it: {one_line(e.cause or e)}"))
            except ray.exceptions.TaskCancelledError:
                self._died(handle, "it was cancelled")
            except ray.exceptions.RayError as e:
                self._died(handle, _how(e))
            else:
                if how == "stopped":
                    self._died(handle, said)
                else:
                    self._came_back(handle, NahtError(said) if how == "failed" else None)

    def _read_mail(self) -> None:
        with contextlib.suppress(ray.exceptions.RayError):  # news may be lost, work is not
            self._news.extend(pickle.loads(item) for item in ray.get(self._box.take.remote(), timeout=5))

    def _recall(self) -> None:
        for handle in self._out:
            ray.cancel(handle)  # as Ctrl-C would: whoever has something to save does so

    def _leave(self) -> None:
        for handle in self._out:
            with contextlib.suppress(Exception):
                ray.cancel(handle, force=True)
        if self._ours:
            ray.shutdown()
        elif hasattr(self, "_box"):
            ray.kill(self._box)


def _how(e: Exception) -> str:
    """How a worker died, in a few words: Ray's own are paragraphs."""
    kinds = {"OutOfMemoryError": "its machine ran out of memory", "NodeDiedError": "its machine died"}
    return kinds.get(type(e).__name__, "its process died")


def _connect(address: str) -> None:
    """Join a cluster, or make one of this machine that nobody else can reach. Ray itself says nothing."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    _hush()
    quiet = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
    with _own_signals(), warnings.catch_warnings():
        # JAX warns of forks; Ray's processes become other programs at once.
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
        try:
            if address:
                _reachable(address)
                ray.init(address, **quiet)
                return
            try:
                ray.init("auto", **quiet)
            except ConnectionError:
                if "RAY_ADDRESS" in os.environ:
                    raise
                _only_this_machine()
                local = {"include_dashboard": False, "object_store_memory": STORE, "num_cpus": usable_cores()}
                ray.init("local", **quiet, **local)
        except NahtError:
            raise
        except Exception as e:
            where = address or os.environ.get("RAY_ADDRESS") or "this machine"
            raise NahtError(f"can't work with Ray on {where}: {one_line(e)}") from e


def _reachable(address: str) -> None:
    """Ray tries a wrong address for a minute, and says a page about it."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as e:
        raise NahtError(f"there is no Ray cluster at {address}: {one_line(e)}; start it with: ray start --head") from e


def _only_this_machine() -> None:
    """A cluster of this machine alone listens on the loopback address alone, and tells nobody of its use.

    Left to itself, Ray listens on all addresses of a Linux machine, and on loopback elsewhere; this is its switch.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray._private.ray_constants.ENABLE_RAY_CLUSTER = False


def _hush() -> None:
    """Ray prints pages about dead workers between the lines of our display, which tells of them itself."""
    if hasattr(ray._private.worker, "print_to_stdstream"):
        ray._private.worker.print_to_stdstream = lambda *_, **__: None


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray makes SIGTERM end the process at once; ours lets work be saved first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
