"""Tests share one compilation cache, so that each program is compiled once per machine, not once per test."""

import os

import pytest

os.environ.setdefault("NAHT_DEVICES", "2")  # on a machine with one core, too

from naht.runtime import configure

configure()


@pytest.fixture(scope="module", autouse=True)
def _forget_compiled_code():
    """A compiled training step takes about 1,800 memory mappings, and Linux grants a process 65,530."""
    yield
    import jax

    jax.clear_caches()


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory):
    """The folder of a small run that nothing disturbed. Nobody changes it."""
    from naht import train
    from probes import small

    folder = tmp_path_factory.mktemp("whole") / "run"
    train(small(), folder)
    return folder
