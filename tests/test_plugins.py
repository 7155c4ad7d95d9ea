"""What other packages add: by registration, and as entry points of an installed package."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import naht
from installing import fresh_environment, install
from naht import Algorithm, Defaults, NahtError, Task, register_algorithm, register_task, run_config
from naht.cli import main
from naht.envs.bit_game import BitGame
from naht.learning.algorithms import ALGORITHMS
from naht.learning.ppo import PPOConfig
from naht.tasks import TASKS

EXAMPLE = Path(__file__).parent.parent / "examples" / "plugin"


@naht.setting
@dataclass(frozen=True)
class Bitless(BitGame):
    """The bit game under another name."""

    @property
    def spec(self):
        return replace(super().spec, name="bitless")


def unregister(table, name):
    table._here.pop(name, None)


def test_registered_names_are_known_everywhere(capsys):
    task = Task("no bits", Bitless, presets={"tuned": Defaults((PPOConfig(num_envs=8),), steps=700)})
    gentle = Algorithm(
        "POAM, gently", PPOConfig, {"clip": 0.02}, {"tuned": {"lr": 1e-5}}, {"bitless": {"tuned": {"epochs": 3}}}
    )
    register_task("bitless", task)
    register_algorithm("gentle", gentle)
    try:
        config = run_config("bitless", "gentle")
        learner = config.algorithm
        assert (learner.num_envs, learner.clip, learner.lr, learner.epochs) == (8, 0.02, 1e-5, 3)
        assert (config.steps, config.task, config.teams.teammates) == (700, Bitless(), ())
        assert run_config("bit-game", "gentle").algorithm.epochs == run_config("bit-game", "poam").algorithm.epochs
        assert run_config(Bitless(num_agents=4), "gentle").algorithm == learner
        main(["list", "tasks"])
        main(["list", "algorithms"])
        said = capsys.readouterr().out
        assert "no bits" in said
        assert "POAM, gently" in said
        with pytest.raises(NahtError, match="unknown preset 'paper': choose from tuned"):
            run_config("bitless", "poam", "paper")
        with pytest.raises(NahtError, match="there is a task 'bitless' already"):
            register_task("bitless", task)
    finally:
        unregister(TASKS, "bitless")
        unregister(ALGORITHMS, "gentle")


@pytest.mark.parametrize(
    ("register", "name", "thing", "message"),
    [
        (register_algorithm, "poam", Algorithm("", PPOConfig), "there is an algorithm 'poam' already"),
        (register_algorithm, "a/b", Algorithm("", PPOConfig), "algorithm 'a/b': a name has no colon, slash or space"),
        (register_algorithm, "mine", PPOConfig, "it must be a Algorithm"),
        (register_task, "mine", BitGame, "it must be a Task"),
    ],
)
def test_what_can_not_be_registered(register, name, thing, message):
    with pytest.raises(NahtError, match=message):
        register(name, thing)


def test_an_environment_that_calls_itself_otherwise():
    register_task("mislabelled", Task("", BitGame))
    try:
        with pytest.raises(
            NahtError, match="the environment of task 'mislabelled' calls itself 'bit-game' in its spec"
        ):
            run_config("mislabelled", "poam")
    finally:
        unregister(TASKS, "mislabelled")


def test_settings_do_not_take_each_others_names():
    with pytest.raises(NahtError, match=r"PPOConfig of elsewhere needs another name: naht\.learning\.ppo has"):
        naht.setting(dataclass(frozen=True)(type("PPOConfig", (), {"__module__": "elsewhere"})))


def offer(folder: Path, code: str, points: str) -> None:
    """An installed package, as Python sees it."""
    (folder / "offering.py").write_text(code)
    info = folder / "offering-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offering\nVersion: 1\n")
    (info / "entry_points.txt").write_text(points)


def command(*args: str, path: Path, python: str = sys.executable) -> subprocess.CompletedProcess:
    there = os.pathsep.join(filter(None, [str(path), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [python, "-m", "naht.cli", *args], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": there}
    )


def test_what_is_broken_is_a_sentence_and_the_rest_goes_on(tmp_path):
    offer(
        tmp_path,
        "import naht\nfine = naht.Algorithm('a fine one', naht.run_config('bit-game', 'poam').algorithm.__class__)\n",
        "[naht.algorithms]\nfine = offering:fine\ngone = offering:gone\nqmix = offering:fine\nodd = offering:naht\n"
        "[naht.tasks]\nlost = nowhere.at.all:TASK\n",
    )
    listed = command("list", "algorithms", path=tmp_path)
    assert listed.returncode == 0
    said = " ".join(listed.stdout.split())
    assert "a fine one" in said
    assert "'gone' of the installed package offering can't be used: AttributeError: module 'offering' has no" in said
    assert "algorithm 'qmix' of an installed package: that name is taken" in said
    assert "algorithm 'odd' of an installed package is <module 'naht'" in said
    asked = command("train", "bit-game", "gone", path=tmp_path)
    assert asked.returncode == 2
    assert asked.stderr.startswith("naht: 'gone' of the installed package offering can't be used: AttributeError")
    assert len(asked.stderr.splitlines()) == 1
    asked = command("train", "lost", "poam", path=tmp_path)
    assert asked.stderr.startswith("naht: 'lost' of the installed package offering can't be used: ModuleNotFoundError")


@pytest.mark.runs_much
def test_the_example_in_an_environment_of_its_own(tmp_path):
    """Installed by pip; then trained, killed, resumed, evaluated and listed by commands alone."""
    python = fresh_environment(tmp_path / "env")
    install(python, EXAMPLE, tmp_path)

    def naht_(*args: str) -> str:
        done = command(*args, path=Path(naht.__file__).parent.parent, python=python)
        assert done.returncode == 0, done.stderr
        return " ".join(done.stdout.split())

    assert "the share of its largest group" in naht_("list", "tasks")
    assert "REINFORCE with a recurrent policy" in naht_("list", "algorithms")
    assert "scripted: Shows the colour" in naht_("list", "agents", "--out", str(tmp_path))
    out = ["--out", str(tmp_path / "runs")]
    sizes = ["--steps", "51200", "--test-every", "12800", "--test-episodes", "32", "--final-episodes", "64"]
    run = tmp_path / "runs" / "colours" / "reinforce" / "seed0"
    command_line = [
        python,
        "-m",
        "naht.cli",
        "train",
        "colours",
        "reinforce",
        *sizes,
        *out,
        "--checkpoint-every",
        "0.2",
    ]
    training = subprocess.Popen(command_line, stdout=subprocess.DEVNULL)
    while training.poll() is None and not list(run.glob("checkpoints/*/*")):
        time.sleep(0.1)
    training.send_signal(signal.SIGKILL)
    training.wait()
    assert not (run / "last.safetensors").exists()
    naht_("resume", str(run))
    said = naht_("evaluate", str(run), "--episodes", "64", "--teammates", "copycat")
    mean = float(said.split(" all ")[1].split()[0])
    assert mean > 18.5  # of 20: who shows one colour is copied
    naht_("population", "build", "colours", "--algorithms", "reinforce-selfplay", "--seeds", "1", "--steps", "1280",
          "--episodes", "32", "--out", str(tmp_path / "strangers"))  # fmt: skip
    agents = naht_("population", "list", str(tmp_path / "strangers"))
    assert "reinforce-selfplay-seed0" in agents
