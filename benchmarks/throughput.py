"""Environment steps per second of every part of a run, on the bit game.

    make bench

Each part is timed in the same process, best of several repetitions, after compilation; one environment step moves the
whole team once. The baseline of all ratios is whole POAM training with the tuned settings. One process, one thread: on
a machine with several cores, seeds run side by side.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from naht.runtime import configure

configure()

import jax  # noqa: E402 (after configure)
import jax.numpy as jnp  # noqa: E402

from naht import run_config  # noqa: E402
from naht.envs.conformance import random_actions  # noqa: E402
from naht.training.run import make_trainer  # noqa: E402


def seconds(f: Callable[[], Any], repetitions: int) -> float:
    """Best time of one call, in seconds, after a first call that compiles."""
    jax.block_until_ready(f())
    best = float("inf")
    for _ in range(repetitions):
        start = time.perf_counter()
        jax.block_until_ready(f())
        best = min(best, time.perf_counter() - start)
    return best


@dataclass(frozen=True)
class Bench:
    """One algorithm's parts, each as a call that does the work of `steps` environment steps."""

    algorithm: str
    repetitions: int

    def rows(self) -> list[tuple[str, float]]:
        config = run_config("bit-game", self.algorithm)
        trainer, uncontrolled = make_trainer(config)
        learner, params = trainer.learner, uncontrolled.params
        state = trainer.init(jax.random.key(0))
        arena = trainer.arena(test=False)
        key, steps = jax.random.key(1), learner.num_envs * learner.rollout_steps
        play = jax.jit(
            lambda s: arena.play(trainer.acting_params(s.learner), params, s.arena, key, learner.rollout_steps)
        )
        _, trajectory = play(state)
        update = jax.jit(lambda s: learner.update(s.learner, trajectory, key, jnp.zeros(())))
        parts = {
            "rollout": lambda: play(state),
            "update": lambda: update(state),
            "whole training": lambda: trainer.step(state, params),
        }
        return [(name, steps / seconds(part, self.repetitions)) for name, part in parts.items()]


def environment_alone(repetitions: int, num_envs: int = 1024) -> float:
    """Random actions in many environments side by side."""
    env = run_config("bit-game", "poam").task

    def step(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        state, avail = carry
        state, ts = jax.vmap(env.step)(jax.random.split(key, num_envs), state, random_actions(key, avail))
        return (state, ts.avail), ts.reward

    @jax.jit
    def episode(key: jax.Array) -> Any:
        state, ts = jax.vmap(env.reset)(jax.random.split(key, num_envs))
        return jax.lax.scan(step, (state, ts.avail), jax.random.split(key, env.spec.horizon))

    return num_envs * env.spec.horizon / seconds(lambda: episode(jax.random.key(0)), repetitions)


def wide_rollout(repetitions: int, num_envs: int = 1024) -> float:
    """The rollout with many environments, where the network's matrices are large enough to be efficient."""
    config = run_config("bit-game", "poam")
    config = replace(config, algorithm=replace(config.algorithm, num_envs=num_envs))
    trainer, uncontrolled = make_trainer(config)
    state, steps = trainer.init(jax.random.key(0)), trainer.learner.rollout_steps
    arena = trainer.arena(test=False)
    play = jax.jit(
        lambda s: arena.play(trainer.acting_params(s.learner), uncontrolled.params, s.arena, jax.random.key(1), steps)
    )
    return num_envs * steps / seconds(lambda: play(state), repetitions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=20, help="timed calls per part; the best counts")
    repetitions = parser.parse_args().repetitions
    rows = [("environment alone, 1024 envs, random actions", environment_alone(repetitions))]
    rows.append(("rollout (POAM, 1024 envs)", wide_rollout(max(3, repetitions // 4))))
    for algorithm in ("poam", "ippo-naht", "poam-aht"):
        rows += [(f"{part} ({algorithm}, 16 envs)", rate) for part, rate in Bench(algorithm, repetitions).rows()]
    baseline = next(rate for name, rate in rows if name.startswith("whole training (poam,"))
    print("| part | env steps/s | relative to whole POAM training |\n|---|---:|---:|")
    for name, rate in rows:
        print(f"| {name} | {rate:,.0f} | {rate / baseline:.2f} |")


if __name__ == "__main__":
    main()
