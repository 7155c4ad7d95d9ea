"""Level-based foraging: step by step beside lbforaging, rules by hand, layouts by enumeration, bots that find food."""

import warnings
from collections import Counter
from dataclasses import replace
from itertools import permutations, product
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import ImageColor

import naht
from naht import NahtError, check_environment, make_env
from naht.agents.policy import NO_ACTION, Percept
from naht.agents.scripted import BOTS, Forager, make_bot
from naht.config import decode, encode
from naht.envs.base import worlds_last
from naht.envs.lbf import EAST, LOAD, NONE, NORTH, NUM_ACTIONS, SOUTH, WEST, Lbf, LbfState
from naht.report.canvas import FIELD, OURS, STRANGER
from naht.report.drawings import FOOD, draw_foraging, field_view, foraging_facts, loads
from naht.report.episodes import as_episode, read_episodes, write_episodes
from naht.report.page import write_page
from naht.report.recording import record
from naht.report.replay import draw_frame
from naht.report.worlds import believed_in_field, show_foraging
from page_content import example
from test_browser import Browser, chromium

reset = jax.jit(jax.vmap(Lbf.reset, in_axes=(None, 0)), static_argnums=0)
step = jax.jit(jax.vmap(Lbf.step, in_axes=(None, None, 0, 0)), static_argnums=0)
one_step = jax.jit(Lbf.step, static_argnums=0)
KEY = jax.random.key(0)


def numpy(tree):
    return jax.tree.map(np.asarray, tree)


def world(tree, i):
    return jax.tree.map(lambda leaf: leaf[i], tree)


# --- beside lbforaging ---


def lbforaging(env):
    """The real game with our settings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from lbforaging.foraging.environment import ForagingEnv

        game = ForagingEnv(
            players=env.num_agents,
            min_player_level=env.min_player_level,
            max_player_level=env.max_player_level,
            min_food_level=env.min_food_level,
            max_food_level=env.max_food_level,
            field_size=(env.rows, env.width),
            max_num_food=env.foods,
            sight=env.reach,
            max_episode_steps=env.horizon,
            force_coop=env.coop,
            normalize_reward=env.normalise,
            penalty=env.penalty,
        )
    # Where a field is not square, it takes rows for columns in the limits of observations, and refuses its own.
    limits = game.observation_space[0]
    game.observation_space = [type(limits)(-1, 99, limits.shape)] * env.num_agents
    return game


def field_of(env, state):
    """Food levels on the grid."""
    field, there = np.zeros((env.rows, env.width), np.int32), state.food_level > 0
    field[tuple(state.food[:, there])] = state.food_level[there]
    return field


def put(theirs, env, state):
    """Set the real game to a state of ours."""
    theirs.field = field_of(env, state)
    for k, player in enumerate(theirs.players):
        player.setup(tuple(state.player[:, k].tolist()), int(state.player_level[k]), theirs.field_size)
    theirs._food_spawned, theirs.current_step, theirs._game_over = state.spawned, int(state.time), False
    theirs._gen_valid_moves()
    return np.array(theirs._make_gym_obs())


def assert_same(theirs, env, state, ts, obs):
    places = [player.position for player in theirs.players]
    np.testing.assert_array_equal(state.player.T, places)
    np.testing.assert_array_equal(state.player_level, [player.level for player in theirs.players])
    np.testing.assert_array_equal(field_of(env, state), theirs.field)
    np.testing.assert_array_equal(ts.obs, obs)
    allowed = [[a.value for a in theirs._valid_actions[player]] for player in theirs.players]
    assert [np.flatnonzero(row).tolist() for row in ts.avail] == allowed
    assert ts.metrics["collected"] == pytest.approx(1 - theirs.field.sum() / state.spawned, abs=1e-6)


GAMES = {
    "default": Lbf(),
    "two players": Lbf(2, 2, rows=6, horizon=30),
    "crowded": Lbf(7, 2, rows=5, horizon=60),
    "coop": Lbf(3, 2, rows=5, coop=True, penalty=0.1),
    "short sight": Lbf(4, 3, rows=7, sight=2),
    "shortest sight": Lbf(5, 4, rows=6, cols=9, sight=1, penalty=0.25),
    "wide": Lbf(3, 4, rows=4, cols=12, sight=4, horizon=20, min_food_level=2, max_food_level=5),
    "levels": Lbf(4, 3, rows=6, min_player_level=2, max_player_level=5, normalise=False, penalty=1.5),
    "alone": Lbf(1, 1, rows=3, cols=5, sight=2),
}


def test_games_are_those_of_lbforaging():
    """Same start, same actions, all of them allowed or not: everything is equal after every step."""
    happened = Counter()
    for name, env in GAMES.items():
        rng, worlds, m = np.random.default_rng(len(name)), 24, env.num_agents
        states, shown = numpy(reset(env, jax.random.split(jax.random.key(len(name)), worlds)))
        theirs = [lbforaging(env) for _ in range(worlds)]
        for i, game in enumerate(theirs):
            assert_same(game, env, world(states, i), world(shown, i), put(game, env, world(states, i)))
        over = np.zeros(worlds, bool)
        for _ in range(env.horizon):
            actions = rng.integers(0, NUM_ACTIONS, (worlds, m))
            eager = shown.avail[..., LOAD] & (rng.random((worlds, m)) < 0.5)  # else food is taken too seldom
            actions = np.where(eager, LOAD, actions)
            before, (states, after) = states, numpy(step(env, KEY, states, actions))
            for i in np.flatnonzero(~over):
                obs, rewards, done, _, _ = theirs[i].step(actions[i].tolist())
                state, ts = world(states, i), world(after, i)
                assert_same(theirs[i], env, state, ts, np.array(obs))
                assert ts.reward == pytest.approx(sum(rewards), abs=1e-5)
                assert ts.terminated == (theirs[i].field.sum() == 0) == (ts.metrics["cleared"] == 1)
                assert (ts.terminated | ts.truncated) == done
                assert not (ts.terminated & ts.truncated)
                over[i] = done
                happened["taken together"] += sum(r > 0 for r in rewards) > 1
                happened["taken alone"] += sum(r > 0 for r in rewards) == 1
                happened["penalty"] += min(rewards) < 0
                happened["taken and missed"] += min(rewards) < 0 < max(rewards)
                happened["cleared"] += bool(ts.terminated)
                happened["out of time"] += bool(ts.truncated)
                happened["not allowed"] += not np.take_along_axis(shown.avail[i], actions[i][:, None], 1).all()
                stay = (before.player[i] == states.player[i]).all(0)
                walks = (actions[i] > NONE) & (actions[i] < LOAD)
                happened["held up"] += bool((stay & walks & shown.avail[i, np.arange(m), actions[i]]).any())
                happened["one cell"] += len(set(map(tuple, state.player.T.tolist()))) < m
                happened["unseen"] += bool((ts.obs == -1).any())
            shown = after
        assert over.all(), name
    assert min(happened.values()) > 20, happened
    assert len(happened) == 10, happened


# --- rules by hand ---


def state_of(players, foods, spawned=None, time=0):
    """From (row, column, level) of each."""
    player, food = (np.array(rows, np.int32).reshape(-1, 3).T for rows in (players, foods))
    total = food[2].sum() if spawned is None else spawned
    numbers = (player[:2], player[2], food[:2], food[2], np.int32(total), np.int32(time))
    return LbfState(*map(jnp.asarray, numbers))


def after(env, state, *actions):
    """Places of the players as (row, column), and the time step."""
    state, ts = numpy(one_step(env, KEY, state, jnp.array(actions)))
    return list(map(tuple, state.player.T.tolist())), ts, state.food_level.tolist()


BLOCK = Lbf(3, 1, rows=5)


def test_who_gets_in_whose_way():
    row = state_of([(0, 0, 1), (0, 2, 1), (4, 4, 1)], [(3, 1, 1)])
    # Two to the same cell: both stay. One to a cell where somebody stays: both stay there.
    assert after(BLOCK, row, EAST, WEST, NONE)[0] == [(0, 0), (0, 2), (4, 4)]
    neighbours = state_of([(0, 0, 1), (0, 1, 1), (4, 4, 1)], [(3, 1, 1)])
    assert after(BLOCK, neighbours, EAST, NONE, NORTH)[0] == [(0, 0), (0, 1), (3, 4)]
    # Into a cell that is left, and past each other.
    assert after(BLOCK, neighbours, EAST, EAST, NONE)[0] == [(0, 1), (0, 2), (4, 4)]
    assert after(BLOCK, neighbours, EAST, WEST, NONE)[0] == [(0, 1), (0, 0), (4, 4)]
    # As in lbforaging: into the cell of one who was held up. Both then share it, and part again.
    three = state_of([(0, 0, 1), (0, 2, 1), (1, 0, 1)], [(3, 1, 1)])
    shared = after(BLOCK, three, EAST, WEST, NORTH)[0]
    assert shared == [(0, 0), (0, 2), (0, 0)]
    both = state_of([(*place, 1) for place in shared], [(3, 1, 1)])
    assert after(BLOCK, both, EAST, NONE, SOUTH)[0] == [(0, 1), (0, 2), (1, 0)]
    # Walls and food: not allowed, and nothing happens.
    beside = state_of([(0, 0, 1), (3, 2, 1), (4, 4, 1)], [(3, 1, 1)])
    places, ts, _ = after(BLOCK, beside, NORTH, WEST, EAST)
    assert places == [(0, 0), (3, 2), (4, 4)]
    assert ts.avail.astype(int).tolist() == [[1, 0, 1, 0, 1, 0], [1, 1, 1, 0, 1, 1], [1, 1, 0, 1, 0, 0]]


def test_levels_must_reach_the_food():
    env = Lbf(3, 2, rows=7, penalty=0.5)
    # Two loads, a third stands by: 1 + 2 is not 4; with the third it is, and one more would be too.
    foods = [(1, 1, 4), (5, 5, 2)]
    players = [(0, 1, 1), (1, 0, 2), (1, 2, 1)]
    places, ts, levels = after(env, state_of(players, foods), LOAD, LOAD, NONE)
    assert (levels, places[0]) == ([4, 2], (0, 1))
    assert ts.reward == pytest.approx(-2 * 0.5)
    _, ts, levels = after(env, state_of(players, foods), LOAD, LOAD, LOAD)
    assert levels == [0, 2]
    assert ts.reward == pytest.approx(4 / 6)
    assert ts.metrics["collected"] == pytest.approx(4 / 6)
    assert not ts.terminated
    assert ts.avail[:, LOAD].tolist() == [False] * 3
    # The last food ends it, and everything together paid 1.
    _, ts, levels = after(env, state_of([(5, 4, 2), *players[1:]], [(1, 1, 0), (5, 5, 2)], spawned=6), LOAD, LOAD, LOAD)
    assert levels == [0, 0]
    assert ts.reward == pytest.approx(2 / 6)
    assert ts.terminated
    # Loading without food, diagonally, or where it was taken before: nothing.
    _, ts, levels = after(env, state_of([(0, 0, 3), (2, 2, 3), (6, 6, 3)], foods), LOAD, LOAD, LOAD)
    assert (levels, ts.reward) == ([4, 2], 0)


def test_without_normalising_levels_are_paid():
    env = Lbf(2, 1, rows=5, normalise=False)
    _, ts, _ = after(env, state_of([(0, 1, 1), (1, 0, 2)], [(1, 1, 3)]), LOAD, LOAD)
    assert ts.reward == 3 * (1 + 2)


def test_time_runs_out():
    env = Lbf(2, 1, rows=5, horizon=9)
    _, ts, _ = after(env, state_of([(0, 1, 1), (1, 0, 2)], [(1, 1, 3)], time=8), LOAD, NONE)
    assert ts.truncated
    assert not ts.terminated
    # Who takes the last food with the last step is done, not out of time.
    _, ts, _ = after(env, state_of([(0, 1, 1), (1, 0, 2)], [(1, 1, 3)], time=8), LOAD, LOAD)
    assert ts.terminated
    assert not ts.truncated


def test_the_global_state_holds_everything():
    env = Lbf(2, 2, rows=5, cols=9, sight=1)
    state = state_of([(0, 8, 1), (4, 4, 2)], [(1, 2, 3), (3, 6, 0)], spawned=5, time=9)
    seen = one_step(env, KEY, state, jnp.zeros(2, int))[1].global_state
    rows, cols, levels = [0, 1], [1, 0.5], [0.5, 1]
    np.testing.assert_allclose(seen, [*rows, *cols, *levels, 0.25, 0, 0.25, 0, 3 / 4, 0, 10 / 50], atol=1e-6)


# --- how it begins ---


def layouts(env):
    """Chances of all sets of food cells, by enumeration: players anywhere, then food by food in any cell that fits."""
    cells = list(product(range(env.rows), range(env.width)))
    inner = [(r, c) for r, c in cells if 0 < r < env.rows - 1 and 0 < c < env.width - 1]
    chances = Counter()

    def more(foods, taken, chance):
        apart = [c for c in inner if all(abs(c[0] - f[0]) + abs(c[1] - f[1]) > 2 for f in foods)]
        fits = [c for c in apart if c not in taken]
        if len(foods) == env.foods or not fits:
            chances[tuple(sorted(foods))] += chance
        for cell in fits if len(foods) < env.foods else ():
            more([*foods, cell], taken, chance / len(fits))

    start = list(permutations(cells, env.num_agents))
    for players in start:
        more([], players, 1 / len(start))
    return chances


def test_food_lies_as_likely_in_every_cell_as_by_trying():
    env, n = Lbf(2, 2, rows=5, cols=6), 100_000
    states = numpy(reset(env, jax.random.split(jax.random.key(1), n))[0])
    expected = layouts(env)
    assert sum(expected.values()) == pytest.approx(1)
    assert {len(foods) for foods in expected} == {1, 2}  # there is not always room for both
    found = Counter(
        tuple((int(r), int(c)) for r, c, level in zip(*food, levels, strict=True) if level)
        for food, levels in zip(states.food, states.food_level, strict=True)
    )
    assert set(found) == set(expected)
    chi = sum((found[k] - n * p) ** 2 / (n * p) for k, p in expected.items())
    degrees = len(expected) - 1
    assert abs(chi - degrees) < 4 * np.sqrt(2 * degrees), (chi, degrees)
    # Players are in different cells, in all pairs of cells equally often.
    cell = states.player[:, 0] * 6 + states.player[:, 1]
    pairs = np.bincount(cell[:, 0] * 30 + cell[:, 1], minlength=900).reshape(30, 30)
    assert not pairs.diagonal().any()
    others = pairs[~np.eye(30, dtype=bool)]
    chi = ((others - n / 870) ** 2 / (n / 870)).sum()
    assert abs(chi - 869) < 4 * np.sqrt(2 * 869)


def test_food_is_as_often_left_out_as_by_lbforaging():
    env, n = Lbf(2, 2, rows=5), 300
    theirs, counts = lbforaging(env), []
    theirs.reset(seed=0)
    for _ in range(n):
        for player in theirs.players:
            player.position = None  # or nobody begins where the last episode ended
        theirs.reset()
        counts.append((theirs.field > 0).sum())
    states = numpy(reset(env, jax.random.split(KEY, 20_000))[0])
    ours = (states.food_level > 0).sum(1)
    assert set(counts) == set(ours.tolist()) == {1, 2}
    assert np.mean(counts) == pytest.approx(ours.mean(), abs=4 * ours.std() / np.sqrt(n))


@pytest.mark.parametrize("settings", [{}, {"coop": True}, {"max_food_level": 4, "min_food_level": 2}], ids=str)
def test_levels_are_drawn_evenly(settings):
    env, n = Lbf(4, 2, rows=9, max_player_level=3, **settings), 20_000
    states = numpy(reset(env, jax.random.split(KEY, n))[0])
    often = np.bincount(states.player_level.ravel()) / (4 * n)
    np.testing.assert_allclose(often, [0, *[1 / 3] * 3], atol=0.01)
    assert (states.food_level > 0).all()
    np.testing.assert_array_equal(states.spawned, states.food_level.sum(1))
    lowest = np.sort(states.player_level, axis=1)[:, :3].sum(1)
    heaviest = np.full(n, env.max_food_level) if env.max_food_level else lowest
    lightest = heaviest if env.coop else env.min_food_level
    assert (states.food_level <= heaviest[:, None]).all()
    assert (lightest <= states.food_level.T).all()
    for top in np.unique(heaviest):
        drawn = states.food_level[heaviest == top].ravel()
        low = top if env.coop else env.min_food_level
        often = np.bincount(drawn, minlength=top + 1)[low:] / len(drawn)
        np.testing.assert_allclose(often, 1 / (top - low + 1), atol=4 / np.sqrt(len(drawn)))


@pytest.mark.parametrize("env", [Lbf(3, 8), Lbf(8, 2, rows=5), Lbf(24, 9, rows=7, cols=11)], ids=str)
def test_crowded_fields_are_valid(env):
    """Food off the edges, apart, in no player's cell, row by row; always some."""
    states = numpy(reset(env, jax.random.split(KEY, 2000))[0])
    there = states.food_level > 0
    assert there[:, 0].all()
    row, col = states.food[:, 0], states.food[:, 1]
    assert ((row > 0) & (row < env.rows - 1) & (col > 0) & (col < env.width - 1))[there].all()
    steps = abs(row[:, :, None] - row[:, None]) + abs(col[:, :, None] - col[:, None])
    pair = there[:, :, None] & there[:, None] & ~np.eye(env.foods, dtype=bool)
    assert steps[pair].min() == 3
    cell, players = row * env.width + col, states.player[:, 0] * env.width + states.player[:, 1]
    assert (np.diff(cell)[there[:, 1:]] > 0).all()
    assert not (cell[:, :, None] == players[:, None])[there].any()
    assert (np.diff(np.sort(players)) > 0).all()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"rows": 2}, "rows is 2: it must lie between 3 and 50"),
        ({"sight": 0}, "sight is 0: it must lie between 1 and 1,000"),
        ({"foods": 9}, "foods is 9: a field of 8 x 8 takes at most 8"),
        ({"rows": 4, "foods": 2}, "foods is 2: a field of 4 x 4 takes at most 1"),
        ({"rows": 4, "cols": 3, "foods": 1}, "num_agents is 3: a field of 4 x 3 takes at most 1"),
        ({"penalty": -1.0}, "penalty is -1.0: it must be at least 0"),
        ({"min_player_level": 3}, "min_player_level is 3: it must be at most max_player_level, which is 2"),
        ({"min_food_level": 4}, "min_food_level is 4: it must be at most 3, the lowest max_food_level"),
        (
            {"min_food_level": 3, "max_food_level": 2},
            "min_food_level is 3: it must be at most 2, the lowest max_food_level",
        ),
        ({"max_food_level": 7}, "max_food_level is 7: those beside a food can't lift more than 6"),
        ({"num_agents": 9, "max_food_level": 9}, "max_food_level is 9: those beside a food can't lift more than 8"),
        ({"players": 3}, "task lbf does not take these settings"),
    ],
)
def test_impossible_settings_are_one_sentence(settings, sentence):
    with pytest.raises(NahtError) as e:
        make_env("lbf", **settings)
    assert sentence in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("env", [Lbf(2, 1, rows=4, cols=7, sight=1, coop=True, horizon=7, penalty=0.1)], ids=str)
def test_other_sizes_conform(env):
    """The default is checked with all tasks."""
    check_environment(env, plain=False)
    assert decode(encode(env)) == env


# --- bots ---

view = jax.jit(lambda env, state: worlds_last(env.view)(state), static_argnums=0)
act = jax.jit(lambda bot, percept, key: bot.act((), (), percept, key, False)[::2], static_argnums=0)


def percepts(env, state):
    """What everybody perceives at the start of an episode: [M, ...]."""
    ts, m = view(env, state), env.num_agents
    return Percept(ts.obs, ts.avail, jnp.full(m, NO_ACTION), jnp.arange(m))


def play(env, bot, worlds, seed=0, states=None, movers=None):
    """States [T + 1, worlds, ...] and rewards [T, worlds] of a team of one bot; of those that move, if not all do."""
    m = env.num_agents
    fresh, shown = reset(env, jax.random.split(jax.random.key(seed), worlds))
    if states is not None:
        fresh, shown = states, jax.jit(jax.vmap(worlds_last(env.view)))(states)
    frames, rewards, over = [numpy(fresh)], [], np.zeros(worlds, bool)
    last, seat = jnp.full((worlds, m), NO_ACTION), jnp.broadcast_to(jnp.arange(m), (worlds, m))
    for t in range(env.horizon):
        actions, _ = act(bot, Percept(shown.obs, shown.avail, last, seat), jax.random.key(seed + 1000 + t))
        last = actions if movers is None else jnp.where(np.isin(np.arange(m), movers), actions, NONE)
        fresh, shown = step(env, KEY, fresh, last)
        frames.append(numpy(fresh))
        rewards.append(np.where(over, 0, shown.reward))
        over |= np.asarray(shown.terminated)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *frames), np.array(rewards)


def test_every_bot_has_its_own_taste():
    env = Lbf(3, 3)
    foods = [(1, 2, 3), (4, 1, 1), (6, 5, 2)]
    state = state_of([(0, 0, 1), (7, 7, 2), (6, 7, 1)], foods)

    def targets(state):
        obs = view(env, state).obs.reshape(3, 6, 3)
        made = {name: make_bot(name, env.spec) for name in BOTS["lbf"] if name != "random"}
        return {name: np.asarray(bot.target(obs[:, :3], obs[:, 3:])).astype(int).tolist() for name, bot in made.items()}

    # Seat 1 at (7, 7) can lift (6, 5) alone, seat 2 can't; the nearest teammate of seat 0 is seat 2.
    assert targets(state) == {
        "nearest": [[1, 2], [6, 5], [6, 5]],
        "alone": [[4, 1], [6, 5], [4, 1]],
        "follow": [[6, 5], [6, 5], [6, 5]],
        "together": [[6, 5]] * 3,
        "first": [[1, 2]] * 3,
    }
    # Nothing that seat 0 can lift: what it is least too weak for. With (6, 5) gone, the others go elsewhere.
    heavy = state._replace(food_level=jnp.array([3, 2, 0]))
    assert targets(heavy)["alone"] == [[4, 1], [4, 1], [4, 1]]
    assert targets(heavy)["follow"] == [[4, 1], [4, 1], [4, 1]]
    # Who sees nobody follows nobody.
    near = Lbf(3, 3, sight=2)
    obs = view(near, state).obs.reshape(3, 6, 3)
    assert obs[0, 4, 2] == 0
    leads = make_bot("follow", near.spec).target(obs[:, :3], obs[:, 3:])
    assert leads[0].tolist() == [1, 2]


def test_bots_choose_as_they_say():
    """Their log-probabilities are those of what they do, masks are respected, and they load when they are there."""
    env = Lbf(3, 1, rows=6)
    bot = make_bot("nearest", env.spec)
    # Seat 0 has two equally short ways, seat 1 stands beside the food, and in the straight way of seat 2 at the edge.
    percept = percepts(env, state_of([(5, 0, 1), (3, 4, 1), (3, 5, 1)], [(3, 3, 2)]))
    many = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (8000, *leaf.shape)), percept)
    actions, log_prob = map(np.asarray, act(bot, many, KEY))
    two_ways = [[0.1 / 3, *ways, 0] for ways in ([0.45 + 0.1 / 3, 0, 0, 0.45 + 0.1 / 3], [0.45 + 0.1 / 3] * 2 + [0, 0])]
    for seat, chances in enumerate([two_ways[0], [0, 0, 0, 0, 0, 1], two_ways[1]]):
        often = np.bincount(actions[:, seat], minlength=6) / 8000
        np.testing.assert_allclose(often, chances, atol=0.03)
        np.testing.assert_allclose(np.exp(log_prob[:, seat]), np.array(chances)[actions[:, seat]], rtol=1e-5)
    # Shut in, it waits; with no food in sight it walks, and rather on than back.
    corner = percepts(env, state_of([(0, 0, 1), (0, 1, 1), (1, 0, 1)], [(4, 4, 2)]))
    assert act(bot, corner, KEY)[0][0] == NONE
    blind = percepts(Lbf(3, 1, rows=6, sight=1), state_of([(0, 0, 1), (2, 5, 1), (3, 5, 1)], [(3, 3, 2)]))
    blind = blind._replace(last_action=jnp.array([SOUTH, SOUTH, NORTH]))
    many = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (8000, *leaf.shape)), blind)
    often = np.bincount(np.asarray(act(bot, many, KEY)[0])[:, 0], minlength=6) / 8000
    np.testing.assert_allclose(often, [0.1 / 3, 0, 0.1 / 3 + 0.8, 0, 0.1 / 3 + 0.1, 0], atol=0.02)


def steps_to(env, state, k, target):
    """Of player k to a cell beside the target, others staying where they are, by breadth-first search; None: no way."""
    blocked = {tuple(p) for i, p in enumerate(state.player.T.tolist()) if i != k}
    blocked |= {tuple(f) for f, level in zip(state.food.T.tolist(), state.food_level, strict=True) if level}
    known, queue = {tuple(state.player[:, k].tolist()): 0}, [tuple(state.player[:, k].tolist())]
    for row, col in queue:
        if abs(row - target[0]) + abs(col - target[1]) == 1:
            return known[row, col]
        for cell in ((row - 1, col), (row + 1, col), (row, col - 1), (row, col + 1)):
            inside = 0 <= cell[0] < env.rows and 0 <= cell[1] < env.width
            if inside and cell not in blocked and cell not in known:
                known[cell] = known[row, col] + 1
                queue.append(cell)
    return None


def test_bots_find_the_shortest_way_round_others():
    env, worlds = Lbf(8, 4, rows=7, horizon=30), 200
    frames, _ = play(env, Forager("first", 8, strays=0.0), worlds, movers=[0])
    late, ways = [], 0
    for i in range(worlds):
        start = jax.tree.map(lambda leaf, i=i: leaf[0, i], frames)
        best = steps_to(env, start, 0, start.food[:, 0])
        if best is not None:
            beside = abs(frames.player[:, i, :, 0] - start.food[:, 0]).sum(1) == 1
            late.append(int(beside.argmax()) - best if beside.any() else env.horizon)
            ways += best > abs(start.player[:, 0] - start.food[:, 0]).sum() - 1
    assert ways > 20  # some ways are longer than they would be without anybody in between
    assert min(late) == 0
    # Not always: plans end three cells away, and what is below or right of the field is not known to be nothing.
    assert np.mean(np.array(late) == 0) > 0.95, np.bincount(late)


def test_bots_collect_food():
    """Mean returns in fixed worlds. Those who agree on a food clear every field; others wait for each other."""
    env = Lbf()
    bounds = {
        "random": (0.1, 0.25),
        "nearest": (0.55, 0.75),
        "alone": (0.8, 0.95),
        "follow": (0.95, 1),
        "together": (0.99, 1),
        "first": (0.99, 1),
    }
    for name, (low, high) in bounds.items():
        _, rewards = play(env, make_bot(name, env.spec), worlds=256)
        assert low <= rewards.sum(0).mean() <= high + 1e-6, name


@pytest.mark.parametrize(
    ("env", "low"),
    [
        (Lbf(sight=2), 0.6),
        (Lbf(sight=1), 0.5),
        (Lbf(coop=True), 0.9),
        (Lbf(6, 4, rows=6, coop=True, horizon=100), 0.99),
        (Lbf(2, 2, rows=4, cols=14, sight=3), 0.6),
        (Lbf(1, 1, rows=6, sight=1, max_food_level=1, horizon=100), 0.95),
    ],
    ids=["sight 2", "sight 1", "coop", "crowd", "long field", "alone"],
)
def test_bots_play_every_setting(env, low):
    _, rewards = play(env, make_bot("together", env.spec), worlds=128, seed=1)
    assert low <= rewards.sum(0).mean() <= 1 + 1e-6


def test_every_listed_forager_can_be_saved():
    spec = make_env("lbf", num_agents=5).spec
    assert set(BOTS["lbf"]) == {"random", "nearest", "alone", "follow", "together", "first"}
    for name in BOTS["lbf"]:
        bot = make_bot(name, spec)
        assert decode(encode(bot)) == bot
    assert make_bot("alone", spec) == Forager("alone", 5)


# --- pictures ---


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
