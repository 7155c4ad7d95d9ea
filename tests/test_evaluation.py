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
from naht.evaluation.comparison import compare_rows
from naht.evaluation.crossplay import play_meetings
from naht.evaluation.play import BLOCK, EpisodeRow, evaluate_sampler
from naht.evaluation.statistics import (
    bootstrap_improvement,
    difference_interval,
    effect_size,
    group_means,
    improvement,
    interquartile_mean,
    stratified_interval,
    student_quantile,
)
from naht.evaluation.tables import strangers, summarise, write_rows
from naht.storage import read_arrays, write_arrays
from naht.teams.sampler import team_sampler
from probes import Rough

BITS = make_env("bit-game")


def populations():
    return Population([Member("ours", Static())]), Population([Member("theirs", Bernoulli(1 / 3))])


def test_mn_rows_have_every_n_and_the_known_returns():
    """Static among Bernoulli agents: N = 1 wins 4/9; N = 2 wins 2/3 if one of them has the first seat, else 1/3."""
    rows = evaluate_mn(BITS, *populations(), episodes=1500, seed=3, trial="t")
    assert len(rows) == 2 * 1500  # several blocks
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
    first = evaluate_mn(BITS, *populations(), episodes=2 * BLOCK + 3, num_controlled=[1])
    assert [r.episode for r in first] == list(range(2 * BLOCK + 3))
    parts = [[r.episode_return for r in first[start : start + 80]] for start in (0, 87, 174)]
    assert parts[0] != parts[1] != parts[2] != parts[0]  # every block has its own chance


def test_every_n_and_every_agent_has_worlds_of_its_own():
    """Returns of N = 1 and N = 2, and of two agents, are not those of the same teams in the same seats."""
    a, b, _ = strangers = [Member(f"p{p}", Bernoulli(p)) for p in (0.1, 0.5, 0.9)]
    theirs = Population(strangers)

    def plan(rows, n):
        return [[s if s[0] != "*" else "*" for s in r.seats] for r in rows if r.num_controlled == n]

    one, two = (evaluate_mn(BITS, Population([m]), theirs, episodes=90) for m in (a, b))
    assert [sum("*" in s for s in seats) for seats in plan(one, 1)] == [1] * 90
    assert [sorted(set(s)) for s in plan(one, 1)] != [sorted(set(s)) for s in plan(one, 2)]
    assert plan(one, 1) != plan(two, 1)
    # Alone or after another N, an N is played in the same worlds; so is an agent, under any name.
    again = evaluate_mn(BITS, Population([Member("other", a.policy)]), theirs, episodes=90, num_controlled=[2])
    assert [r.episode_return for r in again] == [r.episode_return for r in one if r.num_controlled == 2]
    common = [evaluate_mn(BITS, Population([m]), theirs, episodes=90, common=True) for m in (a, b)]
    assert plan(common[0], 2) == plan(common[1], 2)
    assert [r.episode_return for r in common[0]] != [r.episode_return for r in common[1]]


def test_means_of_different_n_are_independent():
    """Correlation over evaluation seeds between the scores at N = 1 and N = 2. With common teams it was about 0.5."""
    ours = Population([Member("ours", Bernoulli(1 / 3))])
    theirs = Population([Member("good", Static()), Member("bad", Bernoulli(1.0))])
    scores = []
    for seed in range(60):
        rows = evaluate_mn(BITS, ours, theirs, episodes=15, seed=seed)
        scores.append([np.mean([r.episode_return for r in rows if r.num_controlled == n]) for n in (1, 2)])
    assert abs(np.corrcoef(np.array(scores).T)[0, 1]) < 0.4  # 3 standard errors


@pytest.mark.parametrize("episodes", [1, 7, 30, 131])
def test_every_stranger_plays_equally_often(episodes):
    theirs = Population([Member(f"p{p}", Bernoulli(p)) for p in (0.1, 0.5, 0.9)])
    rows = evaluate_mn(BITS, populations()[0], theirs, episodes=episodes, num_controlled=[1, 2])
    for n in (1, 2):
        met = [strangers(r) for r in rows if r.num_controlled == n]
        counts = [met.count((name,)) for name in theirs.roster.names]
        assert sum(counts) == episodes
        assert max(counts) - min(counts) <= 1


def test_evaluation_is_the_same_on_any_number_of_devices(monkeypatch):
    theirs = Population([Member("bot", Bernoulli(0.4)), Member("static", Static())])
    team = Population([Member(f"p{p}", Bernoulli(p)) for p in (0.2, 0.5)])

    def everything():
        rows = evaluate_mn(BITS, populations()[0], theirs, episodes=3 * BLOCK - 5, seed=4, num_controlled=[1])
        met = play_meetings(BITS, team, [(0, 1), (1, 0), (1, 1)], episodes=70)["return"]
        return rows, met.tolist(), evaluate_sampler(BITS, team_sampler(3, 2), populations()[0], theirs, episodes=300)

    assert jax.device_count() == 2
    shared = everything()
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    assert everything() == shared


def test_any_n_including_none_and_all():
    rows = evaluate_mn(BITS, *populations(), episodes=4, num_controlled=[0, 3])
    assert {r.num_controlled for r in rows} == {0, 3}
    with pytest.raises(NahtError, match="N is 4"):
        evaluate_mn(BITS, *populations(), episodes=4, num_controlled=[4])
    with pytest.raises(NahtError, match="episodes is 0"):
        evaluate_mn(BITS, *populations(), episodes=0)
    with pytest.raises(NahtError, match="seed is -1: it can't be negative"):
        evaluate_mn(BITS, *populations(), episodes=4, seed=-1)


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


def test_stratified_interval_by_hand():
    """Strata 0, 2 and 10, 14: variances 2 and 8, so the variance of the mean of four is (2 * 2 + 2 * 8) / 16 = 1.25."""
    x = stratified_interval([[0.0, 2.0], [10.0, 14.0]])
    assert (x.mean, x.count) == (6.5, 4)
    freedom = 1.25**2 / (0.25**2 + 1.0**2)
    assert x.half_width == pytest.approx(student_quantile(0.975, freedom) * math.sqrt(1.25))
    assert x.half_width < mean_interval([0.0, 2.0, 10.0, 14.0]).half_width
    assert stratified_interval([[1.0, 1.0], [3.0, 3.0]]).half_width == 0
    assert stratified_interval([[1.0], [2.0, 3.0]]) == mean_interval([1.0, 2.0, 3.0])
    one = [1.0, 4.0, 2.0]
    assert stratified_interval([one]).half_width == pytest.approx(mean_interval(one).half_width)


def test_intervals_of_one_agent_cover_95_percent():
    """Strangers that differ a lot, in known returns: N = 1 wins p (1-q)^2 + 2 (1-p) q (1-q), N = 2 likewise."""
    p, ours = 1 / 3, Population([Member("ours", Bernoulli(1 / 3))])
    theirs = Population([Member(f"q{q}", Bernoulli(q)) for q in (0.0, 0.4, 0.95)])

    def wins(p, q):
        return p * (1 - q) ** 2 + 2 * (1 - p) * q * (1 - q)

    truth = 75 * np.mean([x for q in (0.0, 0.4, 0.95) for x in (wins(p, q), wins(q, p))])
    hits = []
    for seed in range(150):
        _, interval, _ = summarise(evaluate_mn(BITS, ours, theirs, episodes=12, seed=seed))[-1]
        hits.append(interval.low <= truth <= interval.high)
    assert np.mean(hits) == pytest.approx(0.95, abs=0.05)


def test_differences_by_hand():
    """1, 3 against 0, 0, 3: means 2 and 1, variances 2 and 3, so the variance of the difference is 1 + 1 = 2."""
    a, b = [1.0, 3.0], [0.0, 0.0, 3.0]
    x = difference_interval(a, b)
    freedom = 2**2 / (1**2 / 1 + 1**2 / 2)
    assert x.mean == pytest.approx(1.0)
    assert x.half_width == pytest.approx(student_quantile(0.975, freedom) * math.sqrt(2))
    # Pooled variance (1 * 2 + 2 * 3) / 3, correction 1 - 3 / (4 * 3 - 1).
    assert effect_size(a, b) == pytest.approx(1 / math.sqrt(8 / 3) * (1 - 3 / 11))
    # 1 beats 0 and 0, loses to 3; 3 beats 0 and 0, ties with 3: (2 + 2.5) / 6.
    assert improvement(np.array(a), np.array(b)) == pytest.approx(4.5 / 6)
    better = bootstrap_improvement(a, b)
    assert better.mean == pytest.approx(0.75)
    assert better.low < 0.75 < better.high
    assert bootstrap_improvement([2.0, 3.0], [0.0, 1.0]).low == 1.0
    with pytest.raises(NahtError, match="two trials on each side, got 1 and 3"):
        difference_interval([1.0], b)


def test_comparisons_of_rows_by_hand():
    """Trials a, b against c, d at N = 1: over trials. One against one: over episodes, each with its twin."""

    def rows(trial, returns):
        return [
            EpisodeRow(trial, "t", 1, 0, i, (f"*{trial}", "u"), x, 5, {"battle_won": float(x > 1)})
            for i, x in enumerate(returns)
        ]

    ours, theirs = rows("a", [1.0, 3.0]) + rows("b", [3.0, 5.0]), rows("c", [0.0, 2.0]) + rows("d", [1.0, 1.0])
    one, every, *wins = compare_rows(ours, theirs)
    assert (one.num_controlled, every.num_controlled, every.unit) == ("1", "all", "trials")
    assert (every.ours, every.theirs) == (3.0, 1.0)
    assert every.difference == difference_interval([2.0, 4.0], [1.0, 1.0])
    assert every.improvement.mean == 1.0
    assert [w.measure for w in wins] == ["win rate"] * 2
    assert (wins[0].ours, wins[0].theirs) == (0.75, 0.25)
    single = compare_rows(rows("a", [1.0, 3.0, 0.0]), rows("c", [0.0, 4.0, 0.0]))[0]
    assert single.unit == "episodes"
    assert single.difference == mean_interval([1.0, -1.0, 0.0])
    assert single.improvement.mean == pytest.approx(0.5)
    assert single.effect == 0.0
    with pytest.raises(NahtError, match="not all trials played the same episodes"):
        compare_rows(ours, theirs[:3])


def test_common_worlds_make_a_comparison_sharper():
    """Two agents that differ a little: the interval of their difference is narrower than with worlds of their own."""
    agents = [Member("a", Bernoulli(0.30)), Member("b", Bernoulli(0.35))]
    theirs = Population([Member(f"q{q}", Bernoulli(q)) for q in (0.0, 0.9)])

    def spread(common):
        scores = []
        for seed in range(25):
            rows = [
                evaluate_mn(BITS, Population([m]), theirs, episodes=8, seed=seed, num_controlled=[2], common=common)
                for m in agents
            ]
            scores.append(np.mean([r.episode_return for r in rows[0]]) - np.mean([r.episode_return for r in rows[1]]))
        return np.std(scores)

    assert spread(True) < 0.8 * spread(False)


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
