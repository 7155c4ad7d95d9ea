"""No file makes naht run code, change other files, or say more than one line. See hostile.py."""

import random

import pytest

from hostile import build_workshop, cases, play


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "workshop"
    build_workshop(folder)
    return folder


@pytest.mark.parametrize("seed", range(8))
def test_hostile_files(workshop, tmp_path, seed):
    """40 cases each; ten thousand by `python tests/hostile.py --cases 10000` (docs/reliability.md)."""
    outcomes = []
    for _, case in zip(range(40), cases(workshop, random.Random(1000 + seed)), strict=False):
        outcome = play(case, workshop, tmp_path / "place")
        assert outcome in ("refused", "harmless"), f"{case}\n{outcome}"
        outcomes.append(outcome)
    assert outcomes.count("refused") > 10  # most of it is really hostile
