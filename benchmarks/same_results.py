"""What two folders of results must have in common: everything but times. For soak.py and lost_machine.py."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from naht.storage import TEMPORARY, digest, read_arrays

QUICK = (
    "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 "
    "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)
"""Programs that compile fast: what they compute is not the point."""
CLOCKS = ("timing.jsonl", "progress.log", "clock.csv.gz", "report.html")
"""Files that hold times, or the number of kills: another content every time."""


def content_of(path: Path) -> bytes | None:
    """What must be equal of a file; None: nothing."""
    if path.name in CLOCKS or path.name.startswith((".lock", ".lease", ".shared")):  # who is at it, and on what cluster
        return None
    if path.name == "node.json":
        record = json.loads(path.read_bytes())
        return json.dumps({k: v for k, v in record.items() if k not in ("seconds", "finished")}).encode()
    if path.name == "state.safetensors":  # its header knows how long it took; arrays are read and verified
        return digest(read_arrays(path)[0]).encode()
    return path.read_bytes()


def fingerprints(folder: Path) -> dict[str, str]:
    """By file, a hash of what must be equal. A file that can't be read is as bad as another one."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith(TEMPORARY):
            try:
                content = content_of(path)
            except Exception as e:
                content = f"can't be read: {e}".encode()
            if content is not None:
                found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return found


def differences(whole: dict[str, str], found: dict[str, str]) -> list[str]:
    """What is missing, what is too much, what is another, one line each."""
    lines = [f"{name} is missing" for name in whole if name not in found]
    lines += [f"{name} should not be there" for name in found if name not in whole]
    return lines + [f"{name} is another" for name in whole if name in found and found[name] != whole[name]]
