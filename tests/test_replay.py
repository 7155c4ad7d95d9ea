"""Recorded episodes are what was played, and pictures show them."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageColor

import naht
from naht.agents.saved import Agent
from naht.agents.scripted import Bernoulli, Turns, UniformRandom
from naht.cli import main
from naht.config import encode
from naht.envs.base import task_hash
from naht.envs.bit_game import BitGame
from naht.envs.predator_prey import PREDATOR_RADIUS, PredatorPrey, PredatorPreyState
from naht.envs.prey import Prey
from naht.envs.smac.maps import MAPS
from naht.envs.smac.task import Smac, SmacState
from naht.report.canvas import FIELD, INK, OURS, STRANGER
from naht.report.drawings import (
    CATCH,
    ENEMY,
    HEALTH,
    PREY,
    SHIELD,
    attack_line,
    attacks,
    battle_facts,
    battle_view,
    draw_battle,
    draw_bit_game,
    draw_predator_prey,
    touching,
)
from naht.report.replay import PANEL, Replay, draw_frame, record, save_replay, spaced
from probes import Rough


@dataclass(frozen=True)
class Chaser:
    """Runs to where the prey is (for M = 3 and two obstacles)."""

    def init(self, key):
        return ()

    def initial_memory(self, batch):
        return jnp.zeros(batch)

    def act(self, params, memory, percept, key, greedy):
        x, y = percept.obs[..., 12], percept.obs[..., 13]
        sideways, upright = jnp.where(x > 0, 1, 2), jnp.where(y > 0, 3, 4)
        action = jnp.where(jnp.abs(x) > jnp.abs(y), sideways, upright).astype(jnp.int32)
        return action, memory, jnp.zeros(action.shape)


def chasers(*names):
    return naht.Population([naht.Member(name, Chaser()) for name in names])


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    """Predator-prey with a small random prey."""
    rng = np.random.default_rng(0)
    layers = tuple((rng.normal(0, 0.5, s).astype(np.float32), np.zeros(s[1], np.float32)) for s in ((14, 8), (8, 5)))
    path = tmp_path_factory.mktemp("prey") / "prey.safetensors"
    Prey(layers, {}).save(path)
    return PredatorPrey(prey=str(path), horizon=30)


def play(env, seed):
    """Thirty-two episodes of two agents and one of two strangers."""
    return record(env, chasers("a", "b"), chasers("c", "d"), num_controlled=2, episodes=32, seed=seed, mix=True)


@pytest.fixture(scope="module")
def hunt(env):
    """An episode with touches and catches."""
    return max(play(env, 5), key=lambda replay: replay.episode_return)


@pytest.fixture(scope="module")
def rough():
    """Episodes of a world without a drawing."""
    team = naht.Population([naht.Member("x", Bernoulli(0.5))])
    return record(Rough(), team, team, num_controlled=1, episodes=24, seed=3)


def test_recorded_episodes_replay_in_the_environment(env, hunt):
    assert hunt.length == env.horizon
    assert len(hunt.states.position) == hunt.length + 1
    before = jax.tree.map(lambda leaf: leaf[:-1], hunt.states)
    after, shown = jax.vmap(lambda s, a: env.step(jax.random.key(0), s, a))(before, hunt.actions)
    np.testing.assert_allclose(after.position, hunt.states.position[1:], atol=1e-5)
    np.testing.assert_allclose(shown.reward, hunt.rewards, atol=1e-4)
    np.testing.assert_array_equal(shown.metrics["catches"], hunt.metrics["catches"][1:])
    assert np.asarray(shown.truncated).tolist() == [False] * (hunt.length - 1) + [True]
    assert hunt.episode_return == pytest.approx(hunt.rewards.sum(), abs=1e-4)
    assert hunt.running_return[0] == 0
    np.testing.assert_allclose(np.diff(hunt.running_return), hunt.rewards, atol=1e-6)


def test_episodes_of_any_length_are_whole(rough):
    """Rough ends early or late, terminates or times out, and its reward tells which state and action it came from."""
    for r in rough:
        time, ends, _, dead = r.states
        np.testing.assert_array_equal(time, np.arange(r.length + 1))
        assert r.length == min(Rough().horizon, ends[0])
        np.testing.assert_array_equal(r.rewards, (r.actions * ~dead[:-1]).sum(1))
        np.testing.assert_array_equal(r.metrics["deaths"], dead.sum(1))
        assert r.controlled.sum() == 1
    assert len({r.length for r in rough}) > 3
    assert [r.episode for r in rough] == list(range(24))


def test_the_seed_decides_and_agents_share_the_controlled_seats(env):
    first, again, other = play(env, 5), play(env, 5), play(env, 6)
    for x, y in zip(first, again, strict=True):
        assert x.seats == y.seats
        np.testing.assert_array_equal(x.states.position, y.states.position)
    assert any((x.states.position != y.states.position).any() for x, y in zip(first, other, strict=True))
    for r in first:
        assert sorted(np.array(r.seats)[r.controlled]) == ["a", "b"]  # nobody sits twice while there are enough
        assert set(np.array(r.seats)[~r.controlled]) <= {"c", "d"}
    assert {r.controlled.tolist().index(False) for r in first} == {0, 1, 2}


def hand_made(env, predators, steps=1):
    """A replay in which nobody moves: predators [3][2] around a prey at the origin, obstacles far away."""
    position = np.array([*predators, (0, 0), (-0.7, 0.7), (0.7, 0.7)], np.float32).T
    frames = [PredatorPreyState(position, np.zeros((2, 4)), np.array(t), np.array(0.0)) for t in range(steps + 1)]
    states = jax.tree.map(lambda *leaves: np.stack(leaves), *frames)
    controlled = np.array([True, False, True])
    metrics = {"catches": np.zeros(steps + 1)}
    return Replay(env, 0, ("a", "c", "b"), controlled, states, np.zeros((steps, 3), int), np.zeros(steps), metrics)


def has(picture, colour):
    return ImageColor.getrgb(colour) in {c for _, c in picture.getcolors(2**16)}


@pytest.mark.parametrize(
    ("predators", "touches"),
    [
        ([(0.5, 0), (0, -0.5), (-0.23, 0)], [False, False, False]),
        ([(0.5, 0), (0, -0.22), (-0.5, 0)], [False, True, False]),
        ([(0.22, 0), (0, -0.22), (-0.5, 0)], [True, True, False]),
        ([(0.15, 0), (0, -0.2), (-0.2, 0)], [True, True, True]),
    ],
)
def test_rings_and_catches_are_those_of_the_state(env, predators, touches):
    replay = hand_made(env, predators)
    picture = draw_predator_prey(replay, 1, 0)
    assert picture.size == (FIELD, FIELD)
    scale = FIELD / (1.06 * 2)
    for (x, y), touch, controlled in zip(predators, touches, replay.controlled, strict=True):
        # Just outside the predator's disc, on the side that faces away from the prey.
        away = np.array([x, -y]) / np.hypot(x, y)
        at = FIELD / 2 + scale * np.array([x, -y]) + away * (scale * PREDATOR_RADIUS + 1.5)
        pixel = picture.getpixel((int(at[0]), int(at[1])))
        assert (max(pixel) < 100) == touch
        beside = FIELD / 2 + scale * np.array([x, -y]) + [0, 0.75 * scale * PREDATOR_RADIUS]
        blue = picture.getpixel((int(beside[0]), int(beside[1])))[2] > 128
        assert blue == controlled
    assert has(picture, CATCH) == (sum(touches) >= 2)
    assert has(picture, PREY) == (sum(touches) < 2)
    assert not has(draw_predator_prey(replay, 0, 0), CATCH)  # an episode's start is no catch


def test_catches_of_an_episode_are_drawn_when_they_are_counted(hunt):
    counted = np.diff(hunt.metrics["catches"]) > 0
    assert counted.any()
    assert not counted.all()
    np.testing.assert_array_equal(touching(hunt.states.position, 3).sum(1)[1:] >= 2, counted)
    for t in (counted.argmax(), counted.argmin()):
        assert has(draw_predator_prey(hunt, int(t) + 1, int(t) + 1), CATCH) == counted[t]


def test_the_view_holds_whoever_leaves(env):
    replay = hand_made(env, [(3.0, 0), (0, -0.5), (0, 0.5)])
    picture = draw_predator_prey(replay, 1, 0)
    blue = np.argwhere((np.asarray(picture) == ImageColor.getrgb("#0072b2")).all(-1))
    assert len(blue) > 50
    assert blue.max() < FIELD - 2  # the runaway is whole and within the picture


@dataclass(frozen=True)
class Attacker:
    """Attacks the enemy with the lowest number that it may; otherwise goes east, if it can."""

    def init(self, key):
        return ()

    def initial_memory(self, batch):
        return jnp.zeros(batch)

    def act(self, params, memory, percept, key, greedy):
        wish = jnp.array([0, 1, 0, 0, 2, 0, 5, 4, 3])
        action = jnp.where(percept.avail, wish, -1).argmax(-1).astype(jnp.int32)
        return action, memory, jnp.zeros(action.shape)


@pytest.fixture(scope="module")
def fights():
    """Battles of 3m: two who attack, and a stranger who does anything."""
    ours = naht.Population([naht.Member("attacker", Attacker())])
    theirs = naht.Population([naht.Member("random", UniformRandom())])
    return record(Smac("3m"), ours, theirs, num_controlled=2, episodes=4, seed=2)


def hand_made_battle(name, frames=2, **settings):
    """A replay in which everybody stays at the start and in good health."""
    env = Smac(name)
    units = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf)[None, :, 0], frames, 0), env.battle.start())
    m, steps = env.spec.num_agents, frames - 1
    states = SmacState(units, np.full((frames, m), 1), np.arange(frames))
    controlled = np.arange(m) > 0
    metrics = {"battle_won": np.zeros(frames)}
    idle = np.ones((steps, m), int)
    return Replay(env, 0, ("a",) * m, controlled, states, idle, np.zeros(steps), metrics, **settings)


def with_units(replay, **changes):
    return replace(replay, states=replay.states._replace(units=replay.states.units._replace(**changes)))


def unit_places(replay, step):
    """Centres of all units in the picture, [N, 2], and their radii, [N]."""
    view, units = battle_view(replay), replay.states.units
    centres = [view.place(x, y) for x, y in zip(units.x[step], units.y[step], strict=True)]
    return np.array(centres), view.scale * replay.env.battle.each("separation")[:, 0]


def vivid(picture, at):
    """Whether a pixel has one of the strong colours: neither paper nor ink nor a pale tint."""
    return np.ptp(np.array(picture.getpixel((int(at[0]), int(at[1]))))) > 60


def count(picture, colour):
    return int((np.asarray(picture) == ImageColor.getrgb(colour)).all(-1).sum())


def test_shots_are_what_takes_health(fights):
    """A marine's shot takes 6, and nobody shoots at a corpse. Enemies turn to others, before their shots and after."""
    checked = 0
    for replay in fights:
        health = replay.states.units.health
        assert attacks(replay, 0) == []
        for t in range(1, replay.length + 1):
            shots = np.zeros(6)
            for shot in attacks(replay, t):
                shots[shot.victim] += shot.fired
                assert (shot.shooter < 3) != (shot.victim < 3)
            lost, expected = health[t - 1] - health[t], np.minimum(6 * shots, health[t - 1])
            np.testing.assert_array_equal(lost, expected)
            checked += (lost[:3] > 0).sum()
    assert checked > 20
    assert any(not shot.fired for shot in attacks(fights[0], fights[0].length // 2))


def test_attacks_are_lines_from_shooter_to_victim(fights):
    replay = fights[0]
    peace = replace(replay, states=replay.states._replace(last_action=np.ones_like(replay.states.last_action)))
    units = replay.states.units
    peace = with_units(peace, target=np.full_like(units.target, -1), cooldown=np.zeros_like(units.cooldown))
    checked = 0
    for t in range(1, replay.length + 1, 3):
        fight, rest = draw_battle(replay, t, t), draw_battle(peace, t, t)
        centres, radii = unit_places(replay, t)
        for shot in attacks(replay, t):
            ends = (shot.shooter, shot.victim)
            start, end = attack_line(*centres[list(ends)].tolist(), *radii[list(ends)])
            assert np.hypot(*np.subtract(end, start)) < np.hypot(*np.subtract(*centres[list(ends)]))
            middle = np.mean([start, end], axis=0)
            if shot.fired and not vivid(rest, middle):
                assert vivid(fight, middle)
                checked += 1
    assert checked > 5


def test_the_fallen_are_pale_crosses():
    replay = hand_made_battle("3m")
    centres, radii = unit_places(replay, 1)
    below = centres + [0, 0.65] * radii[:, None]  # on a disc, but between the arms of a cross
    assert all(vivid(draw_battle(replay, 1, 1), at) for at in below)
    for k in range(6):
        health = replay.states.units.health.copy()
        health[1, k] = 0
        picture = draw_battle(with_units(replay, health=health), 1, 1)
        assert [vivid(picture, at) for at in below] == [other != k for other in range(6)]
        colour = ENEMY if k >= 3 else OURS if replay.controlled[k] else STRANGER
        cross = np.array(picture.getpixel((int(centres[k, 0]), int(centres[k, 1]))))
        assert np.ptp(cross) > 30
        assert np.abs(cross - ImageColor.getrgb(colour)).max() > 40


def test_bars_show_what_is_left():
    for name, shielded in (("3m", 0), ("3s5z", 8)):
        whole = hand_made_battle(name)
        units = whole.states.units
        full = draw_battle(whole, 1, 1)
        hurt = draw_battle(with_units(whole, health=units.health / 2, shield=units.shield / 4), 1, 1)
        assert count(hurt, HEALTH) == pytest.approx(count(full, HEALTH) / 2, rel=0.15)
        assert (count(full, SHIELD) > 0) == (shielded > 0)
        assert count(hurt, SHIELD) == pytest.approx(count(full, SHIELD) / 4, rel=0.25)


def test_the_selected_agent_is_ringed_and_shows_its_sight():
    assert hand_made_battle("5v6").selected == 1  # the first controlled seat
    for seat in range(5):
        replay = hand_made_battle("5v6", select=seat)
        picture = draw_battle(replay, 1, 1)
        centres, radii = unit_places(replay, 1)
        rings = [picture.getpixel((int(x - r - 1.5), int(y))) for (x, y), r in zip(centres, radii, strict=True)]
        assert [max(pixel) < 80 for pixel in rings] == [k == seat for k in range(11)]
        x, y = centres[seat]
        scale = battle_view(replay).scale
        inside, outside = (picture.getpixel((int(x + scale * far), int(y - scale * 2.5))) for far in (8.0, 9.0))
        assert inside != outside == (255, 255, 255)
    health = replay.states.units.health.copy()
    health[1, 4] = 0
    picture = draw_battle(with_units(replay, health=health), 1, 1)  # the dead see nothing
    assert picture.getpixel((int(x + scale * 8), int(y - scale * 2.5))) == (255, 255, 255)
    with pytest.raises(naht.NahtError, match="select is 3: a team of 3 has seats 0 to 2"):
        record(Smac("3m"), chasers("a"), chasers("b"), select=3)


def test_a_battle_is_seen_whole_and_from_one_place(fights):
    for replay in fights:
        for t in range(replay.length + 1):
            centres, radii = unit_places(replay, t)
            assert (centres - radii[:, None] > 8).all()  # room for bars
            assert (centres + radii[:, None] < FIELD - 2).all()


def test_a_battle_says_who_is_left_and_who_won(fights):
    for replay in fights:
        dead = replay.metrics["dead_allies"][-1]
        said = battle_facts(replay, replay.length)
        assert said["allies alive"] == f"{3 - dead:.0f} / 3"
        assert said["battle"] == ("won" if replay.metrics["battle_won"][-1] else "lost")
        assert battle_facts(replay, 1) == {"allies alive": "3 / 3", "enemies alive": "3 / 3", "battle": "going on"}
    won = replace(hand_made_battle("3m"), metrics={"battle_won": np.array([0.0, 1.0])})
    assert battle_facts(won, 1)["battle"] == "won"
    assert draw_frame(won, 1).tobytes() != draw_frame(hand_made_battle("3m"), 1).tobytes()


@pytest.mark.parametrize("name", MAPS)
def test_every_map_has_a_drawing(name, tmp_path):
    with Image.open(save_replay([hand_made_battle(name, 3)], tmp_path / "battle.gif")) as film:
        assert film.n_frames == 3
        assert film.size == (FIELD + PANEL, FIELD)


@pytest.fixture(scope="module")
def bits():
    env = BitGame(horizon=6)
    ours = naht.Population([naht.Member("ours", Turns(3))])
    theirs = naht.Population([naht.Member("theirs", Bernoulli(0.5))])
    return record(env, ours, theirs, num_controlled=2, episodes=3)


def test_bits_are_drawn_as_they_were_played(bits):
    for r in bits:
        pixels = np.asarray(draw_bit_game(r, 5, 0)).astype(int)
        rows, left = (FIELD - 62 - 16) / 6, (FIELD - 92 * 4) / 2
        for t in range(6):
            y = int(62 + rows * (t + 0.5))
            cells = [pixels[y, int(left + 92 * (k + 0.5))] for k in range(4)]
            for k in range(3):
                assert (np.ptp(cells[k]) > 100) == (t < 5 and r.actions[t, k] == 1)
            assert (np.ptp(cells[3]) > 100) == (t < 5 and r.rewards[t] > 0)


def test_a_gif_has_every_frame(bits, tmp_path):
    path = save_replay(bits, tmp_path / "new" / "game.gif", fps=20)
    with Image.open(path) as film:
        assert film.n_frames == 3 * 7
        assert film.size == (FIELD + PANEL, FIELD)
        assert film.info["loop"] == 0
        seen, durations = set(), []
        for i in range(film.n_frames):
            film.seek(i)
            durations.append(film.info["duration"])
            seen.add(film.convert("RGB").tobytes())
    assert len(seen) == 3 * 7
    assert durations == [*[50] * 6, 1000] * 3
    with Image.open(save_replay(bits[:1], tmp_path / "thin.gif", frames=3)) as film:
        assert film.n_frames == 3


def test_a_single_catch_is_red_in_a_gif_and_paper_white(env, tmp_path):
    replay = hand_made(env, [(0.5, 0), (0, -0.5), (-0.3, 0)], steps=25)
    replay.states.position[20, :, :2] /= 3
    path = save_replay([replay], tmp_path / "hunt.gif")
    with Image.open(path) as film:
        assert film.n_frames == 26
        film.seek(20)
        shown = np.asarray(film.convert("RGB")).astype(int)
    drawn = np.asarray(draw_frame(replay, 20)).astype(int)
    red = (drawn == ImageColor.getrgb(CATCH)).all(-1)
    assert red.sum() > 100
    assert np.abs(shown - drawn)[red].max() < 10
    assert (shown == drawn).all(-1).mean() > 0.98


def test_frames_differ_and_say_where_they_are(hunt):
    pictures = [draw_frame(hunt, t).tobytes() for t in (0, 1, 15, 30)]
    assert len(set(pictures)) == 4
    with pytest.raises(naht.NahtError, match="frames 0 to 30"):
        draw_frame(hunt, 31)


def test_a_strip_shows_evenly_spaced_frames(hunt, bits, tmp_path):
    assert spaced(hunt, 4) == [0, 10, 20, 30]
    assert spaced(hunt, None) == list(range(31))
    assert spaced(bits[0], 50) == list(range(7))
    with Image.open(save_replay([hunt, hunt], tmp_path / "strip.png", frames=6)) as strip:  # two rows of three each
        assert strip.size[0] >= 3 * FIELD + PANEL
        assert strip.size[1] >= 4 * FIELD
        assert has(strip.convert("RGB"), INK)


def fake_ffmpeg(folder: Path, script: str) -> str:
    program = folder / "ffmpeg"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_mp4_gives_ffmpeg_every_frame(bits, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", fake_ffmpeg(tmp_path, 'for last; do :; done; cat > "$last"'))
    path = save_replay(bits[:2], tmp_path / "film.mp4", fps=5)
    assert path.stat().st_size == 2 * (6 + 5) * (FIELD + PANEL) * FIELD * 3  # the last frame stays for a second
    monkeypatch.setenv("PATH", fake_ffmpeg(tmp_path, "echo first >&2; echo no such codec >&2; exit 1"))
    with pytest.raises(naht.NahtError, match="could not make the film: no such codec"):
        save_replay(bits, tmp_path / "other.mp4")
    assert not (tmp_path / "other.mp4").exists()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(naht.NahtError, match="needs the program ffmpeg"):
        save_replay(bits, tmp_path / "other.mp4")


def test_a_task_without_a_drawing_shows_who_does_what(rough, tmp_path):
    """A cell for every action, and the number in it."""
    save_replay(rough, tmp_path / "rough.gif")
    before, after = (np.asarray(draw_frame(rough[0], step)) for step in (0, 1))
    cells = (before != after).any(-1)[:, : before.shape[0]]
    assert cells.sum() > 1000


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Two agents on disk: of the bit game, and of one with four players."""
    folder = tmp_path_factory.mktemp("agents")
    for name, env in (("ours", BitGame(horizon=6)), ("four", BitGame(4))):
        card = {"task": encode(env), "task_hash": task_hash(env), "config": {"teams": {"teammates": ["bernoulli"]}}}
        Agent(name, Turns(env.num_agents), (), env.spec, card).save(folder / f"{name}.safetensors")
    agent = naht.load_agent(folder / "ours.safetensors")
    for name, file in (("ours", "same-name"), ("stranger", "other-name")):
        replace(agent, name=name, policy=Bernoulli(0.1)).save(folder / f"{file}.safetensors")
    return folder


def test_watch_from_the_command_line(saved, capsys, monkeypatch):
    monkeypatch.chdir(saved)
    assert main(["watch", "ours.safetensors"]) == 0
    out = capsys.readouterr().out
    assert "*ours" in out
    assert "bernoulli" in out
    assert "Saved as watch.gif" in out
    with Image.open("watch.gif") as film:
        assert film.n_frames == 7
    agents = ["ours.safetensors", "same-name.safetensors"]
    flags = ["--teammates", "static", "turns", "--num-controlled", "2", "--episodes", "2", "--seed", "7"]
    assert main(["watch", *agents, *flags, "--out", "match.gif", "--frames", "3"]) == 0
    out = capsys.readouterr().out
    assert out.count("*ours.safetensors") == out.count("*same-name.safetensors") == 2
    assert out.count("static") + out.count("turns") == 2
    with Image.open("match.gif") as film:
        assert film.n_frames == 6
    assert main(["watch", agents[0], "--out", "strip.png", "--frames", "4"]) == 0
    assert Path("strip.png").exists()
    assert main(["watch", agents[0], "--teammates", "other-name.safetensors", "--out", "named.png"]) == 0
    assert "stranger" in capsys.readouterr().out
    assert main(["watch", agents[0], "--num-controlled", "0", "--out", "nobody.png"]) == 0
    assert "*ours" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--out", "watch.avi"], "'watch.avi': it must end in .gif, .mp4 (films) or .png"),
        (["--out", "watch"], "it must end in"),
        (["--out", "watch.mp4"], "watch.mp4 needs the program ffmpeg"),
        (["--num-controlled", "4"], "N is 4: a team of 3 has between 0 and 3"),
        (["--teammates", "truns"], "did you mean turns?"),
        (["--episodes", "0"], "episodes is 0"),
        (["--seed", "-1"], "seed is -1"),
        (["--fps", "0"], "fps is 0"),
        (["--frames", "1"], "frames is 1"),
        (["--select", "3"], "select is 3: a team of 3 has seats 0 to 2"),
        (["--select", "-1"], "select is -1: a team of 3 has seats 0 to 2"),
        (["nowhere"], "nowhere is no agent, run or population"),
        (["FOUR"], "teammates must share the task's sizes"),
        (["OURS"], "distinct names"),
    ],
)
def test_mistakes_are_one_line_before_any_work(saved, capsys, tmp_path, monkeypatch, flags, sentence):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    names = {"FOUR": str(saved / "four.safetensors"), "OURS": str(saved / "ours.safetensors")}
    code = main(["watch", names["OURS"], *[names.get(flag, flag) for flag in flags]])
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert sentence in captured.err
    assert list(tmp_path.iterdir()) == []
