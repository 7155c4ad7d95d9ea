"""Environment steps per second of every part of a run.

    make bench                                         everything
    python benchmarks/throughput.py parts              predator-prey at the paper's sizes, and the bit game
    python benchmarks/throughput.py scaling            environments, team size, population size, devices
    python benchmarks/throughput.py algorithms         the five algorithms of self-play, beside the authors' code
    python benchmarks/throughput.py battles            POAM and IPPO-NAHT on the SMAC maps, with five teams
    python benchmarks/throughput.py memory             peak memory of whole training, in a process of its own

Each number is the best of several repetitions after compilation; one environment step moves the whole team once.
Teammates are untrained networks (their speed does not depend on what they know). The matmul peak is measured in the
same run, between the parts; a part's share of it counts the part's own matrix products and no element-wise work.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, cast

from naht.runtime import configure

configure()

import jax  # noqa: E402 (after configure)
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import PartitionSpec  # noqa: E402

from naht import Member, Population, RunConfig, run_config, team_sampler  # noqa: E402
from naht.agents.recurrent import RecurrentPolicy  # noqa: E402
from naht.devices import AXIS, SHARED, SPLIT, own_key, place, spread  # noqa: E402
from naht.envs.base import Environment  # noqa: E402
from naht.envs.predator_prey import PredatorPrey  # noqa: E402
from naht.envs.prey import Prey  # noqa: E402
from naht.learning.learner import Circumstances, Learner  # noqa: E402
from naht.learning.ppo import PPO  # noqa: E402
from naht.pieces import decided  # noqa: E402
from naht.training.config import Preset  # noqa: E402
from naht.training.trainer import Trainer  # noqa: E402

REPETITIONS = 5


def times(f: Callable[[], Any], repetitions: int) -> list[float]:
    """Seconds of every call, after a first call that compiles."""
    jax.block_until_ready(f())
    taken = []
    for _ in range(repetitions):
        start = time.perf_counter()
        jax.block_until_ready(f())
        taken.append(time.perf_counter() - start)
    return taken


def seconds(f: Callable[[], Any], repetitions: int = REPETITIONS) -> float:
    """Best time of one call, in seconds, after a first call that compiles."""
    return min(times(f, repetitions))


def matmul_peak(devices: int, size: int = 1024) -> float:
    """f32 operations per second of a large matrix product on every device at once."""
    product = jax.jit(spread(lambda a: (a[0] @ a[0])[None], devices, SPLIT, SPLIT))
    a = place(jnp.ones((devices, size, size)), devices, SPLIT)
    return devices * 2 * size**3 / seconds(lambda: product(a), 20)


def multiplications(learner: Learner) -> dict[str, float]:
    """Multiply-adds of all matrix products per environment step, by part, with N uniform on 1..M-1."""
    assert isinstance(learner, PPO)
    c, spec = learner.config, learner.spec
    x, h, m = spec.obs_size + spec.num_actions + spec.num_agents, c.network.hidden, spec.num_agents
    e, g = (c.model.embedding, c.model.hidden) if c.modelling else (0, 0)

    def network(inputs: int, outputs: int) -> int:
        return inputs * h + h * h + 2 * 3 * h * h + h * outputs

    actor, critic = network(x + e, spec.num_actions), network(x + e + learner.state_size, 1)
    encoder = x * 3 * g + 3 * g * g + g * g + g * e
    decoded = learner.decoded_teammates if c.modelling else 0
    decoders = 2 * e * g + decoded * (2 * g * g + g * (spec.obs_size + spec.num_actions)) if c.modelling else 0
    ours = theirs = m / 2
    forward = {
        "rollout": ours * (actor + encoder) + theirs * network(x, spec.num_actions),
        "values and returns": m * (critic + encoder),
    }
    learning = c.epochs * (ours * actor + (m if c.uncontrolled_data else ours) * critic)
    update = 3 * (learning + c.model_epochs * ours * (encoder + decoders)) + forward["values and returns"]
    return forward | {"update": update, "whole training": update + forward["rollout"]}


@dataclass(frozen=True)
class Job:
    """A trainer with a population of untrained teams, and its parts as calls."""

    config: RunConfig
    teams: int
    devices: int

    def trainer(self) -> tuple[Trainer, Any]:
        env, spec = self.config.task, self.config.task.spec
        policy = RecurrentPolicy(spec)
        crowd = Population([Member(f"team{i}", policy, policy.init(jax.random.key(i))) for i in range(self.teams)])
        sampler = team_sampler(spec.num_agents, self.teams, self.config.teams.num_controlled)
        together = decided(self.config.pieces).members
        trainer = Trainer(env, self.learner, sampler, crowd.roster, 1000, 512, self.devices, together)
        return trainer, place(crowd.params, self.devices, SHARED)

    @property
    def learner(self) -> Learner:
        spec = self.config.task.spec
        share = team_sampler(spec.num_agents, self.teams, self.config.teams.num_controlled).controlled_share
        return self.config.algorithm.learner(spec, Circumstances(self.devices, decided(self.config.pieces), share))

    @property
    def steps(self) -> int:
        return self.learner.num_envs * self.learner.rollout_steps

    def whole(self, repetitions: int = 3) -> float:
        """Environment steps per second of whole training, at best."""
        return max(self.rates(repetitions))

    def rates(self, repetitions: int) -> list[float]:
        """Environment steps per second of whole training, for every repetition."""
        trainer, theirs = self.trainer()
        state = trainer.init(jax.random.key(0))
        for _ in range(ceil(getattr(self.config.algorithm, "learning_starts", 0) / self.learner.num_envs)):
            state, _ = trainer.step(state, theirs)  # a replay has to fill up before anything is learned

        def step() -> Any:
            nonlocal state
            state, metrics = trainer.step(state, theirs)
            return metrics

        return [self.steps / taken for taken in times(step, repetitions)]

    def parts(self) -> dict[str, float]:
        """Environment steps per second of every part."""
        trainer, theirs = self.trainer()
        learner, n = trainer.learner, self.devices
        assert isinstance(learner, PPO)
        state = trainer.init(jax.random.key(0))
        key = jax.random.key(1)

        def play(state: Any, theirs: Any) -> Any:
            ours = trainer.acting_params(state.learner)
            k = own_key(key, n)
            return trainer.arena(test=False).play(ours, theirs, state.arena, k, learner.rollout_steps)[1]

        shapes = jax.eval_shape(partial(trainer.arena(test=False).play, num_steps=2), *self._example(trainer, theirs))
        by_time = jax.tree.map(lambda _: PartitionSpec(None, AXIS), shapes[1]._replace(start_memory=()))
        layout = by_time._replace(start_memory=SPLIT)
        rollout = jax.jit(spread(play, n, (trainer.layout, SHARED), layout))
        trajectory = rollout(state, theirs)

        def prepare(learner_state: Any, tr: Any) -> Any:
            return learner.prepare(learner_state, tr)[:2]

        def update(learner_state: Any, tr: Any) -> Any:
            return learner.update(learner_state, (), tr, key, jnp.zeros(()))[::2]

        look_back = jax.jit(spread(prepare, n, (learner.layout, layout), (learner.layout, SPLIT)))
        learn = jax.jit(spread(update, n, (learner.layout, layout), (learner.layout, SHARED)))
        timed = {
            "rollout": seconds(lambda: rollout(state, theirs)),
            "values and returns": seconds(lambda: look_back(state.learner, trajectory)),
            "update": seconds(lambda: learn(state.learner, trajectory), 3),
            "whole training": seconds(lambda: trainer.step(state, theirs), 3),
        }
        return {name: self.steps / t for name, t in timed.items()}

    @staticmethod
    def _example(trainer: Trainer, theirs: Any) -> tuple[Any, ...]:
        state = jax.eval_shape(trainer.arena(test=False).reset, jax.random.key(0))
        ours = trainer.acting_params(trainer.learner.init(jax.random.key(0)))
        return ours, theirs, state, jax.random.key(0)


def environment_alone(env: Environment, devices: int, num_envs: int = 4096) -> float:
    """Steps per second with random actions in many environments side by side."""
    spec, share = env.spec, num_envs // devices

    def episode(key: jax.Array) -> jax.Array:
        k_reset, k_act = jax.random.split(own_key(key, devices))
        state, _ = jax.vmap(env.reset)(jax.random.split(k_reset, share))
        actions = jax.random.randint(k_act, (spec.horizon, share, spec.num_agents), 0, spec.num_actions)

        def step(state: Any, action: jax.Array) -> tuple[Any, jax.Array]:
            state, ts = jax.vmap(env.step, in_axes=(None, 0, 0))(key, state, action)
            return state, ts.reward + ts.obs.sum((1, 2))

        return jax.lax.scan(step, state, actions)[1]

    run = jax.jit(spread(episode, devices, SHARED, PartitionSpec(None, AXIS)))
    key = place(jax.random.key(0), devices, SHARED)
    return num_envs * spec.horizon / seconds(lambda: run(key), 10)


def predator_prey(
    algorithm: str = "poam", num_agents: int = 3, decoded: int | str = "all", **changes: Any
) -> RunConfig:
    """The paper's sizes, with some changes. A world of another size than the shipped prey's gets an untrained one."""
    config = run_config("mpe-pp", algorithm, "paper")
    if num_agents != 3:
        sees, rng = 4 + 4 + 2 * num_agents, np.random.default_rng(0)
        widths = [(sees, 128), (128, 128), (128, 5)]
        layers = tuple((rng.normal(0, 0.1, w).astype(np.float32), np.zeros(w[1], np.float32)) for w in widths)
        path = Path(tempfile.gettempdir()) / f"naht-bench-prey{num_agents}.safetensors"
        Prey(layers, {}).save(path)
        config = replace(config, task=PredatorPrey(num_agents, prey=str(path)))
    return replace(config, algorithm=replace(config.algorithm, decoded_teammates=decoded, **changes))


def parts(devices: int) -> None:
    peak = matmul_peak(devices)
    rows: list[tuple[str, float, float | None]] = [
        ("environment alone, 4096 envs, random actions", environment_alone(predator_prey().task, devices), None)
    ]
    for algorithm in ("poam", "ippo-naht"):
        job = Job(predator_prey(algorithm), teams=5, devices=devices)
        work = multiplications(job.learner)
        rows += [(f"{name} ({algorithm})", rate, 2 * work[name] * rate) for name, rate in job.parts().items()]
        peak = max(peak, matmul_peak(devices))
    print(f"\nPredator-prey, 256 episodes x 100 steps, 5 epochs, 5 teams, {devices} devices; ", end="")
    print(f"f32 matmul peak in the same run {peak / 1e9:.0f} GFLOP/s\n")
    baseline = next(rate for name, rate, _ in rows if name == "whole training (poam)")
    print("| part | env steps/s | relative to whole POAM training | share of matmul peak |\n|---|---:|---:|---:|")
    for name, rate, flops in rows:
        share = f"{100 * flops / peak:.0f} %" if flops else ""
        print(f"| {name} | {rate:,.0f} | {rate / baseline:.2f} | {share} |")

    print("\nBit game, tuned settings (16 episodes x 25 steps), one device\n")
    print("| part | env steps/s |\n|---|---:|")
    print(f"| environment alone, 4096 envs | {environment_alone(run_config('bit-game', 'poam').task, 1):,.0f} |")
    for name, rate in Job(run_config("bit-game", "poam"), teams=1, devices=1).parts().items():
        print(f"| {name} (poam) | {rate:,.0f} |", flush=True)


def scaling(devices: int) -> None:
    """Whole training, one thing changed at a time; the reference is measured again beside every change."""

    def row(name: str, what: str, job: Job, reference: Job) -> None:
        base, rate = reference.whole(), job.whole()
        agents = job.config.task.spec.num_agents / 3
        work = multiplications(job.learner)["whole training"] / multiplications(reference.learner)["whole training"]
        ratios = " | ".join(f"{rate / base * factor:.2f}" for factor in (1, agents, work))
        print(f"| {name} | {what} | {rate:,.0f} | {base:,.0f} | {ratios} |", flush=True)

    print(f"\nWhole training, {devices} devices unless said; reference: 256 envs, M = 3, 5 teams\n")
    print("| algorithm | changed | env steps/s | reference beside it | ratio | per agent | matrix products |")
    print("|---|---|---:|---:|---:|---:|---:|")
    kinds: dict[str, Callable[..., RunConfig]] = {
        "poam, decoding two": partial(predator_prey, "poam", decoded=2),
        "poam, decoding all": partial(predator_prey, "poam"),
        "ippo-naht": partial(predator_prey, "ippo-naht"),
    }
    for name, kind in kinds.items():
        for num_agents in (5, 10, 20):
            row(name, f"M = {num_agents}", Job(kind(num_agents=num_agents), 5, devices), Job(kind(), 5, devices))
    name, kind = next(iter(kinds.items()))
    reference = Job(kind(), 5, devices)
    for num_envs in (64, 1024):
        row(name, f"{num_envs} envs", Job(kind(num_envs=num_envs), 5, devices), reference)
    for teams in (1, 25):
        row(name, f"{teams} teams", Job(kind(), teams, devices), reference)
    for number in range(1, devices):
        row(name, f"{number} device", Job(kind(), 5, number), reference)


AUTHORS = {"iql": 455, "vdn": 455, "qmix": 410, "ippo": 870, "mappo": 910}
"""Environment steps per second of the authors' PyTorch code, measured on 2 cores of such a machine."""


def algorithms(devices: int) -> None:
    """Self-play on predator-prey. The preset 'paper' does the paper's work: as many updates on as many episodes;
    'released' that of the authors' PPO, which does not train through time."""
    print(f"\nWhole training in self-play, {devices} devices\n")
    print("| algorithm | preset | env steps/s: best | median | the authors' code | ratio: best | median |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for name, authors in AUTHORS.items():
        for preset in ("paper", "released", "tuned") if name in ("ippo", "mappo") else ("paper", "tuned"):
            job = Job(run_config("mpe-pp", name, cast(Preset, preset)), 0, devices)
            rates = job.rates(repetitions=ceil(75_000 / job.steps))
            best, median = max(rates), float(np.median(rates))
            row = f"{best:,.0f} | {median:,.0f} | {authors} | {best / authors:.1f} | {median / authors:.1f}"
            print(f"| {name} | {preset} | {row} |", flush=True)


def battles(devices: int) -> None:
    """The methods for strangers on the SMAC maps, beside five teams. Agents that are dead cost little, so that updates
    differ: the number is that of many updates, over several episodes, not of the best one."""
    print(f"\nWhole training on the SMAC maps, 5 teams, {devices} devices\n")
    print("| map | algorithm | preset | env steps/s |\n|---|---|---|---:|")
    for name in ("5v6", "8v9", "10v11", "3s5z"):
        for algorithm in ("poam", "ippo-naht"):
            for preset in ("tuned", "paper") if name == "5v6" else ("tuned",):
                rates = np.array(Job(run_config(name, algorithm, cast(Preset, preset)), 5, devices).rates(15))
                print(f"| {name} | {algorithm} | {preset} | {len(rates) / (1 / rates).sum():,.0f} |", flush=True)


def memory(devices: int) -> None:
    """Peak memory of training a few updates, with compilation and, the second time, from the cache."""
    command = [sys.executable, __file__, "memory-child", "--devices", str(devices)]
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache}
        for how in ("compiling", "from the compilation cache"):
            peak = subprocess.check_output(command, text=True, env=environment).strip()
            print(f"Peak memory of whole POAM training, {how}: {peak}", flush=True)


def memory_child(devices: int) -> None:
    Job(predator_prey(), 5, devices).whole(repetitions=2)
    # Linux; getrusage would count what the parent process had when it started this one.
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(f"{int(peak.split()[1]) / 1024:.0f} MiB")


def main() -> None:
    commands = {"parts": parts, "scaling": scaling, "algorithms": algorithms, "battles": battles}
    commands |= {"memory": memory, "memory-child": memory_child}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=[*commands, []], default=[], help="default: all but memory-child")
    parser.add_argument("--devices", type=int, default=jax.device_count(), help="default: all")
    chosen = parser.parse_args()
    for name in chosen.what or ["parts", "scaling", "algorithms", "battles", "memory"]:
        commands[name](chosen.devices)


if __name__ == "__main__":
    main()
