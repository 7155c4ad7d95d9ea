"""Arrays on disk: named leaves in safetensors, written under a temporary name and renamed.

A file is either the old one or the new one, never half of either, whenever the process dies.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from naht.config import parse_json
from naht.errors import Damaged, NahtError, one_line, require

PyTree = Any

TEMPORARY = ".tmp-"
"""Names with this prefix are unfinished and may be deleted."""


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def named_arrays(tree: PyTree) -> dict[str, np.ndarray]:
    """Leaves of a pytree by their path, as NumPy arrays. Random keys are stored as their data."""
    leaves, _ = jax.tree.flatten_with_path(tree)
    raw = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
    # Not np.ascontiguousarray: it turns scalars into vectors.
    return {k: np.asarray(jax.random.key_data(v) if _is_key(v) else v, order="C") for k, v in raw.items()}


def tree_like(template: PyTree, arrays: dict[str, np.ndarray], what: str) -> PyTree:
    """The inverse of `named_arrays`, for a template of arrays or `jax.ShapeDtypeStruct`s."""
    leaves, structure = jax.tree.flatten_with_path(template)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    if missing := [n for n in names if n not in arrays]:
        raise NahtError(
            f"{what} lacks {len(missing)} arrays, first '{missing[0]}': it was made for another architecture"
        )
    if extra := sorted(set(arrays) - set(names)):
        raise NahtError(f"{what} has {len(extra)} unexpected arrays, first '{extra[0]}'")
    result = []
    for name, (_, leaf) in zip(names, leaves, strict=True):
        array, is_key = arrays[name], _is_key(leaf)
        expected = jax.eval_shape(jax.random.key_data, leaf) if is_key else leaf
        if array.shape != expected.shape:
            raise NahtError(f"{what}: '{name}' has shape {array.shape}, expected {tuple(expected.shape)}")
        if array.dtype.kind != np.dtype(expected.dtype).kind:
            raise NahtError(f"{what}: '{name}' holds {array.dtype}, expected {expected.dtype}")
        value = jnp.asarray(array, expected.dtype)
        result.append(jax.random.wrap_key_data(value) if is_key else value)
    return jax.tree.unflatten(structure, result)


def digest(arrays: dict[str, np.ndarray]) -> str:
    """SHA-256 over names, types, shapes and contents."""
    h = hashlib.sha256()
    for name in sorted(arrays):
        a = arrays[name]
        h.update(f"{name}:{a.dtype.str}:{a.shape};".encode())
        h.update(a.tobytes())
    return h.hexdigest()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_US = f"{os.getpid()}-{secrets.token_hex(4)}"
"""Process numbers alone are not unique among machines that share a file system."""
_checks: ContextVar[tuple[Callable[[], None], ...]] = ContextVar("checks", default=())


@contextmanager
def writes_checked(check: Callable[[], None]) -> Iterator[None]:
    """In this block, `check` is called before anything is written for good, and may raise."""
    token = _checks.set((*_checks.get(), check))
    try:
        yield
    finally:
        _checks.reset(token)


def check_writes() -> None:
    """May something be written now? To be asked by whoever writes by other means than `write_file`."""
    for check in _checks.get():
        check()


def write_file(path: Path, content: bytes) -> None:
    """Replace a file in one move; after this returns, it survives a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{TEMPORARY}{_US}-{path.name}")
    try:
        with open(temporary, "wb") as f:
            f.write(content)
            f.flush()
            os.fsync(f.fileno())
        check_writes()
        try:
            os.replace(temporary, path)
        except FileNotFoundError:
            check_writes()  # whoever has taken over has deleted it
            raise
    except OSError as e:
        e.filename = e.filename or str(path)  # of a disk that is full, nobody says for what
        raise
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def write_arrays(path: Path, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> dict[str, Any]:
    """Save arrays with a JSON header in the same file in one move. Returns the header, now with a checksum."""
    # safetensors writes memory as it lies, so a transposed view would come back scrambled.
    arrays = {name: np.asarray(a, order="C") for name, a in arrays.items()}
    header = header | {"sha256": digest(arrays)}
    header |= {HEADER_SUM: _sum(header)}
    write_file(path, to_safetensors(arrays, metadata={"naht": json.dumps(header)}))
    return header


def read_arrays(path: Path, *, most: float = math.inf) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and header of a file from `write_arrays`. A missing, damaged or foreign file is one clear sentence.

    A file of more than `most` bytes is refused before it is read.
    """
    with _opened(path, most) as f:
        header = _header(f, path)
        arrays = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 (not a dict)
    if header.get("sha256") != digest(arrays):
        raise Damaged(f"{path} is damaged: its content does not match its checksum")
    return arrays, header


def read_header(path: Path) -> dict[str, Any]:
    """The header alone, at once however large the file is; nothing is verified."""
    with _opened(path) as f:
        return _header(f, path)


@contextmanager
def _opened(path: Path, most: float = math.inf) -> Iterator[Any]:
    """A safetensors file. What can't be read, and what is no such file, are different sentences."""
    if not path.is_file():
        raise NahtError(f"there is no file {path}")
    try:
        path.open("rb").close()  # what may not be read is not damaged
        size = path.stat().st_size
        require(size <= most, f"{path} has {size:,} bytes: a file of this kind has at most {most:,}")
        with safe_open(path, framework="numpy") as f:
            yield f
    except OSError as e:
        raise NahtError(f"can't read {path}: {e.strerror or e}") from e
    except (SafetensorError, ValueError, TypeError, KeyError) as e:
        raise Damaged(f"{path} is truncated or not a safetensors file ({one_line(e)})") from e


def _header(f: Any, path: Path) -> dict[str, Any]:
    metadata = f.metadata() or {}
    require("naht" in metadata, f"{path} was not written by naht: it has no header of ours")
    try:
        header = parse_json(metadata["naht"], f"the header of {path}")
    except NahtError as e:
        raise Damaged(str(e)) from e
    require(isinstance(header, dict), f"the header of {path} is no JSON object")
    if header.get(HEADER_SUM, _sum(header)) != _sum(header):  # files of before have none
        raise Damaged(f"{path} is damaged: its header does not match its checksum")
    return header


HEADER_SUM = "header_sha256"


def _sum(header: dict[str, Any]) -> str:
    text = json.dumps({k: v for k, v in header.items() if k != HEADER_SUM}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def check_weights(arrays: dict[str, np.ndarray], what: str) -> None:
    """Weights of a network are finite floating-point numbers."""
    for name, array in arrays.items():
        require(array.dtype.kind == "f", f"{what}: '{name}' holds {array.dtype}, not floating-point numbers")
        require(bool(np.isfinite(array).all()), f"{what}: '{name}' has numbers that are not finite")


def check_output(path: Path, *, folder: bool = False) -> None:
    """Can this file, or folder of files, be written? To be asked before any work whose results go there."""
    try:
        if folder:
            require(path.is_dir() or not path.exists(), f"can't write to {path}: it is a file")
        else:
            require(not path.is_dir(), f"can't write {path}: it is a folder")
        there = path
        while not there.exists():
            there = there.parent
        inside = there if there.is_dir() else there.parent
        require(inside.is_dir(), f"can't write {path}: {inside} is a file")
        require(there == path or there.is_dir(), f"can't write {path}: {there} is a file")
        require(os.access(inside, os.W_OK | os.X_OK), f"can't write {path}: no permission to write in {inside}")
    except OSError as e:
        raise NahtError(f"can't write {path}: {e.strerror}") from e


def saved(write: Callable[[Path], object], path: Path) -> Path:
    """Write results to a file or folder by `write(path)`. Where that fails they are not lost: they go to a temporary
    folder, and the user is told."""
    try:
        write(path)
    except OSError as e:
        elsewhere = Path(tempfile.mkdtemp(prefix="naht-")) / path.name
        write(elsewhere)
        print(f"naht: can't write {path} ({e.strerror}): saved as {elsewhere}", file=sys.stderr)
        return elsewhere
    return path


def remove_unfinished(folder: Path) -> None:
    """Delete what a killed process left half-written."""
    for path in folder.rglob(f"{TEMPORARY}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
