"""The results page: pure Python first, then the page itself in a real browser, with a real mouse and keyboard."""

import base64
import contextlib
import fcntl
import json
import math
import os
import select
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from naht.errors import NahtError
from naht.evaluation.statistics import Interval
from naht.report import charts, page
from naht.report.charts import looks, svg
from naht.report.charts.numbers import describe
from naht.report.content import Content, Figure, Finding, Mark, Panel, Published, Series, Table, TaskFindings
from page_content import example

pytestmark = pytest.mark.xdist_group("page")


class Browser:
    """Headless Chromium, spoken to through pipes (--remote-debugging-pipe): JSON messages that end with a zero byte."""

    def __init__(self, program: str, folder: Path):
        ours, theirs = os.pipe(), os.pipe()
        # The browser reads from 3 and writes to 4; those numbers may be taken here, so they are set in the child.
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in (ours[0], theirs[1])]
        start = f"import os,sys; os.dup2({ends[0]},3); os.dup2({ends[1]},4); os.execv(sys.argv[1], sys.argv[1:])"
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        options += ["--hide-scrollbars", "--disable-dev-shm-usage", "--disable-background-networking", "--mute-audio"]
        options += [f"--user-data-dir={folder / 'profile'}", "about:blank"]
        command = [sys.executable, "-I", "-S", "-c", start, program, *options]
        environment = os.environ | {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
        self.process = subprocess.Popen(
            command, pass_fds=ends, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
        )
        for fd in (*ends, ours[0], theirs[1]):
            os.close(fd)
        self.out, self.into = ours[1], theirs[0]
        self.buffer, self.sent, self.events, self.session = b"", 0, [], None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def _read(self, until: float) -> dict:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.into], [], [], max(until - time.monotonic(), 0))
            if not ready:
                raise TimeoutError("the browser does not answer")
            received = os.read(self.into, 1 << 20)
            if not received:
                raise ConnectionError("the browser has gone")
            self.buffer += received
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def send(self, method: str, **params) -> dict:
        self.sent += 1
        message = {"id": self.sent, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + 20
        while True:
            answer = self._read(until)
            if answer.get("id") == self.sent:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def ask(self, expression: str):
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 5.0) -> None:
        until = time.monotonic() + seconds
        while not self.ask(expression):
            assert time.monotonic() < until, f"this did not become true: {expression}"
            time.sleep(0.03)

    def size(self, width: int, height: int = 900, *, phone: bool = False) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def open(self, path: Path) -> None:
        self.send("Page.navigate", url=path.as_uri())
        self.wait("document.readyState === 'complete' && !!document.querySelector('#player')?.dataset.step")

    def complaints(self) -> list[str]:
        """Errors, exceptions and refused requests since the browser started."""
        self.ask("1")
        found = []
        for event in self.events:
            kind, params = event.get("method"), event.get("params", {})
            if kind == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            if kind == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(str(params["args"]))
            if kind == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(str(params["entry"]))
        return found

    # The mouse and the keyboard.

    def spot(self, selector: str, across: float = 0.5, down: float = 0.5) -> tuple[float, float]:
        """A place on an element, which is brought into view; across and down from 0 to 1."""
        box = self.ask(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'}); const b = e.getBoundingClientRect();"
            "return [b.left, b.top, b.width, b.height] })()"
        )
        assert box[2] > 0, f"{selector} is not shown"
        return box[0] + across * box[2], box[1] + down * box[3]

    def mouse(self, kind: str, at: tuple[float, float], held: bool = False) -> None:
        button = "none" if kind == "mouseMoved" and not held else "left"
        clicks = int(kind != "mouseMoved")
        self.send(
            "Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button=button, buttons=int(held), clickCount=clicks
        )

    def click(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        self.click_at(self.spot(selector, across, down))

    def click_at(self, at: tuple[float, float]) -> None:
        self.mouse("mouseMoved", at)
        self.mouse("mousePressed", at, held=True)
        self.mouse("mouseReleased", at)

    def press(self, key: str, code: int = 0) -> None:
        text = {" ": " ", "Enter": "\r"}.get(key, key if len(key) == 1 else "")
        code = code or {" ": 32, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39, "End": 35, "Home": 36}.get(key, 0)
        common = {"key": key, "windowsVirtualKeyCode": code or ord(key.upper())}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def close(self) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError, BrokenPipeError):
            self.session = None
            self.send("Browser.close")
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.out)
        os.close(self.into)


# Pure Python.


@pytest.fixture(scope="module")
def content() -> Content:
    return example()


@pytest.fixture(scope="module")
def html(content) -> str:
    return page.page_html(content)


def figures(content: Content) -> list[Figure]:
    findings = [*content.overall, *(f for task in content.tasks for f in task.findings)]
    return [figure for finding in findings for figure in finding.figures]


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


@pytest.mark.parametrize("width", [charts.WIDE, charts.NARROW])
def test_figures_are_well_formed(content, width):
    kinds = set()
    for figure in figures(content):
        root = ET.fromstring(charts.draw(figure, "a figure", standalone=True, width=width))
        assert root.tag.endswith("svg")
        assert float(root.get("width")) == width
        drawn = {e.get("data-series") for e in root.iter() if e.get("data-series")}
        assert drawn >= {s.name for panel in figure.panels for s in panel.series}
        labels = [e.get("aria-label") for e in root.iter() if e.get("tabindex") == "-1"]
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
    texts = page.column_texts(
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

    assert page.clear_best([at(5), at(7), "words", None], "high") == 1
    assert page.clear_best([at(5), at(7)], "low") == 0
    assert page.clear_best([at(5), at(6.3)], "high") is None  # apart by less than the interval of the difference, 1.41
    assert page.clear_best([at(5), at(7)], "no") is None
    assert page.clear_best([at(5), Interval(9, math.nan, math.nan, 1)], "high") is None


def test_tables_as_plain_numbers():
    table = Table(
        "t", ("who", "ours", "paper"), (("a", Interval(1.5, 1.0, 2.0, 5), Published(2.0, None, True, "Figure 3")),)
    )
    assert page.table_rows(table) == {
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
            low, high = scale
            values = np.where(values == -32768, np.nan, low + (values + 32767) * (high - low) / 65534)
        result[name] = values
    assert at == len(data)
    return result


def test_episodes_come_back_nearly_as_they_were(content):
    for task in content.tasks:
        for episode in task.episodes:
            arrays = unpacked(page.pack_episode(episode))
            size = np.ptp(episode.places)
            np.testing.assert_allclose(arrays["places"], episode.places, atol=1e-4 * size)
            np.testing.assert_allclose(
                arrays["running"], episode.running_return, atol=1e-4 * np.ptp(episode.running_return)
            )
            np.testing.assert_array_equal(arrays["actions"], episode.actions)
            for k, beliefs in enumerate(episode.beliefs):
                np.testing.assert_allclose((arrays[f"chances{k}"] / 255) ** 2, beliefs.chances, atol=0.005)
                if beliefs.places is not None:
                    np.testing.assert_allclose(arrays[f"ghosts{k}"], beliefs.places, atol=1e-3)
            if episode.health is not None:
                np.testing.assert_allclose(arrays["health"] / 255, episode.health, atol=0.005)
                np.testing.assert_array_equal(arrays["health"] > 0, episode.health > 0)


def test_places_that_nobody_knows_stay_unknown(content):
    episode = content.tasks[0].episodes[0]
    places = np.array(episode.beliefs[0].places)
    places[3] = np.nan
    beliefs = replace(episode.beliefs[0], places=places)
    back = unpacked(page.pack_episode(replace(episode, beliefs=(beliefs,))))["ghosts0"]
    assert np.isnan(back[3]).all()
    np.testing.assert_allclose(back[4:], places[4:], atol=1e-3)


def test_arrays_of_the_wrong_length_are_refused(content):
    episode = content.tasks[0].episodes[0]
    with pytest.raises(NahtError, match="'places' of an episode of 100 steps has 100 frames, not 101"):
        page.pack_episode(replace(episode, places=episode.places[1:]))


# In a browser.


def chromium() -> str:
    """The program; where it can be installed it is."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if found := shutil.which(name):
            return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["install", "-y", "-q", "chromium"], ["update", "-q"], ["install", "-y", "-q", "chromium"]):
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(["apt-get", *command], capture_output=True, timeout=120, check=False)
            if found := shutil.which("chromium"):
                return found
    pytest.skip("there is no Chromium, and it can't be installed")


@pytest.fixture(scope="module")
def browser(content, tmp_path_factory):
    """The example page in a window 1440 pixels wide. Tests leave it as they found it, or load it anew."""
    folder = tmp_path_factory.mktemp("browser")
    opened = Browser(chromium(), folder)
    try:
        opened.downloads = folder / "downloads"
        opened.send("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(opened.downloads))
        opened.page = page.write_page(content, folder / "page.html")
        opened.size(1440)
        opened.open(opened.page)
        yield opened
    finally:
        opened.close()


def saved(browser: Browser, name: str) -> str:
    path, until = browser.downloads / name, time.monotonic() + 5
    while not path.exists():
        assert time.monotonic() < until, f"{name} was not saved"
        time.sleep(0.03)
    return path.read_bytes().decode()


STEP = "Number(document.querySelector('#player').dataset.step)"


def test_nothing_complains_and_everything_is_drawn(browser, content):
    assert browser.complaints() == []
    sizes = browser.ask(
        "[...document.querySelectorAll('figure .wide svg')].map(s => { const b = s.getBoundingClientRect();"
        "return [b.width, b.height] })"
    )
    assert len(sizes) == len(figures(content))
    assert all(width > 900 and height > 90 for width, height in sizes)
    levels = browser.ask("[...document.querySelectorAll('h1, h2, h3, h4')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert browser.ask("document.querySelectorAll('[id]').length") == browser.ask(
        "new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size"
    )
    broken = (
        "[...document.querySelectorAll('a[href^=\"#\"]')].filter(a => !document.getElementById(a.hash.slice(1))).length"
    )
    assert browser.ask(broken) == 0


@pytest.mark.parametrize(("width", "phone"), [(1440, False), (800, False), (375, True)])
def test_the_page_never_scrolls_sideways(browser, width, phone):
    browser.size(width, phone=phone)
    assert browser.ask("document.documentElement.scrollWidth") == width
    form = "narrow" if phone else "wide"
    assert browser.ask(
        f"[...document.querySelectorAll('.{form} svg')].every(s => s.getBoundingClientRect().width > 300)"
    )
    browser.size(1440)


def test_text_in_figures_does_not_leave_them(browser):
    """Labels are placed by an estimate of their width; a browser knows it."""
    for form, width in (("wide", 1440), ("narrow", 375)):
        browser.size(width)
        outside = browser.ask(
            f"[...document.querySelectorAll('.{form} svg')].flatMap(svg => {{ const box = svg.getBoundingClientRect();"
            "return [...svg.querySelectorAll('text')].filter(t => { const b = t.getBoundingClientRect();"
            "const room = 6 + 0.15 * b.width;"  # a machine may have wider fonts
            "return b.left < box.left - room || b.right > box.right + room || b.bottom > box.bottom + 3 })"
            ".map(t => t.textContent) })"
        )
        assert outside == []
    browser.size(1440)


def test_the_small_episode_plays_and_stops(browser):
    frame = "document.querySelector('#hero canvas').toDataURL()"
    browser.spot("#hero canvas")
    first = browser.ask(frame)
    browser.wait(f"{frame} !== {json.dumps(first)}")
    browser.click("#hero .play")
    still = browser.ask(frame)
    time.sleep(0.2)
    assert browser.ask(frame) == still


def test_the_player_plays_scrubs_and_steps(browser, content):
    browser.click("#player .play")
    browser.wait(f"{STEP} >= 2")
    browser.press(" ")  # the focused button's own
    browser.wait("document.querySelector('#player .play').getAttribute('aria-pressed') === 'false'")
    at = browser.ask(STEP)
    browser.press("ArrowRight")
    assert browser.ask(STEP) == at + 1
    browser.press("ArrowLeft")
    browser.press("ArrowLeft")
    assert browser.ask(STEP) == at - 1
    browser.press("End")
    assert browser.ask(STEP) == 100
    start, middle = browser.spot("#player .scrub", 0.1), browser.spot("#player .scrub", 0.5)
    browser.mouse("mousePressed", start, held=True)
    browser.wait(f"{STEP} === 10")
    browser.mouse("mouseMoved", middle, held=True)
    browser.wait(f"{STEP} === 50")
    browser.mouse("mouseReleased", middle)
    text = browser.ask("document.querySelector('#player .scrub').getAttribute('aria-valuetext')")
    total = content.tasks[0].episodes[0].running_return[50]
    assert text == f"step 50 of 100, return {total:.2f}".replace("-", charts.MINUS)
    browser.click("#player .events button")
    assert browser.ask(STEP) == content.tasks[0].episodes[0].events[0][0]
    browser.click("#player canvas", 0.02, 0.02)  # an empty corner: the world has the keyboard now
    browser.press("Home")
    browser.press(" ")
    browser.wait(f"{STEP} >= 1")
    browser.press(" ")
    assert browser.complaints() == []


def test_selecting_an_agent_shows_its_beliefs(browser, content):
    episode = content.tasks[0].episodes[0]
    browser.click("#player canvas", 0.02, 0.02)
    browser.press("Home")
    for _ in range(7):
        browser.press("ArrowRight")
    left, bottom, right, top = episode.bounds
    x, y = episode.places[7, 1]
    browser.click("#player .stage", (x - left) / (right - left), (top - y) / (top - bottom))
    assert browser.ask("document.querySelector('.beliefs h3').textContent") == "What agent 2 (POAM seed 0) expects"
    shown = browser.ask(
        "[...document.querySelectorAll('.mind')].map(m => [...m.querySelectorAll('.bars i')]"
        ".map(b => Number(b.style.getPropertyValue('--p'))))"
    )
    np.testing.assert_allclose(shown, episode.beliefs[1].chances[7], atol=0.01)
    taken = browser.ask(
        "[...document.querySelectorAll('.mind')].map(m => [...m.querySelectorAll('i')]"
        ".findIndex(b => b.matches('.taken')))"
    )
    assert taken == episode.actions[7, list(episode.beliefs[1].teammates)].tolist()
    browser.press("3")
    assert "stranger" in browser.ask("document.querySelector('.beliefs').textContent")
    assert "Nobody knows" in browser.ask("document.querySelector('.beliefs').textContent")
    browser.press("1")
    assert browser.ask("document.querySelectorAll('.mind').length") == 2


def test_fingers_scrub_and_select_on_a_phone(browser, content):
    browser.size(375, 800, phone=True)
    browser.send("Emulation.setTouchEmulationEnabled", enabled=True)

    def touch(kind: str, *at: tuple[float, float]) -> None:
        browser.send("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": y} for x, y in at])

    touch("touchStart", browser.spot("#player .scrub", 0.2))
    browser.wait(f"{STEP} === 20")
    touch("touchMove", browser.spot("#player .scrub", 0.6))
    browser.wait(f"{STEP} === 60")
    touch("touchEnd")
    episode = content.tasks[0].episodes[0]
    left, bottom, right, top = episode.bounds
    x, y = episode.places[60, 2]
    touch("touchStart", browser.spot("#player .stage", (x - left) / (right - left), (top - y) / (top - bottom)))
    touch("touchEnd")
    browser.wait("document.querySelector('.beliefs h3').textContent.startsWith('Agent 3')")
    browser.send("Emulation.setTouchEmulationEnabled", enabled=False)
    browser.size(1440)
    browser.press("1")


def test_other_episodes_can_be_chosen(browser, content):
    def choose(name: str, value: str) -> None:
        browser.ask(
            f"(() => {{ const s = document.querySelector('[data-choice={name}]'); s.value = {json.dumps(value)};"
            "s.dispatchEvent(new Event('change')) })()"
        )

    choose("task", "10v11")
    browser.wait("document.querySelectorAll('.seats button').length === 10")
    assert browser.ask("document.querySelectorAll('.mind').length") == 9
    assert browser.ask("document.querySelectorAll('.bars i').length") == 9 * 17
    options = browser.ask("[...document.querySelector('[data-choice=episode]').options].map(o => o.textContent)")
    assert [o.partition(" (")[0] for o in options] == ["typical", "changes its mind"]
    choose("task", "mpe-pp")
    browser.wait("document.querySelectorAll('.seats button').length === 3")
    choose("method", "IPPO-NAHT")
    browser.wait("document.querySelector('.beliefs').textContent.includes('no model')")
    choose("method", "POAM")
    browser.wait("document.querySelectorAll('.mind').length === 2")
    assert browser.complaints() == []


def test_a_name_switches_its_series_off(browser):
    figure = "figure[data-figure=mpe-pp-learning]"
    shown = f"document.querySelector('{figure} .wide .series[data-series=POAM] path').getBoundingClientRect().width"
    assert browser.ask(shown) > 0
    key = f"{figure} .wide .key[data-series=POAM]"
    browser.click(key)
    assert browser.ask(shown) == 0
    assert browser.ask(f"document.querySelector('{key}').getAttribute('aria-pressed')") == "false"
    other = shown.replace("=POAM]", "=IPPO-NAHT]")
    assert browser.ask(other) > 0
    browser.ask(f"document.querySelector('{key}').focus()")
    browser.press("Enter")
    assert browser.ask(shown) > 0


def test_marks_say_their_numbers(browser, content):
    mark = content.tasks[0].findings[1].figures[0].panels[0].series[0].marks[0]
    figure = "figure[data-figure=mpe-pp-strangers] .wide"
    browser.mouse("mouseMoved", browser.spot(f"{figure} .series[data-series=POAM]"))
    said = browser.ask("document.querySelector('#tip').textContent")
    assert describe(mark).replace("; ", "\n") in said
    assert "read off Figure 4" in said
    browser.mouse("mouseMoved", browser.spot("figure[data-figure=mpe-pp-learning] .wide .panel .series path", 0.5))
    said = browser.ask("document.querySelector('#tip').textContent").split("\n")
    assert said[0].startswith("environment steps ")
    assert {line.split("  ")[0] for line in said[1:]} == {"POAM", "IPPO-NAHT"}
    browser.ask(f"document.querySelector('{figure} [tabindex=\"0\"][role=img]').focus()")
    first = browser.ask("document.activeElement.getAttribute('aria-label')")
    browser.press("ArrowRight")
    assert browser.ask("document.activeElement.getAttribute('aria-label')") != first
    browser.mouse("mouseMoved", (2, 2))


def test_tables_are_sorted_by_mouse_and_keyboard(browser, content):
    table = "[data-table=mpe-pp-strangers-table]"
    column = f"[...document.querySelectorAll('{table} tbody tr')].map(r => r.cells[{{}}].textContent)"
    values = f"[...document.querySelectorAll('{table} tbody tr')].map(r => Number(r.cells[2].dataset.v))"
    button = f"{table} thead th:nth-child({{}}) button"
    sort = f"document.querySelector('{table} thead th:nth-child(3)').getAttribute('aria-sort')"
    browser.click(button.format(3))
    browser.wait(f"{sort} === 'descending'")
    assert browser.ask(values) == sorted(browser.ask(values), reverse=True)
    browser.press("Enter")
    browser.wait(f"{sort} === 'ascending'")
    assert browser.ask(values) == sorted(browser.ask(values))
    browser.click(button.format(1))
    browser.wait(f"{sort} === null")
    names = browser.ask(column.format(0))
    assert names == sorted(names)


def test_downloads_are_what_they_say(browser, content):
    browser.click("[data-table=lead] .csv")
    rows = saved(browser, "lead.csv").split("\r\n")
    assert rows[0].startswith("task,POAM,POAM low,POAM high,POAM n,paper,paper half width,paper source,IPPO-NAHT")
    first = content.lead.rows[0][1]
    assert rows[1].split(",")[:5] == [
        "Predator-prey",
        f"{first.mean:.6g}",
        f"{first.low:.6g}",
        f"{first.high:.6g}",
        "5",
    ]
    browser.click("figure[data-figure=mpe-pp-strangers] .csv")
    rows = saved(browser, "mpe-pp-strangers.csv").strip().split("\r\n")
    assert len(rows) == 1 + 2 * 3 * 5
    assert rows[0].split(",")[:4] == ["panel", "series", "method", "strangers trained with"]
    browser.click("figure[data-figure=mpe-pp-strangers] .svg")
    root = ET.fromstring(saved(browser, "mpe-pp-strangers.svg"))
    assert "prefers-color-scheme" in root[0].text


def test_runs_can_be_searched(browser):
    browser.ask("document.querySelector('#runs > details').open = true")
    browser.click("#runs .filter")
    for letter in "poam-aht":
        browser.press(letter)
    shown = "[...document.querySelectorAll('#runs tbody tr')].filter(r => !r.hidden).length"
    browser.wait(f"{shown} === 10")
    assert browser.ask("document.querySelector('.found').textContent") == "10 of 30"
    browser.ask("document.querySelector('#runs > details').open = false")


def test_light_and_dark(browser):
    paper = "getComputedStyle(document.body).backgroundColor"
    light = browser.ask(paper)
    browser.click("#theme")
    dark = browser.ask(paper)
    assert dark != light
    corner = "document.querySelector('#player .stage canvas').getContext('2d').getImageData(2, 2, 1, 1).data[0]"
    assert browser.ask(corner) < 60
    browser.send("Page.reload")
    browser.wait("!!document.querySelector('#player')?.dataset.step")
    assert browser.ask(paper) == dark  # remembered
    browser.click("#theme")
    assert browser.ask(paper) == light
    assert browser.ask(corner) > 200


def test_nothing_moves_for_those_who_prefer_that(browser):
    browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
    browser.open(browser.page)
    frame = "document.querySelector('#hero canvas').toDataURL()"
    browser.spot("#hero canvas")
    time.sleep(0.1)
    still = browser.ask(frame)
    time.sleep(0.25)
    assert browser.ask(frame) == still
    assert browser.ask("document.querySelector('#hero .play').getAttribute('aria-pressed')") == "false"
    assert browser.complaints() == []
