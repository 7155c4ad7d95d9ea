"""What the teammate model and the team embedding know."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from naht.evaluation.embeddings import ENOUGH
from naht.evaluation.statistics import mean_interval
from naht.report.content import Cell, Figure, Finding, Level, Mark, Panel, Series, Table
from naht.study.book import (
    Book,
    above_zero,
    algorithm_of,
    higher,
    mark,
)
from naht.study.findings.common import (
    made,
    paper_number,
)


def _lasting(rows: Sequence[dict]) -> int:
    """Steps of an episode that enough pairs of agents live to see, where episodes end early."""
    pairs: dict[int, int] = {}
    for r in rows:
        pairs[r["t"]] = pairs.get(r["t"], 0) + r["pairs"]
    few = [t for t in sorted(pairs) if pairs[t] < ENOUGH * pairs[0]]
    return few[0] if few else len(pairs)


def modelling(book: Book) -> Finding:
    """Do predictions improve?"""
    seeds = [book.rows(book.plan.predicting(s)) for s in book.seeds]
    steps = sorted({row["step"] for row in seeds[0]})
    kinds = ("controlled", "uncontrolled")

    horizon = min(_lasting([r for r in rows if r["step"] == step]) for rows in seeds for step in steps)

    def by_time(rows: Sequence[dict], step: int, value: str, kind: str | None = None) -> np.ndarray:
        """[T]: mean per pair."""
        total, pairs = np.zeros(horizon), np.zeros(horizon)
        for r in rows:
            if r["step"] == step and r["t"] < horizon and (kind is None or r["kind"] == kind):
                total[r["t"]] += r[value]
                pairs[r["t"]] += r["pairs"]
        return total / np.maximum(pairs, 1)

    values = {"squared_error": "squared error of observations", "probability": "probability of the real actions"}
    panels = []
    for value, title in values.items():
        series = []
        for i, step in enumerate(steps):
            found = np.array([by_time(rows, step, value) for rows in seeds])  # [seeds, T]
            marks = tuple(Mark(float(t + 1), float(found[:, t].mean())) for t in range(found.shape[1]))
            name = f"after {step / 1e6:.2g}M steps"
            series.append(Series(name, marks, "poam", (i + 1) / len(steps)))
        panels.append(Panel(title, tuple(series)))
    apart = []
    for value, title in values.items():
        series = []
        for kind in kinds:
            found = np.array([by_time(rows, steps[-1], value, kind) for rows in seeds])
            marks = tuple(Mark(float(t + 1), float(found[:, t].mean())) for t in range(found.shape[1]))
            series.append(Series(f"{kind} teammates", marks, kind))
        apart.append(Panel(title, tuple(series)))

    def mean(rows: Sequence[dict], step: int, value: str, part: slice, kind: str | None = None) -> float:
        return float(by_time(rows, step, value, kind)[part].mean())

    early, late, whole = slice(0, max(1, horizon // 10)), slice(horizon - horizon // 4, None), slice(None)
    last = steps[-1]
    verdicts = []
    for value, sign, what in (("squared_error", -1, "observations"), ("probability", 1, "actions")):
        over_training = [sign * (mean(r, last, value, whole) - mean(r, steps[0], value, whole)) for r in seeds]
        within = [sign * (mean(r, last, value, late) - mean(r, last, value, early)) for r in seeds]
        by_kind = [
            sign * (mean(r, last, value, whole, "uncontrolled") - mean(r, last, value, whole, "controlled"))
            for r in seeds
        ]
        verdicts += [
            above_zero(f"Predictions of {what} improve over training", over_training, question="Q3"),
            above_zero(f"Predictions of {what} improve within an episode", within, question="Q3"),
            above_zero(f"{what.capitalize()} of uncontrolled teammates are predicted better", by_kind, question="Q3"),
        ]
    ends = {v: [mean([*r], last, v, late) for r in seeds] for v in values}
    starts = {v: [mean([*r], last, v, early) for r in seeds] for v in values}
    rows: list[tuple[Cell, ...]] = []
    for value, title in values.items():
        short = "mse" if value == "squared_error" else "probability"
        rows.append((
            title,
            mean_interval(starts[value]), paper_number(book, "modelling", "poam", f"{short}/start"),
            mean_interval(ends[value]), paper_number(book, "modelling", "poam", f"{short}/end"),
        ))  # fmt: skip
    answer = (
        f"At the end of training, teammates' real actions get a probability of {np.mean(starts['probability']):.2f} "
        f"early and {np.mean(ends['probability']):.2f} late in an episode; the error of their observations goes from "
        f"{np.mean(starts['squared_error']):.2g} to {np.mean(ends['squared_error']):.2g}."
    )
    return Finding(
        "modelling",
        "Does the model learn who it plays with?",
        answer,
        (
            Figure(
                "lines", tuple(panels), "step of the episode", "", "One line per agent kept over training.", free=True
            ),
            Figure(
                "lines", tuple(apart), "step of the episode", "", "The last agents, by kind of teammate.", free=True
            ),
        ),
        (Table("The last agents", ("", "first tenth", "paper", "last quarter", "paper"), tuple(rows)),),
        tuple(verdicts),
        made(book, "modelling"),
    )


def embeddings(book: Book) -> Finding:
    """What the team embedding knows."""
    seeds = [book.rows(book.plan.probing(s)) for s in book.seeds]
    panels = []
    for asked, title in (("strangers", "which team the strangers are"), ("n", "how many agents are ours")):
        series = []
        for reads, name in (("embedding", "from the embedding"), ("observation", "from the observation alone")):
            marks = []
            for t in sorted({r["t"] for r in seeds[0]}):
                found = [
                    r["accuracy"]
                    for rows in seeds
                    for r in rows
                    if (r["asked"], r["reads"], r["t"]) == (asked, reads, t)
                ]
                marks.append(mark(float(t), found))
            series.append(Series(name, tuple(marks), "poam" if reads == "embedding" else "observation"))
        base = float(np.mean([r["chance"] for rows in seeds for r in rows if r["asked"] == asked]))
        panels.append(Panel(title, tuple(series), (Level("chance", base),)))
    picture = book.rows(book.plan.probing(book.seeds[0]), "picture.csv.gz")
    times = sorted({p["t"] for p in picture})
    clouds = []
    for t in times:
        groups: dict[str, list[Mark]] = {}
        for p in picture:
            if p["t"] == t:
                groups.setdefault(algorithm_of(p["strangers"]), []).append(Mark(p["x"], p["y"], note=f"N = {p['n']}"))
        clouds.append(Panel(f"step {t}", tuple(Series(a.upper(), tuple(groups[a]), a) for a in sorted(groups))))

    def at_end(asked: str, reads: str) -> list[float]:
        last = max(r["t"] for r in seeds[0])
        return [
            r["accuracy"] for rows in seeds for r in rows if (r["asked"], r["reads"], r["t"]) == (asked, reads, last)
        ]

    verdicts = tuple(
        higher(
            f"The embedding says more than the observation about {what}",
            at_end(a, "embedding"),
            at_end(a, "observation"),
        )
        for a, what in (("strangers", "who the strangers are"), ("n", "how many agents are ours"))
    )
    return Finding(
        "embeddings",
        "What does the team embedding know?",
        f"A linear probe of it names the strangers' team in {np.mean(at_end('strangers', 'embedding')):.0%} of "
        f"held-out episodes at their end, and N in {np.mean(at_end('n', 'embedding')):.0%}.",
        (
            Figure("lines", tuple(panels), "steps seen", "accuracy on held-out episodes"),
            Figure("scatter", tuple(clouds), "first principal component", "second", "Embeddings of one POAM run."),
        ),
        (),
        verdicts,
        made(book, "embeddings") + " Probes: multinomial logistic regression on three quarters of the episodes.",
    )
