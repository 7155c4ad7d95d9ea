"""One process at a time in a folder, among all machines that share it; a stale lease is taken over, and who comes back
writes nothing."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from naht import NahtError, resume
from naht.errors import one_line
from naht.storage import remove_unfinished, write_file
from naht.training import lease
from naht.training.lease import PREFIX, Lost, is_locked, only_process, patient
from naht.training.run import create
from probes import fingerprint, small, snapshot

BUSY = "is being worked on by another process"


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setenv("NAHT_LEASE_SECONDS", "1.5")


def leases(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(f"{PREFIX}*"))


def somebody(folder: Path, *, silent: float = 0.0, **changes) -> Path:
    """The lease of a process on another machine, last heard of some seconds ago."""
    path = folder / f"{PREFIX}7"
    facts = {"token": "t", "host": "far", "machine": "another", "process": 5, "began": "1", "naht": lease.__version__}
    path.write_text(json.dumps(facts | changes))
    now = path.stat().st_mtime
    os.utime(path, (now - silent, now - silent))
    return path


def test_one_at_a_time(tmp_path):
    assert not is_locked(tmp_path)
    assert not is_locked(tmp_path / "nowhere")
    for _ in range(3):
        with only_process(tmp_path):
            assert is_locked(tmp_path)
            with (
                pytest.raises(NahtError, match=f"{BUSY}: process {os.getpid()} on .*last heard of 0 s ago"),
                only_process(tmp_path),
            ):
                pass
        assert not is_locked(tmp_path)
    assert leases(tmp_path) == [f"{PREFIX}3"]  # the last one stays: numbers only rise


def test_it_is_given_back_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), only_process(tmp_path):
        raise ZeroDivisionError
    assert not is_locked(tmp_path)


def test_of_another_machine_it_is_taken_over_when_stale(tmp_path):
    somebody(tmp_path, silent=1.0)
    assert is_locked(tmp_path)
    with pytest.raises(NahtError, match=f"{BUSY}: process 5 on 'far', last heard of 1 s ago"), only_process(tmp_path):
        pass
    somebody(tmp_path, silent=2.0)
    assert not is_locked(tmp_path)
    with only_process(tmp_path):
        assert leases(tmp_path) == [f"{PREFIX}8"]


def test_patience_waits_for_that(tmp_path):
    somebody(tmp_path, silent=0.5)
    began = time.monotonic()
    with patient(), only_process(tmp_path):
        assert 0.5 < time.monotonic() - began < 10


@pytest.mark.parametrize("hours", [-30, 30])
def test_no_clock_matters_but_the_file_systems(tmp_path, monkeypatch, hours):
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600 * hours)
    somebody(tmp_path, silent=1.0)
    assert is_locked(tmp_path)
    somebody(tmp_path, silent=2.0)
    assert not is_locked(tmp_path)


def test_where_nothing_can_be_written_one_can_still_look(tmp_path, monkeypatch):
    path = somebody(tmp_path)
    real = os.open

    def only_reading(name, flags, *rest):
        if flags & os.O_CREAT:
            raise PermissionError
        return real(name, flags, *rest)

    monkeypatch.setattr(os, "open", only_reading)
    assert is_locked(tmp_path)
    os.utime(path, (0, 0))
    assert not is_locked(tmp_path)


HOLDER = """
import sys, time
from pathlib import Path
from naht.training.lease import only_process
with only_process(Path(sys.argv[1])):
    print("mine", flush=True)
    time.sleep(60)
"""


def holder(folder: Path) -> subprocess.Popen:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "mine\n"
    return process


def test_that_of_a_dead_process_of_this_machine_is_taken_over_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("NAHT_LEASE_SECONDS", "600")
    with holder(tmp_path) as process:
        assert is_locked(tmp_path)
        process.kill()
        while lease._began(process.pid) is not None:  # a zombie is dead, too
            time.sleep(0.01)
        with only_process(tmp_path):
            pass
    # A later process that has got its number is not it.
    here = {"machine": lease._machine(), "process": os.getppid()}
    somebody(tmp_path, **here, began="1")
    assert not is_locked(tmp_path)
    somebody(tmp_path, **here, began=lease._began(os.getppid()))
    assert is_locked(tmp_path)


def test_a_lease_lives_as_long_as_its_process(tmp_path):
    with holder(tmp_path) as process:
        time.sleep(2.5)
        assert is_locked(tmp_path)
        process.send_signal(signal.SIGSTOP)  # alive, but silent
        time.sleep(0.5)
        assert is_locked(tmp_path)
        time.sleep(1.5)
        assert not is_locked(tmp_path)
        process.kill()


def _count(folder: Path, times: int) -> None:
    """What goes wrong if two do it at once."""
    counter = folder / "counter"
    for _ in range(times):
        while True:
            try:
                with only_process(folder):
                    seen = int(counter.read_text())
                    time.sleep(0.001)
                    counter.write_text(str(seen + 1))
                break
            except NahtError:
                time.sleep(0.002)


def test_many_processes_never_meet(tmp_path):
    (tmp_path / "counter").write_text("0")
    somebody(tmp_path, silent=5.0)  # and all find it stale at first
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_count, args=(tmp_path, 25)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (tmp_path / "counter").read_text() == "100"
    assert len(leases(tmp_path)) <= 2


def taken_over(folder: Path) -> None:
    """By somebody who finds its lease stale, and begins."""
    os.utime(folder / leases(folder)[-1], (0, 0))
    lease._acquire(folder, False)
    remove_unfinished(folder)


def test_who_was_taken_over_writes_nothing(tmp_path):
    (tmp_path / "old").write_text("old")
    with only_process(tmp_path):
        taken_over(tmp_path)
        with pytest.raises(Lost, match=f"was taken over by process {os.getpid()} on .*silent for 2 s; it ends"):
            write_file(tmp_path / "old", b"new")
    assert (tmp_path / "old").read_text() == "old"
    assert leases(tmp_path) == [f"{PREFIX}2"]  # and the new one is left alone
    assert is_locked(tmp_path)


def test_nor_if_it_was_stopped_just_before_the_last_move(tmp_path, monkeypatch):
    """The lease was asked for and ours; then somebody took over and cleaned up; then the file was to be renamed."""
    real = os.replace

    def stopped_before(source, target):
        monkeypatch.setattr(os, "replace", real)
        taken_over(tmp_path)
        real(source, target)

    with only_process(tmp_path):
        monkeypatch.setattr(os, "replace", stopped_before)
        with pytest.raises(Lost):
            write_file(tmp_path / "result", b"new")
    assert not (tmp_path / "result").exists()


SLOW = """
import sys, time
from naht.runtime import configure
configure()
from pathlib import Path
from naht import NahtError, resume
try:
    resume(Path(sys.argv[1]), checkpoint_every=0, report=lambda e: (print(e.step, flush=True), time.sleep(0.1)))
except NahtError as e:
    print(e, flush=True)
"""


def test_a_training_that_comes_back_finds_its_run_finished_by_another(uninterrupted, tmp_path):
    """Stopped for longer than its lease, and continued: the other one ends bit for bit as if it had been alone."""
    folder = tmp_path / "run"
    create(small(), folder)
    with subprocess.Popen([sys.executable, "-c", SLOW, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("100"):
                break
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(NahtError, match=BUSY):
            resume(folder)
        with patient():
            resume(folder)
        before = snapshot(folder)
        process.send_signal(signal.SIGCONT)
        said = process.stdout.read().splitlines()
    assert "was taken over by process" in said[-1]
    assert snapshot(folder) == before
    assert fingerprint(folder) == fingerprint(uninterrupted)


def test_two_versions_of_the_package_do_not_share_a_run(tmp_path, uninterrupted):
    folder = tmp_path / "run"
    create(small(), folder)
    somebody(folder, naht="0.0.9", free=True)
    both = f"was begun with naht 0.0.9, this is naht {lease.__version__}"
    with pytest.raises(NahtError, match=both):
        resume(folder)
    somebody(folder, free=True)
    resume(folder)
    assert fingerprint(folder) == fingerprint(uninterrupted)
    somebody(folder, naht="0.0.9", free=True)
    (folder / "last.card.json").unlink()
    resume(folder)  # a finished run is mended by any


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"process": "five"}',
        b'{"process": -1}',
        b'{"process": 1e99, "free": 1}',
        b"\xff\x00",
    ],
)
def test_rubbish_is_held_by_nobody_for_long(tmp_path, content):
    path = tmp_path / f"{PREFIX}3"
    path.write_bytes(content)
    assert is_locked(tmp_path)
    with pytest.raises(NahtError, match=BUSY), only_process(tmp_path):
        pass
    os.utime(path, (0, 0))
    with only_process(tmp_path):
        assert leases(tmp_path) == [f"{PREFIX}4"]


@pytest.mark.parametrize("text", ["soon", "0", "-3", "nan", "1e9"])
def test_an_impossible_length_is_one_sentence(tmp_path, monkeypatch, text):
    monkeypatch.setenv("NAHT_LEASE_SECONDS", text)
    with pytest.raises(NahtError) as e, only_process(tmp_path):
        pass
    assert one_line(e.value) == f"NAHT_LEASE_SECONDS is '{text}': it must be from 0.1 to 86400"
