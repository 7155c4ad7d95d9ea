"""Jobs: by submitit's local executor, and by its real one on a stand-in for Slurm's commands."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from clustering import Sum
from naht import NahtError
from naht.clusters.call import home
from naht.clusters.choice import OnSlurm
from naht.errors import Interrupted
from naht.study.engine import carry_out
from naht.study.nodes import Node
from naht.study.works import Training
from naht.training.crew import Here
from naht.training.lease import is_locked
from naht.training.progress import Event
from probes import fingerprint, small
from slurm_standin import install

submitit = pytest.importorskip("submitit")
pytestmark = [
    pytest.mark.xdist_group("clusters"),
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(params=["local", "slurm"])
def jobs(request, tmp_path, monkeypatch):
    """Makes crews of jobs, as processes of submitit's or as those of the stand-in."""
    if request.param == "slurm":
        programs = install(tmp_path / "slurm")
        monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")

    def make(place, **settings):
        from naht.clusters import slurm

        monkeypatch.setattr(slurm, "ASK", 0.5)
        return slurm.Slurm(home(place), OnSlurm(**settings), local=request.param == "local")

    return make


def test_jobs_do_a_study_and_say_what_fails(jobs, tmp_path):
    work, news = Sum(tmp_path / "work", seconds=1.5), []
    assert carry_out(work.root, work.nodes, jobs(work.root), watch=news.append).failed == {}
    assert work.result == 7
    assert any(isinstance(item, Event) and item.run == "one" for item in news)
    failing = Sum(tmp_path / "failing", how="fails")
    outcome = carry_out(failing.root, failing.nodes, jobs(failing.root))
    assert {name: str(error) for name, error in outcome.failed.items()} == {"two": "2 can't be added"}
    assert sorted(number for number, _ in failing.begun) == [1, 2]
    assert not list(work.root.glob(".slurm/*.news"))


def test_a_job_that_dies_is_sent_again(jobs, tmp_path):
    work, news = Sum(tmp_path / "work", how="dies"), []
    outcome = carry_out(work.root, work.nodes, jobs(work.root, retries=1), watch=news.append)
    assert list(outcome.failed) == ["two"]
    assert "for the 2. time: not tried again" in str(outcome.failed["two"])
    assert [item.message for item in news if isinstance(item, Event) and "tried again (1 of 1)" in str(item.message)]
    assert sorted(number for number, _ in work.begun) == [1, 2, 2]


def announce(job):
    """Its time is almost up."""
    if isinstance(job, submitit.LocalJob):  # whose own way would end the process that starts its turns
        (task,) = Path(f"/proc/{job.job_id}/task/{job.job_id}/children").read_text().split()
        os.kill(int(task), signal.SIGUSR2)
    else:
        job._interrupt(timeout=True)


def test_a_job_whose_time_is_up_goes_on_and_one_that_is_stopped_is_saved(jobs, tmp_path):
    """First its time is up, which it survives by itself; then the command is stopped, and called again."""
    node = Node("train/poam/seed0", Training(replace(small(steps=6000), devices=1)))
    root, seen = tmp_path / "work", []
    crew = jobs(root)

    def watch(item):
        if isinstance(item, Event) and item.message is None and item.step < 5000:
            if not seen:
                seen.append("time is up")
                (job,) = crew._out
                announce(job)
            elif seen == ["time is up", "resumed"]:
                seen.append("stopped")
                signal.raise_signal(signal.SIGTERM)
        elif isinstance(item, Event) and str(item.message).startswith("resumed"):
            seen.append("resumed")

    with pytest.raises(Interrupted, match="go on with the same command"):
        carry_out(root, [node], crew, watch=watch)
    assert seen[:3] == ["time is up", "resumed", "stopped"]
    run = node.place(root) / "run"
    assert (run / "progress.log").read_text().count("stopped and saved") == 2
    assert not is_locked(node.place(root))
    assert carry_out(root, [node], jobs(root)).failed == {}
    carry_out(tmp_path / "whole", [node], Here())
    assert fingerprint(run) == fingerprint(node.place(tmp_path / "whole") / "run")


def test_a_dry_run_shows_the_script(tmp_path):
    words = "reproduce bit-game --seeds 1 --steps 400 --dry-run --on slurm --slurm.partition long --slurm.time 90m"
    words += " --slurm.memory 4GB --slurm.more constraint=fast --out"
    command = [sys.executable, "-m", "naht.cli", *words.split(), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for line in ("partition=long", "time=90", "mem=4GB", "constraint=fast", "cpus-per-task=1", "signal=USR2@120"):
        assert f"#SBATCH --{line}" in done.stdout
    assert "export NAHT_DEVICES=1" in done.stdout
    assert not list(tmp_path.iterdir())  # nothing was done


def test_a_limit_that_is_none_is_one_sentence(tmp_path):
    from naht.clusters.slurm import script

    for time, sentence in (("soon", "slurm.time is 'soon': write a number"), ("5s", "shortest limit is 1m")):
        with pytest.raises(NahtError, match=sentence):
            script(OnSlurm(time=time), tmp_path, 1)
