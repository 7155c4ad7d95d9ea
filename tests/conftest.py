"""Tests share one compilation cache, so that each program is compiled once per machine, not once per test."""

import os

import pytest

os.environ.setdefault("NAHT_DEVICES", "2")  # on a machine with one core, too
QUICK = os.environ.get("NAHT_TESTS") != "optimised"
"""Whether XLA is to optimise little: programs compile five times as fast and run several times as slowly."""
if QUICK:
    quick = "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false"
    usual = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"  # as naht has it; XLA wants it last
    os.environ.setdefault("XLA_FLAGS", f"{quick} --xla_cpu_parallel_codegen_split_count=1 {usual}")
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # level 0, but for files that are marked
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

from naht.runtime import configure, forget_if_full  # noqa: E402

configure()


LIGHT = (
    "test_browser",
    "test_docs",
    "test_page",
    "test_project",
    "test_replay",
    "test_sampler",
    "test_scripted",
    "test_zoo",
)
"""Files whose tests are short. They come last, so that both processes end at about the same time."""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.stem in LIGHT)


@pytest.fixture(scope="module", autouse=True)
def _better_code_for_files(request):
    yield from _better_code(request)


@pytest.fixture(autouse=True)
def _better_code_for_tests(request):
    yield from _better_code(request)


def _better_code(request):
    """What is marked `runs_much` gets better code."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    if QUICK and request.node.get_closest_marker("runs_much") is not None:
        jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module", autouse=True)
def _compiled_code():
    """It is forgotten before there is too much; until then, tests of many files share it."""
    yield
    forget_if_full()


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory):
    """The folder of a small run that nothing disturbed. Nobody changes it."""
    from naht import train
    from probes import small

    folder = tmp_path_factory.mktemp("whole") / "run"
    train(small(), folder)
    return folder


@pytest.fixture(scope="session")
def collected():
    """A PPO learner, its state and a trajectory, as tests of its parts take them."""
    from ppo_batches import collect

    return collect()
