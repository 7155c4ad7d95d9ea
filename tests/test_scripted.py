"""Scripted teammates do what their names say."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from naht import NahtError, make_env
from naht.agents.policy import Percept
from naht.agents.scripted import (
    BOTS,
    Ambush,
    Bernoulli,
    Chaser,
    Decoy,
    Explore,
    Interceptor,
    Pincer,
    Static,
    Still,
    Turns,
    UniformRandom,
    make_bot,
)
from naht.config import decode, encode
from naht.envs.predator_prey import PredatorPrey, observe

SPEC = make_env("bit-game").spec
CHASE = PredatorPrey().spec


@partial(jax.jit, static_argnums=(0, 5))
def act(policy, params, memory, percept, key, greedy):
    return policy.act(params, memory, percept, key, greedy)


def play(policy, steps=25, batch=4000, m=3):
    """Actions [steps, batch, m] and log-probabilities of a team of one policy."""
    slot = jnp.broadcast_to(jnp.arange(m), (batch, m))
    percept = Percept(jnp.zeros((batch, m, 2 * m)), jnp.ones((batch, m, 2), bool), jnp.zeros((batch, m), int), slot)
    memory, actions, log_probs = policy.initial_memory((batch, m)), [], []
    for t in range(steps):
        action, memory, log_prob = act(policy, (), memory, percept, jax.random.key(t), True)
        actions.append(action)
        log_probs.append(log_prob)
    return np.array(actions), np.array(log_probs)


def test_bernoulli_says_1_as_often_as_told_even_when_greedy():
    actions, log_probs = play(Bernoulli(0.3))
    assert actions.mean() == pytest.approx(0.3, abs=0.01)
    np.testing.assert_allclose(np.exp(log_probs), np.where(actions == 1, 0.3, 0.7), rtol=1e-5)


def test_static_first_seat_says_1():
    assert (play(Static(), steps=3, batch=2)[0] == np.array([1, 0, 0])).all()


def test_turns_rotate():
    actions, _ = play(Turns(3), steps=7, batch=2)
    assert (actions[:, 0] == np.eye(3, dtype=int)[np.arange(7) % 3]).all()


def test_explore_anneals_over_the_episode():
    rates = play(Explore(0.8, 0.2, horizon=25))[0].mean((1, 2))
    np.testing.assert_allclose(rates, np.linspace(0.8, 0.2, 25), atol=0.025)


def test_default_bernoulli_follows_the_team_size():
    assert make_bot("bernoulli", make_env("bit-game", num_agents=5).spec) == Bernoulli(0.2)
    assert make_bot("bernoulli:0.5", SPEC) == Bernoulli(0.5)
    assert make_bot("explore:0.7,0.3", SPEC) == Explore(0.7, 0.3, 25)


@pytest.mark.parametrize("name", ["bernouli", "bernoulli:x", "bernoulli:1,2,3", "bernoulli:7", "static:1", "truns"])
def test_wrong_bots_are_one_clear_sentence(name):
    with pytest.raises(NahtError) as e:
        make_bot(name, SPEC)
    assert "\n" not in str(e.value)


def test_every_listed_bot_can_be_made():
    assert set(BOTS["bit-game"]) == {"bernoulli", "static", "explore", "turns"}
    for name in BOTS["bit-game"]:
        play(make_bot(name, SPEC), steps=1, batch=1)


# --- predators ---


def percept_of(places, velocities=None, obstacles=0, avail=None):
    """What every predator sees: [M, ...]. places [M + 1][2], the prey's last; the obstacles lie far away."""
    m = len(places) - 1
    position = np.array([*places, *[[9.0, 9.0]] * obstacles]).T
    velocity = np.zeros((2, m + 1)) if velocities is None else np.array(velocities, float).T
    obs = jnp.array([observe(position, velocity, i, obstacles) for i in range(m)], jnp.float32)
    avail = jnp.ones((m, 5), bool) if avail is None else jnp.broadcast_to(jnp.array(avail, bool), (m, 5))
    return Percept(obs, avail, jnp.full(m, -1), jnp.arange(m))


def actions_of(bot, percept, seed=0):
    """The bot's actions in all seats. Rules without chance take them with certainty."""
    key = jax.random.key(seed)
    action, memory, log_prob = act(bot, bot.init(key), bot.initial_memory((3,)), percept, key, False)
    assert action.dtype == jnp.int32
    assert memory == ()
    if not isinstance(bot, UniformRandom):
        assert log_prob.shape == action.shape
        assert not log_prob.any()
    return action.tolist()


def test_random_predators_take_every_allowed_action_equally_often():
    avail = jnp.array([True, False, True, True, False])
    percept = Percept(
        jnp.zeros((6000, 16)), jnp.broadcast_to(avail, (6000, 5)), jnp.zeros(6000, int), jnp.zeros(6000, int)
    )
    action, _, log_prob = UniformRandom().act((), (), percept, jax.random.key(0), greedy=True)
    np.testing.assert_allclose(np.bincount(action, minlength=5) / 6000, [1 / 3, 0, 1 / 3, 1 / 3, 0], atol=0.02)
    np.testing.assert_allclose(log_prob, -np.log(3), rtol=1e-5)


def test_chasers_take_the_larger_component():
    # Seen from the predators, the prey at the origin is left above, right above, and right below.
    places = [[0.5, -0.1], [-0.1, -0.5], [-0.2, 0.7], [0, 0]]
    assert actions_of(Chaser(), percept_of(places)) == [2, 3, 4]
    assert actions_of(Chaser(), percept_of(places, [[1, 1]] * 4, obstacles=2)) == [2, 3, 4]
    assert actions_of(Chaser(), percept_of([[-3, 1], [3, 1], [0, 0]])) == [1, 2]
    assert actions_of(Still(), percept_of(places)) == [0, 0, 0]


def test_predators_take_the_best_action_that_is_allowed():
    # The prey is right above: +x is best, then +y, then to stay.
    percept = [[-0.5, -0.1], [-0.5, -0.1], [0, 0]]
    for avail, best in [([1, 1, 1, 1, 1], 1), ([1, 0, 1, 1, 1], 3), ([1, 0, 1, 0, 1], 0), ([0, 0, 1, 0, 1], 4)]:
        assert actions_of(Chaser(), percept_of(percept, avail=avail)) == [best, best]


def test_interceptors_look_ahead():
    places = [[-0.2, -0.1], [-0.2, -0.1], [0, 0]]
    # The prey flees upwards at speed 1; in 5 steps of 0.1 it is at (0.2, 0.6) as seen from where the predators are.
    velocities = [[0, 0], [0, 1], [0, 1]]
    # The second predator keeps up with it, so that it only has to go right.
    assert actions_of(Interceptor(), percept_of(places, velocities)) == [3, 1]
    assert actions_of(Interceptor(0.0), percept_of(places, velocities)) == actions_of(Chaser(), percept_of(places))
    # One that is too fast brakes: it would end far right of the prey.
    assert actions_of(Interceptor(), percept_of(places, [[1, 0], [0, 0], [0, 0]])) == [2, 1]
    assert actions_of(Interceptor(2.0), percept_of(places, [[1, 0], [0, 0], [0, 0]])) == [3, 1]


def test_pincers_go_round_to_their_sides_and_close_in():
    # The sides of three seats are at 0, 120 and 240 degrees. All three stand left of the prey, at 180 degrees.
    percept = percept_of([[-1, 0], [-1, 0], [-1, 0], [0, 0]], obstacles=1)
    aim = Pincer().aim(percept.obs, percept.slot) - jnp.array([1.0, 0.0])  # as seen from the prey
    # Seat 0 has 180 degrees to go: 60 degrees further, at 0.3. It may choose either way round.
    np.testing.assert_allclose(np.abs(aim[0]), 0.3 * np.array([0.5, np.sqrt(0.75)]), atol=1e-6)
    assert aim[0, 0] < 0
    # Seats 1 and 2 have 60 degrees to go, half of 120: on their sides, at half of 0.3.
    np.testing.assert_allclose(aim[1:], 0.15 * np.array([[-0.5, np.sqrt(0.75)], [-0.5, -np.sqrt(0.75)]]), atol=1e-6)

    # Everybody on the own side: straight to the prey.
    sides = [[0.8, 0], [-0.3, 0.3 * np.sqrt(3)], [-0.3, -0.3 * np.sqrt(3)], [0, 0]]
    percept = percept_of(sides)
    np.testing.assert_allclose(Pincer().aim(percept.obs, percept.slot), -np.array(sides[:3]), atol=1e-6)
    assert actions_of(Pincer(), percept) == [2, 4, 3]

    # With two seats, the second one's side is the left. From straight above, it goes left: 60 degrees further, at
    # 0.5 * 90 / 120 from the prey.
    percept = percept_of([[0.5, 0], [0, 0.5], [0, 0]])
    aim = Pincer(num_agents=2, radius=0.5).aim(percept.obs, percept.slot)[1] + jnp.array([0, 0.5])
    np.testing.assert_allclose(aim, 0.375 * np.array([-np.sqrt(0.75), 0.5]), atol=1e-6)


def test_pincers_surround_a_prey_that_rests():
    """Together from the left: interceptors arrive in a bunch, pincers end with the prey between them."""
    env = PredatorPrey(num_obstacles=0)
    move, seats = jax.jit(env.move), jnp.arange(3)
    gaps = {}
    for bot in (Interceptor(), Pincer()):
        act, widest = jax.jit(partial(bot.act, greedy=True)), []
        position, velocity = jnp.array([[-1.0, -1.0, -1.0, 0.0], [0.0, 0.2, -0.2, 0.0]]), jnp.zeros((2, 4))
        for _ in range(40):
            seen = jnp.array([observe(np.array(position), np.array(velocity), seat, 0) for seat in range(3)])
            action, _, _ = act((), (), Percept(seen, jnp.ones((3, 5), bool), seats, seats), jax.random.key(0))
            position, velocity = move(position, velocity, jnp.append(action, 0))
            x, y = np.array(position[:, :3] - position[:, 3:])
            around = np.sort(np.arctan2(y, x))
            widest.append(np.diff([*around, around[0] + 2 * np.pi]).max())  # the prey's widest way out
        gaps[type(bot)] = np.median(widest[-10:])
    assert gaps[Pincer] < np.pi < gaps[Interceptor]


@pytest.mark.parametrize("obstacles", [0, 2])
def test_an_ambush_waits_where_the_prey_is_driven(obstacles):
    # Seat 0 at the origin drives the prey, at (0.5, 0), to the right. Seat 1 stands above: the prey is more below it
    # than to its right, but it goes for the point 0.39 (half its distance) right of the prey.
    places = [[0, 0], [0, 0.6], [1.5, 1.2], [0.5, 0]]
    percept = percept_of(places, obstacles=obstacles)
    half = 0.5 * np.hypot(0.5, 0.6)
    expected = [[0.5, 0], [0.5 + half, -0.6], [-0.5, -1.2]]  # seat 2 is far: 0.5 beyond the prey
    np.testing.assert_allclose(Ambush().aim(percept.obs, percept.slot), expected, atol=1e-6)
    assert actions_of(Ambush(), percept) == [1, 1, 4]
    assert actions_of(Chaser(), percept) == [1, 4, 4]
    # Seat 0 drives, whoever sits there: turned by a quarter, the others go up.
    turned = percept_of([[0, 0], [0.6, 0], [1.2, 1.5], [0, 0.5]], obstacles=obstacles)
    assert actions_of(Ambush(), turned) == [3, 3, 2]
    # In larger teams too.
    five = percept_of([*places[:3], [3, 3], [-3, -3], places[3]], obstacles=obstacles)
    np.testing.assert_allclose(Ambush(num_agents=5).aim(five.obs, five.slot)[:3], expected, atol=1e-6)


def test_a_decoy_leaves_and_the_others_hunt():
    percept = percept_of([[0.3, -0.4], [0, 0.6], [1.5, 1.2], [0.5, 0]])
    hunting = Pincer().aim(percept.obs, percept.slot)
    for seat in range(3):
        aim = Decoy(leaver=seat).aim(percept.obs, percept.slot)
        expected = hunting.at[seat].set(percept.obs[seat, 2:4])  # outwards from the middle
        np.testing.assert_array_equal(aim, expected)
    assert make_bot("decoy", CHASE) == make_bot("decoy:0", CHASE) == Decoy()
    assert make_bot("decoy:4", PredatorPrey(5).spec) == Decoy(num_agents=5, leaver=4)


def test_conventions_use_velocities_as_interceptors_do():
    places, velocities = [[0, 0], [0, 0.6], [1.5, 1.2], [0.5, 0]], [[0.1, 0], [0, 0.2], [0, 0], [0.3, 0.4]]
    still, moving = percept_of(places), percept_of(places, velocities)
    lead = 0.5 * (np.array(velocities[3]) - np.array(velocities[:3]))
    for bot in (Interceptor(), Pincer(), Ambush()):
        difference = bot.aim(moving.obs, moving.slot) - bot.aim(still.obs, still.slot)
        np.testing.assert_allclose(difference, lead, atol=1e-6)


def test_every_listed_predator_can_be_made_and_saved():
    assert set(BOTS["mpe-pp"]) == {"random", "still", "chaser", "interceptor", "pincer", "ambush", "decoy"}
    batch = jax.tree.map(lambda x: jnp.stack([x, x]), percept_of([[0, 0], [1, 0], [0, 1], [1, 1]], obstacles=2))
    for name in BOTS["mpe-pp"]:
        bot = make_bot(name, CHASE)
        action, _, log_prob = jax.jit(bot.act, static_argnames="greedy")((), (), batch, jax.random.key(0), greedy=True)
        assert action.shape == log_prob.shape == (2, 3)
        assert decode(encode(bot)) == bot


def test_numbers_of_predators():
    assert make_bot("interceptor:2", CHASE) == Interceptor(2.0)
    assert make_bot("pincer:0.5", PredatorPrey(5).spec) == Pincer(num_agents=5, radius=0.5)
    assert make_bot("ambush:0.1", PredatorPrey(4).spec) == Ambush(num_agents=4, ahead=0.1)


@pytest.mark.parametrize(
    "name",
    [
        "chasr",
        "chaser:1",
        "interceptor:x",
        "interceptor:-1",
        "pincer:-0.1",
        "pincer:1,2",
        "ambush:-2",
        "decoy:3",
        "decoy:0.5",
        "turns",
    ],
)
def test_wrong_predators_are_one_clear_sentence(name):
    with pytest.raises(NahtError) as e:
        make_bot(name, CHASE)
    assert "\n" not in str(e.value)


def soldiers_see(enemies, attackable, moves=(1, 1, 1, 1)):
    """What one agent of 3m perceives. enemies: per enemy (dx, dy, health) in parts of the sight, or None if unseen."""
    spec = make_env("3m").spec
    obs, avail = np.zeros((1, spec.obs_size), np.float32), np.zeros((1, spec.num_actions), bool)
    avail[0, 1:6] = [True, *moves]
    for j, enemy in enumerate(enemies):
        if enemy:
            dx, dy, health = enemy
            obs[0, 4 + 5 * j : 9 + 5 * j] = [j in attackable, np.hypot(dx, dy), dx, dy, health]
        avail[0, 6 + j] = j in attackable
    return Percept(jnp.asarray(obs), jnp.asarray(avail), jnp.zeros(1, int), jnp.zeros(1, int))


def soldiers_do(percept):
    """The action of every soldier."""
    spec, key = make_env("3m").spec, jax.random.key(0)
    bots = {name: make_bot(name, spec) for name in ("nearest", "weakest", "first")}
    return {name: int(act(bot, (), (), percept, key, True)[0][0]) for name, bot in bots.items()}


def test_soldiers_attack_whom_they_prefer():
    enemies = [(0.5, 0.3, 1.0), (0.3, -0.2, 0.9), (0.4, 0.4, 0.2)]
    assert soldiers_do(soldiers_see(enemies, {0, 1, 2})) == {"nearest": 7, "weakest": 8, "first": 6}
    assert soldiers_do(soldiers_see(enemies, {0, 2})) == {"nearest": 8, "weakest": 8, "first": 6}


def test_soldiers_walk_up_to_the_nearest_enemy_in_sight():
    far = [(0.9, 0.1, 1.0), (0.2, -0.6, 1.0), None]
    assert set(soldiers_do(soldiers_see(far, set())).values()) == {3}  # south
    assert set(soldiers_do(soldiers_see(far, set(), moves=(1, 0, 1, 1))).values()) == {4}  # a wall there: east
    assert set(soldiers_do(soldiers_see([None] * 3, set())).values()) == {1}  # nobody to be seen: stop


def test_fallen_soldiers_do_nothing():
    percept = soldiers_see([None] * 3, set())
    dead = percept._replace(avail=jnp.zeros_like(percept.avail).at[:, 0].set(True))
    assert set(soldiers_do(dead).values()) == {0}


def test_every_listed_soldier_can_be_made_and_saved():
    for name in ("3m", "3s5z"):
        spec = make_env(name).spec
        assert set(BOTS[name]) == {"random", "nearest", "weakest", "first"}
        for bot in (make_bot(listed, spec) for listed in BOTS[name]):
            assert decode(encode(bot)) == bot
    assert make_bot("weakest", make_env("3s5z").spec).shields
