"""Learning curves of runs: greedy tests over steps and over wall-clock, mean and band over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from naht.agents.saved import load_agent
from naht.errors import NahtError
from naht.evaluation.tables import WON
from naht.report.figures import Curve, learning_curves
from naht.tasks import TASKS
from naht.training.folder import is_finished, is_run, read_config, read_metrics

AXES = {
    "over_time.png": ("seconds", 60.0, "minutes (compilation and tests included)"),
    "over_steps.png": ("steps", 1e6, "million environment steps"),
}
"""By file: what is on the horizontal axis, in which unit, and what is written there."""


@dataclass(frozen=True)
class GreedyTests:
    """Greedy tests of one run, one entry each."""

    steps: np.ndarray
    seconds: np.ndarray
    returns: np.ndarray
    won: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """Shares of episodes won; empty for tasks that are not won or lost."""
    measured: dict[str, float] = field(default_factory=dict)
    """The best agent in fresh episodes, from its card; empty before the run has ended."""

    def first_above(self, target: float) -> tuple[float, float] | None:
        """Steps and seconds of the first test above a return; None if there is none."""
        passed = np.flatnonzero(self.returns > target)
        return (float(self.steps[passed[0]]), float(self.seconds[passed[0]])) if len(passed) else None


def read_tests(folder: Path) -> GreedyTests:
    """The tests of a run, finished or not; none if it has hardly begun."""
    begun = (folder / "metrics.jsonl").is_file()
    rows = [row for row in (read_metrics(folder) if begun else []) if {"test/return", "seconds"} <= set(row)]
    names = ("step", "seconds", "test/return", f"test/{WON}")
    measured = load_agent(folder).card.get("measured", {}) if is_finished(folder) else {}
    steps, seconds, returns, won = (np.array([row[name] for row in rows if name in row]) for name in names)
    return GreedyTests(steps, seconds, returns, won, measured)


def find_tests(folders: Sequence[Path]) -> dict[str, dict[str, list[GreedyTests]]]:
    """The tests of all runs in these folders and below, by task (in the order of `naht list tasks`) and method.

    A method is an algorithm; if several folders have runs of one, all names say which.
    """
    found: dict[tuple[str, str, Path], list[GreedyTests]] = {}
    for folder in folders:
        runs = [path.parent for path in sorted(folder.rglob("config.json")) if is_run(path.parent)]
        for run in runs:
            tests, config = read_tests(run), read_config(run)
            if len(tests.steps):
                found.setdefault((config.task.spec.name, config.algorithm_name, folder), []).append(tests)
        if not runs:
            raise NahtError(f"there are no runs in {folder}")
    one_each = len({(task, algorithm) for task, algorithm, _ in found}) == len(found)
    result: dict[str, dict[str, list[GreedyTests]]] = {}
    for (task, algorithm, folder), trials in found.items():
        name = algorithm if one_each else f"{algorithm}, {folder}"
        result.setdefault(task, {})[name] = trials
    order = {task: place for place, task in enumerate(TASKS)}
    return {task: result[task] for task in sorted(result, key=lambda task: order.get(task, len(order)))}


def plot_tests(
    out: Path,
    tests: Mapping[str, Mapping[str, Sequence[GreedyTests]]],
    lines: Mapping[str, Mapping[str, float]] | None = None,
) -> list[Path]:
    """`tests[task][method]` holds a run per seed. Writes the files of `AXES` to a folder and returns them; for battles
    also those of their win rates, `wins_over_steps.png` and `wins_over_time.png`.

    `lines[task]` are named levels of return to compare with.
    """
    battles = {
        task: methods
        for task, methods in tests.items()
        if all(len(t.won) for trials in methods.values() for t in trials)
    }
    paths = []
    for file, (axis, unit, label) in AXES.items():
        drawn = [(file, tests, "returns", "greedy test return", lines or {})]
        drawn += [(f"wins_{file}", battles, "won", "greedy test win rate", {})] if battles else []
        for name, shown, values, y_label, levels in drawn:
            panels = {
                task: {method: _on_one_grid(trials, axis, unit, values) for method, trials in methods.items()}
                for task, methods in shown.items()
            }
            learning_curves(out / name, panels, x_label=label, y_label=y_label, lines=levels)
            paths.append(out / name)
    return paths


def _on_one_grid(trials: Sequence[GreedyTests], axis: str, unit: float, shown: str) -> list[Curve]:
    """Curves of all seeds at the same places, as far as all of them got."""
    places = [np.asarray(getattr(t, axis), float) for t in trials]
    grid = np.linspace(max(p[0] for p in places), min(p[-1] for p in places), 40)
    values = [np.interp(grid, p, getattr(t, shown)) for p, t in zip(places, trials, strict=True)]
    return [list(zip((grid / unit).tolist(), v.tolist(), strict=True)) for v in values]
