"""Nothing lost, nobody let in: processes that die, teammates that misbehave, places that can't be written."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from naht import Member, NahtError, Population, Team, evaluate_sampler, load_agent, make_env, train
from naht.agents.scripted import Static
from naht.cli import main
from naht.envs.prey import _read, load_prey
from naht.training.folder import is_finished
from naht.training.trainer import make_trainer
from probes import small, snapshot

ENV = make_env("bit-game")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reliable") / "run"
    train(replace(small(), final_episodes=16), folder)
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(capsys, *args) -> str:
    """What a command that must fail says: one line."""
    assert main([str(a) for a in args]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    return captured.err


def alive(pids) -> list[int]:
    there = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            there.append(pid)
    return there


def test_workers_end_with_their_parent(tmp_path):
    """SIGKILL of the parent: its workers save what they train and leave, within seconds."""
    command = [sys.executable, "-m", "naht.cli", "train", "bit-game", "ippo-naht", "--seeds", "3", "--workers", "2"]
    command += [
        "--out",
        str(tmp_path),
        "--steps",
        "10000000",
        "--algorithm.num-envs",
        "4",
        "--algorithm.network.hidden",
    ]
    parent = subprocess.Popen([*command, "8"], stderr=subprocess.PIPE, text=True)
    for line in parent.stderr:
        if "steps/s" in line:
            break
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    parent.kill()
    parent.wait()
    parent.stderr.close()
    deadline = time.monotonic() + 30
    while alive(children) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not alive(children)
    runs = sorted((tmp_path / "bit-game/ippo-naht").iterdir())
    assert len(runs) == 3
    begun = [run for run in runs if list((run / "checkpoints").glob("*/state.safetensors"))]
    assert begun  # saved
    assert not any(map(is_finished, runs))


BAD_BOTS = {
    "raises": ("def go(s):\n    x = 1\n    return [][x]\n", "IndexError: list index out of range (", "line 3, in go)"),
    "exits": ("import sys\ndef go(s):\n    sys.exit(0)\n", "SystemExit: 0", "line 3, in go)"),
    "exits at once": ("import sys\nsys.exit(0)\n", "SystemExit: 0", "line 2"),
    "rubbish": ("def go(s):\n    return 'left'\n", "chose 'left': allowed actions were [0, 1]", ""),
    "nothing": ("def go(s):\n    pass\n", "chose None", ""),
    "bad memory": ("def go(s):\n    return 0, 'x'\n", "ValueError", ""),
    "syntax": ("def go(s:\n", "SyntaxError", "line 1"),
    "import": ("import no_such_module\ndef go(s):\n    return 0\n", "No module named 'no_such_module'", "line 1"),
}


@pytest.mark.parametrize("how", BAD_BOTS)
def test_teammates_that_fail_are_one_line(how, run, here, capsys):
    text, reason, place = BAD_BOTS[how]
    Path("bots.py").write_text(text)
    for command in (["evaluate", run, "--teammates"], ["train", "bit-game", "poam", "--teams.teammates"]):
        error = said(capsys, *command, "bots.py:go")
        assert "teammate 'bots.py:go'" in error
        assert reason in error
        assert place in error
    assert {path.name for path in here.iterdir()} <= {"bots.py", "__pycache__"}


def test_a_teammate_that_fails_later_is_one_line(run, here):
    """In the middle of an episode, out of compiled code."""
    Path("bots.py").write_text("def go(s):\n    return int(s.memory[0] < 3) or 1 // 0, s.memory + 1\n\ngo.memory = 1\n")
    for command in (
        ["evaluate", str(run), "--episodes", "2", "--teammates"],
        ["train", "bit-game", "ippo-naht", "--algorithm.network.hidden", "8", "--teams.teammates"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "naht.cli", *command, "bots.py:go"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1  # nothing more when the process ends
        assert "naht: teammate 'bots.py:go' failed: ZeroDivisionError" in done.stderr
        assert "bots.py, line 2, in go)" in done.stderr


def test_a_teammate_that_hangs_can_be_stopped(run, here):
    Path("bots.py").write_text(
        "import pathlib, time\ndef go(s):\n    if s.memory[0]:\n        pathlib.Path('HANGS').touch()\n"
        "        time.sleep(1000)\n    return 0, s.memory + 1\ngo.memory = 1\n"
    )
    # Whoever started the tests in the background may have switched Ctrl-C off.
    listening = "import signal, sys; signal.signal(2, signal.default_int_handler); from naht.cli import main; "
    command = [sys.executable, "-c", listening + "sys.exit(main(sys.argv[1:]))", "evaluate", str(run)]
    command += ["--teammates", "bots.py:go", "--episodes", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            while not Path("HANGS").exists() and process.poll() is None:
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGINT
    assert "teammate 'bots.py:go' does not answer" in error


def test_what_a_file_names_is_not_run(run, here, capsys):
    """A card and a config.json that name Python files; named by the user, or trusted, they run."""
    for file in ("bots.py", "more.py"):
        Path(file).write_text("from pathlib import Path\nPath('EXECUTED').touch()\ndef go(s):\n    return 0\n")
    agent = load_agent(run)
    named = {"teammates": ["bots.py:go", "static", "more.py:go"]}
    config = agent.card["config"] | {"teams": agent.card["config"]["teams"] | named}
    replace(agent, card=agent.card | {"config": config}).save("agent.safetensors")
    for command in (["evaluate"], ["watch", "--out", "film.gif"], ["compare", "--with", str(run)]):
        error = said(capsys, command[0], "agent.safetensors", *command[1:])
        assert "the card of poam-seed0 names teammates in Python, bots.py:go, more.py:go: playing" in error
        assert "--trust" in error
    Path("half").mkdir()
    Path("half/config.json").write_text(json.dumps(config))
    assert "half/config.json names teammates in Python" in said(capsys, "resume", "half")
    assert not Path("EXECUTED").exists()
    assert main(["evaluate", "agent.safetensors", "--episodes", "2", "--trust"]) == 0
    assert Path("EXECUTED").exists()


def test_places_that_cannot_be_written_are_known_before_any_work(run, here, capsys):
    Path("folder").mkdir()
    Path("file").touch()
    agents = [run, "--episodes", "100000000"]  # would take for ever
    assert "can't write folder: it is a folder" in said(capsys, "evaluate", *agents, "--out", "folder")
    assert "file is a file" in said(capsys, "evaluate", *agents, "--out", "file/rows.csv")
    assert "it is a file" in said(capsys, "compare", run, "--with", *agents, "--out", "file")
    assert "it is a file" in said(capsys, "evaluate", "selfplay", *agents, "--out", "file")
    assert "it is a file" in said(capsys, "curves", run, "--out", "file")
    Path("folder.gif").mkdir()
    assert "it is a folder" in said(capsys, "watch", run, "--out", "folder.gif")
    assert "File name too long" in said(capsys, "train", "bit-game", "poam", "--name", "x" * 300)
    assert "File name too long" in said(capsys, "evaluate", *agents, "--out", "x" * 300)


def test_results_that_cannot_be_written_are_saved_elsewhere(run, here, capsys, monkeypatch):
    """The disk fills up while episodes are played."""
    import naht.commands.playing as playing

    real, tried = playing.write_rows, []

    def full(path, rows):
        tried.append(path)
        if len(tried) == 1:
            raise OSError(28, "No space left on device")
        real(path, rows)

    monkeypatch.setattr(playing, "write_rows", full)
    assert main(["evaluate", str(run), "--episodes", "2", "--out", "rows.csv"]) == 0
    captured = capsys.readouterr()
    assert "can't write rows.csv (No space left on device): saved as" in captured.err
    assert tried[1].name == "rows.csv"
    assert len(tried[1].read_text().splitlines()) == 1 + 4


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--algorithm.model.hidden", "0"], "hidden is 0: it must lie between 1 and 1,000,000"),
        (["--algorithm.num-envs", "1000000000"], "num_envs is 1000000000: it must lie between 1 and 1,000,000"),
        (["--seed", "99999999999999999999"], "seed is 99999999999999999999"),
        (["--seed", "0.5"], "0.5"),
        (["--steps", "0"], "steps is 0: it must be at least 1"),
        (["--steps", "1000000000000000000000000000000"], "steps is 1000000000000000000000000000000"),
        (["--teams.slots", "middle"], "middle"),
        (["--algorithm.lr-end", "-1"], "lr_end is -1.0: it must be at least 0"),
        (["--algorithm.entropy", "nan"], "entropy is nan: it must be a finite number"),
        (["--algorithm.num-envs", "100000", "--algorithm.rollout-steps", "1000000"], "GiB of memory"),
        (["--workers", "0"], "workers is 0: it must be at least 1"),
        (["--keep", "-1"], "keep is -1"),
    ],
)
def test_absurd_settings_are_one_line_and_leave_nothing(flags, sentence, here, capsys):
    assert sentence in said(capsys, "train", "bit-game", "poam", *flags)
    assert list(here.iterdir()) == []


def test_zero_is_zero(here, capsys):
    assert "steps is 0" in said(capsys, "population", "build", "bit-game", "--steps", "0")
    assert "AGENT missing" in said(capsys, "population", "verify")
    error = said(capsys, "train", "bit-game", "poam", "--teams.teammates", "static", "static", "turns")
    assert "static is given more than once" in error
    assert error.count("static") == 1


@pytest.mark.parametrize("value", ["abc", "0", "-1", "99999"])
def test_a_wrong_number_of_devices_is_one_line(value):
    command = [sys.executable, "-m", "naht.cli", "list", "tasks"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"NAHT_DEVICES": value}
    )
    assert done.returncode == 2
    assert done.stderr == f"naht: NAHT_DEVICES is '{value}': it must be from 1 to 1024\n"


def published(**changes) -> dict[str, np.ndarray]:
    sizes = {"fc1": (128, 14), "fc2": (128, 128), "fc3": (5, 128)}
    arrays = {f"{name}_weight": np.zeros(size, np.float32) for name, size in sizes.items()}
    arrays |= {f"{name}_bias": np.zeros(size[0], np.float32) for name, size in sizes.items()}
    arrays |= {f"in_fn_{part}": np.ones(14, np.float32) for part in ("weight", "bias", "running_mean", "running_var")}
    return arrays | changes


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"fc1_bias": np.full(128, np.nan, np.float32)}, "'fc1_bias' has numbers that are not finite"),
        ({"fc1_bias": np.full(128, np.inf, np.float32)}, "'fc1_bias' has numbers that are not finite"),
        ({"fc1_bias": np.zeros(128, np.complex64)}, "'fc1_bias' holds complex64"),
        ({"fc1_bias": np.zeros(128, np.int32)}, "'fc1_bias' holds int32"),
        ({"fc1_bias": np.zeros(128, bool)}, "'fc1_bias' holds bool"),
        ({"in_fn_running_var": np.full(14, -1, np.float32)}, "a variance is negative"),
    ],
)
def test_preys_of_rubbish_are_refused(changes, sentence, here):
    np.savez("prey.npz", **published(**changes))
    _read.cache_clear()
    with pytest.raises(NahtError, match=sentence):
        load_prey("prey.npz", 14)


def test_bombs_are_not_unpacked(here):
    """A few bytes that unpack to gigabytes, and a file with a hole of gigabytes: refused at once."""
    np.savez_compressed("bomb.npz", **published(fc1_weight=np.zeros((60_000, 14 * 40), np.float32)))
    assert Path("bomb.npz").stat().st_size < 2**20
    with open("hole.safetensors", "wb") as f:
        f.truncate(5 * 2**30)
    for file, sentence in (("bomb.npz", "it unpacks to"), ("hole.safetensors", "5,368,709,120 bytes")):
        begun = time.monotonic()
        with pytest.raises(NahtError, match=sentence):
            load_prey(file, 14)
        assert time.monotonic() - begun < 5
    with pytest.raises(NahtError, match="5,368,709,120 bytes: a file of this kind has at most"):
        load_agent("hole.safetensors")


class Drawn:
    """A sampler that draws what it is told to."""

    num_agents = 3

    def __init__(self, controlled, member):
        self.team = Team(controlled, member)

    def sample(self, key, initial_state):
        return self.team if self.team.controlled is not None else None


@pytest.mark.parametrize(
    ("controlled", "member", "sentence"),
    [
        (jnp.array([True, False, False]), jnp.array([0, 0, 5]), "drew member 5 of U, which has 1 members"),
        (jnp.array([True, False, False]), jnp.array([-1, 0, 0]), "drew member -1 of C, which has 1 members"),
        (jnp.array([True, False, False]), jnp.array([0.0, 0.0, 0.0]), "'member' of a sampled team is of type float32"),
        (jnp.array([1, 0, 0]), jnp.array([0, 0, 0]), "'controlled' of a sampled team is of type int32, expected bool"),
        (jnp.array([True, False]), jnp.array([0, 0, 0]), r"has shape \(2,\), expected \(3,\)"),
        ([True, False, False], jnp.array([0, 0, 0]), "not an array"),
        (None, None, "drew None, not a naht.Team"),
    ],
)
def test_samplers_that_draw_rubbish_are_refused(controlled, member, sentence):
    team = Population([Member("static", Static())])
    with pytest.raises(NahtError, match=sentence):
        evaluate_sampler(ENV, Drawn(controlled, member), team, team, episodes=2)


def test_a_run_is_what_its_folder_says(run):
    """Reading never writes: looking at a run in every way leaves it as it is."""
    before = snapshot(run)
    assert main(["population", "show", str(run)]) == 0
    assert main(["list", "agents", "--out", str(run)]) == 0
    assert main(["resume", str(run)]) == 0
    make_trainer(small())
    assert {k: v for k, v in snapshot(run).items() if k != "progress.log"} == {
        k: v for k, v in before.items() if k != "progress.log"
    }
