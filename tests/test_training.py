"""What a run does and leaves: results, agents, several at once, every algorithm on every task."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace

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
from naht.learning.algorithms import ALGORITHMS
from naht.storage import read_arrays, tree_like
from naht.tasks import TASKS
from naht.training.parallel import Job, run_all
from naht.training.trainer import Trainer, TrainState, make_trainer
from probes import FILES, Stop, fingerprint, shrunk, small, stop_at


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
    seats = jnp.array([[1, 2], [0, 2], [0, 1], [0, 2]])
    wanted, logits = trainer.learner.decoders.apply(params.decoders, embedding[-1], seats)
    np.testing.assert_allclose(seen, wanted, atol=1e-5)
    np.testing.assert_allclose(chance, jax.nn.softmax(logits), atol=1e-5)
    again = load_agent(agent.save(tmp_path / "half.safetensors", float16=True))
    np.testing.assert_allclose(again.believe(obs[0])[0], agent.believe(obs[0])[0], atol=0.02)
    bare = replace(agent, decoders={})
    assert bare.act(obs[0], slot=slot)[0].tolist() == actions[1].tolist()  # acting needs none of them
    with pytest.raises(NahtError, match="does not keep its decoders"):
        bare.believe(obs[0])


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


@pytest.mark.parametrize("task", TASKS)
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
    """The real settings in small, a few updates: train, stop, resume, load, and the agent acts. Where episodes have one
    length, and for one algorithm of each kind also where they end early and agents die."""
    config = shrunk(run_config(task, algorithm))
    with pytest.raises(Stop):
        train(config, tmp_path / "run", checkpoint_every=0, report=stop_at(2 * config.test_every))
    resume(tmp_path / "run")
    agent = load_agent(tmp_path / "run")
    action, _ = agent.act(np.zeros(config.task.spec.obs_size))
    assert 0 <= int(action) < config.task.spec.num_actions


def test_code_as_users_have_it_learns_the_same(uninterrupted, tmp_path):
    """These tests let XLA optimise less. Optimised, the same run has the same first numbers up to rounding, and then
    the same kinds of numbers."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_bytes((uninterrupted / "config.json").read_bytes())
    users = {
        k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    }
    command = [sys.executable, "-m", "naht.cli", "resume", str(folder)]
    subprocess.run(command, env=users, check=True, capture_output=True)
    rows, expected = read_metrics(folder), read_metrics(uninterrupted)
    assert [set(row) for row in rows] == [set(row) for row in expected]
    for name in set(rows[0]) - {"seconds", "steps_per_second"}:
        assert rows[0][name] == pytest.approx(expected[0][name], rel=1e-3, abs=1e-5, nan_ok=True), name
    assert load_agent(folder).fact("measured")["return"] > 0


def test_presets_are_settings_not_copies():
    poam, ippo, aht = (run_config("bit-game", name, "paper") for name in ("poam", "ippo-naht", "poam-aht"))
    assert replace(poam.algorithm, modelling=False) == ippo.algorithm
    assert poam.algorithm == aht.algorithm
    assert (poam.teams.num_controlled, aht.teams.num_controlled) == ("uniform", 1)
    for name in ALGORITHMS:
        for preset in TASKS["bit-game"].presets:
            make_trainer(run_config("bit-game", name, preset))
    released = run_config("bit-game", "ippo-naht", "released").algorithm
    assert (released.actor_memory, released.critic_memory) == ("stored", "stored")
