"""A run's folder: where it is, and what it says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from naht.agents.saved import is_saved
from naht.config import decode, is_number, read_json, whole_rows
from naht.errors import NahtError, require
from naht.storage import check_writes, write_file
from naht.training.config import RunConfig


def run_folder(root: Path | str, config: RunConfig, name: str | None = None) -> Path:
    """Where a run lives: root/task/algorithm/name."""
    return Path(root) / config.task.spec.name / config.algorithm_name / (name or f"seed{config.seed}")


def is_run(folder: Path) -> bool:
    """Does this folder hold a run, begun or finished?"""
    try:
        return (folder / "config.json").is_file()
    except OSError as e:  # a name that is too long, say
        raise NahtError(f"can't use {folder}: {e.strerror}") from e


def is_finished(folder: Path) -> bool:
    """Has this run reached its last step, and are its agents whole?"""
    return all(is_saved(folder / f"{kind}.safetensors") for kind in ("last", "best"))


def read_config(folder: Path) -> RunConfig:
    """The settings of an existing run."""
    require(is_run(folder), f"{folder} is not a run: it has no config.json")
    data = read_json(folder / "config.json")
    try:
        config = decode(data)
    except NahtError as e:
        raise NahtError(f"{folder}/config.json: {e}") from e
    require(isinstance(config, RunConfig), f"{folder}/config.json does not hold the settings of a run")
    return config


def read_metrics(folder: Path | str) -> list[dict[str, float]]:
    """The rows of metrics.jsonl, each joined with the row of timing.jsonl at the same step."""
    folder = Path(folder)
    metrics, timing = (_rows(folder / f"{name}.jsonl") for name in ("metrics", "timing"))
    by_step = {row["step"]: row for row in timing}
    return [row | by_step.get(row["step"], {}) for row in metrics]


def _rows(path: Path) -> list[dict[str, Any]]:
    """The whole rows of a file, which need not be there. A row has a step and numbers."""
    found = [row for _, row in whole_rows(path.read_bytes())] if path.is_file() else []
    return [row for row in found if isinstance(row.get("step"), int) and all(map(is_number, row.values()))]


def _begin_anew(path: Path, length: int) -> None:
    """Cut a file, as a new one of the same name: whoever has the old one open can't write to this one."""
    if path.is_file():
        write_file(path, path.read_bytes()[:length])


class Log:
    """metrics.jsonl holds what a resumed run repeats bit for bit, timing.jsonl what it cannot: the clock."""

    def __init__(self, folder: Path, offset: int):
        path = folder / "metrics.jsonl"
        size = path.stat().st_size if path.exists() else 0
        require(size >= offset, f"{path} lost rows: it has {size} bytes, the checkpoint counts on {offset}")
        timing = folder / "timing.jsonl"
        _begin_anew(path, offset)
        if timing.is_file():  # a full disk may have left half a row
            _begin_anew(timing, max((end for end, _ in whole_rows(timing.read_bytes())), default=0))
        self._metrics = open(path, "ab")  # noqa: SIM115 (closed with the run)
        self._timing = open(timing, "a")  # noqa: SIM115

    def write(self, row: dict[str, float], timing: dict[str, float]) -> None:
        check_writes()
        self._metrics.write((json.dumps(row) + "\n").encode())
        self._metrics.flush()
        self._timing.write(json.dumps(timing) + "\n")
        self._timing.flush()

    def secure(self) -> int:
        """Push everything to the disk; returns the length so far."""
        os.fsync(self._metrics.fileno())
        return self._metrics.tell()

    def close(self) -> None:
        self._metrics.close()
        self._timing.close()
