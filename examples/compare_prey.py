"""How well do preys flee? Teams of three predators of one kind chase each of them.

    python examples/compare_prey.py --preys naht OTHER.pt --predators random chaser pincer runs/mpe-pp/ippo/seed0

Predators are scripted bots or saved agents. Prints mean returns with 95 % intervals over episodes, and catches per
episode; lower is better for the prey.
"""

from __future__ import annotations

import argparse

import naht

naht.configure()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preys", nargs="+", default=["naht"])
    parser.add_argument("--predators", nargs="+", default=["random", "chaser", "interceptor", "pincer", "ambush"])
    parser.add_argument("--episodes", type=int, default=1024)
    chosen = parser.parse_args()
    print("| predators | " + " | ".join(chosen.preys) + " |\n|---|" + "---:|" * len(chosen.preys))
    for name in chosen.predators:
        cells = []
        for prey in chosen.preys:
            env = naht.make_env("mpe-pp", prey=prey)
            predators = naht.Population(naht.load_members([name], env.spec))
            sampler = naht.team_sampler(env.spec.num_agents, 1, 0, num_controlled_members=0)
            rows = naht.evaluate_sampler(env, sampler, naht.Population([]), predators, episodes=chosen.episodes, seed=0)
            returns = naht.mean_interval([row.episode_return for row in rows])
            catches = sum(row.metrics["catches"] for row in rows) / len(rows)
            cells.append(f"{returns.mean:.2f} ± {returns.half_width:.2f} ({catches:.1f})")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
