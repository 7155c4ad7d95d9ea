"""The agents that come with the package: all there, as their cards say, and in the docs as they are."""

import json
from pathlib import Path

import pytest

from naht import NahtError, load_agent, load_members, make_env
from naht.agents.saved import task_of
from naht.agents.zoo import find_agents, zoo_folder, zoo_tasks
from naht.cli import main
from naht.commands.populations import markdown
from naht.envs.smac.maps import MAPS
from naht.experiments.populations import verify
from naht.storage import read_arrays
from naht.study.plan import NAIVE
from naht.tasks import TASKS

ENV = make_env("mpe-pp")
DOCS = Path(__file__).parent.parent / "docs"


TABLES = {"lbf": "lbf.md", "mpe-pp": "populations.md"}
TABLES |= dict.fromkeys(("10v11", "3s5z", "5v6", "8v9"), "battle_teams.md")
"""The document that lists a task's agents."""


def agents_of(task):
    return [load_agent(path) for path in find_agents(f"zoo/{task}")]


@pytest.mark.parametrize("task", sorted({*TABLES} - {"lbf"}))
def test_five_algorithms_with_five_seeds_for_a_study(task):
    names = [agent.name for agent in agents_of(task)]
    assert names == [f"{name}-seed{seed}" for name in sorted(NAIVE) for seed in range(5)]


def test_every_task_of_the_zoo_is_looked_at():
    assert zoo_tasks() == sorted(TABLES)


@pytest.mark.parametrize("task", TABLES)
def test_agents_are_as_their_cards_say(task):
    env = make_env(task)
    for agent in agents_of(task):
        assert "task_hash" in agent.card
        assert task_of([agent]) == env
        assert agent.card["measured"]["episodes"] == 1024
        assert agent.card.get("float16", {"actions_changed": 0})["actions_changed"] <= 1e-3


@pytest.mark.parametrize("task", TABLES)
def test_readable_cards_are_those_in_the_files(task):
    for path in find_agents(f"zoo/{task}"):
        assert json.loads(path.with_suffix(".card.json").read_text()) == read_arrays(path)[1]


def test_it_is_small():
    sizes = {task: sum(p.stat().st_size for p in (zoo_folder() / task).iterdir()) for task in zoo_tasks()}
    assert sum(size for task, size in sizes.items() if task not in MAPS) < 3_000_000
    assert sum(size for task, size in sizes.items() if task in MAPS) < 12_000_000


def test_maps_with_trained_teams_have_them_for_strangers():
    assert {task: TASKS[task].teammates for task in ("5v6", "8v9", "10v11", "3s5z", "3m")} == {
        "5v6": ("zoo/seed0",),
        "8v9": ("zoo/seed0",),
        "10v11": ("zoo/seed0",),
        "3s5z": ("zoo/seed0",),
        "3m": ("nearest", "weakest", "first"),
    }


@pytest.mark.parametrize("task", TABLES)
def test_the_table_in_the_docs_comes_from_the_cards(task):
    assert markdown(agents_of(task)) in (DOCS / TABLES[task]).read_text()


def test_members_are_found_by_short_names():
    names = [member.name for member in load_members(["zoo/vdn", "zoo/iql-seed3", "pincer"], ENV.spec)]
    assert names == [*[f"vdn-seed{seed}" for seed in range(5)], "iql-seed3", "pincer"]
    assert len(load_members(["zoo"], ENV.spec)) == 25
    one_each = [member.name for member in load_members(["zoo/seed2"], ENV.spec)]
    assert one_each == [f"{name}-seed2" for name in sorted(NAIVE)]
    with pytest.raises(NahtError, match=r"unknown agent of the zoo for mpe-pp 'vdm': did you mean vdn\\?"):
        load_members(["zoo/vdm"], ENV.spec)
    with pytest.raises(NahtError, match=r"unknown task of the zoo 'bit-game'"):
        load_members(["zoo"], make_env("bit-game").spec)


def test_a_folder_of_the_same_name_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = Path("zoo/mpe-pp/vdn-seed0.safetensors")
    own.parent.mkdir(parents=True)
    own.touch()
    assert [path.parent for path in find_agents("zoo/mpe-pp/vdn-seed0")] == [zoo_folder() / "mpe-pp"]
    assert find_agents("./zoo/mpe-pp") == [own]


@pytest.mark.parametrize("name", ["mpe-pp/vdn-seed0", "mpe-pp/mappo-seed4", "5v6/qmix-seed2"])
def test_cards_tell_the_truth(name):
    assert "checksum, sizes and task fit" in verify(*find_agents(f"zoo/{name}"), episodes=128)


def test_algorithms_meet(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    agents = [f"zoo/mpe-pp/{name}-seed{seed}" for name in ("vdn", "mappo") for seed in (0, 1)]
    assert main(["evaluate", "crossplay", *agents, "--episodes", "2"]) == 0
    said = capsys.readouterr().out
    assert "others" in said
    assert "With itself, a team does better than with other algorithms by" in said
