"""The cache of compiled code: whole entries whatever happens, bounded, quiet about trouble, shared by processes."""

import errno
import logging
import os
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from naht import cache
from naht.cache import CompiledCode, install, survey

START = """
from naht.runtime import configure

configure()

import jax
from jax import monitoring

events = []
monitoring.register_event_listener(lambda name, **_: events.append(name))

@jax.jit
def first(x):
    return (x * 2 + 1).sum()

@jax.jit
def second(x):
    return jax.numpy.sin(x) @ x

assert float(first(jax.numpy.arange(3.0))) == 9.0
float(second(jax.numpy.arange(3.0)))
print(sum("cache_hits" in name for name in events), sum("cache_misses" in name for name in events))
"""
"""What a start of anything does: compile some functions, or find them; prints how many it found and how many not."""

KILLED_WHILE_WRITING = """
import os, signal
from pathlib import Path

def write_half(path, content):
    with open(path, "wb") as f:
        f.write(content[: len(content) // 2])
    os.kill(os.getpid(), signal.SIGKILL)

Path.write_bytes = write_half
"""


def begin(folder, code=START, **settings):
    own = ("JAX_", "NAHT_", "XLA_", "PYTHON")
    env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    env |= {"NAHT_CACHE": str(folder), "JAX_PLATFORMS": "cpu", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    command = [sys.executable, "-c", code]
    return subprocess.Popen(command, env=env | settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def outcome(process):
    """Hits, misses and what was said about the cache, of a process that must end well."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    hits, misses = map(int, out.split())
    # XLA has more to say on some machines, about their processors for instance.
    return hits, misses, "".join(line for line in err.splitlines(keepends=True) if "cache" in line or "naht" in line)


def entries(folder):
    return sorted(folder.glob("jax/*-cache"))


def test_damaged_entries_heal_without_a_word(tmp_path):
    hits, misses, err = outcome(begin(tmp_path))
    assert (hits, err) == (0, "")
    assert len(entries(tmp_path)) == misses >= 2
    for path in entries(tmp_path):
        path.write_bytes(path.read_bytes()[:-10])
    entries(tmp_path)[0].write_bytes(b"")
    assert survey(tmp_path / "jax").damaged == misses
    assert outcome(begin(tmp_path)) == (0, misses, "")
    assert survey(tmp_path / "jax").damaged == 0
    assert outcome(begin(tmp_path)) == (misses, 0, "")


def test_a_kill_while_writing_leaves_no_entry(tmp_path):
    process = begin(tmp_path, KILLED_WHILE_WRITING + START)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob("jax/.tmp-*"))) == 1
    assert entries(tmp_path) == []
    hits, misses, err = outcome(begin(tmp_path))
    assert (hits, err) == (0, "")
    assert misses == len(entries(tmp_path))


def test_processes_share_a_folder(tmp_path):
    for _, _, err in [outcome(p) for p in [begin(tmp_path) for _ in range(3)]]:
        assert err == ""
    found = survey(tmp_path / "jax")
    assert found.damaged == 0
    assert outcome(begin(tmp_path)) == (found.entries, 0, "")


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("no folder can be made in here")
    hits, _, err = outcome(begin(blocked))
    assert hits == 0
    assert err.count("\n") == 1
    assert err.startswith(f"naht: compiled code cannot be kept in {blocked}/jax (Not a directory)")


PUT_AND_GET = """
import random, sys, time
from naht.cache import CompiledCode

folder, seed = sys.argv[1:]
cache, rng, end = CompiledCode(folder, max_bytes=20_000), random.Random(seed), time.time() + 0.5
found = 0
while time.time() < end:
    number = rng.randrange(20)
    whole = bytes([number]) * (100 * number + 500)
    value = cache.get(f"k{number}")
    assert value is None or value == whole
    found += value is not None
    cache.put(f"k{number}", whole)
    if rng.random() < 0.1:
        cache.remove(f"k{rng.randrange(20)}")
assert found > 0
assert "jax" not in sys.modules
"""


def test_writers_readers_and_evictions_side_by_side(tmp_path):
    """Much less room than there are entries, so that they are deleted all the time under the others' hands."""
    commands = [[sys.executable, "-c", PUT_AND_GET, str(tmp_path), str(seed)] for seed in range(4)]
    crew = [subprocess.Popen(c, stderr=subprocess.PIPE, text=True) for c in commands]
    for process in crew:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert err == ""
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    # Each of the four may have measured the folder before the others' last entries were in it.
    assert sum(sizes) <= 20_000 + 4 * 2_400
    assert all(path.name.endswith("-cache") for path in tmp_path.iterdir())


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_least_recently_used_entries_make_room(tmp_path):
    code = CompiledCode(tmp_path, max_bytes=30)
    for i, key in enumerate(["a", "b", "c"]):
        code.put(key, bytes(10))
        age(tmp_path / f"{key}-cache", 100 - i)
    assert code.get("a") == bytes(10)  # the oldest, but used just now
    code.put("d", bytes(5))
    assert [code.get(key) is not None for key in "abcd"] == [True, False, True, True]
    code.put("e", bytes(31))  # would push all others out and still not fit
    assert code.get("e") is None
    assert code.get("a") is not None


def test_the_folder_is_not_measured_for_every_entry(tmp_path, monkeypatch):
    """With thousands of entries that would take as long as compiling one. The bound holds, with one writer exactly."""
    measured, measure = [], cache._files
    monkeypatch.setattr(cache, "_files", lambda folder: [measured.append(1), measure(folder)][1])
    code = CompiledCode(tmp_path, max_bytes=100_000)
    for i in range(100):
        code.put(str(i), bytes(400))
    assert len(measured) < 20
    for i in range(100, 400):
        code.put(str(i), bytes(400))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 100_000


def test_an_entry_is_replaced(tmp_path):
    code = CompiledCode(tmp_path / "new" / "folder")
    assert code.get("k") is None
    code.put("k", b"half")
    code.put("k", b"whole")
    assert code.get("k") == b"whole"
    code.remove("k")
    code.remove("k")
    assert code.get("k") is None


def test_abandoned_files_are_swept(tmp_path):
    for name in (".tmp-old", ".tmp-new", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    age(tmp_path / ".tmp-old", 7200)
    age(tmp_path / "notes.txt", 7200)
    CompiledCode(tmp_path).put("k", b"v")
    assert {path.name for path in tmp_path.iterdir()} == {".tmp-new", "notes.txt", "k-cache"}


def test_a_full_disk_leaves_nothing_behind_and_is_said_once(tmp_path, monkeypatch, caplog):
    write_whole = Path.write_bytes

    def write_until_full(path, content):
        write_whole(path, content[:2])
        raise OSError(errno.ENOSPC, "No space left on device")

    code = CompiledCode(tmp_path)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "naht"):
        patch.setattr(Path, "write_bytes", write_until_full)
        code.put("a", b"value")
        code.put("b", b"value")
        assert not survey(tmp_path).writable
    assert list(tmp_path.iterdir()) == []
    assert [r.getMessage() for r in caplog.records] == [
        f"naht: compiled code cannot be kept in {tmp_path} (No space left on device), so every start compiles anew"
    ]
    code.put("a", b"value")  # space again
    assert code.get("a") == b"value"


def test_survey(tmp_path):
    whole = zlib.compress(bytes(1000))
    contents = {"a-cache": whole, "b-cache": whole[:-1], "c-cache": b"", "d-cache": cache.ZSTANDARD + b"?", "e": b"x"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    found = survey(tmp_path)
    assert (found.entries, found.checked, found.damaged, found.writable) == (4, 4, 2, True)
    assert found.num_bytes == sum(len(c) for name, c in contents.items() if name != "e")
    assert {path.name for path in tmp_path.iterdir()} == set(contents)
    assert survey(tmp_path, seconds=-1).checked == 0
    nothing = survey(tmp_path / "later")
    assert (nothing.entries, nothing.writable) == (0, True)


@pytest.mark.parametrize("change", ["maker", "reader", "interface", "gone"])
def test_unknown_internals_of_jax_are_left_alone(monkeypatch, change):
    from jax._src import compilation_cache as internals
    from jax._src.compilation_cache_interface import CacheInterface

    def maker(path):
        pytest.fail("a stand-in for JAX's own function: nobody may call it")

    def reader(cache_key, backend):
        pytest.fail("a stand-in for JAX's own function: nobody may call it")

    def other(folder, mode):
        pytest.fail("a stand-in for JAX's own function: nobody may call it")

    functions = {"get_file_cache": maker, "get_executable_and_time": reader}
    if change == "maker":
        functions["get_file_cache"] = other
    elif change == "reader":
        functions["get_executable_and_time"] = other
    elif change == "interface":
        monkeypatch.setattr(CacheInterface, "__abstractmethods__", frozenset({"get", "put", "list"}))
    for name, function in functions.items():
        monkeypatch.setattr(internals, name, function)
    if change == "gone":
        monkeypatch.delattr(internals, "get_file_cache")
        del functions["get_file_cache"]
    assert not install()
    assert {name: getattr(internals, name) for name in functions} == functions


def test_the_jax_installed_here_is_known():
    """Fails with a new JAX whose internals differ: then look at `naht.cache` again."""
    assert install()
    assert install()  # once is enough


def test_jax_limits_the_size_if_told(tmp_path, monkeypatch):
    import jax
    from jax._src import compilation_cache as internals

    assert install()
    made, path = internals.get_file_cache(str(tmp_path))
    assert isinstance(made, CompiledCode)
    assert path == str(tmp_path)
    assert made.max_bytes == cache.MAX_BYTES
    before = jax.config.jax_compilation_cache_max_size
    try:
        jax.config.update("jax_compilation_cache_max_size", 1000)
        assert internals.get_file_cache(str(tmp_path))[0].max_bytes == 1000
    finally:
        jax.config.update("jax_compilation_cache_max_size", before)
