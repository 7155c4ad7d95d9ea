"""Recorded episodes as a page shows them: where everything was, what happened, and what an agent believed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from naht.agents.saved import Agent
from naht.config import parse_json
from naht.envs.base import Environment
from naht.errors import NahtError, require
from naht.evaluation.modelling import beliefs
from naht.report.content import Beliefs, Episode, as_json
from naht.report.recording import Replay, record
from naht.report.worlds import WORLDS
from naht.storage import write_file
from naht.teams.population import Member, Population


def as_episode(replay: Replay, agent: Agent, *, method: str, strangers: str, label: str = "") -> Episode:
    """A replay in which `agent` sat in the controlled seats, with what it believed if it has a teammate model."""
    require(type(replay.env) in WORLDS, f"episodes of '{replay.env.spec.name}' can't be shown on a page yet")
    shown = WORLDS[type(replay.env)].show(replay)
    m = replay.env.spec.num_agents
    alive = shown["health"][:-1, :m] > 0 if "health" in shown else np.ones((replay.length, m), bool)
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
        beliefs=_thoughts(replay, agent, alive) if agent.decoders else (),
        **shown,
    )


def _thoughts(replay: Replay, agent: Agent, alive: np.ndarray) -> tuple[Beliefs, ...]:
    """Of every seat of the agent's, while it and the teammate live, alive [T, M]: models learn nothing of the dead."""
    believed, thoughts = WORLDS[type(replay.env)].believed, []
    seen, chances = beliefs(agent, replay.obs[:-1], replay.actions)
    for seat in np.flatnonzero(replay.controlled).tolist():
        others = [k for k in range(alive.shape[1]) if k != seat]
        asked = (alive[:, [seat]] & alive[:, others])[..., None]  # [T, K, 1]
        where = None if believed is None else np.where(asked, believed(replay, seat, seen[:, seat]), np.nan)
        thoughts.append(Beliefs(seat, tuple(others), np.where(asked, chances[:, seat], np.nan), where))
    return tuple(thoughts)


def change_of_mind(episode: Episode) -> float:
    """How much surer of what teammates do an agent is in the second half of an episode than at its beginning."""
    gains = []
    for belief in episode.beliefs:
        taken = np.asarray(episode.actions)[:, list(belief.teammates)]
        probability = np.take_along_axis(np.asarray(belief.chances), taken[..., None], -1)[..., 0]  # [T, K]
        probability = probability[~np.isnan(probability).all(-1)]  # nobody to think of, or nobody who thinks
        quarter = max(1, len(probability) // 4)
        late, early = probability[2 * quarter :], probability[:quarter]
        if late.size and early.size:
            gains.append(np.nanmean(late) - np.nanmean(early))
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


ARRAYS = ("places", "running_return", "actions", "health", "shield", "aims", "fired")
LISTS = ("seats", "controlled", "kinds", "radii", "bounds", "action_names", "units", "ground", "levels")


def _episode(data: dict[str, Any]) -> Episode:
    thoughts = tuple(
        Beliefs(b["seat"], tuple(b["teammates"]), _array(b["chances"]), _array(b["places"])) for b in data["beliefs"]
    )
    # What files of earlier versions do not have is as if nobody had it.
    arrays = {name: _array(data.get(name)) for name in ARRAYS}
    lists = {name: tuple(data[name]) for name in LISTS if data.get(name) is not None}
    events = tuple((int(t), str(what)) for t, what in data["events"])
    return Episode(**{**data, **arrays, **lists, "events": events, "beliefs": thoughts})


def _array(data: Any) -> np.ndarray | None:
    """None in it becomes NaN."""
    array = None if data is None else np.array(data)
    return array.astype(float) if array is not None and array.dtype == object else array
