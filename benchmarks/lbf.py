"""Level-based foraging: environment steps per second beside lbforaging, and what the scripted foragers earn.

    python benchmarks/lbf.py speed     both, with random actions; episodes that end begin anew
    python benchmarks/lbf.py bots      teams of one bot, and one bot of each kind with two of another

Both speeds are of one core and the best of several repetitions, taken in turns in the same run. lbforaging comes with
the development dependencies.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from naht.runtime import configure

configure()

import numpy as np  # noqa: E402

from lbforaging_game import lbforaging  # noqa: E402
from naht import Member, Population, evaluate_mn  # noqa: E402
from naht.agents.scripted import BOTS, make_bot  # noqa: E402
from naht.envs.lbf import NUM_ACTIONS, Lbf  # noqa: E402
from random_play import random_play  # noqa: E402

FIELDS = {
    "8x8-3p-3f": Lbf(),
    "2s-8x8-3p-3f": Lbf(sight=2),
    "8x8-3p-3f-coop": Lbf(coop=True),
    "15x15-4p-5f": Lbf(4, 5, rows=15),
}
WORLDS, STEPS, THEIR_STEPS, EPISODES = 1024, 100, 2000, 256


def theirs(env: Lbf) -> Callable[[], Any]:
    """Plays lbforaging for `THEIR_STEPS` steps, with any actions at random."""
    game = lbforaging(env)
    actions = np.random.default_rng(0).integers(0, NUM_ACTIONS, (THEIR_STEPS, env.num_agents)).tolist()

    def play() -> None:
        game.reset(seed=0)
        for action in actions:
            if game.step(action)[2]:
                game.reset()

    return play


def seconds(f: Callable[[], Any]) -> float:
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def speed(repetitions: int = 7) -> None:
    print("| field | naht, steps/s | lbforaging, steps/s | ratio |\n|---|---:|---:|---:|")
    for name, env in FIELDS.items():
        players = (random_play(env, WORLDS, STEPS), WORLDS * STEPS), (theirs(env), THEIR_STEPS)
        for play, _ in players:
            play()  # compiles
        rates = np.array([[steps / seconds(play) for play, steps in players] for _ in range(repetitions)]).max(0)
        print(f"| {name} | {rates[0]:,.0f} | {rates[1]:,.0f} | {rates[0] / rates[1]:,.0f} |", flush=True)


def meetings(env: Lbf) -> dict[tuple[str, str], list[float]]:
    """Returns of one of every bot (first) with others of every kind (second) in all other seats."""
    everybody = Population([Member(name, make_bot(name, env.spec)) for name in BOTS["lbf"]])
    found: dict[tuple[str, str], list[float]] = {(one, rest): [] for one in BOTS["lbf"] for rest in BOTS["lbf"]}
    for row in evaluate_mn(env, everybody, everybody, num_controlled=(1,), episodes=EPISODES * len(found)):
        (one,) = (name[1:] for name in row.seats if name.startswith("*"))
        rest = next(name for name in row.seats if not name.startswith("*"))
        found[one, rest].append(row.episode_return)
    return found


def bots() -> None:
    names = list(BOTS["lbf"])
    found = {field: meetings(env) for field, env in FIELDS.items()}
    fewest = min(len(returns) for table in found.values() for returns in table.values())
    print(f"Mean return of teams of one bot, at least {fewest} episodes each\n")
    print(f"| field | {' | '.join(names)} |\n|---|{'---:|' * len(names)}")
    for field, table in found.items():
        print(f"| {field} |", *(f"{np.mean(table[name, name]):.2f} |" for name in names))
    print("\nOne (rows) with two of another (columns), 8x8-3p-3f, likewise\n")
    print(f"| | {' | '.join(names)} |\n|---|{'---:|' * len(names)}")
    for one in names:
        print(f"| {one} |", *(f"{np.mean(found['8x8-3p-3f'][one, rest]):.2f} |" for rest in names))


def main() -> None:
    commands = {"speed": speed, "bots": bots}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=[*commands, []], default=[], help="default: both")
    for name in parser.parse_args().what or commands:
        commands[name]()


if __name__ == "__main__":
    main()
