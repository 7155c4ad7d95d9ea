"""What `naht doctor` shows: machine, JAX, settings and speed, and what to change where it is slow.

Facts are gathered first. The checks are functions of facts alone, each with one line to say.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table
from rich.text import Text

from naht.cache import CacheSurvey, survey
from naht.devices import SPLIT, place, spread
from naht.envs.conformance import random_actions
from naht.pieces import explained
from naht.runtime import OURS, usable_cores
from naht.terminal import terminal
from naht.training.config import RunConfig, run_config
from naht.training.trainer import make_trainer
from naht.version import __version__

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")

REFERENCE = {
    "matmul, one device": 130.0,
    "matmul, all devices": 170.0,
    "environment": 3_340_000.0,
    "rollout": 190_000.0,
    "training": 6_900.0,
}
"""Rates on 2 shared virtual cores of an AMD EPYC server with AVX2, jax 0.10.2: GFLOP/s, then environment steps/s."""

SLOW = 0.5
"""A part below this share of its reference is worth a look; the machine of the reference varies by a third itself."""

DEBUG_MODES = {
    "jax_debug_nans": "checks every result for NaN",
    "jax_debug_infs": "checks every result for infinity",
    "jax_disable_jit": "compiles nothing",
    "jax_enable_x64": "computes in 64 bits",
    "jax_check_tracer_leaks": "checks every trace for leaks",
}
"""Settings of JAX that cost much of the speed; each is also an environment variable, in capitals."""

ACCELERATORS = {"nvidia[0-9]*": "an NVIDIA GPU", "kfd": "an AMD GPU", "accel[0-9]*": "a TPU"}
"""Device files by which accelerators are found even where JAX was installed without support for them."""


@dataclass(frozen=True)
class Facts:
    """All that the checks look at."""

    versions: Mapping[str, str]
    processor: str
    cores: int
    """Of the whole machine."""
    usable_cores: int
    """Those this process may run on."""
    cpu_quota: float | None
    """Cores' worth of time that the container may use; None: no limit."""
    memory: tuple[int, int] | None
    """Bytes in all and available."""
    load: float | None
    """Average over the last minute, of the whole machine."""
    backend: str
    """JAX's platform; "none" if JAX could not start."""
    devices: tuple[str, ...]
    problem: str
    """Why JAX could not start."""
    accelerators: tuple[str, ...]
    """Found in the machine, whether JAX uses them or not."""
    debug_modes: tuple[str, ...]
    """Those of `DEBUG_MODES` that are on."""
    cache: CacheSurvey | None
    """None: compiled code is not kept."""
    variables: Mapping[str, str]
    """Environment variables."""
    ours: Mapping[str, str]
    """Environment variables as naht sets them where the user has not."""

    def chosen_by(self, name: str) -> str:
        """Who set an environment variable."""
        if name not in self.variables:
            return "not set"
        return "set by naht" if self.variables[name] == self.ours.get(name) else "set by you"


@dataclass(frozen=True)
class Finding:
    """One line: all is well, or what to look at and what to do."""

    ok: bool
    text: str

    def __str__(self) -> str:
        return f"{'ok' if self.ok else 'look'}: {self.text}"


def gather() -> Facts:
    """The facts of this process and its machine. Starts JAX."""
    try:
        backend, devices, problem = jax.default_backend(), tuple(str(d) for d in jax.devices()), ""
    except RuntimeError as e:
        backend, devices, problem = "none", (), str(e).partition("\n")[0]
    settings = jax.config.values  # of JAX, from its environment variables or its own API
    folder = settings["jax_compilation_cache_dir"] if settings["jax_enable_compilation_cache"] else None
    return Facts(
        versions={"naht": __version__, "Python": platform.python_version()}
        | {name: metadata.version(name) for name in PACKAGES},
        processor=processor(),
        cores=os.cpu_count() or 1,
        usable_cores=usable_cores(),
        cpu_quota=cpu_quota(),
        memory=memory(),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        backend=backend,
        devices=devices,
        problem=problem,
        accelerators=accelerators(),
        debug_modes=tuple(name for name in DEBUG_MODES if settings.get(name)),
        cache=survey(Path(folder)) if folder and "://" not in folder else None,
        variables=dict(os.environ),
        ours=dict(OURS),
    )


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores' worth of time the control groups of this process grant it; None without a limit, or outside Linux."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        number, controllers, group = line.split(":", 2)
        if number != "0" and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("" if number == "0" else "cpu")
        # In a container, the group's own path often is not visible, and the mount is the group.
        folder = mount / group.strip("/")
        limits += [_quota_of(above) for above in (folder, *folder.parents) if above.is_relative_to(mount)]
    found = [limit for limit in limits if limit is not None]
    return min(found) if found else None


def _quota_of(group: Path) -> float | None:
    """The limit of one control group, in the files of version 2 or 1."""
    try:
        if (group / "cpu.max").is_file():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return None if quota == "max" or int(quota) < 0 else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def memory(meminfo: Path = Path("/proc/meminfo")) -> tuple[int, int] | None:
    """Bytes in all and available; None where the system does not say."""
    try:
        rows = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        total, available = (int(rows[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError):
        return None
    return total, available


def accelerators(folder: Path = Path("/dev")) -> tuple[str, ...]:
    """Kinds of accelerators in the machine."""
    return tuple(name for pattern, name in ACCELERATORS.items() if any(folder.glob(pattern)))


def _check_devices(facts: Facts) -> Finding:
    if facts.problem:
        return Finding(False, f"JAX does not start ({facts.problem}); JAX_PLATFORMS=cpu starts it without accelerators")
    if facts.accelerators and facts.backend == "cpu":
        there = " and ".join(facts.accelerators)
        cure = "install JAX with support for it"
        if "JAX_PLATFORMS" in facts.variables:
            cure = f"JAX_PLATFORMS={facts.variables['JAX_PLATFORMS']} keeps JAX away from it"
        return Finding(False, f"{there} is in the machine, but JAX runs on the CPU: {cure}")
    return Finding(True, f"JAX runs on {facts.backend} and sees {_count(len(facts.devices), 'device')}")


def _check_load(facts: Facts) -> Finding:
    # The load is that of the whole machine, so it is compared with all its cores, not with those we may use.
    if facts.load is not None and facts.load > facts.cores:
        busy = f"the machine is busy (load {facts.load:.1f} on {_count(facts.cores, 'core')})"
        return Finding(False, f"{busy}: all runs are slow until other work ends")
    said = "its load is unknown" if facts.load is None else f"load {facts.load:.1f}"
    return Finding(True, f"the machine has time ({said}, {_count(facts.cores, 'core')})")


def _check_cores(facts: Facts) -> Finding:
    if facts.cpu_quota is not None and facts.cpu_quota < facts.usable_cores:
        allowed = f"the container may use {facts.cpu_quota:g} of {_count(facts.usable_cores, 'core')}"
        cure = f"raise its CPU limit, or set NAHT_DEVICES={max(1, int(facts.cpu_quota))}"
        return Finding(False, f"{allowed} and is halted when it uses more: {cure}")
    if facts.usable_cores == 1:
        more = f" of {facts.cores}" if facts.cores > 1 else ""
        return Finding(False, f"one core{more} is usable: nothing runs side by side")
    return Finding(True, f"{facts.usable_cores} cores are usable")


def _check_threads(facts: Facts) -> Finding:
    flags = facts.variables.get("XLA_FLAGS", "").split()
    values = [flag.partition("=")[2] for flag in flags if flag.startswith("--xla_cpu_multi_thread_eigen")]
    off = bool(values) and values[-1].lower() in ("false", "0")
    if facts.backend == "cpu" and not off:
        whose = facts.chosen_by("XLA_FLAGS")
        cure = "unset it, or add --xla_cpu_multi_thread_eigen=false"
        return Finding(False, f"XLA_FLAGS ({whose}) leaves threads inside operations on, slow for small ones: {cure}")
    return Finding(True, f"XLA_FLAGS is {facts.chosen_by('XLA_FLAGS')}")


def _check_cache(facts: Facts) -> Finding:
    cache = facts.cache
    if cache is None:
        names = ("JAX_ENABLE_COMPILATION_CACHE", "JAX_COMPILATION_CACHE_DIR")
        given = [f"{name}={facts.variables[name]}" for name in names if facts.chosen_by(name) == "set by you"]
        cure = f"unset {' '.join(given)}" if given else "set NAHT_CACHE to a folder"
        return Finding(False, f"compiled code is not kept on this disk, so every start compiles anew: {cure}")
    if not cache.writable:
        return Finding(
            False, f"{cache.folder} can't be written (rights, or a full disk): set NAHT_CACHE to another folder"
        )
    if cache.damaged:
        return Finding(False, f"{cache.damaged} damaged entries in {cache.folder}: harmless, replaced when next needed")
    return Finding(True, f"compiled code is kept ({_contents(cache)})")


def _check_debug(facts: Facts) -> Finding:
    if facts.debug_modes:
        said = ", ".join(f"{name.upper()} {DEBUG_MODES[name]}" for name in facts.debug_modes)
        return Finding(False, f"debugging is on ({said}): unset for speed")
    return Finding(True, "no debug mode of JAX is on")


CHECKS: tuple[Callable[[Facts], Finding], ...] = (
    _check_devices,
    _check_load,
    _check_cores,
    _check_threads,
    _check_cache,
    _check_debug,
)


def findings(facts: Facts) -> list[Finding]:
    """A line per check."""
    return [check(facts) for check in CHECKS]


def speed_finding(rates: Mapping[str, float], reference: Mapping[str, float] = REFERENCE) -> Finding:
    """Is any part much slower than on the machine of the reference?"""
    shares = {name: rate / reference[name] for name, rate in rates.items()}
    slow = [f"{name} {share:.0%}" for name, share in shares.items() if share < SLOW]
    if slow:
        return Finding(False, f"slower than the reference: {', '.join(slow)}; the lines above may say why")
    return Finding(True, f"no part is slower than {min(shares.values()):.0%} of the reference")


def best_seconds(f: Callable[[], Any], budget: float) -> float:
    """Best time of one call after a first one that compiles; as many as fit the budget, but at least three."""

    def once() -> float:
        start = time.perf_counter()
        jax.block_until_ready(f())  # type: ignore[no-untyped-call]
        return time.perf_counter() - start

    once()
    times: list[float] = []
    while len(times) < 3 or sum(times) < budget:
        times.append(once())
    return min(times)


def matmul_rate(num_devices: int, budget: float) -> float:
    """GFLOP/s of 32-bit matrix products, on several devices at once."""
    size, products = (512, 16) if jax.default_backend() == "cpu" else (4096, 64)

    def multiply(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, products, lambda _, y: y @ x, x)

    work = jax.jit(spread(multiply, num_devices, SPLIT, SPLIT))
    # The powers of this matrix neither grow nor vanish.
    x = place(jnp.full((num_devices, size, size), 1 / size), num_devices, SPLIT)
    return num_devices * products * 2 * size**3 / best_seconds(lambda: work(x), budget) / 1e9


def standard_job() -> RunConfig:
    """The job whose speed is measured."""
    return run_config("bit-game", "poam")


def measure(config: RunConfig, budget: float = 1.0, num_envs: int = 1024) -> Iterator[tuple[str, float]]:
    """Names and rates as in `REFERENCE`, one by one; `budget` seconds of work for each, and compilation."""
    yield "matmul, one device", matmul_rate(1, budget)
    yield "matmul, all devices", matmul_rate(jax.device_count(), budget)
    env, key = config.task, jax.random.key(0)

    def step(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        state, avail = carry
        state, ts = jax.vmap(env.step)(jax.random.split(key, num_envs), state, random_actions(key, avail))
        return (state, ts.avail), ts.reward

    @jax.jit
    def episode() -> Any:
        state, ts = jax.vmap(env.reset)(jax.random.split(key, num_envs))
        return jax.lax.scan(step, (state, ts.avail), jax.random.split(key, env.spec.horizon))

    yield "environment", num_envs * env.spec.horizon / best_seconds(episode, budget)
    trainer, strangers = make_trainer(config)
    learner, state, arena = trainer.learner, trainer.init(key), trainer.arena(test=False)

    def play(state: Any) -> Any:
        params = trainer.acting_params(state.learner)
        _, trajectory = arena.play(params, strangers.params, state.arena, key, learner.rollout_steps)
        return jax.tree.map(lambda leaf: leaf[None], trajectory)  # a leading axis to lay the devices' shares along

    rollout = jax.jit(spread(play, trainer.devices, (trainer.layout,), SPLIT))
    steps = learner.num_envs * learner.rollout_steps
    yield "rollout", steps / best_seconds(lambda: rollout(state), budget)
    yield "training", steps / best_seconds(lambda: trainer.step(state, strangers.params), budget)


def _count(number: int, one: str, several: str = "") -> str:
    return f"{number} {one if number == 1 else several or one + 's'}"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"


def _contents(cache: CacheSurvey) -> str:
    return f"{_count(cache.entries, 'entry', 'entries')}, {_size(cache.num_bytes)}"


def facts_table(facts: Facts) -> Table:
    """The facts as a table of two columns."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")

    def row(name: str, value: str) -> None:
        table.add_row(name, Text(value))  # as it is: brackets in a path are no markup

    row("versions", ", ".join(f"{name} {version}" for name, version in facts.versions.items()))
    row("system", platform.platform())
    row("processor", facts.processor)
    quota = "" if facts.cpu_quota is None else f", time of {facts.cpu_quota:g}"
    row("cores", f"{facts.usable_cores} usable of {facts.cores}{quota}")
    row("load", "unknown" if facts.load is None else f"{facts.load:.2f} in the last minute")
    if facts.memory:
        row("memory", f"{_size(facts.memory[0])}, {_size(facts.memory[1])} available")
    row("platform", facts.backend)
    row("devices", ", ".join(facts.devices) or "none")
    if facts.devices:
        row("at once", explained(facts.backend))
    for name in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES"):
        row(name, f"{facts.variables.get(name, '')} ({facts.chosen_by(name)})".strip())
    cache = facts.cache
    if cache is None:
        row("compiled code", "not kept")
    else:
        row("compiled code", str(cache.folder))
        checked = f"{cache.damaged} damaged of {cache.checked} checked"
        row("", f"{_contents(cache)}, {checked}, {'writable' if cache.writable else 'not writable'}")
    return table


def examine(*, quick: bool = False, console: Console | None = None) -> list[Finding]:
    """Print all of it; `quick` leaves out the measurements."""
    console = console or terminal()
    facts = gather()
    console.print(facts_table(facts))
    found = findings(facts)
    if not quick and facts.devices and "jax_disable_jit" not in facts.debug_modes:
        console.print()
        with console.status("measuring for about 10 seconds, longer where nothing is compiled yet"):
            rates = dict(measure(standard_job()))
        console.print(_rates_table(rates))
        found.append(speed_finding(rates))
    console.print()
    for finding in found:
        console.print(Text(str(finding), "" if finding.ok else "bold yellow"), soft_wrap=True)
    return found


def _rates_table(rates: Mapping[str, float]) -> Table:
    table = Table("speed", "here", "reference", "share", "unit", box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name, rate in rates.items():
        unit = "GFLOP/s" if name.startswith("matmul") else "environment steps/s"
        table.add_row(name, f"{rate:,.0f}", f"{REFERENCE[name]:,.0f}", f"{rate / REFERENCE[name]:.0%}", unit)
    for column in table.columns[1:4]:
        column.justify = "right"
    return table
