"""Recorded episodes as a page shows them: where everything was, what happened, and what an agent believed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from naht.agents.saved import Agent
from naht.config import parse_json
from naht.envs.base import Environment
from naht.envs.predator_prey import OBSTACLE_RADIUS, PREDATOR_RADIUS, PREY_RADIUS, PredatorPrey
from naht.errors import NahtError, require
from naht.evaluation.modelling import beliefs
from naht.report.content import Beliefs, Episode, as_json
from naht.report.drawings import touching
from naht.report.recording import Replay, record
from naht.storage import write_file
from naht.teams.population import Member, Population


def _predator_prey(replay: Replay) -> dict[str, Any]:
    """The world of predator-prey: predators, prey, obstacles."""
    position, m = replay.states.position, replay.env.spec.num_agents  # [T + 1, 2, E]
    things = position.shape[2]
    moving = position[:, :, : m + 1]
    low, high = np.minimum(moving.min((0, 2)) - 0.1, -1.05), np.maximum(moving.max((0, 2)) + 0.1, 1.05)
    caught = touching(position, m).sum(1) >= 2
    caught[0] = False
    begins = np.flatnonzero(caught & ~np.concatenate([[False], caught[:-1]]))
    return {
        "kinds": ("predator",) * m + ("prey",) + ("obstacle",) * (things - m - 1),
        "radii": (PREDATOR_RADIUS,) * m + (PREY_RADIUS,) + (OBSTACLE_RADIUS,) * (things - m - 1),
        "bounds": (float(low[0]), float(low[1]), float(high[0]), float(high[1])),
        "places": position.swapaxes(1, 2),
        "action_names": ("stay", "right", "left", "up", "down"),
        "events": tuple((int(t), "catch") for t in begins),
    }


def _place_in_predator_prey(obs: np.ndarray) -> np.ndarray:
    """Where a predator is by its own observation: [..., O] -> [..., 2]."""
    return obs[..., 2:4]


WORLDS: dict[type, tuple[Callable[[Replay], dict[str, Any]], Callable[[np.ndarray], np.ndarray] | None]] = {
    PredatorPrey: (_predator_prey, _place_in_predator_prey)
}
"""By environment: how its world is shown, and how an observation says where its owner is."""


def as_episode(replay: Replay, agent: Agent, *, method: str, strangers: str, label: str = "") -> Episode:
    """A replay in which `agent` sat in the controlled seats, with what it believed if it has a teammate model."""
    require(type(replay.env) in WORLDS, f"episodes of '{replay.env.spec.name}' can't be shown on a page yet")
    world, place = WORLDS[type(replay.env)]
    m, thoughts = replay.env.spec.num_agents, []
    if agent.decoders:
        seen, chances = beliefs(agent, replay.obs[:-1], replay.actions)
        for seat in np.flatnonzero(replay.controlled):
            others = tuple(k for k in range(m) if k != seat)
            where = place(seen[:, seat]) if place else None
            thoughts.append(Beliefs(int(seat), others, chances[:, seat], where))
    return Episode(
        task=replay.env.spec.name,
        method=method,
        strangers=strangers,
        label=label,
        episode_return=replay.episode_return,
        seats=replay.seats,
        controlled=tuple(bool(c) for c in replay.controlled),
        running_return=replay.running_return,
        actions=replay.actions,
        beliefs=tuple(thoughts),
        **world(replay),
    )


def change_of_mind(episode: Episode) -> float:
    """How much surer of what teammates do an agent is in the second half of an episode than at its beginning."""
    gains = []
    for belief in episode.beliefs:
        taken = np.asarray(episode.actions)[:, list(belief.teammates)]
        probability = np.take_along_axis(np.asarray(belief.chances), taken[..., None], -1)[..., 0].mean(-1)  # [T]
        quarter = max(1, len(probability) // 4)
        gains.append(probability[2 * quarter :].mean() - probability[:quarter].mean())
    return float(np.mean(gains)) if gains else 0.0


def worth_watching(
    env: Environment, agent: Agent, strangers: Population, *, method: str, episodes: int, seed: int
) -> list[Episode]:
    """The `picked` ones with each of the strangers, of about `episodes` that the agent plays with it."""
    ours = Population([Member(agent.name, agent.policy, agent.params)])
    with_whom: dict[str, list[Episode]] = {name: [] for name in strangers.roster.names}
    for replay in record(env, ours, strangers, episodes=episodes * len(strangers), seed=seed):
        who = replay.seats[int(replay.controlled.argmin())]
        with_whom[who].append(as_episode(replay, agent, method=method, strangers=who))
    return [episode for played in with_whom.values() for episode in picked(played)]


def picked(episodes: Sequence[Episode]) -> list[Episode]:
    """Of many, those worth watching: a typical one, the best, the worst, and one in which the model learns most."""
    if not episodes:
        return []
    order = sorted(range(len(episodes)), key=lambda i: episodes[i].episode_return)
    chosen = {"typical": order[len(order) // 2], "best": order[-1], "worst": order[0]}
    rest = [i for i in order if i not in chosen.values() and episodes[i].beliefs]
    if rest:
        chosen["changes its mind"] = max(rest, key=lambda i: change_of_mind(episodes[i]))
    return [Episode(**{**vars(episodes[i]), "label": label}) for label, i in chosen.items()]


def write_episodes(path: Path, episodes: Sequence[Episode]) -> None:
    """Episodes as compressed JSON, numbers to three digits after the point."""
    text = json.dumps([_rounded(as_json(episode)) for episode in episodes], separators=(",", ":"))
    write_file(path, gzip.compress(text.encode(), mtime=0))


def _rounded(data: Any) -> Any:
    if isinstance(data, float):
        return round(data, 3)
    if isinstance(data, list):
        return [_rounded(item) for item in data]
    return {k: _rounded(v) for k, v in data.items()} if isinstance(data, dict) else data


def read_episodes(path: Path) -> list[Episode]:
    """What `write_episodes` wrote; arrays are NumPy's again."""
    try:
        found = parse_json(gzip.decompress(path.read_bytes()), str(path))
    except OSError as e:
        raise NahtError(f"can't read {path}: {e}") from e
    return [_episode(data) for data in found]


def _episode(data: dict[str, Any]) -> Episode:
    thoughts = tuple(
        Beliefs(b["seat"], tuple(b["teammates"]), np.array(b["chances"]), _array(b["places"])) for b in data["beliefs"]
    )
    arrays = {name: _array(data[name]) for name in ("places", "running_return", "actions", "health")}
    lists = {name: tuple(data[name]) for name in ("seats", "controlled", "kinds", "radii", "bounds", "action_names")}
    events = tuple((int(t), str(what)) for t, what in data["events"])
    return Episode(**{**data, **arrays, **lists, "events": events, "beliefs": thoughts})


def _array(data: Any) -> np.ndarray | None:
    return None if data is None else np.array(data)
