"""Level-based foraging: step by step beside lbforaging, rules by hand, layouts by enumeration."""

from collections import Counter
from itertools import permutations, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foraging import KEY, numpy, one_step, reset, state_of, step, world
from lbforaging_game import lbforaging
from naht import NahtError, check_environment, make_env
from naht.config import decode, encode
from naht.envs.lbf import EAST, LOAD, NONE, NORTH, NUM_ACTIONS, SOUTH, WEST, Lbf

# --- beside lbforaging ---


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
