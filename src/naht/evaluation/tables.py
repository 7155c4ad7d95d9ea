"""Episode rows summarised, and on disk as CSV that any tool reads."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from naht.evaluation.play import EpisodeRow
from naht.evaluation.statistics import Interval, group_means, mean_interval
from naht.storage import write_file


def _return(row: EpisodeRow) -> float:
    return row.episode_return


def summarise(
    rows: Sequence[EpisodeRow], value: Callable[[EpisodeRow], float] = _return
) -> list[tuple[str, Interval, int]]:
    """(N, mean return or other value with its interval, episodes) for every N and for "all", the M-N score.

    Trials are the unit of replication. With a single trial the interval is over its episodes instead.
    """
    counts = sorted({row.num_controlled for row in rows})
    single = len({row.trial for row in rows}) == 1
    table = []
    for label, chosen in [*[(str(n), {n}) for n in counts], ("all", set(counts))]:
        part = [row for row in rows if row.num_controlled in chosen]
        means = group_means(part, lambda r: (r.episode, r.num_controlled) if single else r.trial, value)
        table.append((label, mean_interval(list(means.values())), len(part)))
    return table


def write_intervals(path: Path, columns: Sequence[str], rows: Sequence[tuple[str, str, Interval]]) -> None:
    """One line per estimate: what it is of, its mean and its 95 % interval over `count` trials."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*columns, "mean", "low", "high", "count"])
    table.writerows([*labels, i.mean, i.low, i.high, i.count] for *labels, i in rows)
    write_file(path, text.getvalue().encode())


def write_rows(path: Path, rows: Sequence[EpisodeRow]) -> None:
    """One line per episode."""
    metrics = sorted({name for row in rows for name in row.metrics})
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    columns = ["trial", "task", "num_controlled", "seed", "episode", "seats", "return", "length"]
    table.writerow([*columns, *metrics])
    for r in rows:
        facts = [r.trial, r.task, r.num_controlled, r.seed, r.episode, " ".join(r.seats), r.episode_return, r.length]
        table.writerow([*facts, *[r.metrics.get(name, "") for name in metrics]])
    write_file(path, text.getvalue().encode())
