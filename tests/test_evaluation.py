"""Evaluation rows are honest, statistics right, saved agents safe to load."""

import csv
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from naht import Agent, Member, NahtError, Population, bootstrap_iqm, evaluate_mn, load_agent, make_env, mean_interval
from naht.agents.networks import NetworkConfig
from naht.agents.policy import Percept
from naht.agents.recurrent import RecurrentPolicy
from naht.agents.scripted import Bernoulli, Static
from naht.agents.teammate_model import ModelConfig
from naht.config import decode
from naht.evaluation.play import MAX_PARALLEL, evaluate_sampler
from naht.evaluation.statistics import group_means, interquartile_mean, student_quantile
from naht.evaluation.tables import summarise, write_rows
from naht.storage import read_arrays, write_arrays
from naht.teams.sampler import team_sampler
from probes import Rough

BITS = make_env("bit-game")


def populations():
    return Population([Member("ours", Static())]), Population([Member("theirs", Bernoulli(1 / 3))])


def test_mn_rows_have_every_n_and_the_known_returns():
    """Static among Bernoulli agents: N = 1 wins 4/9; N = 2 wins 2/3 if one of them has the first seat, else 1/3."""
    rows = evaluate_mn(BITS, *populations(), episodes=1500, seed=3, trial="t")
    assert len(rows) == 2 * 1500  # more than MAX_PARALLEL: several batches
    assert len({(r.num_controlled, r.episode) for r in rows}) == len(rows)
    assert all(r.length == 25 and r.trial == "t" and r.task == "bit-game" for r in rows)
    assert all(sum(s == "*ours" for s in r.seats) == r.num_controlled for r in rows)
    assert all(set(r.seats) <= {"*ours", "theirs"} for r in rows)
    means = group_means(rows, lambda r: (r.num_controlled, r.seats[0] == "*ours"), lambda r: r.episode_return)
    assert means[1, True] == pytest.approx(75 * 4 / 9, abs=1.4)
    assert means[2, True] == pytest.approx(75 * 2 / 3, abs=1.0)
    assert means[2, False] == pytest.approx(75 * 1 / 3, abs=1.4)


def test_evaluation_is_determined_by_its_seed():
    a, b, c = (evaluate_mn(BITS, *populations(), episodes=20, seed=s) for s in (1, 1, 2))
    assert a == b
    assert [r.episode_return for r in a] != [r.episode_return for r in c]
    first = evaluate_mn(BITS, *populations(), episodes=MAX_PARALLEL + 3, num_controlled=[1])
    assert [r.episode for r in first] == list(range(MAX_PARALLEL + 3))
    assert len({(r.episode_return, r.seats) for r in first[-3:]} | {(r.episode_return, r.seats) for r in first[:3]}) > 1


def test_any_n_including_none_and_all():
    rows = evaluate_mn(BITS, *populations(), episodes=4, num_controlled=[0, 3])
    assert {r.num_controlled for r in rows} == {0, 3}
    with pytest.raises(NahtError, match="N is 4"):
        evaluate_mn(BITS, *populations(), episodes=4, num_controlled=[4])
    with pytest.raises(NahtError, match="episodes is 0"):
        evaluate_mn(BITS, *populations(), episodes=0)


def test_episodes_that_end_early_count_once_with_their_own_length():
    env = Rough()
    ours, theirs = populations()
    sampler = team_sampler(3, 1)
    rows = evaluate_sampler(env, sampler, ours, theirs, episodes=200, seed=0)
    lengths = np.array([r.length for r in rows])
    assert lengths.min() >= 2
    assert lengths.max() == 9
    # Ends are uniform on 2..17, cut at 9: every first episode counts, so short ones are not over-represented.
    assert lengths.mean() == pytest.approx((sum(range(2, 9)) + 9 * 9) / 16, abs=0.6)
    assert all(0 <= r.metrics["deaths"] <= 2 for r in rows)


def test_rows_as_csv_and_summary(tmp_path):
    rows = [*evaluate_mn(BITS, *populations(), episodes=5, trial="a")]
    single = summarise(rows)
    assert [label for label, _, _ in single] == ["1", "2", "all"]
    assert single[-1][1].count == 10  # one trial: the interval is over episodes
    rows += evaluate_mn(BITS, *populations(), episodes=5, seed=1, trial="b")
    label, interval, count = summarise(rows)[-1]
    per_trial = [np.mean([r.episode_return for r in rows if r.trial == t]) for t in "ab"]
    assert (label, interval.count, count) == ("all", 2, 20)
    assert interval.mean == pytest.approx(np.mean(per_trial))
    write_rows(tmp_path / "deep" / "rows.csv", rows)
    with open(tmp_path / "deep" / "rows.csv") as f:
        table = list(csv.DictReader(f))
    assert len(table) == 20
    assert float(table[3]["return"]) == rows[3].episode_return
    assert table[3]["seats"].split() == list(rows[3].seats)


def test_student_quantiles_from_the_tables():
    for df, t in [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (29, 2.045), (1000, 1.962)]:
        assert student_quantile(0.975, df) == pytest.approx(t, abs=6e-4)


def test_mean_interval_by_hand():
    """1, 2, 3: mean 2, standard error 1/sqrt(3), t = 4.303."""
    x = mean_interval([1.0, 2.0, 3.0])
    assert (x.mean, x.count) == (2.0, 3)
    assert x.half_width == pytest.approx(4.303 / math.sqrt(3), abs=1e-3)
    assert math.isnan(mean_interval([5.0]).low)
    with pytest.raises(NahtError):
        mean_interval([])


def test_mean_interval_covers_95_percent():
    rng = np.random.default_rng(0)
    hits = [abs((x := mean_interval(rng.normal(size=5))).mean) <= x.half_width for _ in range(400)]
    assert np.mean(hits) == pytest.approx(0.95, abs=0.04)


def test_interquartile_mean():
    assert interquartile_mean(np.array([0.0, 1, 2, 100])) == 1.5
    assert interquartile_mean(np.arange(5.0)) == 2.0
    assert interquartile_mean(np.array([7.0])) == 7.0
    x = bootstrap_iqm([1.0, 2, 3, 4, 100])
    assert x.low <= x.mean <= x.high
    assert x == bootstrap_iqm([1.0, 2, 3, 4, 100])
    assert x.mean < 10  # an outlier does not move it


@pytest.fixture(params=[None, ModelConfig(8, 4)], ids=["plain", "with model"])
def agent(request):
    policy = RecurrentPolicy(BITS.spec, NetworkConfig(hidden=8), request.param)
    return Agent("a", policy, policy.init(jax.random.key(0)), BITS.spec, {"seed": 0})


def test_a_saved_agent_loads_in_one_line_and_acts_the_same(agent, tmp_path):
    agent.save(tmp_path / "a.safetensors")
    loaded = load_agent(tmp_path / "a.safetensors")
    assert loaded.policy == agent.policy
    assert loaded.card["seed"] == 0
    memory = twin = None
    for t in range(4):
        obs = jax.random.normal(jax.random.key(t), (5, 6))
        action, memory = agent.act(obs, memory=memory, slot=jnp.arange(5) % 3)
        again, twin = loaded.act(obs, memory=twin, slot=jnp.arange(5) % 3)
        assert action.tolist() == again.tolist()


def test_act_is_the_policy_with_its_own_last_action(agent):
    obs = jax.random.normal(jax.random.key(1), (6,))
    action, memory = agent.act(obs, slot=2)
    second, _ = agent.act(obs, memory=memory, slot=2, avail=jnp.array([False, True]))
    assert int(second) == 1  # masks are respected
    percept = Percept(obs, jnp.ones(2, bool), jnp.int32(-1), jnp.int32(2))
    expected, _inner, _ = agent.policy.act(
        agent.params, agent.policy.initial_memory(()), percept, jax.random.key(0), True
    )
    assert int(action) == int(expected)
    assert int(memory[1]) == int(action)
    samples = [int(agent.act(obs, key=jax.random.key(i))[0]) for i in range(20)]
    assert set(samples) == {0, 1}  # with a key it samples
    with pytest.raises(NahtError, match="sees 6 numbers on 'bit-game', got 4"):
        agent.act(jnp.zeros(4))


def test_bad_agent_files_are_one_clear_sentence(agent, tmp_path):
    path = agent.save(tmp_path / "a.safetensors")
    good = path.read_bytes()
    arrays, header = read_arrays(path)

    def check(content, message):
        path.write_bytes(content)
        with pytest.raises(NahtError, match=message) as e:
            load_agent(path)
        assert "\n" not in str(e.value)

    check(good[:100], "truncated or not a safetensors")
    check(good[:-50], "truncated or not a safetensors")
    check(b"", "truncated or not a safetensors")
    flipped = bytearray(good)
    flipped[-5] ^= 16
    check(bytes(flipped), "does not match its checksum")
    write_arrays(path, arrays, {"kind": "checkpoint"})
    check(path.read_bytes(), "holds a checkpoint, not an agent")
    write_arrays(path, dict(list(arrays.items())[1:]), header)
    check(path.read_bytes(), "lacks 1 arrays")
    name = next(iter(arrays))
    write_arrays(path, arrays | {name: np.zeros((99, 2), np.float32)}, header)
    check(path.read_bytes(), "has shape")
    write_arrays(path, arrays, header | {"policy": {"type": "os.system", "command": "true"}})
    check(path.read_bytes(), "unknown type of setting 'os.system'")
    with pytest.raises(NahtError, match="there is no file"):
        load_agent(tmp_path / "missing.safetensors")
    with pytest.raises(NahtError, match=r"ends in \.safetensors"):
        agent.save(tmp_path / "agent.bin")


def test_settings_round_trip_and_refuse_strangers():
    from naht.config import encode
    from naht.training.config import run_config

    for algorithm in ("poam", "ippo-naht", "poam-aht"):
        config = run_config("bit-game", algorithm)
        assert decode(encode(config)) == config
    with pytest.raises(NahtError, match="did you mean num_agents"):
        decode({"type": "BitGame", "num_agent": 3})
    with pytest.raises(NahtError, match="can't be saved"):
        encode({1, 2})


def test_an_agent_loads_in_a_fresh_process(tmp_path):
    """Whatever was imported before: the file alone says which policy it holds."""
    spec = make_env("bit-game").spec
    policy = RecurrentPolicy(spec, NetworkConfig(hidden=4))
    path = Agent("a", policy, policy.init(jax.random.key(0)), spec, {}).save(tmp_path / "a.safetensors")
    code = f"import naht; print(naht.load_members([{str(path)!r}], naht.make_env('bit-game').spec)[0].policy)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith("RecurrentPolicy(")
