"""Foraging in films and on the page."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from PIL import ImageColor

import naht
from foraging import KEY, numpy, reset
from naht.agents.scripted import make_bot
from naht.envs.lbf import Lbf
from naht.report.canvas import FIELD, OURS, STRANGER
from naht.report.drawings import FOOD, draw_foraging, field_view, foraging_facts, loads
from naht.report.episodes import as_episode, read_episodes, write_episodes
from naht.report.page import write_page
from naht.report.recording import record
from naht.report.replay import draw_frame
from naht.report.worlds import believed_in_field, show_foraging
from page_content import example
from test_browser import Browser, chromium


@pytest.fixture(scope="module")
def episodes():
    """Two of ours with a stranger, who sees only a part; some are cleared."""
    env = Lbf(sight=3)
    ours, theirs = ([naht.Member(name, make_bot(name, env.spec))] for name in ("together", "nearest"))
    return record(env, naht.Population(ours), naht.Population(theirs), num_controlled=2, episodes=12, seed=3)


def test_food_goes_because_it_was_loaded(episodes):
    counted = Counter()
    for replay in episodes:
        shown, levels = show_foraging(replay), replay.states.food_level
        for t in range(1, replay.length + 1):
            taken = {load.food for load in loads(replay, t) if load.taken}
            assert taken == set(np.flatnonzero((levels[t] == 0) & (levels[t - 1] > 0)).tolist())
            counted["in vain"] += sum(not load.taken for load in loads(replay, t))
        assert loads(replay, 0) == []
        gone = (levels[0] > 0).sum() - (levels[-1] > 0).sum()
        assert len(shown["events"]) == gone
        counted["taken"] += gone
        counted[shown["outcome"]] += 1
        assert (shown["outcome"] == "cleared") == (levels[-1].sum() == 0)
        np.testing.assert_array_equal(shown["places"][:, :3, 0], replay.states.player[:, 1])
        np.testing.assert_array_equal(shown["places"][:, :3, 1], -replay.states.player[:, 0])
        np.testing.assert_array_equal(shown["health"][:, 3:], levels > 0)
        assert shown["levels"] == (*replay.states.player_level[0], *levels[0])
    assert min(counted.values()) > 1, counted


def test_the_picture_shows_food_until_it_is_taken(episodes):
    replay = next(r for r in episodes if r.metrics["cleared"][-1] > 0)
    view, green = field_view(replay.env), ImageColor.getrgb(FOOD)
    for t in (0, replay.length // 2, replay.length):
        picture = draw_foraging(replay, t, 0)
        for (row, col), level in zip(replay.states.food[t].T, replay.states.food_level[t], strict=True):
            x, y = view.place(col, -row)
            corner = picture.getpixel((int(x - 0.28 * view.scale), int(y - 0.28 * view.scale)))
            assert (corner == green) == (level > 0)
    assert foraging_facts(replay, replay.length) == {"food left": "0 / 3", "collected": "100%"}
    assert draw_frame(replay, replay.length).size[1] == FIELD


def test_those_who_share_a_cell_are_both_seen(episodes):
    replay = episodes[0]
    together = np.repeat(replay.states.player[:, :, :1], 3, axis=2)
    shared = replace(replay, states=replay.states._replace(player=together))
    picture = np.asarray(draw_foraging(shared, 0, 0)).reshape(-1, 3)
    for colour in (OURS, STRANGER):
        assert (picture == ImageColor.getrgb(colour)).all(1).sum() > 200


def test_what_teammates_see_says_where_they_are():
    env = Lbf()
    state, shown = numpy(reset(env, jax.random.split(KEY, 20)))
    replay = SimpleNamespace(env=env)
    x, y = np.moveaxis(believed_in_field(replay, 0, shown.obs[:, 1:]), -1, 0)
    np.testing.assert_array_equal(x, state.player[:, 1, 1:])
    np.testing.assert_array_equal(y, -state.player[:, 0, 1:])
    assert np.isnan(believed_in_field(SimpleNamespace(env=Lbf(sight=2)), 0, shown.obs[:, 1:])).all()


def test_a_page_plays_it(episodes, tmp_path):
    agent = SimpleNamespace(decoders={})
    cleared = next(r for r in episodes if r.metrics["cleared"][-1] > 0)
    shown = as_episode(cleared, agent, method="together", strangers="nearest", label="typical")
    write_episodes(tmp_path / "one.json.gz", [shown])
    (back,) = read_episodes(tmp_path / "one.json.gz")
    assert back.levels == shown.levels
    np.testing.assert_array_equal(back.places, shown.places)
    content = example()
    page = write_page(replace(content, tasks=(replace(content.tasks[0], episodes=(back,)),)), tmp_path / "page.html")
    browser = Browser(chromium(), tmp_path)
    try:
        browser.size(1200)
        browser.open(page)
        now = "document.querySelector('#player .now').textContent"
        browser.wait(f"{now}.includes('step 0')")
        browser.ask("document.querySelector('#player').dispatchEvent(new KeyboardEvent('keydown', {key: 'End'}))")
        browser.wait(f"{now}.includes('food of level')")
        assert f"step {cleared.length} / {cleared.length}" in browser.ask(now)
        assert (
            browser.ask("document.querySelector('[data-choice=episode]').textContent") == "typical (cleared, return 1)"
        )
        assert browser.complaints() == []
    finally:
        browser.close()
