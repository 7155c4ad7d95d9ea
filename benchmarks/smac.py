"""The SMAC-rules simulator beside JaxMARL's SMAX, in the same run: environment steps per second with random actions.

    pip install jaxmarl                (or: pip install -e ".[jaxmarl]")
    python benchmarks/smac.py          all four maps, 256 worlds

Both play whole steps (observations, global state, masks, restarts of ended episodes) on every core, choose among the
allowed actions in the same way, and take turns; each number is the best of several repetitions after compilation. SMAX
has no 8m_vs_9m of its own: its scenario is made from the same units. Without JaxMARL only our numbers are shown.
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
from jax.sharding import PartitionSpec  # noqa: E402

from naht import make_env  # noqa: E402
from naht.devices import AXIS, SHARED, own_key, place, spread  # noqa: E402
from naht.envs.conformance import random_actions  # noqa: E402
from naht.envs.smac.maps import MAPS  # noqa: E402
from naht.rollout import where  # noqa: E402

STEPS, REPETITIONS = 64, 7
World = tuple[Callable[..., Any], Callable[..., Any]]
"""(reset, step): key -> (state, masks) and (key, state, masks) -> (state, masks, something that depends on all)."""


def ours(name: str) -> World:
    env = make_env(name)

    def reset(key: jax.Array) -> Any:
        state, ts = env.reset(key)
        return state, ts.avail

    def step(keys: jax.Array, state: Any, avail: jax.Array) -> Any:
        """A batch of worlds."""
        k_act, k_step = jax.vmap(jax.random.split, out_axes=1)(keys)
        state, ts = jax.vmap(env.step)(k_step, state, jax.vmap(random_actions)(k_act, avail))
        fresh, first = jax.vmap(env.reset)(k_step)
        over = ts.terminated | ts.truncated
        seen = ts.reward + ts.obs.sum((1, 2)) + ts.global_state.sum(1)
        return *where(over, (fresh, first.avail), (state, ts.avail)), seen

    return reset, step


def smax(name: str) -> World:
    from jaxmarl import make
    from jaxmarl.environments.smax import map_name_to_scenario, register_scenario
    from jaxmarl.environments.smax.smax_env import MAP_NAME_TO_SCENARIO, Scenario

    smac_name = MAPS[name].smac_name
    if smac_name not in MAP_NAME_TO_SCENARIO:
        m = MAPS[name]
        units = jnp.zeros(m.allies + m.enemies, jnp.uint8)  # type 0: marines
        register_scenario(smac_name, Scenario(units, m.allies, m.enemies, False, False))
    env = make("HeuristicEnemySMAX", scenario=map_name_to_scenario(smac_name))

    def masks(state: Any) -> jax.Array:
        avail = env.get_avail_actions(state)
        return jnp.stack([avail[agent] for agent in env.agents])

    def reset(key: jax.Array) -> Any:
        _, state = env.reset(key)
        return state, masks(state)

    def one(key: jax.Array, state: Any, avail: jax.Array) -> Any:
        k_act, k_step = jax.random.split(key)
        chosen = random_actions(k_act, avail > 0)
        actions = {agent: chosen[i] for i, agent in enumerate(env.agents)}
        obs, state, reward, _, _ = env.step(k_step, state, actions)
        return state, masks(state), sum(o.sum() for o in obs.values()) + reward[env.agents[0]]

    return reset, jax.vmap(one)


def program(world: World, num_envs: int, devices: int) -> Callable[[], Any]:
    """A call that plays STEPS in every world, compiled."""
    reset, step = world
    share = num_envs // devices

    def play(key: jax.Array) -> jax.Array:
        k_reset, k_play = jax.random.split(own_key(key, devices))
        start = jax.vmap(reset)(jax.random.split(k_reset, share))

        def body(carry: Any, key: jax.Array) -> Any:
            state, avail, seen = step(jax.random.split(key, share), *carry)
            return (state, avail), seen

        return jax.lax.scan(body, start, jax.random.split(k_play, STEPS))[1]

    key = place(jax.random.key(0), devices, SHARED)
    compiled = jax.jit(spread(play, devices, SHARED, PartitionSpec(None, AXIS))).lower(key).compile()
    return lambda: jax.block_until_ready(compiled(key))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--maps", nargs="+", default=["5v6", "8v9", "10v11", "3s5z"], choices=list(MAPS))
    parser.add_argument("--envs", type=int, default=256)
    parser.add_argument("--devices", type=int, default=jax.device_count())
    chosen = parser.parse_args()
    try:
        import jaxmarl  # noqa: F401

        makers = {"ours": ours, "smax": smax}
    except ImportError:
        makers = {"ours": ours}
    print(f"{chosen.envs} worlds, {chosen.devices} devices, env steps/s (seconds to compile)\n")
    print("| map | " + " | ".join(makers) + " | ratio |\n|---|" + "---:|" * (len(makers) + 1))
    for name in chosen.maps:
        calls, compile_seconds = {}, {}
        for who, maker in makers.items():
            began = time.perf_counter()
            calls[who] = program(maker(name), chosen.envs, chosen.devices)
            compile_seconds[who] = time.perf_counter() - began
            calls[who]()
        best = dict.fromkeys(calls, float("inf"))
        for _ in range(REPETITIONS):
            for who, call in calls.items():
                began = time.perf_counter()
                call()
                best[who] = min(best[who], time.perf_counter() - began)
        rates = {who: chosen.envs * STEPS / taken for who, taken in best.items()}
        cells = [f"{rates[who]:,.0f} ({compile_seconds[who]:.0f} s)" for who in makers]
        ratio = f"{rates['ours'] / rates['smax']:.1f}" if "smax" in rates else ""
        print(f"| {name} | {' | '.join(cells)} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
