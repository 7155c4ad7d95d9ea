"""Runs survive anything: exact resume, damage, full disks, bad numbers, signals."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from naht import (
    Member,
    NahtError,
    Population,
    evaluate_sampler,
    load_agent,
    load_members,
    make_env,
    read_metrics,
    resume,
    run_config,
    setting,
    team_sampler,
    train,
)
from naht.cli import main
from naht.commands.training import print_finished
from naht.envs.bit_game import BitGame
from naht.errors import Interrupted
from naht.storage import read_arrays, tree_like
from naht.training import run as run_module
from naht.training.config import ALGORITHMS, PRESETS
from naht.training.parallel import Job, run_all
from naht.training.run import create
from naht.training.trainer import Trainer, TrainState, make_trainer
from probes import small

FILES = ("metrics.jsonl", "best.safetensors", "last.safetensors", "best.card.json", "last.card.json", "config.json")


def fingerprint(folder: Path) -> dict[str, bytes]:
    """Everything that must be the same, bit for bit: results, and the arrays of the last checkpoint."""
    contents = {name: (folder / name).read_bytes() for name in FILES}
    newest = sorted((folder / "checkpoints").glob("[0-9]*"))[-1]
    arrays, _ = read_arrays(newest / "state.safetensors")
    return contents | {name: array.tobytes() for name, array in arrays.items()}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(small(), folder)
    return folder


def test_a_run_leaves_what_the_docs_say(uninterrupted):
    names = {p.name for p in uninterrupted.iterdir()}
    assert set(FILES) | {"checkpoints", "timing.jsonl"} <= names
    rows = read_metrics(uninterrupted)
    assert [r["step"] for r in rows] == list(range(20, 401, 20))
    expected = {"actor/loss", "actor/entropy", "critic/loss", "train/return", "seconds"}
    expected |= {f"model/{m}{k}" for m in ("obs_mse", "action_prob") for k in ("", "_controlled", "_uncontrolled")}
    assert expected <= set(rows[-1])
    assert "steps_per_second" in rows[-1]
    assert [r["step"] for r in rows if "test/return" in r] == [100, 200, 300, 400]
    best, last = load_agent(uninterrupted), load_agent(uninterrupted / "last.safetensors")
    tests = [r["test/return"] for r in rows if "test/return" in r]
    assert best.card["test_return"] == max(tests)
    assert last.card["test_return"] == tests[-1]
    assert last.card["seed"] == 0


def test_agents_are_measured_in_fresh_episodes_when_a_run_ends(uninterrupted, capsys):
    """What everybody prints is that number, not the test that chose the agent."""
    best, last = load_agent(uninterrupted), load_agent(uninterrupted / "last.safetensors")
    for agent in (best, last):
        assert agent.card["measured"]["episodes"] == 1024
        assert 0 < agent.card["measured"]["half_width_95"] < 1.5
        env, (theirs,) = make_env("bit-game"), load_members(["bernoulli"], make_env("bit-game").spec)
        sampler = team_sampler(3, 1)
        ours = Population([Member("ours", agent.policy, agent.params)])
        again = evaluate_sampler(env, sampler, ours, Population([theirs]), episodes=2048, seed=5)
        assert agent.card["measured"]["return"] == pytest.approx(np.mean([r.episode_return for r in again]), abs=1.5)
    assert best.card["measured"]["return"] != best.card["test_return"]
    print_finished([uninterrupted])
    assert main(["list", "agents", "--out", str(uninterrupted)]) == 0
    assert main(["curves", str(uninterrupted), "--out", str(uninterrupted / "curves")]) == 0
    said = capsys.readouterr().out
    assert said.count(f"{best.card['measured']['return']:.2f} ± ") == 2
    assert f"{best.card['measured']['return']:.1f}" in said.splitlines()[-2]
    assert f"{best.card['test_return']:.2f}" not in said


def test_a_run_keeps_agents_on_its_way(uninterrupted, tmp_path):
    config = replace(small(), keep=4)
    train(config, tmp_path / "run")
    steps = [100, 200, 300, 400]
    kept = [load_agent(tmp_path / f"run/kept/step{step}.safetensors") for step in steps]
    assert [agent.card["steps"] for agent in kept] == steps
    assert [agent.name for agent in kept] == [f"poam-seed0-step{step}" for step in steps]
    last = load_agent(tmp_path / "run/last.safetensors")
    for a, b in zip(jax.tree.leaves(kept[-1].params), jax.tree.leaves(last.params), strict=True):
        np.testing.assert_array_equal(a, b)
    names = [m.name for m in load_members([str(tmp_path / "run/kept")], make_env("bit-game").spec)]
    assert names == [agent.name for agent in kept]  # a folder of agents like any other
    # Keeping changes nothing else.
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == (uninterrupted / "metrics.jsonl").read_bytes()
    with pytest.raises(NahtError, match="keep is -1"):
        replace(config, keep=-1)


def test_an_agent_says_what_it_believes_of_its_teammates(uninterrupted, tmp_path):
    """Its file has the decoders: what they predict is what the learner's do, in the middle of an episode."""
    agent = load_agent(uninterrupted / "last.safetensors")
    trainer, _ = make_trainer(small())
    newest = sorted((uninterrupted / "checkpoints").glob("*/state.safetensors"))[-1]
    template = trainer.init(jax.random.key(0))
    params = tree_like(template, read_arrays(newest)[0], "").learner.params
    obs = jax.random.normal(jax.random.key(1), (3, 4, 6))  # three steps of four seats
    slot = jnp.array([0, 1, 2, 1])
    memory, actions = None, [jnp.full(4, -1)]
    for t in range(3):
        seen, chance = agent.believe(obs[t], memory=memory, slot=slot)
        action, memory = agent.act(obs[t], memory=memory, slot=slot)
        actions.append(action)
    assert seen.shape == (4, 2, 6)
    np.testing.assert_allclose(chance.sum(-1), 1.0, rtol=1e-5)
    x = agent.policy.inputs(obs, jnp.stack(actions[:3]), jnp.broadcast_to(slot, (3, 4)))
    embedding, _ = agent.policy.embed(params.policy, x, jnp.zeros((4, 8)), jnp.zeros((3, 4), bool))
    wanted, logits = trainer.learner.decoders.apply(params.decoders, embedding[-1], slot)
    np.testing.assert_allclose(seen, wanted, atol=1e-5)
    np.testing.assert_allclose(chance, jax.nn.softmax(logits), atol=1e-5)
    again = load_agent(agent.save(tmp_path / "half.safetensors", float16=True))
    np.testing.assert_allclose(again.believe(obs[0])[0], agent.believe(obs[0])[0], atol=0.02)
    bare = replace(agent, decoders={})
    assert bare.act(obs[0], slot=slot)[0].tolist() == actions[1].tolist()  # acting needs none of them
    with pytest.raises(NahtError, match="does not keep its decoders"):
        bare.believe(obs[0])


def test_editing_a_teammates_file_is_noticed(tmp_path):
    bots = tmp_path / "bots.py"
    bots.write_text("def one(s):\n    return 1\n\ndef zero(s):\n    return 0\n")
    config = small()
    config = replace(config, teams=replace(config.teams, teammates=(f"{bots}:one", f"{bots}:zero", "static")))

    def stop(event):
        if event.step == 100 and event.message is None:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", report=stop)
    before = bots.read_text()
    bots.write_text(before.replace("return 1", "return 0"))
    with pytest.raises(NahtError, match=r"are not those it began with: .*bots.py:one, .*bots.py:zero$"):
        resume(tmp_path / "run", trust=True)
    with pytest.raises(NahtError, match=r"config.json names a teammate in Python, .*bots.py:one: .*add --trust"):
        resume(tmp_path / "run")
    bots.write_text(before)
    resume(tmp_path / "run", trust=True)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(uninterrupted, tmp_path):
    train(small(), tmp_path / "again", checkpoint_every=0)
    assert fingerprint(tmp_path / "again") == fingerprint(uninterrupted)
    train(small(seed=1), tmp_path / "other")
    assert (tmp_path / "other/metrics.jsonl").read_bytes() != (uninterrupted / "metrics.jsonl").read_bytes()


def test_a_step_compiles_once(uninterrupted):
    """A state that changes its types, be it weak types, would make the second step compile anew."""
    trainer, uncontrolled = make_trainer(small())
    state = trainer.init(jax.random.key(0))
    new, _ = trainer.step(state, uncontrolled.params)
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(new), strict=True):
        assert jax.typeof(before) == jax.typeof(after)
    newest = sorted((uninterrupted / "checkpoints").glob("*/state.safetensors"))[-1]
    loaded = trainer.place(tree_like(state, read_arrays(newest)[0], ""))
    assert [jax.typeof(x) for x in jax.tree.leaves(loaded)] == [jax.typeof(x) for x in jax.tree.leaves(state)]


def test_a_finished_run_is_left_alone(uninterrupted):
    before = fingerprint(uninterrupted)
    resume(uninterrupted)
    assert fingerprint(uninterrupted) == before
    with pytest.raises(NahtError, match="holds a run already; go on with: naht resume"):
        train(small(), uninterrupted)


CHILD = """
import sys
from naht.runtime import configure
configure()
from pathlib import Path
from naht import resume
print("ready", flush=True)
resume(Path(sys.argv[1]), checkpoint_every=0, report=lambda e: print(e.step, flush=True))
"""


def start(folder: Path) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", CHILD, str(folder)], stdout=subprocess.PIPE, text=True)


def resumes(folder: Path) -> list[int]:
    """The steps at which the run's log says that it went on from a checkpoint."""
    log = (folder / "progress.log").read_text()
    return [int(n.replace(",", "")) for n in re.findall(r"resumed at step ([\d,]+)", log)]


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_moments_and_resumed_it_ends_bit_identical(uninterrupted, tmp_path, seed):
    """SIGKILL again and again, anywhere: in a rollout, in a test, while writing (checkpoints are written non-stop)."""
    folder, rng = tmp_path / "run", random.Random(seed)
    create(small(), folder)
    kills = 0
    while kills < 4:
        child = start(folder)
        # Wait until it trains, then let it live for a random moment.
        lines = iter(child.stdout.readline, "")
        for line in lines:
            if line[0].isdigit() and (kills == 0 or int(line) > kills * 60):
                break
        time.sleep(rng.uniform(0, 0.03))
        child.kill()
        child.wait()
        child.stdout.close()
        kills += 1
    resume(folder)
    assert len(resumes(folder)) >= 3  # the first kill may come before the first checkpoint
    assert fingerprint(folder) == fingerprint(uninterrupted)


WRITES = """
import builtins, os, sys
from naht.runtime import configure
configure()
import naht.storage as storage
from naht import resume
moment, countdown = sys.argv[2], [int(sys.argv[3])]

def due(path):
    countdown[0] -= "state.safetensors" in str(path)
    return countdown[0] == 0

class Dying:
    def __init__(self, path): self.path = path
    def __enter__(self): return self
    def __exit__(self, *error): pass
    def write(self, content):
        with builtins.open(self.path, "wb") as f:
            f.write(content[: len(content) // 2])
        os.kill(os.getpid(), 9)

real_replace = os.replace
def dying_replace(a, b):
    if due(a): os.kill(os.getpid(), 9)
    real_replace(a, b)

if moment == "half written":
    storage.open = lambda path, mode: Dying(path) if due(path) else builtins.open(path, mode)
else:
    os.replace = dying_replace
resume(sys.argv[1], checkpoint_every=0)
"""


@pytest.mark.parametrize("moment", ["half written", "before rename"])
def test_killed_during_a_checkpoint_write(uninterrupted, tmp_path, moment):
    folder = tmp_path / "run"
    create(small(), folder)
    for _ in range(2):
        child = subprocess.run([sys.executable, "-c", WRITES, str(folder), moment, "5"], check=False)
        assert child.returncode == -signal.SIGKILL
        assert list(folder.rglob(".tmp-*"))  # it really died in the middle of a write
    resume(folder)
    assert resumes(folder) == [80, 160]  # the fifth write was lost, twice
    assert not list(folder.rglob(".tmp-*"))
    assert fingerprint(folder) == fingerprint(uninterrupted)


class Stop(Exception):
    pass


def stop_at(step):
    def report(event):
        if event.step >= step and event.message is None:
            raise Stop

    return report


def test_damaged_checkpoints_are_named_and_the_previous_one_is_used(uninterrupted, tmp_path):
    for damage in ("truncate", "flip", "empty"):
        folder = tmp_path / damage
        with pytest.raises(Stop):
            train(small(), folder, checkpoint_every=0, report=stop_at(300))
        newest, older = sorted((folder / "checkpoints").glob("*/state.safetensors"), reverse=True)
        content = bytearray(newest.read_bytes())
        if damage == "flip":
            content[-9] ^= 1
        newest.write_bytes(content[: {"truncate": len(content) // 2, "flip": None, "empty": 0}[damage]])
        messages = []
        resume(folder, report=lambda e, seen=messages: seen.append(e.message) if e.message else None)
        assert str(newest) in messages[0]
        assert "damaged" in messages[0] or "truncated" in messages[0]
        aside = folder / f"checkpoints/damaged-{newest.parent.name}/state.safetensors"
        assert aside.read_bytes() == content[: {"truncate": len(content) // 2, "flip": None, "empty": 0}[damage]]
        assert resumes(folder) == [int(older.parent.name)]
        assert fingerprint(folder) == fingerprint(uninterrupted)


def test_all_checkpoints_damaged_starts_over_only_when_told(uninterrupted, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Stop):
        train(small(), folder, checkpoint_every=0, report=stop_at(200))
    for path in (folder / "checkpoints").glob("*/state.safetensors"):
        path.write_bytes(b"nonsense")
    metrics = (folder / "metrics.jsonl").read_bytes()
    for _ in range(2):  # asked twice, it says the same
        with pytest.raises(NahtError, match=r"no checkpoint of .* is whole; to begin again at step 0"):
            resume(folder)
    assert (folder / "metrics.jsonl").read_bytes() == metrics
    assert len(list((folder / "checkpoints").glob("damaged-*/state.safetensors"))) == 2
    resume(folder, start_over=True)
    assert "starts over from nothing" in (folder / "progress.log").read_text()
    assert fingerprint(folder) == fingerprint(uninterrupted)


def test_a_checkpoint_belongs_to_its_settings(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Stop):
        train(small(), folder, checkpoint_every=0, report=stop_at(200))
    before = snapshot(folder)
    settings = json.loads((folder / "config.json").read_text())
    for change, sentence in (
        ({"seed": 7}, "seed is 7, was 0"),
        ({"algorithm": settings["algorithm"] | {"lr": 0.1}}, "algorithm.lr is 0.1, was 0.0005"),
        ({"algorithm": settings["algorithm"] | {"num_envs": 8}}, "algorithm.num_envs is 8, was 4"),
        ({"steps": 800}, "steps is 800, was 400"),
    ):
        (folder / "config.json").write_text(json.dumps(settings | change))
        with pytest.raises(NahtError, match=sentence):
            resume(folder)
    (folder / "config.json").write_bytes(before["config.json"])
    assert snapshot(folder) == before  # nothing was touched


def snapshot(folder: Path) -> dict[str, bytes]:
    """All files but the lock."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


MORTAL = """
import ctypes, sys
# Root reads whatever it likes; without these two capabilities it is a user like any other.
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
libc = ctypes.CDLL(None)
assert libc.capget(header, data) == 0
data[0] &= ~0b110
assert libc.capset(header, data) == 0
from naht.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_unreadable_checkpoints_are_not_damaged(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Stop):
        train(small(), folder, checkpoint_every=0, report=stop_at(200))
    files = sorted((folder / "checkpoints").glob("*/state.safetensors"))
    before = snapshot(folder)
    for path in files:
        path.chmod(0)
    said = subprocess.run(
        [sys.executable, "-c", MORTAL, "resume", str(folder)], capture_output=True, text=True, check=False
    )
    assert said.returncode == 2
    assert f"can't read {files[-1]}: Permission denied" in said.stderr
    assert said.stderr.count("\n") == 1
    for path in files:
        path.chmod(0o600)
    assert snapshot(folder) == before


@pytest.mark.parametrize("file", ["last.safetensors", "best.safetensors", "best.card.json", "both"])
@pytest.mark.parametrize("how", ["missing", "empty", "truncated"])
def test_a_finished_run_mends_itself(uninterrupted, tmp_path, file, how):
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted, folder)
    for name in ("last.safetensors", "best.safetensors") if file == "both" else (file,):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(b"" if how == "empty" else content[: len(content) // 2])
        if how == "missing":
            (folder / name).unlink()
    resume(folder)
    lost_best = "best.safetensors" in (file, "best.safetensors" if file == "both" else "")
    if lost_best and load_agent(uninterrupted).card["steps"] != 400:
        assert "the last agent takes the place of the best one" in (folder / "progress.log").read_text()
        assert load_agent(folder).card["steps"] == 400
    elif how != "missing" and file == "best.card.json":
        pass  # the file that people read; the agent's own copy is whole
    else:
        assert fingerprint(folder) == fingerprint(uninterrupted)


def test_half_a_row_is_none(uninterrupted, tmp_path):
    """As a full disk leaves it, in either file: curves are drawn without it, and a resumed run cuts it off."""
    folder = tmp_path / "run"
    with pytest.raises(Stop):
        train(small(), folder, checkpoint_every=0, report=stop_at(200))
    for name in ("metrics.jsonl", "timing.jsonl"):
        with open(folder / name, "a") as f:
            f.write('{"step": 220, "upd')
    assert read_metrics(folder)[-1]["step"] == 200
    resume(folder)
    assert fingerprint(folder) == fingerprint(uninterrupted)
    assert [r["step"] for r in read_metrics(folder) if "seconds" in r] == list(range(20, 401, 20))


@setting
@dataclass(frozen=True)
class Endless(BitGame):
    """Forgets to say when an episode is over."""

    def step(self, key, state, actions):
        state, ts = super().step(key, state, actions)
        return state, ts._replace(truncated=jnp.zeros((), bool))


def test_a_world_without_an_end_is_noticed(tmp_path):
    config = replace(small(), task=Endless(horizon=10))
    with pytest.raises(NahtError, match="has not ended after 10 steps, its horizon is 10: step must set truncated"):
        train(config, tmp_path / "run")
    ours = Population(load_members(["static"], make_env("bit-game").spec))
    with pytest.raises(NahtError, match="has not ended after 10 steps"):
        evaluate_sampler(Endless(horizon=10), team_sampler(3, 0, "all"), ours, Population([]), episodes=4)


def test_too_large_a_run_leaves_nothing_behind(tmp_path):
    config = small()
    config = replace(config, algorithm=replace(config.algorithm, num_envs=10**6, rollout_steps=10**5), devices=1)
    with pytest.raises(NahtError, match="GiB of memory, the machine has"):
        train(config, tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_lost_metrics_and_exchanged_teammates_are_noticed(uninterrupted, tmp_path):
    """What a resumed run depends on besides its checkpoint must be as it was."""
    friend = tmp_path / "friend.safetensors"
    friend.write_bytes((uninterrupted / "last.safetensors").read_bytes())
    config = small()
    config = replace(config, teams=replace(config.teams, teammates=(str(friend),)))
    folder = tmp_path / "run"
    with pytest.raises(Stop):
        train(config, folder, checkpoint_every=0, report=stop_at(200))
    metrics = folder / "metrics.jsonl"
    rows = metrics.read_bytes()
    metrics.write_bytes(rows[:100])
    with pytest.raises(NahtError, match="lost rows"):
        resume(folder)
    metrics.write_bytes(rows)
    stranger = load_agent(friend)
    replace(stranger, params=jax.tree.map(lambda x: x + 1, stranger.params)).save(friend)
    with pytest.raises(NahtError, match="not those it began with"):
        resume(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_signals_save_and_say_how_to_go_on(uninterrupted, tmp_path, number):
    folder = tmp_path / "run"

    def report(event):
        if event.step == 140 and event.message is None:
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted, match=f"naht resume {folder}") as e:
        train(small(), folder, report=report)
    assert e.value.signal_number == number
    assert [p.name for p in (folder / "checkpoints").iterdir()] == ["000000000140"]  # at once, exactly there
    resume(folder)
    assert resumes(folder) == [140]
    assert fingerprint(folder) == fingerprint(uninterrupted)


def test_full_disk_is_a_clean_stop(uninterrupted, tmp_path, monkeypatch):
    folder, real = tmp_path / "run", run_module.save_checkpoint

    def full(path, step, *rest):
        if step >= 240:
            raise OSError(28, "No space left on device")
        real(path, step, *rest)

    monkeypatch.setattr(run_module, "save_checkpoint", full)
    with pytest.raises(NahtError, match=r"No space left on device.*naht resume"):
        train(small(), folder, checkpoint_every=0)
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["000000000200", "000000000220"]
    monkeypatch.undo()
    resume(folder)
    assert fingerprint(folder) == fingerprint(uninterrupted)


def test_a_really_full_disk(uninterrupted, tmp_path):
    """Checkpoints go to /dev/full through a link: the kernel itself refuses the bytes."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    folder = tmp_path / "run"
    with pytest.raises(Stop):
        train(small(), folder, checkpoint_every=0, report=stop_at(100))
    (folder / "timing.jsonl").unlink()
    (folder / "timing.jsonl").symlink_to("/dev/full")
    with pytest.raises(NahtError, match="No space left on device"):
        resume(folder)
    (folder / "timing.jsonl").unlink()
    resume(folder)
    assert fingerprint(folder) == fingerprint(uninterrupted)


def test_too_little_room_is_noticed_before_training(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(run_module.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(NahtError, match="MiB free; a run of this size needs"):
        train(small(), tmp_path / "run")


def test_an_unwritable_folder_is_an_error_before_training(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NahtError, match=r"can't write .* is a file"):
        train(small(), tmp_path / "file" / "run")


def test_two_processes_cannot_train_one_run(tmp_path):
    folder = tmp_path / "run"
    create(small(), folder)
    command = [sys.executable, "-m", "naht.cli", "resume", str(folder)]
    with run_module.only_process(folder):
        other = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert other.returncode == 2
    assert "another process" in other.stderr
    assert other.stderr.count("\n") == 1
    assert not (folder / "metrics.jsonl").exists()


def test_numbers_that_are_not_finite_stop_the_run_and_keep_the_last_good_state(tmp_path, monkeypatch):
    folder, real, calls = tmp_path / "run", Trainer.step, []

    def broken(self, state, params):
        calls.append(1)
        state, metrics = real(self, state, params)
        if len(calls) == 8:
            bad = jnp.full((), jnp.nan)
            state = state._replace(best_return=bad)
            metrics = metrics | {"critic/loss": bad, "actor/gradient_norm": bad}
        return state, metrics

    monkeypatch.setattr(Trainer, "step", broken)
    with pytest.raises(NahtError, match=r"critic/loss.*not|stopped being finite at step 160") as e:
        train(small(), folder)
    assert "actor/gradient_norm" in str(e.value)
    assert "learning rate" in str(e.value)
    arrays, facts = read_arrays(folder / "checkpoints/000000000140/state.safetensors")
    assert facts["step"] == 140
    assert all(np.isfinite(a).all() for n, a in arrays.items() if "learner" in n)


def test_really_exploding_settings_are_noticed(tmp_path):
    config = small()
    config = replace(config, algorithm=replace(config.algorithm, lr=1e30, max_grad_norm=1e30, value_loss="mse"))
    with pytest.raises(NahtError, match="stopped being finite"):
        train(config, tmp_path / "run")


def test_several_runs_use_several_processes(uninterrupted, tmp_path):
    jobs = [Job(small(seed=s), tmp_path / f"seed{s}") for s in range(3)]
    seen = set()
    run_all(jobs, workers=2, report=lambda e: seen.add(e.run))
    assert len(seen) == 3
    assert fingerprint(jobs[0].folder) == fingerprint(uninterrupted)  # the same as alone
    run_all(jobs, workers=2)  # nothing left to do
    with pytest.raises(NahtError, match="holds a run with other settings"):
        run_all([Job(small(seed=9), jobs[0].folder)])


def test_a_mistake_in_a_worker_reaches_the_user(tmp_path):
    jobs = [Job(small(seed=s), tmp_path / "file" / f"seed{s}") for s in range(2)]
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NahtError, match=r"can't write .* is a file"):
        run_all(jobs, workers=2)


def test_stopping_several_runs_saves_them_all(tmp_path):
    """SIGTERM to the parent process alone: it passes the word on, every run is saved and can go on."""
    command = ["train", "bit-game", "ippo-naht", "--seeds", "2", "--out", str(tmp_path), "--steps", "10000000"]
    command += ["--algorithm.num-envs", "4", "--algorithm.network.hidden", "8", "--workers", "2"]
    with subprocess.Popen([sys.executable, "-m", "naht.cli", *command], stderr=subprocess.PIPE, text=True) as process:
        training = set()
        while len(training) < 2:
            line = process.stderr.readline()
            assert line, "the command ended early"
            training.add(line.partition(":")[0])
        process.terminate()
        rest = process.stderr.read()
    assert process.returncode == 128 + signal.SIGTERM
    assert "go on with: naht resume" in rest.splitlines()[-1]
    for seed in range(2):
        folder = tmp_path / f"bit-game/ippo-naht/seed{seed}"
        assert str(folder) in rest
        assert len(list((folder / "checkpoints").iterdir())) == 1
        assert "stopped and saved" in (folder / "progress.log").read_text()


@pytest.mark.parametrize("task", PRESETS)
def test_every_algorithm_fits_every_task(task):
    """The real settings: a whole training step is put together, though not compiled, which would take a minute each."""
    for algorithm in ALGORITHMS if task == "bit-game" else ("poam", "qmix"):
        trainer, theirs = make_trainer(replace(run_config(task, algorithm), devices=1))
        key, best = jax.random.key(0), jnp.zeros(())
        experience, arena = jax.eval_shape(trainer.learner.init_experience), jax.eval_shape(trainer._reset, key)
        state = TrainState(jnp.int32(0), key, trainer.learner.init(key), experience, arena, best)
        after, metrics = jax.eval_shape(trainer.step, state, theirs.params)
        assert jax.tree.map(lambda leaf: leaf.shape, after) == jax.tree.map(lambda leaf: leaf.shape, state)
        assert "train/return" in metrics


@pytest.mark.parametrize(
    ("task", "algorithm"), [*[("mpe-pp", name) for name in ALGORITHMS], ("3m", "poam"), ("3m", "qmix")]
)
def test_every_algorithm_trains_saves_and_goes_on(task, algorithm, tmp_path):
    """The real settings, a few updates: train, stop, resume, load, and the agent acts. Where episodes have one length,
    and for one algorithm of each kind also where they end early and agents die."""
    config = run_config(task, algorithm)
    per_update = config.algorithm.num_envs * (config.algorithm.rollout_steps or config.task.spec.horizon)
    config = replace(config, steps=3 * per_update, test_every=per_update)
    with pytest.raises(Stop):
        train(config, tmp_path / "run", checkpoint_every=0, report=stop_at(2 * per_update))
    resume(tmp_path / "run")
    agent = load_agent(tmp_path / "run")
    action, _ = agent.act(np.zeros(config.task.spec.obs_size))
    assert 0 <= int(action) < config.task.spec.num_actions


def test_presets_are_settings_not_copies():
    poam, ippo, aht = (run_config("bit-game", name, "paper") for name in ("poam", "ippo-naht", "poam-aht"))
    assert replace(poam.algorithm, modelling=False) == ippo.algorithm
    assert poam.algorithm == aht.algorithm
    assert (poam.teams.num_controlled, aht.teams.num_controlled) == ("uniform", 1)
    for name in ALGORITHMS:
        for preset in PRESETS["bit-game"]:
            make_trainer(run_config("bit-game", name, preset))
    released = run_config("bit-game", "ippo-naht", "released").algorithm
    assert (released.actor_memory, released.critic_memory) == ("stored", "stored")
