"""The package as a wheel: installed where nothing of the source tree is, it finds all it needs."""

import subprocess
from pathlib import Path

import pytest

from installing import fresh_environment, install
from naht.agents.zoo import zoo_tasks

ROOT = Path(__file__).parent.parent

CODE = """
from pathlib import Path
import naht
from naht.agents.zoo import zoo_tasks
assert "site-packages" in naht.__file__, naht.__file__
env = naht.make_env("mpe-pp")
env.mover  # the prey
assert len(naht.load_members(["zoo/seed0"], env.spec)) == 5
print(sorted(zoo_tasks()), (Path(naht.__file__).parent / "py.typed").exists())
"""


@pytest.mark.runs_much
def test_a_wheel_has_all_it_needs(tmp_path):
    python = fresh_environment(tmp_path / "env")
    install(python, ROOT, tmp_path)
    found = subprocess.run([python, "-c", CODE], capture_output=True, text=True, cwd=tmp_path)
    assert found.stdout.strip() == f"{sorted(zoo_tasks())} True", found.stderr
    # The command, the shipped agents, and the page with what it is made of.
    naht = str(Path(python).parent / "naht")
    said = subprocess.run([naht, "report", str(ROOT / "results" / "bit-game"), "--out", "page.html"], cwd=tmp_path)
    assert said.returncode == 0
    page = (tmp_path / "page.html").read_text()
    assert "<script>" in page
    assert "Can agents that never met coordinate?" in page
