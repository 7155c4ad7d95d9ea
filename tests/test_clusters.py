"""Many machines: a real Ray cluster of several nodes on this one. Machines, workers and commands die; results are those
of one machine, bit for bit."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from clustering import Sum
from naht import NahtError
from naht.cli import main
from naht.clusters.call import home
from naht.clusters.choice import Elsewhere, OnRay, hired
from naht.errors import Interrupted
from naht.study.engine import carry_out
from naht.study.nodes import DONE, Node
from naht.study.works import NODE, Evaluation, Training
from naht.training.crew import Ended, Here
from naht.training.lease import is_locked
from naht.training.progress import Event
from probes import fingerprint, small
from ray_machines import Machines

pytestmark = [
    pytest.mark.xdist_group("clusters"),
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),  # Ray starts programs; JAX warns of forks
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")


@pytest.fixture(scope="module")
def machines():
    """A cluster of two machines with a core each, besides the head."""
    found = Machines()
    found.join()
    found.join()
    yield found
    found.close()


def crew_on(machines, place, *, settings=OnRay(), **more):  # noqa: B008
    from naht.clusters.rays import Ray

    return Ray(home(place), settings, address=machines.address, **more)


def naht(*words):
    """The command, in a process of its own."""
    return subprocess.run([sys.executable, "-m", "naht.cli", *words], capture_output=True, text=True, timeout=300)


def said(news):
    return [item.message for item in news if isinstance(item, Event) and item.run == "ray"]


# -- results are those of one machine


@needs_ray
def test_a_study_on_two_machines_has_the_rows_of_one(machines, tmp_path):
    config = replace(small(), devices=1)
    training = Node("train/poam/seed0", Training(config))
    evaluation = Evaluation(config.task, f"{NODE}{training.name}", ("bernoulli",), (1, 2), episodes=4)
    nodes = [training, Node("scores", evaluation, (training,))]
    news = []
    assert carry_out(tmp_path / "far", nodes, crew_on(machines, tmp_path / "far"), watch=news.append).failed == {}
    assert carry_out(tmp_path / "near", nodes, Here()).left == []
    rows = [nodes[1].place(tmp_path / where) for where in ("far", "near")]
    files = sorted(path.name for path in rows[1].iterdir() if path.name != DONE and path.name[0] != ".")
    assert files
    assert [(rows[0] / name).read_bytes() for name in files] == [(rows[1] / name).read_bytes() for name in files]
    assert fingerprint(training.place(tmp_path / "far") / "run") == fingerprint(
        training.place(tmp_path / "near") / "run"
    )
    assert [item.name for item in news if isinstance(item, Ended)] == [node.name for node in nodes]
    events = [item for item in news if isinstance(item, Event) and item.run == training.name]
    assert events[-1].message.startswith("in fresh episodes")  # what was said last came before the end
    assert max(event.step for event in events) == 400


FLAGS = "--algorithm.num-envs 4 --algorithm.rollout-steps 5 --algorithm.epochs 1 --algorithm.network.hidden 8"
FLAGS += " --algorithm.model.hidden 8 --algorithm.model.embedding 4 --steps 400 --test-every 100 --test-episodes 16"


@needs_ray
def test_seeds_of_a_command_are_the_same_on_a_cluster(machines, tmp_path, monkeypatch):
    """Two runs of two devices each; machines have a core each, so a run makes do with that."""
    monkeypatch.chdir(tmp_path)
    command = ["train", "bit-game", "poam", *FLAGS.split(), "--devices", "2", "--seeds", "2"]
    told = naht(*command, "--out", "far", "--on", machines.address)
    assert told.returncode == 0, told.stderr
    assert "400/400 steps" in told.stderr
    assert "ray" not in (told.stderr + told.stdout).lower()  # one display, ours
    assert main([*command, "--out", "near", "--workers", "1"]) == 0
    for seed in (0, 1):
        run = Path(f"bit-game/poam/seed{seed}")
        assert fingerprint("far" / run) == fingerprint("near" / run)


# -- what dies


@needs_ray
def test_machines_join_and_die(machines, tmp_path):
    """Nobody has an accelerator; one joins who does, and dies at work, which another does that joins then."""
    work, news, joined = Sum(tmp_path, how="waits"), [], []
    crew = crew_on(machines, tmp_path, settings=OnRay(accelerators=1))
    assert crew.size == 0
    sizes = []

    def watch(item):
        news.append(item)
        if not joined:
            joined.append(machines.join(accelerators=1))
        elif len(joined) == 1 and isinstance(item, Event) and item.run == "two":
            sizes.append(crew.size)
            machines.kill(joined[0])
            joined.append(machines.join(accelerators=1))

    try:
        outcome = carry_out(tmp_path, work.nodes, crew, watch=watch)
    finally:
        machines.kill(joined[1])
    assert (outcome.failed, outcome.left) == ({}, [])
    assert said(news)[0] == "no machine of the cluster has 1 cores and 1 accelerators: waiting for one that joins"
    assert re.fullmatch(r"two: its (machine|process) died; tried again \(1 of 3\)", said(news)[1])
    assert sizes == [1]
    assert work.result == 7
    assert sorted(number for number, _ in work.begun) == [1, 2, 2, 4]


@needs_ray
def test_a_worker_that_is_killed_is_replaced(machines, tmp_path):
    work, news, killed = Sum(tmp_path, seconds=0.5, how="waits"), [], []

    def watch(item):
        news.append(item)
        if not killed and (mine := [process for number, process in work.begun if number == 2]):
            killed.append(mine[0])
            os.kill(mine[0], signal.SIGKILL)

    assert carry_out(tmp_path, work.nodes, crew_on(machines, tmp_path), watch=watch).left == []
    assert said(news) == ["two: its process died; tried again (1 of 3)"]
    assert work.result == 7
    assert sorted(number for number, _ in work.begun) == [1, 2, 2, 4]


@needs_ray
def test_what_dies_every_time_is_not_tried_for_ever_and_what_fails_not_again(machines, tmp_path):
    deadly = Sum(tmp_path / "deadly", how="dies")
    deadly.root.mkdir()
    crew = crew_on(machines, deadly.root, settings=OnRay(retries=1))
    outcome = carry_out(deadly.root, deadly.nodes, crew)
    assert str(outcome.failed["two"]) == (
        "its process died, for the 2. time: not tried again; go on with the same command"
    )
    assert [node.name for node in outcome.left] == ["two", "all"]
    failing = Sum(tmp_path / "failing", how="fails")
    failing.root.mkdir()
    outcome = carry_out(failing.root, failing.nodes, crew_on(machines, failing.root))
    assert {name: str(error) for name, error in outcome.failed.items()} == {"two": "2 can't be added"}
    assert sorted(number for number, _ in failing.begun) == [1, 2]


COMMAND = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from clustering import Sum, home
from naht.clusters.choice import OnRay
from naht.clusters.rays import Ray
from naht.study.engine import carry_out
root = Path(sys.argv[1])
carry_out(root, Sum(root, seconds=float(sys.argv[3])).nodes, Ray(home(root), OnRay(), address=sys.argv[2]))
"""


@needs_ray
def test_a_command_that_is_killed_goes_on_when_it_is_called_again(machines, tmp_path):
    """Its workers end by themselves, and nothing is left that keeps others away."""
    work = Sum(tmp_path, seconds=20)
    with subprocess.Popen([sys.executable, "-c", COMMAND, str(tmp_path), machines.address, "20"]) as process:
        while len(work.begun) < 2:
            time.sleep(0.1)
            assert process.poll() is None
        process.kill()
    until = time.monotonic() + 30
    while any(is_locked(node.place(tmp_path)) for node in work.nodes):
        time.sleep(0.1)
        assert time.monotonic() < until
    quick = Sum(tmp_path)
    assert carry_out(tmp_path, quick.nodes, crew_on(machines, tmp_path)).left == []
    assert quick.result == 7


@needs_ray
def test_a_stop_signal_saves_everything_and_the_same_command_goes_on(machines, tmp_path):
    config = replace(small(steps=16_000), devices=1)  # seconds: news come every half second
    node = Node("train/poam/seed0", Training(config))
    stops = []

    def watch(item):
        if isinstance(item, Event) and 0 < item.step < 15_000 and not stops:
            stops.append(item.step)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="go on with the same command") as stopped:
        carry_out(tmp_path, [node], crew_on(machines, tmp_path), watch=watch)
    assert stopped.value.signal_number == signal.SIGINT
    run = node.place(tmp_path) / "run"
    assert "stopped and saved" in (run / "progress.log").read_text()
    assert not is_locked(node.place(tmp_path))
    assert carry_out(tmp_path, [node], crew_on(machines, tmp_path)).left == []
    assert "resumed at step" in (run / "progress.log").read_text()
    carry_out(tmp_path / "whole", [node], Here())
    assert fingerprint(run) == fingerprint(node.place(tmp_path / "whole") / "run")


# -- what is refused


@needs_ray
def test_a_worker_with_another_version_or_folder_refuses(machines, tmp_path):
    """The command says that it is another naht, another JAX, or in another folder than the workers find."""
    work = Sum(tmp_path)
    from naht.version import __version__

    mine = work.home
    for other, sentence in (
        (replace(mine, versions=mine.versions | {"naht": "9.8"}), f"has naht {__version__}, and the command 9.8"),
        (replace(mine, versions=mine.versions | {"jax": "9.7"}), "and the command 9.7"),
        (replace(mine, mark="another"), f"does not see {tmp_path} as the command does"),
    ):
        crew = crew_on(machines, tmp_path)
        crew._home = other
        outcome = carry_out(tmp_path, work.nodes, crew)
        assert sentence in str(outcome.failed["one"])
    assert not work.begun


def test_clusters_that_are_not_there_are_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for on, sentence in (
        ("rays", "on is 'rays': it must be ray, HOST:PORT, ray://HOST:PORT or slurm"),
        ("127.0.0.1:1", "there is no Ray cluster at 127.0.0.1:1"),
        ("ray://127.0.0.1:1", "there is no Ray cluster at ray://127.0.0.1:1"),
        ("slurm", "can't work with Slurm"),
    ):
        if find_spec("submitit" if on == "slurm" else "ray") is not None:
            with pytest.raises(NahtError, match=sentence), hired(Elsewhere(on), tmp_path):
                pass
    told = naht("train", "bit-game", "poam", *FLAGS.split(), "--on", "127.0.0.1:1")
    assert (told.returncode, len(told.stderr.splitlines())) == (2, 1)
    assert not list(Path("runs").rglob("config.json"))  # nothing was begun


@pytest.mark.parametrize(("on", "module"), [("ray", "ray"), ("slurm", "submitit")])
def test_without_the_package_one_sentence_names_it(tmp_path, on, module, monkeypatch):
    for name in (module, "naht.clusters.rays", "naht.clusters.slurm"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(NahtError, match=rf"pip install 'naht\[{on}\]'"), hired(Elsewhere(on), tmp_path):
        pass


def test_nothing_is_imported_that_nobody_asked_for():
    code = "import sys, naht.commands.training, naht.commands.reproducing, naht.commands.populations\n"
    code += "assert not {'ray', 'submitit', 'naht.clusters.rays', 'naht.clusters.slurm'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
