"""`naht doctor`: facts are read rightly, and every kind of trouble is one line with a cure."""

import io
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from rich.console import Console

from naht import doctor, run_config
from naht.cache import CacheSurvey
from naht.doctor import REFERENCE, Facts, findings, speed_finding

FLAGS = "--xla_cpu_multi_thread_eigen=false"
HEALTHY = Facts(
    versions={"naht": "0", "jax": "0"},
    processor="a processor",
    cores=4,
    usable_cores=4,
    cpu_quota=None,
    memory=(8 * 2**30, 2**30),
    load=0.5,
    backend="cpu",
    devices=("cpu:0",),
    problem="",
    accelerators=(),
    debug_modes=(),
    cache=CacheSurvey(Path("cache"), entries=3, num_bytes=5 * 2**20, checked=3, damaged=0, writable=True),
    variables={"XLA_FLAGS": FLAGS},
    ours={"XLA_FLAGS": FLAGS},
)


def test_a_healthy_machine_has_nothing_to_look_at():
    lines = [str(finding) for finding in findings(HEALTHY)]
    assert all(line.startswith("ok: ") for line in lines)
    assert "ok: compiled code is kept (3 entries, 5 MiB)" in lines


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"load": 4.1}, "the machine is busy (load 4.1 on 4 cores)"),
        ({"usable_cores": 1}, "one core of 4 is usable"),
        ({"cores": 1, "usable_cores": 1}, "one core is usable"),
        ({"cpu_quota": 1.5}, "the container may use 1.5 of 4 cores and is halted when it uses more: raise its CPU"),
        ({"cpu_quota": 0.5}, "NAHT_DEVICES=1"),
        ({"cache": None}, "set NAHT_CACHE to a folder"),
        (
            {"cache": None, "variables": HEALTHY.variables | {"JAX_ENABLE_COMPILATION_CACHE": "false"}},
            "unset JAX_ENABLE_COMPILATION_CACHE=false",
        ),
        ({"cache": replace(HEALTHY.cache, writable=False)}, "cache can't be written"),
        ({"cache": replace(HEALTHY.cache, damaged=2)}, "2 damaged entries in cache"),
        ({"variables": {"XLA_FLAGS": "--xla_dump_to=x"}}, "XLA_FLAGS (set by you) leaves threads inside operations on"),
        ({"variables": {"XLA_FLAGS": f"{FLAGS} --xla_cpu_multi_thread_eigen=true"}}, "XLA_FLAGS (set by you)"),
        ({"variables": {}}, "XLA_FLAGS (not set)"),
        ({"accelerators": ("a TPU",)}, "a TPU is in the machine, but JAX runs on the CPU: install JAX with support"),
        (
            {"accelerators": ("a TPU",), "variables": HEALTHY.variables | {"JAX_PLATFORMS": "cpu"}},
            "JAX_PLATFORMS=cpu keeps JAX away from it",
        ),
        ({"debug_modes": ("jax_debug_nans", "jax_enable_x64")}, "JAX_DEBUG_NANS checks every result for NaN, JAX_EN"),
        ({"backend": "none", "devices": (), "problem": "no driver"}, "JAX does not start (no driver)"),
    ],
)
def test_each_trouble_is_one_line(change, line):
    looks = [str(finding) for finding in findings(replace(HEALTHY, **change)) if not finding.ok]
    assert len(looks) == 1
    assert looks[0].startswith("look: ")
    assert line in looks[0]
    assert "\n" not in looks[0]


@pytest.mark.parametrize(
    "change",
    [
        {"load": None},
        {"cpu_quota": 4.0},
        {"usable_cores": 2, "load": 3.9},  # the load is the machine's: two of its cores are not ours
        {"backend": "gpu", "accelerators": ("an NVIDIA GPU",), "variables": {}},
        {"variables": {"XLA_FLAGS": f"{FLAGS} --mine=1"}},
    ],
)
def test_what_is_no_trouble(change):
    assert all(finding.ok for finding in findings(replace(HEALTHY, **change)))


def test_speed_is_compared_with_the_reference():
    reference = {"environment": 1000.0, "training": 100.0}
    assert speed_finding({"environment": 600.0, "training": 90.0}, reference).ok
    slow = speed_finding({"environment": 600.0, "training": 40.0}, reference)
    assert not slow.ok
    assert "training 40%" in slow.text
    assert "environment" not in slow.text


def test_reading_the_machine(tmp_path):
    info = tmp_path / "meminfo"
    assert doctor.memory(info) is None
    info.write_text("MemTotal:       2048 kB\nMemFree: 1 kB\nMemAvailable:   1024 kB\n")
    assert doctor.memory(info) == (2048 * 1024, 1024 * 1024)
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Fast One\nmodel name\t: Fast Two\n")
    assert doctor.processor(tmp_path / "cpuinfo") == "Fast One"
    assert doctor.processor(tmp_path / "none")
    assert doctor.accelerators(tmp_path) == ()
    (tmp_path / "nvidia0").touch()
    assert doctor.accelerators(tmp_path) == ("an NVIDIA GPU",)
    assert doctor.usable_cores() >= 1


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/a/b\n"}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 1.5),
        # The limit of a group above counts too, and in a container only that may be visible.
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "300000 100000",
                "sys/fs/cgroup/a/cpu.max": "200000 100000",
            },
            2.0,
        ),
        ({"proc/self/cgroup": "0::/elsewhere\n", "sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "nonsense"}, None),
        (
            {
                "proc/self/cgroup": "3:memory:/x\n2:cpu,cpuacct:/x\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            2.5,
        ),
    ],
)
def test_cpu_quota_of_containers(tmp_path, files, expected):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert doctor.cpu_quota(tmp_path) == expected


def test_a_quick_examination_prints_facts_and_findings(monkeypatch):
    def no_time(*_):
        raise AssertionError

    monkeypatch.setattr(doctor, "measure", no_time)
    text = io.StringIO()
    found = doctor.examine(quick=True, console=Console(file=text, width=200))
    lines = text.getvalue().splitlines()
    assert lines[-len(found) :] == [str(finding) for finding in found]
    assert f"jax {jax.__version__}" in lines[0]
    for name in ("cores", "memory", "devices", "XLA_FLAGS", "compiled code"):
        assert any(line.startswith(name) for line in lines), name


def test_rates_are_printed_beside_the_reference(monkeypatch):
    monkeypatch.setattr(doctor, "measure", lambda _: ((name, rate / 4) for name, rate in REFERENCE.items()))
    text = io.StringIO()
    found = doctor.examine(console=Console(file=text, width=200))
    assert not found[-1].ok
    assert f"{REFERENCE['training']:,.0f}" in text.getvalue()
    assert text.getvalue().count("25%") == 2 * len(REFERENCE)


def test_the_measurements_run():
    config = run_config("bit-game", "ippo-naht")
    network = replace(config.algorithm.network, hidden=8)
    config = replace(config, algorithm=replace(config.algorithm, num_envs=4, network=network))
    rates = dict(doctor.measure(config, budget=0.0, num_envs=4))
    assert list(rates) == list(REFERENCE)
    assert min(rates.values()) > 0
