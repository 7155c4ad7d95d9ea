"""The command line: what it prints, how it fails, and that it is the API underneath."""

import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from naht import load_agent, make_env
from naht.agents.zoo import zoo_folder
from naht.cli import COMMANDS, main
from naht.config import encode
from naht.envs.base import task_hash
from naht.envs.prey import _read
from naht.storage import read_arrays, write_arrays
from naht.study import plan
from naht.study.keeping import adoptable
from probes import small

# The sizes of the runs in test_training.py: equal programs are compiled once for all tests.
QUICK = [
    "--steps", "300", "--test-every", "100", "--test-episodes", "16", "--devices", "2", "--algorithm.num-envs", "4",
    "--algorithm.rollout-steps", "5", "--algorithm.epochs", "1",
    "--algorithm.network.hidden", "8", "--algorithm.model.hidden", "8", "--algorithm.model.embedding", "4",
]  # fmt: skip


def call(capsys, *args):
    code = main(args)
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["trian"], "unknown command 'trian': did you mean train or train-prey?"),
        (["train"], "TASK ALGORITHM missing: usage: naht train TASK ALGORITHM"),
        (["train", "bit-game"], "ALGORITHM missing"),
        (["train", "bit-gam", "poam"], "unknown task 'bit-gam': did you mean bit-game?"),
        (["train", "bit-game", "poma"], "unknown algorithm 'poma': did you mean poam"),
        (["train", "bit-game", "poam", "--preset", "papr"], "unknown preset 'papr': did you mean paper?"),
        (["train", "bit-game", "poam", "--sede", "3"], "did you mean --seed"),
        (["train", "bit-game", "poam", "--algorithm.lr", "fast"], "could not convert string to float: 'fast'"),
        (["train", "bit-game", "poam", "--algorithm.value-loss", "mes"], "Expected one of ('mse', 'huber')"),
        (["train", "bit-game", "poam", "--algorithm.lr", "-1"], "lr is -1.0: it must be positive"),
        (["train", "bit-game", "poam", "--task.num-agents", "1"], "num_agents is 1: the bit game needs at least 2"),
        (["train", "bit-game", "poam", "--teams.num-controlled", "4"], "N is 4: a team of 3 has between 0 and 3"),
        (["train", "bit-game", "poam", "--teams.teammates", "static", "truns"], "did you mean turns?"),
        (["train", "mpe-pp", "ippo", "--prey", "nowhere.pt"], "there is no prey 'nowhere.pt'"),
        (["reproduce", "mpe-pp", "--prey", "nowhere.npz", "--dry-run"], "there is no prey 'nowhere.npz'"),
        (["train", "bit-game", "poam", "--seeds", "0"], "seeds is 0"),
        (["train", "bit-game", "poam", "--seed", "-1"], "seed is -1"),
        (["train", "bit-game", "poam", "stray"], "Unrecognized options: stray"),
        (["resume"], "RUN missing"),
        (["resume", "nowhere"], "nowhere is not a run"),
        (["evaluate"], "AGENT missing"),
        (["evaluate", "nowhere"], "nowhere is no agent, run or population"),
        (["list", "task"], "did you mean tasks?"),
        (["list"], "KIND (tasks, algorithms or agents) missing"),
        (["reproduce", "bitgame"], "did you mean bit-game?"),
        (["reproduce", "bit-game", "--seeds", "none"], "'none'"),
    ],
)
def test_every_mistake_is_one_line_and_code_2(capsys, args, sentence):
    code, out, err = call(capsys, *args)
    assert code == 2
    assert out == ""
    assert err.startswith("naht: ")
    assert err.count("\n") == 1
    assert sentence in err


@pytest.mark.parametrize("args", [[], ["--help"], ["train", "--help"], ["list", "--help"], ["reproduce", "--help"]])
def test_help_teaches(capsys, args):
    code, out, _ = call(capsys, *args)
    assert code == 0
    assert "usage: naht" in out


@pytest.mark.parametrize("args", [["train", "bit-game", "poam"], ["resume"], ["evaluate"], ["reproduce", "bit-game"]])
def test_help_explains_every_flag(capsys, args):
    code, out, _ = call(capsys, *args, "--help")
    assert code == 0
    lines = [line.strip(" │") for line in out.splitlines()]
    flags = [i for i, line in enumerate(lines) if line.startswith("--")]
    assert flags
    for i in flags:
        assert lines[i + 1] or lines[i].count(" ") > 3, f"{lines[i]} has no explanation"


def test_help_is_quick_and_needs_no_jax():
    code = "import sys; from naht.cli import main; main(['--help']); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_lists(capsys):
    for kind, expected in [("tasks", "bit-game"), ("algorithms", "ippo-naht"), ("agents", "bernoulli")]:
        code, out, _ = call(capsys, "list", kind)
        assert code == 0
        assert expected in out
    assert set(COMMANDS) == {
        "demo",
        "train",
        "resume",
        "evaluate",
        "compare",
        "watch",
        "list",
        "log",
        "reproduce",
        "status",
        "report",
        "train-prey",
        "doctor",
        "population",
        "curves",
        "import-agent",
        "export-agent",
    }


def test_train_evaluate_and_list_end_to_end(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, "train", "bit-game", "poam", *QUICK)
    assert code == 0, err
    assert "runs/bit-game/poam/seed0" in out
    assert "300/300 steps" in err  # plain progress lines, as this is no terminal
    assert "steps/s" in err

    code, _, err = call(capsys, "train", "bit-game", "poam", *QUICK)
    assert code == 2
    assert "naht resume runs/bit-game/poam/seed0" in err

    code, out, _ = call(capsys, "resume", "runs/bit-game/poam/seed0")
    assert code == 0

    code, out, _ = call(capsys, "evaluate", "runs/bit-game/poam/seed0", "--episodes", "8", "--out", "rows.csv")
    assert code == 0
    assert "16 rows in rows.csv" in out
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 17

    # A trained agent is a teammate like any other.
    teammates = ["--teammates", "turns", "runs/bit-game/poam/seed0", "--num-controlled", "1"]
    code, out, _ = call(capsys, "evaluate", "runs/bit-game/poam/seed0/last.safetensors", "--episodes", "4", *teammates)
    assert code == 0
    broken = tmp_path / "runs/broken/best.safetensors"
    broken.parent.mkdir()
    broken.write_bytes(b"not an agent")
    code, out, _ = call(capsys, "list", "agents")
    assert code == 0
    assert "runs/bit-game/poam/seed0" in out
    assert "poam-seed0" in out
    assert "runs/broken" in out
    assert "zoo/qmix" in out
    mixed = ["--teams.teammates", "static", "runs/bit-game/poam/seed0", "--teams.mix", "--name", "second"]
    code, _, err = call(capsys, "train", "bit-game", "ippo-naht", *QUICK, *mixed)
    assert code == 0, err
    assert (tmp_path / "runs/bit-game/ippo-naht/second/last.safetensors").exists()


def test_seeds_in_one_command(capsys, tmp_path):
    code, _out, err = call(capsys, "train", "bit-game", "ippo-naht", *QUICK, "--seeds", "2", "--out", str(tmp_path))
    assert code == 0, err
    weights = [read_arrays(tmp_path / f"bit-game/ippo-naht/seed{s}/last.safetensors")[0] for s in (0, 1)]
    assert any((weights[0][k] != weights[1][k]).any() for k in weights[0])


def test_compare_two_methods(capsys, tmp_path, monkeypatch):
    """Several agents of each: over agents. One of each: over paired episodes."""
    monkeypatch.chdir(tmp_path)
    for algorithm in ("poam", "ippo-naht"):
        code, _, err = call(capsys, "train", "bit-game", algorithm, *QUICK, "--seeds", "2", "--workers", "1")
        assert code == 0, err
    ours, theirs = "runs/bit-game/poam", "runs/bit-game/ippo-naht"
    code, out, err = call(capsys, "compare", ours, "--with", theirs, "--teammates", "turns", "--episodes", "8")
    assert code == 0, err
    assert "95 % intervals over 2 and 2 agents; teammates: turns" in out
    assert {p.name for p in Path("comparison").iterdir()} == {"comparison.csv", "episodes.csv", "comparison.png"}
    with open("comparison/episodes.csv") as f:
        rows = list(csv.DictReader(f))
    assert len(rows) == 4 * 2 * 8
    with open("comparison/comparison.csv") as f:
        lines = list(csv.DictReader(f))
    assert [(line["measure"], line["num_controlled"], line["unit"]) for line in lines] == [
        ("return", n, "trials") for n in ("1", "2", "all")
    ]
    means = [np.mean([float(r["return"]) for r in rows if side in r["trial"]]) for side in (ours, theirs)]
    assert float(lines[-1]["difference"]) == pytest.approx(means[0] - means[1])
    code, out, _ = call(capsys, "compare", f"{ours}/seed0", "--with", f"{theirs}/seed1", "--episodes", "8")
    assert "over paired episodes of these very agents; teammates: bernoulli" in out
    # With itself, an agent does as well, certainly.
    code, out, _ = call(capsys, "compare", f"{ours}/seed0", "--with", f"{ours}/seed0", "--episodes", "8")
    assert "0.000 ± 0.000" in out.splitlines()[-3]
    assert "0.50 (0.50 to 0.50)" in out.splitlines()[-3]
    code, _, err = call(capsys, "compare", ours)
    assert code == 2
    assert "usage: naht compare A [A ...] --with B [B ...]" in err
    for command in (["compare", ours, "--with"], ["evaluate", ours]):
        code, _, err = call(capsys, *command, "zoo/mpe-pp/vdn-seed0")
        assert code == 2
        assert "were trained on 2 different tasks" in err


def test_a_changed_world_is_noticed(capsys, tmp_path, monkeypatch):
    """Settings name a file; what is in it is part of the task."""
    monkeypatch.chdir(tmp_path)
    prey = tmp_path / "prey.safetensors"
    prey.write_bytes((zoo_folder().parent / "prey.safetensors").read_bytes())
    env = make_env("mpe-pp", prey=str(prey))
    agent = load_agent(zoo_folder() / "mpe-pp/vdn-seed0.safetensors")
    card = agent.card | {"task": encode(env), "task_hash": task_hash(env)}
    replace(agent, card=card).save("agent.safetensors")
    arrays, header = read_arrays(prey)
    write_arrays(prey, {name: array * 0.5 for name, array in arrays.items()}, header)
    _read.cache_clear()  # as in another process
    for command in ("evaluate", "watch"):
        code, _, err = call(capsys, command, "agent.safetensors")
        assert code == 2
        assert "was trained in another world" in err
        assert err.count("\n") == 1


def test_reproduce_status_and_report(capsys, tmp_path, monkeypatch):
    """A small study by its command: what is there, what was found, and that a second call does nothing."""
    monkeypatch.setattr(plan, "run_config", lambda *names, seed: small(names[1], seed=seed))
    out = tmp_path / "study"
    args = ["bit-game", "--seeds", "2", "--steps", "800", "--episodes", "16", "--out", str(out)]
    code, said, err = call(capsys, "reproduce", *args, "--dry-run")
    assert (code, out.exists()) == (0, False), err
    assert "0/12" in said
    assert "typical speeds; none measured here yet" in " ".join(said.split())
    code, said, err = call(capsys, "reproduce", *args, "--workers", "1")
    assert code == 0, err
    assert "[12/12] evaluate/poam-aht/seed1: done" in err
    assert "Two POAM agents earn" in said
    assert "At N = 2, POAM is above POAM-AHT" in said
    with open(out / "bit-game/tables/bits.csv") as f:
        rows = list(csv.DictReader(f))
    assert [row["method"] for row in rows] == ["POAM", "IPPO-NAHT", "POAM-AHT"]
    assert rows[0]["paper"] == "48.858"
    assert "<svg" in (out / "bit-game/figures/bits.svg").read_text()
    page = (out / "report.html").read_text()
    assert "Can agents that never met coordinate?" in page
    nodes = sorted((out / "bit-game/nodes").rglob("*.csv.gz"))
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in nodes}
    code, again, err = call(capsys, "reproduce", *args)
    assert (code, err) == (0, "")
    assert "all 12 nodes are done" in again
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in nodes} == before
    code, said, _ = call(capsys, "status", str(out))
    assert "12 of 12 nodes done" in said
    code, said, _ = call(capsys, "report", str(out), "--out", str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").read_text() == page
    # What is worth keeping says the same, and is small.
    kept = tmp_path / "kept" / out.name
    code, said, _ = call(capsys, "report", str(out), "--keep", str(kept), "--document", str(tmp_path / "results.md"))
    assert "12 nodes copied" in said
    assert sum(path.stat().st_size for path in kept.rglob("*")) < 600_000
    assert not list(kept.rglob("run"))
    call(capsys, "report", str(kept))
    assert (kept / "report.html").read_text() == page
    document = (tmp_path / "results.md").read_text()
    assert "| POAM | " in document
    assert "48.9 ± 1.1" in document
    assert "(results/bit-game-bits.svg)" in document
    assert (tmp_path / "results/bit-game-bits.svg").is_file()
    mine = tmp_path / "mine.md"
    mine.write_text("Before.\n\n<!-- results --> old <!-- /results -->\n\nAfter.\n")
    for _ in range(2):  # again gives the same
        assert call(capsys, "report", str(out), "--fill-in", str(mine))[0] == 0
        assert mine.read_text().startswith("Before.\n\n<!-- results -->\n\n- ○ not run: ")
        assert mine.read_text().endswith("\n\n<!-- /results -->\n\nAfter.\n")
    mine.write_text("Nothing.")
    assert "has no place for results" in call(capsys, "report", str(out), "--fill-in", str(mine))[2]
    # Another study uses what it can of this one.
    args[-1] = str(tmp_path / "other")
    code, said, _ = call(capsys, "reproduce", *args, "--with", str(out))
    assert "all 12 nodes are done" in said
    # One that is not finished passes on the agents that the rest of it needs, as they are.
    (mark,) = (out / "bit-game/nodes/evaluate/ippo-naht/seed1").glob("*/node.json")
    mark.unlink()
    kept = tmp_path / "unfinished"
    assert "11 nodes copied" in call(capsys, "report", str(out), "--keep", str(kept))[1]
    trained = [path for path in kept.rglob("agent.safetensors") if "ippo-naht/seed1" in str(path)]
    assert [path.read_bytes() for path in trained] == [(out / path.relative_to(kept)).read_bytes() for path in trained]
    args[-1] = str(tmp_path / "third")
    code, said, _ = call(capsys, "reproduce", *args, "--dry-run", "--with", str(kept))
    assert "11 of 12 nodes done" in said
    assert "11 of them are taken over from " in said
    assert not Path(args[-1]).exists()
    code, said, err = call(capsys, "reproduce", *args, "--workers", "1", "--with", str(kept))
    assert [line for line in err.splitlines() if "done" in line] == ["[12/12] evaluate/ippo-naht/seed1: done"]
    rows = "bit-game/nodes/evaluate/ippo-naht/seed1/*/rows.csv.gz"
    assert [p.read_bytes() for p in (tmp_path / "third").glob(rows)] == [p.read_bytes() for p in out.glob(rows)]
    mark.write_text("{}")  # done after all: the agent goes again
    assert "1 nodes copied" in call(capsys, "report", str(out), "--keep", str(kept))[1]
    assert not any(path.exists() for path in trained)
    # Where such an agent was not passed on, or is damaged, it is trained again.
    next(kept.glob("bit-game/nodes/evaluate/ippo-naht/seed1/*/node.json")).unlink()
    nodes = plan.plan_of(plan.Request("bit-game", seeds=2, steps=800, episodes=16)).nodes
    for content in (None, b"rubbish"):
        if content is not None:
            trained[0].write_bytes(content)
        found = adoptable(tmp_path / "fourth", nodes, [kept])
        assert {node.name for node in nodes} - found.keys() == {"train/ippo-naht/seed1", "evaluate/ippo-naht/seed1"}
    for wrong, sentence in (
        (["bit-game", "--only", "bit"], "unknown part of the study 'bit': did you mean bits?"),
        (["bit-game", "--budget", "soon"], "budget is 'soon': write a number and s, m or h"),
        (["bit-game", "--with", "nowhere"], "there is no folder nowhere"),
    ):
        code, _, err = call(capsys, "reproduce", *wrong, "--out", str(tmp_path / "wrong"))
        assert (code, sentence in err) == (2, True)
    assert not (tmp_path / "wrong").exists()
    code, _, err = call(capsys, "status", str(tmp_path))
    assert (code, "holds no study" in err) == (2, True)
