"""Environment steps per second of JaxMARL's own loop and of the same environment as a task of ours.

    pip install 'naht[jaxmarl]'
    python benchmarks/jaxmarl_bridge.py

Both play the same number of worlds with allowed actions at random and begin ended episodes anew: JaxMARL by its `step`,
we by `reset` and `step` of the task. One core, the best of several repetitions, taken in turns in the same run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from naht.runtime import configure

configure()

import jax  # noqa: E402 (after configure)
import jax.numpy as jnp  # noqa: E402

from naht import from_jaxmarl  # noqa: E402
from naht.envs.conformance import random_actions  # noqa: E402
from random_play import random_play  # noqa: E402


def theirs(env: Any, masked: bool, worlds: int, steps: int) -> Callable[[], Any]:
    """JaxMARL's loop, with its masks where it has some."""
    counts = [env.action_space(agent).n for agent in env.agents]

    def allowed(state: Any) -> jax.Array:
        if not masked:
            return jnp.arange(max(counts)) < jnp.array(counts)[:, None]
        masks = env.get_avail_actions(state)
        return jnp.stack([masks[agent] for agent in env.agents]).astype(bool)

    @jax.jit
    def play(key: jax.Array) -> jax.Array:
        k_start, k_play = jax.random.split(key)
        _, start = jax.vmap(env.reset)(jax.random.split(k_start, worlds))

        def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            k_act, k_step = jax.random.split(key)
            actions = random_actions(k_act, jax.vmap(allowed)(state))  # [B, M]
            chosen = {agent: actions[:, i] for i, agent in enumerate(env.agents)}
            seen, state, rewards, _, _ = jax.vmap(env.step)(jax.random.split(k_step, worlds), state, chosen)
            return state, sum(seen[agent].sum(-1) + rewards[agent] for agent in env.agents)

        return jax.lax.scan(step, start, jax.random.split(k_play, steps))[1]

    return lambda: jax.block_until_ready(play(jax.random.key(0)))


def measure(plays: dict[str, Callable[[], Any]], moves: int, repetitions: int) -> dict[str, float]:
    """Steps per second by name, of all worlds together; what is compared takes turns."""
    best = dict.fromkeys(plays, float("inf"))
    for play in plays.values():
        play()  # compiles
    for _ in range(repetitions):
        for name, play in plays.items():
            start = time.process_time()
            play()
            best[name] = min(best[name], time.process_time() - start)
    return {name: moves / seconds for name, seconds in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=128)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    import jaxmarl
    from jaxmarl.environments.smax import map_name_to_scenario

    envs = {
        "spread": (jaxmarl.make("MPE_simple_spread_v3"), False),
        "smax-3m": (jaxmarl.make("HeuristicEnemySMAX", scenario=map_name_to_scenario("3m")), True),
    }
    for name, (env, masked) in envs.items():
        sizes = args.worlds, args.steps
        plays = {"JaxMARL": theirs(env, masked, *sizes), "naht": random_play(from_jaxmarl(env, name=name), *sizes)}
        speed = measure(plays, args.worlds * args.steps, args.repetitions)
        ratio = speed["naht"] / speed["JaxMARL"]
        told = ", ".join(f"{who} {value:,.0f}" for who, value in speed.items())
        print(f"{name}: {told} steps per second of processor time, ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
