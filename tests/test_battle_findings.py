"""Findings on tasks that are won or lost, and over several tasks, from made-up rows: every number can be worked out."""

import json
import shutil

import numpy as np
import pytest

from naht.evaluation.statistics import Interval
from naht.report.content import Finding, TaskFindings, Verdict
from naht.report.page import write_page
from naht.study.book import Book
from naht.study.findings.methods import curves
from naht.study.findings.overall import CLAIMS, claims
from naht.study.nodes import DONE, in_order
from naht.study.plan import NAIVE, USUAL, Request, plan_of
from naht.study.rows import write_rows
from naht.study.story import content_of, headlines, write_request
from naht.study.works import Evaluation, Filming, Meetings, Predicting, Probing, Training

GOOD = {"poam": 15.0, "ippo-naht": 12.0, "poam-aht": 9.0}
"""What methods earn with known teams; others 6. With strangers it is 3 less; a twentieth of it is won."""


def score(name: str, seed: int, unseen: bool = False) -> float:
    return GOOD.get(name, 6.0) - 3 * unseen + 0.1 * seed


def made_up(node, place) -> None:
    """Rows as the node's work would write them, without the work."""
    work = node.work
    kind, seed = node.name.split("/")[-2:] if "/" in node.name else (node.name, "seed0")
    number = int(seed[-1]) if seed[-1].isdigit() else 0
    if isinstance(work, Training):
        tests = [[step, score(kind, number) * step / 1000, score(kind, number) / 20] for step in range(100, 1001, 100)]
        write_rows(place / "tests.csv.gz", ["step", "test/return", "test/battle_won"], tests)
        write_rows(place / "clock.csv.gz", ["step", "seconds"], [[row[0], row[0]] for row in tests])
    elif isinstance(work, Evaluation):
        names = [s.rsplit("/", 1)[-1].removeprefix("node:") for s in work.strangers]
        rows = []
        for stranger in names:
            for n in work.counts:
                found = score(kind, number, not stranger.endswith("seed0"))
                rows += [[stranger, n, e, found + (1, -1)[e % 2], 20, int(e < found)] for e in range(20)]
        write_rows(place / "rows.csv.gz", ["strangers", "n", "episode", "return", "length", "battle_won"], rows)
    elif isinstance(work, Meetings):
        rows = []
        for i, j in work.pairs:
            found = 18.0 if i == j else 14.0 if work.groups[i] == work.groups[j] else 10.0
            rows += [[work.groups[i], i, work.groups[j], j, n, found, 1.0, found / 20] for n in (1, 2, 3, 4)]
        columns = ["ours", "our_team", "theirs", "their_team", "n", "return", "spread", "battle_won"]
        write_rows(place / "rows.csv.gz", columns, rows)
    elif isinstance(work, Predicting):
        rows = []
        for step in (500, 1000):
            for t in range(70):  # after 30 steps nobody is left
                pairs = 100 if t < 20 else 100 - 10 * (t - 19) if t < 29 else 0
                for k, about in enumerate(("controlled", "uncontrolled")):
                    better = step / 1000 + t / 100 + k / 10
                    rows.append([step, t, about, pairs, pairs * (2 - better), pairs * better / 3])
        write_rows(place / "rows.csv.gz", ["step", "t", "kind", "pairs", "squared_error", "probability"], rows)
    elif isinstance(work, Probing):
        asked = [(t, a, r) for t in (1, 5, 20) for a in ("strangers", "n") for r in ("embedding", "observation")]
        rows = [[t, a, r, 0.5 + 0.2 * (r == "embedding"), 0.3] for t, a, r in asked]
        write_rows(place / "rows.csv.gz", ["t", "asked", "reads", "accuracy", "chance"], rows)
        points = [[t, f"{a}-seed0", 1, 0.1 * t, 0.2] for t in (1, 20) for a in NAIVE]
        write_rows(place / "picture.csv.gz", ["t", "strangers", "n", "x", "y"], points)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study of 5v6 with all its usual parts but films."""
    folder = tmp_path_factory.mktemp("study")
    plan = plan_of(Request("5v6", seeds=3, steps=1000))
    root = folder / "5v6"
    for node in in_order(n for part in plan.parts.values() for n in part):
        if not isinstance(node.work, Filming):
            made_up(node, node.place(root))
            facts = {"name": node.name, "size": 1, "seconds": 1.0, "identity": {"run": {}}}
            (node.place(root) / DONE).write_text(json.dumps(facts))
    write_request(root, plan.request)
    return folder


@pytest.fixture(scope="module")
def content(study):
    return content_of(study)


def finding(content, name: str) -> Finding:
    return next(f for f in content.tasks[0].findings if f.name == name)


def row(table, name: str) -> list:
    return next(list(cells[1:]) for cells in table.rows if cells[0] == name)


def test_a_map_has_the_parts_of_the_paper(content):
    (task,) = content.tasks
    assert {f.name for f in task.findings} == set(USUAL["5v6"]) - {"films"}
    assert task.missing == ()
    plan = plan_of(Request("5v6"))
    assert {"cells", "normalised", "seats"} < set(plan.further)
    assert set(plan_of(Request("3s5z")).parts) == set(USUAL["3s5z"])
    assert "ucd" in plan_of(Request("3s5z", parts=("ucd",))).asked
    assert len(plan_of(Request("mpe-pp")).parts) == 14


def test_win_rates_stand_beside_returns(content):
    curves = finding(content, "curves")
    assert [figure.y_label for figure in curves.figures] == ["greedy test return", "greedy test win rate"]
    assert curves.tables[0].columns[:3] == ("method", "return", "win rate")
    returned, won = row(curves.tables[0], "POAM")[:2]
    assert returned.mean == pytest.approx(15.1)
    assert won.mean == pytest.approx((15 + 16 + 16) / 3 / 20)  # seeds earn 15.0, 15.1, 15.2
    assert "Of the battles, POAM 78%, IPPO-NAHT 63%, POAM-AHT 48% are won." in curves.answer
    for name in ("strangers", "split", "ucd", "told", "imitation", "counts", "crossplay"):
        tables = finding(content, name).tables
        assert len(tables) == 2, name
        assert tables[0].columns == tables[1].columns
    strangers = finding(content, "strangers").tables
    assert strangers[1].title.startswith("Win rate")
    assert row(strangers[0], "POAM, teams never met")[-1].mean == pytest.approx(12.1)
    assert row(strangers[1], "POAM, teams never met")[-1].mean == pytest.approx((12 + 13 + 13) / 3 / 20)
    cross = finding(content, "crossplay").tables
    assert row(cross[1], "VDN")[-2].mean == pytest.approx(0.5)
    lead = content.lead
    assert row(lead, "5v6, win rate")[0].mean == pytest.approx((15 + 16 + 16) / 3 / 20)


def test_strangers_that_never_win_are_told_from_the_others(study, tmp_path):
    plan = plan_of(Request("5v6", seeds=3, steps=1000))
    root = tmp_path / "5v6"
    shutil.copytree(study / "5v6", root)
    assert not any("among themselves" in remark for remark in curves(Book(root, plan)).remarks)  # all win 30 %
    place = plan.nobody().place(root)
    rows = [[f"{a}-seed{s}", 0, 0, 6.0, 10, int(a != "iql")] for a in NAIVE for s in range(5)]
    write_rows(place / "rows.csv.gz", ["strangers", "n", "episode", "return", "length", "battle_won"], rows)
    (said,) = (remark for remark in curves(Book(root, plan)).remarks if "among themselves" in remark)
    assert said.startswith("Of the teams of training, IQL win less than 10% of their battles among themselves. ")
    assert "Battles won beside IQL, with N = 1 POAM 78%, IPPO-NAHT 63%, POAM-AHT 48%; with N = 4 POAM 78%" in said
    assert "Battles won beside IPPO, MAPPO, VDN, QMIX, with N = 1 POAM 78%" in said


def test_steps_that_nobody_lives_to_see_say_nothing_about_models(content):
    found = finding(content, "modelling")
    assert {len(series.marks) for figure in found.figures for p in figure.panels for series in p.series} == {29}
    assert {v.answer for v in found.verdicts} == {"holds"}
    early = row(found.tables[0], "probability of the real actions")[0].mean
    assert early == pytest.approx(np.mean([(1 + t / 100 + 0.05) / 3 for t in range(2)]))


def test_where_nobody_trained_best_responses_a_victory_is_what_is_possible(study, content):
    plan = plan_of(Request("5v6", seeds=3, steps=1000))
    assert set(Book(study / "5v6", plan).possible().values()) == {20.0}
    aggregate = content.overall[-1]
    assert row(aggregate.tables[0], "POAM")[0].mean == pytest.approx(15.1 / 20, abs=1e-3)
    assert row(aggregate.tables[1], "POAM")[0].mean == pytest.approx((15 + 16 + 16) / 3 / 20, abs=0.02)  # of victories
    assert [figure.x_label for figure in aggregate.figures] == ["share of what is possible", "win rate"]


def test_the_page_shows_all_of_it(content, tmp_path):
    page = write_page(content, tmp_path / "page.html").read_text()
    assert "win rate" in page


# -- claims over tasks


def task_with(name: str, **answers) -> TaskFindings:
    """A task on which claims, by finding and beginning, have come out like this."""
    findings = []
    for part in {c.finding for c in CLAIMS}:
        verdicts = [
            Verdict(begin, answers.get(part, "holds")) for c in CLAIMS if c.finding == part for begin in c.begins
        ]
        findings.append(Finding(part, "?", "", verdicts=tuple(verdicts)))
    return TaskFindings(name, name, tuple(findings))


def test_one_task_makes_no_claim_about_several():
    assert claims([task_with("a")]) is None


def test_claims_over_tasks_by_hand():
    tasks = [
        task_with("a"),
        task_with("b", strangers="undecided"),
        task_with("c", counts="does not hold"),
        task_with("d", strangers="does not hold", crossplay="undecided"),
        TaskFindings("nothing", "nothing", ()),
    ]
    found = claims(tasks)
    assert found.tables[0].columns == ("claim", "a", "b", "c", "d", "holds on")
    answers = {v.claim: v.answer for v in found.verdicts}
    by_part = {c.said: c for c in CLAIMS}
    for said, answer in answers.items():
        claim = by_part[said]
        if claim.finding == "curves":
            assert answer == "holds"
        elif claim.finding == "counts":
            assert answer == "does not hold"
        elif claim.finding == "crossplay":
            assert answer == "undecided"
        else:  # strangers: holds on two, undecided on one, does not hold on one
            assert answer == ("undecided" if claim.tasks == 3 else "does not hold")
    assert found.answer == "Of 9 claims about several tasks, 3 hold as the paper states them."


def test_any_and_all_within_a_task():
    either = CLAIMS[0]
    assert either.among == "any"
    both = [Verdict(begin, answer) for begin, answer in zip(either.begins, ("holds", "does not hold"), strict=True)]
    task = TaskFindings("a", "a", (Finding("curves", "?", "", verdicts=tuple(both)),))
    assert either.on(task) == "holds"
    strict = next(c for c in CLAIMS if len(c.begins) == 2 and c.among == "all")
    both = [Verdict(begin, answer) for begin, answer in zip(strict.begins, ("holds", "does not hold"), strict=True)]
    task = TaskFindings("a", "a", (Finding(strict.finding, "?", "", verdicts=tuple(both)),))
    assert strict.on(task) == "does not hold"


def test_answers_over_tasks_say_what_became_of_each():
    def on(name: str, *verdicts: Verdict) -> TaskFindings:
        return TaskFindings(name, name, (Finding("curves", "?", "POAM ends at 3.", verdicts=verdicts),))

    up = Verdict("POAM is above", "holds", Interval(2.0, 1.5, 2.5, 5), seeds=(5, 5), question="Q1")
    open_ = Verdict("POAM is above", "undecided", Interval(0.5, -0.5, 1.5, 5), seeds=(5, 5), question="Q1")
    down = Verdict("POAM is above", "does not hold", Interval(-2.0, -3.0, -1.0, 5), seeds=(5, 5), question="Q1")
    one = headlines([on("a", up)])[0]
    assert (one.claim, one.answer, one.difference) == ("POAM ends at 3.", "holds", up.difference)
    several = headlines([on("a", up), on("b", open_)])[0]
    assert (several.claim, several.answer) == ("POAM is above on 1 of 2 tasks.", "undecided")
    assert several.difference is None  # which would be that of one task
    assert several.detail.startswith("a ✓ +2.00 ± 0.50, b ? +0.5 ± 1.0. ")
    assert headlines([on("a", up), on("b", open_), on("c", down)])[0].answer == "does not hold"
    assert [v.answer for v in headlines([])] == ["not run"] * 3


def test_where_a_part_is_not_run_another_claim_answers_its_question():
    """On most maps UCD is not asked about; how many agents are ours belongs to the same question."""
    level = Verdict("POAM and POAM-AHT are level at N = 1", "holds", Interval(0.1, -0.2, 0.4, 3), question="Q3")
    helps = Verdict("UCD helps POAM", "undecided", Interval(0.1, -0.2, 0.4, 3), question="Q3")
    counts = Finding("counts", "?", "With two of ours, POAM earns more.", verdicts=(level,))
    ucd = Finding("ucd", "?", "UCD earns a little.", verdicts=(helps,))
    answers = {len(found): headlines([TaskFindings("a", "a", found)])[2] for found in ((counts,), (counts, ucd))}
    assert [(v.claim, v.answer) for v in answers.values()] == [
        ("POAM and POAM-AHT are level at N = 1.", "holds"),
        ("UCD earns a little.", "undecided"),
    ]
