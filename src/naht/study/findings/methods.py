"""What methods earn, and with whom."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from naht.evaluation.statistics import Interval, mean_interval
from naht.report.content import Cell, Figure, Finding, Level, Panel, Series, Table, Verdict
from naht.study.book import (
    Book,
    Missing,
    above_zero,
    algorithm_of,
    also,
    higher,
    known,
    label,
    level,
    mark,
    named,
    of,
    unseen,
)
from naht.study.findings.common import (
    BOTH,
    area,
    by_algorithm,
    compared,
    dots,
    learning,
    made,
    more_or_less,
    paper_number,
    said_wins,
    scores_table,
    table_of,
    with_wins,
)
from naht.study.plan import NAIVE, OTHER_PRESETS, SEATS, SPLIT


def curves(book: Book) -> Finding:
    """Does POAM beat the baselines?"""
    scores = {m: book.trials(m) for m in (*BOTH, "poam-aht")}
    naive = {a: book.naive(a) for a in NAIVE}
    order = sorted(NAIVE, key=lambda a: -float(np.mean(naive[a])))
    best = order[0]

    def drawn(b: Book) -> Figure:
        levels = []
        for name, method, trials in (
            ("POAM-AHT", "poam-aht", b.trials("poam-aht")),
            (best.upper(), "naive", b.naive(best)),
        ):
            found = mean_interval(trials)
            levels.append(Level(name, found.mean, found.low, found.high, method))
        return learning(b, BOTH, levels)

    wins = book.wins
    rows: list[tuple[Cell, ...]] = []
    for m in scores:
        won = [mean_interval(wins.trials(m))] if wins is not None else []
        paper = paper_number(book, "curves", m, "final")
        rows.append((label(m), mean_interval(scores[m]), *won, mean_interval(area(book, m)), paper))
    for a in order:
        won = [mean_interval(wins.naive(a))] if wins is not None else []
        paper = paper_number(book, "crossplay", a, "mean")
        rows.append((f"{a.upper()} (naive)", mean_interval(naive[a]), *won, None, paper))
    poam = scores["poam"]
    verdicts = [
        higher(f"POAM's final return is above {label(m)}'s", poam, scores[m], question="Q1")
        for m in ("ippo-naht", "poam-aht")
    ]
    verdicts.append(
        higher(f"POAM's final return is above the best naive MARL's ({best.upper()})", poam, naive[best], question="Q1")
    )
    verdicts.append(
        higher(
            "POAM learns faster than IPPO-NAHT (area under the curve)",
            area(book, "poam"),
            area(book, "ippo-naht"),
            question="Q1",
        )
    )
    answer = (
        f"POAM ends at {np.mean(poam):.1f}, {more_or_less(poam, scores['ippo-naht'])} than IPPO-NAHT, "
        f"{more_or_less(poam, scores['poam-aht'])} than POAM-AHT and {more_or_less(poam, naive[best])} than the best "
        f"naive MARL ({best.upper()}).{said_wins(book, *scores)}"
    )
    return Finding(
        "curves",
        "Does POAM beat the baselines?",
        answer,
        with_wins(book, drawn),
        (
            Table(
                "Final return with the teams of training",
                ("method", "return", *["win rate"] * (wins is not None), "mean over the run", "paper (20M steps)"),
                tuple(rows),
                "high",
            ),
        ),
        tuple(verdicts),
        made(book, "curves") + " Naive MARL: teams of seeds 1 to 4, which are not among the strangers.",
        (*_at_the_end(book), *_beside_losers(book), *reasons(book)),
    )


def _at_the_end(book: Book) -> tuple[str, ...]:
    """Have the curves told their story? Nothing where there are too few tests to say so."""
    rises = []
    for m in BOTH:
        rise = []
        for s in book.seeds:
            tests = [row["test/return"] for row in book.rows(book.plan.training(m, s), "tests.csv.gz")]
            fifth = len(tests) // 5
            if not fifth:
                return ()
            rise.append(np.mean(tests[-fifth:]) - np.mean(tests[-2 * fifth : -fifth]))
        rises.append(f"{np.mean(rise):+.1f} for {label(m)}")
    return (f"Change of the tests from the fourth to the last fifth of training: {' and '.join(rises)}.",)


LOSING = 0.1
"""Who wins less than this share of its battles with itself does not win."""


def _beside_losers(book: Book) -> tuple[str, ...]:
    """What methods win with those known teams that win nothing themselves, if there are any, and with the others."""
    wins, counts = book.wins, (min(book.plan.counts), max(book.plan.counts))
    if wins is None:
        return ()
    try:
        alone = {a: wins.score(book.plan.nobody(), named(f"{a}-seed0")) for a in NAIVE}
    except Missing:
        return ()
    losers = [a for a, rate in alone.items() if rate < LOSING]
    others = [a for a in NAIVE if a not in losers]
    if not losers or not others:
        return ()

    def won(teams: list[str]) -> str:
        said = []
        for n in counts:
            rates = {m: float(np.mean(wins.trials(m, also(known, of(*teams)), n=n))) for m in (*BOTH, "poam-aht")}
            said.append(f"with N = {n} {', '.join(f'{label(m)} {rate:.0%}' for m, rate in rates.items())}")
        return f"won beside {', '.join(a.upper() for a in teams)}, {'; '.join(said)}"

    return (
        f"Of the teams of training, {' and '.join(a.upper() for a in losers)} win less than {LOSING:.0%} of their "
        f"battles among themselves. Battles {won(losers)}. Battles {won(others)}.",
    )


def reasons(book: Book) -> tuple[str, ...]:
    """What the four cells and the upper reference say about POAM and IPPO-NAHT, as far as they were run."""
    found = []
    for title, explain in (("Four cells", _model_and_time), ("Upper reference", _upper_reference)):
        with suppress(Missing):
            found.append(f"{title}. {explain(book)}")
    return tuple(found)


def _model_and_time(book: Book) -> str:
    s = {m: float(np.mean(book.trials(m))) for m in (*BOTH, "poam-stored", "ippo-naht-stored")}
    return (
        f"The model is worth {s['poam'] - s['ippo-naht']:+.1f} through time and "
        f"{s['poam-stored'] - s['ippo-naht-stored']:+.1f} from stored states; training through time is worth "
        f"{s['poam'] - s['poam-stored']:+.1f} to POAM and {s['ippo-naht'] - s['ippo-naht-stored']:+.1f} to IPPO-NAHT. "
        "The paper compares POAM through time with IPPO-NAHT from stored states: "
        f"{s['poam'] - s['ippo-naht-stored']:+.1f}."
    )


def _upper_reference(book: Book) -> str:
    s = {m: float(np.mean(book.trials(m))) for m in (*BOTH, "told")}
    gap, closed = s["told"] - s["ippo-naht"], s["poam"] - s["ippo-naht"]
    share = f", {closed / gap:.0%} of that" if gap > 0 and closed > 0 else ""
    return (
        f"Told which team its strangers are, IPPO-NAHT earns {s['told']:.1f} instead of "
        f"{s['ippo-naht']:.1f} ({gap:+.1f}); POAM's own model is worth {closed:+.1f}{share}."
    )


def _who_must_not_know(book: Book, critic: Verdict, actor: Verdict) -> str:
    """What the strangers' data are good for, if it is the critic that must not know the seats."""
    s = {m: float(np.mean(book.trials(m))) for m in ("ippo-naht", "actor-told-seats", "critic-told-seats")}
    lost = {m: s[m] - s["ippo-naht"] for m in ("actor-told-seats", "critic-told-seats")}
    said = (
        f"Told which seats are controlled, an actor changes that by {lost['actor-told-seats']:+.1f}, a critic by "
        f"{lost['critic-told-seats']:+.1f}."
    )
    if critic.answer != "holds" or actor.answer == "holds":
        return said
    with suppress(Missing):
        without = float(np.mean(book.trials("ippo-naht-no-ucd"))) - s["ippo-naht"]
        said += (
            f" A critic that can tell strangers from its own values them apart, and loses "
            f"{lost['critic-told-seats'] / without:.0%} of what leaving their data out altogether costs "
            f"({without:+.1f}). It fits: UCD makes a value function that takes everybody for one of its own."
        )
    return said


def pair(book: Book) -> Finding:
    """POAM and IPPO-NAHT alone, for other settings or another prey."""
    ours, theirs = (book.trials(m, known, everybody=False) for m in BOTH)
    rows: list[tuple[Cell, ...]] = []
    for m, scores in zip(BOTH, (ours, theirs), strict=True):
        paper = paper_number(book, "curves", m, "final")
        rows.append((label(m), mean_interval(scores), min(scores), mean_interval(area(book, m)), paper))
    columns = ("method", "return", "worst seed", "mean over the run", "paper (20M steps)")
    return Finding(
        "pair",
        "Is POAM above IPPO-NAHT with these settings?",
        f"POAM ends at {np.mean(ours):.1f}, {more_or_less(ours, theirs)} than IPPO-NAHT.",
        with_wins(book, lambda b: learning(b, BOTH)),
        (Table("Final return with the teams of training", columns, tuple(rows), "high"),),
        (higher("POAM's final return is above IPPO-NAHT's", ours, theirs),),
        made(book, "pair"),
    )


def strangers(book: Book) -> Finding:
    """Does it cope with strangers it has never met?"""

    def panels(b: Book) -> tuple[Panel, ...]:
        return tuple(
            Panel(title, tuple(by_algorithm(b, m, who, "strangers", at) for m in BOTH))
            for title, who, at in (("teams of training", known, "known/"), ("teams never met", unseen, "unseen/"))
        )

    verdicts: list[Verdict] = []
    for a in NAIVE:
        ours, theirs = (book.trials(m, also(unseen, of(a))) for m in BOTH)
        verdicts.append(higher(f"With unseen {a.upper()} teams, POAM is above IPPO-NAHT", ours, theirs, question="Q2"))
    ours, theirs = (book.trials(m, unseen) for m in BOTH)
    verdicts.insert(0, higher("With teams never met, POAM is above IPPO-NAHT", ours, theirs, question="Q2"))
    for m in BOTH:
        lost = [a - b for a, b in zip(book.trials(m, known), book.trials(m, unseen), strict=True)]
        verdicts.append(above_zero(f"{label(m)} does worse with strangers than with known teams", lost, question="Q2"))
    costs = {m: np.mean(book.trials(m, known)) - np.mean(book.trials(m, unseen)) for m in BOTH}
    answer = (
        f"With teams never met, POAM earns {np.mean(ours):.1f} and IPPO-NAHT {np.mean(theirs):.1f}; that they are "
        f"strangers costs POAM {costs['poam']:.1f} and IPPO-NAHT {costs['ippo-naht']:.1f}."
        f"{said_wins(book, *BOTH, who=unseen)}"
    )
    return Finding(
        "strangers",
        "Do strangers cost anything?",
        answer,
        with_wins(book, lambda b: dots(b, panels(b), "algorithm of the strangers")),
        with_wins(book, lambda b: table_of(panels(b), f"{b.measure.capitalize()} by the strangers' algorithm")),
        tuple(verdicts),
        made(book, "strangers", strangers="seed 0 of each algorithm was trained with, seeds 1 to 4 were never met"),
    )


def split(book: Book) -> Finding:
    """Trained with three algorithms' teams, tested with two other ones'."""
    others = tuple(a for a in NAIVE if a not in SPLIT)

    def who(name: str) -> bool:
        return algorithm_of(name) in others

    def panels(b: Book) -> tuple[Panel, ...]:
        return (Panel("", tuple(by_algorithm(b, m, who, "split", "", split=True) for m in BOTH)),)

    ours, theirs = (book.trials(m, who, split=True) for m in BOTH)
    names = " and ".join(a.upper() for a in others)
    verdicts = [higher(f"With algorithms never met ({names}), POAM is above IPPO-NAHT", ours, theirs, question="Q2")]
    for a in others:
        pair = [book.trials(m, of(a), split=True) for m in BOTH]
        verdicts.append(higher(f"With {a.upper()} teams, POAM is above IPPO-NAHT", *pair, question="Q2"))
    trained = ", ".join(a.upper() for a in SPLIT)
    return Finding(
        "split",
        "And with strangers of other algorithms?",
        f"Trained with {trained}, POAM earns {np.mean(ours):.1f} with {names}; IPPO-NAHT {np.mean(theirs):.1f}.",
        with_wins(book, lambda b: dots(b, panels(b), "algorithm of the strangers")),
        with_wins(
            book, lambda b: table_of(panels(b), f"{b.measure.capitalize()} with {names}, trained with {trained}")
        ),
        tuple(verdicts),
        made(book, "split", strangers=f"trained with seed 0 of {trained}, tested with all five seeds of {names}"),
    )


def ucd(book: Book) -> Finding:
    """Is the uncontrolled agents' data of use?"""
    methods = ("poam", "poam-no-ucd", "ippo-naht", "ippo-naht-no-ucd")
    scores = {m: book.trials(m) for m in methods}
    verdicts = tuple(higher(f"UCD helps {label(m)}", scores[m], scores[f"{m}-no-ucd"], question="Q3") for m in BOTH)
    earned = " and ".join(
        f"{label(m)} earns {np.mean(scores[m]):.1f} instead of {np.mean(scores[f'{m}-no-ucd']):.1f}" for m in BOTH
    )
    answer = f"With a critic that also learns from the strangers' data (UCD), {earned}"
    return Finding(
        "ucd",
        "Do the strangers' data help the critic?",
        f"{answer}.",
        with_wins(book, lambda b: dots(b, compared(b, methods, "ucd"))),
        with_wins(book, lambda b: scores_table(b, methods, "with and without the uncontrolled agents' data")),
        verdicts,
        made(book, "ucd"),
    )


def cells(book: Book) -> Finding:
    """What the paper's comparison mixes: the model, and training through time."""
    methods = ("poam", "poam-stored", "ippo-naht", "ippo-naht-stored", "poam-controlled-actions")
    s = {m: book.trials(m) for m in methods}
    verdicts = (
        higher("Through time, POAM is above IPPO-NAHT", s["poam"], s["ippo-naht"]),
        higher("From stored states, POAM is above IPPO-NAHT", s["poam-stored"], s["ippo-naht-stored"]),
        higher("Training through time helps POAM", s["poam"], s["poam-stored"]),
        higher("Training through time helps IPPO-NAHT", s["ippo-naht"], s["ippo-naht-stored"]),
        higher(
            "Decoding all teammates' actions beats decoding controlled ones'", s["poam"], s["poam-controlled-actions"]
        ),
        higher(
            "The paper's own pairing: POAM through time, IPPO-NAHT from stored states", s["poam"], s["ippo-naht-stored"]
        ),
    )
    return Finding(
        "cells",
        "How much of POAM's lead is training through time?",
        _model_and_time(book),
        with_wins(book, lambda b: dots(b, compared(b, methods, "cells"))),
        with_wins(book, lambda b: scores_table(b, methods, "in four cells, and by the action decoder")),
        verdicts,
        made(book, "cells"),
    )


def told(book: Book) -> Finding:
    """What could be gained at all by knowing the team?"""
    methods = ("ippo-naht", "poam", "told")
    s = {m: book.trials(m) for m in methods}
    verdicts = (
        higher("Being told the team is worth something", s["told"], s["ippo-naht"]),
        higher("Being told the team is worth more than POAM's model", s["told"], s["poam"]),
    )
    return Finding(
        "told",
        "What could a teammate model gain at all?",
        _upper_reference(book),
        with_wins(book, lambda b: dots(b, compared(b, methods, "told")[:1])),
        with_wins(book, lambda b: scores_table(b, methods, "when told the strangers' team")),
        verdicts,
        made(book, "told"),
    )


def seats(book: Book) -> Finding:
    """Who profits from not knowing whose data they are?"""
    methods = ("ippo-naht", *SEATS)
    s = {m: book.trials(m) for m in methods}
    critic = higher("A critic that is told the seats does worse", s["ippo-naht"], s["critic-told-seats"])
    actor = higher("An actor that is told the seats does worse", s["ippo-naht"], s["actor-told-seats"])
    return Finding(
        "seats",
        "Why do the strangers' data help?",
        _who_must_not_know(book, critic, actor),
        with_wins(book, lambda b: dots(b, compared(b, methods, "seats")[:1])),
        with_wins(book, lambda b: scores_table(b, methods, "when told the controlled seats, and the team as well")),
        (critic, actor),
        made(book, "seats"),
    )


def imitation(book: Book) -> Finding:
    """Learning from what strangers do."""
    methods = ("poam", "poam-imitating", "ippo-naht", "ippo-naht-imitating")
    verdicts, said = [], []
    for who, where in ((known, "the teams of training"), (unseen, "teams never met")):
        with_uca = {m: book.trials(f"{m}-imitating", who) for m in BOTH}
        for m in BOTH:
            claim = f"UCA helps {label(m)} with {where}"
            verdicts.append(higher(claim, with_uca[m], book.trials(m, who), question="beyond"))
        claim = f"With UCA, POAM is still above IPPO-NAHT with {where}"
        verdicts.append(higher(claim, *with_uca.values(), question="beyond"))
        gains = [f"{label(m)} {np.mean(with_uca[m]):.1f} instead of {np.mean(book.trials(m, who)):.1f}" for m in BOTH]
        said.append(f"{' and '.join(gains)} with {where}")
    return Finding(
        "imitation",
        "What if the actor also learns from what strangers do?",
        f"With an actor that also learns from the strangers' actions (UCA): {'; '.join(said)}."
        f"{said_wins(book, *methods, who=unseen)}",
        (
            *with_wins(book, lambda b: learning(b, methods)),
            *with_wins(book, lambda b: dots(b, compared(b, methods, "imitation"))),
        ),
        with_wins(book, lambda b: scores_table(b, methods, "with and without UCA")),
        tuple(verdicts),
        made(book, "imitation"),
    )


def bits(book: Book) -> Finding:
    """The bit game's table."""
    methods = ("poam", "ippo-naht", "poam-aht")

    def anybody(name: str) -> bool:
        del name
        return True

    panels = []
    best = {1: 75 * 4 / 9, 2: 75 * 0.66}
    for n in book.plan.counts:
        papers = {m: paper_number(book, "bits", m, f"N={n}") for m in methods}
        marks = [Series(label(m), (mark(label(m), book.trials(m, anybody, n=n), papers[m]),), m) for m in methods]
        levels = (Level("best possible", best[n]),) if n in best and book.plan.env.spec.num_agents == 3 else ()
        panels.append(Panel(f"N = {n}", tuple(marks), levels))
    poam, aht = ({n: book.trials(m, anybody, n=n) for n in book.plan.counts} for m in ("poam", "poam-aht"))
    verdicts = (
        level("At N = 1, POAM and POAM-AHT are level", poam[1], aht[1], question="Q3"),
        higher("At N = 2, POAM is above POAM-AHT", poam[2], aht[2], question="Q3"),
    )
    rows: list[tuple[Cell, ...]] = []
    for m in methods:
        cells: list[Cell] = []
        for n in book.plan.counts:
            cells += [mean_interval(book.trials(m, anybody, n=n)), paper_number(book, "bits", m, f"N={n}")]
        rows.append((label(m), *cells))
    columns = tuple(c for n in book.plan.counts for c in (f"N = {n}", "paper"))
    return Finding(
        "bits",
        "Can agents that never met coordinate?",
        f"Two POAM agents earn {np.mean(poam[2]):.1f} together, two POAM-AHT agents {np.mean(aht[2]):.1f}; the best "
        "possible is 49.5, and 50 for two that know each other.",
        (Figure("dots", tuple(panels), "", book.measure, free=True),),
        (Table("Bit game", ("method", *columns), tuple(rows), "high"),),
        verdicts,
        made(book, "bits", strangers="with the scripted stranger that plays 1 in a third of all steps"),
    )


def normalised(book: Book) -> Finding:
    """How much of what is possible with each team is reached?"""
    possible = book.responses()
    panels = tuple(
        Panel(
            title,
            tuple(
                Series(
                    label(m),
                    (
                        *[mark(a.upper(), book.shares(m, also(who, of(a)))) for a in NAIVE],
                        mark("all", book.shares(m, who)),
                    ),
                    m,
                )
                for m in BOTH
            ),
            (Level("best response", 1.0),),
        )
        for title, who in (("teams of training", known), ("teams never met", unseen))
    )
    rows: list[tuple[Cell, ...]] = []
    for team, best in possible.items():
        regrets = [mean_interval([best - score for score in book.trials(m, named(team))]) for m in BOTH]
        rows.append((team, best, *regrets))
    ours, theirs = (book.shares(m, unseen) for m in BOTH)
    columns = ("team", "best response", *[f"regret of {label(m)}" for m in BOTH])
    return Finding(
        "normalised",
        "How much of what is possible is reached?",
        f"With teams never met, POAM reaches {np.mean(ours):.0%} of what a best response to each team earns, IPPO-NAHT "
        f"{np.mean(theirs):.0%}.",
        (Figure("dots", panels, "algorithm of the strangers", "share of a best response's return"),),
        (Table("Best responses and regret", columns, tuple(rows)),),
        (higher("As a share of what is possible, POAM is above IPPO-NAHT with teams never met", ours, theirs),),
        made(book, "normalised") + " Best responses: IPPO-NAHT trained with one team alone, one run each.",
    )


def time(book: Book) -> Finding:
    """How soon is a return reached, over steps and over wall-clock?"""
    plan, target = book.plan, paper_number(book, "curves", "poam", "final")
    runs = {"POAM, tuned": [plan.training("poam", s) for s in book.seeds]}
    runs |= {f"POAM, {p}": [plan.training("poam", s, preset=p) for s in book.seeds] for p in OTHER_PRESETS}
    runs["IPPO in self-play"] = [plan.self_play("ippo", s) for s in book.seeds]
    goals = dict.fromkeys(runs, target.mean if target else 14.0)
    own = paper_number(book, "crossplay", "ippo", "ippo")
    goals["IPPO in self-play"] = own.mean if own else 17.0
    panels: dict[str, list[Series]] = {"million steps": [], "minutes on one core": []}
    rows: list[tuple[Cell, ...]] = []
    for i, (name, nodes) in enumerate(runs.items()):
        reached: dict[str, list[float]] = {axis: [] for axis in panels}
        ends, tests = [], []
        for node in nodes:
            returns = [r["test/return"] for r in book.rows(node, "tests.csv.gz")]
            clock = book.rows(node, "clock.csv.gz")
            at = {
                "million steps": [r["step"] / 1e6 for r in clock],
                "minutes on one core": [r["seconds"] / 60 for r in clock],
            }
            tests.append((at, returns))
            ends.append(returns[-1])
            above = [k for k, value in enumerate(returns) if value > goals[name]]
            for axis in panels:
                reached[axis] += [at[axis][above[0]]] if above else []
        for axis, series in panels.items():
            x = np.mean([at[axis] for at, _ in tests], axis=0)
            marks = [mark(float(x[k]), [r[k] for _, r in tests]) for k in range(len(x))]
            series.append(Series(name, tuple(marks), ("poam", "poam-stored", "ippo")[i]))
        cells = [mean_interval(found) if found else None for found in reached.values()]
        rows.append(
            (name, goals[name], f"{len(reached['million steps'])} of {len(nodes)}", *cells, mean_interval(ends))
        )
    lines = tuple(
        Figure(
            "lines",
            (Panel("", tuple(series), (Level("paper's POAM", goals["POAM, tuned"]),)),),
            axis,
            "greedy test return",
        )
        for axis, series in panels.items()
    )
    first = rows[0][4]
    said = f"{first.mean:.1f} minutes" if isinstance(first, Interval) else "never"
    return Finding(
        "time",
        "How long does it take?",
        f"POAM with tuned settings passes the paper's {goals['POAM, tuned']:g} after {said} on one core.",
        lines,
        (
            Table(
                "Time to the paper's returns",
                ("method", "return", "runs", "million steps", "minutes", "at the end"),
                tuple(rows),
            ),
        ),
        (),
        made(book, "time") + " Minutes include compilation and tests, and whatever else the machine did.",
    )
