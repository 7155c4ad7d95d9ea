"""No file makes naht run code, change other files, or say more than one line. See hostile.py."""

import json
import math
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hostile import GONE, build_workshop, cases, changed, places, play
from naht import load_agent
from naht.envs.prey import _read, load_prey
from naht.errors import NahtError
from naht.training.folder import read_config, read_metrics


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


def test_messages_are_one_line_whatever_they_quote():
    assert str(NahtError("name is 'a\nb\x1b[2J\u2028é'")) == r"name is 'a\nb\x1b[2J\u2028é'"


many = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.just("type"), inner, max_size=4),
    max_leaves=12,
)


@many
@given(data=st.data())
def test_any_settings_are_whole_or_refused(workshop, tmp_path, data):
    """Whatever stands in a config.json: what is accepted has only finite numbers of the declared kinds."""
    config = json.loads((workshop / "done/config.json").read_text())
    at = data.draw(st.sampled_from(list(places(config))))
    (tmp_path / "config.json").write_text(json.dumps(changed(config, at, data.draw(json_values | st.just(GONE)))))
    try:
        accepted = read_config(tmp_path)
    except NahtError:
        return
    for setting in (accepted, accepted.algorithm, accepted.teams):
        numbers = [x for x in vars(setting).values() if isinstance(x, float)]
        assert all(map(math.isfinite, numbers))
    assert isinstance(accepted.task.spec.num_agents, int)


@many
@given(data=st.data())
def test_any_bytes_are_what_they_were_or_refused(workshop, tmp_path, data):
    """Bytes put in, taken out and changed: the file is refused, or holds what it held."""
    name, read = data.draw(
        st.sampled_from(
            [
                ("population/poam-seed0.safetensors", lambda path: load_agent(path).params),
                ("prey.safetensors", lambda path: load_prey(str(path), 14).arrays),
                ("prey.npz", lambda path: load_prey(str(path), 14).arrays),
            ]
        )
    )
    content = (workshop / name).read_bytes()
    at = data.draw(st.integers(0, len(content)) | st.integers(0, 200))
    gone, new = data.draw(st.integers(0, 64)), data.draw(st.binary(max_size=64))
    path = tmp_path / name.replace("/", "-")
    path.write_bytes(content[:at] + new + content[at + gone :])
    _read.cache_clear()
    try:
        found = read(path)
    except NahtError:
        return
    same = str(found) == str(read(workshop / name))
    assert same


@many
@given(st.binary(max_size=300) | st.lists(st.dictionaries(st.text(), json_values, max_size=3), max_size=5))
def test_any_rows_are_rows_or_skipped(tmp_path, rows):
    content = rows if isinstance(rows, bytes) else "\n".join(map(json.dumps, rows)).encode()
    for name in ("metrics", "timing"):
        (tmp_path / f"{name}.jsonl").write_bytes(content + b'\n{"step": 3, "x": 1}\n')
    found = read_metrics(tmp_path)
    assert found[-1] == {"step": 3, "x": 1}
    assert all(isinstance(value, (int, float)) for row in found for value in row.values())
