"""The soak itself: commands that survive anything pass, and one that loses work when it is killed is found out."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

import soak
from same_results import differences, fingerprints
from soak import Job, Sitting, Soak, add_to, table
from soak_surroundings import Usage, growth, not_flat, processes

COUNTING = """
import os, sys, time
from pathlib import Path
folder, careful = Path(sys.argv[1]), sys.argv[2] == "careful"
folder.mkdir(parents=True, exist_ok=True)
rows, end = folder / "rows", time.monotonic() + 60
def write(n):
    text = "".join(f"{i}\\n" for i in range(n))
    if careful:
        (folder / ".tmp-rows").write_text(text)
        os.replace(folder / ".tmp-rows", rows)
    else:  # goes on from whatever is there, and adds a mark for it
        with open(rows, "a") as f:
            f.write("" if n else "began\\n")
n = len(rows.read_text().split()) if rows.exists() and careful else 0
try:
    while n < 15:
        write(n)
        n += 1
        time.sleep(0.05)
    write(n)
    (folder / ".tmp-rows").unlink(missing_ok=True)
except OSError as e:
    sys.exit(2)
"""


def counting(tmp_path: Path, how: str) -> Job:
    """A command that counts to 15 in a file, in about a second."""
    script = tmp_path / "count.py"
    script.write_text(COUNTING)
    return Job("count", lambda folder: [sys.executable, str(script), str(folder / "counted"), how])


def sit(tmp_path: Path, how: str, seconds: float, seed: int = 1, disturbances: int = 0) -> Soak:
    """For so long, and again until there were so many disturbances: a busy machine takes longer over a round."""
    root = tmp_path / "soak"
    root.mkdir()
    made = Soak(root, [counting(tmp_path, how)], seed, megabytes=4, patience=60)
    try:
        made.sit(seconds)
        for _ in range(9):
            if made.sitting.survived.total() < disturbances and not made.sitting.wrong:
                made.sit(seconds)
    finally:
        made.close()
    return made


@pytest.fixture(autouse=True)
def _short_leases(monkeypatch):
    monkeypatch.setattr(soak, "LEASE_SECONDS", 0.5)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
def test_a_careful_command_survives(tmp_path):
    made = sit(tmp_path, "careful", 8, disturbances=2)
    assert made.sitting.wrong == []
    assert made.sitting.rounds >= 1
    assert made.sitting.survived.total() >= 2
    assert made.sitting.files_compared == made.sitting.rounds
    assert processes(made.token) == []
    assert not os.path.ismount(made.disk.place)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
def test_a_command_that_shows_its_kills_is_found_out(tmp_path):
    """Called again, it adds to what is there: one call more gives another file."""
    made = sit(tmp_path, "careless", 20)
    assert made.sitting.wrong == ["round 1: counted/rows is another"]
    assert made.sitting.bytes_lost > 0
    kept = list(tmp_path.glob("soak/*/**/rows"))
    assert kept
    assert processes(made.token) == []


def test_what_must_be_equal(tmp_path):
    for name, record in (("a", {"seconds": 1.0, "key": "k"}), ("b", {"seconds": 2.0, "key": "k"})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "node.json").write_text(json.dumps(record))
        (tmp_path / name / "metrics.jsonl").write_text("1\n")
        for clock in ("timing.jsonl", ".lock", ".lease-1", ".tmp-9-x"):
            (tmp_path / name / clock).write_text(f"{time.time_ns()}")
    first, second = fingerprints(tmp_path / "a"), fingerprints(tmp_path / "b")
    assert differences(first, second) == []
    assert set(first) == {"node.json", "metrics.jsonl"}
    (tmp_path / "b" / "metrics.jsonl").write_text("2\n")
    (tmp_path / "b" / "more").write_text("")
    (tmp_path / "b" / "node.json").unlink()
    lines = differences(first, fingerprints(tmp_path / "b"))
    assert lines == ["node.json is missing", "more should not be there", "metrics.jsonl is another"]


def test_growth_is_noticed():
    flat = [Usage(100 + i % 3, 10, 5) for i in range(40)]
    assert not_flat(growth(flat)) == []
    leaking = [Usage(100 + 3 * i, 10 + i, 5) for i in range(40)]
    assert [line.split(": ")[1].split(" ")[0] for line in not_flat(growth(leaking))] == ["megabytes", "files"]


def test_sittings_add_up(tmp_path):
    for rounds in (2, 3):
        sitting = Sitting("2026-01-01 00:00", 1, "0", hours=0.5, rounds=rounds)
        sitting.survived["SIGTERM"] = rounds
        add_to(tmp_path / "soak.json", sitting)
    assert "| SIGTERM | 5 |" in table(tmp_path / "soak.json")
    assert "1.0 hours, 5 rounds" in table(tmp_path / "soak.json")
