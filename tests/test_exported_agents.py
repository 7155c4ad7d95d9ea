"""Agents of ours elsewhere: the files that are written, carried out by NumPy, PyTorch and ONNX Runtime."""

import pickle
import re
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epymarl_reference import KINDS, Kind, imported, random_percepts, weights_of, write
from naht import Agent, NahtError, load_agent, make_env
from naht.agents.exported import check_export, described, write_export
from naht.agents.networks import NetworkConfig
from naht.agents.recurrent import RecurrentPolicy
from naht.agents.scripted import make_bot
from naht.agents.teammate_model import ModelConfig
from naht.agents.value import ValuePolicy
from naht.agents.zoo import zoo_folder
from naht.cli import main
from naht.config import encode
from naht.envs.base import task_hash
from naht.experiments.exports import record_episodes, write_episodes
from probes import Rough

EXAMPLE = Path(__file__).parent.parent / "examples/run_exported.py"


def noisy(policy, seed=0):
    """Parameters none of which is 0 or 1."""
    rng, params = np.random.default_rng(seed), policy.init(jax.random.key(seed))
    return jax.tree.map(lambda a: jnp.asarray(a + rng.normal(size=a.shape, scale=0.1), jnp.float32), params)


def agent_of(env, policy, seed=0):
    card = {"task": encode(env), "task_hash": task_hash(env)}
    return Agent("agent", policy, noisy(policy, seed), env.spec, card)


SMALL = NetworkConfig(hidden=8)
MODEL = ModelConfig(hidden=6, embedding=4)
OURS = {
    "actor": lambda spec: RecurrentPolicy(spec, SMALL),
    "actor with a model": lambda spec: RecurrentPolicy(spec, SMALL, MODEL),
    "bare actor": lambda spec: RecurrentPolicy(spec, NetworkConfig(8, 0, False, False), MODEL),
    "reflexes": lambda spec: RecurrentPolicy(spec, NetworkConfig(8, history=False)),
    "values": lambda spec: ValuePolicy(spec, NetworkConfig(8, 1, True, False)),
}


class Stored(pickle.Unpickler):
    """Exported files by Python's own unpickler, with stand-ins for what PyTorch would be asked for."""

    def __init__(self, archive):
        super().__init__(archive.open("agent/data.pkl"))
        self.archive = archive

    def find_class(self, module, name):
        names = {
            "collections.OrderedDict": dict,
            "torch.FloatStorage": "<f4",
            "torch._utils._rebuild_tensor_v2": lambda data, offset, size, stride, *_: np.lib.stride_tricks.as_strided(
                data[offset:], size, [4 * s for s in stride]
            ),
        }
        return names[f"{module}.{name}"]

    def persistent_load(self, pid):
        kind, dtype, key, location, count = pid
        data = np.frombuffer(self.archive.read(f"agent/data/{key}"), dtype)
        assert (kind, location, count) == ("storage", "cpu", data.size)
        return data


class PlainAgent:
    """An exported agent in NumPy, in float64. Like those of examples/run_exported.py."""

    def __init__(self, path):
        with zipfile.ZipFile(path) as archive:
            stored = Stored(archive).load()
        self.network = stored["network"]
        self.weights = {name: a.astype(np.float64) for name, a in stored["weights"].items()}
        self.memory_sizes = {name: m["width"] for name, m in self.network["memory"].items()}

    def step(self, obs, avail, last_action, seat, memory):
        values = {"obs": obs, **memory}
        for name, index in (("last_action", last_action), ("seat", seat)):
            values[name] = (np.arange(self.network["inputs"][name]) == index[:, None]).astype(float)
        for layer in self.network["layers"]:
            values[layer["gives"]] = self.compute(layer, *[values[name] for name in layer["reads"]])
        scores = values[self.network["scores"]]
        action = np.where(avail, scores, -np.inf).argmax(-1)
        return action, scores, {name: values[m["becomes"]] for name, m in self.network["memory"].items()}

    def compute(self, layer, *xs):
        def w(part):
            return self.weights[f"{layer['weights']}.{part}"]

        x = xs[0]
        match layer["kind"]:
            case "join":
                return np.concatenate(xs, -1)
            case "linear":
                return x @ w("weight").T + w("bias")
            case "relu":
                return np.maximum(x, 0)
            case "norm":
                y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + layer["epsilon"])
                return y * w("weight") + w("bias") if layer["weights"] else y
            case "gru":
                i, j = (x @ w("weight_ih").T + w("bias_ih"), xs[1] @ w("weight_hh").T + w("bias_hh"))
                (r, z, n), (r_h, z_h, n_h) = np.split(i, 3, -1), np.split(j, 3, -1)
                r, z = 1 / (1 + np.exp(-r - r_h)), 1 / (1 + np.exp(-z - z_h))
                return (1 - z) * np.tanh(n + r * n_h) + z * xs[1]
            case "choose":
                return np.stack(xs[1:])[x.argmax(-1), np.arange(len(x))]


def replayed(agent, recorded):
    """(actions that differ, greatest difference in scores) when an exported agent sees a recording."""
    steps, worlds, seats = recorded["action"].shape
    rows, seat = worlds * seats, np.tile(np.arange(seats), worlds)
    memory = {name: np.zeros((rows, width)) for name, width in agent.memory_sizes.items()}
    other, difference = 0, 0.0
    for t in range(steps):
        memory = {name: np.where(np.repeat(recorded["first"][t], seats)[:, None], 0, m) for name, m in memory.items()}
        seen = [recorded[name][t].reshape(rows, *recorded[name].shape[3:]) for name in ("obs", "avail", "last_action")]
        action, scores, memory = agent.step(*seen, seat, memory)
        other += int((action != recorded["action"][t].reshape(rows)).sum())
        difference = max(difference, np.abs(scores - recorded["scores"][t].reshape(rows, -1)).max())
    return other, difference


@pytest.mark.parametrize("name", [*OURS, "rnn", "rnn_poam", "rnn_norm_ns", "no recurrence, seats"])
def test_exported_agents_do_the_same(name, tmp_path):
    """In a world of masks, deaths and short episodes, as NumPy carries out the file."""
    env = Rough(num_agents=4)
    if name in OURS:
        agent = agent_of(env, OURS[name](env.spec))
    else:
        agent = imported(write(tmp_path / "agent.th", weights_of(KINDS[name], env.spec)), env)
    write_export(agent, tmp_path / "agent.pt", "torch")
    recorded = record_episodes(agent, 3)
    assert recorded["first"].sum() > 3  # episodes end, and begin anew
    other, difference = replayed(PlainAgent(tmp_path / "agent.pt"), recorded)
    assert other == 0
    assert difference < 1e-5
    assert len(np.unique(recorded["action"])) > 1


@pytest.mark.parametrize("name", OURS)
def test_scores_are_those_of_our_networks(name):
    """What is exported, against the network that learned."""
    spec = Rough().spec
    agent = agent_of(Rough(), OURS[name](spec))
    policy, params = agent.policy, agent.params
    network, weights = described(agent)

    @jax.jit
    def both(percepts):
        def step(carry, percept):
            ours, theirs = carry
            found, theirs = network.run(weights, theirs, percept)
            x = policy.inputs(*percept[:1], *percept[2:4])[None]
            first = jnp.zeros((1, len(percept.slot)), bool)
            if isinstance(policy, ValuePolicy):
                scores, _ = policy.critic.apply(params.network, x, ours, first)
            else:
                embedding, _ = policy.embed(params, x, ours.encoder, first)
                x = jnp.concatenate([x, embedding], -1)
                scores, _ = policy.actor.apply(params.actor, x, ours.actor, first)
            _, ours, _ = policy.act(params, ours, percept, jax.random.key(0), True)
            return (ours, theirs), (found, scores[0])

        start = policy.initial_memory((6,)), network.initial_memory((6,))
        return jax.lax.scan(step, start, percepts)[1]

    found, scores = both(random_percepts(spec, (6,), steps=8))
    np.testing.assert_allclose(found, scores, atol=1e-5, rtol=0)
    assert np.asarray(scores).std() > 0.01


def test_agents_without_a_network_are_refused(tmp_path):
    env = make_env("mpe-pp")
    bot = Agent("pincer", make_bot("pincer", env.spec), (), env.spec, {})
    with pytest.raises(NahtError, match="pincer is a Pincer: only agents with a network"):
        check_export(bot, "torch")
    told = RecurrentPolicy(env.spec, SMALL, told="seats", strangers=2)
    with pytest.raises(NahtError, match="agent is told its team"):
        check_export(Agent("agent", told, told.init(jax.random.key(0)), env.spec, {}), "torch")


def theirs(folder, task, kind):
    env = make_env(task)
    return imported(write(folder / "agent.th", weights_of(kind, env.spec)), env)


def ours(_, name):
    return load_agent(zoo_folder() / f"mpe-pp/{name}.safetensors")


def untrained(_, task):
    env = make_env(task)
    return agent_of(env, RecurrentPolicy(env.spec, model=ModelConfig()))


AGENTS = {
    "vdn": (ours, "vdn-seed3"),
    "ippo": (ours, "ippo-seed0"),
    "poam": (untrained, "5v6"),
    "imported": (theirs, "5v6", Kind("rnn_poam", hidden=64)),
    "imported, seats": (theirs, "5v6", Kind("rnn_norm_ns", seat=False, hidden=64)),
}
"""How each is made, in a folder."""


@pytest.fixture(scope="module", params=AGENTS)
def exported(request, tmp_path_factory):
    """(agent, the path of its exported file without a suffix), with a recording of real episodes beside it."""
    folder = tmp_path_factory.mktemp("exported")
    make, *what = AGENTS[request.param]
    agent = make(folder, *what)
    write_export(agent, folder / "agent.pt", "torch")
    write_episodes(agent, folder / "agent.pt", 2)
    return agent, folder / "agent"


def test_real_episodes(exported):
    """Whole episodes of predator-prey and of battles, step by step: NumPy takes the same actions."""
    agent, path = exported
    recorded = dict(np.load(path.with_suffix(".episodes.npz")))
    assert len(recorded["action"]) == agent.spec.horizon
    other, difference = replayed(PlainAgent(path.with_suffix(".pt")), recorded)
    assert other == 0
    assert difference < 1e-5


def example(path):
    """(actions that differ, of how many, by how much scores do), as the example says, which knows nothing of naht."""
    code = f"import sys, runpy; sys.argv[1:] = [{str(path)!r}]; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    code += "; assert not [name for name in sys.modules if name.split('.')[0] in ('naht', 'jax')]"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = re.search(r"(\d+) of (\d+) actions differ from naht's, scores by at most (\S+)", done.stdout)
    return int(said[1]), int(said[2]), float(said[3])


@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch: pip install torch")
def test_the_example_in_pytorch(exported):
    _, path = exported
    other, actions, difference = example(path.with_suffix(".pt"))
    assert (other, actions > 500) == (0, True)
    assert difference < 1e-5


@pytest.mark.skipif(
    None in (find_spec("onnx"), find_spec("onnxruntime")), reason="needs ONNX: pip install onnx onnxruntime"
)
def test_the_example_in_onnx(exported):
    agent, path = exported
    write_export(agent, path.with_suffix(".onnx"), "onnx")
    other, actions, difference = example(path.with_suffix(".onnx"))
    assert (other, actions > 500) == (0, True)
    assert difference < 1e-5


def test_the_command(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export-agent", "zoo/mpe-pp/vdn-seed3", "--episodes", "0"]) == 0
    assert "vdn-seed3 saved as vdn-seed3.pt" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["vdn-seed3.pt"]
    first = Path("vdn-seed3.pt").read_bytes()
    assert main(["export-agent", "zoo/mpe-pp/vdn-seed3"]) == 2
    assert "vdn-seed3.pt exists already" in capsys.readouterr().err
    assert main(["export-agent", "zoo/mpe-pp/vdn-seed3", "--out", "again.pt"]) == 0
    assert Path("again.pt").read_bytes() == first  # equal agents, equal files
    assert Path("again.episodes.npz").is_file()
    if find_spec("onnx") is None:
        assert main(["export-agent", "zoo/mpe-pp/vdn-seed3", "--format", "onnx"]) == 2
        assert "writing ONNX needs the package onnx: pip install onnx" in capsys.readouterr().err
