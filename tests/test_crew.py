"""Worker processes: whoever dies, wherever, nobody waits for ever."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from naht.errors import NahtError
from naht.training.crew import Ended, Here, Processes
from naht.training.progress import Event
from naht.training.run import stop_signals

LARGE = bytes(400_000)
"""More than a pipe holds."""


def talk(large: bytes, times: int, report) -> None:
    del large
    for i in range(times):
        report(Event("talk", i, times))


def fail(report) -> None:
    raise NahtError("it can't be done")


def chatter(report) -> None:
    """Says which process it is, and then talks without end."""
    report(Event("chatter", 0, 0, message=str(os.getpid())))
    while True:
        report(Event("chatter", 0, 1))


def deaf(report) -> None:
    """Swallows what a stop signal raises, as a destructor of somebody's may."""
    try:
        report(Event("deaf", 0, 1))
        time.sleep(60)
    except SystemExit:
        report(Event("deaf", 1, 1))


def nearly_done(report) -> None:
    """Hears a stop signal when there is nothing left to save, as a run does in its last update."""
    with stop_signals() as signals:
        report(Event("nearly done", 0, 1))
        while not signals:
            time.sleep(0.01)


IMPATIENT = """
import os, signal, sys, time
from naht.training.crew import Processes

def linger(report):
    time.sleep(60)

if __name__ == "__main__":
    crew = Processes(1)
    crew.start("linger", linger)
    (worker,) = crew._workers
    time.sleep(float(sys.argv[1]))
    os.kill(worker.process.pid, signal.SIGINT)
    worker.process.join(60)
    print(worker.process.exitcode)
"""


def heard(crew) -> list:
    found = []
    while crew.running:
        if (item := crew.news(0.2)) is not None:
            found.append(item)
    return found


@pytest.mark.parametrize("crew", [Here, lambda: Processes(2)], ids=["here", "processes"])
def test_calls_are_done_and_told(crew):
    crew = crew()
    found = []
    for i in range(3):
        crew.start(f"talk{i}", talk, LARGE, 50)
        found += heard(crew) if isinstance(crew, Here) else []
    crew.start("fail", fail)
    found += heard(crew)
    assert sum(isinstance(item, Event) for item in found) == 150
    ends = {item.name: item.error for item in found if isinstance(item, Ended)}
    assert set(ends) == {"talk0", "talk1", "talk2", "fail"}
    assert str(ends["fail"]) == "it can't be done"
    assert not crew.broken
    assert crew.stop() == []


def test_a_worker_leaves_even_if_a_stop_signal_was_swallowed():
    crew = Processes(1)
    crew.start("deaf", deaf)
    while crew.news(0.2) is None:
        pass
    assert [getattr(item, "step", "ended") for item in crew.stop()] == [1, "ended"]


def test_a_worker_leaves_even_if_its_call_ended_well_after_a_stop_signal():
    """Found by the soak: it waited for another call, and its command for its end."""
    crew = Processes(1)
    crew.start("nearly done", nearly_done)
    while crew.news(0.2) is None:
        pass
    assert crew.stop() == [Ended("nearly done")]


def test_workers_that_die_before_they_have_read_anything_are_noticed():
    crew = Processes(2)
    for i in range(2):
        crew.start(f"talk{i}", talk, LARGE if i else b"", 1)
        os.kill(crew._workers[i].process.pid, signal.SIGKILL)
    until = time.monotonic() + 30
    while not crew.broken and time.monotonic() < until:
        crew.news(0.1)
    assert crew.broken
    crew.stop()


def test_a_worker_that_dies_in_the_middle_of_a_word_takes_nobody_along():
    crew = Processes(2)
    crew.start("one", chatter)
    crew.start("two", chatter)
    pids = set()
    while len(pids) < 2:
        item = crew.news(0.2)
        if isinstance(item, Event) and item.message:
            pids.add(int(item.message))
    os.kill(pids.pop(), signal.SIGKILL)
    while not crew.broken:
        crew.news(0.1)
    crew.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pids.pop(), 0)


DRIVER = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_crew import Event, Processes, chatter
if __name__ == "__main__":
    crew = Processes(1)
    crew.start("chatter", chatter)
    while True:
        item = crew.news(0.2)
        if isinstance(item, Event) and item.message:
            print(item.message, flush=True)
"""


def test_workers_end_with_a_parent_that_was_frozen_and_killed():
    """Nobody listened to them for a while, and then nobody could."""
    with subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, text=True) as driver:
        worker = int(driver.stdout.readline())
        driver.send_signal(signal.SIGSTOP)
        time.sleep(2)
        driver.kill()
    until = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}").exists()


@pytest.mark.parametrize("seconds", [0, 0.2, 0.6])
def test_a_worker_that_is_stopped_before_it_can_listen_leaves_without_a_word(tmp_path, seconds):
    """Ctrl-C reaches workers that are still importing."""
    (tmp_path / "impatient.py").write_text(IMPATIENT)
    command = [sys.executable, str(tmp_path / "impatient.py"), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")
