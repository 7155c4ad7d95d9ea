"""Episode rows summarised, and on disk as CSV that any tool reads."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path

from naht.evaluation.play import EpisodeRow
from naht.evaluation.statistics import Interval, group_means, mean_interval, stratified_interval
from naht.storage import write_file

RETURN = "return"
"""Returns, among the metrics of episodes."""
WON = "battle_won"
"""The metric of tasks that are won or lost."""


def episode_return(row: EpisodeRow) -> float:
    return row.episode_return


def win(row: EpisodeRow) -> float:
    """1 if the episode was won, else 0."""
    return row.metrics[WON]


def strangers(row: EpisodeRow) -> tuple[str, ...]:
    """The uncontrolled members of the team, whatever their seats."""
    return tuple(sorted({name for name in row.seats if not name.startswith("*")}))


def by_count(rows: Sequence[EpisodeRow]) -> list[tuple[str, list[EpisodeRow]]]:
    """(N, its rows) for every N, and all rows under "all"."""
    counts = sorted({row.num_controlled for row in rows})
    return [*[(str(n), [row for row in rows if row.num_controlled == n]) for n in counts], ("all", list(rows))]


def summarise(
    rows: Sequence[EpisodeRow], value: Callable[[EpisodeRow], float] = episode_return
) -> list[tuple[str, Interval, int]]:
    """(N, mean return or other value with its interval, episodes) for every N and for "all", the M-N score.

    Trials are the unit of replication. With a single trial the interval is over its episodes instead, whose numbers per
    N and teammate were fixed beforehand.
    """
    single = len({row.trial for row in rows}) == 1
    table = []
    for label, part in by_count(rows):
        if single:
            strata: dict[Hashable, list[float]] = {}
            for row in part:
                strata.setdefault((row.num_controlled, strangers(row)), []).append(value(row))
            interval = stratified_interval(list(strata.values()))
        else:
            interval = mean_interval(list(group_means(part, lambda row: row.trial, value).values()))
        table.append((label, interval, len(part)))
    return table


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A CSV file."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows(rows)
    write_file(path, text.getvalue().encode())


def write_intervals(path: Path, columns: Sequence[str], rows: Sequence[tuple[str, str, Interval]]) -> None:
    """One line per estimate: what it is of, its mean and its 95 % interval over `count` trials."""
    lines = ((*labels, i.mean, i.low, i.high, i.count) for *labels, i in rows)
    write_table(path, [*columns, "mean", "low", "high", "count"], lines)


def write_rows(path: Path, rows: Sequence[EpisodeRow]) -> None:
    """One line per episode."""
    metrics = sorted({name for row in rows for name in row.metrics})
    columns = ["trial", "task", "num_controlled", "seed", "episode", "seats", "return", "length", *metrics]
    lines = (
        [r.trial, r.task, r.num_controlled, r.seed, r.episode, " ".join(r.seats), r.episode_return, r.length]
        + [r.metrics.get(name, "") for name in metrics]
        for r in rows
    )
    write_table(path, columns, lines)
