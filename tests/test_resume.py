"""Runs survive anything: exact resume after kills, damaged and foreign files, full disks, signals."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from naht import (
    NahtError,
    load_agent,
    read_metrics,
    resume,
    train,
)
from naht.errors import Interrupted
from naht.training import run as run_module
from naht.training.run import create
from probes import Stop, fingerprint, small, snapshot, stop_at


def test_editing_a_teammates_file_is_noticed(tmp_path):
    bots = tmp_path / "bots.py"
    bots.write_text("def one(s):\n    return 1\n\ndef zero(s):\n    return 0\n")
    # Short: every move of these teammates is a call from compiled code.
    config = replace(small(steps=200), final_episodes=16)
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
    listed = r"config.json names teammates in Python, .*bots.py:one, .*bots.py:zero: .*add --trust"
    with pytest.raises(NahtError, match=listed):
        resume(tmp_path / "run")
    bots.write_text(before)
    resume(tmp_path / "run", trust=True)


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
