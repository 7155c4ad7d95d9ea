"""Pages in a real browser, by mouse, keyboard and touch: headless Chromium over its debugging pipe."""

import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from naht.report import charts, page
from naht.report.charts.numbers import describe
from naht.report.content import Content
from page_content import example, figures

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


@pytest.fixture(scope="module")
def content() -> Content:
    return example()


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


def test_battles_show_shots_sight_and_who_is_out_of_it(browser, content):
    browser.ask(
        "(() => { const s = document.querySelector('[data-choice=task]'); s.value = '10v11';"
        "s.dispatchEvent(new Event('change')) })()"
    )
    browser.wait("document.querySelectorAll('.seats button').length === 10")
    episode = content.tasks[1].episodes[0]
    step, team = 25, 10
    assert (episode.aims[step - 1] >= 0).any()
    browser.ask("document.querySelector('#player canvas').focus()")
    browser.press("Home")
    for _ in range(step):
        browser.press("ArrowRight")
    alive = episode.health[step] > 0
    seat = next(b.seat for b in episode.beliefs if alive[b.seat])
    browser.press(str((seat + 1) % 10))
    now = browser.ask("document.querySelector('#player .now').textContent")
    assert f"allies {alive[:team].sum()} / 10" in now
    assert f"enemies {alive[team:].sum()} / 11" in now
    legend = browser.ask("document.querySelector('.legend').textContent")
    for said in ("10 marines", "11 marines, enemies", "sight (9)", "reach (5.75)", "health", "thought to be there"):
        assert said in legend
    # Which teammates are too far away to be seen, and which have fallen.
    places = episode.places[step]
    far = np.hypot(*(places[:team] - places[seat]).T) >= 9
    others = [k for k in range(team) if k != seat]
    said = browser.ask("[...document.querySelectorAll('.mind .said')].map(s => s.textContent)")
    assert far[others].any()
    assert ["out of sight" in text for text in said] == [bool(far[k] and alive[k]) for k in others]
    assert ["has fallen" in text for text in said] == [not alive[k] for k in others]
    assert browser.ask("[...document.querySelectorAll('.seats .gone')].length") == (~alive[:team]).sum()
    # The mouse asks what a unit is. An enemy with nobody beside it:
    apart = np.hypot(*(places[:, None] - places[None]).T) + 99 * np.eye(len(places))
    enemy = max((k for k in range(team, 21) if alive[k]), key=lambda k: apart[k].min())
    left, bottom, right, top = episode.bounds
    x, y = places[enemy]
    browser.mouse("mouseMoved", browser.spot("#player .stage", (x - left) / (right - left), (top - y) / (top - bottom)))
    said = browser.ask("document.querySelector('#tip').textContent")
    assert said.startswith(f"enemy {enemy - team + 1}, marine\nhealth {round(100 * episode.health[step, enemy])}")
    browser.mouse("mouseMoved", (2, 2))
    # Selecting another one moves the circles; a bar says which action it is.
    picture = "document.querySelector('#player .stage canvas').toDataURL()"
    before = browser.ask(picture)
    other = next(b.seat for b in episode.beliefs if b.seat != seat)
    browser.press(str((other + 1) % 10))
    assert browser.ask(picture) != before
    browser.mouse("mouseMoved", browser.spot(".mind .bars i:last-child"))
    assert browser.ask("document.querySelector('#tip').textContent").startswith("attack 11: ")
    options = browser.ask("[...document.querySelector('[data-choice=episode]').options].map(o => o.textContent)")
    assert options[0].startswith("typical (lost, return ")
    assert browser.complaints() == []
    browser.open(browser.page)


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
