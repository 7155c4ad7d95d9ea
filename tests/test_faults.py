"""Disks that are full, forbidden, slow or away for a while, and files that disappear: a sentence, and then the run goes
on as if nothing had happened."""

import os
import shutil
import subprocess
import time
from dataclasses import replace

import pytest

from clustering import Sum
from naht import NahtError, cli, resume
from naht.storage import write_file
from naht.study.nodes import finish, is_done
from naht.training.lease import is_locked
from naht.training.run import create
from probes import fingerprint, small


def cover(place, *how: str) -> None:
    """Mount something over a folder."""
    subprocess.run(["mount", *how, str(place)], check=True, capture_output=True)


def uncover(place) -> None:
    subprocess.run(["umount", "-l", str(place)], check=True)


EMPTY = ("-t", "tmpfs", "-o", "size=8m", "none")


@pytest.fixture
def disk(tmp_path):
    """A small disk of its own, which only root can have."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        cover(place, *EMPTY)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root can mount disks")
    yield place
    uncover(place)


def at_step(step, do):
    """A report that does something once, when a run gets there."""
    todo = [do]

    def report(event):
        if todo and event.message is None and event.step >= step:
            todo.pop()()

    return report


def test_a_disk_that_fills_up(disk, uninterrupted):
    folder = create(small(), disk / "run")
    sentence = r"writing to .* failed \(No space left on device\); the last checkpoint is whole: .* naht resume "
    with pytest.raises(NahtError, match=sentence):
        resume(folder, report=at_step(200, lambda: fill_up(disk)), checkpoint_every=0)
    assert not is_locked(folder)
    (disk / "filler").unlink()
    resume(folder)
    assert fingerprint(folder) == fingerprint(uninterrupted)


def fill_up(disk) -> None:
    room = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(room.f_bavail * room.f_bsize))


def test_a_node_of_a_study_on_a_full_disk(disk):
    """Found by the soak: its worker died with a traceback."""
    work = Sum(disk)
    node = work.nodes[0]
    fill_up(disk)
    with pytest.raises(NahtError, match=r"can't work in .* \(No space left on device\): mend that, and go on"):
        finish(disk, node)
    (disk / "filler").unlink()
    finish(disk, node)
    assert is_done(disk, node)


def test_a_command_on_a_full_disk_says_so_in_a_line(disk, monkeypatch, capsys):
    """Also where nobody expected it: found by the soak when a study's pictures were written."""
    fill_up(disk)
    monkeypatch.setattr(cli, "_dispatch", lambda _: write_file(disk / "picture.svg", b"<svg/>"))
    assert cli.main([]) == 2
    assert capsys.readouterr().err == f"naht: No space left on device: {disk / 'picture.svg'}\n"


def test_a_disk_that_becomes_read_only(disk, uninterrupted):
    folder = create(small(), disk / "run")
    forbid = at_step(200, lambda: cover(disk, "--bind", "-o", "ro", str(disk)))
    with pytest.raises(NahtError, match=r"writing to .* failed \(Read-only file system\)"):
        resume(folder, report=forbid, checkpoint_every=0)
    with pytest.raises(NahtError, match=r"Read-only file system"):
        resume(folder)
    uncover(disk)
    resume(folder)
    assert fingerprint(folder) == fingerprint(uninterrupted)


def test_a_disk_that_is_away_for_a_while(disk, uninterrupted):
    """An empty folder is in its place, in which nothing may be begun."""
    folder = create(small(), disk / "run")
    with pytest.raises(NahtError, match="was moved, emptied or is out of reach; nothing was written"):
        resume(folder, report=at_step(200, lambda: cover(disk, *EMPTY)), checkpoint_every=0)
    assert [path.name for path in disk.rglob("*") if path.is_file()] == []
    uncover(disk)
    resume(folder)
    assert fingerprint(folder) == fingerprint(uninterrupted)


def test_a_disk_that_is_slow(tmp_path, uninterrupted, monkeypatch):
    """Slower than a lease lasts: the heart beats on, and nobody takes over."""
    monkeypatch.setenv("NAHT_LEASE_SECONDS", "0.5")
    folder, seen, real = create(small(), tmp_path / "run"), [], os.fsync

    def slow(handle):
        if not seen:
            time.sleep(1.5)
            seen.append(is_locked(folder))
        real(handle)

    monkeypatch.setattr(os, "fsync", slow)
    resume(folder)
    assert seen == [True]
    assert fingerprint(folder) == fingerprint(uninterrupted)


def test_a_teammate_whose_file_disappears(tmp_path, uninterrupted):
    """A run that is going has it in memory; one that goes on later names what it misses and changes nothing."""
    file = tmp_path / "team" / "stranger.safetensors"
    file.parent.mkdir()
    shutil.copy(uninterrupted / "best.safetensors", file)
    config = small(steps=200)
    config = replace(config, teams=replace(config.teams, teammates=(str(file),)))
    whole = create(config, tmp_path / "whole")
    resume(whole, report=at_step(100, file.unlink))
    shutil.copy(uninterrupted / "best.safetensors", file)
    folder = create(config, tmp_path / "run")
    file.unlink()
    with pytest.raises(NahtError, match=r"stranger\.safetensors"):
        resume(folder)
    assert not (folder / "metrics.jsonl").exists()
    shutil.copy(uninterrupted / "best.safetensors", file)
    resume(folder)
    assert fingerprint(folder) == fingerprint(whole)
