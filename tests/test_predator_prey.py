"""Predator-prey: physics against mpe2, rewards by hand, prey from every kind of file."""

import os
import pickle
import struct
import zipfile
from collections import Counter
from itertools import combinations, pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from naht import NahtError, check_environment
from naht.config import decode, encode
from naht.envs.predator_prey import DIRECTIONS, DT, PredatorPrey, PredatorPreyState, observe
from naht.envs.prey import Prey, load_prey
from naht.envs.torch_file import read_torch_arrays
from naht.storage import read_arrays, write_arrays
from torch_files import FORMATS, Malice, dictionary, legacy_file, state_dictionary, tensor, text, zip_file

SIZES = [(3, 2), (4, 1)]
"""(predators, obstacles)."""


def random_prey(obs_size=14, actions=5, seed=0):
    """A prey that runs about without a plan."""
    rng = np.random.default_rng(seed)
    sizes = [obs_size, 8, actions]
    layers = [(rng.normal(size=(a, b)), rng.normal(size=b)) for a, b in pairwise(sizes)]
    return Prey(tuple((k.astype(np.float32), b.astype(np.float32)) for k, b in layers), {"made": "at random"})


def stubborn_prey(action, obs_size=14):
    """A prey that always takes the same action."""
    return Prey(((np.zeros((obs_size, 5), np.float32), np.eye(5, dtype=np.float32)[action]),), {})


def world_with(prey, folder, predators=3, obstacles=2, **settings):
    """An environment with this prey, by way of a file."""
    path = folder / f"{prey.fingerprint[:12]}.safetensors"
    prey.save(path)
    return PredatorPrey(predators, obstacles, prey=str(path), **settings)


def start(position, velocity=((0, 0),) * 4):
    """A state from positions [E][2] and velocities [M + 1][2]."""
    position, velocity = (jnp.array(np.array(rows, np.float32).T) for rows in (position, velocity))
    return PredatorPreyState(position, velocity, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32))


# --- physics and observations against mpe2 ---


def mpe2_world(predators, obstacles):
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    from mpe2.simple_tag.simple_tag import Scenario

    scenario = Scenario()
    return scenario, scenario.make_world(num_good=1, num_adversaries=predators, num_obstacles=obstacles)


def put(world, position, velocity):
    """Set an mpe2 world to a state of ours: position [2, E], velocity [2, M + 1]."""
    for k, entity in enumerate(world.entities):
        entity.state.p_pos = np.array(position[:, k], np.float64)
        entity.state.p_vel = np.array(velocity[:, k] if k < len(world.agents) else [0, 0], np.float64)


def crowds(rng, predators, obstacles, worlds):
    """States in which many entities overlap: positions [B, 2, E], velocities [B, 2, M + 1]."""
    width = rng.uniform(0.1, 0.5, (worlds, 1, 1))  # from everybody in one heap to a few contacts
    position = rng.uniform(-width, width, (worlds, 2, predators + 1 + obstacles)).astype(np.float32)
    return position, rng.uniform(-1, 1, (worlds, 2, predators + 1)).astype(np.float32)


@pytest.mark.parametrize(("predators", "obstacles"), SIZES)
def test_physics_are_those_of_mpe2(predators, obstacles):
    env, rng = PredatorPrey(predators, obstacles), np.random.default_rng(predators)
    _, world = mpe2_world(predators, obstacles)
    move = jax.jit(jax.vmap(env.move))
    prey, worlds, steps = predators, 100, 8
    kinds = ["predator"] * predators + ["prey"] + ["obstacle"] * obstacles
    pairs = [(i, j) for i, j in combinations(range(len(kinds)), 2) if i <= prey]
    contacts, clipped, free = Counter(), 0, 0

    position, velocity = crowds(rng, predators, obstacles, worlds)
    for _ in range(steps):
        actions = rng.integers(0, 5, (worlds, predators + 1))
        new_position, new_velocity = map(np.asarray, move(position, velocity, actions))
        for b in range(worlds):
            put(world, position[b], velocity[b])
            for agent, action in zip(world.agents, actions[b], strict=True):
                agent.action.u = DIRECTIONS[:, action].astype(np.float64) * agent.accel
            for i, j in pairs:
                reach = world.entities[i].size + world.entities[j].size
                contacts[kinds[i], kinds[j]] += int(np.linalg.norm(position[b, :, i] - position[b, :, j]) < reach)
            world.step()
            theirs = np.array([agent.state.p_vel for agent in world.agents]).T
            # Rounding of a distance (1e-7) times the stiffness of contacts (100 * DT) is about 1e-6.
            np.testing.assert_allclose(new_velocity[b], theirs, atol=1e-5)
            # mpe2 moves by the velocity before the step. The scenario of the paper, and ours, by that after it.
            moved = position[b, :, : prey + 1] + DT * theirs
            np.testing.assert_allclose(new_position[b, :, : prey + 1], moved, atol=1e-5)
            limit = np.array([agent.max_speed for agent in world.agents])
            at_limit = np.isclose(np.linalg.norm(theirs, axis=0), limit, atol=1e-9)
            clipped, free = clipped + at_limit.sum(), free + (~at_limit).sum()
        np.testing.assert_array_equal(new_position[:, :, prey + 1 :], position[:, :, prey + 1 :])
        position, velocity = new_position, new_velocity

    # The comparison says something about every kind of contact, and about the speed limit.
    assert len(contacts) == 4
    assert min(contacts.values()) > 100, contacts
    assert min(clipped, free) > 300


def test_entities_in_the_very_same_place_stay_finite():
    env = PredatorPrey()
    position, velocity = env.move(jnp.zeros((2, 6)), jnp.zeros((2, 4)), jnp.array([0, 0, 0, 1]))
    assert np.isfinite(position).all()
    np.testing.assert_allclose(velocity, [[0, 0, 0, 0.4], [0, 0, 0, 0]], atol=1e-6)


@pytest.mark.parametrize(("predators", "obstacles"), [*SIZES, (2, 0)])
def test_observations_are_those_of_mpe2(predators, obstacles):
    env, rng = PredatorPrey(predators, obstacles), np.random.default_rng(1)
    scenario, world = mpe2_world(predators, obstacles)
    for position, velocity in zip(*crowds(rng, predators, obstacles, worlds=5), strict=True):
        put(world, position, velocity)
        state = start(position.T, velocity.T)
        seen = env.view(state)
        theirs = [scenario.observation(agent, world) for agent in world.agents]
        np.testing.assert_allclose(seen.obs, theirs[:-1], atol=1e-6)
        np.testing.assert_allclose(seen.global_state, np.concatenate(theirs[:-1]), atol=1e-6)
        np.testing.assert_allclose(env.prey_view(state), theirs[-1], atol=1e-6)
        for agent, expected in enumerate(theirs):
            np.testing.assert_allclose(observe(position, velocity, agent, obstacles), expected, atol=1e-6)


def test_observations_by_hand():
    env = PredatorPrey(2, 1)
    state = start([[0, 0], [1, 0], [0, 2], [-1, 3]], [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    first = [0.1, 0.2, 0, 0, -1, 3, 1, 0, 0, 2, 0.5, 0.6]  # velocity, place; obstacle, predator, prey; its velocity
    second = [0.3, 0.4, 1, 0, -2, 3, -1, 0, -1, 2, 0.5, 0.6]
    np.testing.assert_allclose(env.view(state).obs, [first, second], atol=1e-6)
    np.testing.assert_allclose(env.view(state).global_state, first + second, atol=1e-6)
    np.testing.assert_allclose(env.prey_view(state), [0.5, 0.6, 0, 2, -1, 1, 0, -2, 1, -2], atol=1e-6)


# --- the task ---


def test_a_step_by_hand(tmp_path):
    """Nobody touches anybody: (1 - 0.25) of the velocity stays, a push adds acceleration times 0.1."""
    env = world_with(stubborn_prey(1), tmp_path)
    state = start([[0, 0], [0, 1], [0, -1], [2, 0], [5, 5], [-5, 5]], [[0.4, 0], [0, 0], [1, 0], [0, -0.4]])
    state, ts = env.step(jax.random.key(0), state, jnp.array([2, 3, 1]))
    # -x against 0.4; +y from rest; +x at full speed 1: 0.75 + 0.3 is cut to 1. The prey: +x with acceleration 4.
    velocity = [[0.0, 0], [0, 0.3], [1, 0], [0.4, -0.3]]
    np.testing.assert_allclose(state.velocity.T, velocity, atol=1e-6)
    np.testing.assert_allclose(state.position.T[:4], [[0, 0], [0, 1.03], [0.1, -1], [2.04, -0.03]], atol=1e-6)
    assert int(state.time) == 1
    distance = np.hypot([2.04, 2.04, 1.94], [-0.03, -1.06, 0.97]).sum()
    assert float(ts.reward) == pytest.approx(-0.01 * distance, abs=1e-6)


def test_the_prey_decides_by_what_it_saw_before_the_step(tmp_path):
    prey = random_prey()
    env = world_with(prey, tmp_path)
    chosen = set()
    for seed in range(30):
        state, _ = env.reset(jax.random.key(seed))
        saw = observe(np.array(state.position), np.array(state.velocity), 3, 2)
        after, _ = env.step(jax.random.key(0), state, jnp.zeros(3, jnp.int32))
        hidden = saw.astype(np.float64) @ prey.layers[0][0] + prey.layers[0][1]
        action = int((np.maximum(hidden, 0) @ prey.layers[1][0] + prey.layers[1][1]).argmax())
        expected = env.move(state.position, state.velocity, jnp.array([0, 0, 0, action]))
        np.testing.assert_allclose(after.position, expected[0], atol=1e-6)
        chosen.add(action)
    assert len(chosen) >= 3


@pytest.mark.parametrize("reward", ["sum", "team"])
@pytest.mark.parametrize(
    ("distances", "touching"),
    [
        ((1.0, 1.0, 1.0), 0),
        ((0.2, 1.0, 1.0), 1),
        ((0.2, 1.0, 0.2), 2),
        ((0.224, 0.224, 1.0), 2),
        ((0.224, 0.226, 1.0), 1),  # the threshold is 1.8 * (0.075 + 0.05) = 0.225
        ((0.2, 0.2, 0.2), 3),
    ],
)
def test_reward_by_hand(distances, touching, reward, tmp_path):
    """Three predators right of, above and left of a prey; nobody moves."""
    env = world_with(stubborn_prey(0), tmp_path, reward=reward)
    right, above, left = distances
    state = start([[right, 0], [0, above], [-left, 0], [0, 0], [5, 5], [-5, 5]])._replace(catches=jnp.array(7.0))
    state, ts = env.step(jax.random.key(0), state, jnp.zeros(3, jnp.int32))
    bonus = 0 if touching < 2 else {"sum": touching, "team": 1}[reward]
    assert float(ts.reward) == pytest.approx(bonus - 0.01 * sum(distances), abs=1e-5)
    assert float(ts.metrics["catches"]) == float(state.catches) == 7 + (touching >= 2)


def test_two_predators_can_catch_and_four_earn_four(tmp_path):
    around = [[0.2, 0], [-0.2, 0], [0, 0.2], [0, -0.2]]
    for m in (2, 4):
        env = world_with(stubborn_prey(0, obs_size=4 + 2 * m), tmp_path, m, 0)
        state = start([*around[:m], [0, 0]], [[0, 0]] * (m + 1))
        _, ts = env.step(jax.random.key(0), state, jnp.zeros(m, jnp.int32))
        assert float(ts.reward) == pytest.approx(m - 0.01 * 0.2 * m, abs=1e-5)


def test_an_episode_is_truncated_at_the_horizon_and_counts_its_catches(tmp_path):
    env = world_with(stubborn_prey(0), tmp_path, horizon=4)
    state = start([[0.2, 0], [-0.2, 0], [0, 2], [0, 0], [5, 5], [-5, 5]])
    step = jax.jit(env.step)
    for t in range(1, 5):
        state, ts = step(jax.random.key(0), state, jnp.zeros(3, jnp.int32))
        assert float(ts.metrics["catches"]) == t
        assert bool(ts.truncated) == (t == 4)
        assert not ts.terminated
    # Had both been driven away, the count would stay.
    away = state._replace(position=state.position.at[0, :2].add(3.0))
    assert float(step(jax.random.key(0), away, jnp.zeros(3, jnp.int32))[1].metrics["catches"]) == 4


def test_everybody_starts_anywhere_and_at_rest():
    state, ts = jax.vmap(PredatorPrey().reset)(jax.random.split(jax.random.key(0), 2000))
    agents, obstacles = np.array(state.position[:, :, :4]), np.array(state.position[:, :, 4:])
    for places, limit in [(agents, 1.0), (obstacles, 0.9)]:
        # Uniform on [-limit, limit], in every place of the array: mean 0, variance limit² / 3.
        np.testing.assert_allclose(places.mean(0), 0, atol=0.06)
        np.testing.assert_allclose(places.var(0), limit**2 / 3, rtol=0.1)
        assert 0.99 * limit < np.abs(places).max() <= limit
    assert not state.velocity.any()
    assert not ts.metrics["catches"].any()


@pytest.mark.parametrize(("m", "obstacles", "obs_size"), [(3, 2, 16), (2, 0, 10), (5, 3, 22)])
def test_sizes(m, obstacles, obs_size):
    env = PredatorPrey(m, obstacles)
    spec = env.spec
    assert (spec.num_agents, spec.obs_size, spec.state_size) == (m, obs_size, m * obs_size)
    assert (spec.name, spec.num_actions, spec.horizon) == ("mpe-pp", 5, 100)
    _, ts = env.reset(jax.random.key(0))
    assert ts.obs.shape == (m, obs_size)
    np.testing.assert_array_equal(ts.global_state, ts.obs.reshape(-1))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"num_agents": 1}, "num_agents is 1"),
        ({"num_obstacles": -1}, "num_obstacles is -1"),
        ({"horizon": 0}, "horizon is 0"),
        ({"reward": "each"}, "reward is 'each'"),
    ],
)
def test_impossible_settings_are_named(settings, named):
    with pytest.raises(NahtError, match=named):
        PredatorPrey(**settings)


@pytest.mark.parametrize(("m", "obstacles", "reward"), [(3, 2, "sum"), (2, 0, "team"), (4, 1, "sum")])
def test_it_conforms(m, obstacles, reward, tmp_path):
    prey = random_prey(obs_size=4 + 2 * obstacles + 2 * m)
    check_environment(world_with(prey, tmp_path, m, obstacles, horizon=30, reward=reward), episodes=2)


def test_settings_survive_json():
    env = PredatorPrey(4, 1, 50, "team", "some/where.pt")
    assert decode(encode(env)) == env


# --- files of prey ---


def published(seed=0, obs_size=14, hidden=12):
    """Parameters in the layout of the published prey, by their PyTorch names."""
    rng = np.random.default_rng(seed)
    arrays = {
        "in_fn.weight": rng.uniform(0.5, 2, obs_size),
        "in_fn.bias": rng.normal(size=obs_size),
        "in_fn.running_mean": rng.normal(size=obs_size),
        "in_fn.running_var": rng.uniform(0.001, 3, obs_size),
        "fc1.weight": rng.normal(size=(hidden, obs_size)),
        "fc1.bias": rng.normal(size=hidden),
        "fc2.weight": rng.normal(size=(hidden, hidden)),
        "fc2.bias": rng.normal(size=hidden),
        "fc3.weight": rng.normal(size=(5, hidden)),
        "fc3.bias": rng.normal(size=5),
    }
    return {name: a.astype(np.float32) for name, a in arrays.items()}


def evaluate(arrays, x):
    """The published network in float64: batch norm in evaluation mode, then three layers."""
    p = {name: a.astype(np.float64) for name, a in arrays.items()}
    x = (x - p["in_fn.running_mean"]) / np.sqrt(p["in_fn.running_var"] + 1e-5) * p["in_fn.weight"] + p["in_fn.bias"]
    x = np.maximum(x @ p["fc1.weight"].T + p["fc1.bias"], 0)
    x = np.maximum(x @ p["fc2.weight"].T + p["fc2.bias"], 0)
    return x @ p["fc3.weight"].T + p["fc3.bias"]


def refused(path, obs_size=14):
    """The one line with which a prey file is refused."""
    with pytest.raises(NahtError) as e:
        load_prey(str(path), obs_size)
    line = str(e.value)
    assert "\n" not in line
    assert path.name in line
    return line


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("form", FORMATS)
def test_pytorch_files_are_read_without_pytorch(form, shared, tmp_path):
    arrays, path = published(), tmp_path / "prey.pt"
    path.write_bytes(FORMATS[form](*state_dictionary(arrays, shared)))
    found = read_torch_arrays(path)
    assert list(found) == list(arrays)
    for name, a in arrays.items():
        np.testing.assert_array_equal(found[name], a)

    x = np.random.default_rng(3).normal(size=(50, 14))
    expected = evaluate(arrays, x)
    prey = load_prey(str(path), 14)
    np.testing.assert_allclose(prey.logits(jnp.asarray(x, jnp.float32)), expected, rtol=1e-4, atol=1e-3)
    clear = np.diff(np.sort(expected, axis=1))[:, -1] > 0.01  # the best action leads by more than rounding
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(np.array(prey.act(jnp.asarray(x, jnp.float32)))[clear], expected.argmax(1)[clear])


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("storage", "dtype"), [("DoubleStorage", "f8"), ("HalfStorage", "f2"), ("LongStorage", "i8"), ("BoolStorage", "?")]
)
def test_other_types_of_tensors(form, storage, dtype, tmp_path):
    data, path = np.array([1, 0, 1, 1, 0, 1]).astype(dtype), tmp_path / "x.pt"
    pickled = dictionary(
        {"x": tensor("a", 6, 1, (2, 2), (2, 1), storage), "none": tensor("a", 6, 0, (0,), (1,), storage)}
    )
    path.write_bytes(FORMATS[form](pickled, {"a": data}))
    found = read_torch_arrays(path)
    assert found["x"].dtype == data.dtype
    np.testing.assert_array_equal(found["x"], data[1:5].reshape(2, 2))
    assert found["none"].shape == (0,)


@pytest.mark.parametrize("dots", [False, True])
def test_npz_files(dots, tmp_path):
    arrays, path = published(seed=1), tmp_path / "prey.npz"
    np.savez(path, **{name if dots else name.replace(".", "_"): a for name, a in arrays.items()}, note="a word")
    x = np.random.default_rng(4).normal(size=(50, 14))
    found = load_prey(str(path), 14).logits(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(found, evaluate(arrays, x), rtol=1e-4, atol=1e-3)


def test_our_own_format_goes_round(tmp_path):
    np.savez(tmp_path / "theirs.npz", **published())
    for i, prey in enumerate([random_prey(), load_prey(str(tmp_path / "theirs.npz"), 14)]):
        path = tmp_path / f"{i}.safetensors"
        prey.save(path)
        again = load_prey(str(path), 14)
        for (kernel, bias), (kernel2, bias2) in zip(prey.layers, again.layers, strict=True):
            np.testing.assert_array_equal(kernel, kernel2)
            np.testing.assert_array_equal(bias, bias2)
        assert again.card == prey.card
        assert again.fingerprint == prey.fingerprint


def test_the_fingerprint_is_that_of_the_parameters(tmp_path):
    env = world_with(random_prey(), tmp_path)
    assert env.fingerprint == world_with(random_prey(), tmp_path).fingerprint
    assert env.fingerprint != world_with(random_prey(seed=1), tmp_path).fingerprint


@pytest.mark.parametrize("where", ["start", "facts", "object", "names", "zip", "npz"])
def test_malice_is_refused_and_never_runs(where, tmp_path):
    mark = tmp_path / "mark"
    bad = pickle.dumps(Malice(mark), 2)
    pickle.loads(bad)
    assert mark.exists()  # it does work on those who trust it
    mark.unlink()

    head = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {})]
    pickled, storages = state_dictionary(published(), shared=False)
    path = tmp_path / ("prey.npz" if where == "npz" else "prey.pt")
    if where == "npz":
        np.savez(path, **published(), extra=np.array([Malice(mark)]))
    else:
        content = {
            "start": bad,
            "facts": head[0] + head[1] + bad,
            "object": b"".join(head) + bad,
            "names": b"".join(head) + pickled + bad,
            "zip": zip_file(bad, storages),
        }
        path.write_bytes(content[where])
    line = refused(path)
    assert "system" in line or where == "npz"
    assert not mark.exists()


def test_tensors_never_reach_beyond_their_data(tmp_path):
    """Views are made without a check by NumPy, so that a false size would show or crash on foreign memory."""
    data = np.arange(6, dtype=np.float32)
    put_count = b"}" + text("count") + b"J" + struct.pack("<i", 10**6) + b"s" + b"b"
    honest = tensor("a", 6, 0, (6,), (1,))
    reference_end = honest.index(b"NtQ") + 3
    cases = {
        "long": (tensor("a", 6, 0, (7,), (1,)), {"a": data}),
        "shifted": (tensor("a", 6, 3, (4,), (1,)), {"a": data}),
        "stretched": (tensor("a", 6, 0, (4,), (2,)), {"a": data}),
        "backwards": (tensor("a", 6, 5, (4,), (-1,)), {"a": data}),
        "before": (tensor("a", 6, -1, (4,), (1,)), {"a": data}),
        "uneven": (tensor("a", 6, 0, (2, 2), (1,)), {"a": data}),
        "without data": (honest, {}),
        "less than announced": (tensor("a", 10**6, 0, (10**6,), (1,)), {"a": data}),
        "altered": (honest[:reference_end] + put_count + honest[reference_end:], {"a": data}),
    }
    for form, write in FORMATS.items():
        for name, (value, storages) in cases.items():
            path = tmp_path / f"{form} {name}.pt"
            path.write_bytes(write(dictionary({"x": value}), storages))
            with pytest.raises(NahtError, match="can't be read as a PyTorch file of tensors") as e:
                read_torch_arrays(path)
            assert ("it sets attributes of a tensor" in str(e.value)) == (name == "altered")


@pytest.mark.parametrize("form", [*FORMATS, "npz", "ours"])
def test_truncated_files_are_one_clear_line(form, tmp_path):
    arrays = published()
    if form in FORMATS:
        whole, suffix = FORMATS[form](*state_dictionary(arrays, shared=False)), ".pt"
    elif form == "npz":
        np.savez(tmp_path / "whole.npz", **arrays)
        whole, suffix = (tmp_path / "whole.npz").read_bytes(), ".npz"
    else:
        random_prey().save(tmp_path / "whole.safetensors")
        whole, suffix = (tmp_path / "whole.safetensors").read_bytes(), ".safetensors"
    path = tmp_path / f"cut{suffix}"
    cuts = {0, 1, 2, 3, len(whole) - 1, len(whole) - 30, *range(10, len(whole), max(len(whole) // 60, 1))}
    for cut in cuts:
        path.write_bytes(whole[:cut])
        line = refused(path)
        assert not line.rstrip().endswith((":", "()"))  # there is a reason


def test_files_of_another_kind(tmp_path):
    assert "neither 'naht' nor a file" in refused(tmp_path / "missing.pt")
    assert "neither 'naht' nor a file" in refused(tmp_path)

    other = tmp_path / "prey.txt"
    other.write_text("a prey")
    assert "'.txt'" in refused(other)
    assert ".safetensors (ours), .pt or .npz" in refused(other)
    for suffix in (".pt", ".npz", ".safetensors"):
        path = other.with_suffix(suffix)
        path.write_text("a prey")
        refused(path)

    agent = tmp_path / "agent.safetensors"
    write_arrays(agent, {"w": np.zeros(3)}, {"kind": "agent"})
    assert "of kind 'agent', not 'prey'" in refused(agent)

    single = tmp_path / "single.npz"
    with open(single, "wb") as file:
        np.save(file, np.zeros(3))
    refused(single)

    plain = tmp_path / "archive.pt"
    with zipfile.ZipFile(plain, "w") as archive:
        archive.writestr("hello", "world")
    assert "neither of PyTorch's formats" in refused(plain)

    numbers_only = tmp_path / "list.pt"
    numbers_only.write_bytes(legacy_file(pickle.dumps([1, 2], 2), {}))
    assert "no dictionary" in refused(numbers_only)


def test_networks_that_do_not_fit(tmp_path):
    def changed(name, **changes):
        path = tmp_path / f"{name}.npz"
        arrays = {k: a for k, a in (published() | changes).items() if a is not None}
        np.savez(path, **arrays)
        return path

    line = refused(changed("small"), obs_size=18)
    assert "sees 14 numbers" in line
    assert "shows 18" in line
    assert "has 3 actions" in refused(changed("lame", **{"fc3.weight": np.zeros((3, 12)), "fc3.bias": np.zeros(3)}))
    assert "lacks in_fn_running_var, fc3_bias" in refused(
        changed("poor", **{"in_fn.running_var": None, "fc3.bias": None})
    )
    assert "in_fn_bias should have 14 numbers" in refused(changed("norm", **{"in_fn.bias": np.zeros(13)}))
    assert "don't fit together" in refused(changed("joint", **{"fc2.weight": np.zeros((12, 11))}))
    assert "don't fit together" in refused(changed("bias", **{"fc2.bias": np.zeros(11)}))
    assert "don't fit together" in refused(changed("flat", **{"fc1.weight": np.zeros(12)}))
    assert "'fc1_bias' holds <U1, not floating-point numbers" in refused(
        changed("words", **{"fc1.bias": np.array(["a"] * 12)})
    )

    path = tmp_path / "torn.safetensors"
    prey = random_prey()
    Prey((prey.layers[0], prey.layers[0]), {}).save(path)
    assert "don't fit together" in refused(path)
    write_arrays(path, {}, read_arrays(path)[1])
    assert "don't fit together" in refused(path)

    with pytest.raises(NahtError, match="this world shows 18"):
        _ = world_with(random_prey(14), tmp_path, 5, 2).mover
