"""Metrics elsewhere: each step once after any kill, results untouched, failures survived."""

import json
import os
import shutil
import struct
import subprocess
import sys
import types
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from naht import NahtError, load_agent, read_metrics, resume, train
from naht.cli import main
from naht.config import encode
from naht.training import loggers as module
from naht.training.event_file import EventFile, crc32c
from naht.training.folder import read_config
from naht.training.lease import only_process
from naht.training.loggers import forward
from naht.training.run import create
from probes import Stop, fingerprint, small

try:
    import wandb
except ImportError:
    wandb = None

needs_wandb = pytest.mark.skipif(wandb is None, reason="wandb is not installed")
BOTH = ("tensorboard", "wandb") if wandb else ("tensorboard",)


def rows_of(folder: Path) -> dict[int, dict[str, float]]:
    rows = read_metrics(folder)
    return {row["step"]: {name: value for name, value in row.items() if name != "step"} for row in rows}


def varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte, at = data[at], at + 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at


def fields(data: bytes) -> list[tuple[int, object]]:
    """The fields of a protobuf message."""
    found, at = [], 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        elif key & 7 == 2:
            length, at = varint(data, at)
            value, at = data[at : at + length], at + length
        else:
            form, size = {1: ("<d", 8), 5: ("<f", 4)}[key & 7]
            (value,), at = struct.unpack(form, data[at : at + size]), at + size
        found.append((key >> 3, value))
    return found


def records(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        for start, size in ((at, 8), (at + 12, length)):
            crc = crc32c(data[start : start + size])
            (masked,) = struct.unpack_from("<I", data, start + size)
            assert masked == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        found.append(data[at + 12 : at + 12 + length])
        at += 16 + length
    return found


def on_tensorboard(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """(step, numbers) of every row in a run's event files."""
    (path,) = (folder / "tensorboard").glob("events*")
    found = []
    for record in records(path.read_bytes()):
        event = dict(fields(record))
        if 5 in event:
            values = [dict(fields(value)) for _, value in fields(event[5])]
            found.append((event[2], {value[1].decode(): value[2] for value in values}))
    return found


def on_wandb(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """The same of W&B's offline file: a log as LevelDB has it, of W&B's own messages."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    data, at, record, found = path.read_bytes(), 7, b"", []
    while at < len(data):
        if 2**15 - at % 2**15 < 7:  # a block's end is padded
            at += 2**15 - at % 2**15
            continue
        _, length, part = struct.unpack_from("<IHB", data, at)
        record = (record if part in (3, 4) else b"") + data[at + 7 : at + 7 + length]
        at += 7 + length
        if part in (1, 4):
            message = Record.FromString(record)
            if message.HasField("history"):
                items = {(i.key or i.nested_key[0]): json.loads(i.value_json) for i in message.history.item}
                found.append((items["_step"], {k: v for k, v in items.items() if not k.startswith("_")}))
    return found


def check_each_step_once(found: list[tuple[int, dict[str, float]]], folder: Path) -> None:
    expected = rows_of(folder)
    assert [step for step, _ in found] == list(expected)
    for step, row in found:
        assert row == pytest.approx(expected[step], rel=1e-6)


def test_the_checksum_is_castagnolis():
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_what_we_write(uninterrupted, tmp_path):
    """With its own reader, also of a file that takes the place of another while somebody looks."""
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    folder = shutil.copytree(uninterrupted, tmp_path / "run")
    forward("tensorboard", folder)
    expected = rows_of(folder)
    seen = accumulator.EventAccumulator(str(folder / "tensorboard"), size_guidance={"tensors": 0, "scalars": 0})
    for _ in range(2):
        seen.Reload()
        tags = seen.Tags()["scalars"]
        assert set(tags) == {name for row in expected.values() for name in row}
        for tag in tags:
            events = seen.Scalars(tag)
            assert [e.step for e in events] == [step for step, row in expected.items() if tag in row]
            assert [e.value for e in events] == pytest.approx([row[tag] for row in expected.values() if tag in row])
        forward("tensorboard", folder)
    began = (folder / "config.json").stat().st_mtime
    assert [e.wall_time - began for e in seen.Scalars("seconds")] == pytest.approx(
        [row["seconds"] for row in expected.values()], abs=1e-3
    )


def test_event_files_hold_any_step_and_number(tmp_path):
    with open(tmp_path / "events", "wb") as f:
        events = EventFile(f, 0.0)
        events.write(1.0, 2**62, {"ä" * 200: float("inf")})
    _, start, row = (dict(fields(record)) for record in records((tmp_path / "events").read_bytes()))
    assert start[7] == b"\x08\x01"
    assert row[2] == 2**62
    assert dict(fields(dict(fields(row[5]))[1])) == {1: ("ä" * 200).encode(), 2: float("inf")}


CHILD = """
import sys
from naht.runtime import configure
configure()
from naht import resume
resume(
    sys.argv[1], checkpoint_every=float(sys.argv[2]), loggers=sys.argv[3:],
    report=lambda e: print(e.message or e.step, flush=True),
)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run that was killed twice with its loggers, once with many rows that no checkpoint covers."""
    folder = create(small(), tmp_path_factory.mktemp("killed") / "run")
    for checkpoint_every, until in ((0, 100), (1e9, 300), (1e9, None)):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(folder), str(checkpoint_every), *BOTH],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"WANDB_MODE": "offline"},
        )
        for line in iter(child.stdout.readline, ""):
            if until and line.strip().isdigit() and int(line) > until:
                child.kill()
                break
        assert child.wait() == (-9 if until else 0)
        child.stdout.close()
    return folder


def test_killed_and_resumed_it_ends_as_without_loggers(killed, uninterrupted):
    assert fingerprint(killed) == fingerprint(uninterrupted)
    said = (killed / "progress.log").read_text()
    assert said.count("resumed at step") == 2
    assert "failed" not in said


def test_tensorboard_has_each_step_once_after_kills(killed):
    check_each_step_once(on_tensorboard(killed), killed)


@needs_wandb
@pytest.mark.filterwarnings("ignore")
def test_wandb_has_each_step_once_after_kills(killed, tmp_path):
    check_each_step_once(on_wandb(killed), killed)


@needs_wandb
@pytest.mark.filterwarnings("ignore")
def test_a_run_is_brought_to_wandb_afterwards(uninterrupted, tmp_path):
    folder = shutil.copytree(uninterrupted, tmp_path / "run")
    program = "import sys; from naht.cli import main; sys.exit(main(sys.argv[1:]) or main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "log", str(folder), "--to", "wandb"]
    subprocess.run(command, check=True, env=os.environ | {"WANDB_MODE": "offline"}, capture_output=True)
    check_each_step_once(on_wandb(folder), folder)
    assert fingerprint(folder) == fingerprint(uninterrupted)


def stand_in(starting_step: int) -> tuple[types.ModuleType, list[int]]:
    """W&B with a server that has all steps below some."""
    sent: list[int] = []
    server = types.ModuleType("wandb")
    run = types.SimpleNamespace(starting_step=starting_step, finish=lambda: None)
    run.log = lambda _, step, **__: sent.append(step)
    server.init = lambda **_: run
    server.Settings = type("Settings", (), {"model_fields": {}})
    return server, sent


def test_a_server_is_sent_what_it_lacks(uninterrupted, tmp_path, monkeypatch):
    folder = shutil.copytree(uninterrupted, tmp_path / "run")
    server, sent = stand_in(starting_step=201)
    monkeypatch.setitem(sys.modules, "wandb", server)
    resume(folder, loggers=["wandb"])  # it is finished: the logger gets what it lacks
    assert sent == list(range(220, 401, 20))
    name = (folder / "wandb" / "id").read_text()
    forward("wandb", folder)
    assert (folder / "wandb" / "id").read_text() == name


def test_a_callback_is_told_each_step_once(uninterrupted, tmp_path):
    told: list[tuple[int, dict[str, float]]] = []

    def note(step, row):
        told.append((step, dict(row)))
        row.clear()  # its own copy

    def stop(step, row):
        note(step, row)
        if step == 200:
            raise Stop

    with pytest.raises(Stop):
        train(small(), tmp_path / "run", on_row=stop, checkpoint_every=1e9)
    assert [step for step, _ in told] == list(range(20, 201, 20))
    told.clear()
    resume(tmp_path / "run", on_row=note)
    assert told == [(row["step"], row) for row in read_metrics(tmp_path / "run")]
    assert fingerprint(tmp_path / "run") == fingerprint(uninterrupted)


@contextmanager
def _no_start(home, config):
    raise ConnectionError("no network\nhere")
    yield


@contextmanager
def _no_end(home, config):
    yield lambda _: None
    raise SystemExit("never sent")


@contextmanager
def _no_third_row(home, config):
    rows = []

    def write(row):
        rows.append(row)
        if len(rows) == 3:
            raise ValueError("not that one")

    yield write


@pytest.mark.parametrize("broken", [_no_start, _no_end, _no_third_row])
def test_a_logger_that_fails_is_one_sentence(uninterrupted, tmp_path, monkeypatch, broken):
    monkeypatch.setitem(module.LOGGERS, "wandb", broken)
    monkeypatch.setitem(sys.modules, "wandb", stand_in(0)[0])
    said: list[str] = []
    train(small(), tmp_path / "run", loggers=("wandb", "tensorboard"), report=lambda e: said.append(e.message or ""))
    assert len([sentence for sentence in said if "wandb failed and is left out" in sentence]) == 1
    assert fingerprint(tmp_path / "run") == fingerprint(uninterrupted)
    check_each_step_once(on_tensorboard(tmp_path / "run"), tmp_path / "run")


def test_a_full_disk_is_one_sentence(uninterrupted, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "open", lambda *_: Path("/dev/full").open("wb"), raising=False)  # noqa: SIM115
    said: list[str] = []
    train(small(), tmp_path / "run", loggers=["tensorboard"], report=lambda e: said.append(e.message or ""))
    (sentence,) = [sentence for sentence in said if "tensorboard failed" in sentence]
    assert "No space left on device" in sentence
    assert fingerprint(tmp_path / "run") == fingerprint(uninterrupted)
    with pytest.raises(NahtError, match=r"tensorboard can't take the metrics of .*No space left on device"):
        forward("tensorboard", tmp_path / "run")


def test_what_can_not_be_used_is_said_before_any_work(tmp_path, monkeypatch, capsys):
    with pytest.raises(NahtError, match="unknown logger 'tensorbord': did you mean tensorboard"):
        train(small(), tmp_path / "run", loggers=["tensorbord"])
    monkeypatch.setitem(sys.modules, "wandb", None)
    missing = r"logger 'wandb' needs a package that is not installed: pip install 'naht\[wandb\]'"
    with pytest.raises(NahtError, match=missing):
        train(small(), tmp_path / "run", loggers=["wandb"])
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))  # a folder of that name
    assert main(["train", "bit-game", "poam", "--out", str(tmp_path / "run"), "--log", "wandb"]) == 2
    assert "pip install 'naht[wandb]'" in capsys.readouterr().err
    assert main(["train", "bit-game", "poam", "--out", str(tmp_path / "run"), "--log", "tensorbord"]) == 2
    assert "tensorbord" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_two_do_not_write_the_same_event_file(uninterrupted, tmp_path, capsys):
    folder = shutil.copytree(uninterrupted, tmp_path / "run")
    assert main(["log", str(tmp_path), "--to", "tensorboard"]) == 0
    before = on_tensorboard(folder)
    with only_process(folder / "tensorboard"):
        assert main(["log", str(folder), "--to", "tensorboard"]) == 2
    assert "is being worked on by another process" in capsys.readouterr().err
    assert on_tensorboard(folder) == before
    for wrong in (["log", str(tmp_path / "no"), "--to", "tensorboard"], ["log", "--to", "wandb"], ["log", str(folder)]):
        assert main(wrong) == 2


def test_rows_that_no_event_file_can_hold_are_one_sentence(uninterrupted, tmp_path, capsys):
    folder = shutil.copytree(uninterrupted, tmp_path / "run")
    for number in ("1e300", "1" + 400 * "0"):
        (folder / "metrics.jsonl").write_text(f'{{"step": -1, "x": {number}}}\n')
        assert main(["log", str(folder), "--to", "tensorboard"]) == 2
        assert "tensorboard can't take the metrics of" in capsys.readouterr().err


@pytest.fixture(scope="module")
def four(uninterrupted, tmp_path_factory):
    """Two algorithms, two seeds each."""
    root = tmp_path_factory.mktemp("four")
    for algorithm in ("poam", "ippo-naht"):
        for seed in range(2):
            folder = shutil.copytree(uninterrupted, root / algorithm / f"seed{seed}")
            config = replace(read_config(folder), algorithm_name=algorithm, seed=seed)
            (folder / "config.json").write_text(json.dumps(encode(config)))
    return root


def test_runs_as_marl_eval_reads_them(four, uninterrupted, tmp_path, capsys):
    out = tmp_path / "results.json"
    assert main(["log", str(four), "--to", "marl-eval", "--out", str(out)]) == 0
    data = json.loads(out.read_text())
    assert list(data) == ["bitgame"]
    assert list(data["bitgame"]) == ["bit-game"]
    algorithms = data["bitgame"]["bit-game"]
    assert list(algorithms) == ["ippo-naht", "poam"]
    assert all(list(runs) == ["seed_0", "seed_1"] for runs in algorithms.values())
    tests = [row for row in read_metrics(uninterrupted) if "test/return" in row]
    for run in [run for runs in algorithms.values() for run in runs.values()]:
        assert list(run) == [*(f"step_{i}" for i in range(4)), "absolute_metrics"]
        for i, row in enumerate(tests):
            assert run[f"step_{i}"]["step_count"] == row["step"]
            assert run[f"step_{i}"]["return"] == [row["test/return"]]
        assert run["absolute_metrics"]["return"] == [load_agent(uninterrupted).card["measured"]["return"]]
        assert all({"step_count", *run["absolute_metrics"]} == set(run[f"step_{i}"]) for i in range(4))
    assert main(["log", str(four), str(four), "--to", "marl-eval", "--out", str(out)]) == 2
    assert "is a second run of ippo-naht with seed 0" in capsys.readouterr().err
    create(small(), tmp_path / "begun")
    assert main(["log", str(tmp_path / "begun"), "--to", "marl-eval", "--out", str(out)]) == 2
    assert "is not finished" in capsys.readouterr().err


def test_marl_eval_itself_reads_them(four, tmp_path):
    utils = pytest.importorskip("marl_eval.utils.data_processing_utils", reason="marl-eval is not installed")
    out = tmp_path / "results.json"
    main(["log", str(four), "--to", "marl-eval", "--out", str(out)])
    data = json.loads(out.read_text())
    processed = utils.data_process_pipeline(raw_data=data, metrics_to_normalize=["return"])
    assert processed["extra"]["number_of_steps"] == 4
    assert processed["extra"]["evaluation_interval"] == {"bitgame": 100}
    final, curves = utils.create_matrices_for_rliable(processed, "BitGame", ["return"])
    shapes = {name: matrix.shape for name, matrix in final["mean_norm_return"].items()}
    assert shapes == {"ippo-naht": (2, 1), "poam": (2, 1)}
    assert {matrix.shape for matrix in curves["mean_norm_return"].values()} == {(2, 1, 4)}
