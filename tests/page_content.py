"""An example of a results page's content, made up by a seeded generator. None of its numbers was measured."""

from __future__ import annotations

import numpy as np

from naht.evaluation.statistics import Interval, bootstrap_improvement, difference_interval, mean_interval
from naht.report.content import (
    Beliefs,
    Content,
    Episode,
    Figure,
    Finding,
    Level,
    Mark,
    Panel,
    Published,
    Run,
    Series,
    Table,
    TaskFindings,
    Verdict,
)

SEEDS, T_95 = 5, 2.776
"""Student's t has this quantile for five seeds."""
ALGORITHMS = ("IPPO", "MAPPO", "VDN", "QMIX", "IQL")
METHODS = {"POAM": "poam", "IPPO-NAHT": "ippo-naht", "POAM-AHT": "poam-aht"}
MADE = """naht study --task {task} --only {name} --seeds 5
5 training seeds, 1024 episodes for each pair; intervals are Student's t over seeds."""


def mark(x, trials, paper=None, note=""):
    i = mean_interval(trials)
    return Mark(x, i.mean, i.low, i.high, tuple(float(t) for t in trials), paper, note)


def curve(rng, name, method, end, *, points=60, steps=20e6, half=0.25):
    x = np.linspace(0, steps, points)
    rise = end * (1 - np.exp(-x[None] / (steps * half * rng.uniform(0.8, 1.2, (SEEDS, 1)))))
    trials = (
        rise + rng.normal(0, 0.02 * abs(end), (SEEDS, points)).cumsum(1) * 0.6 + rng.normal(0, 0.05 * end, (SEEDS, 1))
    )
    mean, half = trials.mean(0), T_95 * trials.std(0, ddof=1) / SEEDS**0.5
    band = np.stack([x, mean, mean - half, mean + half], -1).tolist()
    return Series(name, tuple(Mark(*row) for row in band), method)


def learning(rng, task, best):
    ends = {"POAM": best, "IPPO-NAHT": 0.82 * best}
    panel = Panel(
        "",
        tuple(curve(rng, name, METHODS[name], end) for name, end in ends.items()),
        (
            Level("POAM-AHT", 0.7 * best, 0.64 * best, 0.76 * best, "poam-aht"),
            Level("best naive team", 0.52 * best, method="best-naive"),
            Level("POAM in the paper", 0.9 * best, method="poam", paper=True),
        ),
    )
    figure = Figure(
        "lines", (panel,), "environment steps", "mean test return", "Mean over 5 seeds and its 95 % interval."
    )
    ours, theirs = best * rng.normal(1, 0.03, SEEDS), 0.82 * best * rng.normal(1, 0.03, SEEDS)
    return Finding(
        "learning",
        "Does POAM learn better teams than independent learning?",
        "POAM ends higher than IPPO-NAHT and gets there with fewer steps.",
        (figure,),
        verdicts=(verdict("POAM has a higher return than IPPO-NAHT after 20 million steps", ours, theirs, "Q1"),),
        made=MADE.format(task=task, name="learning"),
        remarks=("The paper's curve ends at about nine tenths of ours; its prey is not the same network.",),
    )


def verdict(claim, ours, theirs, question="", detail=""):
    d = difference_interval(ours, theirs)
    answer = "holds" if d.low > 0 else "does not hold" if d.high < 0 else "undecided"
    return Verdict(
        claim, answer, d, bootstrap_improvement(ours, theirs, resamples=500), (len(ours), len(theirs)), detail, question
    )


def strangers(rng, task, best):
    panels = []
    for n in (1, 2):
        series = []
        for name, method in METHODS.items():
            level = best * {"POAM": 1.0, "IPPO-NAHT": 0.86, "POAM-AHT": 0.8 if n == 2 else 0.95}[name] * (0.7 + 0.1 * n)
            marks = []
            for k, algorithm in enumerate(ALGORITHMS):
                centre = level * (1.1 - 0.16 * k)
                paper = None
                if name != "POAM-AHT":
                    paper = Published(0.85 * centre, 0.06 * best if k % 2 else None, k % 2 == 0, "Figure 4")
                marks.append(mark(algorithm, rng.normal(centre, 0.07 * best, SEEDS).tolist(), paper))
            series.append(Series(name, tuple(marks), method))
        panels.append(Panel(f"N = {n} of 3 are ours", tuple(series)))
    caption = "Return with teams that nobody trained with, by the algorithm the strangers were trained with."
    rows = tuple(
        (algorithm, *(mean_interval(s.marks[k].trials) for s in panels[1].series), panels[1].series[0].marks[k].paper)
        for k, algorithm in enumerate(ALGORITHMS)
    )
    table = Table("With two of ours", ("strangers", *METHODS, "POAM in the paper"), rows, "high")
    a, b = (rng.normal(m, 0.06 * best, SEEDS) for m in (0.9 * best, 0.75 * best))
    c = rng.normal(0.89 * best, 0.07 * best, SEEDS)
    return Finding(
        "strangers",
        "Do strangers cost anything?",
        "With strangers POAM loses about a fifth of its return, IPPO-NAHT a third.",
        (Figure("dots", tuple(panels), "strangers trained with", "mean return", caption),),
        (table,),
        (
            verdict("POAM does better with strangers than IPPO-NAHT", a, b, "Q2"),
            verdict(
                "POAM does better with strangers than POAM-AHT at N = 1",
                a,
                c,
                "Q2",
                "The paper claims this for four of five tasks.",
            ),
        ),
        MADE.format(task=task, name="strangers"),
    )


def crossplay(rng, task, best):
    rows = []
    for i, row in enumerate(ALGORITHMS):
        marks = []
        for k, column in enumerate(ALGORITHMS):
            value = best * (1.0 if i == k else 0.35) * rng.uniform(0.6, 1.1)
            marks.append(Mark(column, value, value - 1.4, value + 1.4))
        rows.append(Series(row, tuple(marks), row.lower()))
    caption = "Mean return of a team, half of it from the row and half from the column. 25 pairs of seeds each."
    return Finding(
        "cross-play",
        "Do teams of different algorithms work together?",
        "Hardly: a team from two algorithms earns about a third of what either earns alone.",
        (Figure("matrix", (Panel("", tuple(rows)),), "teammates", "controlled", caption),),
        made=MADE.format(task=task, name="cross-play"),
    )


def modelling(rng, task):
    stages = ("after 1M steps", "after 5M steps", "after 20M steps")
    panels = []
    for quantity, start, gain in (("Actions of teammates", 1.55, 0.8), ("Observations of teammates", 0.9, 0.55)):
        series = []
        for k, stage in enumerate(stages):
            x = np.arange(0, 100, 4)
            loss = start - gain * (k + 1) / 3 * (1 - np.exp(-x / (25 - 6 * k))) + rng.normal(0, 0.012, len(x))
            marks = tuple(
                Mark(float(t), float(v), float(v - 0.05), float(v + 0.05)) for t, v in zip(x, loss, strict=True)
            )
            series.append(Series(stage, marks, "poam", shade=k / 2))
        panels.append(Panel(quantity, tuple(series)))
    caption = "Loss of the teammate model over the steps of an episode: it learns who it plays with while it plays."
    early, late = rng.normal(1.5, 0.04, SEEDS), rng.normal(0.8, 0.05, SEEDS)
    return Finding(
        "modelling",
        "Does the model get to know its teammates?",
        "Yes: within an episode its loss halves, and the more so the longer it was trained.",
        (Figure("lines", tuple(panels), "step of the episode", "loss (nats)", caption, free=True),),
        verdicts=(verdict("The loss is lower at the end of an episode than at its start", early, late, "Q3"),),
        made=MADE.format(task=task, name="modelling"),
    )


def embedding(rng, task):
    series = []
    for k, name in enumerate(ALGORITHMS):
        centre = 3 * np.array([np.cos(1.26 * k), np.sin(1.26 * k)])
        points = rng.normal(centre, 0.8, (40, 2))
        marks = tuple(Mark(float(x), float(y), note=f"seed {i % 5}") for i, (x, y) in enumerate(points))
        series.append(Series(name, marks, name.lower()))
    late = tuple(
        Series(s.name, tuple(Mark(1.5 * m.x, 1.5 * m.value, note=m.note) for m in s.marks), s.method) for s in series
    )
    panels = (Panel("Step 5 of an episode", tuple(series)), Panel("Step 80", late))
    caption = "Embeddings of single episodes on their first two principal axes."
    return Finding(
        "embeddings",
        "Do embeddings tell strangers apart?",
        "After some steps, the strangers' algorithm can be read off the embedding.",
        (Figure("scatter", panels, "first axis", "second axis", caption),),
        made=MADE.format(task=task, name="embeddings"),
    )


def ablations(rng, task, best):
    names = ("POAM", "without the model's loss", "without uncontrolled data", "without both")
    marks = tuple(
        mark(n, rng.normal(best * f, 0.05 * best, SEEDS).tolist())
        for n, f in zip(names, (1, 0.86, 0.93, 0.8), strict=True)
    )
    figure = Figure("dots", (Panel("", (Series("return", marks, "poam"),)),), "variant", "mean return", "")
    a, b, c = (rng.normal(best * f, 0.06 * best, SEEDS) for f in (1, 0.84, 0.97))
    return Finding(
        "ideas",
        "Do its two ideas help?",
        "The model does; what the data of uncontrolled agents add is within the noise.",
        (figure,),
        verdicts=(
            verdict("Modelling teammates helps", a, b, "Q3"),
            verdict("Data of uncontrolled agents help", a, c, "Q3"),
            Verdict("More embedding dimensions help", "not run", detail="Needs 15 more runs."),
        ),
        made=MADE.format(task=task, name="ideas"),
    )


def profiles(rng):
    panels = []
    for title in ("Predator-prey", "5v6", "8v9", "10v11", "3s5z"):
        x = np.linspace(0, 1, 41)
        series = []
        for k, (name, method) in enumerate(METHODS.items()):
            y = 1 / (1 + np.exp((x - 0.75 + 0.1 * k + rng.normal(0, 0.03)) * 14))
            band = [
                Mark(float(a), float(b), float(max(b - 0.08, 0)), float(min(b + 0.08, 1)))
                for a, b in zip(x, y, strict=True)
            ]
            series.append(Series(name, tuple(band), method))
        panels.append(Panel(title, tuple(series)))
    caption = "Share of runs with at least this part of the best return."
    return Finding(
        "profiles",
        "How often is a run as good as that?",
        "POAM's runs are above the others' at every level on four of five tasks.",
        (Figure("lines", tuple(panels), "part of the best return", "share of runs", caption),),
        made="naht study --only profiles",
    )


# Episodes.

MOVES = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))


def chances_of(rng, actions, teammates, count, sharpness):
    """[T, K, A]: mostly what will be done, the more so the later."""
    steps = len(actions)
    chances = rng.dirichlet(np.ones(count), (steps, len(teammates)))
    known = (sharpness * np.linspace(0.2, 1, steps) * rng.uniform(0.3, 1, steps))[:, None, None]
    return (1 - known) * chances + known * np.eye(count)[actions[:, teammates]]


def hunt(rng, method, stranger, label, *, steps=100, bias=1.0):
    controlled = (True, True, False)
    places = np.zeros((steps + 1, 6, 2))
    places[0] = rng.uniform(-0.9, 0.9, (6, 2))
    places[:, 4:] = np.array([[-0.4, 0.3], [0.5, -0.35]])
    actions = np.zeros((steps, 3), int)
    running, events = [0.0], []
    velocity = np.zeros((4, 2))
    for t in range(steps):
        here = places[t]
        for k in range(3):
            to = here[3] - here[k] + rng.normal(0, 0.25, 2)
            axis = int(abs(to[1]) > abs(to[0]))
            actions[t, k] = 1 + 2 * axis + (to[axis] < 0)
            velocity[k] = 0.75 * velocity[k] + 0.02 * np.array(MOVES[actions[t, k]])
        flee = sum((here[3] - here[k]) / (0.1 + np.sum((here[3] - here[k]) ** 2)) for k in range(3))
        velocity[3] = 0.7 * velocity[3] + 0.006 * flee / bias - 0.03 * here[3] * (abs(here[3]) > 0.7)
        places[t + 1, :4] = np.clip(here[:4] + velocity, -1, 1)
        touching = int((np.hypot(*(places[t + 1, :3] - places[t + 1, 3]).T) < 0.225).sum())
        if touching >= 2:
            events.append((t + 1, f"a catch by {touching}"))
        running.append(running[-1] + (touching if touching >= 2 else 0) - 0.02)
    seats = (f"{method} seed 0", f"{method} seed 0", f"{stranger} seed 3")
    beliefs = ()
    if method == "POAM":
        beliefs = tuple(
            Beliefs(
                seat,
                (others := tuple(k for k in range(3) if k != seat)),
                chances_of(rng, actions, others, 5, 0.8),
                places[:-1, others] + rng.normal(0, 0.12, (steps, 2, 2)) * np.linspace(1.5, 0.4, steps)[:, None, None],
            )
            for seat in (0, 1)
        )
    return Episode(
        task="mpe-pp",
        method=method,
        strangers=stranger,
        label=label,
        episode_return=running[-1],
        seats=seats,
        controlled=controlled,
        kinds=("predator",) * 3 + ("prey", "obstacle", "obstacle"),
        radii=(0.075,) * 3 + (0.05, 0.2, 0.2),
        bounds=(-1.15, -1.15, 1.15, 1.15),
        places=places,
        running_return=np.array(running),
        actions=actions,
        action_names=("none", "right", "left", "up", "down"),
        events=tuple(events),
        beliefs=beliefs,
    )


def battle(rng, method, stranger, label, *, allies=10, enemies=11, steps=60):
    units = allies + enemies
    places = np.zeros((steps + 1, units, 2))
    side = np.array([-1] * allies + [1] * enemies)
    row = np.concatenate([np.arange(allies) - allies / 2, np.arange(enemies) - enemies / 2])
    places[0] = np.stack([side * 8 + rng.normal(0, 0.6, units), row * 1.3], -1)
    health = np.ones((steps + 1, units))
    actions = np.zeros((steps, allies), int)
    aims, fired = np.full((steps, units), -1), rng.random((steps, units)) < 0.6
    running, events = [0.0], []
    for t in range(steps):
        alive = health[t] > 0
        places[t + 1] = places[t] + alive[:, None] * np.stack(
            [-side * 0.22 * (abs(places[t, :, 0]) > 2), rng.normal(0, 0.12, units)], -1
        )
        hurt = (rng.random(units) < 0.28) * rng.uniform(0.03, 0.2, units) * (t > 18) * np.where(side < 0, 0.8, 1.1)
        health[t + 1] = np.where(alive, np.clip(health[t] - hurt, 0, 1), 0)
        aim = 6 + rng.integers(0, enemies, allies)
        actions[t] = np.where(alive[:allies], np.where(t > 18, np.where(rng.random(allies) < 0.8, aim[0], aim), 4), 0)
        aims[t, :allies] = np.where(actions[t] >= 6, actions[t] - 6 + allies, -1)
        aims[t, allies:] = np.where(alive[allies:] & (t > 18), rng.integers(0, allies, enemies), -1)
        fallen = np.flatnonzero(alive & (health[t + 1] == 0))
        events += [(t + 1, f"ally {k + 1} falls" if k < allies else f"enemy {k - allies + 1} falls") for k in fallen]
        running.append(running[-1] + float(hurt[allies:].sum()))
    controlled = tuple(k % 2 == 0 for k in range(allies))
    names = ("no-op", "stop", "north", "south", "east", "west", *(f"attack {k + 1}" for k in range(enemies)))
    beliefs = []
    for seat in range(0, allies, 2):
        others = tuple(k for k in range(allies) if k != seat)
        asked = (health[:-1, [seat]] > 0) & (health[:-1, others] > 0)
        chances = chances_of(rng, actions, others, len(names), 0.75)
        thought = places[:-1, others] + rng.normal(0, 1, (steps, len(others), 2))
        beliefs.append(Beliefs(seat, others, *(np.where(asked[..., None], a, np.nan) for a in (chances, thought))))
    seats = tuple(f"{method} seed 1" if c else f"{stranger} seed 2" for c in controlled)
    return Episode(
        task="10v11",
        method=method,
        strangers=stranger,
        label=label,
        episode_return=running[-1],
        seats=seats,
        controlled=controlled,
        kinds=("ally",) * allies + ("enemy",) * enemies,
        radii=(0.38,) * units,
        bounds=(-10.5, -9, 10.5, 9),
        places=places,
        running_return=np.array(running),
        actions=actions,
        action_names=names,
        events=(*events, (steps, "the battle is lost")),
        outcome="lost",
        health=health,
        aims=aims,
        fired=fired,
        units=("marine",) * units,
        sight=9.0,
        reach=5.75,
        ground=(-16.0, -8.0, 16.0, 8.0),
        beliefs=tuple(beliefs),
    )


def runs(rng, task, best):
    made = []
    for name, method in METHODS.items():
        for seed in range(SEEDS):
            settings = {
                "algorithm": {"lr": 5e-4, "entropy": 0.01, "modelling": name != "IPPO-NAHT", "epochs": 4},
                "seed": seed,
            }
            settings |= {
                "steps": 20_000_000,
                "teams": {"num_controlled": 1 if name == "POAM-AHT" else "uniform", "mix": False},
            }
            made.append(
                Run(
                    task,
                    f"{method}/seed{seed}",
                    20_000_000,
                    float(rng.uniform(3000, 9000)),
                    settings,
                    float(rng.normal(best, 2)),
                )
            )
    return tuple(made)


def lead(rng):
    rows = []
    for title, best in (("Predator-prey", 28), ("5v6", 11.5), ("10v11", 15.2)):
        row: list = [title]
        for k in range(3):
            row += [mean_interval(rng.normal(best * (1 - 0.14 * k), 0.04 * best, SEEDS).tolist())]
            row += [Published(best * (0.85 - 0.1 * k), 0.05 * best, k == 2, "Table 1") if title != "10v11" else None]
        rows.append((*row, Interval(best * 0.5, float("nan"), float("nan"), 1)))
    columns = ("task", "POAM", "paper", "IPPO-NAHT", "paper", "POAM-AHT", "paper", "best naive")
    return Table(
        "Mean return with strangers, N uniform on 1..M-1; 95 % intervals over 5 seeds", columns, tuple(rows), "high"
    )


def example(seed: int = 0) -> Content:
    """Two tasks with findings of all kinds, and six episodes."""
    rng = np.random.default_rng(seed)
    tasks = []
    for task, title, best in (("mpe-pp", "Predator-prey", 28.0), ("10v11", "Battle of 10 against 11 marines", 15.2)):
        findings = (
            learning(rng, task, best),
            strangers(rng, task, best),
            crossplay(rng, task, best),
            modelling(rng, task),
            embedding(rng, task),
            ablations(rng, task, best),
        )
        if task == "mpe-pp":
            episodes = (
                hunt(rng, "POAM", "VDN", "typical", bias=1.2),
                hunt(rng, "POAM", "VDN", "best", bias=2.5),
                hunt(rng, "POAM", "QMIX", "worst", bias=0.7),
                hunt(rng, "IPPO-NAHT", "VDN", "typical", bias=1.1),
            )
        else:
            episodes = (battle(rng, "POAM", "QMIX", "typical"), battle(rng, "POAM", "QMIX", "changes its mind"))
        missing = ("the 6h_vs_8z task of the paper, whose terrain is not known",) if task == "10v11" else ()
        tasks.append(TaskFindings(task, title, findings, runs(rng, task, best), episodes, missing))
    claims = {
        "Q1": "POAM beats the best baseline on two of two tasks.",
        "Q2": "With strangers POAM earns more than IPPO-NAHT.",
        "Q3": "Of its two ideas, modelling teammates helps; the other is undecided.",
    }
    headline = []
    for question, claim in claims.items():
        gap = {"Q1": 5, "Q2": 4, "Q3": 0.4}[question]
        headline.append(verdict(claim, rng.normal(28, 1.2, SEEDS), rng.normal(28 - gap, 1.2, SEEDS), question))
    facts = {
        "example": "made-up numbers, seed 0",
        "version": "0.1.0",
        "rows": "2026-11-17",
        "command": "naht study report",
    }
    return Content(
        "An example: N-agent ad hoc teamwork, POAM reproduced",
        tuple(tasks),
        (profiles(rng),),
        tuple(headline),
        lead(rng),
        facts,
    )


def figures(content: Content) -> list[Figure]:
    findings = [*content.overall, *(f for task in content.tasks for f in task.findings)]
    return [figure for finding in findings for figure in finding.figures]
