"""Agents of ePyMARL and of the paper's authors: the same numbers here, and nothing but weights from their files."""

import json
import pickle
from pathlib import Path

import jax
import numpy as np
import pytest

from epymarl_reference import ENV, KINDS, Kind, by_hand, imported, random_percepts, weights_of, write
from naht import NahtError, load_agent, make_env
from naht.cli import main
from naht.envs.base import task_hash
from torch_files import FORMATS, Malice, dictionary, legacy_file, state_dictionary, tensor, text, zip_file


def played(policy, params, percepts):
    """(scores, memories, greedy actions) over T percepts."""

    @jax.jit
    def play(params, percepts):
        def step(memory, percept):
            scores, _ = policy.network.run(params, memory, percept)
            action, memory, _ = policy.act(params, memory, percept, jax.random.key(0), True)
            return memory, (scores, memory, action)

        return jax.lax.scan(step, policy.initial_memory(percepts.slot.shape[1:]), percepts)[1]

    return jax.tree.map(np.asarray, play(params, percepts))


@pytest.mark.parametrize("name", KINDS)
def test_they_give_the_same_numbers(name, tmp_path):
    """Saved and loaded again, over any leading axes, in any seats; the weights that nobody uses are there, too."""
    kind = KINDS[name]
    weights = weights_of(kind)
    agent = imported(write(tmp_path / "agent.th", weights))
    agent = load_agent(agent.save(tmp_path / "agent.safetensors"))
    percepts = random_percepts(ENV.spec, (4, 3))
    scores, memory, action = played(agent.policy, agent.params, percepts)
    expected, *states = by_hand(weights, kind, ENV.spec, percepts)
    np.testing.assert_allclose(scores, expected, atol=1e-5, rtol=0)
    kept = {"hidden": kind.recurrent, "encoder_hidden": kind.plain == "rnn_poam"}
    assert set(memory) == {name for name, there in kept.items() if there}
    for name, state in zip(kept, states, strict=True):
        if kept[name]:
            np.testing.assert_allclose(memory[name], state, atol=1e-5, rtol=0)
    np.testing.assert_array_equal(action, np.where(percepts.avail, expected, -np.inf).argmax(-1))
    # The same through the public door, which remembers the last action itself: the one that was taken.
    greedy, remembered = agent.act(percepts.obs[0], slot=percepts.slot[0], avail=percepts.avail[0])
    np.testing.assert_array_equal(greedy, action[0])
    np.testing.assert_array_equal(remembered[1], greedy)


def test_both_containers_hold_the_same(tmp_path):
    for name in ("rnn_poam", "rnn_norm_ns"):
        found = [imported(write(tmp_path / f"{form}.th", weights_of(KINDS[name]), form)) for form in FORMATS]
        assert found[0].policy == found[1].policy
        assert jax.tree.all(jax.tree.map(np.array_equal, found[0].params, found[1].params))


def test_one_of_several_for_all_seats(tmp_path):
    """Agents without shared weights: number i sits in seat i, or one number in all of them."""
    weights, path = weights_of(KINDS["rnn_norm_ns"]), tmp_path / "agent.th"
    write(path, weights)
    chosen = imported(path, number=1)
    alone = {name.removeprefix("agents.1."): a for name, a in weights.items() if name.startswith("agents.1.")}
    other = imported(write(tmp_path / "alone.th", alone))
    assert chosen.policy == other.policy
    assert jax.tree.all(jax.tree.map(np.array_equal, chosen.params, other.params))
    assert chosen.card["source"]["architecture"] == "rnn_norm_ns"
    assert chosen.card["source"]["number"] == 1
    assert "number is 3: " in refused(path, number=3)
    assert "has agents 0 to 2" in refused(path, number=-1)
    assert "has the same weights for all seats" in refused(tmp_path / "alone.th", number=0)


def test_values_are_never_drawn_and_logits_are(tmp_path):
    path = write(tmp_path / "agent.th", weights_of(KINDS["rnn"]))
    avail = np.array([[[True, True], [True, True], [False, True]]])
    percept = random_percepts(ENV.spec, (3,), steps=1)._replace(avail=avail)
    percept = jax.tree.map(lambda x: np.repeat(x, 4000, 0), percept)
    for output in ("q", "pi_logits"):
        agent = imported(path, output=output)
        memory = agent.policy.initial_memory((4000, 3))
        action, _, log_prob = jax.jit(agent.policy.act, static_argnums=4)(
            agent.params, memory, percept, jax.random.key(1), False
        )
        scores = np.where(avail[0], agent.policy.network.run(agent.params, memory, percept)[0][0], -np.inf)
        if output == "q":
            np.testing.assert_array_equal(action, np.broadcast_to(scores.argmax(-1), (4000, 3)))
            np.testing.assert_array_equal(log_prob, 0.0)
        else:
            chance = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
            np.testing.assert_allclose(action.mean(0), chance[:, 1], atol=0.03)
            np.testing.assert_allclose(np.exp(log_prob), chance[np.arange(3), action], rtol=1e-4)


def test_fresh_parameters_are_a_network_that_works(tmp_path):
    policy = imported(write(tmp_path / "agent.th", weights_of(KINDS["rnn_poam"]))).policy
    params = policy.init(jax.random.key(0))
    assert {name: a.shape for name, a in params.items()} == policy.network.shapes
    assert np.asarray(played(policy, params, random_percepts(ENV.spec, (3,)))[0]).std() > 0.01


# Where agents lie, and what is said of them.


def refused(path, env=ENV, checkpoint=None, **choices):
    """The one line with which it is refused."""
    with pytest.raises(NahtError) as e:
        imported(path, env, checkpoint, **choices)
    assert "\n" not in str(e.value)
    return str(e.value)


CONFIG = {
    "name": "iql",
    "seed": 7,
    "agent": "rnn",
    "agent_output_type": "q",
    "hidden_dim": 7,
    "use_rnn": True,
    "obs_last_action": True,
    "obs_agent_id": True,
    "use_obs_norm": False,  # some say so of networks that have none
    "embed_dim": 5,
    "env_args": {"obs_last_action": False},  # of the world
}


def make_run(base, checkpoints=("best", "100", "20000"), config=CONFIG):
    """A run as the authors' code leaves it: <base>/models/<run>/<checkpoint>/agent.th, <base>/sacred/<run>/1."""
    run = base / "models/iql_baseline_seed=7_01-02-03-04-05"
    for i, name in enumerate(checkpoints):
        write(run / name / "agent.th", weights_of(KINDS["rnn"], seed=i))
        if name == "best":
            (run / name / "best_info.json").write_text('{"best_test_return": 12.5, "best_ts": "15000"}')
    records = base / "sacred" / run.name / "1"
    records.mkdir(parents=True)
    (records / "config.json").write_text(json.dumps(config))
    return run, records


def is_of(agent, seed):
    return np.array_equal(agent.params["fc1.bias"], weights_of(KINDS["rnn"], seed=seed)["fc1.bias"])


def test_checkpoints_of_a_run(tmp_path):
    run, records = make_run(tmp_path / "models")  # the word may stand anywhere in a path
    best = imported(run)
    assert is_of(best, 0)
    assert best.name == "iql-seed7"
    facts = {name: best.card[name] for name in ("algorithm", "seed", "steps", "test_return")}
    assert facts == {"algorithm": "iql", "seed": 7, "steps": 15000, "test_return": 12.5}
    last, first = imported(run, checkpoint="last"), imported(run, checkpoint="100")
    assert is_of(last, 2)
    assert is_of(first, 1)
    assert [agent.card["steps"] for agent in (last, first)] == [20000, 100]
    assert "test_return" not in last.card
    assert is_of(imported(run / "100"), 1)
    assert imported(run / "100/agent.th").card == first.card
    assert "checkpoint is '200': " in refused(run, checkpoint="200")
    assert "has best, 100, 20000" in refused(run, checkpoint="200")
    assert "is not a run that has several" in refused(run / "100", checkpoint="best")
    for wrong in ("NaN", "1" + 400 * "0", "null"):
        (run / "best/best_info.json").write_text(f'{{"best_test_return": {wrong}, "best_ts": "15000"}}')
        assert "best_test_return and best_ts that are numbers" in refused(run)
    (run / "best/best_info.json").unlink()
    assert "lacks best_info.json" in refused(run)
    (records / "config.json").write_text("[1, 2]")
    assert "is no JSON object" in refused(run, checkpoint="last")


def test_the_best_checkpoint_by_logged_returns(tmp_path):
    """Runs that keep no best one: the test nearest to each checkpoint counts, if it is near."""
    run, records = make_run(tmp_path, ("10", "500000", "1000000", "9000000"))
    assert "does not say which checkpoint is best: choose last or one of 10, 500000," in refused(run)
    steps = [0, 450000, 520000, 1010000, 5000000]
    values = [1.0, 99.0, {"value": 3.0, "dtype": "float64"}, {"value": 2.0, "dtype": "float64"}, 50.0]
    (records / "info.json").write_text(json.dumps({"test_return_mean": values, "test_return_mean_T": steps}))
    assert is_of(imported(run), 1)
    (records / "info.json").write_text(json.dumps({"test_return_mean": ["x"], "test_return_mean_T": [1]}))
    assert "test returns that are no numbers" in refused(run)


def test_cards_name_no_place(tmp_path):
    agent = imported(write(tmp_path / "agent.th", weights_of(KINDS["rnn_norm"])))
    assert agent.name == agent.card["algorithm"] == "epymarl-rnn_norm"
    assert agent.card["source"]["architecture"] == "rnn_norm"
    assert set(agent.card["source"]["sha256"]) == {"agent.th"}
    assert len(agent.card["source"]["sha256"]["agent.th"]) == 64
    assert agent.card["task_hash"] == task_hash(ENV)
    assert str(tmp_path) not in json.dumps(agent.card)
    assert agent.policy.output == "pi_logits"
    assert imported(tmp_path / "agent.th", output="q").policy.output == "q"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"agent": "rnn_norm"}, "has architecture rnn, but config.json says 'rnn_norm'"),
        ({"hidden_dim": 64}, "has hidden 7, but config.json says 64"),
        ({"use_rnn": False}, "has recurrent True, but config.json says False"),
        ({"obs_agent_id": False}, "has seat_id True, but config.json says False"),
        ({"agent_output_type": ["q"]}, "output is ['q']: choose from q, pi_logits"),
        ({"obs_team_composition": True}, "obs_team_composition"),
        ({"mask_before_softmax": False}, "mask_before_softmax"),
    ],
)
def test_settings_that_contradict_the_weights(changes, sentence, tmp_path):
    run, _ = make_run(tmp_path, config=CONFIG | changes)
    assert sentence in refused(run)


def test_strange_names_in_settings_are_not_taken_over(tmp_path):
    run, _ = make_run(tmp_path, config=CONFIG | {"name": "../../x", "seed": True})
    agent = imported(run)
    assert agent.name == "epymarl-rnn"
    assert "seed" not in agent.card


def test_what_a_network_reads_follows_from_its_width_unless_it_does_not(tmp_path):
    path = tmp_path / "agent.th"
    two = make_env("bit-game", num_agents=2)  # as many seats as actions
    write(path, weights_of(Kind("rnn", seat=False), two.spec))
    assert "last action or seat among them: say which" in refused(path, two)
    for choices in ({"last_action": True}, {"seat_id": False}):
        policy = imported(path, two, **choices).policy
        assert (policy.last_action, policy.seat_id) == (True, False)
    policy = imported(path, two, seat_id=True).policy
    assert (policy.last_action, policy.seat_id) == (False, True)
    assert "last action or seat among them: say which" in refused(path, two, seat_id=True, last_action=True)
    assert "reads 6 numbers: mpe-pp has 16 (observation), 5 (last action) and 3 (seat)" in refused(
        path, make_env("mpe-pp")
    )
    write(path, weights_of(KINDS["rnn"]))
    assert "has architecture rnn, but the call says 'rnn_norm'" in refused(path, architecture="rnn_norm")
    assert "has last_action True, but the call says False" in refused(path, last_action=False)


def test_the_encoder_lies_in_two_files(tmp_path):
    weights = weights_of(KINDS["rnn_poam"])
    path = write(tmp_path / "agent.th", weights)
    encoder = {name.removeprefix("encoder."): a for name, a in weights.items() if name.startswith("encoder.")}
    assert set(imported(path).card["source"]["sha256"]) == {"agent.th"}
    write(tmp_path / "encoder.th", encoder)
    assert set(imported(path).card["source"]["sha256"]) == {"agent.th", "encoder.th"}
    assert "is no agent of ePyMARL" in refused(tmp_path / "encoder.th")
    for other in (encoder | {"fc_h.bias": encoder["fc_h.bias"] + 1}, encoder | {"more": encoder["fc_h.bias"]}):
        write(tmp_path / "encoder.th", other)
        assert "is of another agent than" in refused(path)


# Files that are not what they should be.


def spoilt(**changes):
    """The weights of an rnn, some of them other or (None) missing."""
    return {name: a for name, a in (weights_of(KINDS["rnn"]) | changes).items() if a is not None}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"extra.weight": np.zeros((3, 3), np.float32)}, "has 1 unexpected arrays, first 'extra.weight'"),
        ({"agents.1.fc1.bias": np.zeros(3, np.float32)}, "has 1 unexpected arrays, first 'agents.1.fc1.bias'"),
        ({"rnn.bias_hh": None}, "lacks 1 arrays, first 'rnn.bias_hh'"),
        ({"rnn.weight": np.zeros((7, 7), np.float32)}, "lacks 1 arrays, first 'rnn.bias'"),
        ({"fc2.weight": None}, "'fc2.weight' is no matrix"),
        ({"fc1.weight": None}, "is no agent of ePyMARL: it holds"),
        ({"fc1.weight": np.zeros(7, np.float32)}, "'fc1.weight' is no matrix"),
        ({"rnn.weight_hh": np.zeros((21, 8), np.float32)}, "'rnn.weight_hh' has shape (21, 8), expected (21, 7)"),
        ({"fc2.weight": np.zeros((3, 7), np.float32)}, "'fc2.weight' has shape (3, 7), expected (2, 7)"),
        ({"fc2.weight": np.zeros((2, 10**6), np.float32)}, "expected (1000000,)"),
        ({"fc1.bias": np.full(7, np.nan, np.float32)}, "'fc1.bias' has numbers that are not finite"),
        ({"fc1.bias": np.full(7, np.inf, np.float32)}, "'fc1.bias' has numbers that are not finite"),
    ],
)
def test_weights_that_do_not_fit(changes, sentence, tmp_path):
    for form in FORMATS:
        assert sentence in refused(write(tmp_path / f"{form}.th", spoilt(**changes), form))


@pytest.mark.parametrize("kind", [Kind("rnn_poam", layers=0), Kind("rnn_poam")])
def test_an_encoder_of_neither_version(kind, tmp_path):
    weights = weights_of(kind)
    weights = {name: a for name, a in weights.items() if "fc_h" not in name or "encoder" not in name}
    assert "'encoder.fc_h.bias'" in refused(write(tmp_path / "agent.th", weights))


def test_files_that_are_no_dictionary_of_weights(tmp_path):
    path = tmp_path / "agent.th"
    pickled, storages = state_dictionary(spoilt(), shared=False)
    number = dictionary({"fc1.weight": tensor("a", 6, 0, (6,), (1,)), "steps": b"K\x07"})
    module = b"\x80\x02cmodules.agents.rnn_agent\nRNNAgent\n)\x81}" + text("training") + b"\x88sb."
    double = dictionary({"fc1.bias": tensor("a", 6, 0, (6,), (1,), "DoubleStorage")})
    huge = dictionary({"fc1.weight": tensor("a", 2**31 - 1, 0, (6,), (1,))})
    data = {"a": np.arange(6, dtype=np.float32)}
    for form, make in FORMATS.items():
        cases = {
            "'steps' is no tensor": make(number, data),
            "it asks for modules.agents.rnn_agent.RNNAgent, and only tensors are read": make(module, {}),
            "'fc1.bias' holds float64, expected float32": make(double, {"a": data["a"].astype(np.float64)}),
            "a storage of 2,147,483,647 numbers": make(huge, data),
            "in the order 'big', not 'little'": make(pickled, storages, little=False),
            "it holds no dictionary": make(pickle.dumps([1, 2], 2), {}),
        }
        for sentence, content in cases.items():
            path.write_bytes(content)
            assert sentence in refused(path), form
        whole = make(pickled, storages)
        for cut in (0, 1, 100, len(whole) // 2, len(whole) - 100, len(whole) - 1):
            path.write_bytes(whole[:cut])
            assert "can't be read as a PyTorch file of tensors" in refused(path)
    assert "there is no file or folder" in refused(tmp_path / "nowhere.th")
    assert "is no agent.th, and no run" in refused(tmp_path / "..")


def test_nothing_that_a_file_asks_for_is_run(tmp_path, capsys):
    mark = tmp_path / "mark"
    bad = pickle.dumps(Malice(mark), 2)
    pickle.loads(bad)
    assert mark.exists()  # it does work on those who trust it
    mark.unlink()
    good, storages = state_dictionary(spoilt(), shared=False)
    head = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {})]
    inside = dictionary({"fc1.weight": bad[2:-1]})  # among the tensors
    (tmp_path / "run/1").mkdir(parents=True)
    path = tmp_path / "run/1/agent.th"
    for content in (
        bad,
        legacy_file(bad, {}),
        zip_file(bad, {}),
        legacy_file(inside, {}),
        zip_file(inside, storages),
        b"".join(head) + good + bad,
    ):
        path.write_bytes(content)
        for given, *more in ([path], [path.parent], [path.parent.parent, "--checkpoint", "last"]):
            assert main(["import-agent", str(given), "--task", "bit-game", *more]) == 2
            said = capsys.readouterr()
            assert said.out == ""
            assert said.err.count("\n") == 1
            assert "system" in said.err
        assert not mark.exists()


# The command line.


def call(capsys, *args):
    code = main(list(map(str, args)))
    out = capsys.readouterr()
    return code, " ".join(out.out.split()), out.err


def test_imported_agents_are_agents(capsys, tmp_path, monkeypatch):
    """They play, meet others, and are strangers in a training."""
    monkeypatch.chdir(tmp_path)
    run, _ = make_run(tmp_path)
    code, out, err = call(capsys, "import-agent", run, "--task", "bit-game", "--architecture", "rnn")
    assert code == 0, err
    assert "iql-seed7 (rnn of iql) saved as iql-seed7.safetensors" in out
    write(Path("poam/agent.th"), weights_of(KINDS["rnn_poam"]))
    code, _, err = call(capsys, "import-agent", "poam", "--task", "bit-game", "--name", "poam")
    assert code == 0, err
    agents = ["iql-seed7.safetensors", "poam.safetensors"]
    code, out, _ = call(capsys, "population", "list", *agents)
    assert "iql-seed7 bit-game 15,000 not measured yet poam bit-game ? not measured yet" in out
    code, _, err = call(capsys, "evaluate", agents[1], "--episodes", "2", "--teammates", agents[0], "turns")
    assert code == 0, err
    small = ["--steps=20", "--devices=1", "--test-episodes=16", "--final-episodes=16", "--algorithm.num-envs=4"]
    small += ["--algorithm.rollout-steps=5", "--algorithm.epochs=1", "--algorithm.network.hidden=8"]
    small += ["--teams.teammates", *agents]
    code, _, err = call(capsys, "train", "bit-game", "ippo-naht", *small)
    assert code == 0, err
    code, _, err = call(capsys, "import-agent", run, "--task", "bit-game")
    assert (code, "iql-seed7.safetensors exists already" in err) == (2, True)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["import-agent"], "FILE missing: usage: naht import-agent FILE --task TASK"),
        (["import-agent", "x.th"], "--task missing: which task is the agent for? Choose from bit-game, mpe-pp"),
        (["import-agent", "x.th", "--task", "bit-gam"], "did you mean bit-game?"),
        (["import-agent", "x.th", "--task", "bit-game"], "there is no file or folder x.th"),
        (["import-agent", "x.th", "--task", "bit-game", "--architecture", "lstm"], "invalid choice"),
        (["import-agent", "x.th", "--task", "bit-game", "--numbr", "1"], "did you mean --number"),
        (["export-agent", "nowhere"], "nowhere is no agent, run or population"),
        (["export-agent", "pincer"], "pincer is a scripted bot: only agents with a network can be exported"),
        (["export-agent", "bernoulli:0.5"], "is a scripted bot"),
        (["export-agent", "zoo/mpe-pp/vdn"], "names 5 agents: export one at a time"),
        (["export-agent", "zoo/mpe-pp/vdn-seed0", "--format", "tflite"], "invalid choice"),
        (["export-agent", "zoo/mpe-pp/vdn-seed0", "--episodes", "-1"], "episodes is -1"),
    ],
)
def test_mistakes_are_one_line(capsys, args, sentence):
    code, out, err = call(capsys, *args)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert sentence in err
