"""Pages: deterministic, harmless, readable; figures well-formed, numbers with the digits they have."""

import base64
import json
import math
import xml.etree.ElementTree as ET
import zlib
from dataclasses import replace

import numpy as np
import pytest

from naht.errors import NahtError
from naht.evaluation.statistics import Interval
from naht.report import charts, packing, page, tables
from naht.report.charts import looks, svg
from naht.report.content import Content, Figure, Finding, Mark, Panel, Published, Series, Table, TaskFindings
from page_content import example, figures


@pytest.fixture(scope="module")
def content() -> Content:
    return example()


@pytest.fixture(scope="module")
def html(content) -> str:
    return page.page_html(content)


def test_equal_content_gives_equal_bytes(content, html, tmp_path):
    path = page.write_page(example(), tmp_path / "page.html")
    assert path.read_text() == html
    assert len(html.encode()) < page.MOST_BYTES
    assert page.page_html(example(seed=1)) != html


def test_it_holds_every_figure_and_nothing_from_elsewhere(content, html):
    assert html.count("<figure ") == len(figures(content)) == 13
    assert html.count('class="chart"') == 2 * 13  # for a screen and for a phone
    assert "http" not in html.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    for link in ("mpe-pp-strangers", "10v11-cross-play", "overall-profiles", "verdicts", "runs", "missing", "watch"):
        assert f'id="{link}"' in html
        assert f'href="#{link}"' in html


def test_a_page_too_large_is_refused(content, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "MOST_BYTES", 10_000)
    with pytest.raises(NahtError, match="fewer episodes"):
        page.write_page(content, tmp_path / "page.html")


HOSTILE = '</script><b onclick="x">\'&'


def test_names_do_no_harm(content):
    figure = Figure(
        "dots", (Panel(HOSTILE, (Series(HOSTILE, (Mark(HOSTILE, 1.0, note=HOSTILE),)),)),), HOSTILE, HOSTILE
    )
    table = Table(HOSTILE, (HOSTILE, HOSTILE), ((HOSTILE, 1.0),))
    finding = Finding(HOSTILE, HOSTILE, HOSTILE, (figure,), (table,), made=HOSTILE, remarks=(HOSTILE,))
    episode = replace(content.tasks[0].episodes[0], label=HOSTILE, seats=(HOSTILE,) * 3, events=((1, HOSTILE),))
    run = replace(content.tasks[0].runs[0], name=HOSTILE, settings={HOSTILE: {HOSTILE: HOSTILE}})
    task = TaskFindings(HOSTILE, HOSTILE, (finding,), (run,), (episode,), (HOSTILE,))
    text = page.page_html(Content(HOSTILE, (task,), (finding,), (), table, {HOSTILE: HOSTILE}))
    assert "<b onclick" not in text
    assert text.count("</script>") == 2
    data = text.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(data)["episodes"][0]["label"] == HOSTILE


def test_an_empty_page_is_a_page():
    text = page.page_html(Content("Nothing yet", ()))
    assert "Everything that was planned was run." in text
    assert 'id="player"' not in text


def said(element):
    """What a mark says of itself."""
    return element.findtext("{http://www.w3.org/2000/svg}title") or ""


@pytest.mark.parametrize("width", [charts.WIDE, charts.NARROW])
def test_figures_are_well_formed(content, width):
    kinds = set()
    for figure in figures(content):
        root = ET.fromstring(charts.draw(figure, "a figure", standalone=True, width=width))
        assert root.tag.endswith("svg")
        assert float(root.get("width")) == width
        drawn = {e.get("data-series") for e in root.iter() if e.get("data-series")}
        assert drawn >= {s.name for panel in figure.panels for s in panel.series}
        labels = [said(e) for e in root.iter() if e.get("tabindex") == "-1"]
        assert labels
        assert all(labels)
        numbers = [float(v) for e in root.iter() for k in ("x", "y", "cx", "cy") if (v := e.get(k))]
        assert all(-30 < v < 5000 for v in numbers)
        kinds.add(figure.kind)
    assert kinds == {"lines", "dots", "matrix", "scatter"}


@pytest.mark.parametrize("count", range(1, 7))
def test_one_to_six_panels_stay_within_the_sheet(count):
    series = Series("a", tuple(Mark(float(x), x * x, x * x - 1, x * x + 1) for x in range(5)), "poam")
    figure = Figure("lines", tuple(Panel(f"panel {k}", (series,)) for k in range(count)), "x", "y")
    for width in (charts.WIDE, charts.NARROW):
        root = ET.fromstring(charts.draw(figure, "f", standalone=True, width=width))
        axes = [list(map(float, e.get("data-axes").split())) for e in root.iter() if e.get("data-axes")]
        assert len(axes) == count
        assert len({tuple(a[:2] + a[4:6]) for a in axes}) == 1  # they share their scales
        for _, _, left, right, _, _, bottom, top in axes:
            assert 0 <= left < right - 60
            assert right <= width
            assert 0 <= top < bottom - 60
            assert bottom <= float(root.get("height"))


def test_numbers_that_do_not_exist_are_left_out():
    marks = (Mark(0.0, math.nan), Mark(1.0, 2.0, math.nan, math.nan), Mark(2.0, 3.0))
    for kind in ("lines", "scatter"):
        figure = Figure(kind, (Panel("", (Series("a", marks), Series("b", ()))),), "x", "y")
        assert "nan" not in charts.draw(figure, "f")
    categories = (Mark("a", math.nan), Mark("b", 1.0, math.nan, math.nan))
    for kind in ("dots", "matrix"):
        assert "nan" not in charts.draw(Figure(kind, (Panel("", (Series("s", categories),)),), "x", "y"), "f")


@pytest.mark.parametrize("kind", ["lines", "dots"])
def test_intervals_end_where_values_do(kind):
    marks = (Mark(1.0, 0.4, -0.3, 1.6, (0.1, 0.5, 0.6)), Mark(2.0, 0.5, -0.2, 1.2, (0.0, 0.6, 0.9)))
    figure = Figure(kind, (Panel("", (Series("a", marks, "poam"),)),), "x", "win rate", within=(0.0, 1.0))
    root = ET.fromstring(charts.draw(figure, "f", standalone=True))
    labels = [words for e in root.iter() if "seeds" in (words := said(e))]
    assert labels
    assert all("[0.00, 1.00]" in words or "0.50 ± 0.50" in words for words in labels)
    for panel in (e for e in root.iter() if e.get("data-axes")):
        low, high = map(float, panel.get("data-axes").split()[4:6])
        assert -0.1 < low <= 0.0
        assert 1.0 <= high < 1.1


@pytest.mark.parametrize("kind", ["lines", "scatter", "dots", "matrix"])
def test_one_mark_alone_is_drawn(kind):
    for value in (0.0, 5e6, -3.0):
        figure = Figure(kind, (Panel("", (Series("a", (Mark(value, value),)),)),), "x", "y")
        ET.fromstring(charts.draw(figure, "f"))


def test_unknown_kinds_are_refused():
    with pytest.raises(NahtError, match="pie"):
        charts.draw(Figure("pie", (Panel("", ()),), "", ""), "f")  # type: ignore[arg-type]
    with pytest.raises(NahtError, match="no panels"):
        charts.draw(Figure("dots", (), "", ""), "f")


def test_a_method_looks_the_same_everywhere():
    names = ["poam", "something new", "ippo-naht", "another"]
    palette = charts.palette_of(map(looks.method_name, names))
    assert palette["poam"] == looks.KNOWN["poam"]
    assert looks.method_name("Best naive") == looks.method_name("naive") == "best-naive"
    new = [palette["something-new"], palette["another"]]
    assert new[0].tone != new[1].tone
    assert new[0].dash != new[1].dash
    # Apart without colour: no two methods of a study share both dash and marker.
    assert len({(look.dash, look.shape) for look in looks.KNOWN.values()}) == len(looks.KNOWN)


def test_text_on_the_cells_of_a_matrix_is_readable():
    rules = looks.colour_rules()
    for step in range(looks.HEAT_STEPS):
        for fill, text in zip(rules[f".h{step}"], rules[f".h{step} text"], strict=True):
            low, high = sorted(looks.brightness(c) + 0.05 for c in (fill, text))
            assert high / low > 4.5


def test_labels_are_moved_apart():
    rng = np.random.default_rng(0)
    for _ in range(50):
        wanted = rng.uniform(0, 200, rng.integers(1, 9)).tolist()
        places = svg.spread(wanted, 19, 0, 200)
        gaps = np.diff(np.sort(places))
        assert (gaps >= 19 - 1e-9).all()
        assert min(places) >= 0
        assert max(places) <= 200
        assert np.argsort(places, kind="stable").tolist() == np.argsort(wanted, kind="stable").tolist()
    assert svg.spread([10, 100], 19, 0, 200) == [10, 100]
    assert svg.spread([50, 50], 20, 0, 200) == [40, 60]


def test_ticks_are_round_numbers():
    assert svg.Axis(0, 20e6).ticks(5)[1] == ["0", "5M", "10M", "15M", "20M"]
    assert svg.Axis(-3, 30).ticks(4)[1] == ["0", "10", "20", "30"]
    small = [text.replace(charts.MINUS, "-") for text in svg.Axis(-0.1, 0.11).ticks(5)[1]]
    assert small == ["-0.10", "-0.05", "0.00", "0.05", "0.10"]
    assert svg.Axis(0, 2.5e6).ticks(5)[1] == ["0", "0.5M", "1.0M", "1.5M", "2.0M", "2.5M"]
    assert svg.Axis(0, 3).ticks(9)[1] == ["0.0", "0.5", "1.0", "1.5", "2.0", "2.5", "3.0"]
    assert svg.Axis(0, 3, counts=True).ticks(9)[1] == ["0", "1", "2", "3"]
    assert [svg.nice_step(v) for v in (0.11, 0.2, 3, 51)] == pytest.approx([0.2, 0.2, 5, 100])


def test_numbers_have_the_digits_that_their_intervals_allow():
    assert charts.estimate(28.3456, 26.5, 30.19) == "28.3 ± 1.8"
    assert charts.estimate(0.934, 0.81, 1.0) == "0.934 [0.810, 1.000]"
    assert charts.estimate(0.934, 0.81, 1.0, most=2) == "0.93 [0.81, 1.00]"
    assert charts.estimate(-0.001, -1.0, 0.998) == "0.0 ± 1.0"
    assert charts.estimate(5.04, 4.0, 6.08, sign=True) == "+5.0 ± 1.0"
    assert charts.estimate(-1234.5, None, None) == charts.MINUS + "1234"
    assert charts.published(Published(14.2, None, True, "Figure 3")) == "about 14.2 (read off Figure 3)"
    assert charts.number(math.nan) == charts.NOTHING


def test_a_column_is_aligned_at_its_points():
    texts = tables.column_texts(
        [Interval(28.31, 27.1, 29.5, 5), 7.0, None, Interval(-0.5, -0.55, -0.45, 5), Published(3.25)]
    )
    assert [(t.whole, t.rest, t.spread) if t else None for t in texts] == [
        ("28", ".3", "± 1.2"),
        ("7", ".00", ""),
        None,
        (charts.MINUS + "0", ".500", "± 0.050"),
        ("3", ".25", ""),
    ]


def test_the_best_is_marked_only_where_it_is_clear():
    def at(mean: float) -> Interval:
        return Interval(mean, mean - 1, mean + 1, 5)

    assert tables.clear_best([at(5), at(7), "words", None], "high") == 1
    assert tables.clear_best([at(5), at(7)], "low") == 0
    assert tables.clear_best([at(5), at(6.3)], "high") is None  # the interval of the difference is 1.41
    assert tables.clear_best([at(5), at(7)], "no") is None
    assert tables.clear_best([at(5), Interval(9, math.nan, math.nan, 1)], "high") is None


def test_tables_as_plain_numbers():
    table = Table(
        "t", ("who", "ours", "paper"), (("a", Interval(1.5, 1.0, 2.0, 5), Published(2.0, None, True, "Figure 3")),)
    )
    assert tables.table_rows(table) == {
        "columns": ["who", "ours", "ours low", "ours high", "ours n", "paper", "paper half width", "paper source"],
        "rows": [["a", 1.5, 1.0, 2.0, 5, 2.0, None, "read off Figure 3"]],
    }


def unpacked(packed: dict) -> dict[str, np.ndarray]:
    """What the page's script does, in NumPy: [T, ...] each."""
    data, at, result = zlib.decompress(base64.b64decode(packed["bytes"])), 0, {}
    for name, kind, shape, *scale in packed["arrays"]:
        count = math.prod(shape)
        raw = np.frombuffer(data, np.dtype(kind).newbyteorder("<"), count, at).reshape(shape)
        at += raw.nbytes
        values = np.moveaxis(np.cumsum(raw, -1, dtype=raw.dtype), -1, 0).astype(float)
        if scale:
            low, grain = scale
            values = np.where(values < 0, np.nan, low + values * grain)
        result[name] = values
    assert at == len(data)
    return result


def test_episodes_come_back_nearly_as_they_were(content):
    for task in content.tasks:
        for episode in task.episodes:
            arrays = unpacked(packing.pack_episode(episode))
            size = np.ptp(episode.places)
            np.testing.assert_allclose(arrays["places"], episode.places, atol=1e-4 * size)
            np.testing.assert_allclose(
                arrays["running"], episode.running_return, atol=1e-4 * np.ptp(episode.running_return)
            )
            np.testing.assert_array_equal(arrays["actions"], episode.actions)
            for k, beliefs in enumerate(episode.beliefs):
                chances = np.nan_to_num(beliefs.chances)  # of the dead nobody thinks anything
                np.testing.assert_allclose((arrays[f"chances{k}"] / 255) ** 2, chances, atol=0.005)
                if beliefs.places is not None:
                    np.testing.assert_allclose(arrays[f"ghosts{k}"], beliefs.places, atol=1e-3)
            if episode.health is not None:
                np.testing.assert_allclose(arrays["health"] / 255, episode.health, atol=0.005)
                np.testing.assert_array_equal(arrays["health"] > 0, episode.health > 0)
            if episode.aims is not None:
                aimed = arrays["shots"] > 0
                np.testing.assert_array_equal(aimed, episode.aims >= 0)
                np.testing.assert_array_equal((arrays["shots"][aimed] - 1) // 2, episode.aims[aimed])
                np.testing.assert_array_equal((arrays["shots"][aimed] - 1) % 2, episode.fired[aimed])


def test_places_that_nobody_knows_stay_unknown(content):
    episode = content.tasks[0].episodes[0]
    places = np.array(episode.beliefs[0].places)
    places[3] = np.nan
    beliefs = replace(episode.beliefs[0], places=places)
    back = unpacked(packing.pack_episode(replace(episode, beliefs=(beliefs,))))["ghosts0"]
    assert np.isnan(back[3]).all()
    np.testing.assert_allclose(back[4:], places[4:], atol=1e-3)


def test_arrays_of_the_wrong_length_are_refused(content):
    episode = content.tasks[0].episodes[0]
    with pytest.raises(NahtError, match="'places' of an episode of 100 steps has 100 frames, not 101"):
        packing.pack_episode(replace(episode, places=episode.places[1:]))
